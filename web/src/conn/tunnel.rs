//! The end of a tunnel, as the hook of a server hears of it.
//!
//! A tunnel begins with a response, whose report ([`Served`](crate::Served)) comes then. That report may leave a [`TunnelHook`]
//! for the end, because only the hook knows which parts of the request the end is to be told with.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[cfg(feature = "proxy")]
use crate::conn::close::CloseReason;
use crate::conn::log::record::{Level, Record, how_it_panicked};
use crate::conn::server_state::ServerState;

/// The reason why a tunnel of a proxy has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TunnelEnd {
    /// The client has ended it, or was the first to end its sending direction.
    Client,
    /// The backend has ended it, or was the first to end its sending direction.
    Backend,
    /// The client reset its connection, ended it without TLS's close, or left before the tunnel began.
    ClientFailed,
    /// The backend reset its connection, or did not take bytes in time.
    BackendFailed,
    /// The client did not take bytes in time: [`Timeouts::write`](crate::Timeouts::write).
    WriteTimeout,
    /// Neither side sent a byte within the idle timeout.
    IdleTimeout,
    /// The server was shutting down, or the other process of an upgrade did not take the tunnel.
    Shutdown,
    /// The server needed the memory, and the client took nothing.
    Evicted,
    /// Another process has the tunnel, after an upgrade.
    Moved,
}

impl TunnelEnd {
    /// The reason in lower case, with underscores: `idle_timeout`.
    pub fn as_str(self) -> &'static str {
        match self {
            TunnelEnd::Client => "client",
            TunnelEnd::Backend => "backend",
            TunnelEnd::ClientFailed => "client_failed",
            TunnelEnd::BackendFailed => "backend_failed",
            TunnelEnd::WriteTimeout => "write_timeout",
            TunnelEnd::IdleTimeout => "idle_timeout",
            TunnelEnd::Shutdown => "shutdown",
            TunnelEnd::Evicted => "evicted",
            TunnelEnd::Moved => "moved",
        }
    }

    /// The reason for which the client's connection ends.
    #[cfg(feature = "proxy")]
    pub(crate) fn close_reason(self) -> CloseReason {
        match self {
            TunnelEnd::Client | TunnelEnd::Backend => CloseReason::Upgraded,
            TunnelEnd::ClientFailed => CloseReason::Client,
            TunnelEnd::BackendFailed => CloseReason::Failed,
            TunnelEnd::WriteTimeout => CloseReason::WriteTimeout,
            TunnelEnd::IdleTimeout => CloseReason::IdleTimeout,
            TunnelEnd::Shutdown => CloseReason::Shutdown,
            TunnelEnd::Evicted => CloseReason::Evicted,
            TunnelEnd::Moved => CloseReason::Moved,
        }
    }
}

/// A tunnel of a proxy that has ended. See [`Served::at_tunnel_end`](crate::Served::at_tunnel_end).
pub struct EndedTunnel<'a> {
    pub(crate) backend: &'a str,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) duration: Duration,
    pub(crate) end: TunnelEnd,
}

impl<'a> EndedTunnel<'a> {
    /// The backend's address.
    pub fn backend(&self) -> &'a str {
        self.backend
    }

    /// Bytes of the client that the backend has got.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes of the backend that the client has got.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The time since the response that began the tunnel.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// Why it has ended.
    pub fn end(&self) -> TunnelEnd {
        self.end
    }
}

osier_queue::impl_debug!(EndedTunnel<'a>, self => {
    backend: self.backend,
    received: self.received,
    sent: self.sent,
    duration: self.duration,
    end: self.end,
});

/// The code that hears of the end of a tunnel.
pub(crate) type TunnelHook = Box<dyn FnOnce(&EndedTunnel<'_>) + Send>;

/// The report of a tunnel's end that is still to come. In an upgrade it moves with the tunnel, and stays in this process: the hook hears
/// that the tunnel has moved once the other process has it, and of a later end if the tunnel comes back. Without either, it hears of the
/// shutdown at the drop.
#[cfg_attr(not(feature = "proxy"), allow(dead_code, reason = "only the proxy has tunnels"))]
pub struct TunnelReport {
    /// A lock, because threads share batches of connections.
    hook: Mutex<Option<TunnelHook>>,
    backend: String,
    began: Instant,
    /// Bytes that the backend and the client have got.
    pub(crate) passed: [u64; 2],
    /// The client, and who logs for its connection.
    pub(crate) client: Option<(Arc<ServerState>, SocketAddr, bool)>,
}

#[cfg_attr(not(feature = "proxy"), allow(dead_code, reason = "only the proxy has tunnels"))]
impl TunnelReport {
    pub(crate) fn new(hook: TunnelHook, backend: &str) -> TunnelReport {
        TunnelReport {
            hook: Mutex::new(Some(hook)),
            backend: backend.to_owned(),
            began: osier::time::coarse_now(),
            passed: [0; 2],
            client: None,
        }
    }

    /// Calls the hook.
    pub(crate) fn tell(mut self, end: TunnelEnd) {
        self.tell_once(end);
    }

    fn tell_once(&mut self, end: TunnelEnd) {
        let hook = self.hook.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(hook) = hook.take() else {
            return;
        };
        let ended = EndedTunnel {
            backend: &self.backend,
            received: self.passed[0],
            sent: self.passed[1],
            duration: osier::time::coarse_now().saturating_duration_since(self.began),
            end,
        };
        // A panic must not leave a destructor: the fiber may be unwinding already.
        let told = catch_unwind(AssertUnwindSafe(|| hook(&ended)));
        if let (Err(payload), Some((server, client, is_proxied))) = (told, &self.client) {
            let text = format_args!("the hook at the end of a tunnel {}", how_it_panicked(&*payload));
            server.log(&Record::new(Level::Error, text).of_client(*client, *is_proxied));
        }
    }
}

impl Drop for TunnelReport {
    fn drop(&mut self) {
        self.tell_once(TunnelEnd::Shutdown);
    }
}

osier_queue::impl_debug!(TunnelReport, self => { backend: self.backend, passed: self.passed, .. });
