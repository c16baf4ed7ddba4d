//! One outstanding request as one word: armed, woken, cancelled, changed, ended; exactly once.
//!
//! A callback request is a leaf and a callback. Whoever *holds* it polls the leaf; a wake-up asks for it to be put into a run
//! queue, from where somebody takes and holds it. What must become of it when the leaf is not ready (or is) is decided by a single
//! exchange of the word, against everybody who wakes, cancels or changes it at that moment.
//!
//! ```text
//!                 arm                 rest: nobody asked for it                take from the run queue: claim
//!   IDLE(g) ───────────────▶ HELD ───────────────────────────▶ ARMED ──────────▶ QUEUED ────────┐
//!     ▲                      │  ▲ rest: somebody did, or the leaf was ready ────▲ wake, cancel, change
//!     │                      │  └───────────────────────────────────────────────────────────────┘
//!     └── IDLE(g + 1) ◀──────┘ decide: the leaf is ready, or the request was cancelled: the callback is to be called
//! ```
//!
//! # Protocol
//! - The leaf and the callback are the holder's: from [`arm`](Request::arm) or [`claim`](Request::claim) that succeeded, to
//!   [`rest`](Request::rest) or to the [`decide`](Request::decide) or [`end`](Request::end) that ended the request. The
//!   exchanges that hand them over are release and acquire.
//! - A request is in the run queue at most once: whoever is told to put it there does so, once, and then
//!   claims may succeed. While it is held nobody puts it there but the holder, after `rest`.
//! - Waking always writes the word, also where it changes nothing: the claim that follows acquires what the waker did.
//! - The generation goes up with each end. A [`Generation`] from `arm` names one request, and can do nothing to later ones.
//! - A request that was cancelled is polled once more: an event that came first is told as what it is.

use crate::sync::{AtomicU64, Ordering};

/// A request is outstanding. Without it no other flag is set.
const ARMED: u64 = 1;
/// Somebody polls its leaf.
const HELD: u64 = 1 << 1;
/// It is in the run queue, or, while it is held, is to be put there.
const QUEUED: u64 = 1 << 2;
/// To be polled with another parameter, whatever the leaf says.
const CHANGED: u64 = 1 << 3;
/// To be ended as cancelled unless its leaf is ready.
const CANCELLED: u64 = 1 << 4;
/// To be ended because its queue shuts down, unless its leaf is ready.
const CLOSING: u64 = 1 << 5;
/// The rest of the word counts the requests that have ended.
const ONE_GENERATION: u64 = 1 << 6;
const FLAGS: u64 = ONE_GENERATION - 1;

/// The word of a request.
///
/// ```
/// use osier_queue::request::{Asked, Decision, Request, Status};
///
/// let request = Request::new();
/// let generation = request.arm().expect("idle");
/// assert!(request.arm().is_none(), "one at a time");
/// assert!(!request.rest(false), "the leaf is pending");
///
/// assert!(request.wake(), "this caller puts it into the run queue");
/// assert!(!request.wake(), "and only this one");
/// assert_eq!(request.cancel(generation), Asked::Heard);
///
/// assert!(request.claim(), "taken from the run queue; the leaf is polled again");
/// assert_eq!(request.decide(true), Decision::End(Status::Done), "ready: the cancellation came too late");
/// assert_eq!(request.cancel(generation), Asked::Late);
/// ```
#[derive(Debug)]
pub struct Request {
    word: AtomicU64,
}

/// Names one request of a [`Request`] that is used again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(u64);

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// What it waited for has happened.
    Done,
    /// It was cancelled before that.
    Cancelled,
    /// Its queue was shut down or dropped before that.
    Shutdown,
}

/// What became of a cancellation or a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "who is told to enqueue it must do so"]
pub enum Asked {
    /// The request has ended, or another one has begun: nothing was done.
    Late,
    /// It will be looked at.
    Heard,
    /// It will be looked at as soon as the caller has put it into the run queue.
    Enqueue,
}

/// What the holder does after it has polled the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Poll again: the parameter was changed.
    Again,
    /// Leave it to [`rest`](Request::rest).
    Rest,
    /// The request is over, and idle again: call the callback.
    End(Status),
}

/// What became of an attempt to end a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// There was none.
    Idle,
    /// Somebody polls its leaf just now: try again.
    Held,
    /// The caller has ended it, and calls the callback.
    Here,
}

impl Request {
    crate::sync::const_unless_loom! {
        /// Idle.
        pub fn new() -> Self {
            Self { word: AtomicU64::new(0) }
        }
    }

    /// Begins a request, held by the caller. `None`: one is outstanding.
    pub fn arm(&self) -> Option<Generation> {
        let word = self
            .update(|word| (word & FLAGS == 0).then_some(word | ARMED | HELD))
            .ok()?;
        Some(generation(word))
    }

    /// The leaf's waker. `true`: the caller puts the request into the run queue.
    #[must_use]
    pub fn wake(&self) -> bool {
        self.update(|word| (word & ARMED != 0).then_some(word | QUEUED))
            .is_ok_and(is_enqueued_by_asker)
    }

    /// Asks for the end. Of several who do, all but the first are late.
    pub fn cancel(&self, of: Generation) -> Asked {
        self.ask(|word| is(word, of) && word & CANCELLED == 0, CANCELLED)
    }

    /// Asks for a poll with another parameter, unless the request is ending. The caller keeps the parameter locked from before
    /// this call until the new one is there, and the holder takes it under that lock.
    pub fn change(&self, of: Generation) -> Asked {
        self.ask(|word| is(word, of) && word & (CANCELLED | CLOSING) == 0, CHANGED)
    }

    /// Asks for the end of whatever request is outstanding, because its queue shuts down.
    pub fn close(&self) -> Asked {
        self.ask(|word| word & ARMED != 0 && word & CLOSING == 0, CLOSING)
    }

    /// Asks for the end of whatever request is outstanding.
    pub fn cancel_any(&self) -> Asked {
        self.ask(|word| word & ARMED != 0 && word & CANCELLED == 0, CANCELLED)
    }

    /// Whether this very request is outstanding.
    pub fn is_armed(&self, of: Generation) -> bool {
        is(self.word.load(Ordering::Acquire), of)
    }

    /// Whether somebody has asked for the end of what is outstanding by [`close`](Request::close).
    pub fn is_closing(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSING != 0
    }

    /// Whoever took the request from the run queue holds it from here on. `false`: it has been ended meanwhile.
    #[must_use]
    pub fn claim(&self) -> bool {
        self.update(|word| {
            let queued = word & (ARMED | QUEUED | HELD) == ARMED | QUEUED;
            queued.then_some((word & !(QUEUED | CHANGED)) | HELD)
        })
        .is_ok()
    }

    /// The holder has polled the leaf. This decides what becomes of the request.
    pub fn decide(&self, ready: bool) -> Decision {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            debug_assert!(word & HELD != 0, "decided by somebody who does not hold it");
            let (next, decision) = if word & CHANGED != 0 {
                // The poll that follows also answers whoever woke it meanwhile.
                (word & !(CHANGED | QUEUED), Decision::Again)
            } else if ready {
                (ended(word), Decision::End(Status::Done))
            } else if word & CLOSING != 0 {
                (ended(word), Decision::End(Status::Shutdown))
            } else if word & CANCELLED != 0 {
                (ended(word), Decision::End(Status::Cancelled))
            } else {
                return Decision::Rest;
            };
            match self.exchange(word, next) {
                Ok(()) => return decision,
                Err(now) => word = now,
            }
        }
    }

    /// The holder gives the request back, to be polled again when it is woken; at once if `again`. `true`: the caller puts
    /// it into the run queue.
    #[must_use]
    pub fn rest(&self, again: bool) -> bool {
        let asked = |word: u64| again || word & (QUEUED | CHANGED | CANCELLED | CLOSING) != 0;
        let before = self.update(|word| {
            debug_assert!(word & HELD != 0, "given back by somebody who does not hold it");
            Some((word & !HELD) | if asked(word) { QUEUED } else { 0 })
        });
        before.is_ok_and(asked)
    }

    /// The holder of a request that it has just armed takes it back, as if it had never been.
    pub fn disarm(&self) {
        let _ = self.update(|word| Some(ended(word)));
    }

    /// Ends what is outstanding without another poll. For a queue that nobody takes requests from any more.
    pub fn end(&self) -> Ended {
        match self.update(|word| (word & (ARMED | HELD) == ARMED).then(|| ended(word))) {
            Ok(_) => Ended::Here,
            Err(word) if word & ARMED == 0 => Ended::Idle,
            Err(_) => Ended::Held,
        }
    }

    fn ask(&self, may: impl Fn(u64) -> bool, flag: u64) -> Asked {
        match self.update(|word| may(word).then_some(word | QUEUED | flag)) {
            Err(_) => Asked::Late,
            Ok(before) if is_enqueued_by_asker(before) => Asked::Enqueue,
            Ok(_) => Asked::Heard,
        }
    }

    /// Exchanges the word for what `next` makes of it; gives the former one, or, if there is no next, the one that was found.
    fn update(&self, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let Some(next) = next(word) else { return Err(word) };
            match self.exchange(word, next) {
                Ok(()) => return Ok(word),
                Err(now) => word = now,
            }
        }
    }

    fn exchange(&self, word: u64, next: u64) -> Result<(), u64> {
        self.word
            .compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }
}

impl Default for Request {
    fn default() -> Self {
        Self::new()
    }
}

fn generation(word: u64) -> Generation {
    Generation(word / ONE_GENERATION)
}

fn is(word: u64, of: Generation) -> bool {
    word & ARMED != 0 && generation(word) == of
}

/// Idle, one generation later.
fn ended(word: u64) -> u64 {
    (word & !FLAGS).wrapping_add(ONE_GENERATION)
}

/// Whether who set QUEUED puts the request into the run queue: it was not there, and has no holder who will.
fn is_enqueued_by_asker(before: u64) -> bool {
    before & (QUEUED | HELD) == 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn resting() -> (Request, Generation) {
        let request = Request::new();
        let generation = request.arm().unwrap();
        assert!(!request.rest(false));
        (request, generation)
    }

    #[test]
    fn a_leaf_that_is_ready_at_once_is_queued_not_ended() {
        let request = Request::new();
        request.arm().unwrap();
        assert!(request.rest(true));
        assert!(request.claim());
        assert!(!request.claim(), "one holder");
        assert_eq!(request.decide(true), Decision::End(Status::Done));
        assert!(!request.claim(), "idle");
        assert!(!request.wake(), "nobody to wake");
    }

    #[test]
    fn a_stale_generation_reaches_nothing() {
        let (request, first) = resting();
        assert_eq!(request.cancel(first), Asked::Enqueue);
        assert_eq!(
            request.cancel(first),
            Asked::Late,
            "the second is not the one who did it"
        );
        assert!(request.claim());
        assert_eq!(request.decide(false), Decision::End(Status::Cancelled));
        let second = request.arm().unwrap();
        assert_ne!(first, second);
        assert_eq!(request.cancel(first), Asked::Late);
        assert_eq!(request.change(first), Asked::Late);
        assert!(!request.rest(false), "the second never heard of it");
        assert!(request.is_armed(second) && !request.is_armed(first));
    }

    #[test]
    fn what_happens_to_a_held_request_is_found_by_its_holder() {
        let request = Request::new();
        let generation = request.arm().unwrap();
        assert!(!request.wake());
        assert!(request.rest(false), "woken while it was polled");
        assert!(request.claim());
        assert_eq!(request.cancel(generation), Asked::Heard);
        assert_eq!(request.decide(false), Decision::End(Status::Cancelled));
    }

    #[test]
    fn a_change_overrides_a_leaf_that_was_ready() {
        let (request, generation) = resting();
        assert!(request.wake());
        assert!(request.claim());
        assert_eq!(request.change(generation), Asked::Heard);
        assert_eq!(request.decide(true), Decision::Again);
        assert_eq!(request.decide(false), Decision::Rest);
        assert!(!request.rest(false), "the change has had its look");
        assert_eq!(request.cancel(generation), Asked::Enqueue);
        assert_eq!(request.change(generation), Asked::Late, "it is ending");
    }

    #[test]
    fn a_shutdown_says_so_and_an_event_still_wins() {
        for (ready, status) in [(false, Status::Shutdown), (true, Status::Done)] {
            let (request, generation) = resting();
            assert_eq!(request.close(), Asked::Enqueue);
            assert_eq!(request.close(), Asked::Late);
            assert_eq!(request.cancel(generation), Asked::Heard);
            assert!(request.claim());
            assert_eq!(request.decide(ready), Decision::End(status));
        }
    }

    #[test]
    fn an_end_takes_what_nobody_holds() {
        let (request, _) = resting();
        assert!(request.wake());
        assert!(request.claim());
        assert_eq!(request.end(), Ended::Held);
        assert!(!request.rest(false));
        assert_eq!(request.end(), Ended::Here);
        assert_eq!(request.end(), Ended::Idle);
    }
}
