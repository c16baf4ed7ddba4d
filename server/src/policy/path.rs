//! The text of a request's path, which routes, globs and rewrite rules are matched against.
//!
//! [`Path`] parses a path and defines what each spelling means. Routes compare its text: decoded, except `%2F` and
//! `%25`, which stay. A backend may still read `%2F` as a slash, and servers for Java drop the parameters of a segment,
//! from `;` on. So a path is refused if such a reading would choose another route or rule. [`other_readings`] returns
//! these readings.

use std::borrow::Cow;

use osier_web::path::{BadPath, Path};
use percent_encoding::AsciiSet;

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

/// Whether a backend may read the path of this text in another way.
#[inline]
#[expect(clippy::ptr_arg, reason = "an owned text is one that was changed by decoding")]
pub fn has_other_readings(text: &Cow<'_, [u8]>) -> bool {
    // In a path that was sent in its canonical form, only parameters can be read in two ways.
    matches!(text, Cow::Owned(_)) || text.contains(&b';')
}

/// The texts of a path with `%2F` read as a slash, without the parameters of its segments, and both.
#[cold]
pub fn other_readings(path: &str, text: &[u8]) -> Vec<Vec<u8>> {
    let mut readings: Vec<_> = with_slashes_decoded(path).into_iter().collect();
    readings.extend(without_parameters(text));
    readings.extend(readings.first().and_then(|first| without_parameters(first)));
    readings
}

fn with_slashes_decoded(path: &str) -> Option<Vec<u8>> {
    let other = Path::parse(path).ok()?.with_slashes_decoded()?;
    text(&other).ok().map(Cow::into_owned)
}

/// The text without the parameters of its segments, which begin with `;`. None if it has none.
fn without_parameters(text: &[u8]) -> Option<Vec<u8>> {
    if !text.contains(&b';') {
        return None;
    }
    let mut plain = Vec::with_capacity(text.len());
    for segment in text.split(|&byte| byte == b'/') {
        let name = segment.split(|&byte| byte == b';').next().unwrap_or_default();
        // A segment of parameters alone leaves one slash, not two.
        if !name.is_empty() {
            plain.push(b'/');
            plain.extend_from_slice(name);
        }
    }
    if text.ends_with(b"/") || plain.is_empty() {
        plain.push(b'/');
    }
    Some(plain)
}

/// The prefixes of a path that end with the name of a script and have more segments behind them, the shortest first.
pub fn scripts<'p>(path: &'p [u8], suffixes: &[Box<str>]) -> impl Iterator<Item = &'p [u8]> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let prefixes = ends.map(move |(at, _)| &path[..at]);
    prefixes.filter(move |prefix| suffixes.iter().any(|suffix| prefix.ends_with(suffix.as_bytes())))
}

/// Whether `path` is `prefix`, or lies below it. `prefix` does not end with a slash.
#[inline]
pub fn is_below(path: &[u8], prefix: &str) -> bool {
    path.strip_prefix(prefix.as_bytes())
        .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// The characters that are percent-encoded: those of `set`, and `more`.
pub const fn encoding(set: &AsciiSet, more: &[u8]) -> AsciiSet {
    match more {
        [] => set.union(AsciiSet::EMPTY),
        [byte, rest @ ..] => encoding(&set.add(*byte), rest),
    }
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
        for (path, expected) in [
            ("/admin;v=1/x", "/admin/x"),
            ("/admin;/x;y;z", "/admin/x"),
            ("/;x/admin/x", "/admin/x"),
            ("/a;b/", "/a/"),
            ("/a/;b", "/a"),
            ("/;b", "/"),
        ] {
            let plain = without_parameters(path.as_bytes()).unwrap();
            assert_eq!(String::from_utf8_lossy(&plain), expected, "{path}");
        }
        assert_eq!(without_parameters(b"/a/b"), None);
        let both = other_readings("/a;b%2Fadmin;c", &text("/a;b%2Fadmin;c").unwrap());
        assert_eq!(both, [&b"/a;b/admin;c"[..], b"/a", b"/a/admin"]);
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
