//! The search for a backend. Its outcome is a claim: a place at the backend.
//!
//! A search goes through tiers of backends, and ends in the first that has one in service:
//!
//! ```text
//!   the backend of the sticky cookie ─▶ primaries ─▶ backups, if no primary is in service
//!                                                       └ in a second attempt: the backend that has failed
//! ```
//!
//! Within a tier, a backend that is due for a trial gets the request. Otherwise the balance chooses
//! (pick.rs). If the choice is by a key, a backend that is due takes part in it, so only requests with its own keys are
//! risked.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use super::affinity::Affinity;
use super::backend::Backend;
use super::balance::Balance;
use super::health::{Admits, FailureKind};
use super::pick::{self, BACKENDS_MAX, LeastLoaded, members};
use super::{Anchor, Inner, Turns, Unavailable};

/// The task of a search for a backend.
#[derive(Clone, Copy, Default)]
pub(super) struct Search {
    /// The backends that have refused this request a connection, a bit each.
    pub(super) tried: u64,
    pub(super) affinity: Affinity,
    /// The failed attempt, if this search is for a second one.
    pub(super) after: Option<Attempted>,
}

/// An attempt.
#[derive(Clone, Copy)]
pub(crate) struct Attempted {
    pub(super) backend: usize,
    /// Whether the connection had been used before. The backend may have closed it for its age.
    pub(super) reused: bool,
}

#[cfg(feature = "proxy")]
impl Attempted {
    /// The number of the backend.
    pub(crate) fn backend(&self) -> usize {
        self.backend
    }
}

impl Anchor {
    /// Claims a place at a backend. If failures have put all backends out, the first attempt goes to
    /// one of them all the same.
    pub(super) fn claim(self: &Arc<Self>, search: &Search) -> Result<Claim, Unavailable> {
        if let [only] = &*self.backends
            && search.tried == 0
            && only.health.admits(|| self.now()) == Admits::Yes
            && only.take_place(self.max_leases)
        {
            return Ok(Claim::new(self, 0, false));
        }
        let (tiers, mut busy) = (self.tiers(search), 0);
        // Two workers may each have put out what they saw as the last but one.
        for also_out in [false, true] {
            if also_out && (search.tried != 0 || busy != 0) {
                break;
            }
            for tier in tiers.map(|tier| tier & !search.tried) {
                // A primary at its limit is in service.
                let waits = tier & self.backups != 0 && busy & !self.backups != 0;
                if tier == 0 || waits {
                    continue;
                }
                if let Some(claim) = self.claim_in(tier, search, also_out, &mut busy) {
                    return Ok(claim);
                }
            }
        }
        let upstream = self.name.clone();
        Err(match busy {
            0 => Unavailable::Out { upstream },
            _ => Unavailable::Busy { upstream },
        })
    }

    /// Claims a place at one of `tier`. Adds those at their limit to `busy`. With `also_out`, backends that failures
    /// have put out count as well.
    fn claim_in(self: &Arc<Self>, tier: u64, search: &Search, also_out: bool, busy: &mut u64) -> Option<Claim> {
        let (key, mut lost) = (search.affinity.key, 0);
        loop {
            let (open, due) = self.survey(tier & !lost, also_out, busy);
            if key.is_none()
                && let Some(trial) = members(due).find_map(|index| self.begin_trial(index))
            {
                return Some(trial);
            }
            let among = match key {
                Some(_) => open | due,
                None => open,
            };
            if among == 0 {
                return None;
            }
            let (index, below) = self.pick(among, key);
            if due & 1 << index != 0 {
                match self.begin_trial(index) {
                    Some(trial) => return Some(trial),
                    // Another worker has begun it.
                    None => lost |= 1 << index,
                }
            } else if self.backends[index].take_place(below) {
                return Some(Claim::new(self, index, false));
            }
            // Another worker has taken the place. The choice is outdated, and the search starts anew.
        }
    }

    /// Claims a place for a connection that is there already.
    #[cfg(all(feature = "proxy", feature = "upgrade"))]
    pub(super) fn claim_extra(self: &Arc<Self>, index: usize) -> Claim {
        self.backends[index].take_extra_place();
        Claim::new(self, index, false)
    }

    /// Claims a place for the request as the trial, unless another worker has begun the trial.
    fn begin_trial(self: &Arc<Self>, index: usize) -> Option<Claim> {
        let backend = &self.backends[index];
        backend.health.begin_trial(self.now(), &self.policy).then(|| {
            backend.take_extra_place();
            Claim::new(self, index, true)
        })
    }
}

impl Inner {
    /// The sets of backends in which a search looks, one after the other. Empty sets are skipped.
    fn tiers(&self, search: &Search) -> [u64; 7] {
        let bit = |backend: Option<usize>| backend.map_or(0, |backend| 1 << backend);
        let before = bit(search.after.map(|after| after.backend));
        let (first, then, last) = match search.after {
            // Nothing speaks against the backend, and its clients stay there.
            Some(after) if after.reused && search.affinity.is_any() => (before, 0, 0),
            Some(after) if after.reused => (0, before, 0),
            _ => (0, 0, before),
        };
        let primaries = self.all() & !self.backups & !before;
        let backups = self.backups & !before;
        let stuck = bit(search.affinity.stuck);
        [
            first,
            stuck & primaries,
            primaries,
            then,
            stuck & backups,
            backups,
            last,
        ]
    }

    /// The set of all backends.
    fn all(&self) -> u64 {
        u64::MAX >> (u64::BITS as usize - self.backends.len())
    }

    /// The backends of `tier` that admit a request, and those that are due for a trial.
    fn survey(&self, tier: u64, also_out: bool, busy: &mut u64) -> (u64, u64) {
        let (mut open, mut due) = (0, 0);
        for index in members(tier) {
            let (backend, bit) = (&self.backends[index], 1 << index);
            let admits = backend.health.admits(|| self.now());
            if backend.load() >= self.max_leases {
                // Nobody waits for a place at a backend that is out of service.
                if admits != Admits::No {
                    *busy |= bit;
                }
                continue;
            }
            match admits {
                Admits::Yes => open |= bit,
                Admits::Trial => due |= bit,
                Admits::No if also_out && backend.health.is_well() => open |= bit,
                Admits::No => {}
            }
        }
        (open, due)
    }

    /// Chooses one of a set. Returns it, and the number of leases below which the choice holds.
    fn pick(&self, among: u64, key: Option<u64>) -> (usize, usize) {
        if among.is_power_of_two() {
            return (among.trailing_zeros() as usize, self.max_leases);
        }
        let weight = |index: usize| self.weight(index);
        let load = |index: usize| self.backends[index].load();
        if let Some(key) = key {
            let seed = |index: usize| self.backends[index].seed;
            return (pick::by_key(among, key, seed, weight), self.max_leases);
        }
        match self.balance {
            Balance::RoundRobin => (pick::smooth(among, &self.turns().credits, weight), self.max_leases),
            Balance::RandomTwo => {
                let random = &self.turns().random;
                let draws = [pick::random(random), pick::random(random)];
                (pick::two(among, draws, load, weight), self.max_leases)
            }
            Balance::LeastConnections | Balance::Hash(_) => {
                let least = LeastLoaded::of(among, load, weight);
                let index = match least.set.is_power_of_two() {
                    true => least.set.trailing_zeros() as usize,
                    false => pick::smooth(least.set, &self.turns().credits, weight),
                };
                let highest = least.load_at(weight(index));
                (index, self.max_leases.min(highest.saturating_add(1)))
            }
        }
    }

    /// The state of this worker's choices. Each worker begins one choice later than the one before it, so that they do
    /// not all begin with the same backend.
    fn turns(&self) -> &Turns {
        self.turns.own(|worker| {
            let credits = [const { AtomicI64::new(0) }; BACKENDS_MAX];
            let weight = |index: usize| self.backends[index].weight;
            for set in [self.all() & !self.backups, self.backups] {
                if set != 0 {
                    (0..worker).for_each(|_| _ = pick::smooth(set, &credits, weight));
                }
            }
            Turns {
                credits,
                random: AtomicU64::new(osier::random()),
            }
        })
    }

    /// The weight of a backend now.
    fn weight(&self, index: usize) -> u64 {
        let backend = &self.backends[index];
        backend.health.weight(backend.weight, self.slow_start, || self.now())
    }
}

/// A place at a backend. It counts as a lease until it is dropped.
pub(super) struct Claim {
    pub(super) upstream: Arc<Anchor>,
    pub(super) backend: usize,
    /// Whether the backend was out and this claim is the trial.
    trial: bool,
}

impl Claim {
    fn new(upstream: &Arc<Anchor>, backend: usize, trial: bool) -> Claim {
        Claim {
            upstream: upstream.clone(),
            backend,
            trial,
        }
    }

    pub(super) fn backend(&self) -> &Backend {
        &self.upstream.backends[self.backend]
    }

    /// Called after a connection was tried. Logs that old addresses of the backend are in use because its name was not found.
    pub(super) fn has_dialed(&self) {
        if let Some(error) = self.backend().take_lookup_failure() {
            let label = &self.backend().label;
            self.upstream.log(format_args!(
                "looking up {label} failed: {error}; its old addresses stay"
            ));
        }
    }

    /// Counts a failure, and logs it if it puts the backend out.
    pub(super) fn failed(&self, kind: FailureKind, why: &dyn fmt::Display) {
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
        if let Some(out) = backend.health.failed(kind, self.trial, now, &inner.policy, is_last) {
            let label = &backend.label;
            inner.log(format_args!("backend {label} is out for {out:?}: {why}"));
        }
    }

    /// Resets the failures, and logs that the backend is in again if it was out. The request began `age` ago.
    pub(super) fn answered(&self, age: Duration) {
        if self.backend().health.answered(age, || self.upstream.now()) {
            let label = &self.backend().label;
            self.upstream.log(format_args!("backend {label} is in again"));
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.backend().give_place();
    }
}
