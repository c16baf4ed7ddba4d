//! The resolver, the connector and the transport. Nothing else in ureq waits.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use osier::net::{TcpStream, ToSocketAddrs};
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, ShutdownHandle, Transport,
};

/// The most addresses that ureq takes of a host.
const ADDRESSES_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Fibers;

impl Resolver for Fibers {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let missing = || Error::BadUri(format!("{uri} has no scheme or host"));
        let (scheme, authority) = uri.scheme().zip(uri.authority()).ok_or_else(missing)?;
        let name = DefaultResolver::host_and_port(scheme, authority).ok_or(Error::HostNotFound)?;
        let found = limited(timeout, || name.to_socket_addrs())?;
        let mut addresses = self.empty();
        let family = config.ip_family();
        let wanted = family.keep_wanted(found);
        wanted.take(ADDRESSES_MAX).for_each(|address| addresses.push(address));
        match addresses.is_empty() {
            true => Err(Error::HostNotFound),
            false => Ok(addresses),
        }
    }
}

impl<In: Transport> Connector<In> for Fibers {
    type Out = Either<In, Stream>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, Error> {
        // A proxy has connected already.
        if let Some(transport) = chained {
            return Ok(Some(Either::A(transport)));
        }
        let addresses = &details.addrs[..];
        let connected = match details.timeout.not_zero() {
            Some(limit) => TcpStream::connect_within(addresses, *limit),
            None => TcpStream::connect(addresses),
        };
        let stream = connected.map_err(|error| of_socket(error, details.timeout))?;
        stream.set_nodelay(details.config.no_delay())?;
        let stream = Arc::new(Shared(stream));
        let handle: Arc<dyn ShutdownHandle> = stream.clone();
        (details.register_shutdown)(Arc::downgrade(&handle))?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(Stream { stream, buffers })))
    }
}

/// Whether [`osier::timeout`] can end a call. On a plain thread the timeouts of the socket do, so a name that takes long to look up is waited
/// for there.
fn is_on_fiber() -> bool {
    osier::fiber::id().is_some()
}

/// The timeout of the socket. A fiber needs none, and must not have that of a thread which has used the connection before.
fn limit_of_thread(timeout: NextTimeout) -> Option<Duration> {
    timeout.not_zero().filter(|_| !is_on_fiber()).map(|limit| *limit)
}

/// Makes a call that waits, within ureq's timeout if the caller is a fiber.
fn limited<T>(timeout: NextTimeout, call: impl FnOnce() -> io::Result<T>) -> Result<T, Error> {
    let Some(limit) = timeout.not_zero().filter(|_| is_on_fiber()) else {
        return call().map_err(|error| of_socket(error, timeout));
    };
    match osier::timeout(*limit, call) {
        Ok(done) => done.map_err(Error::from),
        Err(_) => Err(Error::Timeout(timeout.reason)),
    }
}

/// The error of a call that the timeout of its socket may have ended, if it has one. The kernel has timeouts of its own.
fn of_socket(error: io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock if timeout.not_zero().is_some() => {
            Error::Timeout(timeout.reason)
        }
        _ => Error::from(error),
    }
}

struct Shared(TcpStream);

impl ShutdownHandle for Shared {
    fn shutdown(&self) {
        // Fails where the peer has gone already, which ends the waits just as well.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// ureq's transport on one of Osier's streams.
pub(crate) struct Stream {
    stream: Arc<Shared>,
    buffers: LazyBuffers,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.0.fmt(f)
    }
}

impl Transport for Stream {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let mut stream = &self.stream.0;
        let output = &self.buffers.output()[..amount];
        let timeout = timeout.for_write();
        stream.set_write_timeout(limit_of_thread(timeout))?;
        limited(timeout, || stream.write_all(output))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let mut stream = &self.stream.0;
        let room = self.buffers.input_append_buf();
        let timeout = timeout.for_read();
        stream.set_read_timeout(limit_of_thread(timeout))?;
        let count = limited(timeout, || stream.read(room))?;
        self.buffers.input_appended(count);
        Ok(count > 0)
    }

    /// Whether the server has neither closed the connection nor sent anything unasked.
    fn is_open(&mut self) -> bool {
        let mut byte = [0];
        let mut peeking = std::pin::pin!(self.stream.0.peek_async(&mut byte));
        let mut cx = Context::from_waker(Waker::noop());
        matches!(peeking.as_mut().poll(&mut cx), Poll::Pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ureq::Timeout;
    use ureq::unversioned::transport::time::Duration as After;

    #[test]
    fn only_a_limit_of_ureq_is_its_timeout() {
        let of_kernel = |after| {
            let reason = Timeout::Global;
            of_socket(io::ErrorKind::TimedOut.into(), NextTimeout { after, reason })
        };
        assert!(matches!(of_kernel(After::NotHappening), Error::Io(_)));
        assert!(matches!(of_kernel(After::from_secs(1)), Error::Timeout(_)));
    }
}
