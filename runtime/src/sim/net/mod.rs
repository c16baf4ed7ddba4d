//! The simulated network: hosts, the links between them, and the packets in flight.
//!
//! ```text
//!   Endpoint (a host's end) ─▶ Net ─▶ events, by time ─▶ the other end ─▶ ready, for the sockets' table
//! ```
//!
//! Nothing here waits or runs a waker. A call changes the state at once and leaves its effects as events in `events`, or as news in
//! `ready`, which the driver hands to the table of sockets between two fibers. `stream.rs` has connections, `datagram.rs` UDP, and
//! `disks.rs` the faults of files.
//!
//! # Protocol
//! One thread uses a `Net`. The lock around it only makes sockets `Send` and `Sync`, as the system's sockets are. The lock is never held
//! across a call out of this module.

mod datagram;
mod disks;
mod stream;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use osier_poll::{Interest, Ready, Token};
use rustix::io::Errno;

use super::choices::{About, Choices};
use super::disk::Disk;
use super::fault::{Faults, Link};
use super::trace::Trace;
use datagram::Datagrams;
use stream::{Phase, Stream};

pub(crate) use disks::FileFault;

/// The number of a socket, never used again.
pub(crate) type Id = u64;

/// The first retransmission timeout; it doubles each time.
const RETRANSMIT: Duration = Duration::from_millis(200);
/// The longest retransmission timeout.
const RETRANSMIT_MAX: Duration = Duration::from_secs(120);
/// The default of [`Faults`]' `partition_time`.
const PARTITION: Duration = Duration::from_secs(10);
/// The time of day at the beginning of every run: the first second of 2026.
const BEGINNING: Duration = Duration::from_secs(1_767_225_600);
/// The owner of a connection that waits to be accepted.
const NOBODY: usize = usize::MAX;
/// The first port that the system gives out.
const EPHEMERAL: u16 = 49152;

pub(crate) struct Net {
    /// The beginning on the clocks of all hosts.
    pub(crate) start: Instant,
    /// The time since the beginning, in nanoseconds.
    pub(crate) now: u64,
    pub(crate) choices: Choices,
    pub(crate) trace: Trace,
    pub(crate) faults: Faults,
    pub(crate) link: Link,
    pub(crate) hosts: Vec<Host>,
    disks: Vec<Disk>,
    sockets: BTreeMap<Id, Socket>,
    next_id: Id,
    events: BinaryHeap<Reverse<Scheduled>>,
    next_event: u64,
    /// News for the sockets' table.
    pub(crate) ready: VecDeque<(Token, Ready)>,
    links: BTreeMap<(usize, usize), Link>,
    /// The links that are cut, with the time of their repair if they have one.
    cuts: BTreeMap<(usize, usize), Option<u64>>,
    /// The sockets behind stand-ins, by the system's numbers of the stand-ins.
    stand_ins: BTreeMap<u64, Id>,
}

/// A host as the network sees it.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) ip: IpAddr,
    pub(crate) up: bool,
    /// The number of its disk, which other hosts may share.
    disk: usize,
    /// Counts the starts and ends of its program, so it is odd while one runs. Only that one may use the disk.
    pub(crate) life: u32,
    /// The lead of its clock, in nanoseconds.
    pub(crate) ahead: u64,
    next_port: u16,
    listeners: BTreeMap<u16, Vec<Id>>,
    datagrams: BTreeMap<u16, Vec<Id>>,
}

struct Socket {
    /// The host whose address it has.
    host: usize,
    /// The values that stand for it, with the host whose program has each: duplicates share it, and may be with another host.
    values: Vec<(u32, usize)>,
    /// The number of the next value.
    next_value: u32,
    /// The registrations: value, token and interest.
    registered: Vec<(u32, Token, Interest)>,
    error: Option<Errno>,
    linger: Option<Duration>,
    kind: Kind,
}

enum Kind {
    Fresh,
    Listener(Listener),
    Stream(Box<Stream>),
    Datagrams(Datagrams),
}

struct Listener {
    addr: SocketAddr,
    shares: bool,
    backlog: VecDeque<Id>,
}

/// An event with its time. Events of one time happen in the order of their numbers.
struct Scheduled {
    at: u64,
    number: u64,
    event: Event,
}

enum Event {
    /// A client asks for a connection. The number counts its earlier attempts.
    Ask(Id, u32),
    /// The answer to a request for a connection: the server's end, or none.
    Answer(Id, Option<Id>),
    /// The first segment of this sender arrives.
    Arrive(Id),
    /// This sender learns that so many bytes were read. The last number counts the earlier attempts.
    Credit(Id, usize, u32),
    /// The answer to a segment for an end that is gone.
    Reset(Id),
    /// This sender asks for room. The number counts its earlier attempts.
    Probe(Id, u32),
    Reap(Id),
    Datagram {
        sender: Id,
        host: usize,
        from: SocketAddr,
        to: SocketAddr,
        bytes: Vec<u8>,
    },
    /// The answer of this host to a datagram for a port that nobody has.
    Unreachable(Id, usize),
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Scheduled) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl Net {
    pub(crate) fn new(choices: Choices, trace: Trace, link: Link, faults: Faults) -> Net {
        Net {
            start: Instant::now(),
            now: 0,
            choices,
            trace,
            faults,
            link,
            hosts: Vec::new(),
            disks: Vec::new(),
            sockets: BTreeMap::new(),
            next_id: 1,
            events: BinaryHeap::new(),
            next_event: 0,
            ready: VecDeque::new(),
            links: BTreeMap::new(),
            cuts: BTreeMap::new(),
            stand_ins: BTreeMap::new(),
        }
    }

    /// Adds a host with a disk of its own, or with that of another host.
    pub(crate) fn add_host(&mut self, name: &str, ip: Option<IpAddr>, disk: Option<usize>) -> usize {
        let number = self.hosts.len();
        let [high, low] = u16::try_from(number + 1).expect("a world has few hosts").to_be_bytes();
        self.hosts.push(Host {
            name: name.to_owned(),
            ip: ip.unwrap_or(Ipv4Addr::new(10, 0, high, low).into()),
            up: true,
            disk: 0,
            life: 0,
            ahead: 0,
            next_port: EPHEMERAL,
            listeners: BTreeMap::new(),
            datagrams: BTreeMap::new(),
        });
        self.add_disk(number, disk);
        number
    }

    /// Writes a line of the trace.
    pub(crate) fn note(&mut self, host: usize, what: fmt::Arguments<'_>) {
        let name = self.hosts.get(host).map_or("", |host| &host.name);
        self.trace.line(self.now, name, what);
    }

    fn schedule(&mut self, at: u64, event: Event) {
        let number = self.next_event;
        self.next_event += 1;
        self.events.push(Reverse(Scheduled { at, number, event }));
    }

    /// The time of the next event.
    pub(crate) fn next_event(&self) -> Option<u64> {
        self.events.peek().map(|Reverse(next)| next.at)
    }

    /// Handles the next event if it is due.
    pub(crate) fn happen(&mut self) -> bool {
        if self.next_event().is_none_or(|at| at > self.now) {
            return false;
        }
        let Reverse(next) = self.events.pop().expect("it was looked at");
        match next.event {
            Event::Ask(client, attempt) => self.ask(client, attempt),
            Event::Answer(client, server) => self.answer(client, server),
            Event::Arrive(sender) => self.arrive(sender),
            Event::Credit(sender, count, attempt) => self.credit(sender, count, attempt),
            Event::Reset(sender) => self.reset_arrives(sender),
            Event::Probe(sender, attempt) => self.probe(sender, attempt),
            Event::Reap(socket) => self.reap(socket),
            Event::Datagram {
                sender,
                host,
                from,
                to,
                bytes,
            } => self.datagram(sender, host, from, to, bytes),
            Event::Unreachable(socket, from) => self.unreachable(socket, from),
        }
        true
    }

    /// Reports readiness of a socket to the table of sockets, if that is registered for it.
    fn tell(&mut self, id: Id, news: Ready) {
        let Some(socket) = self.sockets.get(&id) else { return };
        for &(_, token, interest) in &socket.registered {
            let reads = interest.contains(Interest::READABLE) && news.intersects(Ready::READABLE | Ready::READ_CLOSED);
            let writes = interest.contains(Interest::WRITABLE) && news.contains(Ready::WRITABLE);
            if reads || writes || news.intersects(Ready::HUP | Ready::ERROR) {
                self.ready.push_back((token, news));
            }
        }
    }

    /// The link from one host to another.
    fn link(&self, from: usize, to: usize) -> Link {
        match self.links.get(&(from, to)) {
            Some(link) => link.clone(),
            None if from == to => Link::loopback(),
            None => self.link.clone(),
        }
    }

    /// The time of a packet on a link, without the time for its length.
    fn latency(&mut self, link: &Link) -> u64 {
        /// The number of different latencies.
        const STEPS: u32 = 16;
        let part = u64::from(self.choices.draw(About::Latency, STEPS));
        let jitter = nanos(link.jitter) / u64::from(STEPS) * part;
        nanos(link.latency) + jitter
    }

    fn latency_between(&mut self, from: usize, to: usize) -> u64 {
        let link = self.link(from, to);
        self.latency(&link)
    }

    pub(crate) fn set_link(&mut self, from: usize, to: usize, link: Link) {
        self.links.insert((from, to), link);
    }

    /// Cuts the link from one host to another, until it is healed.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        self.cuts.insert((from, to), None);
        self.ask_for_room_between(|host, peer| (host, peer) == (from, to) || (peer, host) == (from, to));
    }

    pub(crate) fn heal(&mut self, from: usize, to: usize) {
        self.cuts.remove(&(from, to));
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        match self.cuts.get(&(from, to)) {
            None => false,
            Some(None) => true,
            Some(Some(until)) => self.now < *until,
        }
    }

    /// Whether a packet that arrives now gets lost: the link is cut, a random fault cuts it now, or the host is down.
    fn is_lost(&mut self, from: usize, to: usize) -> bool {
        if !self.hosts[to].up {
            return true;
        }
        if from == to {
            return false;
        }
        let times = self.faults.partition;
        if !self.is_cut(from, to) && self.choices.once_in(About::Fault, times) {
            let longest = match self.faults.partition_time {
                Duration::ZERO => PARTITION,
                longest => longest,
            };
            let part = u64::from(self.choices.draw(About::Fault, 16)) + 1;
            let until = self.now + nanos(longest) / 16 * part;
            for way in [(from, to), (to, from)] {
                // A cut that the program has made ends when the program says so.
                let cut = self.cuts.entry(way).or_insert(Some(until));
                if cut.is_some() {
                    *cut = Some(until);
                }
            }
            let name = self.hosts[to].name.clone();
            self.note(
                from,
                format_args!("fault: cut off from {name} for {} ns", until - self.now),
            );
        }
        self.is_cut(from, to)
    }

    fn host_of(&self, from: usize, ip: IpAddr) -> Option<usize> {
        match ip.to_canonical().is_loopback() || ip.is_unspecified() {
            true => Some(from),
            false => self.hosts.iter().position(|host| host.ip == ip.to_canonical()),
        }
    }

    /// Resolves the name of a host.
    pub(crate) fn look_up(&mut self, host: usize, name: &str) -> (Duration, io::Result<Vec<IpAddr>>) {
        let latency = Duration::from_nanos(self.latency_between(host, host));
        if name == "localhost" {
            return (latency, Ok(vec![Ipv4Addr::LOCALHOST.into()]));
        }
        let found = self.hosts.iter().find(|host| host.name == name).map(|host| host.ip);
        let unknown = || {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("no simulated host has the name {name:?}"),
            )
        };
        (latency, found.map(|ip| vec![ip]).ok_or_else(unknown))
    }

    fn port(&mut self, host: usize) -> u16 {
        let host = &mut self.hosts[host];
        loop {
            let port = host.next_port;
            host.next_port = port.checked_add(1).unwrap_or(EPHEMERAL);
            if !host.listeners.contains_key(&port) && !host.datagrams.contains_key(&port) {
                return port;
            }
        }
    }

    /// The address of a host's end towards another address.
    fn local_ip(&self, host: usize, towards: IpAddr) -> IpAddr {
        match towards.to_canonical().is_loopback() {
            true => towards,
            false => self.hosts[host].ip,
        }
    }

    /// Checks that a host may bind to an address.
    fn bindable(&self, host: usize, addr: &SocketAddr) -> io::Result<()> {
        let ip = addr.ip().to_canonical();
        match ip.is_unspecified() || ip.is_loopback() || ip == self.hosts[host].ip {
            true => Ok(()),
            false => Err(Errno::ADDRNOTAVAIL.into()),
        }
    }

    /// Adds a socket of a host. `owner` is the host whose program has it.
    fn add(&mut self, host: usize, owner: usize, kind: Kind) -> Id {
        let id = self.next_id;
        self.next_id += 1;
        let socket = Socket {
            host,
            values: vec![(0, owner)],
            next_value: 1,
            registered: Vec::new(),
            error: None,
            linger: None,
            kind,
        };
        self.sockets.insert(id, socket);
        id
    }

    pub(crate) fn add_stream(&mut self, host: usize) -> Id {
        self.add(host, host, Kind::Fresh)
    }

    fn socket(&mut self, id: Id) -> io::Result<&mut Socket> {
        // A crash has taken the socket, and the host unwinds.
        self.sockets.get_mut(&id).ok_or_else(|| Errno::NETDOWN.into())
    }

    /// Fails if the value was taken from its program, which has died.
    pub(crate) fn check_open(&mut self, id: Id, value: u32) -> io::Result<()> {
        match self.socket(id)?.has(value) {
            true => Ok(()),
            false => Err(Errno::NETDOWN.into()),
        }
    }

    /// The time on the clock of a host.
    pub(crate) fn host_now(&self, host: usize) -> Instant {
        self.start + Duration::from_nanos(self.now + self.hosts[host].ahead)
    }

    /// The time of day at a host.
    pub(crate) fn system_now(&self, host: usize) -> SystemTime {
        SystemTime::UNIX_EPOCH + BEGINNING + Duration::from_nanos(self.now + self.hosts[host].ahead)
    }

    pub(crate) fn register(&mut self, id: Id, value: u32, token: Token, interest: Interest) -> io::Result<()> {
        let socket = self.socket(id)?;
        socket.registered.retain(|&(other, ..)| other != value);
        socket.registered.push((value, token, interest));
        let news = self.readiness(id);
        self.tell(id, news);
        Ok(())
    }

    /// The readiness of a socket.
    fn readiness(&self, id: Id) -> Ready {
        let Some(socket) = self.sockets.get(&id) else {
            return Ready::HUP;
        };
        let mut ready = match &socket.kind {
            Kind::Fresh => Ready::HUP,
            Kind::Listener(listener) if listener.backlog.is_empty() => Ready::NONE,
            Kind::Listener(_) => Ready::READABLE,
            Kind::Stream(stream) => stream.readiness(),
            Kind::Datagrams(datagrams) => datagrams.readiness(),
        };
        if socket.error.is_some() {
            ready |= Ready::ERROR | Ready::READABLE | Ready::WRITABLE;
        }
        ready
    }

    pub(crate) fn is_readable(&self, id: Id) -> bool {
        self.readiness(id)
            .intersects(Ready::READABLE | Ready::READ_CLOSED | Ready::HUP | Ready::ERROR)
    }

    pub(crate) fn is_writable(&self, id: Id) -> bool {
        self.readiness(id)
            .intersects(Ready::WRITABLE | Ready::HUP | Ready::ERROR)
    }

    /// Makes another value for the socket, for the program of a host, and returns its number. The first one's is 0.
    pub(crate) fn duplicate(&mut self, id: Id, owner: usize) -> u32 {
        let Ok(socket) = self.socket(id) else { return 0 };
        let value = socket.next_value;
        socket.next_value += 1;
        socket.values.push((value, owner));
        value
    }

    /// Notes which socket a stand-in is for.
    pub(crate) fn note_stand_in(&mut self, stand_in: u64, id: Id) {
        self.stand_ins.insert(stand_in, id);
    }

    /// Makes another value for the socket behind a stand-in, unless it is closed.
    pub(crate) fn behind(&mut self, stand_in: u64, owner: usize) -> Option<(Id, u32)> {
        let id = *self.stand_ins.get(&stand_in)?;
        let is_open = !self.sockets.get(&id)?.values.is_empty();
        is_open.then(|| (id, self.duplicate(id, owner)))
    }

    pub(crate) fn take_error(&mut self, id: Id) -> Option<io::Error> {
        self.socket(id).ok()?.error.take().map(io::Error::from)
    }

    pub(crate) fn set_linger(&mut self, id: Id, linger: Option<Duration>) {
        if let Ok(socket) = self.socket(id) {
            socket.linger = linger;
        }
    }

    pub(crate) fn linger(&self, id: Id) -> Option<Duration> {
        self.sockets.get(&id).and_then(|socket| socket.linger)
    }

    pub(crate) fn local_addr(&self, id: Id) -> io::Result<SocketAddr> {
        match self.sockets.get(&id).map(|socket| &socket.kind) {
            Some(Kind::Listener(listener)) => Ok(listener.addr),
            Some(Kind::Stream(stream)) => Ok(stream.local),
            Some(Kind::Datagrams(datagrams)) => Ok(datagrams.local),
            Some(Kind::Fresh) => Ok((Ipv4Addr::UNSPECIFIED, 0).into()),
            None => Err(Errno::NETDOWN.into()),
        }
    }

    pub(crate) fn peer_addr(&self, id: Id) -> io::Result<SocketAddr> {
        match self.sockets.get(&id).map(|socket| &socket.kind) {
            Some(Kind::Stream(stream)) if stream.phase == Phase::Open => Ok(stream.remote),
            Some(Kind::Datagrams(datagrams)) => datagrams.remote.ok_or_else(|| Errno::NOTCONN.into()),
            _ => Err(Errno::NOTCONN.into()),
        }
    }

    /// Ends one value of the socket, and with the last one the socket.
    pub(crate) fn close(&mut self, id: Id, value: u32) {
        let Ok(socket) = self.socket(id) else { return };
        if !socket.has(value) {
            // Its system has closed it when its program died.
            return;
        }
        socket.registered.retain(|&(other, ..)| other != value);
        socket.values.retain(|&(other, _)| other != value);
        if socket.values.is_empty() {
            self.close_last(id);
        }
    }

    fn close_last(&mut self, id: Id) {
        let Ok(socket) = self.socket(id) else { return };
        let host = socket.host;
        match &mut socket.kind {
            Kind::Fresh => drop(self.sockets.remove(&id)),
            Kind::Listener(listener) => {
                let (port, backlog) = (listener.addr.port(), std::mem::take(&mut listener.backlog));
                self.sockets.remove(&id);
                forget(&mut self.hosts[host].listeners, port, id);
                backlog.into_iter().for_each(|waiting| self.abort(waiting));
            }
            Kind::Stream(_) => self.close_stream(id),
            Kind::Datagrams(datagrams) => {
                let port = datagrams.local.port();
                self.sockets.remove(&id);
                forget(&mut self.hosts[host].datagrams, port, id);
            }
        }
    }

    /// The host loses its power: its sockets are gone, and no peer is notified.
    pub(crate) fn crash(&mut self, host: usize) {
        self.hosts[host].up = false;
        self.sockets.retain(|_, socket| socket.host != host);
        // Sockets of other hosts that its program had.
        self.kill(host);
        self.hosts[host].listeners.clear();
        self.hosts[host].datagrams.clear();
        self.ask_for_room_between(|_, peer| peer == host);
    }

    /// The host's program dies, and its system closes its files and the sockets that no other program has.
    pub(crate) fn kill(&mut self, host: usize) {
        self.close_files(host);
        let is_open = |(&id, socket): (&Id, &Socket)| socket.belongs_to(host).then_some(id);
        let open: Vec<Id> = self.sockets.iter().filter_map(is_open).collect();
        for id in open {
            if let Ok(socket) = self.socket(id) {
                socket.values.retain(|&(_, owner)| owner != host);
                let values = &socket.values;
                socket
                    .registered
                    .retain(|(value, ..)| values.iter().any(|(other, _)| other == value));
                if values.is_empty() {
                    self.close_last(id);
                }
            }
        }
    }

    /// The number of sockets that the host's program has open.
    pub(crate) fn open_sockets(&self, host: usize) -> usize {
        self.sockets.values().filter(|socket| socket.belongs_to(host)).count()
    }
}

impl Socket {
    fn has(&self, value: u32) -> bool {
        self.values.iter().any(|&(other, _)| other == value)
    }

    /// Whether the program of a host has the socket.
    fn belongs_to(&self, host: usize) -> bool {
        self.values.iter().any(|&(_, owner)| owner == host)
    }
}

/// Removes a socket from a host's ports.
fn forget(ports: &mut BTreeMap<u16, Vec<Id>>, port: u16, id: Id) {
    if let Some(sockets) = ports.get_mut(&port) {
        sockets.retain(|&other| other != id);
        if sockets.is_empty() {
            ports.remove(&port);
        }
    }
}

/// Whether a socket bound to `bound` receives packets for `to`.
fn takes(bound: IpAddr, to: IpAddr) -> bool {
    bound.is_unspecified() || bound.to_canonical() == to.to_canonical()
}

/// The retransmission timeout after so many losses.
fn again_after(times: u32) -> u64 {
    let doubled = nanos(RETRANSMIT).saturating_mul(1 << times.min(20));
    doubled.min(nanos(RETRANSMIT_MAX))
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
