//! [`Session`]: one connection's protocol state, without sockets and without buffers.
//!
//! The caller passes the bytes that have arrived and gets plain bytes and records to send.
//!
//! ```text
//!   Handshake ── TLS 1.3, done ──▶ Open          handshake.rs: rustls     open/: records, keys of rustls
//!       └─────── TLS 1.2, done ──▶ stays
//! ```

mod handshake;
mod open;
mod preference;
mod secrets;

pub(crate) use self::secrets::Catch;

use std::mem;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

use self::handshake::Handshake;
use self::open::Open;
use crate::Version;
use crate::buffer::Buffer;
use crate::export::{NotExportable, Reader, Writer};

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

/// The settings of a server, in two values that differ in the order of cipher suites that counts.
#[derive(Clone)]
pub(crate) struct ServerSettings {
    pub(crate) by_own_order: Arc<ServerConfig>,
    pub(crate) by_order_of_client: Arc<ServerConfig>,
}

/// A handshake, or the keys that came out of it.
pub(crate) struct Session {
    phase: Phase,
    agreed: Option<Agreed>,
}

enum Phase {
    Handshake(Box<Handshake>),
    Open(Box<Open>),
    /// The keys could not leave rustls.
    Broken,
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
    pub(crate) fn server(settings: &ServerSettings) -> Session {
        Session::new(Handshake::server(settings))
    }

    pub(crate) fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Session, rustls::Error> {
        Ok(Session::new(Handshake::client(config, name)?))
    }

    fn new(handshake: Handshake) -> Session {
        Session {
            phase: Phase::Handshake(Box::new(handshake)),
            agreed: None,
        }
    }

    /// Whether the first message of a client comes next.
    pub(crate) fn is_server(&self) -> bool {
        matches!(&self.phase, Phase::Handshake(handshake) if handshake.is_server())
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(&self.phase, Phase::Handshake(handshake) if handshake.is_handshaking())
    }

    /// The outcome of the handshake, once.
    pub(crate) fn take_agreed(&mut self) -> Option<Agreed> {
        self.agreed.take()
    }

    /// Drops what the next call can make again: the expanded keys.
    pub(crate) fn rest(&mut self) {
        if let Phase::Open(open) = &mut self.phase {
            open.rest();
        }
    }

    /// Processes records at the front of `input` and then reaches for `goal`. Returns how many bytes the records had, and the
    /// step. The caller removes these bytes and keeps the others for the next call: a message of the handshake may be spread
    /// over several records, and rustls remembers where in `input` its parts are. So every call gets all bytes that wait.
    ///
    /// An error is fatal. The alert for the peer is among the records, and no further call may be made.
    pub(crate) fn advance(
        &mut self,
        input: &mut [u8],
        sink: &mut Sink<'_>,
        goal: Goal<'_>,
    ) -> (usize, Result<Step, rustls::Error>) {
        let handshake = match &mut self.phase {
            Phase::Open(open) => return open.advance(input, sink, goal),
            Phase::Handshake(handshake) => handshake,
            Phase::Broken => return (0, Err(rustls::Error::HandshakeNotComplete)),
        };
        let was_handshaking = handshake.is_handshaking();
        let (consumed, step) = handshake.advance(input, sink, goal);
        if !was_handshaking || handshake.is_handshaking() || step.is_err() {
            return (consumed, step);
        }
        self.agreed = handshake.agreed();
        match self.open() {
            Err(error) => (consumed, Err(error)),
            // Records behind the handshake may be here already.
            Ok(()) => {
                let (count, step) = self.advance(&mut input[consumed..], sink, goal);
                (consumed + count, step)
            }
        }
    }

    /// Whether no byte has come or gone yet.
    pub(crate) fn is_fresh(&self) -> bool {
        matches!(&self.phase, Phase::Handshake(handshake) if handshake.is_fresh())
    }

    /// Writes the keys of a server's session after its handshake.
    pub(crate) fn export(&self, to: &mut Writer) -> Result<(), NotExportable> {
        match &self.phase {
            Phase::Open(open) => open.export(to),
            Phase::Handshake(handshake) if !handshake.is_handshaking() => Err(NotExportable("it speaks TLS 1.2")),
            Phase::Handshake(_) => Err(NotExportable("its handshake has begun")),
            Phase::Broken => Err(NotExportable("it has failed")),
        }
    }

    /// The session that [`export`](Session::export) has written, and its cipher suite.
    pub(crate) fn import(from: &mut Reader<'_>) -> Option<(Session, &'static str)> {
        let open = Open::import(from)?;
        let suite = open.suite_name()?;
        let session = Session {
            phase: Phase::Open(Box::new(open)),
            agreed: None,
        };
        Some((session, suite))
    }

    /// Takes the keys out of rustls, if they can leave.
    fn open(&mut self) -> Result<(), rustls::Error> {
        self.phase = match mem::replace(&mut self.phase, Phase::Broken) {
            Phase::Handshake(handshake) if handshake.can_open() => Phase::Open(Box::new(Open::new(handshake.open()?))),
            phase => phase,
        };
        Ok(())
    }
}
