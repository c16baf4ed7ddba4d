//! Which fields pass, and what a proxy adds to them: `X-Forwarded-*` (as everybody writes them) and `Forwarded` (RFC 7239).

use std::fmt::Write;
use std::net::SocketAddr;

use osier_http::{HeaderError, Headers, RequestWriter};

/// Fields that are for one connection only, whoever sends them: RFC 9110 7.6.1 and 11.7, and what the codec writes.
pub(super) fn is_of_connection(name: &str) -> bool {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    match name.len() {
        2 => is("te"),
        7 => is("trailer") || is("upgrade"),
        10 => is("connection") || is("keep-alive"),
        14 => is("content-length") || is("http2-settings"),
        16 => is("proxy-connection"),
        17 => is("transfer-encoding"),
        18 => is("proxy-authenticate"),
        19 => is("proxy-authorization"),
        25 => is("proxy-authentication-info"),
        _ => false,
    }
}

/// How many names the Connection fields of one message may list: each is looked for in every field, so a head full of them would
/// cost as much as a thousand others. Nobody lists more than a few.
const LISTED_NAMES: usize = 32;

pub(super) fn lists_too_many(headers: Headers<'_>) -> bool {
    let lists = headers.filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
    let names = lists.flat_map(|(_, list)| list.split(|&byte| byte == b','));
    names.take(LISTED_NAMES + 1).count() > LISTED_NAMES
}

/// Fields that say who the client is.
fn tells_the_client(name: &str) -> bool {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    match name.len() {
        9 => is("forwarded") || is("x-real-ip"),
        _ => name
            .get(..12)
            .is_some_and(|begin| begin.eq_ignore_ascii_case("x-forwarded-")),
    }
}

/// Whether a field of a request is passed on as it is; `Proxy` is not, as CGI programs behind take it for a setting of theirs.
/// For such programs `_` is `-`, so what may not pass in one spelling does not in the other.
pub(super) fn passes(name: &str, is_trusted: bool) -> bool {
    if name.contains('_') {
        return passes(&name.replace('_', "-"), is_trusted);
    }
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    match name.len() {
        4 if is("host") => false,
        5 if is("proxy") => false,
        6 if is("expect") => false,
        // Added to below.
        9 if is("forwarded") => false,
        15 if is("x-forwarded-for") => false,
        _ => !is_of_connection(name) && (is_trusted || !tells_the_client(name)),
    }
}

/// What a trusted client says is kept, and this hop added behind; of another nothing has passed.
pub(super) fn add(
    head: &mut RequestWriter<'_>,
    given: Headers<'_>,
    is_trusted: bool,
    client: Option<SocketAddr>,
    host: &str,
) -> Result<(), HeaderError> {
    let given = |name: &'static str| {
        let fields = given.clone().filter(move |(known, _)| known.eq_ignore_ascii_case(name));
        fields.map(|(_, value)| value).filter(|_| is_trusted)
    };
    let has = |name| given(name).next().is_some();

    let mut text = client.map_or("unknown".into(), |client| client.ip().to_canonical().to_string());
    joined(head, "x-forwarded-for", given("x-forwarded-for"), text.as_bytes())?;
    if !has("x-forwarded-proto") {
        head.header("x-forwarded-proto", b"http")?;
    }
    if !host.is_empty() && !has("x-forwarded-host") {
        head.header("x-forwarded-host", host.as_bytes())?;
    }

    // RFC 7239 6: an IPv6 address stands in brackets, and so in quotes; 4: a host with its colon in quotes too.
    if text.contains(':') {
        text = format!("\"[{text}]\"");
    }
    let mut element = String::with_capacity(text.len() + host.len() + 32);
    let _ = write!(element, "for={text}");
    // Hosts are checked when a request is parsed: no quote and no backslash is in one.
    if !host.is_empty() {
        let _ = write!(element, ";host=\"{host}\"");
    }
    element.push_str(";proto=http");
    joined(head, "forwarded", given("forwarded"), element.as_bytes())
}

/// One field of all values given, and one more at the end.
fn joined<'v>(
    head: &mut RequestWriter<'_>,
    name: &str,
    given: impl Iterator<Item = &'v [u8]>,
    last: &[u8],
) -> Result<(), HeaderError> {
    let mut pieces: Vec<&[u8]> = Vec::new();
    for value in given {
        pieces.extend([value, b", "]);
    }
    pieces.push(last);
    head.joined(name, &pieces)
}
