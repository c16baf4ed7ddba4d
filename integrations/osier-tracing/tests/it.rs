//! Interleaved fibers of one worker over tracing-subscriber's registry and formatter: each event has the spans of its own fiber.
//! The global default belongs to the process, so all tests share one subscriber and one log.

use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tracing::{Span, info, info_span};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The text that the formatter has written.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// The lines with this text. Tests run at the same time, so each has texts of its own.
    fn lines(&self, text: &str) -> Vec<String> {
        let bytes = self.0.lock().unwrap().clone();
        let all = String::from_utf8(bytes).unwrap();
        all.lines()
            .filter(|line| line.contains(text))
            .map(String::from)
            .collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sets the global default at the first call.
fn log() -> &'static Log {
    static LOG: LazyLock<Log> = LazyLock::new(|| {
        let log = Log::default();
        let writer = log.clone();
        let format = tracing_subscriber::fmt::layer()
            .without_time()
            .with_writer(move || writer.clone());
        osier_tracing::Fibers::new(tracing_subscriber::registry().with(format)).init();
        log
    });
    &LOG
}

/// Runs `body` on a fiber of a runtime with one worker, so that all fibers share a thread. The clock is virtual.
fn run(body: impl FnOnce() + Send) {
    let runtime = osier::Runtime::builder()
        .workers(1)
        .clock(osier::time::VirtualClock::new());
    runtime.build().unwrap().run(body);
}

fn wait() {
    osier::sleep(Duration::from_millis(1));
}

#[test]
fn spans_entered_across_a_sleep_stay_with_their_fiber() {
    let log = log();
    run(|| {
        osier::scope(|scope| {
            for fiber in ["one", "two"] {
                scope.spawn(move || {
                    let _outer = info_span!("outer", fiber).entered();
                    wait();
                    info!("interleaved outside");
                    {
                        let _inner = info_span!("inner").entered();
                        wait();
                        info!("interleaved inside");
                        wait();
                    }
                    info!("interleaved outside");
                });
            }
            wait();
            info!("interleaved nowhere");
        });
        info!("interleaved nowhere");
    });
    let lines = log.lines("interleaved");
    assert_eq!(lines.len(), 8, "{lines:?}");
    for fiber in ["one", "two"] {
        let outer = format!("outer{{fiber=\"{fiber}\"}}:");
        let of_fiber: Vec<_> = lines.iter().filter(|line| line.contains(&outer)).collect();
        assert_eq!(of_fiber.len(), 3, "{lines:?}");
        let inside = format!("{outer}inner: ");
        assert_eq!(
            of_fiber.iter().filter(|line| line.contains(&inside)).count(),
            1,
            "{lines:?}"
        );
        assert!(
            of_fiber.iter().all(|line| line.matches("outer").count() == 1),
            "{lines:?}"
        );
    }
    let nowhere = lines.iter().filter(|line| line.contains("nowhere"));
    assert!(nowhere.clone().all(|line| !line.contains("outer")), "{lines:?}");
    assert_eq!(nowhere.count(), 2, "{lines:?}");
}

#[test]
fn without_the_wrapper_a_span_leaks_into_other_fibers() {
    // The reason for this crate: should this fail one day, the wrapper may go.
    let log = Log::default();
    let writer = log.clone();
    let plain = tracing_subscriber::fmt()
        .without_time()
        .with_writer(move || writer.clone())
        .finish();
    let _global = self::log();
    let dispatch = tracing::Dispatch::new(plain);
    run(|| {
        osier::scope(|scope| {
            let theirs = dispatch.clone();
            scope.spawn(move || {
                let span = tracing::dispatcher::with_default(&theirs, || info_span!("leaks"));
                let _entered = span.entered();
                wait();
            });
            osier::yield_now();
            tracing::dispatcher::with_default(&dispatch, || info!("in the span of another"));
        });
    });
    let lines = log.lines("in the span of another");
    assert!(lines[0].contains("leaks: "), "{lines:?}");
}

#[test]
fn new_spans_have_the_current_span_of_their_fiber_as_parent() {
    let log = log();
    run(|| {
        osier::scope(|scope| {
            scope.spawn(|| {
                let _span = info_span!("stranger").entered();
                wait();
                wait();
            });
            scope.spawn(|| {
                let parent = info_span!("parent").entered();
                wait();
                assert_eq!(Span::current().id(), parent.id());
                let child = info_span!("child");
                // Its parent stays when it is entered elsewhere.
                scope.spawn(move || child.in_scope(|| info!("of the child")));
                wait();
            });
        });
        assert!(Span::current().is_none());
    });
    let lines = log.lines("of the child");
    assert!(lines.len() == 1 && lines[0].contains("parent:child: "), "{lines:?}");
    assert!(!lines[0].contains("stranger"), "{lines:?}");
}

#[test]
fn spans_may_end_in_any_order_and_with_a_cancelled_or_panicking_fiber() {
    let log = log();
    run(|| {
        let forever = osier::spawn_local(|| {
            let _span = info_span!("cancelled").entered();
            osier::sleep(Duration::from_secs(3600));
        });
        let panics = osier::spawn_local(|| {
            let _span = info_span!("panicking").entered();
            wait();
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        let crosses = osier::spawn_local(|| {
            let first = info_span!("first").entered();
            let second = info_span!("second").entered();
            wait();
            drop(first);
            wait();
            info!("crossed");
            drop(second);
            wait();
            info!("crossed");
        });
        wait();
        forever.cancel();
        assert!(forever.join().is_err() && panics.join().is_err());
        crosses.join().unwrap();
        info!("crossed");
    });
    let lines = log.lines("crossed");
    assert_eq!(lines.len(), 3, "{lines:?}");
    // The parent of a span is named although it was exited.
    assert!(lines[0].contains("first:second: "), "{lines:?}");
    assert!(lines[1..].iter().all(|line| !line.contains("second")), "{lines:?}");
    assert!(
        lines
            .iter()
            .all(|line| !line.contains("cancelled") && !line.contains("panicking")),
        "{lines:?}"
    );
}

#[test]
fn tasks_and_threads_have_their_own_spans_too() {
    let log = log();
    run(|| {
        let fiber = osier::spawn_local(|| {
            let _span = info_span!("of a fiber").entered();
            wait();
            info!("by a fiber");
        });
        osier::yield_now();
        let task = osier::spawn_future(async {
            info!("by a task");
            let span = info_span!("of a task");
            span.in_scope(|| info!("by a task inside"));
        });
        task.join().unwrap();
        std::thread::scope(|scope| scope.spawn(|| info!("by a thread")).join().unwrap());
        fiber.join().unwrap();
    });
    let one = |text: &str| {
        let lines = log.lines(text);
        lines.first().cloned().unwrap_or_else(|| panic!("no {text}"))
    };
    assert!(one("by a fiber").contains("of a fiber: "));
    assert!(one("by a task inside").contains("of a task: ") && !one("by a task inside").contains("of a fiber"));
    assert!(!one("by a task").contains("of a fiber") && !one("by a thread").contains("of a fiber"));
}

#[test]
fn records_of_the_crate_log_are_in_the_span_of_their_fiber() {
    let log = log();
    run(|| {
        osier::scope(|scope| {
            for fiber in ["left", "right"] {
                scope.spawn(move || {
                    let _span = info_span!("bridged", fiber).entered();
                    wait();
                    log::info!("a record of the {fiber}");
                    wait();
                });
            }
        });
        log::warn!("a record of nobody");
    });
    for fiber in ["left", "right"] {
        let lines = log.lines(&format!("a record of the {fiber}"));
        let span = format!("bridged{{fiber=\"{fiber}\"}}:");
        assert!(lines.len() == 1 && lines[0].contains(&span), "{lines:?}");
        assert!(
            lines[0].matches("bridged").count() == 1 && lines[0].contains("INFO"),
            "{lines:?}"
        );
        assert!(lines[0].contains(" it: "), "the module of the record: {lines:?}");
    }
    let lines = log.lines("a record of nobody");
    assert!(lines.len() == 1 && !lines[0].contains("bridged"), "{lines:?}");
}

#[test]
fn the_subscriber_inside_is_found() {
    let _log = log();
    tracing::dispatcher::get_default(|dispatch| {
        assert!(dispatch.downcast_ref::<tracing_subscriber::Registry>().is_some());
    });
}
