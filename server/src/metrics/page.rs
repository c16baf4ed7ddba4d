//! Writes the page of `/metrics`. `docs/metrics.md` lists its families; a test compares the two.

use std::collections::{BTreeMap, BTreeSet};
use std::env::consts::{ARCH, OS};
use std::time::Duration;

use osier::inspect::WorkerMetrics;
use osier::memory;
use osier_web::upstream::{BackendStats, Latency};
use osier_web::{CloseReason, Phase, Spooled};

use super::series::{PHASE_BOUNDS, Sum};
use super::text::Text;
use super::totals::Totals;
use super::{Held, Open, Shown, caches, chats};

/// The most backends that have series of their own.
const BACKENDS_MAX: usize = 1024;

/// The most certificates that have series. Those whose validity ends first count.
pub const CERTIFICATES_MAX: usize = 1000;

/// The bounds of the buckets for a worker's turns: powers of two nanoseconds, from a microsecond to 69 seconds.
const TURN_POWERS: [u32; 14] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36];

/// The labels of a sample.
type Labels<'a> = &'a [(&'a str, &'a str)];

/// Everything that a page shows.
pub struct Numbers<'a> {
    pub totals: &'a Totals,
    pub shown: &'a Shown,
    /// Backends from before a reload that requests or tunnels occupy: site, route and numbers.
    pub occupied: Vec<(String, String, BackendStats)>,
    pub workers: &'a [WorkerMetrics],
    pub connections: Open,
    pub certificates: Held,
    pub is_draining: bool,
}

impl Numbers<'_> {
    /// Writes the page.
    pub fn page(&self) -> String {
        let mut text = Text::default();
        self.server(&mut text);
        self.connections(&mut text);
        self.certificates(&mut text);
        self.requests(&mut text);
        self.backends(&mut text);
        caches::write(self.shown, &mut text);
        chats::write(self.shown, &mut text);
        memory(&mut text);
        spooled(&mut text);
        self.workers(&mut text);
        self.process(&mut text);
        text.finish()
    }

    fn server(&self, text: &mut Text) {
        text.family("osier_build_info", "gauge", "The running version; always 1.");
        let version = [("version", env!("CARGO_PKG_VERSION")), ("arch", ARCH), ("os", OS)];
        text.sample("", &version, 1);
        text.family("osier_draining", "gauge", "1 during a graceful shutdown.");
        text.sample("", &[], u8::from(self.is_draining));
        let reloads = self.totals.reloads();
        text.family(
            "osier_config_last_reload_successful",
            "gauge",
            "0 if the last reload has failed, and the old configuration is still in use.",
        );
        text.sample("", &[], u8::from(reloads.last_succeeded));
        text.family(
            "osier_config_last_reload_timestamp_seconds",
            "gauge",
            "Time of the last successful reload, or of the start, in seconds since 1970.",
        );
        text.sample("", &[], reloads.loaded_seconds);
        text.family("osier_config_reloads_total", "counter", "Reloads, by result.");
        text.sample("", &[("result", "success")], reloads.succeeded);
        text.sample("", &[("result", "failure")], reloads.failed);
    }

    fn connections(&self, text: &mut Text) {
        text.family("osier_connections", "gauge", "Connections of clients that are open.");
        text.sample("", &[], self.connections.all);
        text.family(
            "osier_connections_by_protocol",
            "gauge",
            "Open client connections, by protocol and TLS version.",
        );
        for (protocol, count) in &self.connections.protocols {
            text.sample("", &[("protocol", protocol.name()), ("tls", protocol.tls())], *count);
        }
        let sums = self.totals.connections();
        text.family(
            "osier_connections_accepted_total",
            "counter",
            "Connections of clients that were accepted.",
        );
        text.sample("", &[], sums.accepted);
        text.family(
            "osier_connections_closed_total",
            "counter",
            "Connections of clients that have ended, by reason.",
        );
        for (reason, count) in CloseReason::ALL.iter().zip(sums.closed) {
            text.sample("", &[("reason", reason.as_str())], count);
        }
    }

    fn certificates(&self, text: &mut Text) {
        text.family(
            "osier_certificate_not_after_seconds",
            "gauge",
            "End of the validity of a certificate, in seconds since 1970.",
        );
        for (name, end) in &self.certificates.ends {
            text.sample("", &[("name", name)], end);
        }
        text.family(
            "osier_certificates_missing",
            "gauge",
            "Certificates that are not there: clients of these sites get a self-signed one, and those of names on demand none.",
        );
        text.sample("", &[], self.certificates.missing);
        text.family(
            "osier_certificate_orders_total",
            "counter",
            "Orders of certificates by ACME, by result.",
        );
        let [issued, failed] = self.certificates.orders;
        text.sample("", &[("result", "success")], issued);
        text.sample("", &[("result", "failure")], failed);
    }

    fn requests(&self, text: &mut Text) {
        let sums = self.shown.routes.iter();
        let sums: Vec<(&str, &str, Sum)> = sums.map(|(site, route, series)| (site, route, series.sum())).collect();
        text.family(
            "osier_http_requests_total",
            "counter",
            "Served requests, by status code.",
        );
        for (site, route, sum) in &sums {
            for (code, count) in &sum.codes {
                let labels = [("site", *site), ("route", *route), ("code", &*code.to_string())];
                text.sample("", &labels, count);
            }
            if sum.other_codes > 0 {
                text.sample(
                    "",
                    &[("site", site), ("route", route), ("code", "other")],
                    sum.other_codes,
                );
            }
        }
        // A route without requests has no further samples.
        let sums: Vec<_> = sums.iter().filter(|(_, _, sum)| sum.requests() > 0).collect();
        text.family(
            "osier_http_request_body_bytes_total",
            "counter",
            "Bytes of request bodies that handlers have read.",
        );
        for (site, route, sum) in &sums {
            text.sample("", &[("site", site), ("route", route)], sum.received);
        }
        text.family(
            "osier_http_response_body_bytes_total",
            "counter",
            "Bytes of response bodies.",
        );
        for (site, route, sum) in &sums {
            text.sample("", &[("site", site), ("route", route)], sum.sent);
        }
        text.family(
            "osier_http_request_duration_seconds",
            "histogram",
            "Time from the parsed head of a request to the last byte of its response.",
        );
        for (site, route, sum) in &sums {
            let sums = (&sum.times[..], Duration::from_nanos(sum.nanos));
            histogram(text, &[("site", site), ("route", route)], &Latency::BOUNDS, sums);
        }
        Numbers::phases(text, &sums);
    }

    fn phases(text: &mut Text, sums: &[&(&str, &str, Sum)]) {
        text.family(
            "osier_http_request_phase_seconds",
            "histogram",
            "Time that requests spent in a phase, for the requests that were in it.",
        );
        for (site, route, sum) in sums {
            for (phase, sum) in Phase::ALL.iter().zip(&sum.phases) {
                if sum.times.iter().any(|count| *count > 0) {
                    let labels = [("site", *site), ("route", *route), ("phase", phase.as_str())];
                    let sums = (&sum.times[..], Duration::from_nanos(sum.nanos));
                    histogram(text, &labels, &PHASE_BOUNDS, sums);
                }
            }
        }
    }

    fn backends(&self, text: &mut Text) {
        let backends = self.shown.backends();
        let left = self.left();
        for (name, kind, help, number) in OCCUPIED {
            text.family(name, kind, help);
            let all: BTreeSet<_> = backends.keys().chain(left.keys()).collect();
            for names @ (site, route, address) in all {
                let labels = [("site", *site), ("route", *route), ("backend", &**address)];
                let [now, before] = [&backends, &left].map(|of| of.get(names).map_or(0, number));
                text.sample("", &labels, now + before);
            }
        }
        for (name, kind, help, number) in BACKENDS {
            text.family(name, kind, help);
            for ((site, route, address), backend) in &backends {
                let labels = [("site", *site), ("route", *route), ("backend", &**address)];
                text.sample("", &labels, number(backend));
            }
        }
        text.family(
            "osier_upstream_failures_total",
            "counter",
            "Failures of the backend, by kind. Those of connecting include health checks.",
        );
        for ((site, route, address), backend) in &backends {
            for (kind, count) in FAILURES.iter().zip(backend.failures) {
                let labels = [
                    ("site", *site),
                    ("route", *route),
                    ("backend", &**address),
                    ("kind", kind),
                ];
                text.sample("", &labels, count);
            }
        }
        text.family(
            "osier_upstream_tunnel_bytes_total",
            "counter",
            "Bytes that tunnels have passed on, by direction.",
        );
        for ((site, route, address), backend) in &backends {
            for (direction, bytes) in TOWARDS.iter().zip(backend.tunnel_bytes) {
                let labels = [
                    ("site", *site),
                    ("route", *route),
                    ("backend", &**address),
                    ("direction", direction),
                ];
                text.sample("", &labels, bytes);
            }
        }
        text.family(
            "osier_upstream_tunnel_seconds_total",
            "counter",
            "Time of the tunnels that have ended.",
        );
        for ((site, route, address), backend) in &backends {
            let labels = [("site", *site), ("route", *route), ("backend", &**address)];
            text.sample("", &labels, backend.tunnel_time.as_secs_f64());
        }
        text.family(
            "osier_upstream_response_head_seconds",
            "histogram",
            "Time from a connection to the backend to the head of its response.",
        );
        for ((site, route, address), backend) in &backends {
            let labels = [("site", *site), ("route", *route), ("backend", &**address)];
            let latency = &backend.latency;
            histogram(text, &labels, &Latency::BOUNDS, (&latency.counts, latency.sum));
        }
    }

    /// The backends from before a reload. Only what occupies them counts.
    fn left(&self) -> Backends<'_> {
        let mut left = Backends::new();
        for (site, route, stats) in &self.occupied {
            add(&mut left, site, route, stats.clone());
        }
        left
    }

    fn workers(&self, text: &mut Text) {
        for (kind, numbers) in [("counter", COUNTERS), ("gauge", GAUGES)] {
            for (name, help, number) in numbers {
                text.family(name, kind, help);
                for (index, worker) in self.workers.iter().enumerate() {
                    text.sample("", &[("worker", &index.to_string())], number(worker));
                }
            }
        }
        text.family(
            "osier_worker_turn_seconds",
            "histogram",
            "Time of a turn of the worker's loop: a ready fiber waits for at most one, if a turn can run the whole queue.",
        );
        for (index, worker) in self.workers.iter().enumerate() {
            let index = index.to_string();
            let up_to = |bound: Duration| {
                let buckets = worker.latency.buckets().filter(|(upper, _)| *upper <= bound);
                buckets.map(|(_, turns)| turns).sum::<u64>()
            };
            for power in TURN_POWERS {
                let bound = Duration::from_nanos(1 << power);
                let labels = [("worker", &*index), ("le", &*bound.as_secs_f64().to_string())];
                text.sample("_bucket", &labels, up_to(bound));
            }
            let all = up_to(Duration::MAX);
            text.sample("_bucket", &[("worker", &index), ("le", "+Inf")], all);
            text.sample("_sum", &[("worker", &index)], worker.latency.sum().as_secs_f64());
            text.sample("_count", &[("worker", &index)], all);
        }
    }

    fn process(&self, text: &mut Text) {
        let numbers = self.totals.files.as_ref().and_then(|files| files.read().ok());
        let mut family = |name, kind, help, value: Option<String>| {
            text.family(name, kind, help);
            if let Some(value) = value {
                text.sample("", &[], value);
            }
        };
        let numbers = numbers.as_ref();
        family(
            "process_cpu_seconds_total",
            "counter",
            "CPU time of the process, user and system.",
            numbers.map(|numbers| numbers.cpu_seconds.to_string()),
        );
        family(
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory.",
            numbers.map(|numbers| numbers.resident_bytes.to_string()),
        );
        family(
            "process_virtual_memory_bytes",
            "gauge",
            "Virtual memory.",
            numbers.map(|numbers| numbers.virtual_bytes.to_string()),
        );
        family(
            "process_open_fds",
            "gauge",
            "Open file descriptors.",
            numbers.map(|numbers| numbers.open_descriptors.to_string()),
        );
        let most = |most: Option<u64>| most.map_or("+Inf".to_owned(), |most| most.to_string());
        family(
            "process_max_fds",
            "gauge",
            "The most file descriptors that may be open.",
            numbers.map(|numbers| most(numbers.max_descriptors)),
        );
        family(
            "process_start_time_seconds",
            "gauge",
            "Start time of the process, in seconds since 1970.",
            numbers.map(|numbers| numbers.start_seconds.to_string()),
        );
        family(
            "process_threads",
            "gauge",
            "Threads of the process.",
            numbers.map(|numbers| numbers.threads.to_string()),
        );
    }
}

/// The values of the label `kind`.
const FAILURES: [&str; 5] = ["connect", "connect_timeout", "response", "response_timeout", "body"];

/// The values of the label `direction`.
const TOWARDS: [&str; 2] = ["to_backend", "to_client"];

/// The numbers of a backend.
struct Backend {
    is_in: bool,
    in_flight: u64,
    tunnels: u64,
    tunnels_ended: u64,
    tunnel_time: Duration,
    /// Bytes of tunnels in the order of [`TOWARDS`].
    tunnel_bytes: [u64; TOWARDS.len()],
    idle: u64,
    http2: u64,
    requests: u64,
    connects: u64,
    reused: u64,
    /// Failures in the order of [`FAILURES`].
    failures: [u64; FAILURES.len()],
    latency: Latency,
}

/// The site, the route and the address of a backend.
type BackendNames<'a> = (&'a str, &'a str, String);

type Backends<'a> = BTreeMap<BackendNames<'a>, Backend>;

impl Shown {
    /// The backends by their names. Backends with equal names share their numbers, and so do all backends beyond
    /// [`BACKENDS_MAX`].
    fn backends(&self) -> Backends<'_> {
        let mut backends = Backends::new();
        for gateway in &self.gateways {
            for stats in gateway.upstream.stats() {
                add(&mut backends, &gateway.site, &gateway.route, stats);
            }
        }
        backends
    }
}

fn add<'a>(backends: &mut Backends<'a>, site: &'a str, route: &'a str, stats: BackendStats) {
    let mut names = (site, route, stats.address.to_string());
    if backends.len() >= BACKENDS_MAX && !backends.contains_key(&names) {
        names = ("", "other", "other".to_owned());
    }
    let backend = Backend::from(stats);
    match backends.get_mut(&names) {
        Some(known) => known.add(&backend),
        None => {
            backends.insert(names, backend);
        }
    }
}

impl From<BackendStats> for Backend {
    fn from(stats: BackendStats) -> Backend {
        Backend {
            is_in: stats.is_in,
            in_flight: stats.leases as u64,
            tunnels: stats.tunnels as u64,
            tunnels_ended: stats.tunnels_ended,
            tunnel_time: stats.tunnel_time,
            tunnel_bytes: [stats.tunnel_bytes_to_backend, stats.tunnel_bytes_to_clients],
            idle: stats.kept as u64,
            http2: stats.http2 as u64,
            requests: stats.total,
            connects: stats.connects,
            reused: stats.reused,
            failures: [
                stats.failures.saturating_sub(stats.connect_timeouts),
                stats.connect_timeouts,
                stats.response_failures,
                stats.response_timeouts,
                stats.body_failures,
            ],
            latency: stats.latency,
        }
    }
}

impl Backend {
    /// Adds the numbers of another backend. Both are up only if each is.
    fn add(&mut self, other: &Backend) {
        self.is_in &= other.is_in;
        self.in_flight += other.in_flight;
        self.tunnels += other.tunnels;
        self.tunnels_ended += other.tunnels_ended;
        self.tunnel_time += other.tunnel_time;
        for (sum, bytes) in self.tunnel_bytes.iter_mut().zip(other.tunnel_bytes) {
            *sum += bytes;
        }
        self.idle += other.idle;
        self.http2 += other.http2;
        self.requests += other.requests;
        self.connects += other.connects;
        self.reused += other.reused;
        for (sum, count) in self.failures.iter_mut().zip(other.failures) {
            *sum += count;
        }
        for (sum, count) in self.latency.counts.iter_mut().zip(other.latency.counts) {
            *sum += count;
        }
        self.latency.sum += other.latency.sum;
    }
}

/// Writes the families of memory.
fn memory(text: &mut Text) {
    memory::settle();
    text.family(
        "osier_memory_bytes",
        "gauge",
        "Memory that clients make the server hold, by account; unaccounted is the rest of the process.",
    );
    let accounts = memory::accounts();
    for (account, bytes) in &accounts {
        text.sample("", &[("account", account.name())], bytes);
    }
    let accounted: usize = accounts.iter().map(|(_, bytes)| bytes).sum();
    text.sample(
        "",
        &[("account", "unaccounted")],
        memory::held().saturating_sub(accounted),
    );
    text.family(
        "osier_memory_limit_bytes",
        "gauge",
        "The memory limit; 0 means no limit.",
    );
    text.sample("", &[], memory::limit().unwrap_or(0));
    text.family(
        "osier_memory_pressure",
        "gauge",
        "0: below 80 % of the limit. 1: caches shrink, and idle connections close. 2: from 95 % on, new requests get 503.",
    );
    text.sample("", &[], memory::pressure() as u8);
}

/// Writes the family of temporary files.
fn spooled(text: &mut Text) {
    text.family(
        "osier_spool_bytes",
        "gauge",
        "Bytes in temporary files of proxy and fastcgi for slow clients.",
    );
    let Spooled {
        requests, responses, ..
    } = Spooled::now();
    text.sample("", &[("body", "request")], requests);
    text.sample("", &[("body", "response")], responses);
}

/// Writes a histogram. `counts` has the number in each bucket alone, which Prometheus wants cumulated.
fn histogram(text: &mut Text, labels: Labels<'_>, bounds: &[Duration], (counts, sum): (&[u64], Duration)) {
    let mut all = 0;
    let mut labels = [labels, &[("le", "")]].concat();
    let le = labels.len() - 1;
    for (index, count) in counts.iter().enumerate() {
        all += count;
        let bound = bounds.get(index);
        let bound = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
        let mut labels = labels.clone();
        labels[le].1 = &bound;
        text.sample("_bucket", &labels, all);
    }
    labels.truncate(le);
    text.sample("_sum", &labels, sum.as_secs_f64());
    text.sample("_count", &labels, all);
}

/// A number of each worker: its name, its help text, and the function that reads it.
type Number = (&'static str, &'static str, fn(&WorkerMetrics) -> u64);

macro_rules! numbers {
    ($($name:literal $field:ident: $help:literal)*) => {
        &[$(($name, $help, |worker| worker.$field as u64)),*]
    };
}

/// The families with one number for each backend: name, kind, help, number.
type OfBackend = (&'static str, &'static str, &'static str, fn(&Backend) -> u64);

/// The families in which backends from before a reload count, too.
const OCCUPIED: [OfBackend; 2] = [
    (
        "osier_upstream_requests_in_flight",
        "gauge",
        "Requests and tunnels that occupy the backend, also those from before a reload.",
        |backend| backend.in_flight,
    ),
    (
        "osier_upstream_tunnels",
        "gauge",
        "WebSockets and other tunnels among them.",
        |backend| backend.tunnels,
    ),
];

const BACKENDS: [OfBackend; 7] = [
    (
        "osier_upstream_up",
        "gauge",
        "1 if the backend gets requests, 0 after failures or failed checks.",
        |backend| u64::from(backend.is_in),
    ),
    (
        "osier_upstream_connections_idle",
        "gauge",
        "Connections that are kept for later requests.",
        |backend| backend.idle,
    ),
    (
        "osier_upstream_connections_http2",
        "gauge",
        "Open HTTP/2 connections, which requests share.",
        |backend| backend.http2,
    ),
    (
        "osier_upstream_requests_total",
        "counter",
        "Requests that the backend got, second attempts included.",
        |backend| backend.requests,
    ),
    (
        "osier_upstream_connections_total",
        "counter",
        "Connections made to the backend, health checks included.",
        |backend| backend.connects,
    ),
    (
        "osier_upstream_connections_reused_total",
        "counter",
        "Requests over a connection that was kept.",
        |backend| backend.reused,
    ),
    (
        "osier_upstream_tunnels_ended_total",
        "counter",
        "Tunnels that have ended.",
        |backend| backend.tunnels_ended,
    ),
];

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
