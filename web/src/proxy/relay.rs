//! The body of an answer, on its way to the client. As long as that takes what comes at once, the bytes go from socket to
//! socket without being seen ([`osier::io::splice`]): 0.3 of the CPU of copying them, for 1 MiB over loopback. What it does not
//! take at once is read ahead by a fiber of its own, so that a slow client does not hold the backend, and never by more than a
//! bounded number of bytes, so that it does not hold memory. When it waits for more again, the first way is taken again.
//!
//! ```text
//!   backend ─▶ pipe of the thread ─▶ client            `splice`: no framing may be in between, nor code that has to see the bytes
//!                 │ not taken at once: `rest`      ▲
//!                 ▼                                │ it keeps up, and much of the body is left
//!   backend ─▶ reader (fiber): fills a piece ─▶ queue, at most `bound` bytes ─▶ writer (the connection's fiber) ─▶ client
//!                 ▲                                                              │
//!                 └──────────────────────── empty pieces ◀───────────────────────┘
//! ```
//!
//! A piece is passed on when it is full, or as soon as the writer has nothing else to do: what drips is not held back. Both
//! fibers run on one thread; nothing of the queue is borrowed across a suspension.
//!
//! While the client keeps up and splicing cannot be, reader and writer take turns and one piece goes back and forth, so that it stays in the
//! processor's cache; pieces come from the worker's own stock for the same reason.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;

use osier::sync::Event;

use super::wire::Wire;
use crate::output::Outlet;

/// One read of a connection that is busy.
const PIECE: usize = 64 << 10;

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

/// Pieces that a worker keeps for the next answers.
const POOLED: usize = 32;

thread_local! {
    static PIECES: RefCell<Vec<Piece>> = const { RefCell::new(Vec::new()) };
}

struct Piece {
    bytes: Box<[u8]>,
    filled: usize,
}

impl Piece {
    fn take() -> Piece {
        let pooled = PIECES.with_borrow_mut(Vec::pop);
        pooled.unwrap_or_else(|| Piece {
            bytes: vec![0; PIECE].into_boxed_slice(),
            filled: 0,
        })
    }

    fn give(self) {
        PIECES.with_borrow_mut(|pool| {
            if pool.len() < POOLED {
                pool.push(self);
            }
        });
    }
}

#[derive(Default)]
struct State {
    full: VecDeque<Piece>,
    /// Pieces that are being filled, full, or being written.
    out: usize,
    /// The writer has nothing to do.
    starving: bool,
    end: Option<io::Result<Turn>>,
}

/// Why reading ahead has ended.
#[derive(Debug)]
enum Turn {
    /// The body has.
    Done,
    /// The client takes what comes faster than it comes.
    KeepsUp,
}

/// Passes the body on: first `received`, then what `wire` has. The number of bytes that were read ahead of the client is at
/// most `bound`, and never less than two pieces.
///
/// # Errors
///
/// Of the client, or that the body is not whole.
pub(super) fn relay(wire: Wire, received: &[u8], bound: usize, out: &mut dyn Outlet) -> io::Result<()> {
    out.write_all(received)?;
    let pieces = bound.div_ceil(PIECE).max(2);
    let mut wire = Some(wire);
    let mut can_splice = true;
    let mut rest = Vec::new();
    loop {
        can_splice = can_splice && splice(&mut wire, &mut rest, bound, out)?;
        if wire.is_none() {
            return out.write_all(&rest);
        }
        match read_ahead(&mut wire, &rest, pieces, can_splice, out)? {
            Turn::Done => return Ok(()),
            Turn::KeepsUp => rest.clear(),
        }
    }
}

/// Passes on what the client takes at once, until it does not: then `rest` is still to be written. False if that cannot be.
fn splice(wire: &mut Option<Wire>, rest: &mut Vec<u8>, bound: usize, out: &mut dyn Outlet) -> io::Result<bool> {
    let Some(body) = wire.as_mut().filter(|body| body.is_plain_for(SPLICE_LEAST)) else {
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
        *wire = None;
    }
    Ok(true)
}

/// Writes `rest`, and what is read meanwhile, until the body ends or the client waits for more of what can be spliced.
fn read_ahead(
    wire: &mut Option<Wire>,
    rest: &[u8],
    pieces: usize,
    can_splice: bool,
    out: &mut dyn Outlet,
) -> io::Result<Turn> {
    let of_rest = rest.len().div_ceil(PIECE);
    let queue = Queue {
        state: RefCell::new(State {
            out: of_rest,
            ..State::default()
        }),
        filled: Event::new(),
        emptied: Event::new(),
    };
    osier::scope(|s| {
        s.spawn_local(|| {
            let end = match wire.as_mut() {
                Some(body) => queue.fill(body, pieces, can_splice),
                None => Ok(Turn::Done),
            };
            if !matches!(end, Ok(Turn::KeepsUp)) {
                // Here, not when the scope ends: a connection that is not kept is not held either.
                *wire = None;
            }
            queue.state.borrow_mut().end = Some(end);
            queue.filled.set();
        });
        let written = out.write_all(rest).and_then(|()| {
            queue.gone(of_rest);
            queue.drain(out)
        });
        if written.is_err() {
            s.cancel();
        }
        written
    })
}

impl Queue {
    fn fill(&self, wire: &mut Wire, pieces: usize, can_splice: bool) -> io::Result<Turn> {
        loop {
            let mut piece = self.empty_piece(pieces);
            piece.filled = 0;
            let end = loop {
                match wire.read(&mut piece.bytes[piece.filled..]) {
                    Ok(0) => break Some(Ok(Turn::Done)),
                    Ok(count) => piece.filled += count,
                    Err(error) => break Some(Err(error)),
                }
                if piece.filled == PIECE || self.state.borrow().starving {
                    break None;
                }
            };
            let mut starved = false;
            if piece.filled > 0 {
                let mut state = self.state.borrow_mut();
                starved = std::mem::take(&mut state.starving);
                state.full.push_back(piece);
                self.filled.set();
            } else {
                piece.give();
            }
            match end {
                Some(end) => return end,
                None if starved && can_splice && wire.is_plain_for(SPLICE_LEAST) => return Ok(Turn::KeepsUp),
                None if starved => osier::yield_now(),
                None => {}
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
            self.gone(1);
        }
    }

    /// The client has taken so many pieces.
    fn gone(&self, count: usize) {
        self.state.borrow_mut().out -= count;
        self.emptied.set();
    }
}
