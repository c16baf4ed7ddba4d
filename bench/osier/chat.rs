//! Osier: the chat of osier-web at `/chat`, and at `/room` a bare room that sends every message to every guest.
//! Arguments: PORT [WORKERS]; without WORKERS, one worker.
#![forbid(unsafe_code)]

use osier::pubsub::{Policy, Topic};
use osier_web::chat::{Chat, Options};
use osier_web::{Request, Router, serve, ws};

struct Guest(Topic<ws::Frame>);

impl ws::Callbacks for Guest {
    fn on_open(&mut self, sender: &ws::Sender) {
        sender.join(&self.0);
    }
    fn on_message(&mut self, message: ws::Message, _: &ws::Sender) {
        self.0.publish(message.into());
    }
}

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let workers = std::env::args()
        .nth(2)
        .map_or(1, |text| text.parse().expect("a number"));
    let chat = Chat::with(Options {
        burst: u32::MAX,
        ..Options::default()
    });
    let room = Topic::new();
    let options = ws::Options {
        queue: 1024,
        policy: Policy::Disconnect,
        ..ws::Options::default()
    };
    let router = Router::new()
        .get("/chat", chat.handler())
        .get("/room", move |request: &mut Request<'_>| {
            options.upgrade_dormant(request, Guest(room.clone()))
        });
    osier::Runtime::builder()
        .workers(workers)
        .build()?
        .run(|| serve(("127.0.0.1", port), router))
}
