//! The parts of a configuration that no message shows, because more people read logs than the file.
//!
//! - Values of some keys, passwords in URLs, and keys in place of their files: [`of`].
//! - Values that nobody has read, because their key is misspelled for example: `Source::finish`.
//! - All values of a text that is not read at all: [`unread`].

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Keys whose values are secret, with all that is below them. A hash may be the password itself by mistake.
const SECRETS: [&str; 3] = ["params", "secret", "users"];

/// Keys of tables that hold a secret. Somebody may write the secret in place of the table.
const HOLDERS: [&str; 2] = ["auth", "binding"];

/// The key of a URL whose password may also stand without a host.
const REDIS: &str = "redis";

/// Marks of a key in PEM form and of a JWK.
const MARKS: [&str; 2] = ["-----BEGIN ", "\"kty\""];

/// The secrets of a table.
pub fn of(text: &str, table: &DeTable<'_>) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (key, value) in table.iter() {
        collect(text, key.get_ref(), value, &mut found);
    }
    found
}

fn collect(text: &str, key: &str, value: &Spanned<DeValue<'_>>, found: &mut Vec<Range<usize>>) {
    let at = value.span();
    match value.get_ref() {
        _ if SECRETS.contains(&key) => {
            found.extend(leaves(value));
            // A line of a password file, `user:hash`, may stand as a key.
            let keys = value.get_ref().as_table().into_iter().flat_map(|table| table.keys());
            found.extend(keys.filter(|key| key.get_ref().contains(':')).map(Spanned::span));
        }
        DeValue::Table(table) => found.extend(of(text, table)),
        _ if HOLDERS.contains(&key) => found.extend(leaves(value)),
        DeValue::Array(items) => items.iter().for_each(|item| collect(text, key, item, found)),
        DeValue::String(text) if is_content(text) => found.push(at),
        DeValue::String(url) => match password(&text[at.clone()]) {
            Some(hidden) => found.push(at.start + hidden.start..at.start + hidden.end),
            None if key == REDIS && (!url.contains("//") || url.contains("//:")) => found.push(at),
            None => {}
        },
        _ => {}
    }
}

/// The places of a value, or of the values in it.
pub fn leaves(value: &Spanned<DeValue<'_>>) -> Vec<Range<usize>> {
    match value.get_ref() {
        DeValue::Table(table) => table.values().flat_map(leaves).collect(),
        DeValue::Array(items) => items.iter().flat_map(leaves).collect(),
        _ => vec![value.span()],
    }
}

/// Whether a text is the content of a key file.
pub fn is_content(text: &str) -> bool {
    MARKS.iter().any(|mark| text.contains(mark))
}

/// The place of user and password in a URL: from `//` to the last `@`.
pub fn password(url: &str) -> Option<Range<usize>> {
    let start = url.find("//")? + 2;
    let length = url[start..].rfind('@')?;
    Some(start..start + length)
}

/// The places in a text that is not read: on each line everything but a table's header, or a key and its `=`.
pub fn unread(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut start, mut open, mut before) = (0, None, "");
    for line in text.split_inclusive('\n') {
        let named = named(line);
        // The line may go on with a value: it shows a key only if that has its '='.
        let goes_on = before.ends_with(['=', '[', '{', ',']) && !line[..named].contains('=');
        let shown = match open.is_some() || goes_on {
            true => 0,
            false => named,
        };
        found.push(start + shown..start + line.len());
        open = open_string(line, open);
        start += line.len();
        before = line.trim_end();
    }
    found
}

/// The number of bytes at the beginning of a line that hold no value: `[table]`, `key =`, or a key with a colon by mistake.
fn named(line: &str) -> usize {
    let is_bare = |char: char| char.is_alphanumeric() || "-_.".contains(char);
    let mut rest = line.trim_start_matches([' ', '\t', '[', '{', ',']);
    loop {
        let after = match rest.chars().next() {
            // A string is a value, unless it is followed as a key is.
            Some(quote @ ('"' | '\'')) => {
                let after = rest[1..].split_once(quote).map(|(_, after)| after);
                after.filter(|after| after.trim_start().starts_with(['=', '.', ':', ']']))
            }
            _ => Some(rest.trim_start_matches(is_bare)),
        };
        match after {
            Some(after) if after.len() < rest.len() => rest = after,
            _ => break,
        }
    }
    line.len() - rest.trim_start_matches([' ', '\t', ']', '=', ':']).len()
}

/// The quotes of the multi-line string that is open behind a line. `open` are those before it.
fn open_string(line: &str, mut open: Option<&'static str>) -> Option<&'static str> {
    let mut rest = line;
    loop {
        rest = match open {
            Some(quotes) => {
                let Some((_, after)) = rest.split_once(quotes) else {
                    return open;
                };
                open = None;
                after
            }
            None => {
                let at = rest.find(['"', '\'', '#'])?;
                rest = &rest[at..];
                open = ["\"\"\"", "'''"].into_iter().find(|quotes| rest.starts_with(quotes));
                match (open, rest.split_at(1)) {
                    (Some(quotes), _) => &rest[quotes.len()..],
                    (None, ("#", _)) => return None,
                    (None, ("'", after)) => after.split_once('\'')?.1,
                    (None, (_, after)) => &after[string_end(after)?..],
                }
            }
        };
    }
}

/// The end of a string in double quotes, whose beginning is cut off.
fn string_end(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    let end = text.find(|char: char| {
        let is_end = char == '"' && !is_escaped;
        is_escaped = char == '\\' && !is_escaped;
        is_end
    });
    end.map(|end| end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let hidden = unread(text);
        let is_hidden = |at: usize| hidden.iter().any(|hidden| hidden.contains(&at));
        let chars = text.char_indices();
        chars
            .map(|(at, char)| if is_hidden(at) && char != '\n' { '*' } else { char })
            .collect()
    }

    #[test]
    fn an_unread_text_shows_keys_and_headers() {
        for (text, expected) in [
            ("[[site]\n", "[[site]\n"),
            ("[site.\"a b\"\n", "[site.*****\n"),
            ("[policy.\"a b\"] x\n", "[policy.\"a b\"] *\n"),
            ("  secret = hunter2\n", "  secret = *******\n"),
            ("secret hunter2\n", "secret *******\n"),
            ("secret: hunter2\n", "secret: *******\n"),
            ("\"secret\": \"hunter2\"\n", "\"secret\": *********\n"),
            ("a.'b c'.d = 1\n", "a.'b c'.d = *\n"),
            ("= 1", "= *"),
            // In a list a line may be a value that looks like a key.
            (
                "a = [\n  \"b=c\",\n  b64,\n  { c = \"d\"\n",
                "a = *\n********\n******\n  { c = ***\n",
            ),
            ("secret =\nhunter2\nb 2\n", "secret =\n*******\nb *\n"),
            (
                "a = \"\"\"\nb = 1\n\"\"\" # \"\"\"\nb = 1\n",
                "a = ***\n*****\n*********\nb = *\n",
            ),
            ("a = '''b''' # '''\nb = 1\n", "a = *************\nb = *\n"),
            (
                "a = \"\\\"\"\"\"\nb 1\n'\nb = \"'''\"\nc d\n",
                "a = ******\nb *\n*\nb = *****\nc *\n",
            ),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }
}
