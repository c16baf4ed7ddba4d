//! Route patterns in canonical form, for comparison with canonical paths ([`osier_http::path`]).

use osier_http::path::{BadPath, Path, canonical_part};

/// Returns the canonical form of a pattern. The names of parameters stay as they are. An escaped
/// brace is a literal.
pub(super) fn canonical(pattern: &str) -> Result<String, BadPath> {
    let mut form = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(at) = rest.find(['{', '}']) {
        form.push_str(&literal(&rest[..at])?);
        let end = match rest[at..].get(..2) {
            Some("{{" | "}}") => at + 2,
            // `matchit` reports a parameter that is not closed.
            _ => rest[at..].find('}').map_or(rest.len(), |end| at + end + 1),
        };
        form.push_str(&rest[at..end]);
        rest = &rest[end..];
    }
    form.push_str(&literal(rest)?);
    // The value of a parameter is not known yet. It is checked with the path of a request.
    Path::parse(&form.replace(['{', '}'], "_"))?;
    Ok(form)
}

/// Refuses parameters as other routers write them. They would be literals, which no request has.
///
/// # Panics
///
/// Panics if a segment is `:name`, `*name` or `*`.
#[track_caller]
pub(super) fn refuse_foreign(pattern: &str) {
    for segment in pattern.split('/') {
        if let Some(parameter) = foreign_parameter(segment) {
            let first = segment.as_bytes()[0];
            panic!(
                "pattern {pattern:?}: {segment:?} is no parameter, but {parameter:?} is; write %{first:02X} for a literal {:?}",
                char::from(first)
            );
        }
    }
}

/// Returns our spelling of a segment that is a parameter in other routers.
fn foreign_parameter(segment: &str) -> Option<String> {
    let (first, name) = segment.split_at_checked(1)?;
    match (first, name) {
        (":" | "*", name) if name.contains(['{', '}']) => None,
        (":", "") => None,
        (":", name) => Some(format!("{{{name}}}")),
        ("*", "") => Some("{*rest}".to_owned()),
        ("*", name) => Some(format!("{{*{name}}}")),
        _ => None,
    }
}

fn literal(text: &str) -> Result<String, BadPath> {
    canonical_part(text).map(|form| form.replace('{', "{{").replace('}', "}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_keep_their_parameters() {
        for (text, expected) in [
            ("/a/{id}", "/a/{id}"),
            ("/%61/{größe}/é", "/a/{größe}/%C3%A9"),
            ("/{{x}}/%7Bx%7D/{*rest}", "/{{x}}/{{x}}/{*rest}"),
            ("/a b", "/a b"),
            ("//a//{b}", "/a/{b}"),
            ("/{open", "/{open"),
        ] {
            assert_eq!(canonical(text).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(canonical("/100%/{x}"), Err(BadPath::Escape));
        assert_eq!(canonical("/a/%2e./{x}"), Err(BadPath::DotSegment));
    }
}
