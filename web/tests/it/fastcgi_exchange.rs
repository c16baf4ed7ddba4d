//! The FastCGI handler's sending, waiting and connections, with a backend that reads late, reads
//! never, or dies.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Instant;

use crate::common::{PATIENCE, Panicking, Site, eventually, post_panicking};
use crate::responder::*;
use osier_web::fastcgi::{self, FastCgi, Options};
use osier_web::upstream::Check;
use osier_web::{Address, Request, Router};

// ---- the body ----

#[test]
fn a_body_of_unknown_length_gets_one() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |params, body| {
        text(&format!("{} {}", params.get("CONTENT_LENGTH"), body.len()))
    });
    let options = Options {
        spool_memory: 10_000,
        spool_folder: folder.path().to_owned(),
        ..Options::default()
    };
    let site = serve(&folder, &app, options);
    for len in [0, 5, 9_999, 10_000, 10_001, 700_000] {
        let body: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let mut client = site.connect();
        client.send("POST /a.php HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n");
        for chunk in body.chunks(1013) {
            client.send(format!("{:x}\r\n", chunk.len()));
            client.send(chunk);
            client.send("\r\n");
        }
        client.send("0\r\n\r\n");
        assert_eq!(client.reply().text(), format!("{len} {len}"));
        assert!(app.requests().last().unwrap().1 == body);
        assert_eq!(client.get("/a.php").status, 200, "the connection lives");
    }
    let mut client = site.connect();
    client.send("POST /a.php HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX");
    assert_eq!(client.reply().status, 400);
    let names: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        !names.iter().any(|name| name.to_string_lossy().contains("body")),
        "{names:?}"
    );
}

#[test]
fn a_body_of_known_length_is_passed_on_while_it_comes() {
    let folder = folder();
    let (said, heard) = mpsc::channel();
    let said = Mutex::new(said);
    let app = Responder::unix(folder.path(), move |conn| {
        let Some(params) = conn.opening() else { return };
        assert_eq!(params.get("CONTENT_LENGTH"), "100000");
        let mut all = Vec::new();
        while let Some((STDIN, piece)) = conn.record() {
            if piece.is_empty() {
                conn.send(text(&all.len().to_string()));
                return;
            }
            all.extend(piece);
            said.lock().unwrap().send(all.len()).unwrap();
        }
    });
    let site = serve(&folder, &app, streaming());
    let mut client = site.connect();
    client.send("POST /a.php HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.head().0, 100);
    client.send([b'x'; 10]);
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(10), "before the rest is there");
    client.send([b'x'; 99_990]);
    assert_eq!(client.reply().text(), "100000");
    assert_eq!(client.get("/photo.jpg").status, 404, "the connection lives");
}

#[test]
fn an_application_may_answer_before_it_has_read_or_piece_by_piece() {
    let folder = folder();
    const LEN: usize = 6 << 20;
    let app = Responder::unix(folder.path(), |conn| {
        let Some(params) = conn.opening() else { return };
        match params.get("QUERY_STRING") {
            // Reads nothing, answers, ends.
            "early" => {
                conn.send(answer(b"Status: 413 Too Large\n\ntoo large"));
                conn.finish();
                conn.wait_for_end();
            }
            // Writes more than fits in any buffer before it reads.
            "first" => {
                conn.send(stdout(b"A: 1\n\n"));
                conn.send(stdout(&vec![b'y'; LEN]));
                let body = conn.body().unwrap();
                conn.send([stdout(body.len().to_string().as_bytes()), end(0, 0)].concat());
            }
            // Echoes.
            _ => {
                conn.send(stdout(b"A: 1\n\n"));
                while let Some((STDIN, piece)) = conn.record() {
                    if piece.is_empty() {
                        conn.send(end(0, 0));
                        return;
                    }
                    conn.send(stdout(&piece));
                }
            }
        }
    });
    let site = serve(&folder, &app, streaming());
    let body: Vec<u8> = (0..LEN).map(|i| (i % 253) as u8).collect();
    for query in ["echo", "first", "early"] {
        let mut client = site.connect();
        client.send(format!(
            "POST /a.php?{query} HTTP/1.1\r\nHost: test\r\nContent-Length: {LEN}\r\n\r\n"
        ));
        // The client sends all of it while it reads nothing of the answer, in a second thread as the buffers are finite.
        let mut writer = client.stream.try_clone().unwrap();
        let all = body.clone();
        let sending = std::thread::spawn(move || writer.write_all(&all).is_ok());
        let reply = client.reply();
        match query {
            "echo" => assert!(reply.status == 200 && reply.body == body, "{}", reply.body.len()),
            "first" => assert!(
                reply.body.len() == LEN + LEN.to_string().len() && reply.body.ends_with(LEN.to_string().as_bytes())
            ),
            _ => assert_eq!((reply.status, reply.text()), (413, "too large")),
        }
        drop(client);
        let _ = sending.join();
    }
}

#[test]
fn a_client_that_breaks_its_body_off_ends_the_request() {
    let folder = folder();
    let (said, heard) = mpsc::channel();
    let said = Mutex::new(said);
    let app = Responder::unix(folder.path(), move |conn| {
        conn.opening();
        conn.wait_for_end();
        said.lock().unwrap().send(()).unwrap();
    });
    let site = serve(&folder, &app, streaming());
    let mut client = site.connect();
    client.send("POST /a.php HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\nhello");
    eventually("the backend is asked", || app.connections() == 1);
    drop(client);
    heard.recv_timeout(PATIENCE).expect("its connection ends");
    assert_eq!(site.get("/photo.jpg").status, 404, "the server lives");
}

/// The time for a response does not run while the body is being sent.
#[test]
fn a_panic_while_the_body_is_sent_ends_the_wait_for_the_response() {
    let folder = folder();
    let app = Responder::unix(folder.path(), |conn| {
        conn.opening();
        conn.wait_for_end();
    });
    let (reply, log) = post_panicking(streaming_router(&folder, &app), "/a.php", Panicking::AtFirstRead);
    assert_eq!(reply.status(), 500);
    assert_eq!(
        log,
        ["the handler of POST /a.php panicked: the body's reader panics on purpose"]
    );
}

#[test]
fn a_panic_while_the_body_is_sent_ends_a_response_that_has_begun() {
    let folder = folder();
    let app = Responder::unix(folder.path(), |conn| {
        conn.opening();
        conn.send(stdout(b"Content-Length: 100\n\nthe beginning"));
        conn.wait_for_end();
    });
    let (silent, _end) = osier::net::UnixStream::pair().unwrap();
    let router = streaming_router(&folder, &app);
    let (reply, log) = post_panicking(router, "/a.php", Panicking::AtSecondRead(silent));
    assert!(!reply.is_whole(), "{reply:?}");
    assert_eq!(
        log,
        ["the handler of POST /a.php panicked: the body's reader panics on purpose"]
    );
}

fn streaming_router(folder: &Folder, app: &Responder) -> Router {
    let handler = FastCgi::with(folder.root(), upstream(app), streaming()).unwrap();
    Router::new().fallback(handler.handler())
}

#[test]
fn an_application_that_waits_for_a_body_nobody_sends_is_freed() {
    let folder = folder();
    let (said, heard) = mpsc::channel();
    let said = Mutex::new(said);
    let app = Responder::unix(folder.path(), move |conn| {
        conn.opening();
        conn.send(stdout(b"Status: 204\n\n"));
        conn.wait_for_end();
        said.lock().unwrap().send(()).unwrap();
    });
    let site = serve(
        &folder,
        &app,
        Options {
            buffer: false,
            ..impatient()
        },
    );
    let mut client = site.connect();
    client.send("POST /a.php HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\nhello");
    assert_eq!(client.reply().status, 204);
    drop(client);
    heard.recv_timeout(PATIENCE / 2).expect("its connection ends");
}

/// An application that begins its response to each request and never ends it. The receiver hears the end of each connection.
fn endless(folder: &Folder, status: &str) -> (Responder, mpsc::Receiver<()>) {
    let (said, heard) = mpsc::channel();
    let said = Mutex::new(said);
    let beginning = stdout(format!("Status: {status}\n\nhello").as_bytes());
    let app = Responder::unix(folder.path(), move |conn| {
        conn.request();
        conn.send(&beginning);
        conn.wait_for_end();
        // The test may have ended.
        let _ = said.lock().unwrap().send(());
    });
    (app, heard)
}

#[test]
fn a_head_leaves_no_request_behind() {
    let folder = folder();
    let (app, heard) = endless(&folder, "200");
    let site = serve(&folder, &app, Options::default());
    let mut client = site.connect();
    for number in 1..3 {
        client.send("HEAD /a.php HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(client.head().0, 200);
        assert_eq!(app.connections(), number);
        heard.recv_timeout(PATIENCE / 2).expect("its connection ends");
    }
}

#[test]
fn requests_that_go_on_behind_their_clients_have_a_bound() {
    let folder = folder();
    let (app, heard) = endless(&folder, "304");
    let site = serve(&folder, &app, Options::default());
    let mut client = site.connect();
    let mut ask = || {
        client.send("GET /a.php HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(client.head().0, 304);
    };
    (0..128).for_each(|_| ask());
    assert_eq!(heard.try_recv(), Err(mpsc::TryRecvError::Empty), "the scripts may end");
    ask();
    heard.recv_timeout(PATIENCE / 2).expect("one beyond the bound may not");
    assert_eq!(app.connections(), 129);
}

#[test]
fn a_script_that_is_silent_behind_its_client_has_the_time_between() {
    let folder = folder();
    let (app, heard) = endless(&folder, "304");
    let site = serve(&folder, &app, impatient());
    assert_eq!(site.get("/a.php").status, 304);
    // The whole time for one that writes is longer.
    heard.recv_timeout(PATIENCE / 2).expect("its connection ends");
}

// ---- time ----

#[test]
fn a_client_that_leaves_ends_the_request() {
    let folder = folder();
    let (said, heard) = mpsc::channel();
    let said = Mutex::new(said);
    let app = Responder::unix(folder.path(), move |conn| {
        let Some((params, _)) = conn.request() else { return };
        if params.get("QUERY_STRING") == "streaming" {
            conn.send(stdout(b"A: 1\n\nhello"));
        }
        conn.wait_for_end();
        said.lock().unwrap().send(()).unwrap();
    });
    let site = serve(&folder, &app, Options::default());
    for query in ["waiting", "streaming"] {
        let mut client = site.connect();
        client.send(format!("GET /a.php?{query} HTTP/1.1\r\nHost: test\r\n\r\n"));
        if query == "streaming" {
            client.head();
        } else {
            eventually("it is asked", || app.connections() == 1);
        }
        client.reset();
        heard.recv_timeout(PATIENCE).expect(query);
    }
}

#[test]
fn what_takes_too_long_is_a_gateway_timeout() {
    let folder = folder();
    let app = Responder::unix(folder.path(), |conn| {
        let Some(params) = conn.opening() else { return };
        match params.get("QUERY_STRING") {
            "silent" => drop(conn.body()),
            "half" => drop((conn.body(), conn.send(stdout(b"A: 1\n")))),
            "body" => drop((conn.body(), conn.send(stdout(b"A: 1\n\nhello")))),
            "unread" => {}
            _ => {}
        }
        // Longer than the server waits.
        std::thread::sleep(PATIENCE / 4);
    });
    let site = serve(
        &folder,
        &app,
        Options {
            buffer: false,
            ..impatient()
        },
    );
    assert_eq!(site.get("/a.php?silent").status, 504);
    assert!(site.logged("did not answer in time"));
    assert_eq!(site.get("/a.php?half").status, 504);
    assert!(site.logged("did not go on in time"));
    assert_eq!(site.ask(&post("/a.php?silent", &"x".repeat(50_000))).status, 504);
    let mut client = site.connect();
    client.try_send(post("/a.php?unread", &"x".repeat(4 << 20)));
    assert_eq!(client.reply().status, 504);
    assert!(site.logged("did not take the request's body"), "{:?}", site.log);
    let mut client = site.connect();
    client.send("GET /a.php?body HTTP/1.1\r\nHost: test\r\n\r\n");
    let (status, _) = client.head();
    assert_eq!(status, 200);
    assert!(!client.rest().ends_with(b"0\r\n\r\n"), "it ends without an end mark");
    assert_eq!(app.connections(), 5, "none of them is asked for twice");
}

#[test]
fn what_is_no_response_gives_the_application_no_more_time() {
    let folder = folder();
    let app = Responder::unix(folder.path(), |conn| {
        let Some((params, _)) = conn.request() else { return };
        let begin = match params.get("QUERY_STRING") {
            "stderr" | "empty" => Vec::new(),
            "head" => stdout(b"A: 1\n"),
            _ => stdout(b"A: 1\n\nhello"),
        };
        let again = match params.get("QUERY_STRING") {
            "empty" => record(STDOUT, 1, b"", 0),
            _ => stderr("still here\n"),
        };
        let until = Instant::now() + PATIENCE;
        let mut is_open = conn.send(begin);
        while is_open && Instant::now() < until {
            std::thread::sleep(SHORT / 10);
            is_open = conn.send(&again);
        }
    });
    let site = serve(&folder, &app, impatient());
    let begun = Instant::now();
    assert_eq!(site.get("/a.php?stderr").status, 504);
    assert_eq!(site.get("/a.php?empty").status, 504);
    assert!(site.logged("did not answer in time"));
    assert_eq!(site.get("/a.php?head").status, 504);
    assert!(site.logged("did not go on in time"));
    let mut client = site.connect();
    client.send("GET /a.php?body HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(client.head().0, 200);
    assert!(!client.rest().ends_with(b"0\r\n\r\n"), "it ends without an end mark");
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
}

#[test]
fn an_end_after_standard_error_alone_is_no_end_inside_a_response() {
    let folder = folder();
    let app = Responder::unix(folder.path(), |conn| {
        let Some(_) = conn.request() else { return };
        conn.send(stderr("oh\n"));
    });
    let site = serve(&folder, &app, Options::default());
    assert_eq!(site.get("/a.php").status, 502);
    assert!(
        site.logged("the connection ended before the response"),
        "{:?}",
        site.log
    );
    assert_eq!(app.connections(), 1, "the script has run, so it is not run again");
}

#[test]
fn a_slow_body_does_not_use_up_the_applications_time() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |_, body| text(&body.len().to_string()));
    let site = serve(&folder, &app, impatient());
    let mut client = site.connect();
    client.send("POST /a.php HTTP/1.1\r\nHost: test\r\nContent-Length: 30000\r\n\r\n");
    for _ in 0..3 {
        // Longer than the backend's time, in pieces.
        std::thread::sleep(SHORT * 2);
        client.send([b'x'; 10_000]);
    }
    assert_eq!(client.reply().text(), "30000");
}

// ---- connections ----

#[test]
fn no_application_is_a_bad_gateway() {
    let folder = folder();
    let nobody = Address::Unix(folder.path().join("nobody.sock"));
    let site = serve_all(&folder, [nobody], Options::default());
    for _ in 0..5 {
        assert_eq!(site.get("/a.php").status, 502);
    }
    assert!(site.logged("nobody.sock"));
    assert_eq!(site.get("/none.php").status, 404);
    let error = fastcgi::upstream("fastcgi", []).build().unwrap_err();
    assert!(error.to_string().contains("0 backends"), "{error}");
    let upstream = fastcgi::upstream("fastcgi", ["unix:/x".parse().unwrap()])
        .build()
        .unwrap();
    let error = FastCgi::open(folder.path().join("none"), upstream).unwrap_err();
    assert!(error.to_string().contains("none"), "{error}");
}

#[test]
fn connections_are_kept_over_tcp_and_on_unix_sockets_when_asked() {
    let folder = folder();
    let script = |conn: &mut Conn| {
        while let Some((params, _)) = conn.request() {
            conn.send(text(&format!("{} {}", conn.number, params.keep)));
            if !params.keep {
                return;
            }
        }
    };
    let three = |app: Responder, kept: Option<usize>| {
        let upstream = upstream_builder(&app);
        let upstream = match kept {
            Some(count) => upstream.keep(count),
            None => upstream,
        };
        let site = serve_over(&folder, upstream, Options::default());
        let ask = |_| site.get("/a.php").text().to_owned();
        (0..3).map(ask).collect::<Vec<_>>()
    };
    let (same, new) = (["0 true", "0 true", "0 true"], ["0 false", "1 false", "2 false"]);
    let unix = || Responder::unix(folder.path(), script);
    let tcp = || Responder::tcp(script);
    assert_eq!(three(tcp(), None), new);
    assert_eq!(three(unix(), None), new);
    assert_eq!(three(tcp(), Some(2)), same);
    assert_eq!(three(unix(), Some(2)), same);
}

/// The same application at the two kinds of address.
fn both(folder: &Folder, script: impl Fn(&mut Conn) + Clone + Send + Sync + 'static) -> [Responder; 2] {
    [Responder::tcp(script.clone()), Responder::unix(folder.path(), script)]
}

/// A site that keeps connections to `app`, whatever kind of address it has.
fn keeping(folder: &Folder, app: &Responder) -> Site {
    serve_over(folder, upstream_builder(app).keep(8), Options::default())
}

#[test]
fn a_connection_with_something_left_on_it_is_not_kept() {
    let folder = folder();
    let apps = both(&folder, |conn| {
        while let Some((params, _)) = conn.request() {
            let mut said = text(&conn.number.to_string());
            match params.get("QUERY_STRING") {
                "excess" => said.extend(stdout(b"of nobody")),
                "padded" => {
                    said.truncate(said.len() - 16);
                    said.extend(record(END, 1, &[0; 8], 200));
                    said.truncate(said.len() - 100);
                }
                _ => {}
            }
            conn.send(said);
        }
    });
    for app in apps {
        let site = keeping(&folder, &app);
        for (query, number) in [
            ("", "0"),
            ("excess", "0"),
            ("", "1"),
            ("padded", "1"),
            ("", "2"),
            ("", "2"),
        ] {
            assert_eq!(site.get(&format!("/a.php?{query}")).text(), number, "{query}");
        }
    }
}

#[test]
fn a_kept_connection_on_which_something_has_come_is_not_used() {
    let folder = folder();
    let has_said = Arc::new(AtomicUsize::new(0));
    let said = has_said.clone();
    let app = Responder::unix(folder.path(), move |conn| {
        while conn.request().is_some() {
            conn.send(text(&conn.number.to_string()));
            conn.send(stdout(b"of nobody"));
            said.fetch_add(1, Ordering::SeqCst);
        }
    });
    let site = keeping(&folder, &app);
    for turn in 0..20 {
        assert_eq!(site.get("/a.php").text(), turn.to_string());
        // So the server is notified of it before the next request comes.
        eventually("it has said more", || has_said.load(Ordering::SeqCst) > turn);
    }
}

#[test]
fn a_kept_connection_that_was_closed_costs_an_idempotent_request_nothing() {
    let folder = folder();
    // Every connection serves one request and dies when the second has been sent: as late as it can be noticed.
    let apps = both(&folder, |conn| {
        if conn.request().is_some() {
            conn.send(text("ok"));
        }
        conn.opening();
    });
    for app in apps {
        let site = keeping(&folder, &app);
        for _ in 0..3 {
            assert_eq!(site.get("/a.php").text(), "ok");
        }
        assert_eq!(app.connections(), 3, "the second on a new one, and so on");
        // What may have been done is not done twice. The kept connection is the one that the last GET has left.
        assert_eq!(site.ask(&post("/a.php", "x")).status, 502);
        assert_eq!(app.connections(), 3);
    }
}

#[test]
fn a_kept_connection_that_has_been_closed_is_not_used() {
    let folder = folder();
    let apps = both(&folder, |conn| {
        if conn.request().is_some() {
            conn.send(text("ok"));
        }
    });
    for app in apps {
        let site = keeping(&folder, &app);
        for turn in 1..4 {
            assert_eq!(site.ask(&post("/a.php", "x")).text(), "ok");
            assert_eq!(app.connections(), turn);
            // Its end arrives meanwhile, at worst after the whole of this; nobody reports it.
            std::thread::sleep(SHORT);
        }
    }
}

/// A site whose requests with the query "late" wait at both barriers first. The thread is held, not the fiber: no turn of the loop
/// comes in between.
fn held_when_late(handler: FastCgi, barriers: [&Arc<Barrier>; 2]) -> crate::common::Site {
    let barriers = barriers.map(Arc::clone);
    crate::common::site(Router::new().fallback(move |request: &mut Request<'_>| {
        if request.query() == Some("late") {
            barriers.iter().for_each(|barrier| _ = barrier.wait());
        }
        handler.answer(request)
    }))
}

/// A late second response comes while the worker's thread is busy, so its poller has not reported it.
#[test]
fn a_late_second_response_reaches_nobody() {
    let folder = folder();
    let (say, said) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (may_say, has_said) = (say.clone(), said.clone());
    let apps = both(&folder, move |conn| {
        while conn.request().is_some() {
            conn.send(text(&conn.number.to_string()));
            if conn.number == 0 {
                may_say.wait();
                conn.send(text("of nobody"));
                has_said.wait();
                conn.wait_for_end();
            }
        }
    });
    for app in apps {
        let handler = FastCgi::open(folder.root(), upstream_builder(&app).keep(8).build().unwrap()).unwrap();
        let site = held_when_late(handler, [&say, &said]);
        let mut client = site.connect();
        assert_eq!(client.get("/a.php").text(), "0");
        assert_eq!(client.get("/a.php?late").text(), "1", "over {}", app.address);
    }
}

/// The connection's end and the next request come in one turn of the worker's loop, so nobody has reported the end: also what is
/// not idempotent is sent again then, as not one byte of it was taken.
#[test]
fn a_kept_connection_that_ends_unheard_costs_no_request() {
    let folder = folder();
    let (close, closed) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (may_close, is_closed) = (close.clone(), closed.clone());
    let apps = both(&folder, move |conn| {
        while conn.request().is_some() {
            conn.send(text(&conn.number.to_string()));
            if conn.number == 0 {
                may_close.wait();
                conn.close();
                is_closed.wait();
                return;
            }
        }
    });
    for app in apps {
        let handler = FastCgi::open(folder.root(), upstream_builder(&app).keep(8).build().unwrap()).unwrap();
        let site = held_when_late(handler, [&close, &closed]);
        let mut client = site.connect();
        assert_eq!(client.get("/a.php").text(), "0");
        client.send(post("/a.php?late", "what cannot be undone"));
        assert_eq!(client.reply().text(), "1", "over {}", app.address);
        assert_eq!(app.connections(), 2);
        client.send(post("/a.php", "x"));
        assert_eq!(client.reply().text(), "1", "and that one is kept");
    }
}

#[test]
fn a_backend_that_takes_no_connection_is_a_gateway_timeout() {
    use socket2::{Domain, SockAddr, Socket, Type};
    let folder = folder();
    let path = folder.path().join("full.sock");
    let full = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    full.bind(&SockAddr::unix(&path).unwrap()).unwrap();
    full.listen(0).unwrap();
    let _waits = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let upstream = fastcgi::upstream("full", [Address::Unix(path)]).connect_timeout(SHORT);
    let site = serve_over(&folder, upstream, Options::default());
    assert_eq!(site.get("/a.php").status, 504);
    assert!(site.logged("full.sock timed out"), "{:?}", site.log);
}

#[test]
fn checks_find_a_backend_that_is_down() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |_, _| text("ok"));
    let nobody = Address::Unix(folder.path().join("nobody.sock"));
    let check = Check::connect().every(SHORT).fall(1);
    let upstream = fastcgi::upstream("fastcgi", [nobody, app.address.clone()]).check(check);
    let handler = Arc::new(FastCgi::open(folder.root(), upstream.build().unwrap()).unwrap());
    let asked = handler.clone();
    let site = crate::common::site(
        osier_web::Router::new().fallback(move |request: &mut osier_web::Request<'_>| asked.answer(request)),
    );
    assert_eq!(site.get("/a.php").text(), "ok");
    eventually("the check has found it", || !handler.upstream().stats()[0].is_in);
    assert_eq!(site.get("/a.php").text(), "ok");
}

#[test]
fn a_request_is_tried_twice_and_no_more() {
    let folder = folder();
    let app = Responder::unix(folder.path(), |conn| drop(conn.request()));
    let site = serve(&folder, &app, streaming());
    assert_eq!(site.get("/a.php").status, 502);
    assert_eq!(app.connections(), 2);
    let mut put = post("/a.php", &"x".repeat(100_000));
    put.replace_range(..4, "PUT");
    assert_eq!(site.ask(&put).status, 502);
    assert_eq!(
        app.connections(),
        3,
        "a body that has been passed on cannot be sent again"
    );
    let mut put = post("/a.php", "short");
    put.replace_range(..4, "PUT");
    assert_eq!(site.ask(&put).status, 502);
    assert_eq!(app.connections(), 5, "one that was kept can");
}

#[test]
fn several_applications_share_the_work() {
    let folder = folder();
    let (go, wait) = mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    let named = |name: &'static str| {
        let wait = wait.clone();
        Responder::unix(folder.path(), move |conn| {
            let Some((params, _)) = conn.request() else { return };
            if params.get("QUERY_STRING") == "slow" {
                wait.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            }
            conn.send(text(name));
        })
    };
    let (a, b) = (named("a"), named("b"));
    let nobody = Address::Unix(folder.path().join("nobody.sock"));
    let site = serve_all(
        &folder,
        [nobody, a.address.clone(), b.address.clone()],
        Options::default(),
    );
    for _ in 0..6 {
        assert!(
            ["a", "b"].contains(&site.get("/a.php").text()),
            "one that is down is passed over"
        );
    }
    let mut slow = site.connect();
    let before = (a.connections(), b.connections());
    slow.send("GET /a.php?slow HTTP/1.1\r\nHost: test\r\n\r\n");
    eventually("one is busy", || (a.connections(), b.connections()) != before);
    let idle = if a.connections() > before.0 { "b" } else { "a" };
    for _ in 0..4 {
        assert_eq!(site.get("/a.php").text(), idle, "the one with fewer requests");
    }
    go.send(()).unwrap();
    assert_ne!(slow.reply().text(), idle);
}

#[test]
fn more_requests_than_an_application_may_have_are_refused() {
    let folder = folder();
    let app = Responder::unix(folder.path(), |conn| {
        conn.request();
        conn.wait_for_end();
    });
    let site = serve_over(&folder, upstream_builder(&app).max_leases(1), Options::default());
    let mut first = site.connect();
    first.send("GET /a.php HTTP/1.1\r\nHost: test\r\n\r\n");
    eventually("it is asked", || app.connections() == 1);
    assert_eq!(site.get("/a.php").status, 503);
}
