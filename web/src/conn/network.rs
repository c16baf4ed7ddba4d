//! The unit by which limits count clients.

use std::net::IpAddr;

/// The network of a client, for limits per client: an IPv4 address, or the first 64 bits of an IPv6
/// address. A subscriber has at least one IPv6 network of that size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientNetwork(u128);

impl From<IpAddr> for ClientNetwork {
    fn from(client: IpAddr) -> ClientNetwork {
        ClientNetwork(match client.to_canonical() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            // The lower 64 bits are zero. A mapped IPv4 address has zeros in its upper 64 bits
            // instead, so no two networks are equal by accident.
            IpAddr::V6(v6) => v6.to_bits() >> 64 << 64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_a_network_of_64_bits() {
        let network = |text: &str| ClientNetwork::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(network("192.0.2.1"), network("::ffff:192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
        assert_eq!(network("2001:db8:0:1::1"), network("2001:db8:0:1:ffff::2"));
        assert_ne!(network("2001:db8:0:1::1"), network("2001:db8:0:2::1"));
        assert_ne!(network("::1"), network("0.0.0.1"));
    }
}
