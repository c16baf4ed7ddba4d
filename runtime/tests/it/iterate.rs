//! The loop that the tests of callback queues share.

use std::time::{Duration, Instant};

use osier::callbacks::IoQueue;
use osier::time::Sleep;

/// Far more than anything here needs.
pub const LONG: Duration = Duration::from_secs(30);

/// Iterates until `done` says so.
pub fn until(queue: &IoQueue, mut done: impl FnMut() -> bool) {
    let guard = queue.when(Sleep::new(LONG), |_, _| ()).unwrap();
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "what was waited for did not happen");
        queue.iterate().unwrap();
    }
    guard.cancel();
}
