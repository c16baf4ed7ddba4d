//! Slow request bodies in front of a gateway: the connection receives them without a stack, and the backend gets every byte.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use osier_web::http::StatusCode;
use osier_web::wrap::cache::{Cache, Inside, Store, StoreOptions};
use osier_web::wrap::queue::{self, Queue};
use osier_web::{Answer, Handler, Next, Request, Response, Router, Server, Timeouts};

use crate::common::backend::{Backend, options, pattern};
use crate::common::{Client, Site, eventually, site_with, taken};
use osier_web::proxy::Proxy;

/// Time without a byte after which a body is given up, where a test waits for that.
const SHORT: Duration = Duration::from_secs(3);

/// The path, status and label that the observer was told.
type Told = Arc<Mutex<Vec<(String, u16, u32)>>>;

/// A backend that returns what it gets: target, then body.
fn echo() -> Backend {
    Backend::start(|_, conn| {
        while let Some(asked) = conn.request() {
            let target = asked.head.split(' ').nth(1).unwrap().to_owned();
            let body = [target.as_bytes(), b" ", &asked.body].concat();
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()));
            conn.send(body);
        }
    })
}

/// Counts the connections that hold no stack at `/resting`, and forwards all else. `/old` is forwarded as `/new`.
fn forward(proxy: Proxy) -> Handler {
    Handler::answering(move |request: &mut Request<'_>| {
        request.set_label(7);
        if request.path() == "/old" {
            request.retarget("/new?x").unwrap();
            request.replace_headers(&["x-user"], [("x-user", "ada")]).unwrap();
        }
        if request.path() == "/resting" {
            let metrics = osier::inspect::metrics().expect("inside of a runtime");
            return Response::new(StatusCode::OK)
                .body(metrics.workers[0].resting.to_string())
                .into();
        }
        let answer = match request.path() {
            "/with" => with_user(&proxy, request),
            _ => proxy.answer_after_body(request),
        };
        answer.map(request, |request, response| response.header("x-path", request.path()))
    })
}

/// Forwards a request with another `X-User`, which code around it does not see.
fn with_user(proxy: &Proxy, request: &mut Request<'_>) -> Answer {
    let user = [("x-user", "ada")];
    let answer = request.with_headers(&["x-user"], user, |request| proxy.answer_after_body(request));
    let answer = answer
        .unwrap()
        .around(move |request, respond| request.with_headers(&["x-user"], user, respond).unwrap());
    answer.map(request, |request, response| {
        response.header("x-seen", request.header_str("x-user").unwrap_or("none"))
    })
}

fn site(proxy: Proxy) -> (Site, Told) {
    site_with_limit(proxy, Duration::from_secs(60))
}

/// A site that gives up a body after `limit` without a byte.
fn site_with_limit(proxy: Proxy, limit: Duration) -> (Site, Told) {
    let told = Told::default();
    let tell = told.clone();
    let timeouts = Timeouts {
        body: limit,
        drain: Duration::from_secs(1),
        ..Timeouts::default()
    };
    let server = Server::new(forward(proxy))
        .timeouts(timeouts)
        .on_request(move |served| {
            let line = (served.target().to_owned(), served.status().as_u16(), served.label());
            tell.lock().unwrap().push(line);
        });
    (site_with(1, server, |server| server.bind("127.0.0.1:0")), told)
}

fn told_of(told: &Told, target: &str) -> Vec<(u16, u32)> {
    let told = told.lock().unwrap();
    let lines = told.iter().filter(|(known, ..)| known == target);
    lines.map(|(_, status, label)| (*status, *label)).collect()
}

/// Waits until the connection of `client` holds no stack, although its request is not served.
fn rests(site: &Site, client: &Client) {
    taken(&client.stream);
    let mut asker = site.connect();
    // The metrics are those of the last turn, when the asker's own connection was at rest.
    eventually("the connection rests", || asker.get("/resting").text() == "2");
    drop(asker);
    let mut asker = site.connect();
    eventually("the asker has left", || asker.get("/resting").text() == "2");
}

#[test]
fn fields_that_a_part_of_the_code_has_changed_are_the_clients_outside_of_it() {
    let backend = echo();
    let (site, _) = site(backend.proxy());
    for is_slow in [false, true] {
        let mut client = site.connect();
        let head = "POST /with HTTP/1.1\r\nHost: t\r\nX-User: eve\r\nContent-Length: 5\r\n\r\n";
        match is_slow {
            true => {
                client.send(head);
                rests(&site, &client);
                client.send("hello");
            }
            false => client.send(format!("{head}hello")),
        }
        let reply = client.reply();
        assert_eq!(
            (reply.text(), reply.header("x-seen")),
            ("/with hello", Some("eve")),
            "{is_slow}"
        );
        let head = backend.heads.lock().unwrap().last().unwrap().to_lowercase();
        assert!(head.contains("\nx-user: ada") && !head.contains("eve"), "{head}");
    }
}

#[test]
fn a_slow_body_holds_no_stack_and_arrives_whole_before_the_next_request() {
    let backend = echo();
    let body = pattern(300_000);
    let (first, rest) = body.split_at(1000);
    for framing in ["Content-Length: 300000", "Transfer-Encoding: chunked"] {
        let chunk = |data: &[u8]| match framing.starts_with('T') {
            true => [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat(),
            false => data.to_vec(),
        };
        // In memory, and in a file from the first byte on.
        for memory in [1 << 20, 0] {
            let (site, told) = site(backend.proxy_with(options(|to| to.spool_memory = memory)));
            let mut client = site.connect();
            client.send(format!(
                "POST /old HTTP/1.1\r\nHost: t\r\nX-User: eve\r\n{framing}\r\n\r\n"
            ));
            rests(&site, &client);
            let piece = chunk(first);
            // A chunk's head arrives in two pieces.
            client.send(&piece[..1]);
            rests(&site, &client);
            client.send(&piece[1..]);
            rests(&site, &client);
            assert!(told_of(&told, "/old").is_empty());
            let mut end = chunk(rest);
            if framing.starts_with('T') {
                end.extend_from_slice(b"0\r\n\r\n");
            }
            end.extend_from_slice(b"GET /next HTTP/1.1\r\nHost: t\r\n\r\n");
            client.send(end);
            let reply = client.reply();
            assert_eq!((reply.status, reply.header("x-path")), (200, Some("/new")), "{framing}");
            assert!(reply.body == [b"/new?x ", &body[..]].concat(), "{framing}, {memory}");
            let heads = backend.heads.lock().unwrap().clone();
            let forwarded = heads.iter().rev().find(|head| head.contains("/new"));
            let forwarded = forwarded.expect("it was forwarded").to_lowercase();
            assert!(
                forwarded.contains("\nx-user: ada") && !forwarded.contains("eve"),
                "{forwarded}"
            );
            assert_eq!(client.reply().text(), "/next ");
            assert_eq!(
                (told_of(&told, "/old"), told_of(&told, "/next")),
                (vec![(200, 7)], vec![(200, 7)])
            );
        }
    }
}

#[test]
fn a_client_that_expects_it_is_asked_to_continue() {
    let backend = echo();
    let (site, _) = site(backend.proxy());
    let mut client = site.connect();
    client.send("POST /a HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_eq!(client.head().0, 100);
    rests(&site, &client);
    client.send("hi");
    assert_eq!(client.reply().text(), "/a hi");
}

#[test]
fn a_body_that_stops_coming_is_a_408_and_a_client_that_leaves_is_told() {
    let backend = echo();
    let (site, told) = site_with_limit(backend.proxy(), SHORT);
    let mut silent = site.connect();
    silent.send("POST /silent HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nx");
    rests(&site, &silent);
    let mut gone = site.connect();
    gone.send("POST /gone HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nx");
    taken(&gone.stream);
    drop(gone);
    eventually("it is told", || told_of(&told, "/gone") == [(400, 7)]);
    assert_eq!(silent.reply().status, 408);
    silent.expect_end();
    assert_eq!(told_of(&told, "/silent"), [(408, 7)]);
    assert_eq!(backend.accepted(), 0);
}

#[test]
fn a_chunk_that_is_none_is_a_400() {
    let backend = echo();
    let (site, told) = site(backend.proxy());
    let mut client = site.connect();
    client.send("POST /bad HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
    rests(&site, &client);
    client.send("zz\r\n");
    assert_eq!(client.reply().status, 400);
    client.expect_end();
    assert_eq!(told_of(&told, "/bad"), [(400, 7)]);
}

#[test]
fn a_shutdown_waits_for_a_body_and_reports_one_that_does_not_come() {
    let backend = echo();
    let (site, told) = site(backend.proxy());
    let mut late = site.connect();
    late.send("POST /late HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nh");
    rests(&site, &late);
    let mut never = site.connect();
    never.send("POST /never HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nh");
    taken(&never.stream);
    site.stop.shutdown();
    late.send("i");
    assert_eq!(late.reply().text(), "/late hi");
    late.expect_end();
    never.expect_end();
    drop(site);
    assert_eq!(
        (told_of(&told, "/late"), told_of(&told, "/never")),
        (vec![(200, 7)], vec![(400, 7)])
    );
}

/// A function around a handler needs the response, so the body is received on the fiber.
#[test]
fn functions_around_a_gateway_see_its_response() {
    let backend = echo();
    let proxy = backend.proxy();
    let router = Router::new()
        .fallback_answering(move |request| proxy.answer_after_body(request))
        .wrap(|request: &mut Request<'_>, next: Next<'_>| {
            let response = next.run(request);
            let status = response.status().as_u16().to_string();
            response.header("x-status", &status)
        });
    let site = crate::common::site(router);
    let mut client = site.connect();
    client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nh");
    taken(&client.stream);
    client.send("i");
    let reply = client.reply();
    assert_eq!((reply.text(), reply.header("x-status")), ("/a hi", Some("200")));
}

/// A gateway with a queue of one request around a cache, and an upload to it that has no turn while its body is not here.
fn queued(proxy: Proxy) -> Site {
    let cache = Cache::new(Arc::new(Store::open(StoreOptions::default()).unwrap()));
    let inside: Inside = {
        let proxy = proxy.clone();
        Arc::new(move |request| proxy.answer(request))
    };
    let queue = Arc::new(Queue::new(&queue::Options {
        running: 1,
        wait: Duration::from_millis(50),
    }));
    crate::common::site(Handler::answering(move |request: &mut Request<'_>| {
        queue.answer(request, |request| {
            cache.answer_after_body(request, &inside, |request| proxy.answer_after_body(request))
        })
    }))
}

fn upload(site: &Site, method: &str) -> Client {
    let mut client = site.connect();
    let fields = "Host: t\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n";
    client.send(format!("{method} /{method} HTTP/1.1\r\n{fields}\r\n"));
    assert_eq!(client.head().0, 100);
    client
}

/// `PURGE` is a method like any other for a cache without purges.
#[test]
fn a_slow_body_holds_no_turn_whatever_the_method() {
    let backend = echo();
    let site = queued(backend.proxy());
    for method in ["POST", "GET", "PURGE"] {
        let mut slow = upload(&site, method);
        assert_eq!(site.get("/other").text(), "/other ", "{method}");
        slow.send("2\r\nhi\r\n0\r\n\r\n");
        assert_eq!(slow.reply().text(), format!("/{method} hi"));
    }
}

#[test]
fn a_body_that_fails_waits_for_no_turn() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let backend = Backend::start(move |_, conn| {
        while conn.request().is_some() {
            let _ = released.lock().unwrap().recv();
            conn.send("HTTP/1.1 204 No Content\r\n\r\n");
        }
    });
    let site = queued(backend.proxy());
    let mut bad = upload(&site, "POST");
    let mut running = site.connect();
    running.send("GET /running HTTP/1.1\r\nHost: t\r\n\r\n");
    eventually("it has the turn", || backend.accepted() == 1);
    bad.send("zz\r\n");
    assert_eq!(bad.reply().status, 400);
    release.send(()).unwrap();
    assert_eq!(running.reply().status, 204);
}
