//! Least rates of clients: a slow client is served, and one that drips bytes is cut off.
//!
//! A timeout bounds the silence of a client. A client that sends a byte now and then is never silent for long, so the timeout alone
//! does not bound it. A rate makes a number of bytes out of the timeout, and the client must move as many within it:
//!
//! ```text
//!   timeout 30 s ├── grace 10 s ──┼────────── 20 s ──────────┤   500 bytes a second: 10,000 bytes in each 30 s of waiting
//! ```
//!
//! Only time in which the server waits for the client counts. A response needs no state for that: the socket counts the bytes that the
//! peer has acknowledged within one write timeout ([`Stream::set_write_progress`](osier::net::Stream::set_write_progress)), and an
//! HTTP/2 stream counts the bytes that its windows have let through. [`Span`] counts the bytes of a body.

use std::time::{Duration, Instant};

/// The least rates of clients, in bytes a second. 0 means none. See [`Server::rates`](crate::Server::rates).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Least rate of a request head, from its first byte on. A slower client gets 408 and is closed.
    /// [`Timeouts::header`](crate::Timeouts::header) bounds the head, too. Default: 500.
    pub head: u32,
    /// Least rate of a request body that a handler reads, over each [`Timeouts::body`](crate::Timeouts::body) of waiting. The read
    /// fails with `TimedOut` if the client is slower. Default: 500.
    pub body: u32,
    /// Least rate at which the client takes a response, over each [`Timeouts::write`](crate::Timeouts::write) of waiting. A slower
    /// client is closed. Default: 500.
    pub response: u32,
    /// The part of each time that does not count, at most half of the time. Default: 10 s.
    pub grace: Duration,
}

impl Default for Rates {
    fn default() -> Self {
        Rates {
            head: 500,
            body: 500,
            response: 500,
            grace: Duration::from_secs(10),
        }
    }
}

impl Rates {
    /// No rates: timeouts alone bound a client.
    pub const OFF: Rates = Rates {
        head: 0,
        body: 0,
        response: 0,
        grace: Duration::ZERO,
    };

    /// The bytes of a body that must arrive within the timeout.
    pub(crate) fn body_bytes(&self, timeout: Duration) -> u64 {
        self.least(self.body, timeout)
    }

    /// The bytes of a response that the client must take within the timeout.
    pub(crate) fn response_bytes(&self, timeout: Duration) -> u64 {
        self.least(self.response, timeout)
    }

    /// The time for a head of which this many bytes have arrived, from its first byte on. At most the timeout.
    pub(crate) fn head_time(&self, received: usize, timeout: Duration) -> Duration {
        match self.head {
            0 => timeout,
            rate => {
                let earned = received as u64 * 1000 / u64::from(rate);
                let time = self.grace(timeout).saturating_add(Duration::from_millis(earned));
                time.min(timeout)
            }
        }
    }

    /// The part of the timeout that does not count.
    fn grace(&self, timeout: Duration) -> Duration {
        self.grace.min(timeout / 2)
    }

    /// An endless timeout demands no bytes.
    fn least(&self, rate: u32, timeout: Duration) -> u64 {
        if timeout > LONGEST {
            return 0;
        }
        let counted = timeout - self.grace(timeout);
        u64::try_from(counted.as_millis())
            .unwrap_or(u64::MAX)
            .saturating_mul(rate.into())
            / 1000
    }
}

/// A longer timeout counts as endless.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The time that a server has waited for the bytes of a body, and the bytes that have arrived, since the last judgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Nanoseconds, as one word: a `Duration` has padding, and a new one is copied by wide loads of what was only just written.
    waited: u64,
    received: u64,
}

impl Span {
    /// No wait, and no byte.
    pub(crate) const NOTHING: Span = Span { waited: 0, received: 0 };

    /// Adds bytes that have arrived.
    pub(crate) fn received(&mut self, count: u64) {
        self.received += count;
    }

    /// Adds a wait for the client.
    pub(crate) fn waited(&mut self, since: Instant) {
        let waited = osier::time::coarse_now().saturating_duration_since(since);
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.waited = self.waited.saturating_add(nanos);
    }

    /// Whether the client is slower than its rate, before one more wait. The next span begins after `timeout`.
    pub(crate) fn is_too_slow(&mut self, rates: &Rates, timeout: Duration) -> bool {
        if Duration::from_nanos(self.waited) < timeout {
            return false;
        }
        let is_too_slow = self.received < rates.body_bytes(timeout);
        *self = Span::NOTHING;
        is_too_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_becomes_bytes_within_a_timeout() {
        let seconds = Duration::from_secs;
        let rates = Rates::default();
        assert_eq!(rates.body_bytes(seconds(30)), 10_000);
        assert_eq!(rates.response_bytes(seconds(300)), 145_000);
        assert_eq!(
            rates.body_bytes(seconds(4)),
            1000,
            "the grace is at most half of the time"
        );
        assert_eq!(rates.body_bytes(Duration::MAX), 0, "for ever");
        assert_eq!(Rates::OFF.response_bytes(seconds(30)), 0);
    }

    #[test]
    fn each_byte_of_a_head_earns_time_within_the_timeout() {
        let seconds = Duration::from_secs;
        let rates = Rates::default();
        for (received, timeout, time) in [
            (0, 60, 10),
            (1000, 60, 12),
            // The grace is at most half of the timeout.
            (0, 10, 5),
            (1000, 10, 7),
            (30_000, 10, 10),
        ] {
            assert_eq!(
                rates.head_time(received, seconds(timeout)),
                seconds(time),
                "{received} bytes, {timeout} s"
            );
        }
        assert_eq!(rates.head_time(1000, Duration::MAX), seconds(12), "for ever");
        assert_eq!(Rates::OFF.head_time(1, seconds(10)), seconds(10));
    }
}
