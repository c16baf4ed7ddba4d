//! The provider of cryptography, passed to every configuration. The process-wide default of rustls is never used.

use std::sync::{Arc, OnceLock};

use rustls::SupportedProtocolVersion;
use rustls::crypto::CryptoProvider;
use rustls::version::{TLS12, TLS13};

use crate::Version;

#[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
compile_error!("osier-tls needs a provider of cryptography: turn on the feature `aws-lc-rs` or `ring`");

/// The one provider of this crate.
pub(crate) fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(new()))
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

/// Session tickets whose keys rotate.
pub(crate) fn ticketer() -> Result<Arc<dyn rustls::server::ProducesTickets>, rustls::Error> {
    #[cfg(feature = "aws-lc-rs")]
    return rustls::crypto::aws_lc_rs::Ticketer::new();
    #[cfg(not(feature = "aws-lc-rs"))]
    return rustls::crypto::ring::Ticketer::new();
}
