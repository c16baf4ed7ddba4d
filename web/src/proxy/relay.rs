//! The body of an answer, on its way to the client. As long as that takes what comes at once, the bytes go from socket to
//! socket without being seen ([`osier::io::splice`]): 0.3 of the CPU of copying them, for 1 MiB over loopback. What it does not
//! take at once is read ahead by a fiber of its own, so that a slow client does not hold the backend, and never by more than a
//! bounded number of bytes, so that it does not hold memory. When it waits for more again, the first way is taken again.
//!
//! ```text
//!   backend ─▶ pipe of the thread ─▶ client            `splice`: no framing may be in between, nor code that has to see the bytes
//!                 │ not taken at once: pieces      ▲
//!                 ▼ of the queue                   │ it keeps up, and much of the body is left
//!   backend ─▶ reader (fiber): reads a piece ─▶ queue, at most `bound` bytes ─▶ writer (the connection's fiber) ─▶ client
//!                 ▲                                                              │
//!                 └──────────────────────── empty pieces ◀───────────────────────┘
//! ```
//!
//! What has been read is in the queue before the reader waits again, so that the writer can have it: what drips is not held
//! back. There it is joined with what waits already, so that all pieces but the last are full. Both fibers run on one thread;
//! nothing of the queue is borrowed across a suspension.
//!
//! While the client keeps up and splicing cannot be, reader and writer take turns and one piece goes back and forth, so that it stays in the
//! processor's cache; pieces come from the worker's own stock for the same reason.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;

use osier::sync::Event;

use super::backend_response::BackendResponse;
use crate::conn::buffers::{self, Size};
use crate::conn::output::Outlet;

/// One read of a connection that is busy.
const PIECE: usize = Size::K64.bytes();

/// Fewer bytes than these are not worth another way of passing them on.
const SPLICE_LEAST: u64 = 32 << 10;

/// The most that is passed on at once without being copied.
const SPLICED: usize = 256 << 10;

struct Queue {
    state: RefCell<State>,
    /// There is something for the writer: a piece, or the end.
    filled: Event,
    /// There is room for the reader.
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

    /// What was not taken at once. At most [`SPLICED`] bytes.
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
    /// Pieces that are being read into, waiting, or being written.
    out: usize,
    /// The writer has nothing to do.
    starving: bool,
    end: Option<io::Result<Turn>>,
}

impl State {
    /// How many bytes the last piece can take, or an empty one if that is full or the writer has it.
    fn room(&self) -> usize {
        match self.full.back() {
            Some(last) if last.filled < PIECE => PIECE - last.filled,
            _ => PIECE,
        }
    }

    /// For the writer, which may have nothing else to do at any time: nothing stays with the reader, who waits for more. What fits
    /// is joined with the last piece, and then `piece` is empty again.
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
enum Turn {
    /// The body has.
    Done,
    /// The client takes what comes faster than it comes.
    KeepsUp,
}

/// Passes the body on: first `received`, then what `wire` has. What was read ahead of the client lies in pieces, so many as
/// `bound` bytes fill, and one.
///
/// # Errors
///
/// Of the client, or that the body is not whole.
pub(super) fn relay(backend: BackendResponse, received: &[u8], bound: usize, out: &mut dyn Outlet) -> io::Result<()> {
    out.write_all(received)?;
    // One more, as the one being written need not be full: what fits the bound is taken at once.
    let pieces = bound.div_ceil(PIECE).max(1) + 1;
    let mut backend = Some(backend);
    let mut can_splice = true;
    loop {
        let mut rest = VecDeque::new();
        if can_splice {
            // Not for longer: the pieces are free one by one as the client takes them.
            let mut bytes = Vec::new();
            can_splice = splice(&mut backend, &mut bytes, bound, out)?;
            rest = Piece::copy(&bytes);
        }
        if let Turn::Done = read_ahead(&mut backend, rest, pieces, can_splice, out)? {
            return Ok(());
        }
    }
}

/// Passes on what the client takes at once, until it does not: then `rest` is still to be written. False if that cannot be.
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
        // A connection that is not kept is not held either.
        *backend = None;
    }
    Ok(true)
}

/// Writes `rest`, and what is read meanwhile if `wire` has more, until the body ends or the client waits for more of what can be
/// spliced.
fn read_ahead(
    backend: &mut Option<BackendResponse>,
    rest: VecDeque<Piece>,
    pieces: usize,
    can_splice: bool,
    out: &mut dyn Outlet,
) -> io::Result<Turn> {
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
        queue.state.borrow_mut().end = Some(Ok(Turn::Done));
        return queue.drain(out);
    }
    osier::scope(|s| {
        s.spawn_local(|| {
            let end = match backend.as_mut() {
                Some(body) => queue.fill(body, pieces, can_splice),
                None => Ok(Turn::Done),
            };
            if !matches!(end, Ok(Turn::KeepsUp)) {
                // Here, not when the scope ends: a connection that is not kept is not held either.
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
    fn fill(&self, backend: &mut BackendResponse, pieces: usize, can_splice: bool) -> io::Result<Turn> {
        let mut empty = None;
        loop {
            let mut piece = empty.take().unwrap_or_else(|| self.empty_piece(pieces));
            let most = self.state.borrow().room();
            let end = match backend.read(&mut piece.bytes[..most]) {
                Ok(0) => Some(Ok(Turn::Done)),
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
                return Ok(Turn::KeepsUp);
            }
            if starved {
                osier::yield_now();
            }
        }
    }

    /// # Suspends
    ///
    /// Until the client has taken one, if all are full.
    fn empty_piece(&self, pieces: usize) -> Piece {
        while self.state.borrow().out >= pieces {
            self.emptied.wait();
        }
        self.state.borrow_mut().out += 1;
        Piece::take()
    }

    fn drain(&self, out: &mut dyn Outlet) -> io::Result<Turn> {
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
