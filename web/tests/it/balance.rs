//! How requests are spread over backends, through a proxy: balances, weights, backups, slow starts and sticky cookies.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::backend::{Backend, serve};
use crate::common::{PATIENCE, Reply, Site, eventually};
use crate::responder::{self, Folder, Responder};
use osier::time::VirtualClock;
use osier_web::fastcgi::{self, Options};
use osier_web::proxy::Proxy;
use osier_web::upstream::{BackendOptions, Balance, Builder, Check, HashKey, Sticky, Unavailable, Upstream};
use osier_web::{Address, Router, Server};
use testkit::nobody;

/// Answers every request by its name.
fn named(name: &'static str) -> Backend {
    named_on(TcpListener::bind("127.0.0.1:0").unwrap(), name)
}

fn named_on(listener: TcpListener, name: &'static str) -> Backend {
    Backend::on(listener, move |_, conn| {
        while conn.request().is_some() {
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}",
                name.len()
            ));
        }
    })
}

fn address(addr: SocketAddr) -> Address {
    addr.to_string().parse().unwrap()
}

fn weight(weight: u32) -> BackendOptions {
    BackendOptions {
        weight,
        ..BackendOptions::default()
    }
}

fn backup() -> BackendOptions {
    BackendOptions {
        backup: true,
        ..BackendOptions::default()
    }
}

fn id(id: &str) -> BackendOptions {
    BackendOptions {
        id: Some(id.into()),
        ..BackendOptions::default()
    }
}

/// A group that puts a backend out at the first failure to connect.
fn group(backends: impl IntoIterator<Item = (SocketAddr, BackendOptions)>) -> Builder {
    let builder = Upstream::builder("app").on_log(|_| {}).failures(1);
    let add = |builder: Builder, (addr, options)| builder.backend_with(address(addr), options);
    backends.into_iter().fold(builder, add)
}

fn proxy(upstream: &Upstream) -> Site {
    serve(Proxy::new(upstream.clone()))
}

/// The names of the backends that answer `count` requests.
fn asked(site: &Site, count: usize) -> String {
    (0..count).map(|_| site.get("/").text().to_owned()).collect()
}

fn with_fields(site: &Site, fields: &str) -> Reply {
    site.ask(&format!("GET / HTTP/1.1\r\nHost: test\r\n{fields}\r\n"))
}

#[test]
fn round_robin_interleaves_by_weight_and_without_who_is_out() {
    let [a, b, c] = [named("a"), named("b"), named("c")];
    let upstream = group([(a.addr, weight(3)), (b.addr, weight(1))]).balance(Balance::RoundRobin);
    let site = proxy(&upstream.build().unwrap());
    assert_eq!(asked(&site, 8), "aabaaaba");

    let with_lost = [
        (nobody(), weight(2)),
        (a.addr, weight(4)),
        (b.addr, weight(2)),
        (c.addr, weight(1)),
    ];
    let upstream = group(with_lost)
        .balance(Balance::RoundRobin)
        .backoff(PATIENCE, PATIENCE);
    let site = proxy(&upstream.build().unwrap());
    asked(&site, 9);
    let names = asked(&site, 70);
    let counts = ["a", "b", "c"].map(|name| names.matches(name).count());
    assert!(
        counts
            .iter()
            .zip([40_usize, 20, 10])
            .all(|(got, want)| got.abs_diff(want) <= 2),
        "{names}"
    );
    assert!(!names.contains("aaaa"), "interleaved: {names}");
}

#[test]
fn each_worker_takes_turns_by_itself_and_begins_one_choice_later() {
    let backends = [named("a"), named("b"), named("c")];
    for balance in [Balance::RoundRobin, Balance::LeastConnections] {
        let all = backends.each_ref().map(|backend| (backend.addr, weight(1)));
        let upstream = group(all).balance(balance.clone()).build().unwrap();
        let chosen_on = |worker| {
            let upstream = upstream.clone();
            // If all workers took turns together, the second one would begin two choices later.
            let five = move || [(); 5].map(|()| upstream.lease(None).unwrap().backend());
            osier::fiber::Builder::new().worker(worker).spawn(five).join().unwrap()
        };
        let runtime = osier::Runtime::builder().workers(3).build().unwrap();
        runtime.run(|| {
            for worker in 0..3 {
                let expected = [0, 1, 2, 3, 4].map(|choice| (worker + choice) % 3);
                assert_eq!(chosen_on(worker), expected, "{balance:?}, worker {worker}");
            }
        });
    }
}

#[test]
fn the_fewest_leases_are_those_for_the_weight() {
    let [a, b] = [named("a"), named("b")];
    let upstream = group([(a.addr, weight(3)), (b.addr, weight(1))]).build().unwrap();
    osier::run(|| {
        let held: Vec<_> = (0..8).map(|_| upstream.lease(None).unwrap()).collect();
        let leases = || upstream.stats().iter().map(|stats| stats.leases).collect::<Vec<_>>();
        assert_eq!(leases(), [6, 2]);
        let (of_b, mut of_a): (Vec<_>, Vec<_>) = held.into_iter().partition(|lease| lease.backend() == 1);
        of_a.truncate(2);
        assert_eq!(upstream.lease(None).unwrap().backend(), 0, "2/3 is less than 2/1");
        drop(of_b);
        assert_eq!(upstream.lease(None).unwrap().backend(), 1);
    });
    // One at a time, they are equal each time.
    assert_eq!(asked(&proxy(&upstream), 8).matches('a').count(), 6);
}

#[test]
fn of_two_drawn_ones_the_less_loaded_is_taken() {
    let [a, b, c] = [named("a"), named("b"), named("c")];
    let two = group([(a.addr, weight(3)), (b.addr, weight(1))]).balance(Balance::RandomTwo);
    let two = two.build().unwrap();
    osier::run(|| {
        let count = |upstream: &Upstream| {
            let mut counts = [0; 3];
            for _ in 0..600 {
                let lease = upstream.lease(None).unwrap();
                counts[lease.backend()] += 1;
                lease.keep();
            }
            counts
        };
        let [of_a, of_b, _] = count(&two);
        // Six standard deviations.
        assert!((386..=514).contains(&of_a), "{of_a} to {of_b}");
        let held: Vec<_> = (0..8).map(|_| two.lease(None).unwrap()).collect();
        let leases: Vec<_> = two.stats().iter().map(|stats| stats.leases).collect();
        assert_eq!(leases, [6, 2], "both are drawn each time");
        drop(held);

        let three = group([a.addr, b.addr, c.addr].map(|addr| (addr, weight(1)))).balance(Balance::RandomTwo);
        let three = three.build().unwrap();
        let busy = loop {
            let lease = three.lease(None).unwrap();
            if lease.backend() == 0 {
                break lease;
            }
        };
        assert_eq!(count(&three)[0], 0, "whoever is drawn with it has less to do");
        drop(busy);
        assert!(count(&three).iter().all(|count| *count > 100));
    });
}

#[test]
fn backups_are_asked_only_while_no_other_is_in_service() {
    let (lost, spare) = (nobody(), named("b"));
    let upstream = group([(lost, weight(1)), (spare.addr, backup())]).max_leases(2);
    let upstream = upstream.backoff(Duration::from_millis(20), Duration::from_millis(20));
    let upstream = upstream.build().unwrap();
    let site = proxy(&upstream);
    assert_eq!(asked(&site, 5), "bbbbb");
    assert_eq!(
        upstream.stats().iter().map(|stats| stats.is_in).collect::<Vec<_>>(),
        [false, true]
    );

    let _back = named_on(TcpListener::bind(lost).unwrap(), "a");
    eventually("the primary is asked again", || asked(&site, 1) == "a");
    assert_eq!(asked(&site, 20), "a".repeat(20));
    osier::run(|| {
        let _held = [upstream.lease(None).unwrap(), upstream.lease(None).unwrap()];
        let error = upstream.lease(None).unwrap_err();
        assert!(
            matches!(error, Unavailable::Busy { .. }),
            "at its limit it is in service: {error}"
        );
    });
}

#[test]
fn backups_are_asked_while_a_primary_at_its_limit_is_out() {
    let (silent, spare) = (TcpListener::bind("127.0.0.1:0").unwrap(), named("b"));
    let primary = silent.local_addr().unwrap();
    let upstream = group([(primary, weight(1)), (spare.addr, backup())]);
    let upstream = upstream.max_leases(2).failures(1).build().unwrap();
    let runtime = osier::Runtime::builder().workers(1).clock(VirtualClock::new());
    runtime.build().unwrap().run(|| {
        let held = [upstream.lease(None).unwrap(), upstream.lease(None).unwrap()];
        held[0].timed_out("no response");
        osier::sleep(Duration::from_secs(5));
        held[1].timed_out("no response");
        assert!(!upstream.stats()[0].is_in);
        let third = upstream.lease(None).unwrap();
        assert_eq!(third.backend(), 1, "the primary's leases are still there");
    });
}

#[test]
fn a_client_that_asks_for_what_takes_long_puts_no_backend_out_that_answers_others() {
    let [one, other] = [named("a"), named("b")];
    let is_in = |answers: bool| {
        let upstream = group([(one.addr, weight(1)), (other.addr, backup())]);
        let upstream = upstream.failures(3).build().unwrap();
        let runtime = osier::Runtime::builder().workers(1).clock(VirtualClock::new());
        runtime.build().unwrap().run(|| {
            let [answered, asked @ ..] = [(); 4].map(|()| upstream.lease(None).unwrap());
            osier::sleep(Duration::from_secs(30));
            if answers {
                answered.answered();
            }
            for late in &asked {
                osier::sleep(Duration::from_secs(10));
                late.timed_out("no response");
            }
            let stats = &upstream.stats()[0];
            assert_eq!((stats.response_timeouts, stats.leases), (3, 4));
            stats.is_in
        })
    };
    assert!(is_in(true), "another request has its response");
    assert!(!is_in(false));
}

#[test]
fn a_failed_attempt_is_repeated_at_another_backend_also_a_backup() {
    let hangs_up = Backend::answering_once("");
    let [well, spare] = [named("a"), named("b")];
    let by_header = Balance::Hash(HashKey::Header("x-key".into()));
    let both = group([(hangs_up.addr, weight(1)), (well.addr, weight(1))]);
    let both = both.failures(1000).balance(by_header).build().unwrap();
    let site = proxy(&both);
    for key in 0..20 {
        assert_eq!(with_fields(&site, &format!("X-Key: {key}\r\n")).text(), "a");
    }
    let tried = hangs_up.heads.lock().unwrap().len();
    assert!((1..=19).contains(&tried), "{tried} of 20 keys");

    let with_spare = group([(hangs_up.addr, weight(1)), (spare.addr, backup())]).failures(1000);
    assert_eq!(asked(&proxy(&with_spare.build().unwrap()), 5), "bbbbb");
}

#[test]
fn a_kept_connection_that_has_ended_moves_no_client() {
    // Reads a second request and ends the connection without a response.
    let forgetful = |name: &'static str| {
        Backend::start(move |_, conn| {
            conn.request();
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{name}"));
            conn.head();
        })
    };
    let backends = [forgetful("a"), forgetful("b"), forgetful("c")];
    let group = || group(backends.each_ref().map(|backend| (backend.addr, weight(1))));
    let by_header = Balance::Hash(HashKey::Header("x-key".into()));
    let site = proxy(&group().balance(by_header).build().unwrap());
    for key in 0..8 {
        let ask = || with_fields(&site, &format!("X-Key: {key}\r\n")).text().to_owned();
        let first = ask();
        assert!((0..6).all(|_| ask() == first), "{key}");
    }
    let site = proxy(&group().sticky(Sticky::default()).build().unwrap());
    let first = with_fields(&site, "");
    let cookie = first.header("set-cookie").unwrap().split(';').next().unwrap();
    for _ in 0..6 {
        let reply = with_fields(&site, &format!("Cookie: {cookie}\r\n"));
        assert_eq!((reply.text(), reply.header("set-cookie")), (first.text(), None));
    }
    // With a backup beside it, the only primary stays the one that is asked.
    let spare = named("s");
    let upstream = Upstream::builder("app").backend(address(backends[0].addr));
    let upstream = upstream.backend_with(address(spare.addr), backup()).build().unwrap();
    assert_eq!(asked(&proxy(&upstream), 6), "aaaaaa");
}

#[test]
fn a_hash_leads_each_key_to_its_backend() {
    let backends = [named("a"), named("b"), named("c")];
    let group = || group(backends.each_ref().map(|backend| (backend.addr, weight(1))));
    let by_cookie = Balance::Hash(HashKey::Cookie("sid".into()));
    let by_header = Balance::Hash(HashKey::Header("X-User".into()));
    for (balance, field) in [(by_cookie, "Cookie: other=1; sid="), (by_header, "x-user: ")] {
        let site = proxy(&group().balance(balance).build().unwrap());
        let ask = |key: usize| with_fields(&site, &format!("{field}{key}\r\n")).text().to_owned();
        let owners: Vec<String> = (0..30).map(ask).collect();
        assert!(owners.iter().enumerate().all(|(key, owner)| ask(key) == *owner));
        assert!(
            ["a", "b", "c"]
                .iter()
                .all(|name| owners.iter().any(|owner| owner == name))
        );
        // Without a key they take turns.
        for keyless in ["", "Cookie: sid=\r\nX-User:\r\n"] {
            let names: String = (0..6).map(|_| with_fields(&site, keyless).text().to_owned()).collect();
            assert_eq!(
                ["a", "b", "c"].map(|name| names.matches(name).count()),
                [2, 2, 2],
                "{names}"
            );
        }
    }
}

#[test]
fn a_hash_of_the_client_takes_the_address_that_real_ip_finds() {
    let backends = [named("a"), named("b"), named("c")];
    let upstream = group(backends.each_ref().map(|backend| (backend.addr, weight(1))));
    let upstream = upstream.balance(Balance::Hash(HashKey::Client)).build().unwrap();
    let proxy = Proxy::new(upstream);
    let site = crate::common::site(Router::new().fallback(move |request: &mut osier_web::Request<'_>| {
        request.trust_hops(osier_web::ForwardedBy::XForwardedFor, |_| true);
        proxy.answer(request)
    }));
    let ask = |client: &str| {
        with_fields(&site, &format!("X-Forwarded-For: {client}\r\n"))
            .text()
            .to_owned()
    };
    let mut owners = HashMap::new();
    for host in 0..30 {
        let client = format!("192.0.2.{host}");
        let owner = ask(&client);
        assert_eq!(
            (ask(&client), ask(&format!("::ffff:{client}"))),
            (owner.clone(), owner.clone())
        );
        *owners.entry(owner).or_insert(0) += 1;
    }
    assert_eq!(owners.len(), 3, "{owners:?}");
    // The last 64 bits of an IPv6 address belong to one client.
    for network in 0..10 {
        let of = |host: &str| ask(&format!("2001:db8:0:{network}::{host}"));
        assert!(["2", "3:4", "ffff"].iter().all(|host| of(host) == of("1")), "{network}");
    }
}

#[test]
fn a_backend_that_is_lost_moves_no_keys_but_its_own() {
    let backends = [named("a"), named("b"), named("c")];
    let by_header = || Balance::Hash(HashKey::Header("x-key".into()));
    let [a, b, c] = backends.each_ref().map(|backend| backend.addr);
    let owners = |third: SocketAddr| {
        let members = [(a, id("1")), (b, id("2")), (third, id("3"))];
        let upstream = group(members).balance(by_header()).backoff(PATIENCE, PATIENCE);
        let site = proxy(&upstream.build().unwrap());
        let ask = |key| with_fields(&site, &format!("X-Key: {key}\r\n")).text().to_owned();
        (0..60).map(ask).collect::<Vec<_>>()
    };
    let (with, without) = (owners(c), owners(nobody()));
    for (with, without) in with.iter().zip(&without) {
        match with.as_str() {
            "c" => assert!(without == "a" || without == "b"),
            stays => assert_eq!(without, stays),
        }
    }
    let lost = with.iter().filter(|owner| *owner == "c").count();
    assert!((8..=32).contains(&lost), "about a third of 60: {lost}");
}

#[test]
fn a_sticky_cookie_leads_back_to_its_backend() {
    let [a, b] = [named("a"), named("b")];
    let group = || group([(a.addr, weight(1)), (b.addr, weight(1))]).sticky(Sticky::default());
    let upstream = group().build().unwrap();
    let site = serve(Proxy::new(upstream.clone()).trust(|_| true));
    let first = with_fields(&site, "");
    let set = first.header("set-cookie").unwrap();
    let value = set.strip_prefix("backend=").unwrap().split(';').next().unwrap();
    assert_eq!(set, format!("backend={value}; HttpOnly; SameSite=Lax; Path=/"));
    assert!(
        value.len() == 16 && value.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{value}"
    );
    assert_eq!(value, upstream.stats()[0].id);

    let cookie = format!("Cookie: x=1; backend={value}\r\n");
    for _ in 0..10 {
        let reply = with_fields(&site, &cookie);
        assert_eq!((reply.text(), reply.header("set-cookie")), (first.text(), None));
    }
    // A client with a value that no backend has.
    for stale in ["0123456789abcdef", "", "\"", a.addr.to_string().as_str()] {
        let reply = with_fields(&site, &format!("Cookie: backend={stale}\r\n"));
        assert!(reply.header("set-cookie").is_some(), "{stale}");
    }
    let secure = with_fields(&site, "X-Forwarded-Proto: https\r\n");
    let secure = secure.header("set-cookie").unwrap();
    assert!(secure.ends_with("; HttpOnly; SameSite=Lax; Secure; Path=/"), "{secure}");

    // The same backends in another order, as after a reload, have the same ids.
    let other = Upstream::builder("app")
        .backend(address(b.addr))
        .backend(address(a.addr));
    let sticky = Sticky {
        max_age: Some(Duration::from_secs(3600)),
        ..Sticky::default()
    };
    let site = proxy(&other.sticky(sticky).build().unwrap());
    for _ in 0..4 {
        assert_eq!(with_fields(&site, &cookie).text(), first.text());
    }
    let set = with_fields(&site, "");
    assert!(set.header("set-cookie").unwrap().ends_with("; Path=/; Max-Age=3600"));
}

#[test]
fn a_sticky_client_of_a_lost_backend_gets_another_and_its_cookie() {
    let (lost, there) = (nobody(), named("b"));
    let ms = Duration::from_millis(20);
    let upstream = group([(lost, id("one")), (there.addr, id("two"))]).backoff(ms, ms);
    let upstream = upstream.sticky(Sticky::default()).build().unwrap();
    let site = proxy(&upstream);
    for _ in 0..5 {
        let reply = with_fields(&site, "Cookie: backend=one\r\n");
        assert_eq!(reply.text(), "b");
        assert_eq!(
            reply.header("set-cookie"),
            Some("backend=two; HttpOnly; SameSite=Lax; Path=/")
        );
    }
    assert!(!upstream.stats()[0].is_in);
    let _back = named_on(TcpListener::bind(lost).unwrap(), "a");
    eventually("its clients come back", || {
        let reply = with_fields(&site, "Cookie: backend=one\r\n");
        reply.text() == "a" && reply.header("set-cookie").is_none()
    });
    assert_eq!(with_fields(&site, "Cookie: backend=two\r\n").text(), "b");
}

#[test]
fn the_cookie_of_a_backup_counts_while_no_other_is_in_service() {
    let (lost, spares) = (nobody(), [named("b"), named("c")]);
    let ms = Duration::from_millis(20);
    let spare = |id: &str| BackendOptions {
        id: Some(id.into()),
        ..backup()
    };
    let upstream = group([
        (lost, id("one")),
        (spares[0].addr, spare("two")),
        (spares[1].addr, spare("three")),
    ]);
    let site = proxy(&upstream.backoff(ms, ms).sticky(Sticky::default()).build().unwrap());
    for (cookie, name) in [("two", "b"), ("three", "c"), ("two", "b"), ("three", "c")] {
        assert_eq!(
            with_fields(&site, &format!("Cookie: backend={cookie}\r\n")).text(),
            name
        );
    }
    let _back = named_on(TcpListener::bind(lost).unwrap(), "a");
    eventually("the primary gets them", || {
        let reply = with_fields(&site, "Cookie: backend=three\r\n");
        reply.text() == "a"
            && reply
                .header("set-cookie")
                .is_some_and(|set| set.starts_with("backend=one;"))
    });
}

#[test]
fn scripts_of_a_client_run_at_its_backend() {
    let folder = Folder::new(&[("a.php", "")]);
    let named = |name: &'static str| {
        Responder::unix(folder.path(), move |conn| {
            while conn.request().is_some() {
                conn.send(responder::text(name));
            }
        })
    };
    let [a, b] = [named("a"), named("b")];
    let upstream = fastcgi::upstream("php", [a.address.clone(), b.address.clone()]).sticky(Sticky::default());
    let options = Options {
        https: true,
        ..Options::default()
    };
    let site = responder::serve_over(&folder, upstream, options);
    let first = site.get("/a.php");
    let set = first.header("set-cookie").unwrap();
    assert!(set.ends_with("; HttpOnly; SameSite=Lax; Secure; Path=/"), "{set}");
    let cookie = set.split(';').next().unwrap();
    for _ in 0..6 {
        let reply = site.ask(&format!(
            "GET /a.php HTTP/1.1\r\nHost: test\r\nCookie: {cookie}\r\n\r\n"
        ));
        assert_eq!((reply.text(), reply.header("set-cookie")), (first.text(), None));
    }
}

/// A proxy on a clock that only the test moves.
struct Clocked {
    addr: SocketAddr,
    clock: VirtualClock,
    stop: osier_web::ShutdownHandle,
    thread: Option<thread::JoinHandle<()>>,
}

impl Clocked {
    fn start(upstream: Builder) -> (Clocked, Upstream) {
        let clock = VirtualClock::new();
        clock.auto_advance(false);
        let runtime = osier::Runtime::builder().workers(1).clock(clock.clone());
        let (ready, started) = mpsc::channel();
        let thread = thread::spawn(move || {
            runtime.build().unwrap().run(|| {
                let upstream = upstream.build().unwrap();
                upstream.start();
                let router = Router::new().fallback(Proxy::new(upstream.clone()).handler());
                let server = Server::new(router).bind("127.0.0.1:0").unwrap();
                ready.send((server.local_addr(), server.handle(), upstream)).unwrap();
                server.run();
            });
        });
        let (addr, stop, upstream) = started.recv_timeout(PATIENCE).unwrap();
        let thread = Some(thread);
        (
            Clocked {
                addr,
                clock,
                stop,
                thread,
            },
            upstream,
        )
    }

    fn asked(&self, count: usize) -> String {
        let ask = |_| {
            let stream = std::net::TcpStream::connect(self.addr).unwrap();
            crate::common::Client::new(stream).get("/").text().to_owned()
        };
        (0..count).map(ask).collect()
    }

    /// Counts the requests of 120 that get the answer `a`, each quarter of a slow start that has just begun.
    fn shares(&self, time: Duration) -> Vec<usize> {
        let mut shares = vec![self.asked(120).matches('a').count()];
        for _ in 0..4 {
            self.clock.advance(time / 4);
            shares.push(self.asked(120).matches('a').count());
        }
        shares
    }
}

impl Drop for Clocked {
    fn drop(&mut self) {
        self.stop.shutdown();
        self.clock.auto_advance(true);
        if let (Some(thread), false) = (self.thread.take(), thread::panicking()) {
            thread.join().unwrap();
        }
    }
}

/// The requests of 120 that one of two equal backends gets, when it has 0, 1, 2, 3 and 4 quarters of its weight.
const SHARES: [usize; 5] = [0, 24, 40, 51, 60];

fn are_near(shares: &[usize]) -> bool {
    shares.iter().zip(SHARES).all(|(got, want)| got.abs_diff(want) <= 2)
}

#[test]
fn a_backend_that_failures_had_put_out_starts_slowly() {
    let time = Duration::from_secs(1000);
    for balance in [Balance::LeastConnections, Balance::RoundRobin] {
        let (lost, there) = (nobody(), named("b"));
        let upstream = group([(lost, weight(1)), (there.addr, weight(1))]).balance(balance.clone());
        let (site, upstream) = Clocked::start(upstream.slow_start(time));
        assert_eq!(site.asked(4), "bbbb");
        assert!(!upstream.stats()[0].is_in);
        let _back = named_on(TcpListener::bind(lost).unwrap(), "a");
        assert_eq!(site.asked(4), "bbbb", "not before its time");
        site.clock.advance(Duration::from_millis(300));
        assert_eq!(site.asked(1), "a", "the trial");
        let shares = site.shares(time);
        assert!(are_near(&shares), "{balance:?}: {shares:?}");
        site.clock.advance(time);
        assert_eq!(site.asked(120).matches('a').count(), 60);
    }
}

#[test]
fn a_backend_that_checks_had_put_out_starts_slowly() {
    let (lost, there) = (nobody(), named("b"));
    let time = Duration::from_secs(1000);
    let check = Check::connect().every(Duration::from_secs(1)).fall(1);
    let upstream = group([(lost, weight(1)), (there.addr, weight(1))]).failures(1000);
    let (site, upstream) = Clocked::start(upstream.slow_start(time).balance(Balance::RoundRobin).check(check));
    eventually("it is unhealthy", || !upstream.stats()[0].is_in);
    let _back = named_on(TcpListener::bind(lost).unwrap(), "a");
    eventually("it is healthy", || {
        site.clock.advance(Duration::from_millis(100));
        upstream.stats()[0].is_in
    });
    let shares = site.shares(time);
    assert!(are_near(&shares), "{shares:?}");
}

#[test]
fn places_are_counted_right_whatever_the_balance() {
    let backends = [named("a"), named("b"), named("c")];
    for balance in [
        Balance::LeastConnections,
        Balance::RoundRobin,
        Balance::RandomTwo,
        Balance::Hash(HashKey::Client),
    ] {
        let upstream = group(backends.each_ref().map(|backend| (backend.addr, weight(2))));
        let upstream = upstream.balance(balance.clone()).max_leases(4).build().unwrap();
        let runtime = osier::Runtime::builder().workers(4).build().unwrap();
        runtime.run(|| {
            let lease = |_| {
                let upstream = upstream.clone();
                osier::spawn(move || {
                    for _ in 0..50 {
                        // Eight fibers, twelve places.
                        let lease = upstream.lease(None).unwrap();
                        assert!(upstream.stats().iter().all(|stats| stats.leases <= 4));
                        osier::yield_now();
                        lease.keep();
                    }
                })
            };
            let fibers: Vec<_> = (0..8).map(lease).collect();
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        });
        let stats = upstream.stats();
        assert_eq!(stats.iter().map(|stats| stats.leases).sum::<usize>(), 0, "{balance:?}");
        assert_eq!(stats.iter().map(|stats| stats.total).sum::<u64>(), 400, "{balance:?}");
        // One key belongs to one backend, and only its overflow to the others.
        let is_even = !matches!(balance, Balance::Hash(_));
        assert!(
            !is_even || stats.iter().all(|stats| stats.total > 40),
            "{balance:?}: {stats:?}"
        );
    }
}

#[test]
fn mistakes_of_a_group_are_told() {
    let [a, b] = [nobody(), nobody()];
    let hash = || Balance::Hash(HashKey::Client);
    for (builder, part) in [
        (group([(a, backup()), (b, backup())]), "has only backups"),
        (group([(a, weight(0))]), "weight 0: give it 1 to 1000"),
        (group([(a, weight(1001))]), "weight 1001: give it 1 to 1000"),
        (group([(a, id("x")), (b, id("x"))]), "two backends with the id x"),
        (group([(a, id("x; y"))]), "the id \"x; y\""),
        (
            group([(a, weight(1))]).sticky(Sticky::default()).balance(hash()),
            "use one of them",
        ),
        (
            group([(a, weight(1))]).balance(Balance::Hash(HashKey::Cookie("a b".into()))),
            "names a cookie \"a b\"",
        ),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(part), "{error}");
    }
}
