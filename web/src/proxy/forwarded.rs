//! Decides which fields a proxy passes on, and adds `X-Forwarded-*` (a convention) and `Forwarded` (RFC 7239).

use std::net::IpAddr;

use osier_http::{HeaderError, Headers, RequestWriter};

use crate::request::hops::{self, is_https_scheme, names_the_client};
use crate::request::text::Text;

/// Whether the field is hop-by-hop (RFC 9110 7.6.1 and 11.7) or written by the codec.
pub(super) fn is_of_connection(name: &str) -> bool {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    match name.len() {
        2 => is("te"),
        7 => is("upgrade"),
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

/// The most names in the Connection fields of one message. Every listed name is compared with every field, so a head full of
/// names would cost as much as a thousand other heads. Real messages list a few.
const LISTED_NAMES: usize = 32;

pub(crate) fn lists_too_many(headers: Headers<'_>) -> bool {
    let lists = headers.filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
    let names = lists.flat_map(|(_, list)| list.split(|&byte| byte == b','));
    names.take(LISTED_NAMES + 1).count() > LISTED_NAMES
}

/// Whether a field of a request is passed on unchanged. `Proxy` is not, because a CGI program takes HTTP_PROXY for its own
/// setting. Such programs do not distinguish `_` and `-`, so a field that may not pass in one spelling does not in the other.
pub(crate) fn passes(name: &str, is_trusted: bool) -> bool {
    if name.contains('_') {
        return passes(&name.replace('_', "-"), is_trusted);
    }
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    match name.len() {
        4 if is("host") => false,
        5 if is("proxy") => false,
        6 if is("expect") => false,
        // `add` writes these.
        9 if is("forwarded") => false,
        15 if is("x-forwarded-for") => false,
        _ => !is_of_connection(name) && (is_trusted || !names_the_client(name)),
    }
}

/// Whether [`add`] writes the field.
pub(super) fn is_added(name: &str) -> bool {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    is("forwarded") || is("x-forwarded-for") || is("x-forwarded-proto") || is("x-forwarded-host")
}

/// The hop that this server adds.
pub(crate) struct Hop<'h> {
    /// None for a client of a Unix socket.
    pub(crate) client: Option<IpAddr>,
    /// Whether a trusted proxy has received the request over https.
    pub(crate) is_https: bool,
    pub(crate) host: &'h str,
}

/// Writes `X-Forwarded-*` and `Forwarded`: the values of a trusted client, then this hop. The values of another client are left
/// out. Both forms tell the same: if a trusted client has sent one of them, the hops in the other are made from it.
pub(crate) fn add(
    head: &mut RequestWriter<'_>,
    given: Headers<'_>,
    is_trusted: bool,
    hop: &Hop<'_>,
) -> Result<(), HeaderError> {
    let is_https = is_https(&given, is_trusted, hop.is_https);
    let given = |name: &'static str| values(&given, is_trusted, name);
    let has = |name| given(name).next().is_some();

    let text = HopText::of(hop.client);
    let (has_list, has_forwarded) = (has("x-forwarded-for"), has("forwarded"));
    match has_forwarded && !has_list {
        false => joined(head, "x-forwarded-for", given("x-forwarded-for"), &[text.as_bytes()])?,
        true => {
            let hops = hops::forwarded(given("forwarded"))
                .into_iter()
                .map(|hop| HopText::of(hop.ip));
            let hops: Vec<HopText> = hops.collect();
            joined(
                head,
                "x-forwarded-for",
                hops.iter().map(HopText::as_bytes),
                &[text.as_bytes()],
            )?;
        }
    }
    let scheme: &[u8] = if is_https { b"https" } else { b"http" };
    if !has("x-forwarded-proto") {
        head.header("x-forwarded-proto", scheme)?;
    }
    let host = hop.host;
    if !host.is_empty() && !has("x-forwarded-host") {
        head.header("x-forwarded-host", host.as_bytes())?;
    }

    // RFC 7239 4: a host with a colon stands in quotes. The request parser accepts no host with a quote or a backslash.
    let (before, after): (&[u8], &[u8]) = match host.is_empty() {
        true => (b"", b""),
        false => (b";host=\"", b"\""),
    };
    let [open, address, close] = text.node();
    let element = [open, address, close, before, host.as_bytes(), after, b";proto=", scheme];
    match has_list && !has_forwarded {
        false => joined(head, "forwarded", given("forwarded"), &element),
        true => {
            let hops = hops::addresses(given("x-forwarded-for")).into_iter();
            let hops: Vec<Vec<u8>> = hops.map(|hop| HopText::of(hop.ip).node().concat()).collect();
            joined(head, "forwarded", hops.iter().map(Vec::as_slice), &element)
        }
    }
}

/// The values of the fields with a name. A client that is not trusted has none.
fn values<'h>(given: &Headers<'h>, is_trusted: bool, name: &'static str) -> impl Iterator<Item = &'h [u8]> + use<'h> {
    let believed = is_trusted.then(|| given.clone()).into_iter().flatten();
    let named = believed.filter(move |(known, _)| known.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value)
}

/// Whether the first client used https: by the fields of a trusted client, or by `is_https`, which is known without them.
pub(super) fn is_https(given: &Headers<'_>, is_trusted: bool, is_https: bool) -> bool {
    match values(given, is_trusted, "x-forwarded-proto").next() {
        Some(schemes) => schemes.split(|&byte| byte == b',').next().is_some_and(is_https_scheme),
        None => {
            let hops = hops::forwarded(values(given, is_trusted, "forwarded"));
            hops.first().and_then(|hop| hop.is_https).unwrap_or(is_https)
        }
    }
}

/// The text of a hop's address. RFC 7239 6.2, for both fields: a client of a Unix socket has none.
struct HopText(Option<Text>);

impl HopText {
    fn of(ip: Option<IpAddr>) -> HopText {
        HopText(ip.map(|ip| Text::address(ip.to_canonical())))
    }

    fn as_bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(b"unknown", Text::bytes)
    }

    /// The address as `for` of `Forwarded` has it. RFC 7239 6: an IPv6 address stands in brackets and therefore in quotes.
    fn node(&self) -> [&[u8]; 3] {
        match self.as_bytes().contains(&b':') {
            true => [b"for=\"[", self.as_bytes(), b"]\""],
            false => [b"for=", self.as_bytes(), b""],
        }
    }
}

/// Writes one field with all `given` values and one more, whose pieces are `last`, at the end.
fn joined<'v>(
    head: &mut RequestWriter<'_>,
    name: &str,
    given: impl Iterator<Item = &'v [u8]>,
    last: &[&'v [u8]],
) -> Result<(), HeaderError> {
    let mut given = given.peekable();
    if given.peek().is_none() {
        return head.joined(name, last);
    }
    let mut pieces: Vec<&[u8]> = Vec::new();
    for value in given {
        pieces.extend([value, b", "]);
    }
    pieces.extend_from_slice(last);
    head.joined(name, &pieces)
}

#[cfg(test)]
mod tests {
    use super::HopText;

    #[test]
    fn a_hop_has_an_ipv4_address_without_ipv6_or_is_unknown() {
        let mapped = HopText::of(Some("::ffff:192.0.2.1".parse().unwrap()));
        assert_eq!(mapped.node().concat(), b"for=192.0.2.1");
        assert_eq!(HopText::of(None).node().concat(), b"for=unknown");
    }
}
