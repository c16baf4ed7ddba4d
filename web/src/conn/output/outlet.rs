//! A body on its way into the output of a burst: what its producer writes to, and the framing.

use std::cell::RefMut;
#[cfg(feature = "sendfile")]
use std::fs::File;
use std::io::{self, Write};
#[cfg(feature = "sendfile")]
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use osier::fiber::{Activity, waits_for};
#[cfg(feature = "sendfile")]
use osier::io::FileProgress;
use osier::sync::Event;
use osier_http::{CHUNK_END, ChunkHead};

use super::{CHUNK_MAX, CHUNK_ROOM, Flushed, HIGH_WATER, LARGE, Output, OutputState, patience};
use crate::conn::peer::Sink;
#[cfg(feature = "sendfile")]
use crate::conn::rest::{FilePart, LeftFile, Rest};
use crate::conn::trailers::Trailers;
use crate::conn::transport::Transport;

impl<'c> Output<'c> {
    /// Returns a writer for a body that is produced piece by piece. With `chunked`, it frames the
    /// pieces as chunks. The body has passed on `passed` bytes before.
    pub(crate) fn body_writer(&self, chunked: bool, passed: u64) -> BodyWriter<'_, 'c> {
        // A body without chunks has left its trailer here.
        self.state().trailers = Trailers::new();
        BodyWriter {
            output: self,
            chunked,
            count: passed,
            stalled: None,
        }
    }
}

/// Code that writes a streamed body.
pub(crate) type Producer = Box<dyn FnOnce(&mut dyn Outlet) -> io::Result<()>>;

/// The rest of a streamed body, whose code waits without a stack.
pub(crate) struct PausedCode {
    /// The code that goes on.
    pub(crate) code: Pin<Box<dyn Future<Output = Producer>>>,
    /// The reason of the wait, for the times of the request.
    pub(crate) waits_for: Activity,
}

/// The destination of a body that is produced while it is being sent.
#[cfg_attr(
    not(all(feature = "proxy", feature = "sse")),
    allow(
        dead_code,
        reason = "the proxy moves bytes without reading them, and streams of events watch the client"
    )
)]
pub(crate) trait Outlet: Write {
    /// Returns the client's byte stream after everything written before has been sent. It is for a
    /// caller that moves bytes without reading them, and reports them by [`sent`](Outlet::sent).
    /// `None` if the bytes must be framed, encoded or kept.
    fn direct(&mut self) -> io::Result<Option<&Transport>> {
        Ok(None)
    }

    /// Sends the written bytes as far as the client takes them at once. Never suspends.
    fn try_flush(&mut self) -> io::Result<Flushed> {
        Ok(Flushed::Unknown)
    }

    /// Sends bytes of a part of a file, and returns how many: fewer than `len`, or none, if the client takes none for a while.
    /// The bytes must not change afterwards: they may still wait in the client's socket.
    ///
    /// # Suspends
    ///
    /// While the client takes no more.
    #[cfg(feature = "sendfile")]
    fn write_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<u64> {
        copy_file(file, offset, len, self)?;
        Ok(len)
    }

    /// Sends a part of a file, the last bytes of the body. They may leave after the caller has returned.
    ///
    /// # Suspends
    ///
    /// While the client takes no more, if they do not.
    #[cfg(feature = "sendfile")]
    fn leave_file(&mut self, file: LeftFile, mut offset: u64, mut len: u64) -> io::Result<()> {
        while len > 0 {
            let count = self.write_file(&file, offset, len)?;
            (offset, len) = (offset + count, len - count);
        }
        Ok(())
    }

    /// Waits until the client takes bytes, for a while. Returns whether it does. An outlet that implements
    /// [`try_flush`](Outlet::try_flush) implements this, too.
    ///
    /// # Suspends
    ///
    /// Until then.
    ///
    /// # Errors
    ///
    /// `TimedOut` if the client has not taken a byte within the write timeout.
    fn takes_bytes(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Sets the trailer of the body. It is dropped where the bytes are encoded or kept.
    fn set_trailers(&mut self, trailers: Trailers) {
        let _ = trailers;
    }

    /// Gives back memory before a wait that takes long: that of the empty buffer, and the unused part of the stack.
    fn shrink(&mut self) {}

    /// The time that the body waits before it [pauses](Outlet::pause). `None` if it may not pause.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// The event of the graceful shutdown.
    fn shutdown(&self) -> Option<Arc<Event>> {
        None
    }

    /// Leaves the rest of the body to `paused`. Everything written has been sent. The caller returns, and holds no stack until the future
    /// is ready.
    ///
    /// # Panics
    ///
    /// If the body [may not](Outlet::patience) pause.
    fn pause(&mut self, paused: PausedCode) {
        drop(paused);
        unreachable!("the caller has asked whether it may")
    }

    /// Runs a wait of the server's own, and ends it when the client leaves. The wait gets the event of
    /// the graceful shutdown.
    ///
    /// # Errors
    ///
    /// `ConnectionAborted` when the client has left.
    fn while_connected(&mut self, wait: &mut dyn FnMut(Option<&Event>)) -> io::Result<()> {
        wait(None);
        Ok(())
    }

    /// Records how many bytes the caller has sent over the socket, or that the client takes no
    /// more.
    fn sent(&mut self, sent: io::Result<usize>) -> io::Result<()> {
        sent.map(drop)
    }
}

/// Copies a part of a file. It is in the page cache, because it has just been written.
#[cfg(feature = "sendfile")]
fn copy_file(file: &File, mut offset: u64, mut len: u64, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    let mut piece = vec![0; LARGE];
    while len > 0 {
        let most = usize::try_from(len).unwrap_or(LARGE).min(LARGE);
        let count = file.read_at(&mut piece[..most], offset)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.write_all(&piece[..count])?;
        (offset, len) = (offset + count as u64, len - count as u64);
    }
    Ok(())
}

impl Outlet for BodyWriter<'_, '_> {
    fn set_trailers(&mut self, trailers: Trailers) {
        self.output.state().trailers = trailers;
    }

    fn patience(&self) -> Option<Duration> {
        self.output.state().patience
    }

    fn shutdown(&self) -> Option<Arc<Event>> {
        self.output.shutdown.cloned()
    }

    fn pause(&mut self, paused: PausedCode) {
        let mut state = self.output.state();
        assert!(state.patience.is_some(), "the caller has asked whether it may");
        debug_assert!(
            state.buffer.is_empty() && state.rest.is_none(),
            "everything has been sent"
        );
        state.paused = Some(paused);
    }

    fn while_connected(&mut self, wait: &mut dyn FnMut(Option<&Event>)) -> io::Result<()> {
        let shutdown = self.output.shutdown;
        let waited = self
            .output
            .sink
            .while_connected(|| wait(shutdown.map(|shutdown| &**shutdown)));
        waited.inspect_err(|error| self.output.state().fail(self.output.sink, error))
    }

    fn direct(&mut self) -> io::Result<Option<&Transport>> {
        match self.output.sink {
            Sink::Transport(transport) if !self.chunked => {
                let mut state = self.output.state();
                if state.broken || !state.buffer.is_empty() {
                    state.flush(self.output.sink, &[])?;
                }
                Ok(Some(transport))
            }
            _ => Ok(None),
        }
    }

    fn try_flush(&mut self) -> io::Result<Flushed> {
        self.output.try_flush()
    }

    #[cfg(feature = "sendfile")]
    fn write_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<u64> {
        self.output.flush()?;
        let transport = match self.output.sink {
            Sink::Transport(transport) if !self.chunked => transport,
            _ => return self.write_whole_file(file, offset, len),
        };
        let mut progress = FileProgress::default();
        let done = transport.try_send_file(file, offset, len, || Ok(()), &mut progress);
        let sent = progress.sent;
        self.count += sent;
        if sent > 0 {
            self.stalled = None;
        }
        match done {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.takes_bytes()?;
                Ok(sent)
            }
            Err(error) => Err(self.output.file_failed(error, 0)),
            Ok(()) => Ok(sent),
        }
    }

    #[cfg(feature = "sendfile")]
    fn leave_file(&mut self, file: LeftFile, offset: u64, len: u64) -> io::Result<()> {
        // Only a connection of its own could send the rest.
        if !self.output.state().may_leave || !matches!(self.output.sink, Sink::Transport(_)) {
            self.write_whole_file(&file, offset, len)?;
            return Ok(());
        }
        let mut state = self.output.state();
        if state.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        state.close_chunk();
        let mut before = state.buffer.clone();
        state.buffer.clear();
        if self.chunked {
            before.extend_from_slice(ChunkHead::new(len).as_bytes());
            state.buffer.extend_from_slice(CHUNK_END);
        }
        state.rest = Some(Box::new(Rest {
            file,
            parts: vec![FilePart { before, offset, len }],
            tail: Vec::new(),
            progress: FileProgress::default(),
        }));
        self.count += len;
        Ok(())
    }

    fn shrink(&mut self) {
        let mut state = self.output.state();
        if state.buffer.is_empty() {
            state.buffer = Vec::new();
        }
        drop(state);
        osier::fiber::shrink_stack();
    }

    fn takes_bytes(&mut self) -> io::Result<bool> {
        let Sink::Transport(transport) = self.output.sink else {
            return Ok(true);
        };
        let stream = transport.socket();
        let limit = stream.write_timeout()?;
        let (since, before) = *self
            .stalled
            .get_or_insert_with(|| (osier::time::coarse_now(), stream.unacknowledged()));
        let waited = {
            // The hook of the fiber would write what the client does not take, and wait for longer.
            let _state = self.output.state();
            waits_for(Activity::Writing, || stream.wait_writable(patience(limit)))
        };
        match waited {
            Ok(true) => {
                self.stalled = None;
                return Ok(true);
            }
            Ok(false) => {}
            Err(error) => return self.sent(Err(error)).map(|()| false),
        }
        self.shrink();
        let now = osier::time::coarse_now();
        if limit.is_some_and(|limit| now.saturating_duration_since(since) >= limit) {
            if !stream.progressed(before) {
                self.sent(Err(io::ErrorKind::TimedOut.into()))?;
            }
            self.stalled = Some((now, stream.unacknowledged()));
        }
        Ok(false)
    }

    fn sent(&mut self, sent: io::Result<usize>) -> io::Result<()> {
        match sent {
            Ok(count) => {
                self.count += count as u64;
                if count > 0 {
                    self.stalled = None;
                }
            }
            Err(error) => {
                self.output.state().fail(self.output.sink, &error);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// A writer for a body of unknown length, or one that is produced piece by piece.
pub(crate) struct BodyWriter<'o, 'c> {
    output: &'o Output<'c>,
    chunked: bool,
    pub(crate) count: u64,
    /// Since when the client has taken nothing, and what it had not acknowledged then.
    stalled: Option<(Instant, Option<usize>)>,
}

impl Write for BodyWriter<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.output.state();
        if state.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if bytes.len() >= LARGE {
            return self.write_large(state, bytes);
        }
        let mut room = HIGH_WATER.saturating_sub(state.buffer.len()).max(1);
        if self.chunked {
            let begin = match state.chunk {
                Some(begin) => begin,
                None => {
                    state.buffer.extend_from_slice(CHUNK_ROOM);
                    let begin = state.buffer.len();
                    state.chunk = Some(begin);
                    begin
                }
            };
            room = room.min(CHUNK_MAX - (state.buffer.len() - begin));
        }
        let count = room.min(bytes.len());
        state.buffer.extend_from_slice(&bytes[..count]);
        self.count += count as u64;
        if count == room || state.buffer.len() >= HIGH_WATER {
            state.flush(self.output.sink, &[])?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl BodyWriter<'_, '_> {
    /// Sends a part of a file to its end.
    #[cfg(feature = "sendfile")]
    fn write_whole_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<u64> {
        self.output.flush()?;
        let mut state = self.output.state();
        // The client may take long, so no buffer is held.
        state.buffer = Vec::new();
        if self.chunked {
            state.buffer.extend_from_slice(ChunkHead::new(len).as_bytes());
        }
        drop(state);
        self.count += self.output.send_file(file, offset, len)?;
        if self.chunked {
            self.output.write(CHUNK_END);
        }
        Ok(len)
    }

    /// Sends the collected bytes and then `bytes`, without copying `bytes`.
    fn write_large(&mut self, mut state: RefMut<'_, OutputState>, bytes: &[u8]) -> io::Result<usize> {
        state.close_chunk();
        if self.chunked {
            state
                .buffer
                .extend_from_slice(ChunkHead::new(bytes.len() as u64).as_bytes());
        }
        state.flush(self.output.sink, bytes)?;
        if self.chunked {
            state.buffer.extend_from_slice(CHUNK_END);
        }
        self.count += bytes.len() as u64;
        Ok(bytes.len())
    }
}
