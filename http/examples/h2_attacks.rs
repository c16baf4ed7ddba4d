//! The cost of attacks on an HTTP/2 connection: time until its limit ends it, and the memory that it holds before.
//!
//! `cargo run --release -p osier-http --example h2_attacks` prints a line for each attack.

use std::hint::black_box;
use std::time::Instant;

use osier_http::h2::{ErrorCode, Event, Limits, RequestHead};

#[path = "../tests/it/h2/peer.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod peer;
use peer::*;

/// A name, whether the server's owner reads the output, the handlers' way, and the n-th bytes of the client.
type Attack = (&'static str, bool, Handlers, Box<dyn Fn(u32) -> Vec<u8>>);

/// The way of the handlers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handlers {
    /// They end when their stream is reset.
    End,
    /// They hold their heads and read nothing.
    Hang,
    /// They respond with more than the client takes.
    Respond,
}

/// Connections whose memory is measured together.
const CONNECTIONS: usize = 200;

/// The most rounds for an attack that has no end.
const ROUNDS: u32 = 20_000;

fn attacks() -> Vec<Attack> {
    let bomb = {
        let value = "v".repeat(3_900);
        let mut entry = block(&[("x", &value)]);
        entry[0] = 0x40;
        [block(&GET), entry, vec![0xbe; 10_000]].concat()
    };
    let large = "v".repeat(15_000);
    let id = |n: u32| 2 * n + 1;
    vec![
        ("requests, served", true, Handlers::End, Box::new(move |n| get(id(n)))),
        (
            "Rapid Reset",
            true,
            Handlers::End,
            Box::new(move |n| [get(id(n)), reset(id(n), ErrorCode::CANCEL)].concat()),
        ),
        (
            "MadeYouReset",
            true,
            Handlers::End,
            Box::new(move |n| [get(id(n)), window(id(n), 0)].concat()),
        ),
        (
            "CONTINUATION flood",
            true,
            Handlers::End,
            Box::new(|n| match n {
                0 => raw(HEADERS, 0, 1, &block(&GET)),
                _ => raw(CONTINUATION, 0, 1, &[0x82; 16_384]),
            }),
        ),
        ("SETTINGS flood", true, Handlers::End, Box::new(|_| settings(&[(4, 1)]))),
        (
            "PING flood, nothing read",
            false,
            Handlers::End,
            Box::new(|_| raw(PING, 0, 0, b"whatever")),
        ),
        (
            "PRIORITY flood",
            true,
            Handlers::End,
            Box::new(|_| raw(PRIORITY, 0, 1, &[0; 5])),
        ),
        (
            "empty DATA",
            true,
            Handlers::Hang,
            Box::new(|n| if n == 0 { post(1) } else { data(1, b"", false) }),
        ),
        (
            "1-byte DATA",
            true,
            Handlers::Hang,
            Box::new(|n| if n == 0 { post(1) } else { data(1, b"x", false) }),
        ),
        (
            "HPACK bomb",
            true,
            Handlers::End,
            Box::new(move |n| raw(HEADERS, END_HEADERS | END_STREAM, id(n), &bomb)),
        ),
        (
            "large heads, handlers hang",
            true,
            Handlers::Hang,
            Box::new(move |n| headers(id(n), &[&GET[..], &[("x", &large[..])]].concat(), true)),
        ),
        (
            "bodies that nobody reads",
            true,
            Handlers::Hang,
            Box::new(move |n| [post(id(n)), data(id(n), &[0; 2_500], false)].concat()),
        ),
        (
            "responses to closed windows",
            false,
            Handlers::Respond,
            Box::new(move |n| get(id(n))),
        ),
    ]
}

/// The server's side of one connection, with what its handlers hold.
struct Victim {
    peer: Peer,
    heads: Vec<RequestHead>,
    bodies: Vec<Vec<u8>>,
}

impl Victim {
    fn new() -> Victim {
        Victim {
            peer: Peer::server_with(&Limits::default()),
            heads: Vec::new(),
            bodies: Vec::new(),
        }
    }

    /// Feeds bytes. False: the connection has failed.
    fn feed(&mut self, bytes: &[u8], reads: bool, handlers: Handlers, serves: bool) -> bool {
        let mut at = 0;
        loop {
            let now = self.peer.now;
            let connection = &mut self.peer.connection;
            let Ok((consumed, event)) = connection.receive(&bytes[at..], now) else {
                return false;
            };
            at += consumed;
            match event {
                None => break,
                Some(Event::Request { stream, head, .. }) => match handlers {
                    Handlers::Hang => self.heads.push(*head),
                    Handlers::Respond => {
                        connection.send_head(stream, 200, [("content-type", &b"text/plain"[..])], false);
                        connection.send_data(stream, &[0; 70_000], true, now);
                    }
                    Handlers::End if serves => {
                        connection.send_head(stream, 200, [("content-type", &b"text/plain"[..])], true);
                        connection.finish(stream);
                    }
                    Handlers::End => {}
                },
                Some(Event::Reset { stream, .. }) => connection.finish(stream),
                Some(Event::Data { bytes, .. }) => self.bodies.push(bytes.to_vec()),
                Some(_) => {}
            }
        }
        if reads {
            let len = self.peer.connection.output().len();
            self.peer.connection.advance(len);
        }
        true
    }
}

/// Resident bytes of this process. `None` where there is no /proc.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(statm.split(' ').nth(1)?.parse::<u64>().ok()? * 4096)
}

fn main() {
    println!(
        "{:<28} {:>8} {:>10} {:>12} {:>14}",
        "attack", "rounds", "bytes in", "ns a round", "memory held"
    );
    for (name, reads, handlers, bytes) in attacks() {
        let serves = name == "requests, served";
        let mut victim = Victim::new();
        let (mut rounds, mut received, mut spent) = (0, 0, std::time::Duration::ZERO);
        let mut is_alive = true;
        while is_alive && rounds < ROUNDS {
            let bytes = bytes(rounds);
            let start = Instant::now();
            is_alive = victim.feed(&bytes, reads, handlers, serves);
            spent += start.elapsed();
            (rounds, received) = (rounds + 1, received + bytes.len());
        }
        let end = if is_alive { "no end" } else { "" };
        let before = resident();
        let mut victims: Vec<_> = (0..CONNECTIONS).map(|_| Victim::new()).collect();
        for n in 0..(rounds - 1).min(1_000) {
            let bytes = bytes(n);
            for victim in &mut victims {
                victim.feed(&bytes, reads, handlers, serves);
            }
        }
        let held = match (before, resident()) {
            (Some(before), Some(after)) => format!("{} B", after.saturating_sub(before) / CONNECTIONS as u64),
            _ => "not measured".to_owned(),
        };
        black_box(&victims);
        let each = spent.as_nanos() / u128::from(rounds);
        println!("{name:<28} {rounds:>8} {received:>10} {each:>12} {held:>14} {end}");
        // Memory that the next attack could use again would not be counted.
        std::mem::forget(victims);
    }
}
