//! `/health` and `/metrics`, on a listener of their own, for load balancers and Prometheus.
//!
//! One [`Admin`] lives as long as the process. Each route has a series, found by an index from [`Admin::series`]. Each served
//! request is counted by [`Series::record`]. A route that keeps its names over a reload keeps its series. A removed route's
//! series stays in the list, because counters must not vanish.
//!
//! A series has a cell for each worker, which only that worker writes. A record is a few plain loads and stores: it takes no lock,
//! and writes no cache line that another core writes. A reader adds the cells up. Its sums may mix slightly different moments.
//!
//! Source: Prometheus, "Exposition formats", text format 0.0.4.

mod text;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use osier::inspect::WorkerMetrics;
use osier_web::http::StatusCode;
use osier_web::{Response, Router};

use text::Text;

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The bound of the first bucket is 2^10 ns, about a microsecond.
const FIRST_POWER: u32 = 10;
/// The number of buckets. Each bound is twice the one before, up to 2^36 ns (69 seconds). The last bucket has no bound.
pub const BUCKETS: usize = 28;

/// The most routes that have a series of their own, over the life of the process.
const SERIES_MAX: usize = 4096;

const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "other"];

/// The counters that the admin listener shows.
pub struct Admin {
    /// Series by index, which never changes. The first series counts the requests that no route matched.
    series: Mutex<Vec<Known>>,
    workers: usize,
    draining: AtomicBool,
    started: SystemTime,
    /// Counts the open connections.
    connections: Box<dyn Fn() -> usize + Send + Sync>,
}

#[derive(Clone)]
struct Known {
    site: String,
    route: String,
    series: Arc<Series>,
}

/// The counters of one route.
pub struct Series(Box<[Cell]>);

/// The counters of one worker, on cache lines of their own.
#[derive(Default)]
#[repr(align(64))]
struct Cell {
    classes: [AtomicU64; CLASSES.len()],
    bytes: AtomicU64,
    nanos: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// The sums of a series.
#[derive(Default)]
struct Sum {
    classes: [u64; CLASSES.len()],
    bytes: u64,
    nanos: u64,
    buckets: [u64; BUCKETS],
}

impl Series {
    /// A series with counters for `workers` workers.
    pub fn new(workers: usize) -> Series {
        Series((0..workers.max(1)).map(|_| Cell::default()).collect())
    }

    /// The requests that a worker has served, by latency. All zero for an unknown worker.
    pub fn latency_of_worker(&self, index: usize) -> [u64; BUCKETS] {
        let cell = self.0.get(index);
        std::array::from_fn(|bucket| cell.map_or(0, |cell| cell.buckets[bucket].load(Ordering::Relaxed)))
    }

    /// Counts a served request. It must run on a worker, as a server's `on_request` does: counts from other threads may be lost.
    pub fn record(&self, status: u16, bytes: u64, took: Duration) {
        let worker = osier::fiber::worker().unwrap_or(0);
        let cell = &self.0[worker % self.0.len()];
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&cell.classes[class(status)], 1);
        add(&cell.bytes, bytes);
        add(&cell.nanos, nanos);
        add(&cell.buckets[bucket(nanos)], 1);
    }

    fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        for cell in &self.0 {
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            sum.bytes += load(&cell.bytes);
            // Wraps after 584 years of serving.
            sum.nanos = sum.nanos.wrapping_add(load(&cell.nanos));
            sum.classes
                .iter_mut()
                .zip(&cell.classes)
                .for_each(|(sum, counter)| *sum += load(counter));
            sum.buckets
                .iter_mut()
                .zip(&cell.buckets)
                .for_each(|(sum, counter)| *sum += load(counter));
        }
        sum
    }
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

fn class(status: u16) -> usize {
    match status {
        100..600 => usize::from(status / 100 - 1),
        _ => CLASSES.len() - 1,
    }
}

/// The first bucket whose bound is not below `nanos`.
fn bucket(nanos: u64) -> usize {
    let power = nanos.checked_next_power_of_two().map_or(u64::BITS, u64::ilog2);
    (power.saturating_sub(FIRST_POWER) as usize).min(BUCKETS - 1)
}

impl Admin {
    /// Counters for `workers` workers. `connections` returns the number of open connections.
    pub fn new(workers: usize, connections: impl Fn() -> usize + Send + Sync + 'static) -> Admin {
        let workers = workers.max(1);
        let nobody = Known {
            site: String::new(),
            route: String::new(),
            series: Arc::new(Series::new(workers)),
        };
        Admin {
            series: Mutex::new(vec![nobody]),
            workers,
            draining: AtomicBool::new(false),
            started: SystemTime::now(),
            connections: Box::new(connections),
        }
    }

    /// The index of a route's series. Equal names give the same index. Beyond [`SERIES_MAX`] it is 0, the series without a route.
    pub fn series(&self, site: &str, route: &str) -> u16 {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let known = series
            .iter()
            .position(|known| known.site == site && known.route == route);
        let index = known.unwrap_or_else(|| match series.len() {
            SERIES_MAX.. => 0,
            next => {
                series.push(Known {
                    site: site.to_owned(),
                    route: route.to_owned(),
                    series: Arc::new(Series::new(self.workers)),
                });
                next
            }
        });
        u16::try_from(index).expect("SERIES_MAX fits")
    }

    /// All series by index. New ones are appended.
    pub fn all(&self) -> Vec<Arc<Series>> {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series.iter().map(|known| known.series.clone()).collect()
    }

    /// Makes `/health` report that this server takes no more requests.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The router of the admin listener.
    pub fn router(self: &Arc<Self>) -> Router {
        let (health, metrics) = (self.clone(), self.clone());
        Router::new()
            .get("/health", move |_| health.health())
            .get("/metrics", move |_| metrics.metrics())
    }

    fn health(&self) -> Response {
        let response = if self.draining.load(Ordering::Relaxed) {
            Response::new(StatusCode::SERVICE_UNAVAILABLE).body("draining\n")
        } else {
            Response::new(StatusCode::OK).body("ok\n")
        };
        response.header("cache-control", "no-store")
    }

    fn metrics(&self) -> Response {
        let workers = osier::inspect::metrics().map_or(Vec::new(), |metrics| metrics.workers);
        Response::new(StatusCode::OK)
            .content_type(CONTENT_TYPE)
            .header("cache-control", "no-store")
            .body(self.page(&workers))
    }

    fn page(&self, workers: &[WorkerMetrics]) -> String {
        let mut text = Text::default();
        text.family("osier_build_info", "gauge", "The running version; always 1.");
        text.sample("", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        text.family(
            "osier_start_time_seconds",
            "gauge",
            "Start time of the process, in seconds since 1970.",
        );
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        text.sample("", &[], started.as_secs_f64());
        text.family("osier_draining", "gauge", "1 during a graceful shutdown.");
        text.sample("", &[], u8::from(self.draining.load(Ordering::Relaxed)));
        text.family("osier_connections", "gauge", "Connections of clients that are open.");
        text.sample("", &[], (self.connections)());
        self.requests(&mut text);
        runtime(&mut text, workers);
        text.finish()
    }

    fn requests(&self, text: &mut Text) {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sums: Vec<_> = series
            .iter()
            .map(|known| (&known.site, &known.route, known.series.sum()))
            .collect();

        text.family(
            "osier_http_requests_total",
            "counter",
            "Served requests, by class of the status.",
        );
        for (site, route, sum) in &sums {
            for (class, count) in CLASSES.iter().zip(sum.classes) {
                if count > 0 || *class == "2xx" {
                    text.sample("", &[("site", site), ("route", route), ("status", class)], count);
                }
            }
        }
        text.family(
            "osier_http_response_body_bytes_total",
            "counter",
            "Bytes of response bodies.",
        );
        for (site, route, sum) in &sums {
            text.sample("", &[("site", site), ("route", route)], sum.bytes);
        }
        text.family(
            "osier_http_request_duration_seconds",
            "histogram",
            "Time from the parsed head of a request to the last byte of its response.",
        );
        for (site, route, sum) in &sums {
            let mut count = 0;
            for (index, more) in sum.buckets.iter().enumerate() {
                count += more;
                let bound = match index {
                    _ if index == BUCKETS - 1 => "+Inf".to_owned(),
                    _ => seconds(1 << (FIRST_POWER as usize + index)).to_string(),
                };
                text.sample("_bucket", &[("site", site), ("route", route), ("le", &bound)], count);
            }
            text.sample("_sum", &[("site", site), ("route", route)], seconds(sum.nanos));
            text.sample("_count", &[("site", site), ("route", route)], count);
        }
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// A number of each worker: its name, its help text, and the function that reads it.
type Number = (&'static str, &'static str, fn(&WorkerMetrics) -> u64);

macro_rules! numbers {
    ($($name:literal $field:ident: $help:literal)*) => {
        &[$(($name, $help, |worker| worker.$field as u64)),*]
    };
}

const COUNTERS: &[Number] = numbers! {
    "osier_worker_turns_total" turns: "Turns of the worker's loop."
    "osier_worker_sleeps_total" sleeps: "Turns that had nothing to do and slept."
    "osier_worker_events_total" events: "Events that the poller has reported."
    "osier_worker_wakes_total" wakes: "Wake-ups by other threads."
    "osier_worker_resumes_total" resumes: "Fibers and resting connections that were resumed."
    "osier_worker_steals_total" steals: "Times that the worker took work from another queue."
    "osier_worker_fibers_started_total" fibers_started: "Fibers that were started."
};

const GAUGES: &[Number] = numbers! {
    "osier_worker_fibers" fibers: "Fibers that have started and not ended."
    "osier_worker_resting_connections" resting: "Connections at rest, which have no stack."
    "osier_worker_tasks" tasks: "Tasks that have not ended."
    "osier_worker_queued" queued: "Length of the run queue."
    "osier_worker_timers" timers: "Timers that are set."
    "osier_worker_stacks_pooled" stacks_pooled: "Stacks that are kept for reuse."
};

fn runtime(text: &mut Text, workers: &[WorkerMetrics]) {
    for (kind, numbers) in [("counter", COUNTERS), ("gauge", GAUGES)] {
        for (name, help, number) in numbers {
            text.family(name, kind, help);
            for (index, worker) in workers.iter().enumerate() {
                text.sample("", &[("worker", &index.to_string())], number(worker));
            }
        }
    }
    // Not a histogram: the runtime does not keep the sum of the times.
    text.family(
        "osier_worker_turn_seconds",
        "gauge",
        "Upper bound of the time of this share of all turns: how long a ready fiber waits.",
    );
    for (index, worker) in workers.iter().enumerate() {
        for quantile in [0.5, 0.99, 1.0_f64] {
            let labels = [("worker", &*index.to_string()), ("quantile", &*quantile.to_string())];
            text.sample("", &labels, worker.latency.quantile(quantile).as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests;
