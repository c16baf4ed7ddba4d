//! [`Connector`]: makes the client's end of TLS connections.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use osier::net;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::error::of_protocol;
use crate::identity::certificates;
use crate::provider::{provider, versions};
use crate::session::{Catch, Session};
use crate::{Error, Identity, Stream, Version};

/// Makes the client's end of TLS connections. Cheap to clone; all workers may share one.
///
/// A connector remembers the session tickets of the servers that its clones have connected to, for later connections.
#[derive(Clone)]
#[doc(alias("TlsConnector", "ClientConfig"))]
pub struct Connector(Arc<ClientConfig>);

impl Connector {
    /// A connector in the making. By default it trusts the authorities that the system trusts.
    pub fn builder() -> ConnectorBuilder {
        ConnectorBuilder {
            roots: Roots::System,
            identity: None,
            alpn: Vec::new(),
            min_version: Version::Tls12,
            sends_name: true,
        }
    }

    /// Makes a TLS stream around a connection to the server `name`, a DNS name or an IP address. The server's certificate must be
    /// for this name, and the client sends it (SNI) unless it is an address. The first read or write does the handshake, or
    /// [`handshake`](Stream::handshake).
    ///
    /// # Suspends
    ///
    /// Never.
    ///
    /// # Errors
    ///
    /// A name that cannot be one.
    pub fn connect(&self, name: &str, socket: impl Into<net::Stream>) -> Result<Stream, Error> {
        Ok(Stream::new(socket.into(), self.session(name)?))
    }

    /// Makes a connector that offers these protocols (ALPN), the preferred one first, and is the same otherwise.
    #[must_use]
    pub fn with_alpn<P: AsRef<[u8]>>(&self, protocols: impl IntoIterator<Item = P>) -> Connector {
        let mut config = (*self.0).clone();
        config.alpn_protocols = protocols
            .into_iter()
            .map(|protocol| protocol.as_ref().to_vec())
            .collect();
        Connector(Arc::new(config))
    }

    pub(crate) fn session(&self, name: &str) -> Result<Session, Error> {
        let unusable = |_| Error::unusable(format_args!("`{name}` is not the name of a server"));
        let name = ServerName::try_from(name).map_err(unusable)?.to_owned();
        Session::client(self.0.clone(), name).map_err(of_protocol)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

/// The authorities that a client trusts.
enum Roots {
    System,
    File(PathBuf),
    Pem(Vec<u8>),
    Anyone,
}

/// The settings of a [`Connector`].
#[must_use = "a builder does nothing until `build`"]
pub struct ConnectorBuilder {
    roots: Roots,
    identity: Option<Identity>,
    alpn: Vec<Vec<u8>>,
    min_version: Version,
    sends_name: bool,
}

impl ConnectorBuilder {
    /// Trusts the authorities in a PEM file, and no others.
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> ConnectorBuilder {
        self.roots = Roots::File(path.as_ref().into());
        self
    }

    /// Trusts the authorities in a PEM text, and no others.
    pub fn ca_pem(mut self, pem: &[u8]) -> ConnectorBuilder {
        self.roots = Roots::Pem(pem.to_vec());
        self
    }

    /// Accepts every certificate. Anybody between the two ends can then read and change what they say.
    pub fn dangerous_without_verification(mut self) -> ConnectorBuilder {
        self.roots = Roots::Anyone;
        self
    }

    /// Shows this certificate to servers that ask for one.
    pub fn identity(mut self, identity: Identity) -> ConnectorBuilder {
        self.identity = Some(identity);
        self
    }

    /// Sets the protocols that the client offers (ALPN), the preferred one first. None by default.
    pub fn alpn<P: AsRef<[u8]>>(mut self, protocols: impl IntoIterator<Item = P>) -> ConnectorBuilder {
        self.alpn = protocols
            .into_iter()
            .map(|protocol| protocol.as_ref().to_vec())
            .collect();
        self
    }

    /// Sets the oldest version that is accepted. TLS 1.2 by default.
    pub fn min_version(mut self, version: Version) -> ConnectorBuilder {
        self.min_version = version;
        self
    }

    /// Sets whether the client sends the server's name (SNI). It does by default.
    pub fn sni(mut self, sends_name: bool) -> ConnectorBuilder {
        self.sends_name = sends_name;
        self
    }

    /// Makes the connector. It reads the files of the authorities.
    ///
    /// # Blocks the thread
    ///
    /// While it reads.
    ///
    /// # Errors
    ///
    /// Authorities that cannot be read, or none.
    pub fn build(self) -> Result<Connector, Error> {
        let builder = ClientConfig::builder_with_provider(provider().clone())
            .with_protocol_versions(versions(self.min_version))
            .map_err(of_protocol)?
            .dangerous()
            .with_custom_certificate_verifier(verifier(&self.roots)?);
        let mut config = match self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.key().clone())))
            }
        };
        config.alpn_protocols = self.alpn;
        config.enable_sni = self.sends_name;
        // The session takes the keys out of rustls after the handshake.
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(Catch);
        Ok(Connector(Arc::new(config)))
    }
}

impl fmt::Debug for ConnectorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectorBuilder")
            .field("min_version", &self.min_version)
            .finish_non_exhaustive()
    }
}

fn verifier(roots: &Roots) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    let store = match roots {
        Roots::System => system_roots()?,
        Roots::File(path) => root_store(read_certificates(path)?)?,
        Roots::Pem(pem) => root_store(certificates(pem, "the text of authorities")?)?,
        Roots::Anyone => return Ok(Arc::new(Anyone)),
    };
    WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider().clone())
        .build()
        .map(|verifier| verifier as Arc<dyn ServerCertVerifier>)
        .map_err(|error| Error::unusable(format_args!("the authorities cannot be used: {error}")))
}

/// The authorities of a list that is written by hand: each must be usable.
pub(crate) fn root_store(certificates: Vec<CertificateDer<'static>>) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    for certificate in certificates {
        store
            .add(certificate)
            .map_err(|error| Error::unusable(format_args!("an authority cannot be used: {error}")))?;
    }
    Ok(store)
}

/// Where Linux distributions and FreeBSD keep the authorities that the system trusts.
const SYSTEM_FILES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
];

/// The file that the variable `SSL_CERT_FILE` names, as for OpenSSL, or the first one that the system has. Certificates in it
/// that cannot be used are passed over.
fn system_roots() -> Result<RootCertStore, Error> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let path = match named {
        Some(path) => path,
        None => SYSTEM_FILES
            .iter()
            .map(PathBuf::from)
            .find(|path| path.exists())
            .ok_or_else(|| Error::unusable("this system has no file of trusted authorities; name one"))?,
    };
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(read_certificates(&path)?);
    Ok(store)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = fs::read(path).map_err(|error| Error::unusable(format_args!("{}: {error}", path.display())))?;
    certificates(&pem, &path.display().to_string())
}

/// Accepts every chain. Signatures of the handshake are still checked: the peer has the key of the certificate that it shows.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
