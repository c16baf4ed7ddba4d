//! Reads the fields that frame a request in one pass: Host, Content-Length, Transfer-Encoding, Connection, Expect and Upgrade.
//!
//! A request is refused if two parsers could disagree about its end (RFC 9112 6.3 and 11.2). The length of a name is compared
//! first, so that any other field costs one comparison.

use super::target::check_host;
use crate::message::{Headers, Reject, Version, byte, is_field, is_field_name};

/// The framing of the bytes after a request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// No body: the request has neither Content-Length nor Transfer-Encoding.
    None,
    /// Content-Length, which may be 0.
    Known(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

impl BodyLength {
    /// Whether the body has no bytes.
    #[inline]
    pub fn is_empty(self) -> bool {
        matches!(self, BodyLength::None | BodyLength::Known(0))
    }
}

/// The Host field, which has been checked. Its text is looked up when somebody asks for it: a program that serves one host never does.
#[derive(Clone, Copy, Default)]
pub(crate) enum Host<'a> {
    #[default]
    Missing,
    /// The place of the field among the fields of the head.
    At(usize),
    /// The value, in a head whose fields were changed.
    Text(&'a str),
}

/// The framing of one request.
#[derive(Clone, Copy)]
pub(crate) struct Framing<'a> {
    pub(crate) host: Host<'a>,
    pub(crate) body: BodyLength,
    pub(crate) keep_alive: bool,
    pub(crate) expect_continue: bool,
    pub(crate) upgrade: Option<&'a [u8]>,
    /// The connection options, as bits of a set.
    pub(crate) options: u8,
}

impl<'a> Framing<'a> {
    #[inline(always)]
    pub(crate) fn of(mut fields: Headers<'a>, version: Version) -> Result<Framing<'a>, Reject> {
        let mut seen = Seen::default();
        let mut place = 0;
        while let Some((name, value)) = fields.next_in_bytes() {
            let is = |known: &'static str| is_field_name(name, known.as_bytes());
            match name.len() {
                4 if is("host") => seen.host(place, value)?,
                6 if is("expect") => seen.expect_continue = expect(value)?,
                7 if is("upgrade") => seen.upgrade = Some(value),
                10 if is("connection") => seen.options |= connection(value)?,
                14 if is("content-length") => seen.length = Some(content_length(value, seen.length.is_some())?),
                17 if is("transfer-encoding") => seen.chunked = transfer_encoding(value, seen.chunked)?,
                _ => {}
            }
            place += 1;
        }
        seen.verdict(version)
    }
}

/// The connection options that the codec knows, as bits of a set.
pub(crate) const CLOSE: u8 = 1;
pub(crate) const KEEP_ALIVE: u8 = 2;
pub(crate) const UPGRADE: u8 = 4;
/// The connection options have another name, too.
pub(crate) const OTHER: u8 = 8;

/// The fields seen so far. The functions for single fields take and return small values instead of this state, so it can stay in
/// registers.
#[derive(Default)]
struct Seen<'a> {
    host: Host<'a>,
    length: Option<u64>,
    chunked: bool,
    expect_continue: bool,
    upgrade: Option<&'a [u8]>,
    options: u8,
}

fn expect(value: &[u8]) -> Result<bool, Reject> {
    if value.eq_ignore_ascii_case(b"100-continue") {
        Ok(true)
    } else {
        Err(Reject::Expectation)
    }
}

/// Reads a Connection field: a list of tokens (RFC 9110 7.6.1).
pub(crate) fn connection(value: &[u8]) -> Result<u8, Reject> {
    // Nearly every Connection field has one of these values.
    match value {
        b"close" => return Ok(CLOSE),
        b"keep-alive" | b"Keep-Alive" => return Ok(KEEP_ALIVE),
        _ => {}
    }
    let mut options = 0;
    for option in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
        if option.eq_ignore_ascii_case(b"close") {
            options |= CLOSE;
        } else if option.eq_ignore_ascii_case(b"keep-alive") {
            options |= KEEP_ALIVE;
        } else if option.eq_ignore_ascii_case(b"upgrade") {
            options |= UPGRADE;
        } else if !option.iter().all(|&b| byte::is_token(b)) {
            return Err(Reject::Connection);
        } else {
            options |= OTHER;
        }
    }
    Ok(options)
}

/// Whether Connection fields with these options list `name`. The `fields` have the other names.
#[inline(always)]
pub(crate) fn lists(options: u8, fields: Headers<'_>, name: &str) -> bool {
    if options & OTHER != 0 {
        return lists_among_others(fields, name);
    }
    let option = match name.len() {
        5 if is_field(name, "close") => CLOSE,
        7 if is_field(name, "upgrade") => UPGRADE,
        10 if is_field(name, "keep-alive") => KEEP_ALIVE,
        _ => 0,
    };
    options & option != 0
}

#[cold]
fn lists_among_others(fields: Headers<'_>, name: &str) -> bool {
    let lists = fields.filter(|(known, _)| known.eq_ignore_ascii_case("connection"));
    lists
        .flat_map(|(_, list)| list.split(|&byte| byte == b','))
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
}

/// Reads a Content-Length: `1*DIGIT` (RFC 9110 8.6). The RFC also allows a list of equal lengths, which is refused here, as no
/// honest client sends one.
pub(crate) fn content_length(value: &[u8], repeated: bool) -> Result<u64, Reject> {
    if repeated {
        return Err(Reject::ContentLengthRepeated);
    }
    if value.is_empty() {
        return Err(Reject::ContentLength);
    }
    let mut length = 0u64;
    for &byte in value {
        if !byte.is_ascii_digit() {
            return Err(Reject::ContentLength);
        }
        length = length
            .checked_mul(10)
            .and_then(|length| length.checked_add(u64::from(byte - b'0')))
            .ok_or(Reject::ContentLength)?;
    }
    Ok(length)
}

/// Reads a Transfer-Encoding. RFC 9112 6.1: an unknown coding before `chunked` gets 501. RFC 9112 6.3: a last coding other than
/// `chunked` gets 400.
pub(crate) fn transfer_encoding(value: &[u8], repeated: bool) -> Result<bool, Reject> {
    if repeated {
        return Err(Reject::TransferEncodingRepeated);
    }
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(true);
    }
    let is_chunked = |coding: &[u8]| coding.trim_ascii().eq_ignore_ascii_case(b"chunked");
    let is_coding = |coding: &[u8]| {
        let coding = coding.trim_ascii();
        !coding.is_empty() && coding.iter().all(|&b| byte::is_token(b)) && !is_chunked(coding)
    };
    let mut codings = value.rsplit(|&b| b == b',');
    if codings.next().is_some_and(is_chunked) && codings.all(is_coding) {
        return Err(Reject::TransferCoding);
    }
    Err(Reject::TransferEncoding)
}

impl<'a> Seen<'a> {
    #[inline(always)]
    fn host(&mut self, place: usize, value: &[u8]) -> Result<(), Reject> {
        if !matches!(self.host, Host::Missing) {
            return Err(Reject::HostRepeated);
        }
        check_host(value)?;
        self.host = Host::At(place);
        Ok(())
    }

    #[inline(always)]
    fn verdict(self, version: Version) -> Result<Framing<'a>, Reject> {
        let modern = version >= Version::Http11;
        if modern && matches!(self.host, Host::Missing) {
            return Err(Reject::HostMissing);
        }
        let body = match (self.chunked, self.length) {
            (false, None) => BodyLength::None,
            (false, Some(length)) => BodyLength::Known(length),
            (true, Some(_)) => return Err(Reject::LengthAndEncoding),
            (true, None) if !modern => return Err(Reject::TransferEncodingIn10),
            (true, None) => BodyLength::Chunked,
        };
        if self.upgrade.is_some() && !body.is_empty() {
            return Err(Reject::UpgradeWithBody);
        }
        Ok(Framing {
            host: self.host,
            body,
            keep_alive: self.options & CLOSE == 0 && (modern || self.options & KEEP_ALIVE != 0),
            // RFC 9110 10.1.1: "A server that receives a 100-continue expectation in an HTTP/1.0 request MUST ignore
            // that expectation". Without a body the client waits for nothing.
            expect_continue: self.expect_continue && modern && !body.is_empty(),
            upgrade: if self.options & UPGRADE != 0 && modern {
                self.upgrade
            } else {
                None
            },
            options: self.options,
        })
    }
}
