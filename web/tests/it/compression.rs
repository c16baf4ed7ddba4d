//! Compressed responses of handlers: they decode to the handler's bytes, and no bytes wait in the
//! encoder.

use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use crate::common::backend::Backend;
use crate::common::folder::{decoded, prose};
use crate::common::{Client, PATIENCE, connect_narrowly, eventually, narrow_listener, site, site_with};
use osier::sync::Event;
use osier_web::compress::Compress;
use osier_web::http::StatusCode;
use osier_web::{Body, Request, Response, Router, Server};

/// Handlers of every kind of body, behind the filter.
fn router() -> Router {
    let kinds = |request: &mut Request<'_>| {
        let text = prose(150_000);
        let response = match request.param("kind").as_deref() {
            Some("string") => Response::new(StatusCode::OK).body(String::from_utf8(text).unwrap()),
            Some("shared") => Response::new(StatusCode::OK).body(Body::shared(Arc::new(text))),
            Some("stream") => Response::stream(move |out| text.chunks(777).try_for_each(|piece| out.write_all(piece))),
            Some("reader") => Response::new(StatusCode::OK).body(Body::reader(std::io::Cursor::new(text))),
            Some("sized") => {
                Response::new(StatusCode::OK).body(Body::sized_reader(std::io::Cursor::new(text), 150_000))
            }
            _ => return Response::new(StatusCode::NOT_FOUND),
        };
        Compress::new().filter(
            request,
            response
                .content_type("text/html; charset=utf-8")
                .header("etag", "\"1\""),
        )
    };
    Router::new().get("/{kind}", kinds)
}

const KINDS: [&str; 5] = ["string", "shared", "stream", "reader", "sized"];

#[test]
fn every_kind_of_body_in_every_coding() {
    let site = site(router());
    for kind in KINDS {
        for coding in [None, Some("gzip"), Some("br"), Some("zstd")] {
            let accept = coding.unwrap_or("identity");
            let request = |method| format!("{method} /{kind} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: {accept}\r\n\r\n");
            let reply = site.ask(&request("GET"));
            assert_eq!(reply.header("content-encoding"), coding, "{kind}");
            assert_eq!(reply.header("vary"), Some("accept-encoding"), "{kind}");
            let tag = if coding.is_some() { "W/\"1\"" } else { "\"1\"" };
            assert_eq!(reply.header("etag"), Some(tag), "{kind}");
            assert!(decoded(coding, &reply.body) == prose(150_000), "{kind} {accept}");
            assert!(coding.is_none() || reply.body.len() < 100_000, "{kind} {accept}");
            let mut client = site.connect();
            client.send(request("HEAD"));
            let (_, head) = client.head();
            let fields = |head: &str| -> Vec<String> {
                // Chunks are said only where there are any.
                let varying = |line: &&str| line.starts_with("date:") || line.starts_with("transfer-encoding:");
                let lines = head.lines().filter(|line| !varying(line));
                lines.map(str::to_owned).collect()
            };
            assert_eq!(fields(&head), fields(&reply.head), "{kind} {accept}");
        }
    }
}

#[test]
fn curl_undoes_every_coding() {
    let site = site(router());
    for kind in KINDS {
        for coding in ["gzip", "br", "zstd"] {
            let curl = Command::new("curl")
                .args(["--silent", "--show-error", "--max-time", "20", "--noproxy", "*"])
                .args(["--compressed", "-H", &format!("Accept-Encoding: {coding}")])
                .arg(format!("http://{}/{kind}", site.addr))
                .output();
            let output = match curl {
                Ok(output) => output,
                Err(error) => return println!("skipped: curl cannot be started: {error}"),
            };
            assert!(output.status.success(), "{kind} {coding}: {}", output.status);
            assert!(output.stdout == prose(150_000), "{kind} {coding}");
        }
    }
}

fn ask(client: &mut Client, coding: &str) {
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: {coding}\r\n\r\n"
    ));
}

/// One chunk of a chunked body.
fn chunk(client: &mut Client) -> Vec<u8> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(client.take(1));
    }
    let length = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
    let mut data = client.take(length + 2);
    data.truncate(length);
    data
}

/// As much as can be decoded so far.
fn decoded_so_far(coding: &str, bytes: &[u8]) -> String {
    let mut reader: Box<dyn Read> = match coding {
        "br" => Box::new(brotli::Decompressor::new(bytes, 4096)),
        "zstd" => Box::new(zstd::stream::read::Decoder::new(bytes).unwrap()),
        _ => Box::new(flate2::read::GzDecoder::new(bytes)),
    };
    let mut text = Vec::new();
    let mut piece = [0; 1024];
    while let Ok(count @ 1..) = reader.read(&mut piece) {
        text.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn what_is_flushed_and_what_is_written_before_a_wait_goes_out() {
    for flushes in [true, false] {
        let go_on = Arc::new(Event::new());
        let theirs = Arc::clone(&go_on);
        let handler = move |request: &mut Request<'_>| {
            let go_on = Arc::clone(&theirs);
            let response = Response::stream(move |out| {
                for round in 0..3 {
                    write!(out, "round {round};")?;
                    if flushes {
                        out.flush()?;
                    }
                    go_on.wait();
                }
                write!(out, "end")
            });
            Compress::new().filter(request, response.content_type("text/plain"))
        };
        let site = site(Router::new().get("/", handler));
        for coding in ["gzip", "br", "zstd"] {
            let mut client = site.connect();
            ask(&mut client, coding);
            let (_, head) = client.head();
            assert!(head.contains(&format!("content-encoding: {coding}")), "{head}");
            let mut encoded = Vec::new();
            let mut expected = String::new();
            for round in 0..3 {
                expected += &format!("round {round};");
                while decoded_so_far(coding, &encoded) != expected {
                    encoded.extend(chunk(&mut client));
                }
                go_on.set();
            }
            encoded.extend(client.chunks());
            assert_eq!(decoded(Some(coding), &encoded), format!("{expected}end").into_bytes());
        }
    }
}

#[test]
fn events_are_not_compressed() {
    let handler = |request: &mut Request<'_>| {
        let response = Response::stream(|out| write!(out, "data: {}\n\n", "x".repeat(4000)));
        Compress::new().filter(request, response.content_type("text/event-stream"))
    };
    let site = site(Router::new().get("/", handler));
    let reply = site.ask("GET / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n");
    assert_eq!((reply.header("content-encoding"), reply.header("vary")), (None, None));
    assert!(reply.body.starts_with(b"data: xxx"));
}

#[test]
fn a_body_that_fails_does_not_look_complete() {
    let handler = |request: &mut Request<'_>| {
        let response = Response::stream(|out| {
            out.write_all(&prose(300_000))?;
            out.flush()?;
            Err(std::io::Error::other("the source broke"))
        });
        Compress::new().filter(request, response.content_type("text/plain"))
    };
    let site = site(Router::new().get("/", handler));
    for coding in ["gzip", "br", "zstd"] {
        let mut client = site.connect();
        ask(&mut client, coding);
        client.head();
        let rest = client.rest();
        assert!(!rest.ends_with(b"0\r\n\r\n"), "{coding}: an end mark after a failure");
    }
    assert!(site.logged("the source broke"));
}

#[test]
fn a_long_stream_leaves_room_for_others_on_its_worker() {
    let stop = Arc::new(AtomicBool::new(false));
    let (begin, begun) = mpsc::channel();
    let (theirs, piece) = (Arc::clone(&stop), prose(64 << 10));
    let handler = move |request: &mut Request<'_>| {
        let (begin, stop, piece) = (begin.clone(), Arc::clone(&theirs), piece.clone());
        let response = Response::stream(move |out| {
            let start = Instant::now();
            // Repeats itself, so that it compresses to less than the kernel's buffers hold: it never waits for its client.
            while !stop.load(Ordering::Relaxed) {
                assert!(start.elapsed() < PATIENCE, "nobody else has been answered");
                out.write_all(&piece)?;
                let _ = begin.send(());
            }
            Ok(())
        });
        Compress::new().filter(request, response.content_type("text/plain"))
    };
    let site = site(Router::new().get("/long", handler).get("/", |_| "short"));
    let mut long = site.connect();
    long.send("GET /long HTTP/1.1\r\nHost: x\r\nAccept-Encoding: br\r\n\r\n");
    begun.recv().unwrap();
    assert_eq!(site.get("/").text(), "short");
    stop.store(true, Ordering::Relaxed);
    let (_, head) = long.head();
    assert!(head.contains("content-encoding: br"));
    let text = decoded(Some("br"), &long.chunks());
    assert!(text.chunks(64 << 10).all(|piece| piece == prose(64 << 10)));
}

/// CPU time of this thread, in nanoseconds. `None` if the kernel does not count it.
fn cpu_time() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split(' ').next()?.parse().ok()
}

#[test]
fn large_bodies_are_not_encoded_by_the_worker() {
    if cpu_time().is_none() {
        return println!("skipped: /proc/thread-self/schedstat is missing");
    }
    let text = Arc::new(prose(2 << 20));
    let (bodies, streams) = (Arc::clone(&text), Arc::clone(&text));
    let filtered = |request: &mut Request<'_>, response: Response| {
        Compress::new().filter(request, response.content_type("text/plain"))
    };
    let body = move |request: &mut Request<'_>| {
        let response = Response::new(StatusCode::OK).body(Body::shared(Arc::clone(&bodies)));
        filtered(request, response)
    };
    let stream = move |request: &mut Request<'_>| {
        let text = Arc::clone(&streams);
        // Small pieces and no wait, as from a fast backend.
        let response = Response::stream(move |out| text.chunks(3000).try_for_each(|piece| out.write_all(piece)));
        filtered(request, response)
    };
    let router = Router::new().get("/body", body).get("/stream", stream);
    let router = router.get("/time", |_| cpu_time().unwrap().to_string());
    let site = site_with(1, Server::new(router), |server| server.bind("127.0.0.1:0"));
    let time = || site.get("/time").text().parse::<u64>().unwrap();
    for coding in ["br", "gzip"] {
        // What a fast level costs on this machine, in this build.
        let start = cpu_time().unwrap();
        match coding {
            "br" => drop(brotli::CompressorWriter::new(std::io::sink(), 4096, 2, 18).write_all(&text)),
            _ => drop(flate2::write::GzEncoder::new(std::io::sink(), flate2::Compression::new(1)).write_all(&text)),
        }
        let cost = cpu_time().unwrap() - start;
        for path in ["/body", "/stream"] {
            let before = time();
            let reply = site.ask(&format!(
                "GET {path} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: {coding}\r\n\r\n"
            ));
            let spent = time() - before;
            assert_eq!(reply.header("content-encoding"), Some(coding));
            assert!(decoded(Some(coding), &reply.body) == *text, "{path} {coding}");
            assert!(
                spent < cost / 2,
                "{path} {coding}: {spent} ns of the worker, {cost} ns to encode"
            );
        }
    }
}

#[test]
fn flushed_pieces_leave_room_for_others_on_their_worker() {
    let (stop, pieces) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (theirs, counted, piece) = (Arc::clone(&stop), Arc::clone(&pieces), prose(4000));
    let handler = move |request: &mut Request<'_>| {
        let (stop, pieces, piece) = (Arc::clone(&theirs), Arc::clone(&counted), piece.clone());
        let response = Response::stream(move |out| {
            let start = Instant::now();
            while !stop.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                // Small enough to be encoded on the worker, all of them.
                out.write_all(&piece)?;
                out.flush()?;
                pieces.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        Compress::new().filter(request, response.content_type("text/plain"))
    };
    let counted = Arc::clone(&pieces);
    let router = Router::new()
        .get("/pieces", handler)
        .get("/", move |_| counted.load(Ordering::Relaxed).to_string());
    let site = site_with(1, Server::new(router), |server| server.bind("127.0.0.1:0"));
    let mut long = site.connect();
    long.send("GET /pieces HTTP/1.1\r\nHost: x\r\nAccept-Encoding: br\r\n\r\n");
    let reading = std::thread::spawn(move || {
        let (_, head) = long.head();
        (head, long.chunks().len())
    });
    eventually("the pieces come", || pieces.load(Ordering::Relaxed) > 200);
    let mut other = site.connect();
    let mut waits: Vec<usize> = (0..21)
        .map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            let before = pieces.load(Ordering::Relaxed);
            other.get("/").text().parse::<usize>().unwrap() - before
        })
        .collect();
    stop.store(true, Ordering::Relaxed);
    let (head, _) = reading.join().unwrap();
    assert!(head.contains("content-encoding: br"));
    waits.sort();
    assert!(waits[10] <= 24, "{} pieces before another response", waits[10]);
}

#[test]
fn an_encoded_stream_whose_client_does_not_read_holds_up_nobody() {
    const PIECES: usize = 300;
    // Text that no encoder makes much smaller.
    let text = |number: usize| {
        let mut state = number as u64 + 1;
        let digits = (0..1_000).map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            char::from(b' ' + (state >> 58) as u8)
        });
        digits.collect::<String>()
    };
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let backend = Backend::start(move |_, conn| {
        while conn.request().is_some() {
            conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n");
            for number in 0..PIECES {
                conn.send(format!("3e8\r\n{}\r\n", text(number)));
                count.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(1)); // small pieces, one by one
            }
            conn.send("0\r\n\r\n");
        }
    });
    let proxy = backend.proxy();
    let router = Router::new()
        .get("/hello", |_| "hello")
        .fallback(move |request: &mut Request<'_>| {
            let response = proxy.answer(request);
            Compress::new().filter(request, response)
        });
    let site = site_with(1, Server::new(router), |server| server.listener(narrow_listener()));
    let mut slow = Client::new(connect_narrowly(site.addr));
    slow.send("GET /stream HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n");
    slow.head();
    eventually("more is sent than the client's socket takes", || {
        sent.load(Ordering::SeqCst) == PIECES
    });
    assert_eq!(site.get("/hello").text(), "hello");
    let whole: String = (0..PIECES).map(text).collect();
    assert!(decoded(Some("gzip"), &slow.chunks()) == whole.as_bytes());
}
