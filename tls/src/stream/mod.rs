//! [`Stream`]: a TLS connection with the faces of a TCP stream.
//!
//! # Protocol
//!
//! One lock guards the session and the bytes that wait ([`State`]). A call takes the lock, goes as far as it can without
//! waiting, and drops the lock before it waits for the socket. So a fiber that waits for bytes does not stop one that writes.
//! Records enter `outgoing` in the order of their numbers, and only the front of `outgoing` is ever sent, under the lock. So
//! writers that wait cannot reorder records.
//!
//! Several calls may wait for bytes of the handshake, and one of them may read these bytes before the others wake. An attempt that has to
//! wait enters its call into a list in the state, under the lock. An attempt that does not have to wait wakes all calls in that list.
//! So no call waits for bytes that another one has read. A plain thread cannot be woken this way: it tries again after a while.

#[cfg(feature = "futures")]
mod asynchronous;
mod state;

#[cfg(feature = "futures")]
pub use self::asynchronous::AsyncStream;

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use osier::net;
use osier::sync::Interrupt;

use self::state::{Direction, Socket, State, Stop};
use crate::Version;
use crate::export::{NotExportable, Reader, Writer};
use crate::session::{Agreed, Session};

/// A TLS connection. It reads and writes as a TCP stream does.
///
/// The first read or write does the handshake. Several fibers may use a stream at once through shared references: a reader and
/// a writer do not disturb each other.
///
/// # Suspends
///
/// Reading: until there is a byte or the end. Writing: until the kernel has taken the records. Both: until the handshake is
/// done.
///
/// # Cancellation
///
/// A call fails with [`Cancelled`](osier::Cancelled) if the fiber is cancelled before it or while it waits. No bytes are lost: the
/// stream keeps an incomplete record, and the next call goes on with it. A server's [`Resolver`](crate::Resolver) that waits must not be cancelled.
///
/// # Errors
///
/// - `UnexpectedEof` from a read if the connection ends without the peer's close_notify: somebody may have cut it.
/// - `InvalidData` around an [`Error`](crate::Error) if a peer breaks the protocol or is not trusted. The alert for it has been sent.
/// - `TimedOut` after the timeouts of the socket ([`set_read_timeout`](Stream::set_read_timeout)).
/// - `WouldBlock` on a worker outside of a fiber, if the call would have to wait.
/// - `BrokenPipe` from a write after [`close_notify`](Stream::close_notify).
/// - The system's errors.
///
/// # Not promised
///
/// Dropping a stream sends no close_notify: the peer cannot take a response that was broken off for a whole one.
#[doc(alias = "TlsStream")]
pub struct Stream {
    socket: net::Stream,
    state: Mutex<State>,
    // Set once, when the handshake is done.
    agreed: OnceLock<Agreed>,
    // Set once, when the client's first message has been read. A client's own end never sets it.
    server_name: OnceLock<Option<Box<str>>>,
}

impl Stream {
    pub(crate) fn new(socket: net::Stream, session: Session) -> Stream {
        Stream {
            socket,
            state: Mutex::new(State::new(session)),
            agreed: OnceLock::new(),
            server_name: OnceLock::new(),
        }
    }

    /// Completes the handshake. Returns at once if it is done.
    ///
    /// # Suspends
    ///
    /// Until then.
    ///
    /// # Errors
    ///
    /// The errors of a read and of a write. After `TimedOut` another call goes on where this one stopped.
    pub fn handshake(&self) -> io::Result<()> {
        self.blocking(|state, socket| state.handshake(socket))
    }

    /// The protocol that both ends have agreed on (ALPN), once the handshake is done.
    pub fn protocol(&self) -> Option<&[u8]> {
        self.agreed.get()?.protocol.as_deref()
    }

    /// The name that the client has asked for (SNI), in lower case. `None` at the client's end.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.get()?.as_deref()
    }

    /// The certificates of the peer in DER, its own first. Empty before the end of the handshake, and if the peer has shown none.
    pub fn peer_certificates(&self) -> &[Box<[u8]>] {
        self.agreed.get().map_or(&[], |agreed| &agreed.peer_certificates)
    }

    /// The version of the protocol, once the handshake is done.
    pub fn version(&self) -> Option<Version> {
        self.agreed.get().map(|agreed| agreed.version)
    }

    /// The cipher suite as the registry of IANA names it, once the handshake is done: `TLS13_AES_128_GCM_SHA256`.
    pub fn cipher_suite(&self) -> Option<&'static str> {
        self.agreed.get().map(|agreed| agreed.cipher_suite)
    }

    /// Whether the handshake has resumed an earlier session. False before its end.
    pub fn is_resumed(&self) -> bool {
        self.agreed.get().is_some_and(|agreed| agreed.is_resumed)
    }

    /// Whether the handshake is done.
    pub fn is_established(&self) -> bool {
        self.agreed.get().is_some()
    }

    /// The socket below, to wait for and to ask for addresses. Bytes that are read or written there break the connection.
    pub fn socket(&self) -> &net::Stream {
        &self.socket
    }

    /// Whether a read would find bytes or an end in this stream already: no event of the socket announces them. A record that
    /// has arrived in part does not count.
    pub fn has_unread(&self) -> bool {
        self.state().has_unread()
    }

    /// Whether a record has arrived in part: the peer has more to send before a read can return.
    pub fn is_mid_record(&self) -> bool {
        self.state().is_mid_record()
    }

    /// Whether records wait for room in the socket. [`flush`](Write::flush) and [`try_flush`](Stream::try_flush) send them.
    pub fn has_unsent(&self) -> bool {
        self.state().has_unsent()
    }

    /// Reads bytes that have arrived. Returns 0 after the peer's close_notify.
    ///
    /// # Suspends
    ///
    /// Never, unless the server's [`Resolver`](crate::Resolver) does in the handshake.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if none have arrived, or if the handshake is not done, and the errors of `read`.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.at_once(|state, socket| state.read(socket, buf))
    }

    /// Encrypts bytes and writes the records that the socket takes at once. Returns how many bytes were taken. The stream keeps
    /// records that the socket did not take: see [`try_flush`](Stream::try_flush).
    ///
    /// # Suspends
    ///
    /// Never, unless the server's [`Resolver`](crate::Resolver) does in the handshake.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if it takes none, and the errors of `write`.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.at_once(|state, socket| state.write(socket, &[IoSlice::new(buf)]))
    }

    /// Writes the records that wait.
    ///
    /// # Suspends
    ///
    /// Never.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if some still wait, and the errors of `write`.
    pub fn try_flush(&self) -> io::Result<()> {
        self.at_once(|state, socket| state.flush(socket))
    }

    /// Completes the handshake with the bytes that have arrived.
    ///
    /// # Suspends
    ///
    /// Never, unless the server's [`Resolver`](crate::Resolver) does.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if it needs more, and the errors of [`handshake`](Stream::handshake).
    pub fn try_handshake(&self) -> io::Result<()> {
        self.at_once(|state, socket| state.handshake(socket))
    }

    /// Tells the peer that no more bytes will come. Reads still work.
    ///
    /// # Suspends
    ///
    /// Until the kernel has taken all records.
    ///
    /// # Errors
    ///
    /// The errors of a write. None if it was called before.
    pub fn close_notify(&self) -> io::Result<()> {
        self.blocking(|state, socket| state.close_notify(socket))
    }

    /// Tells the peer that no more bytes will come, as far as the socket takes it at once.
    ///
    /// # Suspends
    ///
    /// Never.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if records still wait, and the errors of [`close_notify`](Stream::close_notify).
    pub fn try_close_notify(&self) -> io::Result<()> {
        self.at_once(|state, socket| state.close_notify(socket))
    }

    /// Tells the peer that no more bytes will come, as [`try_close_notify`](Stream::try_close_notify) does, right before the socket is
    /// closed. The kernel may hold the alert back until then, so that the end of the connection shares its packet.
    ///
    /// # Suspends
    ///
    /// Never.
    ///
    /// # Errors
    ///
    /// The errors of [`try_close_notify`](Stream::try_close_notify).
    pub fn try_last_close_notify(&self) -> io::Result<()> {
        self.at_once(|state, socket| state.last_close_notify(socket))
    }

    /// Writes the last bytes of this end and its close_notify, so that they may share a packet with the end of the connection. The caller
    /// shuts the socket down or closes it next: the kernel may hold the bytes back until then.
    ///
    /// # Suspends
    ///
    /// Until the kernel has taken all records.
    ///
    /// # Errors
    ///
    /// The errors of a write.
    pub fn write_last(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.blocking(|state, socket| state.hold(socket, &[IoSlice::new(bytes)]))?;
            bytes = &bytes[count..];
        }
        self.blocking(|state, socket| state.last_close_notify(socket))
    }

    /// Shuts down reading, writing or both. Before the socket's writing direction ends, the peer gets a close_notify.
    ///
    /// # Suspends
    ///
    /// Until the kernel has taken all records, unless only reading is shut down.
    ///
    /// # Errors
    ///
    /// The errors of a write, and the system's.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how == Shutdown::Read {
            return self.socket.shutdown(how);
        }
        let told = self.blocking(|state, socket| state.last_close_notify(socket));
        self.socket.shutdown(how)?;
        told
    }

    /// Sets how long each wait of a read may take: [`net::Stream::set_read_timeout`].
    ///
    /// # Errors
    ///
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(limit)
    }

    /// Sets how long a write waits for a peer that takes nothing: [`net::Stream::set_write_timeout`].
    ///
    /// # Errors
    ///
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket.set_write_timeout(limit)
    }

    /// Exports the connection as bytes, for another process that also gets the socket. There
    /// [`Acceptor::import`](crate::Acceptor::import) makes the stream.
    ///
    /// The bytes hold the keys of the connection: a reader of them can decrypt and forge its traffic. This stream stays as it is. Once the
    /// other process uses the connection, any use of this stream breaks it. Drop the stream; the drop sends nothing.
    ///
    /// # Suspends
    ///
    /// Never.
    ///
    /// # Errors
    ///
    /// A client's end, TLS 1.2, a handshake that has begun, records that wait for room in the socket, and a connection that has ended
    /// or failed.
    pub fn export(&self) -> Result<Vec<u8>, NotExportable> {
        let state = self.state();
        if state.is_fresh() {
            return Ok(Vec::new());
        }
        let mut to = Writer::default();
        state.export(&mut to)?;
        let agreed = self.agreed.get().ok_or(NotExportable("its handshake has begun"))?;
        to.optional(agreed.protocol.as_deref());
        to.number(agreed.peer_certificates.len() as u64);
        for certificate in &agreed.peer_certificates {
            to.text(certificate);
        }
        to.flag(agreed.is_resumed);
        to.optional(self.server_name().map(str::as_bytes));
        Ok(to.0)
    }

    pub(crate) fn import(socket: net::Stream, exported: &[u8]) -> Option<Stream> {
        let mut from = Reader(exported);
        let (state, cipher_suite) = State::import(&mut from)?;
        let protocol = from.optional()?.map(Box::from);
        let count = from.number()?;
        let agreed = Agreed {
            version: Version::Tls13,
            cipher_suite,
            protocol,
            peer_certificates: (0..count).map(|_| from.text().map(Box::from)).collect::<Option<_>>()?,
            is_resumed: from.flag()?,
        };
        let server_name = match from.optional()? {
            Some(name) => Some(std::str::from_utf8(name).ok()?.into()),
            None => None,
        };
        from.is_done().then(|| Stream {
            socket,
            state: Mutex::new(state),
            agreed: OnceLock::from(agreed),
            server_name: OnceLock::from(server_name),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // After a panic inside rustls the session itself refuses further calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one attempt under the lock, and notes what the handshake has brought.
    fn attempt<T>(
        &self,
        socket: &mut dyn Socket,
        waiter: Waiter<'_>,
        call: impl FnOnce(&mut State, &mut dyn Socket) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let mut state = self.state();
        let done = call(&mut state, socket);
        let shaking = match (&done, waiter) {
            (Err(Stop::Wait(Direction::Handshake)), Waiter::Fiber(interrupt)) => {
                *interrupt = Some(state.shaking());
                None
            }
            (Err(Stop::Wait(Direction::Handshake)), Waiter::Task(waker)) => {
                state.wake_shaking(waker);
                None
            }
            (Err(Stop::Wait(Direction::Handshake)), Waiter::Nobody) => None,
            _ => state.take_shaking(),
        };
        if let Err(Stop::Fail(_)) = done {
            // The alert that says why, if there is one.
            let _ = state.flush(socket);
        }
        if self.agreed.get().is_none() {
            if let Some(name) = state.take_server_name() {
                let _ = self.server_name.set(name);
            }
            if let Some(agreed) = state.take_agreed() {
                let _ = self.agreed.set(agreed);
            }
        }
        state.rest();
        drop(state);
        drop(shaking);
        done
    }

    fn at_once<T>(&self, call: impl FnOnce(&mut State, &mut dyn Socket) -> Result<T, Stop>) -> io::Result<T> {
        self.attempt(&mut &self.socket, Waiter::Nobody, call)
            .map_err(|stop| match stop {
                Stop::Wait(_) => io::ErrorKind::WouldBlock.into(),
                Stop::Fail(error) => error,
            })
    }

    /// Repeats the call until it need not wait.
    fn blocking<T>(&self, mut call: impl FnMut(&mut State, &mut dyn Socket) -> Result<T, Stop>) -> io::Result<T> {
        let mut patience = Patience::default();
        loop {
            match self.attempt(&mut &self.socket, Waiter::Fiber(&mut patience.interrupt), &mut call) {
                Ok(done) => return Ok(done),
                Err(Stop::Fail(error)) => return Err(error),
                Err(Stop::Wait(direction)) => patience.wait(self, direction)?,
            }
        }
    }

    /// Writes, and waits until the kernel has taken the records.
    fn write_slices(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let count = self.blocking(|state, socket| state.write(socket, slices))?;
        if let Err(error) = self.blocking(|state, socket| state.flush(socket)) {
            // The bytes are taken: a caller that writes them again would repeat them. If they still wait, the next call
            // finds the same error. A wait that has timed out is not made twice.
            match error.kind() {
                io::ErrorKind::TimedOut => self.state().note_timeout(),
                _ if error.raw_os_error().is_some() => return Err(error),
                _ => {}
            }
        }
        Ok(count)
    }
}

/// The caller that waits, if an attempt within the handshake has to wait.
enum Waiter<'a> {
    /// The caller of a call that never waits.
    Nobody,
    /// A fiber, which gets the signal that ends its wait. Or a plain thread.
    Fiber(&'a mut Option<Interrupt>),
    #[cfg_attr(not(feature = "futures"), expect(dead_code, reason = "only futures are tasks"))]
    Task(&'a Waker),
}

/// The longest wait of a plain thread within a handshake before it tries again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The time that one call may wait.
#[derive(Default)]
struct Patience {
    read_deadline: Option<Instant>,
    /// Ends a wait within the handshake.
    interrupt: Option<Interrupt>,
}

impl Patience {
    fn wait(&mut self, stream: &Stream, direction: Direction) -> io::Result<()> {
        match direction {
            Direction::Handshake => self.wait_shaking(&stream.socket),
            Direction::Read => self.wait_readable(&stream.socket, Duration::MAX),
            Direction::Write => wait_writable(&stream.socket),
        }
    }

    /// Waits for bytes, or for another call to have read them.
    fn wait_shaking(&mut self, socket: &net::Stream) -> io::Result<()> {
        let longest = match osier::fiber::current() {
            Some(_) => Duration::MAX,
            None => LOOK_AGAIN,
        };
        let interrupt = self.interrupt.take().unwrap_or_default();
        let waited = interrupt.guard(|| self.wait_readable(socket, longest));
        waited.unwrap_or(Ok(()))
    }

    /// Waits for bytes, no longer than `longest` at once. The deadline is that of the whole call.
    fn wait_readable(&mut self, socket: &net::Stream, longest: Duration) -> io::Result<()> {
        let Some(limit) = socket.read_timeout()? else {
            return socket.wait_readable(longest).map(drop);
        };
        let now = osier::time::now();
        self.read_deadline = self.read_deadline.or_else(|| now.checked_add(limit));
        // A limit beyond all clocks is none.
        let Some(deadline) = self.read_deadline else {
            return socket.wait_readable(longest).map(drop);
        };
        let rest = deadline.saturating_duration_since(now);
        match socket.wait_readable(rest.min(longest))? {
            false if rest <= longest => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

/// Waits for room in the socket. A slow peer that acknowledges bytes gets the time again, as with a TCP stream.
fn wait_writable(socket: &net::Stream) -> io::Result<()> {
    let limit = socket.write_timeout()?;
    let mut before = socket.unacknowledged();
    while !socket.wait_writable(limit.unwrap_or(Duration::MAX))? {
        if !socket.progressed(before) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        before = socket.unacknowledged();
    }
    Ok(())
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.blocking(|state, socket| state.read(socket, buf))
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_slices(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_slices(bufs)
    }

    /// Waits until the kernel has taken all records. Only after an error of a write can some wait.
    fn flush(&mut self) -> io::Result<()> {
        self.blocking(|state, socket| state.flush(socket))
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("socket", &self.socket)
            .field("agreed", &self.agreed.get())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use osier::net::UnixStream;

    use super::*;
    use crate::{Acceptor, Connector, Error, Identity};

    #[cfg(feature = "futures")]
    #[test]
    fn a_waker_that_panics_keeps_no_other_task_asleep() {
        struct Woken(std::sync::atomic::AtomicBool, bool);

        impl std::task::Wake for Woken {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
                if self.1 {
                    std::panic::resume_unwind(Box::new("a waker's own"));
                }
            }
        }

        let (_client, server) = ends();
        let tasks = [true, false].map(|panics| std::sync::Arc::new(Woken(false.into(), panics)));
        for task in &tasks {
            server.state().wake_shaking(&Waker::from(task.clone()));
        }
        let shaking = server.state().take_shaking();
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(shaking)));
        assert!(
            tasks
                .iter()
                .all(|task| task.0.load(std::sync::atomic::Ordering::Relaxed))
        );
    }

    /// The client's and the server's end.
    fn ends() -> (Stream, Stream) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
        let acceptor = Acceptor::builder(identity).build().unwrap();
        let connector = Connector::builder().ca_pem(chain.as_bytes()).build().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        (connector.connect("localhost", near).unwrap(), acceptor.accept(far))
    }

    /// Other calls end the handshake. After it the client sends nothing more.
    fn shake(client: &Stream, server: &Stream) {
        while !(client.is_established() && server.is_established()) {
            let _ = (client.try_handshake(), server.try_handshake());
        }
    }

    #[test]
    fn a_call_that_waits_wakes_after_another_has_ended_the_handshake() {
        let waits = || {
            let (client, server) = ends();
            let mut patience = Patience::default();
            let waiter = Waiter::Fiber(&mut patience.interrupt);
            let stopped = server.attempt(&mut &server.socket, waiter, |state, socket| state.write(socket, &[]));
            let Err(Stop::Wait(direction)) = stopped else {
                panic!("{stopped:?}")
            };
            // Before this one waits.
            shake(&client, &server);
            patience.wait(&server, direction).unwrap();
        };
        waits(); // on a plain thread, which looks again
        osier::run(waits);
    }

    /// Has an identity after some questions.
    struct Later {
        identity: Identity,
        questions: std::sync::atomic::AtomicU32,
    }

    impl crate::Resolver for Later {
        fn find(&self, hello: &crate::Hello<'_>) -> Option<Identity> {
            match self.questions.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                0..3 => {
                    hello.defer();
                    None
                }
                3 => Some(self.identity.clone()),
                _ => None,
            }
        }
    }

    #[test]
    fn a_deferred_handshake_goes_on_with_the_next_call() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let later = Later {
            identity: Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap(),
            questions: std::sync::atomic::AtomicU32::new(0),
        };
        let acceptor = Acceptor::builder(later).build().unwrap();
        let connector = Connector::builder().ca_pem(chain.as_bytes()).build().unwrap();
        let pair = || {
            let (near, far) = UnixStream::pair().unwrap();
            (connector.connect("localhost", near).unwrap(), acceptor.accept(far))
        };
        let error = |done: io::Result<()>| Error::of(&done.unwrap_err()).cloned();

        let (client, server) = pair();
        let is_blocked = |done: io::Result<()>| done.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        assert!(is_blocked(client.try_handshake()));
        for _ in 0..3 {
            let deferred = error(server.try_handshake()).unwrap();
            assert!(deferred.is_deferred(), "{deferred}");
            assert_eq!(server.server_name(), Some("localhost"));
            assert!(
                !server.has_unsent() && is_blocked(client.try_handshake()),
                "the client hears nothing"
            );
        }
        shake(&client, &server);
        (&client).write_all(b"hello").unwrap();
        let mut got = [0; 5];
        (&server).read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");

        // A name that is refused later ends the handshake as any other.
        let (client, server) = pair();
        assert!(is_blocked(client.try_handshake()));
        assert!(!error(server.try_handshake()).unwrap().is_deferred());
        assert!(error(client.try_handshake()).unwrap().is_alert());
    }

    /// Middleboxes cut long first messages, and a post-quantum key share makes them long.
    #[test]
    fn a_first_message_in_several_records_can_be_deferred() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
        let connector = Connector::builder().ca_pem(chain.as_bytes()).build().unwrap();
        for (piece, is_dripping) in [(3, false), (100, false), (100, true), (150, false)] {
            let questions = std::sync::atomic::AtomicU32::new(0);
            let identity = identity.clone();
            let acceptor = Acceptor::builder(Later { identity, questions }).build().unwrap();
            let (near, mut cut) = UnixStream::pair().unwrap();
            let client = connector.connect("localhost", near).unwrap();
            let is_blocked = |done: io::Result<()>| done.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            assert!(is_blocked(client.try_handshake()));
            let mut hello = [0; 8 << 10];
            let count = cut.read(&mut hello).unwrap();
            let (head, message) = hello[..count].split_at(5);
            let (mut near, far) = UnixStream::pair().unwrap();
            let server = acceptor.accept(far);
            for part in message.chunks(piece) {
                near.write_all(&head[..3]).unwrap();
                near.write_all(&(part.len() as u16).to_be_bytes()).unwrap();
                if is_dripping {
                    assert!(is_blocked(server.try_handshake()));
                }
                near.write_all(part).unwrap();
            }
            for _ in 0..3 {
                let error = server.try_handshake().unwrap_err();
                assert!(Error::of(&error).unwrap().is_deferred(), "{piece}: {error}");
                assert!(!server.has_unsent());
            }
            assert_eq!(server.server_name(), Some("localhost"));
            // The hash of the handshake is over messages, not over records.
            assert!(is_blocked(server.try_handshake()));
            let count = near.read(&mut hello).unwrap();
            cut.write_all(&hello[..count]).unwrap();
            client.try_handshake().unwrap();
            let count = cut.read(&mut hello).unwrap();
            near.write_all(&hello[..count]).unwrap();
            server.try_handshake().unwrap();
        }
    }

    #[cfg(feature = "futures")]
    #[test]
    fn a_task_that_waits_is_woken_by_the_task_that_has_read_its_bytes() {
        use std::sync::atomic::{AtomicUsize, Ordering};

        struct Count(AtomicUsize);

        impl std::task::Wake for Count {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let (client, server) = ends();
        let count = std::sync::Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        for _ in 0..3 {
            // The socket keeps no waker here, so no event of it can wake the task.
            let stopped = server.attempt(&mut &server.socket, Waiter::Task(&waker), |state, socket| {
                state.handshake(socket)
            });
            assert!(matches!(stopped, Err(Stop::Wait(Direction::Handshake))), "{stopped:?}");
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        shake(&client, &server);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(server.state().shaking.is_none());
    }
}
