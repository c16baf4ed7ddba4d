//! A line of the access log, in Apache's combined format or as JSON.
//!
//! Every byte from a client is escaped. A combined line holds no control character and no bare quote; a JSON line is always
//! well-formed UTF-8.

use std::fmt;
use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use osier_web::files::calendar::Utc;

/// One request, recorded after its response was sent. Absent fields are empty.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Address of the client. None, written `unix`, for a client without an address.
    pub client: Option<IpAddr>,
    /// Seconds since 1970.
    pub time: i64,
    /// Method as the client sent it. Empty when the request could not be parsed.
    pub method: &'a [u8],
    /// Request target as the client sent it, with its query.
    pub target: &'a [u8],
    /// Protocol version, `HTTP/1.1` for example.
    pub version: &'a str,
    /// Status of the response.
    pub status: u16,
    /// Bytes of the response body.
    pub bytes: u64,
    /// `Host` field.
    pub host: &'a [u8],
    /// `Referer` field, which HTTP spells this way.
    pub referer: &'a [u8],
    /// `User-Agent` field.
    pub user_agent: &'a [u8],
    /// Time from the parsed head of the request to the last byte of the response, if it was measured.
    pub took: Option<Duration>,
    /// The request id, if somebody has asked for it. Other log lines about the request bear the same id. JSON only.
    pub id: Option<osier_web::RequestId>,
}

/// A client, spelled as lists of clients in a configuration spell it.
struct Client(Option<IpAddr>);

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ip) => ip.fmt(f),
            None => f.write_str("unix"),
        }
    }
}

/// The time of day: `hh:mm:ss`.
struct Clock(Utc);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Utc {
            hour, minute, second, ..
        } = self.0;
        write!(f, "{hour:02}:{minute:02}:{second:02}")
    }
}

/// Formats `client - - [day/Mon/year:h:m:s +0000] "request line" status bytes "referer" "user agent"`.
pub fn combined(line: &mut Vec<u8>, entry: &Entry<'_>) {
    let (at, client) = (Utc::from_unix(entry.time), Client(entry.client));
    let (day, month, year) = (at.day, Utc::MONTHS[usize::from(at.month) - 1], at.year);
    put(
        line,
        format_args!("{client} - - [{day:02}/{month}/{year:04}:{} +0000] \"", Clock(at)),
    );
    if entry.method.is_empty() {
        line.push(b'-');
    } else {
        escape_combined(line, entry.method);
        line.push(b' ');
        escape_combined(line, entry.target);
        put(line, format_args!(" {}", entry.version));
    }
    put(line, format_args!("\" {} {} ", entry.status, entry.bytes));
    for field in [entry.referer, entry.user_agent] {
        line.push(b'"');
        escape_combined(line, if field.is_empty() { b"-" } else { field });
        line.extend_from_slice(b"\" ");
    }
    line.pop();
}

/// Formats one object, without the absent fields.
pub fn json(line: &mut Vec<u8>, entry: &Entry<'_>) {
    let at = Utc::from_unix(entry.time);
    let (year, month, day) = (at.year, at.month, at.day);
    put(
        line,
        format_args!("{{\"time\":\"{year:04}-{month:02}-{day:02}T{}Z\"", Clock(at)),
    );
    put(line, format_args!(",\"client\":\"{}\"", Client(entry.client)));
    let texts = [
        ("method", entry.method),
        ("host", entry.host),
        ("target", entry.target),
        ("version", entry.version.as_bytes()),
        ("referer", entry.referer),
        ("user_agent", entry.user_agent),
    ];
    for (name, value) in texts {
        if !value.is_empty() {
            put(line, format_args!(",\"{name}\":\""));
            escape_json(line, value);
            line.push(b'"');
        }
    }
    put(
        line,
        format_args!(",\"status\":{},\"bytes\":{}", entry.status, entry.bytes),
    );
    if let Some(took) = entry.took {
        put(
            line,
            format_args!(",\"seconds\":{}.{:06}", took.as_secs(), took.subsec_micros()),
        );
    }
    if let Some(id) = entry.id {
        put(line, format_args!(",\"id\":\"{id}\""));
    }
    line.push(b'}');
}

/// Formats into a vector, which cannot fail.
fn put(line: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    let _ = line.write_fmt(text);
}

/// Escapes as Apache does: `\"`, `\\`, and `\xhh` for every byte that is not printable ASCII.
fn escape_combined(line: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => line.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => line.push(byte),
            _ => put(line, format_args!("\\x{byte:02x}")),
        }
    }
}

/// Escapes the inside of a JSON string. Bytes that are not UTF-8 become U+FFFD, because JSON cannot represent them.
fn escape_json(line: &mut Vec<u8>, bytes: &[u8]) {
    for char in String::from_utf8_lossy(bytes).chars() {
        match char {
            '"' | '\\' => line.extend_from_slice(&[b'\\', char as u8]),
            char if char.is_control() => put(line, format_args!("\\u{:04x}", char as u32)),
            char => line.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const ENTRY: Entry<'static> = Entry {
        client: Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1))),
        time: 784_111_777,
        method: b"GET",
        target: b"/a?b=c",
        version: "HTTP/1.1",
        status: 200,
        bytes: 2326,
        host: b"example.org",
        referer: b"",
        user_agent: b"curl/8",
        took: Some(Duration::from_micros(1_000_042)),
        id: None,
    };

    fn as_combined(entry: &Entry<'_>) -> String {
        let mut line = Vec::new();
        combined(&mut line, entry);
        String::from_utf8(line).unwrap()
    }

    fn as_json(entry: &Entry<'_>) -> String {
        let mut line = Vec::new();
        json(&mut line, entry);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn a_plain_request() {
        assert_eq!(
            as_combined(&ENTRY),
            r#"192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "GET /a?b=c HTTP/1.1" 200 2326 "-" "curl/8""#
        );
        assert_eq!(
            as_json(&ENTRY),
            concat!(
                r#"{"time":"1994-11-06T08:49:37Z","client":"192.0.2.1","method":"GET","host":"example.org","target":"/a?b=c","#,
                r#""version":"HTTP/1.1","user_agent":"curl/8","status":200,"bytes":2326,"seconds":1.000042}"#
            )
        );
    }

    #[test]
    fn a_request_with_a_number_says_it_in_json() {
        let id = osier_web::RequestId::random();
        let numbered = Entry { id: Some(id), ..ENTRY };
        assert!(as_json(&numbered).ends_with(&format!(",\"seconds\":1.000042,\"id\":\"{id}\"}}")));
        assert_eq!(as_combined(&numbered), as_combined(&ENTRY));
    }

    #[test]
    fn nothing_a_client_sends_leaves_its_field() {
        let evil = Entry {
            target: b"/\"\\\n\x1b[31m\x00\x7f\xff\xc3\xa4",
            user_agent: b"a\" 200 0 \"b\r\n",
            ..ENTRY
        };
        let line = as_combined(&evil);
        assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
        assert!(
            line.contains(r#""GET /\"\\\x0a\x1b[31m\x00\x7f\xff\xc3\xa4 HTTP/1.1""#),
            "{line}"
        );
        assert!(line.ends_with(r#""a\" 200 0 \"b\x0d\x0a""#), "{line}");
        let line = as_json(&evil);
        assert!(
            line.contains(r#""target":"/\"\\\u000a\u001b[31m\u0000\u007f"#),
            "{line}"
        );
        assert!(line.contains("\u{fffd}ä"), "{line}");
        assert!(line.contains(r#""user_agent":"a\" 200 0 \"b\u000d\u000a""#), "{line}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
}
