//! From the path of a request target to the name of a file below the root, by bytes alone.
//!
//! Called by `answer.rs` for each path the cache does not know. No file system is asked here: what comes out holds no
//! empty, `.` or `..` segment, no NUL and no backslash, and is decoded exactly once. `root.rs` guards the same border a
//! second time, in the kernel.
//!
//! Source: RFC 3986 sections 2.1 (percent-encoding) and 5.2.4 (dot segments), with one difference: a path that climbs
//! above its root is refused instead of clamped, because no client sends one by accident.

use osier_http::percent_decode;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// Bytes that stand for themselves in a path segment we write: RFC 3986 "unreserved". A colon is encoded, or
/// `javascript:x` as a file name would be a link with a scheme.
pub const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The one folder with a leading dot that is meant to be read by strangers (RFC 8615).
const WELL_KNOWN: &[u8] = b".well-known";

/// A file or folder below the root, as the client named it.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Target {
    /// Segments joined by `/`, without a leading or trailing one; empty for the root itself.
    pub name: Vec<u8>,
    /// The path ended in `/` (or in a dot segment): it can only mean a folder.
    pub folder: bool,
}

/// Why a path names nothing of ours.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Refusal {
    /// Not a path: a bad escape, a NUL, a climb above the root, no leading slash. Status 400.
    Malformed,
    /// A well-formed path that no served file can have: a dotfile, a backslash or an encoded slash inside a name.
    /// Status 404.
    Hidden,
}

impl Target {
    /// Parses the path of a target, without its query. Names that begin with a dot are refused unless `hidden`.
    pub fn parse(path: &[u8], hidden: bool) -> Result<Target, Refusal> {
        let rest = path.strip_prefix(b"/").ok_or(Refusal::Malformed)?;
        let mut segments: Vec<Vec<u8>> = Vec::new();
        let mut folder = true;
        for raw in rest.split(|&byte| byte == b'/') {
            let segment = percent_decode(raw).ok_or(Refusal::Malformed)?;
            folder = false;
            match segment.as_slice() {
                b"" | b"." => folder = true,
                b".." => {
                    segments.pop().ok_or(Refusal::Malformed)?;
                    folder = true;
                }
                _ => segments.push(segment),
            }
        }
        for (depth, segment) in segments.iter().enumerate() {
            if segment.contains(&0) {
                return Err(Refusal::Malformed);
            }
            let dotfile = !hidden && segment[0] == b'.' && !(depth == 0 && segment == WELL_KNOWN);
            if dotfile || segment.contains(&b'\\') || segment.contains(&b'/') {
                return Err(Refusal::Hidden);
            }
        }
        Ok(Target {
            name: segments.join(&b'/'),
            folder,
        })
    }

    /// The one spelling of this path with a trailing slash: what `/dir` is redirected to. It starts with exactly one
    /// slash, so it can never be read as another host's address.
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

    /// Whether the last segment looks like `name.ext`: such a path means a file, never a page of a single-page
    /// application.
    pub fn has_extension(&self) -> bool {
        let last = self.name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        !self.folder && last.contains(&b'.')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(path: &str) -> Result<(String, bool), Refusal> {
        Target::parse(path.as_bytes(), false).map(|target| (String::from_utf8(target.name).unwrap(), target.folder))
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
            ("/a/./b", "a/b", false),
            ("/a/../b", "b", false),
            ("/a/%2e%2E/b", "b", false),
            ("/a/..", "", true),
            ("/a/.", "a", true),
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
            ("/a/../../b", Refusal::Malformed),
            ("/%2e%2e/etc/passwd", Refusal::Malformed),
            ("/a%00b", Refusal::Malformed),
            ("/a%", Refusal::Malformed),
            ("/a%2", Refusal::Malformed),
            ("/a%zz", Refusal::Malformed),
            ("/a%+1", Refusal::Malformed),
            ("/..%2fetc%2fpasswd", Refusal::Hidden),
            ("/..%5cetc", Refusal::Hidden),
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
            ("/a%0d%0ax", "/a%0D%0Ax/"),
            ("/javascript%3ax", "/javascript%3Ax/"),
            ("/", "/"),
        ] {
            assert_eq!(
                Target::parse(path.as_bytes(), false).unwrap().folder_url(),
                expected,
                "{path}"
            );
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
            assert_eq!(
                Target::parse(path.as_bytes(), false).unwrap().has_extension(),
                expected,
                "{path}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_in_a_clean_name_goes_out(path in "/([a.%/\\\\ :\u{e4}]|%2[eEfF]|%5c|%00|%25){0,24}") {
            let Ok(target) = Target::parse(path.as_bytes(), false) else { return Ok(()) };
            let segments: Vec<&[u8]> = target.name.split(|&byte| byte == b'/').collect();
            let clean = |segment: &&[u8]| {
                !segment.is_empty() && segment[0] != b'.' && !segment.contains(&0) && !segment.contains(&b'\\')
            };
            assert!(target.name.is_empty() || segments.iter().all(clean), "{target:?}");
            let url = target.folder_url();
            assert!(url.starts_with('/') && !url.starts_with("//") && url.is_ascii(), "{url}");
            assert_eq!(Target::parse(url.as_bytes(), false), Ok(Target { folder: true, ..target }));
        }
    }
}
