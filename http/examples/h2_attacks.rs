//! Attacks on an HTTP/2 server, each in its own bytes: `cargo run --release -p osier-http --example h2_attacks`.
//!
//! Each row is one connection with the default limits, fed with an attack until it ends. The program prints the client's bytes until
//! then, the requests that a handler saw, the time, and the reason of the end. `web/examples/h2_attacks.rs` attacks a server over
//! thousands of connections.

use std::time::Instant;

use osier_http::h2::{Connection, Event, Limits};
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
        hello.chain((0..TURNS).map(h2_attacks::get)),
    );
    for attack in ATTACKS.iter().filter(|attack| !attack.waits()) {
        feed(attack.name, attack.answers, attack.pieces());
    }
}

/// Feeds an attack to a new connection. `answers`: each whole request is answered at once, and a reset handler ends.
fn feed(name: &str, answers: bool, pieces: impl Iterator<Item = Vec<u8>>) {
    let now = Instant::now();
    let pieces: Vec<Vec<u8>> = pieces.collect();
    let mut connection = Connection::server(&Limits::default(), now);
    let (mut bytes, mut requests, mut end) = (0, 0, "none".to_string());
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
                    handle(&mut connection, event, answers, now);
                }
                Err(error) => {
                    end = error.to_string();
                    break 'attack;
                }
            }
        }
        connection.advance(connection.output().len());
    }
    let micros = begun.elapsed().as_micros();
    println!("{name:<36}{bytes:>10}{requests:>10}{micros:>10}   {end}");
}

fn handle(connection: &mut Connection, event: Event<'_>, answers: bool, now: Instant) {
    match event {
        Event::Request { stream, end: true, .. } if answers => {
            connection.send_head(stream, 200, [("content-type", &b"text/plain"[..])], false);
            connection.send_data(stream, b"hello", true, now);
            connection.finish(stream);
        }
        Event::Data { stream, bytes, .. } => connection.consumed(stream, bytes.len()),
        Event::Reset { stream, .. } if answers => connection.finish(stream),
        _ => {}
    }
}
