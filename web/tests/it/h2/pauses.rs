//! Responses that have nothing to send for a while, on streams: each waits without a fiber.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use osier::pubsub::{Policy, Topic};
use osier::sync::Event;
use osier_http::h2::{ErrorCode, StreamId};
use osier_web::proxy::Proxy;
use osier_web::upstream::Upstream;
use osier_web::{Request, Router, Server, Timeouts, sse};

use super::client::Client;
use crate::common::backend::{Backend, options, router};
use crate::common::{PATIENCE, Site, eventually, site_with};

/// The status and bytes of each event stream that the observer was told.
type Told = Arc<Mutex<Vec<(u16, u64)>>>;

/// Serves `router`, and the numbers of fibers and of futures at `/held`.
fn site(router: Router) -> (Site, Told) {
    let told = Told::default();
    let tell = told.clone();
    let held = |_: &mut Request<'_>| held_here();
    let timeouts = Timeouts {
        drain: Duration::from_secs(3),
        ..Timeouts::default()
    };
    let server = Server::new(router.get("/held", held))
        .timeouts(timeouts)
        .on_request(move |served| {
            if served.target() == "/events" {
                tell.lock().unwrap().push((served.status().as_u16(), served.bytes()));
            }
        });
    (site_with(1, server, |server| server.bind("127.0.0.1:0")), told)
}

fn held_here() -> String {
    let metrics = osier::inspect::metrics().expect("inside of a runtime");
    let worker = &metrics.workers[0];
    format!("{} {}", worker.fibers, worker.tasks)
}

/// The numbers of fibers and futures.
fn held(site: &Site) -> (usize, usize) {
    let reply = site.get("/held");
    let (fibers, tasks) = reply.text().split_once(' ').unwrap();
    (fibers.parse().unwrap(), tasks.parse().unwrap())
}

/// The numbers, once they stay.
fn settled(site: &Site) -> (usize, usize) {
    let (mut last, mut times) = (held(site), 0);
    eventually("the numbers stay", || {
        std::thread::sleep(Duration::from_millis(20)); // what they count goes by itself
        let now = held(site);
        times = if now == last { times + 1 } else { 0 };
        last = now;
        times == 10
    });
    last
}

/// Waits until there are `count` futures more than at first, and no further fiber.
fn rest(site: &Site, first: (usize, usize), count: usize) {
    eventually("the streams rest", || held(site) == (first.0, first.1 + count));
}

/// A client that has asked for the events.
fn listens(site: &Site) -> (Client, StreamId) {
    let mut client = Client::connect(site.addr);
    let stream = client.begin("GET", "/events", &[], true);
    client.flush();
    (client, stream)
}

/// A backend that sends its parts at the words of a test.
fn directed() -> (Backend, mpsc::Sender<()>) {
    let (go, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let backend = Backend::start(move |_, conn| {
        while conn.request().is_some() {
            conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
            for part in ["3\r\ntwo\r\n", "5\r\nthree\r\n0\r\nX-Trailer: passed\r\n\r\n"] {
                if waits.lock().unwrap().recv_timeout(PATIENCE).is_err() {
                    return;
                }
                if !conn.send(part) {
                    return;
                }
            }
        }
    });
    (backend, go)
}

#[test]
fn a_page_shows_the_streams_that_rest() {
    let (backend, go) = directed();
    let (site, _) = site(router(backend.proxy()).get("/fibers", osier_web::fibers::page));
    let first = settled(&site);
    let mut client = Client::connect(site.addr);
    let stream = client.begin("GET", "/slow?page=7", &[], true);
    client.flush();
    rest(&site, first, 1);
    let shown = |found: &str| site.get("/fibers").text().contains(found);
    assert!(shown("\n  request (GET /slow?page=7, 127.0.0.1:"));
    for _ in 0..2 {
        go.send(()).unwrap();
    }
    assert_eq!(client.reply(stream).text(), "onetwothree");
    eventually("it has left the page", || !shown("without a fiber"));
}

#[test]
fn a_stream_whose_backend_is_silent_keeps_no_fiber_and_gets_all() {
    let (backend, go) = directed();
    let (site, told) = site(router(backend.proxy()));
    let first = settled(&site);
    let (mut client, stream) = listens(&site);
    rest(&site, first, 1);
    client.until("the first part", |client| client.replies[&stream].body == b"one");
    assert_eq!(client.get("/held").status, 200, "other streams go on");
    go.send(()).unwrap();
    client.until("the second part", |client| client.replies[&stream].body == b"onetwo");
    rest(&site, first, 1);
    go.send(()).unwrap();
    let reply = client.reply(stream);
    assert_eq!((reply.text(), reply.reset), ("onetwothree", None));
    assert_eq!(reply.trailers, [("x-trailer".to_owned(), "passed".to_owned())]);
    eventually("it is told", || *told.lock().unwrap() == [(200, 11)]);
    assert!(site.log.lock().unwrap().is_empty(), "{:?}", site.log);
}

#[test]
fn a_client_that_leaves_a_silent_stream_frees_the_backend() {
    let (backend, _go) = directed();
    let (site, told) = site(router(backend.proxy()));
    let first = settled(&site);
    for by_reset in [true, false] {
        told.lock().unwrap().clear();
        let (mut client, stream) = listens(&site);
        rest(&site, first, 1);
        if by_reset {
            client.machine.reset(stream, ErrorCode::CANCEL);
            client.flush();
        } else {
            drop(client);
        }
        eventually("it is told", || *told.lock().unwrap() == [(200, 3)]);
        rest(&site, first, 0);
    }
    assert!(site.log.lock().unwrap().is_empty(), "{:?}", site.log);
}

#[test]
fn a_drain_waits_for_a_silent_stream_and_cuts_it_at_the_end() {
    for ends_in_time in [true, false] {
        let (backend, go) = directed();
        let (site, told) = site(router(backend.proxy()));
        let first = settled(&site);
        let (mut client, stream) = listens(&site);
        rest(&site, first, 1);
        site.stop.shutdown();
        if ends_in_time {
            go.send(()).unwrap();
            go.send(()).unwrap();
            assert_eq!(client.reply(stream).text(), "onetwothree");
        } else {
            client.until_closed();
            assert!(!client.replies[&stream].ended);
        }
        site.ended.recv_timeout(PATIENCE).unwrap();
        let bytes = if ends_in_time { 11 } else { 3 };
        eventually("it is told", || *told.lock().unwrap() == [(200, bytes)]);
    }
}

#[test]
fn events_pass_through_two_servers_that_hold_nothing_but_memory() {
    let news: Topic<Arc<sse::Event>> = Topic::new();
    let source = news.clone();
    let subscribe = move |_: &mut Request<'_>| sse::subscribe(source.subscribe(16, Policy::DropOldest));
    let (inner, _) = site(Router::new().get("/events", subscribe));
    let first_inner = settled(&inner);
    let address = inner.addr.to_string().parse().unwrap();
    let upstream = Upstream::builder("app")
        .backend(address)
        .http2(true)
        .on_log(|_| {})
        .build()
        .unwrap();
    let (outer, told) = site(router(Proxy::new(upstream)));
    // The connection to the backend stays.
    assert_eq!(outer.get("/none").status, 404);
    let first = settled(&outer);
    let (mut client, stream) = listens(&outer);
    rest(&inner, first_inner, 1);
    rest(&outer, first, 1);
    for number in 0..3 {
        news.publish(Arc::new(sse::Event::new(format!("event {number}"))));
        let expected = format!("data: event {number}\n\n");
        client.until("the event", |client| {
            client.replies[&stream].body.ends_with(expected.as_bytes())
        });
        rest(&inner, first_inner, 1);
        rest(&outer, first, 1);
    }
    // The end of the topic ends the stream as a whole response.
    drop((news, inner.stop.shutdown()));
    let reply = client.reply(stream);
    assert_eq!((reply.reset, reply.text().matches("data:").count()), (None, 3));
    eventually("it is told", || told.lock().unwrap().len() == 1);
}

#[test]
fn a_stream_whose_response_has_not_begun_keeps_no_fiber_either() {
    let (go, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let backend = Backend::start(move |_, conn| {
        while conn.request().is_some() && waits.lock().unwrap().recv_timeout(PATIENCE).is_ok() {
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnews");
        }
    });
    let (site, told) = site(router(backend.proxy()));
    let first = settled(&site);
    let (mut client, stream) = listens(&site);
    rest(&site, first, 1);
    assert_eq!(client.get("/held").status, 200, "other streams go on");
    go.send(()).unwrap();
    let reply = client.reply(stream);
    assert_eq!((reply.status, reply.text(), reply.reset), (200, "news", None));
    eventually("it is told", || *told.lock().unwrap() == [(200, 4)]);

    told.lock().unwrap().clear();
    // The kept connection of the backend has a future of its own.
    let first = settled(&site);
    let stream = client.begin("GET", "/events", &[], true);
    client.flush();
    rest(&site, first, 1);
    client.machine.reset(stream, ErrorCode::CANCEL);
    client.flush();
    eventually("it is told", || *told.lock().unwrap() == [(499, 0)]);
    drop(go);
    eventually("the backend is free", || backend.open() == 0);
    rest(&site, first, 0);
    assert!(site.log.lock().unwrap().is_empty(), "{:?}", site.log);
}

#[test]
fn a_stream_to_a_backend_that_does_not_respond_yet_keeps_no_fiber() {
    let free = Arc::new(Event::manual());
    let waits = free.clone();
    let news = move |_: &mut Request<'_>| {
        waits.wait();
        "news"
    };
    let (inner, _) = site(Router::new().get("/events", news));
    let upstream = Upstream::builder("app")
        .backend(inner.addr.to_string().parse().unwrap())
        .http2(true)
        .on_log(|_| {})
        .build()
        .unwrap();
    let limit = Duration::from_secs(6);
    let (outer, told) = site(router(Proxy::with(upstream, options(|to| to.first_byte = limit))));
    // The connection to the backend stays.
    assert_eq!(outer.get("/none").status, 404);
    let first = settled(&outer);
    let (mut client, late) = listens(&outer);
    rest(&outer, first, 1);
    assert_eq!(client.reply(late).status, 504);
    // A backend that has failed is looked after.
    let first = settled(&outer);
    let stream = client.begin("GET", "/events", &[], true);
    client.flush();
    rest(&outer, first, 1);
    free.set();
    assert_eq!(client.reply(stream).text(), "news");
    eventually("both are told", || {
        let told = told.lock().unwrap();
        told.iter().map(|(status, _)| *status).eq([504, 200])
    });
    assert!(outer.logged("within 6s"), "{:?}", outer.log);
}

/// Serves a backend that answers with the length of each body, and what the observer has told: status and received bytes.
fn counting(timeouts: Timeouts) -> (Backend, Site, Told) {
    let backend = Backend::start(|_, conn| {
        while let Some(request) = conn.request() {
            let length = request.body.len().to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", length.len());
            conn.send(head + &length);
        }
    });
    let told = Told::default();
    let tell = told.clone();
    let held = |_: &mut Request<'_>| held_here();
    let server = Server::new(router(backend.proxy()).get("/held", held))
        .timeouts(timeouts)
        .on_request(move |served| {
            if served.method() == "POST" {
                tell.lock().unwrap().push((served.status().as_u16(), served.received()));
            }
        });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    (backend, site, told)
}

#[test]
fn streams_whose_bodies_arrive_slowly_keep_no_fiber() {
    let (backend, site, told) = counting(Timeouts::default());
    let first = settled(&site);
    let mut client = Client::connect(site.addr);
    let streams: Vec<_> = (0..20).map(|_| client.begin("POST", "/", &[], false)).collect();
    client.flush();
    rest(&site, first, 20);
    for count in [1, 3] {
        for &stream in &streams {
            client.body(stream, &vec![b'x'; count], false);
        }
        eventually("all rest", || held(&site) == (first.0, first.1 + 20));
    }
    assert_eq!(backend.accepted(), 0);
    assert_eq!(
        client.send("POST", "/", &[], &[b'x'; 100_000]).text(),
        "100000",
        "another stream goes on"
    );
    let (last, others) = streams.split_last().unwrap();
    client.machine.reset(*last, ErrorCode::CANCEL);
    client.flush();
    for &stream in others {
        client.body(stream, &[b'x'; 400_000], true);
        assert_eq!(client.reply(stream).text(), "400004");
    }
    eventually("all are told", || {
        let mut told = told.lock().unwrap().clone();
        told.sort_unstable();
        let (gone, whole) = told.split_last().unwrap_or((&(0, 0), &[]));
        *gone == (499, 4) && whole.len() == 20 && whole[0] == (200, 100_000) && whole[1..] == [(200, 400_004); 19]
    });
    assert!(site.log.lock().unwrap().is_empty(), "{:?}", site.log);
}

#[test]
fn a_body_that_does_not_come_to_a_stream_at_rest_is_408() {
    let (backend, site, told) = counting(Timeouts {
        body: Duration::from_millis(300),
        ..Timeouts::default()
    });
    let first = settled(&site);
    let mut client = Client::connect(site.addr);
    let stream = client.begin("POST", "/", &[], false);
    client.body(stream, b"part", false);
    let reply = client.reply(stream);
    assert_eq!((reply.status, reply.reset), (408, None));
    eventually("it is told", || *told.lock().unwrap() == [(408, 4)]);
    rest(&site, first, 0);
    assert_eq!(backend.accepted(), 0);
}

#[test]
fn a_stream_whose_body_drips_is_408_by_the_rate() {
    let (_backend, site, _) = counting(Timeouts {
        body: Duration::from_millis(600),
        ..Timeouts::default()
    });
    let mut client = Client::connect(site.addr);
    let stream = client.begin("POST", "/", &[], false);
    client.flush();
    client.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut sent = 0;
    eventually("the stream is refused", || {
        client.body(stream, b"x", false);
        sent += 1;
        client.look();
        client.replies[&stream].is_over()
    });
    assert_eq!(client.reply(stream).status, 408);
    assert!(sent > 3, "{sent} bytes");
}
