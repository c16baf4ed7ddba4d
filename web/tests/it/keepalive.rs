//! Several requests on one connection: their order, the times of flushes, and the end of the
//! connection.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{PATIENCE, site};
use osier_web::{Request, Response, Router};

#[test]
fn pipelined_requests_are_answered_in_order() {
    let site = site(Router::new().get("/{n}", |request: &mut Request<'_>| request.path().to_owned()));
    let mut client = site.connect();
    let requests: String = (0..200)
        .map(|n| format!("GET /{n} HTTP/1.1\r\nHost: t\r\n\r\n"))
        .collect();
    client.send(requests);
    for n in 0..200 {
        assert_eq!(client.reply().text(), format!("/{n}"));
    }
}

#[test]
fn pipelined_requests_split_anywhere_are_answered_in_order() {
    let site = site(Router::new().post("/{n}", |request: &mut Request<'_>| {
        let text = std::io::read_to_string(request.body())?;
        std::io::Result::Ok(format!("{} {text}", request.path()))
    }));
    let one = |n: usize| {
        let body = "b".repeat(n % 7);
        format!(
            "POST /{n} HTTP/1.1\r\nHost: t\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let requests: String = (0..60).map(one).collect();
    for size in [1, 7, 64, 1000] {
        let mut client = site.connect();
        for piece in requests.as_bytes().chunks(size) {
            client.send(piece);
        }
        for n in 0..60 {
            assert_eq!(
                client.reply().text(),
                format!("/{n} {}", "b".repeat(n % 7)),
                "pieces of {size}"
            );
        }
    }
}

#[test]
fn repeated_heads_are_requests_of_their_own() {
    let count = Arc::new(Mutex::new(0));
    let router = Router::new()
        .get("/{word}", move |request: &mut Request<'_>| {
            let mut count = count.lock().unwrap();
            *count += 1;
            // A suspension flushes the responses before this one.
            if *count % 5 == 0 {
                osier::yield_now();
            }
            format!("{} {count}", request.param("word").unwrap_or_default())
        })
        .post("/{word}", |request: &mut Request<'_>| {
            std::io::read_to_string(request.body())
        })
        .get("/last", |_| {
            Response::new(osier_web::http::StatusCode::OK).close().body("last")
        });
    let site = site(router);
    let mut client = site.connect();
    let get = "GET /a HTTP/1.1\r\nHost: t\r\n\r\n";
    let post = "POST /a HTTP/1.1\r\nHost: t\r\ncontent-length: 2\r\n\r\n";
    // Bodies that look like the head before them, and heads that begin like it.
    let other = "GET /a HTTP/1.1\r\nHost: t\r\nX: y\r\n\r\n";
    let last = "GET /last HTTP/1.1\r\nHost: t\r\n\r\n";
    client.send(format!(
        "{}{post}b1{post}b2{other}{other}{get}{last}{last}",
        get.repeat(20)
    ));
    for n in 1..=20 {
        assert_eq!(client.reply().text(), format!("a {n}"));
    }
    for text in ["b1", "b2", "a 21", "a 22", "a 23", "last"] {
        assert_eq!(client.reply().text(), text);
    }
    client.expect_end();
}

#[test]
fn more_pipelined_responses_than_any_buffer_holds() {
    let page = "x".repeat(5000);
    let site = site(Router::new().get("/", move |_: &mut Request<'_>| page.clone()));
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n".repeat(400));
    for _ in 0..400 {
        assert_eq!(client.reply().body.len(), 5000);
    }
}

#[test]
fn a_suspended_handler_does_not_hold_back_earlier_responses() {
    let (release, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let router = Router::new()
        .get("/first", |_| "first")
        .get("/second", move |_: &mut Request<'_>| {
            let gate = gate.clone();
            osier::unblock(move || gate.lock().unwrap().recv_timeout(PATIENCE)).expect("released");
            "second"
        });
    let site = site(router);
    let mut client = site.connect();
    client.send("GET /first HTTP/1.1\r\nHost: t\r\n\r\nGET /second HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(client.reply().text(), "first");
    release.send(()).unwrap();
    assert_eq!(client.reply().text(), "second");
}

#[test]
fn handlers_of_one_connection_never_overlap() {
    let running = Arc::new(Mutex::new(0));
    let site = site(Router::new().get("/", move |_: &mut Request<'_>| {
        *running.lock().unwrap() += 1;
        // So that handlers could overlap.
        (0..10).for_each(|_| osier::yield_now());
        let mut running = running.lock().unwrap();
        *running -= 1;
        running.to_string()
    }));
    let mut client = site.connect();
    for _ in 0..10 {
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    for _ in 0..10 {
        assert_eq!(client.reply().text(), "0");
    }
}

#[test]
fn http_1_1_is_kept_until_close_is_asked_for() {
    let site = site(Router::new().get("/", |_| "hi"));
    let mut client = site.connect();
    for _ in 0..3 {
        let reply = client.get("/");
        assert_eq!((reply.status, reply.header("connection")), (200, None));
        assert!(reply.header("date").is_some_and(|date| date.ends_with(" GMT")));
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
    }
    client.send("GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert_eq!(client.reply().header("connection"), Some("close"));
    client.expect_end();
}

#[test]
fn http_1_0_is_closed_unless_keeping_is_asked_for() {
    let site = site(Router::new().get("/", |_| "hi"));
    let mut client = site.connect();
    client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let reply = client.reply();
    assert_eq!((reply.text(), reply.header("connection")), ("hi", Some("keep-alive")));
    client.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(client.reply().header("connection"), Some("close"));
    client.expect_end();
}

#[test]
fn requests_before_a_fin_are_answered() {
    let site = site(Router::new().get("/", |_| "hi"));
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n".repeat(3));
    client.finish_sending();
    for _ in 0..3 {
        assert_eq!(client.reply().text(), "hi");
    }
    client.expect_end();
}

#[test]
fn a_handler_may_close() {
    let site = site(Router::new().get("/", |_| {
        Response::new(osier_web::http::StatusCode::OK).body("bye").close()
    }));
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n".repeat(2));
    let reply = client.reply();
    assert_eq!((reply.text(), reply.header("connection")), ("bye", Some("close")));
    client.expect_end();
}

#[test]
fn head_is_get_without_the_body() {
    let router = Router::new()
        .get("/", |_| "hello")
        .get("/stream", |_| Response::stream(|out| out.write_all(b"never sent")));
    let site = site(router);
    let mut client = site.connect();
    client.send("HEAD / HTTP/1.1\r\nHost: t\r\n\r\nHEAD /stream HTTP/1.1\r\nHost: t\r\n\r\n");
    let (status, head) = client.head();
    assert_eq!(status, 200);
    assert!(head.contains("content-length: 5\n"), "{head}");
    assert_eq!(client.head().0, 200);
    assert_eq!(client.get("/").text(), "hello");
}

#[test]
fn a_head_larger_than_the_first_buffer_and_a_body_behind_it() {
    let site = site(Router::new().post("/", |request: &mut Request<'_>| {
        let length = request.header("x-long").map_or(0, <[u8]>::len);
        let text = std::io::read_to_string(request.body())?;
        std::io::Result::Ok(format!("{length} {text}"))
    }));
    for length in [100, 4000, 12_000, 16_100, 16_384, 20_000, 30_000] {
        let mut client = site.connect();
        let long = "v".repeat(length);
        let head = format!("POST / HTTP/1.1\r\nHost: t\r\nx-long: {long}\r\n");
        client.send(format!(
            "{head}content-length: 5\r\n\r\nhello{head}transfer-encoding: chunked\r\n\r\n"
        ));
        client.send("3\r\nabc\r\n0\r\n\r\n");
        assert_eq!(client.reply().text(), format!("{length} hello"));
        assert_eq!(client.reply().text(), format!("{length} abc"));
    }
}

#[test]
fn the_date_is_right_after_a_suspension() {
    // The date has whole seconds: one of them has to pass.
    let site = site(Router::new().get("/", |_| osier::sleep(Duration::from_millis(2100))));
    let before = std::time::SystemTime::now();
    let reply = site.get("/");
    let date = httpdate::parse_http_date(reply.header("date").expect("a date")).expect("a date");
    assert!(
        date > before + Duration::from_secs(1),
        "{date:?} is not after {before:?}"
    );
}
