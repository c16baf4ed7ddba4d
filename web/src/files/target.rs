//! Reads the path of a request into a file name below the root.
//!
//! This module makes no system call. [`Path`] reads the path, so the name is decoded once and has
//! no empty segment, dot segment or control character. No segment contains a slash or backslash
//! either. `root.rs` checks the same boundary a second time, with the kernel's help.

use osier_http::path::Path;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// The characters that are percent-encoded in a path segment: all but RFC 3986's "unreserved". A
/// colon is encoded, because a file named `javascript:x` would otherwise make a link with a scheme.
pub const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The one folder with a leading dot that is public (RFC 8615).
const WELL_KNOWN: &str = ".well-known";

/// A file or folder below the root, as the client named it.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Target {
    /// Segments joined by `/`, without a leading or trailing slash. Empty for the root itself.
    pub name: Vec<u8>,
    /// Whether the path ends in `/`. Such a path can only name a folder.
    pub folder: bool,
}

/// Why a path names no file.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Refusal {
    /// [`Path`] refuses the path. Status 400.
    Malformed,
    /// The path is well-formed, but no served file can have it: a dotfile, or a name with a
    /// backslash or an encoded slash. Status 404.
    Hidden,
}

impl Target {
    /// Reads the path of a request target, without its query. Names that begin with a dot are
    /// refused unless `hidden` is true.
    pub fn parse(path: &str, hidden: bool) -> Result<Target, Refusal> {
        let path = Path::parse(path).map_err(|_| Refusal::Malformed)?;
        let is_shown = |(depth, name): (usize, &str)| !name.starts_with('.') || (depth == 0 && name == WELL_KNOWN);
        let mut names = path.segments().map(|segment| segment.canonical()).enumerate();
        if !hidden && !names.all(is_shown) {
            return Err(Refusal::Hidden);
        }
        Ok(Target {
            name: path.file_name().ok_or(Refusal::Hidden)?.into_owned(),
            folder: path.is_folder(),
        })
    }

    /// Returns this path in its canonical spelling, with a trailing slash. It is the redirect of
    /// `/dir`. It starts with exactly one slash, so no client reads it as the address of another
    /// host.
    pub fn folder_url(&self) -> String {
        let mut url = String::from("/");
        for segment in self
            .name
            .split(|&byte| byte == b'/')
            .filter(|segment| !segment.is_empty())
        {
            url.extend(percent_encode(segment, SEGMENT));
            url.push('/');
        }
        url
    }

    /// Whether the last segment looks like `name.ext`. Such a path names a file, never a page of a
    /// single-page application.
    pub fn has_extension(&self) -> bool {
        let last = self.name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        !self.folder && last.contains(&b'.')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(path: &str) -> Result<(String, bool), Refusal> {
        Target::parse(path, false).map(|target| (String::from_utf8(target.name).unwrap(), target.folder))
    }

    #[test]
    fn paths_become_names() {
        for (path, expected, folder) in [
            ("/", "", true),
            ("/a", "a", false),
            ("/a/", "a", true),
            ("/a/b.txt", "a/b.txt", false),
            ("//a///b", "a/b", false),
            ("/a%20b", "a b", false),
            ("/%C3%A4", "ä", false),
            ("/a%252fb", "a%2fb", false),
            ("/%252e%252e/x", "%2e%2e/x", false),
            ("/.well-known/acme", ".well-known/acme", false),
            ("/a+b", "a+b", false),
        ] {
            assert_eq!(name(path), Ok((expected.to_string(), folder)), "{path}");
        }
    }

    #[test]
    fn paths_that_name_nothing() {
        for (path, expected) in [
            ("", Refusal::Malformed),
            ("*", Refusal::Malformed),
            ("a", Refusal::Malformed),
            ("/..", Refusal::Malformed),
            ("/a/../b", Refusal::Malformed),
            ("/a/.", Refusal::Malformed),
            ("/a/../../b", Refusal::Malformed),
            ("/%2e%2e/etc/passwd", Refusal::Malformed),
            ("/a%00b", Refusal::Malformed),
            ("/a%", Refusal::Malformed),
            ("/a%2", Refusal::Malformed),
            ("/a%zz", Refusal::Malformed),
            ("/a%+1", Refusal::Malformed),
            ("/..%2fetc%2fpasswd", Refusal::Malformed),
            ("/..%5cetc", Refusal::Malformed),
            ("/a%2fb", Refusal::Hidden),
            ("/a\\b", Refusal::Hidden),
            ("/.env", Refusal::Hidden),
            ("/...", Refusal::Hidden),
            ("/.git/config", Refusal::Hidden),
            ("/a/%2egit", Refusal::Hidden),
            ("/a/.well-known/x", Refusal::Hidden),
        ] {
            assert_eq!(name(path), Err(expected), "{path}");
        }
    }

    #[test]
    fn redirects_stay_on_this_host() {
        for (path, expected) in [
            ("//evil.example", "/evil.example/"),
            ("///evil.example", "/evil.example/"),
            ("/a b", "/a%20b/"),
            ("/javascript%3ax", "/javascript%3Ax/"),
            ("/", "/"),
        ] {
            assert_eq!(Target::parse(path, false).unwrap().folder_url(), expected, "{path}");
        }
    }

    #[test]
    fn extensions() {
        for (path, expected) in [
            ("/app", false),
            ("/a.b/app", false),
            ("/app.css", true),
            ("/a.b/", false),
            ("/", false),
        ] {
            assert_eq!(Target::parse(path, false).unwrap().has_extension(), expected, "{path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_in_a_clean_name_goes_out(path in "/([a.%/\\\\ :\u{e4}]|%2[eEfF]|%5c|%00|%25){0,24}") {
            let Ok(target) = Target::parse(&path, false) else { return Ok(()) };
            let segments: Vec<&[u8]> = target.name.split(|&byte| byte == b'/').collect();
            let clean = |segment: &&[u8]| {
                !segment.is_empty() && segment[0] != b'.' && !segment.contains(&0) && !segment.contains(&b'\\')
            };
            assert!(target.name.is_empty() || segments.iter().all(clean), "{target:?}");
            let url = target.folder_url();
            assert!(url.starts_with('/') && !url.starts_with("//") && url.is_ascii(), "{url}");
            assert_eq!(Target::parse(&url, false), Ok(Target { folder: true, ..target }));
        }
    }
}
