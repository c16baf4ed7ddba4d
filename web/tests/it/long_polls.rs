//! Requests whose backend does not respond for a while (long polls): their connections hold no stack meanwhile, and nothing else changes.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use osier::sync::Event;
use osier_web::proxy::Proxy;
use osier_web::{Answer, IntoResponse, Request, Route, Router};

use crate::common::backend::{Asked, Backend, options, router};
use crate::common::{PATIENCE, eventually};
use crate::pauses::{WAYS, asks, directed, leave, rest, resting, site, told_of};
use crate::{tls, tls_proxy};

const REPLY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnews";

#[test]
fn the_response_arrives_after_a_rest_and_the_connection_is_kept() {
    let (backend, go) = directed(|conn, go| {
        loop {
            go.recv_timeout(PATIENCE).unwrap();
            conn.send(REPLY);
            if conn.request().is_none() {
                return;
            }
        }
    });
    let (site, told) = site(router(backend.proxy()));
    let mut client = site.connect();
    for (method, body) in [("GET", ""), ("POST", "a word"), ("GET", "")] {
        told.lock().unwrap().clear();
        client.send(format!(
            "{method} /poll HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        rest(&site, 1);
        thread::sleep(Duration::from_millis(500)); // a time that is measured
        go.send(()).unwrap();
        assert_eq!(client.reply().text(), "news");
        eventually("it is told", || told_of(&told, "/poll") == [(200, 4)]);
        let upstream = told.lock().unwrap().iter().map(|told| told.3).max();
        assert!(upstream >= Some(1_400), "the rest is the backend's time: {told:?}");
    }
    assert_eq!(backend.accepted(), 1, "its connection is kept, too");
    assert!(site.log.lock().unwrap().is_empty(), "{:?}", site.log);
}

#[test]
fn requests_behind_it_are_served_after_it() {
    let (backend, go) = directed(|conn, go| {
        go.recv_timeout(PATIENCE).unwrap();
        conn.send(REPLY);
    });
    let (site, told) = site(router(backend.proxy()));
    let next = "GET /resting HTTP/1.1\r\nHost: t\r\n\r\n";
    for (before, with_it, later) in [(1, 1, 0), (0, 0, 1), (3, 2, 3), (0, 0, 1000)] {
        told.lock().unwrap().clear();
        let mut client = site.connect();
        let poll = "GET /poll HTTP/1.1\r\nHost: t\r\n\r\n";
        client.send([&next.repeat(before), poll, &next.repeat(with_it)].concat());
        for _ in 0..before {
            assert_eq!(client.reply().status, 200, "it does not wait for the poll");
        }
        rest(&site, 1);
        client.send(next.repeat(later));
        if later < 100 {
            rest(&site, 1);
        } else {
            let mut asker = site.connect();
            eventually("it has a stack", || asker.get("/resting").text() == "1");
        }
        go.send(()).unwrap();
        assert_eq!(client.reply().text(), "news");
        for _ in 0..with_it + later {
            assert_eq!(client.reply().status, 200);
        }
        assert_eq!(told_of(&told, "/poll"), [(200, 4)]);
        drop(client);
        rest(&site, 0);
    }
}

#[test]
fn a_client_that_leaves_frees_the_backend_at_once() {
    let (backend, _go) = directed(|conn, _| {
        conn.rest();
    });
    let (site, told) = site(router(backend.proxy()));
    for how in WAYS {
        told.lock().unwrap().clear();
        let mut client = site.connect();
        asks(&mut client, "/poll", "1.1");
        rest(&site, 1);
        assert_eq!(backend.open(), 1);
        let _kept = leave(client, how);
        eventually("the backend is free", || backend.open() == 0);
        eventually("it is told", || told_of(&told, "/poll") == [(499, 0)]);
        rest(&site, 0);
    }
    assert!(site.log.lock().unwrap().is_empty(), "{:?}", site.log);
}

#[test]
fn a_route_may_let_the_backend_finish_for_a_client_that_has_left() {
    let (ended, end) = mpsc::channel();
    let (backend, go) = directed(move |conn, go| {
        go.recv_timeout(PATIENCE).unwrap();
        ended.send(conn.send(REPLY)).unwrap();
    });
    let upstream = backend.upstream().build().unwrap();
    let route = Route::new()
        .get(Proxy::new(upstream.clone()).handler())
        .finish_when_gone();
    let (site, _) = site(Router::new().route("/poll", route));
    let mut client = site.connect();
    asks(&mut client, "/poll", "1.1");
    eventually("the backend has it", || backend.open() == 1);
    thread::sleep(Duration::from_millis(1_500)); // longer than the patience of the handler
    drop(client);
    thread::sleep(Duration::from_millis(300)); // it would be given up by now
    go.send(()).unwrap();
    assert!(end.recv_timeout(PATIENCE).unwrap());
    eventually("the response is read", || upstream.stats()[0].leases == 0);
    assert_eq!(upstream.stats()[0].failures, 0);
}

#[test]
fn the_patience_ends_a_rest() {
    let (backend, _go) = directed(|conn, _| {
        conn.rest();
    });
    let limit = Duration::from_secs(4);
    let (site, told) = site(router(backend.proxy_with(options(|to| to.first_byte = limit))));
    let mut client = site.connect();
    asks(&mut client, "/poll", "1.1");
    rest(&site, 1);
    assert_eq!(client.reply().status, 504);
    let told = told.lock().unwrap();
    let upstream = told.iter().map(|told| told.3).max();
    assert!(upstream >= Some(3_800) && upstream < Some(12_000), "{told:?}");
    assert!(site.logged("within 4s"), "{:?}", site.log);
}

#[test]
fn a_backend_that_leaves_is_replaced_once_where_that_is_safe() {
    for (method, status, accepted) in [("GET", 200, 2), ("POST", 502, 1)] {
        let (go, waits) = mpsc::channel::<()>();
        let waits = Mutex::new(waits);
        let backend = Backend::start(move |number, conn| {
            let Some(Asked { body, .. }) = conn.request() else {
                return;
            };
            assert_eq!(body, b"a word");
            waits.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            if number > 0 {
                conn.send(REPLY);
            }
        });
        let (site, _) = site(router(backend.proxy()));
        let mut client = site.connect();
        client.send(format!(
            "{method} /poll HTTP/1.1\r\nHost: t\r\nContent-Length: 6\r\n\r\na word"
        ));
        for attempt in 1..=accepted {
            eventually("the attempt begins", || backend.accepted() == attempt);
            rest(&site, 1);
            go.send(()).unwrap();
        }
        assert_eq!((client.reply().status, backend.accepted()), (status, accepted));
    }
}

#[test]
fn the_second_attempt_is_the_last() {
    let (backend, go) = directed(|_, go| {
        go.recv_timeout(PATIENCE).unwrap();
    });
    let (site, _) = site(router(backend.proxy()));
    let mut client = site.connect();
    asks(&mut client, "/poll", "1.1");
    for attempt in 1..=2 {
        eventually("the attempt begins", || backend.accepted() == attempt);
        rest(&site, 1);
        go.send(()).unwrap();
    }
    assert_eq!((client.reply().status, backend.accepted()), (502, 2));
}

#[test]
fn functions_around_the_handler_run_around_each_part() {
    let (backend, go) = directed(|conn, go| {
        go.recv_timeout(PATIENCE).unwrap();
        conn.send(REPLY);
    });
    let proxy = backend.proxy();
    let steps = Arc::new(Mutex::new(Vec::new()));
    let noted = steps.clone();
    let router = Router::new().fallback_answering(move |request| {
        let (around, mapped) = (noted.clone(), noted.clone());
        request.extensions_mut().insert(7_u8);
        let answer = proxy.answer_after_body(request);
        let answer = answer.around(move |request, go_on| -> Answer {
            assert_eq!(request.extensions().get(), Some(&7_u8), "it is held");
            around.lock().unwrap().push("around");
            go_on(request)
        });
        answer.map(request, move |request, response| {
            assert_eq!(request.target(), "/poll?x=1");
            mapped.lock().unwrap().push("mapped");
            response.header("x-mapped", "yes")
        })
    });
    let (site, _) = site(router);
    let mut client = site.connect();
    asks(&mut client, "/poll?x=1", "1.1");
    rest(&site, 1);
    assert!(steps.lock().unwrap().is_empty());
    go.send(()).unwrap();
    let reply = client.reply();
    assert_eq!((reply.text(), reply.header("x-mapped")), ("news", Some("yes")));
    assert_eq!(*steps.lock().unwrap(), ["around", "mapped"]);
}

#[test]
fn an_interim_response_and_a_tunnel_may_follow() {
    let (backend, go) = directed(|conn, go| {
        go.recv_timeout(PATIENCE).unwrap();
        conn.send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n");
        go.recv_timeout(PATIENCE).unwrap();
        conn.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello");
        conn.rest();
    });
    let (site, _) = site(router(backend.proxy()));
    let mut client = site.connect();
    client.send("GET /poll HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
    rest(&site, 1);
    go.send(()).unwrap();
    assert_eq!(client.head().0, 103);
    go.send(()).unwrap();
    assert_eq!(client.head().0, 101);
    assert_eq!(client.take(5), b"hello");
}

#[test]
fn a_drain_waits_for_the_response_and_cuts_it_at_the_end() {
    let (backend, go) = directed(|conn, go| {
        if go.recv_timeout(PATIENCE).is_ok() {
            conn.send(REPLY);
        }
        conn.rest();
    });
    for ends_in_time in [true, false] {
        let (site, told) = site(router(backend.proxy()));
        let mut client = site.connect();
        asks(&mut client, "/poll", "1.1");
        rest(&site, 1);
        site.stop.shutdown();
        if ends_in_time {
            go.send(()).unwrap();
            assert_eq!(client.reply().text(), "news");
            client.expect_end();
        } else {
            assert!(client.rest().is_empty());
        }
        let cut = site.ended.recv_timeout(PATIENCE).unwrap();
        assert_eq!(cut, usize::from(!ends_in_time));
        let expected = if ends_in_time { (200, 4) } else { (499, 0) };
        assert_eq!(told_of(&told, "/poll"), [expected]);
    }
}

#[test]
fn a_client_over_tls_rests_too() {
    let (backend, go) = directed(|conn, go| {
        go.recv_timeout(PATIENCE).unwrap();
        conn.send(REPLY);
    });
    let site = tls::site(router(backend.proxy()).get("/resting", resting), |server| server);
    let mut asker = tls::connect(&site);
    let mut client = tls::connect(&site);
    client.send("GET /poll HTTP/1.1\r\nHost: t\r\n\r\n");
    eventually("the connections rest", || asker.get("/resting").text() == "2");
    // Bytes of the next request in a record of their own.
    client.send("GET /resting HTTP/1.1\r\n");
    go.send(()).unwrap();
    assert_eq!(client.reply().text(), "news");
    client.send("Host: t\r\n\r\n");
    assert_eq!(client.reply().status, 200);
}

#[test]
fn a_handler_that_asks_for_the_response_waits_for_it() {
    let (go, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let backend = Backend::start(move |number, conn| {
        conn.request();
        if number == 0 {
            waits.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            conn.send(REPLY);
        } else {
            conn.rest();
        }
    });
    let proxy: Proxy = backend.proxy();
    let (site, _) = site(Router::new().fallback(proxy.handler()));
    let mut client = site.connect();
    asks(&mut client, "/poll", "1.1");
    eventually("the backend has it", || backend.open() == 1);
    thread::sleep(Duration::from_millis(1_500)); // longer than the patience of the handler
    go.send(()).unwrap();
    assert_eq!(client.reply().text(), "news");
    asks(&mut client, "/poll", "1.1");
    eventually("the backend has it", || backend.open() == 1);
    thread::sleep(Duration::from_millis(1_500)); // the same
    drop(client);
    eventually("the backend is free", || backend.open() == 0);
}

#[test]
fn the_rest_of_a_response_may_come_after_the_time_for_its_first_byte() {
    let (backend, go) = directed(|conn, go| {
        for part in [
            "HTTP/1.1 103 Early Hints\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-",
            "Length: 4\r\n\r\nnews",
        ] {
            go.recv_timeout(PATIENCE).unwrap();
            conn.send(part);
        }
    });
    let limit = Duration::from_secs(4);
    let (site, _) = site(router(backend.proxy_with(options(|to| to.first_byte = limit))));
    let mut client = site.connect();
    asks(&mut client, "/poll", "1.1");
    rest(&site, 1);
    go.send(()).unwrap();
    assert_eq!(client.head().0, 103);
    for _ in 0..2 {
        thread::sleep(Duration::from_secs(2)); // together longer than the limit
        go.send(()).unwrap();
    }
    assert_eq!(client.reply().text(), "news");
}

#[test]
fn a_body_that_came_uninvited_does_not_keep_it_from_resting() {
    let (backend, go) = directed(|conn, go| {
        go.recv_timeout(PATIENCE).unwrap();
        conn.send(REPLY);
    });
    for body in [
        "Content-Length: 5\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ] {
        let (site, told) = site(router(backend.proxy()));
        let mut client = site.connect();
        client.send(format!(
            "PUT /poll HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n{body}"
        ));
        rest(&site, 1);
        go.send(()).unwrap();
        assert_eq!(client.reply().text(), "news");
        assert_eq!(told_of(&told, "/poll"), [(200, 4)]);
    }
}

#[test]
fn a_client_chooses_no_file_in_any_part_of_an_exchange() {
    let (go, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let backend = Backend::start(move |_, conn| {
        let asked = conn.request().unwrap();
        // The first attempt of the poll ends without a response.
        if asked.head.starts_with("GET") && waits.lock().unwrap().recv_timeout(PATIENCE).is_ok() {
            return;
        }
        conn.send(REPLY);
    });
    let proxy = backend.proxy().on_internal(|_, _| "a file".into_response());
    let names = ["x-env"];
    let router = Router::new().fallback_answering(move |request| {
        let proxy = proxy.clone();
        let answer = request.with_headers(&names, [("x-env", b"prod")], |request| proxy.answer_after_body(request));
        answer.unwrap().around(move |request, go_on| {
            let answer = request.with_headers(&names, [("x-env", b"prod")], go_on);
            answer.unwrap()
        })
    });
    let (site, _) = site(router);
    let fields = "Host: t\r\nX-Accel-Mapping: /x=/protected\r\nX-Sendfile-Type: X-Accel-Redirect\r\nX-Env: test\r\n";
    let mut client = site.connect();
    client.send(format!("GET /poll HTTP/1.1\r\n{fields}\r\n"));
    rest(&site, 1);
    go.send(()).unwrap();
    eventually("there is a second attempt", || backend.accepted() == 2);
    drop(go);
    assert_eq!(client.reply().text(), "news");
    client.send(format!("PUT /poll HTTP/1.1\r\n{fields}Content-Length: 5\r\n\r\n"));
    rest(&site, 1);
    client.send("hello");
    assert_eq!(client.reply().text(), "news");
    let heads = backend.heads.lock().unwrap();
    assert_eq!(heads.len(), 3);
    for head in heads.iter().map(|head| head.to_ascii_lowercase()) {
        assert!(
            head.contains("x-env: prod\r\n") && !head.contains("x-env: test"),
            "{head}"
        );
        assert!(!head.contains("x-accel") && !head.contains("x-sendfile"), "{head}");
    }
}

#[test]
fn it_rests_behind_a_backend_with_tls() {
    let free = Arc::new(Event::manual());
    let waits = free.clone();
    let news = move |_: &mut Request<'_>| {
        waits.wait();
        "news"
    };
    let backend = tls::site(Router::new().get("/poll", news), |server| server);
    let upstream = tls_proxy::upstream(backend.addr).build().unwrap();
    let (site, _) = site(router(Proxy::new(upstream)));
    let mut client = site.connect();
    asks(&mut client, "/poll", "1.1");
    rest(&site, 1);
    free.set();
    assert_eq!(client.reply().text(), "news");
}

#[test]
fn a_slow_request_is_logged_once_while_it_rests() {
    let (backend, go) = directed(|conn, go| {
        go.recv_timeout(PATIENCE).unwrap();
        conn.send(REPLY);
    });
    let proxy = backend.proxy();
    let router = Router::new().fallback_answering(move |request| {
        request.set_slow(Duration::from_secs(1));
        // The log names what the client has asked for.
        request.retarget("/other").unwrap();
        proxy.answer_after_body(request)
    });
    let (site, _) = site(router);
    let mut client = site.connect();
    asks(&mut client, "/poll", "1.1");
    rest(&site, 1);
    eventually("it is logged", || !site.log.lock().unwrap().is_empty());
    go.send(()).unwrap();
    assert_eq!(client.reply().text(), "news");
    let log = site.log.lock().unwrap();
    assert!(
        log.len() == 1 && log[0].contains("GET /poll") && log[0].contains(" so far"),
        "{log:?}"
    );
}
