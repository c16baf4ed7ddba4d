//! Bodies through a proxy, in both directions and at the same time: slow clients, and clients that
//! leave.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::backend::{self, Backend, options, pattern, serve, serve_large};
use crate::common::{Client, PATIENCE, connect_narrowly, eventually, narrow_listener, site_with};
use osier_web::proxy::Proxy;
use osier_web::upstream::Upstream;
use osier_web::{IntoResponse, Router, Server};

const MIB: usize = 1 << 20;

/// A backend that returns the body while it arrives.
fn echo() -> Backend {
    Backend::start(|_, conn| {
        let Some(asked) = conn.head() else { return };
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut left = asked
            .header("content-length")
            .map(|length| length.parse::<usize>().unwrap());
        loop {
            let data = match &mut left {
                Some(0) => Vec::new(),
                Some(left) => {
                    let data = conn.take((*left).min(20_000)).expect("the body comes");
                    *left -= data.len();
                    data
                }
                None => {
                    let length = usize::from_str_radix(&conn.line().expect("a chunk"), 16).unwrap();
                    let data = conn.take(length).unwrap();
                    assert_eq!(conn.line().as_deref(), Some(""));
                    data
                }
            };
            if data.is_empty() {
                conn.send("0\r\n\r\n");
                return;
            }
            if !conn.send(format!("{:x}\r\n", data.len())) {
                return;
            }
            conn.send(&data);
            conn.send("\r\n");
        }
    })
}

#[test]
fn a_full_duplex_echo_of_64_mib_does_not_deadlock() {
    let backend = echo();
    let site = serve_large(backend.streaming_proxy());
    for chunked in [false, true] {
        let mut client = site.connect();
        let mut sending = client.stream.try_clone().unwrap();
        let body = Arc::new(pattern(64 * MIB));
        let sent = body.clone();
        let sender = thread::spawn(move || {
            match chunked {
                false => write!(
                    sending,
                    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                    sent.len()
                )
                .unwrap(),
                true => write!(
                    sending,
                    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                .unwrap(),
            }
            for piece in sent.chunks(100_000) {
                if chunked {
                    write!(sending, "{:x}\r\n", piece.len()).unwrap();
                }
                sending.write_all(piece).unwrap();
                if chunked {
                    sending.write_all(b"\r\n").unwrap();
                }
            }
            if chunked {
                sending.write_all(b"0\r\n\r\n").unwrap();
            }
        });
        let reply = client.reply();
        assert_eq!(reply.status, 200);
        assert!(
            reply.body == *body,
            "every byte in its place: {} bytes",
            reply.body.len()
        );
        sender.join().unwrap();
    }
}

#[test]
fn an_upload_streams_and_the_backend_sees_its_length_or_its_chunks() {
    let backend = Backend::start(|_, conn| {
        while let Some(asked) = conn.request() {
            let whole = asked.body == pattern(asked.body.len());
            let text = format!("{} {whole}", asked.body.len());
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
                text.len()
            ));
        }
    });
    let site = serve_large(backend.proxy());
    let mut client = site.connect();
    for length in [1, 10_000, 100_000, 5 * MIB] {
        client.send(format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
        client.send(pattern(length));
        assert_eq!(client.reply().text(), format!("{length} true"));
        client.send("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        for piece in pattern(length).chunks(7777) {
            client.send(format!("{:x}\r\n", piece.len()));
            client.send(piece);
            client.send("\r\n");
        }
        client.send("0\r\nX-Trailer: passed\r\n\r\n");
        assert_eq!(client.reply().text(), format!("{length} true"));
    }
    assert_eq!(backend.accepted(), 1, "uploads keep the connection");
    let heads = backend.heads.lock().unwrap();
    assert!(heads[0].ends_with("content-length: 1") && heads[1].ends_with("transfer-encoding: chunked"));
}

#[test]
fn a_request_reaches_the_backend_before_its_body_has_ended() {
    let (seen, first) = mpsc::channel();
    let backend = Backend::start(move |_, conn| {
        conn.head();
        seen.send(conn.take(5).unwrap()).unwrap();
        seen.send(conn.take(5).unwrap()).unwrap();
        conn.send("HTTP/1.1 204 No Content\r\n\r\n");
    });
    let site = serve(backend.streaming_proxy());
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    assert_eq!(first.recv_timeout(PATIENCE).unwrap(), b"hello");
    client.send("world");
    assert_eq!(first.recv_timeout(PATIENCE).unwrap(), b"world");
    assert_eq!(client.reply().status, 204);
}

#[test]
fn what_drips_is_passed_on_as_it_comes() {
    let (go, gone) = mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let backend = Backend::start(move |_, conn| {
        conn.request();
        conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        while gone.lock().unwrap().recv().is_ok() {
            conn.send("6\r\nevent\n\r\n");
        }
        conn.send("0\r\n\r\n");
    });
    let site = serve(backend.proxy());
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().0, 200);
    for _ in 0..3 {
        go.send(()).unwrap();
        assert_eq!(client.take(11), b"0006\r\nevent\n"[..11]);
        client.take(3);
    }
    drop(go);
    assert_eq!(client.take(5), b"0\r\n\r\n");
}

#[test]
fn an_answer_may_come_before_the_request_has_ended() {
    // A backend that does not want the body responds and closes.
    let backend = Backend::start(|_, conn| {
        conn.head();
        conn.send("HTTP/1.1 413 Too Large\r\nContent-Length: 9\r\nConnection: close\r\n\r\ntoo large");
    });
    let site = serve_large(backend.streaming_proxy());
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\nsome");
    let reply = client.reply();
    assert_eq!((reply.status, reply.text()), (413, "too large"));

    // One that reads on is given the rest.
    let (all, body) = mpsc::channel();
    let backend = Backend::start(move |_, conn| {
        conn.head();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        all.send(conn.take(8).unwrap()).unwrap();
        conn.send("world");
    });
    let site = serve(backend.streaming_proxy());
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nhalf");
    assert_eq!(client.head().0, 200);
    client.send("half");
    assert_eq!(body.recv_timeout(PATIENCE).unwrap(), b"halfhalf");
    assert_eq!(client.chunks(), b"helloworld");
    assert_eq!(site.log.lock().unwrap().len(), 0);
}

#[test]
fn continue_is_answered_here_once_there_is_a_backend() {
    let backend = Backend::start(|_, conn| {
        while let Some(asked) = conn.request() {
            assert_eq!(asked.header("expect"), None);
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{}",
                asked.body.len()
            ));
        }
    });
    let site = serve(backend.streaming_proxy());
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(client.head().0, 100);
    client.send("hello");
    assert_eq!(client.reply().text(), "5");

    let nobody = testkit::nobody();
    let site = serve(Proxy::with(
        backend::upstream(&[nobody]).build().unwrap(),
        options(|to| to.buffer = false),
    ));
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(client.head().0, 502, "and not before");
}

#[test]
fn a_download_of_64_mib_is_whole_in_every_framing() {
    let body = Arc::new(pattern(64 * MIB));
    for framing in ["length", "chunked", "until the end"] {
        let sent = body.clone();
        let backend = Backend::start(move |_, conn| {
            conn.request();
            match framing {
                "length" => conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", sent.len())),
                "chunked" => conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
                _ => conn.send("HTTP/1.1 200 OK\r\n\r\n"),
            };
            for piece in sent.chunks(123_456) {
                if framing == "chunked" {
                    conn.send(format!("{:x}\r\n", piece.len()));
                }
                conn.send(piece);
                if framing == "chunked" {
                    conn.send("\r\n");
                }
            }
            if framing == "chunked" {
                conn.send("0\r\n\r\n");
            }
        });
        let site = serve(backend.proxy());
        let reply = site.get("/");
        assert!(reply.body == *body, "{framing}: {} bytes", reply.body.len());
        assert_eq!(reply.header("content-length").is_some(), framing == "length");
        assert!(site.log.lock().unwrap().is_empty());
    }
}

/// Bytes that a client does not read stay at the backend beyond a bound. Bytes within the bound are
/// taken from the backend at once.
#[test]
fn a_slow_client_holds_the_backend_only_for_what_is_beyond_the_bound() {
    let backend = Backend::start(|_, conn| {
        while let Some(asked) = conn.request() {
            let length: usize = asked.head.split(['/', ' ']).nth(2).unwrap().parse().unwrap();
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"));
            conn.send(vec![b'x'; length]);
        }
    });
    let upstream = backend.upstream().build().unwrap();
    let site = serve(Proxy::with(
        upstream.clone(),
        options(|to| (to.read_ahead, to.read_ahead_file) = (2 * MIB, 0)),
    ));
    // A small receive buffer, so that the kernel does not take it all.
    let slow = |length: usize| {
        let mut client = Client::new(connect_narrowly(site.addr));
        client.send(format!("GET /{length} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client
    };
    let mut fits = slow(2 * MIB);
    eventually("the backend is free again, though nothing was read", || {
        let stats = &upstream.stats()[0];
        stats.leases == 0 && stats.kept == 1
    });
    let mut beyond = slow(64 * MIB);
    eventually("it is asked", || backend.heads.lock().unwrap().len() == 2);
    thread::sleep(Duration::from_millis(200)); // reading on has its chance to go wrong
    assert_eq!(
        upstream.stats()[0].leases,
        1,
        "64 MiB are not read for a client that does not"
    );
    assert_eq!(fits.reply().body.len(), 2 * MIB);
    assert_eq!(beyond.reply().body.len(), 64 * MIB);
    eventually("then it is free", || upstream.stats()[0].leases == 0);
}

#[test]
fn a_client_that_leaves_cancels_its_request() {
    let ended = Arc::new(AtomicUsize::new(0));
    let count = ended.clone();
    let backend = Backend::start(move |_, conn| {
        let asked = conn.head().unwrap();
        if asked.head.starts_with("GET /stream") {
            conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            while conn.send("4\r\nmore\r\n") {
                thread::sleep(Duration::from_millis(5)); // the pace of a stream
            }
        } else {
            conn.rest();
        }
        count.fetch_add(1, Ordering::SeqCst);
    });
    let upstream = backend.upstream().build().unwrap();
    let site = serve(Proxy::with(upstream.clone(), options(|to| to.buffer = false)));
    let requests = [
        "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nsome",
    ];
    for (number, request) in requests.iter().enumerate() {
        let mut client = site.connect();
        client.send(request);
        eventually("it is asked", || backend.heads.lock().unwrap().len() == number + 1);
        match number {
            0 => drop(client),
            _ => client.reset(),
        }
        eventually("the backend sees the end", || {
            ended.load(Ordering::SeqCst) == number + 1
        });
        eventually("the place is free", || upstream.stats()[0].leases == 0);
        assert_eq!(upstream.stats()[0].kept, 0);
        assert!(upstream.stats()[0].is_in, "and it is nobody's failure");
    }
}

#[test]
fn continue_waits_for_the_answers_before_it() {
    let backend = Backend::start(|_, conn| {
        while let Some(asked) = conn.request() {
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{}",
                asked.body.len()
            ));
        }
    });
    let router = Router::new()
        .get("/piece", |_: &mut osier_web::Request<'_>| vec![b'x'; 31 << 10])
        .fallback(backend.proxy().handler());
    // A few unread responses fill the buffer towards the client.
    let site = site_with(1, Server::new(router), |server| server.listener(narrow_listener()));
    assert_eq!(
        site.get("/warm").status,
        200,
        "a connection is kept, so that nothing waits before the body does"
    );
    for pieces in 1..12 {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(8 << 10).unwrap();
        socket.connect(&site.addr.into()).unwrap();
        let mut client = crate::common::Client::new(socket.into());
        let mut requests = "GET /piece HTTP/1.1\r\nHost: a\r\n\r\n".repeat(pieces);
        requests.push_str("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
        client.send(requests);
        thread::sleep(Duration::from_millis(50)); // until the answers fill the way to the client
        for _ in 0..pieces {
            assert_eq!(client.reply().body.len(), 31 << 10);
        }
        assert_eq!(client.head().0, 100, "after {pieces}");
        client.send("hello");
        assert_eq!(client.reply().text(), "5");
    }
    assert!(site.log.lock().unwrap().is_empty(), "{:?}", site.log);
}

/// A backend that sends the first `sent` bytes of the pattern, announces `length`, and ends the
/// connection if it sends fewer.
fn patterned(length: usize, sent: usize) -> Backend {
    let body = pattern(sent);
    Backend::start(move |_, conn| {
        while conn.request().is_some() {
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"));
            conn.send(&body);
            if sent < length {
                return;
            }
        }
    })
}

/// Bytes that the client takes at once are spliced and do not pass through the proxy's memory.
/// Other bytes are read ahead. When the client keeps up again, bytes are spliced again.
#[test]
fn a_client_that_is_slow_now_and_then_gets_every_byte_in_its_place() {
    let length = 24 * MIB + 4321;
    let backend = patterned(length, length);
    let upstream = backend.upstream().build().unwrap();
    let site = serve(Proxy::with(upstream.clone(), options(|to| to.read_ahead = MIB)));
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(32 << 10).unwrap();
    socket.connect(&site.addr.into()).unwrap();
    let mut client = Client::new(socket.into());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().0, 200);
    let (mut body, mut step) = (Vec::new(), 1);
    while body.len() < length {
        // Long enough that the transfer sometimes stops.
        thread::sleep(Duration::from_millis(if step % 3 == 0 { 30 } else { 0 }));
        body.extend(client.take((step * 123_457).min(length - body.len())));
        step += 1;
    }
    assert!(body == pattern(length), "every byte in its place");
    assert_eq!(
        client.get("/").body.len(),
        length,
        "and the next answer begins where it should"
    );
    eventually("the backend is free", || {
        let stats = &upstream.stats()[0];
        (stats.leases, stats.kept, stats.connects) == (0, 1, 1)
    });
}

/// Bytes that the backend has sent reach a client that was slow, even if the backend then pauses.
#[test]
fn nothing_is_held_back_while_the_backend_pauses() {
    const PART: usize = 6 * MIB;
    let backend = Backend::start(|_, conn| {
        conn.request();
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 2 * PART));
        conn.send(pattern(PART));
        // The rest comes when the client has the first part, and this one does not wait for it.
        conn.rest();
    });
    let site = serve(backend.proxy());
    // Chance decides which bytes come last.
    for _ in 0..15 {
        let mut client = Client::new(connect_narrowly(site.addr));
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.head().0, 200);
        assert!(client.take(PART) == pattern(PART), "every byte in its place");
    }
}

#[test]
fn what_a_client_that_has_left_did_not_take_is_in_nobody_else_s_answer() {
    let length = 16 * MIB;
    let backend = patterned(length, length);
    let upstream = backend.upstream().build().unwrap();
    let site = serve(Proxy::new(upstream.clone()));
    for taken in [0, 1, 100_000, 3 * MIB, 9 * MIB] {
        let mut leaving = site.connect();
        leaving.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        leaving.head();
        leaving.take(taken);
        leaving.reset();
        let reply = site.get("/");
        assert!(
            reply.body == pattern(length),
            "after {taken}: {} bytes",
            reply.body.len()
        );
    }
    eventually("their backends are free", || upstream.stats()[0].leases == 0);
}

#[test]
fn a_log_line_names_an_upstream_once_that_is_called_like_its_backend() {
    let backend = patterned(2 * MIB, MIB);
    let name = backend.addr.to_string();
    let upstream = Upstream::builder(&name).backends([name.parse().unwrap()]).build();
    let site = serve(Proxy::new(upstream.unwrap()));
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.head();
    client.rest();
    let line = format!("the response body of GET / failed: backend {name}: ");
    assert!(site.logged(&line), "{:?}", site.log);
}

#[test]
fn a_backend_that_breaks_off_a_long_answer_shows_the_client_that_something_is_missing() {
    let sent = 5 * MIB + 99;
    let backend = patterned(8 * MIB, sent);
    let upstream = backend.upstream().build().unwrap();
    let site = serve(Proxy::new(upstream.clone()));
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().0, 200);
    assert!(client.rest() == pattern(sent), "what has come, and then the end");
    assert!(site.logged("the response body of GET / failed"), "{:?}", site.log);
    eventually("nothing is held", || {
        let stats = &upstream.stats()[0];
        (stats.leases, stats.kept) == (0, 0)
    });
}

/// A client may go on sending behind the head of its response, and beyond its limit.
#[test]
fn a_request_that_fails_beside_its_response_is_no_failure_of_the_backend() {
    let backend = echo();
    let proxy = backend.streaming_proxy();
    let upstream = proxy.upstream().clone();
    let router = Router::new().fallback_answering(move |request| match request.body().limit(1000) {
        Ok(()) => proxy.answer_after_body(request),
        Err(error) => error.into_response().into(),
    });
    let site = crate::common::site(router);
    let mut client = site.connect();
    client.send("POST /long HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    assert_eq!((client.head().0, client.line()), (200, "0003".to_owned()));
    client.send(format!("3e8\r\n{}\r\n", "x".repeat(1000)));
    client.rest();
    let expected = "POST /long was refused with 413: the body is larger than the limit of 1000 bytes";
    eventually("it is logged", || {
        site.refused.lock().unwrap().join("\n").contains(expected)
    });
    assert_eq!(upstream.stats()[0].body_failures, 0, "{:?}", site.log);
}

/// An access log and the counters of traffic have the bytes of a download that ended early, too.
#[test]
fn a_response_that_is_cut_is_told_with_the_bytes_that_have_passed() {
    let backend = Backend::start(|_, conn| {
        let Some(asked) = conn.request() else { return };
        if asked.head.contains("/short") {
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
            conn.send(pattern(5000));
            return;
        }
        conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
        conn.send(pattern(1000));
        conn.is_ended();
    });
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let server = Server::new(backend::router(backend.proxy()));
    let server = server.on_request(move |served| {
        let (target, status) = (served.target().to_owned(), served.status().as_u16());
        tell.lock().unwrap().push((target, status, served.bytes()));
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = site.connect();
    client.send("GET /short HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((client.head().0, client.rest().len()), (200, 5000));
    let mut client = site.connect();
    client.send("GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((client.head().0, client.line()), (200, "03e8".to_owned()));
    client.take(1000);
    drop(client);
    let expected = [("/short".to_owned(), 200, 5000), ("/events".to_owned(), 200, 1000)];
    eventually("both are told", || *told.lock().unwrap() == expected);
}
