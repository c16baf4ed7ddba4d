//! Adapters: `io::Async` for foreign descriptors, and the traits of other libraries.

use std::io::{ErrorKind, IoSlice, PipeReader, PipeWriter};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::pin::pin;
use std::thread;
use std::time::Duration;

use crate::colours::{Count, in_every_colour, poll_by_hand, poll_once};
use futures_lite::future::zip;
use osier::io::Async;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

fn pair() -> (Async<UnixStream>, Async<UnixStream>) {
    let (one, two) = UnixStream::pair().unwrap();
    (Async::new(one).unwrap(), Async::new(two).unwrap())
}

fn pipe() -> (Async<PipeReader>, Async<PipeWriter>) {
    let (reader, writer) = std::io::pipe().unwrap();
    (Async::new(reader).unwrap(), Async::new(writer).unwrap())
}

#[test]
fn stds_sockets_join_in_every_colour() {
    use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
    in_every_colour(|| async {
        let (mut near, mut far) = pair();
        let echo = async {
            let mut buf = [0; 1000];
            loop {
                match far.read(&mut buf).await.unwrap() {
                    0 => return far.get_ref().shutdown(std::net::Shutdown::Write).unwrap(),
                    count => far.write_all(&buf[..count]).await.unwrap(),
                }
            }
        };
        let client = async {
            for round in 0..20_u8 {
                near.write_all(&[round; 100]).await.unwrap();
                let mut reply = [0; 100];
                near.read_exact(&mut reply).await.unwrap();
                assert_eq!(reply, [round; 100]);
            }
            near.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(near.read(&mut [0]).await.unwrap(), 0);
        };
        zip(echo, client).await;
    });
}

/// A library of somebody else's, whose bound leaves the compiler to find `S`.
fn ask<S>(stream: &S) -> std::io::Result<u8>
where
    for<'a> &'a S: std::io::Read + std::io::Write,
{
    use std::io::{Read as _, Write as _};
    let (mut reader, mut writer) = (stream, stream);
    writer.write_all(b"?")?;
    let mut reply = [0];
    reader.read_exact(&mut reply)?;
    Ok(reply[0])
}

/// That these calls compile is the test: the impls of `&Async<T>` must not send the compiler round in circles.
#[test]
fn a_library_over_shared_references_takes_every_stream() {
    use std::io::{Read as _, Write as _};
    let (near, far) = UnixStream::pair().unwrap();
    (&far).write_all(b"!").unwrap();
    assert_eq!(ask(&near).unwrap(), b'!');
    osier::run(|| {
        let (near, far) = pair();
        let reply = osier::spawn(move || {
            (&far).read_exact(&mut [0])?;
            (&far).write_all(b"!")
        });
        assert_eq!(ask(&near).unwrap(), b'!');
        reply.join().unwrap().unwrap();
        let (near, far) = osier::net::UnixStream::pair().unwrap();
        (&far).write_all(b"!").unwrap();
        assert_eq!(ask(&near).unwrap(), b'!');
    });
}

#[test]
fn pipes_join_and_block_fibers_and_threads() {
    use std::io::{Read as _, Write as _};
    let copy = || {
        let (mut reader, mut writer) = pipe();
        let writing = thread::spawn(move || {
            for number in 0..100_u8 {
                writer.write_all(&[number; 4096]).unwrap();
            }
        });
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert!(bytes.len() == 409_600 && bytes.iter().enumerate().all(|(at, &byte)| byte == (at / 4096) as u8));
        writing.join().unwrap();
    };
    copy();
    osier::run(copy);
}

#[test]
fn a_timerfd_is_read_when_it_fires() {
    let timer = || {
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: 0,
                tv_nsec: 10_000_000,
            },
        };
        rustix::time::timerfd_settime(&fd, TimerfdTimerFlags::empty(), &once).unwrap();
        Async::<OwnedFd>::new(fd).unwrap()
    };
    fn read(fd: &OwnedFd) -> std::io::Result<u64> {
        let mut fired = [0; 8];
        rustix::io::read(fd, &mut fired)?;
        Ok(u64::from_ne_bytes(fired))
    }
    in_every_colour(move || async move { assert_eq!(timer().read_with_async(read).await.unwrap(), 1) });
    assert_eq!(timer().read_with(read).unwrap(), 1);
    assert_eq!(osier::run(|| timer().read_with(read)).unwrap(), 1);
}

#[test]
fn references_read_and_write_at_the_same_time() {
    use std::io::{Read as _, Write as _};
    osier::run(|| {
        let (near, far) = pair();
        osier::scope(|scope| {
            scope.spawn(|| {
                let mut byte = [0];
                (&far).read_exact(&mut byte).unwrap();
                let both = [IoSlice::new(&byte), IoSlice::new(b"!")];
                assert_eq!((&far).write_vectored(&both).unwrap(), 2);
            });
            let reading = scope.spawn(|| {
                let mut reply = [0; 2];
                (&near).read_exact(&mut reply).unwrap();
                reply
            });
            (&near).write_all(b"x").unwrap();
            (&near).flush().unwrap();
            assert_eq!(&reading.join().unwrap(), b"x!");
        });
    });
}

#[test]
fn as_futures_two_adapters_share_a_descriptor() {
    use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
    let (one, two) = UnixStream::pair().unwrap();
    let (mut reader, mut writer) = (Async::new(&one).unwrap(), Async::new(&one).unwrap());
    let mut far = Async::new(two).unwrap();
    let mut reply = [0; 1];
    let mut reading = pin!(reader.read_exact(&mut reply));
    assert!(poll_once(reading.as_mut()).is_pending());
    poll_by_hand(async {
        writer.write_all(b"y").await.unwrap();
        far.read_exact(&mut [0]).await.unwrap();
        far.write_all(b"z").await.unwrap();
        reading.await.unwrap();
    });
    assert_eq!(&reply, b"z");
}

#[test]
fn a_dropped_read_takes_no_bytes_and_no_waker() {
    use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
    let (mut near, mut far) = pair();
    let (count, waker) = Count::new();
    let mut buf = [0; 5];
    {
        let mut reading = pin!(near.read(&mut buf));
        let mut cx = std::task::Context::from_waker(&waker);
        assert!(std::future::Future::poll(reading.as_mut(), &mut cx).is_pending());
    }
    poll_by_hand(far.write_all(b"hello")).unwrap();
    poll_by_hand(near.read_exact(&mut buf)).unwrap();
    assert_eq!(&buf, b"hello");
    let near = near.into_inner();
    drop(waker);
    assert_eq!(std::sync::Arc::strong_count(&count), 1);
    drop((near, far));
}

#[test]
fn what_is_inside_can_be_taken_out_while_somebody_waited() {
    use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
    let (mut near, mut far) = pair();
    assert!(poll_once(pin!(near.read(&mut [0]))).is_pending());
    near.get_mut().set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    assert!(poll_once(pin!(near.read(&mut [0]))).is_pending());
    let mut inner = near.into_inner();
    inner.set_nonblocking(false).unwrap();
    poll_by_hand(far.write_all(b"x")).unwrap();
    std::io::Read::read_exact(&mut inner, &mut [0]).unwrap();
}

#[test]
fn readiness_is_waited_for_and_takes_nothing() {
    in_every_colour(|| async {
        let (one, two) = UnixDatagram::pair().unwrap();
        let near = Async::new(one).unwrap();
        near.writable_async().await.unwrap();
        let mut waiting = pin!(near.readable_async());
        assert!(poll_once(waiting.as_mut()).is_pending());
        two.send(b"datagram").unwrap();
        assert!(waiting.await.unwrap().is_readable());
        near.readable().unwrap();
        let mut buf = [0; 16];
        assert_eq!(near.read_with_async(|socket| socket.recv(&mut buf)).await.unwrap(), 8);
        assert_eq!(near.write_with_async(|socket| socket.send(b"!")).await.unwrap(), 1);
        near.writable().unwrap();
        assert_eq!(near.write_with(|socket| socket.send(b"!")).unwrap(), 1);
    });
}

#[test]
fn a_regular_file_is_refused() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(Async::new(file).unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn a_cancelled_fiber_stops_waiting_and_the_bytes_stay() {
    use std::io::{Read as _, Write as _};
    let (near, far) = pair();
    osier::run(|| {
        osier::scope(|scope| {
            let reading = scope.spawn(|| (&near).read(&mut [0]).map_err(|error| osier::Cancelled::is(&error)));
            crate::given::others_wait();
            reading.cancel();
            if let Ok(read) = reading.join() {
                assert_eq!(read, Err(true));
            }
        });
        (&far).write_all(b"x").unwrap();
        (&near).read_exact(&mut [0]).unwrap();
    });
}

#[test]
fn a_blocking_call_in_a_callback_on_a_worker_is_refused() {
    use osier::process::{Command, Stdio};
    use osier::signal::{Signal, Signals};
    use std::io::Read as _;
    use std::sync::{Arc, Mutex, mpsc};
    use std::task::{Context, Wake, Waker};
    struct Callback(Mutex<Option<Box<dyn FnOnce() + Send>>>);
    impl Wake for Callback {
        fn wake(self: Arc<Self>) {
            self.0.lock().unwrap().take().expect("woken once")();
        }
    }
    let (sender, receiver) = mpsc::channel();
    let callback = move || {
        let (near, mut far) = pair();
        let read = (&near).read(&mut [0]).unwrap_err().kind();
        let read_mut = far.read(&mut [0]).unwrap_err().kind();
        let received = Signals::new([Signal::USR2]).unwrap().recv().unwrap_err().kind();
        let mut child = Command::new("sleep");
        let mut child = child
            .arg("100")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let waited = child.wait().unwrap_err().kind();
        let collected = child.wait_with_output().unwrap_err().kind();
        sender.send([read, read_mut, received, waited, collected]).unwrap();
    };
    let waker = Waker::from(Arc::new(Callback(Mutex::new(Some(Box::new(callback))))));
    let kinds = osier::run(move || {
        let mut sleep = pin!(osier::time::Sleep::new(Duration::from_millis(5)));
        assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        osier::unblock(move || receiver.recv_timeout(Duration::from_secs(20)).unwrap())
    });
    assert_eq!(kinds, [ErrorKind::WouldBlock; 5]);
}

#[test]
fn one_future_goes_on_where_it_is_moved_to() {
    use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
    let (mut near, mut far) = pair();
    let mut future = Box::pin(async move {
        let mut byte = [0];
        near.read_exact(&mut byte).await.map(|()| byte[0])
    });
    assert!(poll_once(future.as_mut()).is_pending());
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    let mut future = runtime
        .spawn(move || {
            assert!(poll_once(future.as_mut()).is_pending());
            future
        })
        .join()
        .unwrap();
    drop(runtime);
    assert!(poll_once(future.as_mut()).is_pending());
    let (sender, receiver) = std::sync::mpsc::channel();
    let elsewhere = thread::spawn(move || {
        sender.send(testkit::ThreadWatch::current()).unwrap();
        poll_by_hand(future)
    });
    receiver.recv().unwrap().until_it_waits();
    poll_by_hand(far.write_all(b"m")).unwrap();
    assert_eq!(elsewhere.join().unwrap().unwrap(), b'm');
}

#[cfg(feature = "tokio-io")]
#[test]
fn tokios_traits_work_on_our_streams_pipes_and_files() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    in_every_colour(|| async {
        let (near, far) = osier::net::UnixStream::pair().unwrap();
        let (mut near, mut far) = (near.compat(), far.compat());
        let write = async {
            assert!(tokio::io::AsyncWrite::is_write_vectored(&near));
            near.write_all(&[9; 300_000]).await.unwrap();
            near.shutdown().await.unwrap();
        };
        let mut bytes = Vec::new();
        let (read, ()) = zip(far.read_to_end(&mut bytes), write).await;
        assert_eq!(read.unwrap(), 300_000);
        assert!(bytes.iter().all(|&byte| byte == 9));
        let file = osier::fs::File::open_async("/proc/self/comm").await.unwrap();
        let mut text = String::new();
        osier::adapters::Compat::new(file)
            .read_to_string(&mut text)
            .await
            .unwrap();
        assert!(text.ends_with('\n'));
    });
}

#[cfg(feature = "hyper")]
#[test]
fn hypers_traits_fill_no_more_than_the_buffer_and_know_the_end() {
    use hyper::rt::{Read, ReadBuf, Write};
    use std::future::poll_fn;
    use std::mem::MaybeUninit;
    use std::pin::Pin;
    in_every_colour(|| async {
        let (near, far) = osier::net::UnixStream::pair().unwrap();
        let (mut near, mut far) = (near.compat(), far.compat());
        let wrote = poll_fn(|cx| Pin::new(&mut near).poll_write(cx, b"hello world")).await;
        assert_eq!(wrote.unwrap(), 11);
        let mut memory = [MaybeUninit::uninit(); 8];
        let mut buf = ReadBuf::uninit(&mut memory);
        for (filled, whole) in [(8, &b"hello wo"[..]), (8, &b"hello wo"[..])] {
            poll_fn(|cx| Pin::new(&mut far).poll_read(cx, buf.unfilled()))
                .await
                .unwrap();
            assert_eq!((buf.filled().len(), buf.filled()), (filled, whole));
        }
        poll_fn(|cx| Pin::new(&mut near).poll_shutdown(cx)).await.unwrap();
        let mut memory = [MaybeUninit::uninit(); 8];
        let mut buf = ReadBuf::uninit(&mut memory);
        for _ in 0..2 {
            poll_fn(|cx| Pin::new(&mut far).poll_read(cx, buf.unfilled()))
                .await
                .unwrap();
            assert_eq!(buf.filled(), b"rld");
        }
    });
}

#[cfg(feature = "hyper")]
#[test]
fn hypers_timer_sleeps_and_is_reset() {
    use hyper::rt::Timer as _;
    use std::time::Instant;
    let timer = osier::adapters::hyper::Timer;
    let start = Instant::now();
    // The timer under test, on the machine's clock.
    poll_by_hand(timer.sleep(Duration::from_millis(10)));
    poll_by_hand(timer.sleep_until(start + Duration::from_millis(20)));
    // Until it is reset.
    let mut sleep = timer.sleep(Duration::from_secs(3600));
    assert!(poll_once(sleep.as_mut()).is_pending());
    timer.reset(&mut sleep, start + Duration::from_millis(30));
    poll_by_hand(sleep);
    assert!(start.elapsed() >= Duration::from_millis(30));
}

#[cfg(feature = "hyper")]
#[test]
fn hypers_executor_spawns_on_the_runtime() {
    use hyper::rt::Executor as _;
    let (sender, receiver) = std::sync::mpsc::channel();
    osier::run(move || {
        osier::adapters::hyper::Executor.execute(async move { sender.send(osier::workers()).unwrap() });
        osier::unblock(move || receiver.recv_timeout(Duration::from_secs(20))).unwrap()
    });
}

#[cfg(feature = "tokio-rt")]
#[test]
fn tokio_is_entered_for_each_poll_and_never_between() {
    use osier::adapters::tokio::with_tokio;
    use tokio::runtime::{Builder, Handle};
    let tokio = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let entered = || Handle::try_current().is_ok();
    struct EnteredAtDrop(std::sync::mpsc::Sender<bool>);
    impl Drop for EnteredAtDrop {
        fn drop(&mut self) {
            let _ = self.0.send(Handle::try_current().is_ok());
        }
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let handle = tokio.handle().clone();
    osier::Runtime::builder()
        .workers(1)
        .build()
        .unwrap()
        .spawn(move || {
            let handle_of_two = handle.clone();
            let one = osier::spawn(move || {
                osier::block_on(with_tokio(handle, async move {
                    let _guard = EnteredAtDrop(sender);
                    assert!(entered());
                    // A timer of the other runtime, while the fiber below looks.
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    assert!(entered());
                    tokio::spawn(async { 42 }).await.unwrap()
                }))
            });
            // On the same thread, while the other waits.
            let two = osier::spawn(move || {
                osier::yield_now();
                assert!(!entered());
                drop(with_tokio(handle_of_two, async {}));
                assert!(!entered());
            });
            two.join().unwrap();
            assert_eq!(one.join().unwrap(), 42);
            assert!(!entered());
        })
        .join()
        .unwrap();
    assert!(receiver.recv().unwrap());
    // Dropped half-way: with the runtime entered too.
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut waiting = Box::pin(with_tokio(tokio.handle().clone(), async move {
        let _guard = EnteredAtDrop(sender);
        std::future::pending::<()>().await;
    }));
    assert!(poll_once(waiting.as_mut()).is_pending());
    drop(waiting);
    assert!(receiver.recv().unwrap());
}

/// The inner future makes blocking calls of Osier, in its polls and when it is dropped.
#[cfg(feature = "tokio-rt")]
#[test]
fn tokio_is_left_while_a_fiber_is_suspended_inside_of_a_poll() {
    use osier::adapters::tokio::with_tokio;
    use tokio::runtime::{Builder, Handle};
    let tokio = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let entered = || Handle::try_current().is_ok();
    struct SleepsAtDrop;
    impl Drop for SleepsAtDrop {
        fn drop(&mut self) {
            osier::sleep(Duration::from_millis(5));
            assert!(Handle::try_current().is_ok());
        }
    }
    let handle = tokio.handle().clone();
    osier::Runtime::builder().workers(1).build().unwrap().run(move || {
        let fibers = [5, 10].map(|ms| {
            let handle = handle.clone();
            osier::spawn_local(move || {
                osier::block_on(with_tokio(handle, async move {
                    let _sleeps = SleepsAtDrop;
                    osier::sleep(Duration::from_millis(ms));
                    assert!(entered());
                    // A runtime within the runtime: both are left and entered again in order.
                    osier::block_on(with_tokio(Handle::current(), async { osier::yield_now() }));
                    assert!(entered());
                }));
                assert!(!entered());
            })
        });
        while fibers.iter().any(|fiber| !fiber.is_finished()) {
            osier::sleep(Duration::from_millis(1));
            assert!(!entered());
        }
        for fiber in fibers {
            fiber.join().unwrap();
        }
        assert!(!entered());
    });
}

/// The polls of a nested `block_on`, all but the first of which follow a suspension, are within the runtime too.
#[cfg(feature = "tokio-rt")]
#[test]
fn tokio_is_entered_for_each_poll_of_a_nested_wait_and_left_between() {
    use osier::adapters::tokio::with_tokio;
    use tokio::runtime::{Builder, Handle};
    let tokio = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let entered = || Handle::try_current().is_ok();
    let handle = tokio.handle().clone();
    osier::Runtime::builder().workers(1).build().unwrap().run(move || {
        let fiber = osier::spawn_local(move || {
            osier::block_on(with_tokio(handle, async move {
                osier::block_on(async {
                    futures_lite::future::yield_now().await;
                    assert!(entered());
                    osier::sleep(Duration::from_millis(5));
                    for _ in 0..100 {
                        assert!(entered());
                        futures_lite::future::yield_now().await;
                    }
                });
            }));
        });
        while !fiber.is_finished() {
            osier::yield_now();
            assert!(!entered());
        }
        fiber.join().unwrap();
    });
}

/// A hook that suspends is followed by a further poll of what the fiber waits for, and a hook inside suspends by itself.
#[cfg(feature = "tokio-rt")]
#[test]
fn tokio_is_entered_for_the_poll_behind_a_hook_that_suspends() {
    use osier::adapters::tokio::with_tokio;
    use tokio::runtime::{Builder, Handle};
    let tokio = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let entered = || Handle::try_current().is_ok();
    let handle = tokio.handle().clone();
    let waits = || osier::sleep(Duration::from_millis(1));
    osier::Runtime::builder().workers(1).build().unwrap().run(move || {
        let inside = with_tokio(handle, async move {
            let polls = async {
                for _ in 0..10 {
                    assert!(entered());
                    futures_lite::future::yield_now().await;
                }
            };
            osier::block_on(polls);
            osier::fiber::before_suspend(&waits, waits);
            assert!(entered());
            osier::fiber::before_suspend(&osier::yield_now, osier::yield_now);
            assert!(entered());
        });
        let fiber = osier::spawn_local(move || {
            osier::fiber::before_suspend(&waits, || osier::block_on(inside));
            assert!(!entered());
        });
        while !fiber.is_finished() {
            osier::yield_now();
            assert!(!entered());
        }
        fiber.join().unwrap();
    });
}
