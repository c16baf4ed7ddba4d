//! What the application is told about a request: RFC 3875's meta-variables and those that PHP applications expect besides.
//!
//! Filled by the handler once per try. A field becomes `HTTP_` and its name in capitals with `_` for `-`. Applications, PHP
//! above all, have one name then for what HTTP has several for: `X-Real-IP`, `X_Real_IP`, `X.Real.IP`. Two such fields in one
//! request are refused; one alone is left out unless it is spelled with `-`, so that nobody can smuggle in what a proxy in front
//! takes out by its proper name.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

use osier_http::fastcgi::{self, ParamsWriter};

use crate::Request;
use crate::fastcgi::script::Script;

/// Fields of the connection, of the body (which arrives as CONTENT_*), and `Proxy`: as HTTP_PROXY it would send the
/// application's own requests through whoever the client names (httpoxy, CVE-2016-5385).
const LEFT_OUT: [&str; 12] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "keep-alive",
    "proxy",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What the variables of fields begin with.
const PREFIX: &[u8] = b"HTTP_";

/// Two fields that the application could not tell apart: 400.
#[derive(Debug, PartialEq, Eq)]
pub struct Collision(pub String);

impl fmt::Display for Collision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "two fields that are one variable: {}", self.0)
    }
}

/// Where things are for the application, and what it is told always.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    /// DOCUMENT_ROOT: the root as the application sees it, without a slash at the end.
    pub root: Vec<u8>,
    /// SERVER_NAME, if not what the client calls it.
    pub server_name: Option<String>,
    /// Whether clients come over TLS, which something in front takes off.
    pub https: bool,
    /// In place of what they would be otherwise.
    pub extra: Vec<(String, String)>,
}

/// What a redirect inside the server replaces, and otherwise comes from the request.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    pub method: &'a str,
    /// REQUEST_URI: path and query as sent.
    pub uri: Cow<'a, str>,
    pub query: Cow<'a, str>,
}

/// A request's fields, those of one name as one: in the order of their first.
pub struct Fields<'a>(Vec<(&'a str, Cow<'a, [u8]>)>);

impl<'a> Fields<'a> {
    /// # Errors
    ///
    /// [`Collision`].
    pub fn of(fields: impl Iterator<Item = (&'a str, &'a [u8])> + Clone) -> Result<Fields<'a>, Collision> {
        // Usually there are none, and then nothing collides.
        let odd: Vec<&str> = fields
            .clone()
            .map(|(name, _)| name)
            .filter(|name| !is_plain(name))
            .collect();
        for (at, name) in odd.iter().enumerate() {
            let others = odd[..at]
                .iter()
                .copied()
                .chain(fields.clone().map(|(name, _)| name).filter(|name| is_plain(name)));
            if let Some(other) = others.into_iter().find(|other| variable(other).eq(variable(name))) {
                return Err(Collision(format!("{other} and {name}")));
            }
        }
        let mut grouped: Vec<(&'a str, Cow<'a, [u8]>)> = Vec::with_capacity(16);
        for (name, value) in fields {
            if !is_plain(name) || LEFT_OUT.iter().any(|left_out| left_out.eq_ignore_ascii_case(name)) {
                continue;
            }
            match grouped.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
                // RFC 9110 5.3, RFC 6265 5.4.
                Some((_, values)) => {
                    let separator: &[u8] = if name.eq_ignore_ascii_case("cookie") {
                        b"; "
                    } else {
                        b", "
                    };
                    let values = values.to_mut();
                    values.extend_from_slice(separator);
                    values.extend_from_slice(value);
                }
                None => grouped.push((name, value.into())),
            }
        }
        Ok(Fields(grouped))
    }
}

/// Whether the name maps to a variable that no other spelling maps to.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn variable(name: &str) -> impl Iterator<Item = u8> + Clone {
    let fold = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => byte.to_ascii_uppercase(),
        false => b'_',
    };
    PREFIX.iter().copied().chain(name.bytes().map(fold))
}

/// What every request for a script is told alike, as parameters have it. With it goes what is said in place of others.
pub fn of_script(fixed: &Fixed, script: &Script) -> Arc<[u8]> {
    let mut pairs = Vec::with_capacity(512);
    let mut put = |name: &str, value: &[&[u8]]| {
        if !is_replaced(&fixed.extra, name.as_bytes()) {
            fastcgi::pair(&mut pairs, name.as_bytes(), &value.concat());
        }
    };
    put("SCRIPT_FILENAME", &[&fixed.root, &script.name]);
    put("SCRIPT_NAME", &[&script.name]);
    put("DOCUMENT_ROOT", &[&fixed.root]);
    put("DOCUMENT_URI", &[&script.name, &script.info]);
    if !script.info.is_empty() {
        put("PATH_INFO", &[&script.info]);
        put("PATH_TRANSLATED", &[&fixed.root, &script.info]);
    }
    put("GATEWAY_INTERFACE", &[b"CGI/1.1"]);
    let software = concat!("osier/", env!("CARGO_PKG_VERSION"));
    put("SERVER_SOFTWARE", &[software.as_bytes()]);
    put("REQUEST_SCHEME", &[if fixed.https { b"https" } else { b"http" }]);
    if fixed.https {
        put("HTTPS", &[b"on"]);
    }
    if let Some(name) = &fixed.server_name {
        put("SERVER_NAME", &[name.as_bytes()]);
    }
    // php-cgi runs nothing without it.
    put("REDIRECT_STATUS", &[b"200"]);
    for (name, value) in &fixed.extra {
        fastcgi::pair(&mut pairs, name.as_bytes(), value.as_bytes());
    }
    pairs.into()
}

/// Writes everything; `of_script` is what [`of_script`] has made, `length` the body's.
pub fn write(
    output: &mut Vec<u8>,
    fixed: &Fixed,
    request: &Request<'_>,
    fields: &Fields<'_>,
    (asked, of_script): (&Asked<'_>, &[u8]),
    length: u64,
) {
    let mut params = Params {
        writer: ParamsWriter::new(output),
        extra: &fixed.extra,
    };
    params.writer.pairs(of_script);
    params.put("REQUEST_METHOD", asked.method.as_bytes());
    params.put("REQUEST_URI", asked.uri.as_bytes());
    params.put("QUERY_STRING", asked.query.as_bytes());
    params.put("CONTENT_TYPE", request.header("content-type").unwrap_or_default());
    match length {
        // As every server has it; `0` makes some programs wait for it.
        0 if !has_body(asked.method) => params.put("CONTENT_LENGTH", b""),
        length => params.put("CONTENT_LENGTH", Text::new().number(length).bytes()),
    }
    let protocol = match request.version() {
        http::Version::HTTP_10 => "HTTP/1.0",
        _ => "HTTP/1.1",
    };
    params.put("SERVER_PROTOCOL", protocol.as_bytes());
    if fixed.server_name.is_none() {
        let host = request.host().map(host_name).unwrap_or_default();
        params.put("SERVER_NAME", host.as_bytes());
    }
    if let Some(local) = request.local_addr() {
        params.put("SERVER_ADDR", Text::new().address(local.ip().to_canonical()).bytes());
        params.put("SERVER_PORT", Text::new().number(local.port().into()).bytes());
    } else {
        params.put("SERVER_PORT", if fixed.https { b"443" } else { b"80" });
    }
    match request.client_ip() {
        Some(ip) => {
            params.put("REMOTE_ADDR", Text::new().address(ip.to_canonical()).bytes());
            params.put("REMOTE_PORT", Text::new().number(request.peer().port().into()).bytes());
        }
        // As nginx has it, so that applications know it; no address, which some rule of theirs might hold, and no port.
        None => params.put("REMOTE_ADDR", b"unix:"),
    }
    for (name, value) in &fields.0 {
        // RFC 9112 3.2.2: where the target names the host, the field means nothing.
        match request.host() {
            Some(host) if name.eq_ignore_ascii_case("host") => params.field(name, host.as_bytes()),
            _ => params.field(name, value),
        }
    }
    params.writer.finish();
}

struct Params<'p> {
    writer: ParamsWriter<'p>,
    extra: &'p [(String, String)],
}

impl Params<'_> {
    #[inline]
    fn put(&mut self, name: &str, value: &[u8]) {
        if !is_replaced(self.extra, name.as_bytes()) {
            self.writer.pair(name.as_bytes(), value);
        }
    }

    fn field(&mut self, name: &str, value: &[u8]) {
        let mut short = [0; 64];
        let mut long = Vec::new();
        let name = match short.get_mut(..PREFIX.len() + name.len()) {
            Some(short) => {
                variable(name).zip(&mut *short).for_each(|(byte, to)| *to = byte);
                &*short
            }
            None => {
                long.extend(variable(name));
                &long
            }
        };
        if !is_replaced(self.extra, name) {
            self.writer.pair(name, value);
        }
    }
}

fn is_replaced(extra: &[(String, String)], name: &[u8]) -> bool {
    extra.iter().any(|(extra, _)| extra.as_bytes() == name)
}

/// A number or an address, as `Display` writes it, at a tenth of the cost: there are some in each request.
struct Text {
    bytes: [u8; Text::MAX],
    len: usize,
}

impl Text {
    /// The longest: an IPv6 address that ends as IPv4 does.
    const MAX: usize = 45;

    fn new() -> Text {
        Text {
            bytes: [0; Text::MAX],
            len: 0,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn number(mut self, mut number: u64) -> Text {
        let begin = self.len;
        loop {
            self.push(b'0' + (number % 10) as u8);
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.bytes[begin..self.len].reverse();
        self
    }

    fn address(mut self, ip: IpAddr) -> Text {
        let IpAddr::V4(ip) = ip else {
            let mut room = &mut self.bytes[..];
            write!(room, "{ip}").expect("no address is longer");
            self.len = Text::MAX - room.len();
            return self;
        };
        for (at, octet) in ip.octets().into_iter().enumerate() {
            if at > 0 {
                self.push(b'.');
            }
            if octet >= 100 {
                self.push(b'0' + octet / 100);
            }
            if octet >= 10 {
                self.push(b'0' + octet / 10 % 10);
            }
            self.push(b'0' + octet % 10);
        }
        self
    }
}

fn has_body(method: &str) -> bool {
    matches!(method, "POST" | "PUT" | "PATCH")
}

/// Without the port; an IPv6 address keeps its brackets.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(given: &[(&'static str, &'static str)]) -> Result<Vec<(String, String)>, Collision> {
        let given = given.iter().map(|(name, value)| (*name, value.as_bytes()));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Ok(Fields::of(given)?
            .0
            .iter()
            .map(|(name, value)| (text(&variable(name).collect::<Vec<_>>()), text(value)))
            .collect())
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.into(), value.into())
    }

    #[test]
    fn fields_become_variables_and_repeated_ones_a_list() {
        let given = [
            ("Accept", "a"),
            ("X-1-b", "1"),
            ("Cookie", "a=1"),
            ("accept", "b"),
            ("cookie", "b=2"),
        ];
        let expected = [
            pair("HTTP_ACCEPT", "a, b"),
            pair("HTTP_X_1_B", "1"),
            pair("HTTP_COOKIE", "a=1; b=2"),
        ];
        assert_eq!(fields(&given).unwrap(), expected);
    }

    #[test]
    fn what_concerns_others_is_left_out() {
        let given = [
            ("Proxy", "http://evil"),
            ("PROXY", "x"),
            ("Connection", "a"),
            ("Content-Length", "1"),
            ("Transfer-Encoding", "chunked"),
        ];
        assert_eq!(fields(&given).unwrap(), []);
    }

    #[test]
    fn names_that_become_one_are_refused_and_odd_ones_left_out() {
        for pair in [
            ["X-Real-IP", "X_Real_IP"],
            ["x_real-ip", "X-Real-IP"],
            ["X-A", "x.a"],
            ["A_B", "A.B"],
            ["A_B", "a_b"],
            ["Proxy", "proxy"],
        ] {
            let outcome = fields(&[(pair[0], "1"), (pair[1], "2")]);
            let same_name = pair[0].eq_ignore_ascii_case("proxy");
            assert_eq!(outcome.is_err(), !same_name, "{pair:?}");
        }
        assert_eq!(
            fields(&[("X_Remote_User", "root"), ("X.Y", "1"), ("X-Z", "2")]).unwrap(),
            [pair("HTTP_X_Z", "2")]
        );
    }

    #[test]
    fn a_host_loses_its_port() {
        for (host, name) in [
            ("a:80", "a"),
            ("a", "a"),
            ("[::1]:8080", "[::1]"),
            ("[::1]", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(host_name(host), name);
        }
    }
    #[test]
    fn numbers_and_addresses_are_written_as_display_writes_them() {
        for number in [0, 1, 9, 10, 99, 100, 65_535, u64::MAX] {
            assert_eq!(Text::new().number(number).bytes(), number.to_string().as_bytes());
        }
        let longest = "1111:2222:3333:4444:5555:6666:7777:8888";
        for ip in [
            "0.0.0.0",
            "127.0.0.1",
            "255.10.100.9",
            "::",
            "2001:db8::1",
            "::ffff:255.255.255.255",
            longest,
        ] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(Text::new().address(ip).bytes(), ip.to_string().as_bytes());
        }
    }
}
