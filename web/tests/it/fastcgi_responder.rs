//! The FastCGI handler with a backend that responds in unusual ways: in pieces, with early or
//! missing ends, with floods, with silence.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use crate::common::{PATIENCE, eventually};
use crate::responder::*;
use osier_web::fastcgi::{FastCgi, Options};
use osier_web::{Response, Router, http::StatusCode};

// ---- the answer ----

#[test]
fn an_answer_means_the_same_in_whatever_pieces_it_comes() {
    let folder = folder();
    let body: Vec<u8> = (0..70_000u32).flat_map(u32::to_le_bytes).collect();
    let large = [stdout(b"Status: 201 Made\nX-A: 1\n\n"), stdout(&body), end(0, 0)].concat();
    assert!(large.len() > 4 * 65_535);
    let small = [
        record(10, 0, b"\x0e\x01FCGI_MPXS_CONNS0", 1),
        record(11, 0, &[12, 0, 0, 0, 0, 0, 0, 0], 0),
        stderr("first\nsec"),
        record(STDOUT, 1, b"Status: 201 Made\nX-", 255),
        record(STDOUT, 7, b"of another", 3),
        record(END, 7, &[0; 8], 0),
        stderr("ond\n"),
        record(99, 1, b"unknown", 7),
        record(STDOUT, 1, b"A: 1\n\r", 1),
        record(STDOUT, 1, b"\nhel", 0),
        stderr("\x1b[31mred\x07"),
        record(STDOUT, 1, b"lo", 8),
        record(STDERR, 1, b"", 0),
        record(STDOUT, 1, b"", 0),
        end(0, 0),
    ]
    .concat();
    for (what, bytes, body) in [("small", small, b"hello".to_vec()), ("large", large, body)] {
        let bytes = Arc::new(bytes);
        let app = {
            let bytes = bytes.clone();
            Responder::unix(folder.path(), move |conn| {
                let pieces = [usize::MAX, 1, 7, 4096, 65_536][conn.number % 5];
                if conn.request().is_some() && (pieces > 1 || bytes.len() < 5000) {
                    bytes.chunks(pieces.min(bytes.len())).all(|piece| {
                        if bytes.len() < 5000 {
                            std::thread::yield_now();
                        }
                        conn.send(piece)
                    });
                } else {
                    conn.send(&*bytes);
                }
            })
        };
        let site = serve(&folder, &app, Options::default());
        for turn in 0..5 {
            let reply = site.get("/a.php");
            assert_eq!(
                (reply.status, reply.header("x-a")),
                (201, Some("1")),
                "{what} {turn}: {}",
                reply.head
            );
            assert!(reply.body == body, "{what} {turn}: {} bytes", reply.body.len());
        }
        if what == "small" {
            for line in ["stderr: first", "stderr: second", "stderr: \\u{1b}[31mred\\u{7}"] {
                assert!(site.logged(line), "{line}: {:?}", site.log);
            }
            let (log, ids) = (site.log.lock().unwrap(), site.ids.lock().unwrap());
            assert!(log[0].contains("GET /a.php") && ids[0].len() == 16, "{log:?} {ids:?}");
            assert_eq!(ids[0], ids[1], "lines of one request have its number");
        }
    }
}

#[test]
fn an_answer_that_breaks_off_is_an_error_wherever_it_breaks() {
    let folder = folder();
    let whole = [stdout(b"Content-Type: a/b\n\n"), stdout(b"hello"), end(0, 0)].concat();
    let head = stdout(b"Content-Type: a/b\n\n").len();
    let len = whole.len();
    let cut = Arc::new(AtomicUsize::new(0));
    let app = {
        let cut = cut.clone();
        Responder::unix(folder.path(), move |conn| {
            if conn.request().is_some() {
                conn.send(&whole[..cut.load(Ordering::SeqCst)]);
            }
        })
    };
    let site = serve(&folder, &app, Options::default());
    for at in 0..len {
        cut.store(at, Ordering::SeqCst);
        let mut client = site.connect();
        client.send(post("/a.php", ""));
        let (status, text) = client.head();
        if at < head {
            assert_eq!(status, 502, "cut at {at}");
        } else if status == 200 {
            // The head was out already: only the missing end mark can say it.
            assert!(text.contains("transfer-encoding: chunked"), "cut at {at}: {text}");
            assert!(!client.rest().ends_with(b"0\r\n\r\n"), "cut at {at}");
        } else {
            assert_eq!(status, 502, "cut at {at}: nothing of it was out");
        }
    }
    assert!(
        site.logged("the connection ended before the response")
            && site.logged("the connection ended inside the response")
    );
    cut.store(len, Ordering::SeqCst);
    assert_eq!(site.get("/a.php").text(), "hello");
}

#[test]
fn what_is_no_answer_is_a_bad_gateway_and_the_log_says_why() {
    let folder = folder();
    let long = format!("X-Small: 1\nX-Long: {}\n\n", "x".repeat(70_000));
    for (said, status, why) in [
        (b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), 502, "a record of version 72"),
        (record(END, 1, b"short", 0), 502, "an end of request of 5 bytes"),
        (end(3, 0), 502, "without a response, with status 3"),
        (end(0, 1), 502, "protocol status 1"),
        (end(0, 2), 503, "overloaded"),
        (end(0, 3), 502, "protocol status 3"),
        (answer(b"Content-Type: a/b\n"), 502, "before its empty line"),
        (answer(b"\n\nbody"), 502, "no header field"),
        (answer(b"HTTP/1.1 200 OK\r\n\r\n"), 502, "line 1"),
        (answer(b"A: 1\n folded\n\n"), 502, "line 2"),
        (answer(b"Status: 99\n\n"), 502, "Status"),
        (answer(b"Status: 101 Switching\nUpgrade: h2c\n\n"), 502, "Status"),
        (
            answer(b"Content-Length: 5\nContent-Length: 6\n\nhello"),
            502,
            "Content-Length",
        ),
        (
            answer(b"Content-Length: 6\n\nhello"),
            502,
            "5 bytes where its Content-Length says 6",
        ),
        (
            answer(long.as_bytes()),
            502,
            "longer than 65536 bytes; its longest field is \"X-Long\"",
        ),
    ] {
        let app = saying(&folder, said);
        let site = serve(&folder, &app, Options::default());
        // Not idempotent, so that it is asked once.
        assert_eq!(site.ask(&post("/a.php", "x")).status, status, "{why}");
        assert!(site.logged(why), "{why}: {:?}", site.log);
        assert_eq!(app.connections(), 1, "{why}");
    }
}

#[test]
fn a_head_as_long_as_applications_make_them_passes_and_the_bound_can_be_set() {
    let folder = folder();
    let cookies: String = (0..15)
        .map(|i| format!("Set-Cookie: c{i}={}\r\n", "x".repeat(4000)))
        .collect();
    let app = saying(&folder, answer(format!("{cookies}\r\nok").as_bytes()));
    let site = serve(&folder, &app, Options::default());
    let reply = site.get("/a.php");
    assert_eq!((reply.status, reply.text()), (200, "ok"));
    assert_eq!(reply.head.matches("Set-Cookie").count(), 15);
    let tight = Options {
        head_bytes: 1000,
        ..Options::default()
    };
    let site = serve(&folder, &app, tight);
    assert_eq!(site.get("/a.php").status, 502);
    assert!(site.logged("longer than 1000 bytes"));
}

#[test]
fn a_flood_of_stderr_is_cut_and_the_answer_is_not() {
    let folder = folder();
    let line = format!("{}\n", "e".repeat(99));
    let flood: Vec<u8> = (0..100).flat_map(|_| stderr(&line.repeat(100))).collect();
    let app = saying(
        &folder,
        [stdout(b"A: 1\n\nhel"), flood, stdout(b"lo"), end(9, 0)].concat(),
    );
    let site = serve(&folder, &app, Options::default());
    assert_eq!(site.get("/a.php").text(), "hello");
    assert!(site.logged("more bytes on its standard error") && site.logged("ended with status 9"));
    let logged: usize = site.log.lock().unwrap().iter().map(String::len).sum();
    assert!(logged < 200_000, "{logged} bytes of log");
}

#[test]
fn location_and_status_mean_what_cgi_says() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |params, body| {
        let to = match params.get("QUERY_STRING") {
            "abroad" => "Location: https://example.org/x\n\n",
            "other-host" => "Location: //example.org/x\n\n",
            "other-host-moved" => "Status: 301\nLocation: //example.org/x\n\n",
            "backslash" => "Location: /\\example.org/x\n\n",
            "with-status" => "Status: 307 Over There\nLocation: /a.php?there\n\n",
            "local" => "Location: /sub/?from=local\nSet-Cookie: a=1\n\n",
            "file" => "Location: /photo.jpg\n\n",
            "circle" => "Location: /a.php?circle\n\n",
            query => {
                let text = format!(
                    "{} {} {query} {}",
                    params.get("REQUEST_METHOD"),
                    params.get("SCRIPT_NAME"),
                    body.len()
                );
                return answer(format!("Content-Type: text/plain\n\n{text}").as_bytes());
            }
        };
        answer(to.as_bytes())
    });
    let site = serve(&folder, &app, Options::default());
    let ask = |query: &str| {
        let reply = site.ask(&post(&format!("/a.php?{query}"), "body"));
        let location = reply.header("location").map(str::to_owned);
        (reply.status, location)
    };
    assert_eq!(ask("abroad"), (302, Some("https://example.org/x".into())));
    // The Location is the backend's own, so it may name another host. docs/configuration.md says so.
    assert_eq!(ask("other-host"), (302, Some("//example.org/x".into())));
    assert_eq!(ask("other-host-moved"), (301, Some("//example.org/x".into())));
    assert_eq!(ask("backslash"), (302, Some("/\\example.org/x".into())));
    assert_eq!(ask("with-status"), (307, Some("/a.php?there".into())));
    assert_eq!(ask("file"), (302, Some("/photo.jpg".into())));
    assert_eq!(ask("circle"), (502, None));
    let reply = site.ask(&post("/a.php?local", "body"));
    assert_eq!(
        (reply.status, reply.text()),
        (200, "GET /sub/index.php from=local 0"),
        "a local redirect is a GET of ours"
    );
    let options = Options {
        local_redirects: false,
        ..Options::default()
    };
    let reply = serve(&folder, &app, options).ask(&post("/a.php?local", "body"));
    assert_eq!(
        (reply.status, reply.header("location"), reply.header("set-cookie")),
        (302, Some("/sub/?from=local"), Some("a=1")),
        "a login may be in it"
    );
}

#[test]
fn framing_is_ours() {
    let folder = folder();
    let said = answer(b"Content-Length: 5\nTransfer-Encoding: chunked\nConnection: X-Hop\nX-Hop: 1\nKeep-Alive: 1\nX-Powered-By: PHP\n\nhello, cut");
    let app = saying(&folder, said);
    let options = Options {
        hide: vec!["x-powered-by".into()],
        ..Options::default()
    };
    let site = serve(&folder, &app, options);
    let mut client = site.connect();
    for _ in 0..2 {
        let reply = client.get("/a.php");
        assert_eq!((reply.status, reply.text()), (200, "hello"));
        for gone in ["transfer-encoding", "x-hop", "keep-alive", "x-powered-by", "connection"] {
            assert_eq!(reply.header(gone), None, "{}", reply.head);
        }
    }
    assert!(site.logged("longer than its Content-Length"));
}

#[test]
fn what_has_no_body_gets_none_and_the_connection_lives() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |params, _| match params.get("QUERY_STRING") {
        "204" => answer(b"Status: 204 No Content\n\na body all the same"),
        "304" => answer(b"Status: 304 Not Modified\nETag: \"a\"\n\na body"),
        "length" => answer(b"Content-Length: 70000\n\n"),
        _ => answer(b"A: 1\n\na body"),
    });
    let site = serve(&folder, &app, Options::default());
    let mut client = site.connect();
    for (method, query, status, length) in [
        ("GET", "204", 204, None),
        ("GET", "304", 304, None),
        ("HEAD", "length", 200, Some("70000")),
        ("HEAD", "", 200, None),
    ] {
        client.send(format!("{method} /a.php?{query} HTTP/1.1\r\nHost: test\r\n\r\n"));
        let (got, head) = client.head();
        assert_eq!(got, status, "{query}: {head}");
        let found = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        assert_eq!(found, length, "{method} {query}: {head}");
    }
    assert_eq!(client.get("/a.php").text(), "a body");
}

#[test]
fn an_announced_length_is_passed_on_and_kept_to() {
    let folder = folder();
    let app = Responder::unix(folder.path(), |conn| {
        let Some((params, _)) = conn.request() else { return };
        conn.send(stdout(b"Content-Length: 10\n\nhello"));
        // So that the rest comes in a read of its own.
        std::thread::sleep(SHORT);
        match params.get("QUERY_STRING") {
            "exact" => conn.send([stdout(b"12345"), end(0, 0)].concat()),
            "long" => conn.send([stdout(b"12345"), stdout(b"too much"), end(0, 0)].concat()),
            _ => conn.send([stdout(b"1"), end(0, 0)].concat()),
        };
    });
    let site = serve(&folder, &app, Options::default());
    let mut client = site.connect();
    for query in ["exact", "long", "exact"] {
        let reply = client.get(&format!("/a.php?{query}"));
        assert_eq!(
            (reply.header("content-length"), reply.text()),
            (Some("10"), "hello12345"),
            "{query}"
        );
    }
    client.send("GET /a.php?short HTTP/1.1\r\nHost: test\r\n\r\n");
    client.head();
    assert_eq!(client.rest(), b"hello1", "the connection ends early");
    eventually("the log says so", || site.logged("4 bytes before the Content-Length"));
}

#[test]
fn pieces_go_out_when_they_come() {
    let folder = folder();
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let app = Responder::unix(folder.path(), move |conn| {
        if conn.request().is_none() {
            return;
        }
        conn.send(stdout(b"Content-Type: text/event-stream\nX-Accel-Buffering: no\n\n"));
        for event in ["data: 1\n\n", "data: 2\n\n"] {
            wait.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            conn.send(stdout(event.as_bytes()));
        }
        conn.send(end(0, 0));
    });
    let site = serve(&folder, &app, Options::default());
    let mut client = site.connect();
    client.send("GET /a.php HTTP/1.1\r\nHost: test\r\n\r\n");
    let (status, head) = client.head();
    assert!(
        status == 200 && !head.contains("ccel"),
        "the head is there before the first event: {head}"
    );
    go.send(()).unwrap();
    assert_eq!(client.take(14), b"0009\r\ndata: 1\n");
    go.send(()).unwrap();
    client.take(3);
    assert_eq!(client.chunks(), b"data: 2\n\n");
}

// ---- files that the backend names ----

#[test]
fn files_inside_the_root_are_sent_in_the_applications_place() {
    let folder = folder();
    let root = folder.root().display().to_string();
    let app = {
        let root = root.clone();
        Responder::answering(folder.path(), move |params, _| {
            let file = match params.get("QUERY_STRING") {
                "sendfile" => format!("X-Sendfile: {root}/files/secret.txt"),
                "accel" => "X-Accel-Redirect: /files/secret.txt".into(),
                "encoded" => "X-Accel-Redirect: /files/%73ecret.txt?x".into(),
                "outside" => "X-Sendfile: /etc/passwd".into(),
                "climb" => format!("X-Sendfile: {root}/../../../../etc/passwd"),
                "climb-accel" => "X-Accel-Redirect: /../secret.txt".into(),
                "sibling" => format!("X-Sendfile: {root}-other/x"),
                "folder" => "X-Accel-Redirect: /files".into(),
                "slashes" => "X-Accel-Redirect: //files/secret.txt".into(),
                "elsewhere" => "X-Accel-Redirect: //evil.example/x".into(),
                "backslash" => "X-Accel-Redirect: /\\evil.example/x".into(),
                "backslashes" => "X-Accel-Redirect: \\\\evil.example/x".into(),
                "url" => "X-Accel-Redirect: https://evil.example/x".into(),
                _ => "X-Accel-Redirect: /files/none.txt".into(),
            };
            answer(
                format!("Content-Type: text/secret\nContent-Disposition: attachment\nX-Own: 1\n{file}\n\nnot this")
                    .as_bytes(),
            )
        })
    };
    let site = serve(&folder, &app, Options::default());
    for query in ["sendfile", "accel", "encoded"] {
        let reply = site.get(&format!("/a.php?{query}"));
        assert_eq!((reply.status, reply.text()), (200, "a secret"), "{query}");
        assert_eq!(reply.header("content-type"), Some("text/secret"));
        assert_eq!(reply.header("content-disposition"), Some("attachment"));
        assert!(!reply.head.to_lowercase().contains("x-accel") && !reply.head.to_lowercase().contains("x-sendfile"));
    }
    for (query, status) in [
        ("outside", 502),
        ("climb", 404),
        ("climb-accel", 502),
        ("sibling", 502),
        ("folder", 404),
        ("none", 404),
        ("elsewhere", 404),
        ("backslash", 404),
        ("backslashes", 502),
        ("url", 502),
    ] {
        let reply = site.get(&format!("/a.php?{query}"));
        assert_eq!(reply.status, status, "{query}: {}", reply.text());
        assert!(!reply.text().contains("root:"));
        assert_eq!(reply.header("location"), None, "{query}");
    }
    assert!(site.logged("\"/etc/passwd\" is not below the root"));
    assert!(site.logged("names /files/none.txt, which cannot be sent"));

    let handler = FastCgi::open(folder.root(), upstream(&app)).unwrap();
    let handler =
        handler.on_internal(|request, path| Response::new(StatusCode::OK).body(format!("{} {path}", request.method())));
    let site = crate::common::site(Router::new().fallback(handler.handler()));
    assert_eq!(site.get("/a.php?accel").text(), "GET /files/secret.txt");
    // A handler that makes a redirect of the path cannot be led to another server.
    assert_eq!(site.get("/a.php?slashes").text(), "GET /files/secret.txt");
    assert_eq!(site.get("/a.php?elsewhere").text(), "GET /evil.example/x");
    assert_eq!(site.get("/a.php?backslashes").status, 502);
    assert_eq!(site.get("/a.php?url").status, 502);
    assert_eq!(site.get("/a.php?sendfile").text(), "GET /files/secret.txt");
}

#[test]
fn files_of_the_application_are_sent_in_parts_and_only_when_they_have_changed() {
    let folder = folder();
    folder.write("big.bin", vec![b'x'; 100_000]);
    let root = folder.root().display().to_string();
    let app = Responder::answering(folder.path(), move |params, _| {
        let (status, file) = match params.get("QUERY_STRING") {
            "page" => ("Status: 403\n", "files/secret.txt"),
            "big" => ("", "big.bin"),
            _ => ("", "files/secret.txt"),
        };
        let fields =
            "Content-Type: text/secret\nContent-Disposition: attachment\nCache-Control: private\nSet-Cookie: a=1\n";
        answer(format!("{status}{fields}X-Sendfile: {root}/{file}\n\n").as_bytes())
    });
    let site = serve(&folder, &app, Options::default());
    let ask = |query: &str, field: &str| site.ask(&format!("GET /a.php?{query} HTTP/1.1\r\nHost: test\r\n{field}\r\n"));

    let whole = ask("", "");
    assert_eq!((whole.status, whole.text()), (200, "a secret"));
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    let (tag, date) = (whole.header("etag").unwrap(), whole.header("last-modified").unwrap());

    let part = ask("", "Range: bytes=2-4\r\n");
    assert_eq!((part.status, part.text()), (206, "sec"));
    assert_eq!(part.header("content-range"), Some("bytes 2-4/8"));
    assert_eq!(part.header("content-type"), Some("text/secret"));
    let part = ask("big", "Range: bytes=-5\r\n");
    assert_eq!((part.status, part.text()), (206, "xxxxx"));
    let parts = ask("big", "Range: bytes=0-0,50000-50002\r\n");
    assert_eq!(parts.status, 206);
    assert!(
        parts
            .header("content-type")
            .unwrap()
            .starts_with("multipart/byteranges")
    );
    assert!(parts.text().contains("bytes 50000-50002/100000") && parts.text().contains("\r\nxxx\r\n"));
    let beyond = ask("", "Range: bytes=99-\r\n");
    assert_eq!(
        (beyond.status, beyond.header("content-range")),
        (416, Some("bytes */8"))
    );
    assert_eq!(beyond.header("content-disposition"), None, "that is the file's");

    for field in [
        format!("If-None-Match: {tag}\r\n"),
        format!("If-Modified-Since: {date}\r\n"),
    ] {
        let same = ask("", &field);
        assert_eq!((same.status, same.text()), (304, ""), "{field}");
        assert_eq!(same.header("cache-control"), Some("private"));
        assert_eq!(same.header("set-cookie"), Some("a=1"));
    }
    assert_eq!(ask("", "If-Match: \"other\"\r\n").status, 412);

    // An error page is sent whole, whatever is asked of it.
    let page = ask("page", &format!("Range: bytes=2-4\r\nIf-None-Match: {tag}\r\n"));
    assert_eq!((page.status, page.text()), (403, "a secret"));

    // The file is sent as the backend has just written it.
    for turn in 0..5 {
        folder.write("files/secret.txt", format!("secret {turn}"));
        assert_eq!(ask("", "").text(), format!("secret {turn}"));
    }
}
