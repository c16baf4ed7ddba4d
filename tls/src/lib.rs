//! TLS for the streams of Osier: [`Stream`] reads and writes as a TCP stream does, and encrypts in between.
//!
//! ```
//! use std::io::{Read, Write};
//! use osier::net::{TcpListener, TcpStream};
//! use osier_tls::{Acceptor, Connector, Identity};
//!
//! # let (chain, key) = {
//! #     let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
//! #     (made.cert.pem(), made.signing_key.serialize_pem())
//! # };
//! // `chain` and `key` are the PEM texts of a certificate and its private key.
//! let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes())?;
//! let acceptor = Acceptor::builder(identity).alpn(["http/1.1"]).build()?;
//! let connector = Connector::builder().ca_pem(chain.as_bytes()).alpn(["http/1.1"]).build()?;
//!
//! osier::run(move || -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     osier::spawn(move || -> std::io::Result<()> {
//!         let mut stream = acceptor.accept(listener.accept()?.0);
//!         let mut request = [0; 5];
//!         stream.read_exact(&mut request)?;
//!         assert_eq!((&request, stream.protocol()), (b"hello", Some(&b"http/1.1"[..])));
//!         stream.write_all(b"world")?;
//!         stream.close_notify()
//!     });
//!
//!     let mut stream = connector.connect("localhost", TcpStream::connect(address)?)?;
//!     stream.write_all(b"hello")?;
//!     let mut reply = String::new();
//!     stream.read_to_string(&mut reply)?;
//!     assert_eq!(reply, "world");
//!     Ok(())
//! }).unwrap();
//! # Ok::<(), osier_tls::Error>(())
//! ```
//!
//! An [`Acceptor`] makes the server's end of connections and a [`Connector`] the client's end. Both are cheap to clone, and all
//! workers may share one. An [`Identity`] is a certificate with its key; a [`Resolver`] finds one for the name that a client asks
//! for.
//!
//! # STARTTLS
//!
//! A protocol that begins in the clear (SMTP, IMAP, XMPP) gives its stream to the acceptor or the connector when both ends have agreed to
//! encrypt. The timeouts of the socket stay. No byte may be left in a buffer then: it came in the clear, from anybody, and would pass for an
//! encrypted one. A session that is generic over `Read` and `Write` serves both streams.
//!
//! ```
//! use osier::net::TcpStream;
//! use osier_tls::{Acceptor, Stream};
//! use std::io::{self, BufReader, ErrorKind, Write};
//!
//! /// The client has sent STARTTLS, and waits for an answer.
//! fn start_tls(mut reader: BufReader<TcpStream>, acceptor: &Acceptor) -> io::Result<BufReader<Stream>> {
//!     if !reader.buffer().is_empty() {
//!         return Err(io::Error::new(ErrorKind::InvalidData, "commands in the clear behind STARTTLS"));
//!     }
//!     reader.get_mut().write_all(b"220 go ahead\r\n")?;
//!     let stream = acceptor.accept(reader.into_inner());
//!     stream.handshake()?;
//!     Ok(BufReader::new(stream))
//! }
//! ```
//!
//! # Limits
//!
//! - TLS 1.2 and TLS 1.3, with the cipher suites that rustls has on by default.
//! - Early data (0-RTT) is never sent and never accepted: an attacker could replay it.
//! - Renegotiation does not exist: rustls refuses it.
//!
//! # Features
//!
//! At least one of `ring` (on by default) and `aws-lc-rs` must be on. With both, `aws-lc-rs` is used. Its post-quantum key exchange
//! X25519MLKEM768 comes first, and it signs with RSA keys in two thirds of ring's time. ring builds in less time. `futures` (on by default)
//! gives a stream the traits of futures-io.
//!
//! Rust 1.95, a 64-bit Unix and `panic = "unwind"`, as `osier`. The crate forbids `unsafe`. Both providers build C code.

//   acceptor.rs  connector.rs    settings to configurations     identity.rs  resolver.rs   certificates
//   tickets.rs                       keys that seal sessions
//         └───────────┤
//               stream/          reads, writes and waits: one core, two faces
//                     │
//               session/         handshakes by rustls, and the TLS 1.3 records after them
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acceptor;
mod buffer;
mod connector;
mod error;
mod export;
mod identity;
mod provider;
mod resolver;
mod session;
mod stream;
mod tickets;

pub use acceptor::{Acceptor, AcceptorBuilder, ClientCertificates};
pub use connector::{Connector, ConnectorBuilder};
pub use error::Error;
pub use export::NotExportable;
pub use identity::Identity;
pub use resolver::{Hello, Resolver};
#[cfg(feature = "futures")]
pub use stream::AsyncStream;
pub use stream::Stream;
pub use tickets::Tickets;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Version {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl Version {
    /// The name that OpenSSL gives it, which CGI's `SSL_PROTOCOL` has: `TLSv1.3`.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::Tls12 => "TLSv1.2",
            Version::Tls13 => "TLSv1.3",
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The program of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
