//! Keeps certificates: obtains missing ones, renews the others in time, and puts them where the listeners find them.
//!
//! ```text
//!              due: the earliest first                     ┌──▶ shelf: served from the next handshake on
//!   queue ───────────────────────────▶ attend (a fiber) ───┤
//!     ▲                                                    └──▶ storage
//!     └──────────── the next time: renewal, back-off ◀─────┘
//! ```
//!
//! The first look at a certificate loads and serves it. Issuers are asked for renewal windows later, at times that are
//! spread over [`ASK`](super::issue::ASK), and their answers are stored with the certificates. So a start with ten thousand certificates
//! does not flood the issuers.
//!
//! One fiber takes certificates from the queue, and starts a fiber for each, at most [`AT_ONCE`] of them at once. Names
//! that clients wait for have a line and [`AWAITED_AT_ONCE`] places of their own. The wall clock says when a certificate
//! is due. The first fiber reads that clock at least every [`LOOK`], so a jump forward is noticed. After a jump back, a
//! certificate whose time lies more than [`FARTHEST`] ahead is due, too: no pause is that long.

mod look;
mod order;
mod spread;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use osier::sync::Event;

use super::issue::{Resources, Subject};
use super::protocol::Error;
use super::storage::Stored;
use crate::certificates::x509::Time;
use crate::log::operator::Say;

/// The most certificates that are attended to at once: looked up, ordered or stored.
const AT_ONCE: usize = 4;

/// The same of those that clients wait for, beside the others: neither thousands of renewals nor new names whose proofs
/// time out hold up the other kind.
const AWAITED_AT_ONCE: usize = 8;

/// Longest time between two looks at the wall clock.
const LOOK: Duration = Duration::from_secs(600);

/// Pause before another look at a name while the storage is away. The storage's return ends the pause, see
/// [`Keeper::look_again`].
const AWAY: Duration = Duration::from_secs(60);

/// Seconds to the next look at a certificate, at most. The longest pause after a failure is two and a half days.
const FARTHEST: i64 = 3 * 24 * 3600;

/// The place that certificates are served from.
pub trait Shelf: Send + Sync {
    /// Serves a certificate for its names from now on.
    ///
    /// # Errors
    /// One line: the certificate cannot be used with its key.
    fn put(&self, subject: &Subject, stored: &Stored) -> Result<(), String>;

    /// Serves a certificate that the storage has not taken, as [`put`](Shelf::put) does.
    ///
    /// # Errors
    /// Those of [`put`](Shelf::put).
    fn hold(&self, subject: &Subject, stored: &Stored) -> Result<(), String> {
        self.put(subject, stored)
    }

    /// Called while there is no certificate for these names yet.
    fn missing(&self, _subject: &Subject) {}

    /// Called after an order that has brought a certificate.
    fn issued(&self) {}

    /// Called after a try that has brought no certificate. Returns what clients get until the next one, if no valid certificate is served.
    fn failed(&self, _subject: &Subject) -> &'static str {
        "a self-signed one is served, which browsers refuse"
    }

    /// Whether a certificate may be ordered for these names. If not, the keeper drops the subject.
    ///
    /// # Suspends
    /// While another server is asked.
    fn may_order(&self, _subject: &Subject) -> bool {
        true
    }
}

/// Returns the seconds since 1970. Tests pass a virtual clock.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// The clock of the system.
pub fn system_clock() -> Clock {
    Arc::new(|| Time::now().0)
}

/// Keeps the certificates of one configuration.
pub struct Keeper {
    /// Locked after `state`, never before it. A subject that was given up keeps its place until a new one takes the
    /// place.
    subjects: Mutex<Vec<Arc<Subject>>>,
    resources: Resources,
    shelf: Arc<dyn Shelf>,
    say: Say,
    clock: Clock,
    /// The time at which the first keeper of the process began.
    began: i64,
    state: Mutex<State>,
    /// Set when a certificate has been attended to, or when the keeper is to end.
    news: Event,
}

#[derive(Default)]
struct State {
    /// The subjects by the time at which they are due, in seconds since 1970.
    queue: BinaryHeap<Reverse<(i64, usize)>>,
    /// The subjects that clients wait for.
    awaited: VecDeque<usize>,
    /// The number of subjects that are attended to now, from the queue and of those that were awaited.
    busy: usize,
    busy_awaited: usize,
    /// The failures in a row of each subject.
    failures: Vec<u32>,
    /// The subjects whose certificates are served, with the ends of those in seconds since 1970.
    served: HashMap<usize, i64>,
    /// Subjects whose certificates are served until another issuer or profile has brought one.
    outdated: HashSet<usize>,
    /// When such a certificate was replaced, in seconds since 1970.
    replaced: HashMap<usize, i64>,
    /// Subjects that wait for another process or for the storage.
    waiting: HashSet<usize>,
    /// The places of the subjects by their names, without those that were given up.
    places: HashMap<Vec<String>, usize>,
    /// The places of subjects that need no certificate any more.
    given_up: Vec<usize>,
    /// Certificates that the storage has not taken, by their subject.
    unstored: HashMap<usize, Stored>,
    is_ended: bool,
    /// The keeper of the next configuration. It goes on with the subjects that are attended to here, once they are done.
    successor: Option<Arc<Keeper>>,
    /// The explanation of windows that was logged last.
    explained: String,
}

/// The next look at a certificate.
struct Next {
    /// The pause until then.
    after: Duration,
    has_failed: bool,
    /// Whether no issuer wanted to be asked. The failures before stay as many as they are.
    is_skipped: bool,
    /// Whether a change by another process, or the return of the storage, ends the pause.
    is_waiting: bool,
    /// Whether there is no next look.
    is_given_up: bool,
}

impl Next {
    fn look(after: Duration) -> Next {
        Next {
            after,
            has_failed: false,
            is_skipped: false,
            is_waiting: false,
            is_given_up: false,
        }
    }

    fn wait(after: Duration) -> Next {
        Next {
            is_waiting: true,
            ..Next::look(after)
        }
    }
}

/// How far a keeper has come with a subject. The keeper of the next configuration goes on from there.
struct Progress {
    /// The time of the next look, in seconds since 1970.
    due: i64,
    failures: u32,
    is_waiting: bool,
    /// When the certificate of another issuer or profile was replaced.
    replaced: Option<i64>,
    /// The certificate that the storage has not taken.
    unstored: Option<Stored>,
}

/// The work on one subject. Its drop puts the subject back into the queue, also when the work panics.
struct Attending<'k> {
    keeper: &'k Keeper,
    index: usize,
    is_awaited: bool,
    next: Option<Next>,
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        let Attending {
            keeper,
            index,
            is_awaited,
            ..
        } = *self;
        let next = self.next.take().unwrap_or_else(|| {
            let error = Error::Failed("a panic while it was ordered; this is a bug, please report it".into());
            keeper.failed(index, &error)
        });
        let seconds = next.after.as_secs() + u64::from(next.after.subsec_nanos() > 0);
        let after = i64::try_from(seconds).unwrap_or(i64::MAX);
        let due = keeper.wall().saturating_add(after);
        let mut state = keeper.state();
        *state.busy(is_awaited) -= 1;
        let progress = (!next.is_given_up).then(|| Progress {
            due,
            failures: match state.failures[index] {
                failures if next.has_failed => failures + 1,
                failures if next.is_skipped => failures,
                _ => 0,
            },
            is_waiting: next.is_waiting,
            replaced: state.replaced.get(&index).copied(),
            unstored: state.unstored.remove(&index),
        });
        drop(state);
        keeper.go_on(index, progress);
    }
}

impl Keeper {
    /// Makes a keeper. [`run`](Keeper::run) does its work. The failures that `before` has seen count on, so that a
    /// reload does not ask an issuer again that has just refused.
    pub fn new(
        subjects: Vec<Subject>,
        mut resources: Resources,
        shelf: Arc<dyn Shelf>,
        say: Say,
        clock: Clock,
        before: Option<&Keeper>,
    ) -> Arc<Keeper> {
        before.inspect(|before| resources.share_pauses(&before.resources));
        let (now, places) = (clock(), subjects.iter().enumerate());
        let state = State {
            failures: vec![0; subjects.len()],
            places: places.map(|(index, subject)| (subject.names.clone(), index)).collect(),
            ..State::default()
        };
        let keeper = Arc::new(Keeper {
            subjects: Mutex::new(subjects.into_iter().map(Arc::new).collect()),
            resources,
            shelf,
            say,
            clock,
            began: before.map_or(now, |before| before.began),
            state: Mutex::new(state),
            news: Event::new(),
        });
        let known = before.map_or_else(HashSet::new, |before| before.hand_over(&keeper));
        let mut state = keeper.state();
        let new = (0..state.failures.len()).filter(|index| !known.contains(index));
        new.for_each(|index| state.queue.push(Reverse((now, index))));
        drop(state);
        keeper
    }

    /// Lets the keeper of the next configuration go on with the subjects that it has, too. Returns its places of them.
    /// One that clients wait for is due before all others. One that is attended to here follows when that is done.
    fn hand_over(&self, next: &Arc<Keeper>) -> HashSet<usize> {
        let (mut state, subjects) = (self.state(), self.subjects());
        state.successor = Some(Arc::clone(next));
        let places = state.places.values();
        let places = places.filter_map(|&index| Some((index, next.place_of(&subjects[index])?)));
        let places: HashMap<usize, usize> = places.collect();
        let awaited = state.awaited.iter().map(|index| (self.began, *index));
        for (due, index) in state.queue.iter().map(|queued| queued.0).chain(awaited) {
            if let Some(&place) = places.get(&index) {
                let progress = Progress {
                    due,
                    failures: state.failures[index],
                    is_waiting: state.waiting.contains(&index),
                    replaced: state.replaced.get(&index).copied(),
                    unstored: state.unstored.get(&index).cloned(),
                };
                next.state().put_back(place, progress);
            }
        }
        places.into_values().collect()
    }

    /// The place of a subject that has not been given up. `None` if there is none with these settings.
    fn place_of(&self, subject: &Subject) -> Option<usize> {
        let index = *self.state().places.get(&subject.names)?;
        (*self.subject(index) == *subject).then_some(index)
    }

    fn anew(&self) -> Progress {
        Progress {
            due: self.wall(),
            failures: 0,
            is_waiting: false,
            replaced: None,
            unstored: None,
        }
    }

    /// Goes on with a subject after the work on it, here or in the keeper of the next configuration. Without `progress`
    /// it is given up.
    fn go_on(&self, index: usize, progress: Option<Progress>) {
        let mut state = self.state();
        if let Some(next) = state.successor.clone() {
            drop(state);
            if let Some(place) = next.place_of(&self.subject(index)) {
                // A subject that is given up here may be wanted there.
                next.go_on(place, progress.or_else(|| Some(next.anew())));
            }
            return;
        }
        match progress {
            Some(progress) => state.put_back(index, progress),
            None => {
                state.places.remove(&self.subject(index).names);
                state.served.remove(&index);
                state.outdated.remove(&index);
                state.replaced.remove(&index);
                state.failures[index] = 0;
                state.given_up.push(index);
            }
        }
        drop(state);
        self.news.set();
    }

    /// Attends to the certificates until [`end`](Keeper::end).
    ///
    /// # Suspends
    /// Always.
    pub fn run(self: Arc<Keeper>) {
        loop {
            let due = {
                let mut state = self.state();
                if state.is_ended {
                    return;
                }
                self.news.reset();
                state.next_due(self.wall())
            };
            match due {
                Ok((index, is_awaited)) => {
                    let keeper = Arc::clone(&self);
                    let name = format!("certificate of {}", self.subject(index).name());
                    drop(
                        osier::fiber::Builder::new()
                            .name(name)
                            .spawn(move || keeper.attend(index, is_awaited)),
                    );
                }
                Err(pause) => {
                    self.news.wait_timeout(pause.min(LOOK));
                }
            }
        }
    }

    /// Attends to one more certificate, unless the keeper has one for these names already. `is_awaited` tells whether
    /// clients wait for it.
    pub fn add(&self, subject: Subject, is_awaited: bool) {
        let now = self.wall();
        let mut state = self.state();
        if let Some(next) = state.successor.clone() {
            drop(state);
            return next.add(subject, is_awaited);
        }
        if state.places.contains_key(&subject.names) {
            return;
        }
        let names = subject.names.clone();
        let mut subjects = self.subjects();
        let index = match state.given_up.pop() {
            Some(index) => {
                subjects[index] = Arc::new(subject);
                index
            }
            None => {
                subjects.push(Arc::new(subject));
                state.failures.push(0);
                subjects.len() - 1
            }
        };
        drop(subjects);
        state.places.insert(names, index);
        match is_awaited {
            true => state.awaited.push_back(index),
            false => state.queue.push(Reverse((now, index))),
        }
        drop(state);
        self.news.set();
    }

    /// Ends the work. Orders that are on their way end by themselves, because issuers count them.
    pub fn end(&self) {
        self.state().is_ended = true;
        self.news.set();
    }

    /// Looks again at the certificates that another machine has changed, and at those that wait for another process or
    /// for the storage.
    pub fn look_again(&self, changed: &HashSet<String>) {
        let now = self.wall();
        let mut state = self.state();
        let State { queue, waiting, .. } = &mut *state;
        let is_due = |index: &usize| waiting.contains(index) || changed.contains(self.subject(*index).name());
        let due = queue.drain().map(|Reverse((due, index))| match is_due(&index) {
            true => Reverse((now, index)),
            false => Reverse((due, index)),
        });
        let due: Vec<_> = due.collect();
        queue.extend(due);
        waiting.clear();
        drop(state);
        self.news.set();
    }

    /// Does the work on a subject that is due.
    fn attend(&self, index: usize, is_awaited: bool) {
        let mut attending = Attending {
            keeper: self,
            index,
            is_awaited,
            next: None,
        };
        attending.next = Some(self.look(index));
    }

    fn subject(&self, index: usize) -> Arc<Subject> {
        Arc::clone(&self.subjects()[index])
    }

    fn subjects(&self) -> MutexGuard<'_, Vec<Arc<Subject>>> {
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seconds since 1970.
    fn wall(&self) -> i64 {
        (self.clock)()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the certificate that is due, and tells whether clients wait for it. If there is none, the pause until the
    /// next one.
    fn next_due(&mut self, now: i64) -> Result<(usize, bool), Duration> {
        if self.busy_awaited < AWAITED_AT_ONCE
            && let Some(index) = self.awaited.pop_front()
        {
            self.busy_awaited += 1;
            return Ok((index, true));
        }
        let Some(&Reverse((due, index))) = self.queue.peek() else {
            return Err(LOOK);
        };
        if self.busy >= AT_ONCE {
            return Err(LOOK);
        }
        if due > now && due <= now.saturating_add(FARTHEST) {
            return Err(Duration::from_secs(due.abs_diff(now)));
        }
        self.queue.pop();
        self.waiting.remove(&index);
        self.busy += 1;
        Ok((index, false))
    }

    /// Puts a subject into the queue.
    fn put_back(&mut self, index: usize, progress: Progress) {
        self.failures[index] = progress.failures;
        if progress.is_waiting {
            self.waiting.insert(index);
        }
        self.replaced.extend(progress.replaced.map(|at| (index, at)));
        self.unstored.extend(progress.unstored.map(|stored| (index, stored)));
        self.queue.push(Reverse((progress.due, index)));
    }

    fn busy(&mut self, is_awaited: bool) -> &mut usize {
        match is_awaited {
            true => &mut self.busy_awaited,
            false => &mut self.busy,
        }
    }
}

#[cfg(test)]
mod tests;
