//! A carrier takes one HTTP request to a backend: on a connection of its own, or on a stream of a shared one.

use std::io;
use std::net::Shutdown;
use std::time::Duration;

use super::Lease;
#[cfg(all(feature = "h2", feature = "proxy"))]
pub(crate) use super::h2::Stream;
use super::ticket::Ticket;

/// The carrier of one request. Its drop closes the connection, or ends the stream.
pub(crate) enum Carrier {
    /// An HTTP/1.1 connection.
    Bytes(Lease),
    /// An HTTP/2 stream.
    #[cfg(all(feature = "h2", feature = "proxy"))]
    Stream(Stream),
}

impl Carrier {
    pub(crate) fn ticket(&self) -> &Ticket {
        match self {
            Carrier::Bytes(lease) => &lease.ticket,
            #[cfg(all(feature = "h2", feature = "proxy"))]
            Carrier::Stream(stream) => &stream.ticket,
        }
    }

    /// The lease, if the carrier is an HTTP/1.1 connection.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        match self {
            Carrier::Bytes(lease) => Some(lease),
            #[cfg(all(feature = "h2", feature = "proxy"))]
            Carrier::Stream(_) => None,
        }
    }

    /// Sets the longest waits for the backend to send the next bytes, and to take the next bytes.
    pub(crate) fn set_timeouts(&self, read: Duration, write: Duration) -> io::Result<()> {
        match self {
            Carrier::Bytes(lease) => {
                lease.stream().set_write_timeout(Some(write))?;
                lease.stream().set_read_timeout(Some(read))
            }
            #[cfg(all(feature = "h2", feature = "proxy"))]
            Carrier::Stream(stream) => {
                stream.set_timeouts(read, write);
                Ok(())
            }
        }
    }

    /// The longest wait for the backend to send the next bytes.
    pub(crate) fn read_timeout(&self) -> Option<Duration> {
        match self {
            Carrier::Bytes(lease) => lease.stream().read_timeout().ok()?,
            #[cfg(all(feature = "h2", feature = "proxy"))]
            Carrier::Stream(stream) => Some(stream.read_timeout()),
        }
    }

    /// Gives the request up: the connection is shut down, or the stream is reset.
    pub(crate) fn cancel(&self) {
        match self {
            Carrier::Bytes(lease) => drop(lease.stream().shutdown(Shutdown::Both)),
            #[cfg(feature = "h2")]
            Carrier::Stream(stream) => stream.cancel(),
        }
    }

    /// Whether the backend has certainly not processed the request.
    pub(crate) fn is_unprocessed(&self) -> bool {
        match self {
            Carrier::Bytes(_) => false,
            #[cfg(all(feature = "h2", feature = "proxy"))]
            Carrier::Stream(stream) => stream.is_unprocessed(),
        }
    }
}
