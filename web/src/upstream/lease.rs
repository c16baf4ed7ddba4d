//! A connection to a backend, for as long as one request needs it.

use std::fmt;

use super::{Claim, keeper};
use crate::{Address, Stream};

/// A connection to a backend. Dropping it closes the connection, [`keep`](Lease::keep) gives it to the next.
///
/// Tell what became of it: [`answered`](Lease::answered) when the backend has said something sensible, without which a
/// backend that was out never comes back, and [`failed`](Lease::failed) when it is to blame.
pub struct Lease {
    /// Before the claim: the place is free when the connection is closed.
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

    /// The connection. Its timeouts are as the last user has left them.
    #[inline]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether others have used the connection before. Then the backend may have closed it just as this request was sent: an
    /// end or a reset before the first byte of an answer says nothing of the backend, and what is safe to repeat is repeated
    /// on [a new one](super::Upstream::lease_anew).
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// The number of the backend, for [`lease_anew`](super::Upstream::lease_anew) and [`stats`](super::Upstream::stats).
    pub fn backend(&self) -> usize {
        self.claim.backend
    }

    /// The backend's address.
    pub fn address(&self) -> &Address {
        &self.claim.backend().address
    }

    /// The backend has answered: its failures are forgotten, and if it was out it is in again.
    #[inline]
    pub fn answered(&self) {
        self.claim.answered();
    }

    /// The backend has failed: it did not answer in time, or not in its protocol. With as many in a row as
    /// [`failures`](super::Builder::failures) says, it is out.
    pub fn failed(&self, why: impl fmt::Display) {
        self.claim.failed(&why);
    }

    /// Gives the connection back for the next request, at whose beginning it must be. Closed where enough are kept already.
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
