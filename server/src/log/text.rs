//! Pieces of log lines: times, clients, and escaped text.

use std::cell::RefCell;
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

/// Appends a client as [`Client`] displays it. An IPv4 address, which most lines have, is written without `fmt`.
pub fn put_client(line: &mut Vec<u8>, client: Option<IpAddr>) {
    let Some(IpAddr::V4(ip)) = client else {
        return put(line, format_args!("{}", Client(client)));
    };
    let [first, rest @ ..] = ip.octets();
    put_number(line, first);
    for octet in rest {
        line.push(b'.');
        put_number(line, octet);
    }
}

/// Appends a number in decimal digits.
pub fn put_number(line: &mut Vec<u8>, number: impl itoa::Integer) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends the last `width` decimal digits of a number.
pub fn put_padded(line: &mut Vec<u8>, mut number: u32, width: usize) {
    let at = line.len();
    for _ in 0..width {
        line.push(b'0' + (number % 10) as u8);
        number /= 10;
    }
    line[at..].reverse();
}

/// Whether a line begins with a number in angle brackets, which the journal reads as the priority of the line (sd-daemon(3)).
pub fn begins_with_priority(line: &[u8]) -> bool {
    let digits = |rest: &[u8]| rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    line.strip_prefix(b"<").is_some_and(|rest| {
        let count = digits(rest);
        (1..=3).contains(&count) && rest.get(count) == Some(&b'>')
    })
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

/// Appends a time as `06/Nov/1994:08:49:37 +0000`.
pub fn put_combined_time(line: &mut Vec<u8>, time: Duration) {
    Second::with(time, |second| line.extend_from_slice(&second.combined));
}

/// Appends a time as [`Rfc3339`] displays it.
pub fn put_rfc3339(line: &mut Vec<u8>, time: Duration) {
    Second::with(time, |second| line.extend_from_slice(&second.rfc3339));
    line.push(b'.');
    put_padded(line, time.subsec_millis(), 3);
    line.push(b'Z');
}

/// The texts of the second that a thread has written last. Many lines have the same one.
struct Second {
    number: u64,
    /// Empty if there is none yet.
    combined: Vec<u8>,
    /// As RFC 3339 writes it, up to the seconds.
    rfc3339: Vec<u8>,
}

impl Second {
    /// Calls `body` with the second of a time.
    fn with(time: Duration, body: impl FnOnce(&Second)) {
        thread_local! {
            static LAST: RefCell<Second> = const {
                RefCell::new(Second { number: 0, combined: Vec::new(), rfc3339: Vec::new() })
            };
        }
        LAST.with_borrow_mut(|last| {
            if last.number != time.as_secs() || last.combined.is_empty() {
                last.set(time);
            }
            body(last);
        });
    }

    fn set(&mut self, time: Duration) {
        let at = utc(time);
        let (year, month, day, clock, name) = (at.year, at.month, at.day, Clock(at), month(&at));
        self.number = time.as_secs();
        self.combined.clear();
        self.rfc3339.clear();
        put(
            &mut self.combined,
            format_args!("{day:02}/{name}/{year:04}:{clock} +0000"),
        );
        put(&mut self.rfc3339, format_args!("{year:04}-{month:02}-{day:02}T{clock}"));
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
    let plain = if special.is_empty() { plain(bytes) } else { 0 };
    line.extend_from_slice(&bytes[..plain]);
    for &byte in &bytes[plain..] {
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
    let (plain, rest) = bytes.split_at(plain(bytes));
    line.extend_from_slice(plain);
    for char in String::from_utf8_lossy(rest).chars() {
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

/// The length of the first bytes that need no escape in any format. In most values these are all bytes, and 16 are checked at once.
fn plain(bytes: &[u8]) -> usize {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    let (chunks, _) = bytes.as_chunks::<16>();
    let are_plain = |chunk: &&[u8; 16]| chunk.iter().fold(true, |plain, byte| plain & is_plain(byte));
    let checked = 16 * chunks.iter().take_while(are_plain).count();
    checked + bytes[checked..].iter().take_while(|byte| is_plain(byte)).count()
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
    fn what_is_put_is_what_is_displayed() {
        let put = |with: &dyn Fn(&mut Vec<u8>)| {
            let mut line = Vec::new();
            with(&mut line);
            String::from_utf8(line).unwrap()
        };
        for number in [0_u64, 9, 10, 99, 65_535, u64::MAX] {
            assert_eq!(put(&|line| put_number(line, number)), number.to_string());
        }
        for (number, shown) in [(0, "000"), (7, "007"), (42, "042"), (999, "999")] {
            assert_eq!(put(&|line| put_padded(line, number, 3)), shown);
        }
        let clients = ["0.0.0.0", "255.10.100.9", "2001:db8::1"].map(|client| Some(client.parse().unwrap()));
        for client in clients.into_iter().chain([None]) {
            assert_eq!(put(&|line| put_client(line, client)), Client(client).to_string());
        }
        // Times that go forth and back, within a second and beyond it.
        for millis in [0, 999, 1000, 784_111_777_042, 784_111_777_900, 784_111_778_000, 0] {
            let time = Duration::from_millis(millis);
            assert_eq!(put(&|line| put_rfc3339(line, time)), Rfc3339(time).to_string());
            let combined = put(&|line| put_combined_time(line, time));
            assert!(combined.contains(&Clock(utc(time)).to_string()), "{combined}");
        }
        let time = Duration::from_millis(784_111_777_042);
        assert_eq!(put(&|line| put_combined_time(line, time)), "06/Nov/1994:08:49:37 +0000");
    }

    /// Each byte is escaped in the same way wherever it stands, in a value that is short or long.
    #[test]
    fn an_escape_does_not_depend_on_its_place() {
        type Escape = fn(&mut Vec<u8>, &[u8]);
        let escaped = |bytes: &[u8], escape: Escape| {
            let mut line = Vec::new();
            escape(&mut line, bytes);
            line
        };
        let formats: [Escape; 3] = [escape_combined, escape_json, |line, bytes| escape(line, bytes, b"|")];
        for format in formats {
            for byte in 0..=127u8 {
                let alone = escaped(&[byte], format);
                for at in 0..40 {
                    let mut value = [b'a'; 40];
                    value[at] = byte;
                    let expected = [&[b'a'; 40][..at], &alone, &[b'a'; 39][at..]].concat();
                    assert_eq!(escaped(&value, format), expected, "{byte} at {at}");
                }
            }
        }
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
