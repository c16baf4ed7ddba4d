//! Rust source as tokens, for the rules that read code.
//!
//! A token is an identifier, a literal, `::` or one character. Comments and lifetimes are left out. [`code`] also leaves
//! out the items that only tests see. It does not parse: a rule looks for short sequences of tokens.

/// The tokens of a source file without the items marked `#[cfg(test)]`.
pub fn code(text: &str) -> Vec<&str> {
    without_tests(&tokens(text))
}

/// Whether the token is an identifier or a keyword.
pub fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c == '_' || c.is_alphabetic()) && !token.ends_with(['"', '\'', '#'])
}

/// All tokens of a source file.
pub fn tokens(text: &str) -> Vec<&str> {
    let mut found = vec![];
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            c if c.is_whitespace() => skip(&mut rest, c.len_utf8()),
            '/' if rest.starts_with("//") => {
                let end = rest.find('\n').unwrap_or(rest.len());
                skip(&mut rest, end)
            }
            '/' if rest.starts_with("/*") => {
                let end = block_comment(rest);
                skip(&mut rest, end)
            }
            '"' => quoted(rest, 1),
            '\'' => match character(rest) {
                Some(length) => length,
                // A lifetime or a label.
                None => {
                    let end = 1 + word(&rest[1..]);
                    skip(&mut rest, end)
                }
            },
            c if c == '_' || c.is_alphanumeric() => prefixed_literal(rest).unwrap_or_else(|| word(rest)),
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        if length > 0 {
            found.push(&rest[..length]);
            rest = &rest[length..];
        }
    }
    found
}

/// Drops `length` bytes that are no token.
fn skip(rest: &mut &str, length: usize) -> usize {
    *rest = &rest[length..];
    0
}

/// The length of the identifier or number that `text` begins with.
fn word(text: &str) -> usize {
    text.find(|c: char| c != '_' && !c.is_alphanumeric())
        .unwrap_or(text.len())
}

/// The length of the block comment that `text` begins with. Block comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a string literal whose contents begin at `start`.
fn quoted(text: &str, start: usize) -> usize {
    let mut escaped = false;
    for (at, c) in text[start..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return start + at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of the character literal that `text` begins with; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        // The escaped character may be a quote itself.
        let end = text.get(3..)?.find('\'')?;
        return Some(3 + end + 1);
    }
    let (at, second) = chars.next()?;
    (second == '\'').then_some(at + 1)
}

/// The length of a literal such as `b"x"`, `br#"x"#`, `c"x"`, `b'x'` or of a raw identifier.
fn prefixed_literal(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r", "b", "c"].into_iter().find(|p| text.starts_with(p))?;
    let rest = &text[prefix.len()..];
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    let body = &rest[hashes..];
    if body.starts_with('"') && prefix.ends_with('r') {
        let end = format!("\"{}", "#".repeat(hashes));
        let close = body[1..].find(&end)?;
        return Some(prefix.len() + hashes + 1 + close + end.len());
    }
    if hashes == 1 && prefix == "r" {
        return Some(prefix.len() + 1 + word(body));
    }
    match rest.chars().next()? {
        '"' => Some(quoted(text, prefix.len() + 1)),
        '\'' if prefix == "b" => Some(prefix.len() + character(rest)?),
        _ => None,
    }
}

fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut kept = vec![];
    let mut at = 0;
    while at < tokens.len() {
        let whole_file = tokens[at..].starts_with(&["#", "!", "["]);
        if !whole_file && !tokens[at..].starts_with(&["#", "["]) {
            kept.push(tokens[at]);
            at += 1;
            continue;
        }
        let end = group(tokens, at + 1 + usize::from(whole_file));
        if !is_for_tests(&tokens[at..end]) {
            kept.extend(&tokens[at..end]);
            at = end;
        } else if whole_file {
            return vec![];
        } else {
            at = item(tokens, end);
        }
    }
    kept
}

/// Whether an attribute is a `cfg` that holds in tests alone.
fn is_for_tests(attribute: &[&str]) -> bool {
    let places = attribute.iter().enumerate().filter(|(_, token)| **token == "test");
    attribute.contains(&"cfg") && places.into_iter().any(|(at, _)| at < 2 || attribute[at - 2] != "not")
}

/// The index behind the group of brackets that begins at `open`.
pub fn group(tokens: &[&str], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The index behind the item, statement or field that begins at `at`, its other attributes included.
fn item(tokens: &[&str], mut at: usize) -> usize {
    while tokens[at..].starts_with(&["#", "["]) {
        at = group(tokens, at + 1);
    }
    let first = tokens[at..]
        .iter()
        .find(|token| !["pub", "crate", "(", ")"].contains(*token));
    let is_use = first == Some(&"use");
    let is_field = tokens.get(at + 1) == Some(&":");
    while at < tokens.len() {
        match tokens[at] {
            ";" => return at + 1,
            "," if is_field => return at + 1,
            "}" => return at,
            "{" if !is_use => return group(tokens, at),
            "(" | "[" | "{" => at = group(tokens, at),
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_lifetimes_are_no_tokens() {
        let text = "fn f<'a>(x: &'a str) /* a /* b */ c */ -> char { 'x' } // end";
        let expected = "fn f < > ( x : & str ) - > char { 'x' }";
        assert_eq!(tokens(text).join(" "), expected);
    }

    #[test]
    fn literals_are_one_token() {
        let text = r####"a("x // y\"", r#"z" w"#, b'\'', '\\', b"q", r#type, 1_000)::b"####;
        let expected = [
            "a",
            "(",
            r#""x // y\"""#,
            ",",
            r###"r#"z" w"#"###,
            ",",
            r"b'\''",
            ",",
            r"'\\'",
            ",",
            r#"b"q""#,
            ",",
            "r#type",
            ",",
            "1_000",
            ")",
            "::",
            "b",
        ];
        assert_eq!(tokens(text), expected);
    }

    #[test]
    fn items_of_tests_are_left_out() {
        let text = "#[cfg(test)] use a::{b, c}; #[cfg(all(test, not(loom)))] #[rustfmt::skip] mod tests { fn f() {} }\
                    struct S { #[cfg(test)] seen: u8, kept: u8 } #[cfg(not(test))] fn g() {}";
        let expected = "struct S { kept : u8 } # [ cfg ( not ( test ) ) ] fn g ( ) { }";
        assert_eq!(code(text).join(" "), expected);
        assert_eq!(code("#![cfg(test)] fn f() {}"), [""; 0]);
    }
}
