//! A connection as its worker sees it: what one fiber does with it, and what others may ask.

use std::cell::Cell;
use std::fmt;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use osier::memory::Account;
use osier::net::{PackedAddr, Stream};
use rustix::net::RecvFlags;

use crate::ClientNetwork;
use crate::conn::close::CloseReason;
use crate::conn::listed::{ConnectionInfo, ConnectionState};
use crate::conn::log::record::{Level, Record};
use crate::conn::protocol::Protocol;
use crate::conn::stalled;
use crate::conn::transport::Transport;
#[cfg(feature = "proxy")]
use crate::conn::tunnel::TunnelEnd;
use crate::listen::NOWHERE;

use super::{FRESH_GRACE, LINGER_GRACE, Worker};

/// The memory of a connection at rest: its box, its slot, its entry in the table of sockets, its link.
const CONNECTION_BYTES: usize = 400;

/// The memory of a TLS session at rest.
const TLS_BYTES: usize = 1400;

/// A connection as its worker sees it. It is small, because there is one for each idle client.
pub(crate) struct Link {
    pub(crate) transport: Transport,
    pub(crate) worker: Rc<Worker>,
    /// The client's address, marked if a balancer has named it. Until the PROXY header has arrived it is the balancer's.
    pub(super) peer: PackedAddr,
    pub(super) phase: Cell<Phase>,
    pub(super) protocol: Cell<Protocol>,
    /// Streams of HTTP/2 that have begun and not ended.
    pub(super) streams: Cell<u16>,
    /// When it began to wait for a request, in the time of [`Worker::now`].
    pub(super) idle_since: Cell<Millis>,
    pub(super) ending: Cell<Ending>,
    /// When it began, in that time.
    pub(super) began: u32,
    /// Index in `Worker::links`. Only the owner of that list writes it.
    pub(super) place: Cell<u32>,
}

impl Link {
    /// Changes what the accounts have for the connection.
    pub(super) fn charged(&self, change: fn(Account, usize)) {
        change(Account::CONNECTIONS, CONNECTION_BYTES);
        if self.transport.plain().is_none() {
            change(Account::TLS, TLS_BYTES);
        }
    }

    #[inline]
    pub(crate) fn socket(&self) -> &Stream {
        self.transport.socket()
    }

    /// Counts the connection for another protocol.
    pub(crate) fn speaks(&self, protocol: Protocol) {
        let before = self.protocol.replace(protocol);
        self.worker.count_protocol(before).fetch_sub(1, Ordering::Relaxed);
        self.worker.count_protocol(protocol).fetch_add(1, Ordering::Relaxed);
    }

    /// Marks the beginning of a burst.
    #[inline]
    pub(crate) fn begin(&self) {
        let before = self.phase.replace(Phase::Busy);
        let age = match before {
            Phase::Fresh => self.idle_since.get().until(self.worker.now()),
            _ => 0,
        };
        self.worker.age.set(age);
    }

    /// Marks the end of a burst.
    #[inline]
    pub(crate) fn end(&self) {
        self.phase.set(Phase::Other);
    }

    /// Marks the end of a burst behind which the connection closes for `reason`, unless an eviction has ended it. Returns why it closes.
    pub(crate) fn end_for(&self, reason: CloseReason) -> CloseReason {
        let is_evicted = self.is_evicted();
        self.end();
        match is_evicted {
            true => CloseReason::Evicted,
            false => reason,
        }
    }

    /// Marks a long wait of the burst for bytes of a body, which has lasted for `waited` already, until the drop of the result.
    pub(crate) fn awaits_body(&self, waited: Duration) -> AwaitsBody<'_> {
        if self.phase.get() == Phase::Busy {
            self.phase.set(Phase::AwaitsBody);
            let begun = self.worker.now().wrapping_sub(waited.as_millis() as u32);
            self.idle_since.set(Millis::of(begun));
        }
        AwaitsBody(self)
    }

    /// Whether its burst has waited for bytes of a body for [`STALLED_AFTER`](stalled::STALLED_AFTER) in vain.
    pub(super) fn is_silent(&self) -> bool {
        let waited = u128::from(self.idle_since.get().until(self.worker.now()));
        self.phase.get() == Phase::AwaitsBody && waited >= stalled::STALLED_AFTER.as_millis() && !self.has_arrived()
    }

    /// Whether bytes or the end have arrived. While its worker was busy, the burst had no turn to read them, and the poller was not asked.
    fn has_arrived(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(self.socket(), &mut [0], flags).is_ok()
    }

    /// Marks the beginning of a rest, if it does not rest already. Returns how long it has rested.
    #[inline]
    pub(crate) fn rest(&self) -> Duration {
        let now = self.worker.now();
        if self.phase.get().is_idle() {
            return Duration::from_millis(u64::from(self.idle_since.get().until(now)));
        }
        self.phase.set(Phase::Resting);
        self.idle_since.set(Millis::of(now));
        Duration::ZERO
    }

    /// Goes on with the rest that a burst without a request has interrupted.
    pub(crate) fn rests_on(&self) {
        self.phase.set(Phase::Resting);
    }

    /// Marks the beginning of a rest of a connection whose requests come on streams. A drain tells it by the event of the shutdown.
    #[cfg(feature = "h2")]
    pub(crate) fn rest_without_streams(&self) {
        self.phase.set(Phase::WithoutStreams);
        self.idle_since.set(Millis::of(self.worker.now()));
    }

    /// Whether it rests and its requests come on streams.
    pub(crate) fn is_without_streams(&self) -> bool {
        self.phase.get() == Phase::WithoutStreams
    }

    /// Whether its client has not had [`FRESH_GRACE`] for the first request yet.
    pub(super) fn is_just_accepted(&self) -> bool {
        let idle = self.idle_since.get().until(self.worker.now());
        self.phase.get() == Phase::Fresh && u128::from(idle) < FRESH_GRACE.as_millis()
    }

    /// Whether it may be closed for another: it waits for a request, or has lingered for [`LINGER_GRACE`].
    pub(super) fn is_idle(&self) -> bool {
        let lingered = || u128::from(self.idle_since.get().until(self.worker.now()));
        self.phase.get().is_idle() || self.ending.get() == Ending::Lingers && lingered() >= LINGER_GRACE.as_millis()
    }

    /// Marks the beginning of a lingering close, during which the client is [read on](Link::reads_on).
    pub(crate) fn lingers(&self) {
        self.ending.set(Ending::Lingers);
        self.idle_since.set(Millis::of(self.worker.now()));
    }

    /// Closes the connection, which is idle or [silent](Link::is_silent). A request that has just arrived is still served. The reason of one
    /// that lingers stays.
    pub(crate) fn evict(&self) {
        let before = self.phase.get();
        match self.ending.get() {
            Ending::Lingers => self.ending.set(Ending::IsReadOn),
            _ => self.phase.set(Phase::Ended(CloseReason::Evicted)),
        }
        match before {
            // It closes itself if it finds no request. A shutdown would tell that request that its client has left.
            Phase::Resting | Phase::WithoutStreams => osier::dormant::wake(self.socket()),
            _ => drop(self.socket().shutdown(Shutdown::Read)),
        }
    }

    /// Sets why the connection ends, unless that is set. A request that arrives nevertheless is served, and another reason may
    /// follow.
    pub(crate) fn ends(&self, reason: CloseReason) {
        if !matches!(self.phase.get(), Phase::Ended(_)) {
            self.phase.set(Phase::Ended(reason));
        }
    }

    /// Sets why the connection ends, after it has left HTTP. The first reason counts.
    pub(crate) fn leaves_protocol(&self, reason: CloseReason) {
        if self.phase.get() == Phase::Ended(CloseReason::Upgraded) {
            self.phase.set(Phase::Ended(reason));
        }
    }

    /// Why the server has ended it, after it has left HTTP. Its fibers meet an end or a failure of the socket then that is not the
    /// client's.
    #[cfg(feature = "proxy")]
    pub(crate) fn end_of_tunnel(&self) -> Option<TunnelEnd> {
        match self.phase.get() {
            Phase::Ended(CloseReason::Shutdown) => Some(TunnelEnd::Shutdown),
            Phase::Ended(CloseReason::Evicted) => Some(TunnelEnd::Evicted),
            _ => None,
        }
    }

    /// Ends the socket in both directions. A dormant connection that does not wait for bytes is woken, too.
    pub(crate) fn cut(&self) {
        let _ = self.socket().shutdown(Shutdown::Both);
        osier::dormant::wake(self.socket());
    }

    /// Whether it ends because its place or its memory is needed.
    pub(crate) fn is_evicted(&self) -> bool {
        self.phase.get() == Phase::Ended(CloseReason::Evicted)
    }

    /// Notes that the client is read on during a graceful shutdown: Linux answers its bytes by a reset once both directions are shut down,
    /// and opens no window for them once the reading direction is.
    pub(crate) fn reads_on(&self) {
        self.ending.set(Ending::IsReadOn);
    }

    /// Whether a graceful shutdown leaves its reading direction open, and only wakes it.
    pub(crate) fn is_read_on(&self) -> bool {
        self.ending.get() != Ending::Open
    }

    /// Whether it ends with all that the client should get.
    pub(crate) fn ends_well(&self) -> bool {
        use CloseReason::{Failed, WriteTimeout};
        matches!(self.phase.get(), Phase::Ended(reason) if !matches!(reason, Failed | WriteTimeout))
    }

    /// Notes that the connection now belongs to another process.
    #[cfg(feature = "upgrade")]
    pub(crate) fn moves(&self) {
        self.phase.set(Phase::Ended(CloseReason::Moved));
    }

    /// Whether the connection belongs to another process.
    pub(crate) fn has_moved(&self) -> bool {
        self.phase.get() == Phase::Ended(CloseReason::Moved)
    }

    /// Whether a burst is running.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.phase.get(), Phase::Busy | Phase::AwaitsBody)
    }

    /// Whether it waits for its first request, of which no byte has arrived.
    pub(crate) fn is_fresh(&self) -> bool {
        self.phase.get() == Phase::Fresh
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer.get()
    }

    #[inline]
    pub(crate) fn packed_addr(&self) -> &PackedAddr {
        &self.peer
    }

    /// Notes how many streams have begun and not ended.
    #[cfg(feature = "h2")]
    #[inline]
    pub(crate) fn has_streams(&self, count: usize) {
        self.streams.set(u16::try_from(count).unwrap_or(u16::MAX));
    }

    /// The connection as a list shows it.
    pub(crate) fn info(&self) -> ConnectionInfo {
        let protocol = self.protocol.get();
        let state = match self.phase.get() {
            Phase::Ended(CloseReason::Upgraded) => ConnectionState::Upgraded,
            Phase::Ended(_) => ConnectionState::Closing,
            _ if protocol == Protocol::Handshake => ConnectionState::Handshake,
            Phase::Fresh => ConnectionState::New,
            Phase::Busy | Phase::AwaitsBody => ConnectionState::Serving,
            Phase::Other => ConnectionState::Head,
            Phase::Resting | Phase::WithoutStreams => ConnectionState::Idle,
        };
        let age = stalled::Connection::age(self);
        ConnectionInfo {
            peer: self.peer(),
            protocol,
            state,
            streams: usize::from(self.streams.get()),
            age: Duration::from_millis(u64::from(age)),
        }
    }

    /// The client that [`Clients`] counts this connection for.
    pub(super) fn counted(&self) -> Option<ClientNetwork> {
        let peer = self.peer();
        let is_counted = self.is_proxied() || self.worker.server.is_counted(peer);
        is_counted.then(|| peer.ip().into())
    }

    /// Makes the close of the socket a reset, because its peer takes no bytes. Otherwise the kernel
    /// would keep the unsent ones for minutes.
    #[cold]
    pub(crate) fn abandon(stream: &Stream) {
        let _ = stream.set_linger(Some(Duration::ZERO));
    }

    /// Sets the client's address that a balancer has named. Returns false, sets nothing and logs that,
    /// at the limit of connections of that client.
    pub(crate) fn set_proxied(&self, client: SocketAddr) -> bool {
        let clients = self.worker.server.clients.as_ref();
        if clients.is_some_and(|clients| !clients.admit(client.ip().into())) {
            self.worker.server.complain_of(client);
            return false;
        }
        self.peer.set(client, true);
        true
    }

    /// Logs that the connection is closed, because its trusted peer has sent no good PROXY header.
    #[cold]
    pub(crate) fn complain_of_header(&self, why: &dyn fmt::Display) {
        let peer = self.peer();
        let log = |text| {
            let record = Record::new(Level::Warning, text).of_client(peer, false);
            self.worker.server.log(&record);
        };
        match peer == NOWHERE {
            true => log(format_args!(
                "closed a connection from a trusted peer on a Unix socket: {why}"
            )),
            false => log(format_args!("closed a connection from the trusted peer {peer}: {why}")),
        }
    }

    /// Whether a balancer has named the client.
    pub(crate) fn is_proxied(&self) -> bool {
        self.peer.is_marked()
    }
}

impl stalled::Connection for Link {
    fn unacknowledged(&self) -> usize {
        self.socket().unacknowledged().unwrap_or(0)
    }

    fn age(&self) -> u32 {
        self.worker.now().wrapping_sub(self.began)
    }

    /// Its fiber meets the end of the socket.
    #[cold]
    fn evict_at_once(&self) {
        self.phase.set(Phase::Ended(CloseReason::Evicted));
        Link::abandon(self.socket());
        self.cut();
    }
}

/// A long wait for bytes of a body.
pub(crate) struct AwaitsBody<'l>(&'l Link);

impl AwaitsBody<'_> {
    /// Whether the connection has to end because its memory is needed.
    pub(crate) fn is_evicted(&self) -> bool {
        self.0.is_evicted()
    }
}

impl Drop for AwaitsBody<'_> {
    fn drop(&mut self) {
        if self.0.phase.get() == Phase::AwaitsBody {
            self.0.phase.set(Phase::Busy);
        }
    }
}

/// How a connection at its end is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It is not at its end, or nobody reads it.
    Open,
    /// A graceful shutdown leaves its reading direction open, and only wakes it.
    IsReadOn,
    /// The same, and it lingers since `idle_since`: it may be closed before its time.
    Lingers,
}

/// The state of a connection as other fibers of its worker see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for its first request, of which no byte has arrived.
    Fresh,
    /// A burst is running.
    Busy,
    /// The same, and it has long waited for bytes of a body: since `idle_since`.
    AwaitsBody,
    /// Waits for its next request, of which no byte has arrived.
    Resting,
    /// Speaks HTTP/2, and no stream runs.
    #[cfg_attr(not(feature = "h2"), allow(dead_code, reason = "only HTTP/2 has streams"))]
    WithoutStreams,
    /// Waits for the rest of a head.
    Other,
    /// Lingers, is no longer HTTP, or is being closed.
    Ended(CloseReason),
}

impl Phase {
    pub(super) fn is_idle(self) -> bool {
        matches!(self, Phase::Fresh | Phase::Resting | Phase::WithoutStreams)
    }
}

/// A time in milliseconds, in three bytes. It wraps after four and a half hours.
#[derive(Clone, Copy)]
pub(super) struct Millis([u8; 3]);

impl Millis {
    pub(super) fn of(millis: u32) -> Millis {
        let [low, middle, high, _] = millis.to_le_bytes();
        Millis([low, middle, high])
    }

    /// The milliseconds from this time to `now`.
    pub(super) fn until(self, now: u32) -> u32 {
        let [low, middle, high] = self.0;
        now.wrapping_sub(u32::from_le_bytes([low, middle, high, 0])) & 0xff_ffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_three_bytes_differ_rightly_over_their_end() {
        for (since, now) in [(5, 9), (0xff_fffe, 0x100_0003), (u32::MAX - 1, 3), (7, 7)] {
            assert_eq!(Millis::of(since).until(now), now.wrapping_sub(since));
        }
    }

    #[test]
    fn an_idle_connection_is_small() {
        assert_eq!(size_of::<Phase>(), 1);
        // The sockets of tests are larger, because they may be simulated.
        let sizes = (size_of::<Link>(), size_of::<Transport>());
        assert!(sizes.0 <= sizes.1 + 48, "{sizes:?}");
    }
}
