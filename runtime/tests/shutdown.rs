//! The end of a runtime: nothing is left, and fibers that do not end are reported and abandoned.

#[path = "it/given.rs"]
#[allow(dead_code)] // a part of it
mod given;

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use osier::net::{TcpListener, TcpStream, UdpSocket};
use osier::{Runtime, fiber};

const LONG: Duration = Duration::from_secs(3600);

/// These tests count what the whole process holds, so they take turns.
static ALONE: Mutex<()> = Mutex::new(());

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn threads_called(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}

#[test]
fn no_descriptor_and_no_thread_is_left() {
    let _alone = ALONE.lock();
    let round = || {
        let runtime = Runtime::builder().workers(3).name("counted").build().unwrap();
        assert_eq!(threads_called("counted-"), 3);
        runtime.run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            drop(osier::spawn(move || {
                loop {
                    let (mut stream, _) = listener.accept().unwrap();
                    drop(osier::spawn(move || stream.read(&mut [0; 16])));
                }
            }));
            let clients: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
            drop(osier::spawn(move || {
                osier::block_on(std::future::pending::<()>());
                drop(clients);
            }));
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            drop(osier::spawn(move || socket.recv(&mut [0; 16])));
            given::others_wait();
        });
    };
    round();
    let before = entries("/proc/self/fd");
    for _ in 0..5 {
        round();
    }
    assert_eq!(entries("/proc/self/fd"), before);
    assert_eq!(threads_called("counted-"), 0);
}

/// The last of several owners may be a fiber. It must not wait for its own end.
#[test]
fn a_runtime_may_be_dropped_on_a_fiber_of_its_own() {
    let _alone = ALONE.lock();
    let builder = Runtime::builder().workers(2).name("own").shutdown_timeout(LONG);
    let runtime = Arc::new(builder.build().unwrap());
    let gate = Arc::new(osier::sync::Event::new());
    let (theirs, opened) = (Arc::clone(&runtime), Arc::clone(&gate));
    let (sender, dropped) = std::sync::mpsc::channel();
    let fiber = runtime.spawn(move || {
        opened.wait();
        drop(theirs);
        sender.send(()).unwrap();
        osier::sleep(LONG);
    });
    drop(runtime);
    gate.set();
    dropped
        .recv_timeout(Duration::from_secs(30))
        .expect("the drop does not wait for the fiber");
    let payload = fiber.join().unwrap_err();
    assert!(osier::Cancelled::is_payload(&*payload));
    testkit::eventually("the workers have ended", || threads_called("own-") == 0);
}

/// A fiber whose destructor spawns one like it.
struct SpawnsItsLike {
    count: Arc<AtomicUsize>,
    builder: fn() -> fiber::Builder,
}

impl Drop for SpawnsItsLike {
    fn drop(&mut self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        let (count, builder) = (Arc::clone(&self.count), self.builder);
        let like = SpawnsItsLike { count, builder };
        drop(builder().spawn(move || drop(like)));
    }
}

fn on_this_worker() -> fiber::Builder {
    fiber::Builder::new().worker(fiber::worker().unwrap())
}

fn on_the_next_worker() -> fiber::Builder {
    fiber::Builder::new().worker((fiber::worker().unwrap() + 1) % osier::workers())
}

/// A task that never ends, and whose destructor spawns one like it.
struct SpawnsAFuture;

impl Future for SpawnsAFuture {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for SpawnsAFuture {
    fn drop(&mut self) {
        drop(osier::spawn_future(SpawnsAFuture));
    }
}

#[test]
fn destructors_that_spawn_for_ever_end_with_the_shutdown_timeout() {
    let _alone = ALONE.lock();
    let test = "destructors_that_spawn_for_ever_end_with_the_shutdown_timeout";
    let child = testkit::in_a_child(test, || {
        let builders = [fiber::Builder::new, on_this_worker, on_the_next_worker];
        for (workers, builder) in builders.into_iter().flat_map(|builder| [(1, builder), (2, builder)]) {
            let timeout = Duration::from_millis(50);
            let runtime = Runtime::builder().workers(workers).name("spawns");
            let runtime = runtime.shutdown_timeout(timeout).build().unwrap();
            let count = Arc::new(AtomicUsize::new(0));
            let first = SpawnsItsLike {
                count: Arc::clone(&count),
                builder,
            };
            drop(runtime.spawn(move || {
                given::forever();
                drop(first);
            }));
            given::fibers_wait(&runtime);
            drop(runtime);
            assert_eq!(threads_called("spawns-"), 0);
            assert!(count.load(Ordering::SeqCst) > 1);
        }
        let runtime = Runtime::builder()
            .workers(1)
            .name("spawns")
            .shutdown_timeout(Duration::from_millis(50));
        let runtime = runtime.build().unwrap();
        drop(runtime.spawn_future(SpawnsAFuture));
        drop(runtime);
        assert_eq!(threads_called("spawns-"), 0);
    });
    let Some(child) = child else { return };
    let text = String::from_utf8(child.stderr).unwrap();
    assert!(child.status.success(), "{text}");
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("osier:")).collect();
    assert!(lines.len() >= 7, "{text}");
    let said = "osier: destructors still spawn fibers or tasks";
    assert!(lines.iter().all(|line| line.starts_with(said)), "{text}");
    assert!(lines[0].contains("(at runtime/tests/shutdown.rs:"), "{text}");
}

#[test]
fn a_runtime_may_wait_for_ever_for_its_fibers() {
    let _alone = ALONE.lock();
    let builder = Runtime::builder().workers(2).shutdown_timeout(Duration::MAX);
    let runtime = builder.build().unwrap();
    drop(runtime.spawn(given::forever));
    given::fibers_wait(&runtime);
}

/// An idle worker ends at once. A fiber that others still send there is cancelled: a scope waits for its children in any case.
#[test]
fn a_fiber_sent_to_a_worker_that_has_ended_is_cancelled() {
    let _alone = ALONE.lock();
    let builder = Runtime::builder().workers(2).name("gone").shutdown_timeout(LONG);
    let runtime = builder.build().unwrap();
    let (sender, outcome) = std::sync::mpsc::channel();
    let (begin, begun) = std::sync::mpsc::channel();
    drop(runtime.spawn(move || {
        let other = 1 - fiber::worker().unwrap();
        begin.send(()).unwrap();
        // It does not wait, so nothing cancels it.
        testkit::eventually("the other worker has ended", || threads_called("gone-") == 1);
        let to_other = || fiber::Builder::new().worker(other);
        let handle = to_other().spawn(|| ());
        osier::scope(|scope| drop(scope.spawn_with(to_other(), || ())));
        sender.send(handle).unwrap();
    }));
    begun.recv().unwrap();
    let dropping = std::thread::spawn(move || drop(runtime));
    let handle = outcome
        .recv_timeout(Duration::from_secs(30))
        .expect("the scope does not wait for the worker that has ended");
    assert!(osier::Cancelled::is_payload(&*handle.join().unwrap_err()));
    dropping.join().unwrap();
}

#[test]
fn a_runtime_that_cannot_be_built_leaves_nothing() {
    let _alone = ALONE.lock();
    let before = (entries("/proc/self/fd"), threads_called("osier-"));
    for workers in [0, 100_000] {
        let error = Runtime::builder().workers(workers).build().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(&format!("{workers} workers")), "{error}");
    }
    let error = Runtime::builder().name("a\0b").build().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains(r#""a\0b""#), "{error}");
    assert_eq!((entries("/proc/self/fd"), threads_called("osier-")), before);
}

#[test]
fn wakers_outlive_their_runtime_harmlessly() {
    let _alone = ALONE.lock();
    use std::future::poll_fn;
    use std::task::{Poll, Waker};
    let kept: Mutex<Vec<Waker>> = Mutex::new(Vec::new());
    for _ in 0..3 {
        Runtime::builder().workers(2).build().unwrap().run(|| {
            let mut polled = false;
            osier::block_on(poll_fn(|cx| {
                kept.lock().unwrap().push(cx.waker().clone());
                if std::mem::replace(&mut polled, true) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            }));
        });
        // Their fiber is gone, their worker is gone or serves the next runtime.
        kept.lock().unwrap().iter().for_each(Waker::wake_by_ref);
    }
    assert_eq!(kept.lock().unwrap().len(), 6);
}

/// Runs this test again in a child process, which calls `body`. Returns its exit status and its stderr.
fn in_a_child(test: &str, body: impl FnOnce()) -> Option<(std::process::ExitStatus, String)> {
    // The tests that count would count the child's pipes.
    let _alone = ALONE.lock();
    let output = testkit::in_a_child(test, body)?;
    Some((output.status, String::from_utf8(output.stderr).unwrap()))
}

#[test]
fn a_fiber_that_swallows_its_cancellation_for_ever_is_reported_and_the_process_ends() {
    let start = Instant::now();
    let name = "a_fiber_that_swallows_its_cancellation_for_ever_is_reported_and_the_process_ends";
    let Some((status, text)) = in_a_child(name, || {
        let runtime = Runtime::builder()
            .workers(2)
            .shutdown_timeout(Duration::from_millis(300))
            .build()
            .unwrap();
        runtime.run(|| {
            let (begin, begun) = std::sync::mpsc::channel();
            let stubborn = move || {
                let _ = begin.send(());
                loop {
                    // A fiber that swallows its cancellation again and again.
                    let _ = catch_unwind(AssertUnwindSafe(|| osier::sleep(Duration::from_secs(3600))));
                }
            };
            drop(fiber::Builder::new().name("stubborn").spawn(stubborn));
            given::until(|| begun.try_recv().is_ok());
        });
    }) else {
        return;
    };
    assert!(status.success(), "{status}: {text}");
    assert!(
        text.contains("did not end within 300ms of the shutdown; its stack is leaked"),
        "{text}"
    );
    assert!(text.contains("tests/shutdown.rs"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_fiber_that_never_comes_back_is_reported_and_the_process_ends() {
    let Some((status, text)) = in_a_child("a_fiber_that_never_comes_back_is_reported_and_the_process_ends", || {
        let runtime = Runtime::builder()
            .workers(2)
            .shutdown_timeout(Duration::from_millis(100))
            .build()
            .unwrap();
        runtime.run(|| {
            // Not the worker that this runs on.
            let other = 1 - fiber::worker().unwrap();
            let (begin, begun) = std::sync::mpsc::channel();
            drop(fiber::Builder::new().name("spins").worker(other).spawn(move || {
                let _ = begin.send(());
                loop {
                    std::hint::spin_loop();
                }
            }));
            given::until(|| begun.try_recv().is_ok());
        });
    }) else {
        return;
    };
    assert!(status.success(), "{status}: {text}");
    for part in [
        "worker 'osier-",
        "1.1s after the shutdown began",
        "'spins' spawned at runtime/tests/shutdown.rs",
        "is left behind",
        "osier::unblock()",
        "osier::fiber::give_way()",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

/// The only worker has taken them from the queue of the runtime, and does not come back to start them.
#[test]
fn jobs_and_tasks_that_an_only_worker_has_taken_are_cancelled_when_it_is_left_behind() {
    let name = "jobs_and_tasks_that_an_only_worker_has_taken_are_cancelled_when_it_is_left_behind";
    let Some((status, text)) = in_a_child(name, || {
        let builder = Runtime::builder().workers(1).shutdown_timeout(Duration::ZERO);
        let runtime = builder.build().unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (queued, all_are_queued) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = std::sync::mpsc::channel();
        // It holds the worker until the others are queued, and ends.
        drop(runtime.spawn(move || all_are_queued.recv()));
        drop(runtime.spawn(move || {
            begin.send(()).unwrap();
            let _ = released.recv();
        }));
        // A worker takes half of what is queued.
        let jobs: Vec<_> = (0..9).map(|_| runtime.spawn(|| ())).collect();
        let tasks: Vec<_> = (0..9).map(|_| runtime.spawn_future(async {})).collect();
        drop(queued);
        begun.recv().unwrap();
        drop(runtime);
        let (sender, outcomes) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            jobs.into_iter().for_each(|job| sender.send(job.join()).unwrap());
            tasks.into_iter().for_each(|task| sender.send(task.join()).unwrap());
        });
        for number in 0..18 {
            let outcome = outcomes.recv_timeout(Duration::from_secs(30));
            let outcome = outcome.unwrap_or_else(|_| panic!("number {number} is never cancelled"));
            assert!(osier::Cancelled::is_payload(&*outcome.unwrap_err()));
        }
        drop(release);
    }) else {
        return;
    };
    assert!(status.success(), "{status}: {text}");
    assert!(text.contains("is left behind"), "{text}");
}

#[test]
fn an_overflow_names_the_fiber() {
    #[allow(unconditional_recursion)]
    fn endless(depth: u64) -> u64 {
        std::hint::black_box([depth; 64]);
        endless(depth + 1) + 1
    }
    let Some((status, text)) = in_a_child("an_overflow_names_the_fiber", || {
        osier::run(|| {
            fiber::Builder::new()
                .name("deep one")
                .spawn(|| endless(0))
                .join()
                .unwrap()
        });
    }) else {
        return;
    };
    assert!(!status.success());
    assert!(
        text.contains("deep one") && text.contains("tests/shutdown.rs"),
        "{text}"
    );
}

#[test]
fn a_shutdown_that_waits_does_not_burn_its_worker() {
    let _alone = ALONE.lock();
    fn spent() -> Duration {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
    }
    let burnt = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&burnt);
    Runtime::builder().workers(2).build().unwrap().run(move || {
        drop(osier::spawn_local(move || {
            osier::shield(|| {
                let before = spent();
                // The time that is measured.
                osier::sleep(Duration::from_millis(300));
                *theirs.lock().unwrap() = Some(spent() - before);
            });
        }));
        osier::yield_now();
    });
    let burnt = burnt.lock().unwrap().unwrap();
    assert!(burnt < Duration::from_millis(100), "{burnt:?} of 300 ms");
}
