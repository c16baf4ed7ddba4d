//! The client without a socket: every kind of response arrives as it does over a connection.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::sync::{Arc, Mutex};

use osier_web::test::Client;
use osier_web::{Body, IntoResponse, Json, Level, Limits, Request, Response, Router, Server, http::StatusCode, ws};

use crate::common::site;

#[test]
fn methods_fields_and_bodies_go_both_ways() {
    let echo = |request: &mut Request<'_>| {
        let line = format!(
            "{} {} {:?} {:?} {} {}",
            request.method(),
            request.target(),
            request.host(),
            request.header_str("x-a"),
            request.peer(),
            request.local_addr().is_none(),
        );
        let body = request.bytes(1000)?;
        Ok::<_, osier_web::Rejection>(Response::new(StatusCode::ACCEPTED).header("x-line", line).body(body))
    };
    let client = Client::new(Router::new().fallback(echo));
    for (ask, method) in [
        (client.get("/x?y"), "GET"),
        (client.post("/x?y"), "POST"),
        (client.put("/x?y"), "PUT"),
        (client.patch("/x?y"), "PATCH"),
        (client.delete("/x?y"), "DELETE"),
        (client.request("QUERY", "/x?y"), "QUERY"),
    ] {
        let reply = ask.header("x-a", 1).body("hello").send();
        let line = format!("{method} /x?y Some(\"test\") Some(\"1\") 127.0.0.1:4 true");
        assert_eq!(
            (reply.status(), reply.header("x-line")),
            (StatusCode::ACCEPTED, Some(line.as_str()))
        );
        assert_eq!(reply.body(), b"hello");
        assert!(reply.is_whole() && reply.headers().contains_key("date"));
    }
    let head = client
        .head("/")
        .header("host", "example.org")
        .peer(([10, 0, 0, 1], 99).into())
        .send();
    assert_eq!(
        head.header("x-line"),
        Some("HEAD / Some(\"example.org\") None 10.0.0.1:99 true")
    );
    assert_eq!(head.body(), b"");
}

#[test]
fn handlers_run_on_a_fiber_and_may_wait_for_anything() {
    let router = Router::new().get("/", |_: &mut Request<'_>| {
        osier::yield_now();
        let spawned = osier::spawn(|| osier::unblock(|| 21)).join().unwrap_or(0);
        let mut sum = 0;
        osier::scope(|scope| {
            scope.spawn(|| sum += 2 * spawned);
        });
        sum.to_string()
    });
    let client = Client::new(router);
    assert_eq!(client.get("/").send().text(), "42", "from a plain thread");
    osier::run(|| assert_eq!(client.get("/").send().text(), "42", "from a fiber"));
}

#[test]
fn several_threads_share_a_client() {
    let client = Client::new(Router::new().get("/{n}", |request: &mut Request<'_>| {
        osier::yield_now();
        request.param("n").unwrap_or_default().into_owned()
    }));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = &client;
            scope.spawn(move || {
                for n in 0..20 {
                    let text = format!("{thread}-{n}");
                    assert_eq!(client.get(&format!("/{text}")).send().text(), text);
                }
            });
        }
    });
}

#[test]
fn every_kind_of_body_comes_back() {
    let path = std::env::temp_dir().join(format!("osier-test-client-{}", std::process::id()));
    let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&path, &content).unwrap();
    let file = Arc::new(File::open(&path).unwrap());
    let short = file.clone();
    let router = Router::new()
        .get("/text", |_| "text")
        .get("/large", |_| vec![7_u8; 300_000])
        .get("/shared", |_: &mut Request<'_>| {
            Body::shared(Arc::new(vec![1_u8; 40_000]))
        })
        .get("/stream", |_: &mut Request<'_>| {
            Response::stream(|out| {
                for i in 0..1000 {
                    writeln!(out, "line {i}")?;
                    if i % 100 == 0 {
                        osier::yield_now();
                    }
                }
                Ok(())
            })
        })
        .get("/reader", |_: &mut Request<'_>| {
            Body::reader(Cursor::new(vec![9; 100_000]))
        })
        .get("/sized", |_: &mut Request<'_>| {
            Body::sized_reader(Cursor::new(vec![9; 10]), 10)
        })
        .get("/file", move |_: &mut Request<'_>| Body::file(file.clone(), 4, 799_992))
        .get("/nothing", |_| StatusCode::NO_CONTENT)
        .post("/duplex", |_: &mut Request<'_>| {
            Body::duplex(|from, to| io::copy(from, to).map(drop))
        })
        .get("/cut", |_: &mut Request<'_>| {
            Body::sized_reader(Cursor::new(vec![9; 100_000]), 100_001)
        })
        .get("/short", move |_: &mut Request<'_>| {
            Body::file(short.clone(), 799_990, 100)
        });
    let client = Client::of(Server::new(router).on_log(|_| {}));
    let lines: String = (0..1000).map(|i| format!("line {i}\n")).collect();
    for (path, expected) in [
        ("/text", b"text".to_vec()),
        ("/large", vec![7; 300_000]),
        ("/shared", vec![1; 40_000]),
        ("/stream", lines.into_bytes()),
        ("/reader", vec![9; 100_000]),
        ("/sized", vec![9; 10]),
        ("/file", content[4..799_996].to_vec()),
        ("/nothing", Vec::new()),
    ] {
        let reply = client.get(path).send();
        assert!(
            reply.body() == expected && reply.is_whole(),
            "{path}: {} bytes",
            reply.body().len()
        );
        let head = client.head(path).send();
        assert_eq!((head.status(), head.body()), (reply.status(), &b""[..]), "{path}");
    }
    let reply = client.post("/duplex").reader(Cursor::new(vec![3; 200_000])).send();
    assert!(reply.body() == vec![3; 200_000] && reply.is_whole());
    for path in ["/cut", "/short"] {
        let reply = client.get(path).send();
        assert!(
            !reply.is_whole() && !reply.body().is_empty(),
            "{path}: {} bytes",
            reply.body().len()
        );
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_response_without_end_ends_when_the_client_leaves() {
    let (report, reports) = std::sync::mpsc::channel();
    let report = Mutex::new(report);
    let router = Router::new().get("/", move |_: &mut Request<'_>| {
        let report = report.lock().unwrap().clone();
        Response::stream(move |out| {
            loop {
                if let Err(error) = out.write_all(&[b'x'; 1000]).and_then(|()| out.flush()) {
                    report.send(error.kind()).unwrap();
                    return Err(error);
                }
            }
        })
    });
    let reply = Client::new(router).get("/").leave_after(10_000).send();
    assert!(!reply.is_whole() && reply.body().len() > 9_000 && reply.body().iter().all(|&byte| byte == b'x'));
    assert_eq!(reports.try_recv(), Ok(io::ErrorKind::BrokenPipe));
}

/// Pieces of the request's body arrive as they are produced, and only when they are asked for.
#[test]
fn request_bodies_stream() {
    struct Pieces(u8);
    impl Read for Pieces {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0 == 3 {
                return Ok(0);
            }
            self.0 += 1;
            osier::yield_now();
            into[..4].copy_from_slice(&[self.0; 4]);
            Ok(4)
        }
    }
    let router = Router::new()
        .post("/", |request: &mut Request<'_>| {
            let (mut seen, mut piece) = (Vec::new(), [0; 100]);
            loop {
                match request.body().read(&mut piece)? {
                    0 => return Ok::<_, io::Error>(format!("{seen:?}")),
                    count => seen.push(count),
                }
            }
        })
        .post("/unread", |_| "nobody reads");
    let client = Client::new(router);
    assert_eq!(client.post("/").reader(Pieces(0)).send().text(), "[4, 4, 4]");
    assert_eq!(client.post("/").sized_reader(Pieces(0), 12).send().text(), "[4, 4, 4]");
    let unread = client
        .post("/unread")
        .header("expect", "100-continue")
        .reader(Pieces(0))
        .send();
    assert_eq!(
        (unread.text(), unread.header("connection")),
        ("nobody reads", Some("close"))
    );
    let read = client
        .post("/")
        .header("expect", "100-continue")
        .reader(Pieces(0))
        .send();
    assert_eq!(read.text(), "[4, 4, 4]", "behind 100 Continue");
}

/// Compares the bytes of responses with and without a connection.
#[test]
fn answers_are_those_of_a_connection() {
    let router = || {
        Router::new()
            .get("/", |_| "hello")
            .get("/stream", |_: &mut Request<'_>| {
                Response::stream(|out| out.write_all(b"streamed"))
            })
            .get("/panic", |_| -> () { panic!("on purpose") })
            .get("/error", |_: &mut Request<'_>| {
                io::Error::other("secret").into_response()
            })
            .post("/json", |request: &mut Request<'_>| {
                request.json::<Vec<u32>>().map(Json)
            })
    };
    let site = site(router());
    let log = Arc::new(Mutex::new(Vec::new()));
    let lines = log.clone();
    let server =
        Server::new(router()).on_log(move |record| lines.lock().unwrap().push((record.level(), record.to_string())));
    let client = Client::of(server);
    for (method, path) in [
        ("GET", "/"),
        ("HEAD", "/"),
        ("OPTIONS", "/"),
        ("OPTIONS", "*"),
        ("DELETE", "/"),
        ("GET", "/none"),
        ("GET", "/stream"),
        ("GET", "/panic"),
        ("GET", "/error"),
        ("POST", "/json"),
        ("GET", "no-path"),
        ("CONNECT", "a:1"),
        ("GET", "/ x"),
        ("G,T", "/"),
    ] {
        let here = client.request(method, path).send();
        let mut there = site.connect();
        there.send(format!("{method} {path} HTTP/1.1\r\nhost: test\r\n\r\n"));
        let there = match method {
            "HEAD" => {
                let (status, head) = there.head();
                crate::common::Reply {
                    status,
                    head,
                    body: Vec::new(),
                }
            }
            _ => there.reply(),
        };
        assert_eq!(here.status().as_u16(), there.status, "{method} {path}");
        assert_eq!(here.body(), there.body, "{method} {path}");
        let names: Vec<&str> = here.headers().keys().map(|name| name.as_str()).collect();
        for name in &names {
            if *name != "date" {
                assert_eq!(here.header(name), there.header(name), "{method} {path}");
            }
        }
        assert_eq!(names.len(), there.head.lines().count() - 1, "{method} {path}");
    }
    let logged = |is_failure: bool| -> Vec<String> {
        let log = log.lock().unwrap();
        let of_kind = log.iter().filter(|(level, _)| (*level <= Level::Warning) == is_failure);
        of_kind.map(|(_, line)| line.clone()).collect()
    };
    assert_eq!(logged(true), *site.log.lock().unwrap());
    assert_eq!(logged(false), *site.refused.lock().unwrap());
}

#[test]
fn the_servers_limits_and_observer_count() {
    let served = Arc::new(Mutex::new(Vec::new()));
    let seen = served.clone();
    let server = Server::new(Router::new().post("/", |request: &mut Request<'_>| request.bytes(1000)))
        .limits(Limits {
            body: 10,
            ..Limits::default()
        })
        .on_request(move |served| seen.lock().unwrap().push((served.status().as_u16(), served.bytes())));
    let client = Client::of(server);
    assert_eq!(client.post("/").body("0123456789").send().status(), 200);
    assert_eq!(client.post("/").body("0123456789x").send().status(), 413);
    assert_eq!(client.get("/").send().status(), 405);
    let served = served.lock().unwrap();
    assert_eq!(
        served.iter().map(|(status, _)| *status).collect::<Vec<_>>(),
        [200, 413, 405]
    );
    assert_eq!(served[0].1, 10);
}

#[test]
fn an_upgrade_is_answered_and_ends_there() {
    let router = Router::new().get("/", |_: &mut Request<'_>| {
        Response::upgrade("echo", |_| panic!("nobody takes it over"))
    });
    let client = Client::new(router);
    let upgrade = client
        .get("/")
        .header("connection", "upgrade")
        .header("upgrade", "echo");
    let reply = upgrade.send();
    assert_eq!((reply.status().as_u16(), reply.header("upgrade")), (101, Some("echo")));
}

#[test]
#[should_panic(expected = "the client left after 5 bytes, in the head of the response")]
fn a_client_that_leaves_at_once_has_no_reply() {
    let _ = Client::new(Router::new().get("/", |_| "x"))
        .get("/")
        .leave_after(5)
        .send();
}

/// An independent client speaks to both styles of WebSocket session over the result of an upgrade.
#[test]
fn an_upgrade_hands_over_both_ends() {
    use osier_web::{Stream, ws};
    use tungstenite::protocol::{Role, WebSocket};
    use tungstenite::{Error, Message};

    struct Echo(Arc<Mutex<Vec<String>>>);
    impl ws::Callbacks for Echo {
        fn on_open(&mut self, sender: &ws::Sender) {
            sender.send("welcome");
        }
        fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
            sender.send(message);
        }
        fn on_close(&mut self, end: &ws::End) {
            self.0.lock().unwrap().push(end.to_string());
        }
    }
    let closed = Arc::new(Mutex::new(Vec::new()));
    let closed_by = closed.clone();
    let router = Router::new()
        .get("/fiber", |request: &mut Request<'_>| {
            ws::upgrade(request, |socket| {
                assert_eq!(socket.peer().port(), 99);
                socket.send("welcome")?;
                while let Some(message) = socket.read()? {
                    socket.send(message)?;
                }
                Ok(())
            })
        })
        .get("/dormant", move |request: &mut Request<'_>| {
            ws::Options::default().upgrade_dormant(request, Echo(closed_by.clone()))
        });
    let client = Client::new(router);
    let ask = |path: &str| {
        let ask = client.get(path).peer(([10, 0, 0, 1], 99).into());
        ask.header("sec-websocket-version", 13)
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
    };
    let talk = |path: &str| {
        let (reply, stream) = ask(path).upgrade("websocket");
        assert_eq!(
            (reply.status(), reply.header("upgrade")),
            (StatusCode::SWITCHING_PROTOCOLS, Some("websocket"))
        );
        let stream = stream.expect("a connection");
        stream.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        let mut socket: WebSocket<Stream> = WebSocket::from_raw_socket(stream, Role::Client, None);
        assert_eq!(socket.read().unwrap(), Message::text("welcome"));
        for text in ["one", "two"] {
            socket.send(Message::text(text)).unwrap();
            assert_eq!(socket.read().unwrap(), Message::text(text));
        }
        socket.close(None).unwrap();
        while !matches!(socket.read(), Err(Error::ConnectionClosed)) {}
    };
    for path in ["/fiber", "/dormant"] {
        talk(path);
        osier::run(|| talk(path));
    }
    crate::common::eventually("the callbacks get the close codes", || {
        *closed.lock().unwrap() == ["the client closed: 1005", "the client closed: 1005"]
    });
    // A refused upgrade returns the response alone. An upgrade that nobody continues ends.
    let (refused, none) = client.get("/fiber").upgrade("websocket");
    assert_eq!((refused.status(), none.is_none()), (StatusCode::UPGRADE_REQUIRED, true));
    let alone = ask("/dormant")
        .header("connection", "upgrade")
        .header("upgrade", "websocket");
    assert_eq!(alone.send().status(), StatusCode::SWITCHING_PROTOCOLS);
}

#[test]
fn a_websocket_is_spoken_as_by_a_client() {
    let router = Router::new().get("/", |request: &mut Request<'_>| {
        ws::upgrade(request, |socket| {
            while let Some(message) = socket.read()? {
                match message.as_text() {
                    Some("close") => socket.close(4001, "as you like")?,
                    Some("leave") => panic!("a test leaves"),
                    _ => socket.send(message)?,
                }
            }
            Ok(())
        })
    });
    let client = Client::new(router);
    let mut socket = client.get("/").websocket().unwrap();
    socket.send("text");
    assert_eq!(socket.read(), Some("text".into()));
    socket.send(vec![0; 100_000]);
    assert_eq!(socket.read(), Some(vec![0; 100_000].into()));
    assert!(socket.closed().is_none());
    socket.send("close");
    assert_eq!(socket.read(), None);
    let closed = socket.closed().unwrap();
    assert_eq!((closed.code, &*closed.reason), (4001, "as you like"));

    let mut socket = client.get("/").websocket().unwrap();
    socket.send("leave");
    assert_eq!((socket.read(), socket.closed().unwrap().code), (None, 1011));
    let refused = client.post("/").websocket().unwrap_err();
    assert_eq!(refused.status(), 405);
    osier::run(|| {
        let mut socket = client.get("/").websocket().unwrap();
        socket.send("on a fiber");
        assert_eq!(socket.read(), Some("on a fiber".into()));
    });
}

#[test]
fn a_history_of_any_length_takes_one_place_of_a_queue() {
    struct Guest;
    impl ws::Callbacks for Guest {
        fn on_open(&mut self, sender: &ws::Sender) {
            let lines = (0..200).map(|n| ws::Frame::text(n.to_string()));
            sender.send(ws::Frame::joined(lines).unwrap());
            sender.send("now");
        }
        fn on_message(&mut self, _: ws::Message, _: &ws::Sender) {}
    }
    let options = ws::Options {
        queue: 2,
        ..ws::Options::default()
    };
    let client = Client::new(Router::new().get("/", move |request: &mut Request<'_>| {
        options.upgrade_dormant(request, Guest)
    }));
    let mut socket = client.get("/").websocket().unwrap();
    (0..200).for_each(|n| assert_eq!(socket.read(), Some(n.to_string().into())));
    assert_eq!(socket.read(), Some("now".into()));
    assert!(ws::Frame::joined([]).is_none());
}
