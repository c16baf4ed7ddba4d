//! The trace of a run: a line for each event, with the virtual time and the host.

use std::fmt::{self, Write};

/// The lines of a run, or nothing if nobody wants them.
pub(crate) struct Trace {
    text: Option<String>,
}

impl Trace {
    pub(crate) fn new(wanted: bool) -> Trace {
        Trace {
            text: wanted.then(String::new),
        }
    }

    pub(crate) fn line(&mut self, now: u64, host: &str, what: fmt::Arguments<'_>) {
        if let Some(text) = &mut self.text {
            let (seconds, nanos) = (now / 1_000_000_000, now % 1_000_000_000);
            // A String takes every write.
            let _ = writeln!(text, "{seconds:>6}.{nanos:09} {host:<12} {what}");
        }
    }

    pub(crate) fn take(&mut self) -> String {
        self.text.take().unwrap_or_default()
    }
}
