//! Clients that drip, on a virtual clock: each is cut off, whatever carries its bytes. Server and clients are fibers of one runtime,
//! so no test waits.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use osier::net::TcpStream;
use osier::time::{VirtualClock, now};
use osier_http::h2::{Connection, Event, Limits as Http2Limits, Outgoing};
use osier_web::files::Files;
use osier_web::proxy::Proxy;
use osier_web::upstream::Upstream;
use osier_web::{Handler, Rates, Request, Response, Router, Server, Timeouts};
use testkit::Folder;

use crate::tls::{acceptor, connector};

const SECOND: Duration = Duration::from_secs(1);

/// The span over which the default rates are judged.
const SPAN: Duration = Duration::from_secs(30);

fn on_virtual_time(run: impl FnOnce() + Send) {
    let runtime = osier::Runtime::builder().workers(1).clock(VirtualClock::new());
    runtime.build().unwrap().run(run);
}

/// Serves, and runs `client` beside it.
fn with_server<T: Send>(server: Server, client: impl FnOnce(SocketAddr) -> T) -> T {
    let server = server.on_log(|_| {}).bind("127.0.0.1:0").unwrap();
    let (address, handle) = (server.local_addr(), server.handle());
    let serving = osier::spawn(move || server.run());
    let done = client(address);
    handle.shutdown();
    serving.join().unwrap();
    done
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    // The time between two drips, or the end.
    stream.set_read_timeout(Some(SECOND)).unwrap();
    stream
}

/// Counts the bytes of bodies. At `/slowly` it is not the client that is slow; at `/any` it may be.
fn counting() -> Router {
    let count = |request: &mut Request<'_>| std::io::copy(request.body(), &mut std::io::sink());
    Router::new()
        .post("/", move |request: &mut Request<'_>| {
            count(request).map(|count| count.to_string())
        })
        .post("/any", move |request: &mut Request<'_>| {
            request.allow_slow_client();
            count(request).map(|count| count.to_string())
        })
        .post("/slowly", |request: &mut Request<'_>| {
            let (mut sum, mut piece) = (0, [0; 100]);
            loop {
                osier::sleep(10 * SECOND); // the handler's own time, on the virtual clock
                match request.body().read(&mut piece)? {
                    0 => return std::io::Result::Ok(sum.to_string()),
                    count => sum += count,
                }
            }
        })
}

/// Receives bodies for a backend that does not listen, on connections without a stack.
fn gateway() -> Handler {
    let closed = Upstream::builder("closed").backend("127.0.0.1:1".parse().unwrap());
    let proxy = Proxy::new(closed.build().unwrap());
    Handler::answering(move |request: &mut Request<'_>| {
        if request.path() == "/any" {
            request.allow_slow_client();
        }
        proxy.answer_after_body(request)
    })
}

/// Sends a body of `len` bytes, `piece` bytes a second. Returns what the server answers, and after how long.
fn drip(stream: &mut (impl Read + Write), path: &str, len: usize, piece: usize) -> (String, Duration) {
    let head = format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {len}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let (start, mut left, mut answer) = (now(), len, [0; 1024]);
    loop {
        // The time between two pieces is the read timeout.
        match stream.read(&mut answer) {
            Ok(count) => return (String::from_utf8_lossy(&answer[..count]).into_owned(), now() - start),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::TimedOut),
        }
        let count = piece.min(left);
        left -= count;
        stream.write_all(&vec![b'x'; count]).unwrap();
    }
}

#[track_caller]
fn is_cut((answer, time): (String, Duration)) {
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!((SPAN..SPAN + 3 * SECOND).contains(&time), "cut off after {time:?}");
}

#[track_caller]
fn is_served((answer, time): (String, Duration), len: usize) {
    assert!(answer.ends_with(&format!("\r\n\r\n{len}")), "{answer}");
    assert!(time > 2 * SPAN, "{time:?}");
}

#[test]
fn a_body_that_drips_is_cut_off_and_a_slow_one_is_not() {
    on_virtual_time(|| {
        with_server(Server::new(counting()), |address| {
            is_cut(drip(&mut connect(address), "/", 1 << 20, 300));
            is_served(drip(&mut connect(address), "/", 60_000, 600), 60_000);
            is_served(drip(&mut connect(address), "/any", 100, 1), 100);
        });
    });
}

#[test]
fn a_body_for_a_gateway_that_drips_is_cut_off() {
    on_virtual_time(|| {
        with_server(Server::new(gateway()), |address| {
            is_cut(drip(&mut connect(address), "/", 1 << 20, 300));
            let (answer, _) = drip(&mut connect(address), "/any", 100, 1);
            assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        });
    });
}

#[test]
fn a_slow_handler_is_not_the_clients_fault() {
    on_virtual_time(|| {
        with_server(Server::new(counting()), |address| {
            let mut stream = connect(address);
            stream.set_read_timeout(Some(1000 * SECOND)).unwrap();
            stream
                .write_all(b"POST /slowly HTTP/1.1\r\nHost: t\r\nContent-Length: 2000\r\n\r\n")
                .unwrap();
            stream.write_all(&[b'x'; 2000]).unwrap();
            let mut answer = [0; 1024];
            let count = stream.read(&mut answer).unwrap();
            assert!(answer[..count].ends_with(b"\r\n\r\n2000"));
        });
    });
}

#[test]
fn rates_that_are_off_leave_a_drip_to_the_timeouts() {
    on_virtual_time(|| {
        let server = Server::new(counting()).rates(Rates::OFF);
        with_server(server, |address| {
            is_served(drip(&mut connect(address), "/", 100, 1), 100);
        });
    });
}

#[test]
fn a_body_that_drips_over_tls_is_cut_off() {
    on_virtual_time(|| {
        with_server(Server::new(counting()).tls(acceptor()), |address| {
            let secure = |address| connector().connect("localhost", connect(address)).unwrap();
            is_cut(drip(&mut secure(address), "/", 1 << 20, 300));
            is_served(drip(&mut secure(address), "/", 60_000, 600), 60_000);
        });
    });
}

#[test]
fn a_head_that_drips_is_cut_off_before_its_timeout() {
    let long = Timeouts {
        header: 600 * SECOND,
        ..Timeouts::default()
    };
    for (timeouts, expected) in [
        (long, 10 * SECOND..12 * SECOND),
        (Timeouts::default(), 5 * SECOND..7 * SECOND),
    ] {
        drip_a_head(timeouts, &expected);
    }
}

fn drip_a_head(timeouts: Timeouts, expected: &Range<Duration>) {
    on_virtual_time(move || {
        with_server(Server::new(counting()).timeouts(timeouts), |address| {
            let mut stream = connect(address);
            stream.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
            let (start, mut answer) = (now(), [0; 1024]);
            let count = loop {
                match stream.read(&mut answer) {
                    Ok(count) => break count,
                    Err(_) => stream.write_all(b"a").unwrap(),
                }
            };
            assert!(answer[..count].starts_with(b"HTTP/1.1 408 "));
            let time = now() - start;
            assert!(expected.contains(&time), "cut off after {time:?}");
        });
    });
}

/// Requests `path` and reads 200 bytes a second, until the server has given up.
fn sip(stream: &mut (impl Read + Write), path: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let (start, mut piece) = (now(), [0; 3000]);
    for _ in 0..8 {
        // Below the rate for each span.
        stream.read_exact(&mut piece).unwrap();
        // The virtual clock does not wait for a busy kernel, which would move bytes that were sent long ago.
        std::thread::sleep(Duration::from_millis(10));
        osier::sleep(SPAN / 2); // the pace of the client, on the virtual clock
    }
    let left = loop {
        let left = std::io::copy(stream, &mut std::io::sink()).expect_err("a reset");
        // The clock goes on while a busy kernel has not delivered the bytes yet.
        if left.kind() != std::io::ErrorKind::TimedOut || now() - start >= 6 * SPAN {
            break left;
        }
    };
    assert_eq!(left.kind(), std::io::ErrorKind::ConnectionReset, "{path}");
    assert!(now() - start < 6 * SPAN, "{path}");
}

#[test]
fn a_response_that_is_sipped_is_cut_off() {
    // More than the sockets hold.
    const LEN: usize = 8 << 20;
    let folder = Folder::new();
    std::fs::write(folder.path().join("big"), vec![b'x'; LEN]).unwrap();
    let router = || {
        Router::new()
            .get("/bytes", |_| vec![b'x'; LEN])
            .get("/stream", |_| {
                Response::stream(|out| {
                    for _ in 0..LEN >> 10 {
                        out.write_all(&[b'x'; 1 << 10])?;
                    }
                    Ok(())
                })
            })
            .mount("/files", Files::open(folder.path()).unwrap().handler())
    };
    on_virtual_time(|| {
        with_server(Server::new(router()), |address| {
            for path in ["/bytes", "/stream", "/files/big"] {
                sip(&mut connect(address), path);
            }
        });
        with_server(Server::new(router()).tls(acceptor()), |address| {
            let mut secure = connector().connect("localhost", connect(address)).unwrap();
            sip(&mut secure, "/bytes");
        });
    });
}

/// An HTTP/2 client on the virtual clock.
struct Client {
    stream: TcpStream,
    machine: Connection,
}

impl Client {
    fn connect(address: SocketAddr) -> Client {
        Client {
            stream: connect(address),
            machine: Connection::client(&Http2Limits::default(), now()),
        }
    }

    fn ask(&mut self, method: &str, path: &str) -> u32 {
        let target = Outgoing {
            method,
            scheme: "http",
            authority: "t",
            path,
            protocol: None,
        };
        let stream = self.machine.request(&target, [], method == "GET").expect("a stream");
        self.flush();
        stream
    }

    fn flush(&mut self) {
        while !self.machine.output().is_empty() {
            let count = self.stream.write(self.machine.output()).expect("the server reads");
            self.machine.advance(count);
        }
    }

    /// Reads for a second. Calls `note` for each event.
    fn pump(&mut self, mut note: impl FnMut(Event<'_>)) {
        let end = now() + SECOND;
        while now() < end {
            self.flush();
            let mut piece = vec![0; 64 << 10];
            let Ok(count) = self.stream.read(&mut piece) else {
                return;
            };
            assert!(count > 0, "the connection goes on");
            let mut bytes = &piece[..count];
            loop {
                let (count, event) = self.machine.receive(bytes, now()).expect("frames");
                bytes = &bytes[count..];
                match event {
                    Some(event) => note(event),
                    None if bytes.is_empty() => break,
                    None => {}
                }
            }
        }
    }
}

#[test]
fn a_stream_of_http2_that_drips_is_cut_off_alone() {
    on_virtual_time(|| {
        with_server(Server::new(counting()), |address| {
            let mut client = Client::connect(address);
            let (drips, slow) = (client.ask("POST", "/"), client.ask("POST", "/"));
            let (start, mut cut, mut status) = (now(), None, None);
            for second in 0..100 {
                if cut.is_none() {
                    client.machine.send_data(drips, &[b'x'; 300], false, now());
                }
                client.machine.send_data(slow, &[b'x'; 600], second == 99, now());
                client.pump(|event| match event {
                    Event::Response { stream, head, .. } if stream == drips => {
                        cut = Some((head.status(), now() - start))
                    }
                    Event::Response { stream, head, .. } if stream == slow => status = Some(head.status()),
                    _ => {}
                });
            }
            let (answer, time) = cut.expect("the drip is cut off");
            assert_eq!(answer, 408);
            assert!((SPAN..SPAN + 3 * SECOND).contains(&time), "cut off after {time:?}");
            assert_eq!(status, Some(200));
        });
    });
}

#[test]
fn a_response_of_http2_that_is_sipped_is_cut_off_alone() {
    let router = Router::new()
        .get("/", |_| vec![b'x'; 1 << 20])
        .get("/any", |request: &mut Request<'_>| {
            request.allow_slow_client();
            vec![b'x'; 1 << 20]
        });
    on_virtual_time(|| {
        with_server(Server::new(router), |address| {
            let mut client = Client::connect(address);
            let streams = [client.ask("GET", "/"), client.ask("GET", "/any")];
            let mut received = 0;
            while received < 2 * 65_535 {
                client.pump(|event| {
                    if let Event::Data { bytes, .. } = event {
                        received += bytes.len();
                    }
                });
            }
            // From here on the frames are read by hand: the machine would open its windows wider.
            let (start, mut reset) = (now(), [None; 2]);
            for _ in 0..100 {
                osier::sleep(SECOND); // the pace of the client, on the virtual clock
                for (stream, _) in streams.iter().zip(reset).filter(|(_, reset)| reset.is_none()) {
                    let update = [&[0, 0, 4, 8, 0][..], &stream.to_be_bytes(), &100_u32.to_be_bytes()].concat();
                    client.stream.write_all(&update).unwrap();
                }
                let mut piece = vec![0; 64 << 10];
                let Ok(count) = client.stream.read(&mut piece) else {
                    continue;
                };
                let mut frames = &piece[..count];
                while let [a, b, c, kind, _, id @ ..] = frames {
                    let id = u32::from_be_bytes(id[..4].try_into().unwrap());
                    if let (3, Some(index)) = (kind, streams.iter().position(|known| *known == id)) {
                        reset[index] = Some(now() - start);
                    }
                    let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
                    frames = &frames[9 + len..];
                }
            }
            let time = reset[0].expect("the slow reader is cut off");
            assert!((SPAN - 2 * SECOND..3 * SPAN).contains(&time), "cut off after {time:?}");
            assert_eq!(reset[1], None, "it may be slow");
        });
    });
}
