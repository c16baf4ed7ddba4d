//! The hops that proxies report in front of this server: `X-Forwarded-For`, `X-Real-IP` (conventions) and `Forwarded` (RFC 7239).
//!
//! Each proxy appends the peer that it saw, so the last hop is the only one that the server's own peer vouches for. The client is
//! found from the right: while a hop is a trusted proxy, the hop before it is believed too.

use std::net::IpAddr;

#[cfg(any(feature = "fastcgi", feature = "proxy"))]
use crate::conn::ignoring_case::begins;

/// The field in which trusted proxies name the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForwardedBy {
    /// `X-Forwarded-For`, with `X-Forwarded-Proto`.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239), with its `proto`. `X-Forwarded-Proto` is not believed: such a proxy may pass on what its client sent.
    Forwarded,
    /// `X-Real-IP`, a single address, with `X-Forwarded-Proto`.
    XRealIp,
}

/// A client that trusted proxies have named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RealClient {
    /// None if the proxies name none that can be read. They may still have said how the client came.
    pub ip: Option<IpAddr>,
    /// None if the proxies do not tell.
    pub is_https: Option<bool>,
}

/// One reported hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// None for a hop that hides its address, or whose address cannot be read.
    pub ip: Option<IpAddr>,
    /// Whether the hop used https, if the field tells.
    pub is_https: Option<bool>,
}

impl ForwardedBy {
    const fn name(self) -> &'static str {
        match self {
            ForwardedBy::XForwardedFor => "x-forwarded-for",
            ForwardedBy::Forwarded => "forwarded",
            ForwardedBy::XRealIp => "x-real-ip",
        }
    }

    /// Whether a proxy of this kind vouches for a field that [names the client](names_the_client). `Forwarded` and the
    /// conventions do not vouch for each other: a proxy that writes one form may pass on what its client sent in the other.
    #[cfg(feature = "fastcgi")]
    pub(crate) fn vouches_for(self, name: &str) -> bool {
        (self == ForwardedBy::Forwarded) == name.eq_ignore_ascii_case("forwarded")
    }
}

/// Whether the field says who the client is, or how it has reached a proxy.
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) fn names_the_client(name: &str) -> bool {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    match name.len() {
        9 => is("forwarded") || is("x-real-ip"),
        _ => begins(name, "x-forwarded-"),
    }
}

/// Finds the client behind a trusted peer. `values` returns the values of the fields with a name, in their order.
pub(crate) fn real_client<'v, I: Iterator<Item = &'v [u8]>>(
    by: ForwardedBy,
    values: impl Fn(&'static str) -> I,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Option<RealClient> {
    let hops = match by {
        ForwardedBy::Forwarded => forwarded(values(by.name())),
        _ => addresses(values(by.name())),
    };
    let mut client = None;
    for (from_right, hop) in hops.iter().rev().enumerate() {
        let Some(ip) = hop.ip else { break };
        client = Some((from_right, ip, hop.is_https));
        if by == ForwardedBy::XRealIp || !is_trusted(ip) {
            break;
        }
    }
    let ip = client.map(|(_, ip, _)| ip);
    let is_https = match by {
        ForwardedBy::Forwarded => client.and_then(|(_, _, is_https)| is_https),
        _ => {
            let schemes: Vec<&[u8]> = values("x-forwarded-proto").flat_map(list).collect();
            // Either each proxy appends its scheme, or each passes the one that it was told on.
            let scheme = match client {
                Some((from_right, _, _)) if schemes.len() == hops.len() => schemes.iter().rev().nth(from_right),
                _ => schemes.last(),
            };
            scheme.map(|scheme| is_https_scheme(scheme))
        }
    };
    (ip.is_some() || is_https.is_some()).then_some(RealClient { ip, is_https })
}

pub(crate) fn is_https_scheme(scheme: &[u8]) -> bool {
    scheme.trim_ascii().eq_ignore_ascii_case(b"https")
}

/// The hops of `X-Forwarded-For`, the first proxy's first.
pub(crate) fn addresses<'v>(values: impl Iterator<Item = &'v [u8]>) -> Vec<Hop> {
    let hop = |text| Hop {
        ip: address(text),
        is_https: None,
    };
    values.flat_map(list).map(hop).collect()
}

/// The hops of `Forwarded`, the first proxy's first.
pub(crate) fn forwarded<'v>(values: impl Iterator<Item = &'v [u8]>) -> Vec<Hop> {
    values
        .flat_map(elements)
        .map(|element| {
            // Each parameter comes once (RFC 7239 4). A second one may lie in what the hop's client has sent: `host=a;for=...`.
            let (mut ip, mut is_https) = (None, None);
            for pair in split(element, b';').0 {
                let Some(at) = pair.iter().position(|&byte| byte == b'=') else {
                    continue;
                };
                let (name, value) = (pair[..at].trim_ascii(), unquoted(&pair[at + 1..]));
                if name.eq_ignore_ascii_case(b"for") {
                    ip.get_or_insert_with(|| address(&value));
                } else if name.eq_ignore_ascii_case(b"proto") {
                    is_https.get_or_insert_with(|| is_https_scheme(&value));
                }
            }
            let ip = ip.flatten();
            Hop { ip, is_https }
        })
        .collect()
}

/// Splits a list without quotes, as the conventions have it: a quote of the client's must not hide what a proxy has appended. Empty
/// elements are left out (RFC 9110 5.6.1).
fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parts = value.split(|&byte| byte == b',');
    parts.filter(|part| !part.trim_ascii().is_empty())
}

/// Splits the elements of `Forwarded`. Quotes that are not where the grammar has them quote nothing: what a proxy has appended behind a
/// quote that its client has left open is an element of its own.
fn elements(value: &[u8]) -> Vec<&[u8]> {
    match split(value, b',') {
        (elements, true) => elements,
        (_, false) => list(value).collect(),
    }
}

/// Splits a list, but not inside of quotes. Empty elements are left out. False if a quote does not follow `=`, is not closed, or is
/// closed before anything but a separator.
fn split(list: &[u8], separator: u8) -> (Vec<&[u8]>, bool) {
    let (mut parts, mut start) = (Vec::new(), 0);
    let (mut is_quoted, mut is_escaped, mut is_well_formed) = (false, false, true);
    // The last byte outside of quotes that is no white space, or a quote.
    let mut last = 0;
    for (at, &byte) in list.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => {
                is_well_formed &= is_quoted || last == b'=';
                is_quoted = !is_quoted;
                last = byte;
            }
            _ if is_quoted || byte.is_ascii_whitespace() => {}
            _ => {
                is_well_formed &= last != b'"' || matches!(byte, b',' | b';');
                last = byte;
                if byte == separator {
                    parts.push(&list[start..at]);
                    start = at + 1;
                }
            }
        }
    }
    parts.push(&list[start..]);
    parts.retain(|part| !part.trim_ascii().is_empty());
    (parts, is_well_formed && !is_quoted)
}

fn unquoted(value: &[u8]) -> Vec<u8> {
    let value = value.trim_ascii();
    let Some(inner) = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) else {
        return value.to_vec();
    };
    let mut is_escaped = false;
    let keep = |byte: &&u8| {
        is_escaped = !is_escaped && **byte == b'\\';
        !is_escaped
    };
    inner.iter().filter(keep).copied().collect()
}

/// Parses an address, perhaps with a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text.trim_ascii()).ok()?;
    let is_port = |port: &str| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    let ip = if let Some(rest) = text.strip_prefix('[') {
        let (ip, after) = rest.split_once(']')?;
        let is_port = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        ip.parse().ok().filter(|ip: &IpAddr| ip.is_ipv6() && is_port)
    } else if let Ok(ip) = text.parse() {
        Some(ip)
    } else {
        let (ip, port) = text.split_once(':')?;
        ip.parse().ok().filter(|ip: &IpAddr| ip.is_ipv4() && is_port(port))
    };
    ip.map(|ip: IpAddr| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client that a peer names, where 10.0.0.0/8 is trusted.
    fn client(by: ForwardedBy, fields: &[(&str, &str)]) -> Option<(String, bool)> {
        let values = |name: &'static str| {
            let fields = fields.iter().filter(move |(known, _)| *known == name);
            fields.map(|(_, value)| value.as_bytes())
        };
        let is_trusted = |ip: IpAddr| ip.to_string().starts_with("10.");
        let client = real_client(by, values, is_trusted)?;
        Some((
            client.ip.map_or("?".into(), |ip| ip.to_string()),
            client.is_https == Some(true),
        ))
    }

    #[test]
    fn the_first_stranger_from_the_right_is_the_client() {
        let by = ForwardedBy::XForwardedFor;
        for (value, expected) in [
            ("1.2.3.4", Some("1.2.3.4")),
            ("9.9.9.9, 1.2.3.4", Some("1.2.3.4")),
            ("9.9.9.9, 1.2.3.4, 10.0.0.1,10.0.0.2", Some("1.2.3.4")),
            ("10.0.0.3, 10.0.0.2", Some("10.0.0.3")),
            ("1.2.3.4:5678", Some("1.2.3.4")),
            ("[2001:db8::1]:443", Some("2001:db8::1")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("::ffff:1.2.3.4", Some("1.2.3.4")),
            ("9.9.9.9, unknown, 10.0.0.1", Some("10.0.0.1")),
            ("9.9.9.9, unknown", None),
            ("1.2.3.4, ,", Some("1.2.3.4")),
            ("\", 1.2.3.4", Some("1.2.3.4")),
            ("\"10.0.0.3, 1.2.3.4", Some("1.2.3.4")),
            ("", None),
            ("1.2.3.4:x", None),
            ("1.2.3.4.5", None),
            ("[1.2.3.4]", None),
        ] {
            let found = client(by, &[("x-forwarded-for", value)]);
            assert_eq!(found.map(|(ip, _)| ip).as_deref(), expected, "{value}");
        }
        // Two fields are one list.
        let two = [("x-forwarded-for", "9.9.9.9"), ("x-forwarded-for", "1.2.3.4, 10.0.0.1")];
        assert_eq!(client(by, &two), Some(("1.2.3.4".into(), false)));
        assert_eq!(client(by, &[("x-real-ip", "1.2.3.4")]), None);
    }

    #[test]
    fn the_scheme_belongs_to_the_same_hop() {
        let by = ForwardedBy::XForwardedFor;
        for (hops, schemes, expected) in [
            ("1.2.3.4", "https", true),
            ("1.2.3.4", "HTTPS", true),
            ("1.2.3.4", "http", false),
            ("1.2.3.4, 10.0.0.1", "https", true),
            ("1.2.3.4, 10.0.0.1", "https, http", true),
            ("9.9.9.9, 1.2.3.4", "https, http", false),
        ] {
            let fields = [("x-forwarded-for", hops), ("x-forwarded-proto", schemes)];
            assert_eq!(
                client(by, &fields),
                Some(("1.2.3.4".into(), expected)),
                "{hops} {schemes}"
            );
        }
        let fields = [("x-real-ip", "1.2.3.4"), ("x-forwarded-proto", "https")];
        assert_eq!(client(ForwardedBy::XRealIp, &fields), Some(("1.2.3.4".into(), true)));
        let unnamed = [("x-forwarded-for", "unknown"), ("x-forwarded-proto", "https")];
        assert_eq!(client(by, &unnamed), Some(("?".into(), true)));
        assert_eq!(client(by, &unnamed[1..]), Some(("?".into(), true)));
    }

    #[test]
    fn forwarded_is_read_as_its_grammar_says() {
        let by = ForwardedBy::Forwarded;
        for (value, expected) in [
            ("for=1.2.3.4", Some(("1.2.3.4", false))),
            ("For=\"1.2.3.4:80\";Proto=https;by=10.0.0.1", Some(("1.2.3.4", true))),
            (
                "for=\"[2001:db8::1]:4711\" ; proto=\"https\"",
                Some(("2001:db8::1", true)),
            ),
            (
                "for=9.9.9.9;proto=https, for=1.2.3.4;proto=http, for=10.0.0.1;proto=https",
                Some(("1.2.3.4", false)),
            ),
            ("for=\"1.2.3.4\\\"\", for=10.0.0.1", Some(("10.0.0.1", false))),
            ("for=9.9.9.9;host=\"a,for=8.8.8.8\"", Some(("9.9.9.9", false))),
            // The first proxy's client sent the quote, and the proxy appended to it.
            ("for=10.0.0.5;proto=https;x=\", for=1.2.3.4", Some(("1.2.3.4", false))),
            ("for=10.0.0.5;x=\", for=\"[2001:db8::1]\"", Some(("2001:db8::1", false))),
            // The same, where the proxy's element has quotes of its own, which close and open the client's.
            (
                "for=10.0.0.5;x=\", for=\"[2001:db8::1]\";host=\"a\\\"b\"",
                Some(("2001:db8::1", false)),
            ),
            (
                "for=10.0.0.5;x=a\"b, for=1.2.3.4;host=\"c\", for=10.0.0.1;x=\"d",
                Some(("1.2.3.4", false)),
            ),
            ("for=10.0.0.5;x=\"a\"b\", for=1.2.3.4", Some(("1.2.3.4", false))),
            // Its client sent the host.
            (
                "for=1.2.3.4;proto=http;host=a;for=10.0.0.9;proto=https",
                Some(("1.2.3.4", false)),
            ),
            ("for=_hidden;host=a;for=1.2.3.4", None),
            ("for=_hidden", None),
            ("proto=https", None),
            ("for=\"", None),
        ] {
            let found = client(by, &[("forwarded", value), ("x-forwarded-proto", "https")]);
            let expected = expected.map(|(ip, is_https)| (ip.to_string(), is_https));
            assert_eq!(found, expected, "{value}");
        }
    }
}
