//! Parses a request target in its four forms (RFC 9112 3.2), and checks the host of the target or of the Host field.
//!
//! The tokenizer has already checked that a target has only visible bytes.

use crate::message::byte::is_host;
use crate::message::{Method, Reject};

/// The four forms of a request target (RFC 9112 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `/path?query`, the usual one.
    Origin,
    /// `http://host/path?query`. The client of a proxy sends it, and every server must accept it.
    Absolute,
    /// `host:port`, only with CONNECT.
    Authority,
    /// `*`, only with OPTIONS.
    Asterisk,
}

/// A target cut into its parts.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    /// The authority of the absolute or authority form.
    pub(crate) authority: Option<&'a str>,
}

impl Target<'_> {
    /// The form, derived from the parts, as it is rarely needed.
    pub(crate) fn form(&self) -> Form {
        match (self.authority, self.path) {
            (Some(_), "") => Form::Authority,
            (Some(_), _) => Form::Absolute,
            (None, "*") => Form::Asterisk,
            (None, _) => Form::Origin,
        }
    }
}

/// Cuts `raw` into its parts and checks that `method` allows a target of that form.
///
/// The function is always inlined, and the others return no more than two registers hold, so the parts go straight to their places
/// in the head. Copying them from a result in memory would read larger pieces than were just written, and such a load waits for
/// the stores.
#[inline(always)]
pub(crate) fn parse<'a>(method: Method<'_>, raw: &'a str) -> Result<Target<'a>, Reject> {
    let (mut rest, mut authority) = (raw, None);
    if raw.as_bytes()[0] != b'/' || method == Method::Connect {
        rest = after_authority(method, raw)?;
        authority = authority_before(raw, rest);
    }
    let (mut path, query) = split_query(rest)?;
    if path.is_empty() {
        path = implied_path(method, query.is_none());
    }
    Ok(Target { path, query, authority })
}

/// Returns the part of a target after its authority. The target is not in origin form.
#[cold]
#[inline(never)]
fn after_authority<'a>(method: Method<'_>, raw: &'a str) -> Result<&'a str, Reject> {
    if method == Method::Connect {
        // RFC 9112 3.2.3: only the uri-host and port, and the port is not optional.
        let port = raw.rsplit_once(':').map_or("", |(_, port)| port);
        if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(Reject::TargetForm);
        }
        check_authority(raw)?;
        return Ok("");
    }
    if raw == "*" {
        return match method {
            Method::Options => Ok(raw),
            _ => Err(Reject::TargetForm),
        };
    }
    let (scheme, rest) = raw.split_once("://").ok_or(Reject::TargetForm)?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(Reject::TargetForm);
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    check_authority(authority)?;
    Ok(rest)
}

/// The authority that [`after_authority`] has skipped. `rest` is the end of `raw` after it.
#[cold]
#[inline(never)]
fn authority_before<'a>(raw: &'a str, rest: &str) -> Option<&'a str> {
    let before = &raw[..raw.len() - rest.len()];
    match before.split_once("://") {
        Some((_, authority)) => Some(authority),
        None if before.is_empty() => None,
        None => Some(before),
    }
}

/// The path of a target without a path.
#[cold]
#[inline(never)]
fn implied_path(method: Method<'_>, without_query: bool) -> &'static str {
    match method {
        Method::Connect => "",
        // RFC 9110 4.2.3: "an empty path component is equivalent to an absolute path of '/'". OPTIONS without a path
        // and query means the whole server (RFC 9112 3.2.4).
        Method::Options if without_query => "*",
        _ => "/",
    }
}

/// Splits at the first `?`. Refuses a fragment and bytes beyond ASCII, which a request target cannot have.
#[inline(always)]
fn split_query(raw: &str) -> Result<(&str, Option<&str>), Reject> {
    let bytes = raw.as_bytes();
    let plain = |&byte: &u8| byte != b'?' && byte != b'#' && byte.is_ascii();
    // Starting a vectorised search costs more than a short loop.
    if bytes.len() <= SHORT && bytes.iter().all(plain) {
        return Ok((raw, None));
    }
    if !bytes.is_ascii() {
        return Err(Reject::Target);
    }
    match memchr::memchr2(b'?', b'#', bytes) {
        None => Ok((raw, None)),
        Some(at) if bytes[at] == b'?' && memchr::memchr(b'#', &bytes[at..]).is_none() => {
            Ok((&raw[..at], Some(&raw[at + 1..])))
        }
        Some(_) => Err(Reject::Target),
    }
}

/// The longest target that is searched byte by byte.
const SHORT: usize = 16;

/// Checks an authority inside a target: a non-empty host, an optional port, and no user.
fn check_authority(authority: &str) -> Result<(), Reject> {
    if authority.is_empty() || authority.starts_with(':') {
        return Err(Reject::Host);
    }
    check_host(authority.as_bytes())
}

/// Checks `uri-host [ ":" port ]` (RFC 9112 3.2). An empty value is valid: the target has no authority.
#[inline]
pub(crate) fn check_host(value: &[u8]) -> Result<(), Reject> {
    let mut end = 0;
    while let Some(&word) = value[end..].first_chunk()
        && is_plain_word(word)
    {
        end += size_of_val(&word);
    }
    let rest = &value[end..];
    end += rest.iter().position(|&b| !is_host(b)).unwrap_or(rest.len());
    if is_port(&value[end..]) {
        Ok(())
    } else {
        check_rare_host(value)
    }
}

/// Whether all eight bytes are letters, digits, hyphens or dots, as in nearly all hosts. They are tested at once.
#[inline(always)]
fn is_plain_word(word: [u8; 8]) -> bool {
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    let word = u64::from_le_bytes(word);
    // The high bits are cleared, so no sum leaves its byte. One sum sets the high bit of bytes from `first` on, the other that of
    // bytes beyond `last`.
    let sum = |word: u64, addend: u8| (word & !HIGH) + u64::from_le_bytes([addend; 8]);
    let within = |word: u64, first: u8, last: u8| sum(word, 0x80 - first) & !sum(word, 0x7f - last);
    let lower = word | u64::from_le_bytes([0x20; 8]);
    let plain = within(word, b'-', b'.') | within(word, b'0', b'9') | within(lower, b'a', b'z');
    plain & !word & HIGH == HIGH
}

/// Whether `rest` may follow a host: `[ ":" port ]`. The digits of the port may be missing (RFC 3986 3.2.3).
#[inline]
fn is_port(rest: &[u8]) -> bool {
    match rest {
        [] => true,
        [b':', port @ ..] => port.len() <= 5 && port.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// Checks a host with a bracketed address or with percent signs.
#[cold]
fn check_rare_host(value: &[u8]) -> Result<(), Reject> {
    let rest = if let [b'[', inner @ ..] = value {
        let end = inner.iter().position(|&b| b == b']').ok_or(Reject::Host)?;
        let address = std::str::from_utf8(&inner[..end]).map_err(|_| Reject::Host)?;
        // IPvFuture and zones are refused: no client addresses a server by them.
        address.parse::<std::net::Ipv6Addr>().map_err(|_| Reject::Host)?;
        &inner[end + 1..]
    } else {
        let mut rest = value;
        loop {
            match rest {
                [b'%', high, low, tail @ ..] if is_text(*high, *low) => rest = tail,
                [b, tail @ ..] if is_host(*b) => rest = tail,
                _ => break rest,
            }
        }
    };
    if is_port(rest) { Ok(()) } else { Err(Reject::Host) }
}

/// Whether `%` and these two bytes are the escape of a byte other than a control. A program that decodes a host would put
/// controls, line ends above all, into a log or a header.
fn is_text(high: u8, low: u8) -> bool {
    high.is_ascii_hexdigit()
        && low.is_ascii_hexdigit()
        && high > b'1'
        && (high, low.to_ascii_lowercase()) != (b'7', b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_controls_are_no_part_of_a_host() {
        for byte in 0..=255u8 {
            for host in [format!("x%{byte:02x}a"), format!("%{byte:02X}:80")] {
                assert_eq!(check_host(host.as_bytes()).is_err(), byte.is_ascii_control(), "{host}");
            }
        }
        for host in ["x%", "x%4", "x%4g", "x%g4", "x%0d%0aa", "x%41%00"] {
            assert_eq!(check_host(host.as_bytes()), Err(Reject::Host), "{host}");
        }
    }

    #[test]
    fn a_plain_word_is_what_its_definition_says() {
        for byte in 0..=255u8 {
            let is_plain = byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
            assert!(!is_plain || is_host(byte));
            for at in 0..8 {
                let mut word = *b"aZ0-.9zA";
                word[at] = byte;
                assert_eq!(is_plain_word(word), is_plain, "{byte} at {at}");
                let mut others = [byte; 8];
                others[at] = b'a';
                assert_eq!(is_plain_word(others), is_plain, "{byte} but at {at}");
            }
        }
    }
}
