//! Closing a descriptor removes it from every poller, and leaves no duplicate open.
//!
//! A poller over poll(2) keeps a duplicate of each descriptor that it watches. If a close forgot the duplicate, the peer
//! would never read the end, and these tests would count it.

#[path = "it/given.rs"]
#[allow(dead_code)] // a part of it
mod given;

use std::future::Future;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use osier::dormant::{self, AfterBurst, Cause, Dormant};
use osier::net::{TcpListener, TcpStream};
use osier::{Runtime, fiber};

const GENEROUS: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(5);

type Case = (&'static str, fn());

const CASES: &[Case] = &[
    ("a wait that ran out of time", after_a_timeout),
    ("a wait that was cancelled", after_a_cancellation),
    ("waits on two workers", after_waits_on_two_workers),
    ("a future that was dropped", after_a_future),
    ("a future on a plain thread", after_a_future_on_a_plain_thread),
    ("a connection at rest", after_a_rest),
    ("a socket given away", after_it_was_given_away),
    ("a foreign descriptor", after_a_foreign_wait),
    ("a socket waited for as a foreign one too", after_waits_of_both_kinds),
    ("a descriptor in Async", after_a_wait_of_async),
];

// One test, because it counts what the whole process has open.
#[test]
fn what_is_closed_after_a_wait_is_closed() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    for (name, case) in CASES {
        let round = || runtime.run(|| osier::timeout(GENEROUS, case)).expect("a hang");
        // The first round also opens what stays open.
        round();
        let before = open();
        for _ in 0..5 {
            round();
        }
        assert_eq!(open(), before, "{name}");
    }
}

fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(GENEROUS)).unwrap();
    (listener.accept().unwrap().0, peer)
}

fn wait_to_read(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(SHORT)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
}

fn wait_to_write(mut stream: &TcpStream) {
    stream.set_write_timeout(Some(SHORT)).unwrap();
    let block = vec![0; 1 << 18];
    while stream.write(&block).is_ok() {}
}

/// Reads to the end: the other end is closed entirely.
fn meets_the_end(mut peer: TcpStream) {
    io::copy(&mut peer, &mut io::sink()).expect("the end");
}

fn has_nobody_to_read(mut writer: PipeWriter) {
    let error = writer.write(b"x").expect_err("the reader is open somewhere");
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

fn poll_once(future: impl Future) {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(future).as_mut().poll(&mut cx).is_pending());
}

fn after_a_timeout() {
    let (stream, peer) = pair();
    wait_to_read(&stream);
    drop(stream);
    meets_the_end(peer);
}

fn after_a_cancellation() {
    let (mut stream, peer) = pair();
    let reader = osier::spawn(move || stream.read(&mut [0]));
    given::others_wait();
    reader.cancel();
    assert!(!matches!(reader.join(), Ok(Ok(_))));
    meets_the_end(peer);
}

fn after_waits_on_two_workers() {
    let (stream, peer) = pair();
    let stream = Arc::new(stream);
    let waits: [fn(&TcpStream); 3] = [wait_to_read, wait_to_write, wait_to_read];
    for (worker, wait) in waits.into_iter().enumerate() {
        let stream = Arc::clone(&stream);
        let waiter = fiber::Builder::new().worker(worker % 2);
        waiter.spawn(move || wait(&stream)).join().unwrap();
    }
    thread::spawn(move || drop(stream)).join().unwrap();
    meets_the_end(peer);
}

fn after_a_future() {
    let (stream, peer) = pair();
    poll_once(stream.peek_async(&mut [0]));
    drop(stream);
    meets_the_end(peer);
}

fn after_a_future_on_a_plain_thread() {
    let (stream, peer) = pair();
    wait_to_read(&stream);
    let elsewhere = thread::spawn(move || poll_once(stream.peek_async(&mut [0])));
    elsewhere.join().unwrap();
    meets_the_end(peer);
}

struct Rest(TcpStream);

impl Dormant for Rest {
    fn source(&self) -> &dyn osier::io::Source {
        &self.0
    }

    fn wake(&mut self, cause: Cause) -> AfterBurst {
        assert_eq!(cause, Cause::Deadline);
        AfterBurst::End
    }
}

fn after_a_rest() {
    let (stream, peer) = pair();
    dormant::park_local(Box::new(Rest(stream)), Some(Instant::now() + SHORT)).unwrap();
    // Past the deadline of the rest.
    osier::sleep(4 * SHORT);
    meets_the_end(peer);
}

fn after_it_was_given_away() {
    let (stream, peer) = pair();
    wait_to_read(&stream);
    drop(OwnedFd::from(stream));
    meets_the_end(peer);
}

fn wait_for_a_foreign_one(reader: &PipeReader) {
    let error = osier::io::readable(reader, Some(Instant::now() + SHORT)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

fn after_a_foreign_wait() {
    let (reader, writer) = io::pipe().unwrap();
    wait_for_a_foreign_one(&reader);
    drop(reader);
    has_nobody_to_read(writer);
}

fn after_waits_of_both_kinds() {
    let (stream, peer) = pair();
    let stream = Arc::new(stream);
    let theirs = Arc::clone(&stream);
    let foreign = osier::spawn_local(move || osier::io::readable(&*theirs, Some(Instant::now() + 4 * SHORT)));
    osier::yield_now();
    wait_to_read(&stream);
    assert!(foreign.join().unwrap().is_err());
    drop(stream);
    meets_the_end(peer);
}

fn after_a_wait_of_async() {
    let (reader, writer) = io::pipe().unwrap();
    let mut reader = osier::io::Async::new(reader).unwrap();
    poll_once(futures_lite::AsyncReadExt::read(&mut reader, &mut [0]));
    drop(reader);
    has_nobody_to_read(writer);
}
