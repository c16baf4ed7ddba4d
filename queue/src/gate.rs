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

use crate::sync::{AtomicBool, Ordering, fence};

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
