//! Who sleeps, and who must be woken: the two halves of putting a worker to sleep without losing work.
//!
//! [`Parker`] belongs to one worker and is about its own queues; [`Idle`] belongs to the runtime and is about work that
//! any worker may take. Both rest on the same pair of fences (Dekker's): each side announces, fences, then looks.
//!
//! ```text
//!   worker going to sleep                        any thread with work
//!     prepare / enter_sleep: sleeping = true       push into inbox, deque or injector
//!     fence(SeqCst)                         <->    unpark / wake_candidate: fence(SeqCst)
//!     look into inbox, deques, injector            load sleeping
//!     nothing: block in the poller                 asleep: swap it to false; who got true writes the eventfd
//! ```
//!
//! One of the two fences comes first in their single total order, and the other side then sees what was announced before
//! it: the worker its work, or the pusher the sleeper. Both may; then the worker finds its eventfd written at its next
//! sleep and wakes once for nothing.

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
#[derive(Debug)]
pub struct Parker {
    /// Set by the owner before its last look; cleared by the owner, or by the one who wakes it.
    sleeping: AtomicBool,
}

impl Parker {
    crate::sync::const_unless_loom! {
        /// The parker of a worker that is awake.
        pub fn new() -> Self {
            Self { sleeping: AtomicBool::new(false) }
        }
    }

    /// The owner announces that it is about to block. It must look at its queues once more after this call, and
    /// [`unprepare`](Self::unprepare) if there is something.
    pub fn prepare(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner is awake: after it blocked, for whatever reason it woke, or instead of blocking.
    pub fn unprepare(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Any thread: whether the owner has announced a sleep that nobody has ended. Ordered after whatever ended it.
    pub fn is_prepared(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed)
    }

    /// Any thread, after its push: `true` for exactly one caller per sleep, who must now interrupt the owner's poll.
    pub fn unpark(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed)
    }
}

impl Default for Parker {
    fn default() -> Self {
        Self::new()
    }
}

/// Which workers sleep, and how many are awake only to look for work.
///
/// The rule: **if a worker sleeps and none is searching, a push of stealable work wakes exactly one.** The woken worker
/// is counted as searching from the moment it is chosen, so a burst of pushes wakes one worker, not all; when that one
/// finds work, and is the last who searched, it passes the duty on:
///
/// ```text
///   push to a deque ──> wake_candidate() ──> Some(i): unpark worker i
///   worker i wakes  ──> leave_sleep(i): true, it is counted as searching
///        finds work ──> stop_search(): true, it was the last: wake_candidate() once more, then run the work
///           nothing ──> stop_search(), enter_sleep(i), look again, block
///   out of own work ──> start_search(): true, steal; false, enough others do
/// ```
///
/// Whoever finds stealable work in the last look before it would have slept asks `wake_candidate` too: there may be more.
///
/// A searcher must have stopped ([`stop_search`](Self::stop_search)) before it enters sleep: pushes rely on it as long as
/// it is counted, and the fence in `enter_sleep` orders its last look after that.
#[derive(Debug)]
pub struct Idle {
    /// Bit `i % 64` of word `i / 64`: worker `i` sleeps. Set by the worker; cleared by the worker or by who chose it.
    sleeping: Box<[AtomicU64]>,
    /// Workers awake without work, and sleepers just chosen.
    searching: AtomicUsize,
    workers: usize,
}

impl Idle {
    /// The most workers a runtime can have.
    pub const MAX_WORKERS: usize = 1024;

    /// For workers `0..workers`, all awake and busy.
    ///
    /// # Panics
    /// With more than [`MAX_WORKERS`](Self::MAX_WORKERS).
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

    /// Worker `index` is about to sleep. It must look for stealable work once more after this call, and
    /// [`leave_sleep`](Self::leave_sleep) if there is some.
    pub fn enter_sleep(&self, index: usize) {
        self.sleeping[index / 64].fetch_or(bit(index), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Worker `index` is awake again. `true`: somebody has chosen it, so it is counted as searching and must
    /// [`stop_search`](Self::stop_search); `false`: it woke for a reason of its own.
    pub fn leave_sleep(&self, index: usize) -> bool {
        self.sleeping[index / 64].fetch_and(!bit(index), Ordering::AcqRel) & bit(index) == 0
    }

    /// A worker without work begins to look for some. `false`: half of the workers do so already, and it is not counted.
    pub fn start_search(&self) -> bool {
        if 2 * self.searching.load(Ordering::Relaxed) >= self.workers {
            return false;
        }
        self.searching.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// A counted searcher stops, with work or without. `true`: it was the last; if it found work it must now ask
    /// [`wake_candidate`](Self::wake_candidate), since pushes meanwhile have relied on it.
    pub fn stop_search(&self) -> bool {
        let before = self.searching.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "stop_search without start_search");
        before == 1
    }

    /// Any thread, after it has pushed stealable work: the sleeper to unpark, already counted as searching. `None`: nobody
    /// sleeps, or somebody searches and will find it. A fence and a load when nobody sleeps (with up to 64 workers).
    pub fn wake_candidate(&self) -> Option<usize> {
        loop {
            fence(Ordering::SeqCst);
            if self.nobody_sleeps() || !self.claim_search() {
                return None;
            }
            if let Some(index) = self.choose() {
                return Some(index);
            }
            // All sleepers woke by themselves while we held the only search. Pushes meanwhile have relied on us and a
            // worker may have gone to sleep since: give the search back and look again.
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

    /// Takes one worker out of the sleepers.
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
