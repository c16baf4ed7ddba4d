//! `allow` and `deny`: decide by its address whether a client may use a route.
//!
//! The order within the lists does not matter. Three rules decide:
//!
//! 1. The smallest network of both lists that contains the address decides.
//! 2. If the same network is in both lists, `deny` decides.
//! 3. If no network contains the address, the client is refused if there is an `allow`, and admitted otherwise.
//!
//! A client of a Unix socket has no address and is in no network. `"unix"` stands for it in a list.
//!
//! For example, `deny = ["10.0.0.0/8"]` with `allow = ["10.1.0.0/16"]` admits 10.1.2.3 and nobody outside of
//! 10.1.0.0/16. Add `"0.0.0.0/0"` and `"::/0"` to `allow` to refuse only the rest of 10.0.0.0/8. An IPv4 address that
//! is mapped into IPv6 counts as IPv4.

use std::net::IpAddr;

use ipnet::IpNet;
use osier_web::Response;
use osier_web::http::StatusCode;

use crate::policy::client::Client;

/// Decides which clients are admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Networks, smallest first, and whether their clients are admitted.
    networks: Vec<(IpNet, bool)>,
    /// Whether clients of Unix sockets are admitted.
    unix: bool,
    /// Whether clients in none of the networks are admitted.
    others: bool,
}

impl Access {
    /// Prepares the two lists, whose order does not matter.
    pub fn new(allow: &[Client], deny: &[Client]) -> Access {
        let network = |client: &Client| match client {
            Client::Net(network) => Some(network.trunc()),
            Client::Unix => None,
        };
        let deny_each = deny.iter().filter_map(network).map(|network| (network, false));
        let allow_each = allow.iter().filter_map(network).map(|network| (network, true));
        let mut networks: Vec<(IpNet, bool)> = deny_each.chain(allow_each).collect();
        // The sort is stable: a denied network stays before an equal allowed one.
        networks.sort_by_key(|(network, _)| std::cmp::Reverse(network.prefix_len()));
        let others = allow.is_empty();
        let unix = !deny.contains(&Client::Unix) && (others || allow.contains(&Client::Unix));
        Access { networks, unix, others }
    }

    /// Whether this client is admitted. `None` is a client of a Unix socket.
    pub fn allows(&self, client: Option<IpAddr>) -> bool {
        let Some(client) = client.map(|client| client.to_canonical()) else {
            return self.unix;
        };
        let found = self.networks.iter().find(|(network, _)| network.contains(&client));
        found.map_or(self.others, |(_, allowed)| *allowed)
    }

    /// Checks a client.
    ///
    /// # Errors
    /// The response to a client that is not admitted: 403.
    pub fn check(&self, client: Option<IpAddr>) -> Result<(), Response> {
        if self.allows(client) {
            return Ok(());
        }
        let refused = Response::new(StatusCode::FORBIDDEN).body("403: your address is not allowed\n");
        Err(refused.because("the address of the client is not allowed ('allow', 'deny')"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(allow: &[&str], deny: &[&str]) -> Access {
        let read = |list: &[&str]| {
            let client = |text: &&str| match *text {
                "unix" => Client::Unix,
                net => Client::Net(net.parse().unwrap()),
            };
            list.iter().map(client).collect::<Vec<_>>()
        };
        Access::new(&read(allow), &read(deny))
    }

    #[test]
    fn the_smallest_network_decides_and_deny_a_draw() {
        let (in_, out) = (true, false);
        for (allow, deny, cases) in [
            (&[][..], &[][..], &[("1.2.3.4", in_), ("::1", in_)][..]),
            (
                &["10.0.0.0/8"],
                &[],
                &[("10.255.0.1", in_), ("11.0.0.1", out), ("::1", out)],
            ),
            (
                &[],
                &["10.0.0.0/8"],
                &[("10.255.0.1", out), ("11.0.0.1", in_), ("::1", in_)],
            ),
            (
                &["10.1.0.0/16"],
                &["10.0.0.0/8"],
                &[("10.1.2.3", in_), ("10.2.0.1", out), ("8.8.8.8", out)],
            ),
            (
                &["10.1.0.0/16", "0.0.0.0/0", "::/0"],
                &["10.0.0.0/8", "10.1.7.0/24"],
                &[
                    ("10.1.2.3", in_),
                    ("10.1.7.1", out),
                    ("10.2.0.1", out),
                    ("8.8.8.8", in_),
                    ("2001:db8::1", in_),
                ],
            ),
            (&["10.0.0.0/8"], &["10.0.0.0/8"], &[("10.0.0.1", out), ("8.8.8.8", out)]),
            (
                &["192.0.2.7/32"],
                &["192.0.2.0/24"],
                &[("192.0.2.7", in_), ("192.0.2.8", out)],
            ),
            (
                &["2001:db8::/32"],
                &["2001:db8:bad::/48"],
                &[("2001:db8::1", in_), ("2001:db8:bad::1", out), ("::1", out)],
            ),
            // Host bits of a network are ignored, and a mapped address counts as IPv4.
            (
                &["10.9.9.9/8"],
                &[],
                &[("10.0.0.1", in_), ("::ffff:10.0.0.1", in_), ("::ffff:11.0.0.1", out)],
            ),
            // A client without an address is in no network.
            (&["0.0.0.0/0", "::/0"], &[], &[("0.0.0.0", in_), ("unix", out)]),
            (&[], &["0.0.0.0/0", "::/0"], &[("0.0.0.0", out), ("unix", in_)]),
            (&["unix"], &["10.0.0.0/8"], &[("unix", in_), ("11.0.0.1", out)]),
            (&[], &["unix"], &[("unix", out), ("11.0.0.1", in_)]),
            (&["unix"], &["unix"], &[("unix", out)]),
        ] {
            let access = access(allow, deny);
            for (client, expected) in cases {
                let client = client.parse().ok();
                assert_eq!(
                    access.allows(client),
                    *expected,
                    "{client:?} of allow {allow:?} deny {deny:?}"
                );
                let status = access.check(client).err().map(|response| response.status().as_u16());
                assert_eq!(status, (!expected).then_some(403));
            }
        }
    }
}
