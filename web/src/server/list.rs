//! The list of a server's connections.
//!
//! A connection belongs to one worker, so a fiber on each worker reads those that are there. Connections keep nothing for the list but the
//! time at which they began and the number of their streams.

use std::sync::Arc;
use std::time::Duration;

use crate::conn::listed::ConnectionInfo;
use crate::conn::serve::Local;
use crate::conn::server_state::ServerState;
use crate::server::accept::on_worker;

/// The time within which a worker must answer. One that is stuck leaves its connections out of the list.
const PATIENCE: Duration = Duration::from_millis(500);

/// Lists at most `most` connections of a server.
///
/// # Suspends
///
/// Until each worker has answered.
pub(super) fn connections(server: &Arc<ServerState>, most: usize) -> Vec<ConnectionInfo> {
    let mut listed = Vec::new();
    for index in (0..server.connections.len()).filter(|index| server.count(*index) > 0) {
        let room = most - listed.len();
        if room == 0 {
            break;
        }
        let server = Arc::clone(server);
        let reading = on_worker(index, "list connections", move || of_this_worker(&server, room));
        if let Ok(Ok(of_worker)) = osier::timeout(PATIENCE, || reading.join()) {
            listed.extend(of_worker);
        }
    }
    listed
}

fn of_this_worker(server: &Arc<ServerState>, most: usize) -> Vec<ConnectionInfo> {
    let links = Local::find(server).map_or(Vec::new(), |local| local.worker.links());
    links.iter().take(most).map(|link| link.info()).collect()
}
