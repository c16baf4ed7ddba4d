//! Looks up host names and calls a callback with the addresses. `net/addr.rs` does the lookup.

use std::io;
use std::net::SocketAddr;

use super::io_queue::Handle;
use super::{CancelHandle, Refused, Status, result};
use crate::net::ToSocketAddrs;

/// A resolver that calls back with the addresses of a name.
///
/// The system's resolver blocks. It runs on the process-wide pool for blocking work, for at most 64 names at a time.
///
/// ```
/// use osier::callbacks::{IoQueue, Resolver};
/// use std::sync::mpsc;
///
/// let queue = IoQueue::new(0)?;
/// let (sender, receiver) = mpsc::channel();
/// Resolver::new(&queue).resolve("localhost", 80, move |_status, found| sender.send(found).unwrap())?;
/// let found = loop {
///     queue.iterate()?;
///     if let Ok(found) = receiver.try_recv() {
///         break found?;
///     }
/// };
/// assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 80));
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Resolver {
    queue: Handle,
}

impl Resolver {
    /// Makes a resolver. Its callbacks run on `queue`.
    pub fn new(queue: &Handle) -> Resolver {
        Resolver { queue: queue.clone() }
    }

    /// Looks up `host`, a name or an address. The callback gets the addresses, each with `port`, in the order in
    /// which to try them. Any number of lookups may be outstanding.
    ///
    /// A cancelled lookup calls back at once, with an error. The system continues the lookup, and its result is
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`Refused`] once the queue is shut down.
    pub fn resolve<C>(&self, host: &str, port: u16, callback: C) -> Result<CancelHandle, Refused>
    where
        C: FnOnce(Status, io::Result<Vec<SocketAddr>>) + Send + 'static,
    {
        let lookup = (host.to_owned(), port).to_socket_addrs_async();
        let lookup = async move { Ok(lookup.await?.collect()) };
        self.queue
            .when(lookup, move |status, found| callback(status, result(status, found)))
    }
}
