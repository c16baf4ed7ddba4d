//! The traffic secrets of TLS 1.3 (RFC 8446, 7.1 to 7.3), caught from rustls during the handshake, and the keys derived from them.
//!
//! The secret of a direction determines the record key and the next secret. rustls passes the secrets only to the key log of its
//! configuration, in the middle of a call. So a thread-local holds them for the rest of that call, and the handshake takes them from
//! there. No other code sees that key log.

use std::cell::RefCell;

use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::crypto::tls13::OkmBlock;
use rustls::{CipherSuite, KeyLog, Tls13CipherSuite};

use crate::provider::aead::{AES_128_GCM, AES_256_GCM, Algorithm, CHACHA20_POLY1305};
use crate::provider::provider;

const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";

/// The secrets of both directions, as far as a handshake has made them.
#[derive(Default)]
pub(super) struct Secrets {
    pub(super) client: Option<OkmBlock>,
    pub(super) server: Option<OkmBlock>,
}

thread_local! {
    static CAUGHT: RefCell<Secrets> = RefCell::default();
}

/// The key log of every configuration of this crate.
#[derive(Debug)]
pub(crate) struct Catch;

impl KeyLog for Catch {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        CAUGHT.with_borrow_mut(|caught| match label {
            CLIENT => caught.client = Some(OkmBlock::new(secret)),
            SERVER => caught.server = Some(OkmBlock::new(secret)),
            _ => {}
        });
    }

    fn will_log(&self, label: &str) -> bool {
        [CLIENT, SERVER].contains(&label)
    }
}

impl Secrets {
    /// Makes a call of rustls, and keeps the secrets that it has made.
    pub(super) fn catch<T>(&mut self, call: impl FnOnce() -> T) -> T {
        // A call that has panicked may have left some.
        CAUGHT.take();
        let done = call();
        let Secrets { client, server } = CAUGHT.take();
        self.client = client.or(self.client.take());
        self.server = server.or(self.server.take());
        done
    }
}

/// A cipher suite, with its algorithm.
#[derive(Clone, Copy)]
pub(super) struct Suite {
    suite: &'static Tls13CipherSuite,
    pub(super) algorithm: &'static Algorithm,
}

impl Suite {
    /// Returns `None` for a suite that the provider does not have, or whose algorithm this crate does not know.
    pub(super) fn new(id: CipherSuite) -> Option<Suite> {
        let algorithm = match id {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => &AES_128_GCM,
            CipherSuite::TLS13_AES_256_GCM_SHA384 => &AES_256_GCM,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => &CHACHA20_POLY1305,
            _ => return None,
        };
        let mut suites = provider().cipher_suites.iter();
        let suite = suites.find(|suite| suite.suite() == id)?.tls13()?;
        Some(Suite { suite, algorithm })
    }

    pub(super) fn id(self) -> CipherSuite {
        self.suite.common.suite
    }

    /// The records that one key may protect.
    pub(super) fn records_max(self) -> u64 {
        self.suite.common.confidentiality_limit
    }

    /// Makes a secret of these bytes. `None` if they have another length than a secret.
    pub(super) fn secret(self, bytes: &[u8]) -> Option<OkmBlock> {
        (bytes.len() == self.suite.common.hash_provider.output_len()).then(|| OkmBlock::new(bytes))
    }

    /// The secret after this one.
    pub(super) fn next(self, secret: &OkmBlock) -> OkmBlock {
        let mut next = [0; OkmBlock::MAX_LEN];
        let next = &mut next[..secret.as_ref().len()];
        self.expand(secret, b"tls13 traffic upd", next);
        OkmBlock::new(next)
    }

    /// The record key, of the algorithm's length, and the start of the nonces.
    pub(super) fn keys(self, secret: &OkmBlock) -> (AeadKey, Iv) {
        let (mut key, mut iv) = ([0; 32], [0; 12]);
        self.expand(secret, b"tls13 key", &mut key[..self.algorithm.key_len()]);
        self.expand(secret, b"tls13 iv", &mut iv);
        (AeadKey::from(key), Iv::from(iv))
    }

    /// HKDF-Expand-Label without a context.
    fn expand(self, secret: &OkmBlock, label: &[u8], output: &mut [u8]) {
        let length = u16::try_from(output.len()).expect("a key or a digest").to_be_bytes();
        let label_length = [u8::try_from(label.len()).expect("one of the three above")];
        let expander = self.suite.hkdf_provider.expander_for_okm(secret);
        let done = expander.expand_slice(&[&length, &label_length, label, &[0]], output);
        done.expect("255 digests are longer");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's first secret of RFC 8448, 3, and what follows from it there.
    #[test]
    fn keys_follow_from_a_secret_as_in_the_trace_of_the_standard() {
        let suite = Suite::new(CipherSuite::TLS13_AES_128_GCM_SHA256).unwrap();
        let bytes = |hex: &str| -> Vec<u8> {
            let digits = hex.as_bytes().chunks(2);
            digits
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
                .collect()
        };
        let secret = suite.secret(&bytes(
            "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643",
        ));
        let (key, iv) = suite.keys(&secret.unwrap());
        assert_eq!(key.as_ref()[..16], bytes("9f02283b6c9c07efc26bb9f2ac92e356"));
        assert_eq!(iv.as_ref(), bytes("cf782b88dd83549aadf1e984"));
        assert!(suite.secret(&[0; 48]).is_none(), "the length of another digest");
    }
}
