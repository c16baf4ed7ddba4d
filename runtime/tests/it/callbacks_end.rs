//! The end of an I/O queue: by drop or shutdown, racing with everything else. Each request calls back once.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::iterate::{LONG, until};
use osier::callbacks::{CancelHandle, FdMonitor, File, Handle, IoQueue, Status, Timer};
use osier::io::Interest;
use osier::sync::Mailbox;

const HOUR: Duration = Duration::from_secs(3600);
const MS: Duration = Duration::from_millis(1);

#[test]
fn a_call_on_a_file_whose_thread_does_not_start_gives_back_the_buffer_with_the_error() {
    // A limit of the address space counts for the whole process, so a child has it.
    let test = "callbacks_end::a_call_on_a_file_whose_thread_does_not_start_gives_back_the_buffer_with_the_error";
    let child = testkit::in_a_child(test, || {
        let queue = IoQueue::new(0).unwrap();
        let file = File::new(&queue, std::fs::File::open("/proc/self/comm").unwrap()).unwrap();
        let (sender, reads) = mpsc::channel();
        let begun = testkit::without_room_for_a_thread(|| {
            file.read(vec![7; 64], move |status, read, buffer| {
                sender.send((status, read, buffer)).unwrap();
            })
        });
        begun.unwrap();
        queue.iterate().unwrap();
        let (status, read, buffer) = reads.try_recv().unwrap();
        let error = read.unwrap_err().to_string();
        assert!(error.contains("cannot start a thread"), "{error}");
        assert_eq!((status, buffer), (Status::Done, vec![7; 64]));
    });
    if let Some(child) = child {
        assert!(child.status.success(), "{child:?}");
    }
}

#[test]
fn a_drop_completes_what_is_outstanding_on_the_thread_that_drops() {
    for threads in [0, 2] {
        let queue = IoQueue::new(threads).unwrap();
        let (report, reports) = mpsc::channel();
        let reporting = |what: &'static str| {
            let report = report.clone();
            move |status: Status| report.send((what, status, thread::current().id())).unwrap()
        };
        let (timer, monitor, mailbox, future) = (
            reporting("timer"),
            reporting("monitor"),
            reporting("mailbox"),
            reporting("future"),
        );
        let (reader, _writer) = std::io::pipe().unwrap();
        let flags = Arc::new(Mailbox::new());
        Timer::new(&queue).wait(HOUR, move |_, status| timer(status)).unwrap();
        FdMonitor::new(&queue, reader)
            .wait(Interest::READABLE, move |_, status, ready| {
                assert!(ready.unwrap().is_empty());
                monitor(status);
            })
            .unwrap();
        queue.wait_all(&flags, 0b11, move |status, _| mailbox(status)).unwrap();
        queue
            .when(std::future::pending::<()>(), move |status, _| future(status))
            .unwrap();
        assert_eq!(queue.pending(), 4);
        let handle = Handle::clone(&queue);
        drop(queue);
        let here = thread::current().id();
        let mut all: Vec<_> = reports.try_iter().collect();
        all.sort_by_key(|seen| seen.0);
        let expected = ["future", "mailbox", "monitor", "timer"].map(|what| (what, Status::Shutdown, here));
        assert_eq!(all, expected);

        assert!(!handle.is_open());
        assert!(handle.submit(|_| unreachable!("refused")).is_err());
        let refused = Timer::new(&handle)
            .wait(MS, |_, _| unreachable!("refused"))
            .unwrap_err();
        assert!(!refused.is_busy());
        assert_eq!(std::io::Error::from(refused).kind(), ErrorKind::BrokenPipe);
        handle.notify();
        flags.raise(0b11);
    }
}

#[test]
fn what_has_happened_but_not_run_is_told_once_too() {
    let queue = IoQueue::new(0).unwrap();
    let (report, reports) = mpsc::channel();
    for _ in 0..3 {
        let report = report.clone();
        let expired = move |_, status| report.send(status).unwrap();
        Timer::new(&queue).wait(Duration::ZERO, expired).unwrap();
    }
    drop((queue, report));
    assert_eq!(reports.iter().collect::<Vec<_>>(), [Status::Shutdown; 3]);
}

#[test]
fn a_callback_of_the_end_is_refused_what_it_asks_for() {
    let queue = IoQueue::new(1).unwrap();
    let (report, reports) = mpsc::channel();
    let again = move |timer: Timer, status| {
        let refused = timer.wait(MS, |_, _| unreachable!("refused")).is_err();
        report.send((status, refused)).unwrap();
    };
    Timer::new(&queue).wait(HOUR, again).unwrap();
    drop(queue);
    assert_eq!(reports.iter().collect::<Vec<_>>(), [(Status::Shutdown, true)]);
}

#[test]
fn a_callback_may_drop_the_last_owner_of_its_queue() {
    let queue = Arc::new(IoQueue::new(1).unwrap());
    let (report, reports) = mpsc::channel();
    let other = report.clone();
    Timer::new(&queue)
        .wait(HOUR, move |_, status| other.send(status).unwrap())
        .unwrap();
    let (go, wait) = mpsc::channel::<()>();
    let owner = Arc::clone(&queue);
    queue
        .submit(move |status| {
            wait.recv().unwrap();
            drop(owner);
            report.send(status).unwrap();
        })
        .unwrap();
    drop(queue);
    go.send(()).unwrap();
    assert_eq!(reports.iter().collect::<Vec<_>>(), [Status::Shutdown, Status::Done]);
}

#[test]
fn a_leaf_may_drop_the_queue_that_polls_it() {
    let queue = Arc::new(IoQueue::new(0).unwrap());
    let (report, reports) = mpsc::channel();
    let mut owner = Some(Arc::clone(&queue));
    let mut others = Some(queue);
    let handle = Handle::clone(others.as_ref().unwrap());
    let drops = std::future::poll_fn(move |_| {
        drop(owner.take());
        std::task::Poll::<()>::Pending
    });
    // The last owner is the future, which is polled in the call.
    drop(others.take());
    handle
        .when(drops, move |status, _| report.send(status).unwrap())
        .unwrap();
    assert_eq!(reports.iter().collect::<Vec<_>>(), [Status::Shutdown]);
}

#[test]
fn requests_made_while_the_queue_is_dropped_call_back_or_are_refused() {
    for round in 0..24 {
        let queue = IoQueue::new(round % 3).unwrap();
        let (accepted, called) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let threads: Vec<_> = (0..3)
            .map(|n| {
                let (queue, accepted, called) = (Handle::clone(&queue), Arc::clone(&accepted), Arc::clone(&called));
                thread::spawn(move || {
                    loop {
                        let called = Arc::clone(&called);
                        let duration = if n == 0 { Duration::ZERO } else { HOUR };
                        let callback = move |_, _| _ = called.fetch_add(1, SeqCst);
                        match Timer::new(&queue).wait(duration, callback) {
                            Ok(handle) => {
                                accepted.fetch_add(1, SeqCst);
                                if n == 2 {
                                    handle.cancel();
                                }
                            }
                            Err(_) => return,
                        }
                    }
                })
            })
            .collect();
        let start = Instant::now();
        while start.elapsed() < 2 * MS {
            queue.notify();
            queue.iterate().unwrap();
        }
        drop(queue);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(accepted.load(SeqCst), called.load(SeqCst), "round {round}");
    }
}

#[test]
fn a_shutdown_hastens_everything_and_returns_when_all_callbacks_have() {
    for threads in [0, 2] {
        let queue = IoQueue::new(threads).unwrap();
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for n in 0..50 {
            let (begun, ended) = (Arc::clone(&begun), Arc::clone(&ended));
            let slow = move |timer: Timer, status| {
                begun.fetch_add(1, SeqCst);
                assert_eq!(status, Status::Shutdown);
                if n % 10 == 1 {
                    // The work of a slow callback.
                    thread::sleep(5 * MS);
                }
                assert!(timer.wait(MS, |_, _| ()).is_err(), "nothing new begins");
                ended.fetch_add(1, SeqCst);
            };
            Timer::new(&queue).wait(HOUR, slow).unwrap();
        }
        queue.shutdown(LONG).unwrap();
        assert_eq!((begun.load(SeqCst), ended.load(SeqCst), queue.pending()), (50, 50, 0));
        assert!(!queue.is_open());
        queue.shutdown(Duration::ZERO).unwrap();
    }
}

#[test]
fn a_shutdown_tells_what_has_happened_before_as_what_it_is() {
    let queue = IoQueue::new(0).unwrap();
    let (report, reports) = mpsc::channel();
    Timer::new(&queue)
        .wait(Duration::ZERO, move |_, status| report.send(status).unwrap())
        .unwrap();
    queue.shutdown(LONG).unwrap();
    assert_eq!(reports.try_recv(), Ok(Status::Done));
}

#[test]
fn a_shutdown_that_runs_out_of_time_says_so_and_can_be_resumed() {
    let queue = IoQueue::new(1).unwrap();
    let (release, blocked) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    let block = move |_| {
        begun.send(()).unwrap();
        let _ = blocked.recv();
    };
    queue.submit(block).unwrap();
    // Not on this thread, which also runs queued callbacks.
    begins.recv().unwrap();
    let error = queue.shutdown(30 * MS).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("1 callback"), "{error}");
    drop(release);
    queue.shutdown(LONG).unwrap();
}

/// Sets a few timers while other threads cancel and reschedule them. Counts the callbacks.
fn storm(requests: usize, threads: usize) {
    const STRANDS: usize = 8;
    struct Strand {
        left: AtomicUsize,
        called: AtomicUsize,
        statuses: [AtomicUsize; 3],
        handle: Mutex<Option<CancelHandle<Instant>>>,
        running: AtomicUsize,
    }
    fn next(strand: &Arc<Strand>, timer: Timer) {
        let left = strand.left.fetch_sub(1, SeqCst);
        if left == 0 {
            strand.left.store(0, SeqCst);
            return;
        }
        // A few wait for a cancellation, a rescheduling or the end.
        let duration = match left % 16 {
            0 => HOUR,
            1 => MS,
            _ => Duration::ZERO,
        };
        let again = Arc::clone(strand);
        let callback = move |timer, status: Status| {
            assert_eq!(
                again.running.fetch_add(1, SeqCst),
                0,
                "two callbacks of one timer at once"
            );
            again.called.fetch_add(1, SeqCst);
            again.statuses[status as usize].fetch_add(1, SeqCst);
            again.running.fetch_sub(1, SeqCst);
            next(&again, timer);
        };
        // Locked before: the callback may already run, and store the handle of the one after.
        let mut handle = strand.handle.lock().unwrap();
        *handle = Some(timer.wait(duration, callback).unwrap());
    }

    let queue = IoQueue::new(threads).unwrap();
    let strands: Vec<_> = (0..STRANDS)
        .map(|_| {
            Arc::new(Strand {
                left: AtomicUsize::new(requests / STRANDS),
                called: AtomicUsize::new(0),
                statuses: Default::default(),
                handle: Mutex::new(None),
                running: AtomicUsize::new(0),
            })
        })
        .collect();
    let stop = AtomicBool::new(false);
    let (reports, asked) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    thread::scope(|scope| {
        for n in 0..2 {
            let (stop, strands, reports, asked) = (&stop, &strands, &reports, &asked);
            scope.spawn(move || {
                for turn in 0.. {
                    if stop.load(SeqCst) {
                        return;
                    }
                    let strand: &Arc<Strand> = &strands[turn % STRANDS];
                    let handle = strand.handle.lock().unwrap().clone();
                    let done = handle.is_some_and(|handle| match (n + turn) % 3 {
                        0 => handle.reschedule(Duration::ZERO),
                        _ => handle.cancel(),
                    });
                    reports.fetch_add(usize::from(done), SeqCst);
                    asked.fetch_add(1, SeqCst);
                    if turn % 64 == 0 {
                        thread::yield_now();
                    }
                }
            });
        }
        strands.iter().for_each(|strand| next(strand, Timer::new(&queue)));
        let called = || strands.iter().map(|strand| strand.called.load(SeqCst)).sum::<usize>();
        let mut seen = (0, Instant::now());
        while called() < requests {
            queue.iterate().unwrap();
            match called() {
                now if now > seen.0 => seen = (now, Instant::now()),
                now => assert!(seen.1.elapsed() < LONG, "stuck at {now} of {requests}"),
            }
        }
        stop.store(true, SeqCst);
    });
    queue.shutdown(LONG).unwrap();
    assert_eq!(queue.pending(), 0);
    let sum = |n: usize| {
        strands
            .iter()
            .map(|strand| strand.statuses[n].load(SeqCst))
            .sum::<usize>()
    };
    let called: usize = strands.iter().map(|strand| strand.called.load(SeqCst)).sum();
    let (done, cancelled, shutdown) = (sum(0), sum(1), sum(2));
    println!(
        "{requests} requests, {threads} threads: {called} callbacks: {done} done, {cancelled} cancelled, {shutdown} shut down; \
         {reports:?} of {asked:?} interventions reports; {:?}",
        start.elapsed()
    );
    assert_eq!(called, requests);
    assert_eq!(done + cancelled + shutdown, requests);
    assert!(done > 0 && cancelled > 0);
}

#[test]
fn every_request_of_a_storm_calls_back_once() {
    storm(160_000, 0);
    storm(160_000, 3);
}

#[test]
#[ignore = "takes a minute: cargo test --release -p osier --test it callbacks_end:: -- --ignored"]
fn every_request_of_ten_millions_calls_back_once() {
    storm(2_000_000, 0);
    storm(8_000_000, 2);
}

#[test]
fn the_end_of_a_queue_on_a_fiber_lets_its_neighbours_run() {
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let neighbour_ran = Arc::clone(&ran);
    runtime.run(|| {
        let queue = IoQueue::new(2).unwrap();
        let (report, reports) = mpsc::channel();
        Timer::new(&queue)
            .wait(HOUR, move |_, status| report.send(status).unwrap())
            .unwrap();
        let slow = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&slow);
        queue
            .submit(move |_| {
                begun.store(true, SeqCst);
                // The work of a slow callback.
                thread::sleep(50 * MS);
            })
            .unwrap();
        while !slow.load(SeqCst) {
            osier::yield_now();
        }
        osier::spawn_local(move || _ = neighbour_ran.fetch_add(1, SeqCst));
        drop(queue);
        assert_eq!(
            ran.load(SeqCst),
            1,
            "joining the threads of the pool suspends the fiber"
        );
        assert_eq!(reports.try_recv(), Ok(Status::Shutdown));
    });
}

#[test]
fn a_queue_is_iterated_on_a_fiber_beside_others() {
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    for threads in [0, 1] {
        runtime.run(|| {
            let queue = Arc::new(IoQueue::new(threads).unwrap());
            let (report, reports) = mpsc::channel();
            let asked = Arc::clone(&queue);
            // A neighbour begins what the iteration waits for. An iteration that blocked the thread would never end.
            let neighbour = osier::spawn_local(move || {
                osier::yield_now();
                let start = Instant::now();
                let expired = move |_, status| report.send((status, start.elapsed())).unwrap();
                Timer::new(&asked).wait(30 * MS, expired).unwrap();
            });
            let mut result = None;
            until(&queue, || {
                result = reports.try_recv().ok();
                result.is_some()
            });
            let (status, waited) = result.unwrap();
            assert_eq!(status, Status::Done);
            assert!(waited >= 30 * MS);
            neighbour.join().unwrap();

            let mailbox = Mailbox::new();
            thread::scope(|scope| {
                let waits = testkit::ThreadWatch::current();
                let raised = &mailbox;
                scope.spawn(move || {
                    waits.until_it_waits();
                    raised.raise(1);
                });
                assert_eq!(queue.run_until(mailbox.wait_any_async(1)).unwrap(), 1);
            });
            queue.shutdown(LONG).unwrap();
        });
    }
}

#[test]
fn a_fiber_that_is_cancelled_leaves_its_iteration() {
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        let queue = Arc::new(IoQueue::new(0).unwrap());
        let iterated = Arc::clone(&queue);
        let iterating = osier::spawn_local(move || iterated.iterate().map_err(|error| osier::Cancelled::is(&error)));
        osier::yield_now();
        iterating.cancel();
        match iterating.join() {
            Ok(result) => assert_eq!(result, Err(true)),
            Err(payload) => assert!(osier::Cancelled::is_payload(&*payload)),
        }
        // And the queue goes on.
        let (report, reports) = mpsc::channel();
        Timer::new(&queue)
            .wait(MS, move |_, status| report.send(status).unwrap())
            .unwrap();
        until(&queue, || reports.try_recv() == Ok(Status::Done));
    });
}

#[test]
fn an_iteration_in_a_future_would_block_and_says_so() {
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    let kind = runtime.run(|| {
        let queue = IoQueue::new(0).unwrap();
        let polled = osier::spawn_future(async move { queue.iterate().map_err(|error| error.kind()) });
        osier::block_on(polled)
    });
    assert_eq!(kind.unwrap(), Err(ErrorKind::WouldBlock));
}
