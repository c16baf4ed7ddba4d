//! Decides which fields a proxy passes on, and adds `X-Forwarded-*` (a convention) and `Forwarded` (RFC 7239).

use std::net::IpAddr;

use osier_http::{HeaderError, Headers, LineTemplate, RequestWriter, is_field};

use crate::request::hops::{self, is_https_scheme, names_the_client};
use crate::request::text::Text;

/// The first letters of the fields that this module looks at, by the length of their names. A bit is a letter. All longer names
/// share the last entry. `x-forwarded-*` has any length.
static LETTERS: [u32; 32] = {
    const KNOWN: [&str; 15] = [
        "te",
        "host",
        "proxy",
        "expect",
        "upgrade",
        "forwarded",
        "x-real-ip",
        "connection",
        "keep-alive",
        "content-length",
        "http2-settings",
        "proxy-connection",
        "transfer-encoding",
        "proxy-authenticate",
        "proxy-authorization",
    ];
    let mut letters = [0; 32];
    let mut at = 0;
    while at < KNOWN.len() {
        letters[KNOWN[at].len()] |= letter(KNOWN[at].as_bytes());
        at += 1;
    }
    letters["proxy-authentication-info".len()] |= letter(b"p");
    let mut length = "x-forwarded-".len();
    while length < letters.len() {
        letters[length] |= letter(b"x");
        length += 1;
    }
    letters
};

/// The bit of the first byte, without regard to case.
const fn letter(name: &[u8]) -> u32 {
    match name {
        [first, ..] => 1 << (*first & 0x1f),
        [] => 0,
    }
}

/// Whether the name may be that of a field that this module looks at. It rules most fields out by the length and the first letter,
/// which are the same in a spelling with `_` for `-`.
#[inline]
pub(super) fn may_be_known(name: &str) -> bool {
    LETTERS[name.len().min(LETTERS.len() - 1)] & letter(name.as_bytes()) != 0
}

/// Whether the field is hop-by-hop (RFC 9110 7.6.1 and 11.7) or written by the codec.
pub(super) fn is_of_connection(name: &str) -> bool {
    let is = |known: &'static str| is_field(name, known);
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

/// Whether a message lists more names than are looked for. `has_others`: its Connection fields list other names than `close`,
/// `keep-alive` and `upgrade`. Nearly no message has any.
#[inline]
pub(crate) fn lists_too_many(has_others: bool, headers: Headers<'_>) -> bool {
    has_others && counts_too_many(headers)
}

#[cold]
fn counts_too_many(headers: Headers<'_>) -> bool {
    let lists = headers.filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
    let names = lists.flat_map(|(_, list)| list.split(|&byte| byte == b','));
    names.take(LISTED_NAMES + 1).count() > LISTED_NAMES
}

/// Whether a field of a request is passed on unchanged. `Proxy` is not, because a CGI program takes HTTP_PROXY for its own
/// setting. Such programs do not distinguish `_` and `-`, so a field that may not pass in one spelling does not in the other.
pub(crate) fn passes(name: &str, is_trusted: bool) -> bool {
    !may_be_known(name) || passes_known(name, is_trusted)
}

fn passes_known(name: &str, is_trusted: bool) -> bool {
    if name.contains('_') {
        return passes_known(&name.replace('_', "-"), is_trusted);
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
    let text = HopText::of(hop.client);
    if !is_trusted && !hop.host.is_empty() {
        return add_first(head, &text, hop);
    }
    let is_https = is_https(&given, is_trusted, hop.is_https);
    let given = |name: &'static str| values(&given, is_trusted, name);
    let has = |name| given(name).next().is_some();

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

/// The fields of a hop, with gaps for its address, the host, and both again.
type Lines = LineTemplate<5>;

/// Makes the template for clients of a scheme. In `Forwarded` the address stands between `$open` and `$close`.
macro_rules! lines {
    ($scheme:literal, $open:literal, $close:literal) => {{
        const LINES: Lines = LineTemplate::new([
            "x-forwarded-for: ",
            concat!("\r\nx-forwarded-proto: ", $scheme, "\r\nx-forwarded-host: "),
            concat!("\r\nforwarded: for=", $open),
            concat!($close, ";host=\""),
            concat!("\";proto=", $scheme, "\r\n"),
        ]);
        &LINES
    }};
}

/// Writes the fields of the only hop that is known.
fn add_first(head: &mut RequestWriter<'_>, text: &HopText, hop: &Hop<'_>) -> Result<(), HeaderError> {
    let (ip, host) = (text.as_bytes(), hop.host.as_bytes());
    let lines = match (
        hop.is_https,
        matches!(hop.client, Some(IpAddr::V6(_))) && ip.contains(&b':'),
    ) {
        (false, false) => lines!("http", "", ""),
        (true, false) => lines!("https", "", ""),
        (false, true) => lines!("http", "\"[", "]\""),
        (true, true) => lines!("https", "\"[", "]\""),
    };
    head.filled(lines, &[ip, host])
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
    use proptest::prelude::*;

    use osier_http::{BodyLength, Head, Limits, RequestWriter, Slots};

    use super::{Hop, HopText, add, is_added, is_of_connection, may_be_known, passes, passes_known};

    const NAMES: [&str; 22] = [
        "Te",
        "HOST",
        "proxy",
        "Expect",
        "upgrade",
        "Forwarded",
        "x-real-ip",
        "X_Real-IP",
        "Connection",
        "keep-alive",
        "Content_Length",
        "http2-settings",
        "X-Forwarded-For",
        "X_Forwarded_Proto",
        "x-forwarded-",
        "X-Forwarded-A-Name-That-Is-Longer-Than-All-Others",
        "proxy-connection",
        "Transfer-Encoding",
        "proxy-authenticate",
        "proxy-authorization",
        "Proxy-Authentication_Info",
        "x-forwarded-host",
    ];

    #[test]
    fn the_only_hop_is_written_as_the_last_of_many() {
        for client in [None, Some("192.0.2.1"), Some("2001:db8::1"), Some("::ffff:192.0.2.1")] {
            for is_https in [false, true] {
                let hop = Hop {
                    client: client.map(|client| client.parse().unwrap()),
                    is_https,
                    host: "example.org:80",
                };
                let write = |is_trusted| {
                    let mut out = Vec::new();
                    let mut head = RequestWriter::begin(&mut out, "GET", "/", "a").unwrap();
                    let bytes = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
                    let mut slots: Slots = Slots::new();
                    let given = Head::parse(bytes, &mut slots, &Limits::DEFAULT).unwrap();
                    add(&mut head, given.headers(), is_trusted, &hop).unwrap();
                    head.finish(BodyLength::None);
                    String::from_utf8(out).unwrap()
                };
                assert_eq!(write(false), write(true));
            }
        }
    }

    #[test]
    fn no_field_that_is_looked_at_is_ruled_out() {
        for name in NAMES {
            assert!(may_be_known(name), "{name}");
            assert!(!passes(name, false), "{name}");
        }
        assert!(!may_be_known(""));
        for name in [
            "user-agent",
            "accept",
            "accept-encoding",
            "cookie",
            "x-a",
            "server",
            "date",
        ] {
            assert!(!may_be_known(name) && passes(name, false), "{name}");
        }
    }

    proptest! {
        #[test]
        fn what_is_ruled_out_passes_the_slow_way(
            name in prop_oneof!["[!-9;-~]{1,40}", proptest::sample::select(&NAMES[..]).prop_map(str::to_owned)],
            cut in 0..3usize,
            is_trusted: bool,
        ) {
            let name = &name[..name.len() - cut.min(name.len() - 1)];
            prop_assert_eq!(passes(name, is_trusted), passes_known(name, is_trusted));
            prop_assert!(may_be_known(name) || !(is_of_connection(name) || is_added(name)));
        }
    }

    #[test]
    fn a_hop_has_an_ipv4_address_without_ipv6_or_is_unknown() {
        let mapped = HopText::of(Some("::ffff:192.0.2.1".parse().unwrap()));
        assert_eq!(mapped.node().concat(), b"for=192.0.2.1");
        assert_eq!(HopText::of(None).node().concat(), b"for=unknown");
    }
}
