//! [`Session`]: one connection's protocol state, without sockets and without buffers.
//!
//! The caller passes the bytes that have arrived and gets plain bytes and records to send. This module alone knows rustls'
//! unbuffered connections, so that another version of rustls changes this module alone.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, HandshakeKind, ProtocolVersion, ServerConfig};

use crate::Version;
use crate::buffer::Buffer;

/// The most plain bytes of one record.
pub(crate) const RECORD_BYTES: usize = 16 << 10;

/// Where records and plain bytes go.
pub(crate) struct Sink<'a> {
    /// Gets the decrypted bytes of each record.
    pub(crate) plain: &'a mut dyn FnMut(&[u8]),
    /// Gets records to send, appended.
    pub(crate) records: &'a mut Buffer,
    /// Is set when the peer has said that nothing will follow.
    pub(crate) peer_closed: &'a mut bool,
}

/// The purpose of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal<'a> {
    /// Progress: plain bytes, or the handshake.
    Read,
    /// One record with these bytes, at most [`RECORD_BYTES`].
    Encrypt(&'a [u8]),
    /// The alert that says that nothing will follow.
    CloseNotify,
}

/// The state in which the bytes so far leave a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The handshake needs more bytes.
    Handshaking,
    /// Bytes can be encrypted; the bytes passed in hold no whole record.
    Ready,
    /// The sink has got plain bytes. There may be more.
    Plain,
    /// The peer has sent its close_notify.
    PeerClosed,
}

/// A handshake, or the keys that came out of it.
pub(crate) struct Session(Side);

enum Side {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// The outcome of a handshake.
#[derive(Debug)]
pub(crate) struct Agreed {
    pub(crate) version: Version,
    pub(crate) cipher_suite: &'static str,
    pub(crate) protocol: Option<Box<[u8]>>,
    pub(crate) peer_certificates: Box<[Box<[u8]>]>,
    pub(crate) is_resumed: bool,
}

impl Session {
    pub(crate) fn server(config: Arc<ServerConfig>) -> Session {
        let connection = UnbufferedServerConnection::new(config);
        Session(Side::Server(
            connection.expect("it fails only for a size of fragments, which is never set"),
        ))
    }

    pub(crate) fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Session, rustls::Error> {
        Ok(Session(Side::Client(UnbufferedClientConnection::new(config, name)?)))
    }

    pub(crate) fn is_server(&self) -> bool {
        matches!(self.0, Side::Server(_))
    }

    fn common(&self) -> &CommonState {
        match &self.0 {
            Side::Server(connection) => connection,
            Side::Client(connection) => connection,
        }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.common().is_handshaking()
    }

    /// Processes records at the front of `input` and then reaches for `goal`. Returns how many bytes the records had, and the
    /// step. The caller removes these bytes and keeps the others for the next call: a message of the handshake may be spread
    /// over several records, and the session remembers where in `input` its parts are. So every call gets all bytes that wait.
    ///
    /// An error is fatal. The alert for the peer is among the records, and no further call may be made.
    pub(crate) fn advance(
        &mut self,
        input: &mut [u8],
        sink: &mut Sink<'_>,
        goal: Goal<'_>,
    ) -> (usize, Result<Step, rustls::Error>) {
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

    /// Makes one step of rustls' machine. `None` means that it has more to do.
    fn step(
        &mut self,
        input: &mut [u8],
        consumed: &mut usize,
        sink: &mut Sink<'_>,
        goal: Goal<'_>,
    ) -> Result<Option<Step>, rustls::Error> {
        match &mut self.0 {
            Side::Server(connection) => take(connection.process_tls_records(input), consumed, sink, goal),
            Side::Client(connection) => take(connection.process_tls_records(input), consumed, sink, goal),
        }
    }

    /// The outcome of the handshake, once it is done.
    pub(crate) fn agreed(&self) -> Option<Agreed> {
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

/// Does what a state of rustls asks for. Adds to `consumed` the bytes that it is done with.
fn take<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    consumed: &mut usize,
    sink: &mut Sink<'_>,
    goal: Goal<'_>,
) -> Result<Option<Step>, rustls::Error> {
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
        _ => return Err(rustls::Error::HandshakeNotComplete),
    };
    // A writer goes on. Plain bytes that it meets wait for a reader.
    Ok(matches!(goal, Goal::Read).then_some(step))
}

/// Makes room for what `write` writes, and keeps it. The first attempt finds room for every usual record.
fn append<E: Into<Full>>(
    records: &mut Buffer,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> Result<(), rustls::Error> {
    let mut room = 64;
    loop {
        match write(records.room(room)).map_err(E::into) {
            Ok(count) => {
                records.fill(count);
                return Ok(());
            }
            Err(Full::Needs(bytes)) if bytes > room => room = bytes,
            Err(_) => return Err(rustls::Error::EncryptError),
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
