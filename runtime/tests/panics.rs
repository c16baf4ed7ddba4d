//! Panics: a misuse points at the caller and says what to do, and a line names the task that panicked.
//!
//! The tests share a process with no others, because they set its panic hook.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use osier::sync::{Event, Semaphore, broadcast, mpmc, mpsc};
use osier::time::{interval, interval_at};
use osier::{Runtime, fiber, future};

thread_local! {
    /// The place and the text of the last panic of this thread.
    static LAST: RefCell<(String, String)> = RefCell::default();
}

/// Runs `body`, which must panic at a place in this file. Returns the panic's text.
fn misuse<T>(body: impl FnOnce() -> T) -> String {
    static SET: Once = Once::new();
    SET.call_once(|| {
        // The first runtime sets a hook too. Two threads that do so at once lose one of the hooks. This may be a worker, which must
        // not run a runtime.
        let first = || Runtime::builder().workers(1).build().unwrap().run(|| ());
        std::thread::spawn(first).join().unwrap();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let text = info.payload_as_str().unwrap_or_default().to_owned();
            LAST.set((place, text));
            before(info);
        }));
    });
    assert!(catch_unwind(AssertUnwindSafe(body)).is_err());
    let (place, text) = LAST.take();
    assert!(place.starts_with(file!()), "{text:?} at {place}");
    text
}

#[test]
fn a_call_outside_of_a_runtime_points_at_the_caller() {
    for text in [
        misuse(|| osier::spawn(|| ())),
        misuse(|| osier::spawn_local(|| ())),
        misuse(|| fiber::Builder::new().name("lost").spawn(|| ())),
        misuse(|| osier::spawn_future(async {})),
        misuse(|| osier::spawn_future_local(async {})),
        misuse(|| fiber::workers() > 0),
    ] {
        assert!(
            text.starts_with("osier::") && text.contains("outside of a runtime"),
            "{text}"
        );
    }
    osier::scope(|s| {
        for text in [
            misuse(|| s.spawn(|| ())),
            misuse(|| s.spawn_local(|| ())),
            misuse(|| s.spawn_with(fiber::Builder::new(), || ())),
            misuse(|| s.spawn_local_with(fiber::Builder::new(), || ())),
        ] {
            assert!(
                text.starts_with("Scope::spawn") && text.contains("outside of a runtime"),
                "{text}"
            );
        }
    });
    let text = misuse(|| osier::timeout(Duration::from_secs(1), || ()));
    assert!(text.contains("osier::timeout outside of a fiber"), "{text}");
    assert!(text.contains("limit a future by osier::select!"), "{text}");
}

#[test]
fn a_worker_that_is_not_there_points_at_the_caller() {
    Runtime::builder().workers(2).build().unwrap().run(|| {
        for text in [
            misuse(|| fiber::Builder::new().worker(99).spawn(|| ())),
            misuse(|| osier::scope(|s| drop(s.spawn_with(fiber::Builder::new().worker(99), || ())))),
        ] {
            assert!(text.contains("worker 99") && text.contains("0 to 1"), "{text}");
        }
        let elsewhere = 1 - fiber::worker().unwrap();
        let text = misuse(|| fiber::Builder::new().worker(elsewhere).spawn_local(|| ()));
        assert!(
            text.contains("spawn_local starts on the worker that calls it"),
            "{text}"
        );
    });
}

#[test]
fn a_value_out_of_range_is_named_with_its_limit() {
    let most = Semaphore::MAX_PERMITS.to_string();
    for (text, parts) in [
        (misuse(|| mpsc::channel::<u8>(0)), ["bound of 0", &most]),
        (misuse(|| mpmc::channel::<u8>(0)), ["bound of 0", &most]),
        (
            misuse(|| broadcast::channel::<u8>(0)),
            ["capacity of 0", &(usize::MAX / 2).to_string()],
        ),
        (
            misuse(|| broadcast::channel::<u8>(usize::MAX)),
            [&format!("capacity of {}", usize::MAX), &(usize::MAX / 2).to_string()],
        ),
        (misuse(|| Semaphore::new(usize::MAX)), ["Semaphore::MAX_PERMITS", &most]),
        (misuse(|| interval(Duration::ZERO)), ["period", "zero"]),
        (
            misuse(|| interval_at(Instant::now(), Duration::ZERO)),
            ["period", "zero"],
        ),
    ] {
        assert!(parts.iter().all(|part| text.contains(part)), "{text}: {parts:?}");
    }
}

/// Runs this test again in a child process, which calls `body`. Returns its stdout and the lines on stderr that say who has
/// panicked.
fn in_a_child(test: &str, body: impl FnOnce()) -> Option<(String, Vec<String>)> {
    let output = testkit::in_a_child(test, body)?;
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    let lines = text.lines().filter(|line| line.starts_with("osier: in "));
    Some((
        String::from_utf8(output.stdout).unwrap(),
        lines.map(String::from).collect(),
    ))
}

#[test]
fn an_interrupt_is_a_reason_of_its_own() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            let _ = catch_unwind(|| panic!("in a destructor"));
        }
    }
    let Some((_, lines)) = in_a_child("an_interrupt_is_a_reason_of_its_own", || {
        Runtime::builder().workers(1).build().unwrap().run(|| {
            let interrupt = osier::sync::Interrupt::new();
            interrupt.set();
            let guarded = interrupt.guard(|| {
                let _panics = Panics;
                osier::sleep(Duration::from_secs(60)); // is cancelled at once
            });
            assert!(guarded.is_err());
        });
    }) else {
        return;
    };
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("while it was cancelled: its interrupt was set"),
        "{lines:?}"
    );
}

#[test]
fn an_unwrap_of_the_error_of_a_cancelled_call_is_told_from_other_panics() {
    let test = "an_unwrap_of_the_error_of_a_cancelled_call_is_told_from_other_panics";
    let Some((_, lines)) = in_a_child(test, || {
        Runtime::builder().workers(1).build().unwrap().run(|| {
            let listener = osier::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let limit = Duration::from_millis(1);
            assert!(osier::timeout(limit, || catch_unwind(|| listener.accept().unwrap()).is_err()).is_err());
            assert!(catch_unwind(|| panic!("of its own")).is_err());
            osier::spawn_local(move || listener.accept().unwrap());
            osier::yield_now(); // it accepts until the end of the runtime
        });
    }) else {
        return;
    };
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(
        lines[0].ends_with("while it was cancelled: its time limit passed"),
        "{lines:?}"
    );
    assert!(!lines[1].contains("cancelled"), "{lines:?}");
    assert!(
        lines[2].ends_with("while it was cancelled: its handle, its scope or its runtime ended it"),
        "{lines:?}"
    );
}

#[test]
fn a_panic_names_the_last_reason_that_a_call_has_returned() {
    let test = "a_panic_names_the_last_reason_that_a_call_has_returned";
    let Some((_, lines)) = in_a_child(test, || {
        Runtime::builder().workers(1).build().unwrap().run(|| {
            let delivered = Arc::new(Event::new());
            let cancelled = Arc::new(Event::new());
            let (deliver, await_cancel) = (Arc::clone(&delivered), Arc::clone(&cancelled));
            let limit = Duration::from_millis(1);
            let fiber = osier::spawn_local(move || {
                let listener = osier::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let unwrap = || assert!(catch_unwind(AssertUnwindSafe(|| listener.accept().unwrap())).is_err());
                let limited = osier::timeout(limit, || {
                    assert!(listener.accept().is_err()); // the limit passes
                    deliver.set();
                    osier::shield(|| await_cancel.wait());
                    unwrap();
                    assert!(osier::shield(|| osier::timeout(limit, unwrap)).is_err());
                    assert!(catch_unwind(|| panic!("after the shield")).is_err());
                });
                assert!(limited.is_err());
            });
            delivered.wait();
            fiber.cancel();
            cancelled.set();
            fiber.join().unwrap();
        });
    }) else {
        return;
    };
    let reasons: Vec<_> = lines
        .iter()
        .filter_map(|line| line.rsplit_once("cancelled: "))
        .collect();
    let reasons: Vec<_> = reasons.into_iter().map(|(_, reason)| reason).collect();
    let root = "its handle, its scope or its runtime ended it";
    assert_eq!(reasons, [root, "its time limit passed", root], "{lines:?}");
}

#[test]
fn a_task_that_panics_is_named() {
    let Some((stdout, lines)) = in_a_child("a_task_that_panics_is_named", || {
        Runtime::builder().workers(1).build().unwrap().run(|| {
            let billing = future::Builder::new().name("billing");
            let billing = billing.spawn(async { panic!("no money") });
            assert!(billing.join().is_err());
            let unnamed = osier::spawn_future(async { panic!("no name") });
            println!("the unnamed task is {}", unnamed.id());
            assert!(unnamed.join().is_err());
            assert!(osier::spawn(|| panic!("no task")).join().is_err());
        });
    }) else {
        return;
    };
    let id = stdout.split_once("the unnamed task is ").expect("its id").1;
    let id = id.lines().next().unwrap();
    let [billing, unnamed, fiber] = &lines[..] else {
        panic!("{lines:?}")
    };
    assert!(
        billing.starts_with("osier: in task ") && billing.ends_with(" 'billing'"),
        "{billing}"
    );
    assert_eq!(*unnamed, format!("osier: in task {id}"));
    assert!(fiber.starts_with("osier: in fiber "), "{fiber}");
    assert!(fiber.contains(&format!(", spawned at {}:", file!())), "{fiber}");
}

#[test]
fn a_fiber_of_an_embedded_runtime_that_panics_is_named() {
    let test = "a_fiber_of_an_embedded_runtime_that_panics_is_named";
    let Some((_, lines)) = in_a_child(test, || {
        let local = osier::embed::Local::new().unwrap();
        let fiber = local.spawn(|| panic!("in the loop of a host"));
        local.run_until(|| fiber.is_finished()).unwrap();
    }) else {
        return;
    };
    let [fiber] = &lines[..] else { panic!("{lines:?}") };
    assert!(fiber.contains(&format!(", spawned at {}:", file!())), "{fiber}");
}

/// std's short backtraces end at a function that the runtime calls for this. Below it are some forty frames of the worker.
#[test]
fn the_backtrace_of_a_panic_ends_at_the_fibers_function() {
    let test = "the_backtrace_of_a_panic_ends_at_the_fibers_function";
    let Some(output) = testkit::in_a_child_with(test, &[("RUST_BACKTRACE", "1")], || {
        Runtime::builder().workers(1).build().unwrap().run(|| {
            assert!(osier::spawn(panics_here).join().is_err());
        });
    }) else {
        return;
    };
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    if !text.contains("panics_here") {
        println!("skipped: no names of functions in backtraces here");
        return;
    }
    for below in ["Coroutine", "run_fibers", "enter_worker"] {
        assert!(!text.contains(below), "{below} in {text}");
    }
}

/// A panic in the panic hook would abort the process.
#[test]
fn a_panic_whose_line_nobody_takes_ends_its_fiber_alone() {
    const CHILD: &str = "OSIER_TEST_FULL_STDERR";
    if std::env::var_os(CHILD).is_some() {
        return Runtime::builder().workers(1).build().unwrap().run(|| {
            assert!(osier::spawn(panics_here).join().is_err());
            assert!(osier::spawn_future(async { panics_here() }).join().is_err());
            // The panic has the lock of the stream.
            assert!(osier::spawn(|| eprintln!("a value: {Unshowable}")).join().is_err());
            osier::fiber::say(format_args!("a line outside of a panic"));
        });
    }
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else {
        println!("skipped: no device here that is always full");
        return;
    };
    let mut child = testkit::this_test();
    child.args([
        "--exact",
        "a_panic_whose_line_nobody_takes_ends_its_fiber_alone",
        "--nocapture",
    ]);
    let output = child.env(CHILD, "1").stderr(full).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}: {text}",
        output.status
    );
}

struct Unshowable;

impl std::fmt::Display for Unshowable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("on purpose")
    }
}

#[inline(never)]
fn panics_here() {
    panic!("on purpose");
}
