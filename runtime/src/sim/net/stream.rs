//! TCP connections: both directions of a stream, from the first packet to the last.
//!
//! A direction is the sender's queue of segments. Only the first segment has an event, so segments arrive in order, and a lost one
//! delays the others, as with TCP. The sender counts the bytes that its peer has not read as `outstanding`, which bounds the bytes in
//! flight and the bytes that have arrived together.
//!
//! A reset travels as packets do. That of an end that gives up is its last segment, behind its bytes. That of a host that gets a segment for
//! an end that is gone is an event of its own; if it is lost, so was the segment, which is sent again.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use osier_poll::Ready;
use rustix::io::Errno;

use super::{About, Event, Id, Kind, Listener, NOBODY, Net, again_after, nanos, takes};
use crate::wait::socket::Moved;

/// Connections that wait to be accepted, at most.
const BACKLOG: usize = 4096;
/// Further attempts of a client that gets no answer, the first one after a second.
const ASKS: u32 = 6;
/// Transmissions of a segment before the connection fails.
const SENDS: u32 = 15;
/// Time for which a closed end waits for the end of its peer.
const ORPHAN: Duration = Duration::from_secs(60);
/// Time after which a connect to an address without a host fails.
const NO_HOST: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Open,
    /// Reset, refused or given up.
    Dead,
}

pub(super) struct Stream {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) phase: Phase,
    peer: Option<Id>,
    peer_host: usize,
    /// The bytes that have arrived, and whether the peer's end has.
    arrived: VecDeque<u8>,
    ended: bool,
    read_shut: bool,
    write_shut: bool,
    /// The segments that this end has sent and that have not arrived.
    sent: VecDeque<Segment>,
    outstanding: usize,
    room: usize,
    /// The time at which the last segment arrives, and at which the link is free.
    last_at: u64,
    free_at: u64,
    losses: u32,
    /// Whether the program has closed this end.
    orphan: bool,
    /// Whether this end has given up: its last segment resets the peer.
    aborted: bool,
    /// Whether the peer has received the end.
    end_arrived: bool,
}

struct Segment {
    at: u64,
    bytes: Vec<u8>,
    kind: Carries,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Carries {
    Bytes,
    End,
    Reset,
}

impl Stream {
    fn new(local: SocketAddr, remote: SocketAddr, peer_host: usize, room: usize) -> Stream {
        Stream {
            local,
            remote,
            phase: Phase::Connecting,
            peer: None,
            peer_host,
            arrived: VecDeque::new(),
            ended: false,
            read_shut: false,
            write_shut: false,
            sent: VecDeque::new(),
            outstanding: 0,
            room,
            last_at: 0,
            free_at: 0,
            losses: 0,
            orphan: false,
            aborted: false,
            end_arrived: false,
        }
    }

    pub(super) fn readiness(&self) -> Ready {
        let mut ready = Ready::NONE;
        if !self.arrived.is_empty() || self.ended || self.read_shut {
            ready |= Ready::READABLE;
        }
        if self.ended || self.read_shut {
            ready |= Ready::READ_CLOSED;
        }
        if self.phase == Phase::Open && (self.outstanding < self.room || self.write_shut) {
            ready |= Ready::WRITABLE;
        }
        if self.phase == Phase::Dead || (self.ended && self.write_shut) {
            ready |= Ready::HUP | Ready::READABLE | Ready::WRITABLE;
        }
        ready
    }

    fn is_over(&self) -> bool {
        self.orphan && self.end_arrived && self.ended
    }

    /// Whether it has no room for further bytes, which it may still send.
    fn is_full(&self) -> bool {
        self.outstanding >= self.room && !self.write_shut
    }

    /// Whether only its peer's reading lets this end go on.
    fn waits_for_room(&self) -> bool {
        self.phase == Phase::Open && self.is_full() && self.sent.is_empty()
    }
}

impl Net {
    pub(crate) fn listen(&mut self, id: Id, addr: &SocketAddr, shares: bool) -> io::Result<()> {
        let host = self.socket(id)?.host;
        self.bindable(host, addr)?;
        let port = match addr.port() {
            0 => self.port(host),
            port => port,
        };
        for other in self.hosts[host].listeners.get(&port).into_iter().flatten() {
            if let Some(Kind::Listener(other)) = self.sockets.get(other).map(|socket| &socket.kind) {
                let overlaps = takes(addr.ip(), other.addr.ip()) || takes(other.addr.ip(), addr.ip());
                if overlaps && !(shares && other.shares) {
                    return Err(Errno::ADDRINUSE.into());
                }
            }
        }
        let addr = SocketAddr::new(addr.ip(), port);
        self.hosts[host].listeners.entry(port).or_default().push(id);
        self.socket(id)?.kind = Kind::Listener(Listener {
            addr,
            shares,
            backlog: VecDeque::new(),
        });
        self.note(host, format_args!("listen {addr}"));
        Ok(())
    }

    /// Takes a connection for the program of a host.
    pub(crate) fn accept(&mut self, id: Id, owner: usize) -> io::Result<(Id, SocketAddr)> {
        let socket = self.socket(id)?;
        let Kind::Listener(listener) = &mut socket.kind else {
            return Err(Errno::INVAL.into());
        };
        let accepted = listener.backlog.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        let host = socket.host;
        let socket = self.socket(accepted)?;
        socket.values = vec![(0, owner)];
        let Kind::Stream(stream) = &socket.kind else {
            unreachable!("a backlog has streams")
        };
        let (local, remote) = (stream.local, stream.remote);
        self.note(host, format_args!("accept {remote}>{local}"));
        Ok((accepted, remote))
    }

    /// Begins a connection at the first call. Later calls return its state.
    pub(crate) fn connect(&mut self, id: Id, addr: &SocketAddr) -> io::Result<()> {
        let socket = self.socket(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error.into());
        }
        match &socket.kind {
            Kind::Stream(stream) => match stream.phase {
                Phase::Connecting => Err(io::ErrorKind::WouldBlock.into()),
                Phase::Open => Ok(()),
                Phase::Dead => Err(Errno::CONNABORTED.into()),
            },
            Kind::Datagrams(_) => self.connect_datagrams(id, addr),
            Kind::Listener(_) => Err(Errno::ISCONN.into()),
            Kind::Fresh => {
                let host = socket.host;
                self.begin(id, host, *addr);
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
    }

    fn begin(&mut self, id: Id, host: usize, addr: SocketAddr) {
        let local = SocketAddr::new(self.local_ip(host, addr.ip()), self.port(host));
        self.note(host, format_args!("connect {local}>{addr}"));
        let Some(target) = self.host_of(host, addr.ip()) else {
            let room = self.link.buffer;
            self.set_stream(id, Stream::new(local, addr, host, room));
            return self.schedule(self.now + nanos(NO_HOST), Event::Ask(id, ASKS));
        };
        let link = self.link(host, target);
        self.set_stream(id, Stream::new(local, addr, target, link.buffer));
        let at = self.now + self.latency(&link);
        self.schedule(at, Event::Ask(id, 0));
    }

    fn set_stream(&mut self, id: Id, stream: Stream) {
        if let Ok(socket) = self.socket(id) {
            socket.kind = Kind::Stream(Box::new(stream));
        }
    }

    fn stream(&mut self, id: Id) -> Option<(usize, &mut Stream)> {
        let socket = self.sockets.get_mut(&id)?;
        match &mut socket.kind {
            Kind::Stream(stream) => Some((socket.host, stream)),
            _ => None,
        }
    }

    /// A client's first packet arrives.
    pub(super) fn ask(&mut self, client: Id, attempt: u32) {
        let Some((from, stream)) = self.stream(client) else {
            return;
        };
        let (local, remote, to) = (stream.local, stream.remote, stream.peer_host);
        if self.host_of(from, remote.ip()).is_none() {
            return self.fail(client, Errno::HOSTUNREACH);
        }
        let loss = self.faults.loss;
        let listener = match self.is_lost(from, to) || (from != to && self.choices.once_in(About::Fault, loss)) {
            true => None,
            false => Some(self.listener(to, remote)),
        };
        let refuse = self.faults.refuse;
        match listener {
            // The packet is lost, or the backlog is full.
            None | Some(Some(None)) if attempt >= ASKS => self.fail(client, Errno::TIMEDOUT),
            None | Some(Some(None)) => {
                let at = self.now + (1_000_000_000 << attempt);
                self.schedule(at, Event::Ask(client, attempt + 1));
            }
            Some(Some(Some(listener))) if !self.choices.once_in(About::Fault, refuse) => {
                self.establish(client, listener, (to, from), (remote, local));
            }
            Some(_) => {
                let at = self.now + self.latency_between(to, from);
                self.schedule(at, Event::Answer(client, None));
            }
        }
    }

    /// The listener for an address, if there is one, and whether its backlog has room.
    fn listener(&mut self, host: usize, addr: SocketAddr) -> Option<Option<Id>> {
        let listening: Vec<(Id, usize)> = self.hosts[host]
            .listeners
            .get(&addr.port())?
            .iter()
            .filter_map(|id| match &self.sockets.get(id)?.kind {
                Kind::Listener(listener) => {
                    takes(listener.addr.ip(), addr.ip()).then_some((*id, listener.backlog.len()))
                }
                _ => None,
            })
            .collect();
        if listening.is_empty() {
            return None;
        }
        let drawn = self.choices.draw(About::Listener, listening.len() as u32) as usize;
        let (id, waiting) = listening[drawn];
        Some((waiting < BACKLOG).then_some(id))
    }

    /// Makes the server's end.
    fn establish(
        &mut self,
        client: Id,
        listener: Id,
        (host, towards): (usize, usize),
        (local, remote): (SocketAddr, SocketAddr),
    ) {
        let link = self.link(host, towards);
        let at = self.now + self.latency(&link);
        let mut stream = Stream::new(local, remote, towards, link.buffer);
        stream.phase = Phase::Open;
        stream.peer = Some(client);
        // Its first bytes arrive after the answer.
        stream.last_at = at;
        let server = self.add(host, NOBODY, Kind::Stream(Box::new(stream)));
        if let Ok(socket) = self.socket(listener)
            && let Kind::Listener(listener) = &mut socket.kind
        {
            listener.backlog.push_back(server);
        }
        self.tell(listener, Ready::READABLE);
        self.schedule(at, Event::Answer(client, Some(server)));
    }

    pub(super) fn answer(&mut self, client: Id, server: Option<Id>) {
        let Some((host, stream)) = self.stream(client) else {
            return server.into_iter().for_each(|server| self.answer_nobody(server));
        };
        let (peer_host, local, remote) = (stream.peer_host, stream.local, stream.remote);
        if self.is_lost(peer_host, host) {
            return self.lose_answer(client, server);
        }
        let Some(server) = server else {
            self.note(host, format_args!("refused {local}>{remote}"));
            return self.fail(client, Errno::CONNREFUSED);
        };
        let Some((_, stream)) = self.stream(client) else { return };
        stream.phase = Phase::Open;
        stream.peer = Some(server);
        stream.losses = 0;
        self.note(host, format_args!("connected {local}>{remote}"));
        self.tell(client, Ready::WRITABLE);
    }

    /// The client is gone. If its host is not, that resets the server's end.
    fn answer_nobody(&mut self, server: Id) {
        let Some((from, stream)) = self.stream(server) else {
            return;
        };
        let to = stream.peer_host;
        if !self.is_lost(from, to) {
            let at = self.now + self.latency_between(to, from);
            self.schedule(at, Event::Reset(server));
        }
    }

    /// The client asks again later, as after the loss of its question, until both give up.
    fn lose_answer(&mut self, client: Id, server: Option<Id>) {
        let Some((_, stream)) = self.stream(client) else { return };
        let attempt = stream.losses;
        stream.losses += 1;
        if attempt >= ASKS {
            self.fail(client, Errno::TIMEDOUT);
            return server.into_iter().for_each(|server| self.fail(server, Errno::TIMEDOUT));
        }
        let at = self.now + (1_000_000_000 << attempt);
        self.schedule(at, Event::Answer(client, server));
    }

    /// Queues bytes to send, as many as there is room for.
    pub(crate) fn write(&mut self, id: Id, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let socket = self.socket(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error.into());
        }
        let room = match &socket.kind {
            Kind::Stream(stream) if stream.phase == Phase::Connecting => return Err(Errno::NOTCONN.into()),
            Kind::Stream(stream) if stream.write_shut || stream.phase == Phase::Dead => return Err(Errno::PIPE.into()),
            Kind::Stream(stream) => stream.room.saturating_sub(stream.outstanding),
            Kind::Datagrams(_) => return self.send_connected(id, bufs),
            Kind::Fresh | Kind::Listener(_) => return Err(Errno::NOTCONN.into()),
        };
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        if len == 0 {
            return Ok(0);
        }
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut count = len.min(room);
        let short = self.faults.short_write;
        if self.choices.once_in(About::Fault, short) {
            count -= self.draw_size(count);
        }
        let mut bytes = Vec::with_capacity(count);
        for buf in bufs {
            bytes.extend_from_slice(&buf[..buf.len().min(count - bytes.len())]);
        }
        let split = self.faults.split;
        if self.choices.once_in(About::Fault, split) {
            let second = bytes.split_off(count - self.draw_size(count));
            self.send(id, bytes, Carries::Bytes);
            bytes = second;
        }
        if !bytes.is_empty() {
            self.send(id, bytes, Carries::Bytes);
        }
        Ok(count)
    }

    fn draw_size(&mut self, count: usize) -> usize {
        self.choices.draw(About::Size, u32::try_from(count).unwrap_or(u32::MAX)) as usize
    }

    /// Sends a segment.
    fn send(&mut self, id: Id, bytes: Vec<u8>, kind: Carries) {
        let Some((host, stream)) = self.stream(id) else { return };
        let to = stream.peer_host;
        let link = self.link(host, to);
        let mut latency = self.latency(&link);
        let loss = self.faults.loss;
        if host != to && self.choices.once_in(About::Fault, loss) {
            latency += nanos(super::RETRANSMIT);
        }
        let now = self.now;
        let Some((_, stream)) = self.stream(id) else { return };
        let transmission = match link.bandwidth {
            Some(bandwidth) => bytes.len() as u64 * 1_000_000_000 / bandwidth.max(1),
            None => 0,
        };
        stream.free_at = stream.free_at.max(now) + transmission;
        stream.last_at = stream.last_at.max(stream.free_at + latency);
        stream.outstanding += bytes.len();
        let at = stream.last_at;
        stream.sent.push_back(Segment { at, bytes, kind });
        if stream.sent.len() == 1 {
            self.schedule(at, Event::Arrive(id));
        }
    }

    /// The first segment of a sender arrives, if it is not lost.
    pub(super) fn arrive(&mut self, sender: Id) {
        let Some((from, stream)) = self.stream(sender) else {
            return;
        };
        let (to, peer, names) = (stream.peer_host, stream.peer, (stream.local, stream.remote));
        let Some(segment) = stream.sent.front() else { return };
        let (len, kind) = (segment.bytes.len(), segment.kind);
        let is_end = kind == Carries::End;
        let peer = match peer.filter(|&peer| self.stream(peer).is_some()) {
            Some(peer) => self
                .stream(peer)
                .is_some_and(|(_, stream)| stream.phase != Phase::Connecting)
                .then_some(Some(peer)),
            None => Some(None),
        };
        if self.is_lost(from, to) {
            return self.lose(sender);
        }
        if peer.is_none() {
            return self.send_again(sender);
        }
        if kind == Carries::Reset {
            self.sockets.remove(&sender);
            return peer
                .flatten()
                .into_iter()
                .for_each(|peer| self.fail(peer, Errno::CONNRESET));
        }
        let reset = self.faults.reset;
        if self.choices.once_in(About::Fault, reset) {
            self.note(from, format_args!("fault: reset {}>{}", names.0, names.1));
            return self.reset_both(sender);
        }
        let takes_it = |net: &mut Net, peer| {
            net.stream(peer)
                .is_some_and(|(_, peer)| peer.phase == Phase::Open && (is_end || !peer.orphan))
        };
        let gave_up = |net: &mut Net, peer| net.stream(peer).is_some_and(|(_, peer)| peer.aborted);
        if peer.flatten().is_some_and(|peer| gave_up(self, peer)) {
            // Its reset is on the way. If that is lost, this segment meets nobody the next time, and is answered by another.
            return self.send_again(sender);
        }
        let Some(peer) = peer.flatten().filter(|&peer| takes_it(self, peer)) else {
            // The program has closed the receiving end, or that has failed.
            if let Some(peer) = peer.flatten()
                && self.stream(peer).is_some_and(|(_, peer)| peer.orphan)
            {
                self.sockets.remove(&peer);
            }
            let at = self.now + self.latency_between(to, from);
            return self.schedule(at, Event::Reset(sender));
        };
        let segment = self.next_segment(sender).expect("looked at above");
        self.note(
            to,
            format_args!(
                "arrive {}>{} {len}{}",
                names.0,
                names.1,
                if is_end { " end" } else { "" }
            ),
        );
        self.deliver(peer, segment);
        if self.is_cut(to, from) {
            // Nothing that the peer reads from now on gives it room.
            self.ask_for_room(sender);
        }
        if is_end && let Some((_, stream)) = self.stream(sender) {
            stream.end_arrived = true;
        }
        for end in [sender, peer] {
            if self.stream(end).is_some_and(|(_, stream)| stream.is_over()) {
                self.sockets.remove(&end);
            }
        }
    }

    /// Takes the first segment, and lets the next one arrive.
    fn next_segment(&mut self, sender: Id) -> Option<Segment> {
        let now = self.now;
        let (_, stream) = self.stream(sender)?;
        let segment = stream.sent.pop_front()?;
        stream.losses = 0;
        let next = stream.sent.front().map(|next| next.at.max(now));
        if let Some(at) = next {
            self.schedule(at, Event::Arrive(sender));
        }
        Some(segment)
    }

    fn deliver(&mut self, peer: Id, segment: Segment) {
        let Some((_, stream)) = self.stream(peer) else { return };
        stream.arrived.extend(segment.bytes);
        let is_end = segment.kind == Carries::End;
        stream.ended |= is_end;
        let mut news = Ready::READABLE;
        if is_end {
            news |= Ready::READ_CLOSED;
            if stream.write_shut {
                news |= Ready::HUP | Ready::WRITABLE;
            }
        }
        self.tell(peer, news);
    }

    /// Sends the first segment again later. An end that has given up sends nothing again.
    fn lose(&mut self, sender: Id) {
        let Some((_, stream)) = self.stream(sender) else { return };
        if stream.aborted {
            let peer = stream.peer;
            self.sockets.remove(&sender);
            return peer.into_iter().for_each(|peer| self.ask_for_room(peer));
        }
        self.send_again(sender);
    }

    fn send_again(&mut self, sender: Id) {
        let Some((_, stream)) = self.stream(sender) else { return };
        stream.losses += 1;
        let losses = stream.losses;
        match losses > SENDS {
            true => self.fail(sender, Errno::TIMEDOUT),
            false => self.schedule(self.now + again_after(losses - 1), Event::Arrive(sender)),
        }
    }

    /// Reads what has arrived.
    pub(crate) fn read(&mut self, id: Id, bufs: &mut [IoSliceMut<'_>], takes: bool) -> io::Result<Moved<usize>> {
        let socket = self.socket(id)?;
        let (host, error) = (socket.host, &mut socket.error);
        let Kind::Stream(stream) = &mut socket.kind else {
            return Err(Errno::NOTCONN.into());
        };
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        if stream.arrived.is_empty() {
            return match error.take() {
                Some(error) => Err(error.into()),
                None if stream.phase == Phase::Connecting => Err(Errno::NOTCONN.into()),
                None if stream.ended || stream.read_shut || stream.phase == Phase::Dead || len == 0 => {
                    Ok(Moved::all(0))
                }
                None => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        let mut count = len.min(stream.arrived.len());
        if count == 0 {
            return Ok(Moved::all(0));
        }
        let short = self.faults.short_read;
        if takes && self.choices.once_in(About::Fault, short) {
            count -= self.draw_size(count);
        }
        let (_, stream) = self.stream(id).expect("looked at above");
        let (first, second) = stream.arrived.as_slices();
        let mut copied = 0;
        for buf in bufs {
            let part = buf.len().min(count - copied);
            let from_first = first.len().saturating_sub(copied).min(part);
            buf[..from_first].copy_from_slice(&first[copied.min(first.len())..][..from_first]);
            let at = (copied + from_first).saturating_sub(first.len());
            buf[from_first..part].copy_from_slice(&second[at..][..part - from_first]);
            copied += part;
        }
        if !takes {
            return Ok(Moved::all(count));
        }
        stream.arrived.drain(..count);
        let drained = stream.arrived.is_empty() && !stream.ended && stream.phase == Phase::Open;
        let (peer, peer_host) = (stream.peer, stream.peer_host);
        if let Some(peer) = peer {
            let at = self.now + self.latency_between(host, peer_host);
            self.schedule(at, Event::Credit(peer, count, 0));
        }
        Ok(Moved { value: count, drained })
    }

    pub(super) fn credit(&mut self, sender: Id, count: usize, attempt: u32) {
        let Some((host, stream)) = self.stream(sender) else {
            return;
        };
        let (peer_host, is_full) = (stream.peer_host, stream.is_full());
        // A sender that has no room left asks for it as often as it sends a segment. Any other waits for none: it learns of it at once, where
        // TCP would tell it with the next answer.
        if is_full && self.is_cut(peer_host, host) {
            return match attempt >= SENDS {
                true => self.fail(sender, Errno::TIMEDOUT),
                false => self.schedule(
                    self.now + again_after(attempt),
                    Event::Credit(sender, count, attempt + 1),
                ),
            };
        }
        let Some((_, stream)) = self.stream(sender) else { return };
        stream.outstanding = stream.outstanding.saturating_sub(count);
        if stream.phase == Phase::Open {
            self.tell(sender, Ready::WRITABLE);
        }
    }

    /// A reset arrives that answers a segment of this sender, if it is not lost.
    pub(super) fn reset_arrives(&mut self, sender: Id) {
        let Some((host, stream)) = self.stream(sender) else {
            return;
        };
        let (from, is_idle) = (stream.peer_host, stream.sent.is_empty());
        match self.is_lost(from, host) {
            false => self.fail(sender, Errno::CONNRESET),
            true if is_idle => {}
            true => self.lose(sender),
        }
    }

    /// Lets a sender that waits for room ask for it, because its peer or the way to it may be gone. TCP asks all senders without room, always.
    pub(super) fn ask_for_room(&mut self, sender: Id) {
        if self.stream(sender).is_some_and(|(_, stream)| stream.waits_for_room()) {
            self.schedule(self.now + again_after(0), Event::Probe(sender, 0));
        }
    }

    /// As [`ask_for_room`](Net::ask_for_room) for all ends whose hosts and whose peers' hosts are these.
    pub(super) fn ask_for_room_between(&mut self, is_concerned: impl Fn(usize, usize) -> bool) {
        let concerned = |(&id, socket): (&Id, &super::Socket)| match &socket.kind {
            Kind::Stream(stream) => is_concerned(socket.host, stream.peer_host).then_some(id),
            _ => None,
        };
        let ends: Vec<Id> = self.sockets.iter().filter_map(concerned).collect();
        ends.into_iter().for_each(|id| self.ask_for_room(id));
    }

    /// The peer's host answers a question for room, if neither is lost.
    pub(super) fn probe(&mut self, sender: Id, attempt: u32) {
        let Some((from, stream)) = self.stream(sender) else {
            return;
        };
        if !stream.waits_for_room() {
            return;
        }
        let (to, peer) = (stream.peer_host, stream.peer);
        if self.is_lost(from, to) || self.is_lost(to, from) {
            return match attempt >= SENDS {
                true => self.fail(sender, Errno::TIMEDOUT),
                false => self.schedule(self.now + again_after(attempt), Event::Probe(sender, attempt + 1)),
            };
        }
        let peer = peer.and_then(|peer| self.stream(peer));
        if peer.is_none_or(|(_, peer)| peer.phase == Phase::Dead) {
            self.fail(sender, Errno::CONNRESET);
        }
    }

    pub(crate) fn unacknowledged(&self, id: Id) -> Option<i32> {
        match &self.sockets.get(&id)?.kind {
            Kind::Stream(stream) => Some(stream.sent.iter().map(|segment| segment.bytes.len()).sum::<usize>() as i32),
            _ => None,
        }
    }

    pub(crate) fn shutdown(&mut self, id: Id, how: Shutdown) -> io::Result<()> {
        self.socket(id)?;
        let (_, stream) = self.stream(id).ok_or(Errno::NOTCONN)?;
        if stream.phase != Phase::Open {
            return Err(Errno::NOTCONN.into());
        }
        if how != Shutdown::Write {
            stream.read_shut = true;
        }
        let ends = how != Shutdown::Read && !stream.write_shut;
        if ends {
            stream.write_shut = true;
            self.send(id, Vec::new(), Carries::End);
        }
        let news = self.readiness(id);
        self.tell(id, news);
        Ok(())
    }

    /// Ends the sending direction of every connection from one host to another.
    pub(crate) fn half_close(&mut self, from: usize, to: usize) -> usize {
        let ends = self.ends(from, to);
        ends.into_iter()
            .filter(|&id| self.shutdown(id, Shutdown::Write).is_ok())
            .count()
    }

    /// Resets every connection between two hosts.
    pub(crate) fn reset(&mut self, from: usize, to: usize) -> usize {
        let ends = self.ends(from, to);
        ends.iter().for_each(|&id| self.reset_both(id));
        ends.len()
    }

    /// The open ends at one host whose peers are at another.
    fn ends(&self, from: usize, to: usize) -> Vec<Id> {
        let between = |(&id, socket): (&Id, &super::Socket)| match &socket.kind {
            Kind::Stream(stream) => {
                (socket.host == from && stream.peer_host == to && stream.phase == Phase::Open && !stream.aborted)
                    .then_some(id)
            }
            _ => None,
        };
        self.sockets.iter().filter_map(between).collect()
    }

    fn reset_both(&mut self, id: Id) {
        let peer = self.stream(id).and_then(|(_, stream)| stream.peer);
        self.fail(id, Errno::CONNRESET);
        peer.into_iter().for_each(|peer| self.fail(peer, Errno::CONNRESET));
    }

    /// The connection is over for this end.
    pub(super) fn fail(&mut self, id: Id, error: Errno) {
        let Some((_, stream)) = self.stream(id) else { return };
        if stream.phase == Phase::Dead {
            return;
        }
        let peer = stream.peer.take();
        if stream.orphan {
            self.sockets.remove(&id);
        } else {
            stream.phase = Phase::Dead;
            stream.sent.clear();
            if let Ok(socket) = self.socket(id) {
                socket.error = Some(error);
            }
            self.tell(id, Ready::READABLE | Ready::WRITABLE | Ready::HUP | Ready::ERROR);
        }
        if error == Errno::TIMEDOUT {
            peer.into_iter().for_each(|peer| self.ask_for_room(peer));
        }
    }

    /// The program has closed its last value of this end.
    pub(super) fn close_stream(&mut self, id: Id) {
        let now = self.now;
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        let Kind::Stream(stream) = &mut socket.kind else { return };
        let aborts = socket.linger == Some(Duration::ZERO) || !stream.arrived.is_empty();
        if stream.phase != Phase::Open {
            self.sockets.remove(&id);
        } else if aborts {
            self.abort(id);
        } else {
            stream.orphan = true;
            let ends = !stream.write_shut;
            stream.write_shut = true;
            if ends {
                self.send(id, Vec::new(), Carries::End);
            }
            match self.stream(id).is_some_and(|(_, stream)| stream.is_over()) {
                true => drop(self.sockets.remove(&id)),
                false => self.schedule(now + nanos(ORPHAN), Event::Reap(id)),
            }
        }
    }

    /// Gives an end up: what it has sent may still arrive, and then a reset.
    pub(super) fn abort(&mut self, id: Id) {
        let Some((_, stream)) = self.stream(id) else { return };
        stream.orphan = true;
        stream.aborted = true;
        stream.arrived.clear();
        self.send(id, Vec::new(), Carries::Reset);
    }

    /// Forgets an end that was closed long ago, unless it still sends.
    pub(super) fn reap(&mut self, id: Id) {
        let Some((_, stream)) = self.stream(id) else { return };
        match stream.sent.is_empty() {
            true => drop(self.sockets.remove(&id)),
            false => self.schedule(self.now + nanos(ORPHAN), Event::Reap(id)),
        }
    }
}
