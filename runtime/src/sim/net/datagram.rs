//! UDP: datagrams that arrive late, twice or not at all.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;

use osier_poll::Ready;
use rustix::io::Errno;

use super::{About, Event, Id, Kind, Net, takes};

/// The most bytes of one datagram.
const LONGEST: usize = 65_507;
/// Datagrams that a socket holds. Further ones are dropped.
const QUEUE: usize = 1024;

pub(super) struct Datagrams {
    pub(super) local: SocketAddr,
    pub(super) remote: Option<SocketAddr>,
    arrived: VecDeque<(Vec<u8>, SocketAddr)>,
}

impl Datagrams {
    pub(super) fn readiness(&self) -> Ready {
        match self.arrived.is_empty() {
            true => Ready::WRITABLE,
            false => Ready::WRITABLE | Ready::READABLE,
        }
    }
}

impl Net {
    pub(crate) fn bind(&mut self, id: Id, addr: &SocketAddr) -> io::Result<()> {
        let host = self.socket(id)?.host;
        self.bindable(host, addr)?;
        let port = match addr.port() {
            0 => self.port(host),
            port if self.hosts[host].datagrams.contains_key(&port) => return Err(Errno::ADDRINUSE.into()),
            port => port,
        };
        let local = SocketAddr::new(addr.ip(), port);
        self.hosts[host].datagrams.entry(port).or_default().push(id);
        self.socket(id)?.kind = Kind::Datagrams(Datagrams {
            local,
            remote: None,
            arrived: VecDeque::new(),
        });
        self.note(host, format_args!("bind {local}"));
        Ok(())
    }

    pub(super) fn connect_datagrams(&mut self, id: Id, addr: &SocketAddr) -> io::Result<()> {
        let host = self.socket(id)?.host;
        let ip = self.local_ip(host, addr.ip());
        if let Kind::Datagrams(datagrams) = &mut self.socket(id)?.kind {
            datagrams.remote = Some(*addr);
            if datagrams.local.ip().is_unspecified() {
                datagrams.local.set_ip(ip);
            }
        }
        Ok(())
    }

    pub(super) fn send_connected(&mut self, id: Id, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let remote = match &self.socket(id)?.kind {
            Kind::Datagrams(datagrams) => datagrams.remote,
            _ => None,
        };
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.send_to(id, &bytes, &remote.ok_or(Errno::DESTADDRREQ)?)
    }

    pub(crate) fn send_to(&mut self, id: Id, bytes: &[u8], to: &SocketAddr) -> io::Result<usize> {
        let socket = self.socket(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error.into());
        }
        let host = socket.host;
        let Kind::Datagrams(datagrams) = &socket.kind else {
            return Err(Errno::NOTCONN.into());
        };
        if bytes.len() > LONGEST {
            return Err(Errno::MSGSIZE.into());
        }
        let local = datagrams.local;
        let ip = if local.ip().is_unspecified() {
            self.local_ip(host, to.ip())
        } else {
            local.ip()
        };
        let from = SocketAddr::new(ip, local.port());
        // An address without a host sends no error back.
        let Some(target) = self.host_of(host, to.ip()) else {
            return Ok(bytes.len());
        };
        let (loss, duplicate) = (self.faults.loss, self.faults.duplicate);
        if host != target && self.choices.once_in(About::Fault, loss) {
            self.note(host, format_args!("fault: lose {from}>{to} {}", bytes.len()));
            return Ok(bytes.len());
        }
        let copies = 1 + u32::from(self.choices.once_in(About::Fault, duplicate));
        for _ in 0..copies {
            let at = self.now + self.latency_between(host, target);
            let (to, bytes) = (*to, bytes.to_vec());
            self.schedule(
                at,
                Event::Datagram {
                    sender: id,
                    host: target,
                    from,
                    to,
                    bytes,
                },
            );
        }
        Ok(bytes.len())
    }

    pub(super) fn datagram(&mut self, sender: Id, host: usize, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        let origin = self.host_of(host, from.ip()).unwrap_or(host);
        if self.is_lost(origin, host) {
            return;
        }
        let bound = self.hosts[host]
            .datagrams
            .get(&to.port())
            .into_iter()
            .flatten()
            .copied();
        let bound: Vec<Id> = bound.collect();
        for id in bound {
            let Some(Kind::Datagrams(datagrams)) = self.sockets.get_mut(&id).map(|socket| &mut socket.kind) else {
                continue;
            };
            if takes(datagrams.local.ip(), to.ip()) && datagrams.remote.is_none_or(|remote| remote == from) {
                if datagrams.arrived.len() < QUEUE {
                    let len = bytes.len();
                    datagrams.arrived.push_back((bytes, from));
                    self.note(host, format_args!("arrive {from}>{to} {len}"));
                    self.tell(id, Ready::READABLE);
                }
                return;
            }
        }
        let at = self.now + self.latency_between(host, origin);
        self.schedule(at, Event::Unreachable(sender, host));
    }

    pub(super) fn unreachable(&mut self, id: Id, from: usize) {
        let Some(to) = self.sockets.get(&id).map(|socket| socket.host) else {
            return;
        };
        if self.is_lost(from, to) {
            return;
        }
        let Ok(socket) = self.socket(id) else { return };
        if matches!(&socket.kind, Kind::Datagrams(datagrams) if datagrams.remote.is_some()) {
            socket.error = Some(Errno::CONNREFUSED);
            self.tell(id, Ready::ERROR | Ready::READABLE | Ready::WRITABLE);
        }
    }

    /// Receives a datagram. With `peeks` the datagram stays in the queue.
    pub(crate) fn receive(&mut self, id: Id, buf: &mut [u8], peeks: bool) -> io::Result<(usize, SocketAddr)> {
        let socket = self.socket(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error.into());
        }
        let Kind::Datagrams(datagrams) = &mut socket.kind else {
            return Err(Errno::NOTCONN.into());
        };
        let Some((bytes, from)) = datagrams.arrived.front() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let (count, from) = (bytes.len().min(buf.len()), *from);
        buf[..count].copy_from_slice(&bytes[..count]);
        if !peeks {
            datagrams.arrived.pop_front();
        }
        Ok((count, from))
    }
}
