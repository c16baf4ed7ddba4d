//! Runs one test of this binary again in a child process, for what ends or limits a process.
use std::process::{Command, Output, Stdio};

const ROLE: &str = "OSIER_CORO_TEST_ROLE";

/// Whether this process is the child for `role`.
pub fn is_child(role: &str) -> bool {
    std::env::var(ROLE).is_ok_and(|r| r == role)
}

/// The child that runs the test function `test` in `role`, alone and with its output unfiltered.
pub fn command(test: &str, role: &str) -> Command {
    let mut command = testkit::this_test();
    command
        .args([test, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdin(Stdio::null());
    command
}

/// Runs that child to its end.
///
/// # Panics
/// Panics if `test` names no test of this binary, or several.
pub fn run(test: &str, role: &str) -> Output {
    let output = command(test, role).output().expect("the test binary runs");
    let started = String::from_utf8_lossy(&output.stdout).contains("running 1 test\n");
    assert!(started, "{test} is not the name of one test: {output:?}");
    output
}

/// Whether the byte at `address` can be read, found out without a fault: a system call reads it for us.
pub fn readable(address: usize) -> bool {
    let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
    // SAFETY: write(2) fails with EFAULT where it cannot read; it changes no memory.
    let n = unsafe {
        libc::write(
            std::os::fd::AsRawFd::as_raw_fd(&theirs),
            std::ptr::without_provenance(address),
            1,
        )
    };
    drop(ours);
    n == 1
}
