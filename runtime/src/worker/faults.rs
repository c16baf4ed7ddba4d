//! Calls of the poller that fail, for the tests of this crate: no program can make the kernel refuse them. In every other build
//! there is nothing here.

#[cfg(not(test))]
use std::io;

/// A call of the poller.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Wait,
    Register,
}

/// Fails if a test has asked for it on this thread.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn check(_: Call) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(crate) use injected::{check, set};

#[cfg(test)]
mod injected {
    use std::cell::Cell;
    use std::io;

    use super::Call;

    thread_local! {
        /// The error codes of the two calls.
        static FAULTS: [Cell<Option<i32>>; 2] = const { [const { Cell::new(None) }; 2] };
    }

    /// Makes the call fail on this thread from now on, with this error of the system.
    pub(crate) fn set(call: Call, code: Option<i32>) {
        FAULTS.with(|faults| faults[call as usize].set(code));
    }

    pub(crate) fn check(call: Call) -> io::Result<()> {
        match FAULTS.with(|faults| faults[call as usize].get()) {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashSet;
    use std::io::{self, Read, Write};
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, Mutex, mpsc};
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use rustix::io::Errno;

    use super::{Call, set};
    use crate::Cancelled;
    use crate::dormant::{AfterBurst, Cause, Dormant};
    use crate::io::Interest;
    use crate::net::{TcpListener, TcpStream, UdpSocket};
    use crate::sync::Event;
    use crate::wait::driver;

    const LIMIT: Duration = Duration::from_secs(20);

    fn fail(call: Call, code: Errno) {
        set(call, Some(code.raw_os_error()));
    }

    /// A waker that breaks the poller of the thread that wakes it.
    struct Breaks;

    impl Wake for Breaks {
        fn wake(self: Arc<Self>) {
            fail(Call::Wait, Errno::BADF);
        }
    }

    /// A waker that sends its number.
    struct Tells(u32, mpsc::Sender<u32>);

    impl Wake for Tells {
        fn wake(self: Arc<Self>) {
            // The receiver has all that it waits for.
            let _ = self.1.send(self.0);
        }
    }

    fn is_cancelled<T>(outcome: std::thread::Result<T>) -> bool {
        outcome.is_err_and(|payload| Cancelled::is_payload(&*payload))
    }

    /// Runs `body` in a child, whose process loses a poller, and returns the lines of its stderr.
    fn lines_of_child(name: &str, body: fn()) -> Option<Vec<String>> {
        let child = testkit::in_a_child(&format!("worker::faults::tests::{name}"), body)?;
        let said = String::from_utf8_lossy(&child.stderr).into_owned();
        assert!(
            child.status.success(),
            "{said}{}",
            String::from_utf8_lossy(&child.stdout)
        );
        Some(said.lines().map(str::to_owned).collect())
    }

    #[test]
    fn a_runtime_ends_in_order_when_a_poller_fails() {
        let lines = lines_of_child("a_runtime_ends_in_order_when_a_poller_fails", || {
            let runtime = crate::Runtime::builder().workers(3).name("three").build().unwrap();
            let for_ever = || crate::sleep(Duration::from_secs(3600));
            let fibers: Vec<_> = (0..30).map(|_| runtime.spawn(for_ever)).collect();
            let task = runtime.spawn_future(std::future::pending::<()>());
            let body = || {
                runtime.run(|| {
                    fail(Call::Wait, Errno::BADF);
                    for_ever();
                })
            };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            assert!(is_cancelled(outcome));
            assert!(fibers.into_iter().all(|fiber| is_cancelled(fiber.join())));
            assert!(is_cancelled(task.join()));
            // Nothing runs any more, and nobody waits for it.
            assert!(is_cancelled(runtime.spawn(|| ()).join()));
            assert!(is_cancelled(runtime.spawn_future(async {}).join()));
        });
        if let Some(lines) = lines {
            let text = "osier: worker 'three-";
            let failure = ": its poller failed: Bad file descriptor (os error 9); the runtime shuts down and cancels what it runs";
            assert!(
                matches!(&lines[..], [line] if line.starts_with(text) && line.ends_with(failure)),
                "{lines:?}"
            );
        }
    }

    /// The lock that a [`DropsOn`] takes.
    static LOCK: Mutex<()> = Mutex::new(());

    /// Sends the thread where it is dropped.
    struct DropsOn(mpsc::Sender<ThreadId>);

    impl Drop for DropsOn {
        fn drop(&mut self) {
            let _lock = LOCK.lock().unwrap();
            let _ = self.0.send(thread::current().id());
        }
    }

    /// A runtime of two workers, and tasks that wait on the second one, whose thread stands still until the sender goes. Returns the
    /// tasks' wakers too, and what tells the threads of their ends.
    fn with_tasks_on_a_blocked_worker(
        tasks: usize,
    ) -> (crate::Runtime, Vec<Waker>, mpsc::Receiver<ThreadId>, mpsc::Sender<()>) {
        let runtime = crate::Runtime::builder()
            .workers(2)
            .shutdown_timeout(Duration::ZERO)
            .build()
            .unwrap();
        let on_second = || crate::fiber::Builder::new().worker(1);
        let (sender, wakers) = mpsc::channel();
        let (dropped, drops) = mpsc::channel();
        let future = move || {
            let (dropped, sender) = (DropsOn(dropped.clone()), sender.clone());
            std::future::poll_fn(move |cx| {
                let _ = (&dropped, sender.send(cx.waker().clone()));
                Poll::<()>::Pending
            })
        };
        let spawn = move || (0..tasks).for_each(|_| drop(crate::spawn_future(future())));
        runtime.run(|| on_second().spawn(spawn).join().unwrap());
        let wakers = (0..tasks).map(|_| wakers.recv_timeout(LIMIT).unwrap()).collect();
        let (begun, begins) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let blocks = move || {
            begun.send(()).unwrap();
            let _ = released.recv();
        };
        runtime.run(|| drop(on_second().spawn(blocks)));
        begins.recv_timeout(LIMIT).unwrap();
        (runtime, wakers, drops, release)
    }

    #[test]
    fn a_waker_runs_no_destructor_when_a_poller_has_failed() {
        let lines = lines_of_child("a_waker_runs_no_destructor_when_a_poller_has_failed", || {
            let (runtime, wakers, drops, release) = with_tasks_on_a_blocked_worker(1);
            runtime.run(|| fail(Call::Wait, Errno::BADF));
            testkit::eventually("the runtime stops", || is_cancelled(runtime.spawn(|| ()).join()));
            wakers.into_iter().for_each(Waker::wake);
            drop(release);
            assert_ne!(drops.recv_timeout(LIMIT).unwrap(), thread::current().id());
        });
        drop(lines);
    }

    #[test]
    fn tasks_that_are_woken_after_their_runtime_are_dropped_by_one_thread() {
        let lines = lines_of_child(
            "tasks_that_are_woken_after_their_runtime_are_dropped_by_one_thread",
            || {
                let (runtime, wakers, drops, release) = with_tasks_on_a_blocked_worker(100);
                drop(runtime);
                let lock = LOCK.lock().unwrap();
                wakers.into_iter().for_each(Waker::wake);
                drop(lock);
                let threads: HashSet<_> = (0..100).map(|_| drops.recv_timeout(LIMIT).unwrap()).collect();
                assert_eq!(threads.len(), 1);
                assert!(!threads.contains(&thread::current().id()));
                drop(release);
            },
        );
        drop(lines);
    }

    #[test]
    fn without_a_driver_the_leaves_outside_of_a_runtime_fail() {
        let lines = lines_of_child("without_a_driver_the_leaves_outside_of_a_runtime_fail", || {
            let waker = Waker::from(Arc::new(Breaks));
            let mut soon = pin!(crate::time::Sleep::new(Duration::from_millis(1)));
            assert!(soon.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            testkit::eventually("the driver ends", || driver::current().is_err());
        });
        if let Some(lines) = lines {
            assert!(
                matches!(&lines[..], [line] if line.starts_with("osier: worker 'osier-driver-0': its poller failed")),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn leaves_that_wait_already_meet_the_end_of_their_driver() {
        let lines = lines_of_child("leaves_that_wait_already_meet_the_end_of_their_driver", || {
            let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
            let (udp, breaking) = (bind(), bind());
            let (pipe, _writer) = io::pipe().unwrap();
            let pipe = crate::io::Async::new(pipe).unwrap();
            let (mut bytes, mut others) = ([0], [0]);
            let mut receive = pin!(udp.recv_async(&mut bytes));
            let mut readable = pin!(pipe.readable_async());
            let mut late = pin!(crate::time::Sleep::new(Duration::from_secs(3600)));
            let mut breaks = pin!(breaking.recv_async(&mut others));
            let (woken, wakes) = mpsc::channel();
            let wakers = [0, 1, 2].map(|leaf| Waker::from(Arc::new(Tells(leaf, woken.clone()))));
            let [receives, reads, sleeps] = wakers.each_ref().map(Context::from_waker);
            let (mut receives, mut reads, mut sleeps) = (receives, reads, sleeps);
            assert!(receive.as_mut().poll(&mut receives).is_pending());
            assert!(readable.as_mut().poll(&mut reads).is_pending());
            assert!(late.as_mut().poll_elapsed(&mut sleeps).is_pending());
            let waker = Waker::from(Arc::new(Breaks));
            assert!(breaks.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            bind().send_to(b"x", breaking.local_addr().unwrap()).unwrap();
            let mut woken: Vec<_> = (0..3).map(|_| wakes.recv_timeout(LIMIT).unwrap()).collect();
            woken.sort();
            assert_eq!(woken, [0, 1, 2]);
            assert!(matches!(receive.as_mut().poll(&mut receives), Poll::Ready(Err(_))));
            assert!(matches!(readable.as_mut().poll(&mut reads), Poll::Ready(Err(_))));
            assert!(matches!(late.as_mut().poll_elapsed(&mut sleeps), Poll::Ready(Err(_))));
        });
        if let Some(lines) = lines {
            assert_eq!(lines.len(), 1, "{lines:?}");
        }
    }

    /// A connection that answers each byte, by calls that do not wait.
    struct Answers {
        stream: TcpStream,
        bursts: Arc<AtomicUsize>,
        dropped: Arc<Event>,
    }

    impl Dormant for Answers {
        fn source(&self) -> &dyn crate::io::Source {
            &self.stream
        }

        fn wake(&mut self, _: Cause) -> AfterBurst {
            // One that spins ends, so that the test does.
            if self.bursts.fetch_add(1, SeqCst) > 9 {
                return AfterBurst::End;
            }
            let mut bytes = [0; 8];
            match self.stream.try_read(&mut bytes) {
                Ok(1) => self
                    .stream
                    .try_write(&bytes[..1])
                    .map_or(AfterBurst::End, |_| AfterBurst::Sleep(None)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => AfterBurst::Sleep(None),
                _ => AfterBurst::End,
            }
        }
    }

    impl Drop for Answers {
        fn drop(&mut self) {
            assert!(crate::fiber::current().is_some());
            self.dropped.set();
        }
    }

    /// Runs `body` with a client of a connection that starts on the only worker, with the count of its bursts, and with the event of its end.
    fn with_answers(body: fn(TcpStream, &AtomicUsize, &Event)) {
        let clock = crate::time::VirtualClock::new();
        let runtime = crate::Runtime::builder().workers(1).clock(clock).build().unwrap();
        runtime.run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            let (bursts, dropped) = (Arc::default(), Arc::new(Event::new()));
            let answers = Answers {
                stream,
                bursts: Arc::clone(&bursts),
                dropped: Arc::clone(&dropped),
            };
            fail(Call::Register, Errno::NOSPC);
            crate::dormant::start_local(Box::new(answers), None).unwrap();
            body(client, &bursts, &dropped);
        });
    }

    #[test]
    fn a_connection_that_the_poller_refuses_is_closed_after_a_while() {
        let lines = lines_of_child("a_connection_that_the_poller_refuses_is_closed_after_a_while", || {
            with_answers(|mut client, bursts, dropped| {
                dropped.wait();
                assert_eq!(bursts.load(SeqCst), 1);
                set(Call::Register, None);
                assert_eq!(client.read(&mut [0]).unwrap(), 0);
            });
        });
        if let Some(lines) = lines {
            let line = "osier: a connection is closed because the poller does not take its socket: No space left on device (os error 28); \
                        raise the sysctl fs.epoll.max_user_watches";
            assert_eq!(lines, [line]);
        }
    }

    #[test]
    fn a_connection_that_the_poller_takes_later_is_served() {
        with_answers(|mut client, bursts, _| {
            crate::sleep(Duration::from_millis(100));
            set(Call::Register, None);
            client.write_all(b"a").unwrap();
            let mut answer = [0];
            client.read_exact(&mut answer).unwrap();
            assert_eq!((answer, bursts.load(SeqCst)), (*b"a", 2));
        });
    }

    #[test]
    fn a_client_that_the_poller_does_not_watch_ends_no_suspension() {
        let clock = crate::time::VirtualClock::new();
        let runtime = crate::Runtime::builder().workers(1).clock(clock).build().unwrap();
        runtime.run(|| {
            let (ours, theirs) = crate::net::UnixStream::pair().unwrap();
            let suspensions = Cell::new(0);
            let count = || {
                suspensions.set(suspensions.get() + 1);
                if suspensions.get() > 9 {
                    // A fiber that spins goes on, so that the test ends.
                    set(Call::Register, None);
                }
            };
            fail(Call::Register, Errno::NOSPC);
            let outcome = crate::io::while_connected(&ours, crate::io::HalfClose::IsGone, || {
                crate::fiber::before_suspend(&count, || crate::sleep(Duration::from_secs(1)));
                assert!(suspensions.get() <= 2, "{} suspensions", suspensions.get());
                // Later the poller takes it.
                set(Call::Register, None);
                drop(crate::spawn_local(|| drop(theirs)));
                crate::sleep(Duration::from_secs(3600));
            });
            assert!(outcome.is_err());
        });
    }

    /// The errors of epoll_ctl that a program can meet: no memory, and too many watches of this user.
    #[test]
    fn what_the_poller_refuses_is_the_error_of_the_call_that_waits() {
        for code in [Errno::NOMEM, Errno::NOSPC, Errno::INTR] {
            let runtime = crate::Runtime::builder().workers(1).build().unwrap();
            runtime.run(|| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
                let (pipe, _writer) = io::pipe().unwrap();
                drop(listener.accept().unwrap());
                fail(Call::Register, code);
                let refused = |error: Option<io::Error>| {
                    assert_eq!(error.and_then(|error| error.raw_os_error()), Some(code.raw_os_error()));
                };
                let other = TcpListener::bind("127.0.0.1:0").unwrap();
                refused(other.accept().err());
                refused(udp.recv(&mut [0]).err());
                refused(crate::io::readable(&pipe, None).err());
                refused(crate::io::ready(&pipe, Interest::READABLE, None).err());
                refused(crate::block_on(udp.recv_async(&mut [0])).err());
                set(Call::Register, None);
                assert_eq!(client.read(&mut [0]).unwrap(), 0, "the worker goes on");
            });
        }
    }
}
