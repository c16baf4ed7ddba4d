//! Attacks on an HTTP/2 server, each in its own bytes: `cargo run --release -p osier-http --example h2_attacks`.
//!
//! Each row is one connection with the default limits, to which an attack is fed until the connection ends, or 20,000 times. Printed are
//! the client's bytes until then, the requests that a handler saw, the time, and the reason of the end.

use std::time::Instant;

use osier_http::h2::{Connection, Event, Limits, frame};

/// A GET whose authority stands in the dynamic table, and a POST.
const GET: &[u8] = b"\x82\x86\x84\x41\x01a";
const POST: &[u8] = b"\x83\x86\x84\x41\x01a";
/// An entry of 4,000 bytes, for references to it.
const LARGE_ENTRY: &[u8] = b"\x40\x01n\x7f\xe1\x1d";

const TURNS: u32 = 20_000;

fn main() {
    println!(
        "{:<36}{:>10}{:>10}{:>10}   end",
        "attack", "bytes", "requests", "time, µs"
    );
    attack("requests, all answered: no attack", true, get);
    attack("Rapid Reset, handlers at work", false, |i| join(&[get(i), reset(i)]));
    attack("Rapid Reset, handlers end at once", true, |i| {
        join(&[post(i), reset(i)])
    });
    attack("MadeYouReset: WINDOW_UPDATE of 0", true, |i| {
        join(&[post(i), raw(8, 0, id(i), &[0; 4])])
    });
    attack("MadeYouReset: DATA after the end", true, |i| {
        join(&[post(i), raw(0, 1, id(i), b""), raw(0, 1, id(i), b"x")])
    });
    attack("MadeYouReset: a short PRIORITY", true, |i| {
        join(&[post(i), raw(2, 0, id(i), b"x")])
    });
    attack("malformed heads", true, |i| raw(1, 5, id(i), b"\x82\x84"));
    attack("more streams than the limit", false, get);
    attack("CONTINUATION, empty", true, |i| match i {
        0 => raw(1, 1, 1, GET),
        _ => raw(9, 0, 1, b""),
    });
    attack("CONTINUATION, one long value", true, |i| match i {
        0 => raw(1, 1, 1, &[b"\0\x01n\x7f\x80\x80\x40", &[b'v'; 16_000][..]].concat()),
        _ => raw(9, 0, 1, &[b'v'; 16_384]),
    });
    attack("HPACK bomb: one large entry", true, |i| {
        raw(
            1,
            5,
            id(i),
            &[GET, LARGE_ENTRY, &[b'v'; 3936], &[0xbe; 12_000]].concat(),
        )
    });
    attack("HPACK bomb: 16,384 fields", true, |i| raw(1, 5, id(i), &[0x90; 16_384]));
    attack("HPACK bomb: crumbs of a cookie", true, |i| {
        raw(1, 5, id(i), &[GET, &b"\x60\x01a".repeat(2000)].concat())
    });
    attack("SETTINGS, empty", true, |_| raw(4, 0, 0, b""));
    attack("SETTINGS of 2,730 entries", true, |_| {
        raw(4, 0, 0, &[0, 4, 0, 0, 255, 255].repeat(2730))
    });
    attack("PING", true, |_| raw(6, 0, 0, &[0; 8]));
    attack("PRIORITY", true, |_| raw(2, 0, 1, &[0, 0, 0, 3, 7]));
    attack("PRIORITY_UPDATE", true, |_| raw(16, 0, 0, b"\0\0\0\x01u=1"));
    attack(
        "RST_STREAM of one stream",
        true,
        |i| if i == 0 { get(0) } else { reset(0) },
    );
    attack("WINDOW_UPDATE", true, |i| match i {
        0 => post(0),
        _ => raw(8, 0, 0, &[0, 0, 0, 1]),
    });
    attack(
        "DATA, empty",
        true,
        |i| if i == 0 { post(0) } else { raw(0, 0, 1, b"") },
    );
    attack("DATA, padding only", true, |i| match i {
        0 => post(0),
        _ => raw(0, 8, 1, &[&[255][..], &[0; 255]].concat()),
    });
    attack("DATA of one byte", true, |i| {
        if i == 0 { post(0) } else { raw(0, 0, 1, b"x") }
    });
    attack("unknown frames, empty", true, |_| raw(0x33, 0, 0, b""));
    attack("unknown frames of 16 KiB", true, |_| raw(0x33, 0, 0, &[0; 16_384]));
    attack("GOAWAY", true, |_| raw(7, 0, 0, &[0; 8]));
}

/// Feeds an attack to a new connection. `answers`: each whole request is answered at once, and a reset handler ends.
fn attack(name: &str, answers: bool, of_turn: impl Fn(u32) -> Vec<u8>) {
    let now = Instant::now();
    let mut hello = frame::PREFACE.to_vec();
    frame::settings(&mut hello, &[]);
    frame::settings_ack(&mut hello);
    let turns: Vec<Vec<u8>> = std::iter::once(hello).chain((0..TURNS).map(of_turn)).collect();

    let mut connection = Connection::server(&Limits::default(), now);
    let (mut bytes, mut requests, mut end) = (0, 0, "none".to_string());
    let begun = Instant::now();
    'attack: for turn in &turns {
        let mut rest = &turn[..];
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

fn id(turn: u32) -> u32 {
    2 * turn + 1
}

fn get(turn: u32) -> Vec<u8> {
    raw(1, 5, id(turn), GET)
}

fn post(turn: u32) -> Vec<u8> {
    raw(1, 4, id(turn), POST)
}

fn reset(turn: u32) -> Vec<u8> {
    raw(3, 0, id(turn), &[0, 0, 0, 8])
}

fn join(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.concat()
}

/// A frame with a payload.
fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}
