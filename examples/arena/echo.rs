//! A WebSocket that sends each message back.

use osier_web::{Request, Response, ws};

pub fn open(request: &mut Request<'_>) -> Response {
    ws::upgrade(request, |socket| {
        while let Some(message) = socket.read()? {
            socket.send(message)?;
        }
        Ok(())
    })
}
