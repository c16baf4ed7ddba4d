//! A connection that has left HTTP: bytes in both directions, each on a fiber, until both have ended.
//!
//! The end of one direction is passed on as such (a half-close), and the other goes on. A failure of either side, or too
//! long a time without a byte in either direction, ends both; that time is shorter once one direction has ended, as nobody
//! can tell an end of sending from a peer that has left until something is sent to it.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::upstream::Lease;
use crate::{Stream, Upgraded};

/// Bytes moved at once. Small, as a tunnel is idle most of the time and has two of these.
const PIECE: usize = 8 << 10;

/// The longest times without a byte in either direction.
#[derive(Clone, Copy)]
pub(super) struct Idle {
    /// As long as both are open.
    pub(super) both: Duration,
    /// Once one has ended, from then on, if that is less. Also how often the other looks whether it has, but for [`LOOK`].
    pub(super) half_closed: Duration,
}

/// A direction does not look more often than this whether the other has ended.
const LOOK: Duration = Duration::from_millis(10);

struct Tunnel<'t> {
    client: &'t Stream,
    backend: &'t Stream,
    idle: Idle,
    /// When a byte, or the end of one direction, was last passed on.
    moved: Cell<Instant>,
    half_closed: Cell<bool>,
}

/// Runs until both directions have ended. `received` is what the backend has sent behind its 101.
///
/// # Suspends
///
/// Always.
pub(super) fn run(client: &mut Upgraded, lease: &Lease, received: &[u8], idle: Idle) {
    let early = client.buffered().to_vec();
    let tunnel = Tunnel {
        client: client.stream(),
        backend: lease.stream(),
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
    fn carry(&self, from: &Stream, to: &Stream, first: &[u8]) {
        if self.copy(from, to, first).is_ok() {
            let _ = to.shutdown(Shutdown::Write);
            self.half_closed.set(true);
            // The shorter time begins here: earlier silence was within the longer one.
            self.moved.set(osier::time::now());
        } else {
            // The other direction meets the end of both at its next call.
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        }
    }

    fn copy(&self, mut from: &Stream, mut to: &Stream, first: &[u8]) -> io::Result<()> {
        to.write_all(first)?;
        let mut piece = vec![0; PIECE];
        loop {
            let idle = match self.half_closed.get() {
                true => self.idle.both.min(self.idle.half_closed),
                false => self.idle.both,
            };
            let still = idle.saturating_sub(osier::time::now().saturating_duration_since(self.moved.get()));
            if still.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            from.set_read_timeout(Some(still.min(self.idle.half_closed.max(LOOK))))?;
            match from.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    self.moved.set(osier::time::coarse_now());
                    to.write_all(&piece[..count])?;
                }
                // Perhaps the other direction is not idle.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => return Err(error),
            }
        }
    }
}
