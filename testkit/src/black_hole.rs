//! An address that does not answer, as one behind a cut network.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

/// Longer than a connect over loopback takes that is answered, and shorter than the time after which an unanswered one is repeated.
const PATIENCE: Duration = Duration::from_millis(500);

/// A listener whose backlog of one place is full. The kernel drops further connects silently, so they wait until this is dropped.
pub struct BlackHole {
    /// Its address.
    pub address: SocketAddr,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl BlackHole {
    /// Makes one on a port of its own.
    pub fn new() -> BlackHole {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        listen(&socket, 0).unwrap();
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        while let Ok(client) = TcpStream::connect_timeout(&address, PATIENCE) {
            waiting.push(client);
        }
        BlackHole {
            address,
            _listener: listener,
            _waiting: waiting,
        }
    }
}

impl Default for BlackHole {
    fn default() -> BlackHole {
        BlackHole::new()
    }
}
