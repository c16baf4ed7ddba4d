//! Waits for a backend that may stop and go on in another way, without a stack for example.

use std::time::Duration;

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
    /// Called at its end. The wait stops if this returns false.
    pub(crate) goes_on: &'f mut dyn FnMut() -> bool,
}
