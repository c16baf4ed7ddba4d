//! `gdb/osier.py` in a real gdb: it lists the fibers of a process and walks their stacks. The process is this test, started again
//! under gdb, which stops it when its fibers wait.

use std::process::Command;
use std::time::Duration;

use osier::inspect::Dump;
use osier::sync::{Event, Mutex};

/// Set in the process under gdb.
const INSIDE: &str = "OSIER_TEST_UNDER_GDB";

#[inline(never)]
fn waits_for_an_hour(depth: u32) {
    match depth {
        0 => osier::sleep(Duration::from_secs(3600)),
        _ => waits_for_an_hour(depth - 1),
    }
    std::hint::black_box(depth);
}

#[inline(never)]
fn waits_for_a_lock(mutex: &Mutex<()>) {
    drop(mutex.lock());
    std::hint::black_box(mutex);
}

/// Stops the process, for gdb, once three fibers wait.
#[inline(never)]
fn stops_here() {
    let waiting = |dump: &Dump| {
        let fibers = dump.workers.iter().flat_map(|worker| &worker.fibers);
        fibers.filter(|fiber| fiber.wait.is_some()).count()
    };
    testkit::wait_for("three fibers to wait", || (waiting(&osier::dump()) == 3).then_some(()));
    let process = std::process::id().to_string();
    let killed = Command::new("kill").args(["-USR1", &process]).status();
    assert!(killed.unwrap().success());
    // Any thread may take the signal, and not at once. gdb ends the process.
    std::thread::sleep(Duration::from_secs(60));
    panic!("gdb has not stopped the process");
}

/// The process that gdb looks at. On its own it does nothing.
#[test]
fn the_process_under_gdb() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    osier::run(|| {
        let (mutex, ended) = (Mutex::new(()), Event::new());
        osier::scope(|scope| {
            let held = mutex.lock();
            let sleeper = osier::fiber::Builder::new().name("the sleeper");
            let sleeper = sleeper.spawn_local(|| waits_for_an_hour(3));
            scope.spawn_local(|| waits_for_a_lock(&mutex));
            // A stack that no fiber uses any more is none.
            scope.spawn_local(|| ended.set());
            ended.wait();
            osier::unblock(stops_here);
            drop((held, sleeper));
        });
    });
}

#[test]
fn fibers_are_listed_and_their_stacks_walked() {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return println!("skipped: the script knows Linux on x86-64 only");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/gdb/osier.py");
    let mut gdb = Command::new("gdb");
    gdb.args([
        "-q",
        "-nx",
        "-batch",
        "-iex",
        "set debuginfod enabled off",
        "-ex",
        "set startup-with-shell off",
    ]);
    gdb.args(["-ex", &format!("source {script}"), "-ex", "run"]);
    gdb.args(["-ex", "osier fibers", "-ex", "osier bt all", "-ex", "kill", "--args"]);
    gdb.arg(std::env::current_exe().unwrap());
    gdb.args([
        "--exact",
        "gdb::the_process_under_gdb",
        "--nocapture",
        "--test-threads",
        "1",
    ]);
    let output = match gdb.env(INSIDE, "1").output() {
        Ok(output) => output,
        Err(error) => return println!("skipped: no gdb: {error}"),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let refusals = [
        "Could not trace the inferior process",
        "ptrace: Operation not permitted",
        "Python scripting is not supported",
        "Scripting in the \"Python\" language is not supported",
    ];
    if let Some(refusal) = refusals.iter().find(|refusal| text.contains(**refusal)) {
        return println!("skipped: gdb says: {refusal}");
    }
    let line = |what: &str| {
        let found = text.lines().find(|line| line.contains(what));
        found.unwrap_or_else(|| panic!("no {what:?} in\n{text}"))
    };
    // The fiber of `run`, the sleeper, and the one that waits for the lock.
    assert!(line("suspended fibers").starts_with("3 "), "{text}");
    let sleeper = line(", waits in watchdog::gdb::waits_for_an_hour");
    assert!(
        sleeper.contains("fiber 'the sleeper' spawned at runtime/tests/watchdog/gdb.rs:"),
        "{sleeper}"
    );
    assert!(sleeper.contains("tests/watchdog/gdb.rs:"), "{sleeper}");
    let waiter = line(", waits in watchdog::gdb::waits_for_a_lock");
    assert!(
        waiter.contains("fiber spawned at runtime/tests/watchdog/gdb.rs:"),
        "{waiter}"
    );
    line("in watchdog::gdb::the_process_under_gdb");
    // The whole stack, down to the start of the fiber.
    let frames = |function: &str| {
        text.lines()
            .filter(|line| line.contains(&format!(" in {function}")))
            .count()
    };
    assert!(frames("watchdog::gdb::waits_for_an_hour") > 4, "{text}");
    assert_eq!(frames("osier::worker::core::Core::enter"), 3, "{text}");
}
