//! The shared cache: the demands of RFC 9111 as a table, collapsing, bodies in files, purges. Ages are on a virtual clock, so no
//! test waits.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use osier::sync::Event;
use osier::time::VirtualClock;
use osier_web::cache::{Cache, Options, Rules, Stats, Store, StoreOptions};
use osier_web::http::StatusCode;
use osier_web::test::{Client, Reply};
use osier_web::{Body, Request, Response, Router, Server};
use testkit::Folder;

use crate::common::backend::{Backend, pattern};
use crate::common::{PATIENCE, site_with};

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

/// A row of the table: what the backend answers, and what the client asks and gets. A step is the time since the step before, the
/// request, the status, a part of `Cache-Status`, and the body.
type Row<'r> = (
    &'r str,
    &'r [(u16, &'r str, &'r str)],
    &'r [(u64, &'r str, u16, &'r str, &'r str)],
);

fn play(options: &Options, (name, responses, steps): Row<'_>) {
    let script: VecDeque<_> = responses
        .iter()
        .map(|(status, fields, body)| (*status, (*fields).to_owned(), (*body).to_owned()))
        .collect();
    let script = Arc::new(Mutex::new(script));
    let theirs = script.clone();
    let world = World::new(options.clone(), move |_, _| {
        let next = theirs.lock().unwrap().pop_front();
        let (status, fields, body) = next.unwrap_or((500, String::new(), "asked too often".to_owned()));
        answer(status, &fields, &body)
    });
    for (index, (after, request, status, note, body)) in steps.iter().enumerate() {
        osier::sleep(s(*after));
        let reply = send(&world.client, request);
        let said = reply.header("cache-status").unwrap_or_default();
        let got = (reply.status().as_u16(), reply.text());
        assert_eq!(got, (*status, *body), "{name}: step {index}, {said}");
        assert!(said.contains(note), "{name}: step {index} says {said:?}, not {note:?}");
        // A fetch behind a stale response has its turn.
        osier::sleep(Duration::from_millis(1));
    }
    assert!(
        script.lock().unwrap().is_empty(),
        "{name}: the backend was asked too seldom"
    );
}

#[test]
fn the_demands_of_rfc_9111() {
    let fresh = "cache-control: max-age=60";
    let tagged = "cache-control: max-age=60\netag: \"1\"";
    let rows: &[Row<'_>] = &[
        (
            "4: a fresh response is reused",
            &[(200, fresh, "a")],
            &[(0, "", 200, "miss; stored", "a"), (59, "", 200, "hit; ttl=1", "a")],
        ),
        (
            "4: a stale one is not",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (60, "", 200, "fwd=stale; stored", "b"),
                (0, "", 200, "hit", "b"),
            ],
        ),
        (
            "2: the query is part of the key",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "GET /a?1", 200, "miss", "a"),
                (0, "GET /a?2", 200, "miss", "b"),
                (0, "GET /a?1", 200, "hit", "a"),
            ],
        ),
        (
            "2: so is the host",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "GET /a\nhost: x", 200, "miss", "a"),
                (0, "GET /a\nhost: y", 200, "miss", "b"),
                (0, "GET /a\nHost: X", 200, "hit", "a"),
            ],
        ),
        (
            "3: no-store",
            &[(200, "cache-control: no-store, max-age=60", "a"), (200, "", "b")],
            &[(0, "", 200, "fwd=miss", "a"), (0, "", 200, "fwd=miss", "b")],
        ),
        (
            "3: private",
            &[(200, "cache-control: private, max-age=60", "a"), (200, "", "b")],
            &[(0, "", 200, "fwd=miss", "a"), (0, "", 200, "fwd=miss", "b")],
        ),
        (
            "3: nothing says how long",
            &[(200, "", "a"), (200, "", "b")],
            &[(0, "", 200, "fwd=miss", "a"), (0, "", 200, "fwd=miss", "b")],
        ),
        (
            "3.5: credentials",
            &[(200, fresh, "a"), (200, fresh, "b"), (200, fresh, "c")],
            &[
                (0, "GET /a\nauthorization: x", 200, "miss", "a"),
                (0, "", 200, "miss; stored", "b"),
                (0, "GET /b\nauthorization: x", 200, "miss", "c"),
            ],
        ),
        (
            "3.5: public",
            &[(200, "cache-control: public, max-age=60", "a")],
            &[
                (0, "GET /a\nauthorization: x", 200, "miss; stored", "a"),
                (0, "", 200, "hit", "a"),
                (0, "GET /a\nauthorization: y", 200, "hit", "a"),
            ],
        ),
        (
            "4.1: Vary",
            &[
                (200, "cache-control: max-age=60\nvary: accept-language", "de"),
                (200, "cache-control: max-age=60\nvary: accept-language", "fr"),
            ],
            &[
                (0, "GET /a\naccept-language: de", 200, "miss", "de"),
                (0, "GET /a\naccept-language: fr", 200, "miss", "fr"),
                (0, "GET /a\naccept-language: de", 200, "hit", "de"),
                (0, "GET /a\naccept-language: fr", 200, "hit", "fr"),
            ],
        ),
        (
            "4.1: a field that is absent",
            &[
                (200, "cache-control: max-age=60\nvary: x-a", "none"),
                (200, "cache-control: max-age=60\nvary: x-a", "empty"),
            ],
            &[
                (0, "", 200, "miss", "none"),
                (0, "GET /a\nx-a: ", 200, "miss", "empty"),
                (0, "", 200, "hit", "none"),
            ],
        ),
        (
            "4.1: Vary *",
            &[(200, "cache-control: max-age=60\nvary: *", "a"), (200, "", "b")],
            &[(0, "", 200, "miss", "a"), (0, "", 200, "miss", "b")],
        ),
        (
            "4.2.1: s-maxage before max-age",
            &[(200, "cache-control: max-age=60, s-maxage=10", "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (9, "", 200, "hit", "a"),
                (1, "", 200, "stale", "b"),
            ],
        ),
        (
            "4.2.1: max-age before Expires",
            &[(200, "cache-control: max-age=60\nexpires: 0", "a")],
            &[(0, "", 200, "miss", "a"), (9, "", 200, "hit", "a")],
        ),
        (
            "4.2.3: an Age counts",
            &[(200, "cache-control: max-age=60\nage: 50", "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (9, "", 200, "ttl=1", "a"),
                (1, "", 200, "stale", "b"),
            ],
        ),
        (
            "4.2.4: must-revalidate",
            &[
                (
                    200,
                    "cache-control: max-age=60, must-revalidate, stale-if-error=600",
                    "a",
                ),
                (500, "", "b"),
            ],
            &[
                (0, "", 200, "miss", "a"),
                (60, "GET /a\ncache-control: max-stale", 500, "stale", "b"),
            ],
        ),
        (
            "4.3.3: a 304 makes it fresh",
            &[(200, tagged, "a"), (304, tagged, "")],
            &[
                (0, "", 200, "miss", "a"),
                (60, "", 200, "fwd=stale; fwd-status=304; stored", "a"),
                (59, "", 200, "hit", "a"),
            ],
        ),
        (
            "4.3.3: a full response replaces it",
            &[(200, tagged, "a"), (200, "cache-control: max-age=60\netag: \"2\"", "b")],
            &[
                (0, "", 200, "miss", "a"),
                (60, "", 200, "stale; stored", "b"),
                (0, "", 200, "hit", "b"),
            ],
        ),
        (
            "4.3.4: a 304 for another tag",
            &[(200, tagged, "a"), (304, "etag: \"2\"", ""), (200, fresh, "b")],
            &[(0, "", 200, "miss", "a"), (60, "", 200, "stale; stored", "b")],
        ),
        (
            "4.4: unsafe methods invalidate",
            &[(200, fresh, "a"), (204, "", ""), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "DELETE /a", 204, "fwd=method", ""),
                (0, "", 200, "miss", "b"),
            ],
        ),
        (
            "4.4: but not if they fail",
            &[(200, fresh, "a"), (400, "", "x")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "POST /a", 400, "method", "x"),
                (0, "", 200, "hit", "a"),
            ],
        ),
        (
            "4.4: nor do safe ones",
            &[(200, fresh, "a"), (200, "", "x")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "OPTIONS /a", 200, "method", "x"),
                (0, "", 200, "hit", "a"),
            ],
        ),
        (
            "4.4: Location on the same host",
            &[(200, fresh, "a"), (201, "location: /a", ""), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "POST /new", 201, "method", ""),
                (0, "", 200, "miss", "b"),
            ],
        ),
        (
            "4.4: Content-Location on another",
            &[(200, fresh, "a"), (201, "content-location: http://other/a", "")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "POST /new", 201, "method", ""),
                (0, "", 200, "hit", "a"),
            ],
        ),
        (
            "5.2.1.1: max-age of a request",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (10, "GET /a\ncache-control: max-age=10", 200, "hit", "a"),
                (1, "GET /a\ncache-control: max-age=10", 200, "fwd=request", "b"),
            ],
        ),
        (
            "5.2.1.2: max-stale",
            &[(200, fresh, "a")],
            &[
                (0, "", 200, "miss", "a"),
                (70, "GET /a\ncache-control: max-stale=10", 200, "hit; ttl=-10", "a"),
            ],
        ),
        (
            "5.2.1.3: min-fresh",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (51, "GET /a\ncache-control: min-fresh=10", 200, "fwd=request", "b"),
            ],
        ),
        (
            "5.2.1.4: no-cache",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "GET /a\ncache-control: no-cache", 200, "fwd=request; stored", "b"),
                (0, "", 200, "hit", "b"),
            ],
        ),
        (
            "5.2.1.5: no-store",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "GET /a\ncache-control: no-store", 200, "fwd=request", "a"),
                (0, "", 200, "miss", "b"),
            ],
        ),
        (
            "5.2.1.7: only-if-cached",
            &[(200, fresh, "a")],
            &[
                (
                    0,
                    "GET /a\ncache-control: only-if-cached",
                    504,
                    "fwd=miss",
                    "504 Gateway Timeout\n",
                ),
                (0, "", 200, "miss", "a"),
                (0, "GET /a\ncache-control: only-if-cached", 200, "hit", "a"),
            ],
        ),
        (
            "5.2.2.4: no-cache is validated each time",
            &[
                (200, "cache-control: no-cache\netag: \"1\"", "a"),
                (304, "etag: \"1\"", ""),
                (200, "cache-control: no-cache\netag: \"2\"", "b"),
            ],
            &[
                (0, "", 200, "miss", "a"),
                (0, "", 200, "fwd-status=304", "a"),
                (0, "", 200, "fwd=", "b"),
            ],
        ),
        (
            "HEAD from GET",
            &[(200, fresh, "a")],
            &[(0, "", 200, "miss", "a"), (0, "HEAD /a", 200, "hit", "")],
        ),
        (
            "HEAD alone is passed on",
            &[(200, fresh, ""), (200, fresh, "a")],
            &[(0, "HEAD /a", 200, "miss", ""), (0, "", 200, "miss; stored", "a")],
        ),
        (
            "4.3.2: If-None-Match",
            &[(200, tagged, "a")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "GET /a\nif-none-match: \"1\"", 304, "hit", ""),
                (0, "GET /a\nif-none-match: W/\"1\", \"x\"", 304, "hit", ""),
                (0, "GET /a\nif-none-match: \"2\"", 200, "hit", "a"),
            ],
        ),
        (
            "4.3.2: the condition of a miss is ours to evaluate",
            &[(200, tagged, "a")],
            &[
                (0, "GET /a\nif-none-match: \"1\"", 304, "miss; stored", ""),
                (0, "", 200, "hit", "a"),
            ],
        ),
        (
            "4.3.2: If-Modified-Since",
            &[(
                200,
                "cache-control: max-age=60\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT",
                "a",
            )],
            &[
                (0, "", 200, "miss", "a"),
                (
                    0,
                    "GET /a\nif-modified-since: Sun, 06 Nov 1994 08:49:37 GMT",
                    304,
                    "hit",
                    "",
                ),
                (
                    0,
                    "GET /a\nif-modified-since: Sun, 06 Nov 1994 08:49:36 GMT",
                    200,
                    "hit",
                    "a",
                ),
            ],
        ),
        (
            "4.3.2: If-Match is the backend's",
            &[(200, tagged, "a"), (412, "", "x")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "GET /a\nif-match: \"2\"", 412, "bypass", "x"),
            ],
        ),
        (
            "a range of a stored response",
            &[(200, tagged, "abcdef")],
            &[
                (0, "", 200, "miss", "abcdef"),
                (0, "GET /a\nrange: bytes=1-2", 206, "hit", "bc"),
                (0, "GET /a\nrange: bytes=9-", 416, "hit", "416 Range Not Satisfiable\n"),
                (0, "GET /a\nrange: bytes=1-2\nif-range: \"1\"", 206, "hit", "bc"),
                (0, "GET /a\nrange: bytes=1-2\nif-range: \"2\"", 200, "hit", "abcdef"),
                (0, "GET /a\nrange: bytes=0-0,5-5", 206, "hit", "abcdef"),
            ],
        ),
        (
            "3.3: a part is not stored",
            &[
                (206, "cache-control: max-age=60\ncontent-range: bytes 0-0/6", "a"),
                (200, fresh, "abcdef"),
            ],
            &[
                (0, "GET /a\nrange: bytes=0-0", 206, "miss", "a"),
                (0, "", 200, "miss", "abcdef"),
            ],
        ),
        (
            "7.3: Set-Cookie",
            &[(200, "cache-control: max-age=60\nset-cookie: a=b", "a"), (200, "", "b")],
            &[(0, "", 200, "miss", "a"), (0, "", 200, "miss", "b")],
        ),
        (
            "RFC 5861: stale-while-revalidate",
            &[
                (200, "cache-control: max-age=60, stale-while-revalidate=10", "a"),
                (200, fresh, "b"),
            ],
            &[
                (0, "", 200, "miss", "a"),
                (65, "", 200, "hit; ttl=-5", "a"),
                (0, "", 200, "hit; ttl=6", "b"),
            ],
        ),
        (
            "RFC 5861: stale-if-error",
            &[
                (200, "cache-control: max-age=60, stale-if-error=600", "a"),
                (503, "", "x"),
                (200, fresh, "b"),
            ],
            &[
                (0, "", 200, "miss", "a"),
                (70, "", 200, "fwd=stale; fwd-status=503", "a"),
                (0, "", 200, "hit; ttl=-10", "a"),
                (2, "", 200, "stale; stored", "b"),
            ],
        ),
        (
            "RFC 5861: and its end",
            &[
                (200, "cache-control: max-age=60, stale-if-error=60", "a"),
                (503, "", "x"),
            ],
            &[(0, "", 200, "miss", "a"), (120, "", 503, "stale", "x")],
        ),
        (
            "an upgrade is passed on",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "GET /a\nconnection: upgrade\nupgrade: x", 200, "bypass", "b"),
            ],
        ),
    ];
    assert!(rows.len() >= 40, "{}", rows.len());
    for row in rows {
        on_clock(|| play(&Options::default(), *row));
    }
}

#[test]
fn what_an_operator_may_set() {
    let options = Options {
        rules: Rules {
            default_ttl: vec![(200, s(60)), (404, s(5))],
            stale_if_error: Some(s(3600)),
            stale_while_revalidate: Some(s(10)),
            drop_set_cookie: true,
        },
        obey_client: false,
        skip_cookies: vec!["session*".to_owned()],
        ..Options::default()
    };
    let rows: &[Row<'_>] = &[
        (
            "a default lifetime",
            &[(200, "", "a"), (404, "", "none"), (404, "", "none")],
            &[
                (0, "", 200, "miss; stored", "a"),
                (59, "", 200, "hit", "a"),
                (0, "GET /b", 404, "miss; stored", "none"),
                (4, "GET /b", 404, "hit", "none"),
                (12, "GET /b", 404, "stale", "none"),
            ],
        ),
        (
            "clients cannot make the backend work",
            &[(200, "", "a")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "GET /a\ncache-control: no-cache", 200, "hit", "a"),
                (0, "GET /a\ncache-control: no-store", 200, "hit", "a"),
            ],
        ),
        (
            "cookies that are passed on",
            &[(200, "", "a"), (200, "", "mine")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "GET /a\ncookie: x=1; session_id=2", 200, "bypass", "mine"),
                (0, "GET /a\ncookie: x=1", 200, "hit", "a"),
            ],
        ),
        (
            "stale if the backend fails",
            &[(200, "", "a"), (502, "", "x")],
            &[(0, "", 200, "miss", "a"), (600, "", 200, "fwd-status=502", "a")],
        ),
        (
            "stored without its cookies",
            &[(200, "set-cookie: a=b", "a")],
            &[(0, "", 200, "miss; stored", "a"), (0, "", 200, "hit", "a")],
        ),
    ];
    for row in rows {
        on_clock(|| play(&options, *row));
    }
    on_clock(|| {
        let world = World::new(options, |_, _| answer(200, "set-cookie: a=b", "a"));
        for _ in 0..2 {
            assert_eq!(send(&world.client, "").header("set-cookie"), None);
        }
        assert_eq!(world.calls(), 1);
    });
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
        for field in ["x-original-url: /b", "x-http-method-override: PUT", "x-host: evil"] {
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
        let world = World::new(Options::default(), |_, _| {
            osier::sleep(s(1));
            answer(502, "", "bad\n")
        });
        let (client, calls) = (Arc::new(world.client), world.calls);
        let replies = at_once(&client, vec!["GET /a".to_owned(); 10]);
        assert!(replies.iter().all(|reply| reply.status() == 502));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
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
        assert!(replies.iter().all(|reply| reply.status() == 500));
        assert_eq!(send(&client, "").text(), "a");
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

/// Bodies of this length go to files.
const LONG: usize = 200_000;

fn disk_store(folder: &Folder, size: u64) -> Arc<Store> {
    let path = folder.path().join("cache");
    store(|options| {
        options.memory_entry = 50_000;
        options.disk = Some(path);
        options.disk_size = size;
    })
}

/// Answers by bytes of the length that the query names, whose first byte is the number of the call.
fn bytes(call: usize, request: &mut Request<'_>) -> Response {
    let len = request.query().and_then(|len| len.parse().ok()).unwrap_or(LONG);
    let mut bytes = pattern(len);
    bytes[0] = call as u8;
    let response = answer(200, "cache-control: max-age=60\netag: \"1\"\nx-a: 1", "");
    match request.path().contains("stream") {
        true => response.body(Body::stream(move |out| {
            bytes.chunks(7000).try_for_each(|piece| {
                osier::yield_now();
                out.write_all(piece)
            })
        })),
        false => response.body(bytes),
    }
}

/// Waits until so many files are stored. A client has all bytes before that.
fn settle(world: &World, count: u64) {
    while world.stats().disk_entries < count {
        osier::sleep(Duration::from_millis(1));
    }
}

fn files(folder: &Folder) -> Vec<fs::DirEntry> {
    let found = fs::read_dir(folder.path().join("cache")).unwrap();
    found.map(Result::unwrap).collect()
}

#[test]
fn long_bodies_are_in_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder, 10 << 20)), bytes);
        for (target, count) in [("/a", 1), ("/stream", 2)] {
            let first = send(&world.client, &format!("GET {target}"));
            assert!(first.is_whole() && first.body().len() == LONG);
            settle(&world, count);
            let second = send(&world.client, &format!("GET {target}"));
            assert!(second.header("cache-status").unwrap().contains("hit"), "{target}");
            assert!(second.body() == first.body(), "{target}");
            let part = send(&world.client, &format!("GET {target}\nrange: bytes=100000-100099"));
            assert_eq!(
                (part.status().as_u16(), part.body()),
                (206, &first.body()[100_000..100_100])
            );
            assert_eq!(
                send(&world.client, &format!("HEAD {target}")).header("content-length"),
                Some("200000")
            );
        }
        send(&world.client, "GET /short?1000");
        let stats = world.stats();
        assert_eq!((stats.entries, stats.disk_entries), (3, 2));
        assert!(stats.disk_bytes > 2 * LONG as u64 && stats.bytes < 10_000, "{stats:?}");
        assert_eq!(files(&folder).len(), 2);
        let mode = fs::metadata(folder.path().join("cache")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        // A 304 keeps the file.
        osier::sleep(s(100));
        let world = World::of(world.cache.clone(), |_, _| {
            answer(304, "cache-control: max-age=60\nx-a: 2", "")
        });
        let again = send(&world.client, "");
        assert_eq!((again.header("x-a"), again.body().len()), (Some("2"), LONG));
        assert_eq!(files(&folder).len(), 2);
        assert_eq!(world.stats().disk_entries, 2);
        // Whatever leaves the table leaves the folder.
        send(&world.client, "POST /a");
        send(&world.client, "POST /stream");
        assert_eq!((files(&folder).len(), world.stats().disk_bytes), (0, 0));
    });
}

#[test]
fn the_folder_is_bounded() {
    let folder = Folder::new();
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder, 1 << 20)), bytes);
        for number in 0..30 {
            assert_eq!(send(&world.client, &format!("GET /{number}")).body().len(), LONG);
            while world.stats().stored <= number {
                osier::sleep(Duration::from_millis(1));
            }
            let sizes = files(&folder)
                .iter()
                .map(|file| file.metadata().unwrap().len())
                .sum::<u64>();
            assert!(sizes <= 1 << 20, "{sizes} after {number}");
            assert_eq!(sizes, world.stats().disk_bytes);
        }
        assert!(world.stats().disk_entries >= 4, "{:?}", world.stats());
        // Longer than the folder may hold: the client gets all of it, the folder nothing.
        let before = world.stats().stored;
        for target in ["/large?2000000", "/stream?2000000"] {
            let reply = send(&world.client, &format!("GET {target}"));
            assert!(reply.is_whole() && reply.body().len() == 2_000_000, "{target}");
        }
        assert_eq!(world.stats().stored, before);
        let unfinished = files(&folder)
            .iter()
            .filter(|file| file.path().extension().is_some())
            .count();
        assert_eq!(unfinished, 0);
    });
}

#[test]
fn files_outlive_the_process_and_rubbish_does_not() {
    let folder = Folder::new();
    let first = Mutex::new(Vec::new());
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder, 10 << 20)), bytes);
        for target in ["/a", "/b", "/c"] {
            first
                .lock()
                .unwrap()
                .push(send(&world.client, &format!("GET {target}")).body().to_vec());
        }
        settle(&world, 3);
    });
    let cache = folder.path().join("cache");
    // A file that was cut, one whose head is damaged, one that is not ours, one that is not finished.
    let victims = files(&folder);
    let whole = fs::read(victims[0].path()).unwrap();
    fs::write(cache.join("00000000000000aa"), &whole[..whole.len() - 1]).unwrap();
    let mut damaged = whole.clone();
    damaged[60] ^= 1;
    fs::write(cache.join("00000000000000bb"), damaged).unwrap();
    fs::write(cache.join("00000000000000cc"), b"").unwrap();
    fs::write(cache.join("notes.txt"), b"mine").unwrap();
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder, 10 << 20)), bytes);
        assert_eq!(send(&world.client, "GET /none?10").body().len(), 10);
        while world.stats().disk_entries < 3 {
            osier::sleep(Duration::from_millis(1));
        }
        for (index, target) in ["/a", "/b", "/c"].into_iter().enumerate() {
            let reply = send(&world.client, &format!("GET {target}"));
            assert!(reply.header("cache-status").unwrap().contains("hit"), "{target}");
            assert!(reply.body() == first.lock().unwrap()[index]);
        }
        let mut names: Vec<_> = files(&folder)
            .iter()
            .map(|file| file.file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names.len(), 4, "{names:?}");
        assert!(names.contains(&"notes.txt".to_owned()));
        // Another space of the same store has none of them.
        let options = Options {
            space: "other".to_owned(),
            ..Options::default()
        };
        let other = World::of(Cache::with(world.cache.store().clone(), options), bytes);
        assert!(send(&other.client, "").header("cache-status").unwrap().contains("miss"));
        // A file that somebody has removed is a miss.
        files(&folder)
            .iter()
            .for_each(|file| fs::remove_file(file.path()).unwrap());
        assert!(
            send(&world.client, "GET /b")
                .header("cache-status")
                .unwrap()
                .contains("miss")
        );
    });
}

#[test]
fn a_failing_disk_is_no_error_for_the_client() {
    let folder = Folder::new();
    on_clock(|| {
        let complaints = Arc::new(AtomicUsize::new(0));
        let counter = complaints.clone();
        let path = folder.path().join("cache");
        let options = StoreOptions {
            memory_entry: 50_000,
            disk: Some(path.clone()),
            ..StoreOptions::default()
        };
        let store = Store::open(options).unwrap().on_log(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        let world = World::of(Cache::new(Arc::new(store)), bytes);
        fs::remove_dir(&path).unwrap();
        for target in ["/a", "/stream"] {
            let reply = send(&world.client, &format!("GET {target}"));
            assert!(reply.is_whole() && reply.body().len() == LONG, "{target}");
        }
        assert_eq!(world.stats().stored, 0);
        assert!(complaints.load(Ordering::SeqCst) >= 1);
    });
}

#[test]
fn a_slow_client_and_a_fast_one_get_the_same_stream() {
    let folder = Folder::new();
    for disk in [true, false] {
        let backend = Backend::start(|_, conn| {
            while let Some(asked) = conn.request() {
                let body = pattern(3_000_000);
                match asked.head.contains("/chunked") {
                    true => {
                        conn.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n");
                        conn.send_chunks(&body, 10_000);
                    }
                    false => {
                        conn.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 3000000\r\n\r\n");
                        conn.send(&body);
                    }
                }
            }
        });
        let store = match disk {
            true => disk_store(&folder, 100 << 20),
            false => store(|options| options.memory = 8 << 20),
        };
        let proxy = backend.proxy();
        let cached = Cache::new(store.clone()).around(move |request: &mut Request<'_>| proxy.answer(request));
        let server = Server::new(Router::new().fallback(cached));
        let site = site_with(2, server, |server| server.bind("127.0.0.1:0"));
        for target in ["/plain", "/chunked"] {
            let ask = |slow: bool| {
                let mut stream = std::net::TcpStream::connect(site.addr).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                write!(stream, "GET {target} HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
                let mut all = Vec::new();
                let mut piece = vec![0; if slow { 30_000 } else { 1 << 20 }];
                loop {
                    match stream.read(&mut piece).unwrap() {
                        0 => break,
                        count => all.extend_from_slice(&piece[..count]),
                    }
                    if slow {
                        std::thread::yield_now();
                    }
                }
                let head = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
                all.split_off(head)
            };
            let bodies: Vec<Vec<u8>> = std::thread::scope(|scope| {
                let threads: Vec<_> = [true, false, true]
                    .map(|slow| scope.spawn(move || ask(slow)))
                    .into_iter()
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let expected = pattern(3_000_000);
            assert!(bodies.iter().all(|body| *body == expected), "{target}, disk: {disk}");
        }
        assert_eq!(store.stats().disk_entries > 0, disk);
    }
}
