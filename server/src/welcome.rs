//! The site that is served when no folder is named: one page inside the binary.
//!
//! Called by `main.rs`. The page asks for nothing else, and its policy makes sure of it.

use crate::resource::Resource;

const PAGE: &str = include_str!("welcome.html");

/// The page, ready to be served.
pub fn page() -> Resource {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";
    Resource::embedded(
        PAGE.as_bytes(),
        "text/html; charset=utf-8",
        &[("content-security-policy", policy)],
    )
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
        assert_eq!(page().plain.length(), PAGE.len() as u64);
    }
}
