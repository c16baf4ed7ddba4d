//! Relays the body of a response to the client, by splicing or by reading ahead.
//!
//! While the client takes all bytes at once, they go from socket to socket without a copy ([`osier::io::splice`]). That takes 0.3
//! of the CPU time of copying, for 1 MiB over loopback. For a slow client another fiber reads ahead, so that the client does not
//! hold the backend. It reads a bounded number of bytes ahead, so that the client does not hold memory. When the client has
//! caught up, the relay splices again.
//!
//! ```text
//!   backend ─▶ pipe of the thread ─▶ client            `splice`: only without framing and without code that has to see the bytes
//!                 │ not taken at once: pieces      ▲
//!                 ▼ of the queue                   │ the client keeps up, and much of the body is left
//!   backend ─▶ reader (fiber): reads a piece ─▶ queue, at most `bound` bytes ─▶ writer (the connection's fiber) ─▶ client
//!                 ▲                                                              │
//!                 └──────────────────────── empty pieces ◀───────────────────────┘
//! ```
//!
//! The reader puts all bytes into the queue before it waits again, so a slow stream is not held back. It joins them with the last
//! piece in the queue, so all pieces but the last are full. Both fibers run on one thread, and neither borrows the queue across a
//! suspension.
//!
//! When the client keeps up but splicing is impossible, reader and writer take turns. One piece goes back and forth and stays in
//! the processor's cache. The pieces come from the worker's own buffer pool for the same reason.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;

use osier::sync::Event;

use super::backend_response::BackendResponse;
use crate::conn::buffers::{self, Size};
use crate::conn::output::Outlet;

/// The most bytes in one read.
const PIECE: usize = Size::K64.bytes();

/// The least rest of a body, in bytes, that is worth splicing.
const SPLICE_LEAST: u64 = 32 << 10;

/// The most bytes spliced in one call.
const SPLICED: usize = 256 << 10;

struct Queue {
    state: RefCell<State>,
    /// Set when there is a piece, or the end, for the writer.
    filled: Event,
    /// Set when there is room for the reader.
    emptied: Event,
}

struct Piece {
    bytes: Box<[u8]>,
    filled: usize,
}

impl Piece {
    fn take() -> Piece {
        Piece {
            bytes: buffers::take(Size::K64),
            filled: 0,
        }
    }

    /// Copies `bytes`, at most [`SPLICED`], into pieces.
    fn copy(bytes: &[u8]) -> VecDeque<Piece> {
        let copied = bytes.chunks(PIECE).map(|bytes| {
            let mut piece = Piece::take();
            piece.bytes[..bytes.len()].copy_from_slice(bytes);
            piece.filled = bytes.len();
            piece
        });
        copied.collect()
    }

    fn give(self) {
        buffers::give(self.bytes);
    }
}

#[derive(Default)]
struct State {
    full: VecDeque<Piece>,
    /// The number of pieces that are being read into, waiting, or being written.
    out: usize,
    /// The writer has nothing to do.
    starving: bool,
    end: Option<io::Result<Stopped>>,
}

impl State {
    /// How many bytes the last piece can take. An empty piece counts if the last one is full or the writer has it.
    fn room(&self) -> usize {
        match self.full.back() {
            Some(last) if last.filled < PIECE => PIECE - last.filled,
            _ => PIECE,
        }
    }

    /// Adds the bytes of `piece` for the writer. If they fit, they are copied into the last piece, and `piece` is returned to be
    /// filled again.
    fn add(&mut self, piece: Piece) -> Option<Piece> {
        match self.full.back_mut() {
            Some(last) if piece.filled <= PIECE - last.filled => {
                last.bytes[last.filled..last.filled + piece.filled].copy_from_slice(&piece.bytes[..piece.filled]);
                last.filled += piece.filled;
                Some(piece)
            }
            _ => {
                self.full.push_back(piece);
                None
            }
        }
    }
}

/// Why reading ahead has ended.
#[derive(Debug)]
enum Stopped {
    /// The body has ended.
    Done,
    /// The client takes the bytes faster than they arrive.
    KeepsUp,
}

/// Passes the body on: first `received`, then the rest of `backend`. At most as many pieces as `bound` bytes fill, and one more,
/// are read ahead of the client.
///
/// # Suspends
///
/// While the backend sends, and while the client reads.
///
/// # Errors
///
/// The errors of writing to the client and of reading from the backend, and an incomplete body.
pub(super) fn relay(backend: BackendResponse, received: &[u8], bound: usize, out: &mut dyn Outlet) -> io::Result<()> {
    out.write_all(received)?;
    // One more, because the piece that is being written may not be full: a body within the bound must fit.
    let pieces = bound.div_ceil(PIECE).max(1) + 1;
    let mut backend = Some(backend);
    let mut can_splice = true;
    loop {
        let mut rest = VecDeque::new();
        if can_splice {
            // A short life: the pieces below are freed one by one as the client takes them.
            let mut bytes = Vec::new();
            can_splice = splice(&mut backend, &mut bytes, bound, out)?;
            rest = Piece::copy(&bytes);
        }
        if let Stopped::Done = read_ahead(&mut backend, rest, pieces, can_splice, out)? {
            return Ok(());
        }
    }
}

/// Splices until the client does not take all bytes at once; `rest` then holds the bytes still to be written. Returns false if
/// splicing is impossible.
fn splice(
    backend: &mut Option<BackendResponse>,
    rest: &mut Vec<u8>,
    bound: usize,
    out: &mut dyn Outlet,
) -> io::Result<bool> {
    let Some(body) = backend.as_mut().filter(|body| body.is_plain_for(SPLICE_LEAST)) else {
        return Ok(true);
    };
    let most = bound.clamp(PIECE, SPLICED);
    while rest.is_empty() && body.is_plain_for(1) {
        let Some(to) = out.direct()? else { return Ok(false) };
        match body.splice(to, most, rest) {
            Ok(sent) => out.sent(sent)?,
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    if body.is_done() {
        // Give the connection back, or close it, at once.
        *backend = None;
    }
    Ok(true)
}

/// Writes `rest` while another fiber reads ahead, until the body ends, or until the client has caught up and splicing is possible.
fn read_ahead(
    backend: &mut Option<BackendResponse>,
    rest: VecDeque<Piece>,
    pieces: usize,
    can_splice: bool,
    out: &mut dyn Outlet,
) -> io::Result<Stopped> {
    let queue = Queue {
        state: RefCell::new(State {
            out: rest.len(),
            full: rest,
            ..State::default()
        }),
        filled: Event::new(),
        emptied: Event::new(),
    };
    if backend.is_none() {
        queue.state.borrow_mut().end = Some(Ok(Stopped::Done));
        return queue.drain(out);
    }
    osier::scope(|s| {
        s.spawn_local(|| {
            let end = match backend.as_mut() {
                Some(body) => queue.fill(body, pieces, can_splice),
                None => Ok(Stopped::Done),
            };
            if !matches!(end, Ok(Stopped::KeepsUp)) {
                // Give the connection back, or close it, now and not at the end of the scope.
                *backend = None;
            }
            queue.state.borrow_mut().end = Some(end);
            queue.filled.set();
        });
        let written = queue.drain(out);
        if written.is_err() {
            s.cancel();
        }
        written
    })
}

impl Queue {
    fn fill(&self, backend: &mut BackendResponse, pieces: usize, can_splice: bool) -> io::Result<Stopped> {
        let mut empty = None;
        loop {
            let mut piece = empty.take().unwrap_or_else(|| self.empty_piece(pieces));
            let most = self.state.borrow().room();
            let end = match backend.read(&mut piece.bytes[..most]) {
                Ok(0) => Some(Ok(Stopped::Done)),
                Ok(count) => {
                    piece.filled = count;
                    None
                }
                Err(error) => Some(Err(error)),
            };
            if let Some(end) = end {
                piece.give();
                return end;
            }
            let starved = {
                let mut state = self.state.borrow_mut();
                empty = state.add(piece);
                std::mem::take(&mut state.starving)
            };
            self.filled.set();
            if starved && can_splice && backend.is_plain_for(SPLICE_LEAST) {
                if let Some(piece) = empty {
                    piece.give();
                }
                return Ok(Stopped::KeepsUp);
            }
            if starved {
                osier::yield_now();
            }
        }
    }

    /// An empty piece for the reader.
    ///
    /// # Suspends
    ///
    /// Until the client has taken a piece, if all are in use.
    fn empty_piece(&self, pieces: usize) -> Piece {
        while self.state.borrow().out >= pieces {
            self.emptied.wait();
        }
        self.state.borrow_mut().out += 1;
        Piece::take()
    }

    fn drain(&self, out: &mut dyn Outlet) -> io::Result<Stopped> {
        loop {
            let piece = {
                let mut state = self.state.borrow_mut();
                match state.full.pop_front() {
                    Some(piece) => piece,
                    None => match state.end.take() {
                        Some(end) => return end,
                        None => {
                            state.starving = true;
                            drop(state);
                            self.filled.wait();
                            continue;
                        }
                    },
                }
            };
            out.write_all(&piece.bytes[..piece.filled])?;
            piece.give();
            self.state.borrow_mut().out -= 1;
            self.emptied.set();
        }
    }
}
