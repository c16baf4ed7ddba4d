//! The protocol versions that this crate speaks.

use super::Reject;

/// The protocol version of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0: the connection closes after the response unless the client asks to keep it.
    Http10,
    /// HTTP/1.1: the connection is kept unless either side asks to close it.
    Http11,
    /// HTTP/2: frames carry the messages of many streams, and a request line never names this version.
    Http2,
}

/// Checks that a request line, given without its CRLF, ends with a version that this crate speaks.
///
/// RFC 9112 2.3: `HTTP-version = HTTP-name "/" DIGIT "." DIGIT`. Another version of that form gets 505. Any other end of the line
/// is malformed, also that of an HTTP/0.9 line, which has no version.
#[inline]
pub(crate) fn check_version(line: &[u8]) -> Result<(), Reject> {
    if line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0") {
        Ok(())
    } else {
        Err(refused_version(line))
    }
}

#[cold]
fn refused_version(line: &[u8]) -> Reject {
    match line.last_chunk() {
        Some([b' ', b'H', b'T', b'T', b'P', b'/', b'1'..=b'9', b'.', b'0'..=b'9']) => Reject::Version,
        _ if line.starts_with(b"PROXY TCP") || line.starts_with(b"PROXY UNKNOWN") => Reject::ProxyHeader,
        _ => Reject::RequestLine,
    }
}
