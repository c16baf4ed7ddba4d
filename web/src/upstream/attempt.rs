//! One request to a backend, with a second attempt where that is safe. All gateways share it.
//!
//! ```text
//!   lease ─▶ attempt ─▶ response
//!              │ failed, and may repeat
//!              └─▶ a new connection, to another backend if there is one ─▶ attempt ─▶ response or failure
//! ```
//!
//! A failure on a kept connection speaks against the connection, not against its backend. The second
//! attempt then goes to a backup only if no other backend is in service, and to the same backend if
//! the client belongs there.
//!
//! While an attempt waits for the response's head, another fiber sends the remaining request
//! ([`while_sending`]). A backend may thus respond before it has read the whole request.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use osier::Cancelled;
use osier::fiber::{Activity, waits_for};

#[cfg(feature = "fastcgi")]
use super::Lease;
use super::affinity::Affinity;
#[cfg(feature = "proxy")]
use super::carrier::Carrier;
pub(crate) use super::claim::Attempted;
use super::claim::Search;
use super::ticket::Ticket;
use super::{Kept, Unavailable, Upstream};

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
    /// repeat. Returns the response and the number of its backend.
    ///
    /// # Suspends
    ///
    /// While connecting, and where `attempt` suspends.
    #[cfg(feature = "fastcgi")]
    pub(crate) fn attempt<T, F>(
        &self,
        affinity: Affinity,
        attempt: impl FnMut(Lease) -> Result<T, Failed<F>>,
    ) -> Result<(T, usize), Unanswered<F>> {
        let find = |search, kept| self.find(None, search, kept);
        waits_for(Activity::Network, || {
            twice(affinity, find, |lease| &lease.ticket, attempt)
        })
    }

    /// Same as [`attempt`](Upstream::attempt), for one HTTP request. `upgrades` says that the request may leave HTTP.
    #[cfg(feature = "proxy")]
    pub(crate) fn attempt_http<T, F>(
        &self,
        affinity: Affinity,
        upgrades: bool,
        attempt: impl FnMut(Carrier) -> Result<T, Failed<F>>,
    ) -> Result<(T, usize), Unanswered<F>> {
        let find = |search, kept| self.find_carrier(search, kept, upgrades);
        waits_for(Activity::Network, || twice(affinity, find, Carrier::ticket, attempt))
    }

    /// Goes on after the first attempt of [`attempt_http`](Upstream::attempt_http), `first`, has failed: makes one more if it may repeat.
    #[cfg(feature = "proxy")]
    pub(crate) fn attempt_http_again<T, F>(
        &self,
        affinity: Affinity,
        upgrades: bool,
        (first, failed): (Attempted, Failed<F>),
        attempt: impl FnMut(Carrier) -> Result<T, Failed<F>>,
    ) -> Result<(T, usize), Unanswered<F>> {
        let find = |search, kept| self.find_carrier(search, kept, upgrades);
        waits_for(Activity::Network, || {
            once_more(affinity, (first, failed), find, Carrier::ticket, attempt)
        })
    }
}

/// Makes an attempt over a carrier that `find` returns, and one more over a new carrier if the first one may repeat.
fn twice<C, T, F>(
    affinity: Affinity,
    find: impl Fn(Search, Kept) -> Result<C, Unavailable>,
    ticket: impl Fn(&C) -> &Ticket,
    mut attempt: impl FnMut(C) -> Result<T, Failed<F>>,
) -> Result<(T, usize), Unanswered<F>> {
    let search = Search {
        affinity,
        ..Search::default()
    };
    let carrier = find(search, Kept::Taken).map_err(Unanswered::Unavailable)?;
    let first = ticket(&carrier).attempt();
    match attempt(carrier) {
        Ok(response) => Ok((response, first.backend)),
        Err(failed) => once_more(affinity, (first, failed), find, ticket, attempt),
    }
}

/// Makes an attempt over a new carrier if the first one may repeat.
fn once_more<C, T, F>(
    affinity: Affinity,
    (first, failed): (Attempted, Failed<F>),
    find: impl Fn(Search, Kept) -> Result<C, Unavailable>,
    ticket: impl Fn(&C) -> &Ticket,
    mut attempt: impl FnMut(C) -> Result<T, Failed<F>>,
) -> Result<(T, usize), Unanswered<F>> {
    if !failed.may_repeat {
        return Err(Unanswered::Failed(failed.failure));
    }
    let search = Search {
        affinity,
        after: Some(first),
        ..Search::default()
    };
    let carrier = find(search, Kept::Never).map_err(Unanswered::Unavailable)?;
    let backend = ticket(&carrier).backend();
    let answered = attempt(carrier).map_err(|failed| Unanswered::Failed(failed.failure));
    answered.map(|response| (response, backend))
}

/// Whether a method is idempotent: it may be repeated even if the backend has executed it (RFC 9110
/// 9.2.2).
pub(crate) fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS" | "TRACE")
}

/// Runs `read` on this fiber while `send` runs on another, which is cancelled when `read` has
/// ended. If `send` panics, `give_up` runs. It has to end the wait of `read`, whose time may not
/// run before the request is sent. The second value is the outcome of `send`, or `None` if it was
/// cancelled.
///
/// # Suspends
///
/// As `read` and `send` do.
///
/// # Cancellation
///
/// Cancels both.
///
/// # Panics
///
/// If `send` has panicked, with its payload. The handler then fails as with a panic of its own.
pub(crate) fn while_sending<S, R>(
    send: impl FnOnce() -> S,
    give_up: impl FnOnce(),
    read: impl FnOnce() -> R,
) -> (R, Option<S>) {
    let send = || {
        catch_unwind(AssertUnwindSafe(send)).unwrap_or_else(|payload| {
            if !Cancelled::is_payload(&*payload) {
                give_up();
            }
            resume_unwind(payload)
        })
    };
    let both = || {
        osier::scope(|s| {
            let sending = s.spawn_local(send);
            let outcome = read();
            sending.cancel();
            (outcome, sending.join())
        })
    };
    match waits_for(Activity::Network, both) {
        (outcome, Ok(sent)) => (outcome, Some(sent)),
        (outcome, Err(payload)) if Cancelled::is_payload(&*payload) => (outcome, None),
        (_, Err(payload)) => resume_unwind(payload),
    }
}
