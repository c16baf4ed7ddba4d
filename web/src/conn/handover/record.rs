//! The state of a connection that moves to another process, apart from its socket.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use super::fields::{Fields, Malformed, Writer};

/// The state of a connection at rest. It may hold keys, so only tests have `Debug`.
#[cfg_attr(test, derive(Debug))]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// The name of its server.
    pub(crate) server: String,
    /// The client's address. For a Unix socket it is unspecified.
    pub(crate) peer: SocketAddr,
    /// Whether a load balancer has named the client.
    pub(crate) is_proxied: bool,
    /// Whether no byte of a first request has arrived.
    pub(crate) is_fresh: bool,
    /// Whether the PROXY header of a load balancer is still incomplete.
    pub(crate) is_announced: bool,
    /// Received bytes: the beginning of a head, or of a PROXY header.
    pub(crate) received: Vec<u8>,
    /// The TLS state.
    pub(crate) tls: Option<Vec<u8>>,
    /// The HTTP/2 state.
    pub(crate) http2: Option<Vec<u8>>,
    /// The session of a connection that is no longer HTTP.
    pub(crate) session: Option<Saved>,
    /// The tunnel to a backend, whose socket is a second descriptor.
    pub(crate) tunnel: Option<Tunnel>,
}

/// The state of a tunnel between its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The idle timeouts: while both directions are open, and after the end of one.
    pub(crate) idle: [Duration; 2],
    /// The time since the last byte.
    pub(crate) silent: Duration,
    /// The longest wait for the backend to take bytes.
    pub(crate) write: Option<Duration>,
    /// Whether the direction to the backend has ended, and that to the client.
    pub(crate) ended: [bool; 2],
}

impl Tunnel {
    fn write(&self, to: &mut Writer) {
        to.u8(u8::from(self.ended[0]) | u8::from(self.ended[1]) << 1);
        for time in [
            self.idle[0],
            self.idle[1],
            self.silent,
            self.write.unwrap_or(Duration::MAX),
        ] {
            // No time becomes 0, which is no limit of a write.
            to.u64(u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX));
        }
    }

    fn read(from: &mut Fields<'_>) -> Result<Tunnel, Malformed> {
        let ended = match from.u8()? {
            ended @ 0..=3 => [ended & 1 != 0, ended & 2 != 0],
            _ => return Err(Malformed::Payload),
        };
        let mut time = || from.u64().map(Duration::from_millis);
        let (idle, silent, write) = ([time()?, time()?], time()?, time()?);
        Ok(Tunnel {
            idle,
            silent,
            write: Some(write).filter(|limit| *limit != Duration::from_millis(u64::MAX)),
            ended,
        })
    }
}

/// A saved session: see [`Link::saved`](crate::upgrade::Link::saved).
#[derive(Clone, PartialEq, Eq)]
pub struct Saved {
    /// The name of the part that restores it.
    pub(crate) part: Arc<str>,
    pub(crate) bytes: Vec<u8>,
}

impl fmt::Debug for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes.len();
        f.debug_struct("Saved")
            .field("part", &self.part)
            .field("bytes", &bytes)
            .finish()
    }
}

impl Saved {
    /// The bytes, which [`Part::restore`](crate::upgrade::Part::restore) gets.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A copy for the same part with other bytes, for a session that adds its own state.
    #[must_use]
    pub fn with_bytes(self, bytes: Vec<u8>) -> Saved {
        Saved { bytes, ..self }
    }
}

/// An upper bound for the bytes of flags, addresses and lengths.
const FIXED_BYTES: usize = 64;

const IS_PROXIED: u8 = 1;
const IS_FRESH: u8 = 2;
const IS_ANNOUNCED: u8 = 4;
const IS_V4: u8 = 8;
const HAS_TLS: u8 = 16;
const HAS_HTTP2: u8 = 32;
const HAS_SESSION: u8 = 64;
const HAS_TUNNEL: u8 = 128;

impl Record {
    /// About the bytes of the record in a message.
    pub(crate) fn bytes(&self) -> usize {
        let session = self
            .session
            .as_ref()
            .map_or(0, |session| session.part.len() + session.bytes.len());
        let sections = [&self.tls, &self.http2].into_iter().flatten().map(Vec::len);
        self.server.len() + self.received.len() + sections.sum::<usize>() + session + FIXED_BYTES
    }

    /// The number of descriptors that travel with the record.
    pub(crate) fn descriptors(&self) -> usize {
        1 + usize::from(self.tunnel.is_some())
    }

    pub(crate) fn write(&self, to: &mut Writer) {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        to.bytes(self.server.as_bytes());
        to.u8(flag(self.is_proxied, IS_PROXIED)
            | flag(self.is_fresh, IS_FRESH)
            | flag(self.is_announced, IS_ANNOUNCED)
            | flag(self.peer.is_ipv4(), IS_V4)
            | flag(self.tls.is_some(), HAS_TLS)
            | flag(self.http2.is_some(), HAS_HTTP2)
            | flag(self.session.is_some(), HAS_SESSION)
            | flag(self.tunnel.is_some(), HAS_TUNNEL));
        let (ip, scope) = match self.peer {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        to.0.extend_from_slice(&ip.octets());
        to.u16(self.peer.port());
        to.u32(scope);
        to.bytes(&self.received);
        for section in [&self.tls, &self.http2].into_iter().flatten() {
            to.bytes(section);
        }
        if let Some(session) = &self.session {
            to.bytes(session.part.as_bytes());
            to.bytes(&session.bytes);
        }
        if let Some(tunnel) = &self.tunnel {
            tunnel.write(to);
        }
    }

    pub(crate) fn read(from: &mut Fields<'_>) -> Result<Record, Malformed> {
        let server = from.text()?;
        let flags = from.u8()?;
        let has = |flag: u8| flags & flag != 0;
        let ip = from.take(16)?.try_into().map_err(|_| Malformed::Payload)?;
        let (ip, port, scope) = (Ipv6Addr::from_octets(ip), from.u16()?, from.u32()?);
        let peer = match (has(IS_V4), ip.to_ipv4_mapped(), scope) {
            (true, Some(v4), 0) => SocketAddr::new(IpAddr::V4(v4), port),
            (false, _, scope) => SocketAddrV6::new(ip, port, 0, scope).into(),
            (true, ..) => return Err(Malformed::Payload),
        };
        let received = from.bytes()?.to_vec();
        let mut section = |flag| match has(flag) {
            true => from.bytes().map(|bytes| Some(bytes.to_vec())),
            false => Ok(None),
        };
        let (tls, http2) = (section(HAS_TLS)?, section(HAS_HTTP2)?);
        let session = match has(HAS_SESSION) {
            true => Some(Saved {
                part: from.text()?.into(),
                bytes: from.bytes()?.to_vec(),
            }),
            false => None,
        };
        let tunnel = match has(HAS_TUNNEL) {
            true => Some(Tunnel::read(from)?),
            false => None,
        };
        Ok(Record {
            server,
            peer,
            is_proxied: has(IS_PROXIED),
            is_fresh: has(IS_FRESH),
            is_announced: has(IS_ANNOUNCED),
            received,
            tls,
            http2,
            session,
            tunnel,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in super::super) fn records() -> impl Strategy<Value = Record> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..50);
        let section = move || proptest::option::of(bytes());
        let session = proptest::option::of((".{0,9}", bytes()));
        let time = || any::<u64>().prop_map(Duration::from_millis);
        let write = proptest::option::of((0..u64::MAX).prop_map(Duration::from_millis));
        let tunnel = proptest::option::of(([time(), time()], time(), write, any::<[bool; 2]>()).prop_map(
            |(idle, silent, write, ended)| Tunnel {
                idle,
                silent,
                write,
                ended,
            },
        ));
        let peer = prop_oneof![
            (any::<[u8; 4]>(), any::<u16>()).prop_map(SocketAddr::from),
            (any::<[u8; 16]>(), any::<u16>(), any::<u32>()).prop_map(|(ip, port, scope)| SocketAddrV6::new(
                ip.into(),
                port,
                0,
                scope
            )
            .into()),
        ];
        let flags = any::<(bool, bool, bool)>();
        (".{0,20}", peer, flags, bytes(), section(), section(), session, tunnel).prop_map(
            |(server, peer, flags, received, tls, http2, session, tunnel)| Record {
                server,
                peer,
                is_proxied: flags.0,
                is_fresh: flags.1,
                is_announced: flags.2,
                received,
                tls,
                http2,
                session: session.map(|(part, bytes)| Saved {
                    part: part.into(),
                    bytes,
                }),
                tunnel,
            },
        )
    }
}
