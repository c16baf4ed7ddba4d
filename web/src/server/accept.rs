//! The fibers that accept connections for a server, and those that end connections.
//!
//! ```text
//!   worker 0: accept ─▶ place ─▶ Conn on 0            every worker has a listener on the same address (SO_REUSEPORT);
//!   worker 1: accept ─▶ place ─▶ far more than the    a socket moves before its first byte, never later
//!                         mean? ─▶ Conn on the emptiest
//! ```

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
#[cfg(feature = "tls")]
use std::time::Instant;

use osier::memory::{self, Pressure};
use osier::net::Stream;
use osier::{Cancelled, JoinHandle};

use crate::conn::Conn;
use crate::conn::close::CloseReason;
use crate::conn::log::record::{Level, Record};
use crate::conn::serve::{Local, Service};
use crate::conn::server_state::ServerState;
use crate::conn::worker::{FRESH_GRACE, Link, Worker};
use crate::listen::Listener;

use super::descriptors::Descriptors;

/// Most connections that are accepted from the backlog of a listener before it closes. The backlog
/// of Linux holds 4096 by default (net.core.somaxconn).
const BACKLOG: usize = 4096;

/// Pause of a worker that cannot accept, because descriptors or memory ran out, or the limit of
/// connections is reached.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Time for evicted connections to close before more are evicted.
const EVICTION_TICK: Duration = Duration::from_millis(1);

/// The remedy for too few descriptors.
const RAISE: &str = "raise the limit of open files (LimitNOFILE=, ulimit -n)";

/// Most idle connections that a worker closes at a time for descriptors.
const EVICTED_FOR_DESCRIPTORS: usize = 8;

/// Connections with TLS that a worker accepts in a row. A handshake costs as much as many requests, and those that have been accepted
/// run before the next look at the other connections.
#[cfg(feature = "tls")]
const HANDSHAKES: u32 = 16;

/// Time after which the count of them begins anew.
#[cfg(feature = "tls")]
const HANDSHAKES_TIME: Duration = Duration::from_millis(1);

/// Time between two checks of the memory pressure while memory is short.
const RELIEF_TICK: Duration = Duration::from_millis(10);

/// The share of all connections that may be closed in that time: one in so many.
const RELIEF_PARTS: usize = 100;

/// Interval at which a drain checks whether it is done.
const DRAIN_TICK: Duration = Duration::from_millis(5);

/// Runs the accepting fiber of a worker. It pauses after an error instead of spinning, and ends
/// only when it is cancelled.
pub(crate) fn accept(service: &Service, listener: &Listener) {
    let local = Local::here(service);
    let shared = &service.state;
    let descriptors = Descriptors::new(listener);
    let accepting = &listener.accepting();
    #[cfg(feature = "tls")]
    let mut row = Row::default();
    let mut say = |line: fmt::Arguments<'_>| {
        if shared.waits.is_due() {
            shared.log(&Record::new(Level::Warning, line));
        }
    };
    loop {
        while shared.lacks_memory() && !osier::fiber::is_cancelled() {
            say(format_args!(
                "the memory limit is near: new connections wait in the accept backlog"
            ));
            // Shielded: a cancelled fiber must still go on to accept the backlog.
            osier::shield(|| osier::sleep(RELIEF_TICK));
        }
        match accepting.accept() {
            Ok((stream, peer)) if !shared.admit(peer) => {
                refuse(shared, &stream);
                shared.complain_of(peer);
            }
            Ok((stream, peer)) => {
                if shared.total() >= shared.max_connections {
                    make_room(service, &mut say);
                }
                if descriptors.are_few(&stream) {
                    spare_descriptors(service, &descriptors, &mut say);
                }
                place(service, &local, stream, peer);
                #[cfg(feature = "tls")]
                if shared.tls.is_some() {
                    row.accepted();
                }
            }
            Err(error) if Cancelled::is(&error) => return accept_the_backlog(service, listener),
            Err(error) if is_of_one_client(&error) => {}
            Err(error) if lacks_descriptors(&error) => make_descriptors(service, &local.worker, &error, &mut say),
            Err(error) => {
                say(format_args!("cannot accept: {error}; trying again every {BACK_OFF:?}"));
                osier::sleep(BACK_OFF);
            }
        }
    }
}

/// Runs the fiber of a worker that closes idle connections while memory is short, the ones that are idle longest first. Near the limit,
/// those that wait for the rest of a head and those whose clients take nothing, or send nothing of a body, are closed, too. It ends only when it
/// is cancelled.
pub(crate) fn relieve(service: &Service) {
    let mut asked = osier::fiber::worker().unwrap_or_default();
    loop {
        if memory::pressure() == Pressure::Normal {
            memory::wait_for_change(Pressure::Normal);
        }
        let most = 1 + service.state.total() / RELIEF_PARTS;
        evict(service, most);
        // Workers without a listener close theirs, too.
        asked = (asked + 1) % service.state.connections.len();
        if Some(asked) != osier::fiber::worker() {
            let service = service.clone();
            drop(on_worker(asked, "evict", move || evict(&service, most)));
        }
        osier::sleep(RELIEF_TICK);
    }
}

/// Closes up to `most` connections of this worker, and drops free buffers and cached files.
fn evict(service: &Service, most: usize) {
    let worker = &Local::here(service).worker;
    match memory::pressure() {
        Pressure::Critical => {
            let evicted = worker.evict_with_heads(most);
            let evicted = evicted + worker.evict_stalled(most - evicted);
            let evicted = evicted + worker.evict_silent(most - evicted);
            worker.wake_with_streams(most - evicted);
        }
        _ => {
            worker.evict(most);
            worker.evict_stalled(0);
        }
    }
    worker.drop_buffers();
    #[cfg(feature = "files")]
    crate::files::caches::relieve();
}

/// The connections with TLS that were accepted in a row.
#[cfg(feature = "tls")]
#[derive(Default)]
struct Row {
    count: u32,
    since: Option<Instant>,
}

#[cfg(feature = "tls")]
impl Row {
    /// Counts one more, and lets the worker look at the others when there are many.
    ///
    /// # Suspends
    ///
    /// For one turn of the worker then. It accepts no slower for that: a pause by the clock would leave the worker idle.
    fn accepted(&mut self) {
        let now = osier::time::coarse_now();
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= HANDSHAKES_TIME {
            (self.count, self.since) = (0, Some(now));
        }
        self.count += 1;
        if self.count >= HANDSHAKES {
            // The end of the fiber waits: it accepts the backlog then.
            osier::shield(osier::yield_now);
            (self.count, self.since) = (0, None);
        }
    }
}

/// Makes the close of a new socket a reset, which keeps nothing in the kernel.
#[cold]
fn refuse(server: &ServerState, stream: &Stream) {
    server.refused();
    Link::abandon(stream);
}

/// Gives a new socket to the worker that will serve it.
fn place(service: &Service, local: &Rc<Local>, stream: Stream, peer: SocketAddr) {
    let index = service.state.place(local.worker.index);
    service.state.arrived(index);
    if index == local.worker.index {
        Conn::open(local, stream, peer);
    } else {
        let socket = Some((stream, peer));
        hand_off(HandOff {
            service: service.clone(),
            index,
            socket,
        });
    }
}

/// A socket on its way to another worker, which is counted already. If that worker ends first, or has
/// no stack for the fiber that takes the socket, the drop closes the socket and ends the count.
struct HandOff {
    service: Service,
    index: usize,
    socket: Option<(Stream, SocketAddr)>,
}

impl Drop for HandOff {
    fn drop(&mut self) {
        if let Some((_, peer)) = self.socket {
            self.service.state.lost(self.index, peer);
        }
    }
}

/// Accepts the connections that already wait. Closing the listener would reset them, and their
/// requests may have been sent.
pub(crate) fn accept_the_backlog(service: &Service, listener: &Listener) {
    let (local, listener) = (Local::here(service), listener.accepting());
    osier::shield(|| {
        for _ in 0..BACKLOG {
            match osier::timeout(Duration::from_millis(1), || listener.accept()) {
                Ok(Ok((stream, peer))) if !service.state.admit(peer) => refuse(&service.state, &stream),
                Ok(Ok((stream, peer))) => place(service, &local, stream, peer),
                Ok(Err(error)) if is_of_one_client(&error) => {}
                _ => return,
            }
        }
    });
}

/// Waits until one more connection is allowed. Idle connections of all workers are closed for it.
#[cold]
fn make_room(service: &Service, say: &mut dyn FnMut(fmt::Arguments<'_>)) {
    let shared = &service.state;
    let most = shared.max_connections;
    // Few connections are closed at a time, because their clients may come back. More are closed
    // where many may arrive at once.
    let few = 1 + (most / 64).min(15);
    let evict = {
        let service = service.clone();
        move || Local::here(&service).worker.evict(few)
    };
    evict_while(
        service,
        || shared.total() >= most,
        evict,
        &mut |how| match shared.bound {
            Some(address) => say(format_args!(
                "{most} connections{how}; raise 'max_connections' of {address}"
            )),
            None => say(format_args!("{most} connections{how}; raise 'max_connections'")),
        },
    );
}

/// Waits until handlers have enough descriptors again. Idle connections of all servers and workers are closed for them. A server with
/// few connections gets more in any case.
#[cold]
fn spare_descriptors(service: &Service, descriptors: &Descriptors<'_>, say: &mut dyn FnMut(fmt::Arguments<'_>)) {
    let must_wait = || service.state.total() >= descriptors.least() && descriptors.are_still_few();
    let evict = || Local::evict_here(EVICTED_FOR_DESCRIPTORS);
    evict_while(service, must_wait, evict, &mut |how| {
        say(format_args!("{descriptors} by the connections{how}; {RAISE}"));
    });
}

/// Calls `evict` until `must_wait` returns false: on this worker, and on the others in turn if it closes nothing here, because each worker
/// knows its own idle connections alone.
fn evict_while(
    service: &Service,
    must_wait: impl Fn() -> bool,
    evict: impl Fn() -> usize + Clone + Send + 'static,
    say: &mut dyn FnMut(&str),
) {
    let here = osier::fiber::worker().unwrap_or_default();
    let mut asked = here;
    // The shutdown cancels this fiber. The new connection is served then, as those in the backlog are.
    while must_wait() && !osier::fiber::is_cancelled() {
        if evict() > 0 {
            say(": the ones that are idle longest are closed for new ones");
        } else {
            say(", none of them idle: new ones wait until some close");
            asked = (asked + 1) % service.state.connections.len();
            if asked != here {
                drop(on_worker(asked, "evict", evict.clone()));
            }
        }
        osier::shield(|| osier::sleep(EVICTION_TICK));
    }
}

/// Closes connections that are idle, and waits a moment, because no more descriptors may be open. Otherwise one client with
/// idle connections would keep all others out, also those of other servers of the process.
fn make_descriptors(service: &Service, worker: &Worker, error: &io::Error, say: &mut dyn FnMut(fmt::Arguments<'_>)) {
    if Local::evict_here(EVICTED_FOR_DESCRIPTORS) > 0 {
        say(format_args!(
            "cannot accept: {error}; the connections that are idle longest are closed for new ones; {RAISE}"
        ));
        return osier::sleep(EVICTION_TICK);
    }
    say(format_args!(
        "cannot accept: {error}; trying again every {BACK_OFF:?}; {RAISE}"
    ));
    let others = (0..service.state.connections.len()).filter(|other| *other != worker.index);
    others.for_each(|other| {
        drop(on_worker(other, "evict", || Local::evict_here(EVICTED_FOR_DESCRIPTORS)));
    });
    osier::sleep(BACK_OFF);
}

fn hand_off(mut hand_off: HandOff) {
    let index = hand_off.index;
    drop(on_worker(index, "hand-off", move || {
        if let Some((stream, peer)) = hand_off.socket.take() {
            Conn::open(&Local::here(&hand_off.service), stream, peer);
        }
    }));
}

/// Whether an error of accept(2) was pending on the new socket and is not an error of the listener.
fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, NetworkDown, TimedOut};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted | NetworkDown | TimedOut
    ) || matches!(
        error.kind(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable
    )
}

/// Whether the process has as many descriptors as it may have.
fn lacks_descriptors(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::MFILE)
}

/// Ends the connections of this worker. Returns how many were cut.
pub(crate) fn drain(service: &Service) -> usize {
    let local = Local::here(service);
    let worker = &local.worker;
    worker.draining.set(true);
    service.state.shutdown.set();
    // An idle connection first reads what has already arrived, then the end, and closes.
    let end = |link: &Link| {
        match link.is_busy() || link.is_without_streams() || link.is_read_on() {
            // HTTP/2 knows of the shutdown already, unless it waited for an upgrade that is over.
            true => osier::dormant::wake(link.socket()),
            false => drop(link.socket().shutdown(Shutdown::Read)),
        }
    };
    worker
        .links()
        .iter()
        .filter(|link| !link.is_fresh())
        .for_each(|link| end(link));
    let start = osier::time::now();
    let mut waits_for_fresh = true;
    while !worker.is_empty() && osier::time::now().saturating_duration_since(start) < service.state.timeouts.drain {
        osier::sleep(DRAIN_TICK);
        if waits_for_fresh && osier::time::now().saturating_duration_since(start) >= FRESH_GRACE {
            waits_for_fresh = false;
            worker
                .links()
                .iter()
                .filter(|link| link.is_fresh())
                .for_each(|link| end(link));
        }
    }
    let left = worker.links();
    for link in &left {
        link.leaves_protocol(CloseReason::Shutdown);
        link.cut();
    }
    Local::leave(service);
    left.len()
}

/// Spawns a fiber on worker `index`.
pub(crate) fn on_worker<T: Send + 'static>(
    index: usize,
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    osier::fiber::Builder::new().name(name).worker(index).spawn(run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Router, Server};
    use osier::net::UnixStream;
    use std::sync::Arc;

    #[test]
    fn a_lost_hand_off_is_counted_neither_for_its_worker_nor_for_its_client() {
        let server = Server::new(Router::new()).max_connections_per_client(1);
        let service = server.service(2, None);
        let state = Arc::clone(&service.state);
        let peer = SocketAddr::from(([192, 0, 2, 1], 7));
        assert!(state.admit(peer) && !state.admit(peer));
        state.arrived(1);
        let (stream, _other) = UnixStream::pair().unwrap();
        let socket = Some((Stream::from(stream), peer));
        drop(HandOff {
            service,
            index: 1,
            socket,
        });
        assert_eq!(state.total(), 0);
        assert!(state.admit(peer));
    }
}
