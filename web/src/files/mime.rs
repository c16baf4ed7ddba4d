//! The Content-Type of a file, chosen only by the extension of its name. The content is never
//! inspected.
//!
//! Text types carry `charset=utf-8`, because browsers otherwise fall back to a legacy encoding.

use std::path::Path;

/// Returns the field value for `name`. Unknown extensions, and names without one, are
/// `application/octet-stream`.
pub fn content_type(name: &Path) -> String {
    let guess = mime_guess::from_path(name)
        .first_raw()
        .unwrap_or("application/octet-stream");
    // The registered names of types that the table of the crate calls otherwise.
    let guess = match guess {
        "application/javascript" => "text/javascript",
        "application/font-sfnt" => "font/otf",
        "application/font-woff" => "font/woff",
        "audio/m4a" => "audio/mp4",
        // Lists of stations (m3u) have kept that name.
        "audio/x-mpegurl" if name.extension().is_some_and(|end| end.eq_ignore_ascii_case("m3u8")) => {
            "application/vnd.apple.mpegurl"
        }
        "video/vnd.dlna.mpeg-tts" => "video/mp2t",
        guess => guess,
    };
    if is_text(guess) {
        format!("{guess}; charset=utf-8")
    } else {
        guess.to_string()
    }
}

/// Whether a type is UTF-8 text by its definition or by universal custom.
fn is_text(mime: &str) -> bool {
    mime.starts_with("text/")
        || mime.ends_with("+xml")
        || mime.ends_with("+json")
        || matches!(mime, "application/json" | "application/xml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_the_web() {
        for (name, expected) in [
            ("index.html", "text/html; charset=utf-8"),
            ("INDEX.HTM", "text/html; charset=utf-8"),
            ("a.css", "text/css; charset=utf-8"),
            ("a.js", "text/javascript; charset=utf-8"),
            ("a.mjs", "text/javascript; charset=utf-8"),
            ("a.json", "application/json; charset=utf-8"),
            ("a.svg", "image/svg+xml; charset=utf-8"),
            ("a.xml", "text/xml; charset=utf-8"),
            ("a.txt", "text/plain; charset=utf-8"),
            ("a.md", "text/markdown; charset=utf-8"),
            ("a.webmanifest", "application/manifest+json; charset=utf-8"),
            ("a.wasm", "application/wasm"),
            ("a.png", "image/png"),
            ("a.jpeg", "image/jpeg"),
            ("a.webp", "image/webp"),
            ("a.avif", "image/avif"),
            ("a.ico", "image/x-icon"),
            ("a.woff", "font/woff"),
            ("a.woff2", "font/woff2"),
            ("a.otf", "font/otf"),
            ("a.m4a", "audio/mp4"),
            ("a.m3u", "audio/x-mpegurl"),
            ("a.m3u8", "application/vnd.apple.mpegurl"),
            ("A.M3U8", "application/vnd.apple.mpegurl"),
            ("a.ts", "video/mp2t"),
            ("a.pdf", "application/pdf"),
            ("a.mp4", "video/mp4"),
            ("a.js.gz", "application/gzip"),
            ("a.unheard-of", "application/octet-stream"),
            ("LICENSE", "application/octet-stream"),
            ("", "application/octet-stream"),
        ] {
            assert_eq!(content_type(Path::new(name)), expected, "{name}");
        }
    }
}
