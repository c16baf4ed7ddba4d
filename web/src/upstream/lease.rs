//! A lease is a connection to a backend for the time of one request.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use osier::time::Sleep;

use super::claim::Claim;
use super::keeper;
use super::ticket::Ticket;
use crate::conn::transport::Transport;
use crate::conn::waited::{Beginning, Waited};
use crate::{Address, Stream};

/// A connection to a backend. Dropping it closes the connection; [`keep`](Lease::keep) returns it
/// for the next lease.
///
/// Report the outcome. [`answered`](Lease::answered) reports a valid response; without this report
/// a backend that is out never comes back. [`failed`](Lease::failed) reports a failure of the
/// backend.
pub struct Lease {
    /// Declared before the ticket: the connection closes before the place is free.
    transport: Transport,
    pub(super) ticket: Ticket,
}

impl Lease {
    pub(super) fn new(claim: Claim, transport: Transport, reused: bool) -> Lease {
        Lease {
            transport,
            ticket: Ticket::new(claim, reused),
        }
    }

    /// The socket, for waiting and for setting timeouts. A reused connection still has the timeouts that its previous
    /// user has set. Read and write through the lease: the bytes of the socket may be encrypted.
    #[inline]
    pub fn stream(&self) -> &Stream {
        self.transport.socket()
    }

    /// The byte stream.
    #[inline]
    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Waits until the backend has sent bytes, or has ended the connection, at most for `limit`.
    ///
    /// # Suspends
    ///
    /// Until then.
    pub(crate) fn wait_readable(&self, limit: Duration, beginning: &mut Beginning<'_>) -> io::Result<Waited> {
        let (mut left, mut time) = (limit, beginning.lasts);
        loop {
            let now = left.min(time);
            let is_readable = match now {
                Duration::ZERO => self.is_readable(),
                now => self.transport.wait_readable_for(now)?,
            };
            left -= now;
            if is_readable {
                return Ok(Waited::Readable);
            } else if left.is_zero() {
                return Ok(Waited::Late);
            } else if !(beginning.goes_on)() {
                return Ok(Waited::Stopped);
            }
            time = beginning.next(time);
        }
    }

    /// Whether a read would find something.
    fn is_readable(&self) -> bool {
        let readable = || {
            let mut readable = pin!(self.stream().readable_async());
            readable
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
        };
        self.transport.has_unread() || readable()
    }

    /// Waits as [`wait_readable`](Lease::wait_readable) does, without a stack.
    ///
    /// # Errors
    ///
    /// `TimedOut` when the time is over.
    pub(crate) async fn wait_readable_async(&self, limit: Duration) -> io::Result<()> {
        let late = async {
            Sleep::new(limit).await;
            Err(io::ErrorKind::TimedOut.into())
        };
        osier::race_async((self.stream().readable_async(), late)).await
    }

    /// Whether the connection was used before. The backend may then have closed it just as the
    /// request was sent. An end or a reset before the first byte of the response therefore says
    /// nothing about the backend. Repeat a request that is safe to repeat on [a new
    /// connection](super::Upstream::lease_anew).
    pub fn is_reused(&self) -> bool {
        self.ticket.is_reused()
    }

    /// The backend's number, for [`lease_anew`](super::Upstream::lease_anew) and
    /// [`stats`](super::Upstream::stats).
    pub fn backend(&self) -> usize {
        self.ticket.backend()
    }

    /// The backend's address.
    pub fn address(&self) -> &Address {
        self.ticket.address()
    }

    /// Reports the head of a response: the backend's failures are reset, and a backend that was out
    /// is in again, unless it has gone out since the lease began.
    #[inline]
    pub fn answered(&self) {
        self.ticket.answered();
    }

    /// Reports a failed request: the backend broke off, or violated its protocol. A client may have
    /// provoked it. [`failures`](super::Builder::failures) consecutive ones therefore
    /// put the backend out only if it gave no response for a second, and another backend is in.
    pub fn failed(&self, why: impl fmt::Display) {
        self.ticket.failed(why);
    }

    /// Reports a request that the backend did not take or respond to in time. It counts as
    /// [`failed`](Lease::failed) does, unless the backend has [answered](Lease::answered) another one since this lease began. It has a
    /// counter of its own.
    pub fn timed_out(&self, why: impl fmt::Display) {
        self.ticket.timed_out(why);
    }

    /// Whether bytes that have just been received cannot be the response to this request, of which `sent` bytes were
    /// written: the backend's system has acknowledged none of them. A backend that responds to a request twice sends
    /// such bytes. If there is no network in between, the request arrives when it is written. The connection was quiet
    /// before the lease, so no system call is made.
    pub(crate) fn is_too_early(&self, sent: u64) -> bool {
        let unheard = || self.stream().unacknowledged().is_some_and(|count| count as u64 >= sent);
        self.is_reused() && sent > 0 && self.ticket.claim.backend().is_remote && unheard()
    }

    /// Returns the connection for the next lease. The connection must be at the beginning of a
    /// request. It is closed if enough idle connections are kept already.
    pub fn keep(self) {
        let Lease { transport, ticket } = self;
        let upstream = &ticket.claim.upstream;
        let until = osier::time::coarse_now().checked_add(upstream.idle_timeout);
        if let Some(until) = until
            && upstream.keep > 0
            && ticket.claim.backend().shelves.put(transport, upstream.keep, until)
        {
            keeper::ensure(&upstream.0);
        }
    }
}

impl Read for &Lease {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        { &self.transport }.read(into)
    }
}

impl Write for &Lease {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        { &self.transport }.write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        { &self.transport }.write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        { &self.transport }.flush()
    }
}

osier_queue::impl_debug!(Lease, self => { backend: self.ticket.claim.backend().label, reused: self.is_reused(), .. });

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use crate::upstream::Upstream;

    #[test]
    fn bytes_that_come_before_the_request_has_arrived_are_no_response_to_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // An address that does not spell loopback.
        let address = format!("0.0.0.0:{}", listener.local_addr().unwrap().port());
        let address = address.parse().unwrap();
        osier::run(|| {
            let upstream = Upstream::builder("app").backend(address).build().unwrap();
            let lease = upstream.lease(None).unwrap();
            let (mut backend, _) = listener.accept().unwrap();
            lease.keep();
            let lease = upstream.lease(None).unwrap();
            assert!(lease.is_reused());
            // A corked socket holds what is written back, as a slow network does.
            rustix::net::sockopt::set_tcp_cork(lease.stream(), true).unwrap();
            let (mut stream, mut received) = (&lease, [0; 4]);
            stream.write_all(b"ask").unwrap();
            backend.write_all(b"late").unwrap();
            stream.read_exact(&mut received).unwrap();
            assert!(lease.is_too_early(3));
            rustix::net::sockopt::set_tcp_cork(lease.stream(), false).unwrap();
            backend.read_exact(&mut received[..3]).unwrap();
            backend.write_all(b"good").unwrap();
            stream.read_exact(&mut received).unwrap();
            assert!(!lease.is_too_early(3), "the response acknowledges the request");
        });
    }
}
