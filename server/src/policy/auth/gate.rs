//! The limit on comparisons of passwords in the process, and the order of those that wait.
//!
//! ```text
//!   same credentials and client ─▶ one of them compares, the others wait for its outcome
//!   ─▶ the lane of the client: as many as run at once ─▶ the line for a processor, in order of arrival ─▶ blocking pool
//! ```
//!
//! A comparison takes a processor for a good part of a second. So few run at once, and requests wait for their turn for [`TURN`] at most. A
//! client has few places in the last line, however many of its requests wait. So one that tries passwords delays the others by a round,
//! and takes [`WAITING_OF_CLIENT`] places from them. If all of [`WAITING`] are taken, a client still has as many places as comparisons run at
//! once: clients that fill the line keep nobody else out of it. These further places are [`WAITING_AT_LAST`]. Clients that fill them, too, are
//! hundreds, and a turn behind them would come after [`TURN`].
//!
//! Lock order: there is one lock. Nothing waits while it is held.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use osier::sync::{Event, OwnedSemaphorePermit, Semaphore};
use osier_web::ClientNetwork;

use super::verified::Key;
use super::{Hash, Verified, locked};

/// The most comparisons that run or wait for their turn, the further ones for the first few of each client, and those of one client. A
/// network that shares one address is one client.
pub const WAITING: usize = 1024;
pub const WAITING_AT_LAST: usize = 1024;
pub const WAITING_OF_CLIENT: usize = 256;
/// The longest wait for a turn.
pub const TURN: Duration = Duration::from_secs(20);

/// A limit on the comparisons of the whole process.
pub struct Gate {
    at_once: usize,
    /// The longest wait for a turn.
    patience: Duration,
    pub permits: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: usize,
    /// One for each client. None is everybody on a Unix socket.
    lanes: HashMap<Option<ClientNetwork>, Lane>,
    /// Those of another client do not wait in this one's lane.
    comparing: HashMap<Shareable, Arc<Shared>>,
}

/// Credentials, and the client that sent them.
type Shareable = (Key, Option<ClientNetwork>);

/// The comparisons of one client.
struct Lane {
    permits: Arc<Semaphore>,
    waiting: usize,
}

/// A comparison whose outcome several requests wait for.
struct Shared {
    right: OnceLock<bool>,
    /// Set when there is an outcome, or nobody compares any more.
    ended: Event,
}

/// A password, and the hashes to compare it with.
pub struct Comparison {
    pub password: String,
    pub hash: Arc<Hash>,
    /// A slower hash. A wrong password is compared with it, too, only to take its time.
    pub slower: Option<Arc<Hash>>,
    /// The cache for a right password.
    pub cache: Option<Arc<Verified>>,
}

impl Comparison {
    fn run(&self) -> bool {
        let right = self.hash.verify(&self.password);
        if let (false, Some(slower)) = (right, &self.slower) {
            slower.verify(&self.password);
        }
        right
    }
}

impl Gate {
    pub fn new(at_once: usize, patience: Duration) -> Gate {
        Gate {
            at_once,
            patience,
            permits: Arc::new(Semaphore::new(at_once)),
            state: Mutex::default(),
        }
    }

    /// How many comparisons run or wait for their turn.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        locked(&self.state).waiting
    }

    /// Compares a password on the blocking pool, unless a request of the client with the same `key` does so already, or one of anybody has put
    /// it into the cache. None if too many requests wait, or this one has waited for too long.
    ///
    /// # Suspends
    /// Until there is an outcome.
    pub fn verify(self: &Arc<Self>, client: Option<IpAddr>, key: Key, comparison: Comparison) -> Option<bool> {
        let until = osier::time::now() + self.patience;
        let client = client.map(ClientNetwork::from);
        let leading = loop {
            match self.lead((key, client)) {
                Ok(leading) => break leading,
                Err(shared) => {
                    if !shared
                        .ended
                        .wait_timeout(until.saturating_duration_since(osier::time::now()))
                    {
                        return None;
                    }
                    if let Some(right) = shared.right.get() {
                        return Some(*right);
                    }
                }
            }
        };
        let is_known = || comparison.cache.as_ref().is_some_and(|verified| verified.has(key));
        if is_known() {
            return Some(true);
        }
        let place = self.enter(client)?;
        let turns = (turn(&place.permits, until)?, turn(&self.permits, until)?);
        // Another client may have sent the same meanwhile.
        if is_known() {
            return Some(true);
        }
        // All of this moves into the work: even if the client leaves, no other comparison begins before the thread is free, and the
        // others get the outcome.
        Some(osier::unblock(move || {
            let right = comparison.run();
            if let (true, Some(verified)) = (right, &comparison.cache) {
                verified.remember(key);
            }
            let _ = leading.shared.right.set(right);
            drop((leading, turns, place));
            right
        }))
    }

    /// Begins a comparison that others may share. An error is the one that is under way.
    fn lead(self: &Arc<Self>, key: Shareable) -> Result<Leading, Arc<Shared>> {
        match locked(&self.state).comparing.entry(key) {
            Entry::Occupied(shared) => Err(Arc::clone(shared.get())),
            Entry::Vacant(vacant) => {
                let shared = Arc::new(Shared {
                    right: OnceLock::new(),
                    ended: Event::manual(),
                });
                vacant.insert(Arc::clone(&shared));
                Ok(Leading {
                    gate: Arc::clone(self),
                    key,
                    shared,
                })
            }
        }
    }

    /// Takes a place in the lane of a client. None if there is none.
    fn enter(self: &Arc<Self>, client: Option<ClientNetwork>) -> Option<Place> {
        let mut state = locked(&self.state);
        let of_client = state.lanes.get(&client).map_or(0, |lane| lane.waiting);
        let most = match of_client < self.at_once {
            true => WAITING + WAITING_AT_LAST,
            false => WAITING,
        };
        if state.waiting >= most || of_client >= WAITING_OF_CLIENT {
            return None;
        }
        state.waiting += 1;
        let lane = state.lanes.entry(client).or_insert_with(|| Lane {
            permits: Arc::new(Semaphore::new(self.at_once)),
            waiting: 0,
        });
        lane.waiting += 1;
        Some(Place {
            permits: Arc::clone(&lane.permits),
            gate: Arc::clone(self),
            client,
        })
    }
}

/// Waits for a permit. None if there is none in time.
fn turn(permits: &Arc<Semaphore>, until: Instant) -> Option<OwnedSemaphorePermit> {
    osier::select! {
        permit = Arc::clone(permits).acquire_owned_async() => Some(permit),
        until until => None,
    }
}

/// The right to compare for all that have the same key. Dropped without an outcome, it passes to another one of them.
struct Leading {
    gate: Arc<Gate>,
    key: Shareable,
    shared: Arc<Shared>,
}

impl Drop for Leading {
    fn drop(&mut self) {
        locked(&self.gate.state).comparing.remove(&self.key);
        self.shared.ended.set();
    }
}

/// A place of a client.
struct Place {
    gate: Arc<Gate>,
    client: Option<ClientNetwork>,
    permits: Arc<Semaphore>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = locked(&self.gate.state);
        state.waiting -= 1;
        if let Entry::Occupied(mut lane) = state.lanes.entry(self.client) {
            lane.get_mut().waiting -= 1;
            if lane.get().waiting == 0 {
                lane.remove();
            }
        }
    }
}
