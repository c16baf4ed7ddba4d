//! Limits how many requests a client may make in a period, and how many at once.
//!
//! ```
//! use osier_web::wrap::rate::{Options, Rate};
//! use osier_web::{Router, test::Client};
//! use std::time::Duration;
//!
//! let options = Options {
//!     requests: 10,
//!     per: Duration::from_secs(1),
//!     burst: 1,
//!     ..Options::default()
//! };
//! let client = Client::new(Router::new().get("/", |_| "hello\n").wrap(Rate::new(&options).wrap()));
//! assert_eq!(client.get("/").send().status(), 200);
//! assert_eq!(client.get("/").send().status(), 429);
//! ```
//!
//! [`Rate::check`] runs before the handler. The [`Permit`] lives among the extensions of the request: until the
//! response has been sent or, after a change of protocols (a WebSocket, a tunnel), until the connection ends. A client
//! is a [`ClientNetwork`].

// A client's token bucket is stored as one instant: the time at which it will be full (generic cell rate algorithm,
// ITU-T I.371). A request moves the instant by `per / requests`. It is refused when the instant would be further away
// than the burst allows. So an instant in the past means a full bucket, and the entry can be forgotten.
//
// The table has `SHARDS` shards, chosen by hash. Each has a bounded size, and a lock that is held for one look-up. A
// full shard first forgets the clients with full buckets, then the quarter whose buckets are fullest. Somebody with
// many addresses can make the table forget clients early, but can neither make it grow nor lock out others.

use std::collections::HashMap;
use std::collections::hash_map::{Entry as Slot, RandomState};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use http::StatusCode;

use crate::lock;
use crate::{ClientNetwork, Next, Request, Response};

/// The number of shards: enough that two workers seldom want the same lock.
const SHARDS: usize = 16;
/// The most clients in one shard. All shards together hold 65,536, about 3 MB.
const SHARD_MAX: usize = 4096;

/// How much a client may ask for. By default ten requests in each second, all at once after a quiet time, and any number in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Requests in each `per`, at least 1.
    pub requests: u32,
    /// Length of the period, more than zero.
    pub per: Duration,
    /// Requests that may come at once after a quiet time, at least 1.
    pub burst: u32,
    /// In-flight requests and upgraded connections of a client at the same time, at least 1. `None` for any number.
    pub concurrent: Option<u32>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            requests: 10,
            per: Duration::from_secs(1),
            burst: 10,
            concurrent: None,
        }
    }
}

/// The buckets of all clients.
#[doc(alias("governor", "throttle", "RateLimit"))]
pub struct Rate {
    /// Time between two requests at the steady rate.
    interval: Duration,
    /// How far a bucket's instant may be ahead of now for one more request.
    tolerance: Duration,
    concurrent: Option<u32>,
    hasher: RandomState,
    shards: [Mutex<HashMap<ClientNetwork, Entry>>; SHARDS],
}

struct Entry {
    /// Instant at which the bucket is full again.
    full: Instant,
    /// Permits that count the client's in-flight requests.
    running: u32,
}

/// An admitted request.
#[must_use = "dropping it ends the request's count"]
pub struct Permit {
    counted: Option<(Arc<Rate>, ClientNetwork)>,
}

/// The permits of a request, one for each rate around its handler.
#[derive(Clone, Default)]
struct Counted(Vec<Arc<Permit>>);

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some((rate, client)) = &self.counted
            && let Some(entry) = rate.shard(*client).get_mut(client)
        {
            entry.running = entry.running.saturating_sub(1);
        }
    }
}

impl Permit {
    /// Whether the permit counts an in-flight request. If not, it may be dropped early.
    pub fn is_counted(&self) -> bool {
        self.counted.is_some()
    }
}

impl Rate {
    /// A rate without any clients yet.
    pub fn new(settings: &Options) -> Rate {
        let interval = settings.per / settings.requests.max(1);
        Rate {
            interval,
            tolerance: interval.saturating_mul(settings.burst.max(1) - 1),
            concurrent: settings.concurrent,
            hasher: RandomState::new(),
            shards: Default::default(),
        }
    }

    /// Admits requests, or answers them by 429: for [`Router::wrap`](crate::Router::wrap). A client without an IP
    /// address, which comes over a Unix socket, is always admitted.
    pub fn wrap(self) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
        let rate = Arc::new(self);
        move |request, next| {
            let Some(client) = request.client_ip() else {
                return next.run(request);
            };
            match rate.check(client) {
                Ok(permit) => {
                    if permit.is_counted() {
                        let counted: &mut Counted = request.extensions_mut().get_or_insert_default();
                        counted.0.push(Arc::new(permit));
                    }
                    next.run(request)
                }
                Err(refusal) => refusal,
            }
        }
    }

    /// Admits a request of `client`.
    ///
    /// # Errors
    ///
    /// A 429 response with `Retry-After`.
    pub fn check(self: &Arc<Self>, client: IpAddr) -> Result<Permit, Response> {
        self.check_at(client, osier::time::now()).map_err(too_many)
    }

    /// Admits a request at `now`. The error says how long to wait, and why.
    fn check_at(self: &Arc<Self>, client: IpAddr, now: Instant) -> Result<Permit, (Duration, &'static str)> {
        let client = ClientNetwork::from(client);
        let mut shard = self.shard(client);
        if shard.len() >= SHARD_MAX && !shard.contains_key(&client) {
            forget(&mut shard, now);
        }
        let room = shard.len() < SHARD_MAX;
        let entry = match shard.entry(client) {
            Slot::Occupied(entry) => entry.into_mut(),
            Slot::Vacant(slot) if room => slot.insert(Entry { full: now, running: 0 }),
            // Every client in this shard has in-flight requests. Their number is bounded by the connections, so this
            // one is admitted too.
            Slot::Vacant(_) => return Ok(Permit { counted: None }),
        };
        let full = entry.full.max(now);
        let ahead = full - now;
        if ahead > self.tolerance {
            return Err((ahead - self.tolerance, TOO_FAST));
        }
        if self.concurrent.is_some_and(|most| entry.running >= most) {
            return Err((Duration::from_secs(1), TOO_MANY));
        }
        // Far in the future the clock has no instants: the bucket then stays as it is.
        entry.full = full.checked_add(self.interval).unwrap_or(full);
        if self.concurrent.is_none() {
            return Ok(Permit { counted: None });
        }
        entry.running += 1;
        drop(shard);
        let counted = Some((Arc::clone(self), client));
        Ok(Permit { counted })
    }

    fn shard(&self, client: ClientNetwork) -> MutexGuard<'_, HashMap<ClientNetwork, Entry>> {
        let index = self.hasher.hash_one(client) as usize % SHARDS;
        lock(&self.shards[index])
    }
}

/// The reasons of a refusal. They are the same for all clients, so a flood of refusals is a line a second.
const TOO_FAST: &str = "the client sends more requests than 'rate.requests' allows";
const TOO_MANY: &str = "the client has as many in-flight requests as 'rate.concurrent' allows";

/// Makes room for at least one client, if any client may be forgotten.
fn forget(shard: &mut HashMap<ClientNetwork, Entry>, now: Instant) {
    shard.retain(|_, entry| entry.running > 0 || entry.full > now);
    if shard.len() < SHARD_MAX {
        return;
    }
    let mut idle: Vec<Instant> = shard
        .values()
        .filter(|entry| entry.running == 0)
        .map(|entry| entry.full)
        .collect();
    if idle.is_empty() {
        return;
    }
    let quarter = idle.len() / 4;
    let (_, nearest, _) = idle.select_nth_unstable(quarter);
    let nearest = *nearest;
    shard.retain(|_, entry| entry.running > 0 || entry.full > nearest);
}

fn too_many((wait, why): (Duration, &'static str)) -> Response {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    Response::new(StatusCode::TOO_MANY_REQUESTS)
        .header("retry-after", seconds.max(1).to_string())
        .body("429: too many requests\n")
        .because(why)
}

osier_queue::impl_debug!(Rate, self => {
    interval: self.interval, tolerance: self.tolerance, concurrent: self.concurrent, ..
});
osier_queue::impl_debug!(Permit, self => { counted: self.is_counted() });

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(requests: u32, per: u64, burst: u32, concurrent: Option<u32>) -> Arc<Rate> {
        Arc::new(Rate::new(&Options {
            requests,
            per: Duration::from_secs(per),
            burst,
            concurrent,
        }))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn known(rate: &Rate) -> usize {
        rate.shards.iter().map(|shard| shard.lock().unwrap().len()).sum()
    }

    #[test]
    fn a_burst_and_then_the_steady_rate() {
        let rate = rate(10, 1, 3, None);
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let ask = |millis| {
            let asked = rate.check_at(ip("192.0.2.1"), at(millis));
            asked.map(drop).map_err(|(wait, _)| wait)
        };
        for _ in 0..3 {
            assert_eq!(ask(0), Ok(()));
        }
        assert_eq!(ask(0), Err(Duration::from_millis(100)));
        assert_eq!(ask(60), Err(Duration::from_millis(40)));
        assert_eq!(ask(100), Ok(()));
        assert_eq!(ask(100), Err(Duration::from_millis(100)));
        // A quiet time fills the bucket, but not beyond its size.
        for _ in 0..3 {
            assert_eq!(ask(60_000), Ok(()));
        }
        assert!(ask(60_000).is_err());
        // The long-run rate is the configured one.
        let passed = (100_000..110_000).filter(|millis| ask(*millis).is_ok()).count();
        assert!((100..=103).contains(&passed), "{passed}");
        // Other clients are not affected.
        assert!(rate.check_at(ip("192.0.2.2"), at(0)).is_ok());
    }

    #[test]
    fn the_answer_says_when_to_come_again() {
        let rate = rate(2, 60, 1, None);
        assert!(rate.check(ip("::1")).is_ok());
        let response = rate.check(ip("::1")).err().unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.lookup("retry-after"), Some(&b"30"[..]));
        assert_eq!(
            too_many((Duration::from_millis(10), TOO_FAST)).lookup("retry-after"),
            Some(&b"1"[..])
        );
    }

    #[test]
    fn a_client_is_an_address_or_a_network_of_64_bits() {
        let rate = rate(1, 60, 1, None);
        let now = Instant::now();
        let ask = |text| rate.check_at(ip(text), now).is_ok();
        for (client, expected) in [
            ("192.0.2.1", true),
            ("192.0.2.1", false),
            ("::ffff:192.0.2.1", false),
            ("192.0.2.2", true),
            ("2001:db8:0:1::1", true),
            ("2001:db8:0:1:ffff::2", false),
            ("2001:db8:0:2::1", true),
            ("::1", true),
            ("0.0.0.1", true),
        ] {
            assert_eq!(ask(client), expected, "{client}");
        }
    }

    #[test]
    fn so_many_at_once_and_no_more() {
        let rate = rate(1000, 1, 1000, Some(2));
        let (one, two) = (rate.check(ip("192.0.2.1")).ok(), rate.check(ip("192.0.2.1")).ok());
        assert!(one.is_some() && two.is_some());
        assert_eq!(rate.check(ip("192.0.2.1")).err().unwrap().status(), 429);
        assert!(rate.check(ip("192.0.2.2")).is_ok());
        drop(one);
        let three = rate.check(ip("192.0.2.1"));
        assert!(three.is_ok());
        assert!(rate.check(ip("192.0.2.1")).is_err());
        drop((two, three));
        assert!(
            rate.shards
                .iter()
                .all(|shard| shard.lock().unwrap().values().all(|entry| entry.running == 0))
        );
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_harmless_first() {
        let rate = rate(1, 1, 5, None);
        let start = Instant::now();
        // A client that has used up its burst: its instant is further ahead than all others.
        let bad = ip("192.0.2.1");
        for _ in 0..5 {
            assert!(rate.check_at(bad, start).is_ok());
        }
        for number in 0..(3 * SHARDS * SHARD_MAX) as u32 {
            let client = IpAddr::from(((u128::from(number) + (1 << 32)) << 64).to_be_bytes());
            assert!(rate.check_at(client, start).is_ok(), "{client}");
        }
        assert!(known(&rate) <= SHARDS * SHARD_MAX);
        assert!(rate.check_at(bad, start).is_err(), "forgotten too early");
        // All buckets are full by now, so any client may be forgotten.
        let later = start + Duration::from_secs(100);
        for number in 0..200 * SHARDS as u32 {
            assert!(rate.check_at(IpAddr::from(number.to_be_bytes()), later).is_ok());
        }
        assert!(known(&rate) < SHARDS * SHARD_MAX);
    }

    #[test]
    fn times_beyond_the_clock_do_no_harm() {
        let rate = Arc::new(Rate::new(&Options {
            requests: 1,
            per: Duration::from_millis(u64::MAX),
            burst: u32::MAX,
            concurrent: None,
        }));
        for _ in 0..2000 {
            assert!(rate.check(ip("192.0.2.1")).is_ok());
        }
    }

    #[test]
    fn threads_share_one_bucket() {
        let rate = rate(1, 3600, 50, None);
        let passed: usize = std::thread::scope(|scope| {
            let ask = || (0..50).filter(|_| rate.check(ip("192.0.2.1")).is_ok()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(passed, 50);
    }
}
