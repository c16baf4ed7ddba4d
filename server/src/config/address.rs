//! Addresses as users write them: a port alone, a colon and a port, or a host and a port.

use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// The address to listen on when none is configured. Only this machine can reach it.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";

/// The forms of an address, for messages.
pub const FORMS: &str = "write HOST:PORT, [IPV6]:PORT, :PORT or PORT";

/// An address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let tcp = |ip: [u8; 4], port: &str| {
            port.parse::<u16>()
                .ok()
                .map(|port| Address(SocketAddr::from((ip, port))))
        };
        let short = match text.strip_prefix(':') {
            Some(port) => tcp([0, 0, 0, 0], port),
            None => tcp([127, 0, 0, 1], text),
        };
        if let Some(address) = short {
            return Ok(address);
        }
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        if host == "*" {
            return Err(format!(
                "write \":{port}\" for all addresses of IPv4, and \"[::]:{port}\" for those of IPv6, too"
            ));
        }
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let is_ipv6 = host.contains(':') && !host.ends_with(']');
        if is_number && !is_ipv6 && port.parse::<u16>().is_err() {
            return Err(format!("{port} is not a port (1 to 65535)"));
        }
        let Some((host, _)) = text
            .rsplit_once(':')
            .filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        else {
            return Err(FORMS.into());
        };
        match text.to_socket_addrs() {
            Ok(mut found) => found
                .next()
                .map(Address)
                .ok_or_else(|| format!("no address is known for '{host}'")),
            Err(error) => Err(format!("{error}; {FORMS}")),
        }
    }
}

/// Whether a socket on `[::]` accepts IPv4 clients too. It does unless an administrator has changed the system's
/// default.
pub fn is_ipv4_taken_with_ipv6() -> bool {
    std::fs::read("/proc/sys/net/ipv6/bindv6only").map_or(true, |value| value.trim_ascii() != b"1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, expected) in [
            ("8081", "127.0.0.1:8081"),
            (":8081", "0.0.0.0:8081"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(text.parse(), Ok(Address(expected.parse().unwrap())), "{text}");
        }
        for text in ["", ":", "host", "::1", "127.0.0.1:", "127.0.0.1:http", ":65536", "-1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        for text in ["99999", ":65536", "127.0.0.1:80000", "[::1]:70000"] {
            let why = text.parse::<Address>().unwrap_err();
            assert!(why.ends_with(" is not a port (1 to 65535)"), "{text}: {why}");
        }
        assert!("*:80".parse::<Address>().unwrap_err().contains("\":80\""));
        assert_eq!("::99999".parse::<Address>(), Err(FORMS.into()));
    }
}
