//! Attacks on an HTTP/2 server, each in its own bytes: `cargo run --release -p osier-http --example h2_attacks`.
//!
//! Each row is one connection with the default limits, fed with an attack until it ends. The program prints the client's bytes until
//! then, the requests that a handler saw, the time, and the reason of the end. `web/examples/h2_attack_lab.rs` attacks a server over
//! thousands of connections.

use std::collections::BTreeMap;
use std::time::Instant;

use osier_http::h2::{Connection, Event, Limits, StreamId};
use testkit::h2_attacks::{self, ATTACKS, TURNS};

fn main() {
    println!(
        "{:<36}{:>10}{:>10}{:>10}   end",
        "attack", "bytes", "requests", "time, µs"
    );
    let hello = ATTACKS[0].pieces().take(1);
    feed(
        "requests, all answered: no attack",
        true,
        hello.chain([WIDE.to_vec()]).chain((0..TURNS).map(h2_attacks::get)),
    );
    for attack in ATTACKS.iter().filter(|attack| !attack.waits()) {
        feed(attack.name, attack.answers, attack.pieces());
    }
}

/// A WINDOW_UPDATE frame that makes room for all responses.
const WIDE: [u8; 13] = [0, 0, 4, 8, 0, 0, 0, 0, 0, 0x40, 0, 0, 0];

/// Feeds an attack to a new connection. `answers`: each whole request is answered at once, and a reset handler ends.
fn feed(name: &str, answers: bool, pieces: impl Iterator<Item = Vec<u8>>) {
    let now = Instant::now();
    let pieces: Vec<Vec<u8>> = pieces.collect();
    let mut connection = Connection::server(&Limits::default(), now);
    let (mut bytes, mut requests, mut end) = (0, 0, "none".to_string());
    let mut bodies = Bodies::new();
    let begun = Instant::now();
    'attack: for piece in &pieces {
        let mut rest = &piece[..];
        bytes += rest.len();
        loop {
            match connection.receive(rest, now) {
                Ok((consumed, event)) => {
                    rest = &rest[consumed..];
                    let Some(event) = event else { break };
                    requests += u32::from(matches!(event, Event::Request { .. }));
                    handle(&mut connection, &mut bodies, event, answers, now);
                }
                Err(error) => {
                    end = error.to_string();
                    break 'attack;
                }
            }
        }
        while let Some(stream) = connection.next_writable() {
            send(&mut connection, &mut bodies, stream, now);
        }
        connection.advance(connection.output().len());
    }
    let micros = begun.elapsed().as_micros();
    println!("{name:<36}{bytes:>10}{requests:>10}{micros:>10}   {end}");
}

/// The bytes of the responses that are not sent.
type Bodies = BTreeMap<StreamId, &'static [u8]>;

fn handle(connection: &mut Connection, bodies: &mut Bodies, event: Event<'_>, answers: bool, now: Instant) {
    match event {
        Event::Request {
            stream,
            head,
            end: true,
        } if answers => {
            connection.send_head(stream, 200, [("content-type", &b"text/plain"[..])], false);
            bodies.insert(
                stream,
                if head.path() == Some("/big") {
                    &[b'x'; 4096]
                } else {
                    b"hello"
                },
            );
            send(connection, bodies, stream, now);
        }
        Event::Data { stream, bytes, .. } => connection.consumed(stream, bytes.len()),
        Event::Reset { stream, .. } if answers => connection.finish(stream),
        _ => {}
    }
}

/// Sends what the windows let through.
fn send(connection: &mut Connection, bodies: &mut Bodies, stream: StreamId, now: Instant) {
    let Some(body) = bodies.get_mut(&stream) else { return };
    *body = &body[connection.send_data(stream, body, true, now)..];
    if body.is_empty() {
        bodies.remove(&stream);
        connection.finish(stream);
    }
}
