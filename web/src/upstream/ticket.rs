//! A ticket is one request at a backend. It holds the place there, and the outcome of the request is reported to it.

use std::fmt;
use std::sync::atomic::AtomicBool;
#[cfg(feature = "proxy")]
use std::sync::atomic::Ordering::Relaxed;
#[cfg(feature = "proxy")]
use std::time::Duration;

use osier::time::Stamp;

use super::claim::{Attempted, Claim};
use super::health::FailureKind;
use crate::Address;

/// One request at a backend.
pub(crate) struct Ticket {
    pub(super) claim: Claim,
    reused: bool,
    since: Stamp,
    /// The connection has left HTTP.
    is_tunnel: AtomicBool,
}

impl Ticket {
    /// Makes the ticket of a request that begins now. `reused` says that the connection was used before.
    pub(super) fn new(claim: Claim, reused: bool) -> Ticket {
        claim.backend().counts.connected(reused);
        Ticket {
            claim,
            reused,
            since: Stamp::now(),
            is_tunnel: AtomicBool::new(false),
        }
    }

    /// Whether the connection was used before; see [`Lease::is_reused`](super::Lease::is_reused).
    pub(crate) fn is_reused(&self) -> bool {
        self.reused
    }

    /// The attempt that this request is.
    pub(crate) fn attempt(&self) -> Attempted {
        Attempted {
            backend: self.backend(),
            reused: self.reused,
        }
    }

    /// The backend's number.
    pub(crate) fn backend(&self) -> usize {
        self.claim.backend
    }

    /// The backend's address.
    pub(crate) fn address(&self) -> &Address {
        &self.claim.backend().address
    }

    /// Reports the head of a response; see [`Lease::answered`](super::Lease::answered).
    #[inline]
    pub(crate) fn answered(&self) {
        let now = Stamp::now();
        let time = now.since(self.since);
        self.claim.backend().counts.answered(now, time);
        self.claim.answered(time);
    }

    /// Reports that the connection leaves HTTP: it is counted as a tunnel until the ticket is dropped.
    #[cfg(feature = "proxy")]
    pub(crate) fn begin_tunnel(&self) {
        if !self.is_tunnel.swap(true, Relaxed) {
            self.claim.backend().counts.tunnel_begins();
        }
    }

    /// The backend's label.
    #[cfg(feature = "proxy")]
    pub(crate) fn label(&self) -> &str {
        &self.claim.backend().label
    }

    /// Counts bytes that a tunnel has passed on: to the backend, and to the client.
    #[cfg(feature = "proxy")]
    pub(crate) fn tunnelled(&self, to_backend: u64, to_client: u64) {
        self.claim.backend().counts.tunnelled(to_backend, to_client);
    }

    /// Counts a tunnel that has ended after this time.
    #[cfg(feature = "proxy")]
    pub(crate) fn tunnel_took(&self, time: Duration) {
        self.claim.backend().counts.tunnel_took(time);
    }

    /// Reports that the backend broke off inside the body of a response. The response's head has shown that the backend is in service, so this
    /// does not count towards putting it out.
    #[cfg(feature = "proxy")]
    pub(crate) fn broke_off(&self) {
        self.claim.backend().counts.broke_off();
    }

    /// Reports a failed request; see [`Lease::failed`](super::Lease::failed).
    pub(crate) fn failed(&self, why: impl fmt::Display) {
        self.claim.backend().counts.failed(false);
        self.claim.failed(FailureKind::Request, &why);
    }

    /// Reports a request that was not taken or answered in time; see [`Lease::timed_out`](super::Lease::timed_out). A client can ask for what
    /// takes long, so this says nothing about a backend that has answered others meanwhile.
    pub(crate) fn timed_out(&self, why: impl fmt::Display) {
        let counts = &self.claim.backend().counts;
        counts.failed(true);
        if !counts.has_answered_since(self.since) {
            self.claim.failed(FailureKind::Request, &why);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if *self.is_tunnel.get_mut() {
            self.claim.backend().counts.tunnel_ends();
        }
    }
}
