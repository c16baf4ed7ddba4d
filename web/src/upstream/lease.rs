//! Leases: a lease is a connection to a backend for the time of one request.

use std::fmt;

use super::{Claim, keeper};
use crate::{Address, Stream};

/// A connection to a backend. Dropping it closes the connection; [`keep`](Lease::keep) returns it
/// for the next lease.
///
/// Report the outcome. [`answered`](Lease::answered) reports a valid response; without this report
/// a backend that is out never comes back. [`failed`](Lease::failed) reports a failure of the
/// backend.
pub struct Lease {
    /// Declared before the claim: the connection closes before the place is free.
    stream: Stream,
    claim: Claim,
    reused: bool,
}

impl Lease {
    pub(super) fn new(claim: Claim, stream: Stream, reused: bool) -> Lease {
        let backend = claim.backend();
        backend.count_lease(reused);
        Lease { stream, claim, reused }
    }

    /// The connection. Its timeouts are those that the previous user has set.
    #[inline]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether the connection was used before. The backend may then have closed it just as the
    /// request was sent. An end or a reset before the first byte of the response therefore says
    /// nothing about the backend. Repeat a request that is safe to repeat on [a new
    /// connection](super::Upstream::lease_anew).
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// The backend's number, for [`lease_anew`](super::Upstream::lease_anew) and
    /// [`stats`](super::Upstream::stats).
    pub fn backend(&self) -> usize {
        self.claim.backend
    }

    /// The backend's address.
    pub fn address(&self) -> &Address {
        &self.claim.backend().address
    }

    /// Reports a response: the backend's failures are reset, and a backend that was out is in
    /// again.
    #[inline]
    pub fn answered(&self) {
        self.claim.answered();
    }

    /// Reports a failure: the backend did not respond in time, or violated its protocol. After
    /// [`failures`](super::Builder::failures) consecutive ones the backend is out.
    pub fn failed(&self, why: impl fmt::Display) {
        self.claim.failed(&why);
    }

    /// Returns the connection for the next lease. The connection must be at the beginning of a
    /// request. It is closed if enough idle connections are kept already.
    pub fn keep(self) {
        let upstream = &self.claim.upstream;
        let until = osier::time::coarse_now().checked_add(upstream.idle_timeout);
        if let Some(until) = until
            && upstream.keep > 0
            && self.claim.backend().shelves.put(self.stream, upstream.keep, until)
        {
            keeper::ensure(upstream);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("backend", &self.claim.backend().label)
            .field("reused", &self.reused)
            .finish_non_exhaustive()
    }
}
