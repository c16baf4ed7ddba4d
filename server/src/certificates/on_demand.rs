//! Certificates for names that no configuration lists, obtained when a client first asks for them (`tls = "on-demand"`).
//!
//! ```text
//!   handshake ──▶ known? the identity
//!       │ no: the handshake fails, and the name waits here      AWAITED at most, others are forgotten
//!       ▼
//!   fiber ──▶ a rate ──▶ `ask`: may it have one? ── no ──▶ refused for REFUSED_FOR, the latest REFUSED_MAX names
//!                              │ yes
//!                              └──▶ keeper: order, renewal ──▶ known
//! ```
//!
//! Names come from clients, so everything has a bound: names that wait, questions and orders in a minute, names that were refused and
//! names that are known. A name that finds no place is forgotten, and its next client brings it again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use osier::sync::Event;
use osier_tls::Identity;

use super::acme::settings::Settings;
use super::acme::storage::{Folder, Stored};
use super::acme::{https, issue};
use super::{Source, locked};
use crate::log::operator::Say;

/// The most names that wait for a question.
const AWAITED: usize = 64;

/// Questions in a minute.
const QUESTIONS: u32 = 60;

/// Time for which a refusal counts, and the most refusals that are remembered.
const REFUSED_FOR: Duration = Duration::from_secs(300);
const REFUSED_MAX: usize = 10_000;

/// The most names that have, or get, a certificate.
const KNOWN_MAX: usize = 10_000;

/// Longest time for a question.
const PATIENCE: Duration = Duration::from_secs(10);

const MINUTE: Duration = Duration::from_secs(60);

/// The certificates on demand of a process.
pub struct OnDemand {
    say: Say,
    state: Mutex<State>,
    /// Set when `awaited` gets a name.
    news: Event,
}

#[derive(Default)]
struct State {
    /// `None` while no site has certificates on demand.
    settings: Option<Settings>,
    /// The folder that handshakes read. `None` with `[shared]`, where the keeper loads certificates.
    folder: Option<Folder>,
    /// The known names. `None` while a certificate is being ordered.
    known: HashMap<String, Option<Served>>,
    awaited: VecDeque<String>,
    is_awaited: HashSet<String>,
    refused: HashMap<String, Instant>,
    /// The refused names, the oldest first.
    refusals: VecDeque<String>,
    questions: Rate,
    orders: Rate,
    is_full: bool,
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
        let now = osier::time::now();
        if self
            .since
            .is_none_or(|since| now.saturating_duration_since(since) >= MINUTE)
        {
            *self = Rate {
                since: Some(now),
                count: 0,
            };
        }
        let admits = self.count < limit;
        self.count += u32::from(admits);
        admits
    }
}

/// The answer to the question whether a name may have a certificate.
pub type Ask<'a> = &'a dyn Fn(&str, &str) -> io::Result<bool>;

impl OnDemand {
    pub fn new(say: Say) -> OnDemand {
        OnDemand {
            say,
            state: Mutex::default(),
            news: Event::new(),
        }
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

    /// Serves a certificate. Returns false if its name is not a known one.
    ///
    /// # Errors
    /// One line: the certificate cannot be used with its key.
    pub fn put(&self, name: &str, stored: &Stored) -> Result<bool, String> {
        let mut state = locked(&self.state);
        let Some(known) = state.known.get_mut(name) else {
            return Ok(false);
        };
        *known = Some(Served {
            identity: stored.identity()?,
            ends: issue::end(&stored.chain),
        });
        Ok(true)
    }

    /// The names with a certificate, and the end of its validity in seconds since 1970.
    pub fn ends(&self) -> Vec<(String, i64)> {
        let state = locked(&self.state);
        let ends = |(name, known): (&String, &Option<Served>)| Some((name.clone(), known.as_ref()?.ends));
        state.known.iter().filter_map(ends).collect()
    }

    /// Asks again whether a name may have a certificate, before a renewal. Forgets a refused name, and returns false for it.
    ///
    /// # Suspends
    /// Until the question is answered.
    pub fn may_renew(&self, name: &str, ask: Ask<'_>) -> bool {
        let url = {
            let state = locked(&self.state);
            match &state.known.get(name) {
                // The question was asked before the first order.
                None | Some(None) => None,
                Some(Some(_)) => state.settings.as_ref().and_then(|settings| settings.ask.clone()),
            }
        };
        let is_refused = url.is_some_and(|url| matches!(ask(&url, name), Ok(false)));
        if is_refused {
            let mut state = locked(&self.state);
            state.known.remove(name);
            state.refuse(name);
        }
        !is_refused
    }

    /// Asks about the awaited names, and passes each permitted one to `order`. Never returns.
    ///
    /// # Suspends
    /// Always.
    pub fn run(&self, ask: Ask<'_>, order: &dyn Fn(&str, Settings)) {
        loop {
            self.news.wait();
            self.news.reset();
            while let Some((name, settings)) = self.next() {
                let url = settings.ask.as_deref().unwrap_or_default();
                match ask(url, &name) {
                    Ok(true) if self.admit_order(&name, &settings) => order(&name, settings),
                    Ok(true) => {}
                    Ok(false) => locked(&self.state).refuse(&name),
                    Err(error) => {
                        self.say.error(format_args!(
                            "'ask': {url} does not say whether {name} may have a certificate: {error}"
                        ));
                        // A server that fails gets no further question about this name for a while.
                        locked(&self.state).refuse(&name);
                    }
                }
            }
        }
    }

    /// The next name to ask about. Names beyond the rate are forgotten.
    fn next(&self) -> Option<(String, Settings)> {
        let mut state = locked(&self.state);
        loop {
            let name = state.awaited.pop_front()?;
            state.is_awaited.remove(&name);
            let settings = state.settings.clone()?;
            if state.questions.admit(QUESTIONS) {
                return Some((name, settings));
            }
        }
    }

    fn admit_order(&self, name: &str, settings: &Settings) -> bool {
        let mut state = locked(&self.state);
        if state.known.len() >= KNOWN_MAX {
            if !std::mem::replace(&mut state.is_full, true) {
                self.say.error(format_args!(
                    "{KNOWN_MAX} names have certificates on demand, which is the limit: {name} gets none"
                ));
            }
            return false;
        }
        if !state.orders.admit(settings.orders_per_minute) {
            self.say.warning(format_args!(
                "{name} gets no certificate yet: {} orders on demand in a minute ('orders_per_minute')",
                settings.orders_per_minute
            ));
            return false;
        }
        state.known.insert(name.to_owned(), None);
        true
    }
}

impl State {
    fn refuse(&mut self, name: &str) {
        if self.refused.insert(name.to_owned(), osier::time::now()).is_none() {
            self.refusals.push_back(name.to_owned());
        }
        if self.refusals.len() > REFUSED_MAX
            && let Some(oldest) = self.refusals.pop_front()
        {
            self.refused.remove(&oldest);
        }
    }

    fn is_refused(&self, name: &str) -> bool {
        let since = self.refused.get(name);
        since.is_some_and(|since| osier::time::now().saturating_duration_since(*since) < REFUSED_FOR)
    }

    fn has_room(&self, name: &str) -> bool {
        self.awaited.len() < AWAITED && !self.is_awaited.contains(name) && !self.is_refused(name)
    }
}

impl Source for OnDemand {
    /// # Blocks the thread
    /// While the state folder is asked for the certificate of a name that is new to this process.
    fn find(&self, name: Option<&str>) -> Option<Identity> {
        let name = name?;
        let mut state = locked(&self.state);
        if let Some(known) = state.known.get(name) {
            return known.as_ref().map(|served| served.identity.clone());
        }
        let settings = state.settings.as_ref()?;
        if !is_host_name(name) || (settings.issuers[0].is_public() && is_private(name)) || !state.has_room(name) {
            return None;
        }
        state.is_awaited.insert(name.to_owned());
        state.awaited.push_back(name.to_owned());
        let folder = state.folder.clone();
        drop(state);
        self.news.set();
        // A certificate of an earlier run serves its first client before the question is answered.
        let stored = folder?.certificate(name).ok()??;
        stored.identity().ok()
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

/// Whether a name can be a host on the internet: at least two labels of letters, digits and inner hyphens, and not an address.
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
mod tests {
    use super::*;
    use crate::certificates::acme::settings::Issuer;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    fn settings() -> Settings {
        Settings {
            issuers: vec![Issuer::new("https://issuer.test/dir")],
            ask: Some("http://ask".into()),
            orders_per_minute: 3,
            ..Settings::default()
        }
    }

    /// Runs the fiber with answers of its own while `body` is a client. Returns the questions and the orders.
    fn run(
        answer: fn(&str) -> io::Result<bool>,
        body: impl FnOnce(&OnDemand) + Send + 'static,
    ) -> (usize, Vec<String>) {
        let clock = osier::time::VirtualClock::new();
        let runtime = osier::Runtime::builder().workers(1).clock(clock).build().unwrap();
        runtime.run(move || {
            let on_demand = Arc::new(OnDemand::new(Say::new(|_| {})));
            on_demand.set(Some(settings()), None);
            let (questions, orders) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
            let running = osier::spawn({
                let (on_demand, questions, orders) = (on_demand.clone(), questions.clone(), orders.clone());
                move || {
                    let ask = |_: &str, name: &str| {
                        questions.fetch_add(1, Relaxed);
                        osier::sleep(Duration::from_millis(50));
                        answer(name)
                    };
                    on_demand.run(&ask, &|name, _| locked(&orders).push(name.to_owned()));
                }
            });
            body(&on_demand);
            running.cancel();
            let _ = running.join();
            let orders = std::mem::take(&mut *locked(&orders));
            (questions.load(Relaxed), orders)
        })
    }

    #[test]
    fn a_flood_of_made_up_names_causes_few_questions_and_no_order() {
        let (questions, orders) = run(
            |_| Ok(false),
            |on_demand| {
                for number in 0..10_000 {
                    assert!(on_demand.find(Some(&format!("n{number}.made-up.example"))).is_none());
                    if number % 100 == 0 {
                        osier::sleep(Duration::from_millis(500));
                    }
                    let state = locked(&on_demand.state);
                    assert!(state.awaited.len() <= AWAITED && state.is_awaited.len() <= AWAITED);
                    assert!(state.known.is_empty() && state.refused.len() <= REFUSED_MAX);
                }
                osier::sleep(MINUTE);
            },
        );
        // The flood lasts for 50 seconds: a minute's questions, and those of the begin of the next.
        assert!(
            (QUESTIONS as usize..=2 * QUESTIONS as usize).contains(&questions),
            "{questions}"
        );
        assert_eq!(orders, [""; 0]);
    }

    #[test]
    fn a_name_is_asked_for_once_and_orders_have_a_rate() {
        let (questions, orders) = run(
            |name| Ok(name.starts_with("yes")),
            |on_demand| {
                for _ in 0..20 {
                    for name in ["yes1.a.example", "no.a.example", "yes2.a.example", "yes3.a.example"] {
                        assert!(on_demand.find(Some(name)).is_none());
                    }
                    osier::sleep(Duration::from_secs(1));
                }
                // The fourth order of the minute has to wait for the next one.
                on_demand.find(Some("yes4.a.example"));
                osier::sleep(MINUTE);
                on_demand.find(Some("yes4.a.example"));
                osier::sleep(Duration::from_secs(1));
            },
        );
        assert_eq!(
            orders,
            ["yes1.a.example", "yes2.a.example", "yes3.a.example", "yes4.a.example"]
        );
        assert_eq!(questions, 6);
    }

    #[test]
    fn refusals_end_and_errors_count_as_refusals() {
        let (questions, orders) = run(
            |_| Err(io::ErrorKind::ConnectionRefused.into()),
            |on_demand| {
                for pause in [1, 60, 301, 1] {
                    on_demand.find(Some("a.example.org"));
                    osier::sleep(Duration::from_secs(pause));
                }
            },
        );
        assert_eq!((questions, orders.len()), (2, 0));
    }

    #[test]
    fn only_names_of_hosts_are_asked_for() {
        for name in ["a.example", "xn--bcher-kva.example.org", "1.2.example"] {
            assert!(is_host_name(name), "{name}");
        }
        let long = format!("{}.example", "a".repeat(64));
        for name in [
            "",
            "localhost",
            "1.2.3.4",
            "[::1]",
            "::1",
            "a..b",
            ".a.b",
            "a.b.",
            "-a.b",
            "a-.b",
            "a_b.c",
            "a b.c",
            "*.a.b",
            "a.b/c",
            "a.b?c",
            "é.fr",
            &long,
        ] {
            assert!(!is_host_name(name), "{name}");
        }
        let on_demand = OnDemand::new(Say::new(|_| {}));
        on_demand.set(Some(settings()), None);
        assert!(on_demand.find(Some("1.2.3.4")).is_none() && on_demand.find(None).is_none());
        assert!(locked(&on_demand.state).awaited.is_empty());
    }
}
