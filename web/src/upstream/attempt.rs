//! One request to a backend, and a second attempt where that is safe: the part that every gateway shares.
//!
//! ```text
//!   lease ─▶ attempt ─▶ answer
//!              │ failed, and may be repeated
//!              └─▶ a new connection, to another backend if there is one ─▶ attempt ─▶ answer or failure
//! ```
//!
//! While an attempt waits for the answer's head the rest of the request goes out on a fiber of its own ([`while_sending`]), so a
//! backend may answer before it has read everything.

use std::any::Any;

use super::{Lease, Unavailable, Upstream};

/// How an attempt has failed.
pub(crate) struct Failed<F> {
    pub(crate) failure: F,
    /// The backend has got nothing of the request, or it makes no difference how often it gets it, and nothing has come of it.
    /// The request is ready to be sent from its beginning.
    pub(crate) may_repeat: bool,
}

/// Why there is no answer.
pub(crate) enum Unanswered<F> {
    /// No backend could be asked.
    Unavailable(Unavailable),
    /// The last attempt's failure.
    Failed(F),
}

impl Upstream {
    /// Makes an attempt over a lease, and one more over a new connection if the first may be repeated. `trusts_kept`: the request
    /// can be repeated, so a kept connection is not looked at before.
    ///
    /// # Suspends
    /// For a connection, and as `attempt` does.
    pub(crate) fn attempt<T, F>(
        &self,
        trusts_kept: bool,
        mut attempt: impl FnMut(Lease) -> Result<T, Failed<F>>,
    ) -> Result<T, Unanswered<F>> {
        let lease = match trusts_kept {
            true => self.lease_to_repeat(None),
            false => self.lease(None),
        };
        let lease = lease.map_err(Unanswered::Unavailable)?;
        let backend = lease.backend();
        let failed = match attempt(lease) {
            Ok(answer) => return Ok(answer),
            Err(failed) => failed,
        };
        if !failed.may_repeat {
            return Err(Unanswered::Failed(failed.failure));
        }
        let lease = self.lease_anew(None, Some(backend)).map_err(Unanswered::Unavailable)?;
        attempt(lease).map_err(|failed| Unanswered::Failed(failed.failure))
    }
}

/// Whether a method may be sent again though the backend may have done what it says (RFC 9110 9.2.2).
pub(crate) fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS" | "TRACE")
}

/// Runs `read` on this fiber while `send` runs on another, which is stopped when `read` has ended. The second value is how
/// `send` has ended; the error is the payload of its panic or of its cancellation.
///
/// # Cancellation
/// Stops both.
pub(crate) fn while_sending<S, R>(
    send: impl FnOnce() -> S,
    read: impl FnOnce() -> R,
) -> (R, Result<S, Box<dyn Any + Send>>) {
    osier::scope(|s| {
        let sending = s.spawn_local(send);
        let answer = read();
        sending.cancel();
        (answer, sending.join())
    })
}
