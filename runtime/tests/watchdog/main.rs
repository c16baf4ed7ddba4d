//! Looks at fibers from outside. The watchdog reports a worker that does not turn its loop, once, and no other worker; gdb shows all fibers.
//!
//! gdb reads the whole program before it starts, so `gdb.rs` is in this small one.

mod gdb;

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use osier::fiber::Builder;
use osier::{Runtime, sleep, yield_now};

/// Returns what this test writes to stderr in a child process. Returns `None` in that process.
fn stderr_of(test: &str, body: impl FnOnce()) -> Option<String> {
    let output = testkit::in_a_child(test, body)?;
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    Some(text)
}

fn watched(limit: Duration) -> Runtime {
    let builder = Runtime::builder().workers(2).name("watched");
    builder.watchdog(Some(limit)).build().unwrap()
}

fn reports(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| line.contains("has not turned its loop"))
        .collect()
}

#[test]
fn a_fiber_that_blocks_its_worker_is_named_once() {
    let Some(text) = stderr_of("a_fiber_that_blocks_its_worker_is_named_once", || {
        let runtime = watched(Duration::from_millis(200));
        let blocks = runtime.spawn(|| {
            let blocks = Builder::new().name("blocks");
            // The block that the watchdog reports: a real one.
            blocks.spawn(|| thread::sleep(Duration::from_secs(6))).join()
        });
        blocks.join().unwrap().unwrap();
    }) else {
        return;
    };
    let reports = reports(&text);
    assert_eq!(reports.len(), 1, "{text}");
    let report = reports[0];
    assert!(report.starts_with("osier: worker 'watched-"), "{report}");
    for part in [
        "for 200ms",
        "'blocks' spawned at runtime/tests/watchdog/main.rs",
        "osier::unblock()",
        "osier::fiber::give_way()",
    ] {
        assert!(report.contains(part), "no {part} in {report}");
    }
    if !cfg!(all(target_os = "linux", feature = "backtrace")) {
        println!("skipped: no backtrace of another thread here");
        return;
    }
    let frames: Vec<&str> = text.lines().filter(|line| line.starts_with("    ")).collect();
    assert!(frames.iter().any(|frame| frame.contains("functions::sleep")), "{text}");
    assert!(!text.contains("signal_hook_registry"), "{text}");
    assert!(!text.contains("Core::enter"), "{text}");
}

#[test]
fn a_std_lock_held_across_a_suspension_stops_the_worker_and_is_found() {
    let Some(text) = stderr_of(
        "a_std_lock_held_across_a_suspension_stops_the_worker_and_is_found",
        || {
            let runtime = watched(Duration::from_millis(200));
            let (release, released) = mpsc::channel::<()>();
            static LOCK: Mutex<()> = Mutex::new(());
            #[inline(never)]
            fn lock_far_down() {
                let _page = std::hint::black_box([0_u8; 4096]);
                drop(std::hint::black_box(LOCK.lock()));
            }
            let holds = move || {
                // The remains of its guard stay on its stack, below the place where it waits.
                let had = Builder::new().name("had the lock");
                drop(had.spawn_local(|| {
                    lock_far_down();
                    sleep(Duration::from_secs(3600));
                }));
                yield_now();
                let _held = LOCK.lock();
                // It needs the lock on the worker on which the holder has to go on.
                let wants = Builder::new().name("wants the lock");
                drop(wants.spawn_local(|| drop(LOCK.lock())));
                yield_now();
            };
            let holds = move || drop(Builder::new().name("holds the lock").spawn(holds));
            drop(runtime.spawn(holds));
            // Long enough for the watchdog; that worker never turns again.
            let _ = released.recv_timeout(Duration::from_secs(2));
            drop(release);
            std::process::exit(0);
        },
    ) else {
        return;
    };
    let reports = reports(&text);
    assert_eq!(reports.len(), 1, "{text}");
    assert!(reports[0].contains("'wants the lock' spawned at"), "{text}");
    if !cfg!(target_os = "linux") {
        println!("skipped: no /proc here");
        return;
    }
    let holds = text
        .lines()
        .find(|line| line.contains("it waits for a std lock, to which fiber"));
    let holds = holds.unwrap_or_else(|| panic!("nobody holds the lock in {text}"));
    assert!(
        holds.contains("'holds the lock' spawned at runtime/tests/watchdog/main.rs"),
        "{text}"
    );
    assert!(!text.contains("'had the lock'"), "{text}");
}

#[test]
fn a_fiber_that_computes_with_a_lock_is_reported_with_who_waits_for_it() {
    let Some(text) = stderr_of(
        "a_fiber_that_computes_with_a_lock_is_reported_with_who_waits_for_it",
        || {
            let runtime = watched(Duration::from_millis(200));
            let lock = Arc::new(osier::sync::Mutex::new(()));
            let (locked, is_locked) = mpsc::channel();
            let theirs = Arc::clone(&lock);
            let computes = runtime.spawn(move || {
                let _held = theirs.lock();
                locked.send(()).unwrap();
                // The block that the watchdog reports: a real one.
                thread::sleep(Duration::from_millis(2000));
            });
            is_locked.recv().unwrap();
            // The first worker is stuck, so the second one starts both.
            let waits = runtime.spawn(move || {
                let waits = Builder::new().name("wants the lock");
                waits.spawn(move || drop(lock.lock())).join()
            });
            computes.join().unwrap();
            waits.join().unwrap().unwrap();
        },
    ) else {
        return;
    };
    assert_eq!(reports(&text).len(), 1, "{text}");
    let waiters: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("waits for an osier::sync lock"))
        .collect();
    assert_eq!(waiters.len(), 1, "{text}");
    assert!(
        waiters[0].contains("'wants the lock' spawned at runtime/tests/watchdog/main.rs"),
        "{text}"
    );
}

#[test]
fn the_environment_turns_it_on_and_its_report_has_the_words_of_the_fiber() {
    let test = "the_environment_turns_it_on_and_its_report_has_the_words_of_the_fiber";
    for (limit, count) in [("200ms", 1), ("off", 0)] {
        let Some(output) = testkit::in_a_child_with(test, &[("OSIER_WATCHDOG", limit)], || {
            let runtime = Runtime::builder().workers(1).build().unwrap();
            runtime.run(|| {
                osier::fiber::describe(&[osier::fiber::Part::Text("imports a.csv")], || {
                    // The block that the watchdog reports: a real one.
                    thread::sleep(Duration::from_millis(1500));
                });
            });
        }) else {
            return;
        };
        let text = String::from_utf8(output.stderr).unwrap();
        let reports = reports(&text);
        assert_eq!(reports.len(), count, "{text}");
        if cfg!(target_os = "linux") {
            assert!(
                reports.iter().all(|report| report.contains("(imports a.csv)")),
                "{text}"
            );
        }
    }
}

#[test]
fn a_limit_of_the_environment_that_cannot_be_read_is_reported_once() {
    let test = "a_limit_of_the_environment_that_cannot_be_read_is_reported_once";
    let Some(output) = testkit::in_a_child_with(test, &[("OSIER_WATCHDOG", "1min")], || {
        let _ = (Runtime::builder(), Runtime::builder());
    }) else {
        return;
    };
    let text = String::from_utf8(output.stderr).unwrap();
    let line = "osier: OSIER_WATCHDOG is \"1min\", which is ignored: write 1s, 500ms or off";
    assert_eq!(text.matches(line).count(), 1, "{text}");
}

#[test]
fn a_fiber_that_swallows_its_cancellation_is_told() {
    let Some(text) = stderr_of("a_fiber_that_swallows_its_cancellation_is_told", || {
        watched(Duration::from_secs(5)).run(|| {
            let swallows = Builder::new().name("swallows").spawn(|| {
                for _ in 0..100 {
                    let _ = std::panic::catch_unwind(|| sleep(Duration::from_secs(3600)));
                }
            });
            yield_now();
            swallows.cancel();
            let _ = swallows.join();
        });
    }) else {
        return;
    };
    let told: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("is cancelled and goes on"))
        .collect();
    assert_eq!(told.len(), 1, "{text}");
    assert!(
        told[0].contains("'swallows' spawned at runtime/tests/watchdog/main.rs"),
        "{text}"
    );
}

#[test]
fn a_task_that_blocks_is_named() {
    let Some(text) = stderr_of("a_task_that_blocks_is_named", || {
        let runtime = watched(Duration::from_millis(200));
        // The block that the watchdog reports: a real one.
        let blocks = runtime.spawn_future(async { thread::sleep(Duration::from_millis(1500)) });
        blocks.join().unwrap();
    }) else {
        return;
    };
    let reports = reports(&text);
    assert_eq!(reports.len(), 1, "{text}");
    assert!(reports[0].contains("it runs the task "), "{text}");
    // A task cannot call what suspends a fiber.
    assert!(
        reports[0].contains("osier::spawn(|| osier::unblock(..)).await")
            && reports[0].contains("osier::future::yield_now()"),
        "{text}"
    );
    assert!(!reports[0].contains("give_way"), "{text}");
}

#[test]
fn a_callback_that_blocks_is_told_of_a_fiber() {
    let Some(text) = stderr_of("a_callback_that_blocks_is_told_of_a_fiber", || {
        let builder = Runtime::builder().watchdog(Some(Duration::from_millis(200)));
        let local = builder.build_local().unwrap();
        // The block that the watchdog reports: a real one.
        local.enter(|| thread::sleep(Duration::from_millis(1500))).unwrap();
    }) else {
        return;
    };
    let reports = reports(&text);
    assert_eq!(reports.len(), 1, "{text}");
    for part in [
        "it runs neither a fiber nor a task",
        "osier::spawn(|| osier::unblock(..))",
    ] {
        assert!(reports[0].contains(part), "no {part} in {text}");
    }
    assert!(
        !reports[0].contains("give_way") && !reports[0].contains("yield_now"),
        "{text}"
    );
}

/// The program does not know the thread, so a signal that the program blocks must not end in it.
#[test]
fn the_thread_takes_no_signals() {
    let _watched = watched(Duration::from_secs(60));
    testkit::assert_takes_no_signals("osier-watchdog");
}

/// A report advises it.
#[test]
fn a_task_awaits_a_fiber_that_blocks() {
    let blocks = async { osier::spawn(|| osier::unblock(|| 7)).await.unwrap() };
    assert_eq!(osier::run(|| osier::spawn_future(blocks).join().unwrap()), 7);
}

#[test]
fn who_sleeps_or_yields_is_not_reported() {
    let Some(text) = stderr_of("who_sleeps_or_yields_is_not_reported", || {
        let runtime = watched(Duration::from_millis(400));
        let yields = runtime.spawn(|| {
            let until = std::time::Instant::now() + Duration::from_millis(1500);
            while std::time::Instant::now() < until {
                yield_now();
            }
        });
        // The watchdog has real time.
        runtime.run(|| sleep(Duration::from_millis(1500)));
        yields.join().unwrap();
        // All of it idle, in real time.
        thread::sleep(Duration::from_millis(1000));
    }) else {
        return;
    };
    assert_eq!(reports(&text), Vec::<&str>::new());
}

#[test]
fn without_it_nothing_is_said() {
    let Some(text) = stderr_of("without_it_nothing_is_said", || {
        let runtime = Runtime::builder().workers(1).watchdog(None).build().unwrap();
        // A block that the watchdog would report.
        runtime.run(|| thread::sleep(Duration::from_millis(1500)));
    }) else {
        return;
    };
    assert_eq!(reports(&text), Vec::<&str>::new());
}
