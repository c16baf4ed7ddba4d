//! [`Acceptor`]: makes the server's end of TLS connections.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use osier::net;
use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use crate::connector::root_store;
use crate::identity::certificates;
use crate::provider::{digest, provider, versions};
use crate::resolver::Adapter;
use crate::session::{Catch, Session};
use crate::{Error, Resolver, Stream, Tickets, Version};

/// How often an acceptor changes the keys of its tickets.
const TICKET_KEYS_CHANGE: Duration = Duration::from_secs(12 * 60 * 60);

/// Makes the server's end of TLS connections. Cheap to clone; all workers may share one.
#[derive(Clone)]
pub struct Acceptor(Arc<ServerConfig>);

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
        Session::server(self.0.clone())
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}

/// Whether clients show certificates.
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
    /// Authorities for client certificates that cannot be read.
    pub fn build(self) -> Result<Acceptor, Error> {
        let builder = ServerConfig::builder_with_provider(provider().clone())
            .with_protocol_versions(versions(self.min_version))?;
        let (ca, is_required) = match &self.clients {
            ClientCertificates::None => (None, false),
            ClientCertificates::Optional(ca) => (Some(ca), false),
            ClientCertificates::Required(ca) => (Some(ca), true),
        };
        let builder = match ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = root_store(certificates(ca, "the file of client authorities")?)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider().clone());
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
        Ok(Acceptor(Arc::new(config)))
    }
}

impl fmt::Debug for AcceptorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptorBuilder")
            .field("min_version", &self.min_version)
            .finish_non_exhaustive()
    }
}
