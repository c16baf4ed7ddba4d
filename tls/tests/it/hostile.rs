//! Peers that drip, cut, send garbage or another protocol: each gets an error, and no call waits for more than it needs.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use osier::net::UnixStream;
use osier_tls::{Connector, Error, Stream};

use crate::made::{AUTHORITY, LOCALHOST, pair};

/// A server's stream, and the raw socket of its client.
fn raw_client() -> (UnixStream, Stream) {
    let (near, far) = UnixStream::pair().unwrap();
    (near, LOCALHOST.acceptor().accept(far))
}

/// The first message of a client that offers these protocols.
fn client_hello(alpn: &[String]) -> Vec<u8> {
    let (near, mut far) = UnixStream::pair().unwrap();
    let builder = Connector::builder().ca_pem(AUTHORITY.pem.as_bytes()).alpn(alpn);
    let client = builder.build().unwrap().connect("localhost", near).unwrap();
    assert_eq!(client.try_handshake().unwrap_err().kind(), ErrorKind::WouldBlock);
    client.socket().shutdown(Shutdown::Write).unwrap();
    let mut hello = Vec::new();
    far.read_to_end(&mut hello).unwrap();
    hello
}

/// The protocols that make a first message of about this length.
fn alpn_of(bytes: usize) -> Vec<String> {
    (0..bytes / 256).map(|n| format!("{n:0>255}")).collect()
}

/// Moves bytes from one socket to the other, one at a time.
fn drip(from: &UnixStream, to: &UnixStream) {
    let mut byte = [0];
    while (&*from).read(&mut byte).is_ok_and(|count| count == 1) && (&*to).write_all(&byte).is_ok() {}
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn bytes_may_come_one_by_one() {
    osier::run(|| {
        let (near, left) = UnixStream::pair().unwrap();
        let (right, far) = UnixStream::pair().unwrap();
        let mut client = AUTHORITY.connector().connect("localhost", near).unwrap();
        let mut server = LOCALHOST.acceptor().accept(far);
        osier::scope(|scope| {
            scope.spawn(|| drip(&left, &right));
            scope.spawn(|| drip(&right, &left));
            scope.spawn(move || {
                let mut request = Vec::new();
                server.read_to_end(&mut request).unwrap();
                server.write_all(&request).unwrap();
                server.shutdown(Shutdown::Write).unwrap();
            });
            client.write_all(&[7; 20_000]).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut reply = Vec::new();
            client.read_to_end(&mut reply).unwrap();
            assert_eq!(reply, [7; 20_000]);
        });
    });
}

#[test]
fn a_client_that_leaves_in_its_first_message_is_an_end() {
    let hello = client_hello(&[]);
    for cut in 0..hello.len() {
        let (mut near, server) = raw_client();
        near.write_all(&hello[..cut]).unwrap();
        assert_eq!(
            server.try_handshake().unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "{cut}"
        );
        assert!(!server.has_unread());
        assert_eq!(server.is_mid_record(), cut > 0);
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(
            server.handshake().unwrap_err().kind(),
            ErrorKind::UnexpectedEof,
            "{cut}"
        );
    }
}

#[test]
fn a_server_that_leaves_in_its_first_messages_is_an_end() {
    let mut flight = Vec::new();
    let (mut near, server) = raw_client();
    near.write_all(&client_hello(&[])).unwrap();
    assert_eq!(server.try_handshake().unwrap_err().kind(), ErrorKind::WouldBlock);
    server.socket().shutdown(Shutdown::Write).unwrap();
    near.read_to_end(&mut flight).unwrap();
    assert!(flight.len() > 500);
    // The flight belongs to another client: past the first message of the server, decryption fails instead.
    for cut in 0..flight.len() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let client = AUTHORITY.connector().connect("localhost", near).unwrap();
        far.write_all(&flight[..cut]).unwrap();
        far.shutdown(Shutdown::Write).unwrap();
        let kind = client.handshake().unwrap_err().kind();
        assert!(
            matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::InvalidData),
            "{cut}: {kind}"
        );
    }
}

#[test]
fn garbage_is_refused_and_the_client_gets_an_alert() {
    let hello = client_hello(&[]);
    for position in 0..hello.len() {
        let mut bytes = hello.clone();
        bytes[position] ^= 0xff;
        let (mut near, server) = raw_client();
        near.write_all(&bytes).unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        // A random number may differ; then the client is missing afterwards.
        let error = server.handshake().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData),
            "{position}: {error}"
        );
        assert_eq!(server.try_read(&mut [0]).unwrap_err().kind(), error.kind());
        drop(server);
        let mut reply = Vec::new();
        let _ = near.read_to_end(&mut reply);
        // rustls has no alert for a message with a wrong length.
        if error.kind() == ErrorKind::InvalidData && !(6..9).contains(&position) {
            // An alert, perhaps behind messages of a handshake that went on for a while.
            assert!(matches!(reply.first(), Some(21 | 22)), "{position}: {reply:?}");
        }
    }
    for garbage in [
        &[0; 64][..],
        &[0xff; 64],
        &[22; 64],
        &[22, 3, 1, 0, 0],
        &[23, 3, 3, 0, 1, 0],
        &[21, 3, 3, 0, 2, 2, 40],
    ] {
        let (mut near, server) = raw_client();
        near.write_all(garbage).unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        server.handshake().unwrap_err();
        server.close_notify().unwrap();
        server.try_write(b"x").unwrap_err();
    }
}

#[test]
fn a_record_that_was_changed_is_refused() {
    osier::run(|| {
        let (near, mut left) = UnixStream::pair().unwrap();
        let (mut right, far) = UnixStream::pair().unwrap();
        let client = AUTHORITY.connector().connect("localhost", near).unwrap();
        let server = LOCALHOST.acceptor().accept(far);
        let mut buf = [0; 4096];
        while !(client.is_established() && server.is_established()) {
            let _ = (client.try_handshake(), server.try_handshake());
            for (from, to) in [(&left, &right), (&right, &left)] {
                if let Ok(count) = from.try_read(&mut buf) {
                    (&*to).write_all(&buf[..count]).unwrap();
                }
            }
        }
        client.try_write(b"hello").unwrap();
        let count = left.read(&mut buf).unwrap();
        buf[count - 1] ^= 1;
        right.write_all(&buf[..count]).unwrap();
        let error = (&server).read(&mut [0; 8]).unwrap_err();
        assert!(Error::of(&error).is_some(), "{error}");
        assert_eq!((&server).write(b"x").unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!((&server).read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::InvalidData);
    });
}

/// The key share of X25519MLKEM768 alone has 1,216 bytes.
#[test]
fn a_client_offers_a_post_quantum_key_if_the_provider_has_one() {
    let length = client_hello(&[]).len();
    assert_eq!(length > 1216, cfg!(feature = "aws-lc-rs"), "{length}");
}

#[test]
fn a_long_first_message_is_read() {
    for length in [17_000, 33_000, 60_000] {
        let builder = Connector::builder()
            .ca_pem(AUTHORITY.pem.as_bytes())
            .alpn(alpn_of(length));
        let (client, server) = pair(&builder.build().unwrap(), &LOCALHOST.acceptor());
        osier::run(move || {
            let (client, server) = crate::made::shake(&client, &server);
            client.and(server).unwrap();
        });
    }
}

#[test]
fn a_first_message_above_64_kib_is_refused() {
    let (near, server) = raw_client();
    osier::run(move || {
        let sending = osier::spawn(move || {
            // A handshake message of 100,000 bytes, in records of 16 KiB.
            let mut message = vec![1, 1, 0x86, 0xa0];
            message.resize(100_004, 0);
            for piece in message.chunks(16_384) {
                let length = u16::try_from(piece.len()).unwrap().to_be_bytes();
                let record = [&[22, 3, 1, length[0], length[1]], piece].concat();
                if (&near).write_all(&record).is_err() {
                    break;
                }
            }
            near
        });
        assert_eq!(server.handshake().unwrap_err().kind(), ErrorKind::InvalidData);
        drop(server);
        drop(sending.join());
    });
}

#[test]
fn a_proxy_header_is_told_apart() {
    for header in [
        &b"PROXY TCP4 1.2.3.4 5.6.7.8 9 443\r\n"[..],
        b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    ] {
        let (mut near, server) = raw_client();
        near.write_all(header).unwrap();
        let error = server.handshake().unwrap_err();
        assert_eq!(error.to_string(), "a PROXY header came where TLS must begin");
    }
}

#[test]
fn plain_http_is_told_apart() {
    for request in ["GET / HTTP/1.1\r\n\r\n", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let (mut near, server) = raw_client();
        near.write_all(request.as_bytes()).unwrap();
        let error = server.handshake().unwrap_err();
        assert!(Error::of(&error).unwrap().is_plain_http(), "{error}");
        assert_eq!(error.to_string(), "the client sent a plain HTTP request to a TLS port");
        server.close_notify().unwrap();
        let mut socket = server.socket();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        drop(server);
        let mut reply = Vec::new();
        let _ = near.read_to_end(&mut reply);
        assert_eq!(reply, b"HTTP/1.1 400 Bad Request\r\n\r\n");
    }
}

#[test]
fn a_read_that_times_out_keeps_an_incomplete_record() {
    // On a plain thread, where `try_read` asks the system each time.
    let talk = || -> io::Result<()> {
        let (near, mut left) = UnixStream::pair()?;
        let (mut right, far) = UnixStream::pair()?;
        let client = AUTHORITY.connector().connect("localhost", near)?;
        let mut server = LOCALHOST.acceptor().accept(far);
        server.set_read_timeout(Some(Duration::from_millis(1)))?;
        let mut buf = [0; 4096];
        let mut timeouts = 0;
        // Half of what has arrived goes on, and a read of the server runs out of time in between.
        while !server.is_established() {
            let _ = client.try_handshake();
            let count = left.read(&mut buf)?;
            for half in [&buf[..count / 2], &buf[count / 2..count]] {
                right.write_all(half)?;
                timeouts += i32::from(
                    server
                        .handshake()
                        .is_err_and(|error| error.kind() == ErrorKind::TimedOut),
                );
            }
            while let Ok(count) = right.try_read(&mut buf) {
                left.write_all(&buf[..count])?;
            }
        }
        assert!(timeouts >= 2, "{timeouts}");
        let _ = client.try_handshake();
        client.try_write(b"hello")?;
        let count = left.read(&mut buf)?;
        for byte in &buf[..count - 1] {
            right.write_all(&[*byte])?;
            assert_eq!(server.try_read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
            assert_eq!(
                (server.is_mid_record(), server.has_unread()),
                (true, false),
                "{byte} of {:x?}",
                &buf[..count]
            );
        }
        assert_eq!(server.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::TimedOut);
        right.write_all(&buf[count - 1..count])?;
        let mut received = [0; 8];
        assert_eq!(server.read(&mut received[..2])?, 2);
        assert!(server.has_unread() && !server.is_mid_record());
        assert_eq!(server.read(&mut received[2..])?, 3);
        assert_eq!(&received[..5], b"hello");
        assert!(!server.has_unread());
        Ok(())
    };
    talk().unwrap();
}

#[test]
fn each_end_says_for_itself_that_nothing_will_follow() {
    let (mut client, mut server) = pair(&AUTHORITY.connector(), &LOCALHOST.acceptor());
    osier::run(move || -> io::Result<()> {
        let serving = osier::spawn(move || -> io::Result<()> {
            let mut request = Vec::new();
            server.read_to_end(&mut request)?;
            assert_eq!((&request[..], server.read(&mut [0])?), (&b"hello"[..], 0));
            server.write_all(b"world")?;
            server.shutdown(Shutdown::Both)
        });
        client.write_all(b"hello")?;
        client.close_notify()?;
        client.close_notify()?;
        assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        let mut reply = Vec::new();
        client.read_to_end(&mut reply)?;
        assert_eq!(reply, b"world");
        serving.join().unwrap()
    })
    .unwrap();
}

#[test]
fn a_writer_that_waits_does_not_stop_a_reader() {
    let (client, server) = pair(&AUTHORITY.connector(), &LOCALHOST.acceptor());
    osier::run(move || {
        let (first, second) = crate::made::shake(&client, &server);
        first.and(second).unwrap();
        osier::scope(|scope| {
            // The client does not read: the server's writer fills the socket and waits.
            let writing = scope.spawn(|| (&server).write_all(&[1; 4_000_000]));
            while !server.has_unsent() {
                osier::yield_now();
            }
            (&client).write_all(b"hello").unwrap();
            let mut received = [0; 5];
            (&server).read_exact(&mut received).unwrap();
            assert_eq!(&received, b"hello");
            let mut reply = vec![0; 4_000_000];
            (&client).read_exact(&mut reply).unwrap();
            assert!(reply.iter().all(|&byte| byte == 1));
            writing.join().unwrap().unwrap();
        });
    });
}

#[test]
fn a_write_that_times_out_is_reported_once_and_goes_on() {
    let (client, mut server) = pair(&AUTHORITY.connector(), &LOCALHOST.acceptor());
    osier::run(move || {
        let (first, second) = crate::made::shake(&client, &server);
        first.and(second).unwrap();
        server.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n >> 8) as u8).collect();
        let mut count = 0;
        let error = loop {
            match server.write(&sent[count..]) {
                Ok(taken) => count += taken,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(server.has_unsent());
        server.set_write_timeout(None).unwrap();
        osier::scope(|scope| {
            scope.spawn(|| {
                server.write_all(&sent[count..]).unwrap();
                server.shutdown(Shutdown::Write).unwrap();
            });
            let mut received = Vec::new();
            (&client).read_to_end(&mut received).unwrap();
            assert!(received == sent);
        });
    });
}
