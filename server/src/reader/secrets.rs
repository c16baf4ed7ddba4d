//! The parts of a configuration that no message shows, because more people read logs than the file.
//!
//! - Values of some keys, passwords in URLs, and keys in place of their files: [`of`].
//! - Values that nobody has read below a key that looks like one of them, because it is misspelled for example:
//!   [`doubtful`].
//! - Values that may be one of them, in a text that is not read at all: [`unread`].

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Keys whose values are secret, with all that is below them. A hash may be the password itself by mistake.
const SECRETS: [&str; 4] = ["params", REQUEST_HEADERS, "secret", "users"];
const REQUEST_HEADERS: &str = "request_headers";

/// Keys of tables that hold a secret. Somebody may write the secret in place of the table.
const HOLDERS: [&str; 2] = ["auth", "binding"];

/// The key of a URL whose password may also stand without a host.
const REDIS: &str = "redis";

/// The key of a URL whose query may have a token.
const ASK: &str = "ask";

/// Marks of a key in PEM form and of a JWK.
const MARKS: [&str; 2] = [PEM, "\"kty\""];
const PEM: &str = "-----BEGIN ";

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
        DeValue::String(url) => {
            let quoted = &text[at.clone()];
            let query = quoted
                .find('?')
                .filter(|_| key == ASK)
                .map(|start| start + 1..quoted.len() - 1);
            match password(quoted) {
                None if key == REDIS && (!url.contains("//") || url.contains("//:")) => found.push(at),
                password => {
                    let hidden = password.into_iter().chain(query);
                    found.extend(hidden.map(|hidden| at.start + hidden.start..at.start + hidden.end));
                }
            }
        }
        _ => {}
    }
}

/// The places of a value, or of the values in it.
fn leaves(value: &Spanned<DeValue<'_>>) -> Vec<Range<usize>> {
    match value.get_ref() {
        DeValue::Table(table) => table.values().flat_map(leaves).collect(),
        DeValue::Array(items) => items.iter().flat_map(leaves).collect(),
        _ => vec![value.span()],
    }
}

/// The places of all values below keys that look like the name of a secret.
pub fn doubtful(table: &DeTable<'_>) -> Vec<Range<usize>> {
    let of_key = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let key: &Spanned<std::borrow::Cow<'_, str>> = key;
        match value.get_ref() {
            _ if names_secret(key.get_ref()) => leaves(value),
            DeValue::Table(table) => doubtful(table),
            DeValue::Array(items) => {
                let tables = items.iter().filter_map(|item| item.get_ref().as_table());
                tables.flat_map(doubtful).collect()
            }
            _ => Vec::new(),
        }
    };
    table.iter().flat_map(of_key).collect()
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

/// The places in a text that is not read: passwords of URLs, and all values from a line with the name of a secret to
/// the next header.
pub fn unread(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut start, mut open, mut before) = (0, None, "");
    let (mut is_secret, mut is_pem) = (false, false);
    for line in text.split_inclusive('\n') {
        // A line of a list may begin with a bracket, too.
        let is_header = open.is_none() && !goes_on(before) && line.trim_start().starts_with('[');
        is_secret = names_secret(line) || (is_secret && !is_header);
        let named = named(line);
        // The line may go on with a value: it shows a key only if that has its '='.
        let is_value = goes_on(before) && !line[..named].contains('=');
        let hidden = match is_secret {
            true if open.is_some() || is_value || is_pem => Some(0..line.len()),
            true => Some(named..line.len()),
            false => password(line),
        };
        found.extend(hidden.map(|hidden| start + hidden.start..start + hidden.end));
        open = open_string(line, open);
        is_pem = ((is_pem && !is_header) || line.contains(PEM)) && !line.contains("-----END ");
        start += line.len();
        before = line.trim_end();
    }
    found
}

/// Whether a value goes on behind a line.
fn goes_on(line: &str) -> bool {
    line.ends_with(['=', '[', '{', ','])
}

/// Whether a line has the name of a secret, with a slip of the pen or without, or the beginning of a key.
fn names_secret(line: &str) -> bool {
    let mut words = line.split(|char: char| !char.is_alphanumeric());
    let is_name = |word: &str| {
        let mut names = SECRETS.iter().chain(&HOLDERS).chain([&REDIS]);
        names.any(|name| strsim::osa_distance(word, name) <= name.len() / 3)
    };
    // A word of its own for the name with an underscore. `response_headers` are farther from it.
    let mut long = line.split(|char: char| !char.is_alphanumeric() && char != '_');
    let is_headers = |word: &str| strsim::osa_distance(word, REQUEST_HEADERS) <= 3;
    // The key that names the user of the process.
    is_content(line) || words.any(|word| word != "user" && is_name(word)) || long.any(is_headers)
}

/// The number of bytes at the beginning of a line that hold no value: `[table]`, `key =`, or a key with a colon by
/// mistake.
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
    fn an_unread_text_shows_keys_and_headers_around_a_secret() {
        for (text, expected) in [
            ("[[auth]\n", "[[auth]\n"),
            ("[auth.\"a b\"\n", "[auth.*****\n"),
            ("[users.\"a b\"] x\n", "[users.\"a b\"] *\n"),
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
            ("a = [\n[\"b\"],\n[\"c\"]\n", "a = *\n******\n*****\n"),
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
            // In the table of a secret.
            let in_table = |text: &str| format!("[auth]\n{text}");
            assert_eq!(shown(&in_table(text)), in_table(expected), "{text}");
        }
    }

    #[test]
    fn an_unread_text_hides_what_may_be_a_secret_alone() {
        for (text, expected) in [
            (
                "user = \"www\nworkers = 2x\n[listen]\n",
                "user = \"www\nworkers = 2x\n[listen]\n",
            ),
            ("to = \"http://a:b@c\n", "to = \"http://***@c\n"),
            (
                "sercet = a\nb = c\n[site]\nd = e\n",
                "sercet = *\nb = *\n[site]\nd = e\n",
            ),
            ("auth = { user = { a = \"b\n", "auth = *****************\n"),
            (
                "[site.auth.users]\na = \"b\n[[site]]\nc = d",
                "[site.auth.users]\na = **\n[[site]]\nc = d",
            ),
            ("key = \"-----BEGIN X\nabc\n", "key = *************\n***\n"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }
}
