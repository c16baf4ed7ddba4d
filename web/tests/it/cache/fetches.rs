//! One fetch for many: who waits, for how long, and what becomes of the body.

use super::{World, answer, on_clock, s, send, store};
use crate::common::backend::Backend;
use crate::common::{eventually, site_with};
use osier::sync::Event;
use osier::time::VirtualClock;
use osier_web::test::{Client, Reply};
use osier_web::wrap::cache::{Cache, Options};
use osier_web::{Body, Request, Response, Router, Server};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Runs `count` requests at once, each on a fiber, and returns their replies.
fn at_once(client: &Arc<Client>, requests: Vec<String>) -> Vec<Reply> {
    let ask = |request: String| {
        let client = client.clone();
        osier::spawn(move || send(&client, &request))
    };
    let fibers: Vec<_> = requests.into_iter().map(ask).collect();
    fibers.into_iter().map(|fiber| fiber.join().unwrap()).collect()
}

#[test]
fn one_fetch_for_many_on_all_workers() {
    let runtime = osier::Runtime::builder().workers(3).clock(VirtualClock::new());
    runtime.build().unwrap().run(|| {
        let world = World::new(Options::default(), |call, _| {
            osier::sleep(s(2));
            answer(200, "cache-control: max-age=60", &format!("{call}"))
        });
        let (client, calls) = (Arc::new(world.client), world.calls);
        let replies = at_once(&client, vec!["GET /a".to_owned(); 50]);
        assert!(replies.iter().all(|reply| reply.text() == "0"));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let collapsed = replies
            .iter()
            .filter(|reply| reply.header("cache-status").unwrap().contains("collapsed"));
        assert_eq!(collapsed.count(), 49);
        assert_eq!(world.cache.store().stats().collapsed, 49);
    });
}

#[test]
fn responses_that_cannot_be_stored_do_not_wait_for_each_other() {
    on_clock(|| {
        let world = World::new(Options::default(), |call, _| {
            osier::sleep(s(1));
            answer(200, "cache-control: private", &format!("{call}"))
        });
        let (client, calls) = (Arc::new(world.client), world.calls);
        let begun = osier::time::now();
        let replies = at_once(&client, vec!["GET /a".to_owned(); 20]);
        // One to find out, then all others together.
        assert!(osier::time::now() - begun < s(3));
        let mut bodies: Vec<_> = replies.iter().map(|reply| reply.text().to_owned()).collect();
        bodies.sort();
        bodies.dedup();
        assert_eq!((bodies.len(), calls.load(Ordering::SeqCst)), (20, 20));
        let begun = osier::time::now();
        at_once(&client, vec!["GET /a".to_owned(); 20]);
        assert!(osier::time::now() - begun < Duration::from_millis(1500), "remembered");
    });
}

#[test]
fn a_request_does_not_wait_for_ever() {
    on_clock(|| {
        let world = World::new(Options::default(), |call, _| {
            osier::sleep(if call == 0 { s(100) } else { s(1) });
            answer(200, "cache-control: max-age=600", &format!("{call}"))
        });
        let client = Arc::new(world.client);
        let begun = osier::time::now();
        let slow = {
            let client = client.clone();
            osier::spawn(move || send(&client, "").text().to_owned())
        };
        osier::sleep(s(1));
        assert_eq!(send(&client, "").text(), "1");
        assert!(osier::time::now() - begun < s(10));
        assert_eq!(slow.join().unwrap(), "0");
    });
}

#[test]
fn those_who_wait_select_by_vary() {
    on_clock(|| {
        let world = World::new(Options::default(), |_, request| {
            osier::sleep(s(1));
            let language = request.header_str("accept-language").unwrap_or("none").to_owned();
            answer(200, "cache-control: max-age=60\nvary: accept-language", &language)
        });
        let (client, calls) = (Arc::new(world.client), world.calls);
        let requests = (0..20)
            .map(|number| format!("GET /a\naccept-language: {}", ["de", "fr"][number % 2]))
            .collect();
        let replies = at_once(&client, requests);
        for (number, reply) in replies.iter().enumerate() {
            assert_eq!(reply.text(), ["de", "fr"][number % 2]);
        }
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn a_failing_backend_is_asked_once() {
    on_clock(|| {
        // A client can provoke a 502, so the others ask for themselves.
        for (status, expected) in [(503, 1), (504, 1), (502, 4)] {
            let world = World::new(Options::default(), move |_, _| {
                osier::sleep(s(1));
                answer(status, "", "bad\n")
            });
            let (client, calls) = (Arc::new(world.client), world.calls);
            let replies = at_once(&client, vec!["GET /a".to_owned(); 4]);
            assert!(replies.iter().all(|reply| reply.status() == status));
            assert_eq!(calls.load(Ordering::SeqCst), expected, "{status}");
        }
    });
}

#[test]
fn a_handler_that_panics_leaves_nobody_waiting() {
    on_clock(|| {
        let world = World::new(Options::default(), |call, _| {
            osier::sleep(s(1));
            assert!(call > 0, "the first call fails, for this test");
            answer(200, "cache-control: max-age=60", "a")
        });
        let client = Arc::new(world.client);
        let replies = at_once(&client, vec!["GET /a".to_owned(); 3]);
        let failed = replies.iter().filter(|reply| reply.status() == 500).count();
        let whole = replies.iter().filter(|reply| reply.text() == "a").count();
        assert_eq!((failed, whole), (1, 2));
        assert_eq!(send(&client, "").text(), "a");
    });
}

#[test]
fn a_private_response_to_a_cookie_says_nothing_about_others() {
    on_clock(|| {
        let world = World::new(Options::default(), |call, request| {
            osier::sleep(s(1));
            match request.header("cookie") {
                Some(_) => answer(200, "cache-control: private", "private"),
                None => answer(200, "cache-control: max-age=10, stale-if-error=60", &format!("{call}")),
            }
        });
        let (client, cache) = (Arc::new(world.client), world.cache);
        send(&client, "");
        osier::sleep(s(20));
        let cookie = "GET /a\ncookie: a=b";
        assert_eq!(send(&client, cookie).text(), "private");
        assert_eq!(cache.store().stats().entries, 1);
        // Others with cookies do not wait for each other.
        let begun = osier::time::now();
        at_once(&client, vec![cookie.to_owned(); 5]);
        assert!(osier::time::now() - begun < Duration::from_millis(1500));
        // Those without do.
        let calls = world.calls.load(Ordering::SeqCst);
        let replies = at_once(&client, vec!["GET /a".to_owned(); 5]);
        assert_eq!(world.calls.load(Ordering::SeqCst), calls + 1);
        assert!(replies[0].header("cache-status").unwrap().contains("stored"));
    });
}

#[test]
fn those_who_wait_for_an_error_that_the_client_may_have_provoked_ask_again() {
    for is_away in [false, true] {
        on_clock(|| {
            let world = World::new(Options::default(), move |call, request| {
                osier::sleep(s(1));
                match call > 0 && (is_away || request.header("cookie").is_some()) {
                    true => answer(500, "", "x"),
                    false => answer(200, "cache-control: max-age=10, stale-if-error=600", &format!("{call}")),
                }
            });
            let (client, calls) = (Arc::new(world.client), world.calls);
            assert_eq!(send(&client, "").text(), "0");
            osier::sleep(s(20));
            let mut requests = vec!["GET /a\ncookie: odd=1".to_owned()];
            requests.resize(if is_away { 6 } else { 1 }, requests[0].clone());
            requests.resize(10, "GET /a".to_owned());
            let replies = at_once(&client, requests);
            let texts: Vec<_> = replies.iter().map(|reply| reply.text()).collect();
            match is_away {
                true => assert_eq!(texts, ["0"; 10]),
                false => assert_eq!((texts[0], &texts[1..]), ("0", &["2"; 9][..])),
            }
            // One of those who have waited asks for all of them, also where it gets an error, too.
            assert_eq!(calls.load(Ordering::SeqCst), 3);
        });
    }
}

#[test]
fn credentials_that_a_response_may_not_be_shared_with_do_not_validate_it() {
    on_clock(|| {
        let world = World::new(Options::default(), |_, request| {
            let is_same = request.header("if-none-match").is_some();
            answer(
                if is_same { 304 } else { 200 },
                "cache-control: max-age=60\netag: \"1\"",
                "a",
            )
        });
        assert_eq!(send(&world.client, "").text(), "a");
        osier::sleep(s(60));
        assert_eq!(send(&world.client, "GET /a\nauthorization: x").text(), "a");
        assert_eq!(world.calls(), 2);
    });
}

/// A request leads a second fetch with a stale response that the first one has replaced. Its `Vary` is in no entry any more, so others
/// join this fetch who do not select that response. A second round asks whether the entry is still stored. If another worker replaces it after
/// that question, only the arm for entries that do not fit keeps it from the others; no test makes it so.
#[test]
fn nobody_gets_the_stale_response_of_another_in_place_of_an_error() {
    on_clock(|| {
        let world = World::new(Options::default(), |_, request| {
            let sent = |name| request.header_str(name).unwrap_or("none").to_owned();
            let (fields, page) = match sent("x-b").as_str() {
                "none" => ("max-age=1, stale-if-error=600\nvary: x-a", sent("x-a")),
                "first" => {
                    osier::sleep(s(1));
                    ("max-age=60\nvary: x-b", sent("x-b"))
                }
                _ => {
                    osier::sleep(s(2));
                    return answer(500, "", "failed");
                }
            };
            answer(200, &format!("cache-control: {fields}"), &format!("the page of {page}"))
        });
        let client = Arc::new(world.client);
        let begin = |request: &'static str| {
            let client = client.clone();
            osier::spawn(move || send(&client, request))
        };
        assert_eq!(send(&client, "GET /a\nx-a: ada").text(), "the page of ada");
        osier::sleep(s(5));
        let first = begin("GET /a\nx-a: ada\nx-b: first");
        osier::sleep(Duration::from_millis(500));
        let second = begin("GET /a\nx-a: ada\nx-b: second");
        osier::sleep(s(1));
        let other = begin("GET /a\nx-a: eve\nx-b: second");
        assert_eq!(first.join().unwrap().text(), "the page of first");
        for (name, fiber) in [("other", other), ("second", second)] {
            assert_eq!(fiber.join().unwrap().text(), "failed", "{name}");
        }
    });
}

#[test]
fn the_error_of_a_refresh_is_logged() {
    on_clock(|| {
        let cached = Cache::new(store(|_| {})).around(|request: &mut Request<'_>| match request.header("x-fail") {
            Some(_) => Err(osier_web::Error::new("out of paper")),
            None => Ok(answer(200, "cache-control: max-age=10, stale-while-revalidate=60", "a")),
        });
        let lines = Arc::new(Mutex::new(Vec::new()));
        let log = lines.clone();
        let server = Server::new(cached).on_log(move |line| log.lock().unwrap().push(line.to_string()));
        let client = Client::of(server);
        send(&client, "");
        osier::sleep(s(20));
        assert_eq!(send(&client, "GET /a\nx-fail: 1").text(), "a");
        osier::sleep(s(1));
        let lines = lines.lock().unwrap();
        assert!(lines.len() == 1 && lines[0].contains("out of paper"), "{lines:?}");
    });
}

#[test]
fn an_error_of_the_backend_in_whose_place_a_stored_response_is_sent_is_logged() {
    on_clock(|| {
        let calls = AtomicUsize::new(0);
        let cached =
            Cache::new(store(|_| {})).around(move |_: &mut Request<'_>| match calls.fetch_add(1, Ordering::SeqCst) {
                0 => answer(200, "cache-control: max-age=10, stale-if-error=60", "a"),
                _ => answer(500, "", "out of ink"),
            });
        let lines = Arc::new(Mutex::new(Vec::new()));
        let log = lines.clone();
        let server = Server::new(cached).on_log(move |line| log.lock().unwrap().push(line.to_string()));
        let client = Client::of(server);
        send(&client, "");
        osier::sleep(s(20));
        assert_eq!(send(&client, "GET /a\nx-field: 1").text(), "a");
        let failed = "GET /a failed: the handler has answered 500; ";
        let then = [
            "it is asked again without the fields of the client",
            "a stored response is sent",
        ];
        assert_eq!(*lines.lock().unwrap(), then.map(|then| format!("{failed}{then}")));
    });
}

#[test]
fn a_client_whose_fields_provoke_errors_keeps_no_page_stale() {
    on_clock(|| {
        let world = World::new(Options::default(), |call, request| match request.header("x-bad") {
            Some(_) => answer(500, "", "bad"),
            None => {
                let language = request.header_str("x-language").unwrap_or("none").to_owned();
                let fields = "cache-control: max-age=10, stale-if-error=600\nvary: x-language";
                answer(200, fields, &format!("{call} {language}"))
            }
        });
        for (at, language) in ["de", "en"].into_iter().enumerate() {
            let get = format!("GET /a\nx-language: {language}");
            let reply = send(&world.client, &get);
            assert_eq!(reply.text(), format!("{} {language}", 3 * at));
            osier::sleep(s(20));
            // Asked once with its fields, and once with those alone by which responses are stored.
            let renewed = format!("{} {language}", 3 * at + 2);
            assert_eq!(send(&world.client, &format!("{get}\nx-bad: 1")).text(), renewed);
            let reply = send(&world.client, &get);
            assert_eq!(
                (reply.text(), reply.header("cache-status")),
                (&*renewed, Some("osier; hit; ttl=10"))
            );
        }
    });
}

#[test]
fn a_backend_that_fails_without_a_client_too_is_spared_unless_it_refuses_such_requests() {
    for (to_nobody, others_ask) in [(500, false), (403, true)] {
        on_clock(|| {
            let world = World::new(Options::default(), move |call, request| {
                match (call, request.header("x-field")) {
                    (0, _) => answer(200, "cache-control: max-age=10, stale-if-error=600", "stored"),
                    (_, None) => answer(to_nobody, "", "bad"),
                    (_, Some(_)) => answer(500, "", "bad"),
                }
            });
            let ask = |client: u8| {
                let request = world.client.get("/a").header("x-field", 1);
                let reply = request.peer(([192, 0, 2, client], 4).into()).send();
                assert_eq!(reply.text(), "stored");
                (world.calls(), reply.header("cache-status").unwrap().to_owned())
            };
            ask(0);
            osier::sleep(s(20));
            assert_eq!(ask(0), (3, "osier; fwd=stale; fwd-status=500".into()));
            // The client may be the reason, and nobody else.
            for _ in 0..5 {
                assert_eq!(ask(0).0, 3);
            }
            let calls = (0..=255).map(|client| ask(client).0).max();
            // Each group of clients has asked once, by two calls, and most have: 256 clients miss seldom more than a few.
            match others_ask {
                true => assert!((3 + 2 * 32..=3 + 2 * 63).contains(&calls.unwrap()), "{calls:?}"),
                false => assert_eq!(calls, Some(3)),
            }
            let before = world.calls();
            osier::sleep(s(2));
            assert_eq!(ask(0).0, before + 2, "the next second");
        });
    }
}

/// The page was removed for all, and the client whose own request had failed was sent to the login.
#[test]
fn a_login_for_a_request_without_a_clients_fields_is_for_nobody() {
    on_clock(|| {
        let world = World::new(Options::default(), |call, request| {
            match (call, request.header("x-field")) {
                (0, _) => answer(200, "cache-control: max-age=10, stale-if-error=600", "stored"),
                (_, None) => answer(302, "location: /login\ncache-control: no-store", "log in"),
                (_, Some(_)) => answer(500, "", "bad"),
            }
        });
        for _ in 0..3 {
            let reply = send(&world.client, "GET /a\nx-field: 1");
            assert_eq!((reply.status().as_u16(), reply.text()), (200, "stored"));
            osier::sleep(s(20));
        }
        assert_eq!(world.calls(), 5);
    });
}

/// The client of a stale response waits for nothing, so it can ask for any number of them.
#[test]
fn fetches_behind_stale_responses_are_bounded() {
    const PAGES: usize = 300;
    on_clock(|| {
        let world = World::new(Options::default(), |call, _| {
            if (PAGES..2 * PAGES).contains(&call) {
                osier::sleep(s(100));
            }
            answer(200, "cache-control: max-age=1, stale-while-revalidate=600", "a")
        });
        let all = || {
            for page in 0..PAGES {
                assert_eq!(send(&world.client, &format!("GET /{page}")).text(), "a");
            }
            osier::sleep(Duration::from_millis(1)); // they begin
            world.calls()
        };
        assert_eq!(all(), PAGES);
        osier::sleep(s(2));
        let begun = all() - PAGES;
        assert!((1..=128).contains(&begun), "{begun}");
        assert_eq!(all() - PAGES, begun, "no place is free");
        // The fetches end, and others begin.
        osier::sleep(s(101));
        let begun = all() - PAGES;
        assert!((129..=256).contains(&begun), "{begun}");
    });
}

#[test]
fn the_fetches_of_one_cache_leave_those_of_another_their_places() {
    on_clock(|| {
        let shared = store(|_| {});
        let caches = ["one", "other"].map(|space| {
            let options = Options {
                space: space.into(),
                ..Options::default()
            };
            World::of(Cache::with(shared.clone(), options), |call, _| {
                if call >= 200 {
                    osier::sleep(s(100));
                }
                answer(200, "cache-control: max-age=1, stale-while-revalidate=600", "a")
            })
        });
        let all = |world: &World| {
            (0..200).for_each(|page| _ = send(&world.client, &format!("GET /{page}")));
            osier::sleep(Duration::from_millis(1)); // the fetches begin
            world.calls()
        };
        assert_eq!(caches.each_ref().map(all), [200; 2]);
        osier::sleep(s(2));
        assert_eq!(caches.each_ref().map(all), [328; 2]);
    });
}

/// Counts the calls of a handler that have not ended.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn begin(running: &Arc<AtomicUsize>) -> Running {
        running.fetch_add(1, Ordering::SeqCst);
        Running(running.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A handler that takes 100 s for the head of a response, or for its body if the query is `body`.
fn slowly(running: Arc<AtomicUsize>) -> impl Fn(usize, &mut Request<'_>) -> Response + Send + Sync {
    move |_, request| {
        let call = Running::begin(&running);
        let body = match request.query() {
            Some("body") => Body::stream(move |out| {
                let _call = call;
                out.write_all(b"a")?;
                osier::sleep(s(100));
                out.write_all(b"b")
            }),
            _ => {
                osier::sleep(s(100));
                Body::from("ab")
            }
        };
        answer(200, "cache-control: max-age=600", "").body(body)
    }
}

/// A request whose client leaves after `time`.
fn leaving(client: &Arc<Client>, target: String, time: Duration) -> osier::JoinHandle<bool> {
    let client = client.clone();
    osier::spawn(move || osier::timeout(time, || send(&client, &format!("GET {target}"))).is_err())
}

/// A client that has left is not counted by any limit for clients, so it could begin any number of fetches.
#[test]
fn fetches_whose_clients_have_left_are_bounded() {
    const PAGES: usize = 300;
    for query in ["", "?body"] {
        on_clock(|| {
            let running = Arc::new(AtomicUsize::new(0));
            let world = World::new(Options::default(), slowly(running.clone()));
            let (client, cache, calls) = (Arc::new(world.client), world.cache, world.calls);
            let all: Vec<_> = (0..PAGES)
                .map(|page| leaving(&client, format!("/{page}{query}"), s(1)))
                .collect();
            assert!(all.into_iter().all(|fiber| fiber.join().unwrap()));
            osier::sleep(Duration::from_millis(1)); // those without a place end
            let left = running.load(Ordering::SeqCst);
            assert_eq!((left, calls.load(Ordering::SeqCst)), (128, PAGES), "{query}");
            // No mark tells that the backend has failed, and a request for such a page begins another fetch.
            assert_eq!(send(&client, &format!("GET /{}{query}", PAGES - 1)).text(), "ab");
            osier::sleep(s(1));
            let left = running.load(Ordering::SeqCst);
            assert_eq!((left, cache.store().stats().entries), (0, 129), "{query}");
            // The places are free again.
            assert!(leaving(&client, format!("/last{query}"), s(1)).join().unwrap());
            osier::sleep(s(101));
            assert_eq!(cache.store().stats().entries, 130, "{query}");
        });
    }
}

#[test]
fn a_fetch_goes_on_as_long_as_one_client_waits() {
    for query in ["", "?body"] {
        on_clock(|| {
            let running = Arc::new(AtomicUsize::new(0));
            let world = World::new(
                Options {
                    wait: s(1000),
                    ..Options::default()
                },
                slowly(running.clone()),
            );
            let (client, calls) = (Arc::new(world.client), world.calls);
            let others: Vec<_> = (0..128)
                .map(|page| leaving(&client, format!("/{page}{query}"), s(1)))
                .collect();
            assert!(others.into_iter().all(|fiber| fiber.join().unwrap()));
            let page = format!("/a{query}");
            let begins = leaving(&client, page.clone(), s(10));
            osier::sleep(s(1));
            let stays = leaving(&client, page.clone(), s(1000));
            osier::sleep(s(1));
            let joins = leaving(&client, page.clone(), s(20));
            assert!(begins.join().unwrap() && joins.join().unwrap());
            assert_eq!(running.load(Ordering::SeqCst), 129);
            assert!(!stays.join().unwrap(), "it has the response");
            assert_eq!(calls.load(Ordering::SeqCst), 129, "{query}");
            assert!(
                send(&client, &format!("GET {page}"))
                    .header("cache-status")
                    .unwrap()
                    .contains("hit")
            );
        });
    }
}

#[test]
fn connections_to_a_backend_are_bounded_when_clients_reset_theirs() {
    const CLIENTS: usize = 150;
    for has_begun in [false, true] {
        let backend = Backend::start(move |_, conn| {
            conn.head();
            if has_begun {
                conn.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 200000\r\n\r\n");
                conn.send([b'a'; 100_000]);
            }
            conn.is_ended();
        });
        let proxy = backend.proxy();
        let cached = Cache::new(store(|_| {})).around(move |request: &mut Request<'_>| proxy.answer(request));
        let site = site_with(2, Server::new(Router::new().fallback(cached)), |server| {
            server.bind("127.0.0.1:0")
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|page| {
                let mut client = site.connect();
                client.send(format!("GET /{page} HTTP/1.1\r\nHost: t\r\n\r\n"));
                if has_begun {
                    client.head();
                }
                client
            })
            .collect();
        eventually("all requests are at the backend", || backend.open() == CLIENTS);
        clients.into_iter().for_each(crate::common::Client::reset);
        eventually("128 of them are left", || backend.open() == 128);
    }
}

#[test]
fn long_keys_have_no_marks() {
    on_clock(|| {
        for (len, seconds) in [(100, 1), (1000, 2)] {
            let world = World::new(Options::default(), |_, _| {
                osier::sleep(s(1));
                answer(200, "cache-control: private", "a")
            });
            let client = Arc::new(world.client);
            let request = format!("GET /{}", "a".repeat(len));
            send(&client, &request);
            let begun = osier::time::now();
            at_once(&client, vec![request; 3]);
            let passed = (osier::time::now() - begun).as_millis();
            assert_eq!(passed / 1000, seconds, "{len}: {passed} ms");
        }
    });
}

/// A handler whose body comes in pieces, each when the test says so.
fn in_pieces(
    pieces: usize,
    go: Arc<Event>,
    is_whole: bool,
) -> impl Fn(usize, &mut Request<'_>) -> Response + Send + Sync {
    move |_, _| {
        let go = go.clone();
        let body = Body::stream(move |out| {
            for number in 0..pieces {
                if number > 0 {
                    go.wait();
                }
                out.write_all(&[b'a' + number as u8; 1000])?;
            }
            match is_whole {
                true => Ok(()),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        });
        answer(200, "cache-control: max-age=60", "").body(body)
    }
}

#[test]
fn a_fetch_survives_the_client_that_began_it() {
    on_clock(|| {
        let go = Arc::new(Event::new());
        let world = World::new(Options::default(), in_pieces(3, go.clone(), true));
        let (client, cache) = (Arc::new(world.client), world.cache);
        let leaving = {
            let client = client.clone();
            osier::spawn(move || client.get("/a").leave_after(700).send().is_whole())
        };
        osier::sleep(s(1));
        let follower = {
            let client = client.clone();
            osier::spawn(move || client.get("/a").send())
        };
        osier::sleep(s(1));
        go.set();
        osier::sleep(s(1));
        assert!(!leaving.join().unwrap());
        go.set();
        let reply = follower.join().unwrap();
        assert!(reply.is_whole() && reply.body().len() == 3000);
        assert_eq!(cache.store().stats().entries, 1);
        assert_eq!(client.get("/a").send().body(), reply.body());
        assert_eq!(world.calls.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn nobody_joins_a_body_that_is_stale_already() {
    on_clock(|| {
        let go = Arc::new(Event::manual());
        let world = World::new(Options::default(), in_pieces(2, go.clone(), true));
        let (client, calls) = (Arc::new(world.client), world.calls);
        let ask = || {
            let client = client.clone();
            osier::spawn(move || send(&client, "").is_whole())
        };
        let first = ask();
        osier::sleep(s(1));
        let second = ask();
        osier::sleep(s(100));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let third = ask();
        osier::sleep(s(1));
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        go.set();
        assert!([first, second, third].into_iter().all(|fiber| fiber.join().unwrap()));
    });
}

#[test]
fn what_is_incomplete_is_not_stored() {
    on_clock(|| {
        let go = Arc::new(Event::new());
        let world = World::new(Options::default(), in_pieces(2, go.clone(), false));
        for _ in 0..2 {
            go.set();
            // Nothing has been sent yet, so the client gets an error.
            assert_eq!(send(&world.client, "").status(), 500);
        }
        assert_eq!((world.calls(), world.stats().entries), (2, 0));
        // A length that does not hold.
        let world = World::new(Options::default(), |_, _| {
            answer(200, "cache-control: max-age=60", "").body(Body::sized_reader(&b"abc"[..], 5))
        });
        assert_eq!(send(&world.client, "").status(), 500);
        assert_eq!(world.stats().entries, 0);
    });
}

#[test]
fn an_unsafe_method_keeps_older_fetches_out() {
    on_clock(|| {
        let world = World::new(Options::default(), |call, request| {
            if request.method() == "GET" && call == 0 {
                osier::sleep(s(10));
            }
            answer(200, "cache-control: max-age=60", &format!("{call}"))
        });
        let client = Arc::new(world.client);
        let old = {
            let client = client.clone();
            osier::spawn(move || send(&client, "").text().to_owned())
        };
        osier::sleep(s(1));
        assert_eq!(send(&client, "POST /a").text(), "1");
        assert_eq!(send(&client, "").text(), "2");
        assert_eq!(old.join().unwrap(), "0");
        assert_eq!(send(&client, "").text(), "2");
    });
}

/// Sends `change` while `first` is fetched. Returns what a request gets after both.
fn after_a_change(first: &'static str, change: &str) -> String {
    let cache = Cache::new(store(|_| {})).on_purge(|_| true);
    let world = World::of(cache, |call, _| {
        if call == 0 {
            osier::sleep(s(10));
        }
        answer(200, "cache-control: public, max-age=60", &format!("{call}"))
    });
    let client = Arc::new(world.client);
    let old = {
        let client = client.clone();
        osier::spawn(move || send(&client, first).text().to_owned())
    };
    osier::sleep(s(1));
    assert_eq!(send(&client, change).status(), 200);
    assert_eq!(old.join().unwrap(), "0");
    send(&client, "").text().to_owned()
}

#[test]
fn a_purge_keeps_older_fetches_out() {
    on_clock(|| {
        for (change, expected) in [
            ("PURGE /a", "1"),
            ("PURGE /*", "1"),
            ("PURGE /\ncache-tag: x", "1"),
            ("PURGE /b*", "0"),
            ("PURGE /\nhost: other\ncache-tag: x", "0"),
        ] {
            assert_eq!(after_a_change("GET /a", change), expected, "{change}");
        }
    });
}

#[test]
fn a_change_keeps_older_fetches_with_credentials_out() {
    on_clock(|| {
        let first = "GET /a\nauthorization: Basic eDp5";
        for (change, expected) in [("POST /a", "2"), ("PURGE /a", "1"), ("PURGE /*", "1"), ("POST /b", "0")] {
            assert_eq!(after_a_change(first, change), expected, "{change}");
        }
    });
}

#[test]
fn a_purge_during_a_fetch_leaves_no_stale_response_for_its_error() {
    on_clock(|| {
        for (change, expected) in [("PURGE /a", "failed"), ("PURGE /b", "a")] {
            let cache = Cache::new(store(|_| {})).on_purge(|_| true);
            let world = World::of(cache, |call, _| match call {
                0 => answer(200, "cache-control: max-age=1, stale-if-error=600", "a"),
                _ => {
                    osier::sleep(s(2));
                    answer(500, "", "failed")
                }
            });
            let client = Arc::new(world.client);
            assert_eq!(send(&client, "").text(), "a");
            osier::sleep(s(5));
            let fetch = {
                let client = client.clone();
                osier::spawn(move || send(&client, "").text().to_owned())
            };
            osier::sleep(s(1));
            assert_eq!(send(&client, change).status(), 200);
            assert_eq!(fetch.join().unwrap(), expected, "{change}");
        }
    });
}

/// The backend refuses the request without the client's fields. There is no stored response any more, so the client's own request counts.
#[test]
fn a_purge_before_the_second_question_of_a_fetch_gives_no_client_its_refusal() {
    on_clock(|| {
        let cache = Cache::new(store(|_| {})).on_purge(|_| true);
        let world = World::of(cache, |call, request| match (call, request.header("x-field")) {
            (0, _) => answer(200, "cache-control: max-age=1, stale-if-error=600", "a"),
            (1, Some(_)) => answer(500, "", "failed"),
            (2, None) => {
                osier::sleep(s(2));
                answer(403, "", "refused")
            }
            (3, Some(_)) => answer(200, "cache-control: no-store", "its own"),
            (call, field) => panic!("call {call}: {field:?}"),
        });
        let (client, calls) = (Arc::new(world.client), world.calls);
        assert_eq!(send(&client, "GET /a\nx-field: 1").text(), "a");
        osier::sleep(s(5));
        let fetch = {
            let client = client.clone();
            osier::spawn(move || send(&client, "GET /a\nx-field: 1").text().to_owned())
        };
        osier::sleep(s(1));
        assert_eq!(calls.load(Ordering::SeqCst), 3, "it is asked the second question");
        assert_eq!(send(&client, "PURGE /a").status(), 200);
        assert_eq!(fetch.join().unwrap(), "its own");
    });
}

/// No request waits for one that asks for the head or for a range, so the page may be fetched anew meanwhile.
#[test]
fn a_newer_response_takes_the_place_of_the_error_of_a_head_or_a_range() {
    on_clock(|| {
        for (request, expected) in [("HEAD /a", ""), ("GET /a\nrange: bytes=1-", "ewer")] {
            let world = World::new(Options::default(), |call, request| {
                let fields = |tag| format!("cache-control: max-age=1, stale-if-error=600\netag: \"{tag}\"");
                let is_whole = request.method() == "GET" && request.header("range").is_none();
                match (is_whole, call) {
                    (true, 0) => answer(200, &fields("older"), "older"),
                    (true, _) => answer(200, &fields("newer"), "newer"),
                    (false, _) => {
                        osier::sleep(s(4));
                        answer(500, "", "failed")
                    }
                }
            });
            let client = Arc::new(world.client);
            send(&client, "");
            osier::sleep(s(5));
            let part = {
                let client = client.clone();
                osier::spawn(move || send(&client, request))
            };
            osier::sleep(s(1));
            assert_eq!(send(&client, "").text(), "newer");
            let reply = part.join().unwrap();
            assert_eq!(
                (reply.header("etag"), reply.text()),
                (Some("\"newer\""), expected),
                "{request}"
            );
        }
    });
}

#[test]
fn a_request_waits_for_all_fetches_of_others_no_longer_than_for_one() {
    on_clock(|| {
        let world = World::new(Options::default(), |_, _| {
            osier::sleep(s(4));
            answer(500, "", "failed")
        });
        let client = Arc::new(world.client);
        let begun = osier::time::now();
        let replies = at_once(&client, vec!["GET /a".to_owned(); 6]);
        assert!(replies.iter().all(|reply| reply.status() == 500));
        // Five seconds of others, and a fetch of its own.
        let took = osier::time::now() - begun;
        assert!((s(9)..s(10)).contains(&took), "{took:?}");
    });
}
