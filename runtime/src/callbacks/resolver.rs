//! Names: the look-up of `net/addr.rs` with a callback.

use std::io;
use std::net::SocketAddr;

use super::io_queue::Handle;
use super::{CancelHandle, Refused, Status, result};
use crate::net::ToSocketAddrs;

/// Looks names up.
///
/// The system's resolver blocks; it runs on the process-wide pool for blocking work, for at most 64 names at a time.
///
/// ```
/// use osier::callbacks::{IoQueue, Resolver};
/// use std::sync::mpsc;
///
/// let queue = IoQueue::new(0)?;
/// let (told, heard) = mpsc::channel();
/// Resolver::new(&queue).resolve("localhost", 80, move |_status, found| told.send(found).unwrap())?;
/// let found = loop {
///     queue.iterate()?;
///     if let Ok(found) = heard.try_recv() {
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
    /// A resolver that calls back on that queue.
    pub fn new(queue: &Handle) -> Resolver {
        Resolver { queue: queue.clone() }
    }

    /// Looks up the addresses of `host`, a name or an address, and calls back with them, each with `port`, in the order in
    /// which they should be tried. Any number of look-ups may be outstanding.
    ///
    /// A cancelled one calls back at once, with an error; the system goes on looking, and what it finds is dropped.
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
