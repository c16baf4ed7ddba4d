//! [`Handshake`]: a connection of rustls, up to the end of its handshake, and beyond it for TLS 1.2.
//!
//! This module alone knows rustls' unbuffered connections, so that another version of rustls changes this module alone.

use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::crypto::tls13::OkmBlock;
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus};
use rustls::{
    ClientConfig, CommonState, ConnectionTrafficSecrets, Error, HandshakeKind, ProtocolVersion, ServerConfig,
};

use super::secrets::{Secrets, Suite};
use super::{Agreed, Goal, RECORD_BYTES, ServerSettings, Sink, Step, preference};
use crate::Version;
use crate::buffer::{self, Buffer, RECORD_HEAD_BYTES};
use crate::resolver::{self, Answer};
use crate::tickets::with_session_of;

/// The length of the head of a message: a kind, and the length of the rest.
const MESSAGE_HEAD_BYTES: usize = 4;

/// A connection of rustls.
pub(super) struct Handshake {
    side: Side,
    /// The length of the whole records that rustls has seen and that still wait, as parts of a message.
    seen: usize,
    /// When the session that it resumes began, if it resumes one.
    began: Option<u64>,
    secrets: Secrets,
    is_fresh: bool,
    /// The settings of a server, until it has answered the first message of its client.
    settings: Option<ServerSettings>,
}

enum Side {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// The outcome of a TLS 1.3 handshake.
pub(super) struct Opened {
    pub(super) suite: Suite,
    pub(super) sending: Traffic,
    pub(super) receiving: Traffic,
    /// The part of rustls that stores the tickets of a client.
    pub(super) kernel: Option<KernelConnection<ClientConnectionData>>,
}

/// The keys of one direction.
pub(super) struct Traffic {
    /// Determines the others, and the next secret.
    pub(super) secret: OkmBlock,
    pub(super) key: AeadKey,
    pub(super) iv: Iv,
    /// The number of the next record.
    pub(super) number: u64,
}

impl Traffic {
    /// The keys that follow from a secret.
    pub(super) fn of(suite: Suite, secret: OkmBlock, number: u64) -> Traffic {
        let (key, iv) = suite.keys(&secret);
        Traffic {
            secret,
            key,
            iv,
            number,
        }
    }

    /// The secret. An error unless the keys follow from it.
    ///
    /// The keys of a handshake come from rustls, and their secret by another way ([`secrets`](super::secrets)). Few connections need the
    /// secret again, so only those check that the two belong together: it costs as much as a tenth of the handshake.
    pub(super) fn secret(&self, suite: Suite) -> Result<&OkmBlock, Error> {
        let (key, iv) = suite.keys(&self.secret);
        let length = suite.algorithm.key_len();
        let is_same = key.as_ref()[..length] == self.key.as_ref()[..length] && iv.as_ref() == self.iv.as_ref();
        is_same
            .then_some(&self.secret)
            .ok_or_else(|| Error::General("a traffic secret is not that of its keys".into()))
    }
}

impl Handshake {
    pub(super) fn server(settings: &ServerSettings) -> Handshake {
        Handshake {
            side: Side::server(settings.by_own_order.clone()),
            seen: 0,
            began: None,
            secrets: Secrets::default(),
            is_fresh: true,
            settings: Some(settings.clone()),
        }
    }

    pub(super) fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Handshake, Error> {
        Ok(Handshake {
            side: Side::Client(UnbufferedClientConnection::new(config, name)?),
            seen: 0,
            began: None,
            secrets: Secrets::default(),
            is_fresh: true,
            settings: None,
        })
    }

    pub(super) fn is_server(&self) -> bool {
        matches!(self.side, Side::Server(_))
    }

    /// Whether no byte has arrived yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    fn common(&self) -> &CommonState {
        self.side.common()
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.common().is_handshaking()
    }

    /// Processes records as [`Session::advance`](super::Session::advance) does. During a handshake it gives rustls one record after the
    /// other, so that rustls sees no record behind the end of the handshake.
    pub(super) fn advance(
        &mut self,
        input: &mut [u8],
        sink: &mut Sink<'_>,
        goal: Goal<'_>,
    ) -> (usize, Result<Step, Error>) {
        if !self.is_handshaking() {
            return self.advance_over(input, sink, goal);
        }
        if self.is_fresh && !input.is_empty() {
            self.is_fresh = false;
            self.choose_settings(input);
        }
        let mut consumed = 0;
        loop {
            let rest = &mut input[consumed..];
            let next = buffer::record_length(&rest[self.seen..]).map(|length| self.seen + length);
            // A record of which only a part has come is shown too: its head may be wrong already.
            let shown = next.unwrap_or(rest.len());
            let is_split = self.seen > 0;
            let (count, step) = self.advance_over(&mut rest[..shown], sink, goal);
            if step.is_err() && consumed == 0 && resolver::answer() == Answer::Deferred {
                let kept = match is_split {
                    true => join_records(&mut rest[..shown]),
                    false => Some(0),
                };
                if let Some(kept) = kept
                    && self.begin_anew()
                {
                    return (kept, step);
                }
            }
            consumed += count;
            if consumed > 0 {
                self.settings = None;
            }
            self.seen = next.unwrap_or(self.seen).saturating_sub(count);
            match step {
                Ok(Step::Handshaking | Step::Ready) if next.is_some() && self.is_handshaking() => {}
                step => return (consumed, step),
            }
        }
    }

    /// Begins anew with the other settings of a server for a client that prefers ChaCha20.
    fn choose_settings(&mut self, input: &[u8]) {
        if let Some(settings) = &self.settings
            && preference::is_chacha(input)
        {
            self.side = Side::server(settings.by_order_of_client.clone());
        }
    }

    /// Forgets the first message of the client, which comes again. Returns false if the server has answered it.
    #[cold]
    fn begin_anew(&mut self) -> bool {
        let Some(settings) = self.settings.take() else {
            return false;
        };
        *self = Handshake::server(&settings);
        true
    }

    /// Processes all of `input`.
    fn advance_over(&mut self, input: &mut [u8], sink: &mut Sink<'_>, goal: Goal<'_>) -> (usize, Result<Step, Error>) {
        let mut consumed = 0;
        loop {
            match self.step(&mut input[consumed..], &mut consumed, sink, goal) {
                Ok(Some(step)) => return (consumed, Ok(step)),
                Ok(None) => {}
                Err(error) => {
                    // The alert is still inside. Once it is out, a further call would make a second one of the same record.
                    while self.common().wants_write() {
                        if !matches!(self.step(&mut input[consumed..], &mut consumed, sink, goal), Ok(None)) {
                            break;
                        }
                    }
                    return (consumed, Err(error));
                }
            }
        }
    }

    /// Whether the handshake is done, and its keys can leave rustls: TLS 1.3, and no message waits in part.
    pub(super) fn can_open(&self) -> bool {
        !self.is_handshaking() && self.seen == 0 && self.common().protocol_version() == Some(ProtocolVersion::TLSv1_3)
    }

    /// Takes the keys out.
    pub(super) fn open(self) -> Result<Opened, Error> {
        let caught = self.secrets.client.zip(self.secrets.server);
        let (client, server) = caught.ok_or(Error::HandshakeNotComplete)?;
        let id = self.side.common().negotiated_cipher_suite();
        let suite = id.and_then(|suite| Suite::new(suite.suite()));
        let suite = suite.ok_or_else(|| Error::General("a cipher of this provider is unknown".into()))?;
        let ((extracted, kernel), sending, receiving) = match self.side {
            Side::Server(connection) => {
                let (extracted, _) = connection.dangerous_into_kernel_connection()?;
                ((extracted, None), server, client)
            }
            Side::Client(connection) => {
                let (extracted, kernel) = connection.dangerous_into_kernel_connection()?;
                ((extracted, Some(kernel)), client, server)
            }
        };
        Ok(Opened {
            suite,
            sending: traffic(sending, extracted.tx)?,
            receiving: traffic(receiving, extracted.rx)?,
            kernel,
        })
    }

    /// Makes one step of rustls' machine. `None` means that it has more to do.
    fn step(
        &mut self,
        input: &mut [u8],
        consumed: &mut usize,
        sink: &mut Sink<'_>,
        goal: Goal<'_>,
    ) -> Result<Option<Step>, Error> {
        self.secrets.catch(|| match &mut self.side {
            Side::Server(connection) => with_session_of(&mut self.began, || {
                take(connection.process_tls_records(input), consumed, sink, goal)
            }),
            Side::Client(connection) => take(connection.process_tls_records(input), consumed, sink, goal),
        })
    }

    /// The outcome of the handshake, once it is done.
    pub(super) fn agreed(&self) -> Option<Agreed> {
        let common = self.common();
        if common.is_handshaking() {
            return None;
        }
        let certificates = common.peer_certificates().unwrap_or_default();
        Some(Agreed {
            version: match common.protocol_version()? {
                ProtocolVersion::TLSv1_2 => Version::Tls12,
                _ => Version::Tls13,
            },
            cipher_suite: common.negotiated_cipher_suite()?.suite().as_str().unwrap_or("unknown"),
            protocol: common.alpn_protocol().map(Box::from),
            peer_certificates: certificates
                .iter()
                .map(|certificate| certificate.as_ref().into())
                .collect(),
            is_resumed: common.handshake_kind() == Some(HandshakeKind::Resumed),
        })
    }
}

/// Puts a message whose parts came in several records into one record, at the end of `input`. Returns the bytes in front of it, which are
/// done. `None` if no record is so long.
///
/// rustls has joined the parts already, behind the head of the first record.
#[cold]
fn join_records(input: &mut [u8]) -> Option<usize> {
    let &[_, _, _, _, _, _, high, middle, low, ..] = &*input else {
        return None;
    };
    let message = MESSAGE_HEAD_BYTES + u32::from_be_bytes([0, high, middle, low]) as usize;
    let length = u16::try_from(message).ok().filter(|_| message <= RECORD_BYTES)?;
    let done = input.len().checked_sub(RECORD_HEAD_BYTES + message)?;
    input[RECORD_HEAD_BYTES - 2..RECORD_HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    input.copy_within(..RECORD_HEAD_BYTES + message, done);
    Some(done)
}

impl Side {
    fn server(config: Arc<ServerConfig>) -> Side {
        let connection = UnbufferedServerConnection::new(config);
        Side::Server(connection.expect("it fails only for a size of fragments, which is never set"))
    }

    fn common(&self) -> &CommonState {
        match self {
            Side::Server(connection) => connection,
            Side::Client(connection) => connection,
        }
    }
}

/// The keys that rustls has made of a secret.
fn traffic(secret: OkmBlock, (number, keys): (u64, ConnectionTrafficSecrets)) -> Result<Traffic, Error> {
    let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
    | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
    | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = keys
    else {
        return Err(Error::HandshakeNotComplete);
    };
    Ok(Traffic {
        secret,
        key,
        iv,
        number,
    })
}

/// Does what a state of rustls asks for. Adds to `consumed` the bytes that it is done with.
fn take<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    consumed: &mut usize,
    sink: &mut Sink<'_>,
    goal: Goal<'_>,
) -> Result<Option<Step>, Error> {
    *consumed += status.discard;
    let step = match status.state? {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record?;
                *consumed += record.discard;
                (sink.plain)(record.payload);
            }
            Step::Plain
        }
        ConnectionState::WriteTraffic(mut traffic) => {
            match goal {
                Goal::Read => {}
                Goal::Encrypt(plain) => append(sink.records, |room| traffic.encrypt(plain, room))?,
                Goal::CloseNotify => append(sink.records, |room| traffic.queue_close_notify(room))?,
            }
            return Ok(Some(Step::Ready));
        }
        ConnectionState::EncodeTlsData(mut record) => {
            append(sink.records, |room| record.encode(room))?;
            return Ok(None);
        }
        // The caller sends the records in the order in which they were appended.
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            return Ok(None);
        }
        // rustls reports it once.
        ConnectionState::PeerClosed => {
            *sink.peer_closed = true;
            Step::PeerClosed
        }
        ConnectionState::BlockedHandshake if matches!(goal, Goal::Read) => return Ok(Some(Step::Handshaking)),
        ConnectionState::Closed if matches!(goal, Goal::Read) => return Ok(Some(Step::PeerClosed)),
        _ => return Err(Error::HandshakeNotComplete),
    };
    // A writer goes on. Plain bytes that it meets wait for a reader.
    Ok(matches!(goal, Goal::Read).then_some(step))
}

/// Makes room for what `write` writes, and keeps it. The first attempt finds room for every usual record.
fn append<E: Into<Full>>(
    records: &mut Buffer,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> Result<(), Error> {
    let mut room = 64;
    loop {
        match write(records.room(room)).map_err(E::into) {
            Ok(count) => {
                records.fill(count);
                return Ok(());
            }
            Err(Full::Needs(bytes)) if bytes > room => room = bytes,
            Err(_) => return Err(Error::EncryptError),
        }
    }
}

/// Why rustls has written nothing.
enum Full {
    Needs(usize),
    Never,
}

impl From<EncodeError> for Full {
    fn from(error: EncodeError) -> Full {
        match error {
            EncodeError::InsufficientSize(InsufficientSizeError { required_size }) => Full::Needs(required_size),
            EncodeError::AlreadyEncoded => Full::Never,
        }
    }
}

impl From<EncryptError> for Full {
    fn from(error: EncryptError) -> Full {
        match error {
            EncryptError::InsufficientSize(InsufficientSizeError { required_size }) => Full::Needs(required_size),
            EncryptError::EncryptExhausted => Full::Never,
        }
    }
}
