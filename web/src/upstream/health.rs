//! The health of a backend, from the outcomes of its requests and of active checks. A backend that
//! is "in" gets requests.
//!
//! ```text
//!            `failures` in a row                   the time has passed
//!   in ──────────────────────────▶ out, until t ─────────────────────▶ due ─▶ one request as the trial
//!    ▲                              ▲                                           │
//!    └── a response ────────────────┼───────────────────────────────────────────┤
//!                                   └── it failed: out for twice as long ───────┘
//! ```
//!
//! A trial without an outcome is followed by another one after the same time.
//!
//! All atomics are relaxed and unordered among each other. Each is a hint, and a stale hint costs
//! one request a second attempt. Times are milliseconds since the upstream was built.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The number of failures that puts a backend out, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) failures: u32,
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            failures: 3,
            first: Duration::from_millis(250),
            longest: Duration::from_secs(10),
        }
    }
}

impl Policy {
    /// Time for which a backend is out after this many consecutive failures.
    fn out_for(&self, failures: u32) -> Duration {
        let doubled = failures.saturating_sub(self.failures).min(20);
        self.first.saturating_mul(1 << doubled).min(self.longest)
    }
}

/// Whether a backend takes a request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admits {
    Yes,
    No,
    /// One request is admitted, if [`Health::begin_trial`] returns true.
    Trial,
}

/// The health of one backend.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Consecutive failures of requests.
    failures: AtomicU32,
    /// Time of the next trial; 0 while the backend is in.
    trial_at: AtomicU64,
    /// Whether the active checks have found the backend unhealthy. Only the keeper writes it.
    unwell: AtomicBool,
}

impl Health {
    #[inline]
    pub(super) fn admits(&self, now: impl FnOnce() -> u64) -> Admits {
        match (self.unwell.load(Relaxed), self.trial_at.load(Relaxed)) {
            (true, _) => Admits::No,
            (false, 0) => Admits::Yes,
            (false, at) if at <= now() => Admits::Trial,
            _ => Admits::No,
        }
    }

    /// Whether the caller's request is the trial. No other request becomes one before the backoff
    /// has passed again.
    pub(super) fn begin_trial(&self, now: u64, policy: &Policy) -> bool {
        let due = self.trial_at.load(Relaxed);
        let next = later(now, policy.out_for(self.failures.load(Relaxed)));
        (1..=now).contains(&due) && self.trial_at.compare_exchange(due, next, Relaxed, Relaxed).is_ok()
    }

    /// Counts a failure. Returns for how long the backend is out, if this failure puts it out.
    pub(super) fn failed(&self, trial: bool, now: u64, policy: &Policy) -> Option<Duration> {
        // In-flight requests of a backend that has gone out tell nothing new.
        if !trial && self.trial_at.load(Relaxed) != 0 {
            return None;
        }
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        if failures < policy.failures {
            return None;
        }
        let out = policy.out_for(failures);
        self.trial_at.store(later(now, out), Relaxed);
        Some(out)
    }

    /// Resets the failures. Returns whether the backend was out.
    #[inline]
    pub(super) fn answered(&self) -> bool {
        // Both are checked, because a response may arrive between the two steps of a failure on
        // another worker.
        if self.failures.load(Relaxed) == 0 && self.trial_at.load(Relaxed) == 0 {
            return false;
        }
        self.failures.store(0, Relaxed);
        self.trial_at.swap(0, Relaxed) != 0
    }

    /// Stores the result of the active checks. Returns whether it has changed.
    pub(super) fn found(&self, well: bool) -> bool {
        self.unwell.swap(!well, Relaxed) == well
    }

    pub(super) fn is_in(&self, now: u64) -> bool {
        self.admits(|| now) == Admits::Yes
    }
}

fn later(now: u64, time: Duration) -> u64 {
    let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    now.saturating_add(time.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        failures: 2,
        first: Duration::from_millis(100),
        longest: Duration::from_millis(350),
    };

    #[test]
    fn failures_in_a_row_put_a_backend_out_and_one_trial_shows_whether_it_is_back() {
        let health = Health::default();
        let ms = Duration::from_millis;
        assert_eq!(health.failed(false, 10, &POLICY), None);
        assert!(!health.answered(), "it was not out");
        assert_eq!(health.failed(false, 11, &POLICY), None, "the answer has ended the row");
        assert_eq!(health.failed(false, 12, &POLICY), Some(ms(100)));
        assert_eq!(health.failed(false, 13, &POLICY), None, "it is out already");
        assert_eq!(health.admits(|| 111), Admits::No);
        assert_eq!(health.admits(|| 112), Admits::Trial);
        assert!(health.begin_trial(112, &POLICY));
        assert!(!health.begin_trial(112, &POLICY), "one at a time");
        assert_eq!(health.admits(|| 150), Admits::No);
        assert_eq!(health.failed(true, 150, &POLICY), Some(ms(200)), "twice as long");
        assert!(health.begin_trial(350, &POLICY));
        assert_eq!(health.failed(true, 360, &POLICY), Some(ms(350)), "up to the longest");
        assert!(health.begin_trial(710, &POLICY));
        assert!(health.answered());
        assert_eq!(health.admits(|| 711), Admits::Yes);
    }

    #[test]
    fn an_answer_in_the_middle_of_a_failure_leaves_no_trial_behind() {
        let health = Health::default();
        // One worker has counted the last failure. Another worker receives a response before the
        // first one sets the time.
        health.failures.store(POLICY.failures, Relaxed);
        assert!(!health.answered());
        health.trial_at.store(112, Relaxed);
        assert!(health.begin_trial(112, &POLICY));
        assert!(health.answered(), "the trial has shown that it is in");
        assert_eq!(health.admits(|| 113), Admits::Yes);
    }

    #[test]
    fn a_trial_that_nobody_hears_of_is_followed_by_another() {
        let health = Health::default();
        health.failed(false, 1, &POLICY);
        health.failed(false, 1, &POLICY);
        assert!(health.begin_trial(101, &POLICY));
        assert_eq!(health.admits(|| 200), Admits::No);
        assert_eq!(health.admits(|| 201), Admits::Trial);
    }

    #[test]
    fn active_checks_overrule_requests() {
        let health = Health::default();
        assert!(!health.found(true), "no news");
        assert!(health.found(false));
        assert!(!health.found(false));
        assert_eq!(health.admits(|| 1), Admits::No);
        assert!(health.found(true));
        assert!(health.is_in(1));
    }
}
