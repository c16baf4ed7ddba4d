//! Backends that attack the proxy in the bytes of HTTP/2: each costs bounded memory and ends in a 502, with the reason in the log.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use osier_web::proxy::{Options, Proxy};
use osier_web::{Response, Router};

use super::client::Client;
use super::upstream::{proxy, upstream};
use crate::common::backend::serve;
use crate::common::{PATIENCE, eventually, site};

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A field that is neither indexed nor compressed.
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        match text.len() {
            short @ ..127 => bytes.push(short as u8),
            mut long => {
                bytes.push(127);
                long -= 127;
                while long >= 128 {
                    bytes.push(long as u8 | 128);
                    long /= 128;
                }
                bytes.push(long as u8);
            }
        }
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// The index of `:status: 200`.
const OK: u8 = 0x88;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const NO_ERROR: [u8; 4] = [0; 4];

/// Sends SETTINGS to each connection, waits for a request, and leaves the connection to `attack`.
fn backend(attack: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, attack) = (listener.local_addr().unwrap(), Arc::new(attack));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, attack) = (stream.unwrap(), attack.clone());
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            thread::spawn(move || {
                let _ = stream.write_all(&frame(SETTINGS, 0, 0, &[]));
                let mut preface = [0; 24];
                let _ = stream.read_exact(&mut preface);
                let mut head = [0; 9];
                while stream.read_exact(&mut head).is_ok() {
                    let length = usize::from(head[1]) << 8 | usize::from(head[2]);
                    let _ = stream.read_exact(&mut vec![0; length]);
                    if head[3] == HEADERS {
                        break;
                    }
                }
                attack(&mut stream);
                // What else comes is read, so that the end is no reset.
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            });
        }
    });
    addr
}

/// Sends `bytes` again and again, until the other end has enough.
fn flood(bytes: Vec<u8>) -> impl Fn(&mut TcpStream) {
    let many = bytes.repeat(1 + 8_000 / bytes.len());
    move |stream| while stream.write_all(&many).is_ok() {}
}

fn once(bytes: Vec<u8>) -> impl Fn(&mut TcpStream) {
    move |stream| drop(stream.write_all(&bytes))
}

/// Asks once, and expects a 502 with this reason in the log.
#[track_caller]
fn fails(attack: impl Fn(&mut TcpStream) + Send + Sync + 'static, reason: &str) {
    let front = serve(proxy(backend(attack)));
    let mut client = Client::connect(front.addr);
    let reply = client.get("/");
    let log = front.log.lock().unwrap().join("\n");
    assert_eq!(reply.status, 502, "{reason}: {log}");
    assert!(log.contains(reason), "{reason}: {log}");
    assert_eq!(log.lines().count(), 1, "{log}");
}

#[test]
fn floods_of_frames_end_the_connection() {
    let reason = "has not answered: too many frames without progress (ENHANCE_YOUR_CALM)";
    fails(flood(frame(SETTINGS, 0, 0, &[])), reason);
    fails(flood(frame(PING, 0, 0, b"whatever")), reason);
    fails(flood(frame(PING, 1, 0, b"whatever")), reason);
    fails(flood(frame(0xfa, 0, 0, b"unknown")), reason);
    fails(flood(frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])), reason);
    let mut early = frame(HEADERS, END_HEADERS, 1, &field(":status", "103"));
    early = early.repeat(2);
    fails(flood(early), "too many ");
    let mut attack = frame(HEADERS, END_HEADERS, 1, &[OK]);
    attack.extend(frame(DATA, 0, 1, &[]).repeat(5_000));
    let front = serve(proxy(backend(once(attack))));
    let mut client = Client::connect(front.addr);
    let stream = client.begin("GET", "/", &[], true);
    client.until("the end of the response", |client| {
        client.replies[&stream].is_over() || client.closed
    });
    assert!(front.logged("too many frames without progress"));
}

#[test]
fn heads_without_an_end_or_too_large_are_refused() {
    let mut begin = frame(HEADERS, 0, 1, &[OK]);
    begin.extend(frame(CONTINUATION, 0, 1, &[]).repeat(5_000));
    fails(
        once(begin),
        "has not answered: too many CONTINUATION frames in a field block (ENHANCE_YOUR_CALM)",
    );

    // A bomb: a long field goes into the table once, and is repeated by one byte each.
    let mut bomb = vec![OK, 0x40];
    bomb.extend(&field("x", &"y".repeat(3_000))[1..]);
    bomb.extend([0xbe; 10_000]);
    fails(once(frame(HEADERS, END_HEADERS, 1, &bomb)), "(ENHANCE_YOUR_CALM)");

    let large = [vec![OK], field("x", &"y".repeat(15_000))].concat();
    let mut attack = frame(HEADERS, 0, 1, &large);
    for number in 0..5 {
        let flags = if number == 4 { END_HEADERS } else { 0 };
        attack.extend(frame(CONTINUATION, flags, 1, &field("x", &"y".repeat(15_000))));
    }
    fails(once(attack), "(ENHANCE_YOUR_CALM)");

    let many: Vec<u8> = (0..200).flat_map(|_| field("x", "y")).collect();
    let attack = frame(HEADERS, END_HEADERS, 1, &[vec![OK], many].concat());
    fails(once(attack), "(ENHANCE_YOUR_CALM)");
}

#[test]
fn malformed_responses_are_refused() {
    let malformed = "the response breaks the rules of HTTP/2 (PROTOCOL_ERROR)";
    for fields in [
        field("x", "no status"),
        field(":status", "101"),
        field(":status", "20"),
        [vec![OK], field("Upper", "x")].concat(),
        [vec![OK], field("x", "a\nb")].concat(),
        [vec![OK], field("connection", "close")].concat(),
        [vec![OK], field("transfer-encoding", "chunked")].concat(),
        [vec![OK], field(":path", "/")].concat(),
        [field("x", "y"), vec![OK]].concat(),
        [vec![OK], field("content-length", "1"), field("content-length", "2")].concat(),
        [vec![OK], field("content-length", "-1")].concat(),
    ] {
        fails(once(frame(HEADERS, END_HEADERS, 1, &fields)), malformed);
    }
    // DATA before the head, and beyond Content-Length.
    fails(once(frame(DATA, 0, 1, b"x")), malformed);
    let head = frame(
        HEADERS,
        END_HEADERS,
        1,
        &[vec![OK], field("content-length", "1")].concat(),
    );
    fails(
        once([head.clone(), frame(DATA, END_STREAM, 1, b"xyz")].concat()),
        "(PROTOCOL_ERROR)",
    );
    fails(
        once([head, frame(DATA, END_STREAM, 1, b"")].concat()),
        "(PROTOCOL_ERROR)",
    );
    fails(
        once(frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2, 0x82])),
        "(PROTOCOL_ERROR)",
    );
    fails(once(frame(HEADERS, END_HEADERS, 7, &[OK])), "(PROTOCOL_ERROR)");
    fails(
        once(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec()),
        "has not answered: ",
    );
}

#[test]
fn windows_beyond_their_bounds_are_refused() {
    let most = [0x7f, 0xff, 0xff, 0xff];
    fails(
        once(frame(WINDOW_UPDATE, 0, 0, &most)),
        "a window above 2^31-1 (FLOW_CONTROL_ERROR)",
    );
    fails(once(frame(WINDOW_UPDATE, 0, 1, &most)), "(FLOW_CONTROL_ERROR)");
    fails(
        once(frame(SETTINGS, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff])),
        "(FLOW_CONTROL_ERROR)",
    );
}

#[test]
fn a_response_without_an_end_takes_bounded_memory() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let addr = backend(move |stream| {
        let _ = stream.write_all(&frame(HEADERS, END_HEADERS, 1, &[OK]));
        stream.set_nonblocking(true).unwrap();
        let (mut window, mut held) = (65_535_usize, Vec::new());
        loop {
            let piece = [0; 1 << 10];
            if window >= piece.len() && stream.write_all(&frame(DATA, 0, 1, &piece)).is_ok() {
                window -= piece.len();
                count.fetch_add(piece.len(), Ordering::SeqCst);
                continue;
            }
            let mut bytes = [0; 1 << 10];
            match stream.read(&mut bytes) {
                Ok(0) => return,
                Ok(read) => held.extend(&bytes[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => thread::yield_now(),
                Err(_) => return,
            }
            while let Some(length) = held.get(2).map(|&length| usize::from(length)) {
                if held.len() < 9 + length {
                    break;
                }
                let update: Vec<u8> = held.drain(..9 + length).collect();
                if update[3] == WINDOW_UPDATE && update[8] == 1 {
                    window += u32::from_be_bytes(update[9..13].try_into().unwrap()) as usize;
                }
            }
        }
    });
    let options = Options {
        read_ahead_file: 0,
        ..Options::default()
    };
    let front = serve(Proxy::with(upstream(addr).build().unwrap(), options));
    let mut client = Client::connect(front.addr);
    let stream = client.begin("GET", "/", &[], true);
    client.stalled.push(stream);
    client.until("the beginning", |client| client.replies[&stream].body.len() >= 60_000);
    // The bytes ahead of the client, two windows, and what lies in sockets and outputs.
    let mut last = 0;
    eventually("the backend is held back", || {
        thread::sleep(std::time::Duration::from_millis(50)); // to see that nothing moves
        let before = std::mem::replace(&mut last, sent.load(Ordering::SeqCst));
        before == last && last >= 200 << 10
    });
    let sent = sent.load(Ordering::SeqCst);
    assert!((200 << 10..1 << 20).contains(&sent), "{sent}");
}

#[test]
fn a_trailer_does_not_appear_behind_a_later_response() {
    let head = [vec![OK], field("content-length", "2")].concat();
    let known = [
        frame(HEADERS, END_HEADERS, 1, &head),
        frame(DATA, 0, 1, b"ok"),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &field("x-sum", "of the first")),
    ];
    let options = Options {
        buffer: false,
        ..Options::default()
    };
    let proxy = Proxy::with(upstream(backend(once(known.concat()))).build().unwrap(), options);
    let router = Router::new()
        .get("/known", proxy.handler())
        .get("/chunked", |_| Response::stream(|out| out.write_all(b"second")));
    let front = site(router);
    let mut client = front.connect();
    client.send("GET /known HTTP/1.1\r\nHost: a\r\n\r\nGET /chunked HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut text = String::new();
    client.stream.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("\r\nsecond\r\n0\r\n\r\n"), "{text}");
}

#[test]
fn an_early_response_arrives_while_no_window_is_open() {
    for is_reset in [true, false] {
        // Answers each request at once, and opens no window again.
        let addr = backend(move |stream| {
            let mut id = 1;
            loop {
                let mut answer = [
                    frame(HEADERS, END_HEADERS, id, &[OK]),
                    frame(DATA, END_STREAM, id, b"early"),
                ]
                .concat();
                if is_reset {
                    answer.extend(frame(RST_STREAM, 0, id, &NO_ERROR));
                }
                let mut head = [0; 9];
                if stream.write_all(&answer).is_err() {
                    return;
                }
                while head[3] != HEADERS {
                    let mut payload = Vec::new();
                    let Ok(()) = stream.read_exact(&mut head) else { return };
                    let length = u64::from(head[1]) << 8 | u64::from(head[2]);
                    let _ = stream.take(length).read_to_end(&mut payload);
                }
                id = u32::from_be_bytes(head[5..].try_into().unwrap());
            }
        });
        let options = Options {
            buffer: false,
            first_byte: PATIENCE / 20,
            ..Options::default()
        };
        let front = serve(Proxy::with(upstream(addr).build().unwrap(), options));
        for number in 0..8 {
            let mut client = front.connect();
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 30000\r\n\r\n");
            client.send([b'x'; 30_000]);
            let reply = client.reply();
            assert_eq!((reply.status, reply.text()), (200, "early"), "{number} {:?}", front.log);
        }
    }
}
