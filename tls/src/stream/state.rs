//! [`State`]: a session and the bytes that wait around it. Its calls never wait: they say what for.

use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use osier::net;
use osier::sync::Interrupt;

use crate::Error;
use crate::buffer::Buffer;
use crate::error::{Kind, of_protocol};
use crate::export::{NotExportable, Reader, Writer};
use crate::resolver::{self, Answer};
use crate::session::{Agreed, Goal, RECORD_BYTES, Session, Sink, Step};

/// The most bytes that may wait for the end of a handshake message. rustls refuses messages above 64 KiB itself.
const INCOMING_MAX: usize = 80 << 10;

/// The least room that a receive gets.
const RECEIVE_BYTES: usize = 4096;

/// The plain bytes that one write takes.
const WRITE_BYTES: usize = 2 * RECORD_BYTES;

/// A socket that does not wait: `WouldBlock` instead.
pub(super) trait Socket {
    fn receive(&mut self, buf: &mut [u8]) -> io::Result<usize>;
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Sends bytes that the end of the connection follows at once.
    fn send_last(&mut self, bytes: &[u8]) -> io::Result<usize>;
}

impl Socket for &net::Stream {
    fn receive(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_read(buf)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write(bytes)
    }

    fn send_last(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write_more(bytes)
    }
}

/// The event of a socket that a call waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    /// Bytes within the handshake. Another call may read them first.
    Handshake,
    Read,
    Write,
}

/// Why a call has not completed.
#[derive(Debug)]
pub(super) enum Stop {
    Wait(Direction),
    Fail(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Fail(error)
    }
}

/// The part of a stream that its lock guards.
pub(super) struct State {
    session: Session,
    /// Bytes from the socket that no complete call has consumed: records.
    incoming: Buffer,
    /// Whether bytes have come into `incoming` that the session has not seen.
    is_unseen: bool,
    /// Decrypted bytes for which a reader had no room.
    plain: Buffer,
    /// Records in their order, the front perhaps sent in part.
    outgoing: Buffer,
    /// The error that every further call fails with.
    failed: Option<Box<Error>>,
    /// Until the client's first message has been read.
    expects_hello: bool,
    server_name: Option<Option<Box<str>>>,
    peer_closed: bool,
    closed: bool,
    /// The last call has moved a whole record: the next one will need the expanded keys again.
    is_busy: bool,
    /// A write has left records behind because the socket took none in time.
    timed_out: bool,
    /// The calls that wait for bytes of the handshake. If another call reads these bytes, no event of the socket wakes them.
    pub(super) shaking: Option<Box<Shaking>>,
}

/// The calls that wait within a handshake.
#[derive(Default)]
pub(super) struct Shaking {
    /// Ends the waits of fibers.
    interrupt: Interrupt,
    tasks: Vec<Waker>,
}

impl Drop for Shaking {
    fn drop(&mut self) {
        self.interrupt.set();
        for task in self.tasks.drain(..) {
            // A panic of one waker, which the hook has reported, keeps no other task asleep.
            let _ = catch_unwind(AssertUnwindSafe(|| task.wake()));
        }
    }
}

impl State {
    pub(super) fn new(session: Session) -> State {
        State {
            expects_hello: session.is_server(),
            session,
            incoming: Buffer::default(),
            is_unseen: false,
            plain: Buffer::default(),
            outgoing: Buffer::default(),
            failed: None,
            server_name: None,
            peer_closed: false,
            closed: false,
            is_busy: false,
            timed_out: false,
            shaking: None,
        }
    }

    /// The signal that ends the wait of a fiber within the handshake.
    pub(super) fn shaking(&mut self) -> Interrupt {
        self.shaking.get_or_insert_default().interrupt.clone()
    }

    /// Makes the signal that ends waits within the handshake wake a task, too.
    pub(super) fn wake_shaking(&mut self, waker: &Waker) {
        let tasks = &mut self.shaking.get_or_insert_default().tasks;
        if !tasks.iter().any(|task| task.will_wake(waker)) {
            tasks.push(waker.clone());
        }
    }

    /// Takes the calls that wait within the handshake. They try again once the value is dropped.
    pub(super) fn take_shaking(&mut self) -> Option<Box<Shaking>> {
        self.shaking.take()
    }

    pub(super) fn handshake(&mut self, socket: &mut dyn Socket) -> Result<(), Stop> {
        while self.session.is_handshaking() {
            let step = self.advance(&mut [], Goal::Read)?.0;
            if self.session.is_handshaking() && matches!(step, Step::Handshaking | Step::Ready) {
                self.flush(socket)?;
                self.receive(socket)?;
            }
        }
        // The last records, such as session tickets, need not have left. The peer may even be gone already, with bytes of its
        // own still unread here. The next write sends the records or fails.
        let _ = self.flush(socket);
        Ok(())
    }

    pub(super) fn read(&mut self, socket: &mut dyn Socket, buf: &mut [u8]) -> Result<usize, Stop> {
        if buf.is_empty() {
            return Ok(0);
        }
        if self.session.is_handshaking() {
            self.handshake(socket)?;
        }
        let mut count = self.plain.take(buf);
        while count < buf.len() && !self.peer_closed {
            match self.advance(&mut buf[count..], Goal::Read) {
                // The next call meets the error again.
                Err(_) if count > 0 => break,
                Err(error) => return Err(error),
                Ok((Step::Plain | Step::PeerClosed, taken)) => count += taken,
                Ok((Step::Ready | Step::Handshaking, _)) if count > 0 => break,
                Ok((Step::Ready | Step::Handshaking, _)) => {
                    // An answer to a message of the protocol. A reader does not wait for room for it.
                    let _ = self.flush(socket);
                    self.receive(socket)?;
                }
            }
        }
        self.is_busy = count >= RECORD_BYTES;
        Ok(count)
    }

    /// Encrypts the first bytes of `slices` into records and sends what the socket takes at once. The others stay in `outgoing`.
    pub(super) fn write(&mut self, socket: &mut dyn Socket, slices: &[IoSlice<'_>]) -> Result<usize, Stop> {
        let count = self.hold(socket, slices)?;
        match self.flush(socket) {
            Ok(()) | Err(Stop::Wait(_)) => Ok(count),
            failed => failed.map(|()| 0),
        }
    }

    /// Encrypts the first bytes of `slices` into records, which stay in `outgoing` for the next flush.
    pub(super) fn hold(&mut self, socket: &mut dyn Socket, slices: &[IoSlice<'_>]) -> Result<usize, Stop> {
        if self.session.is_handshaking() {
            self.handshake(socket)?;
        }
        if self.closed {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        let waits_too_long = std::mem::take(&mut self.timed_out);
        match self.flush(socket) {
            Err(Stop::Wait(_)) if waits_too_long => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            flushed => flushed?,
        }
        let count = self.encrypt(slices)?;
        self.is_busy = count >= RECORD_BYTES;
        Ok(count)
    }

    /// Encrypts at most [`WRITE_BYTES`]. Slices that are shorter than a record share one.
    fn encrypt(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Stop> {
        let mut gathered = Buffer::default();
        let mut count = 0;
        for (index, slice) in slices.iter().enumerate() {
            let is_last = index + 1 == slices.len();
            let mut rest = &slice[..slice.len().min(WRITE_BYTES - count)];
            count += rest.len();
            while !rest.is_empty() {
                let piece = rest
                    .split_off(..rest.len().min(RECORD_BYTES - gathered.len()))
                    .expect("it is not longer");
                let is_whole_record = gathered.is_empty() && (piece.len() == RECORD_BYTES || is_last);
                match is_whole_record {
                    true => self.encrypt_record(piece)?,
                    false => gathered.append(piece),
                }
                if gathered.len() == RECORD_BYTES {
                    self.encrypt_gathered(&mut gathered)?;
                }
            }
        }
        self.encrypt_gathered(&mut gathered)?;
        Ok(count)
    }

    fn encrypt_gathered(&mut self, gathered: &mut Buffer) -> Result<(), Stop> {
        if !gathered.is_empty() {
            self.encrypt_record(gathered.filled())?;
            gathered.consume(gathered.len());
        }
        Ok(())
    }

    fn encrypt_record(&mut self, plain: &[u8]) -> Result<(), Stop> {
        self.advance(&mut [], Goal::Encrypt(plain)).map(drop)
    }

    /// Sends the records that wait.
    pub(super) fn flush(&mut self, socket: &mut dyn Socket) -> Result<(), Stop> {
        self.flush_by(|bytes| socket.send(bytes))
    }

    fn flush_by(&mut self, mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> Result<(), Stop> {
        while !self.outgoing.is_empty() {
            match send(self.outgoing.filled()) {
                Ok(count) => self.outgoing.consume(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(Stop::Wait(Direction::Write)),
                Err(error) => return Err(Stop::Fail(error)),
            }
        }
        self.timed_out = false;
        Ok(())
    }

    pub(super) fn close_notify(&mut self, socket: &mut dyn Socket) -> Result<(), Stop> {
        self.close()?;
        self.flush(socket)
    }

    /// Sends the close_notify when the end of the socket follows at once, so that both may share a packet.
    pub(super) fn last_close_notify(&mut self, socket: &mut dyn Socket) -> Result<(), Stop> {
        self.close()?;
        self.flush_by(|bytes| socket.send_last(bytes))
    }

    /// Adds the close_notify to the records that wait.
    fn close(&mut self) -> Result<(), Stop> {
        // A peer that has not finished its handshake has nothing that could be cut.
        if !self.closed && !self.session.is_handshaking() && self.failed.is_none() {
            self.advance(&mut [], Goal::CloseNotify)?;
        }
        self.closed = true;
        Ok(())
    }

    /// Whether a read has an outcome without the socket.
    pub(super) fn has_unread(&self) -> bool {
        let is_over = self.peer_closed || self.failed.is_some();
        is_over || !self.plain.is_empty() || (self.is_unseen && self.incoming.starts_with_record())
    }

    /// Whether the end of a record, or of a message of the handshake, has not arrived.
    pub(super) fn is_mid_record(&self) -> bool {
        !self.incoming.is_empty() && !self.has_unread()
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    pub(super) fn note_timeout(&mut self) {
        self.timed_out = self.has_unsent();
    }

    pub(super) fn take_server_name(&mut self) -> Option<Option<Box<str>>> {
        self.server_name.take()
    }

    pub(super) fn take_agreed(&mut self) -> Option<Agreed> {
        self.session.take_agreed()
    }

    /// Whether nothing has come from a client yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.expects_hello && self.incoming.is_empty() && self.session.is_fresh()
    }

    /// Writes the keys and the bytes that wait to be read.
    pub(super) fn export(&self, to: &mut Writer) -> Result<(), NotExportable> {
        if self.failed.is_some() {
            return Err(NotExportable("it has failed"));
        }
        if self.peer_closed || self.closed {
            return Err(NotExportable("one end has ended it"));
        }
        if !self.outgoing.is_empty() {
            return Err(NotExportable("records wait for room in its socket"));
        }
        self.session.export(to)?;
        to.text(self.incoming.waiting());
        to.text(self.plain.waiting());
        to.flag(self.is_unseen);
        Ok(())
    }

    /// The state that [`export`](State::export) has written, and its cipher suite.
    pub(super) fn import(from: &mut Reader<'_>) -> Option<(State, &'static str)> {
        let (session, suite) = Session::import(from)?;
        let mut state = State::new(session);
        state.incoming.append(from.text()?);
        state.plain.append(from.text()?);
        state.is_unseen = from.flag()?;
        state.rest();
        Some((state, suite))
    }

    /// Gives memory back that the next call can get again.
    pub(super) fn rest(&mut self) {
        if !std::mem::take(&mut self.is_busy) {
            self.session.rest();
        }
        self.incoming.rest();
        self.plain.rest();
        self.outgoing.rest();
    }

    /// Passes the bytes that wait to the session. Returns the step, and how many plain bytes went to `buf`. Others wait.
    fn advance(&mut self, buf: &mut [u8], goal: Goal<'_>) -> Result<(Step, usize), Stop> {
        if let Some(error) = &self.failed {
            return Err(io::Error::from((**error).clone()).into());
        }
        let input = self.incoming.filled();
        if self.expects_hello
            && let Some(kind) = other_protocol(input)
        {
            return Err(self.fail(Error::new(kind)));
        }
        let mut count = 0;
        let plain = &mut self.plain;
        let mut sink = Sink {
            plain: &mut |bytes| {
                let (first, others) = bytes.split_at(bytes.len().min(buf.len() - count));
                buf[count..][..first.len()].copy_from_slice(first);
                count += first.len();
                plain.append(others);
            },
            records: &mut self.outgoing,
            peer_closed: &mut self.peer_closed,
        };
        let is_handshaking = self.session.is_handshaking();
        let (consumed, step) = self.session.advance(input, &mut sink, goal);
        self.incoming.consume(consumed);
        // A second first message, which answers a retry, has the same name. An alert before the first one has none.
        if is_handshaking && let Some(name) = resolver::take_name() {
            self.server_name = Some(name);
        }
        let answer = resolver::take_answer();
        if step.is_err() && answer == Answer::Deferred && self.session.is_fresh() {
            // The session has begun anew. The message stays in `incoming` for the next call, and the alert is not for the client.
            self.outgoing.consume(self.outgoing.len());
            return Err(io::Error::from(Error::new(Kind::Deferred(self.server_name.clone().flatten()))).into());
        }
        self.expects_hello &= consumed == 0 && step.is_ok();
        let step = step.map_err(|error| match answer {
            Answer::Found => self.fail(of_protocol(error)),
            Answer::None | Answer::Deferred => {
                self.fail(Error::new(Kind::UnknownName(self.server_name.clone().flatten())))
            }
        })?;
        // A writer leaves the records that wait for a reader.
        if matches!(goal, Goal::Read) {
            self.is_unseen = matches!(step, Step::Plain | Step::PeerClosed);
        }
        Ok((step, count))
    }

    fn fail(&mut self, error: Error) -> Stop {
        let failed = io::Error::from(error.clone());
        self.failed = Some(Box::new(error));
        failed.into()
    }

    /// Receives bytes behind those that wait.
    fn receive(&mut self, socket: &mut dyn Socket) -> Result<(), Stop> {
        if self.incoming.len() > INCOMING_MAX {
            return Err(self.fail(of_protocol(rustls::Error::PeerSentOversizedRecord)));
        }
        let room = self.incoming.room(RECEIVE_BYTES);
        match socket.receive(room) {
            Ok(0) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                match self.session.is_handshaking() {
                    true => "the connection ended during the TLS handshake",
                    false => "the connection ended without a TLS close_notify",
                },
            )
            .into()),
            Ok(count) => {
                self.incoming.fill(count);
                self.is_unseen = true;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(Stop::Wait(match self.session.is_handshaking() {
                    true => Direction::Handshake,
                    false => Direction::Read,
                }))
            }
            Err(error) => Err(Stop::Fail(error)),
        }
    }
}

/// The protocol that the first bytes of a client speak instead of TLS.
fn other_protocol(first: &[u8]) -> Option<Kind> {
    match first {
        [b'P', b'R', b'O', b'X', b'Y', b' ', ..] | [b'\r', b'\n', b'\r', b'\n', 0, ..] => Some(Kind::ProxyHeader),
        [first, ..] if first.is_ascii_uppercase() => Some(Kind::PlainHttp),
        _ => None,
    }
}
