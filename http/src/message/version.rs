//! The two protocol versions that this crate speaks.

use super::Reject;

/// The protocol version of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0: the connection closes after the response unless the client asked to keep it.
    Http10,
    /// HTTP/1.1: the connection stays unless either side closes it.
    Http11,
}

/// Looks at the end of a request line (without its CRLF) for a version this crate speaks.
///
/// RFC 9112 2.3: `HTTP-version = HTTP-name "/" DIGIT "." DIGIT`. Anything of that shape but 1.0 and 1.1 is 505;
/// any other end of the line is malformed, HTTP/0.9 and its versionless line included.
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
        _ => Reject::RequestLine,
    }
}
