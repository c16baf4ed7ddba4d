//! Adapters between Osier and other libraries, and what their tests share.
//!
//! `docs/mixing.md` shows the adapters. The programs of that document are doc tests of this crate.
#![forbid(unsafe_code)]

pub mod redis;

use std::net::SocketAddr;

use osier::net::TcpListener;
use osier_web::{Router, Server};

pub use osier_peers::{peer, postgres, run, run_on};

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
