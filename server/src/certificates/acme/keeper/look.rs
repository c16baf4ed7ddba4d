//! A look at a certificate: it is loaded and served, and its issuer is asked when to renew it.

use std::io;
use std::time::Duration;

use super::spread::{self, chance};
use super::{AWAY, FARTHEST, Keeper, Next};
use crate::certificates::acme::issue::{self, ASK, Read, Subject};
use crate::certificates::acme::schedule;
use crate::certificates::acme::storage::{Advice, Stored};

/// Servers that share certificates and want different issuers replace one certificate of a name in this time, each.
const PEACE: Duration = Duration::from_secs(24 * 3600);

impl Keeper {
    /// Loads and serves a certificate, and renews it if it is time.
    pub(super) fn look(&self, index: usize) -> Next {
        let subject = &self.subject(index);
        let unstored = self.state().unstored.get(&index).cloned();
        if let Some(stored) = unstored {
            return self.store_again(index, &stored);
        }
        let found = match self.resources.storage.certificate(subject.name()) {
            Ok(found) => found.filter(|stored| subject.is_served_by(stored)),
            Err(_) if self.resources.storage.is_away() => return Next::wait(AWAY),
            // A machine with the right key may be able to read it. A new order would overwrite its certificate.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return self.not_stored(index, &error),
            Err(error) => {
                let name = subject.name();
                self.say.error(format_args!(
                    "the stored certificate of {name} cannot be read: {error}; it is ordered anew"
                ));
                None
            }
        };
        let read = found.as_ref().and_then(|stored| issue::read(&stored.chain));
        let has_served = self.state().served.contains_key(&index);
        let is_outdated = found.as_ref().is_some_and(|stored| self.is_outdated(index, stored));
        match &found {
            Some(stored) => self.serve(index, stored),
            None if self.serves_another(index) => {}
            None => self.shelf.missing(subject),
        }
        let pause = read.as_ref().and_then(|read| self.not_before(subject, read));
        match pause {
            Some(_) if is_outdated && !has_served => Next::look(spread::among(self.subjects().len(), subject.name())),
            Some(pause) if !is_outdated => Next::look(pause),
            _ => self.order(index, read.as_ref()),
        }
    }

    /// Whether the settings want another issuer or profile than those of a stored certificate. The first look decides, until
    /// there is a new certificate: another machine that still has the old settings would replace that one, this machine the
    /// other's, and so on. After a reload the next look is the first one again, so such a certificate is replaced once in
    /// [`PEACE`].
    fn is_outdated(&self, index: usize, stored: &Stored) -> bool {
        let subject = self.subject(index);
        let now = self.wall();
        let (is_first, was_replaced, is_outdated) = {
            let mut state = self.state();
            let is_first = !state.served.contains_key(&index);
            let replaced = state.replaced.get(&index);
            let was_replaced = replaced.is_some_and(|at| now.abs_diff(*at) < PEACE.as_secs());
            match subject.still_wants(stored) {
                true => {
                    state.outdated.remove(&index);
                }
                false if is_first && !was_replaced => {
                    state.outdated.insert(index);
                }
                false => {}
            }
            (is_first, was_replaced, state.outdated.contains(&index))
        };
        if is_first
            && !subject.still_wants(stored)
            && let Some(origin) = &stored.origin
        {
            let (name, issuer) = (subject.name(), &origin.issuer);
            let profile = origin
                .profile
                .as_ref()
                .map(|profile| format!(" and its profile '{profile}'"));
            let until = match was_replaced {
                false => "it is served until another one is issued",
                true => {
                    "it is served until its renewal, because such a one was replaced within a day; \
                     do all servers with this state have the same configuration?"
                }
            };
            self.say.info(format_args!(
                "the certificate of {name} is from {issuer}{}, which is not what the configuration asks for: {until}",
                profile.unwrap_or_default()
            ));
        }
        is_outdated
    }

    /// Serves what is stored for some of the names until there is a certificate for all: a site has got another host. False
    /// if there is nothing.
    ///
    /// # Suspends
    /// While the storage is read.
    fn serves_another(&self, index: usize) -> bool {
        let subject = self.subject(index);
        if self.state().served.contains_key(&index) {
            return true;
        }
        let stored = |name: &String| self.resources.storage.certificate(name).ok().flatten();
        let is_usable =
            |stored: &Stored| issue::end(&stored.chain) > self.wall() && subject.is_partly_served_by(stored);
        let another = (subject.names.len() > 1).then(|| subject.names.iter().filter_map(stored).find(is_usable));
        let another = another.flatten();
        another.iter().for_each(|stored| self.serve(index, stored));
        another.is_some()
    }

    /// The pause until the next look at a certificate that is not to be renewed yet.
    fn not_before(&self, subject: &Subject, read: &Read) -> Option<Duration> {
        let (now, chance) = (self.wall(), chance(subject.name()));
        let left = |until: i64| u64::try_from(until.saturating_sub(now)).ok().filter(|left| *left > 0);
        // "Clients MUST NOT check a certificate's RenewalInfo after the certificate has expired." (RFC 9773 section 4.3)
        left(read.validity.ends)?;
        let mut asks_again = None;
        let mut window = None;
        if let Some(id) = &read.id {
            let stored = self.resources.storage.advice(subject.name()).ok().flatten();
            let stored = stored.filter(|advice| advice.id == *id);
            // The clock has jumped back since an answer whose time lies farther ahead than any answer may.
            let is_valid = |advice: &Advice| left(advice.again).is_some_and(|left| left.cast_signed() <= FARTHEST);
            let first = self.began.saturating_add((ASK.as_secs_f64() * chance) as i64);
            let advice = match stored {
                Some(advice) if is_valid(&advice) => advice,
                // The first questions after a start are spread.
                stored if left(first).is_some_and(|left| left <= ASK.as_secs()) => Advice {
                    id: id.clone(),
                    window: stored.and_then(|advice| advice.window),
                    again: first,
                },
                stored => self.ask(subject, id, stored),
            };
            window = advice.window;
            asks_again = left(advice.again);
        }
        let renewal = left(schedule::renewal(read.validity, window, chance))?;
        // The issuer may change its mind: a revocation is announced by an earlier window.
        Some(Duration::from_secs(renewal.min(asks_again.unwrap_or(ASK.as_secs()))))
    }

    /// Asks the issuer when it wants the certificate to be renewed, and stores the answer.
    fn ask(&self, subject: &Subject, id: &str, before: Option<Advice>) -> Advice {
        let now = self.wall();
        let mut advice = Advice {
            id: id.to_owned(),
            window: before.and_then(|advice| advice.window),
            again: now.saturating_add(ASK.as_secs().cast_signed()),
        };
        // Only the issuer of this certificate knows it.
        for issuer in &subject.settings.issuers {
            match issue::advice(issuer, &self.resources, id, now) {
                Ok(Some((given, why))) => {
                    self.explain(subject.name(), why);
                    advice = given;
                    break;
                }
                Ok(None) => {}
                // The issuer's earlier answer holds.
                Err(error) => {
                    let pause = error.retry_after().unwrap_or_default().as_secs().cast_signed();
                    advice.again = advice.again.max(now.saturating_add(pause));
                }
            }
        }
        // If the answer is not stored, the next start asks for it again.
        let _ = self.resources.storage.put_advice(subject.name(), &advice);
        advice
    }

    /// Logs where an issuer explains its windows. All certificates may have one explanation, which is logged for the first.
    fn explain(&self, name: &str, why: Option<String>) {
        let Some(why) = why.filter(|why| self.state().explained != *why) else {
            return;
        };
        self.say.info(format_args!(
            "the issuer explains when {name}, and perhaps others, are to be renewed: {why}"
        ));
        self.state().explained = why;
    }

    /// The seconds for which the certificate that is served is still valid.
    pub(super) fn served_for(&self, index: usize) -> Option<u64> {
        let end = self.state().served.get(&index).copied();
        end.and_then(|end| u64::try_from(end.saturating_sub(self.wall())).ok())
    }

    /// Serves a stored certificate from now on.
    pub(super) fn serve(&self, index: usize, stored: &Stored) {
        self.served(index, stored, self.shelf.put(&self.subject(index), stored));
    }

    /// Serves a certificate from now on that is nowhere but in memory.
    pub(super) fn serve_unstored(&self, index: usize, stored: &Stored) {
        self.served(index, stored, self.shelf.hold(&self.subject(index), stored));
    }

    /// Notes that a certificate is served, or says why it cannot be.
    fn served(&self, index: usize, stored: &Stored, served: Result<(), String>) {
        match served {
            Ok(()) => {
                self.state().served.insert(index, issue::end(&stored.chain));
            }
            Err(why) => {
                let subject = self.subject(index);
                let name = subject.name();
                self.say
                    .error(format_args!("the certificate of {name} cannot be used: {why}"));
            }
        }
    }
}
