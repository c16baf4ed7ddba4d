//! Responses whose backend is silent for a while: their connections hold no stack meanwhile, and nothing else changes.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use osier::pubsub::{Policy, Topic};
use osier_web::fastcgi::{FastCgi, Options};
use osier_web::proxy::Proxy;
use osier_web::{Phase, Request, Router, Server, Timeouts, sse};

use crate::common::backend::{Backend, Conn, options, router};
use crate::common::{Client, PATIENCE, Site, connect_narrowly, eventually, site_with};
use crate::responder::{self, Responder};
use crate::sse::until;
use crate::tls;

/// The target, status, bytes and milliseconds with the backend that the observer was told.
pub type Told = Arc<Mutex<Vec<(String, u16, u64, u128)>>>;

/// The number of connections without a stack.
pub fn resting(_: &mut Request<'_>) -> String {
    let metrics = osier::inspect::metrics().expect("inside of a runtime");
    metrics.workers[0].resting.to_string()
}

/// Serves `router`, and the number of connections without a stack at `/resting`.
pub fn site(router: Router) -> (Site, Told) {
    let told = Told::default();
    let tell = told.clone();
    let router = router.get("/resting", resting);
    let timeouts = Timeouts {
        drain: Duration::from_secs(3),
        ..Timeouts::default()
    };
    let server = Server::new(router).timeouts(timeouts).on_request(move |served| {
        let target = served.target().to_owned();
        let upstream = served.times().get(Phase::Upstream).as_millis();
        tell.lock()
            .unwrap()
            .push((target, served.status().as_u16(), served.bytes(), upstream));
    });
    (site_with(1, server, |server| server.bind("127.0.0.1:0")), told)
}

/// Waits until `count` connections besides the asker's hold no stack.
pub fn rest(site: &Site, count: usize) {
    let mut asker = site.connect();
    let expected = (count + 1).to_string();
    eventually("the connections rest", || asker.get("/resting").text() == expected);
    drop(asker);
    let mut asker = site.connect();
    eventually("the asker has left", || asker.get("/resting").text() == expected);
}

pub fn told_of(told: &Told, target: &str) -> Vec<(u16, u64)> {
    let told = told.lock().unwrap();
    let lines = told.iter().filter(|(known, ..)| known == target);
    lines.map(|(_, status, bytes, _)| (*status, *bytes)).collect()
}

/// The ways in which a client leaves.
pub const WAYS: [&str; 4] = ["close", "half-close", "reset", "close behind a request"];

/// Leaves in one of the [`WAYS`]. Returns a client that has only half closed.
pub fn leave(mut client: Client, how: &str) -> Option<Client> {
    match how {
        "half-close" => {
            client.finish_sending();
            return Some(client);
        }
        "reset" => client.reset(),
        "close" => drop(client),
        _ => client.send("GET / HTTP/1.1\r\n"),
    }
    None
}

/// A backend that serves each connection by `script`, which waits for the words of a test.
pub fn directed(
    script: impl Fn(&mut Conn, &mpsc::Receiver<()>) + Send + Sync + 'static,
) -> (Backend, mpsc::Sender<()>) {
    let (go, waits) = mpsc::channel();
    let waits = Mutex::new(waits);
    let backend = Backend::start(move |_, conn| {
        if conn.request().is_some() {
            script(conn, &waits.lock().unwrap());
        }
    });
    (backend, go)
}

pub fn asks(client: &mut Client, path: &str, version: &str) {
    client.send(format!("GET {path} HTTP/{version}\r\nHost: t\r\n\r\n"));
}

#[test]
fn what_comes_after_a_pause_arrives_in_every_framing() {
    for framing in ["chunked", "length", "until the end"] {
        let (backend, go) = directed(move |conn, go| {
            let head = match framing {
                "chunked" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                "length" => "HTTP/1.1 200 OK\r\nContent-Length: 150000\r\n\r\n",
                _ => "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
            };
            conn.send(head);
            for letter in [b'a', b'b', b'c'] {
                if letter != b'a' {
                    go.recv_timeout(PATIENCE).unwrap();
                }
                let part = vec![letter; 50_000];
                match framing {
                    "chunked" => conn.send([b"c350\r\n", &part[..], b"\r\n"].concat()),
                    _ => conn.send(&part),
                };
            }
            if framing == "chunked" {
                conn.send("0\r\n\r\n");
            }
        });
        let whole = [[b'a'; 50_000], [b'b'; 50_000], [b'c'; 50_000]].concat();
        for version in ["1.1", "1.0"] {
            let (site, told) = site(router(backend.proxy()));
            let mut client = site.connect();
            asks(&mut client, "/events", version);
            let reader = thread::spawn(move || (client.reply(), client));
            for _ in 0..2 {
                rest(&site, 1);
                thread::sleep(Duration::from_millis(500)); // a time that is measured
                go.send(()).unwrap();
            }
            let (reply, mut client) = reader.join().unwrap();
            assert!(reply.body == whole, "{framing} {version}: {} bytes", reply.body.len());
            eventually("it is told", || told_of(&told, "/events") == [(200, 150_000)]);
            let upstream = told.lock().unwrap().iter().map(|told| told.3).max();
            assert!(upstream >= Some(1_800), "the pauses are the backend's time: {told:?}");
            if version == "1.1" && framing != "until the end" {
                assert_eq!(client.get("/resting").status, 200, "the connection is kept");
            }
            assert!(site.log.lock().unwrap().is_empty(), "{:?}", site.log);
        }
    }
}

#[test]
fn a_page_shows_the_requests_that_rest_and_no_streams_of_events() {
    let (go, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let backend = Backend::start(move |_, conn| {
        let Some(asked) = conn.request() else { return };
        let begin = |kind: &str| {
            format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        };
        let (first, last) = match &asked.head {
            head if head.contains("/begun") => (begin("text/plain"), "0\r\n\r\n"),
            head if head.contains("/events") => (begin("text/event-stream"), "0\r\n\r\n"),
            _ => (String::new(), "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"),
        };
        conn.send(first);
        let _ = waits.lock().unwrap().recv_timeout(PATIENCE);
        conn.send(last);
    });
    let router = router(backend.proxy()).get("/fibers", osier_web::fibers::page);
    let news = Topic::<Arc<sse::Event>>::new();
    let source = news.clone();
    let (site, _) = site(router.get("/own", move |_: &mut Request<'_>| {
        sse::subscribe(source.subscribe(1, Policy::DropOldest))
    }));
    // Events of this server, before the first one and after it.
    let mut own = site.connect();
    asks(&mut own, "/own", "1.1");
    assert_eq!(own.head().0, 200);
    for event in ["one", "two"] {
        rest(&site, 1);
        assert!(!site.get("/fibers").text().contains("without a fiber"));
        news.publish(Arc::new(sse::Event::new(event)));
        until(&mut own, "\n\n");
    }
    drop(own);
    let paths = ["/begun", "/events", "/poll?page=7"];
    let mut clients = paths.map(|path| {
        let mut client = site.connect();
        asks(&mut client, path, "1.1");
        client
    });
    rest(&site, paths.len());
    let shown = |find: &str| site.get(&format!("/fibers?find={find}")).text().to_owned();
    let all = site.get("/fibers").text().to_owned();
    assert!(all.contains("\n2 requests without a fiber, for up to "), "{all}");
    for path in ["/begun", "/poll?page=7"] {
        assert!(all.contains(&format!("\n  request (GET {path}, 127.0.0.1:")), "{all}");
    }
    // The fibers above may be those of other tests.
    let mut at_rest = all.lines().filter(|line| line.starts_with("  request ("));
    assert!(at_rest.all(|line| line.ends_with(", in 'upstream'")), "{all}");
    let found = shown("page%3D7");
    assert!(
        found.contains("request (GET /poll?page=7") && !found.contains("request (GET /begun"),
        "{found}"
    );
    for _ in paths {
        go.send(()).unwrap();
    }
    assert!(clients.iter_mut().all(|client| client.reply().text() == "one"));
    let all = site.get("/fibers").text().to_owned();
    assert!(!all.contains("without a fiber"), "{all}");
}

#[test]
fn a_response_over_tls_pauses_too() {
    let (backend, go) = directed(|conn, go| {
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
        go.recv_timeout(PATIENCE).unwrap();
        conn.send("3\r\ntwo\r\n0\r\n\r\n");
        conn.rest();
    });
    let site = tls::site(router(backend.proxy()).get("/resting", resting), |server| server);
    let mut asker = tls::connect(&site);
    let mut client = tls::connect(&site);
    client.send("GET /events HTTP/1.1\r\nHost: t\r\n\r\n");
    eventually("the connections rest", || asker.get("/resting").text() == "2");
    // Bytes of the next request in a record of their own.
    client.send("GET /resting HTTP/1.1\r\n");
    go.send(()).unwrap();
    assert_eq!(client.reply().text(), "onetwo");
    client.send("Host: t\r\n\r\n");
    assert_eq!(client.reply().status, 200);
}

#[test]
fn requests_behind_a_paused_response_are_served_after_it() {
    let (backend, go) = directed(|conn, go| {
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
        go.recv_timeout(PATIENCE).unwrap();
        conn.send("3\r\ntwo\r\n0\r\n\r\n");
    });
    let (site, told) = site(router(backend.proxy()));
    // Within the burst, in the middle of a pause, and more than a burst reads.
    let next = "GET /resting HTTP/1.1\r\nHost: t\r\n\r\n";
    for (with_it, later) in [(1, 0), (0, 1), (2, 3), (0, 1000)] {
        told.lock().unwrap().clear();
        let mut client = site.connect();
        client.send(["GET /events HTTP/1.1\r\nHost: t\r\n\r\n", &next.repeat(with_it)].concat());
        rest(&site, 1);
        client.send(next.repeat(later));
        if later < 100 {
            rest(&site, 1);
        } else {
            let mut asker = site.connect();
            eventually("it has a stack", || asker.get("/resting").text() == "1");
        }
        go.send(()).unwrap();
        assert_eq!(client.reply().text(), "onetwo");
        for _ in 0..with_it + later {
            assert_eq!(client.reply().status, 200);
        }
        assert_eq!(told_of(&told, "/events"), [(200, 6)]);
        drop(client);
        rest(&site, 0);
    }
}

#[test]
fn a_client_that_leaves_frees_the_backend_at_once() {
    let (backend, _go) = directed(|conn, _| {
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nlast\r\n");
        conn.rest();
    });
    let (site, told) = site(router(backend.proxy()));
    for how in WAYS {
        told.lock().unwrap().clear();
        let mut client = site.connect();
        asks(&mut client, "/events", "1.1");
        client.head();
        client.take("0004\r\nlast\r\n".len() - 1);
        rest(&site, 1);
        assert_eq!(backend.open(), 1);
        let _kept = leave(client, how);
        eventually("the backend is free", || backend.open() == 0);
        eventually("it is told", || told_of(&told, "/events") == [(200, 4)]);
        rest(&site, 0);
    }
    assert!(site.log.lock().unwrap().is_empty(), "{:?}", site.log);
}

#[test]
fn a_backend_that_breaks_off_after_a_pause_cuts_the_response() {
    for framing in [
        "Transfer-Encoding: chunked\r\n\r\n4\r\nlast\r\n",
        "Content-Length: 90000\r\n\r\nlast",
    ] {
        let (backend, go) = directed(move |conn, go| {
            conn.send(format!("HTTP/1.1 200 OK\r\n{framing}"));
            go.recv_timeout(PATIENCE).unwrap();
        });
        let (site, told) = site(router(backend.proxy()));
        let mut client = site.connect();
        asks(&mut client, "/events", "1.1");
        rest(&site, 1);
        go.send(()).unwrap();
        let rest = String::from_utf8(client.rest()).unwrap();
        assert!(!rest.ends_with("0\r\n\r\n") && rest.contains("last"), "{rest:?}");
        eventually("it is told", || told_of(&told, "/events") == [(200, 4)]);
        assert!(
            site.logged("the response body of GET /events failed: upstream app: backend"),
            "{:?}",
            site.log
        );
    }
}

#[test]
fn the_patience_with_a_backend_includes_the_time_before_the_pause() {
    let (backend, _go) = directed(|conn, _| {
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nlast\r\n");
        conn.rest();
    });
    let limit = Duration::from_secs(4);
    let (site, told) = site(router(backend.proxy_with(options(|to| to.between = limit))));
    let mut client = site.connect();
    asks(&mut client, "/events", "1.1");
    rest(&site, 1);
    let rest = String::from_utf8(client.rest()).unwrap();
    assert!(rest.ends_with("last\r\n"), "{rest:?}");
    eventually("it is told", || told_of(&told, "/events") == [(200, 4)]);
    assert!(
        site.logged("no byte came for 4s ('timeouts.between')"),
        "{:?}",
        site.log
    );
    let upstream = told.lock().unwrap().iter().map(|told| told.3).max();
    assert!(upstream >= Some(3_800) && upstream < Some(12_000), "{told:?}");
}

#[test]
fn a_drain_waits_for_a_paused_response_and_cuts_it_at_the_end() {
    let (backend, go) = directed(|conn, go| {
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
        if go.recv_timeout(PATIENCE).is_ok() {
            conn.send("3\r\ntwo\r\n0\r\n\r\n");
        }
        conn.rest();
    });
    for ends_in_time in [true, false] {
        let (site, told) = site(router(backend.proxy()));
        let mut client = site.connect();
        asks(&mut client, "/events", "1.1");
        rest(&site, 1);
        site.stop.shutdown();
        if ends_in_time {
            go.send(()).unwrap();
            assert_eq!(client.reply().text(), "onetwo");
            client.expect_end();
        } else {
            let rest = String::from_utf8(client.rest()).unwrap();
            assert!(rest.ends_with("one\r\n"), "{rest:?}");
        }
        let cut = site.ended.recv_timeout(PATIENCE).unwrap();
        assert_eq!(cut, usize::from(!ends_in_time));
        let bytes = if ends_in_time { 6 } else { 3 };
        assert_eq!(told_of(&told, "/events"), [(200, bytes)]);
    }
}

#[test]
fn much_that_comes_after_a_pause_is_read_ahead_of_a_slow_client() {
    const MIB: usize = 1 << 20;
    let (backend, go) = directed(|conn, go| {
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\nx", 8 * MIB + 1));
        go.recv_timeout(PATIENCE).unwrap();
        conn.send(vec![b'y'; 8 * MIB]);
        conn.rest();
    });
    let upstream = backend.upstream().build().unwrap();
    let (site, told) = site(router(Proxy::with(upstream.clone(), options(|_| {}))));
    let mut client = Client::new(connect_narrowly(site.addr));
    asks(&mut client, "/large", "1.1");
    rest(&site, 1);
    go.send(()).unwrap();
    eventually("the backend is free", || upstream.stats()[0].leases == 0);
    let reply = client.reply();
    assert_eq!(reply.body.len(), 8 * MIB + 1);
    assert!(reply.body[0] == b'x' && reply.body[1..].iter().all(|byte| *byte == b'y'));
    eventually("it is told", || told_of(&told, "/large") == [(200, 8 * MIB as u64 + 1)]);
    assert_eq!(client.get("/resting").status, 200);
}

#[test]
fn what_the_request_holds_is_held_through_a_pause() {
    let (backend, go) = directed(|conn, go| {
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
        for text in ["3\r\ntwo\r\n", "0\r\n\r\n"] {
            go.recv_timeout(PATIENCE).unwrap();
            conn.send(text);
        }
    });
    let held = Arc::new(());
    let (counted, proxy) = (held.clone(), backend.proxy());
    let read = held.clone();
    let counting = Router::new()
        .get("/count", move |_: &mut Request<'_>| {
            Arc::strong_count(&read).to_string()
        })
        .fallback_answering(move |request| {
            request.extensions_mut().insert(counted.clone());
            proxy.answer_after_body(request)
        });
    let (site, _) = site(counting);
    let mut client = site.connect();
    asks(&mut client, "/events", "1.1");
    for _ in 0..2 {
        rest(&site, 1);
        assert_eq!(Arc::strong_count(&held), 4);
        client.send("GET /count HTTP/1.1\r\nHost: t\r\n\r\n");
        go.send(()).unwrap();
    }
    assert_eq!(client.reply().text(), "onetwo");
    for _ in 0..2 {
        assert_eq!(
            client.reply().text(),
            "3",
            "it is free when the next requests are served"
        );
    }
}

/// The number of fibers of the worker, that of the asker included.
fn fibers(_: &mut Request<'_>) -> String {
    let metrics = osier::inspect::metrics().expect("inside of a runtime");
    metrics.workers[0].fibers.to_string()
}

#[test]
fn an_event_that_many_get_at_once_takes_few_stacks() {
    const MANY: usize = 60;
    let news = Topic::<Arc<sse::Event>>::new();
    let source = news.clone();
    let (site, _) = site(
        Router::new()
            .get("/fibers", fibers)
            .get("/events", move |_: &mut Request<'_>| {
                sse::subscribe(source.subscribe(8, Policy::DropOldest))
            }),
    );
    let mut asker = site.connect();
    let mut fibers = || asker.get("/fibers").text().parse::<usize>().unwrap();
    // A pause that has just begun would not count.
    let publish = |fibers: &mut dyn FnMut() -> usize| {
        eventually("all subscribe", || news.subscribers() == MANY);
        eventually("no response has a stack", || fibers() < MANY / 4);
        thread::sleep(Duration::from_millis(500)); // a time that is measured
        news.publish(Arc::new(sse::Event::new("news")));
    };

    let open = |_| {
        let mut client = site.connect();
        asks(&mut client, "/events", "1.1");
        client.head();
        client
    };
    let mut clients: Vec<Client> = (0..MANY).map(open).collect();
    publish(&mut fibers);
    for client in &mut clients {
        assert_eq!(until(client, "\n\n"), "data: news\n\n");
    }
    let after = fibers();
    assert!(after < MANY / 2, "{after} fibers over HTTP/1.1");
    drop(clients);
    eventually("all have left", || news.subscribers() == 0);

    let mut client = crate::h2::client::Client::connect(site.addr);
    let streams: Vec<_> = (0..MANY).map(|_| client.begin("GET", "/events", &[], true)).collect();
    client.until("the heads", |client| {
        streams
            .iter()
            .all(|stream| client.replies.get(stream).is_some_and(|reply| reply.status == 200))
    });
    publish(&mut fibers);
    client.until("the events", |client| {
        streams
            .iter()
            .all(|stream| client.replies[stream].body == b"data: news\n\n")
    });
    let after = fibers();
    assert!(after < MANY / 2, "{after} fibers over HTTP/2");
}

#[test]
fn a_backend_of_fastcgi_may_be_silent() {
    let folder = responder::folder();
    let (go, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let app = Responder::unix(folder.path(), move |conn| {
        while let Some((opening, _)) = conn.request() {
            let head = match opening.get("QUERY_STRING") {
                "length" => "Content-Length: 6\n\n",
                _ => "Content-Type: text/event-stream\n\n",
            };
            conn.send(responder::stdout(format!("{head}one").as_bytes()));
            let waited = waits.lock().unwrap().recv_timeout(PATIENCE);
            if opening.get("QUERY_STRING") == "end" || waited.is_err() {
                return;
            }
            conn.send(
                [
                    responder::stdout(b"two"),
                    responder::record(responder::STDOUT, 1, b"", 0),
                    responder::end(0, 0),
                ]
                .concat(),
            );
        }
    });
    let upstream = responder::upstream(&app);
    let options = Options {
        between: Duration::from_secs(5),
        ..Options::default()
    };
    let (site, told) = site(Router::new().fallback(FastCgi::with(folder.root(), upstream, options).unwrap().handler()));
    for (query, whole) in [("length", true), ("stream", true), ("end", false), ("late", false)] {
        told.lock().unwrap().clear();
        let target = format!("/a.php?{query}");
        let mut client = site.connect();
        asks(&mut client, &target, "1.1");
        rest(&site, 1);
        if query != "late" {
            go.send(()).unwrap();
        }
        if whole {
            assert_eq!(client.reply().text(), "onetwo");
        } else {
            let rest = String::from_utf8(client.rest()).unwrap();
            assert!(rest.contains("one") && !rest.ends_with("0\r\n\r\n"), "{rest:?}");
            assert!(
                site.logged(&format!("the response body of GET {target} failed")),
                "{:?}",
                site.log
            );
        }
        let bytes = if whole { 6 } else { 3 };
        eventually("it is told", || told_of(&told, &target) == [(200, bytes)]);
        drop(client);
        rest(&site, 0);
    }
}

#[test]
fn events_of_fastcgi_pass_between_pauses() {
    let folder = responder::folder();
    let (go, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let app = Responder::unix(folder.path(), move |conn| {
        if conn.request().is_some() {
            conn.send(responder::stdout(b"Content-Type: text/event-stream\n\n"));
            for event in ["data: 0\n\n", "data: 1\n\n", "data: 2\n\n"] {
                // In a record of its own.
                conn.send(responder::stdout(event.as_bytes()));
                if waits.lock().unwrap().recv_timeout(PATIENCE).is_err() {
                    return;
                }
            }
            conn.send([responder::record(responder::STDOUT, 1, b"", 0), responder::end(0, 0)].concat());
        }
    });
    let upstream = responder::upstream(&app);
    let handler = FastCgi::with(folder.root(), upstream, Options::default()).unwrap();
    let (site, told) = site(Router::new().fallback(handler.handler()));
    let mut client = site.connect();
    asks(&mut client, "/a.php", "1.1");
    for _ in 0..3 {
        rest(&site, 1);
        go.send(()).unwrap();
    }
    assert_eq!(client.reply().text(), "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    eventually("it is told", || told_of(&told, "/a.php") == [(200, 27)]);
    assert!(site.log.lock().unwrap().is_empty(), "{:?}", site.log);
}
