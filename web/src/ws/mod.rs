//! WebSockets (RFC 6455), in two styles on one protocol.
//!
//! ```
//! use osier_web::{Request, Router, ws};
//!
//! let router = Router::new().get("/echo", |request: &mut Request<'_>| {
//!     ws::upgrade(request, |socket| {
//!         while let Some(message) = socket.read()? {
//!             socket.send(message)?;
//!         }
//!         Ok(())
//!     })
//! });
//! ```
//!
//! | style | while it is idle | for |
//! |---|---|---|
//! | [`upgrade`], [`Options::upgrade`]: a closure with a [`WebSocket`] | a fiber's stack | code that reads top to bottom; `select!` between client and others |
//! | [`Options::upgrade_dormant`]: a [`Handler`] | less than a kilobyte | many connections of which few speak |
//!
//! Both answer pings, ping a client that is silent, close by handshake, refuse text that is not UTF-8, and bound what a client may
//! send. A [`Frame`] is a message that is encoded once for all who get it.
//!
//! Extensions are not offered, `permessage-deflate` among them: a compressor for each connection costs hundreds of kilobytes, and
//! a frame could not be shared. A client that asks for one is told no, as the protocol wants it, and goes on without.
//!
//! # Layout
//!
//! `handshake` checks the request, `decode` makes messages of bytes, `frame` makes bytes of messages (both know a `message` and nothing
//! else of this crate, and are fuzzed as they stand, under the `law`), `socket` and `session` are the two styles. The frame headers
//! and codes are tungstenite's.

mod decode;
mod frame;
mod handshake;
#[cfg(test)]
mod law;
mod message;
mod session;
mod socket;

use std::fmt;
use std::io;
use std::time::Duration;

use osier::pubsub::Policy;

use crate::{Request, Response};
use decode::{Failure, Sizes};

pub use frame::Frame;
pub use message::{Close, Message};
pub use session::{Handler, Sender};
pub use socket::WebSocket;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (WebSocket close code {})", self.reason, self.code)
    }
}

impl std::error::Error for Failure {}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, failure)
    }
}

/// Pages of which sites may open a connection. Browsers send the origin of the page; other programs need not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origins {
    /// Those of the host that the request is addressed to.
    #[default]
    Same,
    /// All: for what needs no protection from other sites' scripts in a visitor's browser.
    Any,
    /// These, as `https://example.org`.
    These(Vec<String>),
}

/// Limits and times of a WebSocket, and who may open it.
///
/// ```
/// use osier_web::ws::{Options, Origins};
///
/// let options = Options {
///     message_bytes: 4096,
///     origins: Origins::These(vec!["https://example.org".into()]),
///     ..Options::default()
/// };
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// The most bytes of a message, over all its fragments; 1 MiB. More closes with [`Close::TOO_BIG`].
    pub message_bytes: usize,
    /// The most bytes of a frame; 1 MiB.
    pub frame_bytes: usize,
    /// A client from which nothing has come for so long is sent a ping; 30 s.
    pub ping_after: Duration,
    /// And if it does not answer within this time the connection ends; 10 s.
    pub pong_within: Duration,
    /// How long the client's answer to a close frame is awaited; 2 s.
    pub close_within: Duration,
    /// Subprotocols, the preferred first. The first that the client offers is agreed on; none if it offers none of them.
    pub protocols: Vec<String>,
    /// Pages of which sites may connect.
    pub origins: Origins,
    /// Frames that may wait for a slow client, in callback style; 64.
    pub queue: usize,
    /// What becomes of one more; [`Policy::Disconnect`].
    pub policy: Policy,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            message_bytes: 1 << 20,
            frame_bytes: 1 << 20,
            ping_after: Duration::from_secs(30),
            pong_within: Duration::from_secs(10),
            close_within: Duration::from_secs(2),
            protocols: Vec::new(),
            origins: Origins::Same,
            queue: 64,
            policy: Policy::Disconnect,
        }
    }
}

/// Of the options, what a connection keeps.
#[derive(Clone, Copy, Debug)]
struct Timing {
    sizes: Sizes,
    ping_after: Duration,
    pong_within: Duration,
    close_within: Duration,
}

impl Options {
    fn timing(&self) -> Timing {
        Timing {
            sizes: Sizes {
                frame: self.frame_bytes,
                message: self.message_bytes,
            },
            ping_after: self.ping_after,
            pong_within: self.pong_within,
            close_within: self.close_within,
        }
    }

    /// Answers a handshake, and runs `run` with the connection on its fiber; when `run` returns the connection is closed: with
    /// [`Close::NORMAL`] if it did not say otherwise, with [`Close::INTERNAL`] if it failed before the client has closed.
    ///
    /// A request that is no handshake, or not one that is allowed here, is answered with what is wrong with it: 400, 403, 405 or
    /// 426.
    pub fn upgrade(
        &self,
        request: &Request<'_>,
        run: impl FnOnce(&mut WebSocket<'_>) -> io::Result<()> + 'static,
    ) -> Response {
        let accepted = match handshake::check(request, self) {
            Ok(accepted) => accepted,
            Err(response) => return response,
        };
        let (timing, protocol) = (self.timing(), accepted.protocol.clone());
        accepted.answer(Response::upgrade("websocket", move |io| {
            let mut socket = WebSocket::new(io, timing, protocol);
            if run(&mut socket).is_err() && socket.closed().is_none() {
                let _ = socket.close(Close::INTERNAL, "");
            }
            socket.finish();
        }))
    }

    /// As [`upgrade`](Options::upgrade), in callback style: the connection holds no stack while nothing happens.
    pub fn upgrade_dormant(&self, request: &Request<'_>, handler: impl Handler) -> Response {
        match handshake::check(request, self) {
            Ok(accepted) => {
                let session = session::Session::new(handler, self.timing(), self.queue, self.policy);
                accepted.answer(Response::upgrade_dormant("websocket", Box::new(session)))
            }
            Err(response) => response,
        }
    }
}

/// A WebSocket with the default [`Options`], on a fiber: see [`Options::upgrade`].
pub fn upgrade(request: &Request<'_>, run: impl FnOnce(&mut WebSocket<'_>) -> io::Result<()> + 'static) -> Response {
    Options::default().upgrade(request, run)
}
