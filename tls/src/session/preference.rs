//! The cipher that a client prefers, seen in the bytes of its first message.
//!
//! A server of this crate prefers AES-128-GCM with SHA-256. A processor has instructions for both, and none for SHA-384, which costs half of
//! a resumed handshake. A client that lists ChaCha20-Poly1305 first has no instructions for AES, so its order counts.

use rustls::CipherSuite;

/// The bytes before the session id: head of the record, head of the message, version, random.
const BEFORE_SESSION_ID: usize = 5 + 4 + 2 + 32;

/// Whether the first suite of a ClientHello is one with ChaCha20-Poly1305. False if the suites have not arrived.
///
/// These bytes are not checked, because rustls does that. They only choose between two orders of the same suites.
pub(super) fn is_chacha(hello: &[u8]) -> bool {
    first_suite(hello).is_some_and(|suite| {
        matches!(
            suite,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
        )
    })
}

fn first_suite(hello: &[u8]) -> Option<CipherSuite> {
    let (&session_id, rest) = hello.get(BEFORE_SESSION_ID..)?.split_first()?;
    // The length of the list of suites comes before it.
    let suites = rest.get(usize::from(session_id) + 2..)?.as_chunks().0.iter();
    let mut suites = suites.map(|&pair| u16::from_be_bytes(pair));
    // Some clients begin with a value that means nothing (RFC 8701).
    suites.find(|suite| suite & 0x0f0f != 0x0a0a).map(CipherSuite::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning of a ClientHello with a session id of that length.
    fn hello(session_id: u8, suites: &[u16]) -> Vec<u8> {
        let mut bytes = vec![7; BEFORE_SESSION_ID];
        bytes.push(session_id);
        bytes.resize(bytes.len() + usize::from(session_id), 0x13);
        bytes.extend_from_slice(&(2 * suites.len() as u16).to_be_bytes());
        bytes.extend(suites.iter().flat_map(|suite| suite.to_be_bytes()));
        bytes
    }

    #[test]
    fn the_first_suite_counts() {
        assert!(is_chacha(&hello(32, &[0x1303, 0x1301])));
        assert!(is_chacha(&hello(0, &[0x4a4a, 0xcca9, 0xc02b])));
        assert!(!is_chacha(&hello(32, &[0x1302, 0x1303])));
        assert!(!is_chacha(&hello(0, &[0x4a4a])));
    }

    #[test]
    fn a_part_of_a_message_says_nothing() {
        let whole = hello(32, &[0x1303]);
        assert!((0..whole.len()).all(|length| !is_chacha(&whole[..length])));
        assert!(!is_chacha(&[0xff; BEFORE_SESSION_ID + 1]));
    }
}
