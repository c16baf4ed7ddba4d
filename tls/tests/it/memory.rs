//! The bytes of connections at rest.

use std::io::{ErrorKind, Write};

use osier::net::UnixStream;
use osier_tls::{Acceptor, Stream};
use testkit::allocations::live_bytes;

use crate::made::{AUTHORITY, LOCALHOST, pair};

/// Makes a call and adds the bytes that it leaves behind.
fn counted<T>(bytes: &mut isize, call: impl FnOnce() -> T) -> T {
    let before = live_bytes();
    let outcome = call();
    *bytes += live_bytes() - before;
    outcome
}

/// A connection after a request and its response, and the bytes of the server's end. On this thread alone.
fn talk(acceptor: &Acceptor) -> (Stream, Box<Stream>, isize) {
    let mut bytes = 0;
    let (near, far) = UnixStream::pair().unwrap();
    let client = AUTHORITY.connector().connect("localhost", near).unwrap();
    let server = counted(&mut bytes, || Box::new(acceptor.accept(far)));
    while !(client.is_established() && server.is_established()) {
        let _ = client.try_handshake();
        let _ = counted(&mut bytes, || server.try_handshake());
    }
    client.try_write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut buf = [0; 1024];
    counted(&mut bytes, || server.try_read(&mut buf)).unwrap();
    counted(&mut bytes, || {
        server.try_write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    })
    .unwrap();
    client.try_read(&mut buf).unwrap();
    (client, server, bytes)
}

#[test]
fn a_connection_at_rest_is_small() {
    let acceptor = Acceptor::builder(LOCALHOST.identity())
        .alpn(["http/1.1"])
        .build()
        .unwrap();
    // The first connections make what the thread and the process keep.
    let _first = [(); 3].map(|()| talk(&acceptor));
    let connections: Vec<_> = (0..64).map(|_| talk(&acceptor)).collect();
    let total: isize = connections.iter().map(|(_, _, bytes)| bytes).sum();
    let each = total / 64;
    println!(
        "an idle connection, server's end: {each} bytes, of which {} are the stream itself",
        size_of::<Stream>()
    );
    assert!((300..=1000).contains(&each), "{each}");
}

#[test]
fn half_a_handshake_keeps_what_has_come_and_no_buffer() {
    let acceptor = LOCALHOST.acceptor();
    let _first = talk(&acceptor);
    let (mut near, far) = UnixStream::pair().unwrap();
    let mut bytes = 0;
    let server = counted(&mut bytes, || acceptor.accept(far));
    let before = bytes;
    near.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc]).unwrap();
    for _ in 0..100 {
        near.write_all(&[0]).unwrap();
        let error = counted(&mut bytes, || server.try_handshake()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
    println!(
        "half a handshake: {bytes} bytes, of which {} for 109 bytes that have come",
        bytes - before
    );
    assert!(bytes - before < 300 && bytes < 3000, "{before} {bytes}");
}

/// Writes to a client that takes nothing, until the socket is full. Returns the stream and the bytes that wait in it.
fn fill() -> (Stream, Stream, isize) {
    let (client, server) = pair(&AUTHORITY.connector(), &LOCALHOST.acceptor());
    while !(client.is_established() && server.is_established()) {
        let _ = (client.try_handshake(), server.try_handshake());
    }
    let (mut bytes, sent) = (0, vec![7; 1 << 20]);
    while counted(&mut bytes, || server.try_write(&sent)).is_ok() {}
    (client, server, bytes)
}

#[test]
fn a_slow_reader_leaves_no_more_than_two_records() {
    let _first = fill();
    let (_client, server, bytes) = fill();
    println!("a client that takes nothing: {bytes} bytes wait");
    assert!(server.has_unsent() && bytes <= (32 << 10) + 1024, "{bytes}");
}
