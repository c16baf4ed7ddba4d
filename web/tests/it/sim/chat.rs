//! A chat with guests who come, talk, fall silent and vanish.
//!
//! Invariants:
//! - A guest sees each line once: in the history or live.
//! - The lines of a guest are in the order in which they were sent, for everybody.
//! - All guests who are there see the lines in one order.
//! - Nobody's connection stays when all are gone.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};

use osier::net::TcpStream;
use osier::sim::{Faults, World};
use osier_web::chat::{Chat, Options};
use osier_web::{Connections, Router, Server};
use testkit::websocket::masked;

use super::{SECOND, below, once_in, some_faults, some_of};
use crate::ws_client::handshake;

struct Guest {
    stream: TcpStream,
    received: Vec<u8>,
    /// The lines that it has seen.
    seen: Vec<String>,
}

impl Guest {
    fn enter(name: &str) -> io::Result<Guest> {
        let stream = osier::timeout(20 * SECOND, || TcpStream::connect("server:80"));
        let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        let mut guest = Guest {
            stream,
            received: Vec::new(),
            seen: Vec::new(),
        };
        guest
            .stream
            .write_all(handshake(&format!("/chat?room=lobby&name={name}")).as_bytes())?;
        guest.stream.set_read_timeout(Some(20 * SECOND))?;
        let end = loop {
            if let Some(end) = guest.received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end + 4;
            }
            guest.more()?;
        };
        let head: Vec<u8> = guest.received.drain(..end).collect();
        if head.starts_with(b"HTTP/1.1 408") {
            // A partition has delayed a part of the request.
            return Err(io::ErrorKind::TimedOut.into());
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        Ok(guest)
    }

    fn more(&mut self) -> io::Result<()> {
        let mut buf = [0; 2000];
        match self.stream.read(&mut buf)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.received.extend_from_slice(&buf[..count]);
                Ok(())
            }
        }
    }

    fn say(&mut self, text: &str) -> io::Result<()> {
        self.stream
            .write_all(&masked(0x81, format!("{{\"text\":\"{text}\"}}").as_bytes()))
    }

    /// Takes in what has come, for at most `time`.
    fn listen(&mut self, time: std::time::Duration) -> io::Result<()> {
        let end = osier::time::now() + time;
        loop {
            while let Some(frame) = self.frame() {
                self.take(frame)?;
            }
            let left = end.saturating_duration_since(osier::time::now());
            if left.is_zero() || !self.stream.wait_readable(left)? {
                return Ok(());
            }
            self.more()?;
        }
    }

    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let bytes = &self.received;
        let (first, short) = (*bytes.first()?, *bytes.get(1)?);
        let (head, length) = match short {
            126 => (4, usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]))),
            127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().unwrap()) as usize),
            short => (2, usize::from(short)),
        };
        let payload = bytes.get(head..head + length)?.to_vec();
        self.received.drain(..head + length);
        Some((first, payload))
    }

    fn take(&mut self, (first, payload): (u8, Vec<u8>)) -> io::Result<()> {
        match first {
            0x81 => {}
            0x88 => return Err(io::ErrorKind::ConnectionAborted.into()),
            0x89 => return self.stream.write_all(&masked(0x8a, &payload)),
            first => panic!("a frame {first:x}"),
        }
        let message: serde_json::Value = serde_json::from_slice(&payload).expect("JSON");
        let line = |line: &serde_json::Value| line["text"].as_str().expect("text").to_string();
        match message["is"].as_str() {
            Some("history") => {
                assert!(self.seen.is_empty(), "the history comes first");
                self.seen.extend(message["lines"].as_array().unwrap().iter().map(line));
            }
            Some("line") => self.seen.push(line(&message)),
            _ => {}
        }
        Ok(())
    }
}

/// Comes, says some lines, and leaves. The lines that it has seen are left in `visits`.
fn visit(number: u64, visits: &Mutex<Vec<Vec<String>>>) -> io::Result<()> {
    for stay in 0..1 + below(3) {
        let mut guest = Guest::enter(&format!("guest-{number}"))?;
        let stayed = (|| {
            for line in 0..below(8) {
                guest.say(&format!("{number}.{stay}.{line:03}"))?;
                guest.listen(some_of(4 * SECOND))?;
            }
            guest.listen(some_of(60 * SECOND))
        })();
        if once_in(2) {
            let _ = guest.stream.write_all(&masked(0x88, &1000u16.to_be_bytes()));
            let _ = guest.listen(5 * SECOND);
        }
        visits.lock().unwrap().push(guest.seen);
        stayed?;
        osier::sleep(some_of(10 * SECOND));
    }
    Ok(())
}

fn scenario(world: &World) {
    let connections: Arc<Mutex<Option<Connections>>> = Arc::default();
    let place = Arc::clone(&connections);
    world.host("server", move || {
        let options = Options {
            history: 10_000,
            burst: 10_000,
            ..Options::default()
        };
        let router = Router::new().get("/chat", Chat::with(options).handler());
        let server = Server::new(router).on_log(|_| ()).bind("0.0.0.0:80").unwrap();
        *place.lock().unwrap() = Some(server.connections());
        server.run();
    });
    osier::sleep(SECOND);
    world.faults(some_faults());
    let visits: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
    let guests: Vec<_> = (0..2 + below(3))
        .map(|number| {
            let visits = Arc::clone(&visits);
            world.host(&format!("guest-{number}"), move || {
                // A connection may break.
                let _ = visit(number, &visits);
            })
        })
        .collect();
    guests.iter().for_each(|guest| guest.wait());
    world.faults(Faults::none());
    osier::sleep(600 * SECOND);
    assert_eq!(
        connections.lock().unwrap().as_ref().unwrap().count(),
        0,
        "guests are left"
    );

    // A last guest, to whom nothing happens, has the whole history.
    let mut last = Guest::enter("last").unwrap();
    last.listen(SECOND).unwrap();
    let history = last.seen;
    for guest in 0..guests.len() {
        let of_guest = history.iter().filter(|line| line.starts_with(&format!("{guest}.")));
        assert!(of_guest.is_sorted_by(|one, next| one < next), "{history:?}");
    }
    for seen in visits.lock().unwrap().iter() {
        // Everything from the beginning up to when the guest left: the history and the lines after it, in one order.
        assert!(history.starts_with(seen), "a guest saw {seen:?} of {history:?}");
    }
}

#[test]
fn guests_see_every_line_once_and_in_one_order() {
    super::check(&[22502], 400, scenario);
}
