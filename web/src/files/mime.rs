//! The Content-Type of a file, chosen only by the extension of its name. The content is never
//! inspected.
//!
//! Text types carry `charset=utf-8`, because browsers otherwise fall back to a legacy encoding.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::InvalidSetting;

/// The suffix that stands for every name without a type.
const ANY: &str = "*";

/// Types of files by the ends of their names, beside the built-in list and before it.
///
/// ```
/// use osier_web::files::{Files, Options, Types};
///
/// let mut types = Types::default();
/// types.set("tar.gz", "application/x-gtar")?;
/// types.set("*", "text/plain")?; // names that neither these types nor the built-in ones know
/// assert!(types.set("html", "text").is_err());
/// let files = Files::with(".", Options { types, ..Options::default() });
/// # assert!(files.is_ok());
/// # Ok::<(), osier_web::InvalidSetting>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Types(
    /// Suffixes in lower case, without their first dot, and the values of the field. The longest suffixes come first.
    Vec<(Box<str>, Box<str>)>,
);

impl Types {
    /// No types beside the built-in ones.
    #[cfg(test)]
    pub(crate) const NONE: Types = Types(Vec::new());

    /// Sets the type of the names that end with a dot and `suffix`, without regard to case; a dot at its beginning changes nothing. The
    /// longest of several suffixes counts. `*` is for the names that have no type otherwise. UTF-8 is added to a `content_type` of
    /// text that has no parameter, as to built-in ones.
    ///
    /// # Errors
    ///
    /// One line: a suffix that is empty, or has a slash, a control character or a `*` among others, or that has a type already; a
    /// type without its slash, or with characters that HTTP does not allow.
    pub fn set(&mut self, suffix: &str, content_type: &str) -> Result<(), InvalidSetting> {
        let plain = suffix.strip_prefix('.').unwrap_or(suffix).to_ascii_lowercase();
        let is_any = suffix == ANY;
        let why = match &*plain {
            "" => Some("it is empty"),
            _ if !is_any && plain.contains(['/', '*']) || plain.contains(char::is_control) => {
                Some("it is the end of a name, without '/', '*' and control characters")
            }
            _ if plain.ends_with('.') => Some("it ends with a dot"),
            _ => None,
        };
        if let Some(why) = why {
            let suffix = suffix.escape_debug();
            return Err(InvalidSetting::new(format!(
                "'{suffix}' cannot be a suffix: {why}; write \"md\" or \"tar.gz\" for example, or \"*\" for names without a type"
            )));
        }
        if self.0.iter().any(|(known, _)| **known == *plain) {
            return Err(InvalidSetting::new(format!("the suffix '{plain}' has a type already")));
        }
        let content_type = checked(content_type)?;
        self.0.push((plain.into(), content_type.into()));
        self.sort();
        Ok(())
    }

    /// These types, and those of `others` for suffixes that have none here.
    #[must_use]
    pub fn over(&self, others: &Types) -> Types {
        let is_free = |other: &&(Box<str>, Box<str>)| !self.0.iter().any(|(known, _)| *known == other.0);
        let mut both = Types(self.0.iter().chain(others.0.iter().filter(is_free)).cloned().collect());
        both.sort();
        both
    }

    /// Puts the longest suffixes first. Equal types are then equal values, whatever their order was.
    fn sort(&mut self) {
        self.0
            .sort_by(|(one, _), (other, _)| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
    }

    /// The type of a name by its suffix.
    fn of(&self, name: &Path) -> Option<&str> {
        let name = name.file_name()?.as_bytes();
        // Something stands before the dot: a name that begins with it has no suffix.
        let ends = |suffix: &str| {
            let before = name.len().checked_sub(suffix.len() + 1).filter(|before| *before > 0)?;
            let (dot, end) = name[before..].split_first()?;
            (*dot == b'.' && end.eq_ignore_ascii_case(suffix.as_bytes())).then_some(())
        };
        let found = self.0.iter().find(|(suffix, _)| ends(suffix).is_some());
        found.map(|(_, content_type)| &**content_type)
    }

    /// The type of names that have no other.
    fn any(&self) -> Option<&str> {
        let found = self.0.iter().find(|(suffix, _)| **suffix == *ANY);
        found.map(|(_, content_type)| &**content_type)
    }
}

/// Returns the field value for `name`. Unknown extensions, and names without one, are
/// `application/octet-stream`.
pub fn content_type(name: &Path, types: &Types) -> String {
    if let Some(own) = types.of(name) {
        return own.to_owned();
    }
    let guess = mime_guess::from_path(name).first_raw();
    // The registered names of types that the table of the crate calls otherwise.
    with_charset(match guess {
        None => return types.any().unwrap_or("application/octet-stream").to_owned(),
        Some("application/javascript") => "text/javascript",
        Some("application/font-sfnt") => "font/otf",
        Some("application/font-woff") => "font/woff",
        Some("audio/m4a") => "audio/mp4",
        // Lists of stations (m3u) have kept that name.
        Some("audio/x-mpegurl") if name.extension().is_some_and(|end| end.eq_ignore_ascii_case("m3u8")) => {
            "application/vnd.apple.mpegurl"
        }
        Some("video/vnd.dlna.mpeg-tts") => "video/mp2t",
        Some(guess) => guess,
    })
}

/// The field value for a type, with the encoding of text that has no parameter.
fn with_charset(mime: &str) -> String {
    match is_text(&mime.to_ascii_lowercase()) {
        true => format!("{mime}; charset=utf-8"),
        false => mime.to_owned(),
    }
}

/// Checks a type that an application sets. Returns the field value.
fn checked(text: &str) -> Result<String, InvalidSetting> {
    let text = text.trim_matches([' ', '\t']);
    let token = |text: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !text.is_empty() && text.bytes().all(is_allowed)
    };
    let (essence, parameters) = match text.split_once(';') {
        Some((essence, parameters)) => (essence.trim_end(), Some(parameters)),
        None => (text, None),
    };
    let is_type = essence
        .split_once('/')
        .is_some_and(|(kind, subtype)| token(kind) && token(subtype));
    if !is_type {
        let why = "a type is written KIND/NAME, \"text/plain\" for example";
        return Err(InvalidSetting::new(why));
    }
    let Some(parameters) = parameters else {
        return Ok(with_charset(text));
    };
    let is_printable = parameters.chars().all(|char| matches!(char, ' '..='~'));
    // A semicolon may stand in a quoted value.
    let named = |part: &str| {
        part.split_once('=')
            .is_some_and(|(name, value)| token(name.trim_start()) && !value.is_empty())
    };
    if !is_printable || !(parameters.contains('"') || parameters.split(';').all(named)) {
        let why = "behind the ';' of a type stands NAME=VALUE, \"text/plain; charset=utf-8\" for example";
        return Err(InvalidSetting::new(why));
    }
    Ok(text.to_owned())
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
            assert_eq!(content_type(Path::new(name), &Types::NONE), expected, "{name}");
        }
    }

    #[test]
    fn types_of_an_application_come_first() {
        let mut types = Types::default();
        for (suffix, mime) in [
            ("gz", "application/x-gzip"),
            (".TAR.gz", "application/x-gtar"),
            ("js", "application/javascript"),
            ("md", "Text/plain"),
            ("old", "text/plain; charset=iso-8859-1"),
            ("geojson", "application/geo+json"),
            ("*", "text/plain"),
        ] {
            types.set(suffix, mime).unwrap();
        }
        for (name, expected) in [
            ("a.gz", "application/x-gzip"),
            ("a.tar.gz", "application/x-gtar"),
            ("tar.gz", "application/x-gzip"),
            ("A.TAR.GZ", "application/x-gtar"),
            ("a.js", "application/javascript"),
            ("a.md", "Text/plain; charset=utf-8"),
            (".md", "text/plain; charset=utf-8"),
            ("dir.gz/b.md", "Text/plain; charset=utf-8"),
            ("dir.md/LICENSE", "text/plain; charset=utf-8"),
            ("a.old", "text/plain; charset=iso-8859-1"),
            ("a.geojson", "application/geo+json; charset=utf-8"),
            ("a.html", "text/html; charset=utf-8"),
            ("a.unheard-of", "text/plain; charset=utf-8"),
            ("", "text/plain; charset=utf-8"),
        ] {
            assert_eq!(content_type(Path::new(name), &types), expected, "{name}");
        }
        let mut route = Types::default();
        route.set("md", "text/markdown").unwrap();
        let both = route.over(&types);
        assert_eq!(content_type(Path::new("a.md"), &both), "text/markdown; charset=utf-8");
        assert_eq!(content_type(Path::new("a.tar.gz"), &both), "application/x-gtar");
    }

    #[test]
    fn suffixes_and_types_that_are_none_are_refused() {
        let mut types = Types::default();
        types.set(".md", "text/plain").unwrap();
        for (suffix, mime, part) in [
            ("", "text/plain", "it is empty"),
            (".", "text/plain", "it is empty"),
            ("a/b", "text/plain", "the end of a name"),
            ("*.md", "text/plain", "the end of a name"),
            ("a\nb", "text/plain", "the end of a name"),
            ("md.", "text/plain", "ends with a dot"),
            ("MD", "text/plain", "has a type already"),
            ("a", "text", "KIND/NAME"),
            ("a", "", "KIND/NAME"),
            ("a", "text/", "KIND/NAME"),
            ("a", "text/a b", "KIND/NAME"),
            ("a", "text/plain\r\nX: y", "KIND/NAME"),
            ("a", "text/plain;", "NAME=VALUE"),
            ("a", "text/plain; utf-8", "NAME=VALUE"),
            ("a", "text/plain; charset=utf-8\n", "NAME=VALUE"),
            ("a", "text/plain; charset=\u{e4}", "NAME=VALUE"),
        ] {
            let why = types.set(suffix, mime).unwrap_err().to_string();
            assert!(why.contains(part), "{suffix:?} {mime:?}: {why}");
        }
        types.set("a", "multipart/mixed; boundary=\"a;b\"").unwrap();
    }
}
