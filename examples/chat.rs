//! A chat room over WebSockets. Start it and open two browsers on <http://127.0.0.1:8080/>.
//!
//! ```text
//! cargo run --release -p osier-examples --bin chat -- [ADDR]
//! ```

use std::io;
use std::process::ExitCode;

use osier::pubsub::{Policy, Topic};
use osier_web::ws::{self, Close, Frame, WebSocket};
use osier_web::{Html, Rejection, Request, Response, Router};

mod start;

/// The most frames buffered for a slow guest. Beyond it the connection is closed with "try again later".
const BEHIND: usize = 256;

struct Room(Topic<Frame>);

/// Waits for the guest and for the room at the same time.
fn talk(socket: &mut WebSocket<'_>, room: &Topic<Frame>) -> io::Result<()> {
    let mut others = room.subscribe(BEHIND, Policy::Disconnect);
    loop {
        osier::select! {
            message = socket.recv_async() => match message? {
                // One frame, shared by all guests.
                Some(message) => drop(room.publish(message.into())),
                None => return Ok(()),
            },
            frame = others.recv_async() => match frame {
                Ok(frame) => socket.send(frame)?,
                Err(_) => return socket.close(Close::TRY_AGAIN, "too slow"),
            },
        }
    }
}

fn join(request: &mut Request<'_>) -> Result<Response, Rejection> {
    let Room(room) = request.state()?;
    let room = room.clone();
    Ok(ws::upgrade(request, move |socket| talk(socket, &room)))
}

fn page(_: &mut Request<'_>) -> Html<&'static str> {
    Html(PAGE)
}

fn main() -> ExitCode {
    start::serve("chat", |_| {
        let router = Router::new().get("/", page).get("/room", join);
        Ok(router.state(Room(Topic::new())))
    })
}

const PAGE: &str = r#"<!doctype html>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>chat</title>
<form id="form"><input id="line" autofocus autocomplete="off" placeholder="say something"></form>
<ul id="lines"></ul>
<script>
const socket = new WebSocket(location.href.replace(/^http/, "ws").replace(/\/$/, "") + "/room");
socket.onmessage = event => {
  const line = document.createElement("li");
  line.textContent = event.data;
  lines.prepend(line);
};
form.onsubmit = event => {
  event.preventDefault();
  socket.send(line.value);
  line.value = "";
};
</script>
"#;
