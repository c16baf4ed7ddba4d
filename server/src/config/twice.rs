//! Explains the parser's errors, above all the one about a key or a table that a file sets twice. The parser continues with the first
//! value then.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

use crate::reader::problem::{Files, header, line};

/// Beginnings of the parser's messages that name no remedy, and the messages in their place.
const PLAIN: [(&str, &str); 5] = [
    (
        "key with no value",
        "key with no value, expected `=`; each line of a TOML file is KEY = VALUE, [TABLE] or [[TABLE]]",
    ),
    (
        "missing escaped value",
        "a backslash in double quotes begins an escape; write the text in single quotes, '^/a\\.php$' for example, or two backslashes",
    ),
    (
        "unexpected leading zero",
        "a number has no zero in front; remove it, or write the digits as a string, \"0660\" for example",
    ),
    (
        "invalid basic string, expected non-double-quote",
        "a string cannot hold a control character; remove it, or write it as an escape, \\u001B for example",
    ),
    (
        "invalid literal string, expected non-single-quote",
        "a string in single quotes cannot hold a control character; remove it, or write an escape in double quotes, \\u001B for example",
    ),
];

/// Whether an error is about a key that is set twice.
pub fn is_duplicate(error: &Error) -> bool {
    error.message() == "duplicate key"
}

/// The message for an error of the parser, which has read `table`.
pub fn message(error: &Error, files: &Files, text: &str, table: &DeTable<'_>) -> String {
    let Some(second) = error.span().filter(|_| is_duplicate(error)) else {
        let plain = PLAIN.iter().find(|(begin, _)| error.message().starts_with(begin));
        return plain.map_or(error.message(), |(_, plain)| plain).to_owned();
    };
    let name = bare(&text[second.clone()]).escape_debug();
    match first(text, table, &second) {
        Some(first) => format!(
            "'{name}' is set twice; the first is in {}",
            line(files, text, first, second.start)
        ),
        None => format!("'{name}' is set twice; remove one of them"),
    }
}

/// The place of the value behind a key. `at` is the end of the key.
pub fn value(text: &str, at: usize) -> Range<usize> {
    let rest = text[at..].lines().next().unwrap_or_default();
    let value = rest.split_once('=').map_or("", |(_, value)| value.trim_start());
    at + rest.len() - value.len()..at + rest.len()
}

/// The place of the key that `second` repeats.
fn first(text: &str, table: &DeTable<'_>, second: &Range<usize>) -> Option<usize> {
    match header(text, second.start) {
        // The parser forgets the first table, so the text before the second header is parsed alone.
        Some(header) => {
            let (before, _) = DeTable::parse_recoverable(&text[..header.start]);
            let path = text[header].trim_matches(['[', ']']);
            let (above, name) = path.rsplit_once('.').unwrap_or(("", path));
            let mut table = before.get_ref();
            for name in above.split('.').filter(|name| !name.is_empty()) {
                table = match table.get(bare(name))?.get_ref() {
                    DeValue::Array(tables) => tables.last()?.get_ref().as_table()?,
                    value => value.as_table()?,
                };
            }
            table.get_key_value(bare(name)).map(|(key, _)| key.span().start)
        }
        None => {
            let begin = text[..second.start].rfind(['\n', '{', ',']).map_or(0, |at| at + 1);
            let above = text[begin..second.start].split('.').map(bare);
            let above: Vec<&str> = above.filter(|name| !name.is_empty()).collect();
            nearest(table, text, second, &above, Some(&above))
        }
    }
}

/// The nearest key of the same name before `second` in the same table. `above` are the names before `second` in its own
/// dotted key. `left` are the names in `above` that still have to be followed from `table`. `left` is None in a table
/// off this way: only braces inside of it may hold `second`.
fn nearest(
    table: &DeTable<'_>,
    text: &str,
    second: &Range<usize>,
    above: &[&str],
    left: Option<&[&str]>,
) -> Option<usize> {
    let inside = |value: &Spanned<DeValue<'_>>, left| {
        let at = value.span();
        let left = match text[at.clone()].starts_with('{') {
            true if at.contains(&second.start) => Some(above),
            true => return None,
            false => left,
        };
        nearest(value.get_ref().as_table()?, text, second, above, left)
    };
    let found = table.iter().flat_map(|(key, value)| {
        let at = key.span();
        let is_same = left.is_some_and(<[_]>::is_empty) && key.get_ref() == bare(&text[second.clone()]);
        // A table without a header and braces of its own has the place of its name in a dotted key or in a longer
        // header.
        let is_dotted = value.span() == at && header(text, at.start).is_none();
        let left = match (left, is_dotted) {
            (left, false) => left,
            (Some([first, rest @ ..]), true) if key.get_ref() == first => Some(rest),
            (_, true) => None,
        };
        let below = match value.get_ref() {
            DeValue::Array(items) => items.iter().filter_map(|item| inside(item, left)).max(),
            _ => inside(value, left),
        };
        [(is_same && at.start < second.start).then_some(at.start), below]
    });
    found.flatten().max()
}

/// A name without spaces around it and quotes.
fn bare(name: &str) -> &str {
    name.trim().trim_matches(['"', '\''])
}
