//! The conditional fields of a GET or HEAD: If-Match, If-Unmodified-Since, If-None-Match,
//! If-Modified-Since.
//!
//! The functions are pure. A list is given as its field lines, because a client may repeat the
//! field.
//!
//! Source: RFC 9110 sections 8.8.3.2 (comparison) and 13.2.2 (precedence).

use std::time::UNIX_EPOCH;

/// The validators of one form of a file.
#[derive(Debug, Clone, Copy)]
pub struct Validators<'a> {
    /// The opaque part of the entity tag, with its quotes. Empty for a response without a tag, or, where a strong
    /// comparison is needed, with a weak one.
    pub etag: &'a str,
    /// Last-Modified in seconds since 1970, if the response has one.
    pub modified: Option<u64>,
    /// Whether other forms of the same file share the date.
    pub varies: bool,
}

/// The conditional fields of one request. Absent lists are empty.
#[derive(Debug, Default, Clone, Copy)]
pub struct Conditions<'a> {
    /// Lines of If-Match.
    pub if_match: &'a [&'a [u8]],
    /// Lines of If-None-Match.
    pub if_none_match: &'a [&'a [u8]],
    /// If-Modified-Since.
    pub if_modified_since: Option<&'a [u8]>,
    /// If-Unmodified-Since.
    pub if_unmodified_since: Option<&'a [u8]>,
}

/// The result of the conditions.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Verdict {
    /// Respond as if there were no conditions.
    Proceed,
    /// Respond with 304.
    NotModified,
    /// Respond with 412.
    Failed,
}

/// Evaluates the conditions of a GET or HEAD in the order of RFC 9110 section 13.2.2.
pub fn evaluate(conditions: &Conditions<'_>, validators: &Validators<'_>) -> Verdict {
    if !conditions.if_match.is_empty() {
        if !any(conditions.if_match, |tag| strong_match(tag, validators.etag)) {
            return Verdict::Failed;
        }
    } else if let (Some(since), Some(modified)) = (conditions.if_unmodified_since.and_then(date), validators.modified)
        && modified > since
    {
        return Verdict::Failed;
    }
    if !conditions.if_none_match.is_empty() {
        if any(conditions.if_none_match, |tag| weak_match(tag, validators.etag)) {
            return Verdict::NotModified;
        }
    } else if let (Some(since), Some(modified)) = (conditions.if_modified_since.and_then(date), validators.modified)
        && modified <= since
    {
        return Verdict::NotModified;
    }
    Verdict::Proceed
}

/// Strong comparison: the tags are the same and both are strong. `ours` is never a weak one.
pub fn strong_match(tag: &[u8], ours: &str) -> bool {
    tag == ours.as_bytes()
}

/// Weak comparison: the tags are the same, strong or weak.
pub fn weak_match(tag: &[u8], ours: &str) -> bool {
    strong_match(tag.strip_prefix(b"W/").unwrap_or(tag), ours)
}

/// Reads an HTTP date as seconds since 1970. A field without a valid date is ignored.
pub fn date(value: &[u8]) -> Option<u64> {
    let time = httpdate::parse_http_date(std::str::from_utf8(value).ok()?.trim_ascii()).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// Whether any member of a tag list satisfies `matches`. A lone `*` always does, because the response
/// exists. Each line is read up to its first mistake.
fn any(lines: &[&[u8]], matches: impl Fn(&[u8]) -> bool) -> bool {
    if let [line] = lines
        && line.trim_ascii() == b"*"
    {
        return true;
    }
    lines.iter().any(|line| {
        let mut rest = *line;
        loop {
            let start = rest
                .iter()
                .position(|byte| !matches!(byte, b' ' | b'\t' | b','))
                .unwrap_or(rest.len());
            let Some((tag, tail)) = split_tag(&rest[start..]) else {
                return false;
            };
            if matches(tag) {
                return true;
            }
            rest = tail;
        }
    })
}

/// Splits one entity tag, `"…"` or `W/"…"`, off the front. The quotes may contain a comma.
fn split_tag(list: &[u8]) -> Option<(&[u8], &[u8])> {
    let open = if list.starts_with(b"W/") { 2 } else { 0 };
    let inside = list[open..].strip_prefix(b"\"")?;
    let close = inside.iter().position(|&byte| byte == b'"')?;
    Some(list.split_at(open + close + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Validators<'static> = Validators {
        etag: "\"abc\"",
        modified: Some(784_111_777),
        varies: false,
    };
    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    /// Each row: If-Match, If-Unmodified-Since, If-None-Match, If-Modified-Since ("" is absent).
    #[test]
    fn precedence() {
        use Verdict::{Failed, NotModified, Proceed};
        for (if_match, unmodified, none_match, modified, expected) in [
            ("", "", "", "", Proceed),
            ("*", "", "", "", Proceed),
            ("\"abc\"", "", "", "", Proceed),
            ("\"x\", \"abc\"", "", "", "", Proceed),
            ("\"a,b\", \"abc\"", "", "", "", Proceed),
            ("W/\"abc\"", "", "", "", Failed),
            ("\"x\"", "", "", "", Failed),
            ("abc", "", "", "", Failed),
            ("\"abc", "", "", "", Failed),
            ("", SAME, "", "", Proceed),
            ("", AFTER, "", "", Proceed),
            ("", BEFORE, "", "", Failed),
            ("", "rubbish", "", "", Proceed),
            ("\"abc\"", BEFORE, "", "", Proceed),
            ("\"x\"", AFTER, "", "", Failed),
            ("", "", "*", "", NotModified),
            ("", "", "\"abc\"", "", NotModified),
            ("", "", "W/\"abc\"", "", NotModified),
            ("", "", "\"x\",W/\"abc\"", "", NotModified),
            ("", "", "\"x\"", "", Proceed),
            ("", "", "abc", "", Proceed),
            ("", "", "", SAME, NotModified),
            ("", "", "", AFTER, NotModified),
            ("", "", "", BEFORE, Proceed),
            ("", "", "", "rubbish", Proceed),
            ("", "", "\"x\"", AFTER, Proceed),
            ("", "", "\"abc\"", BEFORE, NotModified),
            ("\"x\"", "", "\"abc\"", "", Failed),
            ("\"abc\"", "", "\"abc\"", "", NotModified),
            ("", BEFORE, "\"abc\"", "", Failed),
        ] {
            let if_match = [if_match.as_bytes()];
            let none_match = [none_match.as_bytes()];
            let field = |value: &'static str| Some(value.as_bytes()).filter(|value| !value.is_empty());
            let conditions = Conditions {
                if_match: if if_match[0].is_empty() { &[] } else { &if_match },
                if_none_match: if none_match[0].is_empty() { &[] } else { &none_match },
                if_unmodified_since: field(unmodified),
                if_modified_since: field(modified),
            };
            assert_eq!(evaluate(&conditions, &OURS), expected, "{conditions:?}");
        }
    }

    #[test]
    fn repeated_lines_are_one_list() {
        let lines: [&[u8]; 2] = [b"\"x\"", b"\"abc\""];
        let conditions = Conditions {
            if_none_match: &lines,
            ..Conditions::default()
        };
        assert_eq!(evaluate(&conditions, &OURS), Verdict::NotModified);
    }

    #[test]
    fn without_a_date_only_tags_count() {
        let undated = Validators { modified: None, ..OURS };
        let conditions = Conditions {
            if_modified_since: Some(AFTER.as_bytes()),
            ..Conditions::default()
        };
        assert_eq!(evaluate(&conditions, &undated), Verdict::Proceed);
        let conditions = Conditions {
            if_unmodified_since: Some(BEFORE.as_bytes()),
            ..Conditions::default()
        };
        assert_eq!(evaluate(&conditions, &undated), Verdict::Proceed);
    }
}
