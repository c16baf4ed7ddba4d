//! Two processes that keep the same certificates in one storage, while the issuer, the storage and the processes fail.
//!
//! Invariants:
//! - Only the process that holds the lock of a name stores its order and its certificate.
//! - A certificate that is served is for its names and has its key, and no process serves one that has run out.
//! - No order is wasted: there are no more of them than certificates and setbacks.
//! - Once all is well again, every process serves every name. No lock and no proof is left.
//!
//! The storage is in memory, or it is the state folder on the disk of a machine that loses its power at times.
//!
//! `cargo xtask sim` runs more seeds than the test does.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use osier::sim::{Faults, Host, HostOptions, Sim, World, random};

use super::issue::{self, Resources, Subject};
use super::jose::AccountKey;
use super::keeper::{Clock, Keeper, Shelf};
use super::order::Kind;
use super::protocol::{Received, Transport};
use super::scripted::{DIRECTORY, Issuer, Memory, Script};
use super::settings::{Issuer as At, Settings};
use super::storage::{Advice, Folder, Held, Locking, Pending, Pooled, Storage, Stored};
use crate::log::operator::Say;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const NAMES: [&str; 2] = ["a.example", "b.example"];

fn below(bound: u64) -> u64 {
    random() % bound
}

fn some_of(longest: Duration) -> Duration {
    longest * below(1000) as u32 / 1000
}

/// The state that the processes share, and the faults there.
struct Site {
    issuer: Arc<Issuer>,
    memory: Memory,
    /// The state folder, if the storage is there and not in memory.
    folder: Option<Pooled>,
    /// The process that holds the lock of a name.
    locks: Mutex<HashMap<String, usize>>,
    /// Whether requests and calls of the storage fail now and then.
    is_unsteady: AtomicBool,
    /// They fail once in so many times.
    steadiness: u64,
    /// The number of failures, of whatever kind.
    setbacks: AtomicUsize,
    /// The number of certificates that were stored or given up to a full storage.
    stored: AtomicUsize,
}

impl Site {
    fn storage(&self) -> &dyn Storage {
        match &self.folder {
            Some(folder) => folder,
            None => &self.memory,
        }
    }

    /// Fails now and then.
    fn falter(&self, kind: io::ErrorKind) -> io::Result<()> {
        match self.is_unsteady.load(Relaxed) && below(self.steadiness) == 0 {
            true => {
                self.setbacks.fetch_add(1, Relaxed);
                Err(kind.into())
            }
            false => Ok(()),
        }
    }
}

/// The way of a process to the issuer: requests take time, and some are lost, or their responses are.
struct Wire(Arc<Site>);

impl Transport for Wire {
    fn send(&self, method: &str, url: &str, body: Option<&str>) -> io::Result<Received> {
        osier::sleep(some_of(Duration::from_secs(2)));
        self.0.falter(io::ErrorKind::ConnectionReset)?;
        let sent = self.0.issuer.send(method, url, body);
        osier::sleep(some_of(Duration::from_secs(2)));
        self.0.falter(io::ErrorKind::ConnectionReset)?;
        if sent.is_err() {
            self.0.setbacks.fetch_add(1, Relaxed);
        }
        sent
    }
}

/// The storage as a process sees it.
struct SimulatedStorage {
    site: Arc<Site>,
    process: usize,
}

/// A lock of a name, given back when the process dies.
struct Lock {
    site: Arc<Site>,
    name: String,
    _held: Box<dyn Held>,
}

impl Held for Lock {}

impl Drop for Lock {
    fn drop(&mut self) {
        self.site.locks.lock().unwrap().remove(&self.name);
    }
}

impl SimulatedStorage {
    fn visit(&self) -> io::Result<()> {
        osier::sleep(some_of(Duration::from_millis(5)));
        self.site.falter(io::ErrorKind::TimedOut)
    }

    fn check_lock(&self, name: &str) {
        let holder = self.site.locks.lock().unwrap().get(name).copied();
        assert_eq!(holder, Some(self.process), "who stores an order of {name} has its lock");
    }

    fn note<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if done.is_err() {
            self.site.setbacks.fetch_add(1, Relaxed);
        }
        done
    }
}

impl Storage for SimulatedStorage {
    fn description(&self) -> &'static str {
        "the storage"
    }

    fn lock(&self, name: &str) -> io::Result<Locking> {
        self.visit()?;
        let held: Box<dyn Held> = match &self.site.folder {
            None if self.site.locks.lock().unwrap().contains_key(name) => {
                return Ok(Locking::Busy(Duration::from_secs(60)));
            }
            None => Box::new(()),
            Some(folder) => match self.note(folder.lock(name))? {
                Locking::Taken(held) => held,
                busy => return Ok(busy),
            },
        };
        let other = self.site.locks.lock().unwrap().insert(name.to_owned(), self.process);
        assert_eq!(other, None, "two processes have the lock of {name}");
        Ok(Locking::Taken(Box::new(Lock {
            site: Arc::clone(&self.site),
            name: name.to_owned(),
            _held: held,
        })))
    }

    fn certificate(&self, name: &str) -> io::Result<Option<Stored>> {
        self.visit()?;
        self.note(self.site.storage().certificate(name))
    }

    fn put_certificate(&self, name: &str, stored: &Stored) -> io::Result<()> {
        self.visit()?;
        self.check_lock(name);
        self.note(self.site.storage().put_certificate(name, stored))?;
        self.site.stored.fetch_add(1, Relaxed);
        Ok(())
    }

    fn pending(&self, name: &str) -> io::Result<Option<Pending>> {
        self.visit()?;
        self.note(self.site.storage().pending(name))
    }

    fn put_pending(&self, name: &str, pending: &Pending) -> io::Result<()> {
        self.visit()?;
        self.check_lock(name);
        self.note(self.site.storage().put_pending(name, pending))
    }

    fn advice(&self, name: &str) -> io::Result<Option<Advice>> {
        self.visit()?;
        self.note(self.site.storage().advice(name))
    }

    fn put_advice(&self, name: &str, advice: &Advice) -> io::Result<()> {
        self.visit()?;
        self.note(self.site.storage().put_advice(name, advice))
    }

    fn account(&self, issuer: &str) -> io::Result<AccountKey> {
        self.visit()?;
        self.note(self.site.storage().account(issuer))
    }
}

/// The ends of the certificates that a process serves, by name, in seconds since 1970.
type Served = Arc<Mutex<HashMap<String, i64>>>;

struct Listeners {
    served: Served,
    /// The last certificate of each name, with its end. It is put again at each look, and checked once.
    checked: Mutex<HashMap<String, (Stored, i64)>>,
}

impl Listeners {
    /// Returns the end of a certificate.
    fn check(&self, subject: &Subject, stored: &Stored) -> i64 {
        let mut checked = self.checked.lock().unwrap();
        if let Some((last, end)) = checked.get(subject.name())
            && last == stored
        {
            return *end;
        }
        assert!(
            subject.is_served_by(stored),
            "the certificate of another name is served"
        );
        stored.identity().expect("a certificate that is served has its key");
        let end = issue::end(&stored.chain);
        checked.insert(subject.name().to_owned(), (stored.clone(), end));
        end
    }
}

impl Shelf for Listeners {
    fn put(&self, subject: &Subject, stored: &Stored) -> Result<(), String> {
        let end = self.check(subject, stored);
        osier::sim::note(format_args!("serves {} until {end}", subject.name()));
        self.served.lock().unwrap().insert(subject.name().to_owned(), end);
        Ok(())
    }
}

fn system_clock_of_host() -> Clock {
    Arc::new(seconds_now)
}

fn seconds_now() -> i64 {
    let since = osier::time::system_now().duration_since(SystemTime::UNIX_EPOCH);
    since.expect("a simulation begins in 2026").as_secs().cast_signed()
}

/// Runs a process, until it dies.
fn process(site: &Arc<Site>, number: usize, served: &Served) {
    served.lock().unwrap().clear();
    let subjects = NAMES.map(|name| Subject {
        names: vec![name.into()],
        settings: Settings {
            issuers: vec![At::new(DIRECTORY)],
            kinds: vec![Kind::Http01],
            ..Settings::default()
        },
    });
    let storage = SimulatedStorage {
        site: Arc::clone(site),
        process: number,
    };
    let for_wires = Arc::clone(site);
    let resources = Resources::new(
        Arc::new(storage),
        Arc::new(site.issuer.shown.clone()),
        Box::new(move |_| Ok(Arc::new(Wire(Arc::clone(&for_wires))))),
    );
    let shelf = Arc::new(Listeners {
        served: Arc::clone(served),
        checked: Mutex::default(),
    });
    let of_lines = Arc::clone(site);
    let say = Say::new(move |line| {
        osier::sim::note(format_args!("{}", line.text));
        // The other process takes the turns in which the issuer accepts a nonce: this one may give its order up.
        if line.text.to_string().contains("badNonce") {
            of_lines.setbacks.fetch_add(1, Relaxed);
        }
    });

    Keeper::new(subjects.into(), resources, shelf, say, system_clock_of_host(), None).run();
}

/// Checks that nothing has run out that a process serves.
fn check_served(served: &[Served; 2]) {
    for (number, served) in served.iter().enumerate() {
        for (name, &end) in &*served.lock().unwrap() {
            let left = end - seconds_now();
            assert!(left > 0, "process {number} serves {name} for {} s too long", -left);
        }
    }
}

fn scenario(world: &World) {
    let lifetime = [6 * DAY, 9 * DAY][below(2) as usize];
    // An issuer that refuses nonces needs five times as many requests for a certificate.
    let (accepts_each, steadiness) = [(0, 60), (5, 400)][below(2) as usize];
    let is_on_disk = below(2) == 0;
    let site = Arc::new(Site {
        issuer: Issuer::new(Script {
            kinds: vec!["http-01"],
            accepts_each,
            lifetime: Some(lifetime),
            // To verify them would be a fifth of a run.
            believes: true,
            ..Script::default()
        }),
        memory: Memory::default(),
        folder: is_on_disk.then(|| Pooled(Folder::new("/state".into()))),
        locks: Mutex::default(),
        is_unsteady: AtomicBool::new(below(3) > 0),
        steadiness,
        setbacks: AtomicUsize::new(0),
        stored: AtomicUsize::new(0),
    });
    let served: [Served; 2] = Default::default();
    // Runs nothing. Its disk is that of both processes.
    let machine = world.host("machine", || ());
    machine.wait();
    let hosts = [0, 1].map(|number| {
        let (site, served) = (Arc::clone(&site), Arc::clone(&served[number]));
        let options = HostOptions {
            disk: Some(machine.clone()),
            ..HostOptions::default()
        };
        world.host_with(&format!("process-{number}"), options, move || {
            process(&site, number, &served)
        })
    });
    if is_on_disk && site.is_unsteady.load(Relaxed) {
        world.faults(Faults {
            disk_full: 300,
            disk_error: 500,
            ..Faults::none()
        });
    }
    let begun = osier::time::now();
    while osier::time::now() - begun < 3 * lifetime {
        // Whatever it is, it is over after half a day. The last third of a lifetime is longer.
        for _ in 0..8 {
            osier::sleep(some_of(lifetime / 8));
            check_served(&served);
        }
        let host = &hosts[below(2) as usize];
        let duration = some_of(12 * HOUR);
        match below(7) {
            0 => {
                site.setbacks.fetch_add(NAMES.len(), Relaxed);
                host.crash();
                osier::sleep(duration);
                host.restart();
            }
            1 => {
                osier::sim::note(format_args!("the issuer is away for {duration:?}"));
                site.issuer.script.lock().unwrap().is_down = true;
                osier::sleep(duration);
                site.issuer.script.lock().unwrap().is_down = false;
            }
            2 => {
                osier::sim::note(format_args!("the storage is full for {duration:?}"));
                site.memory.is_full.store(true, Relaxed);
                machine.fill_disk(true);
                osier::sleep(duration);
                machine.fill_disk(false);
                site.memory.is_full.store(false, Relaxed);
            }
            3 => host.jump(some_of(HOUR)),
            4 if is_on_disk => {
                site.setbacks.fetch_add(2 * NAMES.len(), Relaxed);
                machine.crash();
                hosts.iter().for_each(Host::crash);
                osier::sleep(duration);
                machine.restart();
                hosts.iter().for_each(Host::restart);
            }
            _ => {}
        }
    }

    // The longest pause after a failure is two and a half days.
    site.is_unsteady.store(false, Relaxed);
    world.faults(Faults::none());
    osier::sleep(3 * DAY);
    check_served(&served);
    for served in &served {
        assert_eq!(served.lock().unwrap().len(), NAMES.len(), "every name is served");
    }
    let orders = site.issuer.counts().1.len();
    let (stored, setbacks) = (site.stored.load(Relaxed), site.setbacks.load(Relaxed));
    assert!(
        orders <= stored + setbacks,
        "{orders} orders for {stored} certificates, with {setbacks} setbacks"
    );
    // An order may be on its way, and another may begin meanwhile.
    let is_over = || site.locks.lock().unwrap().is_empty() && site.issuer.shown.is_empty();
    let ends = (0..20).any(|_| {
        osier::sleep(Duration::from_secs(60));
        is_over()
    });
    assert!(ends, "a lock or a proof is left");
}

#[test]
fn certificates_are_renewed_whatever_fails_for_half_a_day() {
    let sim = Sim::new(0).limit(365 * DAY);
    // In the first, an order is given up because nonces are refused. In the second, one is on its way at the end.
    for seed in [3768, 7866] {
        sim.clone().check(seed..seed + 1, scenario);
    }
    sim.check(testkit::seeds(2), scenario);
}
