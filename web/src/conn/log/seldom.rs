//! A line about a lasting state, which many threads meet again and again: one of them logs it, once in a while.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock;

/// Shortest time between two lines.
const SAY_AGAIN: Duration = Duration::from_secs(5);

/// When such a line was logged last.
#[derive(Default)]
pub(crate) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Whether a line is due. The caller logs it then.
    #[cold]
    pub(crate) fn is_due(&self) -> bool {
        let now = osier::time::now();
        let mut said = lock(&self.0);
        let is_due = said.is_none_or(|at| now.saturating_duration_since(at) >= SAY_AGAIN);
        if is_due {
            *said = Some(now);
        }
        is_due
    }
}
