//! Osier: each message of a WebSocket back to its sender, with a closure that holds a stack at `/`, and with callbacks at `/dormant`.
//! Argument: PORT.
#![forbid(unsafe_code)]

use osier_web::{Request, Response, Router, serve, ws};

struct Echo;

impl ws::Callbacks for Echo {
    fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
        sender.send(message);
    }
}

fn fiber(request: &mut Request<'_>) -> Response {
    ws::upgrade(request, |socket| {
        while let Some(message) = socket.read()? {
            socket.send(message)?;
        }
        Ok(())
    })
}

fn dormant(request: &mut Request<'_>) -> Response {
    ws::Options::default().upgrade_dormant(request, Echo)
}

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let router = Router::new().get("/", fiber).get("/dormant", dormant);
    osier::Runtime::builder()
        .workers(1)
        .build()?
        .run(|| serve(("127.0.0.1", port), router))
}
