//! The error codes of RFC 9113 7, the error that ends a connection, and the errors of export and import.

use std::{error, fmt};

/// An error code of RST_STREAM and GOAWAY. A code that the RFC does not define is kept as it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: ErrorCode = ErrorCode($code);)*

            const fn name(self) -> Option<&'static str> {
                match self.0 { $($code => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

codes! {
    /// No error: a graceful end.
    NO_ERROR = 0x0;
    /// The peer broke the protocol, and no other code is more precise.
    PROTOCOL_ERROR = 0x1;
    /// An unexpected error of this endpoint.
    INTERNAL_ERROR = 0x2;
    /// The peer broke the rules of flow control.
    FLOW_CONTROL_ERROR = 0x3;
    /// The peer did not acknowledge the settings in time.
    SETTINGS_TIMEOUT = 0x4;
    /// A frame arrived for a stream that the peer had ended.
    STREAM_CLOSED = 0x5;
    /// A frame has a wrong length.
    FRAME_SIZE_ERROR = 0x6;
    /// The stream was refused before any work was done for it: the request may be sent again.
    REFUSED_STREAM = 0x7;
    /// The stream is no longer needed.
    CANCEL = 0x8;
    /// The state of the field compression is lost.
    COMPRESSION_ERROR = 0x9;
    /// The connection of a CONNECT request was reset or closed with an error.
    CONNECT_ERROR = 0xa;
    /// The peer causes too much load.
    ENHANCE_YOUR_CALM = 0xb;
    /// The transport does not meet the requirements on security.
    INADEQUATE_SECURITY = 0xc;
    /// The request needs HTTP/1.1.
    HTTP_1_1_REQUIRED = 0xd;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {:#x}", self.0),
        }
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An error that ends the connection. Send GOAWAY with its code, and close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    /// The code for GOAWAY.
    pub code: ErrorCode,
    /// The reason in one line. It is safe to log and to send.
    pub reason: &'static str,
}

impl Error {
    /// Makes an error.
    pub const fn new(code: ErrorCode, reason: &'static str) -> Error {
        Error { code, reason }
    }

    pub(crate) const fn protocol(reason: &'static str) -> Error {
        Error::new(ErrorCode::PROTOCOL_ERROR, reason)
    }

    pub(crate) const fn size(reason: &'static str) -> Error {
        Error::new(ErrorCode::FRAME_SIZE_ERROR, reason)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.reason, self.code)
    }
}

impl error::Error for Error {}

/// The reason why a connection cannot be exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotExportable(pub(super) &'static str);

impl fmt::Display for NotExportable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this HTTP/2 connection cannot be exported: {}", self.0)
    }
}

impl error::Error for NotExportable {}

/// Bytes that are not an exported connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these bytes are not an exported HTTP/2 connection")
    }
}

impl error::Error for Malformed {}
