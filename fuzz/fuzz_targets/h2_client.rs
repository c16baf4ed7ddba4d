//! Fuzzes the client's side of an HTTP/2 connection with the bytes of a server after its SETTINGS. Four requests are in flight: one without
//! a body, one with a body, a tunnel, and one that the client has reset. The connection never panics, and neither its events nor its
//! output depend on the pieces. Its output is frames that a server accepts.
#![cfg_attr(fuzzing, no_main)]

#[path = "h2_run.rs"]
mod h2_run;

use std::time::Instant;

use osier_fuzz::fuzz_target;
use osier_http::h2::frame::{self, Role};
use osier_http::h2::{Connection, ErrorCode, Event, Limits, Outgoing};

fuzz_target!(|data: &[u8]| {
    let now = Instant::now();
    let mut server = Vec::new();
    frame::settings(&mut server, &[]);
    server.extend_from_slice(data);
    h2_run::run_in_pieces(&server, |pieces| {
        h2_run::run(&mut client(now), pieces, now, Role::Server, take)
    });
});

/// A client with its requests. They have the streams 1, 3, 5 and 7.
fn client(now: Instant) -> Connection {
    let limits = Limits {
        head_bytes: 500,
        header_count: 8,
        reset_burst: 5,
        frame_burst: 100,
        ..Limits::default()
    };
    let mut connection = Connection::client(&limits, now);
    let target = |method| Outgoing {
        method,
        scheme: "http",
        authority: "a",
        path: "/",
        protocol: None,
    };
    for (method, end) in [("GET", true), ("POST", false), ("CONNECT", false), ("GET", true)] {
        let stream = connection.request(&target(method), [], end).expect("a free slot");
        if method == "POST" {
            connection.send_data(stream, &[b'x'; 70_000], false, now);
        }
    }
    connection.reset(7, ErrorCode::CANCEL);
    connection
}

/// Reads each body at once, and is done with each stream that has ended.
fn take(connection: &mut Connection, event: Event<'_>) {
    let ended = match event {
        Event::Response { stream, end, .. } => end.then_some(stream),
        Event::Data { stream, bytes, end } => {
            connection.consumed(stream, bytes.len());
            end.then_some(stream)
        }
        Event::Trailers { stream, .. } | Event::Reset { stream, .. } => Some(stream),
        _ => None,
    };
    if let Some(stream) = ended {
        connection.finish(stream);
    }
}
