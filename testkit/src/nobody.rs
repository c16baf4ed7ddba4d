//! An address where nobody listens.

use std::mem;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// Returns an address that refuses connections until the process ends.
///
/// A socket that does not listen holds the port, so that no server of another test gets it by chance. A server that names the address
/// gets it (`SO_REUSEADDR`).
pub fn nobody() -> SocketAddr {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = getsockname(&socket).unwrap().try_into().unwrap();
    mem::forget(socket);
    address
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn nobody_listens_until_a_server_names_the_address() {
        let addresses = [nobody(), nobody()];
        assert_ne!(addresses[0], addresses[1]);
        for address in addresses {
            assert_eq!(
                TcpStream::connect(address).unwrap_err().kind(),
                ErrorKind::ConnectionRefused
            );
        }
        let _back = TcpListener::bind(addresses[0]).unwrap();
        TcpStream::connect(addresses[0]).unwrap();
    }
}
