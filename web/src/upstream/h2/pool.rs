//! The connections of one worker to one backend, and the choice among them.
//!
//! At most one connection is being made at a time. Requests that come meanwhile wait for it, and share its failure. If
//! the backend chose HTTP/1.1 at the last handshake, each request makes its own connection.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use osier::dormant;
use osier::sync::Event;

use super::answer::Lost;
use super::connection::Connection;
use super::driver::Driver;
use super::stream::Stream;
use crate::conn::transport::Transport;
use crate::upstream::claim::Claim;

thread_local! {
    /// The pools of this worker, by the number of the upstream and that of the backend.
    static POOLS: RefCell<HashMap<(u64, usize), Rc<Pool>>> = RefCell::default();
}

pub(super) struct Pool {
    key: (u64, usize),
    connections: RefCell<Vec<Rc<Connection>>>,
    dialing: RefCell<Option<Rc<Dialing>>>,
}

/// A connection that is being made.
struct Dialing {
    /// Set when the connection is made, or cannot be.
    done: Event,
    /// The reason why it cannot be made. It stays `None` if the request that makes it is cancelled: another request
    /// then tries.
    failed: RefCell<Option<Lost>>,
}

/// The path of a request to a backend: a stream or a connection.
pub(in crate::upstream) enum Reach {
    Stream(Stream),
    /// A connection to a backend that has chosen HTTP/1.1, and whether it was used before.
    Bytes(Claim, Transport, bool),
}

/// Finds a stream of a connection to the backend of `claim`, or makes a connection. `kept` says that a kept HTTP/1.1
/// connection may be taken.
///
/// # Suspends
///
/// While a connection is made, for `limit` at most.
///
/// # Errors
///
/// The errors of connecting.
pub(in crate::upstream) fn reach(claim: Claim, limit: Duration, kept: bool) -> Result<Reach, (Claim, io::Error)> {
    loop {
        let pool = Pool::here((claim.upstream.id, claim.backend));
        if let Some(connection) = pool.promise() {
            return Ok(Reach::Stream(Stream::new(connection, claim)));
        }
        let backend = claim.backend();
        let chooses_http1 = backend.chooses_http1.load(Relaxed);
        if chooses_http1
            && kept
            && let Some(transport) = backend.take_kept()
        {
            return Ok(Reach::Bytes(claim, transport, true));
        }
        let dialing = pool.dialing.borrow().clone();
        if let Some(dialing) = dialing.filter(|_| !chooses_http1) {
            dialing.done.wait();
            if let Some(failed) = &*dialing.failed.borrow() {
                return Err((claim, failed.to_error()));
            }
            continue;
        }
        let dialing = pool.begin();
        let dialed = backend.dial_http(limit);
        claim.has_dialed();
        backend.chooses_http1.store(matches!(dialed, Ok((_, false))), Relaxed);
        return match dialed {
            Ok((transport, false)) => Ok(Reach::Bytes(claim, transport, false)),
            Ok((transport, true)) => match pool.add(transport, &claim) {
                Ok(connection) if connection.promise() => Ok(Reach::Stream(Stream::new(connection, claim))),
                Ok(_) => Err((
                    claim,
                    io::Error::other("the backend takes no requests on a new HTTP/2 connection"),
                )),
                Err(error) => Err((claim, error)),
            },
            Err(error) => {
                if !osier::Cancelled::is(&error) {
                    dialing.fail(&error);
                }
                Err((claim, error))
            }
        };
    }
}

impl Pool {
    /// The pool with this key on this worker.
    fn here(key: (u64, usize)) -> Rc<Pool> {
        let new = || {
            Rc::new(Pool {
                key,
                connections: RefCell::default(),
                dialing: RefCell::default(),
            })
        };
        POOLS.with_borrow_mut(|pools| pools.entry(key).or_insert_with(new).clone())
    }

    /// A connection that has promised a stream. The oldest is asked first, so that others become idle and end.
    fn promise(&self) -> Option<Rc<Connection>> {
        let mut at = 0;
        loop {
            // A connection that is found lost leaves the list later, when its driver ends.
            let connection = self.connections.borrow().get(at)?.clone();
            if connection.promise() {
                return Some(connection);
            }
            at += 1;
        }
    }

    /// Begins to make a connection. Requests wait for it only if no other connection is being made.
    fn begin(self: &Rc<Self>) -> Guard {
        let dialing = Rc::new(Dialing {
            done: Event::manual(),
            failed: RefCell::default(),
        });
        self.dialing.borrow_mut().get_or_insert_with(|| dialing.clone());
        Guard(self.clone(), dialing)
    }

    /// Adds a new connection.
    fn add(self: &Rc<Self>, transport: Transport, claim: &Claim) -> io::Result<Rc<Connection>> {
        let connection = Connection::new(transport);
        let upstream = &claim.upstream;
        let pool = self.clone();
        let open = claim.backend().shared.clone();
        open.fetch_add(1, Relaxed);
        let ended = move |connection: &Rc<Connection>| {
            open.fetch_sub(1, Relaxed);
            pool.remove(connection);
        };
        let driver = Driver::new(&connection, ended, upstream.idle_timeout, &upstream.gone);
        self.connections.borrow_mut().push(connection.clone());
        let idle = osier::time::coarse_now().checked_add(upstream.idle_timeout);
        // The machine waits for the first SETTINGS.
        let deadline = connection.expire().into_iter().chain(idle).min();
        dormant::park_local(Box::new(driver), deadline)?;
        connection.flush_soon();
        Ok(connection)
    }

    /// Removes a connection that has ended.
    fn remove(&self, connection: &Rc<Connection>) {
        self.connections
            .borrow_mut()
            .retain(|known| !Rc::ptr_eq(known, connection));
        self.leave();
    }

    /// Takes the pool out of the table, if it is empty.
    fn leave(&self) {
        if self.connections.borrow().is_empty() && self.dialing.borrow().is_none() {
            // The thread may be ending.
            let _ = POOLS.try_with(|pools| pools.borrow_mut().remove(&self.key));
        }
    }
}

/// Held while a connection is made. Its drop wakes the requests that wait for the connection.
struct Guard(Rc<Pool>, Rc<Dialing>);

impl Guard {
    fn fail(&self, error: &io::Error) {
        *self.1.failed.borrow_mut() = Some(Lost::of(error));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Guard(pool, dialing) = self;
        let is_awaited = |known: &mut Rc<Dialing>| Rc::ptr_eq(known, dialing);
        pool.dialing.borrow_mut().take_if(is_awaited);
        dialing.done.set();
        pool.leave();
    }
}
