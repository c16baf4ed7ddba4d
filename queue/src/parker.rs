//! Puts workers to sleep and wakes them, so that no work is lost between a worker's last look and its sleep.
//!
//! [`Parker`] belongs to one worker and is about the work in its own queues. [`Idle`] belongs to the runtime and is about work
//! that any worker may take. Neither is a lock. Both rest on the same pair of fences (Dekker's algorithm): each side announces
//! what it does, makes a fence, then looks at the other side.
//!
//! ```text
//!   worker going to sleep                        any thread with work
//!     prepare / enter_sleep: sleeping = true       push into inbox, deque or injector
//!     fence(SeqCst)                         <->    unpark / wake_candidate: fence(SeqCst)
//!     look into inbox, deques, injector            load sleeping
//!     nothing: block in the poller                 asleep: swap it to false; who got true writes the eventfd
//! ```
//!
//! One of the two fences comes first in their single total order, and the other side then sees what was announced before it: the
//! worker sees its work, or the pusher sees the sleeper. If both happen, the worker finds its eventfd written at its next sleep
//! and wakes once without need.

use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// The sleep flag of one worker.
///
/// ```
/// use osier_queue::Parker;
///
/// let parker = Parker::new();
/// assert!(!parker.unpark(), "awake: it will look at its queues by itself");
/// parker.prepare();
/// // … the owner looks at its queues once more, finds nothing and blocks …
/// assert!(parker.unpark(), "this caller writes the eventfd");
/// assert!(!parker.unpark(), "and only this one");
/// parker.unprepare();
/// ```
#[derive(Debug, Default)]
pub struct Parker {
    /// Set by the owner before its last look. Cleared by the owner, or by the thread that wakes it.
    sleeping: AtomicBool,
}

impl Parker {
    crate::sync::const_unless_loom! {
        /// The parker of an awake worker.
        pub fn new() -> Self {
            Self { sleeping: AtomicBool::new(false) }
        }
    }

    /// Announces that the owner is about to block. The owner must look at its queues once more after this call, and
    /// [`unprepare`](Self::unprepare) if it finds something.
    pub fn prepare(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Announces that the owner is awake: after it has blocked, or when it does not block after all.
    pub fn unprepare(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Whether the owner has announced a sleep that nobody has ended. Any thread may ask. After the answer false, the owner looks at its
    /// queues before it blocks, and sees in them everything that the caller pushed before this call.
    pub fn is_prepared(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed)
    }

    /// Ends the sleep after a push, from any thread. Returns true to exactly one caller per sleep, who must interrupt the owner's poll.
    pub fn unpark(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed)
    }
}

/// Which workers sleep, and how many are awake and search for work.
///
/// The rule: **if a worker sleeps and none is searching, a push of stealable work wakes exactly one.** The woken worker counts as
/// searching from the moment it is chosen, so many pushes in a row wake one worker, not all. If it finds work and was the last
/// searcher, it passes the duty on:
///
/// ```text
///   push to a deque ──> wake_candidate() ──> Some(i): unpark worker i
///   worker i wakes  ──> leave_sleep(i): true, it is counted as searching
///        finds work ──> stop_search(): true, it was the last: wake_candidate() once more, then run the work
///           nothing ──> stop_search(), enter_sleep(i), look again, block
///   out of own work ──> start_search(): true, steal; false, enough others do
/// ```
///
/// A worker that finds stealable work in its last look before sleep must also call `wake_candidate`: there may be more work.
///
/// A searcher must stop ([`stop_search`](Self::stop_search)) before it enters sleep. Pushes rely on it as long as it is counted, and the
/// fence in `enter_sleep` orders its last look after that.
#[derive(Debug)]
pub struct Idle {
    /// Bit `i % 64` of word `i / 64` says that worker `i` sleeps. Set by the worker; cleared by the worker or by the thread that chose it.
    sleeping: Box<[AtomicU64]>,
    /// Awake workers without work, and sleepers that were just chosen.
    searching: AtomicUsize,
    workers: usize,
}

impl Idle {
    /// The most workers that a runtime can have.
    pub const MAX_WORKERS: usize = 1024;

    /// The state for workers `0..workers`, all awake and busy.
    ///
    /// # Panics
    /// If there are more than [`MAX_WORKERS`](Self::MAX_WORKERS) workers.
    pub fn new(workers: usize) -> Self {
        assert!(
            workers <= Self::MAX_WORKERS,
            "{workers} workers, but at most {}",
            Self::MAX_WORKERS
        );
        let words = workers.div_ceil(64);
        Self {
            sleeping: (0..words).map(|_| AtomicU64::new(0)).collect(),
            searching: AtomicUsize::new(0),
            workers,
        }
    }

    /// Announces that worker `index` is about to sleep. It must look for stealable work once more after this call, and
    /// [`leave_sleep`](Self::leave_sleep) if it finds some.
    pub fn enter_sleep(&self, index: usize) {
        self.sleeping[index / 64].fetch_or(bit(index), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Announces that worker `index` is awake again. Returns true if a thread has chosen it: then it counts as searching and must
    /// [`stop_search`](Self::stop_search). Returns false if it woke for another reason.
    pub fn leave_sleep(&self, index: usize) -> bool {
        self.sleeping[index / 64].fetch_and(!bit(index), Ordering::AcqRel) & bit(index) == 0
    }

    /// Begins a worker's search for work. Returns false if half of the workers search already: then it is not counted.
    pub fn start_search(&self) -> bool {
        if 2 * self.searching.load(Ordering::Relaxed) >= self.workers {
            return false;
        }
        self.searching.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Ends a counted search, with work or without. Returns true to the last searcher. If that one found work, it must now call
    /// [`wake_candidate`](Self::wake_candidate), because pushes have relied on it meanwhile.
    pub fn stop_search(&self) -> bool {
        let before = self.searching.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "stop_search without start_search");
        before == 1
    }

    /// The sleeper to unpark after a push of stealable work, counted as searching already. None if nobody sleeps, or a searcher will find the
    /// work. If nobody sleeps it costs a fence and a load (with up to 64 workers).
    pub fn wake_candidate(&self) -> Option<usize> {
        loop {
            fence(Ordering::SeqCst);
            if self.nobody_sleeps() || !self.claim_search() {
                return None;
            }
            if let Some(index) = self.choose() {
                return Some(index);
            }
            // All sleepers woke by themselves while we held the only search. Pushes have relied on us meanwhile, and a worker may have gone
            // to sleep since. So give the search back and look again.
            self.searching.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn nobody_sleeps(&self) -> bool {
        self.sleeping.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Becomes the only searcher, on behalf of the worker to be chosen.
    fn claim_search(&self) -> bool {
        self.searching
            .compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes one worker out of the set of sleepers.
    fn choose(&self) -> Option<usize> {
        for (word_index, word) in self.sleeping.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let lowest = bits & bits.wrapping_neg();
                if word.fetch_and(!lowest, Ordering::AcqRel) & lowest != 0 {
                    return Some(word_index * 64 + lowest.trailing_zeros() as usize);
                }
                bits = word.load(Ordering::Relaxed);
            }
        }
        None
    }
}

fn bit(index: usize) -> u64 {
    1 << (index % 64)
}
