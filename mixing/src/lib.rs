//! Adapters between Osier and other libraries, and the servers that their tests talk to.
//!
//! `docs/mixing.md` shows the adapters. The programs of that document are doc tests of this crate.
#![forbid(unsafe_code)]

pub mod peer;
pub mod postgres;
pub mod redis;

use std::net::SocketAddr;
use std::time::Duration;

use osier::net::TcpListener;
use osier_web::{Router, Server};

/// Longer than any test takes; one that hangs must not hang the run.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on a fiber of a runtime with `workers` workers.
///
/// # Panics
///
/// If it takes too long.
pub fn run_on<T: Send>(workers: usize, test: impl FnOnce() -> T + Send) -> T {
    let runtime = osier::Runtime::builder().workers(workers).build();
    let runtime = runtime.expect("a runtime needs a few threads and descriptors");
    runtime.run(|| osier::timeout(PATIENCE, test).expect("the test hangs"))
}

/// Runs a test on a fiber of a runtime with two workers.
pub fn run<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    run_on(2, test)
}

/// A listener on a port of its own, and its address.
pub fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// Serves `router` with `osier_web` until the runtime ends.
pub fn serve(router: Router) -> SocketAddr {
    let server = Server::new(router).bind("127.0.0.1:0");
    let server = server.expect("the loopback has free ports");
    let address = server.local_addr();
    osier::spawn(move || server.run());
    address
}

/// `len` bytes that show when one is missing or out of place.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// The document's programs, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/mixing.md")]
struct Document;
