//! The PROXY protocol, versions 1 and 2: a load balancer names the client of a connection before the first byte of HTTP.
//!
//! ```text
//!   version 1   PROXY TCP4 192.0.2.7 198.51.100.1 56324 443 CRLF                    at most 107 bytes
//!   version 2   signature (12) │ version, command │ family, protocol │ length (2) │ addresses │ TLVs
//! ```
//!
//! A header proves nothing. Read one only on connections of trusted peers, and require it there. Call [`parse`] with the first
//! bytes of such a connection, and again with more bytes after each `None`. It keeps nothing between the calls. A header has at
//! most [`HEADER_MAX`] bytes. Other bytes are refused at the first one that differs from both signatures.
//!
//! Source: "The PROXY protocol, versions 1 & 2", Willy Tarreau, HAProxy Technologies. Where it leaves a choice to the receiver, this
//! parser is strict: one space between fields, ports without leading zeros, TLVs that fill their space exactly. A checksum is
//! verified if there is one.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::{error, fmt, str};

/// The longest line of version 1 with its CRLF, in bytes. The protocol has this figure.
pub const V1_MAX: usize = 107;
/// The most bytes after the fixed part of version 2. The protocol allows 65,535. Addresses take at most 216 bytes. The usual TLVs
/// (host name, unique id, TLS details, ids of a cloud) take a few hundred; a header with whole certificates is refused.
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

/// A complete header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'i> {
    /// Addresses of the proxied connection.
    pub addresses: Addresses<'i>,
    /// The header's length in bytes. HTTP begins after them.
    pub length: usize,
}

/// The addresses that a header gives for the proxied connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses<'i> {
    /// Two addresses of one family.
    Inet {
        /// The client's address.
        source: SocketAddr,
        /// The address that the client has connected to.
        destination: SocketAddr,
    },
    /// Two paths of Unix sockets. A path ends before its first NUL; an abstract name begins with one.
    Unix {
        /// The client's socket.
        source: &'i [u8],
        /// The socket that the client has connected to.
        destination: &'i [u8],
    },
    /// The sender does not name the client. Use the connection's own addresses.
    Unknown,
    /// The sender itself is the client, in a health check for example. Use the connection's own addresses.
    Local,
}

/// Why the bytes are refused. The server must close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes do not begin with the signature of either version.
    Signature,
    /// The line of version 1 does not end within [`V1_MAX`] bytes.
    TooLong,
    /// The line of version 1 is malformed.
    Line,
    /// The version is neither 1 nor 2.
    Version(u8),
    /// The command of version 2 is neither LOCAL nor PROXY.
    Command(u8),
    /// Version 2 does not define this family or protocol.
    Family(u8),
    /// The length of version 2 is beyond [`V2_BODY_MAX`], or too short for the addresses.
    Length(u16),
    /// The TLVs do not fill their space exactly.
    Tlv,
    /// The checksum is wrong, or there are two.
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
            Malformed::Length(length) if usize::from(*length) > V2_BODY_MAX => write!(
                f,
                "a PROXY header with a length of {length} bytes, more than the limit of {V2_BODY_MAX}"
            ),
            Malformed::Length(length) => write!(f, "a PROXY header too short for its addresses: {length} bytes"),
            Malformed::Tlv => f.write_str("a PROXY header whose TLVs do not fill their space"),
            Malformed::Checksum => f.write_str("a PROXY header with a wrong checksum, or with two"),
        }
    }
}

impl error::Error for Malformed {}

/// Reads the header at the beginning of `input`. Returns `None` if the header is incomplete.
///
/// ```
/// use osier_http::proxy_protocol::{Addresses, parse};
///
/// let input = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\nGET / HTTP/1.1\r\n";
/// let header = parse(input)?.expect("it is all there");
/// let Addresses::Inet { source, .. } = header.addresses else { panic!() };
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
/// [`Malformed`], as soon as the bytes cannot become a header.
pub fn parse(input: &[u8]) -> Result<Option<Header<'_>>, Malformed> {
    if begins(input, V1_SIGNATURE) {
        return line(input);
    }
    if begins(input, V2_SIGNATURE) {
        return binary(input);
    }
    Err(Malformed::Signature)
}

/// Whether `input` begins with `signature`, or `signature` with `input`.
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
    // Any text may follow UNKNOWN, except another line end.
    let line = str::from_utf8(line).map_err(|_| Malformed::Line)?;
    if line.contains('\r') {
        return Err(Malformed::Line);
    }
    let mut fields = line.split(' ').skip(1);
    let addresses = match fields.next() {
        Some("UNKNOWN") => Addresses::Unknown,
        Some("TCP4") => v1_addresses(&mut fields, |ip| ip.parse().ok().map(Ipv4Addr::into))?,
        Some("TCP6") => v1_addresses(&mut fields, |ip| ip.parse().ok().map(Ipv6Addr::into))?,
        _ => return Err(Malformed::Line),
    };
    let length = end + 1;
    Ok(Some(Header { addresses, length }))
}

/// Reads both addresses, then both ports, and nothing after them.
fn v1_addresses<'i>(
    fields: &mut dyn Iterator<Item = &str>,
    ip: impl Fn(&str) -> Option<std::net::IpAddr>,
) -> Result<Addresses<'i>, Malformed> {
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
    Ok(Addresses::Inet {
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
    // The family and the rest of a LOCAL header are ignored.
    if command == 0 {
        let addresses = Addresses::Local;
        return Ok(Some(Header { addresses, length }));
    }
    let (address_family, protocol) = (family >> 4, family & 15);
    let address_length = match (address_family, protocol) {
        (4.., _) | (_, 3..) => return Err(Malformed::Family(family)),
        (0, _) | (_, 0) => {
            let addresses = Addresses::Unknown;
            return Ok(Some(Header { addresses, length }));
        }
        (1, _) => 2 * (4 + 2),
        (2, _) => 2 * (16 + 2),
        (3, _) => 2 * UNIX_PATH,
    };
    let (block, tlvs) = body
        .split_at_checked(address_length)
        .ok_or(Malformed::Length(body_length))?;
    let addresses = match address_family {
        1 => inet::<4>(block),
        2 => inet::<16>(block),
        _ => Addresses::Unix {
            source: path(&block[..UNIX_PATH]),
            destination: path(&block[UNIX_PATH..]),
        },
    };
    check_tlvs(header, length - tlvs.len())?;
    Ok(Some(Header { addresses, length }))
}

/// Reads two addresses of `N` bytes, then two ports. `bytes` has exactly that length.
fn inet<'i, const N: usize>(bytes: &[u8]) -> Addresses<'i>
where
    std::net::IpAddr: From<[u8; N]>,
{
    let ip = |at| {
        let mut ip = [0; N];
        ip.copy_from_slice(&bytes[at..at + N]);
        ip
    };
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    Addresses::Inet {
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

/// Checks the TLVs from `at` to the end of the header. Each checksum would cost a pass over the whole header, so a second one is
/// refused.
fn check_tlvs(header: &[u8], mut at: usize) -> Result<(), Malformed> {
    let mut has_checksum = false;
    while let Some(&[kind, high, low]) = header[at..].first_chunk() {
        let value = at + 3..at + 3 + usize::from(u16::from_be_bytes([high, low]));
        let content = header.get(value.clone()).ok_or(Malformed::Tlv)?;
        if kind == TYPE_CRC32C {
            if std::mem::replace(&mut has_checksum, true) {
                return Err(Malformed::Checksum);
            }
            let sent: [u8; 4] = content.try_into().map_err(|_| Malformed::Tlv)?;
            // The checksum itself counts as zeros.
            let mut crc = crc32c(!0, &header[..value.start]);
            crc = crc32c(crc, &[0; 4]);
            crc = crc32c(crc, &header[value.end..]);
            if !crc != u32::from_be_bytes(sent) {
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

/// Adds `bytes` to a CRC-32C, bit by bit: it is needed at most once for a connection.
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
