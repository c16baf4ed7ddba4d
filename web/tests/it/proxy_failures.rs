//! Backends that hang up, give no response, or respond twice, behind a proxy.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::common::backend::{self, Backend, router, serve, serve_large};
use crate::common::{PATIENCE, Panicking, eventually, post_panicking, site, taken};
use osier_web::proxy::Proxy;
use osier_web::{Request, Router};

#[test]
fn requests_that_make_backends_hang_up_take_no_backend_out() {
    let hangs_up = || {
        Backend::start(|_, conn| {
            while let Some(asked) = conn.request() {
                if asked.head.starts_with("GET /poison") {
                    return;
                }
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwell");
            }
        })
    };
    let backends = [hangs_up(), hangs_up()];
    // A backend that is silent for a second is out, so a slow run shows nothing.
    let mut quick = 0;
    for _ in 0..20 {
        let upstream = backend::upstream(&[backends[0].addr, backends[1].addr])
            .backoff(PATIENCE, PATIENCE)
            .build()
            .unwrap();
        let site = serve(Proxy::new(upstream.clone()));
        let begun = Instant::now();
        for _ in 0..4 {
            for _ in 0..5 {
                assert_eq!(site.get("/poison").status, 502);
            }
            assert_eq!(site.get("/").status, 200);
        }
        let are_in = upstream.stats().iter().all(|backend| backend.is_in);
        if begun.elapsed() < Duration::from_millis(900) {
            assert!(are_in);
            quick += 1;
        }
    }
    if quick == 0 {
        testkit::skip("24 requests take longer than a second on this machine");
    }
}

#[test]
fn a_backend_that_gives_no_response_for_a_second_is_out_but_not_the_last_one() {
    let silent = Backend::answering_once("");
    let well = Backend::answering("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwell");
    let upstream = |addrs: &[SocketAddr]| {
        let upstream = backend::upstream(addrs).backoff(PATIENCE, PATIENCE);
        upstream.build().unwrap()
    };
    let both = upstream(&[silent.addr, well.addr]);
    let site = serve(Proxy::new(both.clone()));
    eventually("it is out", || {
        assert_eq!(site.get("/").text(), "well", "the second attempt helps");
        !both.stats()[0].is_in
    });
    let tried = silent.heads.lock().unwrap().len();
    assert_eq!(site.get("/").text(), "well");
    assert_eq!(silent.heads.lock().unwrap().len(), tried);

    let site = serve(Proxy::new(upstream(&[silent.addr])));
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(1200) {
        assert_eq!(site.get("/").status, 502);
    }
    assert!(!site.logged("is out"));
}

#[test]
fn an_idempotent_request_takes_its_body_to_another_backend() {
    let broken = Backend::answering_once("");
    let echo = Backend::start(|_, conn| {
        while let Some(asked) = conn.request() {
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                asked.body.len()
            ));
            conn.send(asked.body);
        }
    });
    let upstream = backend::upstream(&[broken.addr, echo.addr]).failures(1000).build();
    let site = serve_large(Proxy::new(upstream.unwrap()));
    // In memory, in a file, and in more than one part of a file.
    for length in [1, 1000, 100_000, 1_000_000, 2_500_000] {
        let body: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
        for framing in [format!("Content-Length: {length}"), "Transfer-Encoding: chunked".into()] {
            for method in ["PUT", "DELETE", "PUT", "DELETE"] {
                let mut client = site.connect();
                client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n"));
                if framing.contains("chunked") {
                    client.send(format!("{length:x}\r\n"));
                    client.send(&body);
                    client.send("\r\n0\r\n\r\n");
                } else {
                    client.send(&body);
                }
                let reply = client.reply();
                assert_eq!(reply.status, 200, "{method} of {length} bytes, {framing}");
                assert!(reply.body == body, "{method} of {length} bytes, {framing}");
            }
        }
    }
    assert!(broken.heads.lock().unwrap().len() > 10, "it was asked too");
}

#[test]
fn the_whole_body_is_wanted_before_a_backend_is_asked() {
    let backend = Backend::answering("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwell");
    let site = serve(backend.proxy());
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(client.head().0, 100);
    client.send("hell");
    taken(&client.stream);
    assert_eq!(backend.accepted(), 0);
    client.send("o");
    assert_eq!(client.reply().text(), "well");
    // What is refused is not waited for.
    let too_long = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1000000000\r\n\r\n";
    assert_eq!(site.ask(too_long).status, 413);
    // A client that leaves half way never reaches the backend.
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell");
    client.finish_sending();
    assert_eq!(client.head().0, 400);
    assert_eq!(backend.accepted(), 1);
}

/// A late second response comes while the worker's thread is busy, so its poller has not reported it.
#[test]
fn a_late_second_response_reaches_nobody() {
    let (say, said) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (may_say, has_said) = (say.clone(), said.clone());
    let backend = Backend::start(move |number, conn| {
        for turn in 0.. {
            if conn.request().is_none() {
                return;
            }
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}"));
            if (number, turn) == (0, 2) {
                may_say.wait();
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret");
                has_said.wait();
                conn.rest();
            }
        }
    });
    let proxy = backend.proxy();
    let site = site(Router::new().fallback(move |request: &mut Request<'_>| {
        if request.path() == "/late" {
            say.wait();
            said.wait();
        }
        proxy.answer(request)
    }));
    let mut client = site.connect();
    for _ in 0..3 {
        assert_eq!(client.get("/").text(), "0");
    }
    assert_eq!(client.get("/late").text(), "1");
    assert_eq!(backend.accepted(), 2);
}

/// A backend that dies under uploads: each client gets a status that it can read.
#[test]
fn a_backend_that_dies_under_an_upload_is_a_502_that_every_client_reads() {
    let backend = Backend::start(|number, conn| {
        let length: usize = conn.head().unwrap().header("content-length").unwrap().parse().unwrap();
        let _ = conn.take((number * 7919 % 200_000).min(length));
        conn.reset();
    });
    for is_buffered in [true, false] {
        let options = backend::options(|to| to.buffer = is_buffered);
        let site = serve(backend.proxy_with(options));
        for turn in 0..100 {
            let length = 1 + turn * 10_007;
            let mut client = site.connect();
            client.send(format!(
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
            ));
            assert!(
                client.try_send(vec![b'x'; length]),
                "{length} bytes, buffer = {is_buffered}"
            );
            assert_eq!(client.reply().status, 502, "{length} bytes, buffer = {is_buffered}");
        }
    }
}

/// The time for a response does not run while the request is being sent.
#[test]
fn a_panic_while_the_request_is_sent_ends_the_wait_for_the_response() {
    let backend = Backend::start(|_, conn| {
        conn.head();
        conn.rest();
    });
    let handler = router(backend.streaming_proxy());
    let (reply, log) = post_panicking(handler, "/", Panicking::AtFirstRead);
    assert_eq!(reply.status(), 500);
    assert_eq!(
        log,
        ["the handler of POST / panicked: the body's reader panics on purpose"]
    );
}

#[test]
fn a_panic_while_the_request_is_sent_ends_a_response_that_has_begun() {
    let backend = Backend::start(|_, conn| {
        conn.head();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthe beginning");
        conn.rest();
    });
    let handler = router(backend.streaming_proxy());
    let (silent, _end) = osier::net::UnixStream::pair().unwrap();
    let (reply, log) = post_panicking(handler, "/", Panicking::AtSecondRead(silent));
    assert!(!reply.is_whole(), "{reply:?}");
    assert_eq!(
        log,
        ["the handler of POST / panicked: the body's reader panics on purpose"]
    );
}
