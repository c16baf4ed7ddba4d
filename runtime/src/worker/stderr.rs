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
    // Test harnesses capture what this macro writes, and nothing else. The macro panics if it cannot write.
    let print = || eprintln!("{line}");
    if !thread::panicking() {
        return drop(catch_unwind(print));
    }
    // A panic in a panic hook aborts the process, and one of another thread does not.
    let spawned = thread::scope(|scope| {
        thread::Builder::new()
            .spawn_scoped(scope, print)
            .map(|thread| drop(thread.join()))
    });
    if spawned.is_err() {
        let _ = writeln!(io::stderr(), "{line}");
    }
}
