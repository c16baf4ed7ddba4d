//! Explains the parser's error about a key that a file sets twice. The parser continues with the first value.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

use crate::reader::problem::{Files, header, line};

/// Whether an error is about a key that is set twice.
pub fn is_meant(error: &Error) -> bool {
    error.message() == "duplicate key"
}

/// The message for an error of the parser. `table` is what the parser has read.
pub fn message(error: &Error, files: &Files, text: &str, table: &DeTable<'_>) -> String {
    let Some(second) = error.span().filter(|_| is_meant(error)) else {
        return error.message().to_owned();
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

/// The place of the value on the rest of a line, behind a key.
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
        None => nearest(table, text, second),
    }
}

/// The nearest key of the same name before `second`. Keys inside of braces that are closed by then do not count.
fn nearest(table: &DeTable<'_>, text: &str, second: &Range<usize>) -> Option<usize> {
    let inside = |value: &Spanned<DeValue<'_>>| {
        let at = value.span();
        let is_closed = text[at.clone()].starts_with('{') && at.end <= second.start;
        let table = value.get_ref().as_table().filter(|_| !is_closed);
        table.and_then(|table| nearest(table, text, second))
    };
    let found = table.iter().flat_map(|(key, value)| {
        let is_same = key.get_ref() == bare(&text[second.clone()]) && key.span().start < second.start;
        let below = match value.get_ref() {
            DeValue::Array(items) => items.iter().filter_map(inside).max(),
            _ => inside(value),
        };
        [is_same.then(|| key.span().start), below]
    });
    found.flatten().max()
}

/// A name without spaces around it and quotes.
fn bare(name: &str) -> &str {
    name.trim().trim_matches(['"', '\''])
}
