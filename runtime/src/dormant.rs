//! Dormant connections: code that runs on a fiber when a socket or a leaf is ready, with no stack held meanwhile.
//!
//! A server with very many connections, few of them active, keeps them so: a fiber that waits holds its stack, a dormant connection a few
//! words beside its socket. [`park_local`] or [`start_local`] gives a connection to the worker. When there is something to do, the worker
//! calls [`Dormant::wake`] on a fiber, where the connection may block. [`Dormant::serve_at_once`] comes before it, and may make the fiber
//! needless. The [`AfterBurst`] that it returns says what it waits for next. The
//! page of [`Dormant`] has an example.
//!
//! Waking a connection costs neither an allocation nor a system call of the runtime.

//       park_local, start_local         socket or leaf ready, deadline, shutdown
//   box ───────────────▶ Resting in a slot ─────────────────▶ a pooled stack runs Dormant::wake
//                              ▲                                   │
//                              └─────── AfterBurst::Sleep… ────────┘   AfterBurst::End drops the box
//
// `Dormant::serve_at_once` runs on the worker's stack before that. If it says that all is done, the connection stays at rest.
//
// A connection keeps its slot, its word and its box from rest to rest.
// `worker/resting.rs` has what a worker does with a connection at rest.

use std::io;
use std::time::Instant;

use crate::wait::entry::Entry;
use crate::wait::socket::Direction;
use crate::worker::context;
use crate::worker::core::no_runtime;
use crate::worker::resting::Resting;

pub use crate::worker::resting::{AfterBurst, Cause, Dormant};

/// Leaves a connection to this worker, dormant until its socket is readable or `deadline` has passed.
///
/// # Suspends
///
/// Never.
///
/// # Errors
///
/// The poller's error for the socket; an error when the worker has no more slots.
///
/// # Panics
///
/// Outside of a runtime.
#[track_caller]
pub fn park_local(connection: Box<dyn Dormant>, deadline: Option<Instant>) -> io::Result<()> {
    let entry = connection.source().watched().own_here()?;
    match adopt(connection, entry, deadline) {
        Some(adopted) => adopted,
        None => no_runtime("osier::dormant::park_local"),
    }
}

/// Leaves a connection to this worker, which calls its [`Dormant::wake`] with [`Cause::Readable`] soon, whether or not there is something to
/// read. `deadline` counts until then.
///
/// The worker's poller does not know the socket before the connection rests. It is for a new connection that has probably got bytes
/// already: if it ends with its first burst, it costs two system calls less than with [`park_local`]. Its first read should be one that
/// [does not wait](crate::net::Stream::try_read).
///
/// # Suspends
///
/// Never.
///
/// # Errors
///
/// An error when the worker has no more slots.
///
/// # Panics
///
/// Outside of a runtime.
#[track_caller]
pub fn start_local(connection: Box<dyn Dormant>, deadline: Option<Instant>) -> io::Result<()> {
    let entry = connection.source().watched().entry();
    entry.try_again(Direction::Read);
    match adopt(connection, entry, deadline) {
        Some(adopted) => adopted,
        None => no_runtime("osier::dormant::start_local"),
    }
}

fn adopt(connection: Box<dyn Dormant>, entry: &'static Entry, deadline: Option<Instant>) -> Option<io::Result<()>> {
    context::worker(|worker| {
        let mut resting = Box::new(Resting::new(connection, entry));
        resting.wait_for(worker, Some(Direction::Read), deadline);
        worker.adopt(resting)
    })
}

/// Wakes the dormant connection that waits for this socket, with [`Cause::Readable`], as if bytes had arrived. The connection may be on
/// any worker, and the caller on any thread. Has no effect on a socket that no dormant connection waits for, or whose connection sleeps
/// with [`AfterBurst::SleepUntilWritable`].
///
/// # Suspends
///
/// Never.
pub fn wake(source: &dyn crate::io::Source) {
    source.watched().wake_dormant();
}
