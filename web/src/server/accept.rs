//! The fibers that accept for a server, and those that end it.
//!
//! ```text
//!   worker 0: accept ─▶ place ─▶ Conn on 0            every worker has a listener on the same address (SO_REUSEPORT);
//!   worker 1: accept ─▶ place ─▶ far more than the    a socket moves before its first byte, never later
//!                         mean? ─▶ Conn on the emptiest
//! ```

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use osier::net::Stream;
use osier::{Cancelled, JoinHandle};

use crate::conn::Conn;
use crate::conn::worker::{Shared, Worker};
use crate::listen::Listener;

/// Pause of a worker that cannot accept: out of descriptors or memory, or at the limit of connections.
const BACK_OFF: Duration = Duration::from_millis(100);

/// At most one log line on that in this time.
const SAY_AGAIN: Duration = Duration::from_secs(5);

/// How often a drain looks whether it is done.
const DRAIN_TICK: Duration = Duration::from_millis(5);

/// The accepting fiber of a worker: never spins, and ends only when it is cancelled.
pub(crate) fn accept(shared: &Arc<Shared>, listener: &Listener) {
    let worker = Worker::here(shared);
    let mut said: Option<Instant> = None;
    let mut say = |line: fmt::Arguments<'_>| {
        if said.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
            said = Some(Instant::now());
            shared.log(line);
        }
    };
    loop {
        if shared.total() >= shared.max_connections {
            say(format_args!(
                "{} connections: no more are accepted until some close",
                shared.max_connections
            ));
            osier::sleep(DRAIN_TICK);
            continue;
        }
        match listener.accept() {
            Ok((stream, peer)) => {
                let index = shared.place(worker.index);
                shared.arrived(index);
                if index == worker.index {
                    Conn::open(&worker, stream, peer);
                } else {
                    hand_off(shared, index, stream, peer);
                }
            }
            Err(error) if Cancelled::is(&error) => return,
            Err(error) if is_of_one_client(&error) => {}
            Err(error) => {
                say(format_args!("cannot accept: {error}; trying again every {BACK_OFF:?}"));
                osier::sleep(BACK_OFF);
            }
        }
    }
}

fn hand_off(shared: &Arc<Shared>, index: usize, stream: Stream, peer: SocketAddr) {
    let shared = shared.clone();
    drop(on_worker(index, "hand-off", move || {
        Conn::open(&Worker::here(&shared), stream, peer)
    }));
}

/// accept(2): errors that were already pending on the new socket, not of the listener.
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

/// Ends the connections of this worker; how many had to be cut.
pub(crate) fn drain(shared: &Arc<Shared>) -> usize {
    let worker = Worker::here(shared);
    worker.draining.set(true);
    // An idle connection reads the end, after what has come for it already, and closes.
    for link in worker.links() {
        if !link.busy.get() {
            let _ = link.stream.shutdown(Shutdown::Read);
        }
    }
    let start = Instant::now();
    while !worker.is_empty() && start.elapsed() < shared.timeouts.drain {
        osier::sleep(DRAIN_TICK);
    }
    let left = worker.links();
    for link in &left {
        let _ = link.stream.shutdown(Shutdown::Both);
    }
    Worker::leave(shared);
    left.len()
}

/// A fiber on a given worker.
pub(crate) fn on_worker<T: Send + 'static>(
    index: usize,
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    osier::fiber::Builder::new().name(name).worker(index).spawn(run)
}
