//! Lines for the person who runs the program.

use std::fmt;
use std::io::{self, Write as _};
use std::panic::catch_unwind;
use std::thread;

/// Writes a line to the standard error stream. Goes on without it if the stream takes none: its reader may have gone, its disk may be full.
///
/// # Blocks the thread
/// As long as the stream takes no bytes.
#[cold]
pub fn say(line: fmt::Arguments<'_>) {
    let line = line.to_string();
    if thread::panicking() {
        // A panic in a panic hook aborts the process.
        let _ = writeln!(io::stderr(), "{line}");
        return;
    }
    // Test harnesses capture what this macro writes, and nothing else. The macro panics if it cannot write.
    let _ = catch_unwind(|| eprintln!("{line}"));
}
