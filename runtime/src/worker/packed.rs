//! The address of a peer in few bytes, and a mark beside it: each idle connection of a server has one.
//!
//! # Protocol
//! One thread sets it and reads it. A signal handler may interrupt that thread and read it, too: so the words are atomics, and all
//! accesses are relaxed. A handler that interrupts a change may read an address that is half the old one. All words are valid addresses.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A `SocketAddr` without its padding and without the flow label, and a mark.
pub struct PackedAddr {
    /// The IPv6 address. An IPv4 address is stored in its mapped form.
    ip: [AtomicU64; 2],
    /// The scope, the port, whether the address is IPv4, and the mark.
    rest: AtomicU64,
}

const IS_V4: u64 = 1;
const IS_MARKED: u64 = 2;

impl PackedAddr {
    /// Packs an address.
    pub fn new(addr: SocketAddr, is_marked: bool) -> PackedAddr {
        let packed = PackedAddr {
            ip: Default::default(),
            rest: AtomicU64::new(0),
        };
        packed.set(addr, is_marked);
        packed
    }

    /// Changes the address and the mark.
    pub fn set(&self, addr: SocketAddr, is_marked: bool) {
        let (ip, scope) = match addr {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        let flags = (u64::from(addr.is_ipv4()) * IS_V4) | (u64::from(is_marked) * IS_MARKED);
        self.ip[0].store((ip.to_bits() >> 64) as u64, Relaxed);
        self.ip[1].store(ip.to_bits() as u64, Relaxed);
        let rest = (u64::from(scope) << 32) | (u64::from(addr.port()) << 16) | flags;
        self.rest.store(rest, Relaxed);
    }

    /// The address.
    pub fn get(&self) -> SocketAddr {
        let [high, low] = [0, 1].map(|at| u128::from(self.ip[at].load(Relaxed)));
        let rest = self.rest.load(Relaxed);
        let (ip, port) = (Ipv6Addr::from_bits((high << 64) | low), (rest >> 16) as u16);
        match ip.to_ipv4_mapped() {
            Some(v4) if rest & IS_V4 != 0 => SocketAddr::V4(SocketAddrV4::new(v4, port)),
            _ => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, (rest >> 32) as u32)),
        }
    }

    /// Whether it is marked.
    pub fn is_marked(&self) -> bool {
        self.rest.load(Relaxed) & IS_MARKED != 0
    }
}

impl fmt::Debug for PackedAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_address_is_the_same_address() {
        for text in ["127.0.0.1:80", "[::1]:65535", "[fe80::1%7]:9", "[::ffff:10.0.0.1]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            for is_marked in [false, true] {
                let packed = PackedAddr::new(addr, is_marked);
                assert_eq!((packed.get(), packed.is_marked()), (addr, is_marked));
            }
        }
        assert_eq!(size_of::<PackedAddr>(), 24);
    }
}
