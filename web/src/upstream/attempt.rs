//! One request to a backend, with a second attempt where that is safe. All gateways share it.
//!
//! ```text
//!   lease ─▶ attempt ─▶ response
//!              │ failed, and may repeat
//!              └─▶ a new connection, to another backend if there is one ─▶ attempt ─▶ response or failure
//! ```
//!
//! While an attempt waits for the response's head, another fiber sends the remaining request
//! ([`while_sending`]). A backend may thus respond before it has read the whole request.

use std::any::Any;

use super::{Lease, Unavailable, Upstream};

/// A failed attempt.
pub(crate) struct Failed<F> {
    pub(crate) failure: F,
    /// Whether a second attempt is safe: no part of the response has arrived, and the backend has
    /// received nothing or the request is safe to repeat. The request is ready to be sent from its
    /// beginning.
    pub(crate) may_repeat: bool,
}

/// The reason why there is no response.
pub(crate) enum Unanswered<F> {
    /// No backend was available.
    Unavailable(Unavailable),
    /// The failure of the last attempt.
    Failed(F),
}

impl Upstream {
    /// Makes an attempt over a lease, and one more over a new connection if the first one may
    /// repeat.
    ///
    /// # Suspends
    /// While connecting, and where `attempt` suspends.
    pub(crate) fn attempt<T, F>(
        &self,
        mut attempt: impl FnMut(Lease) -> Result<T, Failed<F>>,
    ) -> Result<T, Unanswered<F>> {
        let lease = self.lease(None).map_err(Unanswered::Unavailable)?;
        let backend = lease.backend();
        let failed = match attempt(lease) {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        if !failed.may_repeat {
            return Err(Unanswered::Failed(failed.failure));
        }
        let lease = self.lease_anew(None, Some(backend)).map_err(Unanswered::Unavailable)?;
        attempt(lease).map_err(|failed| Unanswered::Failed(failed.failure))
    }
}

/// Whether a method is idempotent: it may be repeated even if the backend has executed it (RFC 9110
/// 9.2.2).
pub(crate) fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS" | "TRACE")
}

/// Runs `read` on this fiber while `send` runs on another, which is cancelled when `read` has
/// ended. The second value is the outcome of `send`; its error is the payload of a panic or of the
/// cancellation.
///
/// # Cancellation
/// Cancels both.
pub(crate) fn while_sending<S, R>(
    send: impl FnOnce() -> S,
    read: impl FnOnce() -> R,
) -> (R, Result<S, Box<dyn Any + Send>>) {
    osier::scope(|s| {
        let sending = s.spawn_local(send);
        let outcome = read();
        sending.cancel();
        (outcome, sending.join())
    })
}
