//! The shared cache. Ages are on a virtual clock, so no test waits.

mod fetches;
mod files;
mod restarts;
mod table;

use osier::time::VirtualClock;
use osier_web::http::StatusCode;
use osier_web::test::{Client, Reply};
use osier_web::wrap::cache::{Cache, Options, Stats, Store, StoreOptions};
use osier_web::{Request, Response, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn on_clock(test: impl FnOnce() + Send) {
    let runtime = osier::Runtime::builder().workers(1).clock(VirtualClock::new());
    runtime.build().unwrap().run(test);
}

fn store(change: impl FnOnce(&mut StoreOptions)) -> Arc<Store> {
    let mut options = StoreOptions::default();
    change(&mut options);
    Arc::new(Store::open(options).unwrap())
}

/// A handler behind a cache, the cache, and how often the handler was called.
struct World {
    client: Client,
    cache: Cache,
    calls: Arc<AtomicUsize>,
}

impl World {
    fn new(options: Options, handler: impl Fn(usize, &mut Request<'_>) -> Response + Send + Sync + 'static) -> World {
        World::of(Cache::with(store(|_| {}), options), handler)
    }

    fn of(cache: Cache, handler: impl Fn(usize, &mut Request<'_>) -> Response + Send + Sync + 'static) -> World {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = calls.clone();
        let handler = cache.around(move |request: &mut Request<'_>| {
            let call = counter.fetch_add(1, Ordering::SeqCst);
            handler(call, request)
        });
        World {
            client: Client::of(Server::new(handler)),
            cache,
            calls,
        }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn stats(&self) -> Stats {
        self.cache.store().stats()
    }
}

fn answer(status: u16, fields: &str, body: &str) -> Response {
    let mut response = Response::new(StatusCode::from_u16(status).unwrap());
    for line in fields.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap();
        response = response.header(name, value);
    }
    response.body(body.to_owned())
}

/// Sends `GET /a`, or another method and target, with more lines of fields.
fn send(client: &Client, request: &str) -> Reply {
    let mut lines = request.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut first = lines.next().unwrap_or("GET /a").split(' ');
    let (method, target) = (first.next().unwrap(), first.next().unwrap_or("/a"));
    let mut builder = client.request(method, target);
    for line in lines {
        let (name, value) = line.split_once(':').unwrap();
        builder = builder.header(name, value.trim());
    }
    builder.send()
}

#[test]
fn fields_of_a_stored_response() {
    on_clock(|| {
        let world = World::new(Options::default(), |call, request| match call {
            0 => answer(
                200,
                "cache-control: max-age=60\netag: \"1\"\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT\nx-a: 1\nage: 3\ncontent-type: text/css\ncache-status: inner; hit",
                "a{}",
            ),
            _ => {
                assert_eq!(request.header("if-none-match"), Some(&b"\"1\""[..]));
                assert_eq!(
                    request.header("if-modified-since"),
                    Some(&b"Sun, 06 Nov 1994 08:49:37 GMT"[..])
                );
                answer(
                    304,
                    "etag: \"1\"\nx-a: 2\ncontent-type: text/html\ncache-control: max-age=9",
                    "",
                )
            }
        });
        let first = send(&world.client, "");
        assert_eq!((first.header("age"), first.header("x-a")), (Some("3"), Some("1")));
        assert!(first.header("date").is_some());
        osier::sleep(s(5));
        let second = send(&world.client, "");
        assert_eq!(second.header("age"), Some("8"));
        assert_eq!(second.header("content-length"), Some("3"));
        assert_eq!(second.header("date"), first.header("date"));
        let said: Vec<_> = second.headers().get_all("cache-status").iter().collect();
        assert_eq!(said, ["inner; hit", "osier; hit; ttl=52"]);
        let unmodified = send(&world.client, "GET /a\nif-none-match: \"1\"");
        assert_eq!((unmodified.status().as_u16(), unmodified.header("x-a")), (304, None));
        assert_eq!(unmodified.header("etag"), Some("\"1\""));
        osier::sleep(s(60));
        let third = send(&world.client, "");
        assert_eq!(
            (third.header("x-a"), third.header("content-type")),
            (Some("2"), Some("text/css"))
        );
        assert_eq!(third.headers().get_all("x-a").iter().count(), 1);
        assert_eq!((third.text(), third.header("age")), ("a{}", None));
        assert_eq!(world.stats().validated, 1);
        osier::sleep(s(8));
        assert_eq!(send(&world.client, "").header("age"), Some("8"));
    });
}

#[test]
fn the_handler_sees_one_request_for_all() {
    on_clock(|| {
        let world = World::new(Options::default(), |_, request| {
            let names: Vec<_> = request
                .headers()
                .map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value)))
                .collect();
            assert_eq!(request.method(), "GET");
            assert_eq!(request.peer().port(), 4);
            answer(
                200,
                "cache-control: max-age=60\nvary: accept-encoding",
                &names.join("|"),
            )
        });
        let seen = send(
            &world.client,
            "GET /a\nx-b: 1\nif-none-match: \"x\"\nconnection: x-hop\nx-hop: 1\nte: trailers\naccept-encoding: br;q=0.5, gzip, deflate",
        );
        assert_eq!(seen.text(), "host=test|x-b=1|accept-encoding=gzip, br");
        // The same codings in other words.
        assert_eq!(
            send(&world.client, "GET /a\naccept-encoding: gzip,br").header("cache-status"),
            Some("osier; hit; ttl=60")
        );
        assert_eq!(
            send(&world.client, "GET /a\naccept-encoding: gzip").text(),
            "host=test|accept-encoding=gzip"
        );
        assert_eq!(send(&world.client, "").text(), "host=test");
        assert_eq!(world.calls(), 3);
    });
}

#[test]
fn nobody_gets_what_another_client_has_put_into_a_response() {
    on_clock(|| {
        let world = World::new(Options::default(), |call, request| {
            let host = request.header_str("x-forwarded-host").unwrap_or("none");
            answer(
                200,
                "cache-control: max-age=60",
                &format!("{call} {} {host}", request.path()),
            )
        });
        let client = &world.client;
        assert_eq!(send(client, "GET /a\nx-forwarded-host: evil").text(), "0 /a evil");
        assert_eq!(send(client, "").text(), "1 /a none");
        assert_eq!(send(client, "GET /a\nX-Forwarded-Host: evil").text(), "0 /a evil");
        assert_eq!(send(client, "").text(), "1 /a none");
        for field in [
            "x-original-url: /b",
            "x-http-method-override: PUT",
            "x-host: evil",
            // Some backends read these as the names with a hyphen.
            "X_Original_Url: /b",
            "X_Host: evil",
            "accept_language: de",
        ] {
            assert!(
                send(client, &format!("GET /a\n{field}"))
                    .header("cache-status")
                    .unwrap()
                    .contains("miss"),
                "{field}"
            );
        }
        assert!(
            send(client, "GET /a\nforwarded: for=1.2.3.4;host=evil")
                .header("cache-status")
                .unwrap()
                .contains("bypass")
        );
        // Spellings of one path: each has its own response, and a purge of one removes all.
        assert_eq!(send(client, "").text(), "1 /a none");
        let odd = send(client, "GET //a").text().to_owned();
        assert!(odd.ends_with("//a none"), "{odd}");
        assert_eq!(send(client, "GET /%61").text().split(' ').nth(1), Some("/%61"));
        assert_eq!(send(client, "GET //a").text(), odd);
        assert_eq!(send(client, "").text(), "1 /a none");
        let before = world.stats().entries;
        assert!(before >= 4, "{before}");
        send(client, "POST /%61");
        assert_eq!(world.stats().entries, 0);
    });
}

#[test]
fn a_raw_path_and_an_escaped_one_have_responses_of_their_own() {
    on_clock(|| {
        let world = World::new(Options::default(), |_, request| {
            answer(200, "cache-control: max-age=60", request.path())
        });
        for raw in ['"', '<', '>', '\\', '^', '`', '{', '|', '}'] {
            let escaped = format!("/a%{:02X}", u32::from(raw));
            let raw = format!("/a{raw}");
            for (first, second) in [(&raw, &escaped), (&escaped, &raw)] {
                for path in [first, second, first] {
                    assert_eq!(send(&world.client, &format!("GET {path}")).text(), path);
                }
                send(&world.client, &format!("POST {first}"));
                assert_eq!(world.stats().entries, 0, "{first}");
            }
        }
    });
}

#[test]
fn a_304_that_nobody_has_asked_for_says_nothing_about_others() {
    on_clock(|| {
        let world = World::new(Options::default(), |_, request| match request.header("if_none_match") {
            Some(_) => answer(304, "etag: \"1\"", ""),
            None => answer(200, "cache-control: max-age=60\netag: \"1\"", "a"),
        });
        let client = &world.client;
        assert_eq!(send(client, "GET /a\nIf_None_Match: \"1\"").status(), 304);
        let next = send(client, "");
        assert_eq!(next.header("cache-status"), Some("osier; fwd=miss; stored"));
        assert_eq!(send(client, "").text(), "a");
        assert_eq!(world.calls(), 2);
    });
}

#[test]
fn only_get_has_ranges() {
    on_clock(|| {
        let world = World::new(Options::default(), |_, _| {
            answer(200, "cache-control: max-age=60", "abc")
        });
        send(&world.client, "");
        for (method, range, status) in [
            ("GET", "0-1", 206),
            ("GET", "9-", 416),
            ("HEAD", "0-1", 200),
            ("HEAD", "9-", 200),
        ] {
            let reply = send(&world.client, &format!("{method} /a\nrange: bytes={range}"));
            assert_eq!(reply.status(), status, "{method} {range}");
        }
        assert_eq!(world.calls(), 1);
    });
}

#[test]
fn authenticated_clients_share_only_what_the_response_allows() {
    on_clock(|| {
        let options = Options {
            is_authenticated: true,
            ..Options::default()
        };
        let world = World::new(options, |call, request| match request.query() {
            Some("public") => answer(200, "cache-control: public, max-age=60", &format!("{call}")),
            _ => answer(200, "cache-control: max-age=60", &format!("{call}")),
        });
        for (request, body) in [
            ("GET /a", "0"),
            ("GET /a", "1"),
            ("GET /a?public", "2"),
            ("GET /a?public", "2"),
        ] {
            assert_eq!(send(&world.client, request).text(), body, "{request}");
        }
    });
}

#[test]
fn variants_are_bounded() {
    on_clock(|| {
        let world = World::new(Options::default(), |_, _| {
            answer(200, "cache-control: max-age=60\nvary: x-a", "a")
        });
        for number in 0..100 {
            send(&world.client, &format!("GET /a\nx-a: {number}"));
        }
        assert_eq!(world.stats().entries, 16);
        let world = World::new(Options::default(), |_, _| answer(200, "cache-control: max-age=60", "a"));
        send(&world.client, "");
        for number in 0..100 {
            send(&world.client, &format!("GET /a\nx-forwarded-host: {number}"));
        }
        assert_eq!(world.stats().entries, 5);
        assert!(send(&world.client, "").header("cache-status").unwrap().contains("hit"));
    });
}

#[test]
fn memory_is_bounded() {
    on_clock(|| {
        let small = store(|options| options.memory = 1 << 20);
        let world = World::of(Cache::new(small), |_, _| {
            answer(200, "cache-control: max-age=600", &"x".repeat(10_000))
        });
        for number in 0..500 {
            send(&world.client, &format!("GET /{number}"));
            let stats = world.stats();
            assert!(stats.bytes <= 1 << 20, "{stats:?}");
        }
        let stats = world.stats();
        assert!((80..105).contains(&stats.entries), "{stats:?}");
        assert_eq!(stats.stored, stats.entries + stats.evicted);
        assert!(
            send(&world.client, "GET /499")
                .header("cache-status")
                .unwrap()
                .contains("hit")
        );
        // A body that would fill a shard alone is not stored.
        let huge = World::of(Cache::new(store(|options| options.memory = 1 << 20)), |_, _| {
            answer(200, "cache-control: max-age=600", &"x".repeat(300_000))
        });
        send(&huge.client, "");
        assert_eq!(send(&huge.client, "").body().len(), 300_000);
        assert_eq!((huge.calls(), huge.stats().entries), (2, 0));
    });
}

#[test]
fn purges() {
    on_clock(|| {
        let cache = Cache::new(store(|_| {})).on_purge(|address| address.is_some_and(|address| address.is_loopback()));
        let world = World::of(cache, |_, request| {
            let tag = request.query().unwrap_or("none");
            answer(200, &format!("cache-control: max-age=60\ncache-tag: {tag}, all"), "a")
        });
        let client = &world.client;
        let fill = || {
            for target in ["/blog/a?x", "/blog/b?y", "/blog?x", "/other?x"] {
                send(client, &format!("GET {target}"));
            }
            send(client, "GET /blog/a?x\nhost: second");
            assert_eq!(world.stats().entries, 5);
        };
        for (request, text, left) in [
            ("PURGE /blog/a?x", "1 purged\n", 4),
            ("PURGE //blog/%61?x", "1 purged\n", 4),
            ("PURGE /blog/a", "0 purged\n", 5),
            ("PURGE /blog/*", "2 purged\n", 3),
            ("PURGE /*", "4 purged\n", 1),
            ("PURGE /\ncache-tag: x", "3 purged\n", 2),
            ("PURGE /\ncache-tag: y, none", "1 purged\n", 4),
            ("PURGE /\ncache-tag: al", "0 purged\n", 5),
        ] {
            fill();
            assert_eq!(
                (send(client, request).text(), world.stats().entries),
                (text, left),
                "{request}"
            );
        }
        fill();
        let stranger = client
            .request("PURGE", "/*")
            .peer("192.0.2.1:1".parse().unwrap())
            .send();
        assert_eq!((stranger.status().as_u16(), world.stats().entries), (403, 5));
    });
}

#[test]
fn a_purge_of_many_responses_lets_others_run_in_between() {
    on_clock(|| {
        // One shard has all of them.
        let cache = Cache::new(store(|options| options.memory = 4 << 20)).on_purge(|_| true);
        let world = World::of(cache, |_, request| {
            let tag = if request.path().ends_with('0') {
                "tens"
            } else {
                "others"
            };
            answer(200, &format!("cache-control: max-age=600\ncache-tag: {tag}"), "a")
        });
        (0..1000).for_each(|n| _ = send(&world.client, &format!("GET /many/{n}")));
        send(&world.client, "GET /lone");
        assert_eq!(world.stats().entries, 1001);
        for (request, text, left) in [
            ("PURGE /\ncache-tag: tens", "100 purged\n", 901),
            ("PURGE /many/*", "900 purged\n", 1),
        ] {
            let (turns, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
            let (counted, stopped) = (turns.clone(), stop.clone());
            let other = osier::spawn_local(move || {
                while !stopped.load(Ordering::SeqCst) {
                    counted.fetch_add(1, Ordering::SeqCst);
                    osier::yield_now();
                }
            });
            let reply = send(&world.client, request);
            let turns = turns.load(Ordering::SeqCst);
            stop.store(true, Ordering::SeqCst);
            other.join().unwrap();
            assert_eq!((reply.text(), world.stats().entries), (text, left), "{request}");
            assert!(turns >= 4, "{request}: {turns} turns");
        }
    });
}

/// A client of `world`, behind a rule that leads each method and cookie to a target of its own.
fn behind_rules(
    cache: &Cache,
    handler: impl Fn(usize, &mut Request<'_>) -> Response + Send + Sync + 'static,
) -> Client {
    let calls = AtomicUsize::new(0);
    let cached = cache.around(move |request: &mut Request<'_>| handler(calls.fetch_add(1, Ordering::SeqCst), request));
    Client::of(Server::new(move |request: &mut Request<'_>| {
        let who = request.header_str("cookie").unwrap_or("nobody");
        let target = format!(
            "/{}-{who}.php?q={}",
            request.method().to_ascii_lowercase(),
            request.path()
        );
        if !request.path().starts_with("/plain") || request.method() == "POST" {
            request.retarget(&target).expect("a target");
        }
        cached(request)
    }))
}

#[test]
fn an_unsafe_method_removes_what_its_target_has_behind_other_rules() {
    on_clock(|| {
        let cache = Cache::new(store(|_| {})).on_purge(|_| true);
        let client = behind_rules(&cache, |call, _| {
            answer(
                200,
                "cache-control: public, max-age=60\nlocation: /b?c",
                &format!("{call}"),
            )
        });
        let stored = ["/a", "/a?c", "/a?", "/ab", "/b?c", "/b", "/plain"];
        let fill = || {
            for target in stored {
                send(&client, &format!("GET {target}"));
                send(&client, &format!("GET {target}\ncookie: ada"));
            }
        };
        // `/plain` has one response for both cookies.
        for (change, left) in [
            ("POST /a", "/a? /a?c /ab /b /plain"),
            ("DELETE /a?c\ncookie: eve", "/a /a? /ab /b /plain"),
            ("POST /plain", "/a /a? /a?c /ab /b"),
            ("PURGE /b", "/a /a? /a?c /ab /b?c /plain"),
            ("PURGE /*", ""),
        ] {
            fill();
            assert_eq!(cache.store().stats().entries, 13, "{change}");
            assert_eq!(send(&client, change).status(), 200);
            let is_stored = |target: &&str| {
                let found = ["", "\ncookie: ada"].map(|cookie| {
                    let reply = send(&client, &format!("GET {target}\ncache-control: only-if-cached{cookie}"));
                    reply.status() == 200
                });
                assert_eq!(found[0], found[1], "{change}: {target}");
                found[0]
            };
            let mut found: Vec<&str> = stored.iter().copied().filter(is_stored).collect();
            found.sort_unstable();
            assert_eq!(found.join(" "), left, "{change}");
        }
    });
}
