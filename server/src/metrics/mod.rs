//! `/health`, `/metrics` and `/fibers`, on a listener of their own, for load balancers, Prometheus and `osier top`.
//!
//! ```text
//!   a request's end ─▶ Series of its route (series.rs), by the number in its label (routes.rs) ─┐
//!   a connection's start and end, a reload ─▶ Totals (totals.rs) ──────────────────────────────┤
//!   caches (caches.rs), chats (chats.rs), backends, workers, /proc (process.rs) ────────────────┴▶ page.rs ─▶ text.rs
//! ```
//!
//! One [`Admin`] lives from the start, or from the reload that configures it. Each snapshot has a [`Shown`], which the
//! `Admin` gets when the snapshot comes into use: a route or a backend that is gone leaves the page with its snapshot.
//!
//! Source: Prometheus, "Exposition formats", text format 0.0.4.

mod caches;
mod chats;
pub mod fibers;
pub mod guard;
mod page;
mod process;
mod routes;
mod series;
mod text;
pub mod top;
mod totals;

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use osier::inspect::WorkerMetrics;
use osier_web::chat::Chat;
use osier_web::http::StatusCode;
use osier_web::upstream::{BackendStats, Leftover, Upstream};
use osier_web::wrap::cache::Store;
use osier_web::{Connections, Protocol, Request, Response, Router};

pub use self::routes::{ROUTES_MAX, Routes};
pub use self::series::Series;
pub use self::totals::Totals;

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The handler of the admin listener.
pub struct Admin {
    totals: Arc<Totals>,
    shown: Mutex<Arc<Shown>>,
    /// The backends of earlier snapshots. Requests and tunnels that began before a reload still occupy them.
    left: Mutex<Vec<Left>>,
    is_draining: AtomicBool,
    /// Counts the open connections.
    connections: Box<dyn Fn() -> Open + Send + Sync>,
    certificates: Look,
}

/// Looks at the certificates. The argument is the most names that it returns.
pub type Look = Box<dyn Fn(usize) -> Held + Send + Sync>;

/// The certificates of a process.
#[derive(Default)]
pub struct Held {
    /// The names of those that end first, with the ends of their validity in seconds since 1970.
    pub ends: Vec<(String, i64)>,
    /// The number of those that are not there.
    pub missing: usize,
    /// The orders that have brought a certificate, and those that have failed.
    pub orders: [u64; 2],
}

/// The parts of a snapshot that have metrics.
pub struct Shown {
    pub routes: Routes,
    pub gateways: Vec<Gateway>,
    pub chats: Vec<Rooms>,
    pub stores: Vec<Arc<Store>>,
}

/// A route with backends, under the names that metrics give it.
pub struct Gateway {
    pub site: String,
    pub route: String,
    pub upstream: Upstream,
}

/// The backends that a route had before a reload.
struct Left {
    site: String,
    route: String,
    upstream: Leftover,
}

/// A route with a chat, under the names that metrics give it.
pub struct Rooms {
    pub site: String,
    pub route: String,
    pub chat: Chat,
}

/// The open connections of all listeners.
pub struct Open {
    pub all: usize,
    pub protocols: Vec<(Protocol, usize)>,
}

impl Open {
    /// Counts the connections of these listeners.
    pub fn of(listeners: &[Connections]) -> Open {
        let count = |protocol| listeners.iter().map(|one| one.of_protocol(protocol)).sum();
        Open {
            all: listeners.iter().map(Connections::count).sum(),
            protocols: Protocol::ALL
                .iter()
                .map(|&protocol| (protocol, count(protocol)))
                .collect(),
        }
    }
}

impl Admin {
    /// Shows `totals`, and no route yet. `connections` counts the open connections.
    pub fn new(
        totals: Arc<Totals>,
        connections: impl Fn() -> Open + Send + Sync + 'static,
        certificates: Look,
    ) -> Admin {
        let nothing = Shown {
            routes: Routes::new(1, None),
            gateways: Vec::new(),
            chats: Vec::new(),
            stores: Vec::new(),
        };
        Admin {
            totals,
            shown: Mutex::new(Arc::new(nothing)),
            left: Mutex::default(),
            is_draining: AtomicBool::new(false),
            connections: Box::new(connections),
            certificates,
        }
    }

    /// Shows the routes and backends of another snapshot.
    pub fn show(&self, shown: &Arc<Shown>) {
        let old = mem::replace(&mut *lock(&self.shown), Arc::clone(shown));
        let mut left = lock(&self.left);
        left.extend(old.gateways.iter().map(|gateway| Left {
            site: gateway.site.clone(),
            route: gateway.route.clone(),
            upstream: gateway.upstream.leftover(),
        }));
        let is_shown = |left: &Left| {
            let mut gateways = shown.gateways.iter();
            gateways.any(|gateway| left.upstream.is_of(&gateway.upstream))
        };
        left.retain(|left| !is_shown(left) && left.upstream.stats().is_some());
    }

    /// The backends of earlier snapshots that requests or tunnels occupy: site, route and numbers. Forgets those that are free.
    fn occupied(&self) -> Vec<(String, String, BackendStats)> {
        let mut occupied = Vec::new();
        lock(&self.left).retain(|left| {
            let stats = left.upstream.stats();
            for backend in stats.iter().flatten().filter(|backend| backend.leases > 0) {
                occupied.push((left.site.clone(), left.route.clone(), backend.clone()));
            }
            stats.is_some()
        });
        occupied
    }

    /// Makes `/health` report that this server takes no more requests.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// The router of the admin listener. `may_see` refuses requests for what only the operator may see.
    pub fn router(
        self: &Arc<Self>,
        may_see: impl Fn(&Request<'_>) -> Result<(), Response> + Clone + Send + Sync + 'static,
    ) -> Router {
        let (health, metrics, may_see_fibers) = (self.clone(), self.clone(), may_see.clone());
        Router::new()
            .get("/health", move |_| health.health())
            .get("/metrics", move |request| may_see(request).map(|()| metrics.metrics()))
            .get("/fibers", move |request| {
                let may_see = may_see_fibers(request).and_then(|()| guard::check_site(request));
                may_see.map(|()| fibers::page())
            })
    }

    fn health(&self) -> Response {
        let response = if self.is_draining.load(Ordering::Relaxed) {
            Response::new(StatusCode::SERVICE_UNAVAILABLE).body("draining\n")
        } else {
            Response::new(StatusCode::OK).body("ok\n")
        };
        response.header("cache-control", "no-store")
    }

    fn metrics(self: &Arc<Self>) -> Response {
        let workers = osier::inspect::metrics().map_or(Vec::new(), |metrics| metrics.workers);
        let admin = Arc::clone(self);
        // A page with thousands of routes takes milliseconds. This worker serves other requests meanwhile.
        let page = osier::unblock(move || admin.page(&workers));
        Response::new(StatusCode::OK)
            .content_type(CONTENT_TYPE)
            .header("cache-control", "no-store")
            .body(page)
    }

    fn page(&self, workers: &[WorkerMetrics]) -> String {
        let shown = lock(&self.shown).clone();
        page::Numbers {
            totals: &self.totals,
            shown: &shown,
            occupied: self.occupied(),
            workers,
            connections: (self.connections)(),
            certificates: (self.certificates)(page::CERTIFICATES_MAX),
            is_draining: self.is_draining.load(Ordering::Relaxed),
        }
        .page()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
