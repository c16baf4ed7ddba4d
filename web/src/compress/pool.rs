//! Encoding on the pool for blocking work.
//!
//! The process encodes few slices at a time, in order of arrival. Otherwise many large responses
//! would fill every core with threads, and the workers would wait for their turns.

use std::sync::LazyLock;

use osier::sync::Semaphore;

/// Permits to encode a slice: two per core, so that a core is not idle while a permit changes hands. A single core has one: while it changes
/// hands, the worker has its turn (measured beside 8 downloads, for the median of a short response: 50 us, and 270 with two). On two cores, one
/// for each would cost a fifth of what the downloads get.
static PERMITS: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = osier::available_parallelism().map_or(1, usize::from);
    Semaphore::new(if cores == 1 { 1 } else { 2 * cores })
});

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
    let _permit = PERMITS.acquire();
    osier::unblock(work)
}
