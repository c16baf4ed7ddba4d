//! A program that a test talks to: found, started, stopped by its process id.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::pause;
use crate::{DEADLINE, skip};

/// A running program. Dropping it ends it by SIGTERM, so that its own children end too, and by SIGKILL if that does not
/// help.
#[derive(Debug)]
pub struct Program {
    child: Child,
}

impl Program {
    /// Starts it with an empty standard input. If it cannot be started, prints "skipped" and the reason.
    pub fn start(command: &mut Command) -> Option<Program> {
        match Program::try_start(command) {
            Ok(program) => Some(program),
            Err(error) => {
                skip(format_args!(
                    "{} cannot be started: {error}",
                    command.get_program().display()
                ));
                None
            }
        }
    }

    /// Starts it with an empty standard input.
    ///
    /// # Errors
    /// Returns the system's reason, mostly that it is not installed.
    pub fn try_start(command: &mut Command) -> io::Result<Program> {
        let child = command.stdin(Stdio::null()).spawn()?;
        Ok(Program { child })
    }

    /// Waits until `ready` holds.
    ///
    /// # Panics
    /// Panics with `state` if the program ends before, or is not ready within [`DEADLINE`]. A program that is there and does
    /// not work is no reason to skip.
    #[track_caller]
    pub fn wait_until(&mut self, ready: impl Fn() -> bool, state: impl Fn() -> String) {
        let start = Instant::now();
        while !ready() {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("it has ended, {status}: {}", state());
            }
            assert!(start.elapsed() < DEADLINE, "not ready: {}", state());
            thread::sleep(pause(start.elapsed()));
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child process, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// Panics if it has not within [`DEADLINE`].
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        self.ended_within(DEADLINE).expect("the program ends")
    }

    /// Sends SIGTERM and waits for the end; SIGKILL after [`DEADLINE`].
    pub fn stop(mut self) {
        self.end();
    }

    /// Ends it at once by SIGKILL. Its children stay.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn end(&mut self) {
        // A process that has been waited for has no id any more: `try_wait` keeps its status.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
        }
        if self.ended_within(DEADLINE).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    fn ended_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            if start.elapsed() >= limit {
                return None;
            }
            thread::sleep(pause(start.elapsed()));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
    }
}

/// A command that runs this test executable once more, for tests that end or limit a process. The environment variable `OSIER_TEST_RUNNER` has the
/// program that runs it and its options, where the system cannot.
///
/// # Panics
/// Panics if the system does not know where the executable is.
pub fn this_test() -> Command {
    let executable = std::env::current_exe().expect("a test executable has a path");
    let runner = std::env::var("OSIER_TEST_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let Some(program) = words.next() else {
        return Command::new(executable);
    };
    let mut command = Command::new(program);
    command.args(words).arg(executable);
    command
}

/// Runs the test of that name again in a child process, which calls `body`. Returns what the child has printed, and `None` in the child.
///
/// # Panics
/// Panics if the child cannot be started, or if it has no test of that name.
pub fn in_a_child(test: &str, body: impl FnOnce()) -> Option<Output> {
    in_a_child_with(test, &[], body)
}

/// Same as [`in_a_child`], for a child with more variables in its environment.
///
/// # Panics
/// Panics as [`in_a_child`] does.
pub fn in_a_child_with(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Option<Output> {
    const CHILD: &str = "OSIER_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        body();
        return None;
    }
    let mut child = this_test();
    child.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    child.env(CHILD, "1").envs(variables.iter().copied());
    let output = child.output().expect("the test executable starts");
    // Not that it passed: some bodies end the process.
    let ran = String::from_utf8_lossy(&output.stdout).contains("running 1 test\n");
    assert!(ran, "no test is called {test}, or it did not begin: {output:?}");
    Some(output)
}

/// Whether an emulator runs this test.
pub fn is_emulated() -> bool {
    std::env::var_os("OSIER_TEST_RUNNER").is_some()
}

/// Where `program` is: in the search path, or where programs for administrators are.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administrators = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(administrators)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// A TCP port of the loopback interface that was free a moment ago, below those that Linux gives to clients. Two calls of a process give
/// two ports. A program that can listen on a Unix socket or choose its port should: another process may take this one. A server of ours gets the
/// port of [`nobody`](crate::nobody), which is held.
///
/// # Panics
/// Panics if no port is free.
pub fn free_port() -> u16 {
    const PORTS: std::ops::Range<u32> = 10_000..32_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes of one run have ids that follow each other.
    let first = std::process::id().wrapping_mul(131);
    let count = PORTS.end - PORTS.start;
    let next = || PORTS.start + first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut ports = (0..count).filter_map(|_| u16::try_from(next()).ok());
    ports.find(is_free).expect("a free port")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn no_two_ports_are_the_same() {
        let ports: std::collections::BTreeSet<u16> = (0..100).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 100);
    }

    #[test]
    fn a_program_is_ended_with_its_value() {
        let program = Program::start(Command::new("sleep").arg("1000")).expect("sleep is everywhere");
        let id = program.id();
        let pid = Pid::from_child(&program.child);
        drop(program);
        assert!(rustix::process::test_kill_process(pid).is_err(), "{id} still runs");
    }

    #[test]
    fn its_end_is_told() {
        let mut program = Program::start(Command::new("sleep").arg("1000")).expect("sleep is everywhere");
        // A shell starts background jobs so that they ignore SIGINT, and their children do too.
        program.signal(Signal::TERM);
        assert_eq!(program.wait().signal(), Some(Signal::TERM.as_raw()));
    }

    #[test]
    #[should_panic(expected = "it has ended")]
    fn one_that_ends_is_not_waited_for() {
        let mut program = Program::start(&mut Command::new("true")).expect("true is everywhere");
        program.wait_until(|| false, String::new);
    }

    #[test]
    fn what_is_not_there_is_skipped() {
        assert!(Program::start(&mut Command::new("/none/of/that/name")).is_none());
        assert!(find("sh").is_some() && find("none-of-that-name").is_none());
    }
}
