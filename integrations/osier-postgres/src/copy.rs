//! COPY between the client and the server, which has messages of its own.
//!
//! As an ordinary statement it leaves the connection in the middle of the copy: the server waits for data, and ends the session at the
//! next statement, which may be somebody else's.

use crate::error::Error;

/// Refuses a statement that is a COPY from or to the client. One from or to a file of the server is a statement like others.
pub(crate) fn refuse(sql: &str) -> Result<(), Error> {
    let statement = behind_comments(sql);
    if !statement.get(..4).is_some_and(|word| word.eq_ignore_ascii_case("copy")) {
        return Ok(());
    }
    let statement = statement.to_ascii_lowercase();
    let mut words = statement.split(|c: char| !c.is_alphanumeric() && !"_$\"'".contains(c));
    let mut before = "";
    let is_client = words.any(|word| {
        let is_client = matches!(before, "from" | "to") && matches!(word, "stdin" | "stdout");
        if !word.is_empty() {
            before = word;
        }
        is_client
    });
    if is_client { Err(Error::copy()) } else { Ok(()) }
}

/// A statement without the white space, empty statements and comments before it.
fn behind_comments(sql: &str) -> &str {
    let mut rest = sql;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
        if rest.starts_with("--") {
            rest = rest.split_once(['\n', '\r']).map_or("", |(_, rest)| rest);
        } else if rest.starts_with("/*") {
            rest = behind_comment(rest);
        } else {
            return rest;
        }
    }
}

/// The text behind the comment that it begins with. Comments may be nested.
fn behind_comment(text: &str) -> &str {
    let (mut depth, mut rest) = (0, text);
    while let Some(at) = rest.find(['/', '*']) {
        rest = &rest[at..];
        let (change, length) = match rest.get(..2) {
            Some("/*") => (1, 2),
            Some("*/") => (-1, 2),
            _ => (0, 1),
        };
        (depth, rest) = (depth + change, &rest[length..]);
        if depth == 0 {
            return rest;
        }
    }
    ""
}
