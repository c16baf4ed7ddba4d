//! The one form in which a path is matched, whichever escapes it was sent with.
//!
//! An escape stands for its character: `/%61` is `/a`. Only `%2F` and `%25` stay, so that an encoded slash separates nothing
//! and nothing is decoded twice; and what is no ASCII, for texts to be ASCII (which no request's target is without). So a form
//! is its own form. Patterns and prefixes are brought into it when they are added, paths when they are looked up. Handlers get
//! the path as it was sent: what was matched is cut out of that ([`Routed`]).

use std::fmt::Write;

/// What a text begins with: a byte, or one that stays escaped.
enum First {
    Plain(u8),
    Escaped(u8),
}

/// The first character of a text that is not empty, and its length there. `None` for an escape that is none, and for NUL.
fn first(text: &[u8]) -> Option<(First, usize)> {
    let (byte, length) = match *text {
        [b'%', high, low, ..] => {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            // Two digits of four bits each.
            ((digit(high)? * 16 + digit(low)?) as u8, 3)
        }
        [b'%', ..] => return None,
        [b'/', ..] => return Some((First::Plain(b'/'), 1)),
        [byte, ..] => (byte, 1),
        [] => return None,
    };
    let first = match byte {
        0 => return None,
        b'/' | b'%' | 0x80.. => First::Escaped(byte),
        _ => First::Plain(byte),
    };
    Some((first, length))
}

fn push(form: &mut String, first: First) {
    match first {
        First::Plain(byte) => form.push(char::from(byte)),
        First::Escaped(byte) => write!(form, "%{byte:02X}").expect("a string takes it"),
    }
}

/// The form of a path, or of a prefix; `None` where it has an escape that is none.
pub(super) fn form(path: &str) -> Option<String> {
    let mut form = String::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while !rest.is_empty() {
        let (found, length) = first(rest)?;
        push(&mut form, found);
        rest = &rest[length..];
    }
    Some(form)
}

/// The form of a pattern: the names of parameters stay as they are, an escaped brace is no parameter's.
pub(super) fn pattern(pattern: &str) -> Option<String> {
    let mut form = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(at) = rest.find(['{', '}']) {
        form.push_str(&literal(&rest[..at])?);
        let end = match rest[at..].get(..2) {
            Some("{{" | "}}") => at + 2,
            // One that is not closed is matchit's to refuse.
            _ => rest[at..].find('}').map_or(rest.len(), |end| at + end + 1),
        };
        form.push_str(&rest[at..end]);
        rest = &rest[end..];
    }
    form.push_str(&literal(rest)?);
    Some(form)
}

fn literal(text: &str) -> Option<String> {
    form(text).map(|form| form.replace('{', "{{").replace('}', "}}"))
}

/// A path that has been matched in another form than it was sent in.
#[derive(Clone, Copy)]
pub(crate) struct Routed<'a> {
    path: &'a str,
    form: &'a str,
}

impl<'a> Routed<'a> {
    /// `form` is the form of `path`.
    pub(crate) fn new(path: &'a str, form: &'a str) -> Self {
        Routed { path, form }
    }

    /// A part of the form as it was sent.
    pub(crate) fn sent(self, part: &str) -> &'a str {
        let start = part.as_ptr().addr() - self.form.as_ptr().addr();
        let start = self.sent_length(start);
        let path = &self.path[start..];
        let length = Routed { path, form: part }.sent_length(part.len());
        &path[..length]
    }

    /// How much of the path so many bytes of the form are.
    pub(super) fn sent_length(self, form: usize) -> usize {
        let path = self.path.as_bytes();
        let (mut sent, mut read) = (0, 0);
        while read < form {
            let Some((found, length)) = first(&path[sent..]) else {
                break;
            };
            sent += length;
            read += match found {
                First::Plain(_) => 1,
                First::Escaped(_) => 3,
            };
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_a_path_have_one_form() {
        for (path, expected) in [
            ("/a/b", "/a/b"),
            ("/%61%2fb", "/a%2Fb"),
            ("/a%2Fb", "/a%2Fb"),
            ("/%2561", "/%2561"),
            ("/50%25", "/50%25"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/café", "/caf%C3%A9"),
            ("/a%20b%7Bc%7d", "/a b{c}"),
            ("/%2e%2E/", "/../"),
            ("*", "*"),
        ] {
            assert_eq!(form(path).as_deref(), Some(expected), "{path}");
        }
        for path in ["/%", "/%6", "/%zz", "/%+1", "/a%00b", "/%6/1"] {
            assert_eq!(form(path), None, "{path}");
        }
    }

    #[test]
    fn patterns_keep_their_parameters() {
        for (text, expected) in [
            ("/a/{id}", "/a/{id}"),
            ("/%61/{größe}/é", "/a/{größe}/%C3%A9"),
            ("/{{x}}/%7Bx%7D/{*rest}", "/{{x}}/{{x}}/{*rest}"),
            ("/a b", "/a b"),
            ("/{open", "/{open"),
        ] {
            assert_eq!(pattern(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(pattern("/100%/{x}"), None);
    }

    proptest::proptest! {
        #[test]
        fn a_form_is_its_own_and_its_parts_are_parts_of_the_path(path in "/([ab/]|%2[fF5]|%61|%[cC]3%a9|%7b){0,12}") {
            let found = form(&path).unwrap();
            assert_eq!(form(&found).as_ref(), Some(&found));
            assert_eq!(osier_http::percent_decode(found.as_bytes()), osier_http::percent_decode(path.as_bytes()));
            let routed = Routed { path: &path, form: &found };
            assert_eq!(routed.sent(&found), path);
            // As a parameter may begin and end.
            let parts: Vec<&str> = found.split('/').map(|part| routed.sent(part)).collect();
            assert_eq!(parts.join("/"), path);
        }
    }
}
