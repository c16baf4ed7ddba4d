//! A gate in front of a queue whose consumer ends. Nothing stays in the queue for ever: the consumer takes it out as it ends, or the
//! producer does, who sees the gate shut.
//!
//! Both sides announce what they do, make a fence, then look at the other side (Dekker's algorithm, as in [`parker`](crate::parker)):
//!
//! ```text
//!   consumer that ends                            producer
//!     shut: shut = true                             push into the queue
//!     fence(SeqCst)                           <->   fence(SeqCst): Parker::unpark or Idle::wake_candidate
//!     empty the queue                               is_shut: empty the queue
//! ```
//!
//! A producer rings the consumer after its push, and that begins with the fence. So the look costs one load.
//!
//! A producer that must not empty the queue itself, because it may hold a lock, leaves that to another thread by [`Leftovers`].

use std::mem;

use crate::sync::{AtomicBool, AtomicUsize, Ordering, fence};

/// Says whether the consumer of a queue has ended.
///
/// ```
/// use osier_queue::{Gate, Parker};
///
/// let (gate, parker) = (Gate::new(), Parker::new());
/// // … a producer pushes …
/// parker.unpark();
/// assert!(!gate.is_shut(), "the consumer finds what was pushed");
/// gate.shut();
/// // … the consumer empties the queue for the last time; another producer pushes …
/// parker.unpark();
/// assert!(gate.is_shut(), "the producer takes it out again");
/// ```
#[derive(Debug, Default)]
pub struct Gate {
    /// Set once, by the consumer.
    shut: AtomicBool,
}

impl Gate {
    crate::sync::const_unless_loom! {
        /// The open gate of a consumer that is there.
        pub fn new() -> Self {
            Self { shut: AtomicBool::new(false) }
        }
    }

    /// Announces that the consumer ends. The caller must empty the queue after this call. A second call does no harm.
    ///
    /// If several consumers shut a gate each, at least one of them sees all gates shut after this call.
    pub fn shut(&self) {
        self.shut.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether the consumer has ended. A producer asks after its push and the wake-up of the consumer ([`Parker::unpark`](crate::Parker::unpark)
    /// or [`Idle::wake_candidate`](crate::Idle::wake_candidate)). After the answer false, the consumer finds what was pushed before.
    #[inline]
    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Relaxed)
    }
}

/// The pushes behind shut gates that nobody has answered yet. However many producers push, one of them at a time gets the duty to have the
/// queues emptied.
///
/// ```
/// use osier_queue::Leftovers;
///
/// let leftovers = Leftovers::new();
/// assert!(leftovers.add(), "this producer starts a thread that empties the queue");
/// assert!(!leftovers.add(), "and the thread answers this push too");
/// let mut rounds = 0;
/// leftovers.answer(|| rounds += 1);
/// assert_eq!(rounds, 1);
/// assert!(leftovers.add(), "that thread may have looked before this push");
/// ```
///
/// A push, and the end of each round of [`answer`](Leftovers::answer), is one atomic exchange with `AcqRel`. So the thread that takes a push
/// off the count sees what was pushed, and empties the queues after that.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Not 0 while a thread has the duty.
    pushes: AtomicUsize,
}

impl Leftovers {
    crate::sync::const_unless_loom! {
        /// No pushes.
        pub fn new() -> Self {
            Self { pushes: AtomicUsize::new(0) }
        }
    }

    /// Notes a push. Returns true if nobody has the duty: the caller has it now, and makes some thread [`answer`](Self::answer).
    pub fn add(&self) -> bool {
        self.pushes.fetch_add(1, Ordering::AcqRel) == 0
    }

    /// Calls `empty` until it has begun after the last push. Then nobody has the duty. If it panics, nobody has it either, and the next
    /// producer tries again.
    pub fn answer(&self, mut empty: impl FnMut()) {
        struct Duty<'a>(&'a Leftovers);
        impl Drop for Duty<'_> {
            fn drop(&mut self) {
                self.0.give_up();
            }
        }
        let mut seen = self.pushes.load(Ordering::Acquire);
        while seen > 0 {
            let duty = Duty(self);
            empty();
            mem::forget(duty);
            seen = self.pushes.fetch_sub(seen, Ordering::AcqRel) - seen;
        }
    }

    /// Gives the duty back: no thread can be had. The next producer tries again.
    pub fn give_up(&self) {
        self.pushes.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    #[test]
    fn a_panic_gives_the_duty_back() {
        let leftovers = Leftovers::new();
        assert!(leftovers.add() && !leftovers.add());
        let answer = AssertUnwindSafe(|| leftovers.answer(|| resume_unwind(Box::new("a destructor's own"))));
        assert!(catch_unwind(answer).is_err());
        assert!(leftovers.add(), "the next push is answered");
    }
}
