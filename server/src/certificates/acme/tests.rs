//! The whole client against an issuer in memory.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use testkit::Folder;

use super::issue::{self, Means, Subject, window};
use super::jose::Binding;
use super::keeper::{Keeper, Shelf};
use super::order::Kind;
use super::protocol::Error;
use super::schedule::Window;
use super::scripted::{DIRECTORY, Issuer, Script};
use super::settings::{Issuer as At, Settings};
use super::storage::{Storage, Stored};
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
fn obtain(subject: &Subject, means: &Means) -> Result<Stored, Error> {
    let settings = &subject.settings;
    issue::obtain(subject, &settings.issuers[0], means, &settings.kinds, None)
}

fn means(issuer: &Arc<Issuer>, folder: &Path) -> Means {
    Means {
        storage: Storage::new(folder.to_owned()),
        board: Arc::new(issuer.shown.clone()),
        connect: Box::new({
            let issuer = issuer.clone();
            move |_| Ok(Box::new(issuer.clone()))
        }),
    }
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
    let means = means(&issuer, folder.path());
    let done = run(move || obtain(&subject, &means));
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
        let storage = Storage::new(folder.path().to_owned());
        assert!(storage.certificate("a.example").unwrap() == Some(stored));
        assert!(storage.pending("a.example").unwrap().is_none());
    }
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
    let storage = Storage::new(folder.path().to_owned());
    assert!(storage.certificate("a.example").unwrap().is_none());
    let means = means(&issuer, folder.path());
    let stored = run(move || obtain(&wanted, &means)).unwrap();
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
    let means = means(&issuer, state.path());
    // Real time: the program is a process.
    let done = osier::run(move || obtain(&wanted, &means));
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

#[test]
fn an_order_that_was_finalized_is_taken_up_again_after_a_crash() {
    let (issuer, folder) = (
        Issuer::new(Script {
            breaks_after_finalize: true,
            ..script()
        }),
        Folder::new(),
    );
    let path = folder.path().to_owned();
    let (first, again) = (means(&issuer, &path), means(&issuer, &path));
    let wanted = subject(&["a.example"]);
    let copy = wanted.clone();
    let broken = run(move || obtain(&copy, &first));
    assert!(matches!(broken, Err(Error::Io(_))));
    assert!(Storage::new(path.clone()).pending("a.example").unwrap().is_some());
    issuer.script.lock().unwrap().breaks_after_finalize = false;
    let stored = run(move || obtain(&wanted, &again)).unwrap();
    assert!(stored.key.contains("PRIVATE KEY"));
    let (accounts, orders) = issuer.counts();
    assert_eq!((accounts, orders.len()), (1, 1));
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
    let means = means(&issuer, folder.path());
    let id = read.id.expect("the certificate names its authority");
    let got = window(&At::new(DIRECTORY), &means, &id).unwrap();
    assert_eq!(
        got,
        Some(Window {
            begins: 1_767_323_045,
            ends: 1_767_405_845
        })
    );
}

/// Collects what is served.
#[derive(Default)]
struct Served(Mutex<Vec<String>>);

impl Shelf for Served {
    fn put(&self, subject: &Subject, _: &Stored) -> Result<(), String> {
        self.0.lock().unwrap().push(subject.names.join(","));
        Ok(())
    }
}

/// Runs a keeper for a time of the virtual clock. Returns what it serves and what it says.
fn keep(issuer: &Arc<Issuer>, folder: &Path, subjects: Vec<Subject>, time: Duration) -> (Vec<String>, Vec<String>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let say = Say::new({
        let lines = lines.clone();
        move |line| lines.lock().unwrap().push(line.text.to_string())
    });
    let served = Arc::new(Served::default());
    let keeper = Keeper::new(subjects, means(issuer, folder), served.clone(), say, None);
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
    let served = served.0.lock().unwrap().clone();
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
    let storage = Storage::new(folder.path().to_owned());
    let lock = storage.lock("a.example").unwrap();
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

#[test]
fn a_reload_does_not_ask_again_who_has_just_refused() {
    let (issuer, folder) = (Issuer::new(script()), Folder::new());
    let body = json!({ "type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many" });
    issuer.script.lock().unwrap().refuses_orders = Some((429, body, None));
    let lines = Arc::new(Mutex::new(Vec::new()));
    let say = Say::new({
        let lines = lines.clone();
        move |line| lines.lock().unwrap().push(line.text.to_string())
    });
    let (first, second) = (means(&issuer, folder.path()), means(&issuer, folder.path()));
    run(move || {
        let shelf = Arc::new(Served::default());
        let keeper = Keeper::new(vec![subject(&["a.example"])], first, shelf.clone(), say.clone(), None);
        let run_for = |keeper: &Arc<Keeper>| {
            let (running, ended) = (keeper.clone(), keeper.clone());
            let running = osier::spawn(move || running.run());
            osier::sleep(Duration::from_secs(20));
            ended.end();
            running.join().unwrap();
        };
        run_for(&keeper);
        let two = vec![subject(&["a.example"]), subject(&["b.example"])];
        run_for(&Keeper::new(two, second, shelf, say, Some(&keeper)));
    });
    let lines = lines.lock().unwrap();
    let tries = |name: &str| {
        lines
            .iter()
            .filter(|line| line.starts_with(&format!("no certificate for {name} from")))
            .count()
    };
    assert_eq!((tries("a.example"), tries("b.example")), (1, 1), "{lines:?}");
}
