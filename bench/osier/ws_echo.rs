//! Osier: each message of a WebSocket back to its sender, with a closure that holds a stack at `/`, and with callbacks at `/dormant`. At `/events`, a stream
//! of one event that stays open. At `/poll`, no response. Argument: PORT.
//!
//! Pings are off: 10,000 connections may take longer to open than the interval of pings to a silent client.
#![forbid(unsafe_code)]

use osier_web::{Request, Response, Router, serve, sse, ws};
use std::time::Duration;

struct Echo;

impl ws::Callbacks for Echo {
    fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
        sender.send(message);
    }
}

fn options() -> ws::Options {
    ws::Options {
        ping_after: Duration::from_secs(600),
        ..ws::Options::default()
    }
}

fn fiber(request: &mut Request<'_>) -> Response {
    options().upgrade(request, |socket| {
        while let Some(message) = socket.read()? {
            socket.send(message)?;
        }
        Ok(())
    })
}

fn dormant(request: &mut Request<'_>) -> Response {
    options().upgrade_dormant(request, Echo)
}

fn events(_: &mut Request<'_>) -> Response {
    sse::stream(|sink| {
        sink.send(&sse::Event::new("x"))?;
        sink.sleep(Duration::from_secs(600))
    })
}

fn poll(_: &mut Request<'_>) {
    osier::sleep(Duration::from_secs(600));
}

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let router = Router::new()
        .get("/", fiber)
        .get("/dormant", dormant)
        .get("/events", events)
        .get("/poll", poll);
    osier::Runtime::builder()
        .workers(1)
        .build()?
        .run(|| serve(("127.0.0.1", port), router))
}
