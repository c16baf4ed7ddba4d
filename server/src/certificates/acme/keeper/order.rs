//! The order of a certificate, its way into the storage, and the pauses after failures.

use std::io;
use std::time::Duration;

use super::spread::{chance, minutes};
use super::{AWAY, Keeper, Next};
use crate::certificates::acme::issue::{self, Obtained, Read};
use crate::certificates::acme::order::Kind;
use crate::certificates::acme::protocol::Error;
use crate::certificates::acme::schedule::{self, Validity};
use crate::certificates::acme::settings::Issuer;
use crate::certificates::acme::storage::{Locking, Stored};
use crate::certificates::x509::Time;

/// Time before the next look at a certificate that was just issued. Even an issuer that suggests a renewal at once gets
/// one an hour.
pub(super) const SETTLED: Duration = Duration::from_secs(3600);

/// Seconds by which the clocks of this machine and of an issuer may differ.
const SKEW: i64 = 3600;

impl Keeper {
    /// Orders a certificate from the issuers, one after the other. `old` is the one that it replaces.
    pub(super) fn order(&self, index: usize, old: Option<&Read>) -> Next {
        let subject = &self.subject(index);
        if !self.shelf.may_order(subject) {
            return Next {
                is_given_up: true,
                ..Next::look(Duration::ZERO)
            };
        }
        let name = subject.name();
        let lock = match self.resources.storage.lock(name) {
            Ok(Locking::Taken(lock)) => lock,
            Ok(Locking::Busy(pause)) => return Next::wait(pause),
            Err(error) => return self.not_stored(index, &error),
        };
        // Another process may have renewed it between the look and the lock.
        if let Ok(Some(stored)) = self.resources.storage.certificate(name)
            && subject.is_served_by(&stored)
            && issue::read(&stored.chain).as_ref() != old
        {
            drop(lock);
            self.serve(index, &stored);
            return Next::look(Duration::ZERO);
        }
        let failures = self.state().failures[index];
        let mut is_asked = false;
        let kinds = proofs(&subject.settings.kinds, failures);
        let issuers = &subject.settings.issuers;
        let pause = |issuer: &Issuer| self.resources.pause(issuer, name);
        for issuer in issuers.iter().filter(|issuer| pause(issuer).is_zero()) {
            is_asked = true;
            let replaces = old.and_then(|old| old.id.as_deref());
            match issue::obtain(subject, issuer, &self.resources, &kinds, replaces) {
                Ok(obtained) => return self.obtained(index, &issuer.directory, obtained),
                Err(_) if self.resources.storage.is_away() => return Next::wait(AWAY),
                Err(error) => {
                    let issuer = &issuer.directory;
                    self.say
                        .error(format_args!("no certificate for {name} from {issuer}: {error}"));
                }
            }
        }
        drop(lock);
        // The next try is for the issuer that may be asked first.
        let left = issuers.iter().map(pause).min().unwrap_or_default();
        match is_asked {
            true => self.back_off(index, left),
            false => self.skip(index, left),
        }
    }

    /// Serves a new certificate.
    fn obtained(&self, index: usize, issuer: &str, obtained: Obtained) -> Next {
        let Obtained { stored, unstored } = obtained;
        match unstored {
            None => self.serve(index, &stored),
            Some(_) => self.serve_unstored(index, &stored),
        }
        self.shelf.issued();
        let now = self.wall();
        let mut state = self.state();
        if state.outdated.remove(&index) {
            state.replaced.insert(index, now);
        }
        drop(state);
        let names = self.subject(index).names.join(", ");
        self.say
            .info(format_args!("{issuer} has issued a certificate for {names}"));
        let Some(error) = unstored else {
            return self.settled(index, &stored);
        };
        self.state().unstored.insert(index, stored);
        self.cannot_store(index, &error)
    }

    /// The next look at a certificate that was just issued. One that is not valid now is not ordered anew each hour.
    fn settled(&self, index: usize, stored: &Stored) -> Next {
        let now = self.wall();
        let validity = issue::read(&stored.chain).map(|read| read.validity);
        let is_wrong = |validity: &Validity| now.saturating_add(SKEW) < validity.begins || now >= validity.ends;
        let Some(wrong) = validity.filter(is_wrong) else {
            return Next::look(SETTLED);
        };
        let failures = self.state().failures[index];
        let subject = self.subject(index);
        let name = subject.name();
        let (begins, ends) = (Time(wrong.begins), Time(wrong.ends));
        self.say.error(format_args!(
            "the new certificate of {name} is valid from {begins} to {ends}, and today is {}: is the clock of this machine right?",
            Time(now)
        ));
        Next {
            has_failed: true,
            ..Next::look(SETTLED * (1 << failures.min(5)))
        }
    }

    /// Stores a certificate that the storage has not taken before. It is not ordered again meanwhile.
    pub(super) fn store_again(&self, index: usize, stored: &Stored) -> Next {
        let (storage, subject) = (&self.resources.storage, self.subject(index));
        let name = subject.name();
        self.serve_unstored(index, stored);
        let _lock = match storage.lock(name) {
            Ok(Locking::Taken(lock)) => lock,
            Ok(Locking::Busy(pause)) => return Next::wait(pause),
            Err(error) => return self.cannot_store(index, &error),
        };
        // Another process may have renewed it meanwhile.
        let begins = |stored: &Stored| issue::read(&stored.chain).map(|read| read.validity.begins);
        let newer = storage.certificate(name).ok().flatten();
        let newer = newer.filter(|newer| subject.is_served_by(newer) && begins(newer) > begins(stored));
        if newer.is_none() {
            if let Err(error) = storage.put_certificate(name, stored) {
                return self.cannot_store(index, &error);
            }
            self.say.info(format_args!("the certificate of {name} is stored now"));
        }
        self.state().unstored.remove(&index);
        Next::look(Duration::ZERO)
    }

    /// Logs that a certificate is served from memory only.
    fn cannot_store(&self, index: usize, error: &io::Error) -> Next {
        if self.resources.storage.is_away() {
            return Next::wait(AWAY);
        }
        let failures = self.state().failures[index];
        let (subject, storage) = (self.subject(index), self.resources.storage.description());
        let name = subject.name();
        let pause = schedule::pause(failures + 1, None, None, chance(name));
        let minutes = minutes(pause);
        self.say.error(format_args!(
            "the certificate of {name} cannot be stored: {storage}: {error}; it is served from memory, and lost when this process ends; \
             the next try to store it is in {minutes} min"
        ));
        Next {
            has_failed: true,
            ..Next::look(pause)
        }
    }

    /// Fails because of the storage, or waits until it is back.
    pub(super) fn not_stored(&self, index: usize, error: &io::Error) -> Next {
        match self.resources.storage.is_away() {
            true => Next::wait(AWAY),
            false => self.failed(
                index,
                &Error::Failed(format!("{}: {error}", self.resources.storage.description())),
            ),
        }
    }

    /// Logs a failure.
    pub(super) fn failed(&self, index: usize, error: &Error) -> Next {
        let subject = self.subject(index);
        let name = subject.name();
        self.say.error(format_args!("no certificate for {name}: {error}"));
        self.back_off(index, Duration::ZERO)
    }

    /// The pause after a failure. The issuers want one of at least `asked`.
    fn back_off(&self, index: usize, asked: Duration) -> Next {
        let (failures, subject) = (self.state().failures[index], self.subject(index));
        let left = self.served_for(index);
        let pause = schedule::pause(failures + 1, left, Some(asked), chance(subject.name()));
        let (minutes, meanwhile) = (minutes(pause), self.meanwhile(index));
        let name = subject.name();
        self.say.warning(format_args!(
            "the next try for {name} is in {minutes} min; until then {meanwhile}"
        ));
        Next {
            has_failed: true,
            ..Next::look(pause)
        }
    }

    /// The pause while every issuer wants to be left alone, so that none was asked.
    fn skip(&self, index: usize, left: Duration) -> Next {
        let (minutes, meanwhile) = (minutes(left), self.meanwhile(index));
        let subject = self.subject(index);
        let name = subject.name();
        self.say.warning(format_args!(
            "no certificate for {name}: its issuers want to be left alone; the next try is in {minutes} min; \
             until then {meanwhile}"
        ));
        Next {
            is_skipped: true,
            ..Next::look(left)
        }
    }

    /// Tells the shelf that there is no certificate. Returns what clients get until the next try.
    fn meanwhile(&self, index: usize) -> &'static str {
        let without = self.shelf.failed(&self.subject(index));
        match self.served_for(index) {
            Some(1..) => "the old one is served",
            _ => without,
        }
    }
}

/// The proofs to try after so many failures. Each failure puts another one first, because the issuer may not be able to
/// see the last one.
fn proofs(kinds: &[Kind], failures: u32) -> Vec<Kind> {
    let mut kinds = kinds.to_vec();
    if !kinds.is_empty() {
        let first = failures as usize % kinds.len();
        kinds.rotate_left(first);
    }
    kinds
}
