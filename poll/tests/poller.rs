//! What every back-end of the poller must do: bytes, edges, arming, closing, errors, timeouts, wake-ups.

use osier_poll::{Event, Events, Interest, Mode, Poller, Ready, Token};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::net::{SendFlags, send};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for anything that is to happen on the slowest machine.
const SOON: Duration = Duration::from_secs(30);
/// Long enough for an event that is wrongly there to show, if it is there at all: loopback delivers at once.
const NOW: Duration = Duration::ZERO;

const A: Token = Token(1);
const B: Token = Token(2);

/// A poller with its events, and the words of these tests.
struct Bench {
    poller: Poller,
    events: Events,
}

impl Bench {
    fn new() -> Self {
        Self {
            poller: Poller::new().unwrap(),
            events: Events::with_capacity(16),
        }
    }

    fn watch(&self, fd: impl AsFd, token: Token, interest: Interest, mode: Mode) {
        self.poller.add(fd, token, interest, mode).unwrap();
    }

    fn wait(&mut self, timeout: Duration) -> Vec<Event> {
        let count = self.poller.wait(&mut self.events, Some(timeout)).unwrap();
        assert_eq!((count, self.events.is_empty()), (self.events.len(), count == 0));
        let mut events: Vec<Event> = self.events.iter().collect();
        events.sort_by_key(|event| event.token);
        events
    }

    /// Waits until the one event of `token` holds all of `readiness`, and returns what it holds.
    #[track_caller]
    fn expect(&mut self, token: Token, readiness: Ready) -> Ready {
        let deadline = Instant::now() + SOON;
        loop {
            let events = self.wait(deadline.saturating_duration_since(Instant::now()));
            assert!(events.iter().all(|event| event.token == token), "{events:?}");
            match events.first() {
                Some(event) if event.readiness.contains(readiness) => return event.readiness,
                _ => assert!(
                    Instant::now() < deadline,
                    "no {readiness:?} of {token:?}, but {events:?}"
                ),
            }
        }
    }

    #[track_caller]
    fn expect_nothing(&mut self) {
        assert_eq!(self.wait(NOW), []);
    }
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap()
}

fn read(fd: impl AsFd) -> usize {
    rustix::io::read(fd, &mut [0; 64][..]).unwrap()
}

fn write(fd: impl AsFd, bytes: &[u8]) {
    assert_eq!(rustix::io::write(fd, bytes).unwrap(), bytes.len());
}

#[test]
fn level_reports_as_long_as_bytes_wait() {
    let mut bench = Bench::new();
    let (reader, writer) = pipe();
    bench.watch(&reader, A, Interest::READABLE, Mode::Level);
    bench.expect_nothing();
    write(&writer, b"x");
    assert_eq!(bench.expect(A, Ready::READABLE), Ready::READABLE);
    bench.expect(A, Ready::READABLE);
    read(&reader);
    bench.expect_nothing();
}

#[test]
fn edge_reports_each_arrival_once() {
    let mut bench = Bench::new();
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    ours.write_all(b"before").unwrap();
    bench.watch(&theirs, A, Interest::READABLE, Mode::Edge);
    bench.expect(A, Ready::READABLE);
    bench.expect_nothing();
    ours.write_all(b"after").unwrap();
    bench.expect(A, Ready::READABLE);
    bench.expect_nothing();
    assert_eq!(theirs.read(&mut [0; 64]).unwrap(), 11);
    bench.expect_nothing();
}

#[test]
fn oneshot_reports_once_until_armed_again() {
    let mut bench = Bench::new();
    let (reader, writer) = pipe();
    bench.watch(&reader, A, Interest::READABLE, Mode::Oneshot);
    write(&writer, b"x");
    bench.expect(A, Ready::READABLE);
    write(&writer, b"y");
    bench.expect_nothing();
    bench
        .poller
        .modify(&reader, B, Interest::READABLE, Mode::Oneshot)
        .unwrap();
    bench.expect(B, Ready::READABLE);
    bench.expect_nothing();
    read(&reader);
    bench
        .poller
        .modify(&reader, A, Interest::READABLE, Mode::Oneshot)
        .unwrap();
    bench.expect_nothing();
    write(&writer, b"z");
    bench.expect(A, Ready::READABLE);
}

#[test]
fn writable_means_room() {
    let mut bench = Bench::new();
    let (reader, writer) = pipe();
    bench.watch(&writer, A, Interest::WRITABLE, Mode::Level);
    assert_eq!(bench.expect(A, Ready::WRITABLE), Ready::WRITABLE);
    while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
    bench.expect_nothing();
    while rustix::io::read(&reader, &mut [0; 4096][..]).is_ok() {}
    bench.expect(A, Ready::WRITABLE);
}

#[test]
fn both_directions_come_in_one_event() {
    let mut bench = Bench::new();
    let (mut ours, theirs) = tcp_pair();
    ours.write_all(b"x").unwrap();
    bench.watch(&theirs, A, Interest::READABLE | Interest::WRITABLE, Mode::Level);
    bench.expect(A, Ready::READABLE | Ready::WRITABLE);
}

#[test]
fn no_interest_means_no_event() {
    let mut bench = Bench::new();
    let (mut ours, theirs) = tcp_pair();
    ours.write_all(b"x").unwrap();
    bench.watch(&theirs, A, Interest::NONE, Mode::Level);
    bench.expect_nothing();
    bench.poller.modify(&theirs, A, Interest::READABLE, Mode::Edge).unwrap();
    bench.expect(A, Ready::READABLE);
}

#[test]
fn a_listener_is_readable_when_a_peer_connects() {
    let mut bench = Bench::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    bench.watch(&listener, A, Interest::READABLE, Mode::Level);
    bench.expect_nothing();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(bench.expect(A, Ready::READABLE), Ready::READABLE);
}

#[test]
fn a_fin_closes_reading_and_leaves_the_bytes() {
    let mut bench = Bench::new();
    let (mut ours, mut theirs) = tcp_pair();
    bench.watch(&theirs, A, Interest::READABLE | Interest::PRIORITY, Mode::Edge);
    ours.write_all(b"last words").unwrap();
    ours.shutdown(Shutdown::Write).unwrap();
    let readiness = bench.expect(A, Ready::READABLE | Ready::READ_CLOSED);
    assert!(!readiness.is_hup(), "the other direction is open: {readiness:?}");
    let mut text = String::new();
    theirs.read_to_string(&mut text).unwrap();
    assert_eq!(text, "last words");
}

#[test]
fn both_fins_are_a_hang_up() {
    let mut bench = Bench::new();
    let (ours, theirs) = tcp_pair();
    bench.watch(&theirs, A, Interest::NONE, Mode::Level);
    theirs.shutdown(Shutdown::Write).unwrap();
    ours.shutdown(Shutdown::Write).unwrap();
    bench.expect(A, Ready::HUP);
}

#[test]
fn a_reset_is_an_error_and_a_hang_up() {
    let mut bench = Bench::new();
    let (ours, theirs) = tcp_pair();
    bench.watch(&theirs, A, Interest::READABLE, Mode::Level);
    rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::ZERO)).unwrap();
    drop(ours);
    bench.expect(
        A,
        Ready::ERROR | Ready::HUP | Ready::READ_CLOSED | Ready::READABLE,
    );
}

#[test]
fn urgent_data_is_priority() {
    let mut bench = Bench::new();
    let (mut ours, theirs) = tcp_pair();
    bench.watch(&theirs, A, Interest::READABLE | Interest::PRIORITY, Mode::Level);
    ours.write_all(b"plain").unwrap();
    assert!(!bench.expect(A, Ready::READABLE).is_priority());
    assert_eq!(send(&ours, b"!", SendFlags::OOB).unwrap(), 1);
    bench.expect(A, Ready::PRIORITY | Ready::READABLE);
    assert!(bench.poller.capabilities().priority);
}

#[test]
fn the_ends_of_a_pipe_tell_that_the_other_is_gone() {
    let mut bench = Bench::new();
    let (reader, writer) = pipe();
    bench.watch(&reader, A, Interest::READABLE, Mode::Level);
    drop(writer);
    bench.expect(A, Ready::HUP);
    bench.poller.delete(&reader).unwrap();

    let (reader, writer) = pipe();
    bench.watch(&writer, B, Interest::WRITABLE, Mode::Level);
    drop(reader);
    bench.expect(B, Ready::ERROR);
}

#[test]
fn an_eventfd_and_a_timerfd_can_be_watched() {
    let mut bench = Bench::new();
    let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    bench.watch(&counter, A, Interest::READABLE, Mode::Oneshot);
    write(&counter, &1u64.to_ne_bytes());
    bench.expect(A, Ready::READABLE);

    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
    bench.watch(&timer, B, Interest::READABLE, Mode::Level);
    bench.expect_nothing();
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let once = Itimerspec {
        it_interval: zero,
        it_value: Timespec {
            tv_sec: 0,
            tv_nsec: 2_000_000,
        },
    };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once).unwrap();
    bench.expect(B, Ready::READABLE);
}

#[test]
fn what_does_not_fit_comes_with_the_next_wait() {
    let mut bench = Bench::new();
    bench.events = Events::with_capacity(1);
    let capacity = bench.events.capacity();
    let pipes: Vec<_> = (0..capacity + 3).map(|_| pipe()).collect();
    for (index, (reader, writer)) in pipes.iter().enumerate() {
        bench.watch(reader, Token(index as u64), Interest::READABLE, Mode::Edge);
        write(writer, b"x");
    }
    bench.poller.notify().unwrap();
    let mut seen = Vec::new();
    while seen.len() < pipes.len() {
        let events = bench.wait(SOON);
        assert!(events.len() <= capacity);
        seen.extend(events.iter().map(|event| event.token.0));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..pipes.len() as u64).collect::<Vec<_>>());
}

#[test]
fn a_deleted_descriptor_is_silent() {
    let mut bench = Bench::new();
    let (reader, writer) = pipe();
    bench.watch(&reader, A, Interest::READABLE, Mode::Level);
    write(&writer, b"x");
    bench.poller.delete(&reader).unwrap();
    bench.expect_nothing();
    bench.watch(&reader, B, Interest::READABLE, Mode::Level);
    bench.expect(B, Ready::READABLE);
}

#[test]
fn misuse_is_an_error_of_the_promised_kind() {
    let poller = Poller::new().unwrap();
    let (reader, _writer) = pipe();
    let kind = |result: std::io::Result<()>| result.unwrap_err().kind();
    let (interest, mode) = (Interest::READABLE, Mode::Level);

    assert_eq!(kind(poller.modify(&reader, A, interest, mode)), ErrorKind::NotFound);
    assert_eq!(kind(poller.delete(&reader)), ErrorKind::NotFound);
    poller.add(&reader, A, interest, mode).unwrap();
    assert_eq!(kind(poller.add(&reader, B, interest, mode)), ErrorKind::AlreadyExists);
    poller.delete(&reader).unwrap();
    assert_eq!(kind(poller.delete(&reader)), ErrorKind::NotFound);

    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(kind(poller.add(&file, A, interest, mode)), ErrorKind::PermissionDenied);
    assert_eq!(kind(poller.add(&poller, A, interest, mode)), ErrorKind::InvalidInput);

    let reserved = Token(u64::MAX);
    assert_eq!(
        kind(poller.add(&reader, reserved, interest, mode)),
        ErrorKind::InvalidInput
    );
    poller.add(&reader, A, interest, mode).unwrap();
    assert_eq!(
        kind(poller.modify(&reader, reserved, interest, mode)),
        ErrorKind::InvalidInput
    );
}

#[test]
fn a_timeout_is_never_early() {
    let mut bench = Bench::new();
    for timeout in [1, 999_999, 1_000_000, 1_000_001, 7_300_000].map(Duration::from_nanos) {
        let start = Instant::now();
        assert_eq!(bench.wait(timeout), []);
        assert!(start.elapsed() >= timeout, "{timeout:?}: {:?}", start.elapsed());
    }
    let start = Instant::now();
    bench.expect_nothing();
    assert!(start.elapsed() < SOON, "a timeout of zero does not wait");
}

#[test]
fn a_timeout_beyond_the_system_s_range_is_taken() {
    let mut bench = Bench::new();
    bench.poller.notify().unwrap();
    assert_eq!(bench.wait(Duration::MAX), []);
}

#[test]
fn notifications_before_a_wait_become_one_and_are_not_shown() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        for _ in 0..1000 {
            bench.poller.notify().unwrap();
        }
        assert_eq!(bench.poller.wait(&mut bench.events, None).unwrap(), 0);
        let start = Instant::now();
        assert_eq!(bench.wait(Duration::from_millis(5)), []);
        assert!(
            start.elapsed() >= Duration::from_millis(5),
            "one notification ends one wait"
        );
    }
}

#[test]
fn a_notification_comes_beside_events() {
    let mut bench = Bench::new();
    let (reader, writer) = pipe();
    bench.watch(&reader, A, Interest::READABLE, Mode::Level);
    write(&writer, b"x");
    bench.poller.notify().unwrap();
    bench.expect(A, Ready::READABLE);
    read(&reader);
    let start = Instant::now();
    assert_eq!(bench.wait(Duration::from_millis(5)), []);
    assert!(
        start.elapsed() >= Duration::from_millis(5),
        "the notification is used up"
    );
}

#[test]
fn a_notification_from_another_thread_ends_the_wait_and_none_is_lost() {
    const ROUNDS: usize = 2000;
    let poller = Arc::new(Poller::new().unwrap());
    let (sent, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let notifier = thread::spawn({
        let (poller, sent, seen) = (poller.clone(), sent.clone(), seen.clone());
        move || {
            for round in 1..=ROUNDS {
                sent.store(round, Ordering::Relaxed);
                poller.notify().unwrap();
                while seen.load(Ordering::Relaxed) < round {
                    thread::yield_now();
                }
            }
        }
    });
    let mut events = Events::with_capacity(4);
    while seen.load(Ordering::Relaxed) < ROUNDS {
        let start = Instant::now();
        poller.wait(&mut events, Some(SOON)).unwrap();
        assert!(start.elapsed() < SOON, "a notification was lost");
        seen.store(sent.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    notifier.join().unwrap();
}

#[test]
fn many_notifiers_at_once_lose_nothing() {
    const EACH: usize = 5000;
    let poller = Poller::new().unwrap();
    let sent = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    sent.fetch_add(1, Ordering::Relaxed);
                    poller.notify().unwrap();
                }
            });
        }
        let mut events = Events::with_capacity(4);
        let mut seen = 0;
        while seen < 3 * EACH {
            let start = Instant::now();
            poller.wait(&mut events, Some(SOON)).unwrap();
            assert!(start.elapsed() < SOON, "a notification was lost at {seen}");
            seen = sent.load(Ordering::Relaxed);
        }
    });
}

#[test]
fn another_thread_may_register_during_a_wait() {
    let mut bench = Bench::new();
    let (reader, writer) = pipe();
    thread::scope(|scope| {
        let poller = &bench.poller;
        scope.spawn(|| {
            write(&writer, b"x");
            poller.add(&reader, A, Interest::READABLE, Mode::Edge).unwrap();
        });
        assert_eq!(poller.wait(&mut bench.events, Some(SOON)).unwrap(), 1);
    });
    assert_eq!(bench.events.iter().next().unwrap().token, A);
}

#[test]
fn a_poller_stands_in_another_poller() {
    let mut outer = Bench::new();
    let mut inner = Bench::new();
    let (reader, writer) = pipe();
    inner.watch(&reader, A, Interest::READABLE, Mode::Level);
    outer.watch(&inner.poller, B, Interest::READABLE, Mode::Level);
    outer.expect_nothing();
    write(&writer, b"x");
    outer.expect(B, Ready::READABLE);
    inner.expect(A, Ready::READABLE);
    read(&reader);
    inner.expect_nothing();
    outer.expect_nothing();
    inner.poller.notify().unwrap();
    outer.expect(B, Ready::READABLE);
}

#[test]
fn the_descriptors_are_close_on_exec_and_do_not_leak() {
    let poller = Poller::new().unwrap();
    assert!(
        rustix::io::fcntl_getfd(&poller)
            .unwrap()
            .contains(rustix::io::FdFlags::CLOEXEC)
    );
    let (reader, _writer) = pipe();
    assert!(rustix::fs::fcntl_getfl(&reader).unwrap().contains(OFlags::NONBLOCK));
    poller.add(&reader, A, Interest::READABLE, Mode::Level).unwrap();
    assert!(
        rustix::fs::fcntl_getfl(&reader).unwrap().contains(OFlags::NONBLOCK),
        "flags are never touched"
    );
}
