//! The client's end of a WebSocket.

use std::io;
use std::time::Duration;

use tungstenite::protocol::{CloseFrame, Role};
use tungstenite::{Error, Message as Sent};

use super::{Reply, RequestBuilder};
use crate::Stream;
use crate::ws::{Close, Message};

/// The time in which a message must come. A test that waits for one in vain fails, and does not hang.
const PATIENCE: Duration = Duration::from_secs(10);

/// The client's end of a WebSocket: see [`RequestBuilder::websocket`]. It answers pings.
pub struct WebSocket {
    socket: tungstenite::WebSocket<Stream>,
    reply: Reply,
    closed: Option<Close>,
}

impl RequestBuilder<'_> {
    /// Opens a WebSocket.
    ///
    /// ```
    /// use osier_web::{Request, Router, test::Client, ws};
    ///
    /// let client = Client::new(Router::new().get("/echo", |request: &mut Request<'_>| {
    ///     ws::upgrade(request, |socket| {
    ///         while let Some(message) = socket.read()? {
    ///             socket.send(message)?;
    ///         }
    ///         Ok(())
    ///     })
    /// }));
    /// let mut socket = client.get("/echo").websocket().unwrap();
    /// socket.send("hello");
    /// assert_eq!(socket.read(), Some("hello".into()));
    /// socket.close(1000, "");
    /// assert_eq!((socket.read(), socket.closed().unwrap().code), (None, 1000));
    ///
    /// let stranger = client.get("/echo").header("origin", "https://elsewhere.example");
    /// assert_eq!(stranger.websocket().unwrap_err().status(), 403);
    /// ```
    ///
    /// # Suspends
    ///
    /// Same as [`send`](RequestBuilder::send).
    ///
    /// # Blocks the thread
    ///
    /// Same as [`send`](RequestBuilder::send).
    ///
    /// # Errors
    ///
    /// The response that refuses the WebSocket.
    ///
    /// # Panics
    ///
    /// Same as [`upgrade`](RequestBuilder::upgrade).
    pub fn websocket(self) -> Result<WebSocket, Box<Reply>> {
        let request = self
            .header("sec-websocket-version", 13)
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let (reply, stream) = request.upgrade("websocket");
        let Some(stream) = stream else { return Err(reply.into()) };
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
        Ok(WebSocket {
            socket: tungstenite::WebSocket::from_raw_socket(stream, Role::Client, None),
            reply,
            closed: None,
        })
    }
}

impl WebSocket {
    /// Sends a message.
    ///
    /// # Suspends
    ///
    /// While the socket's send buffer is full. Blocks the thread when called on a plain one.
    ///
    /// # Panics
    ///
    /// If the connection has ended.
    pub fn send(&mut self, message: impl Into<Message>) {
        let message = match message.into() {
            Message::Text(text) => Sent::from(text),
            Message::Binary(bytes) => Sent::from(bytes),
        };
        let sent = self.socket.send(message);
        sent.unwrap_or_else(|error| panic!("the message cannot be sent: {error}"));
    }

    /// Waits for a message. `None` means that the connection has ended.
    ///
    /// # Suspends
    ///
    /// Until then. Blocks the thread when called on a plain one.
    ///
    /// # Panics
    ///
    /// If nothing comes within 10 s, or if the server violates the protocol.
    pub fn read(&mut self) -> Option<Message> {
        loop {
            match self.socket.read() {
                Ok(Sent::Text(text)) => return Some(Message::Text(text.as_str().to_owned())),
                Ok(Sent::Binary(bytes)) => return Some(Message::Binary(bytes.to_vec())),
                Ok(Sent::Close(frame)) => {
                    let close = frame.map(|frame| Close::new(frame.code.into(), &frame.reason));
                    self.closed = Some(close.unwrap_or_else(|| Close::new(Close::NO_CODE, "")));
                }
                Ok(_) => {}
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                    panic!("no message has come within {PATIENCE:?}")
                }
                Err(Error::Protocol(error)) if self.socket.can_read() => panic!("{error}"),
                Err(_) => return None,
            }
        }
    }

    /// Sends a close frame. [`read`](WebSocket::read) then gives what the server has sent before its own.
    ///
    /// # Suspends
    ///
    /// Same as [`send`](WebSocket::send).
    pub fn close(&mut self, code: u16, reason: &str) {
        let frame = CloseFrame {
            code: code.into(),
            reason: reason.to_owned().into(),
        };
        let _ = self.socket.close(Some(frame)); // an error is the end, which `read` reports
    }

    /// The close frame of the server, once [`read`](WebSocket::read) has come to it.
    pub fn closed(&self) -> Option<&Close> {
        self.closed.as_ref()
    }

    /// The response to the handshake.
    pub fn reply(&self) -> &Reply {
        &self.reply
    }
}

osier_queue::impl_debug!(WebSocket, self => { closed: self.closed, .. });
