//! Fuzzes a server's side of an HTTP/2 connection with what a client sends after its preface. The connection never panics, and
//! neither its events nor its output depend on the pieces. Its output is frames that a client accepts.
#![cfg_attr(fuzzing, no_main)]

#[path = "h2_run.rs"]
mod h2_run;

use std::time::Instant;

use osier_fuzz::fuzz_target;
use osier_http::h2::frame::{self, Role};
use osier_http::h2::{Connection, Event, Limits};

fuzz_target!(|data: &[u8]| {
    let now = Instant::now();
    let mut client = frame::PREFACE.to_vec();
    frame::settings(&mut client, &[]);
    client.extend_from_slice(data);
    h2_run::run_in_pieces(&client, |pieces| run(pieces, now));
});

/// Serves the client. Each request is answered at its end, and each body is read at once.
fn run(pieces: &[&[u8]], now: Instant) -> h2_run::Outcome {
    let limits = Limits {
        max_streams: 4,
        max_tunnels: 2,
        head_bytes: 500,
        header_count: 8,
        reset_burst: 5,
        frame_burst: 100,
        ..Limits::default()
    };
    let mut connection = Connection::server(&limits, now);
    let most = (limits.max_streams + limits.max_tunnels) as usize;
    let take = |connection: &mut Connection, event: Event<'_>| {
        assert!(connection.streams() <= most);
        serve(connection, event, now);
    };
    h2_run::run(&mut connection, pieces, now, Role::Client, take)
}

fn serve(connection: &mut Connection, event: Event<'_>, now: Instant) {
    let (stream, ends) = match event {
        Event::Request { stream, end, .. } => (stream, end),
        Event::Data { stream, bytes, end } => {
            connection.consumed(stream, bytes.len());
            (stream, end)
        }
        Event::Trailers { stream, .. } => (stream, true),
        Event::Reset { stream, .. } => return connection.finish(stream),
        _ => return,
    };
    if ends {
        connection.send_head(stream, 200, [("content-type", &b"text/plain"[..])], false);
        connection.send_data(stream, b"hello", true, now);
        connection.finish(stream);
    }
}
