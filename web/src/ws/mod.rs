//! WebSockets (RFC 6455): the handshake, messages in both directions and the closing handshake, in
//! two programming styles.
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
//! | style | memory of an idle connection | use it for |
//! |---|---|---|
//! | [`upgrade`], [`Options::upgrade`]: a closure with a [`WebSocket`] | a fiber's stack | sequential code; `select!` between the client and other sources |
//! | [`Options::upgrade_dormant`]: a [`Callbacks`] | less than a kilobyte | many connections, few of them active |
//!
//! Both styles answer pings, ping a silent client, perform the closing handshake, reject text that
//! is not UTF-8, and limit the size of frames and messages. A [`Frame`] is a message that is
//! encoded once for all its receivers.
//!
//! At graceful shutdown the server closes the WebSockets of both styles with code 1001: those that are idle
//! or read at once, and one that only sends after [`Options::close_within`]. A handler that waits for
//! something else has to wait for [`Request::shutdown`], too.
//!
//! No extension is negotiated. `permessage-deflate` needs a compressor of hundreds of kilobytes per
//! connection, and a compressed frame could not be shared. The handshake of a client that offers an
//! extension succeeds without it, as RFC 6455 requires.

// # Layout
//
// - `handshake` checks the upgrade request.
// - `decode` turns bytes into messages and `frame` turns messages into bytes. Both depend only on
//   `message` and are fuzzed alone, with the properties in `law`.
// - `socket` is the blocking style and `session` the callback style. `end` has the reasons of both.
//
// The tungstenite crate supplies the coding of frame headers, opcodes and close codes.

mod decode;
mod end;
mod frame;
mod handshake;
#[cfg(test)]
mod law;
mod message;
mod session;
mod socket;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use osier::Cancelled;
use osier::pubsub::Policy;

use crate::{Request, Response};
use decode::{Failure, Sizes};

pub use end::End;
pub use frame::Frame;
pub use message::{Close, Message};
pub use session::{Callbacks, Sender};
pub use socket::WebSocket;

osier_queue::impl_error!(Failure, self => "{} (WebSocket close code {})", self.reason, self.code);

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, failure)
    }
}

/// The origins that may open a WebSocket. Browsers send the origin of the page in the `Origin`
/// field. Other programs may omit it; a handshake without it is always allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origins {
    /// The origin's host must equal the host that the request is addressed to.
    #[default]
    Same,
    /// Every origin. Use it only where scripts of other sites in a visitor's browser do no harm.
    Any,
    /// The listed origins, such as `https://example.org`.
    These(Vec<String>),
}

/// Limits and timeouts of a WebSocket, and the origins that may open it.
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
    /// Maximum bytes of a message over all its fragments; 1 MiB by default. A longer message closes
    /// the connection with [`Close::TOO_BIG`].
    pub message_bytes: usize,
    /// Maximum bytes of a frame's payload; 1 MiB by default. A longer frame closes the connection
    /// with [`Close::TOO_BIG`].
    pub frame_bytes: usize,
    /// Idle timeout: a client that has sent nothing for this long is sent a ping; 30 s by default.
    pub ping_after: Duration,
    /// Time after the ping within which the client must send something, or the connection ends;
    /// 10 s by default.
    pub pong_within: Duration,
    /// Time to wait for the client's close frame after the server has sent one; 2 s by default.
    pub close_within: Duration,
    /// Supported subprotocols, the preferred one first. The first one that the client offers is
    /// selected. Without a common subprotocol the connection opens with none.
    pub protocols: Vec<String>,
    /// Origins whose pages may connect.
    pub origins: Origins,
    /// Maximum frames queued for a client that does not take what is sent, in callback style; 64 by default. Under
    /// [`Policy::Disconnect`], 64 times as many, but no more than 4,096 or this bound, may be queued for one that does, so that no
    /// burst disconnects it. A single callback may
    /// not send more even then: [`Frame::joined`] makes one frame of many messages.
    pub queue: usize,
    /// Policy for a frame that finds the queue full; [`Policy::Disconnect`] by default.
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

/// The subset of [`Options`] that a connection keeps.
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

    /// Responds to an upgrade request and runs `run` with the connection on its fiber. The
    /// connection is closed when `run` returns. The close code is [`Close::NORMAL`] unless `run`
    /// has sent another. It is [`Close::INTERNAL`] if `run` fails or panics before the client has closed. A panic
    /// is logged.
    ///
    /// An invalid or forbidden handshake gets a response that names the mistake, with status 400,
    /// 403, 405 or 426. `run` is not called then.
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
        accepted.complete(Response::upgrade("websocket", move |io| {
            let mut socket = WebSocket::new(io, timing, protocol);
            let has_failed = match catch_unwind(AssertUnwindSafe(|| run(&mut socket))) {
                Ok(outcome) => outcome.is_err(),
                Err(payload) if Cancelled::is_payload(&*payload) => resume_unwind(payload),
                Err(payload) => {
                    socket.log_panic(&*payload);
                    true
                }
            };
            socket.finish(has_failed);
        }))
    }

    /// Makes the session of a connection that another process has [saved](Callbacks::save), for
    /// [`Part::restore`](crate::upgrade::Part::restore). [`Callbacks::on_restore`] is called first.
    #[cfg(feature = "upgrade")]
    pub fn restore(&self, callbacks: impl Callbacks) -> Box<dyn crate::Session> {
        let session = session::Session::restored(callbacks, self.timing(), self.queue, self.policy);
        Box::new(session)
    }

    /// Same as [`upgrade`](Options::upgrade), in callback style: an idle connection holds no stack.
    pub fn upgrade_dormant(&self, request: &Request<'_>, callbacks: impl Callbacks) -> Response {
        self.upgrade_dormant_with(request, || Ok(callbacks))
    }

    /// Same as [`upgrade_dormant`](Options::upgrade_dormant), but makes the callbacks for a valid handshake only. The error is the
    /// response in place of the 101.
    pub(crate) fn upgrade_dormant_with<C: Callbacks>(
        &self,
        request: &Request<'_>,
        callbacks: impl FnOnce() -> Result<C, Response>,
    ) -> Response {
        let checked = handshake::check(request, self).and_then(|accepted| Ok((accepted, callbacks()?)));
        match checked {
            Ok((accepted, callbacks)) => {
                let session = session::Session::new(callbacks, self.timing(), self.queue, self.policy);
                accepted.complete(Response::upgrade_dormant("websocket", Box::new(session)))
            }
            Err(response) => response,
        }
    }
}

/// Upgrades the request to a WebSocket on a fiber, with the default [`Options`]. See
/// [`Options::upgrade`].
#[doc(alias = "WebSocketUpgrade")]
pub fn upgrade(request: &Request<'_>, run: impl FnOnce(&mut WebSocket<'_>) -> io::Result<()> + 'static) -> Response {
    Options::default().upgrade(request, run)
}
