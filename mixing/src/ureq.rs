//! ureq over Osier's streams: a connector, a transport and a resolver. Nothing else in ureq blocks.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use futures_lite::future;
use osier::net::{TcpStream, ToSocketAddrs};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, ShutdownHandle, Transport,
};
use ureq::{Agent, Error};

/// An agent whose calls suspend the fiber.
pub fn agent(config: Config) -> Agent {
    Agent::with_parts(config, Fibers, Fibers)
}

#[derive(Debug)]
struct Fibers;

impl Resolver for Fibers {
    fn resolve(&self, uri: &Uri, _: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let host = uri.host().ok_or(Error::HostNotFound)?;
        let port = uri.port_u16().unwrap_or(match uri.scheme_str() {
            Some("https") => 443,
            _ => 80,
        });
        // An address in brackets is an address.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let resolve = || (host, port).to_socket_addrs();
        let found = limited(timeout, resolve)?;
        let mut addrs = self.empty();
        // As many as there is room for.
        found.take(16).for_each(|addr| addrs.push(addr));
        match addrs.is_empty() {
            true => Err(Error::HostNotFound),
            false => Ok(addrs),
        }
    }
}

impl Connector for Fibers {
    type Out = Stream;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<Stream>, Error> {
        let stream = limited(details.timeout, || TcpStream::connect(&details.addrs[..]))?;
        stream.set_nodelay(details.config.no_delay())?;
        let stream = Arc::new(Shared(stream));
        let handle: Arc<dyn ShutdownHandle> = stream.clone();
        (details.register_shutdown)(Arc::downgrade(&handle))?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Stream { stream, buffers }))
    }
}

/// Does what blocks, for as long as ureq allows.
fn limited<T>(timeout: NextTimeout, what: impl FnOnce() -> io::Result<T>) -> Result<T, Error> {
    let Some(limit) = timeout.not_zero() else {
        return what().map_err(Error::from);
    };
    match osier::timeout(*limit, what) {
        Ok(done) => done.map_err(Error::from),
        Err(_) => Err(Error::Timeout(timeout.reason)),
    }
}

struct Shared(TcpStream);

impl ShutdownHandle for Shared {
    fn shutdown(&self) {
        // Fails where the peer has gone already, which ends the waits just as well.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// ureq's transport on one of our streams.
pub struct Stream {
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
        limited(timeout.for_write(), || stream.write_all(output))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let mut stream = &self.stream.0;
        let room = self.buffers.input_append_buf();
        let count = limited(timeout.for_read(), || stream.read(room))?;
        self.buffers.input_appended(count);
        Ok(count > 0)
    }

    /// Whether the server has neither closed the connection nor said anything unasked.
    fn is_open(&mut self) -> bool {
        let mut byte = [0];
        let unasked = osier::block_on(future::poll_once(self.stream.0.peek_async(&mut byte)));
        unasked.is_none()
    }
}
