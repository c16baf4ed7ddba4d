//! Connections of a proxy to its backends: how long each step may take, when a request is sent again, which
//! connections are kept, and what becomes of one whose client leaves.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::backend::{self, Backend, options, serve, serve_large};
use crate::common::{Client, PATIENCE, arrived, eventually, site, site_with};
use osier_web::proxy::{Host, Proxy};
use osier_web::{Route, Router, Server, Timeouts};

#[test]
fn each_timeout_has_its_status() {
    let ms = Duration::from_millis;
    // The first byte.
    let backend = Backend::start(|_, conn| {
        conn.request();
        assert!(conn.is_ended(), "the proxy gives up");
    });
    let site = serve(backend.proxy_with(options(|to| to.first_byte = ms(100))));
    let reply = site.get("/x");
    assert_eq!((reply.status, reply.text()), (504, "504 Gateway Timeout\n"));
    assert!(
        site.logged("has not answered within 100ms ('timeouts.first_byte')"),
        "{:?}",
        site.log
    );
    eventually("its connection is closed", || backend.open() == 0);
    assert_eq!(backend.accepted(), 1, "no second attempt");

    // Between the bytes of a small body: nothing has been sent yet.
    let stalls = |length: usize| {
        Backend::start(move |_, conn| {
            conn.request();
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nhalf"));
            conn.is_ended();
        })
    };
    let backend = stalls(8);
    let site = serve(backend.proxy_with(options(|to| to.between = ms(100))));
    assert_eq!(site.get("/x").status, 504);
    let late = "no byte came for 100ms ('timeouts.between')";
    assert!(site.logged(late), "{:?}", site.log);
    // And of a large one: the client sees that something is missing.
    let backend = stalls(1_000_000);
    let proxy = backend.proxy_with(options(|to| to.between = ms(100)));
    let site = serve(proxy.clone());
    let mut client = site.connect();
    client.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().0, 200);
    assert_eq!(client.rest(), b"half");
    assert!(site.logged(late), "{:?}", site.log);
    let stats = &proxy.upstream().stats()[0];
    assert_eq!(
        (stats.body_failures, stats.response_failures, stats.is_in),
        (1, 0, true)
    );
}

#[test]
fn the_time_for_an_answer_begins_when_the_request_has_ended() {
    let backend = Backend::start(|_, conn| {
        if let Some(asked) = conn.request() {
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{}",
                asked.body.len()
            ));
            conn.is_ended();
        }
    });
    // The backend has to be faster.
    let limit = Duration::from_secs(1);
    let site = serve(backend.proxy_with(options(|to| to.first_byte = limit)));
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n");
    for _ in 0..9 {
        thread::sleep(limit / 6); // the pace of a slow client, longer than the limit in all
        client.send("x");
    }
    assert_eq!(client.reply().text(), "9", "longer than the limit in all");

    let silent = Backend::start(|_, conn| {
        conn.request();
        conn.is_ended();
    });
    let site = serve(silent.proxy_with(options(|to| to.first_byte = limit)));
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n");
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(50)); // the pace of a slow client, shorter than the limit
        client.send("x");
    }
    assert_eq!(client.reply().status, 504);
}

#[test]
fn a_client_that_stops_sending_is_told_and_the_backend_is_freed() {
    let backend = Backend::start(|_, conn| {
        conn.head();
        conn.rest();
    });
    let timeouts = Timeouts {
        body: Duration::from_millis(100),
        ..Timeouts::default()
    };
    let server = Server::new(Router::new().fallback(backend.proxy().handler())).timeouts(timeouts);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhal");
    assert_eq!(client.reply().status, 408);
    eventually("its connection is closed", || backend.open() == 0);

    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhal\r\nxyz\r\n");
    assert_eq!(client.reply().status, 400, "what is malformed later, too");
    eventually("its connection is closed", || backend.open() == 0);
}

/// A backend that closes each connection after the first response, at the moment of the second
/// request.
fn forgetful() -> Backend {
    Backend::start(|number, conn| {
        conn.request();
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}"));
        // Reads the second request and ends the connection without a response.
        conn.head();
    })
}

#[test]
fn what_is_safe_to_repeat_is_repeated_once_on_a_new_connection() {
    let backend = forgetful();
    let site = serve(backend.proxy());
    assert_eq!(site.get("/").text(), "0");
    assert_eq!(
        site.get("/").text(),
        "1",
        "the kept connection had ended, and nobody noticed"
    );
    for method in ["PUT", "DELETE"] {
        let reply = site.ask(&format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!(reply.status, 200, "{method}");
    }
    let heads = backend.heads.lock().unwrap().len();
    // Once taken by the backend, these may have been carried out.
    for request in [
        "POST / HTTP/1.1\r\nHost: a\r\n\r\n",
        "PATCH / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx",
        "BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        assert_eq!(site.get("/").status, 200);
        assert_eq!(site.ask(request).status, 502, "{request}");
    }
    let more = backend.heads.lock().unwrap().len() - heads;
    // Each of the three comes once, behind a GET; the first GET twice, as it finds a kept connection.
    assert_eq!(more, 7);
    assert!(site.logged("POST / failed: "));
}

#[test]
fn an_answer_that_has_begun_is_never_repeated_and_no_request_more_than_once() {
    let begun = Backend::answering_once("HTTP/1.1 200 OK\r\nX: ");
    let site = serve(begun.proxy());
    assert_eq!(site.get("/").status, 502);
    assert_eq!(begun.heads.lock().unwrap().len(), 1);

    let silent = Backend::answering_once("");
    let site = serve(silent.proxy());
    assert_eq!(site.get("/").status, 502);
    assert_eq!(silent.heads.lock().unwrap().len(), 2, "two attempts, no more");
}

#[test]
fn the_second_attempt_goes_to_another_backend() {
    let broken = Backend::answering_once("");
    let well = Backend::answering("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwell");
    let upstream = backend::upstream(&[broken.addr, well.addr])
        .failures(1000)
        .build()
        .unwrap();
    let site = serve(Proxy::new(upstream));
    for _ in 0..20 {
        assert_eq!(site.get("/").text(), "well");
    }
    let tried = broken.heads.lock().unwrap().len();
    assert!((5..=20).contains(&tried), "{tried}");
}

#[test]
fn kept_connections_are_shared_by_all_clients_and_requests_are_spread() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let backends = [Backend::answering(answer), Backend::answering(answer)];
    let upstream = backend::upstream(&[backends[0].addr, backends[1].addr])
        .build()
        .unwrap();
    let server = Server::new(Router::new().fallback(Proxy::new(upstream.clone()).handler()));
    let site = site_with(2, server, |server| server.bind("127.0.0.1:0"));
    let addr = site.addr;
    thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(move || {
                for _ in 0..5 {
                    let mut client = Client::new(std::net::TcpStream::connect(addr).unwrap());
                    for _ in 0..10 {
                        assert_eq!(client.get("/").text(), "ok");
                    }
                }
            });
        }
    });
    let asked = backends.each_ref().map(|backend| backend.heads.lock().unwrap().len());
    let connections: usize = backends.iter().map(Backend::accepted).sum();
    assert_eq!(asked[0] + asked[1], 400);
    // Not evenly: a backend that the machine lets wait has its leases longer, and gets fewer.
    assert!(asked.iter().all(|asked| *asked > 20), "{asked:?}");
    assert!(
        connections <= 24,
        "400 requests of 40 clients over {connections} connections"
    );
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let backend = Backend::start(|_, conn| {
        while let Some(asked) = conn.request() {
            let path = asked.head.split(' ').nth(1).unwrap().to_owned();
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}",
                path.len()
            ));
        }
    });
    let site = serve(backend.proxy());
    let mut client = site.connect();
    client.send(
        (0..20)
            .map(|i| format!("GET /{i} HTTP/1.1\r\nHost: a\r\n\r\n"))
            .collect::<String>(),
    );
    for i in 0..20 {
        assert_eq!(client.reply().text(), format!("/{i}"));
    }
    assert_eq!(backend.accepted(), 1);
}

#[test]
fn a_unix_socket_is_a_backend_too() {
    let dir = std::env::temp_dir().join(format!("osier-proxy-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("app.sock");
    let _ = std::fs::remove_file(&path);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let served = Arc::new(AtomicBool::new(false));
    let seen = served.clone();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            assert!(buffer[..count].starts_with(b"GET / HTTP/1.1\r\nhost: localhost\r\n"));
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nunix")
                .unwrap();
            seen.store(true, Ordering::SeqCst);
        }
    });
    let address = format!("unix:{}", path.display()).parse().unwrap();
    let upstream = osier_web::upstream::Upstream::builder("app")
        .backend(address)
        .build()
        .unwrap();
    let site = serve(Proxy::with(upstream.clone(), options(|to| to.host = Host::Backend)));
    assert_eq!(site.get("/").text(), "unix");
    assert_eq!(site.get("/").text(), "unix");
    assert_eq!(upstream.stats()[0].reused, 1);
    assert!(served.load(Ordering::SeqCst));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The end of a kept connection and the next request happen in one turn of the loop, so the proxy
/// does not know of the end. The request is sent again, whatever its method is, because the backend
/// took no byte of it.
#[test]
fn a_kept_unix_connection_that_ends_unheard_costs_no_request() {
    let path = std::env::temp_dir().join(format!("osier-unheard-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let close = Arc::new(Barrier::new(2));
    let closed = close.clone();
    thread::spawn(move || {
        for turn in 1.. {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 4096];
            while let Ok(1..) = stream.read(&mut buffer) {
                // The response must be waited for, so that the loop could notice the end.
                thread::sleep(Duration::from_millis(50));
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{turn}").unwrap();
                if turn == 1 {
                    close.wait();
                    break;
                }
            }
            drop(stream);
            close.wait();
        }
    });
    let address = format!("unix:{}", path.display()).parse().unwrap();
    let upstream = osier_web::upstream::Upstream::builder("app").backend(address);
    let proxy = Proxy::new(upstream.build().unwrap());
    let site = site(Router::new().fallback(move |request: &mut osier_web::Request<'_>| {
        // The thread is held, not the fiber.
        for _ in 0..if request.method() == "POST" { 2 } else { 0 } {
            closed.wait();
        }
        proxy.answer(request)
    }));
    let mut client = site.connect();
    assert_eq!(client.get("/").text(), "1");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    assert_eq!(client.reply().text(), "2");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_route_may_let_the_backend_finish_for_a_client_that_has_left() {
    let (ended, end) = mpsc::channel();
    let backend = Backend::start(move |_, conn| {
        conn.request();
        // Until the server has seen that the client has left, of which it tells nobody.
        thread::sleep(Duration::from_millis(100));
        ended
            .send(conn.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
            .unwrap();
    });
    let upstream = backend.upstream().build().unwrap();
    let route = Route::new()
        .post(Proxy::new(upstream.clone()).handler())
        .finish_when_gone();
    let site = site(Router::new().route("/", route));
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("it is asked", || backend.heads.lock().unwrap().len() == 1);
    client.reset();
    assert!(end.recv_timeout(PATIENCE).unwrap());
    eventually("the answer is read, and the connection good for another", || {
        // Until it is seen that the backend has closed it since.
        upstream.stats()[0].kept + upstream.stats()[0].stale == 1
    });
}

#[test]
fn a_connection_with_half_a_request_on_it_is_not_kept() {
    // Responds without reading, ends the response when the proxy has stopped sending, and only then
    // reads the rest.
    let (next, rest) = mpsc::channel();
    let backend = Backend::start(move |number, conn| {
        if number > 0 {
            while conn.request().is_some() {
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            }
            return;
        }
        conn.head();
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
        thread::sleep(Duration::from_millis(600)); // longer than the limit for the first byte
        conn.send("0\r\n\r\n");
        next.send(conn.rest()).unwrap();
    });
    let site = serve_large(backend.proxy_with(options(|to| to.first_byte = Duration::from_millis(150))));
    let mut client = site.connect();
    // More than the sockets hold.
    let body = vec![b'x'; 32 << 20];
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    let mut sending = client.stream.try_clone().unwrap();
    let sender = thread::spawn(move || _ = sending.write_all(&body));
    assert_eq!(client.reply().text(), "a");
    // On a busy machine a new connection may time out once. On the connection of the first request,
    // the second would never get a response.
    eventually("the next request is answered", || {
        let reply = site.get("/next");
        (reply.status, reply.text()) == (200, "ok")
    });
    drop(client);
    let rest = rest.recv_timeout(PATIENCE).unwrap();
    assert!(
        rest.iter().all(|&byte| byte == b'x'),
        "the next request was taken for a body"
    );
    sender.join().unwrap();
}

/// The worker is busy while a connection arrives that needs the place of an idle one, and then a request on that one.
#[test]
fn a_request_that_arrives_on_a_connection_as_that_is_closed_for_another_is_served() {
    let backend = Backend::start(|_, conn| {
        while conn.request().is_some() {
            // Long enough for the proxy to see what its client's socket says.
            thread::sleep(Duration::from_millis(100));
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nproxied");
        }
    });
    let (busy, wait) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (is_busy, goes_on) = (busy.clone(), wait.clone());
    let router = backend::router(backend.proxy()).get("/busy", move |_| {
        is_busy.wait();
        goes_on.wait();
        "done"
    });
    let server = Server::new(router).max_connections(2);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut idle = site.connect();
    assert_eq!(idle.get("/").text(), "proxied");
    let mut other = site.connect();
    other.send("GET /busy HTTP/1.1\r\nHost: t\r\n\r\n");
    busy.wait();
    let mut new = site.connect();
    new.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    arrived(&new.stream);
    idle.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    arrived(&idle.stream);
    wait.wait();
    assert_eq!(other.reply().text(), "done");
    assert_eq!(new.reply().text(), "proxied");
    assert_eq!(idle.reply().text(), "proxied");
}
