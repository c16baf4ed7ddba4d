//! The site that is served when no folder is named: one page inside the binary.
//!
//! Called by `serve.rs`. The page asks for nothing else, and its policy makes sure of it.

use std::io;

use osier_web::files::{Files, Options};

const PAGE: &str = include_str!("welcome.html");

const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// The site, with further fields for every answer.
///
/// # Errors
/// For a field that HTTP does not allow.
pub fn site(mut headers: Vec<(String, String)>) -> io::Result<Files> {
    headers.push(("content-security-policy".into(), POLICY.into()));
    let page = |path| (path, "text/html; charset=utf-8", PAGE.as_bytes());
    let options = Options {
        headers,
        ..Options::default()
    };
    Files::embedded_with([page("/"), page("/index.html")], options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_stands_alone() {
        assert!(PAGE.len() < 16 * 1024, "{} bytes", PAGE.len());
        for outside in ["src=\"http", "url(http", "@import", "<script", "<iframe", "src=\"/"] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
        for needed in [
            "<meta name=\"viewport\"",
            "<html lang=",
            "color-scheme",
            "osier ./public",
            "README.md",
            "ARCHITECTURE.md",
        ] {
            assert!(PAGE.contains(needed), "{needed}");
        }
        assert!(site(Vec::new()).is_ok());
    }
}
