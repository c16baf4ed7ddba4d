//! Clients as a configuration names them: an address, a network, or the clients of Unix sockets.

use std::net::IpAddr;

use ipnet::IpNet;

/// A client, or a network of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Client {
    Net(IpNet),
    /// Every client of a Unix socket.
    Unix,
}

impl Client {
    /// Whether the client with this address is meant. `None` is a client of a Unix socket.
    pub fn is(&self, address: Option<IpAddr>) -> bool {
        match (self, address) {
            (Client::Net(net), Some(address)) => net.contains(&address.to_canonical()),
            (Client::Unix, None) => true,
            _ => false,
        }
    }
}

/// Parses a network, a single address, or `unix`.
pub fn client(text: &str) -> Result<Client, String> {
    match text {
        "unix" => Ok(Client::Unix),
        "all" | "any" | "*" => Err(
            "everybody is [\"0.0.0.0/0\", \"::/0\", \"unix\"]; to admit some clients alone, name them in 'allow' and leave out 'deny'".into(),
        ),
        _ => net(text)
            .map(Client::Net)
            .map_err(|why| why.replace(" for example", ", or \"unix\" for clients of Unix sockets")),
    }
}

/// Parses a network or a single address.
pub fn net(text: &str) -> Result<IpNet, String> {
    let net = text
        .parse::<IpNet>()
        .or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from))
        .map_err(|_| "write an address or a network, \"10.0.0.0/8\" or \"::1\" for example".to_string())?;
    if let IpNet::V6(v6) = net
        && let (Some(v4), Some(prefix)) = (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96))
    {
        // Clients are compared by their IPv4 addresses, so this network would contain nobody.
        return Err(format!("it is IPv4 mapped into IPv6; did you mean \"{v4}/{prefix}\"?"));
    }
    if net.trunc() != net {
        return Err(format!(
            "it has bits behind its prefix; did you mean \"{}\"?",
            net.trunc()
        ));
    }
    Ok(net)
}
