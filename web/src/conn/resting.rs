//! The requests of a worker that wait without a fiber, for a backend or for what their handlers wait for: a list for people who look at the
//! server at work. Requests that wait for their client are not in it, and neither are streams of events.
//!
//! ```text
//!   a request leaves its fiber ─▶ RestingRequests::add ─▶ AtRest, which it keeps ─▶ its drop: the request goes on, or has ended
//! ```

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use osier::memory::{Account, Charge};
use osier::time::Stamp;

use crate::conn::times::Phase;

/// The memory of a request in the list, apart from its words.
const BYTES: usize = 120;

/// The requests at rest of one worker of a server, by a number that grows.
#[derive(Default)]
pub(crate) struct RestingRequests {
    all: RefCell<BTreeMap<u64, (Resting, Charge)>>,
    next: Cell<u64>,
}

/// A request as the list has it.
#[derive(Clone)]
pub(crate) struct Resting {
    /// Its method, its target and its client.
    pub(crate) doing: String,
    pub(crate) phase: Phase,
    /// Since when it is in this phase.
    pub(crate) since: Stamp,
}

/// A request in the list, until the drop.
#[derive(Default)]
pub(crate) struct AtRest(Option<(Weak<RestingRequests>, u64)>);

impl RestingRequests {
    pub(crate) fn add(self: &Rc<Self>, resting: Resting) -> AtRest {
        let number = self.next.get();
        self.next.set(number + 1);
        let charge = Account::REQUESTS.charge(BYTES + resting.doing.capacity());
        self.all.borrow_mut().insert(number, (resting, charge));
        AtRest(Some((Rc::downgrade(self), number)))
    }

    /// Their number, and the first `most`: they rest longest.
    pub(crate) fn first(&self, most: usize) -> (usize, Vec<Resting>) {
        let all = self.all.borrow();
        (
            all.len(),
            all.values().take(most).map(|(resting, _)| resting.clone()).collect(),
        )
    }
}

impl Drop for AtRest {
    fn drop(&mut self) {
        if let Some((list, number)) = self.0.take()
            && let Some(list) = list.upgrade()
        {
            list.all.borrow_mut().remove(&number);
        }
    }
}
