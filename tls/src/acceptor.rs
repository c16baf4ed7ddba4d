//! [`Acceptor`]: makes the server's end of TLS connections.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use osier::net;
use rustls::ServerConfig;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use crate::connector::root_store;
use crate::error::of_protocol;
use crate::identity::certificates;
use crate::provider::{digest, provider, server_provider, versions};
use crate::resolver::Adapter;
use crate::session::{Catch, ServerSettings, Session};
use crate::{Error, Resolver, Stream, Tickets, Version};

/// How often an acceptor changes the keys of its tickets.
const TICKET_KEYS_CHANGE: Duration = Duration::from_secs(12 * 60 * 60);

/// Makes the server's end of TLS connections. Cheap to clone; all workers may share one.
#[derive(Clone)]
#[doc(alias("TlsAcceptor", "ServerConfig"))]
pub struct Acceptor(ServerSettings);

impl Acceptor {
    /// An acceptor in the making. `resolver` finds the certificate; an [`Identity`](crate::Identity) is a resolver that always
    /// finds itself.
    pub fn builder(resolver: impl Resolver + 'static) -> AcceptorBuilder {
        AcceptorBuilder {
            resolver: Box::new(resolver),
            alpn: Vec::new(),
            min_version: Version::Tls12,
            clients: ClientCertificates::None,
            tickets: None,
        }
    }

    /// Makes a TLS stream around a connection. The first read or write does the handshake, or
    /// [`handshake`](Stream::handshake).
    ///
    /// # Suspends
    ///
    /// Never.
    pub fn accept(&self, socket: impl Into<net::Stream>) -> Stream {
        Stream::new(socket.into(), self.session())
    }

    /// Restores a stream that another process has [exported](Stream::export), around the same connection.
    ///
    /// The settings of this acceptor have no effect: the other process has negotiated version, suite and certificates.
    ///
    /// # Suspends
    ///
    /// Never.
    ///
    /// # Errors
    ///
    /// `InvalidData` for bytes that are not an exported connection.
    pub fn import(&self, socket: impl Into<net::Stream>, exported: &[u8]) -> io::Result<Stream> {
        if exported.is_empty() {
            return Ok(self.accept(socket));
        }
        let invalid = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "these bytes are not an exported TLS connection",
            )
        };
        Stream::import(socket.into(), exported).ok_or_else(invalid)
    }

    pub(crate) fn session(&self) -> Session {
        Session::server(&self.0)
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}

/// Whether clients show certificates.
///
/// Beside the authorities a PEM text may hold lists of revoked certificates (`X509 CRL`). A certificate on a list of its issuer
/// ends the handshake. A list counts also after its time, and an issuer without a list has revoked nothing. The first of two
/// lists of one issuer counts. A client cannot resume a session that began under other lists.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum ClientCertificates {
    /// They are not asked to.
    #[default]
    None,
    /// They may. A certificate that these authorities (PEM) have not issued ends the handshake.
    Optional(Vec<u8>),
    /// They must show one that these authorities (PEM) have issued.
    Required(Vec<u8>),
}

impl ClientCertificates {
    /// Differs between settings under which a session must not be resumed by the other's ticket.
    fn kind(&self) -> Vec<u8> {
        match self {
            ClientCertificates::None => Vec::new(),
            ClientCertificates::Optional(ca) => [b"optional", &digest(ca)[..]].concat(),
            ClientCertificates::Required(ca) => [b"required", &digest(ca)[..]].concat(),
        }
    }
}

/// The settings of an [`Acceptor`].
#[must_use = "a builder does nothing until `build`"]
pub struct AcceptorBuilder {
    resolver: Box<dyn Resolver>,
    alpn: Vec<Vec<u8>>,
    min_version: Version,
    clients: ClientCertificates,
    tickets: Option<Tickets>,
}

impl AcceptorBuilder {
    /// Sets the protocols that the server speaks (ALPN), the preferred one first. None by default.
    ///
    /// The first one that the client offers too is taken. A client that offers others only is refused; one that offers none
    /// is not.
    pub fn alpn<P: AsRef<[u8]>>(mut self, protocols: impl IntoIterator<Item = P>) -> AcceptorBuilder {
        self.alpn = protocols
            .into_iter()
            .map(|protocol| protocol.as_ref().to_vec())
            .collect();
        self
    }

    /// Sets the oldest version that is accepted. TLS 1.2 by default.
    pub fn min_version(mut self, version: Version) -> AcceptorBuilder {
        self.min_version = version;
        self
    }

    /// Sets whether clients show certificates.
    pub fn client_certificates(mut self, clients: ClientCertificates) -> AcceptorBuilder {
        self.clients = clients;
        self
    }

    /// Sets the keys that seal session tickets. By default an acceptor has random keys of its own, which change every twelve hours.
    pub fn tickets(mut self, tickets: Tickets) -> AcceptorBuilder {
        self.tickets = Some(tickets);
        self
    }

    /// Makes the acceptor.
    ///
    /// # Errors
    ///
    /// Authorities for client certificates, or lists of revoked ones, that cannot be read.
    pub fn build(self) -> Result<Acceptor, Error> {
        let builder = ServerConfig::builder_with_provider(server_provider().clone())
            .with_protocol_versions(versions(self.min_version))
            .map_err(of_protocol)?;
        let (ca, is_required) = match &self.clients {
            ClientCertificates::None => (None, false),
            ClientCertificates::Optional(ca) => (Some(ca), false),
            ClientCertificates::Required(ca) => (Some(ca), true),
        };
        let builder = match ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = root_store(certificates(ca, "the file of client authorities")?)?;
                let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(ca).collect();
                let lists = lists.map_err(|error| {
                    Error::unusable(format_args!(
                        "a list of revoked client certificates cannot be read: {error}"
                    ))
                })?;
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider().clone())
                    .with_crls(lists)
                    .allow_unknown_revocation_status();
                let verifier = if is_required {
                    verifier
                } else {
                    verifier.allow_unauthenticated()
                };
                let verifier = verifier
                    .build()
                    .map_err(|error| Error::unusable(format_args!("the client authorities cannot be used: {error}")))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(Adapter(self.resolver)));
        config.alpn_protocols = self.alpn;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        let tickets = match self.tickets {
            Some(tickets) => tickets,
            None => Tickets::rotating(TICKET_KEYS_CHANGE)?,
        };
        // Otherwise a client could skip showing its certificate here with a ticket from elsewhere.
        config.ticketer = tickets.producer(self.clients.kind());
        config.send_tls13_tickets = 1;
        // The session takes the keys out of rustls after the handshake.
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(Catch);
        let by_order_of_client = Arc::new(config.clone());
        config.ignore_client_order = true;
        Ok(Acceptor(ServerSettings {
            by_own_order: Arc::new(config),
            by_order_of_client,
        }))
    }
}

impl fmt::Debug for AcceptorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptorBuilder")
            .field("min_version", &self.min_version)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustls::crypto::CryptoProvider;
    use rustls::pki_types::ServerName;
    use rustls::{CipherSuite, ClientConfig, ClientConnection, SupportedCipherSuite};

    use super::*;
    use crate::Identity;

    /// The suite that the server chooses for a client whose list has those of `first` in front.
    fn chosen(version: Version, first: &[CipherSuite]) -> &'static str {
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
        let acceptor = Acceptor::builder(identity).build().unwrap();

        let place = |suite: &SupportedCipherSuite| first.iter().position(|wanted| *wanted == suite.suite());
        let mut suites = provider().cipher_suites.clone();
        suites.sort_by_key(|suite| place(suite).unwrap_or(usize::MAX));
        let suites = CryptoProvider {
            cipher_suites: suites,
            ..(**provider()).clone()
        };
        let versions = match version {
            Version::Tls12 => &[&rustls::version::TLS12],
            Version::Tls13 => &[&rustls::version::TLS13],
        };
        let client = ClientConfig::builder_with_provider(Arc::new(suites)).with_protocol_versions(versions);
        let roots = root_store(vec![made.cert.der().clone()]).unwrap();
        let client = client.unwrap().with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();

        let (mut near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let server = acceptor.accept(osier::net::UnixStream::from(far));
        while client.is_handshaking() || !server.is_established() {
            // Errors mean that the other end comes first.
            let _ = (client.complete_io(&mut near), server.try_handshake());
        }
        server.cipher_suite().unwrap()
    }

    #[test]
    fn a_server_prefers_aes_128_to_aes_256() {
        let aes_256 = [
            CipherSuite::TLS13_AES_256_GCM_SHA384,
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        ];
        assert_eq!(chosen(Version::Tls13, &aes_256), "TLS13_AES_128_GCM_SHA256");
        let of_tls_1_2 = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
        assert_eq!(chosen(Version::Tls12, &aes_256), of_tls_1_2);
    }

    #[test]
    fn a_client_that_prefers_chacha20_gets_it() {
        let chacha = [
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
            CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ];
        assert_eq!(chosen(Version::Tls13, &chacha), "TLS13_CHACHA20_POLY1305_SHA256");
        let of_tls_1_2 = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";
        assert_eq!(chosen(Version::Tls12, &chacha), of_tls_1_2);
    }
}
