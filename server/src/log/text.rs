//! Pieces of log lines: times, clients, and escaped text.

use std::fmt;
use std::io::Write;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use osier_web::files::calendar::Utc;

/// The present time since 1970.
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A client in the spelling of a configuration: an address or `unix`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client(pub Option<IpAddr>);

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ip) => ip.fmt(f),
            None => f.write_str("unix"),
        }
    }
}

/// The time of day: `hh:mm:ss`.
pub struct Clock(pub Utc);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Utc {
            hour, minute, second, ..
        } = self.0;
        write!(f, "{hour:02}:{minute:02}:{second:02}")
    }
}

/// A moment as RFC 3339 writes it, in UTC with milliseconds.
pub struct Rfc3339(pub Duration);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = utc(self.0);
        let (year, month, day, millis) = (at.year, at.month, at.day, self.0.subsec_millis());
        write!(f, "{year:04}-{month:02}-{day:02}T{}.{millis:03}Z", Clock(at))
    }
}

/// The calendar date and the time of day in UTC.
pub fn utc(since_1970: Duration) -> Utc {
    Utc::from_unix(i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX))
}

/// The name of the month in three letters.
pub fn month(at: &Utc) -> &'static str {
    Utc::MONTHS[usize::from(at.month) - 1]
}

/// Formats into a vector, which cannot fail.
pub fn put(line: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    let _ = line.write_fmt(text);
}

/// Escapes as Apache does: `\"`, `\\`, and `\xhh` for every byte that is not printable ASCII.
pub fn escape_combined(line: &mut Vec<u8>, bytes: &[u8]) {
    escape(line, bytes, b"");
}

/// Escapes as [`escape_combined`] does, and each byte of `special` by `\xhh`.
pub fn escape(line: &mut Vec<u8>, bytes: &[u8], special: &[u8]) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => line.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' if !special.contains(&byte) => line.push(byte),
            _ => put(line, format_args!("\\x{byte:02x}")),
        }
    }
}

/// Escapes the inside of a JSON string, including the characters that [`visible`] escapes. Bytes that are not UTF-8
/// become U+FFFD, because JSON cannot represent them.
pub fn escape_json(line: &mut Vec<u8>, bytes: &[u8]) {
    for char in String::from_utf8_lossy(bytes).chars() {
        match char {
            '"' | '\\' => line.extend_from_slice(&[b'\\', char as u8]),
            ' '..='~' => line.push(char as u8),
            char if char.escape_debug().len() > 1 => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    put(line, format_args!("\\u{unit:04x}"));
                }
            }
            char => line.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// The text on one line: control characters and invisible characters are escaped as Rust writes them, `\n` and `\u{1b}`
/// for example.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '"' | '\'' | '\\' | ' '..='~' => shown.push(char),
            _ => shown.extend(char.escape_debug()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_milliseconds() {
        let shown = |millis| Rfc3339(Duration::from_millis(millis)).to_string();
        assert_eq!(shown(784_111_777_007), "1994-11-06T08:49:37.007Z");
        assert_eq!(shown(0), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn nothing_invisible_is_left_in_json() {
        let mut line = Vec::new();
        escape_json(&mut line, "\u{202e}\u{2028}\u{85}\u{e0001}ä😀'\"".as_bytes());
        let line = String::from_utf8(line).unwrap();
        assert_eq!(line, r#"\u202e\u2028\u0085\udb40\udc01ä😀'\""#);
    }

    #[test]
    fn nothing_invisible_is_left() {
        assert_eq!(
            visible("a\r\nb\t\x1b[2J\u{85}\u{202e}\u{2028} \"é\" 'ä' \\"),
            "a\\r\\nb\\t\\u{1b}[2J\\u{85}\\u{202e}\\u{2028} \"é\" 'ä' \\"
        );
    }
}
