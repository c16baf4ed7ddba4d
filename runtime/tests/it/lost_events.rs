//! Sequences that lose events on an edge-triggered poller. Each hangs if readiness is kept wrongly.
//!
//! Every body runs with one worker and with two, under a time limit that only a hang reaches.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, PipeReader, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::given::{self, others_wait, settle, timeless};
use osier::Runtime;
use osier::net::{TcpListener, TcpStream, UnixStream};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

const GENEROUS: Duration = Duration::from_secs(30);

fn each(body: impl Fn() + Send + Sync + Copy) {
    for workers in [1, 2] {
        let runtime = timeless(workers);
        let done = runtime.run(|| osier::timeout(GENEROUS, body));
        assert!(done.is_ok(), "a hang, with {workers} workers");
    }
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_nodelay(true).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Registers the read side with this worker's poller, with nothing to read.
fn register(stream: &TcpStream) {
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut reader = stream;
    assert_eq!(reader.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
    stream.set_read_timeout(None).unwrap();
}

#[test]
fn data_and_end_in_one_wake_up() {
    each(|| {
        for _ in 0..20 {
            let (mut client, mut server) = pair();
            register(&server);
            // Both are there before the worker looks at its poller again: one event.
            client.write_all(b"last words").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut buf = [0; 64];
            assert_eq!(server.read(&mut buf).unwrap(), 10);
            assert_eq!(
                server.read(&mut buf).unwrap(),
                0,
                "the end, for which there is no further edge"
            );
            assert_eq!(server.read(&mut buf).unwrap(), 0, "and again");
        }
    });
}

#[test]
fn data_and_end_before_the_first_registration() {
    each(|| {
        let (mut client, mut server) = pair();
        client.write_all(b"x").unwrap();
        drop(client);
        let mut buf = [0; 64];
        assert_eq!(server.read(&mut buf).unwrap(), 1);
        assert_eq!(server.read(&mut buf).unwrap(), 0);
    });
}

#[test]
fn data_and_end_while_the_reader_sleeps() {
    each(|| {
        let (mut client, mut server) = pair();
        register(&server);
        client.write_all(b"last words").unwrap();
        drop(client);
        // The worker polls meanwhile.
        settle();
        let mut text = String::new();
        server.read_to_string(&mut text).unwrap();
        assert_eq!(text, "last words");
    });
}

#[test]
fn an_urgent_mark_in_the_middle() {
    each(|| {
        for pause in [false, true] {
            let (mut client, mut server) = pair();
            register(&server);
            // A receive stops at the mark, short of its buffer, although more follows.
            client.write_all(b"before").unwrap();
            rustix::net::send(client.as_fd(), b"!", SendFlags::OOB).unwrap();
            client.write_all(b"after").unwrap();
            if pause {
                settle();
            }
            let mut got = Vec::new();
            while got.len() < 11 {
                let mut buf = [0; 64];
                let count = server.read(&mut buf).unwrap();
                assert!(count > 0);
                got.extend_from_slice(&buf[..count]);
            }
            assert_eq!(got, b"beforeafter");
            // And the connection goes on.
            let more = osier::spawn(move || {
                let mut buf = [0; 4];
                server.read_exact(&mut buf).map(|()| buf)
            });
            settle();
            client.write_all(b"more").unwrap();
            assert_eq!(&more.join().unwrap().unwrap(), b"more");
        }
    });
}

#[test]
fn an_urgent_byte_alone_does_not_keep_a_reader_busy() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (mut client, reader) = runtime.run(|| {
        let (client, mut server) = pair();
        let reader = osier::spawn(move || {
            let mut buf = [0; 4];
            server.read_exact(&mut buf).map(|()| buf)
        });
        others_wait();
        rustix::net::send(client.as_fd(), b"!", SendFlags::OOB).unwrap();
        (client, reader)
    });
    // A poller may report it more than once, but not for as long as it lasts.
    let events = || runtime.metrics().workers[0].events;
    let before = events();
    // Real time: a poller that repeats itself has to have its chance.
    thread::sleep(Duration::from_millis(100));
    let more = events() - before;
    assert!(more < 20, "{more} events");
    let text = runtime.run(|| {
        client.write_all(b"more").unwrap();
        osier::timeout(GENEROUS, || reader.join()).expect("a hang")
    });
    assert_eq!(&text.unwrap().unwrap(), b"more");
}

#[test]
fn who_peeks_behind_an_urgent_byte_gets_what_comes() {
    each(|| {
        let (mut client, server) = pair();
        register(&server);
        rustix::net::send(client.as_fd(), b"!", SendFlags::OOB).unwrap();
        let peek = osier::spawn_local(move || {
            let mut buf = [0; 4];
            server.peek(&mut buf).map(|count| (count > 0).then_some(server))
        });
        // A level-triggered driver polls again and again now, so virtual time stands still. Other fibers run in between.
        (0..100).for_each(|_| osier::yield_now());
        client.write_all(b"more").unwrap();
        let mut server = peek.join().unwrap().unwrap().expect("bytes, not the end");
        let mut buf = [0; 4];
        server.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"more");
    });
}

/// Sends bytes with a descriptor attached to them.
fn pass(stream: &UnixStream, bytes: &[u8], fd: &OwnedFd) {
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    assert_eq!(sent, bytes.len());
}

#[test]
fn a_unix_stream_with_a_passed_descriptor() {
    each(|| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let passed = OwnedFd::from(io::pipe().unwrap().0);
        let reading = osier::spawn(move || {
            let mut got = Vec::new();
            let mut buf = [0; 64];
            // A receive ends before the bytes with the descriptor and after them: always short of its buffer.
            while got.len() < 9 {
                let count = theirs.read(&mut buf).unwrap();
                assert!(count > 0);
                got.extend_from_slice(&buf[..count]);
            }
            (got, theirs)
        });
        settle();
        (&ours).write_all(b"one").unwrap();
        pass(&ours, b"two", &passed);
        (&ours).write_all(b"six").unwrap();
        let (got, theirs) = reading.join().unwrap();
        assert_eq!(got, b"onetwosix");

        // A foreign reader of the same socket gets the descriptor itself.
        let receiving = osier::spawn(move || {
            osier::io::readable(&theirs, None).unwrap();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut buf = [0; 8];
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let got = rustix::net::recvmsg(&theirs, &mut [IoSliceMut::new(&mut buf)], &mut control, flags).unwrap();
            let fds: Vec<OwnedFd> = control
                .drain()
                .filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                    _ => None,
                })
                .flatten()
                .collect();
            (got.bytes, fds)
        });
        settle();
        let (reader, mut writer) = io::pipe().unwrap();
        pass(&ours, b"fd", &reader.into());
        let (bytes, mut fds) = receiving.join().unwrap();
        assert_eq!((bytes, fds.len()), (2, 1));
        writer.write_all(b"through").unwrap();
        drop(writer);
        let mut text = String::new();
        PipeReader::from(fds.remove(0)).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    });
}

#[test]
fn a_foreign_descriptor_that_others_read_too() {
    each(|| {
        let (reader, mut writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let reader = Arc::new(reader);
        let taken = Arc::new(AtomicUsize::new(0));
        const BYTES: usize = 400;
        // A thread takes what it can get; so do two fibers, which must find what it leaves, and wait again when it
        // was quicker.
        let theirs = (Arc::clone(&reader), Arc::clone(&taken));
        let thief = thread::spawn(move || {
            let (reader, taken) = theirs;
            while taken.load(Ordering::SeqCst) < BYTES / 2 {
                if let Ok(1) = (&*reader).read(&mut [0]) {
                    taken.fetch_add(1, Ordering::SeqCst);
                }
                thread::yield_now();
            }
        });
        let fibers: Vec<_> = (0..2)
            .map(|_| {
                let (reader, taken) = (Arc::clone(&reader), Arc::clone(&taken));
                osier::spawn(move || {
                    loop {
                        osier::io::readable(&*reader, None)?;
                        match (&*reader).read(&mut [0]) {
                            Ok(0) => return io::Result::Ok(()),
                            Ok(count) => drop(taken.fetch_add(count, Ordering::SeqCst)),
                            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                            Err(error) => return Err(error),
                        }
                    }
                })
            })
            .collect();
        for _ in 0..BYTES {
            writer.write_all(b"x").unwrap();
            osier::yield_now();
        }
        drop(writer);
        for fiber in fibers {
            fiber.join().unwrap().unwrap();
        }
        osier::unblock(move || thief.join().unwrap());
        assert_eq!(taken.load(Ordering::SeqCst), BYTES);
    });
}

#[test]
fn one_waits_while_another_empties_the_socket() {
    each(|| {
        let (mut client, server) = pair();
        let server = Arc::new(server);
        let got = Arc::new(AtomicUsize::new(0));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (server, got) = (Arc::clone(&server), Arc::clone(&got));
                osier::spawn(move || {
                    loop {
                        match (&*server).read(&mut [0; 16]) {
                            Ok(0) => return,
                            Ok(count) => drop(got.fetch_add(count, Ordering::SeqCst)),
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        for round in 1..=200 {
            client.write_all(b"x").unwrap();
            while got.load(Ordering::SeqCst) < round {
                osier::yield_now();
            }
        }
        drop(client);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn both_directions_wait_and_move() {
    // A blocked writer and a waiting reader on the same socket, on any workers.
    let body = || {
        let (client, server) = pair();
        let (client, server) = (Arc::new(client), Arc::new(server));
        const BYTES: usize = 3 << 20;
        let theirs = Arc::clone(&server);
        let writing = osier::spawn(move || (&*theirs).write_all(&vec![1; BYTES]));
        let theirs = Arc::clone(&server);
        let reading = osier::spawn(move || {
            let mut byte = [0];
            (&*theirs).read_exact(&mut byte).map(|()| byte[0])
        });
        others_wait();
        (&*client).write_all(b"!").unwrap();
        assert_eq!(reading.join().unwrap().unwrap(), b'!');
        let count = io::copy(&mut (&*client).take(BYTES as u64), &mut io::sink()).unwrap();
        assert_eq!(count, BYTES as u64);
        writing.join().unwrap().unwrap();
    };
    // In real time: the kernel sends what a full receiver had no room for again after 200 ms, and a virtual clock does not wait for that.
    for workers in [1, 2] {
        let done = given::on(workers).run(|| osier::timeout(GENEROUS, body));
        assert!(done.is_ok(), "a hang, with {workers} workers");
    }
}

#[test]
fn a_reset_while_the_fiber_waits_elsewhere() {
    each(|| {
        let (client, mut server) = pair();
        register(&server);
        let sleeping = osier::spawn(move || {
            settle();
            server.read(&mut [0; 8])
        });
        client.set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        assert_eq!(sleeping.join().unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn bytes_that_come_while_the_fiber_is_busy_stay_known() {
    each(|| {
        let (mut client, mut server) = pair();
        register(&server);
        for round in 0..50u8 {
            client.write_all(&[round]).unwrap();
            if round % 2 == 0 {
                // The edge is taken while this fiber does something else.
                settle();
            }
            let mut buf = [0; 16];
            assert_eq!(server.read(&mut buf).unwrap(), 1);
            assert_eq!(buf[0], round);
        }
    });
}

#[test]
fn sockets_that_come_and_go_do_not_hear_of_each_other() {
    each(|| {
        let begin = Instant::now();
        for round in 0..300u32 {
            let (mut client, mut server) = pair();
            let reading = osier::spawn(move || {
                let mut buf = [0; 4];
                server.read_exact(&mut buf).map(|()| u32::from_be_bytes(buf))
            });
            if round % 3 == 0 {
                osier::yield_now();
            }
            client.write_all(&round.to_be_bytes()).unwrap();
            assert_eq!(reading.join().unwrap().unwrap(), round);
        }
        assert!(begin.elapsed() < GENEROUS);
    });
}

#[test]
fn a_full_direction_does_not_hide_an_urgent_mark_of_the_other() {
    crate::given::timeless(1).run(|| {
        let (mut client, mut server) = pair();
        server.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert!(server.read(&mut [0]).is_err(), "registered");
        server.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        let block = vec![0; 1 << 20];
        while server.write(&block).is_ok() {}
        // Both directions wait at this worker now; room and the mark come together.
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut room = vec![0; 1 << 20];
        while client.read(&mut room).is_ok() {}
        client.write_all(b"before").unwrap();
        rustix::net::send(client.as_fd(), b"!", rustix::net::SendFlags::OOB).unwrap();
        client.write_all(b"after").unwrap();
        settle();
        while server.write(&block).is_ok() {}
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut got = [0; 11];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"beforeafter");
    });
}
