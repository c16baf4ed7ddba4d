//! A lingering close: after the last response, the server reads and discards the client's bytes, so that no reset overtakes
//! the response (RFC 9112 section 9.6).

use std::time::{Duration, Instant};

use osier::dormant::AfterBurst;

use super::after;

/// The longest time for which a client may go on sending, at most [`LINGER_BYTES`]. An early 413 or 403 thus
/// reaches a client that sends 100 MB at 3 MB/s before it reads. Meanwhile the connection counts in
/// `max_connections`, and holds neither a stack nor a buffer.
///
/// nginx reads for 30 s (`lingering_time`), without a bound of bytes, and takes the same silence for
/// the end (`lingering_timeout`).
const LINGER: Duration = Duration::from_secs(60);
const LINGER_BYTES: u64 = 1 << 30;

/// Longest silence of a client during a lingering close. After it, the client has read the response
/// or never will.
const LINGER_QUIET: Duration = Duration::from_secs(5);

/// The bounds of one lingering close.
pub(super) struct Linger {
    left: u64,
    deadline: Option<Instant>,
}

impl Linger {
    pub(super) fn begin() -> Linger {
        Linger {
            left: LINGER_BYTES,
            deadline: after(LINGER),
        }
    }

    /// Counts discarded bytes. Returns false if the client has sent enough, or has ended.
    pub(super) fn goes_on(&mut self, count: usize) -> bool {
        let left = self.left.checked_sub(count as u64);
        self.left = left.unwrap_or(0);
        count > 0 && left.is_some()
    }

    /// Rests until bytes arrive or time is over.
    pub(super) fn sleep(&self) -> AfterBurst {
        AfterBurst::Sleep(self.deadline.into_iter().chain(after(LINGER_QUIET)).min())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lingering_close_reads_a_gibibyte_at_most() {
        let mut linger = Linger::begin();
        let piece = 64 << 10;
        let pieces = (0..).take_while(|_| linger.goes_on(piece)).count();
        assert_eq!(pieces * piece, 1 << 30);
        assert!(!Linger::begin().goes_on(0), "the client has ended");
    }
}
