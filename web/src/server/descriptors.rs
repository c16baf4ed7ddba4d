//! The descriptors that connections leave to everything else: files, backends, logs.
//!
//! A new descriptor gets the lowest number that is free. So the number of an accepted socket says, without a count and without a call,
//! how many descriptors the whole process has at least: those of all servers, of handlers and of the program.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd};

use osier::net::Stream;
use rustix::process::{Resource, getrlimit};

use crate::listen::Listener;

/// The share of the limit that stays free when a connection is accepted: one part in so many.
const SPARE_PART: u64 = 4;

/// The most descriptors that stay free. A backend at one address has no more connections: they would lack ports.
const SPARE_MOST: u64 = 65_536;

/// The share of the descriptors that stay free which the connections of one server may take in any case: one part in so many.
const LEAST_PART: u64 = 4;

/// The descriptors of the process, for a fiber that accepts connections.
pub(super) struct Descriptors<'l> {
    limit: Cell<u64>,
    listener: &'l Listener,
}

impl Descriptors<'_> {
    pub(super) fn new(listener: &Listener) -> Descriptors<'_> {
        Descriptors {
            limit: Cell::new(limit()),
            listener,
        }
    }

    /// Whether this new connection leaves too few to handlers. Never true for a simulated one.
    pub(super) fn are_few(&self, accepted: &Stream) -> bool {
        accepted
            .number()
            .is_some_and(|number| u64::from(number) >= most(self.limit.get()))
    }

    /// How many connections a server may have in any case: other code may have taken the descriptors, and need not give them back.
    pub(super) fn least(&self) -> usize {
        let least = spare(self.limit.get()) / LEAST_PART;
        usize::try_from(least).map_or(usize::MAX, |least| least.max(1))
    }

    /// Whether a connection that is accepted now would leave too few. Looks at the limit again, which may have been raised.
    pub(super) fn are_still_few(&self) -> bool {
        self.limit.set(limit());
        let next = self.listener.as_fd().try_clone_to_owned();
        next.map_or(true, |next| {
            u64::from(next.as_raw_fd().unsigned_abs()) >= most(self.limit.get())
        })
    }
}

/// How few descriptors are left.
impl fmt::Display for Descriptors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.limit.get();
        let spare = spare(limit);
        write!(f, "{spare} of {limit} descriptors are left to files and backends")
    }
}

/// How many descriptors may be open when a connection is accepted.
fn most(limit: u64) -> u64 {
    limit - spare(limit)
}

/// How many descriptors stay free then.
fn spare(limit: u64) -> u64 {
    (limit / SPARE_PART).min(SPARE_MOST)
}

fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
