//! Encoding on the pool for blocking work.
//!
//! The process encodes few slices at a time, in order of arrival. Otherwise many large responses
//! would fill every core with threads, and the workers would wait for their turns.

use std::sync::OnceLock;
use std::thread;

use osier::sync::Semaphore;

/// Permits to encode a slice: two per core, so that a core is not idle while a permit changes hands. A single core has one: while it changes
/// hands, the worker has its turn (measured beside 8 downloads, for the median of a short response: 50 us, and 270 with two). On two cores, one
/// for each would cost a fifth of what the downloads get.
fn permits() -> &'static Semaphore {
    static PERMITS: OnceLock<Semaphore> = OnceLock::new();
    PERMITS.get().unwrap_or_else(|| {
        // A worker may be pinned to a core. The pool is not.
        let cores = osier::unblock(|| thread::available_parallelism().map_or(1, usize::from));
        PERMITS.get_or_init(|| Semaphore::new(if cores == 1 { 1 } else { 2 * cores }))
    })
}

/// Runs `work`, the encoding of one slice, on the pool.
///
/// # Suspends
///
/// Until a permit is free, and until the work is done.
///
/// # Cancellation
///
/// Unwinds. Work that has begun goes on by itself, and its value is dropped.
pub(super) fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let _permit = permits().acquire();
    osier::unblock(work)
}
