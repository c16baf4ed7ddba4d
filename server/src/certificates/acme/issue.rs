//! Obtains one certificate, from the account to the stored chain, and asks its issuer when to renew it.
//!
//! The lock of the name keeps other processes from ordering the same certificate. Connections to issuers and their
//! directories are kept in [`Resources`], so that thousands of certificates do not ask for them one by one.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use osier_tls::Identity;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::challenge::{Board, Proofs};
use super::jose::AccountKey;
use super::order::{self, Kind, Wanted};
use super::protocol::{Client, Directory, Error, Problem, Transport, one_line};
use super::schedule::{Validity, Window};
use super::settings::{Issuer, Settings};
use super::storage::{Advice, Origin, Pending, Storage, Stored};
use crate::certificates::x509::Certificate;

/// Time for which a fetched directory of an issuer is used.
const DIRECTORY_AGE: Duration = Duration::from_secs(24 * 3600);

/// Time between two requests for the issuer's renewal window: the shortest, the one after a failure, and the longest
/// (RFC 9773 section 4.3).
const ASK_MIN: Duration = Duration::from_secs(60);
pub const ASK: Duration = Duration::from_secs(6 * 3600);
const ASK_MAX: Duration = Duration::from_secs(24 * 3600);

/// A certificate that a site wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// At least one. The first one names the files.
    pub names: Vec<String>,
    pub settings: Settings,
}

/// The parts of the server that issuing needs, and the issuers known so far.
pub struct Resources {
    pub storage: Arc<dyn Storage>,
    pub board: Arc<dyn Board>,
    connect: Connect,
    /// The issuers used so far, by the URL of their directory.
    issuers: Mutex<HashMap<String, Known>>,
    /// The same after a reload: an order of the configuration before may still be on its way.
    pauses: Arc<Mutex<Pauses>>,
}

/// The ends of the times for which issuers want to be left alone: by everybody, or by the orders of one name.
type Pauses = HashMap<(String, Option<String>), Instant>;

/// A connection to an issuer, and the time at which its directory was fetched.
#[derive(Clone)]
struct Known {
    transport: Arc<dyn Transport>,
    directory: Option<(Instant, Directory)>,
}

/// Makes connections to an issuer. It may suspend while files are read. The error is one line.
pub type Connect = Box<dyn Fn(&Issuer) -> Result<Arc<dyn Transport>, String> + Send + Sync>;

impl Resources {
    pub fn new(storage: Arc<dyn Storage>, board: Arc<dyn Board>, connect: Connect) -> Resources {
        Resources {
            storage,
            board,
            connect,
            issuers: Mutex::default(),
            pauses: Arc::default(),
        }
    }

    /// The time for which an issuer wants no order of a name. Zero if it may be asked.
    pub fn pause(&self, issuer: &Issuer, name: &str) -> Duration {
        let (pauses, now) = (self.pauses(), osier::time::now());
        let left = |name: Option<String>| {
            let end = pauses.get(&(issuer.directory.clone(), name));
            end.map_or(Duration::ZERO, |end| end.saturating_duration_since(now))
        };
        let left = left(None).max(left(Some(name.to_owned())));
        // The times of the keeper are whole seconds.
        if left > Duration::from_secs(1) {
            left
        } else {
            Duration::ZERO
        }
    }

    /// Leaves an issuer alone for as long as it asks for, with the orders of one name or with all.
    fn leave_alone(&self, issuer: &Issuer, name: Option<&str>, error: &Error) {
        let now = osier::time::now();
        let Some(end) = error.retry_after().and_then(|asked| now.checked_add(asked)) else {
            return;
        };
        let mut pauses = self.pauses();
        pauses.retain(|_, end| *end > now);
        pauses.insert((issuer.directory.clone(), name.map(str::to_owned)), end);
    }

    /// Shares the pauses that issuers ask for with the resources before a reload.
    pub fn share_pauses(&mut self, before: &Resources) {
        self.pauses = Arc::clone(&before.pauses);
    }

    fn pauses(&self) -> MutexGuard<'_, Pauses> {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection to an issuer, and its directory.
    fn issuer(&self, issuer: &Issuer) -> Result<(Arc<dyn Transport>, Directory), Error> {
        let url = &issuer.directory;
        let known = self.issuers().get(url).cloned();
        let now = osier::time::now();
        let transport = match known {
            Some(Known {
                transport,
                directory: Some((since, directory)),
            }) if now.saturating_duration_since(since) < DIRECTORY_AGE => return Ok((transport, directory)),
            Some(known) => known.transport,
            None => (self.connect)(issuer).map_err(Error::Failed)?,
        };
        let directory = Directory::fetch(&*transport, url)?;
        let known = Known {
            transport: Arc::clone(&transport),
            directory: Some((now, directory.clone())),
        };
        self.issuers().insert(url.clone(), known);
        Ok((transport, directory))
    }

    /// Drops the cached connection and directory of an issuer, so that the next order sees its changes.
    fn forget(&self, issuer: &Issuer) {
        self.issuers().remove(&issuer.directory);
    }

    fn issuers(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.issuers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored<T>(&self, done: io::Result<T>) -> Result<T, Error> {
        done.map_err(|error| Error::Failed(format!("{}: {error}", self.storage.description())))
    }
}

/// The dates of a certificate, and its identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    pub validity: Validity,
    /// Its identifier for the issuer's renewal information (RFC 9773 section 4.1), if it has one.
    pub id: Option<String>,
}

impl Subject {
    /// The name of the certificate in the state folder.
    pub fn name(&self) -> &str {
        &self.names[0]
    }

    /// Whether a stored certificate is for all names.
    pub fn is_served_by(&self, stored: &Stored) -> bool {
        leaf(&stored.chain).is_some_and(|leaf| self.names.iter().all(|name| leaf.is_for(name)))
    }

    /// Whether one of the issuers would sign such a certificate again: the settings may have changed. True if it is not
    /// known where the certificate comes from.
    pub fn still_wants(&self, stored: &Stored) -> bool {
        let Settings { issuers, profile, .. } = &self.settings;
        stored.origin.as_ref().is_none_or(|origin| {
            origin.profile == *profile && issuers.iter().any(|issuer| issuer.directory == origin.issuer)
        })
    }

    /// Whether a stored certificate is for some of the names.
    pub fn is_partly_served_by(&self, stored: &Stored) -> bool {
        leaf(&stored.chain).is_some_and(|leaf| self.names.iter().any(|name| leaf.is_for(name)))
    }
}

/// Reads the first certificate of a chain. `None` if there is none.
pub fn read(chain: &str) -> Option<Read> {
    let certificate = leaf(chain)?;
    let encoded = |bytes: &[u8]| data_encoding::BASE64URL_NOPAD.encode(bytes);
    let id = |authority: &Vec<u8>| format!("{}.{}", encoded(authority), encoded(&certificate.serial));
    Some(Read {
        validity: Validity {
            begins: certificate.not_before.0,
            ends: certificate.not_after.0,
        },
        id: certificate.authority_key.as_ref().map(id),
    })
}

/// The end of a certificate's validity, in seconds since 1970. 0 if the chain holds none.
pub fn end(chain: &str) -> i64 {
    leaf(chain).map_or(0, |leaf| leaf.not_after.0)
}

fn leaf(chain: &str) -> Option<Certificate> {
    let der = CertificateDer::from_pem_slice(chain.as_bytes()).ok()?;
    Certificate::parse(&der).ok()
}

/// A certificate that an issuer has just signed.
pub struct Obtained {
    pub stored: Stored,
    /// The error of storing it, if that failed. The certificate is served all the same.
    pub unstored: Option<io::Error>,
}

/// Gets a certificate from an issuer and stores it. The caller holds the lock of the name.
///
/// # Suspends
/// For minutes, while the issuer checks the names by one of `kinds`, the best one first.
///
/// # Errors
/// The errors of the issuer and of the storage.
pub fn obtain(
    subject: &Subject,
    issuer: &Issuer,
    resources: &Resources,
    kinds: &[Kind],
    replaces: Option<&str>,
) -> Result<Obtained, Error> {
    let obtained = order(subject, issuer, resources, kinds, replaces);
    if let Err(error) = &obtained {
        resources.forget(issuer);
        let name = error.is_about_order().then(|| subject.name());
        resources.leave_alone(issuer, name, error);
    }
    obtained
}

/// Obtains a certificate as [`obtain`] does, with what is known about the issuer.
fn order(
    subject: &Subject,
    issuer: &Issuer,
    resources: &Resources,
    kinds: &[Kind],
    replaces: Option<&str>,
) -> Result<Obtained, Error> {
    let account: AccountKey = resources.stored(resources.storage.account(&issuer.directory))?;
    let (transport, directory) = resources.issuer(issuer)?;
    let (email, binding) = (subject.settings.email.as_deref(), issuer.binding.as_ref());
    let client = Client::sign_in(&*transport, directory, &account, email, binding);
    let mut client = client.inspect_err(|error| resources.leave_alone(issuer, None, error))?;

    let origin = Origin {
        issuer: issuer.directory.clone(),
        profile: subject.settings.profile.clone(),
    };
    let pending = resources.stored(resources.storage.pending(subject.name()))?;
    let is_wanted = |pending: &Pending| {
        pending.issuer == origin.issuer && pending.profile == origin.profile && pending.names == subject.names
    };
    if let Some(pending) = pending.filter(is_wanted)
        && let Some(chain) = order::resume(&mut client, &pending.url)?
    {
        let stored = Stored {
            key: pending.key,
            chain,
            origin: Some(origin.clone()),
        };
        match store(subject, resources, stored) {
            // The same order would bring the same certificate each time.
            Err(Error::Malformed(_)) => {}
            done => return done,
        }
    }
    let wanted = Wanted {
        names: &subject.names,
        profile: subject.settings.profile.as_deref(),
        replaces,
        kinds,
    };
    let proofs = Proofs::new(&*resources.board, subject.settings.dns.as_deref());
    let order = order::prove(&mut client, &wanted, &proofs)?;
    let made = request(&subject.names);
    let (key, request) = made.map_err(|error| Error::Failed(format!("no signing request can be made: {error}")))?;
    let pending = Pending {
        issuer: origin.issuer.clone(),
        url: order.url.clone(),
        profile: origin.profile.clone(),
        names: subject.names.clone(),
        key: key.clone(),
    };
    match resources.storage.put_pending(subject.name(), &pending) {
        // The certificate will be served from memory. Only a crash during the order would lose it.
        Err(error) if is_full(&error) => {}
        put => resources.stored(put)?,
    }
    let chain = order::finalize(&mut client, &order, &request)?;
    let origin = Some(origin);
    store(subject, resources, Stored { key, chain, origin })
}

/// Whether an error means a full disk or quota. Stored data can still be read then.
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
}

/// Asks an issuer when it wants a certificate to be renewed, and where it explains that. `now` is in seconds since 1970. `None` if the
/// issuer answers no such questions.
///
/// # Suspends
/// Until the issuer has answered.
///
/// # Errors
/// When it cannot be reached, and when it does not answer with a window.
pub fn advice(
    issuer: &Issuer,
    resources: &Resources,
    id: &str,
    now: i64,
) -> Result<Option<(Advice, Option<String>)>, Error> {
    let (transport, directory) = resources.issuer(issuer)?;
    let Some(base) = directory.renewal_info else {
        return Ok(None);
    };
    let received = transport.send("GET", &format!("{}/{id}", base.trim_end_matches('/')), None)?;
    if received.status != 200 {
        return Err(Error::Problem(Problem::of(&received)));
    }
    let pause = received.pause().unwrap_or(ASK);
    let body = received.json()?;
    let time = |name: &str| seconds(&body["suggestedWindow"][name]);
    // "A RenewalInfo object in which the end timestamp equals or precedes the start timestamp is invalid." (RFC 9773 section 4.2)
    let window = time("start").zip(time("end")).filter(|(begins, ends)| begins < ends);
    let (begins, ends) = window.ok_or_else(|| Error::Malformed("no window for a renewal".into()))?;
    let advice = Advice {
        id: id.to_owned(),
        window: Some(Window { begins, ends }),
        again: now.saturating_add(pause.clamp(ASK_MIN, ASK_MAX).as_secs().cast_signed()),
    };
    Ok(Some((advice, body["explanationURL"].as_str().map(one_line))))
}

/// Seconds since 1970 of a date as RFC 3339 writes it.
fn seconds(date: &Value) -> Option<i64> {
    let date = OffsetDateTime::parse(date.as_str()?, &Rfc3339).ok()?;
    Some(date.unix_timestamp())
}

/// Checks and stores a certificate.
fn store(subject: &Subject, resources: &Resources, stored: Stored) -> Result<Obtained, Error> {
    if read(&stored.chain).is_none() {
        return Err(Error::Malformed("something that is no certificate in PEM form".into()));
    }
    if !subject.is_served_by(&stored) {
        return Err(Error::Malformed(
            "a certificate that is not for the names of the order".into(),
        ));
    }
    // An unusable certificate would replace a usable one.
    if let Err(error) = Identity::from_pem(stored.chain.as_bytes(), stored.key.as_bytes()) {
        return Err(Error::Malformed(format!(
            "a certificate that cannot be served: {error}"
        )));
    }
    let unstored = resources.storage.put_certificate(subject.name(), &stored).err();
    Ok(Obtained { stored, unstored })
}

/// A new key in PEM, and the request that its public key be certified, in DER.
fn request(names: &[String]) -> Result<(String, Vec<u8>), rcgen::Error> {
    let key = KeyPair::generate()?;
    let bare = |name: &String| order::address(name).map_or_else(|| name.clone(), |ip| ip.to_string());
    let mut params = CertificateParams::new(names.iter().map(bare).collect::<Vec<_>>())?;
    // Clients look at the alternative names only.
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key)?;
    Ok((key.serialize_pem(), request.der().to_vec()))
}
