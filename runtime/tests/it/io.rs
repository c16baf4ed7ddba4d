//! Waits for any descriptor, reads and writes of files, and work that ends with its client.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::given::{forever, on, others_wait, pair, pass, settle, timeless};
use osier::io::{
    FileProgress, HalfClose, Interest, readable, ready, sendfile, sendfile_after, while_connected, writable,
};
use osier::net::{TcpListener, TcpStream, UnixStream};
use osier::{Cancelled, fiber};
use rustix::event::EventfdFlags;

const GENEROUS: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(20);

fn soon() -> Option<Instant> {
    Some(Instant::now() + SHORT)
}

fn late() -> Option<Instant> {
    Some(Instant::now() + GENEROUS)
}

/// A file of `len` bytes whose values show their positions. Removed when dropped.
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Temporary {
    fn new(name: &str, len: usize) -> Temporary {
        let path = std::env::temp_dir().join(format!("osier-{name}-{}", std::process::id()));
        fs::write(&path, content(0, len)).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        Temporary { path, file }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn content(from: usize, len: usize) -> Vec<u8> {
    (from..from + len)
        .map(|at| (at % 251) as u8 ^ (at >> 12) as u8)
        .collect()
}

#[test]
fn a_pipe_in_both_directions() {
    let check = || {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let begin = Instant::now();
        assert_eq!(readable(&reader, soon()).unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(begin.elapsed() >= SHORT);
        writable(&writer, late()).unwrap();
        writer.write_all(b"x").unwrap();
        // Level: it stays readable until it is read.
        for _ in 0..3 {
            assert!(ready(&reader, Interest::READABLE, late()).unwrap().is_readable());
        }
        reader.read_exact(&mut [0]).unwrap();
        assert_eq!(readable(&reader, soon()).unwrap_err().kind(), ErrorKind::TimedOut);
        let full = fill(&writer);
        assert!(full > 0);
        assert_eq!(writable(&writer, soon()).unwrap_err().kind(), ErrorKind::TimedOut);
        // The end of the peer counts as readiness for every interest.
        drop(writer);
        io::copy(&mut reader, &mut io::sink()).unwrap();
        assert!(ready(&reader, Interest::READABLE, late()).unwrap().is_hup());
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        assert!(ready(&writer, Interest::PRIORITY, late()).unwrap().is_error());
    };
    on(1).run(check);
    check();
}

/// Writes until there is no room, without touching the description's flags.
fn fill(writer: &io::PipeWriter) -> usize {
    let mut count = 0;
    while ready(writer, Interest::WRITABLE, soon()).is_ok() {
        count += rustix::io::write(writer, &[0; 4096]).unwrap();
    }
    count
}

#[test]
fn the_description_stays_as_it_is() {
    on(1).run(|| {
        let (reader, _writer) = io::pipe().unwrap();
        assert_eq!(readable(&reader, soon()).unwrap_err().kind(), ErrorKind::TimedOut);
        let flags = rustix::fs::fcntl_getfl(&reader).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
    });
}

#[test]
fn an_eventfd_and_a_timer() {
    on(2).run(|| {
        let event = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let theirs = Arc::clone(&event);
        let waiting = osier::spawn(move || readable(&*theirs, late()));
        others_wait();
        rustix::io::write(&*event, &1u64.to_ne_bytes()).unwrap();
        waiting.join().unwrap().unwrap();

        use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec {
            it_interval: never,
            it_value: Timespec {
                tv_sec: 0,
                tv_nsec: 5_000_000,
            },
        };
        rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &spec).unwrap();
        let begin = Instant::now();
        readable(&timer, late()).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(4));
    });
}

#[test]
fn a_terminal() {
    let Ok(master) = File::options().read(true).write(true).open("/dev/ptmx") else {
        println!("skipped: no /dev/ptmx here");
        return;
    };
    on(1).run(|| {
        assert_eq!(readable(&master, soon()).unwrap_err().kind(), ErrorKind::TimedOut);
        writable(&master, late()).unwrap();
    });
}

#[test]
fn misuse_is_an_error_value() {
    let check = || {
        let file = Temporary::new("regular", 10);
        for fd in [file.file.as_fd(), File::open("/").unwrap().as_fd()] {
            let error = readable(fd, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert!(error.to_string().contains("always ready"), "{error}");
            assert_eq!(writable(fd, late()).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        let (reader, _writer) = io::pipe().unwrap();
        assert_eq!(
            ready(&reader, Interest::NONE, None).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        // It is as usable as before.
        assert_eq!(readable(&reader, soon()).unwrap_err().kind(), ErrorKind::TimedOut);
    };
    on(1).run(check);
    check();
}

#[test]
fn many_fibers_wait_for_one_descriptor() {
    for workers in [1, 2] {
        on(workers).run(|| {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let ours = Arc::new(ours);
            // Leaves no room, so that writers wait too.
            ours.set_nonblocking(true).unwrap();
            while (&*ours).write(&[0; 4096]).is_ok() {}
            let readers: Vec<_> = (0..4)
                .map(|_| {
                    let ours = Arc::clone(&ours);
                    osier::spawn(move || ready(&*ours, Interest::READABLE, late()))
                })
                .collect();
            let writers: Vec<_> = (0..4)
                .map(|_| {
                    let ours = Arc::clone(&ours);
                    osier::spawn(move || ready(&*ours, Interest::WRITABLE, late()))
                })
                .collect();
            let impatient = Arc::clone(&ours);
            let impatient = osier::spawn(move || ready(&*impatient, Interest::READABLE, soon()));
            assert_eq!(impatient.join().unwrap().unwrap_err().kind(), ErrorKind::TimedOut);

            (&theirs).write_all(b"x").unwrap();
            for reader in readers {
                assert!(reader.join().unwrap().unwrap().is_readable());
            }
            assert!(writers.iter().all(|writer| !writer.is_finished()));
            theirs.set_nonblocking(true).unwrap();
            while (&theirs).read(&mut [0; 4096]).is_ok() {}
            for writer in writers {
                assert!(writer.join().unwrap().unwrap().is_writable());
            }
        });
    }
}

#[test]
fn a_number_is_used_again() {
    on(1).run(|| {
        for _ in 0..100 {
            let (reader, writer) = io::pipe().unwrap();
            let number = reader.as_raw_fd();
            let waiting = osier::spawn(move || {
                readable(&reader, late()).unwrap();
                reader.as_raw_fd()
            });
            osier::yield_now();
            osier::yield_now();
            rustix::io::write(&writer, b"x").unwrap();
            assert_eq!(waiting.join().unwrap(), number);
        }
        // A cancelled wait leaves nothing behind either.
        for _ in 0..100 {
            let (reader, _writer) = io::pipe().unwrap();
            let waiting = osier::spawn(move || readable(&reader, None));
            osier::yield_now();
            osier::yield_now();
            waiting.cancel();
            assert!(Cancelled::is(&waiting.join().unwrap().unwrap_err()));
        }
    });
}

#[test]
fn sockets_of_ours_in_either_order() {
    for first_foreign in [true, false] {
        timeless(1).run(move || {
            let (mut client, server) = pair();
            let server = Arc::new(server);
            let foreign = || {
                let server = Arc::clone(&server);
                osier::spawn(move || readable(&*server, late()))
            };
            let own = || {
                let server = Arc::clone(&server);
                osier::spawn(move || server.peek(&mut [0]))
            };
            let (foreign, own) = if first_foreign {
                let foreign = foreign();
                settle();
                (foreign, own())
            } else {
                let own = own();
                settle();
                (foreign(), own)
            };
            settle();
            client.write_all(b"x").unwrap();
            foreign.join().unwrap().unwrap();
            assert_eq!(own.join().unwrap().unwrap(), 1);
            // Both again, with what the first time left behind.
            (&*server).read_exact(&mut [0]).unwrap();
            assert_eq!(readable(&*server, soon()).unwrap_err().kind(), ErrorKind::TimedOut);
            server.set_read_timeout(Some(SHORT)).unwrap();
            assert_eq!(server.peek(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        });
    }
}

#[test]
fn between_fibers_nothing_waits() {
    static ERRORS: Mutex<Vec<io::Error>> = Mutex::new(Vec::new());
    /// Makes blocking calls when it is dropped.
    struct Calls(io::PipeReader, TcpStream, TcpListener);
    impl Drop for Calls {
        fn drop(&mut self) {
            assert!(osier::fiber::current().is_none() && osier::fiber::worker().is_some());
            let mut errors = ERRORS.lock().unwrap();
            errors.extend(readable(&self.0, None).err());
            errors.extend(self.1.read(&mut [0]).err());
            errors.extend(self.2.accept().err());
            errors.extend(osier::net::ToSocketAddrs::to_socket_addrs("localhost:80").err());
            // What need not wait works.
            writable(&self.1, None).unwrap();
            assert_eq!(self.1.write(b"x").unwrap(), 1);
        }
    }
    /// Spawns when it is dropped: at the shutdown nothing is started any more, so the worker itself drops the capture.
    struct Spawner(Option<Calls>);
    impl Drop for Spawner {
        fn drop(&mut self) {
            let calls = self.0.take();
            drop(osier::spawn_local(move || drop(calls)));
        }
    }
    let (empty, _writer) = io::pipe().unwrap();
    let (client, server) = pair();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    on(1).run(|| {
        drop(osier::spawn(|| {
            let _spawner = Spawner(Some(Calls(empty, server, listener)));
            forever();
        }));
        osier::yield_now();
    });
    let errors = ERRORS.lock().unwrap();
    assert_eq!(errors.len(), 4, "{errors:?}");
    for error in &*errors {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert_eq!(
            error.to_string(),
            "blocking call inside a future, callback or coroutine: await its _async twin, or spawn a fiber for it"
        );
    }
    drop(client);
}

#[test]
fn file_bytes_of_all_sizes() {
    const LEN: usize = 3_000_000;
    let file = Temporary::new("sizes", LEN);
    let check = || {
        for (offset, len) in [
            (0, 0),
            (0, 1),
            (4095, 2),
            (100, 5000),
            (1, 262_144),
            (0, LEN),
            (LEN - 1, 1),
            (262_143, 600_000),
        ] {
            let (ours, theirs) = pair();
            ours.set_write_timeout(Some(GENEROUS)).unwrap();
            let receiving = receive(theirs);
            assert_eq!(
                sendfile(&file.file, offset as u64, len as u64, &ours).unwrap(),
                len as u64
            );
            drop(ours);
            assert!(receiving() == content(offset, len), "{len} bytes from {offset}");
        }
    };
    on(2).run(check);
    check();
    assert_eq!(
        (&file.file).stream_position().unwrap(),
        0,
        "the file's own position is left alone"
    );
}

/// Reads to the end on another fiber, or from a plain thread on another thread.
fn receive(mut stream: impl Read + Send + 'static) -> Box<dyn FnOnce() -> Vec<u8>> {
    let read = move || {
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        got
    };
    if osier::fiber::current().is_some() {
        let fiber = osier::spawn(read);
        Box::new(|| fiber.join().unwrap())
    } else {
        let thread = thread::spawn(read);
        Box::new(|| thread.join().unwrap())
    }
}

#[test]
fn a_file_that_ends_early_is_sent_as_far_as_it_goes() {
    // More than a socket takes at once.
    const LEN: usize = 32 << 20;
    let file = Temporary::new("short", LEN);
    timeless(1).run(|| {
        let (ours, theirs) = pair();
        let receiving = receive(theirs);
        assert_eq!(sendfile(&file.file, 0, u64::MAX / 4, &ours).unwrap(), LEN as u64);
        assert_eq!(sendfile(&file.file, LEN as u64 + 5, 10, &ours).unwrap(), 0);
        drop(ours);
        assert!(receiving() == content(0, LEN));

        // Cut short while it is sent to a peer that does not read yet.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let clone = file.file.try_clone().unwrap();
        let sending = osier::spawn(move || sendfile(&clone, 0, u64::MAX / 4, &ours));
        settle();
        file.file.set_len(10).unwrap();
        let received = receive(theirs)();
        assert_eq!(sending.join().unwrap().unwrap(), received.len() as u64);
        assert!(received.len() < LEN);
    });
}

#[test]
fn a_reader_that_takes_its_time() {
    const LEN: usize = 8 << 20;
    let file = Temporary::new("slow", LEN);
    timeless(2).run(|| {
        let (ours, mut theirs) = pair();
        let receiving = osier::spawn(move || {
            let (mut got, mut buf) = (Vec::with_capacity(LEN), vec![0; 600_000]);
            loop {
                settle();
                match theirs.read(&mut buf).unwrap() {
                    0 => return got,
                    count => got.extend_from_slice(&buf[..count]),
                }
            }
        });
        assert_eq!(ours.write_more(b"head").unwrap(), 4);
        assert_eq!(sendfile(&file.file, 0, LEN as u64, &ours).unwrap(), LEN as u64);
        drop(ours);
        let got = receiving.join().unwrap();
        assert!(got.starts_with(b"head") && got[4..] == content(0, LEN));

        // One that takes nothing at all.
        let (ours, _theirs) = pair();
        ours.set_write_timeout(Some(SHORT)).unwrap();
        let mut progress = FileProgress::default();
        let stuck = sendfile_after(&file.file, 0, LEN as u64, &ours, || Ok(()), &mut progress);
        assert_eq!(stuck.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!((1..LEN as u64).contains(&progress.sent), "{}", progress.sent);
    });
}

#[test]
fn bytes_that_are_not_in_memory_come_from_the_disk() {
    const LEN: usize = 2 << 20;
    let file = Temporary::new("cold", LEN);
    file.file.sync_all().unwrap();
    // On a filesystem in memory this has no effect, and the test shows less.
    let _ = rustix::fs::fadvise(&file.file, 0, None, rustix::fs::Advice::DontNeed);
    on(1).run(|| {
        let (ours, theirs) = pair();
        let receiving = receive(theirs);
        assert_eq!(sendfile(&file.file, 7, LEN as u64 - 7, &ours).unwrap(), LEN as u64 - 7);
        drop(ours);
        assert!(receiving() == content(7, LEN - 7));
    });
}

#[test]
fn what_is_no_file_is_an_error() {
    on(1).run(|| {
        let (ours, _theirs) = pair();
        let (reader, _writer) = io::pipe().unwrap();
        assert!(sendfile(&reader, 0, 10, &ours).is_err());
        let directory = File::open("/").unwrap();
        assert!(sendfile(&directory, 0, 10, &ours).is_err());
    });
}

#[test]
fn what_precedes_a_file_goes_out_before_it_and_once() {
    on(1).run(|| {
        let file = Temporary::new("after", 3 << 20);
        let (ours, mut theirs) = pair();
        let receiving = osier::spawn(move || {
            let mut sink = Vec::new();
            theirs.read_to_end(&mut sink).map(|_| sink)
        });
        let head = || (&ours).write_all(b"head");
        let mut progress = FileProgress::default();
        sendfile_after(&file.file, 0, 3 << 20, &ours, head, &mut progress).unwrap();
        // Nothing to send, nothing before it; and what fails before it is not followed.
        sendfile_after(&file.file, 0, 0, &ours, || unreachable!(), &mut progress).unwrap();
        let broken = || Err(io::ErrorKind::BrokenPipe.into());
        let failed = sendfile_after(&file.file, 0, 10, &ours, broken, &mut progress);
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(progress.sent, 3 << 20);
        drop(ours);
        let received = receiving.join().unwrap().unwrap();
        assert!(received.starts_with(b"head") && received[4..] == content(0, 3 << 20));
    });
}

#[test]
fn std_copy_works_between_streams() {
    on(1).run(|| {
        let mut file = Temporary::new("copy", 100_000);
        let (mut ours, mut theirs) = pair();
        let receiving = osier::spawn(move || {
            let mut sink = Vec::new();
            io::copy(&mut theirs, &mut sink).map(|_| sink)
        });
        file.file.seek(SeekFrom::Start(10)).unwrap();
        assert_eq!(io::copy(&mut file.file, &mut ours).unwrap(), 99_990);
        drop(ours);
        assert!(receiving.join().unwrap().unwrap() == content(10, 99_990));
    });
}

#[test]
fn work_for_a_client_that_went_is_cancelled() {
    for workers in [1, 2] {
        timeless(workers).run(|| {
            for reset in [false, true] {
                for half_close in [HalfClose::IsGone, HalfClose::IsFine] {
                    let (client, server) = pair();
                    let (theirs, going) = osier::net::UnixStream::pair().unwrap();
                    let leaving = osier::spawn(move || {
                        settle();
                        if reset {
                            client.set_linger(Some(Duration::ZERO)).unwrap();
                            drop(client);
                        } else {
                            client.shutdown(Shutdown::Write).unwrap();
                            // Stays half open until the other side lets go.
                            let _ = (&theirs).read(&mut [0]);
                        }
                    });
                    let met = Cell::new(false);
                    let gone = reset || half_close == HalfClose::IsGone;
                    let outcome = osier::timeout(if gone { GENEROUS } else { 2 * SHORT }, || {
                        while_connected(&server, half_close, || {
                            struct Met<'a>(&'a Cell<bool>);
                            impl Drop for Met<'_> {
                                fn drop(&mut self) {
                                    self.0.set(true);
                                }
                            }
                            let _met = Met(&met);
                            forever();
                        })
                    });
                    match outcome {
                        Ok(Err(disconnected)) => {
                            assert!(gone);
                            let error = io::Error::from(disconnected);
                            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
                        }
                        Ok(Ok(())) => panic!("it slept for an hour"),
                        Err(_) => assert!(!gone, "reset {reset}, {half_close:?}: not noticed"),
                    }
                    assert!(met.get(), "the body was unwound");
                    drop(going);
                    leaving.join().unwrap();
                    // Outside nothing is cancelled.
                    osier::yield_now();
                }
            }
        });
    }
}

#[test]
fn bytes_do_not_hide_the_end_that_follows() {
    if !osier::poll::Poller::new().unwrap().capabilities().read_closed {
        return println!("skipped: this driver does not tell a half-close from bytes");
    }
    for workers in [1, 2] {
        timeless(workers).run(|| {
            let (mut client, server) = pair();
            client.set_nodelay(true).unwrap();
            osier::spawn(move || {
                for _ in 0..5 {
                    settle();
                    client.write_all(b"the next request").unwrap();
                }
                settle();
            });
            let outcome = osier::timeout(GENEROUS, || while_connected(&server, HalfClose::IsGone, forever));
            assert!(outcome.expect("the end is noticed").is_err());
        });
    }
}

#[test]
fn a_body_may_wait_for_its_own_client() {
    timeless(1).run(|| {
        let (mut client, server) = pair();
        client.write_all(b"all of it").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        settle();
        let outcome = while_connected(&server, HalfClose::IsGone, || {
            // A half-closed client still gets its response from a server that only reads and writes.
            let mut text = String::new();
            (&server).read_to_string(&mut text).unwrap();
            (&server).write_all(text.as_bytes()).unwrap();
            text.len()
        });
        assert_eq!(outcome, Ok(9));
        drop(server);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "all of it");
    });
}

#[test]
fn the_first_call_is_told_by_an_error() {
    on(1).run(|| {
        let (client, server) = pair();
        let (other, _kept) = pair();
        other.set_read_timeout(Some(GENEROUS)).unwrap();
        osier::spawn(move || drop(client));
        let mut seen = None;
        let outcome = while_connected(&server, HalfClose::IsGone, || {
            seen = (&other).read(&mut [0]).err().map(|error| Cancelled::is(&error));
        });
        assert!(outcome.is_err());
        assert_eq!(seen, Some(true));
        other.set_read_timeout(Some(SHORT)).unwrap();
        assert_eq!(
            (&other).read(&mut [0]).unwrap_err().kind(),
            ErrorKind::TimedOut,
            "and nothing of it is left"
        );
    });
}

#[test]
fn a_body_that_ends_first_keeps_its_value() {
    let check = || {
        let (client, server) = pair();
        assert_eq!(while_connected(&server, HalfClose::IsGone, || 7), Ok(7));
        drop(client);
        // It never waits, so it does not learn of the hang-up.
        assert_eq!(while_connected(&server, HalfClose::IsGone, || 8), Ok(8));
    };
    on(1).run(check);
    check();
    let panicked = on(1).run(|| {
        let (_client, server) = pair();
        let fiber = osier::spawn(move || while_connected(&server, HalfClose::IsGone, || panic!("mine")));
        fiber.join().map(drop).unwrap_err().downcast_ref::<&str>().copied()
    });
    assert_eq!(panicked, Some("mine"));
}

#[test]
fn a_client_that_goes_is_noticed_although_a_hook_has_suspended() {
    if !osier::poll::Poller::new().unwrap().capabilities().read_closed {
        return println!("skipped: this driver does not tell a half-close from bytes");
    }
    timeless(1).run(|| {
        let (mut client, server) = pair();
        let hooked = AtomicUsize::new(0);
        let start = osier::time::now();
        let outcome = fiber::before_suspend(
            &|| {
                if hooked.fetch_add(1, Ordering::SeqCst) == 0 {
                    // Bytes come while the hook waits: an edge that says nothing of the end.
                    client_sends(&client);
                    pass(Duration::from_millis(20));
                }
            },
            || {
                osier::io::while_connected(&server, osier::io::HalfClose::IsGone, || {
                    forever();
                })
            },
        );
        fn client_sends(mut client: &TcpStream) {
            client.write_all(b"x").unwrap();
            let leaving = client.try_clone().unwrap();
            drop(osier::spawn_local(move || {
                pass(Duration::from_millis(100));
                leaving.shutdown(std::net::Shutdown::Both).unwrap();
            }));
        }
        assert!(outcome.is_err() && osier::time::now() - start < GENEROUS, "{outcome:?}");
        let _ = client.flush();
    });
}

/// preadv2(2) takes the offset -1 for the file's own position.
#[test]
fn an_offset_that_no_file_has_is_refused_and_moves_nothing() {
    let path = std::env::temp_dir().join(format!("osier-no-offset-{}", std::process::id()));
    fs::write(&path, "0123456789").unwrap();
    let mut file = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let refused = || {
        for offset in [u64::MAX, u64::MAX - 9, 1 << 63] {
            let error = osier::io::read_at(&file, offset, &mut [0; 4]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{offset}");
        }
    };
    refused();
    osier::run(refused);
    assert_eq!(file.stream_position().unwrap(), 0);
}
