//! Lines for the operator: what went wrong, and what an operator's tools look for. Not the access log.
//!
//! Whoever has something to say is given a [`Say`] when it is made, so that a test can listen.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

/// Takes one line, without its end.
pub type Say = Arc<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;

/// To the standard error stream, each line in one write. That nobody reads there any more is no error.
pub fn to_stderr() -> Say {
    Arc::new(|line| {
        let line = format!("osier: {line}\n");
        let _ = io::stderr().write_all(line.as_bytes());
    })
}
