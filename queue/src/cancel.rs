//! The cancellation of a fiber that may not have started: the canceller learns which word to wake, or the fiber sees the request when
//! it starts.
//!
//! ```text
//!   fiber, once                                  canceller, any thread
//!     start:  word = its word                      request:  flags |= REQUESTED   (acquire and release)
//!             flags += STARTED   (acquire and release)       STARTED was set: load word, wake it
//!             REQUESTED was set: do not run
//! ```
//!
//! Both sides change one atomic. The second one reads what the first wrote, and sees everything that the first did before. No
//! fence is needed: the fiber's half is one read-modify-write, which costs the same as a sequentially consistent store.

use crate::sync::{AtomicU8, AtomicU64, Ordering};

const STARTED: u8 = 1;
const REQUESTED: u8 = 2;

/// Whether a fiber is asked to end, and the word that the request must wake.
///
/// ```
/// use osier_queue::Cancellation;
///
/// let fiber = Cancellation::new();
/// assert!(fiber.start(7), "it may run");
/// assert_eq!(fiber.request(), Some(7), "and must be woken to see the request");
/// assert!(fiber.is_requested());
/// ```
#[derive(Debug, Default)]
pub struct Cancellation {
    flags: AtomicU8,
    /// The fiber's word. Written before STARTED is set, read after.
    word: AtomicU64,
}

impl Cancellation {
    crate::sync::const_unless_loom! {
        /// A fiber that has not started and is not cancelled.
        pub fn new() -> Self {
            Self { flags: AtomicU8::new(0), word: AtomicU64::new(0) }
        }
    }

    /// Asks the fiber to end. Returns its word if it has started; the caller then wakes that word.
    pub fn request(&self) -> Option<u64> {
        let before = self.flags.fetch_or(REQUESTED, Ordering::AcqRel);
        (before & STARTED != 0).then(|| self.word.load(Ordering::Relaxed))
    }

    /// Starts the fiber as `word`. Called once. Returns false if the fiber was asked to end before: it must not run.
    #[inline]
    pub fn start(&self, word: u64) -> bool {
        self.word.store(word, Ordering::Relaxed);
        let before = self.flags.fetch_add(STARTED, Ordering::AcqRel);
        debug_assert!(before & STARTED == 0, "started twice");
        before & REQUESTED == 0
    }

    /// The word of the fiber, if it has started.
    pub fn started(&self) -> Option<u64> {
        let started = self.flags.load(Ordering::Acquire) & STARTED != 0;
        started.then(|| self.word.load(Ordering::Relaxed))
    }

    /// Whether the fiber is asked to end. The answer is certain after a wake-up by the canceller.
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & REQUESTED != 0
    }
}
