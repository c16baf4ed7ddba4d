//! The reasons for which a message is refused, each with its status.
//!
//! The server answers with [`status`](Reject::status) and closes the connection: after a refused request the beginning of the next
//! one is unknown.

use std::fmt;

use super::limits::Limits;

macro_rules! rejects {
    ($($(#[$doc:meta])* $name:ident = $status:literal, $reason:literal;)*) => {
        /// Why a message is refused. The connection must be closed after the response.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reject {
            $(#[doc = $reason] $(#[$doc])* $name,)*
        }

        impl Reject {
            /// The status of the response: 400, 413, 414, 417, 431, 501, 502 or 505. For a refused response of a backend it is
            /// always 502, whatever this returns.
            pub const fn status(self) -> u16 {
                match self { $(Reject::$name => $status,)* }
            }

            /// The reason in one line. It is safe to log and to send.
            pub const fn reason(self) -> &'static str {
                match self { $(Reject::$name => $reason,)* }
            }
        }
    };
}

rejects! {
    // The head's bytes.
    BareLf = 400, "a line feed without a carriage return before it";
    BareCr = 400, "a carriage return without a line feed after it";
    Nul = 400, "a NUL byte in the head";
    EmptyLines = 400, "too many empty lines before the request line";
    NotHttp = 400, "the first byte cannot begin a method";
    TlsHandshake = 400, "a TLS handshake on a port without TLS";
    ProxyHeader = 400, "a PROXY header from a peer that must not send one";
    RequestLineTooLong = 414, "the request line is longer than the limit";
    HeadTooLarge = 431, "the head is larger than the limit";
    TooManyHeaders = 431, "more header fields than the limit";
    RequestLine = 400, "a malformed request line";
    Version = 505, "an HTTP version other than 1.0 and 1.1";
    HeaderName = 400, "a malformed header name";
    HeaderValue = 400, "a malformed header value";

    // The response of a backend.
    StatusLine = 502, "a malformed status line";
    BodyEnded = 502, "the connection ended inside the body";

    // The target and the host.
    Target = 400, "a malformed request target";
    TargetForm = 400, "a form of request target that the method does not allow";
    HostMissing = 400, "an HTTP/1.1 request without a Host field";
    HostRepeated = 400, "more than one Host field";
    Host = 400, "a malformed host";

    // Framing.
    ContentLength = 400, "a malformed Content-Length";
    ContentLengthRepeated = 400, "more than one Content-Length field";
    TransferEncoding = 400, "a Transfer-Encoding that is not exactly `chunked`";
    TransferEncodingRepeated = 400, "more than one Transfer-Encoding field";
    TransferEncodingIn10 = 400, "Transfer-Encoding in an HTTP/1.0 message";
    TransferCoding = 501, "a transfer coding other than `chunked`";
    LengthAndEncoding = 400, "both Content-Length and Transfer-Encoding";
    UpgradeWithBody = 400, "Upgrade in a request that has a body";
    Connection = 400, "a malformed Connection field";
    Expectation = 417, "an expectation other than `100-continue`";

    // The body.
    BodyTooLarge = 413, "the body is larger than the limit";
    ChunkSize = 400, "a malformed chunk size";
    ChunkExtension = 400, "a malformed chunk extension";
    ChunkExtensionTooLong = 400, "chunk extensions longer than the limit";
    ChunkEnd = 400, "chunk data that is not followed by CRLF";
    Trailer = 400, "a malformed trailer field";
    TrailerForbidden = 400, "a trailer field that would change framing or routing";
    TrailerTooLarge = 431, "the trailer section is larger than the limit";
}

impl Reject {
    /// The value of the limit that the message is beyond. `None` if that is not one number of `limits`.
    pub const fn limit(self, limits: &Limits) -> Option<u64> {
        match self {
            Reject::RequestLineTooLong => Some(limits.request_line as u64),
            Reject::HeadTooLarge => Some(limits.head_bytes as u64),
            Reject::TooManyHeaders => Some(limits.header_count as u64),
            Reject::BodyTooLarge => Some(limits.body),
            Reject::ChunkExtensionTooLong => Some(limits.chunk_extension_bytes as u64),
            _ => None,
        }
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.reason(), self.status())
    }
}

impl std::error::Error for Reject {}
