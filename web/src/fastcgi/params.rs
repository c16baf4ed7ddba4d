//! What the application is told about a request: RFC 3875's meta-variables and those that PHP applications expect besides.
//!
//! Filled by the handler once per try. A field becomes `HTTP_` and its name in capitals with `_` for `-`. Applications, PHP
//! above all, have one name then for what HTTP has several for: `X-Real-IP`, `X_Real_IP`, `X.Real.IP`. Two such fields in one
//! request are refused; one alone is left out unless it is spelled with `-`, so that nobody can smuggle in what a proxy in front
//! takes out by its proper name.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::mem;
use std::net::IpAddr;

use osier_http::fastcgi::ParamsWriter;

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
    b"HTTP_".iter().copied().chain(name.bytes().map(fold))
}

/// Writes everything; `length` is the body's.
pub fn write(
    output: &mut Vec<u8>,
    fixed: &Fixed,
    request: &Request<'_>,
    fields: &Fields<'_>,
    (asked, script): (&Asked<'_>, &Script),
    length: u64,
) {
    let mut params = Params {
        writer: ParamsWriter::new(output),
        extra: &fixed.extra,
        scratch: Vec::with_capacity(256),
    };
    params.joined("SCRIPT_FILENAME", &fixed.root, &script.name);
    params.put("SCRIPT_NAME", &script.name);
    params.put("DOCUMENT_ROOT", &fixed.root);
    params.joined("DOCUMENT_URI", &script.name, &script.info);
    if !script.info.is_empty() {
        params.put("PATH_INFO", &script.info);
        params.joined("PATH_TRANSLATED", &fixed.root, &script.info);
    }
    params.put("REQUEST_METHOD", asked.method.as_bytes());
    params.put("REQUEST_URI", asked.uri.as_bytes());
    params.put("QUERY_STRING", asked.query.as_bytes());
    params.put("CONTENT_TYPE", request.header("content-type").unwrap_or_default());
    match length {
        // As every server has it; `0` makes some programs wait for it.
        0 if !has_body(asked.method) => params.put("CONTENT_LENGTH", b""),
        length => params.number("CONTENT_LENGTH", length),
    }
    params.put("GATEWAY_INTERFACE", b"CGI/1.1");
    params.put(
        "SERVER_SOFTWARE",
        concat!("osier/", env!("CARGO_PKG_VERSION")).as_bytes(),
    );
    let protocol = match request.version() {
        http::Version::HTTP_10 => "HTTP/1.0",
        _ => "HTTP/1.1",
    };
    params.put("SERVER_PROTOCOL", protocol.as_bytes());
    params.put("REQUEST_SCHEME", if fixed.https { b"https" } else { b"http" });
    if fixed.https {
        params.put("HTTPS", b"on");
    }
    let host = request.host().map(host_name).unwrap_or_default();
    params.put("SERVER_NAME", fixed.server_name.as_deref().unwrap_or(host).as_bytes());
    if let Some(local) = request.local_addr() {
        params.made("SERVER_ADDR", |value| address(value, local.ip().to_canonical()));
        params.number("SERVER_PORT", local.port().into());
    } else {
        params.put("SERVER_PORT", if fixed.https { b"443" } else { b"80" });
    }
    match request.client_ip() {
        Some(ip) => {
            params.made("REMOTE_ADDR", |value| address(value, ip.to_canonical()));
            params.number("REMOTE_PORT", request.peer().port().into());
        }
        // As nginx has it, so that applications know it; no address, which some rule of theirs might hold, and no port.
        None => params.put("REMOTE_ADDR", b"unix:"),
    }
    // php-cgi runs nothing without it.
    params.put("REDIRECT_STATUS", b"200");
    for (name, value) in &fields.0 {
        // RFC 9112 3.2.2: where the target names the host, the field means nothing.
        match request.host() {
            Some(host) if name.eq_ignore_ascii_case("host") => params.field(name, host.as_bytes()),
            _ => params.field(name, value),
        }
    }
    for (name, value) in &fixed.extra {
        params.writer.pair(name.as_bytes(), value.as_bytes());
    }
    params.writer.finish();
}

struct Params<'p> {
    writer: ParamsWriter<'p>,
    extra: &'p [(String, String)],
    /// Where names and values are put together.
    scratch: Vec<u8>,
}

impl Params<'_> {
    fn put(&mut self, name: &str, value: &[u8]) {
        if !self.is_replaced(name.as_bytes()) {
            self.writer.pair(name.as_bytes(), value);
        }
    }

    fn joined(&mut self, name: &str, first: &[u8], second: &[u8]) {
        self.made(name, |value| {
            value.extend_from_slice(first);
            value.extend_from_slice(second);
        });
    }

    /// A value that `make` appends.
    fn made(&mut self, name: &str, make: impl FnOnce(&mut Vec<u8>)) {
        let mut value = mem::take(&mut self.scratch);
        make(&mut value);
        self.put(name, &value);
        value.clear();
        self.scratch = value;
    }

    fn number(&mut self, name: &str, number: u64) {
        self.made(name, |value| decimal(value, number));
    }

    fn field(&mut self, name: &str, value: &[u8]) {
        self.scratch.extend(variable(name));
        if !self.is_replaced(&self.scratch) {
            self.writer.pair(&self.scratch, value);
        }
        self.scratch.clear();
    }

    fn is_replaced(&self, name: &[u8]) -> bool {
        self.extra.iter().any(|(extra, _)| extra.as_bytes() == name)
    }
}

/// As `Display` writes it, at a tenth of the cost: there are four in each request.
fn decimal(to: &mut Vec<u8>, mut number: u64) {
    // u64::MAX has 20 digits.
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    while at == digits.len() || number > 0 {
        at -= 1;
        digits[at] += (number % 10) as u8;
        number /= 10;
    }
    to.extend_from_slice(&digits[at..]);
}

fn address(to: &mut Vec<u8>, ip: IpAddr) {
    let IpAddr::V4(ip) = ip else {
        return write!(to, "{ip}").expect("a vector takes it");
    };
    for (at, octet) in ip.octets().into_iter().enumerate() {
        if at > 0 {
            to.push(b'.');
        }
        decimal(to, octet.into());
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
            let mut text = Vec::new();
            decimal(&mut text, number);
            assert_eq!(String::from_utf8(text).unwrap(), number.to_string());
        }
        for ip in ["0.0.0.0", "127.0.0.1", "255.10.100.9", "::", "2001:db8::1"] {
            let mut text = Vec::new();
            address(&mut text, ip.parse().unwrap());
            assert_eq!(String::from_utf8(text).unwrap(), ip);
        }
    }
}
