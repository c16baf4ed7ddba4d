//! Claims: the search for a backend, and its outcome, a place at the backend.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::backend::Backend;
use super::health::{Admits, Failed};
use super::{Inner, Unavailable};

impl Inner {
    /// Claims a place at the backend with the fewest leases, among those that are in and not in
    /// `tried`. The backend `avoid` is chosen last. If failures have put all backends out, the first
    /// attempt goes to one of them all the same.
    pub(super) fn claim(self: &Arc<Self>, tried: u64, avoid: Option<usize>) -> Result<Claim, Unavailable> {
        let count = self.backends.len();
        let begin = if count == 1 { 0 } else { self.turn.fetch_add(1, Relaxed) };
        let mut all_out = false;
        loop {
            let mut best: Option<(bool, usize, usize)> = None;
            let mut busy = false;
            for index in (0..count).map(|offset| begin.wrapping_add(offset) % count) {
                if tried & 1 << index != 0 {
                    continue;
                }
                let backend = &self.backends[index];
                let leases = backend.leases.load(Relaxed);
                if leases >= self.max_leases {
                    busy = true;
                    continue;
                }
                match backend.health.admits(|| self.now()) {
                    Admits::No if all_out && backend.health.is_well() => {}
                    Admits::No => continue,
                    // One request is risked as the trial.
                    Admits::Trial => match backend.health.begin_trial(self.now(), &self.policy) {
                        true => {
                            backend.leases.fetch_add(1, Relaxed);
                            return Ok(Claim::new(self, index, true));
                        }
                        false => continue,
                    },
                    Admits::Yes => {}
                }
                let rank = (avoid == Some(index), leases, index);
                if best.is_none_or(|(avoided, fewest, _)| (rank.0, rank.1) < (avoided, fewest)) {
                    best = Some(rank);
                }
            }
            let upstream = || self.name.clone();
            let Some((_, leases, index)) = best else {
                // Two workers may each have put out what they saw as the last but one.
                if tried == 0 && !busy && !std::mem::replace(&mut all_out, true) {
                    continue;
                }
                return Err(match busy {
                    true => Unavailable::Busy { upstream: upstream() },
                    false => Unavailable::Out { upstream: upstream() },
                });
            };
            // Another worker may have taken the place meanwhile. The comparison is then outdated,
            // and the search starts anew.
            let taken = self.backends[index]
                .leases
                .compare_exchange(leases, leases + 1, Relaxed, Relaxed);
            if taken.is_ok() {
                return Ok(Claim::new(self, index, false));
            }
        }
    }
}

/// A place at a backend. It counts as a lease until it is dropped.
pub(super) struct Claim {
    pub(super) upstream: Arc<Inner>,
    pub(super) backend: usize,
    /// Whether the backend was out and this claim is the trial.
    trial: bool,
}

impl Claim {
    fn new(upstream: &Arc<Inner>, backend: usize, trial: bool) -> Claim {
        Claim {
            upstream: upstream.clone(),
            backend,
            trial,
        }
    }

    pub(super) fn backend(&self) -> &Backend {
        &self.upstream.backends[self.backend]
    }

    pub(super) fn failed(&self, what: Failed, why: &dyn fmt::Display) {
        let inner = &self.upstream;
        let backend = self.backend();
        let now = inner.now();
        let is_last = || {
            let mut others = inner
                .backends
                .iter()
                .enumerate()
                .filter(|(index, _)| *index != self.backend);
            !others.any(|(_, other)| other.health.is_in(now))
        };
        if let Some(out) = backend.health.failed(what, self.trial, now, &inner.policy, is_last) {
            let label = &backend.label;
            inner.log(format_args!("backend {label} is out for {out:?}: {why}"));
        }
    }

    pub(super) fn answered(&self) {
        if self.backend().health.answered() {
            let label = &self.backend().label;
            self.upstream.log(format_args!("backend {label} is in again"));
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.backend().leases.fetch_sub(1, Relaxed);
    }
}
