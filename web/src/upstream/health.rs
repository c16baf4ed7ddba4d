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
//! A trial without an outcome is followed by another one after the same time. A response to a request that began before the backend
//! went out does not bring it back: it says how the backend was then.
//!
//! A row of failures lasts for [`Policy::window`] at most. A later failure begins another row.
//!
//! Failures to connect put a backend out. Failed requests do so only if the backend gave no response
//! for [`Policy::silence`]: a client can provoke failures, but cannot keep others from getting responses. One that has timed out is no failure
//! if the backend has answered another one meanwhile. The last backend that is in stays in, whatever fails.
//!
//! A backend that comes back starts slowly: its weight grows with the time since then
//! ([`Health::weight`]).
//!
//! All atomics are relaxed and unordered among each other. Each is a hint, and a stale hint costs
//! one request a second attempt. Times are milliseconds since the upstream was built.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The number of failures that puts a backend out, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) failures: u32,
    /// Time for which a backend is out before the first trial. It doubles with each failed trial.
    pub(super) first: Duration,
    /// The longest such time.
    pub(super) longest: Duration,
    /// The least time from the first failure in a row to the failed request that puts a backend out.
    pub(super) silence: Duration,
    /// The longest time from the first failure in a row to the one that puts a backend out.
    pub(super) window: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            failures: 3,
            first: Duration::from_millis(250),
            longest: Duration::from_secs(10),
            silence: Duration::from_secs(1),
            window: Duration::MAX,
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

/// The kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    Connecting,
    Request,
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
    /// Consecutive failures.
    failures: AtomicU32,
    /// Time of the first of them.
    failing_since: AtomicU64,
    /// Time of the next trial; 0 while the backend is in.
    trial_at: AtomicU64,
    /// Time at which the backend went out last. It is stored before the time of the trial.
    out_since: AtomicU64,
    /// Whether the active checks have found the backend unhealthy. Only the keeper writes it.
    unwell: AtomicBool,
    /// Time at which the backend came back, and 0 when it has its full weight. It is stored before the backend is
    /// in.
    back_since: AtomicU64,
}

impl Health {
    /// Whether the backend takes a request now.
    #[inline]
    pub(super) fn admits(&self, now: impl FnOnce() -> u64) -> Admits {
        match (self.unwell.load(Relaxed), self.trial_at.load(Relaxed)) {
            (true, _) => Admits::No,
            (false, 0) => Admits::Yes,
            (false, at) if at <= now() => Admits::Trial,
            _ => Admits::No,
        }
    }

    /// Begins a trial. Returns whether the caller's request is the trial: then no other request becomes one before the
    /// backoff has passed again.
    pub(super) fn begin_trial(&self, now: u64, policy: &Policy) -> bool {
        let due = self.trial_at.load(Relaxed);
        let next = later(now, policy.out_for(self.failures.load(Relaxed)));
        (1..=now).contains(&due) && self.trial_at.compare_exchange(due, next, Relaxed, Relaxed).is_ok()
    }

    /// Counts a failure. Returns for how long the backend is out, if this failure puts it out.
    /// `is_last` says whether no other backend is in.
    pub(super) fn failed(
        &self,
        kind: FailureKind,
        trial: bool,
        now: u64,
        policy: &Policy,
        is_last: impl FnOnce() -> bool,
    ) -> Option<Duration> {
        // In-flight requests of a backend that has gone out tell nothing new.
        if !trial && self.trial_at.load(Relaxed) != 0 {
            return None;
        }
        let mut before = self.failures.fetch_add(1, Relaxed);
        let row = now.saturating_sub(self.failing_since.load(Relaxed));
        if !trial && before > 0 && u128::from(row) > policy.window.as_millis() {
            // The row is too old. This failure begins another.
            self.failures.store(1, Relaxed);
            before = 0;
        }
        if before == 0 {
            self.failing_since.store(now, Relaxed);
        }
        let failures = before.saturating_add(1);
        if failures < policy.failures {
            return None;
        }
        let silence = now.saturating_sub(self.failing_since.load(Relaxed));
        let may_be_provoked = kind == FailureKind::Request && u128::from(silence) < policy.silence.as_millis();
        if !trial && (may_be_provoked || is_last()) {
            return None;
        }
        let out = policy.out_for(failures);
        if !trial {
            self.out_since.store(now, Relaxed);
        }
        self.trial_at.store(later(now, out), Relaxed);
        Some(out)
    }

    /// Resets the failures after a response to a request that began `age` ago, unless the backend has gone out since. Returns whether
    /// the backend was out.
    #[inline]
    pub(super) fn answered(&self, age: Duration, now: impl FnOnce() -> u64) -> bool {
        // Both are checked, because a response may arrive between the two steps of a failure on
        // another worker.
        if self.failures.load(Relaxed) == 0 && self.trial_at.load(Relaxed) == 0 {
            return false;
        }
        self.answered_after_failures(age, now())
    }

    #[cold]
    fn answered_after_failures(&self, age: Duration, now: u64) -> bool {
        let is_out = self.trial_at.load(Relaxed) != 0;
        let began = u128::from(now).saturating_sub(age.as_millis());
        if is_out && began < u128::from(self.out_since.load(Relaxed)) {
            return false;
        }
        self.failures.store(0, Relaxed);
        if is_out {
            self.back_since.store(now.max(1), Relaxed);
        }
        self.trial_at.swap(0, Relaxed) != 0
    }

    /// Stores the result of the active checks. Returns whether it has changed.
    pub(super) fn found(&self, well: bool, now: u64) -> bool {
        if well && !self.is_well() {
            self.back_since.store(now.max(1), Relaxed);
        }
        self.unwell.swap(!well, Relaxed) == well
    }

    /// The weight of the backend: `full`, and less in the `slow_start` milliseconds after it came back.
    /// It grows in proportion to the time.
    #[inline]
    pub(super) fn weight(&self, full: u64, slow_start: u64, now: impl FnOnce() -> u64) -> u64 {
        let since = self.back_since.load(Relaxed);
        if since == 0 || slow_start == 0 {
            return full;
        }
        let elapsed = now().saturating_sub(since);
        if elapsed < slow_start {
            let part = u128::from(full) * u128::from(elapsed) / u128::from(slow_start);
            return (part as u64).max(1);
        }
        // Unless it has just come back once more.
        let _ = self.back_since.compare_exchange(since, 0, Relaxed, Relaxed);
        full
    }

    /// Whether the active checks have found nothing wrong.
    pub(super) fn is_well(&self) -> bool {
        !self.unwell.load(Relaxed)
    }

    /// Whether every request is admitted.
    pub(super) fn is_in(&self, now: u64) -> bool {
        self.admits(|| now) == Admits::Yes
    }
}

/// The time after `time`, and at least a millisecond later.
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
        silence: Duration::from_millis(1000),
        window: Duration::MAX,
    };

    impl Health {
        fn refused(&self, trial: bool, now: u64) -> Option<Duration> {
            self.failed(FailureKind::Connecting, trial, now, &POLICY, || false)
        }
    }

    #[test]
    fn failures_in_a_row_put_a_backend_out_and_one_trial_shows_whether_it_is_back() {
        let health = Health::default();
        let ms = Duration::from_millis;
        assert_eq!(health.refused(false, 10), None);
        assert!(!health.answered(Duration::ZERO, || 0), "it was not out");
        assert_eq!(health.refused(false, 11), None, "the answer has ended the row");
        assert_eq!(health.refused(false, 12), Some(ms(100)));
        assert_eq!(health.refused(false, 13), None, "it is out already");
        assert_eq!(health.admits(|| 111), Admits::No);
        assert_eq!(health.admits(|| 112), Admits::Trial);
        assert!(health.begin_trial(112, &POLICY));
        assert!(!health.begin_trial(112, &POLICY), "one at a time");
        assert_eq!(health.admits(|| 150), Admits::No);
        assert_eq!(health.refused(true, 150), Some(ms(200)), "twice as long");
        assert!(health.begin_trial(350, &POLICY));
        assert_eq!(health.refused(true, 360), Some(ms(350)), "up to the longest");
        assert!(health.begin_trial(710, &POLICY));
        assert!(health.answered(Duration::ZERO, || 711));
        assert_eq!(health.admits(|| 711), Admits::Yes);
    }

    #[test]
    fn failed_requests_put_out_only_a_backend_that_gives_no_response_for_a_while() {
        let health = Health::default();
        let hangs_up = |now| health.failed(FailureKind::Request, false, now, &POLICY, || false);
        for now in 1..1000 {
            assert_eq!(hangs_up(now), None, "too soon");
        }
        assert!(!health.answered(Duration::ZERO, || 0));
        assert_eq!(hangs_up(1001), None, "a new row");
        assert_eq!(hangs_up(2000), None);
        assert_eq!(hangs_up(2001), Some(Duration::from_millis(200)));
    }

    #[test]
    fn the_last_backend_stays_in() {
        let health = Health::default();
        for now in 1..100 {
            let out = health.failed(FailureKind::Connecting, false, now, &POLICY, || true);
            assert_eq!((out, health.admits(|| now)), (None, Admits::Yes));
        }
        assert!(health.refused(false, 100).is_some(), "once it is not the last");
    }

    #[test]
    fn an_answer_in_the_middle_of_a_failure_leaves_no_trial_behind() {
        let health = Health::default();
        // One worker has counted the last failure. Another worker receives a response before the
        // first one sets the time.
        health.failures.store(POLICY.failures, Relaxed);
        assert!(!health.answered(Duration::ZERO, || 0));
        health.trial_at.store(112, Relaxed);
        assert!(health.begin_trial(112, &POLICY));
        assert!(
            health.answered(Duration::ZERO, || 0),
            "the trial has shown that it is in"
        );
        assert_eq!(health.admits(|| 113), Admits::Yes);
    }

    #[test]
    fn a_late_response_does_not_bring_a_backend_back() {
        let health = Health::default();
        let answered = |began, now| health.answered(Duration::from_millis(now - began), || now);
        health.refused(false, 10);
        health.refused(false, 20);
        assert!(!answered(15, 30), "the request is older than the failure");
        assert_eq!(health.admits(|| 30), Admits::No);
        assert!(answered(25, 40), "all backends were out, so this one got the request");
        health.refused(false, 50);
        health.refused(false, 60);
        assert!(health.begin_trial(160, &POLICY));
        assert!(!answered(55, 170), "it is not the trial");
        assert!(answered(160, 180));
    }

    #[test]
    fn a_trial_that_nobody_hears_of_is_followed_by_another() {
        let health = Health::default();
        health.refused(false, 1);
        health.refused(false, 1);
        assert!(health.begin_trial(101, &POLICY));
        assert_eq!(health.admits(|| 200), Admits::No);
        assert_eq!(health.admits(|| 201), Admits::Trial);
    }

    #[test]
    fn active_checks_overrule_requests() {
        let health = Health::default();
        assert!(!health.found(true, 1), "no news");
        assert!(health.found(false, 1));
        assert!(!health.found(false, 1));
        assert_eq!(health.admits(|| 1), Admits::No);
        assert!(health.found(true, 1));
        assert!(health.is_in(1));
    }

    #[test]
    fn failures_far_apart_are_no_row() {
        let (health, policy) = (
            Health::default(),
            Policy {
                window: Duration::from_millis(100),
                ..POLICY
            },
        );
        let fails = |now| health.failed(FailureKind::Connecting, false, now, &policy, || false);
        for now in [1, 102, 203, 304] {
            assert_eq!(fails(now), None, "each begins a row");
        }
        assert_eq!(fails(404), Some(Duration::from_millis(100)));
    }

    #[test]
    fn a_backend_that_comes_back_gains_its_weight_with_the_time() {
        let health = Health::default();
        let weight = |now| health.weight(3000, 1000, || now);
        assert_eq!(weight(0), 3000, "it never was out");
        health.refused(false, 10);
        health.refused(false, 10);
        assert!(health.begin_trial(110, &POLICY) && health.answered(Duration::ZERO, || 120));
        assert_eq!([120, 121, 220, 620, 1119].map(weight), [1, 3, 300, 1500, 2997]);
        assert_eq!(health.weight(3000, 0, || 121), 3000, "without a slow start");
        assert_eq!([1120, 130].map(weight), [3000, 3000], "the start is over");
        health.found(false, 2000);
        health.found(true, 3000);
        assert_eq!([3000, 3500, 4000].map(weight), [1, 1500, 3000]);
    }
}
