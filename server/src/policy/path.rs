//! The text of a request's path, which routes, globs and rewrite rules compare.
//!
//! [`Path`] parses a path and defines what each spelling means. Routes compare its text: decoded, except `%2F` and `%25`,
//! which stay. A backend may still read `%2F` as a slash. So a path is refused if that reading would choose another route or
//! rule. [`with_slashes_decoded`] returns that reading.

use std::borrow::Cow;

use osier_web::path::{BadPath, Path};

/// The text of a path.
///
/// Allocates nothing for a path that was sent in its canonical form.
///
/// # Errors
/// [`BadPath`], for a path that gets a 400.
#[inline]
pub fn text(path: &str) -> Result<Cow<'_, [u8]>, BadPath> {
    let read = Path::parse(path)?;
    Ok(match read.text() {
        Cow::Borrowed(_) if read.is_as_sent() => Cow::Borrowed(path.as_bytes()),
        text => Cow::Owned(text.into_owned()),
    })
}

/// The text of a path with `%2F` read as a slash. None if it is the same.
#[cold]
pub fn with_slashes_decoded(path: &str) -> Option<Vec<u8>> {
    let other = Path::parse(path).ok()?.with_slashes_decoded()?;
    text(&other).ok().map(Cow::into_owned)
}

/// Whether `path` is `prefix`, or lies below it. `prefix` does not end with a slash.
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
            ("//a///b//", "/a/b/"),
            ("/%61dmin", "/admin"),
            ("/a%2fb", "/a%2Fb"),
            ("/100%25", "/100%25"),
            ("/caf%c3%a9", "/café"),
            ("/a%20b", "/a b"),
        ] {
            assert_eq!(String::from_utf8_lossy(&text(path).unwrap()), expected, "{path}");
        }
        assert!(matches!(text("/a/b.c"), Ok(Cow::Borrowed(_))));
        assert_eq!(text("/a/%2e%2e/b"), Err(BadPath::DotSegment));
        assert_eq!(with_slashes_decoded("/%61%2F%2fb").as_deref(), Some(&b"/a/b"[..]));
        assert_eq!(with_slashes_decoded("/a/b%252F"), None);
    }

    #[test]
    fn prefixes_end_with_a_segment() {
        for (path, prefix, expected) in [
            ("/api", "/api", true),
            ("/api/", "/api", true),
            ("/api/x", "/api", true),
            ("/apis", "/api", false),
            ("/api%2Fx", "/api", false),
            ("/", "/api", false),
        ] {
            assert_eq!(is_below(path.as_bytes(), prefix), expected, "{path} {prefix}");
        }
    }
}
