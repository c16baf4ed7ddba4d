//! A proxy to backends over TLS.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use osier_web::proxy::{Options, Proxy};
use osier_web::tls::{Acceptor, ClientCertificates, Connector, ConnectorBuilder};
use osier_web::upstream::{Builder, Check, Upstream};
use osier_web::{Request, Response, Router, Server, ws};
use testkit::{Folder, Program};

use crate::common::backend::serve;
use crate::common::{Site, connect_narrowly, eventually, narrow_listener, site_with};
use crate::masked;
use crate::tls::{LOCALHOST, Pem};

const LENGTH: usize = 5 << 20;

fn byte_at(place: usize) -> u8 {
    (place % 249) as u8
}

/// The application behind the proxy.
fn app() -> Router {
    Router::new()
        .get("/", |request: &mut Request<'_>| {
            let tls = request.tls().expect("TLS");
            let proto = request.header_str("x-forwarded-proto").unwrap_or("?");
            format!("{} {} {proto}", tls.server_name().unwrap_or("?"), tls.is_resumed())
        })
        .get("/large", |_| {
            Response::stream(|out| {
                let bytes: Vec<u8> = (0..LENGTH).map(byte_at).collect();
                out.write_all(&bytes)
            })
        })
        .get("/large-and-known", |_| (0..LENGTH).map(byte_at).collect::<Vec<u8>>())
        .post("/count", |request: &mut Request<'_>| {
            let mut sink = std::io::sink();
            std::io::copy(request.body(), &mut sink).map(|count| count.to_string())
        })
        .get("/echo", |request: &mut Request<'_>| {
            ws::upgrade(request, |socket| {
                while let Some(message) = socket.read()? {
                    socket.send(message)?;
                }
                Ok(())
            })
        })
}

fn backend_with(acceptor: Acceptor) -> Site {
    let server = Server::new(app()).tls(acceptor);
    site_with(1, server, |server| server.bind("127.0.0.1:0"))
}

fn backend() -> Site {
    backend_with(Acceptor::builder(LOCALHOST.identity()).build().unwrap())
}

fn connector(set: impl FnOnce(ConnectorBuilder) -> ConnectorBuilder) -> Connector {
    set(Connector::builder().ca_pem(LOCALHOST.chain.as_bytes()))
        .build()
        .unwrap()
}

/// Backends at `addr` that are called localhost.
pub fn upstream(addr: SocketAddr) -> Builder {
    Upstream::builder("app")
        .backend(addr.to_string().parse().unwrap())
        .tls(connector(|builder| builder))
        .tls_name("localhost")
        .on_log(|_| {})
}

fn front(upstream: &Upstream) -> Site {
    let router = Router::new().fallback(Proxy::new(upstream.clone()).handler());
    site_with(1, Server::new(router), |server| server.bind("127.0.0.1:0"))
}

#[test]
fn requests_pass_over_kept_connections_and_sessions_are_resumed() {
    let backend = backend();
    let upstream = upstream(backend.addr).build().unwrap();
    let site = front(&upstream);
    let mut client = site.connect();
    assert_eq!(client.get("/").text(), "localhost false http");
    for _ in 0..10 {
        assert_eq!(client.get("/").text(), "localhost false http");
    }
    for path in ["/large", "/large-and-known"] {
        let reply = client.get(path);
        assert_eq!(reply.body.len(), LENGTH);
        let mut bytes = reply.body.iter().enumerate();
        assert!(bytes.all(|(place, byte)| *byte == byte_at(place)));
    }
    let body = vec![b'b'; 900_000];
    client.send(format!(
        "POST /count HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    client.send(&body);
    assert_eq!(client.reply().text(), "900000");
    let stats = &upstream.stats()[0];
    assert_eq!((stats.connects, stats.failures), (1, 0));

    // A second connection at the same time.
    let unbuffered = Options {
        buffer: false,
        ..Options::default()
    };
    let unbuffered = serve(Proxy::with(upstream.clone(), unbuffered));
    let mut first = unbuffered.connect();
    first.send("POST /count HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\na");
    eventually("it holds the kept connection", || upstream.stats()[0].leases == 1);
    assert_eq!(client.get("/").text(), "localhost true http");
    first.send("b");
    assert_eq!(first.reply().text(), "2");
    assert!(site.log.lock().unwrap().is_empty() && backend.log.lock().unwrap().is_empty());
}

#[test]
fn a_slow_client_gets_every_byte() {
    let http1 = backend();
    gets_every_byte(upstream(http1.addr));
    // It speaks nothing else.
    let http2 = backend_with(Acceptor::builder(LOCALHOST.identity()).alpn(["h2"]).build().unwrap());
    gets_every_byte(upstream(http2.addr).http2(true));
}

fn gets_every_byte(builder: Builder) {
    let upstream = builder.build().unwrap();
    let site = front(&upstream);
    let mut clients: Vec<_> = (0..4).map(|_| site.connect()).collect();
    for client in &mut clients {
        client.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    eventually("no backend is held", || upstream.stats()[0].leases == 0);
    for client in &mut clients {
        let reply = client.reply();
        assert_eq!(reply.body.len(), LENGTH);
        let mut bytes = reply.body.iter().enumerate();
        assert!(bytes.all(|(place, byte)| *byte == byte_at(place)));
    }
}

/// The same with TLS to the clients.
fn secure_front(upstream: &Upstream) -> Site {
    let router = Router::new().fallback(Proxy::new(upstream.clone()).handler());
    crate::tls::site(router, |server| server)
}

#[test]
fn a_client_gets_what_the_backend_has_sent_before_a_pause() {
    static PAUSES: AtomicUsize = AtomicUsize::new(0);
    let over = Arc::new(osier::sync::Event::new());
    let end = over.clone();
    let app = Router::new().get("/{length}", move |request: &mut Request<'_>| {
        let length: usize = request.param("length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let end = end.clone();
        Response::stream(move |out| {
            for piece in (0..length).map(byte_at).collect::<Vec<u8>>().chunks(10_000) {
                out.write_all(piece)?;
                out.flush()?;
            }
            PAUSES.fetch_add(1, Ordering::SeqCst);
            end.wait();
            end.set();
            Ok(())
        })
    });
    let server = Server::new(app).tls(Acceptor::builder(LOCALHOST.identity()).build().unwrap());
    let backend = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let proxy = Proxy::new(upstream(backend.addr).build().unwrap());
    let server = Server::new(Router::new().fallback(proxy.handler()))
        .tls(Acceptor::builder(LOCALHOST.identity()).build().unwrap());
    let site = site_with(1, server, |server| server.listener(narrow_listener()));
    for (number, length) in (1..=50).map(|count| 9_000 * count).enumerate() {
        let mut client = crate::tls::over(connect_narrowly(site.addr));
        client.send(format!("GET /{length} HTTP/1.1\r\nHost: t\r\n\r\n"));
        eventually("the backend pauses", || PAUSES.load(Ordering::SeqCst) > number);
        client.head();
        let mut body = Vec::new();
        while body.len() < length {
            let size = client.line();
            let chunk = client.take(usize::from_str_radix(&size, 16).unwrap() + 2);
            body.extend_from_slice(&chunk[..chunk.len() - 2]);
        }
        assert!((0..length).all(|place| body[place] == byte_at(place)), "{length} bytes");
    }
    over.set();
}

#[test]
fn a_websocket_passes_through_two_layers_of_tls() {
    let backend = backend();
    let site = secure_front(&upstream(backend.addr).build().unwrap());
    let mut client = crate::tls::connect(&site);
    assert_eq!(client.get("/").text(), "localhost false https");
    client.send(
        "GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    assert_eq!(client.head().0, 101);
    for length in [1, 100, 60_000] {
        let payload = vec![7; length];
        client.send(masked(0x82, &payload));
        let head = if length < 126 { 2 } else { 4 };
        assert_eq!(client.take(head + length)[head..], payload);
    }
    client.send(masked(0x88, &1000_u16.to_be_bytes()));
    assert_eq!(client.take(4), [0x88, 2, 3, 0xe8]);
    client.expect_end();
}

#[test]
fn a_backend_that_is_not_trusted_gets_no_request() {
    let backend = backend();
    let stranger = Pem::of("localhost");
    let unknown = Connector::builder().ca_pem(stranger.chain.as_bytes()).build().unwrap();
    let careless = Connector::builder().dangerous_without_verification().build().unwrap();
    let cases = [
        (upstream(backend.addr).tls(unknown), None),
        (upstream(backend.addr).tls_name("example.org"), None),
        (
            upstream(backend.addr).tls(careless).tls_name("example.org"),
            Some("example.org false http"),
        ),
    ];
    for (builder, expected) in cases {
        let upstream = builder.build().unwrap();
        let reply = front(&upstream).get("/");
        match expected {
            Some(text) => assert_eq!((reply.status, reply.text()), (200, text)),
            None => assert_eq!((reply.status, upstream.stats()[0].failures), (502, 1)),
        }
    }
    // A backend that speaks no TLS.
    let plain = crate::common::site(Router::new().get("/", |_| "secret"));
    let site = front(&upstream(plain.addr).build().unwrap());
    assert_eq!(site.get("/").status, 502);
    let reason = "the peer does not speak TLS on this port";
    eventually("the log says why", || {
        site.log.lock().unwrap().iter().any(|line| line.contains(reason))
    });
    // One that never answers a handshake.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = upstream(silent.local_addr().unwrap()).connect_timeout(std::time::Duration::from_millis(200));
    assert_eq!(front(&slow.build().unwrap()).get("/").status, 504);
}

#[test]
fn a_backend_may_ask_for_a_certificate() {
    let alice = Pem::of("alice");
    let clients = ClientCertificates::Required(alice.chain.clone().into_bytes());
    let acceptor = Acceptor::builder(LOCALHOST.identity()).client_certificates(clients);
    let backend = backend_with(acceptor.build().unwrap());
    let known = connector(|builder| builder.identity(alice.identity()));
    let reply = front(&upstream(backend.addr).tls(known).build().unwrap()).get("/");
    assert_eq!((reply.status, reply.text()), (200, "localhost false http"));
    // In TLS 1.3 the refusal comes in place of the response.
    let reply = front(&upstream(backend.addr).build().unwrap()).get("/");
    assert_eq!(reply.status, 502);
}

#[test]
fn checks_speak_tls_too() {
    let backend = backend();
    let upstream = upstream(backend.addr).check(Check::http("/")).build().unwrap();
    let site = front(&upstream);
    assert_eq!(site.get("/").status, 200);
    eventually("the check has succeeded", || upstream.stats()[0].connects >= 2);
    assert_eq!(upstream.stats()[0].failures, 0);
}

fn free_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], testkit::free_port()))
}

fn certificates(folder: &Folder) {
    folder.write("chain.pem", &LOCALHOST.chain);
    folder.write("key.pem", &LOCALHOST.key);
}

#[test]
fn nginx_is_a_backend_over_tls() {
    let folder = Folder::new();
    certificates(&folder);
    folder.write("large", (0..LENGTH).map(byte_at).collect::<Vec<u8>>());
    let addr = free_port();
    let here = folder.path().display();
    folder.write(
        "nginx.conf",
        format!(
            "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log;\n\
             events {{}}\nhttp {{ access_log off;\n\
             client_body_temp_path {here}/b; proxy_temp_path {here}/p; fastcgi_temp_path {here}/f;\n\
             uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;\n\
             server {{ listen {addr} ssl; root {here};\n\
             ssl_certificate chain.pem; ssl_certificate_key key.pem; ssl_session_tickets on; }} }}\n"
        ),
    );
    let program = match Path::new("/usr/sbin/nginx").exists() {
        true => "/usr/sbin/nginx",
        false => "nginx",
    };
    let prefix = folder.path().display().to_string();
    let mut command = Command::new(program);
    command.args(["-p", &prefix, "-c", "nginx.conf"]).stderr(Stdio::null());
    let Some(_nginx) = Program::start(&mut command) else {
        return;
    };
    eventually("nginx listens", || TcpStream::connect(addr).is_ok());
    let upstream = upstream(addr).build().unwrap();
    let site = front(&upstream);
    let mut client = site.connect();
    for _ in 0..3 {
        let reply = client.get("/large");
        assert_eq!((reply.status, reply.body.len()), (200, LENGTH));
        let mut bytes = reply.body.iter().enumerate();
        assert!(bytes.all(|(place, byte)| *byte == byte_at(place)));
    }
    assert_eq!(client.get("/none").status, 404);
    assert_eq!(upstream.stats()[0].connects, 1, "the connection is kept");
}

#[test]
fn openssl_is_a_backend_over_tls() {
    let folder = Folder::new();
    certificates(&folder);
    let addr = free_port();
    let mut command = Command::new("openssl");
    command
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.args([
        "s_server",
        "-www",
        "-cert",
        "chain.pem",
        "-key",
        "key.pem",
        "-accept",
        &addr.to_string(),
    ]);
    let Some(_server) = Program::start(&mut command) else {
        return;
    };
    eventually("openssl listens", || TcpStream::connect(addr).is_ok());
    let site = front(&upstream(addr).build().unwrap());
    let reply = site.get("/");
    assert_eq!(reply.status, 200, "{}", reply.head);
    assert!(String::from_utf8_lossy(&reply.body).contains("TLSv1.3"));
}
