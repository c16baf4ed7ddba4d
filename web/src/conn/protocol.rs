//! The protocol that a connection speaks, for counters.

/// The protocol of a connection, with its TLS version. A WebSocket counts as the protocol that its connection began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// HTTP/1.1 or HTTP/1.0 in the clear. A connection in the clear that has sent nothing counts as one.
    Http1,
    /// HTTP/2 in the clear.
    H2c,
    /// The TLS handshake is not done.
    Handshake,
    /// HTTP/1.1 over TLS 1.2.
    Http1Tls12,
    /// HTTP/1.1 over TLS 1.3.
    Http1Tls13,
    /// HTTP/2 over TLS 1.2.
    H2Tls12,
    /// HTTP/2 over TLS 1.3.
    H2Tls13,
}

impl Protocol {
    /// All protocols, each at the place of its number.
    pub const ALL: &[Protocol] = &[
        Protocol::Http1,
        Protocol::H2c,
        Protocol::Handshake,
        Protocol::Http1Tls12,
        Protocol::Http1Tls13,
        Protocol::H2Tls12,
        Protocol::H2Tls13,
    ];

    /// The name of the HTTP protocol: `http/1.1`, `h2`, or `h2c` in the clear. `none` before the end of the handshake.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http1 | Protocol::Http1Tls12 | Protocol::Http1Tls13 => "http/1.1",
            Protocol::H2c => "h2c",
            Protocol::H2Tls12 | Protocol::H2Tls13 => "h2",
            Protocol::Handshake => "none",
        }
    }

    /// The TLS version: `TLSv1.3`. `none` in the clear, and `handshake` before its end.
    pub fn tls(self) -> &'static str {
        match self {
            Protocol::Http1 | Protocol::H2c => "none",
            Protocol::Handshake => "handshake",
            Protocol::Http1Tls12 | Protocol::H2Tls12 => "TLSv1.2",
            Protocol::Http1Tls13 | Protocol::H2Tls13 => "TLSv1.3",
        }
    }

    /// The protocol over TLS, of that version.
    #[cfg(feature = "tls")]
    pub(crate) fn over(version: Option<osier_tls::Version>, is_http2: bool) -> Protocol {
        match (version, is_http2) {
            (Some(osier_tls::Version::Tls12), false) => Protocol::Http1Tls12,
            (Some(osier_tls::Version::Tls12), true) => Protocol::H2Tls12,
            (_, false) => Protocol::Http1Tls13,
            (_, true) => Protocol::H2Tls13,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_all_listed_at_their_places() {
        for (place, protocol) in Protocol::ALL.iter().copied().enumerate() {
            assert_eq!(protocol as usize, place);
        }
    }
}
