//! The body of an answer, on its way to the client: read ahead by a fiber of its own, so that a slow client does not hold
//! the backend, and never by more than a bounded number of bytes, so that it does not hold memory.
//!
//! ```text
//!   backend ─▶ reader (fiber): fills a piece ─▶ queue, at most `bound` bytes ─▶ writer (the connection's fiber) ─▶ client
//!                 ▲                                                              │
//!                 └──────────────────────── empty pieces ◀───────────────────────┘
//! ```
//!
//! A piece is passed on when it is full, or as soon as the writer has nothing else to do: what drips is not held back. Both
//! fibers run on one thread; nothing of the queue is borrowed across a suspension.
//!
//! While the client keeps up, reader and writer take turns and one piece goes back and forth, so that it stays in the
//! processor's cache; pieces come from the worker's own stock for the same reason.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};

use osier::sync::Event;

use super::wire::Wire;

/// One read of a connection that is busy.
const PIECE: usize = 64 << 10;

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
    end: Option<io::Result<()>>,
}

/// Passes the body on: first `received`, then what `wire` has. The number of bytes that were read ahead of the client is at
/// most `bound`, and never less than two pieces.
///
/// # Errors
///
/// Of the client, or that the body is not whole.
pub(super) fn relay(mut wire: Wire, received: &[u8], bound: usize, out: &mut dyn Write) -> io::Result<()> {
    let queue = Queue {
        state: RefCell::default(),
        filled: Event::new(),
        emptied: Event::new(),
    };
    let pieces = bound.div_ceil(PIECE).max(2);
    osier::scope(|s| {
        s.spawn_local(|| {
            let end = queue.fill(&mut wire, pieces);
            // Here, not when the scope ends: a connection that is not kept is not held either.
            drop(wire);
            queue.state.borrow_mut().end = Some(end);
            queue.filled.set();
        });
        let written = out.write_all(received).and_then(|()| queue.drain(out));
        if written.is_err() {
            s.cancel();
        }
        written
    })
}

impl Queue {
    fn fill(&self, wire: &mut Wire, pieces: usize) -> io::Result<()> {
        loop {
            let mut piece = self.empty_piece(pieces);
            piece.filled = 0;
            let end = loop {
                match wire.read(&mut piece.bytes[piece.filled..]) {
                    Ok(0) => break Some(Ok(())),
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
            if let Some(end) = end {
                return end;
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
        while self.state.borrow().out == pieces {
            self.emptied.wait();
        }
        self.state.borrow_mut().out += 1;
        Piece::take()
    }

    fn drain(&self, out: &mut dyn Write) -> io::Result<()> {
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
