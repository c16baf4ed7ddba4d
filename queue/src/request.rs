//! The state of one outstanding callback request, in one word. It decides who ends the request, exactly once.
//!
//! A callback request is a leaf and a callback. Its *holder* polls the leaf. A wake-up asks for the request to be put into a run
//! queue, from which a thread takes and holds it. After a poll, a compare-exchange of the word decides what happens next. A thread that
//! wakes, cancels or changes the request at that moment writes the same word, so nothing of it is lost.
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
//! - The leaf and the callback belong to the holder: from a successful [`arm`](Request::arm) or [`claim`](Request::claim), to
//!   [`rest`](Request::rest) or to the [`decide`](Request::decide) or [`end`](Request::end) that ended the request. The
//!   exchanges that hand them over are release and acquire.
//! - A request is in the run queue at most once. A caller that must put it there does so, once, and after that claims may succeed.
//!   While it is held only the holder puts it there, after `rest`.
//! - Waking always writes the word, even if nothing changes: the claim that follows acquires what the waker did.
//! - Each end raises the generation. A [`Generation`] from `arm` names one request and does not affect later ones.
//! - A cancelled request is polled once more: an event that came first is reported as that event.

use crate::sync::{AtomicU64, Ordering};

/// A request is outstanding. Without this flag no other flag is set.
const ARMED: u64 = 1;
/// A holder polls the leaf.
const HELD: u64 = 1 << 1;
/// The request is in the run queue, or, while it is held, the holder must put it there.
const QUEUED: u64 = 1 << 2;
/// The leaf must be polled with another parameter, whatever it said.
const CHANGED: u64 = 1 << 3;
/// The request must end as cancelled unless its leaf is ready.
const CANCELLED: u64 = 1 << 4;
/// The request must end because its queue shuts down, unless its leaf is ready.
const CLOSING: u64 = 1 << 5;
/// One ended request. The upper bits of the word count them.
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
#[derive(Debug, Default)]
pub struct Request {
    word: AtomicU64,
}

/// The name of one request of a [`Request`], which is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(u64);

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The event that it waited for has happened.
    Done,
    /// It was cancelled before the event.
    Cancelled,
    /// Its queue was shut down or dropped before the event.
    Shutdown,
}

/// The result of a cancellation or a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the caller must enqueue it"]
pub enum Asked {
    /// The request has ended, or another one has begun: nothing was done.
    Late,
    /// The holder, or the next one, will see it.
    Heard,
    /// It will be seen once the caller has put the request into the run queue.
    Enqueue,
}

/// The next step of the holder after it has polled the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Poll again: the parameter was changed.
    Again,
    /// Give it back with [`rest`](Request::rest).
    Rest,
    /// Call the callback: the request is over, and idle again.
    End(Status),
}

/// The result of an attempt to end a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// No request was outstanding.
    Idle,
    /// A holder polls the leaf at this moment: try again.
    Held,
    /// The caller has ended the request and must call the callback.
    Here,
}

impl Request {
    crate::sync::const_unless_loom! {
        /// An idle request.
        pub fn new() -> Self {
            Self { word: AtomicU64::new(0) }
        }
    }

    /// Begins a request, which the caller then holds. None if one is outstanding.
    pub fn arm(&self) -> Option<Generation> {
        let word = self
            .update(|word| (word & FLAGS == 0).then_some(word | ARMED | HELD))
            .ok()?;
        Some(generation(word))
    }

    /// Wakes the request, as the leaf's waker does. Returns true if the caller must put it into the run queue.
    #[must_use]
    pub fn wake(&self) -> bool {
        self.update(|word| (word & ARMED != 0).then_some(word | QUEUED))
            .is_ok_and(is_enqueued_by_asker)
    }

    /// Cancels the request. If it is cancelled several times, all calls but the first return [`Asked::Late`].
    pub fn cancel(&self, of: Generation) -> Asked {
        self.ask(|word| is(word, of) && word & CANCELLED == 0, CANCELLED)
    }

    /// Asks for a poll with another parameter, unless the request is ending. The caller holds the parameter's lock from before this call
    /// until the new parameter is there. The holder takes it under that lock.
    pub fn change(&self, of: Generation) -> Asked {
        self.ask(|word| is(word, of) && word & (CANCELLED | CLOSING) == 0, CHANGED)
    }

    /// Ends any outstanding request because its queue shuts down.
    pub fn close(&self) -> Asked {
        self.ask(|word| word & ARMED != 0 && word & CLOSING == 0, CLOSING)
    }

    /// Cancels any outstanding request.
    pub fn cancel_any(&self) -> Asked {
        self.ask(|word| word & ARMED != 0 && word & CANCELLED == 0, CANCELLED)
    }

    /// Whether this very request is outstanding.
    pub fn is_armed(&self, of: Generation) -> bool {
        is(self.word.load(Ordering::Acquire), of)
    }

    /// Whether [`close`](Request::close) was called for the outstanding request.
    pub fn is_closing(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSING != 0
    }

    /// Makes the caller the holder, after it took the request from the run queue. Returns false if the request has ended meanwhile.
    #[must_use]
    pub fn claim(&self) -> bool {
        self.update(|word| {
            let queued = word & (ARMED | QUEUED | HELD) == ARMED | QUEUED;
            queued.then_some((word & !(QUEUED | CHANGED)) | HELD)
        })
        .is_ok()
    }

    /// Decides what the holder must do after it has polled the leaf.
    pub fn decide(&self, ready: bool) -> Decision {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            debug_assert!(word & HELD != 0, "decided by somebody who does not hold it");
            let (next, decision) = if word & CHANGED != 0 {
                // The poll that follows also serves the wake-ups since.
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

    /// Gives the request back, to be polled again after a wake-up, or at once if `again`. Returns true if the caller must put it into the
    /// run queue.
    #[must_use]
    pub fn rest(&self, again: bool) -> bool {
        let asked = |word: u64| again || word & (QUEUED | CHANGED | CANCELLED | CLOSING) != 0;
        let before = self.update(|word| {
            debug_assert!(word & HELD != 0, "given back by somebody who does not hold it");
            Some((word & !HELD) | if asked(word) { QUEUED } else { 0 })
        });
        before.is_ok_and(asked)
    }

    /// Takes back a request that the holder has just armed, as if it had never been.
    pub fn disarm(&self) {
        let _ = self.update(|word| Some(ended(word)));
    }

    /// Ends an outstanding request without another poll. It is for a queue whose requests nobody takes any more.
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

    /// Exchanges the word for `next(word)` and returns the former word. If there is no next, returns the word that was found.
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

fn generation(word: u64) -> Generation {
    Generation(word / ONE_GENERATION)
}

fn is(word: u64, of: Generation) -> bool {
    word & ARMED != 0 && generation(word) == of
}

/// The word of an idle request, one generation later.
fn ended(word: u64) -> u64 {
    (word & !FLAGS).wrapping_add(ONE_GENERATION)
}

/// Whether the thread that set QUEUED must put the request into the run queue: it was not there, and has no holder to do it.
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
