//! Certificates for names that no configuration lists, obtained when a client first asks for them
//! (`tls = "on-demand"`).
//!
//! ```text
//!   handshake ──▶ known? the identity
//!       │ no: it is served from the folder, or waits           NEW_MAX names at most, others are forgotten
//!       ▼
//!   load ──▶ stored? ── yes ──▶ known, and kept by the keeper
//!       │ no                                                   AWAITED at most, of one domain AWAITED_OF_DOMAIN
//!       ▼
//!   run ──▶ a rate ──▶ `ask`: may it have one? ── no ──▶ refused for REFUSED_FOR, the latest REFUSED_MAX names
//!                              │ yes
//!                              └──▶ keeper: order, renewal ──▶ known
//! ```
//!
//! `load` and `run` are fibers. A stored certificate needs no question and no order, so all names are served again soon
//! after a restart.
//!
//! Names come from clients, so everything has a bound: names that wait, questions and orders in a minute, refused names
//! and known names. A handshake waits for the certificate of its name until the name is refused or dropped, for
//! [`COMING_FOR`] at most. A name that finds the queue for questions full takes the place of a name drawn by chance, so
//! no flood of names keeps the others out for ever. A name without a place is forgotten, and its next client brings it
//! again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use osier::sync::Event;
use osier_tls::Identity;

use super::acme::settings::Settings;
use super::acme::storage::{Folder, Stored};
use super::acme::{https, issue};
use super::x509::Time;
use super::{Source, locked};
use crate::log::operator::Say;

/// The most names whose stored certificate is looked for.
const NEW_MAX: usize = 1024;

/// The most names that wait for their question, in all and below one domain.
const AWAITED: usize = 64;
const AWAITED_OF_DOMAIN: usize = 8;

/// The most questions in a minute.
const QUESTIONS: u32 = 60;

/// How long a refusal counts, and the most refusals that are remembered.
const REFUSED_FOR: Duration = Duration::from_secs(300);
const REFUSED_MAX: usize = 10_000;

/// The most names that have, or get, a certificate.
const KNOWN_MAX: usize = 10_000;

/// How long handshakes wait for a name, from its first client on.
const COMING_FOR: Duration = Duration::from_secs(20);

/// Longest time for a question.
const PATIENCE: Duration = Duration::from_secs(10);

const MINUTE: Duration = Duration::from_secs(60);

/// The certificates on demand of a process.
pub struct OnDemand {
    say: Say,
    state: Mutex<State>,
    /// Set when a name is added to `new`.
    news: Event,
    /// Set when a name is added to `awaited`.
    lined_up: Event,
    /// Draws the name that loses its place.
    chance: RandomState,
}

/// The names, by how far they have come.
#[derive(Default)]
struct State {
    /// `None` while no site has certificates on demand.
    settings: Option<Settings>,
    /// The folder that handshakes read. `None` with `[shared]`, where the keeper loads certificates.
    folder: Option<Folder>,
    known: HashMap<String, Known>,
    /// Names whose stored certificate is looked for.
    new: VecDeque<String>,
    /// Names that wait for a question.
    awaited: VecDeque<String>,
    /// The names in `new` and `awaited`, and those that a fiber works on.
    pending: HashSet<String>,
    /// When the first client of a name came, for names without a certificate. A time more than [`COMING_FOR`] ago does
    /// not count.
    coming: HashMap<String, Instant>,
    refused: HashMap<String, Refusal>,
    /// The refused names, the oldest first.
    refusals: VecDeque<String>,
    questions: Rate,
    orders: Rate,
    /// Whether the log has said that there are too many known names.
    is_full: bool,
}

/// A name that may have a certificate.
enum Known {
    /// Its first order is on its way. The question has just been answered.
    Ordered,
    /// Its last order has failed, and it has no certificate.
    Failed,
    Served(Served),
}

/// Why and when a name got no certificate.
struct Refusal {
    since: Instant,
    /// Whether `ask` has said no. Otherwise it has not answered.
    is_denied: bool,
}

/// A certificate that is served.
struct Served {
    identity: Identity,
    /// The end of its validity, in seconds since 1970.
    ends: i64,
}

/// Counts events of the current minute.
#[derive(Default)]
struct Rate {
    since: Option<Instant>,
    count: u32,
}

impl Rate {
    /// Counts one more event. False if the minute has `limit` events already.
    fn admit(&mut self, limit: u32) -> bool {
        let admits = self.pause(limit).is_none();
        self.count += u32::from(admits);
        admits
    }

    /// The time until the minute ends, if it has `limit` events already.
    fn pause(&mut self, limit: u32) -> Option<Duration> {
        let now = osier::time::now();
        let since = *self.since.get_or_insert(now);
        let left = MINUTE.saturating_sub(now.saturating_duration_since(since));
        if left.is_zero() {
            *self = Rate {
                since: Some(now),
                count: 0,
            };
        }
        (self.count >= limit).then_some(left)
    }
}

/// The answer to the question whether a name may have a certificate.
pub type Ask<'a> = &'a dyn Fn(&str, &str) -> io::Result<bool>;

/// Finds the stored certificate of a name.
pub type Find<'a> = &'a dyn Fn(&str) -> io::Result<Option<Stored>>;

/// Has a certificate ordered and renewed.
pub type Keep<'a> = &'a dyn Fn(&str, Settings);

impl OnDemand {
    /// No certificates, until [`set`](OnDemand::set) has settings for them.
    pub fn new(say: Say) -> OnDemand {
        OnDemand {
            say,
            state: Mutex::default(),
            news: Event::new(),
            lined_up: Event::new(),
            chance: RandomState::new(),
        }
    }

    /// Forgets names that a configuration lists now: they have sites of their own. A question that is on its way makes none of
    /// them known any more. Returns those that were known.
    pub fn forget<'n>(&self, listed: impl Iterator<Item = &'n String>) -> HashSet<String> {
        let mut state = locked(&self.state);
        let State {
            known,
            new,
            awaited,
            pending,
            ..
        } = &mut *state;
        let mut moved = HashSet::new();
        let mut was_pending = false;
        for name in listed {
            was_pending |= pending.remove(name);
            if known.remove(name).is_some() {
                moved.insert(name.clone());
            }
        }
        if was_pending {
            new.retain(|name| pending.contains(name));
            awaited.retain(|name| pending.contains(name));
        }
        moved
    }

    /// Takes over the settings of a configuration. Returns the names that have a certificate, or get one.
    pub fn set(&self, settings: Option<Settings>, folder: Option<Folder>) -> Vec<String> {
        let mut state = locked(&self.state);
        if settings.is_none() {
            *state = State::default();
        }
        (state.settings, state.folder) = (settings, folder);
        state.known.keys().cloned().collect()
    }

    /// Serves a certificate. Returns false if its name is not a known one, or if an expired certificate would be its
    /// first: clients wait for the order that follows.
    ///
    /// # Errors
    /// One line: the certificate cannot be used with its key.
    pub fn put(&self, name: &str, stored: &Stored) -> Result<bool, String> {
        let mut state = locked(&self.state);
        let Some(known) = state.known.get_mut(name) else {
            return Ok(false);
        };
        let served = Served::of(stored)?;
        if !matches!(known, Known::Served(_)) && served.has_expired() {
            return Ok(false);
        }
        *known = Known::Served(served);
        state.coming.remove(name);
        Ok(true)
    }

    /// Notes that an order has failed. The handshakes that wait for it end. Returns whether an older certificate is served.
    pub fn failed(&self, name: &str) -> bool {
        let mut state = locked(&self.state);
        state.coming.remove(name);
        match state.known.get_mut(name) {
            Some(Known::Served(_)) => true,
            Some(known) => {
                *known = Known::Failed;
                false
            }
            None => false,
        }
    }

    /// The number of names that wait for a certificate.
    pub fn missing(&self) -> usize {
        let is_missing = |known: &&Known| !matches!(known, Known::Served(_));
        locked(&self.state).known.values().filter(is_missing).count()
    }

    /// The names with a certificate, and the end of its validity in seconds since 1970.
    pub fn ends(&self) -> Vec<(String, i64)> {
        let state = locked(&self.state);
        let ends = |(name, known): (&String, &Known)| match known {
            Known::Served(served) => Some((name.clone(), served.ends)),
            Known::Ordered | Known::Failed => None,
        };
        state.known.iter().filter_map(ends).collect()
    }

    /// Asks again whether a name may have a certificate, before a renewal and before another try. Forgets a refused
    /// name, and returns false for it.
    ///
    /// # Suspends
    /// Until the question is answered.
    pub fn may_order(&self, name: &str, ask: Ask<'_>) -> bool {
        let url = {
            let state = locked(&self.state);
            match &state.known.get(name) {
                None | Some(Known::Ordered) => None,
                Some(Known::Failed | Known::Served(_)) => {
                    state.settings.as_ref().and_then(|settings| settings.ask.clone())
                }
            }
        };
        let is_refused = url.is_some_and(|url| matches!(ask(&url, name), Ok(false)));
        if is_refused {
            let mut state = locked(&self.state);
            state.known.remove(name);
            state.refuse(name, true);
        }
        !is_refused
    }

    /// Serves the stored certificates of new names, and lets the other names wait for their question. Never returns.
    ///
    /// # Suspends
    /// Always.
    pub fn load(&self, find: Find<'_>, keep: Keep<'_>) {
        loop {
            self.news.wait();
            self.news.reset();
            while let Some((name, settings)) = self.next_new() {
                // A storage that cannot be read has been reported by the keeper, or reports itself.
                let stored = find(&name).ok().flatten();
                match stored.is_some_and(|stored| self.take(&name, &stored)) {
                    true => keep(&name, settings),
                    false => self.line_up(name),
                }
            }
        }
    }

    /// Asks about the names in the queue, and passes each permitted one to `keep`. Never returns.
    ///
    /// # Suspends
    /// Always.
    pub fn run(&self, ask: Ask<'_>, keep: Keep<'_>) {
        loop {
            self.lined_up.wait();
            self.lined_up.reset();
            while let Some((name, settings)) = self.next_question() {
                let url = settings.ask.as_deref().unwrap_or_default();
                match ask(url, &name) {
                    Ok(true) if self.admit_order(&name, &settings) => keep(&name, settings),
                    Ok(true) => {}
                    Ok(false) => locked(&self.state).refuse(&name, true),
                    Err(error) => {
                        // The query may hold a token.
                        let url = url.split('?').next().unwrap_or_default();
                        self.say.error(format_args!(
                            "'ask': {url} does not say whether {name} may have a certificate: {error}"
                        ));
                        // A server that fails gets no further question about this name for a while.
                        locked(&self.state).refuse(&name, false);
                    }
                }
                // The name stays pending until here, so a client that comes meanwhile does not bring it a second time.
                locked(&self.state).pending.remove(&name);
            }
        }
    }

    /// The next name whose stored certificate is looked for.
    fn next_new(&self) -> Option<(String, Settings)> {
        let mut state = locked(&self.state);
        let settings = state.settings.clone()?;
        Some((state.new.pop_front()?, settings))
    }

    /// Serves a stored certificate from now on. False if it cannot be used, if there is no room for its name, or if a
    /// new configuration has no certificates on demand.
    fn take(&self, name: &str, stored: &Stored) -> bool {
        let Ok(served) = Served::of(stored) else {
            return false;
        };
        let mut state = locked(&self.state);
        let is_wanted = state.pending.contains(name) && !served.has_expired();
        if !is_wanted || !self.has_room(&mut state, name) {
            return false;
        }
        state.pending.remove(name);
        state.coming.remove(name);
        state.known.insert(name.to_owned(), Known::Served(served));
        true
    }

    /// Lets a name wait for its question.
    fn line_up(&self, name: String) {
        let mut state = locked(&self.state);
        if !state.pending.contains(&name) {
            // A new configuration has no certificates on demand.
            return;
        }
        let domain = domain(&name);
        let of_domain = state.awaited.iter().filter(|other| self::domain(other) == domain);
        if of_domain.count() >= AWAITED_OF_DOMAIN {
            state.pending.remove(&name);
            return;
        }
        if state.awaited.len() >= AWAITED {
            let drawn = usize::try_from(self.chance.hash_one(&name) % AWAITED as u64).unwrap_or(0);
            if let Some(loser) = state.awaited.remove(drawn) {
                state.pending.remove(&loser);
            }
        }
        state.awaited.push_back(name);
        drop(state);
        self.lined_up.set();
    }

    /// The next name to ask about, once the rate allows it.
    fn next_question(&self) -> Option<(String, Settings)> {
        loop {
            let pause = {
                let mut state = locked(&self.state);
                let settings = state.settings.clone()?;
                if state.awaited.is_empty() {
                    return None;
                }
                match state.questions.pause(QUESTIONS) {
                    Some(pause) => pause,
                    None => {
                        state.questions.admit(QUESTIONS);
                        return Some((state.awaited.pop_front()?, settings));
                    }
                }
            };
            osier::sleep(pause);
        }
    }

    /// Whether one more name may be known. Logs once that there are too many.
    fn has_room(&self, state: &mut State, name: &str) -> bool {
        let has_room = state.known.len() < KNOWN_MAX;
        if !has_room && !std::mem::replace(&mut state.is_full, true) {
            self.say.error(format_args!(
                "{KNOWN_MAX} names have certificates on demand, which is the limit: {name} gets none"
            ));
        }
        has_room
    }

    /// Makes a name known, if a certificate may be ordered for it now.
    fn admit_order(&self, name: &str, settings: &Settings) -> bool {
        let mut state = locked(&self.state);
        if !state.pending.contains(name) || !self.has_room(&mut state, name) {
            return false;
        }
        if !state.orders.admit(settings.orders_per_minute) {
            self.say.warning(format_args!(
                "{name} gets no certificate yet: {} orders on demand in a minute ('orders_per_minute')",
                settings.orders_per_minute
            ));
            return false;
        }
        state.known.entry(name.to_owned()).or_insert(Known::Ordered);
        true
    }
}

impl Served {
    fn of(stored: &Stored) -> Result<Served, String> {
        Ok(Served {
            identity: stored.identity()?,
            ends: issue::end(&stored.chain),
        })
    }

    fn has_expired(&self) -> bool {
        self.ends <= Time::now().0
    }
}

impl State {
    /// Remembers the refusal of a name, and forgets the oldest one if there are too many.
    fn refuse(&mut self, name: &str, is_denied: bool) {
        let since = osier::time::now();
        let refusal = Refusal { since, is_denied };
        if self.refused.insert(name.to_owned(), refusal).is_none() {
            self.refusals.push_back(name.to_owned());
        }
        if self.refusals.len() > REFUSED_MAX
            && let Some(oldest) = self.refusals.pop_front()
        {
            self.refused.remove(&oldest);
        }
    }

    /// Notes that the first client of a name has come.
    fn comes(&mut self, name: &str) {
        let now = osier::time::now();
        if self.coming.len() >= NEW_MAX {
            self.coming
                .retain(|_, since| now.saturating_duration_since(*since) < COMING_FOR);
        }
        if self.coming.len() < NEW_MAX {
            self.coming.insert(name.to_owned(), now);
        }
    }

    /// Whether the certificate of a name may come soon: the name waits for its question, or the certificate is being
    /// ordered.
    fn is_coming(&self, name: &str) -> bool {
        let since = self.coming.get(name);
        let is_early = since.is_some_and(|since| osier::time::now().saturating_duration_since(*since) < COMING_FOR);
        is_early && (self.pending.contains(name) || matches!(self.known.get(name), Some(Known::Ordered)))
    }

    /// The refusal of a name, if it still counts.
    fn refusal(&self, name: &str) -> Option<&Refusal> {
        let refusal = self.refused.get(name)?;
        let age = osier::time::now().saturating_duration_since(refusal.since);
        (age < REFUSED_FOR).then_some(refusal)
    }
}

impl Source for OnDemand {
    /// # Suspends
    /// While the state folder is asked for the certificate of a name that is new to this process.
    fn find(&self, name: Option<&str>) -> Option<Identity> {
        let name = name?;
        let mut state = locked(&self.state);
        match state.known.get(name) {
            Some(Known::Served(served)) => return Some(served.identity.clone()),
            Some(Known::Ordered | Known::Failed) => return None,
            None => {}
        }
        let settings = state.settings.as_ref()?;
        if !is_host_name(name) || (settings.issuers[0].is_public() && is_private(name)) {
            return None;
        }
        let refusal = state.refusal(name);
        if refusal.is_some_and(|refusal| refusal.is_denied) {
            return None;
        }
        let is_new = refusal.is_none() && state.new.len() < NEW_MAX && !state.pending.contains(name);
        if is_new {
            state.pending.insert(name.to_owned());
            state.new.push_back(name.to_owned());
            state.comes(name);
        }
        let folder = state.folder.clone();
        drop(state);
        if is_new {
            self.news.set();
        }
        // The first client of a name gets the certificate of an earlier run at once.
        let served = Served::of(&folder?.certificate(name).ok()??).ok()?;
        (!served.has_expired()).then_some(served.identity)
    }

    fn is_coming(&self, name: Option<&str>) -> bool {
        name.is_some_and(|name| locked(&self.state).is_coming(name))
    }
}

/// Asks a URL whether a name may have a certificate: status 200 is yes, every other one no.
///
/// # Suspends
/// Until the response has arrived, for [`PATIENCE`] at most.
///
/// # Errors
/// The connection's errors, and every status from 500 on.
pub fn ask(url: &str, name: &str) -> io::Result<bool> {
    let separator = if url.contains('?') { '&' } else { '?' };
    // The name is a host name, which needs no escapes.
    match https::status(&format!("{url}{separator}domain={name}"), PATIENCE)? {
        200 => Ok(true),
        status @ 500.. => Err(io::Error::other(format!("status {status}"))),
        _ => Ok(false),
    }
}

/// The last two labels of a name. As a rule, all names below it have one owner.
fn domain(name: &str) -> &str {
    let dot = name.rmatch_indices('.').nth(1);
    dot.map_or(name, |(dot, _)| &name[dot + 1..])
}

/// Whether a name can be a host on the internet: at least two labels of letters, digits and inner hyphens, and not an
/// address.
fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    name.len() <= 253
        && name.contains('.')
        && name.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a name ends in a private suffix, for which no public authority signs certificates.
fn is_private(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    ["localhost", "local", "internal", "test", "invalid", "example", "onion"].contains(&last)
}

#[cfg(test)]
mod tests;
