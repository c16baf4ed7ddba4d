//! Issuers that want to be left alone, settings that change, and reloads.

use super::*;
use std::collections::HashSet;

#[test]
fn an_issuer_that_is_overloaded_is_left_alone_by_all_names() {
    let busy = Script {
        refuses_orders: Some((503, json!({}), Some("36000".into()))),
        ..script()
    };
    let issuer = Issuer::new(busy);
    let lines = run(move || {
        let kept = Kept::on(Arc::default());
        let subjects = (0..30).map(|number| subject(&[&format!("n{number}.example")]));
        kept.run(&issuer, subjects.collect(), &virtual_clock(), 9 * HOUR);
        kept.lines()
    });
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    let asked = count("the status 503");
    assert!((1..=4).contains(&asked), "{lines:?}");
    assert_eq!(
        count("its issuers want to be left alone; the next try is in 600 min"),
        30 - asked
    );
    assert_eq!(count("the next try"), 30, "{lines:?}");
}

#[test]
fn an_issuer_that_wants_to_be_left_alone_is_passed_over() {
    let body = json!({ "type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many" });
    let refuses = Script {
        refuses_orders: Some((429, body, Some("7200".into()))),
        ..script()
    };
    let issuer = Issuer::new(refuses);
    let lines = run(move || {
        let kept = Kept::on(Arc::default());
        let subjects = ["a.example", "b.example"].map(|name| {
            let mut two = subject(&[name]);
            two.settings.issuers.push(At::new("https://issuer.test/gone"));
            two
        });
        kept.run(&issuer, subjects.into(), &virtual_clock(), HOUR);
        kept.lines()
    });
    let count = |text: &str| lines.iter().filter(|line| line.starts_with(text)).count();
    let tries = |name: &str| {
        let from = |issuer: &str| count(&format!("no certificate for {name} from {issuer}: "));
        (from(DIRECTORY), from("https://issuer.test/gone"))
    };
    // The limit may be that of one name, so the other name is tried, too.
    for (limited, others) in ["a.example", "b.example"].map(tries) {
        assert!(limited == 1 && others > 3, "{lines:?}");
    }
}

/// A certificate of the issuer for trials was served for two months after its settings were gone.
#[test]
fn a_certificate_of_other_settings_is_replaced_and_served_meanwhile() {
    let (issuer, storage) = (
        Issuer::new(Script {
            profiles: vec!["shortlived".into()],
            is_down: true,
            ..script()
        }),
        Arc::new(Memory::default()),
    );
    let origin = Some(Origin {
        issuer: "https://trials.test/dir".into(),
        profile: None,
    });
    let of_trials = Stored {
        origin,
        ..issuer.issue(&["a.example".to_owned()])
    };
    storage.put_certificate("a.example", &of_trials).unwrap();
    let (counted, is_up) = (issuer.clone(), issuer.clone());
    run(move || {
        let (kept, clock) = (Kept::on(storage.clone()), virtual_clock());
        let origin = || storage.certificate("a.example").unwrap().unwrap().origin.unwrap();
        let wanted = subject(&["a.example"]);
        let up = osier::spawn(move || {
            osier::sleep(Duration::from_secs(60));
            is_up.script.lock().unwrap().is_down = false;
        });
        kept.run(&issuer, vec![wanted.clone()], &clock, HOUR);
        up.join().unwrap();
        let lines = kept.lines();
        assert!(
            lines[0].starts_with("the certificate of a.example is from https://trials.test/dir, which is not")
                && lines[2].ends_with("until then the old one is served"),
            "{lines:?}"
        );
        assert_eq!(
            (origin().issuer.as_str(), counted.counts().1.len()),
            (DIRECTORY, 1),
            "{lines:?}"
        );
        // Another profile is another certificate, too, and one order is enough.
        let mut short = wanted;
        short.settings.profile = Some("shortlived".into());
        for _ in 0..2 {
            kept.run(&issuer, vec![short.clone()], &clock, HOUR);
            let lines = kept.lines();
            assert_eq!(counted.counts().1.len(), 2, "{lines:?}");
        }
        assert_eq!(origin().profile.as_deref(), Some("shortlived"));
    });
}

#[test]
fn a_machine_with_other_settings_that_stores_its_certificate_is_left_to_do_so() {
    let (issuer, storage) = (Issuer::new(script()), Arc::new(Memory::default()));
    let counted = issuer.clone();
    let lines = run(move || {
        let kept = Kept::on(storage.clone());
        let other = osier::spawn(move || {
            osier::sleep(HOUR);
            let mut stored = storage.certificate("a.example").unwrap().unwrap();
            stored.origin.as_mut().unwrap().issuer = "https://trials.test/dir".into();
            storage.put_certificate("a.example", &stored).unwrap();
        });
        kept.run(&issuer, vec![subject(&["a.example"])], &virtual_clock(), DAY);
        other.join().unwrap();
        kept.lines()
    });
    assert_eq!(counted.counts().1.len(), 1, "{lines:?}");
}

/// Two machines that wanted different issuers ordered a certificate after each reload.
#[test]
fn machines_with_different_settings_replace_a_certificate_once_a_day() {
    let (issuer, storage) = (Issuer::new(script()), Arc::new(Memory::default()));
    let counted = issuer.clone();
    let (orders, lines) = run(move || {
        let (kept, clock) = (Kept::on(storage.clone()), virtual_clock());
        let mut before: Option<Arc<Keeper>> = None;
        let mut orders = Vec::new();
        let other_stores = || {
            let mut stored = storage.certificate("a.example").unwrap().unwrap();
            stored.origin.as_mut().unwrap().issuer = "https://trials.test/dir".into();
            storage.put_certificate("a.example", &stored).unwrap();
        };
        let wanted = subject(&["a.example"]);
        let mut reload = |wanted: Subject| {
            let keeper = kept.keeper(&issuer, vec![wanted], &clock, before.as_deref());
            keeper.look_again(&HashSet::from(["a.example".to_owned()]));
            run_for(&keeper, HOUR);
            before = Some(keeper);
            orders.push(counted.counts().1.len());
            other_stores();
        };
        for _ in 0..24 {
            reload(wanted.clone());
        }
        osier::sleep(DAY);
        reload(wanted.clone());
        // Other settings are no quarrel.
        let mut other = wanted;
        other.settings.issuers.push(At::new("https://issuer.test/gone"));
        reload(other);
        (orders, kept.lines())
    });
    // The first one was missing.
    let mut expected = vec![2; 26];
    (expected[0], expected[24], expected[25]) = (1, 3, 4);
    assert_eq!(orders, expected, "{lines:?}");
    let told = lines
        .iter()
        .filter(|line| line.contains("within a day; do all servers"));
    assert_eq!(told.count(), 22, "{lines:?}");
}

#[test]
fn a_reload_does_not_ask_again_who_has_just_refused() {
    let (issuer, folder) = (Issuer::new(script()), Folder::new());
    let body = json!({ "type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many" });
    issuer.script.lock().unwrap().refuses_orders = Some((429, body, None));
    let (say, lines) = listener();
    let (first, second) = (resources(&issuer, folder.path()), resources(&issuer, folder.path()));
    run(move || {
        let shelf = Arc::new(Served::default());
        let keeper = Keeper::new(
            vec![subject(&["a.example"])],
            first,
            shelf.clone(),
            say.clone(),
            system_clock(),
            None,
        );
        let seconds = Duration::from_secs(20);
        run_for(&keeper, seconds);
        let two = vec![subject(&["a.example"]), subject(&["b.example"])];
        run_for(
            &Keeper::new(two, second, shelf, say, system_clock(), Some(&keeper)),
            seconds,
        );
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

/// The way to an issuer whose responses take seconds.
struct Slow(Arc<Issuer>);

impl Transport for Slow {
    fn send(&self, method: &str, url: &str, body: Option<&str>) -> io::Result<Received> {
        osier::sleep(Duration::from_secs(5));
        self.0.send(method, url, body)
    }
}

/// A keeper is replaced by another one while its first order is on its way to a slow issuer, and that one runs on for a
/// time. `later` comes to it after half of the time. Returns what they say.
fn reloaded(issuer: &Arc<Issuer>, storage: Arc<Memory>, time: Duration, later: Option<Subject>) -> Vec<String> {
    let (say, lines) = listener();
    let issuer = issuer.clone();
    run(move || {
        let (shelf, clock) = (Arc::new(Served::default()), virtual_clock());
        let keeper = |before: Option<&Keeper>| {
            let issuer = issuer.clone();
            let board = Arc::new(issuer.shown.clone());
            let connect = move |_: &At| Ok(Arc::new(Slow(issuer.clone())) as Arc<dyn Transport>);
            let resources = Resources::new(storage.clone(), board, Box::new(connect));
            let subjects = vec![subject(&["a.example"])];
            Keeper::new(subjects, resources, shelf.clone(), say.clone(), clock.clone(), before)
        };
        let first = keeper(None);
        run_for(&first, Duration::from_secs(8));
        // Two reloads in a row.
        let second = keeper(Some(&first));
        let third = keeper(Some(&second));
        let adding = osier::spawn({
            let third = third.clone();
            move || {
                osier::sleep(time / 2);
                later.into_iter().for_each(|subject| third.add(subject, false));
            }
        });
        run_for(&third, time);
        adding.join().unwrap();
    });
    lines.lock().unwrap().clone()
}

#[test]
fn a_reload_during_an_attempt_keeps_its_failures_and_its_pause() {
    let refuses = Script {
        refuses_orders: Some((500, json!({}), None)),
        ..script()
    };
    let lines = reloaded(&Issuer::new(refuses), Arc::default(), Duration::from_secs(190), None);
    // The second pause is twice as long as the first.
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(
        lines[1].contains(" is in 2 min") && lines[3].contains(" is in 3 min"),
        "{lines:?}"
    );
}

#[test]
fn a_reload_during_an_attempt_keeps_a_certificate_that_finds_no_room() {
    let (issuer, storage) = (Issuer::new(script()), Arc::new(Memory::default()));
    storage.is_full.store(true, Relaxed);
    let lines = reloaded(&issuer, storage, Duration::from_secs(300), None);
    assert!(lines[1].contains("it is served from memory"), "{lines:?}");
    assert_eq!(issuer.counts().1.len(), 1, "{lines:?}");
}

/// The keeper before a reload kept the pauses for itself that came afterwards.
#[test]
fn a_pause_that_comes_during_a_reload_holds_after_it() {
    let busy = Script {
        refuses_orders: Some((503, json!({}), Some("36000".into()))),
        ..script()
    };
    let issuer = Issuer::new(busy);
    let lines = reloaded(&issuer, Arc::default(), 2 * HOUR, Some(subject(&["b.example"])));
    assert!(
        lines[1].starts_with("the next try for a.example is in 600 min"),
        "{lines:?}"
    );
    assert!(
        lines.len() == 3 && lines[2].starts_with("no certificate for b.example: its issuers want to be left alone"),
        "{lines:?}"
    );
}

/// It held up a worker for 20 s with 4,000 sites.
#[test]
fn a_reload_with_thousands_of_certificates_takes_no_time() {
    let subjects = || -> Vec<Subject> {
        (0..20_000)
            .map(|number| subject(&[&format!("n{number}.many.example")]))
            .collect()
    };
    let issuer = Issuer::new(script());
    let keeper = |before: Option<&Keeper>| {
        let resources = means_on(&issuer, Arc::new(Memory::default()));
        let shelf = Arc::new(Served::default());
        Keeper::new(subjects(), resources, shelf, Say::new(|_| {}), system_clock(), before)
    };
    let first = keeper(None);
    let began = std::time::Instant::now();
    let second = keeper(Some(&first));
    for subject in subjects() {
        second.add(subject, false);
    }
    let taken = began.elapsed();
    assert!(taken < Duration::from_secs(20), "{taken:?}");
}
