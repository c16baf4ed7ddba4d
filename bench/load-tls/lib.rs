//! The client's end of TLS for the programs that load a server: it trusts every certificate.
#![forbid(unsafe_code)]

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, NamedGroup, ProtocolVersion, SignatureScheme, SupportedProtocolVersion,
};
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The offer of a client in its handshakes.
pub struct Offer {
    pub version: &'static SupportedProtocolVersion,
    pub group: &'static dyn SupportedKxGroup,
    /// Where tickets are kept, for a client that resumes its sessions.
    pub tickets: Option<Arc<Tickets>>,
    /// The protocol of ALPN.
    pub protocol: &'static str,
}

impl Default for Offer {
    fn default() -> Offer {
        Offer {
            version: &TLS13,
            group: aws_lc_rs::kx_group::X25519,
            tickets: None,
            protocol: "http/1.1",
        }
    }
}

/// The version that an argument names: 1.2 or 1.3.
pub fn version(name: &str) -> &'static SupportedProtocolVersion {
    match name {
        "1.2" => &TLS12,
        "1.3" => &TLS13,
        _ => panic!("TLS has no version {name:?}"),
    }
}

/// The group of the key exchange that an argument names.
pub fn group(name: &str) -> &'static dyn SupportedKxGroup {
    match name {
        "x25519" => aws_lc_rs::kx_group::X25519,
        "x25519mlkem768" => aws_lc_rs::kx_group::X25519MLKEM768,
        _ => panic!("no group {name:?}"),
    }
}

pub fn config(offer: &Offer) -> Result<Arc<ClientConfig>, Error> {
    let mut groups = vec![offer.group];
    if offer.version.version == ProtocolVersion::TLSv1_2 {
        // OpenSSL wants the curve of its certificate among them.
        groups.push(aws_lc_rs::kx_group::SECP256R1);
    }
    let provider = CryptoProvider {
        kx_groups: groups,
        ..aws_lc_rs::default_provider()
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[offer.version])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting))
        .with_no_client_auth();
    config.alpn_protocols = vec![offer.protocol.into()];
    config.resumption = match &offer.tickets {
        Some(tickets) => Resumption::store(tickets.clone()),
        None => Resumption::disabled(),
    };
    Ok(Arc::new(config))
}

/// The name that clients ask for.
pub fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").expect("a name")
}

/// Checks nothing: the load is to cost as little as it can.
#[derive(Debug)]
struct Trusting;

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The tickets of one client. Each ticket of TLS 1.3 is used once.
#[derive(Debug, Default)]
pub struct Tickets {
    tls12: Mutex<Option<Tls12ClientSessionValue>>,
    tls13: Mutex<Vec<Tls13ClientSessionValue>>,
}

impl Tickets {
    /// Whether the next connection can resume a session.
    pub fn is_empty(&self) -> bool {
        lock(&self.tls12).is_none() && lock(&self.tls13).is_empty()
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        *lock(&self.tls12) = Some(value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        lock(&self.tls12).clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        *lock(&self.tls13) = vec![value];
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        lock(&self.tls13).pop()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads one head of HTTP/1.1 and as many bytes of body as it announces.
pub fn read_answer(stream: &mut impl Read) -> std::io::Result<()> {
    let (mut answer, mut buf) = (Vec::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut buf)?;
        if read == 0 {
            return Err(std::io::Error::other("closed before its answer ended"));
        }
        answer.extend_from_slice(&buf[..read]);
        let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
        if !head.starts_with("http/1.1 200") {
            let status = head.lines().next().unwrap_or_default();
            return Err(std::io::Error::other(format!("answered {status:?} instead of 200")));
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        let Some(length) = length else {
            return Err(std::io::Error::other("an answer without Content-Length"));
        };
        if answer.len() >= end + 4 + length {
            return Ok(());
        }
    }
}
