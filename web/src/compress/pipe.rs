//! Encodes a streamed body between its handler and the output.
//!
//! ```text
//!   handler ─▶ pending: at most PENDING bytes ─▶ encoder, on the worker or on the pool ─▶ output
//! ```
//!
//! The first [`INLINE_BODY`] bytes of a stream and pieces of at most [`INLINE`] bytes are encoded on
//! the worker, no longer than a [`SLICE`]. All others go to the pool for blocking work with the
//! encoder, one slice at a time, and the worker serves other connections meanwhile. A handler that
//! writes many small pieces without waiting gives way after each slice.
//!
//! The encoder is away while the pool has it. The cell stays borrowed then, so the hook of the fiber
//! finds it borrowed and does nothing: the output already has all encoded bytes.

use std::cell::RefCell;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use osier::sync::Event;

use super::accept_encoding::Coding;
use super::encoder::{Effort, Encoder};
use super::{INLINE, INLINE_BODY, SLICE, pool, to_the_end};
use crate::conn::output::{Flushed, Outlet};
use crate::conn::trailers::Trailers;

/// Most bytes that wait for the encoder.
const PENDING: usize = 64 << 10;

/// Encodes the bytes that `produce` writes while it writes them. Fails if `len` is known and
/// `produce` writes another number of bytes.
pub(super) fn pipe(
    out: &mut dyn Outlet,
    coding: Coding,
    len: Option<u64>,
    produce: impl FnOnce(&mut dyn Outlet) -> io::Result<()>,
) -> io::Result<()> {
    let pipe = RefCell::new(Pipe {
        encoder: Some(Encoder::new(coding, Effort::once(len), None)?),
        pending: Vec::new(),
        inline_left: INLINE_BODY,
        worked: Duration::ZERO,
        out,
        held: 0,
        taken: 0,
    });
    let hook = || {
        if let Ok(mut pipe) = pipe.try_borrow_mut() {
            // The output keeps the error and returns it from the next write.
            let _ = pipe.push_out();
            pipe.worked = Duration::ZERO;
        }
    };
    osier::fiber::before_suspend(&hook, || produce(&mut Ref(&pipe)))?;
    let pipe = pipe.into_inner();
    if len.is_some_and(|len| pipe.taken != len) {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the length of a response body is not the announced one",
        ));
    }
    pipe.finish()
}

/// Encoder between the handler and the output.
struct Pipe<'o> {
    /// `None` while the pool has it, and for ever if the fiber was cancelled meanwhile.
    encoder: Option<Encoder>,
    /// Bytes from the handler that the encoder does not have yet.
    pending: Vec<u8>,
    /// How many more bytes the worker may encode.
    inline_left: usize,
    /// How long the worker has encoded since the fiber suspended.
    worked: Duration,
    out: &'o mut dyn Outlet,
    /// Bytes that the encoder may hold back: those since its last flush.
    held: usize,
    /// Bytes accepted from the handler.
    taken: u64,
}

/// The step of the encoder after the pending bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    GoOn,
    Flush,
}

impl Pipe<'_> {
    fn take(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PENDING - self.pending.len());
        self.pending.extend_from_slice(&bytes[..count]);
        self.taken += count as u64;
        if self.pending.len() == PENDING {
            self.encode(Then::GoOn)?;
        }
        Ok(count)
    }

    /// Moves everything written so far to the output.
    fn push_out(&mut self) -> io::Result<()> {
        match self.held + self.pending.len() {
            0 => Ok(()),
            _ => self.encode(Then::Flush),
        }
    }

    /// Gives the pending bytes to the encoder, and the encoded bytes to the output.
    fn encode(&mut self, then: Then) -> io::Result<()> {
        let (is_inline, mut pending) = (self.is_inline(), std::mem::take(&mut self.pending));
        self.held = if then == Then::Flush {
            0
        } else {
            self.held + pending.len()
        };
        let mut encoder = self.encoder()?;
        let mut is_here = is_inline;
        let (mut from, len) = (0, pending.len());
        loop {
            let work = move || {
                let done = encoder.write_for(SLICE, &pending, from).and_then(|to| {
                    if to == len && then == Then::Flush {
                        encoder.flush()?;
                    }
                    Ok(to)
                });
                (encoder, pending, done)
            };
            let done;
            (encoder, pending, done) = if is_here { self.work_here(work) } else { pool::run(work) };
            from = done?;
            if from == len {
                break;
            }
            is_here = false;
        }
        pending.clear();
        self.pending = pending;
        let handed = match encoder.encoded().as_slice() {
            [] => Ok(()),
            encoded => self.out.write_all(encoded),
        };
        encoder.encoded().clear();
        self.encoder = Some(encoder);
        handed
    }

    /// Encodes on the worker, and counts the time.
    fn work_here<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.worked += start.elapsed();
        done
    }

    /// Lets other fibers of the worker run if this one has encoded for a slice.
    fn yield_after_a_slice(&mut self) {
        if self.worked >= SLICE {
            self.worked = Duration::ZERO;
            osier::fiber::give_way();
        }
    }

    /// Ends the stream.
    fn finish(mut self) -> io::Result<()> {
        let (is_inline, pending) = (self.is_inline(), std::mem::take(&mut self.pending));
        let (_, end) = to_the_end(self.encoder()?, pending, Vec::as_slice, is_inline);
        self.out.write_all(&end?)
    }

    /// Whether the worker encodes the pending bytes, and those that the encoder holds back.
    fn is_inline(&mut self) -> bool {
        let is_inline = self.is_for_the_worker();
        self.inline_left = self.inline_left.saturating_sub(self.pending.len());
        is_inline
    }

    fn is_for_the_worker(&self) -> bool {
        let bytes = self.held + self.pending.len();
        bytes <= self.inline_left || bytes <= INLINE
    }

    fn encoder(&mut self) -> io::Result<Encoder> {
        let gone = || io::Error::new(io::ErrorKind::BrokenPipe, "the encoding of this body was cancelled");
        self.encoder.take().ok_or_else(gone)
    }
}

/// The writer that the handler sees.
struct Ref<'p, 'o>(&'p RefCell<Pipe<'o>>);

impl Outlet for Ref<'_, '_> {
    fn takes_bytes(&mut self) -> io::Result<bool> {
        self.0.borrow_mut().out.takes_bytes()
    }

    fn try_flush(&mut self) -> io::Result<Flushed> {
        let mut pipe = self.0.borrow_mut();
        // The backend would wait for the pool.
        if !pipe.is_for_the_worker() {
            return Ok(Flushed::Unknown);
        }
        pipe.push_out()?;
        pipe.out.try_flush()
    }

    fn set_trailers(&mut self, trailers: Trailers) {
        self.0.borrow_mut().out.set_trailers(trailers);
    }

    fn while_connected(&mut self, wait: &mut dyn FnMut(Option<&Event>)) -> io::Result<()> {
        let mut pipe = self.0.borrow_mut();
        // The fiber's hook finds the pipe borrowed.
        pipe.push_out()?;
        pipe.out.while_connected(wait)
    }
}

impl Write for Ref<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut pipe = self.0.borrow_mut();
        let taken = pipe.take(bytes)?;
        pipe.yield_after_a_slice();
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut pipe = self.0.borrow_mut();
        pipe.push_out()?;
        pipe.out.flush()?;
        pipe.yield_after_a_slice();
        Ok(())
    }
}
