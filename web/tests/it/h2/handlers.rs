//! Handlers that know nothing of HTTP/2: files, compression, events, WebSockets, the proxy.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use osier::memory::{self, Account};
use osier_http::h2::{ErrorCode, Limits, Outgoing, StreamId};
use osier_web::compress::Compress;
use osier_web::files::Files;
use osier_web::{Http2Limits, Protocol, Request, Response, Route, Router, Server, fastcgi, sse, wrap, ws};
use testkit::Folder;

use super::client::Client;
use super::router;
use crate::common::backend::{Backend, pattern, serve, serve_large};
use crate::common::folder::{decoded, prose};
use crate::common::{PATIENCE, connect_narrowly, eventually, site, site_with};
use crate::masked;
use crate::memory::in_a_small_child;
use crate::proxy_tunnel::telling;
use crate::responder::{self, Responder};

#[test]
fn files_are_sent_whole_in_ranges_and_compressed() {
    let folder = Folder::new();
    let text = prose(300_000);
    folder.write("a.txt", &text);
    folder.write("empty", b"");
    let site = site(Router::new().fallback(Files::open(folder.path()).unwrap().handler()));
    let mut client = Client::connect(site.addr);
    let mut ask = |path: &str, fields: &[(&str, &[u8])]| {
        let stream = client.begin("GET", path, fields, true);
        client.reply(stream)
    };
    let whole = ask("/a.txt", &[]);
    assert!(whole.status == 200 && whole.body == text);
    assert_eq!(whole.header("content-length"), Some("300000"));
    assert_eq!((ask("/empty", &[]).body.len(), ask("/none", &[]).status), (0, 404));
    let part = ask("/a.txt", &[("range", b"bytes=100000-299999")]);
    assert!(part.status == 206 && part.body == text[100_000..]);
    let parts = ask("/a.txt", &[("range", b"bytes=0-9,200-209")]);
    assert_eq!(parts.status, 206);
    assert!(parts.body.windows(10).any(|window| window == &text[200..210]));
    let etag = whole.header("etag").unwrap().as_bytes();
    assert_eq!(ask("/a.txt", &[("if-none-match", etag)]).status, 304);
    let encoded = ask("/a.txt", &[("accept-encoding", b"br")]);
    assert!(decoded(encoded.header("content-encoding"), &encoded.body) == text);
    let stream = client.begin("HEAD", "/a.txt", &[], true);
    let head = client.reply(stream);
    assert_eq!((head.header("content-length"), head.body.len()), (Some("300000"), 0));
}

#[test]
fn a_slow_reader_of_a_file_gets_all_of_it() {
    let folder = Folder::new();
    let text = prose(2_000_000);
    folder.write("a.txt", &text);
    let site = site(
        Router::new()
            .get("/", |_| "hello")
            .fallback(Files::open(folder.path()).unwrap().handler()),
    );
    let mut client = Client::connect(site.addr);
    let stream = client.begin("GET", "/a.txt", &[], true);
    client.stalled.push(stream);
    let mut given = 0;
    while !client.replies[&stream].is_over() {
        let held = client.replies[&stream].body.len() - given;
        if held < 32_000 {
            client.pump();
            continue;
        }
        assert_eq!(client.get("/").text(), "hello");
        client.machine.consumed(stream, held);
        given += held;
    }
    assert!(client.replies[&stream].body == text);
}

#[test]
fn the_observer_sees_streams_as_requests() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let server = Server::new(router()).on_request(move |served| {
        let line = format!(
            "{} {} {} {} {} {}",
            served.method(),
            served.target(),
            served.protocol(),
            served.status().as_u16(),
            served.bytes(),
            served.received()
        );
        log.lock().unwrap().push(line);
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = Client::connect(site.addr);
    client.get("/?a=1");
    client.send("POST", "/count", &[], b"12345");
    client.get("/stream/2");
    client.send("POST", "/echo", &[], b"abc");
    let expected = [
        "GET /?a=1 HTTP/2.0 200 5 0",
        "POST /count HTTP/2.0 200 1 5",
        "GET /stream/2 HTTP/2.0 200 16 0",
        "POST /echo HTTP/2.0 200 3 3",
    ];
    eventually("four lines", || seen.lock().unwrap().len() == 4);
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn a_client_that_waits_for_100_continue_gets_it() {
    let site = site(router());
    let mut client = Client::connect(site.addr);
    let fields = [("expect", &b"100-continue"[..]), ("content-length", b"5")];
    let stream = client.begin("POST", "/count", &fields, false);
    client.until("100", |client| client.replies[&stream].interim == [100]);
    client.body(stream, b"12345", true);
    assert_eq!(client.reply(stream).text(), "5");
}

#[test]
fn responses_are_compressed_on_the_way() {
    let router = router().get("/prose", |_| String::from_utf8(prose(50_000)).unwrap());
    let site = site(router.wrap(Compress::new().wrap()));
    let mut client = Client::connect(site.addr);
    let stream = client.begin("GET", "/prose", &[("accept-encoding", b"gzip")], true);
    let reply = client.reply(stream);
    assert_eq!(reply.header("content-encoding"), Some("gzip"));
    assert!(reply.body.len() < 25_000 && decoded(Some("gzip"), &reply.body) == prose(50_000));
}

#[test]
fn events_arrive_at_once_and_end_with_the_stream() {
    let (ended, end) = std::sync::mpsc::channel();
    let router = router().get("/events", move |_: &mut Request<'_>| {
        let ended = ended.clone();
        sse::stream(move |sink| {
            sink.send(sse::Event::new("first"))?;
            let slept = sink.sleep(Duration::from_secs(3600));
            ended.send(slept.is_err()).unwrap();
            slept
        })
    });
    let site = site(router);
    let mut client = Client::connect(site.addr);
    let stream = client.begin("GET", "/events", &[], true);
    client.until("an event", |client| client.replies[&stream].body == b"data: first\n\n");
    assert_eq!(
        client.replies[&stream].header("content-type"),
        Some("text/event-stream")
    );
    assert_eq!(client.get("/").text(), "hello");
    client.machine.reset(stream, ErrorCode::CANCEL);
    client.flush();
    assert_eq!(end.recv_timeout(PATIENCE), Ok(true));
    // A shutdown of the server ends the others.
    let stream = client.begin("GET", "/events", &[], true);
    client.until("an event", |client| !client.replies[&stream].body.is_empty());
    site.stop.shutdown();
    client.until("the end", |client| client.replies[&stream].is_over());
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0));
}

#[test]
fn a_response_as_to_a_get_does_not_accept_a_websocket() {
    let site = site(router());
    let mut client = Client::connect(site.addr);
    let stream = open_websocket(&mut client, "/");
    let reply = client.reply(stream);
    assert_eq!((reply.status, reply.text()), (501, ""));
    let stream = open_websocket(&mut client, "/none");
    assert_eq!(client.reply(stream).status, 404);
    assert_eq!(client.get("/").text(), "hello");
}

/// CONNECT without a protocol is for proxies, and an extended one may end at once, be reset, or come with bytes of any kind.
#[test]
fn connect_requests_of_every_kind_leave_the_connection_as_it_is() {
    let router = router().get("/ws", |request: &mut Request<'_>| {
        ws::upgrade(request, |socket| {
            while socket.read()?.is_some() {}
            Ok(())
        })
    });
    let site = site(router);
    let mut client = Client::connect(site.addr);
    let tunnel = Outgoing {
        method: "CONNECT",
        scheme: "http",
        authority: "test:1",
        path: "",
        protocol: None,
    };
    for bytes in [&b""[..], b"bytes of a tunnel"] {
        let stream = client.open(&tunnel, &[], false);
        client.body(stream, bytes, false);
        assert_eq!(client.reply(stream).status, 501);
    }
    for end in [
        // The client ends its direction, sends what is no WebSocket, or leaves.
        |client: &mut Client, stream| client.body(stream, b"", true),
        |client: &mut Client, stream| client.body(stream, &[0xff; 20_000], true),
        |client: &mut Client, stream| client.machine.reset(stream, ErrorCode::CANCEL),
    ] {
        for path in ["/ws", "/", "/none"] {
            let stream = open_websocket(&mut client, path);
            end(&mut client, stream);
            client.until("the end", |client| {
                client.replies[&stream].is_over() || client.machine.is_reset(stream)
            });
            client.machine.finish(stream);
            assert_eq!(client.get("/").text(), "hello");
        }
    }
    let stream = open_protocol(&mut client, "/ws", "h2c");
    assert_eq!(client.reply(stream).status, 400);
    drop(client);
    eventually("no stream is left", || site.connections.count() == 0);
}

#[test]
fn a_websocket_in_a_stream_is_a_connection_of_its_client() {
    let server = Server::new(router().get("/ws", |request: &mut Request<'_>| {
        ws::upgrade(request, |socket| socket.send("hello"))
    }))
    .max_connections_per_client(2);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = Client::connect(site.addr);
    let stream = open_websocket(&mut client, "/ws");
    client.until("a message", |client| !client.replies[&stream].body.is_empty());
    let mut second = Client::connect(site.addr);
    second.until_closed();
    client.body(stream, &masked(0x88, &[]), true);
    client.until("the end", |client| client.replies[&stream].is_over());
    eventually("the pair of sockets is closed", || site.connections.count() == 1);
    let mut second = Client::connect(site.addr);
    assert_eq!(second.get("/").text(), "hello");
    // The end of the WebSocket has freed no more than its own place.
    let mut third = Client::connect(site.addr);
    third.until_closed();
    assert_eq!(client.get("/").text(), "hello");
}

#[test]
fn a_websocket_in_a_stream_beyond_the_limit_is_logged() {
    let server = Server::new(router().get("/ws", |request: &mut Request<'_>| {
        ws::upgrade(request, |socket| socket.send("hello"))
    }))
    .max_connections_per_client(1);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = Client::connect(site.addr);
    let stream = open_websocket(&mut client, "/ws");
    client.until("the reset", |client| client.machine.is_reset(stream));
    eventually("it is said", || site.logged("1 connections of one client, 127.0.0.1"));
}

#[test]
fn a_websocket_in_the_last_stream_is_logged() {
    let router = router().get("/ws", |request: &mut Request<'_>| {
        ws::upgrade(request, |socket| socket.read().map(drop))
    });
    let server = Server::new(router).http2_limits(Http2Limits {
        max_streams: 1,
        max_tunnels: 1,
        ..Http2Limits::default()
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = Client::connect(site.addr);
    let mut open = || {
        let stream = open_websocket(&mut client, "/ws");
        client.until("the response", |client| {
            client.replies.get(&stream).is_some_and(|reply| reply.status == 200)
        });
    };
    let is_said = || site.logged("further requests on it wait ('http2.max_streams', 'http2.max_tunnels')");
    open();
    assert!(!is_said());
    open();
    eventually("it is said", is_said);
}

#[test]
fn websockets_leave_the_streams_of_a_page_to_its_requests() {
    let router = router().get("/ws", |request: &mut Request<'_>| {
        ws::upgrade(request, |socket| socket.read().map(drop))
    });
    let server = Server::new(router).http2_limits(Http2Limits {
        max_streams: 2,
        ..Http2Limits::default()
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = Client::connect(site.addr);
    for _ in 0..20 {
        let stream = open_websocket(&mut client, "/ws");
        client.until("the response", |client| {
            client.replies.get(&stream).is_some_and(|reply| reply.status == 200)
        });
    }
    client.until("the room", |client| client.machine.slots() == 2);
    assert_eq!(client.get("/").text(), "hello");
}

#[test]
fn a_websocket_in_a_stream_counts_as_one_over_http2() {
    let site = site(router().get("/ws", |request: &mut Request<'_>| {
        ws::upgrade(request, |socket| socket.read().map(drop))
    }));
    let mut client = Client::connect(site.addr);
    let stream = open_websocket(&mut client, "/ws");
    client.until("the response", |client| {
        client.replies.get(&stream).is_some_and(|reply| reply.status == 200)
    });
    eventually("the WebSocket counts", || site.connections.count() == 2);
    let of = |protocol| site.connections.of_protocol(protocol);
    assert_eq!((of(Protocol::H2c), of(Protocol::Http1)), (2, 0));
    drop(client);
    eventually("nothing is left", || site.connections.count() + of(Protocol::H2c) == 0);
}

#[test]
fn a_body_whose_client_leaves_is_told_with_the_bytes_that_have_passed() {
    let (tell, told) = mpsc::channel();
    let streamed =
        |_: &mut Request<'_>| Response::stream(|out| (0..20).try_for_each(|_| out.write_all(&[b'x'; 40_000])));
    let router = router().get("/streamed", streamed);
    let server = Server::new(router).on_request(move |served| _ = tell.send(served.bytes()));
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    for path in ["/big/1000000", "/streamed"] {
        let mut client = Client::connect(site.addr);
        let stream = client.begin("GET", path, &[], true);
        client.stalled.push(stream);
        client.until("the window is used up", |client| {
            client.replies[&stream].body.len() == 65_535
        });
        drop(client);
        // The piece that waits for the window does not count.
        let passed = told.recv_timeout(PATIENCE).expect("a report");
        assert!((65_535 - (16 << 10)..=65_535).contains(&passed), "{path}: {passed}");
    }
}

fn open_websocket(client: &mut Client, path: &str) -> StreamId {
    open_protocol(client, path, "websocket")
}

fn open_protocol(client: &mut Client, path: &str, protocol: &str) -> StreamId {
    let target = Outgoing {
        method: "CONNECT",
        scheme: "http",
        authority: "test",
        path,
        protocol: Some(protocol),
    };
    client.until("the settings", |client| client.machine.takes_extended_connect());
    client.open(&target, &[("sec-websocket-version", b"13")], false)
}

struct Echo;

impl ws::Callbacks for Echo {
    fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
        sender.send(message);
    }
}

#[test]
fn a_tunnel_in_a_stream_says_so_if_its_connection_is_closed_because_memory_is_short() {
    let name = "h2::handlers::a_tunnel_in_a_stream_says_so_if_its_connection_is_closed_because_memory_is_short";
    in_a_small_child(name, || {
        let backend = Backend::start(|_, conn| {
            conn.head().expect("a request");
            conn.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
            while conn.send([b'x'; 1 << 16]) {}
        });
        let (server, told) = telling(Server::new(Router::new().fallback(backend.proxy().handler())));
        let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
        // The socket is full before the windows are.
        let limits = Limits {
            stream_window: 16 << 20,
            connection_window: 16 << 20,
            ..Limits::default()
        };
        let mut client = Client::over(connect_narrowly(site.addr), &limits);
        let stream = open_websocket(&mut client, "/");
        client.until("200", |client| client.replies[&stream].status == 200);
        let all = Account::named("greedy").charge(memory::limit().expect("the child has one"));
        assert_eq!(told.recv_timeout(PATIENCE), Ok("evicted"));
        drop((client, all));
    });
}

/// The wait for the response of the backend holds no fiber after a second.
#[test]
fn a_websocket_in_a_stream_goes_on_although_its_backend_takes_its_time() {
    let backend = Backend::start(|_, conn| {
        conn.head().expect("a request");
        std::thread::sleep(Duration::from_millis(1500));
        conn.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
        conn.take(11).expect("a message");
        conn.send(b"\x81\x05hello");
        conn.head();
    });
    let site = site(Router::new().fallback(backend.proxy().handler()));
    let mut client = Client::connect(site.addr);
    let stream = open_websocket(&mut client, "/");
    client.until("200", |client| client.replies[&stream].status == 200);
    client.body(stream, &masked(0x81, b"hello"), false);
    client.until("an answer", |client| {
        assert!(!client.machine.is_reset(stream), "the stream is reset");
        client.replies[&stream].body.ends_with(b"\x81\x05hello")
    });
}

#[test]
fn websockets_of_both_styles_run_in_streams() {
    let router = router()
        .get("/fiber", |request: &mut Request<'_>| {
            ws::upgrade(request, |socket| {
                while let Some(message) = socket.read()? {
                    socket.send(message)?;
                }
                Ok(())
            })
        })
        .get("/dormant", |request: &mut Request<'_>| {
            ws::Options::default().upgrade_dormant(request, Echo)
        });
    let site = site(router);
    let mut client = Client::connect(site.addr);
    let streams = ["/fiber", "/dormant"].map(|path| open_websocket(&mut client, path));
    for stream in streams {
        client.until("200", |client| client.replies[&stream].status == 200);
        assert_eq!(client.replies[&stream].header("upgrade"), None);
        client.body(stream, &masked(0x81, b"hello"), false);
        client.until("an echo", |client| client.replies[&stream].body == b"\x81\x05hello");
        let long = pattern(70_000);
        client.body(stream, &masked(0x82, &long), false);
        client.until("a long echo", |client| {
            client.replies[&stream].body.len() == 7 + 10 + 70_000
        });
        assert!(client.replies[&stream].body.ends_with(&long));
    }
    assert_eq!(client.get("/").text(), "hello");
    for stream in streams {
        client.body(stream, &masked(0x88, &1000_u16.to_be_bytes()), true);
        let reply = client.reply(stream);
        assert!(
            reply.ended && reply.body.ends_with(b"\x88\x02\x03\xe8"),
            "{:?}",
            reply.reset
        );
    }
    // A request that is no handshake, and a handler that knows no upgrade.
    assert_eq!(client.get("/fiber").status, 400);
    let stream = open_websocket(&mut client, "/");
    client.until("its end", |client| client.replies[&stream].is_over());
    assert_eq!(client.replies[&stream].status, 501);
    eventually("the pairs of sockets are closed", || site.connections.count() == 1);
}

/// The bytes that the handler's code takes at once need no fiber of their own. Four start for a message and its answer: those of the
/// connection, of the handler's code, of the other direction, and of the connection's output.
#[test]
fn a_message_in_a_stream_starts_no_fiber_on_its_way_to_the_handler() {
    const MESSAGES: usize = 50;
    let router = router()
        .get("/dormant", |request: &mut Request<'_>| {
            ws::Options::default().upgrade_dormant(request, Echo)
        })
        .get("/started", |_| {
            let worker = &osier::inspect::metrics().expect("on a worker").workers[0];
            worker.fibers_started.to_string()
        });
    let site = site(router);
    let mut client = Client::connect(site.addr);
    let started = |client: &mut Client| client.get("/started").text().parse::<usize>().unwrap();
    let stream = open_websocket(&mut client, "/dormant");
    let exchange = |client: &mut Client, count: usize| {
        client.body(stream, &masked(0x81, b"hello"), false);
        client.until("an echo", |client| client.replies[&stream].body.len() == count * 7);
    };
    exchange(&mut client, 1);
    let before = started(&mut client);
    (2..MESSAGES + 2).for_each(|count| exchange(&mut client, count));
    let after = started(&mut client) - before;
    assert!(after < MESSAGES * 9 / 2, "{after} fibers for {MESSAGES} messages");
}

/// More than a pair of sockets holds comes before the handler's code reads.
#[test]
fn bytes_that_the_handler_does_not_take_at_once_keep_their_order() {
    const LENGTH: usize = 2 << 20;
    let router = router().get("/late", |_| {
        Response::upgrade("websocket", |io| {
            // Nothing tells that the pair is full. If it is not, the test shows less.
            osier::sleep(Duration::from_millis(200));
            let mut received = vec![0; LENGTH];
            let all = io.read_exact(&mut received).is_ok() && received == pattern(LENGTH);
            let _ = io.write_all(if all { b"all" } else { b"not all" });
        })
    });
    let site = site(router);
    let mut client = Client::connect(site.addr);
    let stream = open_websocket(&mut client, "/late");
    client.body(stream, &pattern(LENGTH), false);
    let reply = client.reply(stream);
    assert_eq!(reply.body, b"all", "{:?}", reply.reset);
}

#[test]
fn an_idle_websocket_in_a_stream_holds_no_stack() {
    const SOCKETS: usize = 20;
    let router = router()
        .get("/dormant", |request: &mut Request<'_>| {
            ws::Options::default().upgrade_dormant(request, Echo)
        })
        .get("/at-rest", |_| {
            let worker = &osier::inspect::metrics().expect("on a worker").workers[0];
            format!("{} {}", worker.resting, worker.fibers)
        });
    let site = site(router);
    let mut client = Client::connect(site.addr);
    // Those of the end of the last turn.
    let at_rest = |client: &mut Client| {
        let text = client.get("/at-rest").text().to_owned();
        let (resting, fibers) = text.split_once(' ').expect("two numbers");
        (resting.parse::<usize>().unwrap(), fibers.parse::<usize>().unwrap())
    };
    let streams: Vec<_> = (0..SOCKETS).map(|_| open_websocket(&mut client, "/dormant")).collect();
    for round in 1..4 {
        for &stream in &streams {
            client.body(stream, &masked(0x81, b"hello"), false);
        }
        for stream in &streams {
            client.until("an echo", |client| client.replies[stream].body.len() == round * 7);
        }
        eventually("both ends of the pairs rest", || {
            let (resting, fibers) = at_rest(&mut client);
            resting >= 2 * SOCKETS && fibers < SOCKETS / 2
        });
    }
    client.machine.reset(streams[0], ErrorCode::CANCEL);
    client.machine.finish(streams[0]);
    eventually("a pair is closed", || at_rest(&mut client).0 < 2 * SOCKETS);
    drop(client);
    eventually("no connection is left", || site.connections.count() == 0);
}

#[test]
fn a_websocket_ends_with_its_stream_and_with_the_server() {
    let (ended, end) = std::sync::mpsc::channel();
    let router = router().get("/fiber", move |request: &mut Request<'_>| {
        let ended = ended.clone();
        ws::upgrade(request, move |socket| {
            socket.send("hello")?;
            let read = socket.read();
            ended.send(read.map(|message| message.is_some()).is_ok()).unwrap();
            Ok(())
        })
    });
    let site = site(router);
    let mut client = Client::connect(site.addr);
    let stream = open_websocket(&mut client, "/fiber");
    client.until("a message", |client| !client.replies[&stream].body.is_empty());
    client.machine.reset(stream, ErrorCode::CANCEL);
    client.flush();
    assert_eq!(
        end.recv_timeout(PATIENCE),
        Ok(false),
        "the connection ended without a close frame"
    );

    let stream = open_websocket(&mut client, "/fiber");
    client.until("a message", |client| !client.replies[&stream].body.is_empty());
    site.stop.shutdown();
    client.until("a close frame", |client| {
        client.replies[&stream].body[7..].starts_with(&[0x88])
    });
    client.body(stream, &masked(0x88, &1001_u16.to_be_bytes()), true);
    client.until_closed();
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0));
}

#[test]
fn the_proxy_takes_streams_to_backends_of_http_1() {
    let backend = Backend::start(|_, conn| {
        while let Some(asked) = conn.request() {
            let body = asked.body;
            conn.send(format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: x-drop\r\nx-drop: 1\r\nx-keep: 2\r\n\r\n",
                body.len()
            ));
            conn.send(&body);
        }
    });
    let site = serve_large(backend.proxy());
    let mut client = Client::connect(site.addr);
    let fields = [
        ("cookie", &b"a=1"[..]),
        ("cookie", b"b=2"),
        ("te", b"trailers"),
        ("x-other", b"3"),
    ];
    let stream = client.begin("GET", "/path?q", &fields, true);
    let reply = client.reply(stream);
    assert_eq!(
        (reply.status, reply.header("x-keep"), reply.header("x-drop")),
        (200, Some("2"), None)
    );
    let head = backend.heads.lock().unwrap()[0].clone();
    assert!(head.starts_with("GET /path?q HTTP/1.1\r\nhost: test\r\n"), "{head}");
    assert!(
        head.contains("\r\ncookie: a=1; b=2\r\n") && head.contains("\r\nx-other: 3"),
        "{head}"
    );
    for size in [0, 10, 100_000, 1_000_000] {
        let body = pattern(size);
        let length = size.to_string();
        assert!(
            client
                .send("POST", "/", &[("content-length", length.as_bytes())], &body)
                .body
                == body
        );
        assert!(client.send("POST", "/", &[], &body).body == body);
    }
}

#[test]
fn the_proxy_streams_both_ways_and_ends_with_its_client() {
    let (gone, is_gone) = std::sync::mpsc::channel();
    let gone = Mutex::new(gone);
    let backend = Backend::start(move |_, conn| {
        conn.head().expect("a request");
        conn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-accel-buffering: no\r\n\r\n");
        while let Some(size) = conn.line() {
            let size = usize::from_str_radix(&size, 16).expect("a chunk size");
            if size == 0 {
                break;
            }
            let piece = conn.take(size).expect("a chunk");
            conn.line();
            conn.send(format!("{size:x}\r\n"));
            conn.send(&piece);
            conn.send("\r\n");
        }
        gone.lock().unwrap().send(()).unwrap();
    });
    let site = serve(backend.streaming_proxy());
    let mut client = Client::connect(site.addr);
    let fields = [("content-type", &b"application/grpc"[..]), ("te", b"trailers")];
    let stream = client.begin("POST", "/call", &fields, false);
    let mut expected = Vec::new();
    for number in 0..50 {
        let piece = format!("message {number}");
        client.body(stream, piece.as_bytes(), false);
        expected.extend_from_slice(piece.as_bytes());
        client.until("the echo", |client| client.replies[&stream].body == expected);
    }
    client.machine.reset(stream, ErrorCode::CANCEL);
    client.flush();
    assert_eq!(is_gone.recv_timeout(PATIENCE), Ok(()), "the backend's connection ends");
}

#[test]
fn the_proxy_takes_websockets_to_backends_of_http_1() {
    let backend = Backend::start(|_, conn| {
        let asked = conn.request().expect("a request");
        assert_eq!(asked.header("upgrade"), Some("websocket"));
        assert_eq!(asked.header("sec-websocket-key").map(str::len), Some(24));
        conn.send("HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nbegun");
        let bytes = conn.take(5).expect("bytes");
        conn.send(bytes);
        conn.rest();
    });
    let site = serve(backend.proxy());
    let mut client = Client::connect(site.addr);
    let stream = open_websocket(&mut client, "/ws");
    client.until("the first bytes", |client| client.replies[&stream].body == b"begun");
    assert_eq!(client.replies[&stream].status, 200);
    client.body(stream, b"hello", true);
    let reply = client.reply(stream);
    assert_eq!((reply.text(), reply.reset), ("begunhello", None));
}

#[test]
fn the_proxy_refuses_protocols_that_an_upgrade_does_not_begin() {
    let backend = Backend::answering("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    let site = serve(backend.proxy());
    let mut client = Client::connect(site.addr);
    for protocol in ["connect-udp", "connect-ip", "webtransport"] {
        let stream = open_protocol(&mut client, "/udp", protocol);
        assert_eq!(client.reply(stream).status, 501, "{protocol}");
    }
    assert_eq!(backend.accepted(), 0);
    assert_eq!(client.get("/").status, 404);
}

#[test]
fn an_interim_response_of_a_backend_comes_before_the_final_one() {
    let backend = Backend::start(|_, conn| {
        while conn.request().is_some() {
            conn.send("HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\n\r\n");
            conn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        }
    });
    let site = serve(backend.proxy());
    let mut client = Client::connect(site.addr);
    let reply = client.get("/");
    assert_eq!(
        (&reply.interim[..], reply.status, reply.text()),
        (&[103][..], 200, "ok")
    );
}

#[test]
fn a_script_gets_the_protocol_and_the_length_of_a_body_that_has_none() {
    let folder = responder::folder();
    let app = Responder::answering(folder.path(), |params, body| {
        let (protocol, length) = (params.get("SERVER_PROTOCOL"), params.get("CONTENT_LENGTH"));
        responder::text(&format!("{protocol} {length} {}", body.len()))
    });
    let site = responder::serve(&folder, &app, fastcgi::Options::default());
    let mut client = Client::connect(site.addr);
    for size in [1, 5_000, 300_000] {
        let reply = client.send("POST", "/a.php", &[], &pattern(size));
        assert_eq!(reply.text(), format!("HTTP/2.0 {size} {size}"));
    }
}

/// A panic is the end of its response alone, also inside of functions around the handler.
#[test]
fn a_panic_inside_of_functions_is_a_500_with_their_fields() {
    let broken = |_: &mut Request<'_>| -> () { panic!("on purpose") };
    let router = router()
        .get("/broken", broken)
        .route("/deep", Route::new().get(broken).stack_bytes(1 << 20))
        .wrap(wrap::request_id("x-id"));
    let site = site(router);
    let mut client = Client::connect(site.addr);
    for path in ["/broken", "/deep"] {
        let reply = client.get(path);
        assert_eq!(
            (reply.status, reply.text()),
            (500, "500 Internal Server Error\n"),
            "{path}"
        );
        assert!(reply.header("x-id").is_some(), "{path}");
        assert_eq!(client.get("/").text(), "hello");
    }
}
