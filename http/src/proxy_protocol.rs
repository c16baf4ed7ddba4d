//! The PROXY protocol, versions 1 and 2: a balancer names the client of a connection before the first byte of HTTP.
//!
//! ```text
//!   version 1   PROXY TCP4 192.0.2.7 198.51.100.1 56324 443 CRLF                    at most 107 bytes
//!   version 2   signature (12) │ version, command │ family, protocol │ length (2) │ addresses │ TLVs
//! ```
//!
//! A header proves nothing: it may be looked for only on connections of peers that are trusted, and there it must be present.
//! [`parse`] is called with the first bytes of such a connection, again with more when it says `None`. It keeps nothing between the
//! calls; a header is at most [`HEADER_MAX`] bytes, and what cannot become one is refused at the first wrong byte of its signature.
//!
//! Source: "The PROXY protocol, versions 1 & 2", Willy Tarreau, HAProxy Technologies. What that leaves to the receiver is read strictly:
//! one space between fields, ports without leading zeros, TLVs that fill their space exactly, a checksum that is there is checked.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::{error, fmt, str};

/// The longest line of version 1, its CRLF included; the protocol's own figure.
pub const V1_MAX: usize = 107;
/// The most bytes after version 2's fixed part. The protocol allows 65,535; addresses need 216 bytes at most, and the TLVs in use
/// (host name, unique id, TLS details, a cloud's ids) a few hundred, unless whole certificates are forwarded, which nobody here reads.
pub const V2_BODY_MAX: usize = 4 << 10;
/// The longest header that is accepted.
pub const HEADER_MAX: usize = V2_HEAD + V2_BODY_MAX;

const V1_SIGNATURE: &[u8] = b"PROXY ";
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The fixed part of version 2.
const V2_HEAD: usize = 16;
/// The length of one path in the address block of Unix sockets.
const UNIX_PATH: usize = 108;
/// The TLV that holds a checksum (CRC-32C) of the whole header.
const TYPE_CRC32C: u8 = 3;

/// A header that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'i> {
    /// The content.
    pub told: Told<'i>,
    /// Its bytes; HTTP begins after them.
    pub length: usize,
}

/// The origin of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told<'i> {
    /// Two addresses of one family.
    Inet {
        /// The client.
        source: SocketAddr,
        /// Where the client has connected to.
        destination: SocketAddr,
    },
    /// Over Unix sockets. The paths end before their first NUL, but for abstract names, which begin with one.
    Unix {
        /// The client's socket.
        source: &'i [u8],
        /// Where the client has connected to.
        destination: &'i [u8],
    },
    /// On somebody else's behalf, but the sender does not know or say whose: the connection's own addresses count.
    Unknown,
    /// The sender speaks for itself, in a health check for example: the connection's own addresses count.
    Local,
}

/// Bytes that are no header, or a header without sense. The server must close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The bytes begin neither version.
    Signature,
    /// A line of version 1 that does not end within [`V1_MAX`] bytes.
    TooLong,
    /// A line of version 1 that is not as it should be.
    Line,
    /// A version that is neither 1 nor 2.
    Version(u8),
    /// A command of version 2 that is neither LOCAL nor PROXY.
    Command(u8),
    /// A family or protocol that version 2 does not define.
    Family(u8),
    /// A length of version 2 beyond [`V2_BODY_MAX`], or too short for the addresses.
    Length(u16),
    /// TLVs that do not fill their space exactly.
    Tlv,
    /// The checksum is there and wrong.
    Checksum,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Signature => f.write_str("no PROXY header where one must be"),
            Malformed::TooLong => write!(f, "a PROXY line that does not end within {V1_MAX} bytes"),
            Malformed::Line => f.write_str("a PROXY line that is not well-formed"),
            Malformed::Version(version) => write!(f, "a PROXY header of version {version}, neither 1 nor 2"),
            Malformed::Command(command) => write!(f, "a PROXY header with the unknown command {command}"),
            Malformed::Family(family) => write!(f, "a PROXY header with the unknown family and protocol {family:#04x}"),
            Malformed::Length(length) => write!(f, "a PROXY header with a length of {length} bytes"),
            Malformed::Tlv => f.write_str("a PROXY header whose TLVs do not fill their space"),
            Malformed::Checksum => f.write_str("a PROXY header with a wrong checksum"),
        }
    }
}

impl error::Error for Malformed {}

/// Reads the header at the beginning of `input`; `None` when more of it has to come.
///
/// ```
/// use osier_http::proxy_protocol::{Told, parse};
///
/// let input = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\nGET / HTTP/1.1\r\n";
/// let header = parse(input)?.expect("it is all there");
/// let Told::Inet { source, .. } = header.told else { panic!() };
/// assert_eq!(source, "192.0.2.7:56324".parse()?);
/// assert_eq!(&input[header.length..], b"GET / HTTP/1.1\r\n");
///
/// assert_eq!(parse(b"PROXY TCP4 192.0.2.7 198")?, None);
/// assert!(parse(b"GET / HTTP/1.1\r\n").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`Malformed`], as soon as it is certain.
pub fn parse(input: &[u8]) -> Result<Option<Header<'_>>, Malformed> {
    if begins(input, V1_SIGNATURE) {
        return line(input);
    }
    if begins(input, V2_SIGNATURE) {
        return binary(input);
    }
    Err(Malformed::Signature)
}

/// Whether `input` begins with `signature`, or is a beginning of it.
fn begins(input: &[u8], signature: &[u8]) -> bool {
    let length = input.len().min(signature.len());
    input[..length] == signature[..length]
}

fn line(input: &[u8]) -> Result<Option<Header<'_>>, Malformed> {
    let Some(end) = input.iter().take(V1_MAX).position(|&byte| byte == b'\n') else {
        return if input.len() < V1_MAX {
            Ok(None)
        } else {
            Err(Malformed::TooLong)
        };
    };
    let line = input[..end].strip_suffix(b"\r").ok_or(Malformed::Line)?;
    // Anything may follow an unknown protocol, but no second end of the line.
    let line = str::from_utf8(line).map_err(|_| Malformed::Line)?;
    if line.contains('\r') {
        return Err(Malformed::Line);
    }
    let mut fields = line.split(' ').skip(1);
    let told = match fields.next() {
        Some("UNKNOWN") => Told::Unknown,
        Some("TCP4") => addresses(&mut fields, |ip| ip.parse().ok().map(Ipv4Addr::into))?,
        Some("TCP6") => addresses(&mut fields, |ip| ip.parse().ok().map(Ipv6Addr::into))?,
        _ => return Err(Malformed::Line),
    };
    let length = end + 1;
    Ok(Some(Header { told, length }))
}

/// Both addresses, then both ports, and nothing after them.
fn addresses<'i>(
    fields: &mut dyn Iterator<Item = &str>,
    ip: impl Fn(&str) -> Option<std::net::IpAddr>,
) -> Result<Told<'i>, Malformed> {
    let mut next = || fields.next().ok_or(Malformed::Line);
    let [source, destination, source_port, destination_port] = [next()?, next()?, next()?, next()?];
    if fields.next().is_some() {
        return Err(Malformed::Line);
    }
    let address = |address, digits: &str| {
        let canonical = digits == "0" || digits.starts_with(|digit| matches!(digit, '1'..='9'));
        let port = digits.parse().ok().filter(|_| canonical)?;
        Some(SocketAddr::new(ip(address)?, port))
    };
    Ok(Told::Inet {
        source: address(source, source_port).ok_or(Malformed::Line)?,
        destination: address(destination, destination_port).ok_or(Malformed::Line)?,
    })
}

fn binary(input: &[u8]) -> Result<Option<Header<'_>>, Malformed> {
    let Some(head) = input.first_chunk::<V2_HEAD>() else {
        return Ok(None);
    };
    let [.., version_command, family, high, low] = *head;
    let (version, command) = (version_command >> 4, version_command & 15);
    if version != 2 {
        return Err(Malformed::Version(version));
    }
    if command > 1 {
        return Err(Malformed::Command(command));
    }
    let body_length = u16::from_be_bytes([high, low]);
    let length = V2_HEAD + usize::from(body_length);
    if length > HEADER_MAX {
        return Err(Malformed::Length(body_length));
    }
    let Some(header) = input.get(..length) else {
        return Ok(None);
    };
    let body = &header[V2_HEAD..];
    // The family of a LOCAL header means nothing, and the rest is skipped.
    if command == 0 {
        let told = Told::Local;
        return Ok(Some(Header { told, length }));
    }
    let (address_family, protocol) = (family >> 4, family & 15);
    let address_length = match (address_family, protocol) {
        (4.., _) | (_, 3..) => return Err(Malformed::Family(family)),
        (0, _) | (_, 0) => {
            let told = Told::Unknown;
            return Ok(Some(Header { told, length }));
        }
        (1, _) => 2 * (4 + 2),
        (2, _) => 2 * (16 + 2),
        (3, _) => 2 * UNIX_PATH,
    };
    let (addresses, tlvs) = body
        .split_at_checked(address_length)
        .ok_or(Malformed::Length(body_length))?;
    let told = match address_family {
        1 => inet::<4>(addresses),
        2 => inet::<16>(addresses),
        _ => Told::Unix {
            source: path(&addresses[..UNIX_PATH]),
            destination: path(&addresses[UNIX_PATH..]),
        },
    };
    check_tlvs(header, length - tlvs.len())?;
    Ok(Some(Header { told, length }))
}

/// Two addresses of `N` bytes, then two ports. The caller has cut `bytes` to that length.
fn inet<'i, const N: usize>(bytes: &[u8]) -> Told<'i>
where
    std::net::IpAddr: From<[u8; N]>,
{
    let ip = |at| {
        let mut ip = [0; N];
        ip.copy_from_slice(&bytes[at..at + N]);
        ip
    };
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    Told::Inet {
        source: SocketAddr::new(ip(0).into(), port(2 * N)),
        destination: SocketAddr::new(ip(N).into(), port(2 * N + 2)),
    }
}

fn path(padded: &[u8]) -> &[u8] {
    // The NUL in front is part of an abstract name.
    let end = padded.iter().skip(1).position(|&byte| byte == 0);
    let path = &padded[..end.map_or(padded.len(), |end| end + 1)];
    if path == [0] { &[] } else { path }
}

/// Passes over the TLVs that begin at `at` and end with the header.
fn check_tlvs(header: &[u8], mut at: usize) -> Result<(), Malformed> {
    while let Some(&[kind, high, low]) = header[at..].first_chunk() {
        let value = at + 3..at + 3 + usize::from(u16::from_be_bytes([high, low]));
        let content = header.get(value.clone()).ok_or(Malformed::Tlv)?;
        if kind == TYPE_CRC32C {
            let told: [u8; 4] = content.try_into().map_err(|_| Malformed::Tlv)?;
            // Computed with the checksum itself as zeros.
            let mut crc = crc32c(!0, &header[..value.start]);
            crc = crc32c(crc, &[0; 4]);
            crc = crc32c(crc, &header[value.end..]);
            if !crc != u32::from_be_bytes(told) {
                return Err(Malformed::Checksum);
            }
        }
        at = value.end;
    }
    if at == header.len() {
        Ok(())
    } else {
        Err(Malformed::Tlv)
    }
}

/// CRC-32C, a bit at a time: once for a connection, if at all.
fn crc32c(mut crc: u32, bytes: &[u8]) -> u32 {
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            let divisor = if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            crc = crc >> 1 ^ divisor;
        }
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        // The check value of the catalogues of CRCs.
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
    }
}
