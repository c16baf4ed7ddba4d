//! The fiber of an upstream: asks the backends whether they are well, and closes idle connections that are too old.
//!
//! There is at most one, started by whoever first needs it (a lease where there are checks, a connection that is kept). It
//! holds the upstream weakly and only while it works; the upstream's end wakes it, and it ends. If its runtime ends first,
//! the next lease or kept connection starts another.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::backend::Backend;
use super::{Check, Inner, is_own_lack};

/// How often idle connections are looked at: four times in their time, within these bounds. One may live so much longer.
const SWEEP: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

/// Starts the fiber unless it runs, or there is no runtime to run it.
#[inline]
pub(super) fn ensure(upstream: &Arc<Inner>) {
    if !upstream.kept.load(Relaxed) {
        start(upstream);
    }
}

#[cold]
fn start(upstream: &Arc<Inner>) {
    if osier::fiber::worker().is_none() || upstream.kept.swap(true, Relaxed) {
        return;
    }
    let keeper = Keeper(Arc::downgrade(upstream));
    let gone = upstream.gone.clone();
    let name = format!("upstream {}", upstream.name);
    osier::fiber::Builder::new().name(name).spawn(move || {
        let mut rounds = Rounds::default();
        while let Some(upstream) = keeper.0.upgrade() {
            let next = rounds.tend(&upstream);
            drop(upstream);
            gone.wait_timeout(next.saturating_duration_since(osier::time::now()));
        }
    });
}

/// Lets another one start when this one ends.
struct Keeper(Weak<Inner>);

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.kept.store(false, Relaxed);
        }
    }
}

/// What the fiber knows from one round to the next.
#[derive(Default)]
struct Rounds {
    next_check: Option<Instant>,
    next_sweep: Option<Instant>,
    /// Of each backend, equal answers in a row: good ones above zero, bad ones below.
    rows: Vec<i64>,
}

impl Rounds {
    /// Does what is due; when to come again.
    fn tend(&mut self, upstream: &Inner) -> Instant {
        let now = osier::time::now();
        if let Some(check) = &upstream.check
            && self.next_check.is_none_or(|at| at <= now)
        {
            self.ask_all(upstream, check);
            self.next_check = now.checked_add(check.every);
        }
        if self.next_sweep.is_none_or(|at| at <= now) {
            for backend in &upstream.backends {
                backend.sweep(now);
            }
            self.next_sweep = now.checked_add((upstream.idle_timeout / 4).clamp(SWEEP.0, SWEEP.1));
        }
        let times = self.next_check.into_iter().chain(self.next_sweep);
        times.min().unwrap_or(now + SWEEP.1)
    }

    /// One question to each backend, all at once: one that does not answer holds up nobody.
    fn ask_all(&mut self, upstream: &Inner, check: &Check) {
        self.rows.resize(upstream.backends.len(), 0);
        osier::scope(|s| {
            for (backend, row) in upstream.backends.iter().zip(&mut self.rows) {
                s.spawn_local(move || {
                    let answer = check.ask(backend);
                    if answer
                        .as_ref()
                        .is_err_and(|error| osier::Cancelled::is(error) || is_own_lack(error))
                    {
                        return;
                    }
                    judge(upstream, check, backend, row, answer);
                });
            }
        });
    }
}

fn judge(upstream: &Inner, check: &Check, backend: &Backend, row: &mut i64, answer: io::Result<()>) {
    *row = match answer {
        Ok(()) => row.saturating_add(1).max(1),
        Err(_) => row.saturating_sub(1).min(-1),
    };
    let label = &backend.label;
    match answer {
        Ok(()) if *row >= i64::from(check.rise) => {
            let was_out = backend.health.answered();
            if backend.health.found(true) || was_out {
                upstream.log(format_args!("backend {label} is well again"));
            }
        }
        Err(error) if -*row >= i64::from(check.fall) && backend.health.found(false) => {
            upstream.log(format_args!(
                "backend {label} is not well, and gets no requests: {error}"
            ));
        }
        _ => {}
    }
}
