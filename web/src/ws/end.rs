//! Why WebSockets end: one list for both styles.

use std::{fmt, io};

use osier::Cancelled;

use super::Close;
use crate::{CloseReason, Upgraded};

/// Why a WebSocket has ended. The first cause counts: a client that was too slow, and then answers the server's close frame,
/// was [too slow](End::TooSlow).
///
/// ```
/// use osier_web::ws;
///
/// struct Guest;
///
/// impl ws::Callbacks for Guest {
///     fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
///         sender.send(message);
///     }
///     fn on_close(&mut self, end: &ws::End) {
///         match end {
///             ws::End::Client(_) => println!("has left"),
///             ws::End::Lost | ws::End::PingTimeout => println!("may come back"),
///             other => println!("{other}"), // "the client was too slow", for example
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The client closed, with this close frame.
    Client(Close),
    /// The server's code closed, with this close frame. The client may have answered it or not.
    Server(Close),
    /// The connection ended without a close frame: the client has disconnected, or the network has failed.
    Lost,
    /// The client sent nothing within [`Options::pong_within`](super::Options::pong_within) after a ping.
    PingTimeout,
    /// The queue of the client was full, under [`Policy::Disconnect`](osier::pubsub::Policy::Disconnect). Or the client took no bytes
    /// for [`Timeouts::write`](crate::Timeouts::write).
    TooSlow,
    /// Memory was short, and the client took nothing: see [`CloseReason::Evicted`].
    Evicted,
    /// The client violated the protocol or a size limit. It was sent this close frame.
    ProtocolError(Close),
    /// The server's code failed: a callback panicked.
    Failed,
    /// The server shut down.
    Shutdown,
}

impl End {
    /// The end by a read or a write that has failed.
    pub(super) fn of_error(io: &Upgraded, error: &io::Error) -> End {
        match error.kind() {
            io::ErrorKind::TimedOut => End::TooSlow,
            _ if Cancelled::is(error) => End::Shutdown,
            _ => End::without_close_frame(io),
        }
    }

    /// The end of a connection on which no close frame has come.
    pub(super) fn without_close_frame(io: &Upgraded) -> End {
        match io.is_evicted() {
            true => End::Evicted,
            false => End::Lost,
        }
    }

    /// The reason for which the server's connection ends.
    pub(super) fn close_reason(&self) -> CloseReason {
        match self {
            End::Client(_) | End::Server(_) => CloseReason::Upgraded,
            End::Lost => CloseReason::Client,
            End::PingTimeout => CloseReason::PingTimeout,
            End::TooSlow => CloseReason::TooSlow,
            End::Evicted => CloseReason::Evicted,
            End::ProtocolError(_) => CloseReason::ProtocolError,
            End::Failed => CloseReason::Failed,
            End::Shutdown => CloseReason::Shutdown,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Client(close) => write!(f, "the client closed: {close}"),
            End::Server(close) => write!(f, "the server closed: {close}"),
            End::Lost => f.write_str("the connection was lost"),
            End::PingTimeout => f.write_str("the client did not answer a ping"),
            End::TooSlow => f.write_str("the client was too slow"),
            End::Evicted => f.write_str("the client took nothing while memory was short"),
            End::ProtocolError(close) => write!(f, "the client violated the protocol: {close}"),
            End::Failed => f.write_str("the server's code failed"),
            End::Shutdown => f.write_str("the server shut down"),
        }
    }
}
