//! When the window of a stream grows, and how far.
//!
//! A peer far away waits for a window that is smaller than what the path holds. This end does not know how long the path is. It knows that
//! the reader of the body waits, so the reader is not what holds up the peer. The window doubles whenever half of it has been used within
//! [`QUICK`] by a reader that has waited meanwhile. It does not grow for a reader that is slower than its peer, nor for a slow peer: no
//! window is much larger than what comes in a second. The window of a reader that has become slow loses its growth as that reads on.
//!
//! ```text
//!   stream_window ──▶ shared: part of connection_window ──▶ beyond: the connection's window grows as much
//!                                                           all streams: at most Limits::growth; one: half of what others leave
//! ```
//!
//! So streams whose readers stop take nothing from the others but what they may have of `connection_window`. The end of a stream, and a
//! lack of memory, make the windows smaller. An announcement cannot be taken back: bytes that the peer sends are then not
//! announced again. While a stream goes on, its window shrinks by no more than its reader has just taken, so that this stream alone pays
//! for it: the others would wait for bytes that a stalled one holds.

use std::time::{Duration, Instant};

use super::limits::{Limits, MAX_WINDOW};
use super::window::ReceiveWindow;

/// The time in which half of a window is used by a peer that could use more. A path whose round trip is longer than twice this is rare.
const QUICK: Duration = Duration::from_millis(500);

/// How the reader of a body keeps up with its peer.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Bytes that the reader has taken since `since`.
    used: u32,
    /// Whether the reader has waited since then.
    has_waited: bool,
    /// Bytes that it has taken since it waited last.
    unwaited: u32,
    /// `None` at first.
    since: Option<Instant>,
}

/// How far windows may grow, as the owner of a connection knows from its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Up to so many bytes beyond [`Limits::connection_window`].
    Beyond(usize),
    /// Memory is short: within `connection_window` only. Larger ones become smaller.
    Shared,
    /// Memory has run out: not at all. Windows become as small as [`Limits::stream_window`].
    Least,
}

/// How a window should change.
#[derive(PartialEq, Eq)]
enum Change {
    Grow,
    Stay,
    Shrink,
}

impl Pace {
    /// Counts bytes that the reader has taken. Returns how a window of this size should change.
    fn takes(&mut self, count: u32, window: u32, now: Instant) -> Change {
        self.used = self.used.saturating_add(count);
        self.unwaited = self.unwaited.saturating_add(count);
        let since = *self.since.get_or_insert(now);
        if self.used < window / 2 {
            return self.slow(window);
        }
        let is_quick = self.has_waited && now.saturating_duration_since(since) <= QUICK;
        (self.used, self.has_waited, self.since) = (0, false, Some(now));
        match is_quick {
            true => Change::Grow,
            false => self.slow(window),
        }
    }

    /// A reader that has not waited for more than a whole window is slower than its peer: the peer had no more on its way.
    fn slow(&self, window: u32) -> Change {
        match self.unwaited > window {
            true => Change::Shrink,
            false => Change::Stay,
        }
    }

    /// The reader waits for its peer.
    pub(super) fn waits(&mut self) {
        (self.has_waited, self.unwaited) = (true, 0);
    }
}

/// Makes windows larger or smaller, after a reader has taken `count` bytes.
pub(super) fn follow(
    limits: &Limits,
    (stream, pace, connection): (&mut ReceiveWindow, &mut Pace, &mut ReceiveWindow),
    (count, room): (u32, Room),
    now: Instant,
) {
    let window = stream.target();
    let change = pace.takes(count, window, now);
    let may_grow = room != Room::Least;
    let (least, room) = match room {
        Room::Least => (limits.stream_window, 0),
        Room::Shared => (shared(limits), 0),
        Room::Beyond(room) if change != Change::Shrink => (window, room),
        Room::Beyond(room) => (shared(limits), room),
    };
    if window > least {
        let small = window.saturating_sub(count).max(least);
        resize(limits, (stream, connection), small);
    } else if change == Change::Grow && may_grow {
        let own = beyond(limits, window);
        let others = connection.target() - limits.connection_window - own;
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let most = (limits.growth.saturating_sub(others) / 2).min(own.saturating_add(room));
        let most = (shared(limits) + most).min(MAX_WINDOW);
        let grown = window.saturating_mul(2).min(most).max(window);
        resize(limits, (stream, connection), grown);
    }
}

/// Takes back the growth of a stream whose body has ended.
pub(super) fn end(limits: &Limits, stream: &mut ReceiveWindow, connection: &mut ReceiveWindow) {
    let window = stream.target().min(shared(limits));
    resize(limits, (stream, connection), window);
}

fn resize(limits: &Limits, (stream, connection): (&mut ReceiveWindow, &mut ReceiveWindow), window: u32) {
    let (before, now) = (beyond(limits, stream.target()), beyond(limits, window));
    stream.resize(window);
    connection.resize(connection.target() - before + now);
}

/// The size of a stream's window that needs no larger window of the connection.
fn shared(limits: &Limits) -> u32 {
    let most = limits.grown_window.min(limits.connection_window / 2);
    most.max(limits.stream_window)
}

/// The part of a window that makes that of the connection larger.
fn beyond(limits: &Limits, window: u32) -> u32 {
    window.saturating_sub(shared(limits))
}
