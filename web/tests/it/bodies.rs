//! Bodies in both directions: known lengths, chunks, `100 Continue`, streams, readers, files.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::{PATIENCE, site};
use osier_web::{Body, Request, Response, Router, http::StatusCode};

fn echo(request: &mut Request<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    request.body().read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

#[test]
fn a_body_of_known_length_is_read_as_sent() {
    let site = site(Router::new().post("/", echo));
    let mut client = site.connect();
    for len in [0, 1, 5, 16_000, 16_384, 70_000, 1 << 20] {
        let body = pattern(len);
        client.send(format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {len}\r\n\r\n"));
        client.send(&body);
        assert!(client.reply().body == body, "{len} bytes");
    }
}

#[test]
fn a_chunked_body_is_decoded() {
    let site = site(Router::new().post("/", echo));
    let mut client = site.connect();
    for size in [1, 10, 4096, 100_000] {
        let body = pattern(200_000.min(size * 300));
        client.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut framed = Vec::new();
        for chunk in body.chunks(size) {
            write!(framed, "{:x};ext=1\r\n", chunk.len()).unwrap();
            framed.extend_from_slice(chunk);
            framed.extend_from_slice(b"\r\n");
        }
        framed.extend_from_slice(b"0\r\nx-trailer: dropped\r\n\r\n");
        client.send(framed);
        assert!(client.reply().body == body, "chunks of {size}");
    }
}

#[test]
fn a_bound_that_comes_in_the_middle_of_a_chunk_holds_for_it() {
    let site = site(
        Router::new().post("/", |request: &mut Request<'_>| -> io::Result<Vec<u8>> {
            // A preview stops within a chunk of any size.
            assert_eq!(request.body().preview(3), None);
            request.body().limit(1000)?;
            echo(request)
        }),
    );
    for (sizes, status) in [
        (&[1000][..], 200),
        (&[1001], 413),
        (&[1 << 20], 413),
        (&[600, 400], 200),
        (&[600, 401], 413),
        (&[1, 999], 200),
        (&[1, 1 << 20], 413),
    ] {
        let mut client = site.connect();
        client.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut framed = Vec::new();
        for size in sizes {
            write!(framed, "{size:x}\r\n").unwrap();
            framed.extend(pattern(*size));
            framed.extend(b"\r\n");
        }
        framed.extend(b"0\r\n\r\n");
        // A refused client may not be able to send the rest.
        let _ = client.try_send(&framed);
        assert_eq!(client.reply().status, status, "{sizes:?}");
    }
}

#[test]
fn continue_is_sent_when_the_handler_reads_and_not_before() {
    let router = Router::new()
        .post("/read", echo)
        .post("/refuse", |_| StatusCode::FORBIDDEN);
    let site = site(router);

    let mut client = site.connect();
    client.send("POST /read HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.head().0, 100);
    client.send("hello");
    assert_eq!(client.reply().text(), "hello");

    let mut client = site.connect();
    client.send("POST /refuse HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    let reply = client.reply();
    assert_eq!((reply.status, reply.header("connection")), (403, Some("close")));
    client.expect_end();
}

#[test]
fn a_body_that_came_along_needs_no_continue() {
    let site = site(Router::new().post("/", echo));
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello");
    assert_eq!(client.reply().text(), "hello");
    client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(client.reply().text(), "hi");
}

#[test]
fn an_unread_body_is_skipped_when_it_is_small() {
    let site = site(Router::new().post("/", |_| "not read").get("/", |_| "next"));
    let mut client = site.connect();
    for len in [3, 10_000, 100_000] {
        client.send(format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {len}\r\n\r\n"));
        client.send(pattern(len));
        assert_eq!(client.reply().text(), "not read");
        assert_eq!(client.get("/").text(), "next");
    }
    client.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    assert_eq!(client.reply().text(), "not read");
    assert_eq!(client.get("/").text(), "next");
}

#[test]
fn a_large_unread_body_closes_the_connection_after_the_answer() {
    let site = site(Router::new().post("/", |_| "not read"));
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2000000\r\n\r\n");
    client.send(pattern(10_000));
    let reply = client.reply();
    assert_eq!((reply.text(), reply.header("connection")), ("not read", Some("close")));
    client.expect_end();
}

#[test]
fn a_body_cut_short_fails_the_read_and_the_handler_is_told() {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let site = site(Router::new().post("/", move |request: &mut Request<'_>| {
        let error = io::read_to_string(request.body()).unwrap_err();
        sender.lock().unwrap().send(error.kind()).unwrap();
        Err::<(), _>(error)
    }));
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhel");
    client.finish_sending();
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(io::ErrorKind::UnexpectedEof));
    let reply = client.reply();
    assert_eq!((reply.status, reply.header("connection")), (400, Some("close")));
    client.expect_end();
}

#[test]
fn a_stream_is_chunked_and_ended() {
    let site = site(Router::new().get("/", |_| {
        Response::stream(|out| {
            for i in 0..50_000 {
                writeln!(out, "line {i}")?;
            }
            Ok(())
        })
    }));
    let mut client = site.connect();
    let expected: String = (0..50_000).map(|i| format!("line {i}\n")).collect();
    for _ in 0..2 {
        let reply = client.get("/");
        assert_eq!(reply.header("transfer-encoding"), Some("chunked"));
        assert!(reply.text() == expected);
    }
}

#[test]
fn a_stream_to_http_1_0_ends_with_the_connection() {
    let site = site(Router::new().get("/", |_| Response::stream(|out| out.write_all(b"all of it"))));
    let reply = site.ask("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(reply.text(), "all of it");
    assert_eq!(
        (reply.header("connection"), reply.header("transfer-encoding")),
        (Some("close"), None)
    );
}

#[test]
fn what_a_stream_has_written_goes_out_before_it_waits() {
    let (release, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let site = site(Router::new().get("/", move |_: &mut Request<'_>| {
        let gate = gate.clone();
        Response::stream(move |out| {
            out.write_all(b"early")?;
            osier::unblock(move || gate.lock().unwrap().recv_timeout(PATIENCE)).expect("released");
            out.write_all(b"late")
        })
    }));
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    client.head();
    assert_eq!(client.take(13), b"0005\r\nearly\r\n");
    release.send(()).unwrap();
    assert_eq!(client.chunks(), b"late");
}

#[test]
fn readers_of_known_and_unknown_length() {
    let router = Router::new()
        .get("/known", |_| {
            Response::new(StatusCode::OK).body(Body::sized_reader(io::repeat(b'k'), 100_000))
        })
        .get("/unknown", |_| {
            Response::new(StatusCode::OK).body(Body::reader(io::repeat(b'u').take(100_000)))
        });
    let site = site(router);
    let mut client = site.connect();
    let reply = client.get("/known");
    assert_eq!(reply.header("content-length"), Some("100000"));
    assert!(reply.body.iter().all(|&b| b == b'k'));
    let reply = client.get("/unknown");
    assert_eq!(
        (reply.header("transfer-encoding"), reply.body.len()),
        (Some("chunked"), 100_000)
    );
}

#[test]
fn a_reader_that_ends_early_ends_the_connection() {
    let site = site(Router::new().get("/", |_| {
        let short = io::repeat(b'k').take(90_000);
        Response::new(StatusCode::OK).body(Body::sized_reader(short, 100_000))
    }));
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n".repeat(2));
    client.head();
    assert_eq!(client.rest().len(), 90_000);
    assert!(site.logged("ended early"));
}

#[test]
fn a_range_of_a_file_is_sent() {
    let path = std::env::temp_dir().join(format!("osier-web-file-{}", std::process::id()));
    let content = pattern(3 << 20);
    std::fs::write(&path, &content).unwrap();
    let served = path.clone();
    let site = site(Router::new().get("/{offset}/{len}", move |request: &mut Request<'_>| {
        let number = |name| {
            request
                .param_raw(name)
                .and_then(|text| text.parse::<u64>().ok())
                .unwrap()
        };
        let file = File::open(&served)?;
        io::Result::Ok(Response::new(StatusCode::OK).body(Body::file(file, number("offset"), number("len"))))
    }));
    let mut client = site.connect();
    for (offset, len) in [(0, 3 << 20), (0, 0), (1000, 1), (12_345, 100_000), (1 << 20, 2 << 20)] {
        let reply = client.get(&format!("/{offset}/{len}"));
        assert_eq!(reply.status, 200);
        assert!(reply.body == content[offset..offset + len], "{len} bytes from {offset}");
    }
    client.send("GET /3000000/1000000 HTTP/1.1\r\nHost: t\r\n\r\n");
    client.head();
    assert_eq!(client.rest().len(), (3 << 20) - 3_000_000);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn shared_and_large_bodies_are_whole() {
    let page = Arc::new(pattern(1 << 20));
    let expected = page.clone();
    let router = Router::new()
        .get("/large", move |_: &mut Request<'_>| {
            Response::new(StatusCode::OK).body(Body::shared(page.clone()))
        })
        .get("/small", |_| "small");
    let site = site(router);
    let mut client = site.connect();
    let one = |path| format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n");
    client.send([one("/small"), one("/large"), one("/small"), one("/large")].concat());
    for _ in 0..2 {
        assert_eq!(client.reply().text(), "small");
        assert!(client.reply().body == *expected);
    }
}

#[test]
fn responses_without_a_body_have_none() {
    let router = Router::new()
        .get("/204", |_| (StatusCode::NO_CONTENT, "dropped"))
        .get("/304", |_| {
            Response::new(StatusCode::NOT_MODIFIED)
                .header("etag", "\"a\"")
                .body("dropped")
        });
    let site = site(router);
    let mut client = site.connect();
    for status in [204, 304, 204] {
        let reply = client.get(&format!("/{status}"));
        assert_eq!((reply.status, reply.header("content-length")), (status, None));
    }
    assert!(client.is_quiet_for(Duration::from_millis(50)));
}

#[test]
fn a_chunked_body_behind_a_head_that_ends_with_the_buffer() {
    let site = site(Router::new().post("/", echo).get("/", |_| "got"));
    // Bytes that the server reads at once.
    const BUFFER: usize = 16 << 10;
    for room in [0, 1, 10, 3000] {
        let mut client = site.connect();
        let first = "GET / HTTP/1.1\r\nHost: t\r\n\r\n";
        let head = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nX-Long: ";
        let long = "v".repeat(BUFFER - room - first.len() - head.len() - 4);
        client.send(format!("{first}{head}{long}\r\n\r\n"));
        assert_eq!(client.reply().text(), "got");
        for chunk in ["5\r\nhello\r\n", "7\r\n, world\r\n", "0\r\n\r\n"] {
            client.send(chunk);
        }
        assert_eq!(client.reply().text(), "hello, world", "{room} bytes after the head");
        client.send(first);
        assert_eq!(client.reply().text(), "got");
    }
}
