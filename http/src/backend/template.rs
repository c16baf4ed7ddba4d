//! Lines of a head that differ in a few values only, checked when the program is compiled.

use crate::message::byte::{is_token, is_value};
use crate::message::is_reserved_in_requests;

/// Complete field lines with a gap between each two parts. A gap stands inside a value.
///
/// ```
/// use osier_http::{BodyLength, LineTemplate, RequestWriter};
///
/// const CLIENT: LineTemplate<3> = LineTemplate::new(["x-ip: ", "\r\nx-from: ", "!\r\n"]);
/// let mut out = Vec::new();
/// let mut head = RequestWriter::begin(&mut out, "GET", "/", "a")?;
/// head.filled(&CLIENT, &[b"192.0.2.1", b"b"])?;
/// assert!(head.filled(&CLIENT, &[b"192.0.2.1", b"a\r\nx: b"]).is_err());
/// assert!(head.filled(&CLIENT, &[b"1", b"2", b"3"]).is_err() && head.filled(&CLIENT, &[]).is_err());
/// head.filled(&CLIENT, &[b"c"])?;
/// head.finish(BodyLength::None);
/// assert_eq!(out, b"GET / HTTP/1.1\r\nhost: a\r\nx-ip: 192.0.2.1\r\nx-from: b!\r\nx-ip: c\r\nx-from: c!\r\n\r\n");
/// # Ok::<(), osier_http::HeaderError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LineTemplate<const PARTS: usize>(pub(super) [&'static str; PARTS]);

impl<const PARTS: usize> LineTemplate<PARTS> {
    /// Makes a template. Make it in a constant, so that a mistake is found by the compiler.
    ///
    /// # Panics
    /// Panics for a line that is not `name: value` and CRLF, for a gap outside of a value, and for Host and the fields that frame a
    /// message.
    pub const fn new(parts: [&'static str; PARTS]) -> LineTemplate<PARTS> {
        let (mut part, mut is_value_open) = (0, false);
        while part < PARTS {
            assert!(part == 0 || is_value_open, "a gap outside of a value");
            let mut rest = parts[part].as_bytes();
            while !rest.is_empty() {
                (rest, is_value_open) = match is_value_open {
                    false => (after_name(rest), true),
                    true => after_value(rest),
                };
            }
            part += 1;
        }
        assert!(!is_value_open, "a line without an end");
        LineTemplate(parts)
    }
}

/// Checks the name at the beginning, and returns the bytes after its colon and space.
const fn after_name(line: &[u8]) -> &[u8] {
    let mut at = 0;
    while at < line.len() && is_token(line[at]) {
        at += 1;
    }
    let (name, rest) = line.split_at(at);
    let [b':', b' ', rest @ ..] = rest else {
        panic!("a line without a name");
    };
    assert!(!name.is_empty() && !is_reserved_in_requests(name), "a reserved name");
    rest
}

/// Checks the value at the beginning. Returns the bytes after it, and whether it goes on behind them.
const fn after_value(line: &[u8]) -> (&[u8], bool) {
    let mut at = 0;
    while at < line.len() && is_value(line[at]) {
        at += 1;
    }
    match line.split_at(at).1 {
        [] => (&[], true),
        [b'\r', b'\n', rest @ ..] => (rest, false),
        _ => panic!("a control character in a value"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_could_break_a_head_is_refused() {
        for parts in [
            ["a: b\r\n", "c: d\r\n"],
            ["", "a: b\r\n"],
            ["a: ", "\r\nb"],
            ["a: ", ""],
            ["a: ", "\n"],
            ["a: ", "\r\n\r\n"],
            ["a b: ", "\r\n"],
            [": ", "\r\n"],
            ["a:", "\r\n"],
            ["Content-Length: ", "\r\n"],
            ["host: ", "\r\n"],
            ["a: ", "\r\nKeep-Alive: b\r\n"],
        ] {
            assert!(
                std::panic::catch_unwind(|| LineTemplate::new(parts)).is_err(),
                "{parts:?}"
            );
        }
        LineTemplate::new(["a: b\r\nc: ", "\r\nd: e\r\n"]);
    }
}
