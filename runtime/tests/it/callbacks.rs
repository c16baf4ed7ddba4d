//! Callbacks: the run queue, timers, one callback per request, the thread and the arguments of a callback.

use std::cell::Cell;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::iterate::{LONG, until};
use osier::callbacks::{CancelHandle, Handle, IoQueue, RunQueue, Status, Timer};
use osier::sync::Mailbox;

const HOUR: Duration = Duration::from_secs(3600);
const MS: Duration = Duration::from_millis(1);

/// A timer that sends its status.
fn armed(queue: &Handle, duration: Duration) -> (CancelHandle<Instant>, mpsc::Receiver<Status>) {
    let (report, reports) = mpsc::channel();
    let handle = Timer::new(queue).wait(duration, move |_, status| _ = report.send(status));
    (handle.unwrap(), reports)
}

#[test]
fn callbacks_start_in_the_order_they_were_submitted() {
    for threads in [0, 1] {
        let queue = RunQueue::new(threads).unwrap();
        let (report, reports) = mpsc::channel();
        for n in 0..1000 {
            let report = report.clone();
            queue.submit(move |status| report.send((n, status)).unwrap()).unwrap();
        }
        drop(report);
        if threads == 0 {
            assert_eq!(queue.dispatch(0), 1000);
        }
        let all: Vec<_> = reports.iter().collect();
        assert_eq!(all, (0..1000).map(|n| (n, Status::Done)).collect::<Vec<_>>());
    }
}

#[test]
fn a_dispatch_runs_as_many_as_it_is_told() {
    let queue = RunQueue::new(0).unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    for _ in 0..10 {
        let ran = Arc::clone(&ran);
        queue.submit(move |_| _ = ran.fetch_add(1, SeqCst)).unwrap();
    }
    assert_eq!((queue.dispatch(3), ran.load(SeqCst)), (3, 3));
    assert_eq!((queue.dispatch(0), ran.load(SeqCst)), (7, 10));
    assert_eq!(queue.dispatch(0), 0);
}

#[test]
fn a_callback_may_submit_and_zero_means_until_none_is_left() {
    let queue = Arc::new(RunQueue::new(0).unwrap());
    fn count(queue: &Arc<RunQueue>, left: usize) {
        let again = Arc::clone(queue);
        let call = move |_| {
            if left > 0 {
                count(&again, left - 1);
            }
        };
        queue.submit(call).unwrap();
    }
    count(&queue, 9);
    assert_eq!(queue.dispatch(0), 10);
}

#[test]
fn a_dispatch_helps_the_threads_of_the_pool() {
    let queue = RunQueue::new(1).unwrap();
    let (blocked, release) = (Arc::new(AtomicBool::new(false)), mpsc::channel::<()>());
    let is_blocked = Arc::clone(&blocked);
    let (report, reports) = mpsc::channel();
    queue
        .submit(move |_| {
            is_blocked.store(true, SeqCst);
            let _ = release.1.recv();
        })
        .unwrap();
    while !blocked.load(SeqCst) {
        thread::yield_now();
    }
    queue
        .submit(move |_| report.send(thread::current().id()).unwrap())
        .unwrap();
    assert_eq!(queue.dispatch(0), 1);
    assert_eq!(reports.try_recv(), Ok(thread::current().id()));
    drop(release.0);
}

#[test]
fn what_a_dropped_run_queue_has_left_is_told_so_on_the_thread_that_drops() {
    let queue = RunQueue::new(0).unwrap();
    let (report, reports) = mpsc::channel();
    for n in 0..5 {
        let report = report.clone();
        let call = move |status| report.send((n, status, thread::current().id())).unwrap();
        queue.submit(call).unwrap();
    }
    drop((queue, report));
    let here = thread::current().id();
    let all: Vec<_> = reports.iter().collect();
    assert_eq!(all, (0..5).map(|n| (n, Status::Shutdown, here)).collect::<Vec<_>>());
}

#[test]
fn a_panic_in_a_callback_ends_nothing_else() {
    for threads in [0, 1] {
        let queue = IoQueue::new(threads).unwrap();
        queue.submit(|_| panic!("a callback's own business")).unwrap();
        Timer::new(&queue).wait(MS, |_, _| panic!("and this one's")).unwrap();
        let (_, reports) = armed(&queue, 2 * MS);
        until(&queue, || reports.try_recv() == Ok(Status::Done));
    }
}

#[test]
fn timers_expire_in_the_order_of_their_deadlines_and_never_early() {
    let queue = IoQueue::new(0).unwrap();
    let (report, reports) = mpsc::channel();
    let start = Instant::now();
    for ms in [40, 10, 30, 20, 0] {
        let report = report.clone();
        let callback = move |_, status| report.send((ms, status, start.elapsed())).unwrap();
        Timer::new(&queue).wait(ms * MS, callback).unwrap();
    }
    let mut order = Vec::new();
    until(&queue, || {
        order.extend(reports.try_iter());
        order.len() == 5
    });
    assert_eq!(order.iter().map(|seen| seen.0).collect::<Vec<_>>(), [0, 10, 20, 30, 40]);
    for (ms, status, after) in order {
        assert_eq!(status, Status::Done);
        assert!(after >= ms * MS, "{ms} ms expired after {after:?}");
    }
}

#[test]
fn a_cancellation_hastens_the_one_callback() {
    for threads in [0, 2] {
        let queue = IoQueue::new(threads).unwrap();
        let (handle, reports) = armed(&queue, HOUR);
        assert!(handle.is_pending());
        assert!(handle.cancel());
        assert!(!handle.cancel(), "a second one is not the one that did it");
        until(&queue, || reports.try_recv() == Ok(Status::Cancelled));
        assert!(!handle.is_pending() && !handle.cancel() && !handle.reschedule(HOUR));
        assert!(reports.recv_timeout(20 * MS).is_err(), "one request, one callback");
    }
}

#[test]
fn a_cancellation_from_another_thread_interrupts_a_blocked_iteration() {
    for threads in [0, 1] {
        let queue = IoQueue::new(threads).unwrap();
        let (handle, reports) = armed(&queue, HOUR);
        let waits = testkit::ThreadWatch::current();
        thread::scope(|scope| {
            scope.spawn(|| {
                waits.until_it_waits();
                assert!(handle.cancel());
            });
            while reports.try_recv() != Ok(Status::Cancelled) {
                queue.iterate().unwrap();
            }
        });
    }
}

#[test]
fn a_late_cancellation_cannot_reach_the_next_request_of_the_object() {
    let queue = IoQueue::new(0).unwrap();
    let (report, reports) = mpsc::channel();
    let first = Timer::new(&queue).wait(MS, move |timer, status| report.send((timer, status)).unwrap());
    let first = first.unwrap();
    let mut timer = None;
    until(&queue, || {
        timer = reports.try_recv().ok();
        timer.is_some()
    });
    let (timer, status) = timer.unwrap();
    assert_eq!(status, Status::Done);
    let (report, reports) = mpsc::channel();
    let second = timer.wait(HOUR, move |_, status| report.send(status).unwrap()).unwrap();
    assert!(!first.cancel() && !first.reschedule(Duration::ZERO));
    queue.notify();
    queue.iterate().unwrap();
    assert!(second.is_pending() && reports.try_recv().is_err());
    assert!(second.cancel());
    until(&queue, || reports.try_recv() == Ok(Status::Cancelled));
}

#[test]
fn no_callback_runs_in_the_call_that_makes_the_request() {
    let queue = IoQueue::new(0).unwrap();
    let mailbox = Arc::new(Mailbox::new());
    mailbox.raise(1);
    let ran = Arc::new(AtomicUsize::new(0));
    let count = || {
        let ran = Arc::clone(&ran);
        move || _ = ran.fetch_add(1, SeqCst)
    };
    let (a, b, c, d) = (count(), count(), count(), count());
    Timer::new(&queue).wait(Duration::ZERO, move |_, _| a()).unwrap();
    queue.wait_any(&mailbox, 1, move |_, _| b()).unwrap();
    queue
        .when(std::future::ready(7), move |_, seven| {
            assert_eq!(seven, Some(7));
            c()
        })
        .unwrap();
    queue.submit(move |_| d()).unwrap();
    assert_eq!(ran.load(SeqCst), 0);
    until(&queue, || ran.load(SeqCst) == 4);
}

#[test]
fn a_timer_is_put_off_and_brought_forward_while_it_waits() {
    let queue = IoQueue::new(1).unwrap();
    let (handle, reports) = armed(&queue, HOUR);
    assert!(handle.reschedule(Duration::MAX), "beyond what a clock can tell");
    assert!(handle.reschedule(5 * MS));
    until(&queue, || reports.try_recv() == Ok(Status::Done));
    assert!(!handle.reschedule(MS), "it has expired");

    let start = Instant::now();
    let (handle, reports) = armed(&queue, 20 * MS);
    assert!(handle.reschedule(80 * MS));
    until(&queue, || reports.try_recv() == Ok(Status::Done));
    assert!(start.elapsed() >= 80 * MS);
}

#[test]
fn a_reschedule_that_races_the_expiry_tells_the_truth() {
    let queue = IoQueue::new(1).unwrap();
    let (mut put_off, mut expired) = (0, 0);
    for round in 0..400 {
        let (handle, reports) = armed(&queue, if round % 2 == 0 { Duration::ZERO } else { MS });
        thread::scope(|scope| {
            let rescheduled = scope.spawn(|| {
                if round % 2 == 1 {
                    // Around the time of the expiry: the race is tested.
                    thread::sleep(Duration::from_micros(round * 10 % 2500));
                }
                handle.reschedule(HOUR)
            });
            queue.notify();
            queue.iterate().unwrap();
            if rescheduled.join().unwrap() {
                put_off += 1;
                assert!(handle.is_pending() && reports.try_recv().is_err());
                assert!(handle.cancel());
                until(&queue, || reports.try_recv() == Ok(Status::Cancelled));
            } else {
                expired += 1;
                assert_eq!(reports.recv_timeout(LONG), Ok(Status::Done));
            }
        });
    }
    println!("{put_off} put off, {expired} expired first");
    assert_eq!(put_off + expired, 400);
}

#[test]
fn a_callback_moves_re_arms_and_drops_its_own_timer() {
    for threads in [0, 1, 3] {
        let queue = IoQueue::new(threads).unwrap();
        let done = Arc::new(Mailbox::new());
        let counted = Arc::new(AtomicUsize::new(0));
        fn count(timer: Timer, counted: Arc<AtomicUsize>, done: Arc<Mailbox>) {
            let next = move |timer, status| {
                assert_eq!(status, Status::Done);
                match counted.fetch_add(1, SeqCst) + 1 {
                    10 => {
                        drop(timer);
                        done.raise(1);
                    }
                    _ => count(timer, counted, done),
                }
            };
            timer.wait(MS, next).unwrap();
        }
        count(Timer::new(&queue), Arc::clone(&counted), Arc::clone(&done));
        // Without a notify: the iteration that a callback interrupts makes the callback's effect visible.
        while done.take(Mailbox::ALL) == 0 {
            queue.iterate().unwrap();
        }
        assert_eq!(counted.load(SeqCst), 10);
    }
}

#[test]
fn a_strand_needs_no_lock_on_any_number_of_threads() {
    struct Strand {
        timer: Timer,
        /// Not `Sync`: only one callback of the chain has it at a time.
        steps: Cell<u32>,
        threads: Vec<thread::ThreadId>,
        done: mpsc::Sender<(u32, usize)>,
    }
    fn step(mut strand: Strand) {
        strand.steps.set(strand.steps.get() + 1);
        strand.threads.push(thread::current().id());
        if strand.steps.get() == 500 {
            strand.threads.dedup();
            return strand.done.send((strand.steps.get(), strand.threads.len())).unwrap();
        }
        let Strand {
            timer,
            steps,
            threads,
            done,
        } = strand;
        let next = move |timer, _| {
            step(Strand {
                timer,
                steps,
                threads,
                done,
            })
        };
        timer.wait(Duration::ZERO, next).unwrap();
    }
    let queue = IoQueue::new(4).unwrap();
    let (done, reports) = mpsc::channel();
    for _ in 0..4 {
        step(Strand {
            timer: Timer::new(&queue),
            steps: Cell::new(0),
            threads: Vec::new(),
            done: done.clone(),
        });
    }
    let mut strands = Vec::new();
    until(&queue, || {
        strands.extend(reports.try_iter());
        strands.len() == 4
    });
    println!("steps and changes of thread: {strands:?}");
    assert!(strands.iter().all(|&(steps, _)| steps == 500));
}

#[test]
fn a_strand_that_never_rests_lets_descriptors_and_timers_in() {
    let queue = IoQueue::new(0).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    fn spin(timer: Timer, stop: Arc<AtomicBool>) {
        let next = move |timer, status| match status {
            Status::Done if !stop.load(SeqCst) => spin(timer, stop),
            _ => {}
        };
        let _ = timer.wait(Duration::ZERO, next);
    }
    spin(Timer::new(&queue), Arc::clone(&stop));
    let (_, reports) = armed(&queue, 5 * MS);
    until(&queue, || reports.try_recv() == Ok(Status::Done));
    stop.store(true, SeqCst);
}

#[test]
fn the_next_deadline_is_that_of_the_earliest_timer() {
    let queue = IoQueue::new(0).unwrap();
    assert_eq!(queue.next_deadline(), None);
    let (far, _heard) = armed(&queue, HOUR);
    let next = queue.next_deadline().unwrap();
    assert!(next <= HOUR);
    let (near, reports) = armed(&queue, 20 * MS);
    assert!(queue.next_deadline().unwrap() <= 21 * MS);
    testkit::eventually("a timer that is due", || queue.next_deadline() == Some(Duration::ZERO));
    queue.iterate().unwrap();
    assert_eq!(reports.try_recv(), Ok(Status::Done));
    assert!(!near.cancel());
    far.cancel();
    assert_eq!(queue.next_deadline(), Some(Duration::ZERO), "a callback is queued");
}

#[test]
fn a_notification_is_due_at_once() {
    let queue = IoQueue::new(0).unwrap();
    queue.notify();
    assert_eq!(queue.next_deadline(), Some(Duration::ZERO));
    queue.iterate().unwrap();
    assert_eq!(queue.next_deadline(), None);
    // A callback that another thread runs notifies.
    queue.submit(drop).unwrap();
    assert_eq!(queue.run_queue().dispatch(1), 1);
    assert_eq!(queue.next_deadline(), Some(Duration::ZERO));
}

#[test]
fn a_notification_before_the_iteration_is_not_lost_and_several_are_one() {
    let queue = IoQueue::new(0).unwrap();
    queue.notify();
    queue.notify();
    queue.iterate().unwrap();
    let (_, reports) = armed(&queue, 30 * MS);
    let start = Instant::now();
    while reports.try_recv().is_err() {
        queue.iterate().unwrap();
    }
    assert!(start.elapsed() >= 25 * MS);

    let waits = testkit::ThreadWatch::current();
    thread::scope(|scope| {
        scope.spawn(|| {
            waits.until_it_waits();
            queue.notify();
        });
        queue.iterate().unwrap();
    });
}

#[test]
fn a_queue_is_iterated_by_one_at_a_time() {
    let queue = IoQueue::new(0).unwrap();
    let refused = AtomicBool::new(false);
    let iterate = || {
        let start = Instant::now();
        while !refused.load(SeqCst) {
            assert!(start.elapsed() < LONG);
            if let Err(error) = queue.iterate() {
                assert_eq!(error.kind(), ErrorKind::ResourceBusy);
                refused.store(true, SeqCst);
            }
        }
    };
    thread::scope(|scope| {
        let (one, other) = (scope.spawn(iterate), scope.spawn(iterate));
        while !one.is_finished() || !other.is_finished() {
            queue.notify();
            thread::yield_now();
        }
    });
    assert!(refused.load(SeqCst));
}

#[test]
fn a_future_that_panics_counts_as_cancelled() {
    let queue = IoQueue::new(0).unwrap();
    let (report, reports) = mpsc::channel();
    let future = async { panic!("a future's own business") };
    queue
        .when(future, move |status, output: Option<()>| {
            report.send((status, output)).unwrap()
        })
        .unwrap();
    until(&queue, || reports.try_recv() == Ok((Status::Cancelled, None)));
}

#[test]
fn a_cancelled_receive_leaves_its_message_or_tells_it() {
    let queue = IoQueue::new(1).unwrap();
    let (mut done, mut left) = (0, 0);
    for n in 0..500_u32 {
        let (sender, receiver) = osier::sync::oneshot::channel::<u32>();
        let receiver = Arc::new(Mutex::new(Some(receiver)));
        let (report, reports) = mpsc::channel();
        let moved = receiver.lock().unwrap().take().unwrap();
        let handle = queue.when(moved.recv_async(), move |status, value| {
            report.send((status, value)).unwrap()
        });
        let handle = handle.unwrap();
        thread::scope(|scope| {
            scope.spawn(|| handle.cancel());
            scope.spawn(move || _ = sender.send(n));
        });
        match reports.recv_timeout(LONG).unwrap() {
            (Status::Done, Some(Ok(value))) => {
                assert_eq!(value, n);
                done += 1;
            }
            (Status::Cancelled, None) => left += 1,
            other => panic!("{other:?}"),
        }
    }
    println!("{done} done, {left} cancelled");
    assert_eq!(done + left, 500);
}
