//! Leaves in rare states: forgotten, outliving their runtime, with wakers and outputs that panic.

use std::future::Future;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::colours::Count;
use crate::given::{Bomb, on};
use osier::Runtime;
use osier::callbacks::{FdMonitor, IoQueue};
use osier::io::Interest;
use osier::net::UnixStream;
use osier::time::Sleep;

const LIMIT: Duration = Duration::from_secs(30);

fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_forgotten_wait_does_not_stand_for_the_next_descriptor_of_its_number() {
    on(1).run(|| {
        let (reader, writer) = std::io::pipe().unwrap();
        let number = reader.as_raw_fd();
        let mut forgotten = Box::pin(osier::io::readable_async(&reader));
        assert!(poll_once(forgotten.as_mut()).is_pending());
        std::mem::forget(forgotten);
        drop((reader, writer));
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut reader = OwnedFd::from(reader);
        if reader.as_raw_fd() != number {
            reader = rustix::io::fcntl_dupfd_cloexec(&reader, number).unwrap();
        }
        if reader.as_raw_fd() != number {
            println!("skipped: another thread has taken descriptor {number}");
            return;
        }
        osier::spawn(move || {
            crate::given::others_wait();
            writer.write_all(b"x").unwrap();
        });
        osier::io::readable(&reader, Some(Instant::now() + LIMIT / 3)).expect("what was written is seen");
    });
}

#[test]
fn a_forgotten_wait_does_not_take_the_events_of_the_socket_that_has_its_number() {
    on(1).run(|| {
        let (reader, writer) = std::io::pipe().unwrap();
        let number = reader.as_raw_fd();
        let mut forgotten = Box::pin(osier::io::readable_async(&reader));
        assert!(poll_once(forgotten.as_mut()).is_pending());
        std::mem::forget(forgotten);
        drop((reader, writer));
        let (near, far) = UnixStream::pair().unwrap();
        let (mut socket, mut peer) = match number {
            number if near.as_raw_fd() == number => (near, far),
            number if far.as_raw_fd() == number => (far, near),
            _ => return println!("skipped: another thread has taken descriptor {number}"),
        };
        // The socket is registered first. Then another wait for the same descriptor begins and ends.
        let mut byte = [0];
        let second = Arc::new(osier::sync::Event::new());
        let is_waiting = Arc::clone(&second);
        let reading = osier::spawn(move || {
            socket.read_exact(&mut byte).unwrap();
            let soon = Some(Instant::now() + Duration::from_millis(5));
            assert!(osier::io::readable(&socket, soon).is_err());
            socket.set_read_timeout(Some(LIMIT / 3)).unwrap();
            is_waiting.set();
            socket
                .read_exact(&mut byte)
                .expect("the socket still hears of its bytes");
            socket
        });
        crate::given::others_wait();
        peer.write_all(b"x").unwrap();
        // The second byte comes when the fiber is in its last call.
        second.wait();
        crate::given::others_wait();
        peer.write_all(b"y").unwrap();
        let socket = reading.join().unwrap();
        drop(socket);
        peer.set_read_timeout(Some(LIMIT / 3)).unwrap();
        assert_eq!(peer.read(&mut byte).expect("no duplicate of the socket is left"), 0);
    });
}

#[test]
fn a_wait_for_a_descriptor_outlives_the_runtime_where_it_began() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut wait = Box::pin(osier::io::readable_async(&reader));
    let runtime = on(1);
    assert!(runtime.run(|| poll_once(wait.as_mut())).is_pending());
    drop(runtime);
    writer.write_all(b"x").unwrap();
    osier::block_on(wait).unwrap();
}

/// Panics when it wakes.
struct Alarm;

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics");
    }
}

#[test]
fn a_waker_that_panics_takes_no_wake_up_from_others() {
    let runtime = on(1);
    let (sender, receiver) = mpsc::channel();
    let (reader, mut writer) = std::io::pipe().unwrap();
    runtime.spawn(move || {
        let waker = Waker::from(Arc::new(Alarm));
        let mut cx = Context::from_waker(&waker);
        let due = Instant::now() + Duration::from_millis(5);
        let mut alarmed = Sleep::until(due);
        let mut after = Sleep::until(due);
        assert!(Pin::new(&mut alarmed).poll(&mut cx).is_pending());
        osier::block_on(std::future::poll_fn(|cx| Pin::new(&mut after).poll(cx)));
        sender.send("a timer").unwrap();
        let mut alarmed = Box::pin(osier::io::readable_async(&reader));
        assert!(alarmed.as_mut().poll(&mut cx).is_pending());
        osier::spawn(move || writer.write_all(b"x").unwrap());
        osier::io::readable(&reader, None).unwrap();
        sender.send("a descriptor").unwrap();
    });
    assert_eq!(receiver.recv_timeout(LIMIT), Ok("a timer"));
    assert_eq!(receiver.recv_timeout(LIMIT), Ok("a descriptor"));
}

#[test]
fn a_joiner_whose_waker_panics_harms_no_worker() {
    let runtime = on(1);
    let begin = Arc::new(osier::sync::Event::new());
    let begun = Arc::clone(&begin);
    let mut joined = runtime.spawn(move || begun.wait());
    let waker = Waker::from(Arc::new(Alarm));
    assert!(
        Pin::new(&mut joined)
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    begin.set();
    testkit::eventually("the end of the fiber", || joined.is_finished());
    let (sender, receiver) = mpsc::channel();
    drop(runtime.spawn(move || sender.send(7)));
    assert_eq!(receiver.recv_timeout(LIMIT), Ok(7), "the worker goes on");
}

#[test]
fn a_waker_that_panics_when_its_runtime_ends_takes_no_wake_up_from_others() {
    let runtime = on(1);
    let streams: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
    let mut reads: Vec<_> = streams
        .iter()
        .map(|(near, _)| Box::pin(near.readable_async()))
        .collect();
    let counts: Vec<_> = (0..3).map(|_| Arc::new(Count::default())).collect();
    runtime.run(|| {
        for (index, read) in reads.iter_mut().enumerate() {
            let waker = match index {
                1 => Waker::from(Arc::new(Alarm)),
                _ => Waker::from(Arc::clone(&counts[index])),
            };
            assert!(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
    });
    drop(runtime);
    let woken: Vec<_> = counts.iter().map(|count| count.wakes()).collect();
    assert_eq!(woken, [1, 0, 1], "both others hear that their worker has gone");
    for ((_, far), read) in streams.iter().zip(reads) {
        let mut far = far;
        far.write_all(b"x").unwrap();
        osier::block_on(read).unwrap();
    }
}

#[test]
fn an_output_that_nobody_takes_may_panic_when_it_is_dropped() {
    on(1).run(|| {
        drop(osier::spawn_future(async { Bomb }));
        drop(osier::spawn_future(async {
            if true {
                std::panic::panic_any(Bomb);
            }
        }));
        drop(osier::spawn_future_local(async { Bomb }));
        let after = osier::spawn_future(async { 7 });
        assert_eq!(after.join().unwrap(), 7);
    });
}

#[test]
fn callbacks_run_at_once_where_there_are_threads_for_them() {
    let queue = IoQueue::new(1).unwrap();
    let (sender, receiver) = mpsc::channel();
    let (done, is_done) = mpsc::channel();
    std::thread::scope(|scope| {
        let handle: osier::callbacks::Handle = osier::callbacks::Handle::clone(&queue);
        scope.spawn(move || {
            // Until both sleep, the thread of the pool and the one that iterates: only the second can be seen.
            std::thread::sleep(Duration::from_millis(50));
            let closing = handle.clone();
            handle
                .submit(move |_| {
                    done.send(receiver.recv_timeout(LIMIT / 3)).unwrap();
                    closing.notify();
                })
                .unwrap();
            handle.submit(move |_| sender.send(()).unwrap()).unwrap();
        });
        loop {
            queue.iterate().unwrap();
            if let Ok(heard) = is_done.try_recv() {
                assert_eq!(heard, Ok(()), "the second had no thread, although one slept");
                return;
            }
        }
    });
}

/// Sets a hook that makes a dump of each panic.
fn dump_panics() -> mpsc::Receiver<osier::inspect::Dump> {
    let (sender, receiver) = mpsc::channel();
    std::panic::set_hook(Box::new(move |_| sender.send(osier::dump()).unwrap()));
    receiver
}

/// It runs in a child: the hook is the whole process's, and another test would build the first runtime.
#[test]
fn a_panic_hook_may_dump_on_a_fiber() {
    let child = testkit::in_a_child("leaves_end::a_panic_hook_may_dump_on_a_fiber", || {
        let check = |dumps: mpsc::Receiver<osier::inspect::Dump>| {
            on(1).run(move || {
                let sleeper = osier::spawn(crate::given::forever);
                osier::yield_now();
                assert!(osier::spawn_local(|| panic!("of which a dump is made")).join().is_err());
                let dump = dumps.try_recv().unwrap();
                assert!(dump.workers.iter().any(|worker| !worker.fibers.is_empty()), "{dump}");
                sleeper.cancel();
            });
        };
        // The hook of the first runtime calls this one: a dump blocks the thread.
        check(dump_panics());
        // This one replaces that hook: a dump suspends the fiber.
        check(dump_panics());
    });
    if let Some(child) = child {
        assert!(child.status.success(), "{child:?}");
    }
}

#[test]
fn a_future_that_an_io_queue_polls_on_a_fiber_does_not_suspend_it() {
    on(1).run(|| {
        let queue = IoQueue::new(0).unwrap();
        let event = Arc::new(osier::sync::Event::new());
        let other = osier::spawn({
            let event = Arc::clone(&event);
            move || {
                osier::block_on(Sleep::new(Duration::from_millis(10)));
                event.set();
            }
        });
        // It would be suspended as the queue's driver, and so would other code that runs meanwhile.
        let blocks = async { event.wait_timeout(LIMIT / 3) };
        let outcome = catch_unwind(AssertUnwindSafe(|| queue.run_until(blocks)));
        let message = outcome.expect_err("a blocking call inside a future on a worker panics");
        let message = message.downcast::<String>().unwrap();
        assert!(message.starts_with("blocking call inside a future"), "{message}");
        other.join().unwrap();
        assert!(event.is_set());
    });
}

#[test]
fn a_task_that_did_not_end_in_time_keeps_no_later_runtime() {
    let runtime = Runtime::builder()
        .workers(2)
        .shutdown_timeout(Duration::from_millis(50));
    let runtime = runtime.build().unwrap();
    let (release, wait) = mpsc::channel::<()>();
    let (begun, is_begun) = mpsc::channel();
    runtime
        .spawn(move || {
            osier::spawn_future(async move {
                begun.send(()).unwrap();
                // Either worker may have taken it. The other one ends without it.
                let _ = wait.recv_timeout(LIMIT);
            });
            // One worker has it in its registry, the other polls it.
            is_begun.recv().unwrap();
        })
        .join()
        .unwrap();
    drop(runtime);
    let started = Instant::now();
    for _ in 0..2 {
        let next = Runtime::builder().workers(2).shutdown_timeout(LIMIT).build().unwrap();
        assert!(
            next.dump().workers.iter().all(|worker| worker.tasks.is_empty()),
            "{}",
            next.dump()
        );
        drop(next);
    }
    assert!(started.elapsed() < LIMIT / 2, "it waited for a task of another runtime");
    drop(release);
}

/// A descriptor that is no longer watched.
struct Lost(OwnedFd, Arc<AtomicBool>);

impl AsFd for Lost {
    fn as_fd(&self) -> BorrowedFd<'_> {
        assert!(!self.1.load(Ordering::SeqCst), "a descriptor is lost");
        self.0.as_fd()
    }
}

#[test]
fn a_leaf_of_a_callback_that_panics_does_not_keep_its_queue() {
    for lost_at_once in [true, false] {
        let (ended, has_ended) = mpsc::channel();
        std::thread::spawn(move || {
            let queue = IoQueue::new(0).unwrap();
            let (reader, mut writer) = std::io::pipe().unwrap();
            let lost = Arc::new(AtomicBool::new(lost_at_once));
            let monitor = FdMonitor::new(&queue, Lost(reader.into(), Arc::clone(&lost)));
            drop(monitor.wait(Interest::READABLE, |_, _, _| ()));
            lost.store(true, Ordering::SeqCst);
            writer.write_all(b"x").unwrap();
            queue.iterate().unwrap();
            let pending = queue.pending();
            drop(queue);
            ended.send(pending).unwrap();
        });
        assert_eq!(has_ended.recv_timeout(LIMIT / 3), Ok(0));
    }
}
