//! Bytes go both ways between two streams of this crate.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use osier_tls::{Acceptor, Connector, Version};

use crate::made::{AUTHORITY, LOCALHOST, pair};

#[test]
fn a_client_and_a_server_talk() {
    let acceptor = Acceptor::builder(LOCALHOST.identity())
        .alpn(["h2", "http/1.1"])
        .build()
        .unwrap();
    let connector = Connector::builder()
        .ca_pem(AUTHORITY.pem.as_bytes())
        .alpn(["http/1.1"])
        .build()
        .unwrap();
    let (mut client, mut server) = pair(&connector, &acceptor);
    osier::run(move || -> io::Result<()> {
        let serving = osier::spawn(move || -> io::Result<()> {
            let mut request = [0; 5];
            server.read_exact(&mut request)?;
            assert_eq!(&request, b"hello");
            assert_eq!(server.server_name(), Some("localhost"));
            assert_eq!(server.protocol(), Some(&b"http/1.1"[..]));
            server.write_all(b"world")?;
            server.close_notify()
        });
        client.write_all(b"hello")?;
        let mut reply = String::new();
        client.read_to_string(&mut reply)?;
        assert_eq!(reply, "world");
        assert_eq!(client.version(), Some(Version::Tls13));
        assert_eq!(client.protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(client.peer_certificates().len(), 1);
        assert!(!client.is_resumed());
        serving.join().unwrap()
    })
    .unwrap();
}

#[test]
fn last_bytes_come_with_the_end() {
    for length in [0, 5, 3_000_000] {
        let (mut client, mut server) = pair(&AUTHORITY.connector(), &LOCALHOST.acceptor());
        osier::run(move || -> io::Result<()> {
            let serving = osier::spawn(move || -> io::Result<()> {
                server.read_exact(&mut [0; 5])?;
                server.write_all(b"first")?;
                server.write_last(&vec![b'x'; length])?;
                assert_eq!(server.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
                server.socket().shutdown(Shutdown::Write)?;
                // What the client sends meanwhile is no reason to lose them.
                assert_eq!(server.read(&mut [0; 8])?, 4);
                Ok(())
            });
            client.write_all(b"hello")?;
            let mut reply = Vec::new();
            client.read_to_end(&mut reply)?;
            assert_eq!(reply.len(), 5 + length);
            client.write_all(b"more")?;
            serving.join().unwrap()
        })
        .unwrap();
    }
}

#[test]
fn megabytes_go_both_ways_at_once() {
    let (client, server) = pair(&AUTHORITY.connector(), &LOCALHOST.acceptor());
    osier::run(move || -> io::Result<()> {
        let ends = [Arc::new(client), Arc::new(server)];
        let sent: Vec<u8> = (0..3_000_000_u32).map(|n| ((n * 31) >> 3) as u8).collect();
        let sent = Arc::new(sent);
        let mut fibers = Vec::new();
        for end in ends {
            let (writer, bytes) = (end.clone(), sent.clone());
            fibers.push(osier::spawn(move || -> io::Result<()> {
                for chunk in bytes.chunks(70_001) {
                    (&*writer).write_all(chunk)?;
                }
                writer.shutdown(Shutdown::Write)
            }));
            let bytes = sent.clone();
            fibers.push(osier::spawn(move || -> io::Result<()> {
                let mut received = Vec::new();
                (&*end).read_to_end(&mut received)?;
                assert!(received == *bytes);
                Ok(())
            }));
        }
        fibers.into_iter().try_for_each(|fiber| fiber.join().unwrap())
    })
    .unwrap();
}

#[test]
fn vectored_writes_keep_their_order() {
    let (mut client, mut server) = pair(&AUTHORITY.connector(), &LOCALHOST.acceptor());
    osier::run(move || -> io::Result<()> {
        let sizes = [3, 0, 20_000, 16_384, 1, 7];
        let parts: Vec<Vec<u8>> = (1..).zip(sizes).map(|(byte, size)| vec![byte; size]).collect();
        let expected = parts.concat();
        let writing = osier::spawn(move || -> io::Result<()> {
            let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            let mut slices = &mut slices[..];
            while !slices.is_empty() {
                let count = client.write_vectored(slices)?;
                IoSlice::advance_slices(&mut slices, count);
            }
            client.close_notify()
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received)?;
        assert!(received == expected);
        writing.join().unwrap()
    })
    .unwrap();
}

#[test]
fn an_end_without_close_notify_is_an_error() {
    let (mut client, mut server) = pair(&AUTHORITY.connector(), &LOCALHOST.acceptor());
    osier::run(move || -> io::Result<()> {
        let cutting = osier::spawn(move || {
            client.write_all(b"hello").unwrap();
            client.socket().shutdown(Shutdown::Write).unwrap();
            client
        });
        let mut received = Vec::new();
        let error = server.read_to_end(&mut received).unwrap_err();
        assert_eq!((error.kind(), &received[..]), (ErrorKind::UnexpectedEof, &b"hello"[..]));
        drop(cutting.join());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_write_leaves_a_record_that_waits_for_a_reader() {
    osier::run(|| {
        let (mut client, mut server) = pair(&AUTHORITY.connector(), &LOCALHOST.acceptor());
        osier::scope(|scope| {
            scope.spawn(|| server.handshake().unwrap());
            client.handshake().unwrap();
        });
        client.write_all(b"one").unwrap();
        client.write_all(b"two").unwrap();
        let mut read = [0; 3];
        server.read_exact(&mut read).unwrap();
        assert!(server.has_unread());
        server.write_all(b"answer").unwrap();
        assert!(server.has_unread());
        assert_eq!(server.try_read(&mut read).unwrap(), 3);
        assert_eq!(&read, b"two");
        assert!(!server.has_unread());
    });
}
