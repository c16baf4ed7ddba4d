//! The one reading of a request's path that routes are matched with.
//!
//! Called by `site.rs` for each request. Handlers get the path as it was sent; whoever stands behind them may decode it
//! once more or fold its dots. So whatever could lead there to another place than the one whose rules were applied is
//! refused: dot segments in every spelling, bad escapes and NUL. An encoded slash counts as a slash, an empty segment not
//! at all: `//admin` and `/%61dmin` are `/admin`.

use std::borrow::Cow;

use osier_web::percent_decode;

/// The path in the form in which routes are written; `None` for a path that is refused.
///
/// Allocates nothing for a path without escapes and empty segments.
pub fn plain(path: &str) -> Option<Cow<'_, [u8]>> {
    let bytes = path.as_bytes();
    let mut before = 0;
    for &byte in bytes {
        if byte == b'%' || (before == b'/' && matches!(byte, b'/' | b'.')) {
            return unfold(bytes).map(Cow::Owned);
        }
        before = byte;
    }
    Some(Cow::Borrowed(bytes))
}

#[cold]
fn unfold(bytes: &[u8]) -> Option<Vec<u8>> {
    let decoded = percent_decode(bytes).filter(|decoded| !decoded.contains(&0))?;
    let mut path = Vec::with_capacity(decoded.len());
    for segment in decoded.split(|&byte| byte == b'/') {
        match segment {
            b"" => {}
            b"." | b".." => return None,
            _ => {
                path.push(b'/');
                path.extend_from_slice(segment);
            }
        }
    }
    if decoded.ends_with(b"/") {
        path.push(b'/');
    }
    Some(path)
}

/// Whether `path` is `prefix`, which does not end with a slash, or lies below it.
#[inline]
pub fn is_below(path: &[u8], prefix: &str) -> bool {
    path.strip_prefix(prefix.as_bytes())
        .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reading_for_all_spellings() {
        for (path, expected) in [
            ("/", "/"),
            ("/a/b.c", "/a/b.c"),
            ("/a/", "/a/"),
            ("//a///b//", "/a/b/"),
            ("/%61dmin", "/admin"),
            ("/a%2Fb", "/a/b"),
            ("/a%2F%2fb", "/a/b"),
            ("/.well-known/x", "/.well-known/x"),
            ("/...", "/..."),
            ("/a%20b", "/a b"),
            ("//", "/"),
        ] {
            let found = plain(path).unwrap();
            assert_eq!(String::from_utf8_lossy(&found), expected, "{path}");
        }
        assert!(matches!(plain("/a/b.c"), Some(Cow::Borrowed(_))));
    }

    #[test]
    fn what_could_mean_two_places_is_refused() {
        for path in [
            "/..",
            "/.",
            "/a/../b",
            "/a/./b",
            "/a/%2e%2e/b",
            "/a/.%2E",
            "/a%2f..%2fb",
            "/%00",
            "/a%",
            "/a%2",
            "/a%zz",
            "/a%+1",
        ] {
            assert!(plain(path).is_none(), "{path}");
        }
    }

    #[test]
    fn prefixes_end_with_a_segment() {
        for (path, prefix, expected) in [
            ("/api", "/api", true),
            ("/api/", "/api", true),
            ("/api/x", "/api", true),
            ("/apis", "/api", false),
            ("/", "/api", false),
        ] {
            assert_eq!(is_below(path.as_bytes(), prefix), expected, "{path} {prefix}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_plain_path_is_its_own_reading(path in "/([ab./]|%2[eEfF]|%61){0,20}") {
            let Some(once) = plain(&path) else { return Ok(()) };
            let once = String::from_utf8(once.into_owned()).unwrap();
            assert_eq!(plain(&once).as_deref(), Some(once.as_bytes()));
        }
    }
}
