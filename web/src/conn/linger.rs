//! A lingering close: after its last bytes, such as a response or the close frame of a WebSocket, the server reads and discards the
//! client's bytes, so that no reset overtakes its own (RFC 9112 section 9.6). A reset also stops a client that is still writing, and many
//! clients read nothing more then.
//!
//! A client that still takes those last bytes has all the time that it had for the response. The kernel cannot see to that: its
//! `TCP_USER_TIMEOUT` counts from the first moment at which the client's window was shut, whatever the client has taken since, and cuts
//! off one that reads slowly and steadily.

use std::io;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use osier::dormant::AfterBurst;

use crate::conn::close::CloseReason;
use crate::conn::worker::Link;
use crate::conn::{Conn, Stage, after};

/// The longest time for which a client may go on sending, at most [`LINGER_BYTES`]. An early 413 or 403 thus
/// reaches a client that sends 100 MB at 3 MB/s before it reads. Meanwhile the connection counts in
/// `max_connections`, and holds neither a stack nor a buffer. It gives way to a new one as an idle connection does.
///
/// nginx reads for 30 s (`lingering_time`), without a bound of bytes, and takes the same silence for
/// the end (`lingering_timeout`).
const LINGER: Duration = Duration::from_secs(60);
const LINGER_BYTES: u64 = 1 << 30;

/// Longest silence of a client during a lingering close. After it, the client has read the response
/// or never will.
const LINGER_QUIET: Duration = Duration::from_secs(5);

/// The longest time for which a client that has left HTTP may go on sending during a graceful shutdown of the server.
const LINGER_DRAIN: Duration = Duration::from_secs(2);

/// Longest silence of such a client if its reading direction is shut down. No event tells of its end, so each such connection lasts for
/// that long.
const BLIND_QUIET: Duration = Duration::from_millis(250);

/// The time between two reads of such a client: no event tells of its bytes either.
const LOOK: Duration = Duration::from_millis(20);

/// The time between two looks at what the client has not taken.
const TAKES: Duration = Duration::from_secs(1);

/// Unacknowledged bytes that need no look: the window of any client has room for them.
const SMALL: usize = 16 << 10;

/// The bounds of one lingering close.
pub(super) struct Linger {
    left: u64,
    deadline: Option<Instant>,
    /// The bytes that the client had not acknowledged at some time, at most a write timeout ago. There are none if they were [`SMALL`] at
    /// the beginning. Boxed, because nearly all connections have none.
    untaken: Option<Box<(usize, Instant)>>,
    /// When the client has last sent something. A wake-up without bytes, such as those of an upgrade, does not count.
    heard: Instant,
    /// Whether this end has shut its reading direction down.
    is_blind: bool,
}

impl Linger {
    pub(super) fn begin() -> Linger {
        Linger {
            left: LINGER_BYTES,
            deadline: after(LINGER),
            untaken: None,
            heard: osier::time::coarse_now(),
            is_blind: false,
        }
    }

    /// Begins during a graceful shutdown of the server.
    pub(super) fn begin_in_drain() -> Linger {
        Linger {
            deadline: after(LINGER_DRAIN),
            ..Linger::begin()
        }
    }

    /// Same as [`begin_in_drain`](Linger::begin_in_drain), where this end has shut its reading direction down. Reads return what has
    /// arrived, and then the end. The sending direction stays open meanwhile: Linux answers bytes by a reset once both are shut down.
    pub(super) fn begin_blind() -> Linger {
        Linger {
            is_blind: true,
            ..Linger::begin_in_drain()
        }
    }

    /// Counts discarded bytes. Returns what is next: a rest until bytes arrive or time is over, or the end.
    pub(super) fn goes_on(&mut self, count: usize) -> AfterBurst {
        let left = self.left.checked_sub(count as u64);
        self.left = left.unwrap_or(0);
        match (self.is_blind, count) {
            _ if left.is_none() => AfterBurst::End,
            (false, 0) => AfterBurst::End,
            (true, 0) => self.look_later(),
            _ => {
                self.heard = osier::time::coarse_now();
                self.sleep()
            }
        }
    }

    /// Rests until bytes arrive or time is over.
    pub(super) fn sleep(&self) -> AfterBurst {
        let quiet = self.heard.checked_add(LINGER_QUIET);
        let until = self.deadline.into_iter().chain(quiet).min();
        match until.is_some_and(|until| until <= osier::time::coarse_now()) {
            true => AfterBurst::End,
            false => AfterBurst::Sleep(until),
        }
    }

    /// Whether the client still takes what was written: in each write timeout as much as it must, or the rest. Otherwise the connection is
    /// reset.
    fn is_taken(&mut self, link: &Link) -> bool {
        let (socket, now) = (link.socket(), osier::time::coarse_now());
        let untaken = match socket.unacknowledged() {
            // The last one is the end. A graceful shutdown leaves them to the kernel, and nobody waits for a client that sends for ever.
            Some(count @ 2..) if self.left > 0 && !link.worker.draining.get() => count,
            _ => return false,
        };
        if self.untaken.is_none() && untaken <= SMALL {
            return false;
        }
        let (before, since) = **self.untaken.get_or_insert_with(|| Box::new((untaken, now)));
        if now.saturating_duration_since(since) < link.worker.server.timeouts.write {
            return true;
        }
        self.untaken = Some(Box::new((untaken, now)));
        let goes_on = socket.progressed(Some(before));
        if !goes_on {
            Link::abandon(socket);
        }
        goes_on
    }

    fn look_later(&self) -> AfterBurst {
        let now = osier::time::coarse_now();
        let is_quiet = now.saturating_duration_since(self.heard) >= BLIND_QUIET;
        match is_quiet || self.deadline.is_some_and(|deadline| deadline <= now) {
            true => AfterBurst::End,
            false => AfterBurst::SleepUntilWoken(after(LOOK)),
        }
    }
}

impl Conn {
    /// Begins a lingering close: ends the sending direction, then only reads until the client
    /// closes too.
    pub(super) fn linger(&mut self, reason: CloseReason) -> AfterBurst {
        self.link.ends(reason);
        self.link.lingers();
        if self.link.transport.shutdown_write().is_err() {
            return AfterBurst::End;
        }
        let mut linger = Linger::begin();
        // Notes how much is on its way now: the first look compares with it.
        linger.is_taken(&self.link);
        let next = linger.sleep();
        self.set_stage(Stage::Linger(linger));
        next
    }

    /// Ends the connection, as soon as the client has taken what was written.
    pub(super) fn leave(&mut self, reason: CloseReason) -> AfterBurst {
        let has_more = self.link.socket().unacknowledged().is_some_and(|count| count > SMALL);
        match has_more && !self.link.worker.draining.get() {
            true => self.linger(reason),
            false => self.close(reason),
        }
    }

    /// Begins a lingering close at the end of a protocol that is not HTTP. Its code may have read the client's end, which no event
    /// announces again, so this reads at once.
    pub(super) fn leave_protocol(&mut self) -> AfterBurst {
        self.link.ends(CloseReason::Upgraded);
        // The client may have taken less than was written. Nobody waits for that here.
        self.link.transport.say_goodbye();
        let linger = match (self.link.worker.draining.get(), self.link.is_read_on()) {
            (false, _) => Linger::begin(),
            (true, true) => Linger::begin_in_drain(),
            (true, false) => return self.throw_away(Linger::begin_blind()),
        };
        self.link.lingers();
        match self.link.socket().shutdown(Shutdown::Write) {
            Ok(()) => self.throw_away(linger),
            Err(_) => AfterBurst::End,
        }
    }

    /// Reads and discards what has arrived.
    pub(super) fn throw_away(&mut self, mut linger: Linger) -> AfterBurst {
        let mut buffers = self.link.worker.take_buffers();
        // Nobody reads the bytes, so nobody decrypts them.
        let read = self.link.socket().try_read(&mut buffers.input);
        self.link.worker.give_buffers(buffers);
        let has_ended = matches!(read, Ok(0));
        let mut next = match read {
            Ok(count) => linger.goes_on(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => linger.sleep(),
            Err(_) => return AfterBurst::End,
        };
        if next == AfterBurst::End && linger.is_taken(&self.link) {
            next = match has_ended {
                // It has told its end already.
                true => AfterBurst::SleepUntilWoken(after(TAKES)),
                false => AfterBurst::Sleep(after(TAKES)),
            };
        }
        if next != AfterBurst::End {
            self.set_stage(Stage::Linger(linger));
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lingering_close_reads_a_gibibyte_at_most() {
        let mut linger = Linger::begin();
        let piece = 64 << 10;
        let pieces = (0..).take_while(|_| linger.goes_on(piece) != AfterBurst::End).count();
        assert_eq!(pieces * piece, 1 << 30);
        assert_eq!(Linger::begin().goes_on(0), AfterBurst::End, "the client has ended");
    }

    /// An upgrade wakes each connection every second.
    #[test]
    fn a_wake_up_without_bytes_does_not_renew_the_patience() {
        let mut linger = Linger::begin();
        linger.heard = osier::time::coarse_now().checked_sub(LINGER_QUIET / 2).unwrap();
        assert_eq!(linger.sleep(), AfterBurst::Sleep(Some(linger.heard + LINGER_QUIET)));
        let before = linger.heard;
        assert_ne!(linger.goes_on(1), AfterBurst::Sleep(Some(before + LINGER_QUIET)));
    }

    #[test]
    fn an_end_that_is_the_server_s_own_is_not_taken_for_the_client_s() {
        let mut linger = Linger::begin_blind();
        assert!(matches!(linger.goes_on(0), AfterBurst::SleepUntilWoken(Some(_))));
        assert!(matches!(linger.goes_on(1), AfterBurst::Sleep(Some(_))));
        linger.heard = osier::time::coarse_now().checked_sub(BLIND_QUIET).unwrap();
        assert_eq!(linger.goes_on(0), AfterBurst::End, "it has been silent");
        let mut linger = Linger::begin_blind();
        linger.deadline = Some(osier::time::coarse_now());
        assert_eq!(linger.goes_on(0), AfterBurst::End, "time is over");
    }
}
