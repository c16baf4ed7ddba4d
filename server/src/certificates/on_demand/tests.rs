//! Certificates on demand, with answers of the test.

use super::*;
use crate::certificates::acme::settings::Issuer;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

fn settings() -> Settings {
    Settings {
        issuers: vec![Issuer::new("https://issuer.test/dir")],
        ask: Some("http://ask/x?token=hunter2".into()),
        orders_per_minute: 3,
        ..Settings::default()
    }
}

/// Runs the fiber with answers of its own while `body` is a client. Returns the questions and the orders.
fn run(
    answer: fn(&str) -> io::Result<bool>,
    stored: fn(&str) -> io::Result<Option<Stored>>,
    body: impl FnOnce(&OnDemand) + Send + 'static,
) -> (usize, Vec<String>) {
    run_with(Say::new(|_| {}), answer, stored, body)
}

fn run_with(
    say: Say,
    answer: fn(&str) -> io::Result<bool>,
    stored: fn(&str) -> io::Result<Option<Stored>>,
    body: impl FnOnce(&OnDemand) + Send + 'static,
) -> (usize, Vec<String>) {
    let clock = osier::time::VirtualClock::new();
    let runtime = osier::Runtime::builder().workers(1).clock(clock).build().unwrap();
    runtime.run(move || {
        let on_demand = Arc::new(OnDemand::new(say));
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
        let loading = osier::spawn({
            let (on_demand, orders) = (on_demand.clone(), orders.clone());
            move || on_demand.load(&stored, &|name, _| locked(&orders).push(name.to_owned()))
        });
        body(&on_demand);
        for fiber in [running, loading] {
            fiber.cancel();
            let _ = fiber.join();
        }
        let orders = std::mem::take(&mut *locked(&orders));
        (questions.load(Relaxed), orders)
    })
}

/// Finds no stored certificate.
fn nothing(_: &str) -> io::Result<Option<Stored>> {
    Ok(None)
}

#[test]
fn a_flood_of_made_up_names_causes_few_questions_and_no_order() {
    let (questions, orders) = run(
        |_| Ok(false),
        nothing,
        |on_demand| {
            for number in 0..10_000 {
                assert!(on_demand.find(Some(&format!("n{number}.made-up.example"))).is_none());
                if number % 100 == 0 {
                    osier::sleep(Duration::from_millis(500));
                }
                let state = locked(&on_demand.state);
                assert!(state.awaited.len() <= AWAITED && state.pending.len() <= NEW_MAX + AWAITED + 2);
                assert!(state.known.is_empty() && state.refused.len() <= REFUSED_MAX);
            }
            osier::sleep(MINUTE);
        },
    );
    // The flood lasts for 50 seconds: it may meet the questions of two minutes.
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
        nothing,
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
fn the_line_about_a_failed_question_has_no_query() {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = lines.clone();
    let say = Say::new(move |line| locked(&log).push(line.text.to_string()));
    let refuse = |_: &str| Err(io::ErrorKind::ConnectionRefused.into());
    run_with(say, refuse, nothing, |on_demand| {
        on_demand.find(Some("new.example"));
        osier::sleep(Duration::from_secs(1));
    });
    let line = "'ask': http://ask/x does not say whether new.example may have a certificate: connection refused";
    assert_eq!(*locked(&lines), [line]);
}

#[test]
fn stored_certificates_need_no_question_and_no_rate() {
    let (questions, kept) = run(
        |_| Err(io::ErrorKind::ConnectionRefused.into()),
        |name| Ok(name.starts_with("old").then(|| Stored::self_signed(name))),
        |on_demand| {
            on_demand.find(Some("new.example"));
            osier::sleep(Duration::from_secs(1));
            let names: Vec<_> = (0..50).map(|number| format!("old{number}.example")).collect();
            for name in &names {
                on_demand.find(Some(name));
            }
            osier::sleep(Duration::from_millis(1));
            assert!(names.iter().all(|name| on_demand.find(Some(name)).is_some()));
            assert!(on_demand.find(Some("new.example")).is_none());
        },
    );
    assert_eq!((questions, kept.len()), (1, 50));
}

#[test]
fn handshakes_wait_for_a_name_until_it_is_served_or_refused_or_late() {
    run(
        |name| Ok(name.starts_with("yes")),
        nothing,
        |on_demand| {
            let is_coming = |name: &str| on_demand.is_coming(Some(name));
            assert!(!is_coming("yes.a.example") && !on_demand.is_coming(None));
            for name in ["yes.a.example", "late.yes.example", "no.a.example"] {
                assert!(on_demand.find(Some(name)).is_none());
                assert!(is_coming(name), "{name}");
            }
            osier::sleep(Duration::from_secs(1));
            assert!(is_coming("yes.a.example"), "its order is not done");
            assert!(!is_coming("no.a.example") && !is_coming("late.yes.example"), "refused");
            assert_eq!(
                on_demand.put("yes.a.example", &Stored::self_signed("yes.a.example")),
                Ok(true)
            );
            assert!(on_demand.find(Some("yes.a.example")).is_some());
            assert!(!locked(&on_demand.state).coming.contains_key("yes.a.example"));
            // An order that takes too long keeps no client waiting.
            assert!(on_demand.find(Some("yes.b.example")).is_none());
            osier::sleep(COMING_FOR - Duration::from_secs(1));
            assert!(is_coming("yes.b.example"));
            osier::sleep(Duration::from_secs(2));
            assert!(on_demand.find(Some("yes.b.example")).is_none() && !is_coming("yes.b.example"));
            // The notes are bounded.
            for number in 0..3 * NEW_MAX {
                on_demand.find(Some(&format!("n.b{number}.example")));
                osier::sleep(Duration::from_millis(1));
            }
            assert!(locked(&on_demand.state).coming.len() <= NEW_MAX);
        },
    );
}

#[test]
fn a_name_whose_order_has_failed_keeps_no_client_waiting_and_is_asked_about_again() {
    let (questions, orders) = run(
        |_| Ok(true),
        nothing,
        |on_demand| {
            let name = "a.example.org";
            on_demand.find(Some(name));
            osier::sleep(Duration::from_secs(1));
            assert!(on_demand.is_coming(Some(name)));
            let no_question = |_: &str, _: &str| -> io::Result<bool> { panic!("it has just been answered") };
            assert!(on_demand.may_order(name, &no_question));
            on_demand.failed(name);
            assert!(!on_demand.is_coming(Some(name)) && on_demand.find(Some(name)).is_none());
            assert_eq!(on_demand.missing(), 1);
            assert!(on_demand.may_order(name, &|_, _| Err(io::ErrorKind::ConnectionRefused.into())));
            assert!(!on_demand.may_order(name, &|_, _| Ok(false)));
            assert_eq!(on_demand.missing(), 0, "its place is free");
        },
    );
    assert_eq!((questions, orders.len()), (1, 1));
}

#[test]
fn an_expired_certificate_of_an_earlier_run_is_ordered_anew_before_anybody_gets_it() {
    let name = "a.example.org";
    let (questions, orders) = run(
        |_| Ok(true),
        |name| Ok(Some(Stored::expired(name))),
        move |on_demand| {
            assert!(on_demand.find(Some(name)).is_none());
            osier::sleep(Duration::from_secs(1));
            assert_eq!(on_demand.put(name, &Stored::expired(name)), Ok(false));
            assert!(on_demand.find(Some(name)).is_none() && on_demand.is_coming(Some(name)));
            assert_eq!(on_demand.put(name, &Stored::self_signed(name)), Ok(true));
            assert!(on_demand.find(Some(name)).is_some());
        },
    );
    assert_eq!((questions, orders), (1, vec![name.to_owned()]));
    let folder = testkit::Folder::new();
    let storage = Folder::new(folder.path().to_owned());
    let on_demand = OnDemand::new(Say::new(|_| {}));
    on_demand.set(Some(settings()), Some(storage.clone()));
    storage.put_certificate(name, &Stored::expired(name)).unwrap();
    assert!(on_demand.find(Some(name)).is_none());
    storage.put_certificate(name, &Stored::self_signed(name)).unwrap();
    assert!(on_demand.find(Some(name)).is_some());
}

#[test]
fn a_name_whose_question_has_failed_is_brought_once() {
    let on_demand = Arc::new_cyclic(|weak: &std::sync::Weak<OnDemand>| {
        let weak = weak.clone();
        // The line is written between the answer and the refusal.
        OnDemand::new(Say::new(move |_| {
            let on_demand = weak.upgrade().unwrap();
            assert!(on_demand.find(Some("a.example.org")).is_none());
            assert!(locked(&on_demand.state).new.is_empty());
        }))
    });
    on_demand.set(Some(settings()), None);
    on_demand.find(Some("a.example.org"));
    let (name, _) = on_demand.next_new().unwrap();
    on_demand.line_up(name);
    osier::run({
        let on_demand = on_demand.clone();
        move || {
            let asking = osier::spawn_local({
                let on_demand = on_demand.clone();
                move || on_demand.run(&|_, _| Err(io::ErrorKind::ConnectionRefused.into()), &|_, _| {})
            });
            osier::yield_now();
            asking.cancel();
            let _ = asking.join();
        }
    });
    let state = locked(&on_demand.state);
    assert!(state.refused.contains_key("a.example.org") && state.pending.is_empty());
}

#[test]
fn a_name_that_is_looked_for_is_dropped_with_the_settings() {
    let (_, kept) = run(
        |_| Ok(true),
        |name| {
            osier::sleep(Duration::from_secs(1));
            Ok(name.starts_with("old").then(|| Stored::self_signed(name)))
        },
        |on_demand| {
            for name in ["old.example.org", "new.example.org"] {
                on_demand.set(Some(settings()), None);
                on_demand.find(Some(name));
                osier::sleep(Duration::from_millis(1));
                on_demand.set(None, None);
                osier::sleep(Duration::from_secs(2));
                let state = locked(&on_demand.state);
                assert!(state.known.is_empty() && state.awaited.is_empty());
            }
        },
    );
    assert_eq!(kept, [""; 0]);
}

/// It was counted as missing until the next reload.
#[test]
fn a_name_that_gets_a_site_of_its_own_during_its_question_is_not_missing() {
    let names = ["asked.example.org", "next.example.org"].map(str::to_owned);
    let (questions, orders) = run(
        |_| Ok(true),
        nothing,
        move |on_demand| {
            for name in &names {
                on_demand.find(Some(name));
            }
            osier::sleep(Duration::from_millis(20));
            assert!(on_demand.forget(names.iter()).is_empty());
            osier::sleep(Duration::from_secs(1));
            assert_eq!(on_demand.missing(), 0);
            let state = locked(&on_demand.state);
            assert!(state.known.is_empty() && state.pending.is_empty() && state.awaited.is_empty());
        },
    );
    assert_eq!((questions, orders.len()), (1, 0));
}

#[test]
fn names_below_one_domain_leave_places_to_others() {
    let (questions, _) = run(
        |_| Ok(false),
        nothing,
        |on_demand| {
            // The first question takes 50 ms. Nobody leaves the line meanwhile.
            for number in 0..100 {
                on_demand.find(Some(&format!("n{number}.attacker.example")));
            }
            on_demand.find(Some("shop.customer.example"));
            osier::sleep(Duration::from_secs(30));
            assert!(locked(&on_demand.state).refused.contains_key("shop.customer.example"));
            // A line of many domains stays bounded, and its last name has a place.
            for number in 0..1000 {
                on_demand.find(Some(&format!("n.attacker{number}.example")));
            }
            on_demand.find(Some("late.customer.example"));
            osier::sleep(Duration::from_millis(1));
            assert!(locked(&on_demand.state).awaited.len() <= AWAITED);
            osier::sleep(2 * MINUTE);
            assert!(locked(&on_demand.state).refused.contains_key("late.customer.example"));
            assert!(locked(&on_demand.state).pending.is_empty());
        },
    );
    assert!(questions <= 3 * QUESTIONS as usize, "{questions}");
}

#[test]
fn refusals_end_and_errors_count_as_refusals() {
    let (questions, orders) = run(
        |_| Err(io::ErrorKind::ConnectionRefused.into()),
        nothing,
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
    assert!(locked(&on_demand.state).new.is_empty());
}
