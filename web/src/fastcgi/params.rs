//! The FastCGI parameters of a request: the meta-variables of RFC 3875 and those that PHP applications also expect.
//!
//! A header field becomes a variable: `HTTP_`, then its name in capitals with `_` for `-`. Several field names can give
//! the same variable: `X-Real-IP`, `X_Real_IP` and, in PHP, `X.Real.IP`. A request with two such fields is refused. A
//! single one is left out unless it is spelled with `-`: otherwise a client could smuggle in a field that a proxy in
//! front removes by its proper name. Fields that name the client (`X-Forwarded-*`, `Forwarded`, `X-Real-IP`) become
//! variables only if a trusted proxy vouches for them: applications believe them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use osier_http::fastcgi::{self, ParamsWriter};
use osier_http::is_field;

use crate::Request;
use crate::conn::log::id;
use crate::fastcgi::script::Script;
use crate::request::hops::names_the_client;
use crate::request::text::Text;
use crate::request::trace;

/// Whether the field becomes no variable: a hop-by-hop field, a field about the body (which becomes CONTENT_*), or
/// `Proxy`. As HTTP_PROXY, that field would send the application's own requests through a proxy that the client chooses
/// (httpoxy, CVE-2016-5385).
fn is_left_out(name: &str) -> bool {
    let is = |known: &'static str| is_field(name, known);
    match name.len() {
        2 => is("te"),
        5 => is("proxy"),
        6 => is("expect"),
        7 => is("trailer") || is("upgrade"),
        10 => is("connection") || is("keep-alive"),
        12 => is("content-type"),
        14 => is("content-length"),
        16 => is("proxy-connection"),
        17 => is("transfer-encoding"),
        19 => is("proxy-authorization"),
        _ => false,
    }
}

/// The beginning of the variables of fields.
const PREFIX: &[u8] = b"HTTP_";

/// Two fields that would be the same variable. The response is a 400.
#[derive(Debug, PartialEq, Eq)]
pub struct Collision(pub String);

impl fmt::Display for Collision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "two fields that are one variable: {}", self.0)
    }
}

/// The parameters that are the same for every request of a handler.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    /// The root as the backend sees it, without a slash at the end. `None` for the root's real path on this server.
    pub root: Option<Vec<u8>>,
    /// SERVER_NAME, if it is not the host that the client names.
    pub server_name: Option<String>,
    /// Whether clients use TLS, terminated in front of this server.
    pub https: bool,
    /// Parameters that are added, or replace others of the same name.
    pub extra: Vec<(String, String)>,
}

/// Parameters that code before the handler adds to one request, in its [`extensions`](crate::Request::extensions): what
/// it knows about the client's certificate, for example. [`Options::params`](super::Options::params) of the same name
/// replace them. A cache around the handler passes them on with the request that fetches a response for many.
///
/// No name may begin with `HTTP_`: such parameters are the fields of the request.
#[derive(Clone, Debug, Default)]
pub struct RequestParams(pub Vec<(&'static str, Vec<u8>)>);

/// The parts of the request line. A redirect inside the server replaces them.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    pub method: &'a str,
    /// REQUEST_URI: the path and the query as the client sent them.
    pub uri: Cow<'a, str>,
    pub query: Cow<'a, str>,
}

/// The fields of a request.
pub struct Fields<'a> {
    /// The fields that become variables. Those of one name are joined, at the place of the first.
    variables: Vec<Variable<'a>>,
    /// The first Content-Type, or nothing.
    content_type: &'a [u8],
}

struct Variable<'a> {
    /// The name of the field.
    name: &'a str,
    /// The [`ending`] of the name.
    ending: u64,
    value: Cow<'a, [u8]>,
}

impl<'a> Fields<'a> {
    /// Joins the fields of one name and leaves out those that become no variable.
    ///
    /// # Errors
    ///
    /// [`Collision`].
    pub fn of(fields: impl Iterator<Item = (&'a str, &'a [u8])> + Clone) -> Result<Fields<'a>, Collision> {
        let (mut odd, mut content_type) = (Vec::new(), None);
        let mut variables: Vec<Variable<'a>> = Vec::with_capacity(16);
        for (name, value) in fields.clone() {
            if !is_plain(name) {
                odd.push(name);
                continue;
            }
            if is_left_out(name) {
                if is_field(name, "content-type") {
                    content_type.get_or_insert(value);
                }
                continue;
            }
            let ending = ending(name);
            let is_it = |known: &&mut Variable| known.ending == ending && known.name.eq_ignore_ascii_case(name);
            match variables.iter_mut().find(is_it) {
                // RFC 9110 5.3, RFC 6265 5.4.
                Some(known) => {
                    let separator: &[u8] = if is_field(name, "cookie") { b"; " } else { b", " };
                    let values = known.value.to_mut();
                    values.extend_from_slice(separator);
                    values.extend_from_slice(value);
                }
                None => variables.push(Variable {
                    name,
                    ending,
                    value: value.into(),
                }),
            }
        }
        match collision(&odd, fields) {
            Some(collision) => Err(collision),
            None => Ok(Fields {
                variables,
                content_type: content_type.unwrap_or_default(),
            }),
        }
    }
}

/// The first of the `odd` names, those with an unusual character, that collides with another of them or with a plain one.
fn collision<'a>(odd: &[&str], fields: impl Iterator<Item = (&'a str, &'a [u8])> + Clone) -> Option<Collision> {
    odd.iter().enumerate().find_map(|(at, name)| {
        let plain = fields.clone().map(|(name, _)| name).filter(|name| is_plain(name));
        let mut others = odd[..at].iter().copied().chain(plain);
        let other = others.find(|other| variable(other).eq(variable(name)))?;
        // The client chooses the names, and the log gets them.
        Some(Collision(format!("{other:.64} and {name:.64}")))
    })
}

/// The last eight bytes of a name, or all of a shorter one, equal for two spellings of it. Names that begin alike (a browser sends
/// four that begin with `Sec-Fetch-`) mostly end differently.
fn ending(name: &str) -> u64 {
    const CASE: u64 = u64::from_le_bytes([0x20; 8]);
    match name.as_bytes().last_chunk() {
        Some(last) => u64::from_le_bytes(*last) | CASE,
        None => name
            .bytes()
            .fold(0, |ending, byte| ending << 8 | u64::from(byte | 0x20)),
    }
}

/// Whether the name has only letters, digits and `-`. Two such names never have the same variable.
fn is_plain(name: &str) -> bool {
    static PLAIN: [bool; 256] = {
        let mut plain = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            plain[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'-';
            byte += 1;
        }
        plain
    };
    // No early exit: names are short.
    name.bytes().fold(true, |plain, byte| plain & PLAIN[usize::from(byte)])
}

/// The name of the variable of a field.
fn variable(name: &str) -> impl Iterator<Item = u8> + Clone {
    PREFIX.iter().copied().chain(name.bytes().map(folded))
}

/// Turns a byte of a field's name into one of its variable's name.
#[inline]
fn folded(byte: u8) -> u8 {
    match byte.is_ascii_alphanumeric() {
        true => byte.to_ascii_uppercase(),
        false => b'_',
    }
}

/// Encodes the FastCGI parameters that are the same for every request to one script, [`Fixed::extra`] included. `root`
/// is DOCUMENT_ROOT, without a slash at the end.
pub fn of_script(fixed: &Fixed, root: &[u8], script: &Script) -> Arc<[u8]> {
    let mut pairs = Vec::with_capacity(512);
    let mut put = |name: &str, value: &[&[u8]]| {
        if !is_replaced(&fixed.extra, name.as_bytes()) {
            fastcgi::pair(&mut pairs, name.as_bytes(), &value.concat());
        }
    };
    put("SCRIPT_FILENAME", &[root, &script.name]);
    put("SCRIPT_NAME", &[&script.name]);
    put("DOCUMENT_ROOT", &[root]);
    put("DOCUMENT_URI", &[&script.name, &script.info]);
    if !script.info.is_empty() {
        put("PATH_INFO", &[&script.info]);
        put("PATH_TRANSLATED", &[root, &script.info]);
    }
    put("GATEWAY_INTERFACE", &[b"CGI/1.1"]);
    let software = concat!("osier/", env!("CARGO_PKG_VERSION"));
    put("SERVER_SOFTWARE", &[software.as_bytes()]);
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

/// Writes all parameters. `of_script` is the result of [`of_script`], and `length` the length of the body.
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
    params.request(request, asked, (fields.content_type, length));
    params.ends(request, fixed);
    if let Some(RequestParams(more)) = request.extensions().get() {
        for (name, value) in more {
            params.put(name, value);
        }
    }
    params.fields(request, fields);
    params.writer.finish();
}

/// Writes parameters that [`Fixed::extra`] does not replace.
struct Params<'p> {
    writer: ParamsWriter<'p>,
    extra: &'p [(String, String)],
}

impl Params<'_> {
    /// Writes the request line, and the type and the length of the body.
    fn request(&mut self, request: &Request<'_>, asked: &Asked<'_>, (content_type, length): (&[u8], u64)) {
        self.put("REQUEST_METHOD", asked.method.as_bytes());
        self.put("REQUEST_URI", asked.uri.as_bytes());
        self.put("QUERY_STRING", asked.query.as_bytes());
        self.put("CONTENT_TYPE", content_type);
        match length {
            // Empty, as in other servers: some programs wait for a body of length `0`.
            0 if !has_body(asked.method) => self.put("CONTENT_LENGTH", b""),
            length => self.put("CONTENT_LENGTH", itoa::Buffer::new().format(length).as_bytes()),
        }
        let protocol = match request.version() {
            http::Version::HTTP_10 => "HTTP/1.0",
            http::Version::HTTP_2 => "HTTP/2.0",
            _ => "HTTP/1.1",
        };
        self.put("SERVER_PROTOCOL", protocol.as_bytes());
    }

    /// Writes the names and addresses of the server and of the client.
    fn ends(&mut self, request: &Request<'_>, fixed: &Fixed) {
        let is_https = fixed.https || request.is_https();
        self.put("REQUEST_SCHEME", if is_https { b"https" } else { b"http" });
        if is_https {
            self.put("HTTPS", b"on");
        }
        if fixed.server_name.is_none() {
            let host = request.host().map(host_name).unwrap_or_default();
            self.put("SERVER_NAME", host.as_bytes());
        }
        if let Some(local) = request.local_addr() {
            self.put("SERVER_ADDR", Text::address(local.ip().to_canonical()).bytes());
            self.put("SERVER_PORT", itoa::Buffer::new().format(local.port()).as_bytes());
        } else {
            self.put("SERVER_PORT", if is_https { b"443" } else { b"80" });
        }
        match request.client_ip() {
            Some(ip) => {
                self.put("REMOTE_ADDR", Text::address(ip).bytes());
                // A field that names the client leaves its port out.
                if let port @ 1.. = request.peer().port() {
                    self.put("REMOTE_PORT", itoa::Buffer::new().format(port).as_bytes());
                }
            }
            // The same as in nginx, so applications know it. An invented address could match a rule of the backend.
            None => self.put("REMOTE_ADDR", b"unix:"),
        }
    }

    /// Writes the variables of the fields, with the request's id and trace in place of those that the client has sent.
    fn fields(&mut self, request: &Request<'_>, fields: &Fields<'_>) {
        let id = request.forwarded_id();
        if let Some(id) = &id {
            self.field(id::FIELD, id.as_str().as_bytes());
        }
        let trace = request.forwarded_trace();
        if let Some((parent, state)) = &trace {
            self.field(trace::PARENT, parent.as_bytes());
            if let Some(state) = state {
                self.field(trace::STATE, state);
            }
        }
        for Variable { name, value, .. } in &fields.variables {
            let is_replaced =
                (id.is_some() && name.eq_ignore_ascii_case(id::FIELD)) || (trace.is_some() && trace::is_replaced(name));
            if is_replaced || (names_the_client(name) && !request.vouches_for(name)) {
                continue;
            }
            // RFC 9112 3.2.2: where the target names the host, Host is ignored.
            let host = if is_field(name, "host") { request.host() } else { None };
            self.field(name, host.map_or(value, str::as_bytes));
        }
    }

    #[inline]
    fn put(&mut self, name: &str, value: &[u8]) {
        if !is_replaced(self.extra, name.as_bytes()) {
            self.writer.pair(name.as_bytes(), value);
        }
    }

    /// Writes the variable of a field whose name [is plain](is_plain).
    fn field(&mut self, name: &str, value: &[u8]) {
        let length = PREFIX.len() + name.len();
        let (mut short, mut long) = ([0; 64], Vec::new());
        let name = if length <= short.len() {
            short[..PREFIX.len()].copy_from_slice(PREFIX);
            short[PREFIX.len()..length].copy_from_slice(name.as_bytes());
            // All of it: a loop of known length, which the compiler vectorises. The prefix stays as it is.
            for byte in &mut short {
                *byte = if *byte == b'-' { b'_' } else { byte.to_ascii_uppercase() };
            }
            &short[..length]
        } else {
            long.extend(variable(name));
            &long
        };
        if !is_replaced(self.extra, name) {
            self.writer.pair(name, value);
        }
    }
}

fn is_replaced(extra: &[(String, String)], name: &[u8]) -> bool {
    extra.iter().any(|(extra, _)| extra.as_bytes() == name)
}

fn has_body(method: &str) -> bool {
    matches!(method, "POST" | "PUT" | "PATCH")
}

/// Removes the port from a host. An IPv6 address keeps its brackets.
fn host_name(host: &str) -> &str {
    // Byte by byte: hosts are short, and starting a vectorised search costs more.
    match host.bytes().rposition(|byte| !byte.is_ascii_digit()) {
        Some(colon) if host.as_bytes()[colon] == b':' => &host[..colon],
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
            .variables
            .iter()
            .map(|field| (text(&variable(field.name).collect::<Vec<_>>()), text(&field.value)))
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
}
