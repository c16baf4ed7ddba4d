//! Live data: the counters of each worker as an event stream, the connections, and the dump of all fibers.
//!
//! Each stream reads the counters itself, twice a second, without asking the workers. Between two events its fiber
//! waits for the stop event too, so a graceful shutdown does not wait for the fiber.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use osier::memory;
use osier::sync::Event;
use osier_web::http::{StatusCode, Version};
use osier_web::{Connections, Protocol, Request, Response, sse};
use serde_json::{Value, json};

use super::requests::Requests;
use crate::metrics::fibers::{self, Exclusive, later};
use crate::metrics::guard;

/// The time between two events. Charts move, and the cost is small.
const INTERVAL: Duration = Duration::from_millis(500);

/// The time after which a page reopens an ended stream.
const RECONNECT: Duration = Duration::from_secs(1);

/// The most streams at once.
const STREAMS: usize = 64;

/// The most connections in the table.
const ROWS: usize = 200;

/// The path of the event stream. Its requests are not counted, because a stream lasts as long as somebody watches.
pub const EVENTS: &str = "/live/events";

/// The live data of the site, and its limits.
pub struct LiveData {
    pub requests: Requests,
    for_all: bool,
    began: Instant,
    connections: Arc<Mutex<Vec<Connections>>>,
    streams: AtomicUsize,
    is_listing: AtomicBool,
    stopped: Event,
}

impl LiveData {
    /// Prepares live data. `connections` holds the connections of all listeners.
    pub fn new(for_all: bool, workers: usize, connections: Arc<Mutex<Vec<Connections>>>) -> LiveData {
        LiveData {
            requests: Requests::new(workers),
            for_all,
            began: Instant::now(),
            connections,
            streams: AtomicUsize::new(0),
            is_listing: AtomicBool::new(false),
            stopped: Event::manual(),
        }
    }

    /// Ends all event streams.
    pub fn stop(&self) {
        self.stopped.set();
    }

    /// Sends a dump of all fibers, by the places where they wait.
    ///
    /// # Suspends
    /// Until all workers have answered, for a second at most.
    pub fn fibers(&self, request: &Request<'_>) -> Response {
        if let Err(refusal) = guard::check(request, self.for_all) {
            return refusal;
        }
        fibers::page()
    }

    /// Sends the first [`ROWS`] connections:
    /// `{"all": count, "rows": [[peer, protocol, tls, state, streams, age in ms]]}`. Only one list is made at a time.
    ///
    /// # Suspends
    /// Until each worker has answered.
    pub fn list(&self, request: &Request<'_>) -> Response {
        if let Err(refusal) = guard::check(request, self.for_all) {
            return refusal;
        }
        let Some(_exclusive) = Exclusive::take(&self.is_listing) else {
            return later("another list of the connections is being made; try again\n");
        };
        let connections = self.connections().clone();
        let mut listed = Vec::new();
        for one in &connections {
            listed.extend(one.list(ROWS - listed.len()));
        }
        let rows = listed.iter().map(|one| {
            json!([
                one.peer.to_string(),
                one.protocol.name(),
                one.protocol.tls(),
                one.state.as_str(),
                one.streams,
                one.age.as_millis() as u64,
            ])
        });
        let rows: Vec<_> = rows.collect();
        let all: usize = connections.iter().map(Connections::count).sum();
        Response::new(StatusCode::OK)
            .content_type("application/json")
            .header("cache-control", "no-store")
            .body(json!({ "all": all, "rows": rows }).to_string())
    }

    /// The data of one event. `protocol` is that of the viewer's connection.
    fn sample(&self, protocol: &str) -> Value {
        let connections = self.connections().clone();
        let workers = osier::inspect::metrics().map_or_else(Vec::new, |metrics| metrics.workers);
        let workers = workers.iter().enumerate().map(|(index, worker)| {
            let latency = self.requests.of_worker(index);
            json!({
                "name": worker.name,
                "turns": worker.turns,
                "fibers": worker.fibers,
                "connections": connections.iter().map(|one| one.of_worker(index)).sum::<usize>(),
                "requests": latency.iter().sum::<u64>(),
                "latency": latency,
            })
        });
        let accounts = memory::accounts().into_iter().filter(|(_, bytes)| *bytes > 0);
        let accounts: Vec<Value> = accounts
            .map(|(account, bytes)| json!([account.name(), bytes]))
            .collect();
        let memory = json!({ "held": memory::held(), "limit": memory::limit(), "accounts": accounts });
        let protocols = Protocol::ALL.iter().copied().filter_map(|protocol| {
            let count: usize = connections.iter().map(|one| one.of_protocol(protocol)).sum();
            (count > 0).then(|| json!([protocol.name(), protocol.tls(), count]))
        });
        let protocols: Vec<_> = protocols.collect();
        json!({ "memory": memory, "protocol": protocol, "protocols": protocols, "at": self.began.elapsed().as_millis() as u64, "workers": workers.collect::<Vec<_>>() })
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<Connections>> {
        self.connections.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Streams the counters until the client leaves or the server stops.
pub fn events(live: &Arc<LiveData>, request: &Request<'_>) -> Response {
    if let Err(refusal) = guard::check(request, live.for_all) {
        return refusal;
    }
    let Some(permit) = StreamPermit::take(live) else {
        return later("too many viewers; try again later\n");
    };
    let protocol = protocol(request);
    sse::stream(move |sink| {
        sink.send(sse::Event::empty().retry(RECONNECT))?;
        loop {
            sink.send(sse::Event::new(permit.0.sample(&protocol).to_string()))?;
            if permit.0.stopped.wait_timeout(INTERVAL) {
                return Ok(());
            }
        }
    })
}

/// The protocol of a connection in words: `HTTP/2, TLSv1.3`.
fn protocol(request: &Request<'_>) -> String {
    let http = match request.version() {
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_10 => "HTTP/1.0",
        _ => "HTTP/1.1",
    };
    let tls = request.tls().and_then(|tls| tls.version());
    let tls = tls.map_or("no TLS", |version| version.as_str());
    format!("{http}, {tls}")
}

/// The right to one of the [`STREAMS`] streams.
struct StreamPermit(Arc<LiveData>);

impl StreamPermit {
    fn take(live: &Arc<LiveData>) -> Option<StreamPermit> {
        let permit = StreamPermit(live.clone());
        (live.streams.fetch_add(1, Ordering::Relaxed) < STREAMS).then_some(permit)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
