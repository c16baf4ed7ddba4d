//! The TLS of a request's connection: names, versions, certificates.

use std::fmt;

use osier_tls::{Stream, Version};

/// The TLS of the connection that a request came over. See [`Request::tls`](crate::Request::tls).
#[derive(Clone, Copy)]
pub struct Tls<'a>(pub(crate) &'a Stream);

impl<'a> Tls<'a> {
    /// The name of the server that the client asked for (SNI), in lower case and without a dot at its end. `None` if it named none.
    pub fn server_name(self) -> Option<&'a str> {
        self.0.server_name()
    }

    /// The version of the protocol.
    pub fn version(self) -> Option<Version> {
        self.0.version()
    }

    /// The name of the cipher suite: `TLS13_AES_256_GCM_SHA384`.
    pub fn cipher_suite(self) -> Option<&'static str> {
        self.0.cipher_suite()
    }

    /// The protocol that the handshake has agreed on (ALPN): `http/1.1`, for example. `None` if the client offered none.
    pub fn protocol(self) -> Option<&'a [u8]> {
        self.0.protocol()
    }

    /// The certificates that the client has shown, in DER, its own first. None if it has shown none.
    pub fn peer_certificates(self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.0.peer_certificates().iter().map(|certificate| &**certificate)
    }

    /// Whether the handshake has resumed an earlier session.
    pub fn is_resumed(self) -> bool {
        self.0.is_resumed()
    }
}

impl fmt::Debug for Tls<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("server_name", &self.server_name())
            .field("version", &self.version())
            .field("cipher_suite", &self.cipher_suite())
            .field("protocol", &self.protocol().map(String::from_utf8_lossy))
            .finish_non_exhaustive()
    }
}
