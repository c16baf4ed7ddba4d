//! A flight is a fetch that other requests may wait for, and its outcome.
//!
//! The fiber that fetches ends the flight once, with an [`Outcome`]. Any number of fibers of any worker
//! may wait for that. An unsafe method or a purge makes the flight invalid: its response goes to the requests that
//! wait, but is not stored.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use osier::sync::Event;
use osier_http::Headers;

use super::audience::{Audience, Member, Places};
use super::entry::Entry;
use super::key::{self, Varies, Wanted};
use crate::lock;

/// The outcome of a fetch for the requests that wait.
#[derive(Clone)]
pub enum Outcome {
    /// A response for every request that it fits.
    Entry {
        entry: Arc<Entry>,
        /// Status of the backend's response, if it is another than that of the entry.
        status: Option<u16>,
        is_stored: bool,
    },
    /// An error with this status. The stale response takes its place.
    Stale {
        entry: Arc<Entry>,
        status: u16,
        /// The error may be due to the one request that began the fetch. The requests that waited ask once more.
        may_be_provoked: bool,
    },
    /// A response for the one request alone that began the fetch.
    Pass,
    /// An error of this server with this status: no backend has answered. The requests that waited share a 503 or a
    /// 504. After another error they ask again.
    Failed(StatusCode),
}

pub struct Flight {
    pub hash: u64,
    particular: Box<[u8]>,
    /// The fields by which the stored responses vary, with their values in the request that began the fetch.
    /// `None` if no other request may wait for the fetch.
    varies: Option<Varies>,
    is_invalid: AtomicBool,
    /// The requests that want the response.
    pub audience: Arc<Audience>,
    /// Set with the outcome, and never reset.
    done: Event,
    outcome: Mutex<Option<Outcome>>,
}

impl Flight {
    /// Makes a flight, and the place in its audience of the request that begins it.
    pub fn begin(wanted: Wanted<'_>, varies: Option<Varies>, places: &Places) -> (Arc<Flight>, Member) {
        let (audience, member) = Audience::of_one(places);
        let flight = Flight {
            hash: wanted.hash,
            particular: wanted.particular.into(),
            varies,
            is_invalid: AtomicBool::new(false),
            audience,
            done: Event::manual(),
            outcome: Mutex::default(),
        };
        (Arc::new(flight), member)
    }

    /// Whether a request with these particulars and fields may get the same response.
    pub fn suits(&self, particular: &[u8], headers: &Headers<'_>) -> bool {
        let varies = self.varies.as_ref();
        *self.particular == *particular && varies.is_some_and(|varies| key::selects(varies, headers))
    }

    /// Whether the fetch is for the one request that began it.
    pub fn is_alone(&self) -> bool {
        self.varies.is_none()
    }

    /// Called under the lock of the shard, as [`is_invalid`](Flight::is_invalid) is.
    pub fn invalidate(&self) {
        self.is_invalid.store(true, Ordering::Relaxed);
    }

    pub fn is_invalid(&self) -> bool {
        self.is_invalid.load(Ordering::Relaxed)
    }

    /// Ends the flight, unless it has ended.
    pub fn end(&self, outcome: Outcome) {
        lock(&self.outcome).get_or_insert(outcome);
        self.done.set();
    }

    /// Waits for the end.
    ///
    /// # Suspends
    ///
    /// Until the fetch has a response's head.
    pub fn wait(&self) -> Outcome {
        self.done.wait();
        self.outcome()
    }

    /// Waits for the end, for `time` at most.
    ///
    /// # Suspends
    ///
    /// As [`wait`](Flight::wait).
    pub fn wait_for(&self, time: Duration) -> Option<Outcome> {
        self.done.wait_timeout(time).then(|| self.outcome())
    }

    fn outcome(&self) -> Outcome {
        let outcome = lock(&self.outcome);
        outcome.clone().unwrap_or(Outcome::Pass)
    }
}
