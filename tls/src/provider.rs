//! The provider of cryptography, passed to every configuration. The process-wide default of rustls is never used.

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, SupportedProtocolVersion, Tls13CipherSuite};

use crate::Version;

#[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
compile_error!("osier-tls needs a provider of cryptography: turn on the feature `aws-lc-rs` or `ring`");

/// The ciphers of the provider.
pub(crate) mod aead {
    #[cfg(feature = "aws-lc-rs")]
    pub(crate) use aws_lc_rs::aead::*;
    #[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
    pub(crate) use ring::aead::*;
}

/// The one provider of this crate.
pub(crate) fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(new()))
}

/// The same for servers: of each version, the suites with AES-128 and SHA-256 come first.
pub(crate) fn server_provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| {
        let mut provider = new();
        provider.cipher_suites.sort_by_key(|suite| {
            !matches!(
                suite.suite(),
                CipherSuite::TLS13_AES_128_GCM_SHA256
                    | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                    | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
            )
        });
        Arc::new(provider)
    })
}

#[cfg(feature = "aws-lc-rs")]
fn new() -> CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}

#[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
fn new() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

/// The versions from `oldest` on.
pub(crate) fn versions(oldest: Version) -> &'static [&'static SupportedProtocolVersion] {
    static ALL: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
    match oldest {
        Version::Tls12 => &ALL,
        Version::Tls13 => &ALL[..1],
    }
}

/// A digest that names settings.
pub(crate) fn digest(bytes: &[u8]) -> Vec<u8> {
    tls13().common.hash_provider.hash(bytes).as_ref().to_vec()
}

fn tls13() -> &'static Tls13CipherSuite {
    let wanted = CipherSuite::TLS13_AES_256_GCM_SHA384;
    let mut suites = provider().cipher_suites.iter();
    let suite = suites.find(|suite| suite.suite() == wanted);
    suite
        .and_then(|suite| suite.tls13())
        .expect("both providers have the suite")
}
