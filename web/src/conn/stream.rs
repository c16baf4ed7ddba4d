//! The client of one request as a stream of an HTTP/2 connection: what the serving code needs of it.
//!
//! The serving code writes a response in HTTP/1.1 form without the framing of its body. The stream turns the head into
//! fields and the rest into DATA. It gives the body of the request without framing, too.

use std::io;
#[cfg(all(feature = "h2", any(feature = "fastcgi", feature = "proxy")))]
use std::rc::Rc;
use std::time::Duration;

use osier::sync::Interrupt;

#[cfg(all(feature = "h2", any(feature = "fastcgi", feature = "proxy")))]
use crate::conn::inlet::Inlet;
use crate::conn::trailers::Trailers;
use crate::conn::worker::Link;

/// The client's side of a stream. Only the stream's own fibers call it, and not two of them for the same direction.
#[cfg_attr(
    not(feature = "proxy"),
    allow(dead_code, reason = "only gateways read what has arrived")
)]
pub(crate) trait ClientStream {
    /// The connection.
    fn link(&self) -> &Link;

    /// Reads bytes of the request's body. Returns 0 at its end.
    ///
    /// # Suspends
    ///
    /// Until there are bytes.
    ///
    /// # Errors
    ///
    /// `TimedOut` if no bytes have come within `patience`, `ConnectionReset` if none will.
    fn read(&self, into: &mut [u8], patience: Duration) -> io::Result<usize>;

    /// Reads bytes of the request's body that have arrived.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there are none, and the errors of `read`.
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize>;

    /// Takes the trailer of the request's body, which is there once its end has been read.
    fn take_trailers(&self) -> Trailers;

    /// Waits until bytes of the request's body, its end or an error have arrived.
    ///
    /// # Suspends
    ///
    /// Until then.
    ///
    /// # Errors
    ///
    /// `TimedOut` if nothing has come within `patience`.
    fn wait_readable(&self, patience: Duration) -> io::Result<()>;

    /// Lets the client send nothing for any time, also near the limit of memory.
    fn allow_pauses(&self);

    /// Sends bytes of the response. They begin with a whole head until the final head has been sent.
    ///
    /// # Suspends
    ///
    /// While the client takes no more.
    ///
    /// # Errors
    ///
    /// `BrokenPipe` if the stream has ended. A client that takes nothing for the write timeout ends it.
    fn write(&self, bytes: &[u8]) -> io::Result<()>;

    /// The number of bytes that [`write`](ClientStream::write) takes now without waiting.
    fn room(&self) -> usize;

    /// Lets the client take the response at any rate.
    fn allow_slow(&self);

    /// Set when the client resets the stream or leaves.
    fn gone(&self) -> Interrupt;

    /// The place where its bytes arrive, for a request that waits for them without a fiber.
    #[cfg(all(feature = "h2", any(feature = "fastcgi", feature = "proxy")))]
    fn shared_inlet(&self) -> Rc<Inlet>;
}
