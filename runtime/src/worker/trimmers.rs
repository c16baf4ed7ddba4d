//! The pools of a program that a worker has trimmed together with its own.
//!
//! A pool belongs to the worker's thread, and so does its trimmer. The list is not borrowed while a trimmer runs: it may add
//! another one.

use std::cell::RefCell;

use crate::worker::context;
use crate::worker::isolate::isolate;

/// The outcome of trimming a pool; see [`on_trim`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// The bytes given back now.
    pub given: usize,
    /// The bytes that a later call gives back if nobody uses them until then.
    pub left: usize,
}

/// Has this worker call `trim` when it gives back its own unused memory: about once a second after fibers have ended, until
/// nothing is left. It is for pools of buffers that a program keeps for each worker. `trim` returns `None` when its pool is gone;
/// it is not called again then, and is dropped. Returns false outside of a runtime.
///
/// The worker also asks the C library's allocator to give back free memory once pools have given much.
///
/// ```
/// use osier::fiber::Trimmed;
/// use std::cell::RefCell;
///
/// thread_local! {
///     static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
/// }
///
/// osier::run(|| {
///     let is_added = osier::fiber::on_trim(|| {
///         let given = POOL.take().iter().map(Vec::capacity).sum();
///         Some(Trimmed { given, left: 0 })
///     });
///     assert!(is_added);
/// });
/// assert!(!osier::fiber::on_trim(|| None));
/// ```
///
/// # Suspends
///
/// Never. `trim` runs between fibers, and a call in it that would wait fails.
///
/// # Panics
///
/// Never. A `trim` that panics is not called again.
pub fn on_trim(trim: impl FnMut() -> Option<Trimmed> + 'static) -> bool {
    let mut trim = Some(Box::new(trim) as Trimmer);
    context::worker(|worker| worker.trimmers.add(trim.take()));
    trim.is_none()
}

type Trimmer = Box<dyn FnMut() -> Option<Trimmed>>;

/// The trimmers of a worker.
#[derive(Default)]
pub(crate) struct Trimmers(RefCell<Vec<Trimmer>>);

impl Trimmers {
    fn add(&self, trimmer: Option<Trimmer>) {
        self.0.borrow_mut().extend(trimmer);
    }

    /// Calls all trimmers. Returns the sums of what they say.
    pub(crate) fn trim(&self) -> Trimmed {
        let mut sum = Trimmed::default();
        let mut kept = Vec::new();
        for mut trimmer in self.0.take() {
            let Some(trimmed) = isolate(&mut trimmer).flatten() else {
                isolate(move || drop(trimmer));
                continue;
            };
            sum.given += trimmed.given;
            sum.left += trimmed.left;
            kept.push(trimmer);
        }
        // Trimmers that were added meanwhile.
        kept.append(&mut self.0.borrow_mut());
        self.0.replace(kept);
        sum
    }
}
