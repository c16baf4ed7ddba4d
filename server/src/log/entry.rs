//! Formats a line of the access log: in Apache's combined format, by a template, or as JSON.
//!
//! Every byte from a client is escaped. A line of text holds no control character and no bare quote in a value; a JSON
//! line is always well-formed UTF-8.

use std::net::IpAddr;
use std::time::Duration;

use osier_web::{RequestId, Times, TraceContext};

use super::fields::{Field, Piece, Template};
use super::text::{
    Client, Rfc3339, escape, escape_combined, escape_json, put, put_client, put_combined_time, put_number, put_padded,
    put_rfc3339,
};

/// One request, recorded after its response was sent. Absent fields are empty.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// Address of the client. None, written `unix`, for a client without an address.
    pub client: Option<IpAddr>,
    /// The user whom a policy has let in.
    pub user: &'a [u8],
    /// Time since 1970.
    pub time: Duration,
    /// Method as the client sent it. Empty when the request could not be parsed.
    pub method: &'a [u8],
    /// Request target as the client sent it, with its query.
    pub target: &'a [u8],
    /// The path of the target, without the query.
    pub path: &'a [u8],
    pub query: &'a [u8],
    /// Protocol version, `HTTP/1.1` for example.
    pub version: &'a str,
    /// Status of the response.
    pub status: u16,
    /// Bytes of the response body, or those that a tunnel has passed to the client.
    pub bytes: u64,
    /// Bytes of the request body that were read, or those that a tunnel has passed to the backend.
    pub received: u64,
    /// The backend of a tunnel, and why the tunnel has ended.
    pub tunnel: Option<(&'a str, &'static str)>,
    /// The host that the request names.
    pub host: &'a [u8],
    /// The name of the site, if the format has it.
    pub site: &'a str,
    /// The values of the request's fields, by name.
    pub fields: &'a dyn Fn(&str) -> &'a [u8],
    /// Time from the parsed head of the request to the last byte of the response, if it was measured.
    pub took: Option<Duration>,
    /// The time by phase.
    pub times: Times,
    /// The place in a trace, if one was started.
    pub trace: Option<TraceContext>,
    /// The request id, if the format has it.
    pub id: Option<RequestId>,
}

impl<'a> Entry<'a> {
    /// The entry with at most `most` bytes of each value that a client chooses. `fields` returns the shortened fields
    /// of the request.
    pub fn cut<'c>(&self, most: usize, fields: &'c dyn Fn(&str) -> &'c [u8]) -> Entry<'c>
    where
        'a: 'c,
    {
        Entry {
            client: self.client,
            user: cut(self.user, most),
            time: self.time,
            method: cut(self.method, most),
            target: cut(self.target, most),
            path: cut(self.path, most),
            query: cut(self.query, most),
            version: self.version,
            status: self.status,
            bytes: self.bytes,
            received: self.received,
            tunnel: self.tunnel,
            host: cut(self.host, most),
            site: self.site,
            fields,
            took: self.took,
            times: self.times,
            trace: self.trace,
            id: self.id,
        }
    }
}

/// The first `most` bytes, or all if there are fewer.
pub fn cut(value: &[u8], most: usize) -> &[u8] {
    &value[..value.len().min(most)]
}

/// Formats `client - user [day/Mon/year:h:m:s +0000] "request line" status bytes "referer" "user agent"`.
pub fn combined(line: &mut Vec<u8>, entry: &Entry<'_>) {
    put_client(line, entry.client);
    line.extend_from_slice(b" - ");
    match entry.user {
        b"" => line.push(b'-'),
        // No quotes surround it, so a space would end it.
        user => escape(line, user, b" "),
    }
    line.extend_from_slice(b" [");
    put_combined_time(line, entry.time);
    line.extend_from_slice(b"] \"");
    request(line, entry);
    line.extend_from_slice(b"\" ");
    put_number(line, entry.status);
    line.push(b' ');
    put_number(line, entry.bytes);
    line.push(b' ');
    for field in ["referer", "user-agent"] {
        let value = (entry.fields)(field);
        line.push(b'"');
        escape_combined(line, if value.is_empty() { b"-" } else { value });
        line.extend_from_slice(b"\" ");
    }
    line.pop();
}

/// Formats the request line. `-` when the request could not be parsed.
fn request(line: &mut Vec<u8>, entry: &Entry<'_>) {
    if entry.method.is_empty() {
        return line.push(b'-');
    }
    escape_combined(line, entry.method);
    line.push(b' ');
    escape_combined(line, entry.target);
    line.push(b' ');
    line.extend_from_slice(entry.version.as_bytes());
}

/// The value of a field.
enum Value<'a> {
    /// Bytes that a client may have chosen.
    Text(&'a [u8]),
    /// A text of this server, which needs no escapes.
    Own(String),
    Times(Times),
    Number(String),
    /// The request line.
    Request,
    Nothing,
}

/// The value of a field in an entry.
fn value<'a>(field: &Field, entry: &'a Entry<'_>) -> Value<'a> {
    let text = |bytes: &'a [u8]| match bytes {
        b"" => Value::Nothing,
        bytes => Value::Text(bytes),
    };
    match field {
        Field::Time => Value::Own(Rfc3339(entry.time).to_string()),
        Field::TimeCombined => {
            let mut time = Vec::new();
            put_combined_time(&mut time, entry.time);
            Value::Own(String::from_utf8(time).unwrap_or_default())
        }
        Field::Timestamp => {
            let (seconds, millis) = (entry.time.as_secs(), entry.time.subsec_millis());
            Value::Number(format!("{seconds}.{millis:03}"))
        }
        Field::Site => text(entry.site.as_bytes()),
        Field::Host => text(entry.host),
        Field::Client => Value::Own(Client(entry.client).to_string()),
        Field::User => text(entry.user),
        Field::Request if entry.method.is_empty() => Value::Nothing,
        Field::Request => Value::Request,
        Field::Method => text(entry.method),
        Field::Target => text(entry.target),
        Field::Path => text(entry.path),
        Field::Query => text(entry.query),
        Field::Protocol => Value::Own(entry.version.to_owned()),
        Field::Status => Value::Number(entry.status.to_string()),
        Field::Bytes => Value::Number(entry.bytes.to_string()),
        Field::Received => Value::Number(entry.received.to_string()),
        Field::TunnelBackend => own(entry.tunnel.map(|(backend, _)| backend.to_owned())),
        Field::TunnelEnd => own(entry.tunnel.map(|(_, end)| end.to_owned())),
        Field::Duration => number(entry.took, |took| {
            format!("{}.{:06}", took.as_secs(), took.subsec_micros())
        }),
        Field::DurationMs => number(entry.took, millis),
        Field::Phase(phase) => number(entry.took, |_| millis(entry.times.get(*phase))),
        Field::Times => Value::Times(entry.times),
        Field::RequestId => match &entry.id {
            Some(id) => text(id.as_str().as_bytes()),
            None => Value::Nothing,
        },
        Field::TraceId => own(entry.trace.map(|trace| trace.trace_id())),
        Field::SpanId => own(entry.trace.map(|trace| trace.span_id())),
        Field::ParentId => own(entry.trace.and_then(|trace| trace.parent_id())),
        Field::Header(name) => text((entry.fields)(name)),
    }
}

fn own(text: Option<String>) -> Value<'static> {
    text.map_or(Value::Nothing, Value::Own)
}

/// A time in milliseconds, with three decimals.
fn millis(time: Duration) -> String {
    let micros = time.as_micros();
    format!("{}.{:03}", micros / 1000, micros % 1000)
}

/// Writes the phases that have taken time, in milliseconds.
fn phases(line: &mut Vec<u8>, times: &Times, quote: &str, sign: char) {
    for (index, (phase, time)) in times.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        put(
            line,
            format_args!("{comma}{quote}{}{quote}{sign}{}", phase.as_str(), millis(time)),
        );
    }
}

fn number(took: Option<Duration>, format: impl Fn(Duration) -> String) -> Value<'static> {
    took.map_or(Value::Nothing, |took| Value::Number(format(took)))
}

/// Formats a line as a template says. An absent value is `-`.
pub fn template(line: &mut Vec<u8>, template: &Template, entry: &Entry<'_>) {
    for piece in &template.pieces {
        let (field, separators) = match piece {
            Piece::Text(text) => {
                line.extend_from_slice(text.as_bytes());
                continue;
            }
            Piece::Field(field, separators) => (field, separators),
        };
        match value(field, entry) {
            Value::Text(bytes) => escape(line, bytes, separators),
            Value::Own(text) | Value::Number(text) => line.extend_from_slice(text.as_bytes()),
            Value::Times(times) => phases(line, &times, "", '='),
            Value::Request => {
                let parts = [entry.method, b" ", entry.target, b" ", entry.version.as_bytes()];
                escape(line, &parts.concat(), separators);
            }
            Value::Nothing => line.push(b'-'),
        }
    }
}

/// Formats one object with the default fields.
pub fn json(line: &mut Vec<u8>, entry: &Entry<'_>) {
    line.extend_from_slice(b"{\"time\":\"");
    put_rfc3339(line, entry.time);
    line.extend_from_slice(b"\",\"client\":\"");
    put_client(line, entry.client);
    line.push(b'"');
    let texts = [
        ("user", entry.user),
        ("method", entry.method),
        ("host", entry.host),
        ("target", entry.target),
        ("version", entry.version.as_bytes()),
        ("referer", (entry.fields)("referer")),
        ("user_agent", (entry.fields)("user-agent")),
    ];
    for (name, value) in texts {
        if !value.is_empty() {
            line.extend_from_slice(b",\"");
            line.extend_from_slice(name.as_bytes());
            line.extend_from_slice(b"\":\"");
            escape_json(line, value);
            line.push(b'"');
        }
    }
    line.extend_from_slice(b",\"status\":");
    put_number(line, entry.status);
    line.extend_from_slice(b",\"bytes\":");
    put_number(line, entry.bytes);
    if let Some((backend, end)) = entry.tunnel {
        let received = entry.received;
        put(line, format_args!(",\"received\":{received},\"tunnel_backend\":\""));
        escape_json(line, backend.as_bytes());
        put(line, format_args!("\",\"tunnel_end\":\"{end}\""));
    }
    if let Some(took) = entry.took {
        line.extend_from_slice(b",\"seconds\":");
        put_number(line, took.as_secs());
        line.push(b'.');
        put_padded(line, took.subsec_micros(), 6);
    }
    if let Some(id) = entry.id {
        put(line, format_args!(",\"id\":\"{id}\""));
    }
    line.push(b'}');
}

/// Formats one object with these fields, without the absent ones.
pub fn json_of(line: &mut Vec<u8>, fields: &[Field], entry: &Entry<'_>) {
    line.push(b'{');
    for field in fields {
        let value = value(field, entry);
        if matches!(value, Value::Nothing) {
            continue;
        }
        if line.last() != Some(&b'{') {
            line.push(b',');
        }
        put(line, format_args!("\"{}\":", field.name()));
        let mut string = |bytes: &[u8]| {
            line.push(b'"');
            escape_json(line, bytes);
            line.push(b'"');
        };
        match value {
            Value::Text(bytes) => string(bytes),
            Value::Own(text) => string(text.as_bytes()),
            Value::Request => string(&[entry.method, b" ", entry.target, b" ", entry.version.as_bytes()].concat()),
            Value::Number(number) => line.extend_from_slice(number.as_bytes()),
            Value::Times(times) => {
                line.push(b'{');
                phases(line, &times, "\"", ':');
                line.push(b'}');
            }
            Value::Nothing => {}
        }
    }
    line.push(b'}');
}

#[cfg(test)]
pub mod tests {
    use super::*;

    fn fields(name: &str) -> &'static [u8] {
        if name == "user-agent" { b"curl/8" } else { b"" }
    }

    pub const ENTRY: Entry<'static> = Entry {
        client: Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1))),
        user: b"",
        time: Duration::from_millis(784_111_777_042),
        method: b"GET",
        target: b"/a?b=c",
        path: b"/a",
        query: b"b=c",
        version: "HTTP/1.1",
        status: 200,
        bytes: 2326,
        received: 0,
        tunnel: None,
        host: b"example.org",
        site: "example.org",
        fields: &fields,
        took: Some(Duration::from_micros(1_000_042)),
        times: Times::ZERO,
        trace: None,
        id: None,
    };

    #[test]
    fn the_user_cannot_end_its_field() {
        let named = Entry {
            user: b"a da] \"\\\n",
            ..ENTRY
        };
        let line = text(|line| combined(line, &named));
        assert!(line.starts_with("192.0.2.1 - a\\x20da]\\x20\\\"\\\\\\x0a ["), "{line}");
        let line = text(|line| json(line, &named));
        assert!(
            line.contains(r#""client":"192.0.2.1","user":"a da] \"\\\u000a","method""#),
            "{line}"
        );
        assert!(text(|line| combined(line, &ENTRY)).starts_with("192.0.2.1 - - ["));
        assert!(!text(|line| json(line, &ENTRY)).contains("user\":"));
    }

    fn text(format: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut line = Vec::new();
        format(&mut line);
        String::from_utf8(line).unwrap()
    }

    fn as_combined(entry: &Entry<'_>) -> String {
        text(|line| combined(line, entry))
    }

    fn as_json(entry: &Entry<'_>) -> String {
        text(|line| json(line, entry))
    }

    fn as_template(form: &str, entry: &Entry<'_>) -> String {
        let form = Template::parse(form).unwrap();
        text(|line| template(line, &form, entry))
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
                r#"{"time":"1994-11-06T08:49:37.042Z","client":"192.0.2.1","method":"GET","host":"example.org","target":"/a?b=c","#,
                r#""version":"HTTP/1.1","user_agent":"curl/8","status":200,"bytes":2326,"seconds":1.000042}"#
            )
        );
    }

    #[test]
    fn a_tunnel_says_how_it_has_ended() {
        let tunnel = Entry {
            status: 101,
            received: 12,
            tunnel: Some(("127.0.0.1:3000", "idle_timeout")),
            ..ENTRY
        };
        assert!(
            as_json(&tunnel).ends_with(
                r#""status":101,"bytes":2326,"received":12,"tunnel_backend":"127.0.0.1:3000","tunnel_end":"idle_timeout","seconds":1.000042}"#
            ),
            "{}",
            as_json(&tunnel)
        );
        let form = "$status $received $bytes $tunnel_backend $tunnel_end";
        assert_eq!(as_template(form, &tunnel), "101 12 2326 127.0.0.1:3000 idle_timeout");
        assert_eq!(as_template(form, &ENTRY), "200 0 2326 - -");
    }

    #[test]
    fn a_template_names_its_fields() {
        let id = RequestId::random();
        let entry = Entry { id: Some(id), ..ENTRY };
        let form = "$time $timestamp $site $host $client \"$request\" $method $target $path $query $protocol $status $bytes \
                    $duration $duration_ms $request_id $header_user_agent $header_referer [$time_combined] $$";
        assert_eq!(
            as_template(form, &entry),
            format!(
                "1994-11-06T08:49:37.042Z 784111777.042 example.org example.org 192.0.2.1 \"GET /a?b=c HTTP/1.1\" GET /a?b=c /a b=c \
                 HTTP/1.1 200 2326 1.000042 1000.042 {id} curl/8 - [06/Nov/1994:08:49:37 +0000] $"
            )
        );
        // A request that could not be parsed.
        let nothing = Entry {
            method: b"",
            target: b"",
            host: b"",
            took: None,
            ..ENTRY
        };
        assert_eq!(
            as_template("\"$request\" $host $target $duration", &nothing),
            "\"-\" - - -"
        );
    }

    #[test]
    fn chosen_fields_are_an_object() {
        let names = [
            "time",
            "host",
            "status",
            "duration_ms",
            "request",
            "header_referer",
            "header_user_agent",
        ];
        let fields: Vec<Field> = names.iter().map(|name| Field::named(name).unwrap()).collect();
        assert_eq!(
            text(|line| json_of(line, &fields, &ENTRY)),
            concat!(
                r#"{"time":"1994-11-06T08:49:37.042Z","host":"example.org","status":200,"duration_ms":1000.042,"#,
                r#""request":"GET /a?b=c HTTP/1.1","header_user_agent":"curl/8"}"#
            )
        );
        assert_eq!(text(|line| json_of(line, &fields[5..6], &ENTRY)), "{}");
    }

    #[test]
    fn a_request_with_a_number_says_it_in_json() {
        let id = RequestId::random();
        let numbered = Entry { id: Some(id), ..ENTRY };
        assert!(as_json(&numbered).ends_with(&format!(",\"seconds\":1.000042,\"id\":\"{id}\"}}")));
        assert_eq!(as_combined(&numbered), as_combined(&ENTRY));
    }

    #[test]
    fn nothing_a_client_sends_leaves_its_field() {
        let fields = |name: &str| match name {
            "user-agent" => &b"a\" 200 0 \"b\r\n|x=1"[..],
            _ => b"",
        };
        let evil = Entry {
            target: b"/\"\\\n\x1b[31m\x00\x7f\xff\xc3\xa4",
            path: b"/a|b c\n\"]",
            fields: &fields,
            ..ENTRY
        };
        let line = as_combined(&evil);
        assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
        assert!(
            line.contains(r#""GET /\"\\\x0a\x1b[31m\x00\x7f\xff\xc3\xa4 HTTP/1.1""#),
            "{line}"
        );
        assert!(line.ends_with(r#""a\" 200 0 \"b\x0d\x0a|x=1""#), "{line}");
        let line = as_json(&evil);
        assert!(
            line.contains(r#""target":"/\"\\\u000a\u001b[31m\u0000\u007f"#),
            "{line}"
        );
        assert!(line.contains("\u{fffd}ä"), "{line}");
        assert!(
            line.contains(r#""user_agent":"a\" 200 0 \"b\u000d\u000a|x=1""#),
            "{line}"
        );
        assert!(!line.chars().any(char::is_control), "{line:?}");
        // A separator of the template is escaped where no quotes hold the value.
        assert_eq!(
            as_template("$path|ua=$header_user_agent|\"$path\"", &evil),
            r#"/a\x7cb c\x0a\"]|ua=a\" 200 0 \"b\x0d\x0a\x7cx\x3d1|"/a|b c\x0a\"]""#
        );
        // Several fields between one pair of quotes have their separators, too.
        assert_eq!(
            as_template("\"$header_user_agent|$path\" \"ua=$header_user_agent\"", &evil),
            r#""a\" 200 0 \"b\x0d\x0a\x7cx=1|/a\x7cb c\x0a\"]" "ua=a\" 200 0 \"b\x0d\x0a|x=1""#
        );
        assert_eq!(as_template("[$path] $status", &evil), r#"[/a|b\x20c\x0a\"\x5d] 200"#);
        assert_eq!(
            as_template("$request $status", &ENTRY),
            r#"GET\x20/a?b=c\x20HTTP/1.1 200"#
        );
    }
}
