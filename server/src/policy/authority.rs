//! Checks the host and the port in the URL of a redirect, as the configuration writes them.

use std::net::Ipv6Addr;

/// Why an authority is refused.
pub enum Mistake {
    /// The port, which is not one of 1 to 65535.
    Port(String),
    /// The host is neither a name nor an address, or a user stands before it.
    Host,
}

impl Mistake {
    /// The message: `host` for a wrong host. A wrong port may be shown, because it is never a part of a password.
    pub fn text(self, host: &str) -> String {
        match self {
            Mistake::Port(port) => format!("'{port}' is not a port (1 to 65535)"),
            Mistake::Host => host.into(),
        }
    }
}

/// Checks a host with an optional port.
///
/// # Errors
/// The wrong part.
pub fn check(authority: &str) -> Result<(), Mistake> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    // Before an '@', the text behind a colon is a password.
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
