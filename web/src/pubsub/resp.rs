//! The protocol of Redis, RESP 2: commands are encoded, replies are read.
//!
//! A command is an array of byte strings. A reply begins with a byte that names its kind; its numbers and short texts are
//! lines that end in CRLF. Every length that the broker sends has a bound, and so have all lengths of a reply together. Memory grows with the
//! bytes that arrive.

use std::fmt;
use std::io::{self, BufRead, Read};

/// Maximum bytes of a line: a number, a status, an error.
const LINE_MAX: usize = 64 * 1024;

/// Maximum bytes of the texts of a reply. One string may have all of them, which is the broker's own default for a string.
const TEXT_MAX: usize = 512 * 1024 * 1024;

/// Maximum elements of the arrays of a reply. One array may have all of them.
const ELEMENTS_MAX: usize = 1 << 20;

/// Maximum arrays around a value. The reply to XREAD has five.
const DEPTH_MAX: usize = 8;

/// A value received from the broker.
#[derive(Debug, PartialEq)]
#[non_exhaustive]
pub enum Reply {
    /// A string or a status.
    Text(Vec<u8>),
    /// The broker has refused the command, for this reason.
    Error(String),
    /// A number.
    Number(i64),
    /// Nothing: there is no such value.
    Nil,
    /// Several values.
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the reply, or the text of an error reply.
    ///
    /// # Errors
    ///
    /// The text of an error reply.
    pub fn accepted(self) -> Result<Reply, Refused> {
        match self {
            Reply::Error(text) => Err(Refused(text)),
            reply => Ok(reply),
        }
    }
}

/// A command that Redis has refused: the text of its error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub(super) String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Appends a command to `bytes`.
pub(super) fn encode(bytes: &mut Vec<u8>, words: &[&[u8]]) {
    bytes.extend(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
}

/// Reads one reply.
///
/// # Errors
/// The errors of `from`; `UnexpectedEof` if it ends within a reply or before it; `InvalidData` for bytes that are not RESP 2 or
/// exceed a bound. A failed reader has lost its place.
pub(super) fn read(from: &mut impl BufRead) -> io::Result<Reply> {
    let mut left = Left {
        text: TEXT_MAX,
        elements: ELEMENTS_MAX,
    };
    read_at(from, 0, &mut left)
}

/// The text and the elements that a reply may still have.
struct Left {
    text: usize,
    elements: usize,
}

/// Takes the length of a part off what is left for the whole.
fn take(left: &mut usize, length: usize, most: usize) -> io::Result<()> {
    *left = left
        .checked_sub(length)
        .ok_or_else(|| invalid(&format!("a reply whose parts have more than {most} together")))?;
    Ok(())
}

fn read_at(from: &mut impl BufRead, depth: usize, left: &mut Left) -> io::Result<Reply> {
    let line = line(from)?;
    let (kind, rest) = line.split_first().ok_or_else(|| invalid("an empty line"))?;
    if matches!(kind, b'+' | b'-') {
        take(&mut left.text, rest.len(), TEXT_MAX)?;
    }
    Ok(match kind {
        b'+' => Reply::Text(rest.to_vec()),
        b'-' => Reply::Error(String::from_utf8_lossy(rest).into_owned()),
        b':' => Reply::Number(number(rest)?),
        b'$' => match length(rest, TEXT_MAX)? {
            Some(length) => {
                take(&mut left.text, length, TEXT_MAX)?;
                Reply::Text(string(from, length)?)
            }
            None => Reply::Nil,
        },
        b'*' if depth == DEPTH_MAX => return Err(invalid(&format!("more than {DEPTH_MAX} arrays within each other"))),
        b'*' => match length(rest, ELEMENTS_MAX)? {
            Some(length) => {
                take(&mut left.elements, length, ELEMENTS_MAX)?;
                let values = (0..length).map(|_| read_at(from, depth + 1, left));
                Reply::Array(values.collect::<Result<_, _>>()?)
            }
            None => Reply::Nil,
        },
        _ => return Err(invalid("an unknown kind of reply")),
    })
}

/// Reads a line without its CRLF.
fn line(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(LINE_MAX as u64).read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\r\n") {
        Some(text) => Ok(text.to_vec()),
        None if line.len() == LINE_MAX || line.ends_with(b"\n") => Err(invalid("a line without its end")),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Reads a string of `length` bytes and the CRLF behind it.
fn string(from: &mut impl BufRead, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(length as u64 + 2).read_to_end(&mut bytes)?;
    if bytes.len() < length + 2 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match bytes.split_off(length) == b"\r\n" {
        true => Ok(bytes),
        false => Err(invalid("a string without its end")),
    }
}

fn number(digits: &[u8]) -> io::Result<i64> {
    let text = str::from_utf8(digits).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| invalid("a number that is none"))
}

/// The length of a string or an array; `None` for the length -1, which means that there is none.
fn length(digits: &[u8], limit: usize) -> io::Result<Option<usize>> {
    match number(digits)? {
        -1 => Ok(None),
        length => match usize::try_from(length) {
            Ok(length) if length <= limit => Ok(Some(length)),
            _ => Err(invalid(&format!("the length {length}, which is not 0 to {limit}"))),
        },
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the broker sent {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.into())
    }

    fn kind(bytes: &[u8]) -> io::ErrorKind {
        read(&mut &bytes[..]).unwrap_err().kind()
    }

    #[test]
    fn a_command_is_an_array_of_strings() {
        let mut bytes = Vec::new();
        encode(&mut bytes, &[b"PING"]);
        encode(&mut bytes, &[b"PUBLISH", b"a room", b"\r\n\xff"]);
        assert_eq!(
            bytes,
            b"*1\r\n$4\r\nPING\r\n*3\r\n$7\r\nPUBLISH\r\n$6\r\na room\r\n$3\r\n\r\n\xff\r\n"
        );
    }

    #[test]
    fn replies_of_every_kind_follow_each_other() {
        let mut bytes =
            &b"+PONG\r\n-ERR no\r\n:-7\r\n$-1\r\n*-1\r\n$0\r\n\r\n*3\r\n$7\r\nmessage\r\n+r\r\n*1\r\n:1\r\n"[..];
        let replies: Vec<Reply> = (0..7).map(|_| read(&mut bytes).unwrap()).collect();
        let nested = vec![text("message"), text("r"), Reply::Array(vec![Reply::Number(1)])];
        let error = Reply::Error("ERR no".into());
        let (nil, number) = (|| Reply::Nil, Reply::Number(-7));
        assert_eq!(
            replies,
            [
                text("PONG"),
                error,
                number,
                nil(),
                nil(),
                text(""),
                Reply::Array(nested)
            ]
        );
        assert_eq!(kind(bytes), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn long_and_deep_replies_of_other_commands_are_read() {
        let long = [b"*1000\r\n", &b":1\r\n".repeat(1000)[..]].concat();
        assert_eq!(
            read(&mut &long[..]).unwrap(),
            Reply::Array((0..1000).map(|_| Reply::Number(1)).collect())
        );
        let stream = b"*1\r\n*2\r\n+s\r\n*1\r\n*2\r\n+1-1\r\n*2\r\n+k\r\n+v\r\n"; // of XREAD
        assert!(read(&mut &stream[..]).is_ok());
    }

    #[test]
    fn a_reply_that_ends_early_is_an_end() {
        let whole = b"*2\r\n$3\r\nabc\r\n:12\r\n";
        for length in 0..whole.len() {
            assert_eq!(kind(&whole[..length]), io::ErrorKind::UnexpectedEof, "{length}");
        }
    }

    #[test]
    fn lengths_and_depths_are_bounded() {
        let deep = b"*1\r\n".repeat(DEPTH_MAX + 1);
        let long = [b"+", &[b'a'; LINE_MAX][..]].concat();
        let wrong: [&[u8]; 10] = [
            b"*1048577\r\n",
            b"$536870913\r\n",
            b"$-2\r\n",
            b":1x\r\n",
            b":\r\n",
            b"\r\n",
            b"!x\r\n",
            b"+a\n",
            &deep,
            &long,
        ];
        for bytes in wrong {
            assert_eq!(kind(bytes), io::ErrorKind::InvalidData, "{:?}", bytes.escape_ascii());
        }
        assert_eq!(kind(b"$1\r\nabc"), io::ErrorKind::InvalidData);
    }

    #[test]
    fn the_parts_of_a_reply_have_a_bound_together() {
        // Two strings, and an array within another, each of which would be allowed alone.
        let strings = [b"*2\r\n$1\r\na\r\n", format!("${TEXT_MAX}\r\n").as_bytes()].concat();
        let arrays = format!("*1\r\n*{ELEMENTS_MAX}\r\n");
        for bytes in [&strings[..], arrays.as_bytes()] {
            let error = read(&mut &bytes[..]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            assert!(error.to_string().contains(" together"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn an_array_of_strings_comes_back(words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..9)) {
            let mut bytes = Vec::new();
            encode(&mut bytes, &words.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let reply = read(&mut &bytes[..]).unwrap();
            prop_assert_eq!(reply, Reply::Array(words.into_iter().map(Reply::Text).collect()));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(prop::sample::select(&b"*$+-:\r\n019a"[..]), 0..60)) {
            let _ = read(&mut &bytes[..]);
        }
    }
}
