//! A tunnel: copies bytes in both directions after a change of protocol, one fiber for each direction.
//!
//! The end of one direction is passed on as a half-close, and the other direction continues. A failure of either side, or an idle
//! timeout, ends both. The idle timeout is shorter after a half-close, because a side that has left completely looks the same
//! until something is sent to it.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::Upgraded;
use crate::conn::transport::Transport;
use crate::upstream::Lease;

/// The buffer of one direction, in bytes. Small, as a tunnel is idle most of the time and has two buffers.
const PIECE: usize = 8 << 10;

/// The idle timeouts: the longest times without a byte in either direction.
#[derive(Clone, Copy)]
pub(super) struct Idle {
    /// The timeout while both directions are open.
    pub(super) both: Duration,
    /// The timeout, counted from the half-close, if it is shorter. A direction also checks in this interval whether the other has
    /// ended, but not more often than [`LOOK`].
    pub(super) half_closed: Duration,
}

/// The shortest interval in which a direction checks whether the other has ended.
const LOOK: Duration = Duration::from_millis(10);

struct Tunnel<'t> {
    client: &'t Transport,
    backend: &'t Transport,
    idle: Idle,
    /// When the last byte, or the end of one direction, was passed on.
    moved: Cell<Instant>,
    half_closed: Cell<bool>,
}

/// Runs until both directions have ended. `received` holds the bytes that the backend has sent after its 101.
///
/// # Suspends
///
/// Always.
pub(super) fn run(client: &mut Upgraded, lease: &Lease, received: &[u8], idle: Idle) {
    let early = client.buffered().to_vec();
    let tunnel = Tunnel {
        client: client.transport(),
        backend: lease.transport(),
        idle,
        moved: Cell::new(osier::time::now()),
        half_closed: Cell::new(false),
    };
    osier::scope(|s| {
        s.spawn_local(|| tunnel.carry(tunnel.backend, tunnel.client, received));
        tunnel.carry(tunnel.client, tunnel.backend, &early);
    });
}

impl Tunnel<'_> {
    fn carry(&self, from: &Transport, to: &Transport, first: &[u8]) {
        if self.copy(from, to, first).is_ok() {
            let _ = to.shutdown_write();
            self.half_closed.set(true);
            // The shorter timeout begins here. Earlier silence was within the longer one.
            self.moved.set(osier::time::now());
        } else {
            // The next call of the other direction meets the end of both sockets.
            for end in [from, to] {
                let _ = end.socket().shutdown(Shutdown::Both);
            }
        }
    }

    fn copy(&self, mut from: &Transport, mut to: &Transport, first: &[u8]) -> io::Result<()> {
        to.write_all(first)?;
        to.flush()?;
        let mut piece = vec![0; PIECE];
        loop {
            let idle = match self.half_closed.get() {
                true => self.idle.both.min(self.idle.half_closed),
                false => self.idle.both,
            };
            let still = idle.saturating_sub(osier::time::coarse_now().saturating_duration_since(self.moved.get()));
            if still.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            from.socket()
                .set_read_timeout(Some(still.min(self.idle.half_closed.max(LOOK))))?;
            match from.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    self.moved.set(osier::time::coarse_now());
                    to.write_all(&piece[..count])?;
                    to.flush()?;
                }
                // The other direction may have moved bytes meanwhile.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => return Err(error),
            }
        }
    }
}
