//! The number of open connections of each client, for a limit per client.
//!
//! A connection is counted when its client is known: at once, or when the PROXY header of a trusted
//! peer has named the client. It is counted until it closes. Clients of Unix sockets are not
//! counted.
//!
//! The table has [`SHARDS`] shards. The lock of a shard is held for one look-up, when a connection
//! opens or closes.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};

use crate::ClientNetwork;
use crate::conn::log::seldom::Seldom;
use crate::lock;

/// Number of shards: more than most machines have workers.
const SHARDS: usize = 16;

/// The counts of all clients that have connections.
pub(crate) struct Clients {
    /// Most connections of one client.
    most: u32,
    /// Lines about the limit.
    said: Seldom,
    hasher: RandomState,
    shards: [Mutex<HashMap<ClientNetwork, u32>>; SHARDS],
}

impl Clients {
    pub(crate) fn new(most: u32) -> Clients {
        Clients {
            most,
            said: Seldom::default(),
            hasher: RandomState::new(),
            shards: Default::default(),
        }
    }

    /// Counts one more connection of `client`. Returns false, and counts nothing, at the limit.
    pub(crate) fn admit(&self, client: ClientNetwork) -> bool {
        let mut shard = self.shard(client);
        let count = shard.entry(client).or_insert(0);
        let is_admitted = *count < self.most;
        *count += u32::from(is_admitted);
        is_admitted
    }

    /// Logs that a connection of `client` is reset, though not for each of them.
    #[cold]
    pub(crate) fn complain(&self, client: SocketAddr, log: impl FnOnce(fmt::Arguments<'_>)) {
        if self.said.is_due() {
            let (most, ip) = (self.most, client.ip());
            log(format_args!(
                "{most} connections of one client, {ip}: further ones are reset ('max_connections_per_client')"
            ));
        }
    }

    /// Counts one more connection of `client`, whatever the limit is.
    #[cfg(feature = "upgrade")]
    pub(crate) fn add(&self, client: ClientNetwork) {
        *self.shard(client).entry(client).or_insert(0) += 1;
    }

    /// Stops counting a connection of `client`.
    pub(crate) fn left(&self, client: ClientNetwork) {
        let mut shard = self.shard(client);
        if let Some(count) = shard.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                shard.remove(&client);
            }
        }
    }

    fn shard(&self, client: ClientNetwork) -> MutexGuard<'_, HashMap<ClientNetwork, u32>> {
        let index = self.hasher.hash_one(client) as usize % SHARDS;
        lock(&self.shards[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn a_client_has_so_many_and_leaves_no_trace() {
        let clients = Clients::new(2);
        let network = |text: &str| ClientNetwork::from(text.parse::<IpAddr>().unwrap());
        let (one, same, other) = (network("2001:db8::1"), network("2001:db8::2"), network("192.0.2.1"));
        assert!(clients.admit(one) && clients.admit(same) && !clients.admit(one));
        assert!(clients.admit(other));
        clients.left(same);
        assert!(clients.admit(one) && !clients.admit(same));
        clients.left(one);
        clients.left(one);
        clients.left(other);
        assert!(clients.shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }
}
