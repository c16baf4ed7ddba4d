//! [`Identity`]: a certificate chain and its private key.

use std::fmt;
use std::sync::Arc;

use rustls::InconsistentKeys;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::Error;
use crate::error::Kind;
use crate::provider::provider;

/// A certificate chain and its private key. Cheap to clone.
///
/// An identity is complete: its key belongs to its first certificate.
#[derive(Clone)]
pub struct Identity(Arc<CertifiedKey>);

impl Identity {
    /// Reads the PEM texts of a chain, the server's own certificate first, and of its key: PKCS#8, PKCS#1 (RSA) or SEC1 (EC). One
    /// text may be passed as both.
    ///
    /// # Errors
    ///
    /// The text that has no certificate or no key, or a key that does not belong to the certificate
    /// ([`Error::is_key_mismatch`]).
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Identity, Error> {
        let chain = certificates(chain, "the certificate file")?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            PemError::NoItemsFound => {
                Error::unusable("the key file has no private key in PEM, or one with a passphrase")
            }
            error => Error::unusable(format_args!("the key file {}", incomplete(&error))),
        })?;
        Identity::new(chain, key)
    }

    /// Takes a chain, the server's own certificate first, and its key, each in DER. The key is PKCS#8, PKCS#1 or SEC1.
    ///
    /// # Errors
    ///
    /// The errors of [`from_pem`](Identity::from_pem).
    pub fn from_der(chain: Vec<Vec<u8>>, key: &[u8]) -> Result<Identity, Error> {
        let key = PrivateKeyDer::try_from(key)
            .map_err(|_| Error::unusable("the key is not a private key in DER"))?
            .clone_key();
        Identity::new(chain.into_iter().map(CertificateDer::from).collect(), key)
    }

    /// Takes the certificate of an ACME challenge (RFC 8737) and its key, each in DER. The certificate has a critical extension that
    /// only issuers know, so it is not checked against its key.
    ///
    /// # Errors
    ///
    /// A key that cannot be used.
    pub fn of_challenge(certificate: Vec<u8>, key: &[u8]) -> Result<Identity, Error> {
        let key = PrivateKeyDer::try_from(key)
            .map_err(|_| Error::unusable("the key is not a private key in DER"))?
            .clone_key();
        let whole = Identity::join(vec![certificate.into()], key)?;
        Ok(Identity(Arc::new(whole)))
    }

    fn join(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<CertifiedKey, Error> {
        let key = provider()
            .key_provider
            .load_private_key(key)
            .map_err(|_| {
                Error::unusable(
                    "the private key cannot be used: it is no RSA key of 2048 to 4096 bits, no ECDSA key of P-256 or P-384, and no Ed25519 key",
                )
            })?;
        Ok(CertifiedKey::new(chain, key))
    }

    fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Identity, Error> {
        let whole = Identity::join(chain, key)?;
        match whole.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(Identity(Arc::new(whole))),
            Err(rustls::Error::InconsistentKeys(_)) => Err(Error::new(Kind::KeyMismatch)),
            Err(error) => Err(Error::unusable(format_args!("the certificate cannot be used: {error}"))),
        }
    }

    /// The certificates in DER, the server's own first.
    pub fn chain(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.0.cert.iter().map(|certificate| certificate.as_ref())
    }

    pub(crate) fn key(&self) -> &Arc<CertifiedKey> {
        &self.0
    }
}

/// The end of a sentence about a file that is not PEM to its end.
fn incomplete(error: &PemError) -> String {
    match error {
        PemError::MissingSectionEnd { end_marker } => {
            let label = String::from_utf8_lossy(end_marker);
            format!("is not whole: the line '-----END {label}-----' is missing")
        }
        error => format!("cannot be read: {error}"),
    }
}

/// The certificates of a PEM text that `what` names in errors. At least one.
pub(crate) fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| Error::unusable(format_args!("{what} {}", incomplete(&error))))?;
    match found.is_empty() {
        true => Err(Error::unusable(format_args!("{what} has no certificate in PEM"))),
        false => Ok(found),
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("certificates", &self.0.cert.len())
            .finish_non_exhaustive()
    }
}
