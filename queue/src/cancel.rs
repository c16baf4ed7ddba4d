//! A request to cancel a fiber that may not have started: the canceller finds whom to wake, or the fiber finds the request.
//!
//! ```text
//!   fiber, once                                  canceller, any thread
//!     start:  word = its word                      request:  flags |= REQUESTED   (acquire)
//!             flags += STARTED   (release)                   STARTED was set: load word, wake it
//!             REQUESTED was set: do not run
//! ```
//!
//! Both sides change one atomic, so one of them comes second and reads what the first wrote, and with it everything
//! before. No fence: the fiber's half is one read-modify-write, as a sequentially consistent store would be.

use crate::sync::{AtomicU8, AtomicU64, Ordering};

const STARTED: u8 = 1;
const REQUESTED: u8 = 2;

/// Whether a fiber is to end, and whom that request is to wake.
///
/// ```
/// use osier_queue::Cancellation;
///
/// let fiber = Cancellation::new();
/// assert!(fiber.start(7), "it may run");
/// assert_eq!(fiber.request(), Some(7), "and must be woken to see the request");
/// assert!(fiber.is_requested());
/// ```
#[derive(Debug)]
pub struct Cancellation {
    flags: AtomicU8,
    /// Written before STARTED, read after it.
    word: AtomicU64,
}

impl Cancellation {
    crate::sync::const_unless_loom! {
        /// Neither started nor requested.
        pub fn new() -> Self {
            Self { flags: AtomicU8::new(0), word: AtomicU64::new(0) }
        }
    }

    /// Asks the fiber to end. `Some`: it has started as this word, which the caller wakes.
    pub fn request(&self) -> Option<u64> {
        let before = self.flags.fetch_or(REQUESTED, Ordering::AcqRel);
        (before & STARTED != 0).then(|| self.word.load(Ordering::Relaxed))
    }

    /// The fiber starts as `word`: once. `false`: it was requested to end before.
    #[inline]
    pub fn start(&self, word: u64) -> bool {
        self.word.store(word, Ordering::Relaxed);
        let before = self.flags.fetch_add(STARTED, Ordering::AcqRel);
        debug_assert!(before & STARTED == 0, "started twice");
        before & REQUESTED == 0
    }

    /// The word that the fiber has started as.
    pub fn started(&self) -> Option<u64> {
        let started = self.flags.load(Ordering::Acquire) & STARTED != 0;
        started.then(|| self.word.load(Ordering::Relaxed))
    }

    /// Whether the fiber is to end. Certain after a wake-up by the one who asked.
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & REQUESTED != 0
    }
}

impl Default for Cancellation {
    fn default() -> Self {
        Self::new()
    }
}
