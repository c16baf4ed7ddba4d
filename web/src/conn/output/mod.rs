//! The output of a burst: one buffer collects its responses, in order, so that few writes send
//! them.
//!
//! An [`Output`] lives on the stack of a fiber for one burst. It is flushed
//!
//! - at the end of the burst and at [`HIGH_WATER`],
//! - by bodies that do not fit the buffer,
//! - before `100 Continue`,
//! - by the fiber's hook, before the fiber suspends for any reason.
//!
//! All of that happens on one fiber, so a `RefCell` is enough. The cell stays borrowed while a
//! flush waits for the client. The hook runs before that wait too, finds the cell borrowed, and
//! does nothing.
//!
//! After a failed write the output is broken: new bytes are dropped, and every flush fails.

mod outlet;

use std::cell::{RefCell, RefMut};
#[cfg(feature = "sendfile")]
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use osier::fiber::{Activity, waits_for};
#[cfg(feature = "sendfile")]
use osier::io::FileProgress;
use osier::memory::Account;
use osier::net::Stream;
use osier::sync::Event;
use osier_http::LAST_CHUNK;

#[cfg(feature = "sendfile")]
use crate::conn::buffers::{self, Size};
use crate::conn::close::CloseReason;
use crate::conn::peer::{SLOW_AFTER, Sink};
#[cfg(feature = "sendfile")]
use crate::conn::rest::FilePart;
use crate::conn::rest::{Rest, write_now};
use crate::conn::trailers::Trailers;
use crate::conn::transport::Transport;

pub(crate) use outlet::{BodyWriter, Outlet, PausedCode, Producer};

/// Bytes in the buffer that cause a flush.
pub(crate) const HIGH_WATER: usize = 64 << 10;

/// Smallest piece of a streamed body that is sent without a copy. Smaller pieces are collected.
const LARGE: usize = 32 << 10;

/// Smallest file whose head is sent in a packet of its own. (Measured for 1 MiB over loopback with
/// 64 connections: 93 us of CPU per response apart, 110 us together.)
#[cfg(feature = "sendfile")]
const JOINED: u64 = 64 << 10;

/// Place for the length of an open chunk: four hexadecimal digits and CRLF.
const CHUNK_ROOM: &[u8; 6] = b"0000\r\n";

/// Most bytes of a chunk that begins with [`CHUNK_ROOM`].
const CHUNK_MAX: usize = 0xffff;

pub(crate) struct Output<'c> {
    sink: Sink<'c>,
    state: RefCell<OutputState>,
    /// Set when the graceful shutdown begins; `None` for a test without a server.
    shutdown: Option<&'c Arc<Event>>,
}

pub(crate) struct OutputState {
    pub(crate) buffer: Vec<u8>,
    /// Where the data of the open chunk begins. The length of the chunk is not written yet.
    chunk: Option<usize>,
    broken: bool,
    /// Why it is broken.
    why: CloseReason,
    /// Bytes of the body that the failed write has sent, apart from collected ones.
    cut: u64,
    /// Number of flushes so far.
    flushes: u64,
    /// Whether a file may be left to the connection.
    #[cfg_attr(not(feature = "sendfile"), allow(dead_code, reason = "only files are left"))]
    may_leave: bool,
    /// Whether a cancellation may drop what is left.
    in_frame: bool,
    /// The time that the body that is being sent waits before it pauses, if it may.
    patience: Option<Duration>,
    /// The rest of a body that has paused.
    paused: Option<PausedCode>,
    /// The trailer of the body that is being sent.
    trailers: Trailers,
    /// The file that a slow client has not taken. The buffer then holds the bytes behind it.
    rest: Option<Box<Rest>>,
}

/// A place in the output. Bytes after it can be taken back until the next flush.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    len: usize,
    flushes: u64,
}

impl<'c> Output<'c> {
    /// Makes an output on `buffer`, which must be empty.
    pub(crate) fn new(sink: impl Into<Sink<'c>>, buffer: Vec<u8>) -> Self {
        Output::made(sink.into(), buffer, None)
    }

    /// Does the same. Makes waits of the server's own end when `shutdown` is set.
    pub(crate) fn until(sink: impl Into<Sink<'c>>, buffer: Vec<u8>, shutdown: &'c Arc<Event>) -> Self {
        Output::made(sink.into(), buffer, Some(shutdown))
    }

    /// Makes an output where the caller wants it: it is wide, and moving it costs more than making it.
    #[inline(always)]
    fn made(sink: Sink<'c>, buffer: Vec<u8>, shutdown: Option<&'c Arc<Event>>) -> Self {
        debug_assert!(buffer.is_empty());
        Output {
            sink,
            state: RefCell::new(OutputState {
                buffer,
                chunk: None,
                broken: false,
                why: CloseReason::Client,
                cut: 0,
                flushes: 0,
                may_leave: false,
                in_frame: false,
                patience: None,
                paused: None,
                trailers: Trailers::new(),
                rest: None,
            }),
            shutdown,
        }
    }

    /// Takes the buffer, emptied, when the output is no longer needed.
    pub(crate) fn take_buffer(&self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.state().buffer);
        buffer.clear();
        buffer
    }

    /// Ends the output, and returns the bytes that have not been sent, and the trailer.
    #[cfg(feature = "h2")]
    pub(crate) fn into_last(self) -> (Vec<u8>, Trailers) {
        let state = self.state.into_inner();
        (state.buffer, state.trailers)
    }

    /// The state, for appending to the buffer.
    #[inline]
    pub(crate) fn state(&self) -> RefMut<'_, OutputState> {
        self.state.borrow_mut()
    }

    pub(crate) fn write(&self, bytes: &[u8]) {
        self.state().buffer.extend_from_slice(bytes);
    }

    #[inline]
    pub(crate) fn mark(&self) -> Mark {
        let state = self.state.borrow();
        Mark {
            len: state.buffer.len(),
            flushes: state.flushes,
        }
    }

    /// Takes back the bytes added since `mark`. Returns `false` if some of them have been sent.
    pub(crate) fn take_back(&self, mark: Mark) -> bool {
        let mut state = self.state();
        let still_there = state.flushes == mark.flushes && !state.broken;
        if still_there {
            state.buffer.truncate(mark.len);
            state.chunk = None;
        }
        still_there
    }

    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.state.borrow().broken
    }

    /// The reason for closing a connection whose client is gone or takes no more.
    pub(crate) fn close_reason(&self) -> CloseReason {
        self.state.borrow().why
    }

    /// Bytes of the body that a failed write of them has sent.
    pub(crate) fn cut(&self) -> u64 {
        self.state.borrow().cut
    }

    /// Sends the collected bytes.
    ///
    /// # Suspends
    ///
    /// May suspend until the client has taken the bytes. The stream's write timeout bounds the time
    /// without progress.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.state().flush(self.sink, &[])
    }

    /// Sends the collected bytes as far as the client takes them at once.
    pub(crate) fn try_flush(&self) -> io::Result<Flushed> {
        waits_for(Activity::Writing, || self.state().try_send(self.sink))
    }

    /// Sends the collected bytes, and waits until the socket has taken all that was sent before.
    ///
    /// # Suspends
    ///
    /// As [`flush`](Output::flush) does.
    pub(crate) fn settle(&self) -> io::Result<()> {
        self.state().send(self.sink, &[])?;
        match self.sink {
            Sink::Transport(mut transport) => transport.flush(),
            Sink::Stream(_) | Sink::Memory(_) => Ok(()),
        }
    }

    /// Same as [`settle`](Output::settle), for the last bytes before the sending direction ends. Returns whether the kernel holds them
    /// back: the end then leaves in the packet of these bytes, and the caller makes it at once.
    ///
    /// # Suspends
    ///
    /// As [`flush`](Output::flush) does.
    pub(crate) fn settle_last(&self) -> io::Result<bool> {
        match self.sink {
            Sink::Transport(transport) => self.state().send_last(transport),
            Sink::Stream(_) | Sink::Memory(_) => self.settle().map(|()| false),
        }
    }

    /// Flushes before a suspension, for the fiber's hook. The next write reports an error again.
    pub(crate) fn flush_before_suspension(&self) {
        if let Ok(mut state) = self.state.try_borrow_mut()
            && !state.buffer.is_empty()
        {
            let _ = state.flush(self.sink, &[]);
        }
    }

    /// Sends the collected bytes and then `bytes`, without copying `bytes`.
    pub(crate) fn send_in_place(&self, mut state: RefMut<'_, OutputState>, bytes: &[u8]) -> io::Result<()> {
        state.flush(self.sink, bytes)
    }

    /// Whether the body that is being sent has got its trailer.
    pub(crate) fn has_trailer(&self) -> bool {
        !self.state.borrow().trailers.is_empty()
    }

    /// Ends a chunked body.
    pub(crate) fn end_chunks(&self) {
        let mut state = self.state();
        state.close_chunk();
        let trailers = std::mem::take(&mut state.trailers);
        let (size, end) = LAST_CHUNK.split_at(LAST_CHUNK.len() - 2);
        for part in [size, trailers.lines(), end] {
            state.buffer.extend_from_slice(part);
        }
    }

    /// Sends a part of a file. The head is sent right before it, or together with a small one.
    #[cfg(feature = "sendfile")]
    pub(crate) fn send_file(&self, file: &File, offset: u64, len: u64) -> io::Result<u64> {
        if self.collects_file(len) {
            return self.collect_file(file, offset, len);
        }
        let head = || self.state().flush_before_file(self.sink, len);
        let mut progress = FileProgress::default();
        let done = waits_for(Activity::Writing, || {
            self.sink.send_file(file, (offset, len), head, &mut progress)
        });
        match done {
            Ok(()) => Ok(len),
            Err(error) => Err(self.part_failed(error, len, progress.sent)),
        }
    }

    /// Whether so much of a file is best copied behind the collected bytes: it is copied anyway, and shares a record with them.
    #[cfg(feature = "sendfile")]
    #[inline]
    fn collects_file(&self, len: u64) -> bool {
        let is_framed = match self.sink {
            Sink::Transport(transport) => transport.plain().is_none(),
            Sink::Stream(_) => true,
            Sink::Memory(_) => false,
        };
        len < JOINED && is_framed
    }

    /// Adds a part of a file to the collected bytes.
    ///
    /// # Suspends
    ///
    /// While the disk is read, and as [`flush`](Output::flush) does.
    #[cfg(feature = "sendfile")]
    #[cold]
    fn collect_file(&self, file: &File, offset: u64, len: u64) -> io::Result<u64> {
        // The state is not borrowed while the fiber waits for the disk: its hook flushes then.
        let mut piece = buffers::take(Size::K64);
        let mut filled = 0;
        while filled < len as usize {
            match osier::io::read_at(file, offset + filled as u64, &mut piece[filled..len as usize]) {
                Ok(0) => return Err(self.file_failed(file_ended(len - filled as u64), 0)),
                Ok(count) => filled += count,
                Err(error) => return Err(self.file_failed(error, 0)),
            }
        }
        let mut state = self.state();
        state.buffer.extend_from_slice(&piece[..filled]);
        buffers::give(piece);
        match state.buffer.len() >= HIGH_WATER {
            true => state.flush(self.sink, &[]).map(|()| len),
            false => Ok(len),
        }
    }

    /// Sends parts of a file, each behind bytes of its own, and then `tail`. Returns the number of bytes. It leaves a part to
    /// the connection, and all that follow, if it [may](Output::let_leave) and the client takes nothing for a while.
    #[cfg(feature = "sendfile")]
    pub(crate) fn send_parts(
        &self,
        file: Arc<File>,
        mut parts: impl Iterator<Item = FilePart>,
        tail: Vec<u8>,
    ) -> io::Result<u64> {
        let mut count = tail.len() as u64;
        while let Some(part) = parts.next() {
            self.write(&part.before);
            count += part.before.len() as u64;
            let len = part.len;
            let sent = match self.sink {
                Sink::Transport(transport) if self.state().may_leave && !self.collects_file(len) => {
                    self.send_patiently(&file, part, transport)
                }
                _ => self.send_file(&file, part.offset, len).map(|_| None),
            };
            // The tail is not sent yet.
            let left = sent.inspect_err(|_| self.state().cut += count - tail.len() as u64)?;
            count += len;
            if let Some(part) = left {
                let mut left: Vec<_> = std::iter::once(part).chain(parts).collect();
                count += left[1..].iter().map(FilePart::bytes).sum::<u64>();
                left.reverse();
                let rest = Rest {
                    file: file.into(),
                    parts: left,
                    tail: Vec::new(),
                    progress: FileProgress::default(),
                };
                let mut state = self.state();
                state.rest = Some(Box::new(rest));
                state.buffer.extend_from_slice(&tail);
                return Ok(count);
            }
        }
        self.write(&tail);
        Ok(count)
    }

    /// Sends a part of a file. If the client takes nothing for a while, it returns what is left of the part.
    #[cfg(feature = "sendfile")]
    fn send_patiently(&self, file: &File, mut part: FilePart, transport: &Transport) -> io::Result<Option<FilePart>> {
        let patience = patience(transport.socket().write_timeout()?);
        let mut head = Some(|| self.state().flush_before_file(self.sink, part.len));
        let mut progress = FileProgress::default();
        loop {
            let (at, left) = (part.offset + progress.sent, part.len - progress.sent);
            let before = || head.take().map_or(Ok(()), |head| head());
            let done = transport.try_send_file(file, at, left, before, &mut progress);
            let sent = progress.sent;
            match done {
                Ok(()) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(self.part_failed(error, part.len, sent)),
            }
            match waits_for(Activity::Writing, || transport.socket().wait_writable(patience)) {
                Ok(true) => {}
                Ok(false) => {
                    (part.offset, part.len, part.before) = (part.offset + sent, part.len - sent, Vec::new());
                    return Ok(Some(part));
                }
                Err(error) => return Err(self.file_failed(error, sent)),
            }
        }
    }

    /// Same as [`file_failed`](Output::file_failed), for a part of `len` bytes. A file that ends before is named as the cause.
    #[cold]
    #[cfg(feature = "sendfile")]
    fn part_failed(&self, error: io::Error, len: u64, sent: u64) -> io::Error {
        let error = match error.kind() {
            io::ErrorKind::UnexpectedEof => file_ended(len - sent),
            _ => error,
        };
        self.file_failed(error, sent)
    }

    /// Notes that `sent` bytes of a file could be sent, and not all that were to be sent.
    #[cold]
    #[cfg(feature = "sendfile")]
    fn file_failed(&self, error: io::Error, sent: u64) -> io::Error {
        let mut state = self.state();
        state.fail(self.sink, &error);
        state.cut = sent;
        error
    }

    /// Sets whether [`send_parts`](Output::send_parts) may leave bytes to the connection, which the caller then takes by
    /// [`take_rest`](Output::take_rest). With a [`patience`](Outlet::patience), a body may also leave its code, which the caller takes
    /// by [`take_paused`](Output::take_paused).
    pub(crate) fn let_leave(&self, may_leave: bool, patience: Option<Duration>) {
        let mut state = self.state();
        state.may_leave = may_leave && !state.in_frame;
        let may_pause = state.may_leave && !matches!(self.sink, Sink::Memory(_));
        state.patience = patience.filter(|_| may_pause);
    }

    /// Whether the connection may wait without a stack, with nothing of a response sent.
    #[cfg(any(feature = "proxy", all(feature = "fastcgi", feature = "h2")))]
    pub(crate) fn may_rest(&self) -> bool {
        !self.state().in_frame && !matches!(self.sink, Sink::Memory(_))
    }

    /// Whether the body that is being sent has paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.state.borrow().paused.is_some()
    }

    /// Takes the rest of a body that has paused.
    pub(crate) fn take_paused(&self) -> Option<PausedCode> {
        let mut state = self.state();
        state.patience = None;
        state.paused.take()
    }

    /// Sets whether the burst runs in a frame that a cancellation ends. Such a frame drops what is left to the connection.
    pub(crate) fn enters_frame(&self, in_frame: bool) {
        self.state().in_frame = in_frame;
    }

    /// Takes the bytes that are left to the connection.
    pub(crate) fn take_rest(&self) -> Option<Box<Rest>> {
        let mut state = self.state();
        state.may_leave = false;
        let rest = state.rest.take();
        #[cfg(feature = "sendfile")]
        let rest = rest.map(|mut rest| {
            // The buffer goes back to the pool, with its room.
            rest.tail = state.buffer.as_slice().into();
            state.buffer.clear();
            rest
        });
        rest
    }
}

/// Time after which a client that takes nothing is slow, given the write timeout.
fn patience(limit: Option<Duration>) -> Duration {
    limit.map_or(SLOW_AFTER, |limit| SLOW_AFTER.min(limit / 2))
}

/// How far the bytes before a call of [`Outlet::try_flush`] have left.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    All,
    /// The client takes no more now. [`Outlet::takes_bytes`] waits until it does.
    Part,
    /// The outlet cannot tell without a wait.
    Unknown,
}

/// Whether a write that does not wait has only found no room.
fn is_no_failure(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

#[cfg(feature = "sendfile")]
fn file_ended(missing: u64) -> io::Error {
    let error = format!("a file ended {missing} bytes before the end that was promised");
    io::Error::new(io::ErrorKind::UnexpectedEof, error)
}

impl OutputState {
    /// Sends as [`send`](OutputState::send) does, for a request whose waits are measured.
    fn flush(&mut self, sink: Sink<'_>, tail: &[u8]) -> io::Result<()> {
        waits_for(Activity::Writing, || self.send(sink, tail))
    }

    /// Sends the collected bytes and then `tail`. Bytes behind a file that is left stay: the connection sends them.
    fn send(&mut self, sink: Sink<'_>, tail: &[u8]) -> io::Result<()> {
        let has_unsent = self.has_unsent()?;
        if self.rest.is_some() || (!has_unsent && tail.is_empty()) {
            debug_assert!(tail.is_empty());
            return Ok(());
        }
        if self.buffer.capacity() >= LARGE
            && tail.is_empty()
            && let Sink::Transport(Transport::Plain(stream)) = sink
            && let Some(done) = self.send_at_once(stream)
        {
            return self.sent(sink, done);
        }
        let room = self.buffer.capacity();
        // The client may make it wait for long.
        let _charge = (room >= LARGE).then(|| Account::REQUESTS.charge(room));
        let done = if tail.is_empty() {
            sink.write_all(&self.buffer)
        } else {
            sink.write_both(&self.buffer, tail, &mut self.cut)
        };
        self.sent(sink, done)
    }

    /// Sends the collected bytes as far as the client takes them at once.
    fn try_send(&mut self, sink: Sink<'_>) -> io::Result<Flushed> {
        let has_unsent = self.has_unsent()?;
        // Collected bytes come after the file.
        if self.rest.is_some() {
            return Ok(Flushed::Unknown);
        }
        let done = match sink {
            // TLS may still hold bytes of an earlier call.
            Sink::Transport(transport) => {
                let before = self.buffer.len();
                let done = write_now(transport, &mut self.buffer).and_then(|()| transport.try_flush());
                if done.as_ref().is_err_and(is_no_failure) {
                    self.flushes += u64::from(self.buffer.len() < before);
                    return Ok(Flushed::Part);
                }
                done
            }
            _ if !has_unsent => return Ok(Flushed::All),
            Sink::Stream(stream) if stream.room() < self.buffer.len() => return Ok(Flushed::Unknown),
            Sink::Stream(_) | Sink::Memory(_) => sink.write_all(&self.buffer),
        };
        self.sent(sink, done).map(|()| Flushed::All)
    }

    /// Sends what the client takes at once. `None` if bytes are left, for which it may make the server wait: they keep the memory that they
    /// need.
    fn send_at_once(&mut self, stream: &Stream) -> Option<io::Result<()>> {
        let count = match stream.try_write(&self.buffer) {
            Ok(count) if count == self.buffer.len() => return Some(Ok(())),
            Ok(count) => count,
            Err(error) if is_no_failure(&error) => 0,
            Err(error) => return Some(Err(error)),
        };
        self.buffer.drain(..count);
        self.buffer.shrink_to_fit();
        None
    }

    /// Sends the collected bytes, which the kernel may hold back. Returns whether there were any.
    fn send_last(&mut self, mut transport: &Transport) -> io::Result<bool> {
        if !self.has_unsent()? {
            return transport.flush().map(|()| false);
        }
        let done = transport.write_last(&self.buffer);
        self.sent(transport.into(), done).map(|()| true)
    }

    /// Whether collected bytes can be sent.
    ///
    /// # Errors
    ///
    /// `BrokenPipe` if a write has failed.
    fn has_unsent(&mut self) -> io::Result<bool> {
        self.close_chunk();
        if self.rest.is_some() {
            return Ok(false);
        }
        if self.broken {
            self.buffer.clear();
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(!self.buffer.is_empty())
    }

    /// Notes the outcome of sending the collected bytes.
    fn sent(&mut self, sink: Sink<'_>, done: io::Result<()>) -> io::Result<()> {
        self.flushes += 1;
        self.buffer.clear();
        if let Err(error) = &done {
            self.fail(sink, error);
        }
        done
    }

    /// Notes that a write has failed.
    #[cold]
    fn fail(&mut self, sink: Sink<'_>, error: &io::Error) {
        (self.broken, self.why) = (true, CloseReason::of_output(error));
        sink.failed(error);
    }

    /// Sends the collected bytes right before `len` bytes of a file.
    #[cfg(feature = "sendfile")]
    fn flush_before_file(&mut self, sink: Sink<'_>, len: u64) -> io::Result<()> {
        // The state is borrowed only while this runs. If the fiber waits for the disk before, its hook flushes.
        match len < JOINED {
            true => self.flush_joined(sink),
            false => self.flush(sink, &[]),
        }
    }

    /// Sends the collected bytes with a note for the kernel that more follow at once.
    #[cfg(feature = "sendfile")]
    fn flush_joined(&mut self, sink: Sink<'_>) -> io::Result<()> {
        // If the kernel takes all bytes now, head and file share a packet. Otherwise the client is
        // the slow part, not the extra packet.
        if !self.broken {
            self.flushes += 1;
            let count = sink.send_joined(&self.buffer);
            self.buffer.drain(..count);
        }
        if self.buffer.is_empty() && !self.broken {
            Ok(())
        } else {
            self.flush(sink, &[])
        }
    }

    /// Writes the length of the open chunk into its place.
    fn close_chunk(&mut self) {
        let Some(data) = self.chunk.take() else { return };
        let (head, mut len) = (data - CHUNK_ROOM.len(), self.buffer.len() - data);
        if len == 0 {
            self.buffer.truncate(head);
            return;
        }
        for digit in self.buffer[head..head + 4].iter_mut().rev() {
            *digit = b"0123456789abcdef"[len % 16];
            len /= 16;
        }
        self.buffer.extend_from_slice(b"\r\n");
    }
}
