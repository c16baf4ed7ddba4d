//! A proxy whose backends speak HTTP/2.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use osier_http::h2::{Connection, ErrorCode, Event, Limits, StreamId};
use osier_web::Server;
use osier_web::proxy::{Options, Proxy};
use osier_web::tls::{Acceptor, Connector};
use osier_web::upstream::{Builder, Check, Upstream};
use testkit::{Folder, Program};

use super::client::Client;
use crate::common::backend::{pattern, serve, serve_large};
use crate::common::{PATIENCE, Site, eventually, site, site_with};
use crate::tls::LOCALHOST;

pub fn upstream(addr: SocketAddr) -> Builder {
    let address = addr.to_string().parse().unwrap();
    Upstream::builder("app").backend(address).http2(true).on_log(|_| {})
}

pub fn proxy(addr: SocketAddr) -> Proxy {
    proxy_with(addr, |_| {})
}

fn proxy_with(addr: SocketAddr, set: impl FnOnce(&mut Options)) -> Proxy {
    let mut options = Options::default();
    set(&mut options);
    Proxy::with(upstream(addr).build().unwrap(), options)
}

/// One connection of a scripted backend.
pub struct Peer {
    number: usize,
    stream: TcpStream,
    pub machine: Connection,
    /// Streams that have a whole head, with method and path.
    asked: Vec<(StreamId, String, String)>,
    bodies: BTreeMap<StreamId, usize>,
    resets: Vec<(StreamId, ErrorCode)>,
}

impl Peer {
    pub fn flush(&mut self) {
        while !self.machine.output().is_empty() {
            match self.stream.write(self.machine.output()) {
                Ok(count) => self.machine.advance(count),
                Err(_) => return,
            }
        }
    }

    /// Reads once. False at the end.
    pub fn pump(&mut self) -> bool {
        self.flush();
        let mut piece = vec![0; 64 << 10];
        let count = match self.stream.read(&mut piece) {
            Ok(0) | Err(_) => return false,
            Ok(count) => count,
        };
        let mut bytes = &piece[..count];
        loop {
            let Ok((count, event)) = self.machine.receive(bytes, Instant::now()) else {
                return false;
            };
            bytes = &bytes[count..];
            match event {
                Some(Event::Request { stream, head, .. }) => {
                    let path = head.path().unwrap_or_default().to_owned();
                    self.asked.push((stream, head.method().to_owned(), path));
                }
                Some(Event::Data { stream, bytes, .. }) => {
                    *self.bodies.entry(stream).or_default() += bytes.len();
                    self.machine.consumed(stream, bytes.len());
                }
                Some(Event::Reset { stream, code, .. }) => self.resets.push((stream, code)),
                None if bytes.is_empty() => break,
                _ => {}
            }
        }
        self.flush();
        true
    }

    /// The next request. None at the end of the connection.
    pub fn next(&mut self) -> Option<(StreamId, String, String)> {
        while self.asked.is_empty() {
            if !self.pump() {
                return None;
            }
        }
        Some(self.asked.remove(0))
    }

    fn answer(&mut self, stream: StreamId, body: &str) {
        self.machine.send_head(stream, 200, [], false);
        self.machine.send_data(stream, body.as_bytes(), true, Instant::now());
        self.machine.finish(stream);
        self.flush();
    }
}

/// Runs `serve` for every connection, on a thread of its own. Returns the address and the number of connections so far.
pub fn scripted(limits: Limits, serve: impl Fn(&mut Peer) + Send + Sync + 'static) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, accepted, serve) = (
        listener.local_addr().unwrap(),
        Arc::<AtomicUsize>::default(),
        Arc::new(serve),
    );
    let count = accepted.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.unwrap(), serve.clone());
            let number = count.fetch_add(1, Ordering::SeqCst);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            thread::spawn(move || {
                let mut peer = Peer {
                    number,
                    stream,
                    machine: Connection::server(&limits, Instant::now()),
                    asked: Vec::new(),
                    bodies: BTreeMap::new(),
                    resets: Vec::new(),
                };
                peer.flush();
                serve(&mut peer);
            });
        }
    });
    (addr, accepted)
}

fn large(router: osier_web::Router) -> Site {
    let server = Server::new(router).limits(osier_web::Limits {
        body: u64::MAX,
        ..Default::default()
    });
    site_with(1, server, |server| server.bind("127.0.0.1:0"))
}

#[test]
fn requests_of_both_versions_go_to_a_backend_of_http_2() {
    let backend = site(super::router());
    let proxy = proxy(backend.addr);
    let upstream = proxy.upstream().clone();
    let front = serve(proxy);
    assert_eq!(front.get("/version").text(), "HTTP/2.0 test 127.0.0.1");
    let mut client = Client::connect(front.addr);
    assert_eq!(client.get("/version").text(), "HTTP/2.0 test 127.0.0.1");
    let reply = client.get("/");
    assert_eq!(
        (reply.status, reply.text(), reply.header("content-length")),
        (200, "hello", Some("5"))
    );
    assert_eq!(client.get("/nothing").status, 404);
    let head = client.send("HEAD", "/", &[], b"");
    assert_eq!(
        (head.status, head.body.len(), head.header("content-length")),
        (200, 0, Some("5"))
    );
    let stats = &upstream.stats()[0];
    assert_eq!(
        (stats.connects, stats.http2, stats.total, stats.leases),
        (1, 1, 5, 0),
        "one connection for all"
    );
}

#[test]
fn bodies_of_any_size_pass_a_backend_of_http_2() {
    let backend = large(super::router());
    for buffer in [true, false] {
        let front = serve_large(proxy_with(backend.addr, |options| options.buffer = buffer));
        let mut client = Client::connect(front.addr);
        for size in [0, 1, 16_384, 65_535, 65_537, 3 << 20] {
            assert_eq!(client.get(&format!("/big/{size}")).body.len(), size);
            let body = pattern(size);
            assert_eq!(client.send("POST", "/count", &[], &body).text(), size.to_string());
            let length = size.to_string();
            let reply = client.send("POST", "/echo", &[("content-length", length.as_bytes())], &body);
            assert!(reply.body == body, "{size}: {}", reply.body.len());
            let mut other = front.connect();
            other.send(format!(
                "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"
            ));
            other.send(&body);
            assert_eq!(other.reply().text(), size.to_string());
        }
        assert!(client.get("/stream/50000").text().ends_with("piece 49999\n"));
    }
}

#[test]
fn many_streams_share_one_connection_up_to_the_limit_of_the_backend() {
    let limits = Limits {
        max_streams: 4,
        ..Limits::DEFAULT
    };
    let both = Barrier::new(2);
    let (addr, accepted) = scripted(limits, move |peer| {
        // The first request tells the client the limit.
        while let Some((stream, _, path)) = peer.next() {
            if path == "/first" {
                peer.answer(stream, "first");
                continue;
            }
            let mut waiting = vec![stream];
            while waiting.len() < 4 {
                waiting.push(peer.next().expect("four at once").0);
            }
            // A slot that is free again would take a request of the other connection.
            both.wait();
            waiting.into_iter().for_each(|stream| peer.answer(stream, "together"));
        }
    });
    let front = serve(proxy(addr));
    let mut client = Client::connect(front.addr);
    assert_eq!(client.get("/first").text(), "first");
    let streams: Vec<_> = (0..8).map(|_| client.begin("GET", "/", &[], true)).collect();
    for stream in streams {
        assert_eq!(client.reply(stream).text(), "together");
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 2);
}

#[test]
fn a_refused_request_goes_to_another_connection_whatever_its_method() {
    for goes_away in [false, true] {
        let (addr, accepted) = scripted(Limits::DEFAULT, move |peer| {
            while let Some((stream, method, _)) = peer.next() {
                assert_eq!(method, "POST");
                match (peer.number, goes_away) {
                    (0, false) => {
                        peer.machine.reset(stream, ErrorCode::REFUSED_STREAM);
                        peer.machine.shutdown(Instant::now());
                        peer.flush();
                    }
                    (0, true) => {
                        // GOAWAY whose last stream is below.
                        peer.stream
                            .write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
                            .unwrap();
                    }
                    _ => peer.answer(stream, "second"),
                }
            }
        });
        let front = serve(proxy(addr));
        let mut client = Client::connect(front.addr);
        let reply = client.send("POST", "/", &[("content-length", b"3")], b"abc");
        assert_eq!(
            (reply.status, reply.text()),
            (200, "second"),
            "{goes_away} {:?}",
            front.log.lock().unwrap()
        );
        assert_eq!(accepted.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn a_connection_that_breaks_fails_its_requests_and_idempotent_ones_are_sent_again() {
    let (addr, _) = scripted(Limits::DEFAULT, |peer| {
        if peer.number == 0 {
            peer.next();
            return;
        }
        while let Some((stream, _, _)) = peer.next() {
            peer.answer(stream, "again");
            if peer.number == 1 {
                peer.next();
                return;
            }
        }
    });
    let front = serve(proxy(addr));
    let mut client = Client::connect(front.addr);
    assert_eq!(client.get("/").text(), "again");
    let reply = client.send("POST", "/", &[("content-length", b"3")], b"abc");
    assert_eq!(reply.status, 502);
    let log = front.log.lock().unwrap().join("\n");
    assert!(
        log.contains("has not answered: the backend has closed the connection"),
        "{log}"
    );
    assert_eq!(client.get("/").text(), "again");
}

#[test]
fn a_client_that_leaves_cancels_its_stream_and_no_other() {
    let resets = Arc::new(Mutex::new(Vec::new()));
    let seen = resets.clone();
    let (addr, accepted) = scripted(Limits::DEFAULT, move |peer| {
        let (mut held, mut path) = (None, String::new());
        while let Some((stream, _, asked)) = peer.next() {
            path.clone_from(&asked);
            match asked.as_str() {
                "/held" => held = Some(stream),
                "/now" => peer.answer(stream, "now"),
                _ => {
                    while peer.resets.is_empty() {
                        peer.pump();
                    }
                    let (reset, code) = peer.resets[0];
                    assert_eq!(Some(reset), held);
                    peer.machine.finish(reset);
                    seen.lock().unwrap().push(code);
                    peer.answer(stream, "after");
                }
            }
        }
    });
    let front = serve(proxy(addr));
    let mut client = Client::connect(front.addr);
    let held = client.begin("GET", "/held", &[], true);
    assert_eq!(client.get("/now").text(), "now");
    let after = client.begin("GET", "/after", &[], true);
    client.machine.reset(held, ErrorCode::CANCEL);
    client.flush();
    assert_eq!(client.reply(after).text(), "after");
    assert_eq!(*resets.lock().unwrap(), [ErrorCode::CANCEL]);
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
}

#[test]
fn a_backend_that_takes_or_sends_nothing_is_late_and_not_asked_again_before_it_answers_a_ping() {
    let (addr, accepted) = scripted(Limits::DEFAULT, |peer| match peer.number {
        // Reads nothing after the first request.
        0 => {
            peer.next();
            thread::sleep(PATIENCE);
        }
        _ => {
            while let Some((stream, _, _)) = peer.next() {
                peer.answer(stream, "here");
            }
        }
    });
    // The second connection has this time too, and its peer is a thread of a busy machine.
    let front = serve(proxy_with(addr, |options| options.first_byte = Duration::from_secs(3)));
    let mut client = Client::connect(front.addr);
    assert_eq!(client.get("/").status, 504);
    assert_eq!(client.get("/").text(), "here");
    assert_eq!(accepted.load(Ordering::SeqCst), 2);
}

#[test]
fn idle_connections_end_after_the_idle_timeout_and_with_their_upstream() {
    let backend = site(super::router());
    let upstream = upstream(backend.addr)
        .idle_timeout(Duration::from_millis(100))
        .build()
        .unwrap();
    let front = serve(Proxy::new(upstream));
    assert_eq!(front.get("/").text(), "hello");
    eventually("the connection ends", || backend.connections.count() == 0);
    assert_eq!(front.get("/").text(), "hello");
    let proxy = proxy(backend.addr);
    osier::run(move || {
        let reply = osier_web::test::Client::new(osier_web::Router::new().fallback(proxy.handler()))
            .get("/")
            .send();
        assert_eq!(reply.text(), "hello");
        eventually("there is one", || backend.connections.count() >= 1);
        drop(reply);
        crate::common::eventually_on_fiber("the connections end", || backend.connections.count() == 0);
    });
}

#[test]
fn a_backend_chooses_the_version_over_tls() {
    for http2 in [true, false] {
        let acceptor = Acceptor::builder(LOCALHOST.identity());
        let acceptor = match http2 {
            true => acceptor.alpn(["h2", "http/1.1"]),
            false => acceptor.alpn(["http/1.1"]),
        };
        let server = Server::new(super::router()).tls(acceptor.build().unwrap());
        let backend = site_with(1, server, |server| server.bind("127.0.0.1:0"));
        let connector = Connector::builder()
            .dangerous_without_verification()
            .alpn(["http/1.1"])
            .build()
            .unwrap();
        let check = Check::http("/").every(Duration::from_millis(10));
        let upstream = upstream(backend.addr).tls(connector).check(check).build().unwrap();
        let front = serve(Proxy::new(upstream));
        let expected = if http2 { "HTTP/2.0" } else { "HTTP/1.1" };
        for _ in 0..3 {
            let version = front.get("/version");
            assert!(version.text().starts_with(expected), "{}", version.text());
        }
    }
}

#[test]
fn a_check_speaks_the_version_of_the_requests() {
    let (addr, _) = scripted(Limits::DEFAULT, |peer| {
        while let Some((stream, _, path)) = peer.next() {
            let status = if path == "/health" { 503 } else { 200 };
            peer.machine.send_head(stream, status, [], true);
            peer.machine.finish(stream);
            peer.flush();
        }
    });
    let check = Check::http("/health").every(Duration::from_millis(5)).fall(1);
    let upstream = upstream(addr).check(check).build().unwrap();
    let front = serve(Proxy::new(upstream.clone()));
    front.get("/");
    eventually("the check finds it unhealthy", || !upstream.stats()[0].is_in);
    assert_eq!(front.get("/").status, 503);
}

/// Starts a server that serves `large` from a folder over HTTP/2 without TLS. None if the program is missing.
fn file_server(program: &str, folder: &Folder, addr: SocketAddr) -> Option<Program> {
    let here = folder.path().display().to_string();
    let (name, config) = match program {
        "nginx" => (
            "nginx.conf",
            format!(
                "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log;\n\
                 events {{}}\nhttp {{ access_log off; keepalive_requests 5;\n\
                 client_body_temp_path {here}/b; proxy_temp_path {here}/p; fastcgi_temp_path {here}/f;\n\
                 uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;\n\
                 server {{ listen {addr} http2; root {here}; }} }}\n"
            ),
        ),
        _ => (
            "h2o.conf",
            format!(
                "listen:\n  host: 127.0.0.1\n  port: {}\nhosts:\n  default:\n    paths:\n      /:\n        file.dir: {here}\n",
                addr.port()
            ),
        ),
    };
    folder.write(name, config);
    let installed = format!("/usr/sbin/{program}");
    let mut command = Command::new(if Path::new(&installed).exists() {
        &installed
    } else {
        program
    });
    match program {
        "nginx" => command.args(["-p", &here, "-c", name]),
        _ => command.arg("-c").arg(folder.join(name)),
    };
    let program = Program::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
    eventually("it listens", || TcpStream::connect(addr).is_ok());
    Some(program)
}

#[test]
fn nginx_and_h2o_are_backends_of_http_2() {
    for program in ["nginx", "h2o"] {
        let folder = Folder::new();
        folder.write("large", pattern(3 << 20));
        let addr = SocketAddr::from(([127, 0, 0, 1], testkit::free_port()));
        let Some(_server) = file_server(program, &folder, addr) else {
            continue;
        };
        let proxy = proxy(addr);
        let upstream = proxy.upstream().clone();
        let front = serve(proxy);
        let mut client = Client::connect(front.addr);
        let streams: Vec<_> = (0..8).map(|_| client.begin("GET", "/large", &[], true)).collect();
        for stream in streams {
            let reply = client.reply(stream);
            assert!(
                reply.status == 200 && reply.body == pattern(3 << 20),
                "{program}: {}",
                reply.body.len()
            );
        }
        assert_eq!(client.get("/none").status, 404, "{program}");
        assert_eq!(
            client.send("HEAD", "/large", &[], b"").header("content-length"),
            Some("3145728")
        );
        // This nginx ends a connection gracefully after five requests. No client notices.
        for _ in 0..30 {
            let reply = client.send("GET", "/large", &[("range", b"bytes=0-9")], b"");
            assert_eq!(
                (reply.status, reply.body.len()),
                (206, 10),
                "{program}: {:?}",
                front.log.lock().unwrap()
            );
        }
        let connects = upstream.stats()[0].connects;
        assert!(
            if program == "nginx" {
                connects >= 5
            } else {
                connects == 1
            },
            "{program}: {connects}"
        );
    }
}
