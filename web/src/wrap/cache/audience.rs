//! The requests that want the response of a fetch, and the bound for fetches that no request wants.
//!
//! A request is a member of the audience while it waits for the response and while it receives the body. A fetch goes on without members
//! if it gets one of the [`Places`] of its cache. If none is free, the last member to leave cancels the fetch, and later requests begin
//! another. So each fetch beyond the places has a client that waits, which every limit for clients counts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use osier::Cancelled;
use osier::sync::Interrupt;

use crate::lock;

/// The most fetches of a cache behind stale responses, and as many whose clients have left. One client could begin any number of either, and each
/// is a request at a backend.
const PLACES: usize = 128;

/// Places for fetches of a cache that no client waits for. Clones share them.
#[derive(Clone, Default)]
pub struct Places(Arc<AtomicUsize>);

/// One of the [`Places`], until it is dropped.
pub struct Place(Places);

impl Places {
    /// Takes a place, if one is free.
    pub fn take(&self) -> Option<Place> {
        let place = Place(self.clone());
        (self.0.fetch_add(1, Ordering::Relaxed) < PLACES).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub struct Audience {
    places: Places,
    /// Set under the lock of `state`, when the last member has left and no place is free.
    unwanted: Interrupt,
    state: Mutex<State>,
}

struct State {
    members: usize,
    /// Kept to the end of the fetch, also if other members come.
    place: Option<Place>,
    is_over: bool,
}

/// A request in the audience, until it is dropped.
pub struct Member(Arc<Audience>);

impl Audience {
    /// Makes the audience of a fetch, and its first member.
    pub fn of_one(places: &Places) -> (Arc<Audience>, Member) {
        let audience = Arc::new(Audience {
            places: places.clone(),
            unwanted: Interrupt::new(),
            state: Mutex::new(State {
                members: 1,
                place: None,
                is_over: false,
            }),
        });
        (Arc::clone(&audience), Member(audience))
    }

    /// Adds a request. `None` if the fetch is being cancelled.
    pub fn join(self: &Arc<Self>) -> Option<Member> {
        let mut state = lock(&self.state);
        if self.unwanted.is_set() {
            return None;
        }
        state.members += 1;
        Some(Member(Arc::clone(self)))
    }

    /// Lets the fetch go on in `place` without members.
    pub fn keep(&self, place: Place) {
        lock(&self.state).place = Some(place);
    }

    /// Runs a part of the fetch, until the fetch is cancelled.
    pub fn attend<T>(&self, body: impl FnOnce() -> T) -> Result<T, Cancelled> {
        self.unwanted.guard(body)
    }

    /// Gives the place back: the fetch is over.
    pub fn dismiss(&self) {
        let mut state = lock(&self.state);
        state.is_over = true;
        state.place = None;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let audience = &self.0;
        let mut state = lock(&audience.state);
        state.members -= 1;
        if state.members > 0 || state.is_over || state.place.is_some() {
            return;
        }
        state.place = audience.places.take();
        if state.place.is_none() {
            audience.unwanted.set();
        }
    }
}
