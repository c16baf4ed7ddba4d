//! The set-up that most tests share: a runtime and two connected sockets.

use std::time::Duration;

use osier::Runtime;
use osier::net::{TcpListener, TcpStream};
use osier::time::VirtualClock;

/// A runtime with so many workers, everything else as it is by default.
pub fn on(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

/// Both ends of a TCP connection: the one that connected and the one that was accepted.
pub fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// A runtime whose time advances only when nothing on it can run. A sleep takes no real time, and ends when all others
/// wait.
pub fn timeless(workers: usize) -> Runtime {
    let builder = Runtime::builder().workers(workers).clock(VirtualClock::new());
    builder.build().unwrap()
}

/// Waits, on a [`timeless`] runtime, until all others wait and nothing is left to run before the time advances.
pub fn settle() {
    osier::sleep(Duration::from_millis(1));
}
