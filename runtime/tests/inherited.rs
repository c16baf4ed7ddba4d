//! Descriptors that another program has opened for this one. The tests are a process of their own: its environment and its
//! descriptors are theirs.

use std::os::fd::AsRawFd;
use std::process::{Command, Output};

/// The variable that names the case for a child.
const CASE: &str = "OSIER_TEST_CASE";

/// Runs the test of that name again, as the process for which a shell has opened `opened` and set the variables of the protocol.
fn activated(test: &str, opened: &str, variables: &str) -> Option<Output> {
    if std::env::var_os(CASE).is_some() {
        return None;
    }
    if testkit::is_emulated() {
        testkit::skip("the process that the shell becomes is the emulator");
        return None;
    }
    let script = format!("exec {opened}; {variables} LISTEN_PID=$$ exec \"$0\" --exact {test} --nocapture");
    let mut shell = Command::new("sh");
    let executable = testkit::this_test().get_program().to_owned();
    let output = shell.args(["-c", &script]).arg(executable).env(CASE, "1").output();
    Some(output.expect("there is a shell"))
}

fn is_the_child() -> bool {
    std::env::var_os(CASE).is_some()
}

#[test]
fn descriptors_are_taken_once() {
    let test = "descriptors_are_taken_once";
    if let Some(output) = activated(test, "3</dev/null 4</dev/zero", "LISTEN_FDS=2 LISTEN_FDNAMES=a:b") {
        assert!(output.status.success(), "{output:?}");
    }
    if is_the_child() {
        let taken = osier::net::inherited().unwrap();
        let taken: Vec<_> = taken.iter().map(|one| (&*one.name, one.fd.as_raw_fd())).collect();
        assert_eq!(taken, [("a", 3), ("b", 4)]);
        assert!(osier::net::inherited().unwrap().is_empty());
    }
}

/// A program may report the first error and ask again elsewhere: none of its sockets is there, and it must not hear that all is well.
#[test]
fn the_same_mistake_is_the_error_of_every_call() {
    let test = "the_same_mistake_is_the_error_of_every_call";
    for (variables, mistake) in [
        ("LISTEN_FDS=3", "descriptor 5 is not open"),
        (
            "LISTEN_FDS=2 LISTEN_FDNAMES=a",
            "LISTEN_FDNAMES has 1 names for 2 descriptors",
        ),
        ("LISTEN_FDS=5000", "LISTEN_FDS is 5000"),
    ] {
        if let Some(output) = activated(test, "3</dev/null 4</dev/zero 5<&-", variables) {
            assert!(output.status.success(), "{output:?}");
            let said = String::from_utf8(output.stdout).unwrap();
            assert_eq!(said.matches(mistake).count(), 2, "{said}");
        }
    }
    if is_the_child() {
        for _ in 0..2 {
            let error = osier::net::inherited().unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
            println!("{error}");
        }
        // Nothing was closed.
        assert!(std::fs::metadata("/proc/self/fd/3").is_ok() && std::fs::metadata("/proc/self/fd/4").is_ok());
    }
}
