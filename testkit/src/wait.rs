//! Waiting for another thread or process by asking again and again.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything in a test takes, short enough to fail a run that hangs. It is less than a minute, after which a server ends a connection
/// by default: a test must not take that for what it waits for.
pub const DEADLINE: Duration = Duration::from_secs(55);

/// The shortest and the longest sleep between two looks at a state that gives no notice of its changes. A look may be a request or a process.
const PAUSE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];

/// The sleep after a wait of this length, which makes it an eighth longer.
pub(crate) fn pause(waited: Duration) -> Duration {
    (waited / 8).clamp(PAUSE[0], PAUSE[1])
}

/// Waits until `condition` holds.
///
/// # Blocks the thread
/// Between two calls of `condition`, also on a fiber.
///
/// # Panics
/// Panics with `what` if the condition does not hold within [`DEADLINE`].
#[track_caller]
pub fn eventually(what: impl Display, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Waits until `look` finds something.
///
/// # Blocks the thread
/// Between two calls of `look`, also on a fiber.
///
/// # Panics
/// Panics with `what`, which is formatted then, if nothing is found within [`DEADLINE`].
#[track_caller]
pub fn wait_for<T>(what: impl Display, look: impl FnMut() -> Option<T>) -> T {
    wait_within(DEADLINE, what, look)
}

/// Waits as [`wait_for`] does, for at most this time: for programs that take far more than others.
///
/// # Blocks the thread
/// Between two calls of `look`, also on a fiber.
///
/// # Panics
/// Panics with `what`, which is formatted then, if nothing is found within `limit`.
#[track_caller]
pub fn wait_within<T>(limit: Duration, what: impl Display, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let waited = start.elapsed();
        assert!(waited < limit, "not within {limit:?}: {what}");
        thread::sleep(pause(waited));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_until_it_finds() {
        let mut looks = 0;
        let found = wait_for("the third look", || {
            looks += 1;
            (looks == 3).then_some("it")
        });
        assert_eq!((found, looks), ("it", 3));
    }
}
