//! Keeps certificates: gets those that are missing, renews the others in time, and puts them where the listeners find them.
//!
//! ```text
//!              due: the earliest first                     ┌──▶ shelf: served from the next handshake on
//!   queue ───────────────────────────▶ attend (a fiber) ───┤
//!     ▲                                                    └──▶ state folder
//!     └──────────── the next time: renewal, back-off ◀─────┘
//! ```
//!
//! The first fiber takes from the queue. At most [`AT_ONCE`] certificates are attended at once. The wall clock decides when one is
//! due, and it is looked at again at least every [`LOOK`]. After a jump forward, what is due meanwhile is attended. After a jump back,
//! what lies farther ahead than any pause is long ([`FARTHEST`]) is attended, too.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use osier::sync::Event;

use super::issue::{self, Means, Read, Subject};
use super::order::Kind;
use super::protocol::Error;
use super::schedule;
use super::storage::Stored;
use crate::log::operator::Say;

/// Orders on their way at once.
const AT_ONCE: usize = 4;

/// Longest time between two looks at the wall clock.
const LOOK: Duration = Duration::from_secs(600);

/// Time between two questions for the issuer's renewal window (RFC 9773 section 4.3.2).
const ASK: Duration = Duration::from_secs(6 * 3600);

/// Time before the next look at a certificate that was just issued. An issuer may suggest a renewal at once; it gets one an hour.
const SETTLED: Duration = Duration::from_secs(3600);

/// Pause before another look at a name whose lock another process has.
const LOCKED: Duration = Duration::from_secs(30);

/// Seconds to the next look at a certificate, at most. The longest pause after a failure is two and a half days.
const FARTHEST: i64 = 3 * 24 * 3600;

/// Where certificates are served from.
pub trait Shelf: Send + Sync {
    /// Serves a certificate for its names from now on.
    ///
    /// # Errors
    /// One line: the certificate cannot be used with its key.
    fn put(&self, subject: &Subject, stored: &Stored) -> Result<(), String>;
}

/// The certificates that a configuration wants.
pub struct Keeper {
    subjects: Vec<Subject>,
    means: Means,
    shelf: Arc<dyn Shelf>,
    say: Say,
    state: Mutex<State>,
    /// Set when a certificate has been attended, or when the keeper is to end.
    news: Event,
}

#[derive(Default)]
struct State {
    /// The subjects by the time at which they are due, in seconds since 1970.
    queue: BinaryHeap<Reverse<(i64, usize)>>,
    busy: usize,
    failures: Vec<u32>,
    /// The subjects whose certificates are served.
    served: HashSet<usize>,
    is_ended: bool,
}

/// The next look at a certificate.
struct Next {
    /// The pause until then.
    after: Duration,
    has_failed: bool,
}

impl Next {
    fn look(after: Duration) -> Next {
        Next {
            after,
            has_failed: false,
        }
    }
}

impl Keeper {
    /// Makes a keeper. [`run`](Keeper::run) does its work. The failures that `before` has seen count on, so that a reload
    /// does not ask an issuer again that has just refused.
    pub fn new(
        subjects: Vec<Subject>,
        means: Means,
        shelf: Arc<dyn Shelf>,
        say: Say,
        before: Option<&Keeper>,
    ) -> Arc<Keeper> {
        let now = wall();
        let mut state = State {
            failures: vec![0; subjects.len()],
            ..State::default()
        };
        for (index, subject) in subjects.iter().enumerate() {
            let known = before.and_then(|before| before.known(subject));
            let (due, failures) = known.unwrap_or((now, 0));
            state.queue.push(Reverse((due, index)));
            state.failures[index] = failures;
        }
        Arc::new(Keeper {
            subjects,
            means,
            shelf,
            say,
            state: Mutex::new(state),
            news: Event::new(),
        })
    }

    /// The next time and the failures of a certificate. `None` for one that is new or being attended.
    fn known(&self, subject: &Subject) -> Option<(i64, u32)> {
        let index = self.subjects.iter().position(|known| known == subject)?;
        let state = self.state();
        let waiting = state.queue.iter().find(|Reverse((_, waiting))| *waiting == index)?;
        Some((waiting.0.0, state.failures[index]))
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
                state.next_due(wall())
            };
            match due {
                Ok(index) => {
                    let keeper = Arc::clone(&self);
                    let name = format!("certificate of {}", self.subjects[index].name());
                    drop(
                        osier::fiber::Builder::new()
                            .name(name)
                            .spawn(move || keeper.attend(index)),
                    );
                }
                Err(pause) => {
                    self.news.wait_timeout(pause.min(LOOK));
                }
            }
        }
    }

    /// Ends the work. Orders that are on their way end by themselves, because issuers count them.
    pub fn end(&self) {
        self.state().is_ended = true;
        self.news.set();
    }

    fn attend(&self, index: usize) {
        let next = self.look(index);
        let mut state = self.state();
        state.busy -= 1;
        state.failures[index] = if next.has_failed { state.failures[index] + 1 } else { 0 };
        let due = wall().saturating_add(i64::try_from(next.after.as_secs()).unwrap_or(i64::MAX));
        state.queue.push(Reverse((due, index)));
        drop(state);
        self.news.set();
    }

    fn look(&self, index: usize) -> Next {
        let subject = &self.subjects[index];
        let (storage, name) = (self.means.storage.clone(), subject.name().to_owned());
        let found = osier::shield(|| osier::unblock(move || storage.certificate(&name)));
        let found = match found {
            Ok(found) => found.filter(|stored| subject.is_served_by(stored)),
            Err(error) => {
                let name = subject.name();
                self.say.error(format_args!(
                    "the stored certificate of {name} cannot be read: {error}; it is ordered anew"
                ));
                None
            }
        };
        let read = found.as_ref().and_then(|stored| issue::read(&stored.chain));
        if let Some(stored) = &found {
            self.serve(index, stored);
        }
        if let Some(read) = &read {
            let left = self.renewal(subject, read).saturating_sub(wall());
            if let Ok(left @ 1..) = u64::try_from(left) {
                // The issuer may change its mind: a revocation is announced by an earlier window.
                return Next::look(Duration::from_secs(left).min(ASK));
            }
        }
        self.order(index, read.as_ref())
    }

    /// The time of the renewal, in seconds since 1970.
    fn renewal(&self, subject: &Subject, read: &Read) -> i64 {
        let window = read.id.as_ref().and_then(|id| {
            // Only the one that has issued it has an opinion.
            let mut issuers = subject.settings.issuers.iter();
            issuers.find_map(|issuer| issue::window(issuer, &self.means, id).ok().flatten())
        });
        schedule::renewal(read.validity, window, chance(subject.name()))
    }

    fn order(&self, index: usize, old: Option<&Read>) -> Next {
        let subject = &self.subjects[index];
        let name = subject.name();
        let (storage, locked) = (self.means.storage.clone(), name.to_owned());
        let lock = match osier::shield(|| osier::unblock(move || storage.lock(&locked))) {
            Ok(Some(lock)) => lock,
            Ok(None) => return Next::look(LOCKED),
            Err(error) => return self.failed(index, &Error::Failed(format!("the state folder: {error}"))),
        };
        // Another process may have renewed it between the look and the lock.
        let (storage, again) = (self.means.storage.clone(), name.to_owned());
        if let Ok(Some(stored)) = osier::shield(|| osier::unblock(move || storage.certificate(&again)))
            && subject.is_served_by(&stored)
            && issue::read(&stored.chain).as_ref() != old
        {
            drop(lock);
            self.serve(index, &stored);
            return Next::look(Duration::ZERO);
        }
        let failures = self.state().failures[index];
        let mut last = None;
        let kinds = proofs(&subject.settings.kinds, failures);
        for issuer in &subject.settings.issuers {
            let replaces = old.and_then(|old| old.id.as_deref());
            match issue::obtain(subject, issuer, &self.means, &kinds, replaces) {
                Ok(stored) => {
                    self.serve(index, &stored);
                    let names = subject.names.join(", ");
                    self.say.info(format_args!(
                        "{} has issued a certificate for {names}",
                        issuer.directory
                    ));
                    return Next::look(SETTLED);
                }
                Err(error) => {
                    let issuer = &issuer.directory;
                    self.say
                        .error(format_args!("no certificate for {name} from {issuer}: {error}"));
                    last = Some(error);
                }
            }
        }
        drop(lock);
        let error = last.unwrap_or_else(|| Error::Failed("there is no issuer".into()));
        self.back_off(index, &error)
    }

    fn failed(&self, index: usize, error: &Error) -> Next {
        let name = self.subjects[index].name();
        self.say.error(format_args!("no certificate for {name}: {error}"));
        self.back_off(index, error)
    }

    fn back_off(&self, index: usize, error: &Error) -> Next {
        let (failures, is_served) = {
            let state = self.state();
            (state.failures[index], state.served.contains(&index))
        };
        let name = self.subjects[index].name();
        let pause = schedule::pause(failures + 1, error.retry_after(), chance(name));
        let meanwhile = if is_served {
            "the old one is served"
        } else {
            "a self-signed one is served, which browsers refuse"
        };
        let minutes = pause.as_secs().div_ceil(60);
        self.say.warning(format_args!(
            "the next try for {name} is in {minutes} min; until then {meanwhile}"
        ));
        Next {
            after: pause,
            has_failed: true,
        }
    }

    fn serve(&self, index: usize, stored: &Stored) {
        let subject = &self.subjects[index];
        match self.shelf.put(subject, stored) {
            Ok(()) => {
                self.state().served.insert(index);
            }
            Err(why) => {
                let name = subject.name();
                self.say
                    .error(format_args!("the certificate of {name} cannot be used: {why}"));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the certificate that is due. If there is none, the pause until the next one.
    fn next_due(&mut self, now: i64) -> Result<usize, Duration> {
        let Some(&Reverse((due, index))) = self.queue.peek() else {
            return Err(LOOK);
        };
        if self.busy == AT_ONCE {
            return Err(LOOK);
        }
        if due > now && due <= now.saturating_add(FARTHEST) {
            return Err(Duration::from_secs(due.abs_diff(now)));
        }
        self.queue.pop();
        self.busy += 1;
        Ok(index)
    }
}

/// The proofs to try after so many failures: one that the issuer cannot see is followed by another one.
fn proofs(kinds: &[Kind], failures: u32) -> Vec<Kind> {
    let mut kinds = kinds.to_vec();
    if !kinds.is_empty() {
        let first = failures as usize % kinds.len();
        kinds.rotate_left(first);
    }
    kinds
}

/// Seconds since 1970.
fn wall() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs().cast_signed())
}

/// A number between 0 and 1 that spreads renewals, the same for a name each time.
fn chance(name: &str) -> f64 {
    let hash = super::jose::sha256(name.as_bytes());
    f64::from(u16::from_be_bytes([hash[0], hash[1]])) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_back_makes_nobody_wait_for_it() {
        let mut state = State::default();
        let (now, year) = (1_800_000_000, 365 * 86_400);
        state.queue.push(Reverse((now + 3600, 7)));
        assert_eq!(state.next_due(now), Err(Duration::from_secs(3600)));
        assert_eq!(state.next_due(now - year), Ok(7));
        assert_eq!(state.next_due(now), Err(LOOK));
    }

    #[test]
    fn every_pause_ends_before_a_jump_is_suspected() {
        let longest = schedule::pause(40, None, 1.0).max(ASK).max(SETTLED);
        assert!(longest.as_secs().cast_signed() < FARTHEST, "{longest:?}");
    }
}
