//! The path of a request as routes, globs and rewrite rules see it.
//!
//! [`Path`] reads it, as it does for every handler, and says what each spelling means. Routes compare the path as text: decoded,
//! but for `%2F` and `%25`, which stay. A backend may still take `%2F` for a slash. So a path that would choose another route or
//! rule in that reading is refused: [`with_slashes_decoded`] gives the other reading to compare with.

use std::borrow::Cow;

use osier_web::path::{BadPath, Path};

/// The path as text.
///
/// Allocates nothing for a path that was sent in its canonical form.
///
/// # Errors
/// [`BadPath`], for a path that is answered by 400.
#[inline]
pub fn text(path: &str) -> Result<Cow<'_, [u8]>, BadPath> {
    let read = Path::parse(path)?;
    Ok(match read.text() {
        Cow::Borrowed(_) if read.is_as_sent() => Cow::Borrowed(path.as_bytes()),
        text => Cow::Owned(text.into_owned()),
    })
}

/// The text for a reader that takes `%2F` for a slash; `None` where that is the same.
#[cold]
pub fn with_slashes_decoded(path: &str) -> Option<Vec<u8>> {
    let other = Path::parse(path).ok()?.with_slashes_decoded()?;
    text(&other).ok().map(Cow::into_owned)
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
