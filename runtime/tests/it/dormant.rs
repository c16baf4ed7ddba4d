//! Dormant connections: woken by their socket or by a leaf, panicking, and ended with their runtime.

use std::io::{self, Read, Write};
use std::panic::panic_any;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::given::{Bomb, on, pair, settle, timeless, until};
use osier::Runtime;
use osier::dormant::{AfterBurst, Cause, Dormant, park_local, start_local};
use osier::io::Source;
use osier::net::{TcpStream, UdpSocket};
use osier::sync::Event;
use osier::time::VirtualClock;

const LIMIT: Duration = Duration::from_secs(30);

struct Waits {
    stream: TcpStream,
    event: Arc<Event>,
    wait: Option<Pin<Box<dyn Future<Output = ()>>>>,
    panics: bool,
}

impl Dormant for Waits {
    fn source(&self) -> &dyn Source {
        &self.stream
    }

    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let event = self.event.clone();
        let wait = self
            .wait
            .get_or_insert_with(|| Box::pin(async move { event.wait_async().await }));
        let polled = wait.as_mut().poll(cx);
        assert!(!(self.panics && polled.is_ready()), "as the test wants it");
        polled
    }

    fn wake(&mut self, cause: Cause) -> AfterBurst {
        match cause {
            // It is not asked: it would go on for ever.
            Cause::Woken if self.panics => {}
            Cause::Woken => {
                self.wait = None;
                self.stream.write_all(b"w").expect("the client reads");
            }
            Cause::Readable => {
                // A read that fills its buffer would leave the next wake-up to a socket that may be empty.
                match self.stream.read(&mut [0; 64]) {
                    Ok(1) => self.stream.write_all(b"r").expect("the client reads"),
                    _ => return AfterBurst::End,
                }
            }
            Cause::Writable | Cause::Deadline | Cause::Shutdown => return AfterBurst::End,
        }
        AfterBurst::Sleep(None)
    }
}

fn rested(panics: bool) -> (TcpStream, Arc<Event>) {
    let (client, stream) = pair();
    let event = Arc::new(Event::new());
    let connection = Waits {
        stream,
        event: event.clone(),
        wait: None,
        panics,
    };
    park_local(Box::new(connection), None).unwrap();
    (client, event)
}

#[test]
fn a_leaf_in_the_box_wakes_it_from_any_thread() {
    osier::run(|| {
        let (mut client, event) = rested(false);
        let mut byte = [0];
        for _ in 0..100 {
            event.set();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"w");
            let other = event.clone();
            std::thread::spawn(move || other.set()).join().unwrap();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"w");
            client.write_all(b"x").unwrap();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"r");
        }
    });
}

/// Answers what has arrived, and ends with its peer. Notes its causes.
struct Begun(TcpStream, Arc<Mutex<Vec<Cause>>>);

impl Dormant for Begun {
    fn source(&self) -> &dyn Source {
        &self.0
    }

    fn wake(&mut self, cause: Cause) -> AfterBurst {
        self.1.lock().unwrap().push(cause);
        let mut buf = [0; 64];
        match self.0.try_read(&mut buf) {
            Ok(0) => AfterBurst::End,
            Ok(count) => {
                self.0.write_all(&buf[..count]).expect("the client reads");
                AfterBurst::Sleep(None)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => AfterBurst::Sleep(None),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_started_connection_is_called_at_once_and_again_when_bytes_arrive() {
    on(1).run(|| {
        for early in [true, false] {
            let (mut client, stream) = pair();
            let causes = Arc::default();
            let mut echo = [0; 5];
            let ask = |client: &mut TcpStream| client.write_all(b"hello").expect("it is open");
            if early {
                ask(&mut client);
            }
            start_local(Box::new(Begun(stream, Arc::clone(&causes))), None).unwrap();
            until(|| *causes.lock().unwrap() == [Cause::Readable]);
            if !early {
                ask(&mut client);
            }
            client.read_exact(&mut echo).unwrap();
            for _ in 0..3 {
                ask(&mut client);
                client.read_exact(&mut echo).unwrap();
                assert_eq!(&echo, b"hello");
            }
            drop(client);
            until(|| Arc::strong_count(&causes) == 1);
        }
    });
}

#[test]
fn a_poll_that_panics_ends_the_connection_and_nothing_else() {
    osier::run(|| {
        let (mut client, event) = rested(true);
        client.set_read_timeout(Some(LIMIT)).unwrap();
        event.set();
        assert_eq!(client.read(&mut [0]).expect("the connection ends"), 0);
    });
}

/// Leaves its bytes in the socket until its event is set, which says what comes next.
struct Deferred {
    waits: Waits,
    causes: Arc<Mutex<Vec<Cause>>>,
}

impl Dormant for Deferred {
    fn source(&self) -> &dyn Source {
        self.waits.source()
    }

    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.waits.poll_woken(cx)
    }

    fn wake(&mut self, cause: Cause) -> AfterBurst {
        self.causes.lock().unwrap().push(cause);
        match cause {
            Cause::Readable if self.waits.wait.is_some() => AfterBurst::SleepUntilWoken(None),
            Cause::Woken => {
                self.waits.wait = None;
                // A read that leaves bytes: no event announces these again.
                self.waits.stream.read_exact(&mut [0; 2]).expect("they have arrived");
                AfterBurst::Sleep(None)
            }
            _ => AfterBurst::End,
        }
    }
}

#[test]
fn a_connection_that_waits_for_its_leaf_alone_leaves_its_bytes() {
    on(1).run(|| {
        let (mut client, stream) = pair();
        let (event, causes) = (Arc::new(Event::new()), Arc::new(Mutex::new(Vec::new())));
        let waits = Waits {
            stream,
            event: event.clone(),
            wait: None,
            panics: false,
        };
        let deferred = Deferred {
            waits,
            causes: Arc::clone(&causes),
        };
        park_local(Box::new(deferred), None).unwrap();
        client.write_all(b"x").unwrap();
        until(|| !causes.lock().unwrap().is_empty());
        for _ in 0..2 {
            client.write_all(b"x").unwrap();
            // Real time: a wake-up too many has to have its chance.
            osier::sleep(Duration::from_millis(20));
        }
        assert_eq!(causes.lock().unwrap()[..], [Cause::Readable]);
        event.set();
        // The third byte wakes it again. Its second event is never set.
        until(|| causes.lock().unwrap().len() > 2);
        // Real time: a wake-up too many has to have its chance.
        osier::sleep(Duration::from_millis(20));
        assert_eq!(
            causes.lock().unwrap()[..],
            [Cause::Readable, Cause::Woken, Cause::Readable]
        );
        drop(client);
    });
}

struct Conn<F>(TcpStream, F);

impl<F: FnMut(&mut TcpStream, Cause) -> AfterBurst + 'static> Dormant for Conn<F> {
    fn source(&self) -> &dyn osier::io::Source {
        &self.0
    }
    fn wake(&mut self, cause: Cause) -> AfterBurst {
        (self.1)(&mut self.0, cause)
    }
}

#[test]
fn a_dormant_connection_that_panics_harms_nobody() {
    on(1).run(|| {
        for bomb in [false, true] {
            let (mut client, server) = pair();
            let wake = move |_: &mut TcpStream, _| -> AfterBurst {
                match bomb {
                    true => panic_any(Bomb),
                    false => panic!("a connection panics"),
                }
            };
            park_local(Box::new(Conn(server, wake)), None).unwrap();
            client.write_all(b"x").unwrap();
            let _ = client.set_read_timeout(Some(LIMIT));
            assert!(!matches!(client.read(&mut [0]), Ok(1..)), "its socket is closed");
        }
    });
}

/// Its socket cannot be asked for: the worker asks between fibers.
struct Unnamed(TcpStream, bool, Arc<Event>);

impl Dormant for Unnamed {
    fn source(&self) -> &dyn Source {
        assert!(!self.1, "no source");
        &self.0
    }

    fn wake(&mut self, cause: Cause) -> AfterBurst {
        assert_eq!(cause, Cause::Deadline, "no call after the panic");
        self.1 = true;
        AfterBurst::SleepUntilWritable(None)
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        osier::sleep(Duration::from_millis(1)); // on a fiber
        self.2.set();
    }
}

#[test]
fn a_source_that_panics_ends_the_connection_and_nothing_else() {
    let runtime = on(1);
    runtime.run(|| {
        let (_client, ours) = pair();
        let gone = Arc::new(Event::new());
        let connection = Unnamed(ours, false, Arc::clone(&gone));
        park_local(Box::new(connection), Some(osier::time::now())).unwrap();
        gone.wait();
    });
    assert_eq!(runtime.run(|| 7), 7, "the worker goes on");
}

#[test]
fn a_dormant_connection_whose_destructor_blocks_at_shutdown_does_so_on_a_fiber() {
    struct Slow(Arc<AtomicUsize>, Arc<AtomicUsize>);
    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            osier::shield(settle);
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (begun, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let causes = Arc::new(AtomicUsize::new(0));
    let clients = timeless(1).run(|| {
        let mut clients = Vec::new();
        for _ in 0..3 {
            let (client, server) = pair();
            let slow = Slow(Arc::clone(&begun), Arc::clone(&done));
            let causes = Arc::clone(&causes);
            let wake = move |_: &mut TcpStream, cause| {
                let _slow = &slow;
                causes.fetch_add(usize::from(cause == Cause::Shutdown), Ordering::SeqCst);
                AfterBurst::Sleep(None)
            };
            park_local(Box::new(Conn(server, wake)), None).unwrap();
            clients.push(client);
        }
        clients
    });
    assert_eq!(causes.load(Ordering::SeqCst), 3);
    assert_eq!((begun.load(Ordering::SeqCst), done.load(Ordering::SeqCst)), (3, 3));
    drop(clients);
}

#[test]
fn a_dormant_connection_that_stays_readable_hears_of_the_shutdown() {
    let causes = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&causes);
    let runtime = Runtime::builder().workers(1).shutdown_timeout(Duration::from_secs(5));
    let runtime = runtime.build().unwrap();
    let client = runtime.run(move || {
        let (mut client, server) = pair();
        client.write_all(b"nobody reads this").unwrap();
        let wake = move |_: &mut TcpStream, cause| {
            noted.lock().unwrap().push((cause, osier::fiber::is_cancelled()));
            AfterBurst::Sleep(None)
        };
        park_local(Box::new(Conn(server, wake)), None).unwrap();
        client
    });
    drop(runtime);
    let causes = causes.lock().unwrap();
    assert_eq!(causes.iter().filter(|(cause, _)| *cause == Cause::Shutdown).count(), 1);
    assert_eq!(
        causes.last(),
        Some(&(Cause::Shutdown, true)),
        "the last call, cancelled"
    );
    drop(client);
}

#[test]
fn a_dormant_socket_rests_after_its_error_was_taken() {
    struct Probe(UdpSocket, Arc<AtomicUsize>);
    impl Dormant for Probe {
        fn source(&self) -> &dyn Source {
            &self.0
        }
        fn wake(&mut self, _: Cause) -> AfterBurst {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            while !matches!(self.0.recv(&mut [0]), Err(error) if error.kind() == io::ErrorKind::TimedOut) {}
            AfterBurst::Sleep(None)
        }
    }
    on(1).run(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        socket.connect(nobody).unwrap();
        let wakes = Arc::new(AtomicUsize::new(0));
        socket.send(b"x").unwrap();
        park_local(Box::new(Probe(socket, Arc::clone(&wakes))), None).unwrap();
        until(|| wakes.load(Ordering::SeqCst) > 0);
        // Real time: a wake-up too many has to have its chance.
        osier::sleep(Duration::from_millis(200));
        let wakes = wakes.load(Ordering::SeqCst);
        assert!((1..10).contains(&wakes), "{wakes} wake-ups for one error");
    });
}

/// Sends `left` bytes as the socket takes them, with no stack in between.
struct Sends {
    stream: TcpStream,
    left: usize,
    causes: Arc<Mutex<Vec<Cause>>>,
}

impl Dormant for Sends {
    fn source(&self) -> &dyn Source {
        &self.stream
    }

    fn wake(&mut self, cause: Cause) -> AfterBurst {
        self.causes.lock().unwrap().push(cause);
        let piece = [7; 64 << 10];
        while self.left > 0 {
            match self.stream.try_write(&piece[..piece.len().min(self.left)]) {
                Ok(count) => self.left -= count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return AfterBurst::SleepUntilWritable(None),
                Err(_) => return AfterBurst::End,
            }
        }
        let _ = self.stream.read(&mut [0; 64]); // a close with unread bytes is a reset
        AfterBurst::End
    }
}

#[test]
fn a_dormant_sender_is_woken_when_its_socket_takes_bytes_and_not_by_bytes_that_come() {
    const LENGTH: usize = 20 << 20;
    on(1).run(|| {
        let (mut theirs, ours) = pair();
        let causes = Arc::new(Mutex::new(Vec::new()));
        let sends = Sends {
            stream: ours,
            left: LENGTH,
            causes: Arc::clone(&causes),
        };
        theirs.write_all(b"go").unwrap();
        park_local(Box::new(sends), None).unwrap();
        theirs.peek(&mut [0]).unwrap();
        theirs.write_all(b"bytes that nobody reads").unwrap();
        // Real time: a wake-up too many has to have its chance.
        osier::sleep(Duration::from_millis(100));
        assert_eq!(causes.lock().unwrap()[..], [Cause::Readable]);
        let (mut piece, mut taken) = (vec![0; 1 << 20], 0);
        while let count @ 1.. = theirs.read(&mut piece).unwrap_or(0) {
            assert!(piece[..count].iter().all(|byte| *byte == 7));
            taken += count;
        }
        assert_eq!(taken, LENGTH);
        let causes = causes.lock().unwrap();
        assert!(
            causes.len() > 1 && causes[1..].iter().all(|cause| *cause == Cause::Writable),
            "{causes:?}"
        );
    });
}

#[test]
fn a_dormant_sender_learns_that_its_peer_is_gone() {
    on(1).run(|| {
        let (mut theirs, ours) = pair();
        let causes = Arc::new(Mutex::new(Vec::new()));
        let sends = Sends {
            stream: ours,
            left: usize::MAX,
            causes: Arc::clone(&causes),
        };
        theirs.write_all(b"go").unwrap();
        park_local(Box::new(sends), None).unwrap();
        theirs.peek(&mut [0]).unwrap();
        // The burst that wrote has ended: it had this worker.
        assert_eq!(causes.lock().unwrap()[..], [Cause::Readable]);
        drop(theirs); // with unread bytes: a reset
        // Real time: the reset arrives when the kernel sends it.
        until(|| Arc::strong_count(&causes) == 1);
    });
}

/// Sleeps for a while after each byte, and tells when its time is over.
struct Sleeps(TcpStream, Arc<Mutex<Vec<Duration>>>, VirtualClock);

impl Dormant for Sleeps {
    fn source(&self) -> &dyn Source {
        &self.0
    }

    fn wake(&mut self, cause: Cause) -> AfterBurst {
        match cause {
            Cause::Readable if matches!(self.0.read(&mut [0; 64]), Ok(1)) => AfterBurst::SleepFor(LIMIT),
            Cause::Deadline => {
                self.1.lock().unwrap().push(self.2.elapsed());
                AfterBurst::End
            }
            _ => AfterBurst::End,
        }
    }
}

#[test]
fn a_connection_that_sleeps_for_a_while_is_woken_then_and_never_before() {
    for early in [Duration::ZERO, Duration::from_micros(1), Duration::from_micros(999)] {
        let clock = VirtualClock::new();
        let runtime = Runtime::builder().workers(1).clock(clock.clone()).build().unwrap();
        let woken = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&woken);
        runtime.run(move || {
            clock.advance(early);
            let (mut client, server) = pair();
            park_local(Box::new(Sleeps(server, told, clock)), None).unwrap();
            client.write_all(b"a").unwrap();
            // The end, after the deadline.
            assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        });
        let woken = woken.lock().unwrap();
        let [at] = woken[..] else { panic!("{woken:?}") };
        assert!(
            (early + LIMIT..early + LIMIT + Duration::from_millis(2)).contains(&at),
            "{early:?}: {at:?}"
        );
    }
}

#[test]
fn a_deadline_that_comes_nearer_is_kept() {
    /// Is to end in an hour, and a second after its first byte.
    struct Nearer(TcpStream, Arc<Event>);

    impl Dormant for Nearer {
        fn source(&self) -> &dyn Source {
            &self.0
        }

        fn wake(&mut self, cause: Cause) -> AfterBurst {
            match cause {
                Cause::Readable => {
                    assert_eq!(self.0.read(&mut [0; 64]).unwrap(), 1);
                    AfterBurst::Sleep(Some(osier::time::now() + Duration::from_secs(1)))
                }
                cause => {
                    assert_eq!(cause, Cause::Deadline);
                    self.1.set();
                    AfterBurst::End
                }
            }
        }
    }

    let clock = VirtualClock::new();
    let runtime = Runtime::builder().workers(1).clock(clock.clone()).build().unwrap();
    runtime.run(|| {
        let (mut client, stream) = pair();
        let ended = Arc::new(Event::new());
        // The timer of an hour is set before the byte comes.
        let in_an_hour = osier::time::now() + Duration::from_secs(3600);
        let connection = Nearer(stream, Arc::clone(&ended));
        park_local(Box::new(connection), Some(in_an_hour)).unwrap();
        client.write_all(b"x").unwrap();
        ended.wait();
    });
    assert!(clock.elapsed() < Duration::from_secs(60), "{:?}", clock.elapsed());
}

/// Serves `a` and its event at once, leaves everything else to its fiber, and panics at `p`. Notes its calls, with whether a fiber made them.
struct AtOnce {
    waits: Waits,
    calls: Calls,
}

type Calls = Arc<Mutex<Vec<(Cause, bool)>>>;

impl Dormant for AtOnce {
    fn source(&self) -> &dyn Source {
        &self.waits.stream
    }

    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.waits.poll_woken(cx)
    }

    fn serve_at_once(&mut self, cause: Cause) -> bool {
        self.note(cause);
        if cause == Cause::Woken {
            self.waits.wait = None;
            return self.waits.stream.try_write(b"w").is_ok();
        }
        let mut byte = [0; 64];
        match self.waits.stream.try_read(&mut byte) {
            Ok(1) if byte[0] == b'p' => panic!("as the test wants it"),
            Ok(1) => byte[0] == b'a' && self.waits.stream.try_write(b"a").is_ok(),
            _ => false,
        }
    }

    fn wake(&mut self, cause: Cause) -> AfterBurst {
        self.note(cause);
        if cause != Cause::Readable {
            return AfterBurst::End;
        }
        match self.waits.stream.write_all(b"f") {
            Ok(()) => AfterBurst::SleepFor(LIMIT),
            Err(_) => AfterBurst::End,
        }
    }
}

impl AtOnce {
    fn park(stream: TcpStream, time: Duration) -> (Arc<Event>, Calls) {
        let (event, calls) = (Arc::new(Event::new()), Calls::default());
        let waits = Waits {
            stream,
            event: Arc::clone(&event),
            wait: None,
            panics: false,
        };
        let connection = AtOnce {
            waits,
            calls: Arc::clone(&calls),
        };
        park_local(Box::new(connection), Some(osier::time::now() + time)).unwrap();
        (event, calls)
    }

    fn note(&self, cause: Cause) {
        self.calls.lock().unwrap().push((cause, osier::fiber::id().is_some()));
    }
}

impl Drop for AtOnce {
    fn drop(&mut self) {
        assert!(osier::fiber::id().is_some(), "it is dropped on a fiber");
    }
}

#[test]
fn what_is_served_at_once_needs_no_fiber() {
    on(1).run(|| {
        let (mut client, stream) = pair();
        let (event, calls) = AtOnce::park(stream, LIMIT);
        let mut byte = [0];
        for _ in 0..3 {
            client.write_all(b"a").unwrap();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"a");
            event.set();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"w");
        }
        let once = [(Cause::Readable, false), (Cause::Woken, false)];
        assert_eq!(*calls.lock().unwrap(), once.repeat(3));
    });
}

#[test]
fn a_connection_that_is_always_served_at_once_keeps_its_deadline() {
    on(1).run(|| {
        let (mut client, stream) = pair();
        let time = Duration::from_millis(50);
        let begun = osier::time::now();
        let (_event, calls) = AtOnce::park(stream, time);
        client.set_read_timeout(Some(LIMIT)).unwrap();
        while client.write_all(b"a").is_ok() && matches!(client.read(&mut [0]), Ok(1)) {}
        assert!(begun.elapsed() >= time);
        assert_eq!(calls.lock().unwrap().last(), Some(&(Cause::Deadline, true)));
    });
}

#[test]
fn what_is_left_goes_to_the_fiber_though_the_socket_is_empty() {
    on(1).run(|| {
        let (mut client, stream) = pair();
        let (_event, calls) = AtOnce::park(stream, LIMIT);
        for _ in 0..3 {
            client.write_all(b"x").unwrap();
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"f");
        }
        let both = [(Cause::Readable, false), (Cause::Readable, true)];
        assert_eq!(*calls.lock().unwrap(), both.repeat(3));
    });
}

#[test]
fn a_connection_that_panics_outside_of_a_fiber_is_dropped_on_one() {
    on(1).run(|| {
        let (mut client, stream) = pair();
        let (event, calls) = AtOnce::park(stream, LIMIT);
        client.write_all(b"p").unwrap();
        let _ = client.set_read_timeout(Some(LIMIT));
        assert!(!matches!(client.read(&mut [0]), Ok(1..)), "its socket is closed");
        until(|| Arc::strong_count(&event) == 1);
        assert_eq!(*calls.lock().unwrap(), [(Cause::Readable, false)]);
    });
}
