//! The whole client against an issuer in memory.

mod changes;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use testkit::Folder;

use super::issue::{self, Resources, Subject, advice};
use super::jose::Binding;
use super::keeper::{Clock, Keeper, Shelf, system_clock};
use super::order::Kind;
use super::protocol::{Error, Received, Transport};
use super::schedule::Window;
use super::scripted::{DIRECTORY, Issuer, Memory, Script};
use super::settings::{Issuer as At, Settings};
use super::storage::{Advice, Folder as FolderStorage, Locking, Origin, Pooled, Storage, Stored};
use crate::log::operator::Say;

fn script() -> Script {
    Script {
        kinds: vec!["http-01", "tls-alpn-01", "dns-01"],
        ..Script::default()
    }
}

fn settings() -> Settings {
    Settings {
        issuers: vec![At::new(DIRECTORY)],
        email: Some("admin@example.org".into()),
        kinds: vec![Kind::Http01],
        ..Settings::default()
    }
}

fn subject(names: &[&str]) -> Subject {
    let names = names.iter().map(|&name| name.to_owned()).collect();
    Subject {
        names,
        settings: settings(),
    }
}

/// Orders a certificate from the first issuer.
fn obtain(subject: &Subject, resources: &Resources) -> Result<Stored, Error> {
    let settings = &subject.settings;
    let obtained = issue::obtain(subject, &settings.issuers[0], resources, &settings.kinds, None)?;
    assert!(obtained.unstored.is_none());
    Ok(obtained.stored)
}

fn resources(issuer: &Arc<Issuer>, folder: &Path) -> Resources {
    means_on(issuer, Arc::new(Pooled(FolderStorage::new(folder.to_owned()))))
}

fn means_on(issuer: &Arc<Issuer>, storage: Arc<dyn Storage>) -> Resources {
    let transport = issuer.clone();
    Resources::new(
        storage,
        Arc::new(issuer.shown.clone()),
        Box::new(move |_| Ok(Arc::new(transport.clone()))),
    )
}

/// Runs on a fiber with a clock that jumps to the next deadline.
fn run<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let clock = osier::time::VirtualClock::new();
    let runtime = osier::Runtime::builder().workers(1).clock(clock).build().unwrap();
    runtime.run(body)
}

/// Orders a certificate for the subject, and returns it with the issuer and the folder.
fn order(script: Script, subject: Subject) -> (Result<Stored, Error>, Arc<Issuer>, Folder) {
    let (issuer, folder) = (Issuer::new(script), Folder::new());
    let resources = resources(&issuer, folder.path());
    let done = run(move || obtain(&subject, &resources));
    (done, issuer, folder)
}

#[test]
fn a_certificate_is_ordered_by_each_proof_and_nothing_stays_behind() {
    for kind in [Kind::Http01, Kind::TlsAlpn01] {
        let mut wanted = subject(&["a.example", "b.example"]);
        wanted.settings.kinds = vec![kind];
        let (done, issuer, folder) = order(script(), wanted.clone());
        let stored = done.unwrap();
        assert!(wanted.is_served_by(&stored));
        assert!(stored.key.contains("PRIVATE KEY") && issuer.shown.is_empty());
        let storage = FolderStorage::new(folder.path().to_owned());
        assert!(storage.certificate("a.example").unwrap() == Some(stored));
        assert!(storage.pending("a.example").unwrap().is_none());
    }
}

#[test]
fn addresses_get_certificates_too() {
    let wanted = subject(&["[2001:db8::1]", "192.0.2.7"]);
    let (done, ..) = order(script(), wanted.clone());
    assert!(wanted.is_served_by(&done.unwrap()));
}

#[test]
fn an_issuer_may_ask_for_the_names_of_the_order_alone() {
    for other in ["b.example", "a.example;rm", ""] {
        let asks = Script {
            asks_for: Some(other.into()),
            ..script()
        };
        let (done, issuer, _folder) = order(asks, subject(&["a.example"]));
        let why = done.err().unwrap().to_string();
        assert!(why.contains("which is not in the order"), "{why}");
        assert!(issuer.shown.is_empty());
    }
}

#[test]
fn a_certificate_for_another_key_is_not_stored_and_ordered_anew() {
    let mixes_up = Script {
        mixes_up_keys: true,
        ..script()
    };
    let wanted = subject(&["a.example"]);
    let (done, issuer, folder) = order(mixes_up, wanted.clone());
    let why = done.err().unwrap().to_string();
    assert!(why.contains("cannot be served"), "{why}");
    let storage = FolderStorage::new(folder.path().to_owned());
    assert!(storage.certificate("a.example").unwrap().is_none());
    let resources = resources(&issuer, folder.path());
    let stored = run(move || obtain(&wanted, &resources)).unwrap();
    assert!(storage.certificate("a.example").unwrap() == Some(stored));
}

#[test]
fn refused_nonces_are_replaced() {
    let (done, ..) = order(
        Script {
            accepts_each: 7,
            ..script()
        },
        subject(&["a.example"]),
    );
    done.unwrap();
}

#[test]
fn a_proof_that_fails_says_why_in_one_line() {
    let (done, issuer, _folder) = order(
        Script {
            fails: Some("b.example".into()),
            ..script()
        },
        subject(&["a.example", "b.example"]),
    );
    let why = done.err().unwrap().to_string();
    assert_eq!(
        why,
        "b.example is invalid: nobody answers there; nobody answers there; nobody answers there"
    );
    assert!(issuer.shown.is_empty());
}

#[test]
fn a_wildcard_needs_a_program_for_dns() {
    let (done, ..) = order(script(), subject(&["*.example.org"]));
    let why = done.err().unwrap().to_string();
    assert!(
        why.contains(
            "*.example.org cannot be proved: the issuer offers dns-01, and this site has http-01; a wildcard needs"
        ),
        "{why}"
    );
}

#[test]
fn the_program_for_dns_is_run_with_the_record() {
    let folder = Folder::new();
    let program = folder.write(
        "dns",
        "#!/bin/sh\necho \"$@\" >> \"$0.log\"\ncase $2 in *bad*) echo no such zone >&2; exit 1;; esac\n",
    );
    let mut mode = program.metadata().unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let mut wanted = subject(&["bad.example"]);
    (wanted.settings.kinds, wanted.settings.dns) = (vec![Kind::Dns01], Some(program));
    let (issuer, state) = (Issuer::new(script()), Folder::new());
    let resources = resources(&issuer, state.path());
    // Real time: the program is a process.
    let done = osier::run(move || obtain(&wanted, &resources));
    let why = done.err().unwrap().to_string();
    assert!(
        why.starts_with("dns-01: ") && why.ends_with("has failed (exit status: 1): no such zone"),
        "{why}"
    );
    let log = std::fs::read_to_string(folder.join("dns.log")).unwrap();
    let words: Vec<&str> = log.split_whitespace().collect();
    assert_eq!(
        (words[0], words[1], words[2].len()),
        ("add", "_acme-challenge.bad.example", 43)
    );
}

#[test]
fn profiles_and_bindings_are_sent_and_missing_ones_are_told() {
    let offers = || Script {
        profiles: vec!["shortlived".into()],
        needs_binding: true,
        ..script()
    };
    let mut wanted = subject(&["a.example"]);
    wanted.settings.profile = Some("shortlived".into());
    wanted.settings.issuers[0].binding = Some(Binding {
        id: "k".into(),
        secret: vec![1; 32],
    });
    let (done, issuer, _folder) = order(offers(), wanted.clone());
    done.unwrap();
    assert_eq!(issuer.counts().1, [(Some("shortlived".into()), None)]);
    wanted.settings.profile = Some("tls".into());
    let (done, ..) = order(offers(), wanted);
    assert_eq!(
        done.err().unwrap().to_string(),
        "the issuer has no profile 'tls'; it offers shortlived"
    );
    let (done, ..) = order(offers(), subject(&["a.example"]));
    assert!(done.err().unwrap().to_string().contains("set 'binding'"));
}

/// An issuer to which the way broke once the order of `a.example` was finalized, and the folder that has the order.
fn broken_off(script: Script) -> (Arc<Issuer>, Folder) {
    let issuer = Issuer::new(Script {
        breaks_after_finalize: true,
        ..script
    });
    let folder = Folder::new();
    let resources = resources(&issuer, folder.path());
    let broken = run(move || obtain(&subject(&["a.example"]), &resources));
    assert!(matches!(broken, Err(Error::Io(_))));
    issuer.script.lock().unwrap().breaks_after_finalize = false;
    (issuer, folder)
}

#[test]
fn an_order_that_was_finalized_is_taken_up_again_after_a_crash() {
    let (issuer, folder) = broken_off(script());
    let storage = FolderStorage::new(folder.path().to_owned());
    assert!(storage.pending("a.example").unwrap().is_some());
    let resources = resources(&issuer, folder.path());
    let stored = run(move || obtain(&subject(&["a.example"]), &resources)).unwrap();
    assert!(stored.key.contains("PRIVATE KEY"));
    let (accounts, orders) = issuer.counts();
    assert_eq!((accounts, orders.len()), (1, 1));
}

#[test]
fn an_order_that_was_finalized_is_kept_while_its_issuer_is_busy() {
    let (issuer, folder) = broken_off(script());
    for busy in [429, 503] {
        issuer.script.lock().unwrap().refuses_looks = Some(busy);
        let resources = resources(&issuer, folder.path());
        let refused = run(move || obtain(&subject(&["a.example"]), &resources));
        assert!(refused.is_err(), "{busy}");
    }
    issuer.script.lock().unwrap().refuses_looks = None;
    let resources = resources(&issuer, folder.path());
    run(move || obtain(&subject(&["a.example"]), &resources)).unwrap();
    assert_eq!(issuer.counts().1.len(), 1);
}

/// The way to an issuer that gives nonces only where it is asked for one, and refuses one of them.
struct Sparing {
    issuer: Arc<Issuer>,
    asked: AtomicUsize,
    refused: usize,
}

impl Transport for Sparing {
    fn send(&self, method: &str, url: &str, body: Option<&str>) -> io::Result<Received> {
        if method == "HEAD" && self.asked.fetch_add(1, Relaxed) + 1 == self.refused {
            return Ok(Received {
                status: 403,
                ..Received::default()
            });
        }
        let received = self.issuer.send(method, url, body)?;
        Ok(Received {
            nonce: received.nonce.filter(|_| method == "HEAD"),
            ..received
        })
    }
}

#[test]
fn an_order_that_was_finalized_is_kept_when_a_nonce_is_refused() {
    let (issuer, folder) = broken_off(script());
    // The first one is for the account, three are for looks at the order and its certificate, and there is no fifth.
    for refused in 1..=5 {
        let (issuer, board) = (issuer.clone(), Arc::new(issuer.shown.clone()));
        let connect = move |_: &At| {
            let sparing = Sparing {
                issuer: issuer.clone(),
                asked: AtomicUsize::new(0),
                refused,
            };
            Ok(Arc::new(sparing) as Arc<dyn Transport>)
        };
        let storage = Arc::new(Pooled(FolderStorage::new(folder.path().to_owned())));
        let resources = Resources::new(storage, board, Box::new(connect));
        let done = run(move || obtain(&subject(&["a.example"]), &resources));
        assert_eq!(done.is_ok(), refused == 5, "{refused}: {:?}", done.err());
    }
    assert_eq!(issuer.counts().1.len(), 1);
}

#[test]
fn an_issuer_may_be_too_busy_for_a_nonce() {
    let busy = Script {
        refuses_nonces: Some(503),
        ..script()
    };
    let (done, ..) = order(busy, subject(&["a.example"]));
    let error = done.err().unwrap();
    assert_eq!(error.retry_after(), Some(10 * HOUR), "{error}");
}

#[test]
fn the_issuers_window_is_asked_for() {
    let window_of = (
        String::from("2026-01-02T03:04:05Z"),
        String::from("2026-01-03T03:04:05.5+01:00"),
    );
    let (done, issuer, folder) = order(
        Script {
            window: Some(window_of),
            ..script()
        },
        subject(&["a.example"]),
    );
    let read = issue::read(&done.unwrap().chain).unwrap();
    let resources = resources(&issuer, folder.path());
    let id = read.id.expect("the certificate names its authority");
    let window = Some(Window {
        begins: 1_767_323_045,
        ends: 1_767_405_845,
    });
    let again = 1000 + 6 * 3600;
    let got = advice(&At::new(DIRECTORY), &resources, &id, 1000).unwrap();
    assert_eq!(got, Some((Advice { id, window, again }, None)));
}

#[test]
fn a_finalized_order_whose_certificate_is_gone_is_ordered_anew() {
    let (issuer, folder) = broken_off(Script {
        loses_certificate: true,
        ..script()
    });
    let resources = resources(&issuer, folder.path());
    run(move || obtain(&subject(&["a.example"]), &resources)).unwrap();
    assert_eq!(issuer.counts().1.len(), 2);
}

/// Collects what is served.
#[derive(Default)]
struct Served {
    names: Mutex<Vec<String>>,
    /// How often a certificate was served that is in memory only.
    held: AtomicUsize,
}

impl Shelf for Served {
    fn put(&self, subject: &Subject, _: &Stored) -> Result<(), String> {
        self.names.lock().unwrap().push(subject.names.join(","));
        Ok(())
    }

    fn hold(&self, subject: &Subject, stored: &Stored) -> Result<(), String> {
        self.held.fetch_add(1, Relaxed);
        self.put(subject, stored)
    }
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The system's clock at this moment, carried on by the virtual clock of the caller.
fn virtual_clock() -> Clock {
    let (began, since) = (system_clock()(), osier::time::now());
    Arc::new(move || {
        began
            + osier::time::now()
                .saturating_duration_since(since)
                .as_secs()
                .cast_signed()
    })
}

/// Runs a keeper for a time.
fn run_for(keeper: &Arc<Keeper>, time: Duration) {
    let running = keeper.clone();
    let running = osier::spawn(move || running.run());
    osier::sleep(time);
    keeper.end();
    running.join().unwrap();
}

/// A keeper on a storage, for the virtual clock. `lines` gets what it says.
struct Kept {
    storage: Arc<Memory>,
    served: Arc<Served>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Kept {
    fn on(storage: Arc<Memory>) -> Kept {
        Kept {
            storage,
            served: Arc::default(),
            lines: Arc::default(),
        }
    }

    /// Runs a keeper for a time.
    fn run(&self, issuer: &Arc<Issuer>, subjects: Vec<Subject>, clock: &Clock, time: Duration) {
        run_for(&self.keeper(issuer, subjects, clock, None), time);
    }

    fn keeper(
        &self,
        issuer: &Arc<Issuer>,
        subjects: Vec<Subject>,
        clock: &Clock,
        before: Option<&Keeper>,
    ) -> Arc<Keeper> {
        let say = collecting(&self.lines);
        let (resources, shelf) = (means_on(issuer, self.storage.clone()), self.served.clone());
        Keeper::new(subjects, resources, shelf, say, clock.clone(), before)
    }

    fn lines(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }

    fn served(&self) -> usize {
        std::mem::take(&mut *self.served.names.lock().unwrap()).len()
    }
}

#[test]
fn a_start_with_thousands_of_certificates_asks_their_issuer_for_little() {
    const COUNT: usize = 1500;
    let (begins, ends) = ("2126-01-02T03:04:05Z".to_owned(), "2126-01-03T03:04:05Z".to_owned());
    let issuer = Issuer::new(Script {
        window: Some((begins, ends)),
        ..script()
    });
    let (storage, wanted) = (Arc::new(Memory::default()), subject(&["*.many.example"]));
    let subjects: Vec<Subject> = (0..COUNT)
        .map(|number| subject(&[&format!("n{number}.many.example")]))
        .collect();
    let counted = issuer.clone();
    let looks = run(move || {
        let stored = issuer.issue(&wanted.names);
        for subject in &subjects {
            storage.put_certificate(subject.name(), &stored).unwrap();
        }
        let (kept, clock) = (Kept::on(storage), virtual_clock());
        let mut looks = Vec::new();
        let mut run_for = |time| {
            kept.run(&issuer, subjects.clone(), &clock, time);
            assert_eq!(kept.lines(), [""; 0]);
            assert!(kept.served() >= COUNT, "all are served");
            looks.push(counted.looks());
        };
        run_for(Duration::from_secs(60));
        run_for(6 * HOUR + Duration::from_secs(60));
        run_for(Duration::from_secs(60));
        looks
    });
    let [at_start, after_hours, at_the_next_start] = looks[..] else {
        unreachable!()
    };
    // A minute has a 360th of the questions: four, or by chance none.
    assert!(at_start.0 == 1 && at_start.1 < 60, "{at_start:?}");
    assert!(
        after_hours.0 == 2 && (COUNT..COUNT + 60).contains(&after_hours.1),
        "{after_hours:?}"
    );
    assert!(at_the_next_start.1 - after_hours.1 < 60, "{looks:?}");
}

/// The time so many seconds after that of the system, as RFC 3339 writes it.
fn moment(after: i64) -> String {
    let at = time::OffsetDateTime::from_unix_timestamp(system_clock()() + after).unwrap();
    at.format(&time::format_description::well_known::Rfc3339).unwrap()
}

const A_DAY: i64 = 24 * 3600;

/// A keeper has these certificates for some hours. Returns the orders, how often it has asked for windows, and its lines.
fn kept(
    script: Script,
    names: &[&str],
    hours: u32,
    prepare: impl FnOnce(&Memory, &str, i64) + Copy + Send + 'static,
) -> (Vec<Option<String>>, usize, Vec<String>) {
    let issuer = Issuer::new(script);
    let (counted, subjects) = (
        issuer.clone(),
        names.iter().map(|&name| subject(&[name])).collect::<Vec<_>>(),
    );
    let lines = run(move || {
        let (storage, clock) = (Arc::new(Memory::default()), virtual_clock());
        for subject in &subjects {
            let stored = issuer.issue(&subject.names);
            storage.put_certificate(subject.name(), &stored).unwrap();
            prepare(&storage, subject.name(), clock());
        }
        let kept = Kept::on(storage);
        kept.run(&issuer, subjects, &clock, hours * HOUR);
        kept.lines()
    });
    let replaced = counted.counts().1.into_iter().map(|(_, replaces)| replaces);
    (replaced.collect(), counted.looks().1, lines)
}

/// The issuer may not know the certificate: another issuer has signed it, or another account has ordered it (RFC 9773 section 5).
#[test]
fn a_predecessor_that_the_issuer_does_not_know_keeps_nothing_from_its_renewal() {
    let script = Script {
        window: Some((moment(-2 * A_DAY), moment(-A_DAY))),
        knows_no_predecessor: true,
        ..script()
    };
    let (orders, _, lines) = kept(script, &["a.example"], 8, |_, _, _| {});
    assert_eq!(orders.first(), Some(&None), "{lines:?}");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("has issued a certificate for a.example")),
        "{lines:?}"
    );
}

#[test]
fn a_window_that_ends_before_it_begins_is_no_answer() {
    let script = Script {
        window: Some((moment(-A_DAY), moment(-2 * A_DAY))),
        ..script()
    };
    let (orders, questions, lines) = kept(script, &["a.example", "b.example"], 24, |_, _, _| {});
    assert_eq!(orders, [], "{lines:?}");
    // The next question comes after six hours (RFC 9773 section 4.3.3).
    assert!((6..=10).contains(&questions), "{questions}");
}

#[test]
fn a_window_holds_while_its_issuer_gives_no_answer() {
    let script = Script {
        window: Some((moment(0), moment(1))),
        refuses_questions: Some(503),
        ..script()
    };
    let names = ["a.example", "b.example", "c.example", "d.example"];
    let (orders, questions, lines) = kept(script, &names, 8, |storage, name, now| {
        let id = issue::read(&storage.certificate(name).unwrap().unwrap().chain)
            .unwrap()
            .id;
        let (begins, ends) = (now + 6 * 3600, now + 6 * 3600 + 600);
        let advice = Advice {
            id: id.unwrap(),
            window: Some(Window { begins, ends }),
            again: now,
        };
        storage.put_advice(name, &advice).unwrap();
    });
    assert!(questions > 0);
    assert_eq!(orders.len(), names.len(), "{lines:?}");
}

#[test]
fn nobody_is_asked_when_to_renew_a_certificate_that_has_expired() {
    let script = Script {
        window: Some((moment(0), moment(1))),
        lifetime: Some(Duration::from_secs(60)),
        refuses_orders: Some((500, json!({}), None)),
        ..script()
    };
    let (_, questions, lines) = kept(script, &["a.example"], 24, |_, _, _| {});
    assert_eq!(questions, 0, "{lines:?}");
}

#[test]
fn the_explanation_of_a_window_is_told_once() {
    let script = Script {
        window: Some((moment(20 * A_DAY), moment(21 * A_DAY))),
        explains: Some("https://issuer.test/why"),
        ..script()
    };
    let (orders, questions, lines) = kept(script, &["a.example", "b.example"], 48, |_, _, _| {});
    assert!(orders.is_empty() && questions > 4, "{questions}");
    let told = ", and perhaps others, are to be renewed: https://issuer.test/why";
    assert!(lines.len() == 1 && lines[0].ends_with(told), "{lines:?}");
}

/// RFC 8555 section 7.3.6 asks for 401. Boulder and Pebble answer with 403.
#[test]
fn a_closed_account_is_told_as_the_documents_say() {
    for status in [401, 403] {
        let script = Script {
            closes_accounts: Some(status),
            ..script()
        };
        let (done, ..) = order(script, subject(&["a.example"]));
        let why = done.err().unwrap().to_string();
        let expected = format!("the issuer refuses ({status}, unauthorized): Account is not valid");
        assert!(why.starts_with(&expected), "{why}");
    }
}

#[test]
fn a_certificate_that_is_not_valid_by_this_clock_is_not_ordered_each_hour() {
    for ahead in [10 * DAY.as_secs().cast_signed(), -10 * DAY.as_secs().cast_signed()] {
        let issuer = Issuer::new(Script {
            lifetime: Some(6 * DAY),
            ..script()
        });
        let counted = issuer.clone();
        let (lines, served) = run(move || {
            let kept = Kept::on(Arc::new(Memory::default()));
            let right = virtual_clock();
            let clock: Clock = Arc::new(move || right() + ahead);
            kept.run(&issuer, vec![subject(&["a.example"])], &clock, DAY);
            (kept.lines(), kept.served())
        });
        assert!(served > 0);
        assert!((1..8).contains(&counted.counts().1.len()), "{lines:?}");
        assert!(
            lines[1].starts_with("the new certificate of a.example is valid from ")
                && lines[1].ends_with(": is the clock of this machine right?"),
            "{lines:?}"
        );
    }
}

#[test]
fn a_certificate_that_finds_no_room_is_served_and_not_ordered_again() {
    let (issuer, storage) = (Issuer::new(script()), Arc::new(Memory::default()));
    storage.is_full.store(true, Relaxed);
    let (orders, lines, served, held) = run({
        let issuer = issuer.clone();
        move || {
            let (kept, clock) = (Kept::on(storage.clone()), virtual_clock());
            let free = storage.clone();
            let freed = osier::spawn(move || {
                osier::sleep(3 * HOUR);
                free.is_full.store(false, Relaxed);
            });
            kept.run(&issuer, vec![subject(&["a.example"])], &clock, 12 * HOUR);
            freed.join().unwrap();
            assert!(
                storage.certificate("a.example").unwrap().is_some(),
                "{:?}",
                kept.lines()
            );
            let (served, held) = (kept.served(), kept.served.held.load(Relaxed));
            (issuer.counts().1.len(), kept.lines(), served, held)
        }
    });
    assert_eq!(orders, 1);
    // It is in the storage in the end.
    assert!(held > 0 && served > held, "{served} {held}");
    assert!(lines[0].contains("has issued a certificate for a.example"), "{lines:?}");
    assert!(
        lines[1].starts_with("the certificate of a.example cannot be stored: the memory: no storage space")
            && lines[1].contains("it is served from memory"),
        "{lines:?}"
    );
    // The pauses double: a few tries in three hours.
    assert!((5..12).contains(&lines.len()), "{lines:?}");
    assert_eq!(lines.last().unwrap(), "the certificate of a.example is stored now");
}

#[test]
fn a_site_with_other_hosts_serves_the_certificate_of_some_of_them_meanwhile() {
    let issuer = Issuer::new(Script {
        is_down: true,
        ..script()
    });
    for hosts in [["b.example", "a.example"], ["a.example", "b.example"]] {
        let (storage, issuer) = (Arc::new(Memory::default()), issuer.clone());
        storage
            .put_certificate("a.example", &issuer.issue(&["a.example".to_owned()]))
            .unwrap();
        let (lines, served) = run(move || {
            let kept = Kept::on(storage);
            kept.run(
                &issuer,
                vec![subject(&hosts)],
                &virtual_clock(),
                Duration::from_secs(20),
            );
            (kept.lines(), kept.served())
        });
        assert_eq!(served, 1, "{lines:?}");
        assert!(lines[1].ends_with("until then the old one is served"), "{lines:?}");
    }
}

#[test]
fn a_panic_in_an_order_is_told_and_the_order_is_tried_again() {
    let panics = Script {
        makes_panic: true,
        ..script()
    };
    let (issuer, storage) = (Issuer::new(panics), Arc::new(Memory::default()));
    let lines = run(move || {
        let kept = Kept::on(storage.clone());
        kept.run(&issuer, vec![subject(&["a.example"])], &virtual_clock(), HOUR);
        assert!(storage.certificate("a.example").unwrap().is_some());
        kept.lines()
    });
    assert!(
        lines[0].contains("no certificate for a.example: a panic while it was ordered"),
        "{lines:?}"
    );
    assert!(lines.last().unwrap().contains("has issued a certificate"), "{lines:?}");
}

#[test]
fn certificates_are_renewed_in_time_also_after_jumps_of_the_clock() {
    let (issuer, storage) = (Issuer::new(script()), Arc::new(Memory::default()));
    let orders = run(move || {
        let jump = Arc::new(AtomicI64::new(0));
        let clock: Clock = {
            let (clock, jump) = (virtual_clock(), jump.clone());
            Arc::new(move || clock() + jump.load(Relaxed))
        };
        let kept = Kept::on(storage);
        let running = osier::spawn({
            let issuer = issuer.clone();
            move || kept.run(&issuer, vec![subject(&["a.example"])], &clock, 30 * DAY)
        });
        let mut orders = Vec::new();
        let year = 366 * DAY.as_secs().cast_signed();
        // The certificates of this issuer are valid for two thousand years, so a jump must be far.
        for to in [0, year, 3000 * year, -3000 * year, 0] {
            jump.store(to, Relaxed);
            osier::sleep(HOUR);
            orders.push(issuer.counts().1.len());
        }
        running.cancel();
        let _ = running.join();
        orders
    });
    assert_eq!(orders, [1, 1, 2, 2, 2]);
}

/// Collects the lines for the operator.
fn collecting(lines: &Arc<Mutex<Vec<String>>>) -> Say {
    let lines = lines.clone();
    Say::new(move |line| lines.lock().unwrap().push(line.text.to_string()))
}

fn listener() -> (Say, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::default();
    (collecting(&lines), lines)
}

/// Runs a keeper for a time of the virtual clock. Returns what it serves and what it says.
fn keep(issuer: &Arc<Issuer>, folder: &Path, subjects: Vec<Subject>, time: Duration) -> (Vec<String>, Vec<String>) {
    let (say, lines) = listener();
    let served = Arc::new(Served::default());
    let keeper = Keeper::new(
        subjects,
        resources(issuer, folder),
        served.clone(),
        say,
        system_clock(),
        None,
    );
    run(move || {
        let running = osier::spawn({
            let keeper = keeper.clone();
            move || keeper.run()
        });
        osier::sleep(time);
        keeper.end();
        running.join().unwrap();
    });
    let lines = lines.lock().unwrap().clone();
    let served = served.names.lock().unwrap().clone();
    (served, lines)
}

#[test]
fn missing_certificates_are_ordered_and_stored_ones_are_served() {
    let (issuer, folder) = (Issuer::new(script()), Folder::new());
    let subjects = || vec![subject(&["a.example"]), subject(&["b.example", "c.example"])];
    let (mut served, lines) = keep(&issuer, folder.path(), subjects(), Duration::from_secs(60));
    served.sort();
    assert_eq!(served, ["a.example", "b.example,c.example"]);
    assert!(
        lines.contains(&format!(
            "{DIRECTORY} has issued a certificate for b.example, c.example"
        )),
        "{lines:?}"
    );
    // The issuer is gone, and the next process serves what is stored.
    issuer.script.lock().unwrap().is_down = true;
    let (mut served, lines) = keep(&issuer, folder.path(), subjects(), Duration::from_secs(60));
    served.sort();
    assert_eq!((served.len(), lines.len()), (2, 0), "{lines:?}");
}

#[test]
fn the_next_issuer_is_asked_and_failures_are_told_with_the_next_try() {
    let (issuer, folder) = (Issuer::new(script()), Folder::new());
    let mut two = subject(&["a.example"]);
    two.settings.issuers.insert(0, At::new("https://issuer.test/gone"));
    let (served, lines) = keep(&issuer, folder.path(), vec![two], Duration::from_secs(60));
    assert_eq!(served, ["a.example"]);
    assert!(
        lines[0].starts_with(
            "no certificate for a.example from https://issuer.test/gone: the issuer refuses (405, malformed)"
        ),
        "{lines:?}"
    );

    let body = json!({ "type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many" });
    issuer.script.lock().unwrap().refuses_orders = Some((429, body, Some("7200".into())));
    let (served, lines) = keep(
        &issuer,
        folder.path(),
        vec![subject(&["d.example"])],
        Duration::from_secs(3600),
    );
    assert!(served.is_empty());
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[1].starts_with("the next try for d.example is in 120 min; until then a self-signed one"),
        "{lines:?}"
    );
}

#[test]
fn who_has_no_lock_waits_for_what_the_other_process_stores() {
    let (issuer, folder) = (Issuer::new(script()), Folder::new());
    let storage = FolderStorage::new(folder.path().to_owned());
    let Locking::Taken(lock) = storage.lock("a.example").unwrap() else {
        panic!("nobody has it");
    };
    let (served, _) = keep(
        &issuer,
        folder.path(),
        vec![subject(&["a.example"])],
        Duration::from_secs(100),
    );
    assert!(served.is_empty() && issuer.counts().1.is_empty());
    drop(lock);
    let (served, _) = keep(
        &issuer,
        folder.path(),
        vec![subject(&["a.example"])],
        Duration::from_secs(100),
    );
    assert_eq!(served, ["a.example"]);
}
