//! The certificates of sites: where they come from, and which one a client gets.
//!
//! ```text
//!   settings.rs ─▶ Certificates::of_site ─▶ SiteCertificate ─▶ Source: files.rs, internal.rs
//!                                                 │                    auto.rs, on_demand ◀── acme/keeper
//!                                                 └─ none yet: a self-signed certificate (make.rs)
//! ```
//!
//! There is one [`Certificates`] in a process. It outlives reloads, so a site keeps its certificate. A snapshot of the
//! configuration holds a [`SiteCertificate`] for each site. A handshake asks it for an [`Identity`] by name. No
//! handshake waits here for an authority: a source obtains certificates on a fiber of its own and then replaces the
//! identity. The first handshake for a certificate of the state folder reads its file.

pub mod acme;
mod auto;
pub mod challenges;
mod files;
pub mod inspect;
mod internal;
mod make;
mod on_demand;
pub mod pem;
pub mod settings;
pub mod shared;
pub mod state;
pub mod trust;
pub mod x509;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use osier_tls::Identity;

use crate::log::operator::Say;

use self::acme::challenge::Board;
use self::acme::https::Https;
use self::acme::issue::{Resources, Subject};
use self::acme::keeper::{Keeper, Shelf, system_clock};
use self::acme::order::Presented;
use self::acme::settings::Settings;
use self::acme::storage::{Folder, InRedis, Lock, Locking, Pooled, Storage, Stored};
use self::auto::Auto;
use self::challenges::{Challenges, Given, Key};
use self::files::Files;
use self::internal::{Authority, Internal};
use self::on_demand::{OnDemand, ask};
use self::settings::{CertificateFiles, CertificateFrom};
use self::shared::{Listener, Shared, certificate_response, text_response};
use self::x509::{AltName, Certificate, Time};

/// Time between two looks at the files of certificates, and of ticket keys.
pub const LOOK: Duration = Duration::from_secs(10);

/// Time between two looks whether another machine still proves a name.
const BUSY: Duration = Duration::from_secs(1);

/// The longest wait for these machines, as long as an issuer may take for a proof. The order of this machine holds locks meanwhile.
const TURN: Duration = Duration::from_secs(300);

/// An origin of certificates, at work.
pub trait Source: Send + Sync {
    /// The identity for the name that a client asks for, in lower case. None while there is none. Every worker calls
    /// it.
    ///
    /// # Suspends
    /// Only while a small file of the state folder is read.
    fn find(&self, name: Option<&str>) -> Option<Identity>;

    /// Whether the identity that was not found may come within seconds, so that the handshake waits for it.
    fn is_coming(&self, _name: Option<&str>) -> bool {
        false
    }
}

/// The certificate of a site.
pub struct SiteCertificate {
    source: Arc<dyn Source>,
    /// The hosts of the site, for the self-signed certificate.
    hosts: Vec<String>,
    /// The self-signed certificate served until there is another, made for the first client. `None` if the handshake
    /// fails instead.
    stand_in: Option<OnceLock<Option<Identity>>>,
}

impl SiteCertificate {
    /// The identity for the name that a client asks for. None if no certificate can be made for the hosts of the site.
    ///
    /// # Suspends
    /// As [`Source::find`] does.
    pub fn find(&self, name: Option<&str>) -> Option<Identity> {
        let stand_in = || make::self_signed(&self.hosts, Time::now()).ok();
        self.source
            .find(name)
            .or_else(|| self.stand_in.as_ref()?.get_or_init(stand_in).clone())
    }

    /// Whether an identity that was not found may come within seconds.
    pub fn is_coming(&self, name: Option<&str>) -> bool {
        self.source.is_coming(name)
    }
}

/// A source without a certificate: its site serves a self-signed one.
struct Nothing;

impl Source for Nothing {
    fn find(&self, _name: Option<&str>) -> Option<Identity> {
        None
    }
}

/// The certificates of a process.
pub struct Certificates {
    say: Say,
    locations: OnceLock<Locations>,
    files: Mutex<HashMap<CertificateFiles, Arc<Files>>>,
    authority: Mutex<Option<Arc<Authority>>>,
    /// The certificates of sites with `tls = "auto"`, by their hosts.
    autos: Mutex<HashMap<Vec<String>, Arc<Auto>>>,
    /// The certificates of sites with `tls = "on-demand"`.
    on_demand: Arc<OnDemand>,
    /// Whether the fibers for certificates on demand run.
    is_asking: AtomicBool,
    /// Obtains and renews the certificates of `autos` and `on_demand`.
    keeper: Mutex<Option<Arc<Keeper>>>,
    /// The orders that have brought a certificate, and those that have failed.
    issued: AtomicU64,
    failed: AtomicU64,
    pub challenges: Challenges,
}

/// The folders and the shared state of the process. They are known once it has given up its privileges.
struct Locations {
    /// The root folder that the process has changed to.
    root: Option<PathBuf>,
    /// The state folder, as the process sees it.
    state: Option<PathBuf>,
    /// The state that several machines share. If there is one, it stores the certificates of public authorities.
    shared: Option<Arc<Shared>>,
}

impl Certificates {
    pub fn new(say: Say) -> Certificates {
        Certificates {
            on_demand: Arc::new(OnDemand::new(say.clone())),
            is_asking: AtomicBool::new(false),
            say,
            locations: OnceLock::new(),
            files: Mutex::default(),
            authority: Mutex::default(),
            autos: Mutex::default(),
            keeper: Mutex::default(),
            issued: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            challenges: Challenges::default(),
        }
    }

    /// Reads the files of a certificate while the process may still read them. [`of_site`](Certificates::of_site) finds
    /// them later.
    ///
    /// # Blocks the thread
    /// While the files are read.
    pub fn read(&self, from: &CertificateFrom) {
        if let CertificateFrom::Files(files) = from {
            self.open(files);
        }
    }

    /// Sets the folders of the process. Called once, after privileges are given up.
    pub fn settle(&self, root: Option<PathBuf>, state: Option<PathBuf>, shared: Option<Arc<Shared>>) {
        let _ = self.locations.set(Locations { root, state, shared });
    }

    /// The certificate of a site with these hosts. Reads its files again if they have changed.
    ///
    /// # Blocks the thread
    /// While files are read.
    pub fn of_site(&self, from: &CertificateFrom, hosts: Vec<String>) -> SiteCertificate {
        let source: Arc<dyn Source> = match from {
            CertificateFrom::Files(files) => self.open(files),
            CertificateFrom::Internal => match self.authority() {
                Ok(authority) => Arc::new(Internal::new(authority, hosts.clone())),
                Err(why) => {
                    let name = hosts.first().map_or("the default site", String::as_str);
                    self.say.error(format_args!(
                        "tls = \"internal\": {why}; {name} SERVES A SELF-SIGNED CERTIFICATE, which nobody trusts"
                    ));
                    Arc::new(Nothing)
                }
            },
            CertificateFrom::Auto(_) => match self.auto(&hosts) {
                Some(auto) => auto,
                None => Arc::new(Nothing),
            },
            CertificateFrom::OnDemand => Arc::clone(&self.on_demand) as Arc<dyn Source>,
        };
        let hosts = match hosts.is_empty() {
            true => vec!["localhost".to_owned()],
            false => hosts,
        };
        SiteCertificate {
            source,
            hosts,
            // A self-signed certificate for each made-up name would let clients use up memory and CPU.
            stand_in: (*from != CertificateFrom::OnDemand).then(OnceLock::new),
        }
    }

    /// Reads the files of certificates that have changed, and forgets the certificates that no site uses any more.
    ///
    /// # Blocks the thread
    /// While files are read.
    pub fn look(&self) {
        locked(&self.autos).retain(|_, auto| Arc::strong_count(auto) > 1);
        let files: Vec<Arc<Files>> = {
            let mut files = locked(&self.files);
            files.retain(|_, files| Arc::strong_count(files) > 1);
            files.values().cloned().collect()
        };
        let now = Time::now();
        files.iter().for_each(|files| files.look(self.root(), now));
    }

    /// The files of a certificate. Equal settings share them.
    fn open(&self, settings: &CertificateFiles) -> Arc<Files> {
        let known = locked(&self.files).get(settings).cloned();
        match known {
            Some(files) => {
                files.look(self.root(), Time::now());
                files
            }
            None => {
                let files = Files::open(settings.clone(), self.root(), self.say.clone());
                locked(&self.files).insert(settings.clone(), Arc::clone(&files));
                files
            }
        }
    }

    /// The certificate for these hosts. None without a state folder, or without a host.
    fn auto(&self, hosts: &[String]) -> Option<Arc<Auto>> {
        hosts.first()?;
        let folder = match self.shared() {
            Some(_) => None,
            None => Some(self.folder()?),
        };
        let mut autos = locked(&self.autos);
        let make = || Arc::new(Auto::new(hosts, folder, self.say.clone()));
        let auto = autos.entry(hosts.to_vec()).or_insert_with(make);
        Some(Arc::clone(auto))
    }

    /// Obtains and renews the certificates of `subjects` from now on, and those on demand if `on_demand` has settings
    /// for them. Stops renewing all others.
    pub fn keep(self: &Arc<Certificates>, mut subjects: Vec<Subject>, on_demand: Option<Settings>) {
        let folder = self.folder().filter(|_| self.shared().is_none());
        // Locked first: a name that becomes known meanwhile goes to the new keeper.
        let mut keeper = locked(&self.keeper);
        let moved = self
            .on_demand
            .forget(subjects.iter().flat_map(|subject| &subject.names));
        let asked = self.on_demand.set(on_demand.clone(), folder);
        let is_asked = on_demand.is_some();
        if let Some(settings) = on_demand {
            subjects.extend(asked.into_iter().map(|name| Subject {
                names: vec![name],
                settings: settings.clone(),
            }));
        }
        let Some(storage) = self.storage() else {
            if !subjects.is_empty() || is_asked {
                self.say.error(format_args!(
                    "tls = \"auto\": there is no folder for certificates: set 'state'"
                ));
            }
            return;
        };
        subjects.sort_by(|a, b| a.names.cmp(&b.names));
        subjects.dedup_by(|a, b| a.names == b.names);
        let before = keeper.take();
        if let Some(before) = &before {
            before.end();
        }
        if subjects.is_empty() && !is_asked {
            return;
        }
        let resources = Resources::new(
            storage,
            Arc::clone(self) as Arc<dyn Board>,
            Box::new(|issuer| {
                let issuer = issuer.clone();
                let https = osier::shield(|| osier::unblock(move || Https::to(&issuer)));
                Ok(Arc::new(https?))
            }),
        );
        let shelf = Arc::clone(self) as Arc<dyn Shelf>;
        let next = Keeper::new(
            subjects,
            resources,
            shelf,
            self.say.clone(),
            system_clock(),
            before.as_deref(),
        );
        // Their sites do not have the certificates yet.
        next.look_again(&moved);
        let running = Arc::clone(keeper.insert(next));
        let fiber = osier::fiber::Builder::new().name("renewals");
        drop(fiber.spawn(move || running.run()));
        drop(keeper);
        if is_asked {
            self.start_asking();
        }
    }

    /// Starts the fibers of [`OnDemand::load`] and [`OnDemand::run`], once.
    fn start_asking(self: &Arc<Certificates>) {
        if self.is_asking.swap(true, Ordering::Relaxed) {
            return;
        }
        let keep = |certificates: &Certificates, name: &str, settings, is_awaited| {
            let keeper = locked(&certificates.keeper).clone();
            let names = vec![name.to_owned()];
            keeper.inspect(|keeper| keeper.add(Subject { names, settings }, is_awaited));
        };
        let certificates = Arc::clone(self);
        let loading = osier::fiber::Builder::new().name("stored certificates on demand");
        drop(loading.spawn(move || {
            let find = |name: &str| {
                certificates
                    .storage()
                    .map_or(Ok(None), |storage| storage.certificate(name))
            };
            let keep = |name: &str, settings| keep(&certificates, name, settings, false);
            certificates.on_demand.load(&find, &keep);
        }));
        let certificates = Arc::clone(self);
        let asking = osier::fiber::Builder::new().name("certificates on demand");
        drop(asking.spawn(move || {
            let keep = |name: &str, settings| keep(&certificates, name, settings, true);
            certificates.on_demand.run(&ask, &keep);
        }));
    }

    fn storage(&self) -> Option<Arc<dyn Storage>> {
        match self.shared() {
            Some(shared) => Some(Arc::new(InRedis(Arc::clone(shared)))),
            None => Some(Arc::new(Pooled(self.folder()?))),
        }
    }

    fn shared(&self) -> Option<&Arc<Shared>> {
        self.locations.get()?.shared.as_ref()
    }

    fn folder(&self) -> Option<Folder> {
        let state = self.locations.get()?.state.as_deref()?;
        Some(Folder::new(state.join("acme")))
    }

    /// Removes the temporary files that killed processes have left in the state folder.
    ///
    /// # Blocks the thread
    /// While the disk is busy.
    fn remove_abandoned(&self) {
        let state = self.locations.get().and_then(|locations| locations.state.as_deref());
        state.inspect(|state| internal::remove_abandoned(state));
        self.folder().inspect(Folder::remove_abandoned);
    }

    /// The internal authority, opened when a site first needs it.
    fn authority(&self) -> Result<Arc<Authority>, String> {
        let mut authority = locked(&self.authority);
        if let Some(authority) = &*authority {
            return Ok(Arc::clone(authority));
        }
        let state = self.locations.get().and_then(|locations| locations.state.as_deref());
        let state = state.ok_or("there is no folder for the authority: set 'state'")?;
        let opened = Arc::new(Authority::open(state, &self.say)?);
        Ok(Arc::clone(authority.insert(opened)))
    }

    /// The names of certificates, and the ends of their validity in seconds since 1970: those that end first, `count`
    /// at most.
    pub fn ends(&self, count: usize) -> Vec<(String, i64)> {
        let mut ends = self.on_demand.ends();
        ends.extend(locked(&self.autos).values().filter_map(|auto| auto.ends()));
        let files: Vec<Arc<Files>> = locked(&self.files).values().cloned().collect();
        ends.extend(files.iter().filter_map(|files| {
            let leaf = Certificate::parse(files.find(None)?.chain().next()?).ok()?;
            let name = leaf.names.first().map(AltName::to_string);
            Some((name.unwrap_or_else(|| leaf.subject.to_string()), leaf.not_after.0))
        }));
        ends.sort_by(|(name, end), (other, other_end)| (end, name).cmp(&(other_end, other)));
        // Several sites may have certificates of one name: the one that ends first counts.
        let mut names = HashSet::new();
        ends.retain(|(name, _)| names.insert(name.clone()));
        ends.truncate(count);
        ends
    }

    /// The number of certificates that are not there: of sites with a self-signed one, and of names on demand whose
    /// clients are refused.
    pub fn missing(&self) -> usize {
        let autos = locked(&self.autos)
            .values()
            .filter(|auto| auto.ends().is_none())
            .count();
        let files: Vec<Arc<Files>> = locked(&self.files).values().cloned().collect();
        let files = files.iter().filter(|files| files.find(None).is_none()).count();
        autos + files + self.on_demand.missing()
    }

    /// The orders that have brought a certificate, and those that have failed.
    pub fn orders(&self) -> [u64; 2] {
        [&self.issued, &self.failed].map(|count| count.load(Ordering::Relaxed))
    }

    fn root(&self) -> Option<&Path> {
        self.locations.get()?.root.as_deref()
    }
}

impl Board for Certificates {
    fn give_text(&self, token: &str, text: &str) -> Box<dyn Presented> {
        let own = self.challenges.give_text(token, text.to_owned());
        Box::new(self.on_all_machines(own, &Key::Token(token.to_owned()), || text_response(text)))
    }

    fn give_certificate(&self, name: &str, certificate: &[u8], key: &[u8]) -> Result<Box<dyn Presented>, String> {
        let identity = Identity::of_challenge(certificate.to_vec(), key).map_err(|error| error.to_string())?;
        let turn = self.turn_to_prove(name, TURN)?;
        let (own, field) = (
            self.challenges.give_identity(name, identity),
            Key::Name(name.to_owned()),
        );
        let shown = self.on_all_machines(own, &field, || certificate_response(certificate, key));
        Ok(Box::new(InTurn {
            _shown: shown,
            _turn: turn,
        }))
    }
}

/// A response to a challenge that this machine shows, and that the other machines show.
struct Everywhere {
    _here: Given,
    _there: Option<shared::Given>,
}

impl Presented for Everywhere {}

/// A certificate that all machines show, and the lock that keeps the others from showing one of their own.
struct InTurn {
    _shown: Everywhere,
    _turn: Option<Lock>,
}

impl Presented for InTurn {}

impl Certificates {
    /// Waits until no other machine proves the name: a handshake can show one certificate. `None` if there are no other machines,
    /// and while Redis is away.
    ///
    /// # Errors
    /// When others still prove it after `patience`.
    fn turn_to_prove(&self, name: &str, patience: Duration) -> Result<Option<Lock>, String> {
        let Some(shared) = self.shared() else { return Ok(None) };
        let (storage, until) = (InRedis(Arc::clone(shared)), osier::time::now() + patience);
        loop {
            match storage.lock(&format!("proof/{name}")) {
                Ok(Locking::Taken(turn)) => return Ok(Some(turn)),
                Ok(Locking::Busy(_)) if osier::time::now() < until => osier::sleep(BUSY),
                Ok(Locking::Busy(_)) => return Err(format!("other machines still prove {name} after {patience:?}")),
                Err(_) => return Ok(None),
            }
        }
    }

    /// Shows a response on the other machines too. While Redis is away, this machine shows it alone: the issuer may ask
    /// this one.
    fn on_all_machines(&self, here: Given, key: &Key, response: impl FnOnce() -> serde_json::Value) -> Everywhere {
        let there = self.shared().and_then(|shared| shared.give(key, &response()));
        Everywhere {
            _here: here,
            _there: there,
        }
    }

    /// Serves a certificate on demand, too, if its name is known there. A name may have a site on one listener while clients of
    /// another listener, which does not list it, ask for it. There is one order for both.
    fn put_on_demand(&self, subject: &Subject, stored: &Stored) -> Result<(), String> {
        match &subject.names[..] {
            [name] => self.on_demand.put(name, stored).map(drop),
            _ => Ok(()),
        }
    }
}

impl Listener for Certificates {
    fn changed(&self, names: &HashSet<String>) {
        let keeper = locked(&self.keeper).clone();
        if let Some(keeper) = keeper {
            keeper.look_again(names);
        }
    }
}

impl Shelf for Certificates {
    fn put(&self, subject: &Subject, stored: &Stored) -> Result<(), String> {
        let auto = locked(&self.autos).get(&subject.names).cloned();
        auto.map_or(Ok(()), |auto| auto.replace(stored))?;
        self.put_on_demand(subject, stored)
    }

    fn hold(&self, subject: &Subject, stored: &Stored) -> Result<(), String> {
        let auto = locked(&self.autos).get(&subject.names).cloned();
        auto.map_or(Ok(()), |auto| auto.hold(stored))?;
        self.put_on_demand(subject, stored)
    }

    fn may_order(&self, subject: &Subject) -> bool {
        // The configuration lists these names. 'ask' is for those that it does not list.
        if locked(&self.autos).contains_key(&subject.names) {
            return true;
        }
        self.on_demand.may_order(subject.name(), &ask)
    }

    fn missing(&self, subject: &Subject) {
        let auto = locked(&self.autos).get(&subject.names).cloned();
        auto.inspect(|auto| auto.tell_missing());
    }

    fn issued(&self) {
        self.issued.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self, subject: &Subject) -> &'static str {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let auto = locked(&self.autos).get(&subject.names).cloned();
        let is_on_demand = subject.names.len() == 1;
        let has_expired_one = is_on_demand && self.on_demand.failed(subject.name());
        match auto {
            Some(auto) if auto.ends().is_some() => "an expired one is served, which browsers refuse",
            Some(_) => "a self-signed one is served, which browsers refuse",
            None if has_expired_one => "an expired one is served, which browsers refuse",
            None => "clients that ask for it are refused",
        }
    }
}

/// Starts the fiber that watches files, and the fiber that polls shared state.
pub fn watch(certificates: &Arc<Certificates>) {
    if let Some(shared) = certificates.shared().cloned() {
        let certificates = Arc::clone(certificates);
        let poll = osier::fiber::Builder::new().name("shared state");
        drop(poll.spawn(move || shared.run(&certificates.challenges, &*certificates)));
    }
    let certificates = Arc::clone(certificates);
    let watch = osier::fiber::Builder::new().name("certificates");
    drop(watch.spawn(move || {
        osier::unblock({
            let certificates = Arc::clone(&certificates);
            move || certificates.remove_abandoned()
        });
        loop {
            osier::sleep(LOOK);
            let certificates = Arc::clone(&certificates);
            osier::unblock(move || certificates.look());
        }
    }));
}

/// Locks a mutex of this module. No code panics while it holds one of these locks.
fn locked<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// A name on demand has a stored certificate, and serves it.
    fn serve_on_demand(certificates: &Arc<Certificates>, subject: &Subject) {
        let name = Some(subject.name());
        certificates.on_demand.set(Some(subject.settings.clone()), None);
        assert!(certificates.on_demand.find(name).is_none());
        let loading = osier::spawn({
            let certificates = Arc::clone(certificates);
            move || {
                let on_demand = &certificates.on_demand;
                on_demand.load(&|name| Ok(Some(Stored::self_signed(name))), &|_, _| {});
            }
        });
        while certificates.on_demand.find(name).is_none() {
            osier::sleep(Duration::from_millis(1));
        }
        loading.cancel();
        let _ = loading.join();
    }

    /// The certificate on demand of such a name was never renewed: the order was that of the site alone.
    #[test]
    fn a_name_with_a_site_on_one_listener_and_on_demand_on_another_is_renewed_on_both() {
        let folder = testkit::Folder::new();
        osier::run(move || {
            let certificates = Arc::new(Certificates::new(Say::new(|_| {})));
            certificates.settle(None, Some(folder.path().to_owned()), None);
            let subject = Subject {
                names: vec!["a.example.org".to_owned()],
                settings: Settings {
                    issuers: vec![acme::settings::Issuer::new("https://127.0.0.1:1/dir")],
                    ..Settings::default()
                },
            };
            let from = CertificateFrom::Auto(Box::new(subject.settings.clone()));
            let site = certificates.of_site(&from, subject.names.clone());
            serve_on_demand(&certificates, &subject);
            for serve in [Certificates::put, Certificates::hold] {
                let renewed = Stored::self_signed(subject.name());
                let folder = certificates.folder().unwrap();
                folder.put_certificate(subject.name(), &renewed).unwrap();
                serve(&certificates, &subject, &renewed).unwrap();
                let leaf = |identity: Identity| identity.chain().next().unwrap().to_vec();
                let shown = [site.find(None), certificates.on_demand.find(Some(subject.name()))];
                let expected = leaf(renewed.identity().unwrap());
                assert_eq!(
                    shown.map(|identity| leaf(identity.unwrap())),
                    [expected.clone(), expected]
                );
            }
        });
    }

    /// Machines that proved one name at once replaced and removed each other's response.
    #[test]
    fn machines_that_prove_one_name_at_once_leave_each_other_alone() {
        let Some(redis) = testkit::Redis::start(&[]) else {
            return;
        };
        let runtime = osier::Runtime::builder().workers(1).build().unwrap();
        runtime.run(move || {
            let machine = || {
                let client = osier_web::pubsub::Client::new(osier_web::Address::Unix(redis.socket()));
                let shared = Shared::new(client, "osier:".into(), None, None, Say::new(|_| {}));
                let certificates = Arc::new(Certificates::new(Say::new(|_| {})));
                certificates.settle(None, None, Some(Arc::new(shared)));
                watch(&certificates);
                certificates
            };
            let eventually = |what: &str, is_so: &dyn Fn() -> bool| {
                let wait = || {
                    while !is_so() {
                        osier::sleep(Duration::from_millis(20));
                    }
                };
                osier::timeout(testkit::DEADLINE, wait).unwrap_or_else(|_| panic!("not in time: {what}"));
            };
            let [one, two, third] = [0, 1, 2].map(|_| machine());

            let text = || third.challenges.text("/.well-known/acme-challenge/a");
            let (first, second) = (one.give_text("a", "a.thumbprint"), two.give_text("a", "a.thumbprint"));
            eventually("a response", &|| text().is_some());
            drop(first);
            eventually("one is withdrawn", &|| {
                redis.ask("HLEN osier:challenges").contains(":1")
            });
            // It has polled once more.
            osier::sleep(Duration::from_millis(2500));
            assert!(text().is_some());
            drop(second);
            eventually("none is left", &|| text().is_none());

            let pair = || {
                let key = rcgen::KeyPair::generate().unwrap();
                let certificate = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
                (
                    certificate.self_signed(&key).unwrap().der().to_vec(),
                    key.serialize_der(),
                )
            };
            let shown = |machine: &Certificates| {
                let identity = machine.challenges.identity("a.example");
                identity.map(|identity| identity.chain().next().unwrap().to_vec())
            };
            let all_show = |expected: &Vec<u8>| {
                [&one, &two, &third]
                    .iter()
                    .all(|at| shown(at).as_ref() == Some(expected))
            };
            let (first, second) = (pair(), pair());
            let given = one.give_certificate("a.example", &first.0, &first.1).unwrap();
            // No machine waits for ever, and none gives up at its first look.
            let (begun, patience) = (osier::time::now(), Duration::from_millis(1500));
            let waited = two.turn_to_prove("a.example", patience);
            assert_eq!(waited.err().unwrap(), "other machines still prove a.example after 1.5s");
            assert!(osier::time::now().saturating_duration_since(begun) >= patience);
            let waiting = osier::spawn_local({
                let (two, second) = (Arc::clone(&two), second.clone());
                move || two.give_certificate("a.example", &second.0, &second.1).unwrap()
            });
            osier::sleep(Duration::from_secs(2));
            eventually("the first certificate", &|| all_show(&first.0));
            drop(given);
            let given = waiting.join().unwrap();
            eventually("the second certificate", &|| all_show(&second.0));
            drop(given);
            eventually("none is left", &|| shown(&third).is_none());
        });
    }

    /// Its renewals asked `ask`, which says no to names that the configuration lists, and ended without a line.
    #[test]
    fn a_name_on_demand_that_gets_a_site_of_its_own_is_renewed_without_a_question() {
        let folder = testkit::Folder::new();
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ask = format!("http://{}/ask", server.local_addr().unwrap());
        // It ends with the process.
        std::thread::spawn(move || {
            for client in server.incoming() {
                let mut client = client.unwrap();
                let _ = client.read(&mut [0; 4096]);
                let _ = client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
            }
        });
        // Some of its fibers never end by themselves.
        let runtime = osier::Runtime::builder().workers(1).build().unwrap();
        runtime.run(move || {
            let certificates = Arc::new(Certificates::new(Say::new(|_| {})));
            certificates.settle(None, Some(folder.path().to_owned()), None);
            let settings = Settings {
                // Nobody is there.
                issuers: vec![acme::settings::Issuer::new("https://127.0.0.1:1/dir")],
                ask: Some(ask),
                ..Settings::default()
            };
            let subject = Subject {
                names: vec!["a.example.org".to_owned()],
                settings: settings.clone(),
            };
            serve_on_demand(&certificates, &subject);
            let from = CertificateFrom::Auto(Box::new(settings.clone()));
            let _site = certificates.of_site(&from, subject.names.clone());
            assert!(certificates.may_order(&subject));
            assert_eq!(certificates.ends(9).len(), 1);
            certificates.keep(vec![subject], Some(settings));
            // The site has no certificate yet. The one on demand would be renewed by nobody.
            assert!(certificates.ends(9).is_empty());
            certificates.keep(Vec::new(), None);
        });
    }
}
