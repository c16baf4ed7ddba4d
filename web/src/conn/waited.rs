//! Waits for a backend that may stop and go on in another way, without a stack for example.

use std::time::Duration;

use crate::conn::peer::SLOW_AFTER;

/// The end of a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    Readable,
    /// The time is over.
    Late,
    /// The caller waits in another way.
    Stopped,
}

/// The beginning of a wait.
pub(crate) struct Beginning<'f> {
    pub(crate) lasts: Duration,
    /// Called at its end, and later again. The wait stops if this returns false.
    pub(crate) goes_on: &'f mut dyn FnMut() -> bool,
}

impl Beginning<'_> {
    /// The time until the next call of `goes_on`, after one that took `last`. There are few calls in a long wait.
    pub(crate) fn next(&self, last: Duration) -> Duration {
        last.saturating_mul(2).max(SLOW_AFTER)
    }
}
