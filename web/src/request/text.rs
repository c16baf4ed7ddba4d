//! Addresses for the heads of requests to backends.

use std::io::Write;
use std::net::IpAddr;

/// An address, written as `Display` writes it at a tenth of the cost. Each request has several.
pub(crate) struct Text {
    bytes: [u8; Text::MAX],
    len: usize,
}

impl Text {
    /// The longest text: an IPv6 address that ends with an IPv4 address.
    const MAX: usize = 45;

    fn new() -> Text {
        Text {
            bytes: [0; Text::MAX],
            len: 0,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    pub(crate) fn address(ip: IpAddr) -> Text {
        let mut text = Text::new();
        let IpAddr::V4(ip) = ip else {
            let mut room = &mut text.bytes[..];
            write!(room, "{ip}").expect("no address is longer");
            text.len = Text::MAX - room.len();
            return text;
        };
        for (at, octet) in ip.octets().into_iter().enumerate() {
            if at > 0 {
                text.push(b'.');
            }
            if octet >= 100 {
                text.push(b'0' + octet / 100);
            }
            if octet >= 10 {
                text.push(b'0' + octet / 10 % 10);
            }
            text.push(b'0' + octet % 10);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_display_writes_them() {
        let longest = "1111:2222:3333:4444:5555:6666:7777:8888";
        for ip in [
            "0.0.0.0",
            "127.0.0.1",
            "255.10.100.9",
            "::",
            "2001:db8::1",
            "::ffff:255.255.255.255",
            longest,
        ] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(Text::address(ip).bytes(), ip.to_string().as_bytes());
        }
    }
}
