//! [`Error`]: the reasons why a handshake, a record or a setting is refused.

use std::fmt;
use std::io;

/// The reason why a setting, a certificate or a peer was refused.
///
/// A read or a write that fails because of the protocol returns an [`io::Error`] around it, with the kind `InvalidData`.
/// [`Error::of`] finds it there.
#[derive(Clone, Debug)]
pub struct Error(Kind);

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// The first bytes of a client are a request in plain HTTP.
    PlainHttp,
    /// The first bytes of a client are a header of the PROXY protocol.
    ProxyHeader,
    /// The key does not belong to the certificate.
    KeyMismatch,
    /// A certificate, a key or a setting that cannot be used: which one, and why.
    Unusable(String),
    /// There is no identity for the name that a client asks for.
    UnknownName(Option<Box<str>>),
    /// There may be one later: the resolver has deferred the handshake.
    Deferred(Option<Box<str>>),
    /// The peer, or what it sent.
    Protocol(rustls::Error),
}

impl Error {
    pub(crate) fn new(kind: Kind) -> Error {
        Error(kind)
    }

    pub(crate) fn unusable(reason: impl fmt::Display) -> Error {
        Error(Kind::Unusable(reason.to_string()))
    }

    /// The error inside an [`io::Error`] of a stream, if TLS is its reason.
    pub fn of(error: &io::Error) -> Option<&Error> {
        error.get_ref()?.downcast_ref()
    }

    /// Whether the client speaks plain HTTP on a port for TLS. Nothing was sent to it: an answer in plain text can go to
    /// [`Stream::socket`](crate::Stream::socket).
    pub fn is_plain_http(&self) -> bool {
        matches!(self.0, Kind::PlainHttp)
    }

    /// Whether a private key does not belong to its certificate.
    pub fn is_key_mismatch(&self) -> bool {
        matches!(self.0, Kind::KeyMismatch)
    }

    /// Whether the resolver has [deferred](crate::Hello::defer) the handshake. The next call on the stream goes on with it.
    pub fn is_deferred(&self) -> bool {
        matches!(self.0, Kind::Deferred(_))
    }

    /// Whether the peer's certificate was refused: unknown issuer, wrong name, expired, or missing.
    pub fn is_certificate(&self) -> bool {
        use rustls::Error::{InvalidCertificate, NoCertificatesPresented};
        matches!(self.0, Kind::Protocol(InvalidCertificate(_) | NoCertificatesPresented))
    }

    /// Whether the peer has ended the connection with an alert: it refused our certificate, for example.
    pub fn is_alert(&self) -> bool {
        matches!(self.0, Kind::Protocol(rustls::Error::AlertReceived(_)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::PlainHttp => f.write_str("the client sent a plain HTTP request to a TLS port"),
            Kind::ProxyHeader => f.write_str("a PROXY header came where TLS must begin"),
            Kind::KeyMismatch => f.write_str("the private key does not belong to the certificate"),
            Kind::Unusable(reason) => f.write_str(reason),
            Kind::UnknownName(Some(name)) => {
                write!(f, "the client asks for {name:?}, for which there is no certificate")
            }
            Kind::UnknownName(None) => f.write_str("the client asks for no name, and there is no certificate for that"),
            Kind::Deferred(name) => {
                let name = name.as_deref().unwrap_or_default();
                write!(
                    f,
                    "the certificate for {name:?}, which the client asks for, has not come yet"
                )
            }
            Kind::Protocol(error) => {
                let text = error.to_string();
                f.write_str("TLS: ")?;
                f.write_str(&text)?;
                let hint = HINTS.iter().find(|(name, _)| text.contains(name));
                hint.map_or(Ok(()), |(_, hint)| f.write_str(hint))
            }
        }
    }
}

/// Explanations of reasons that rustls gives as mere names.
const HINTS: [(&str, &str); 5] = [
    (
        "CaUsedAsEndEntity",
        ": the peer shows the certificate of an authority (CA:TRUE) as its own; make one with the extension basicConstraints=CA:FALSE",
    ),
    (
        "SupportedVersionsExtensionRequired",
        ": the client does not speak TLS 1.3, and no less is accepted here",
    ),
    (
        "UnsupportedCertVersion",
        ": the peer's certificate is of X.509 version 1; sign it with extensions, which makes it version 3",
    ),
    ("UnknownIssuer", ": no authority that is trusted here has signed it"),
    ("InvalidContentType", ": the peer does not speak TLS on this port"),
];

impl std::error::Error for Error {}

/// No `From`, which would be public: users would have to follow the versions of rustls.
pub(crate) fn of_protocol(error: rustls::Error) -> Error {
    Error(Kind::Protocol(error))
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}
