//! The keeper is the fiber of an upstream. It runs active checks, and closes idle connections after the
//! idle timeout.
//!
//! An upstream has at most one keeper. The first lease starts it if there are checks, and so does the first connection
//! that is kept. The keeper holds a weak reference to the upstream, upgraded only while it works. The drop of the
//! upstream wakes the keeper, which ends. If the keeper's runtime ends first, the next lease or kept connection starts
//! another keeper.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::backend::Backend;
use super::{Check, Inner, is_out_of_resources};

/// Bounds of the sweep interval, which is a quarter of the idle timeout. An idle connection may
/// live that much longer.
const SWEEP: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

/// Starts the fiber, unless it runs already or there is no runtime.
#[inline]
pub(super) fn ensure(upstream: &Arc<Inner>) {
    if !upstream.has_keeper.load(Relaxed) {
        start(upstream);
    }
}

#[cold]
fn start(upstream: &Arc<Inner>) {
    if osier::fiber::worker().is_none() || upstream.has_keeper.swap(true, Relaxed) {
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

/// Allows another keeper to start when this one ends.
struct Keeper(Weak<Inner>);

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.has_keeper.store(false, Relaxed);
        }
    }
}

/// State of the fiber between two rounds.
#[derive(Default)]
struct Rounds {
    next_check: Option<Instant>,
    next_sweep: Option<Instant>,
    /// Equal check results in a row, per backend: successes are positive, failures negative.
    rows: Vec<i64>,
}

impl Rounds {
    /// Runs the due work. Returns the time of the next work.
    fn tend(&mut self, upstream: &Inner) -> Instant {
        let now = osier::time::now();
        if let Some(check) = &upstream.check
            && self.next_check.is_none_or(|at| at <= now)
        {
            self.check_all(upstream, check);
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

    /// Checks all backends concurrently, so a backend that does not respond delays no other.
    fn check_all(&mut self, upstream: &Inner, check: &Check) {
        self.rows.resize(upstream.backends.len(), 0);
        osier::scope(|s| {
            for (backend, row) in upstream.backends.iter().zip(&mut self.rows) {
                s.spawn_local(move || {
                    let result = check.run(backend);
                    if result
                        .as_ref()
                        .is_err_and(|error| osier::Cancelled::is(error) || is_out_of_resources(error))
                    {
                        return;
                    }
                    judge(upstream, check, backend, row, result);
                });
            }
        });
    }
}

/// Counts a check's result, and changes and logs the backend's health at a threshold.
fn judge(upstream: &Inner, check: &Check, backend: &Backend, row: &mut i64, result: io::Result<()>) {
    *row = match result {
        Ok(()) => row.saturating_add(1).max(1),
        Err(_) => row.saturating_sub(1).min(-1),
    };
    let label = &backend.label;
    match result {
        Ok(()) if *row >= i64::from(check.rise) => {
            let was_out = backend.health.answered(Duration::ZERO, || upstream.now());
            if backend.health.found(true, upstream.now()) || was_out {
                upstream.log(format_args!("backend {label} is healthy again"));
            }
        }
        Err(error) if -*row >= i64::from(check.fall) && backend.health.found(false, upstream.now()) => {
            upstream.log(format_args!(
                "backend {label} is unhealthy and gets no requests: {error}"
            ));
        }
        _ => {}
    }
}
