//! The host and the port of a redirect's URL, as the configuration writes them.

use std::net::Ipv6Addr;

/// Why an authority is refused.
pub enum Mistake {
    /// The port, which is not one of 1 to 65535.
    Port(String),
    /// The host is no name and no address, or a user stands before it.
    Host,
}

impl Mistake {
    /// The text of the mistake, or `host` if it is the host. A port has no password in it.
    pub fn text(self, host: &str) -> String {
        match self {
            Mistake::Port(port) => format!("'{port}' is not a port (1 to 65535)"),
            Mistake::Host => host.into(),
        }
    }
}

/// Checks a host, perhaps with a port.
///
/// # Errors
///
/// The part that is wrong.
pub fn check(authority: &str) -> Result<(), Mistake> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    // A password may stand before an '@'.
    if let Some(port) = port.filter(|port| !is_port(port) && !port.contains('@')) {
        return Err(Mistake::Port(port.into()));
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let ip = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match ip {
        Some(ip) => ip.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(is_name),
    };
    match is_host && !authority.contains('@') {
        true => Ok(()),
        false => Err(Mistake::Host),
    }
}
