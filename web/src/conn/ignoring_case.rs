//! Prefixes that are compared without regard to the case of ASCII letters.

/// The rest of `text` behind `prefix`. `None` if it does not begin with that.
#[inline]
pub(crate) fn strip_prefix<'t>(text: &'t [u8], prefix: &[u8]) -> Option<&'t [u8]> {
    let (begin, rest) = text.split_at_checked(prefix.len())?;
    begin.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Whether a name begins with `prefix`.
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
#[inline]
pub(crate) fn begins(name: &str, prefix: &str) -> bool {
    strip_prefix(name.as_bytes(), prefix.as_bytes()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_may_be_all_or_nothing() {
        assert_eq!(strip_prefix(b"Bytes=0-", b"bytes="), Some(&b"0-"[..]));
        assert_eq!(strip_prefix(b"byte", b"bytes="), None);
        #[cfg(any(feature = "fastcgi", feature = "proxy"))]
        assert!(begins("X-Accel-", "x-accel-") && begins("a", ""));
        // The prefix ends within a character.
        #[cfg(any(feature = "fastcgi", feature = "proxy"))]
        assert!(!begins("x-acce\u{e9}", "x-accel-"));
    }
}
