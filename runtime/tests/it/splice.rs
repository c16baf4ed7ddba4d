//! Bytes that `splice` moves between streams inside the kernel arrive whole, in order, and in no other fiber's stream.
#![cfg(target_os = "linux")]

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use osier::io::splice;
use osier::net::{TcpListener, TcpStream, UnixStream};

/// Bytes that show where they belong.
fn pattern(seed: u64, count: usize) -> Vec<u8> {
    let byte = |i: u64| (i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7];
    (0..count as u64).map(byte).collect()
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Moves all bytes from one stream to the other, and writes those that `splice` could not send. Returns how often
/// there were such.
fn carry(from: &TcpStream, mut to: &TcpStream) -> usize {
    let (mut rest, mut rests) = (Vec::new(), 0);
    loop {
        let done = splice(from, to, 100_000, &mut rest).unwrap();
        assert!(done.taken <= 100_000);
        assert_eq!(done.sent.unwrap() + rest.len(), done.taken);
        if done.taken == 0 {
            return rests;
        }
        if !rest.is_empty() {
            rests += 1;
            to.write_all(&rest).unwrap();
            rest.clear();
        }
    }
}

#[test]
fn many_fibers_of_one_worker_carry_at_once_and_every_byte_arrives_where_it_belongs() {
    const LENGTH: usize = 3 << 20;
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    let rests = runtime.run(|| {
        osier::scope(|s| {
            let carriers: Vec<_> = (0..6u64)
                .map(|seed| {
                    let ((mut source, from), (to, mut sink)) = (tcp_pair(), tcp_pair());
                    // Small buffers, so that a slow receiver does not get everything at once.
                    socket2::SockRef::from(&to).set_send_buffer_size(32 << 10).unwrap();
                    socket2::SockRef::from(&sink).set_recv_buffer_size(32 << 10).unwrap();
                    s.spawn_local(move || {
                        for piece in pattern(seed, LENGTH).chunks(77_777) {
                            source.write_all(piece).unwrap();
                        }
                    });
                    s.spawn_local(move || {
                        let mut arrived = Vec::new();
                        let mut piece = vec![0; 50_000];
                        while arrived.len() < LENGTH {
                            if seed % 2 == 0 {
                                // A reader slower than its writer: the pipe in between fills.
                                osier::sleep(Duration::from_millis(1));
                            }
                            let count = sink.read(&mut piece).unwrap();
                            assert!(count > 0, "the end after {} bytes", arrived.len());
                            arrived.extend_from_slice(&piece[..count]);
                        }
                        assert!(arrived == pattern(seed, LENGTH), "the bytes of {seed}");
                        assert_eq!(sink.read(&mut piece).unwrap(), 0);
                    });
                    s.spawn_local(move || carry(&from, &to))
                })
                .collect();
            carriers
                .into_iter()
                .map(|carrier| carrier.join().unwrap())
                .sum::<usize>()
        })
    });
    assert!(rests > 0, "no receiver was ever slow");
}

#[test]
fn what_the_receiver_does_not_take_is_handed_back_and_nothing_waits_for_it() {
    osier::run(|| {
        let ((mut source, from), (to, mut sink)) = (tcp_pair(), tcp_pair());
        let sent = pattern(7, 16 << 20);
        let (mut rest, mut passed) = (b"before".to_vec(), 0);
        osier::scope(|s| {
            s.spawn_local(|| {
                // The end of the scope ends it.
                let _ = source.write_all(&sent);
            });
            // Nobody reads, so the buffers fill.
            while rest.len() == 6 {
                passed += splice(&from, &to, 1 << 20, &mut rest).unwrap().sent.unwrap();
            }
            s.cancel();
        });
        assert_eq!(&rest[..6], b"before", "it is appended");
        let mut arrived = vec![0; passed];
        sink.read_exact(&mut arrived).unwrap();
        arrived.extend_from_slice(&rest[6..]);
        assert!(arrived == sent[..arrived.len()], "sent and handed back, without a gap");
    });
}

#[test]
fn the_end_a_failure_a_timeout_and_a_cancellation_are_told_apart() {
    osier::run(|| {
        let mut rest = Vec::new();
        // The receiver is gone. The bytes that were taken are lost, and the next splice does not find them.
        let ((mut source, from), (to, sink)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        drop(sink);
        source.write_all(b"lost").unwrap();
        let done = splice(&from, &to, 100, &mut rest).unwrap();
        assert_eq!((done.taken, done.sent.unwrap_err().kind()), (4, ErrorKind::BrokenPipe));

        let (to, mut sink) = UnixStream::pair().unwrap();
        source.write_all(b"found").unwrap();
        let done = splice(&from, &to, 100, &mut rest).unwrap();
        assert_eq!((done.taken, done.sent.unwrap()), (5, 5));
        let mut found = [0; 5];
        sink.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"found");

        from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let late = splice(&from, &to, 100, &mut rest).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        from.set_read_timeout(None).unwrap();

        osier::scope(|s| {
            let waiting = s.spawn_local(|| splice(&from, &to, 100, &mut Vec::new()).map(|done| done.taken));
            osier::yield_now();
            waiting.cancel();
            assert!(waiting.join().map_or(true, |taken| taken.is_err()));
        });
        source.write_all(b"still there").unwrap();
        drop(source);
        assert_eq!(splice(&from, &to, 100, &mut rest).unwrap().taken, 11);
        assert_eq!(splice(&from, &to, 100, &mut rest).unwrap().taken, 0, "the end");
        assert!(rest.is_empty());
    });
}
