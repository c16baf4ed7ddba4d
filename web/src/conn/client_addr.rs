//! The address of a client in few bytes: each idle connection has one.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A `SocketAddr` without its padding and without the flow label.
#[derive(Clone, Copy)]
pub(super) struct ClientAddr {
    /// IPv6 address. An IPv4 address is stored in its mapped form.
    ip: [u8; 16],
    scope: u32,
    port: u16,
    is_v4: bool,
    /// Whether a balancer has named the client. The flag lies in what would be padding.
    pub(super) is_proxied: bool,
}

impl ClientAddr {
    pub(super) fn pack(addr: SocketAddr, is_proxied: bool) -> Self {
        let (ip, scope) = match addr {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        ClientAddr {
            ip: ip.octets(),
            scope,
            port: addr.port(),
            is_v4: addr.is_ipv4(),
            is_proxied,
        }
    }

    pub(super) fn unpack(self) -> SocketAddr {
        let ip = Ipv6Addr::from_octets(self.ip);
        match ip.to_ipv4_mapped() {
            Some(v4) if self.is_v4 => SocketAddr::V4(SocketAddrV4::new(v4, self.port)),
            _ => SocketAddr::V6(SocketAddrV6::new(ip, self.port, 0, self.scope)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_peer_is_the_same_peer() {
        for text in ["127.0.0.1:80", "[::1]:65535", "[fe80::1%7]:9", "[::ffff:10.0.0.1]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(ClientAddr::pack(addr, false).unpack(), addr);
        }
    }
}
