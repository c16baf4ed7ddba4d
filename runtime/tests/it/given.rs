//! Most tests begin with this: a runtime and two connected sockets.

use osier::Runtime;
use osier::net::{TcpListener, TcpStream};

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
