//! HTTPS: what HTTP does in the clear, over TLS, and what clients do to a handshake.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::Duration;

use osier::memory::{self, Account};
use osier_web::files::Files;
use osier_web::tls::{self, Acceptor, ClientCertificates, Connector, Identity};
use osier_web::{CloseReason, ConnectionEvent, Protocol, Request, Response, Router, Server, Timeouts, ws};
use testkit::Folder;

use crate::common::{Client, PATIENCE, Site, connect_narrowly, eventually, site_with, taken};
use crate::masked;
use crate::memory::{counts, in_a_small_child};

pub type Secure = Client<tls::Stream>;

/// The texts of a certificate for localhost, and of its key.
pub struct Pem {
    pub chain: String,
    pub key: String,
}

impl Pem {
    pub fn of(name: &str) -> Pem {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        Pem {
            chain: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
        }
    }

    pub fn identity(&self) -> Identity {
        Identity::from_pem(self.chain.as_bytes(), self.key.as_bytes()).expect("a chain and its key")
    }
}

pub static LOCALHOST: LazyLock<Pem> = LazyLock::new(|| Pem::of("localhost"));

pub fn acceptor() -> Acceptor {
    let builder = Acceptor::builder(LOCALHOST.identity()).alpn(["http/1.1"]);
    builder.build().expect("an acceptor")
}

pub fn connector() -> Connector {
    let builder = Connector::builder().ca_pem(LOCALHOST.chain.as_bytes());
    builder.build().expect("a connector")
}

pub fn site(router: Router, set: impl FnOnce(Server) -> Server) -> Site {
    let server = set(Server::new(router).tls(acceptor()));
    site_with(1, server, |server| server.bind("127.0.0.1:0"))
}

/// A TLS client over `stream`.
pub fn over(stream: TcpStream) -> Secure {
    over_with(stream, PATIENCE)
}

fn over_with(stream: TcpStream, patience: Duration) -> Secure {
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.set_write_timeout(Some(patience)).unwrap();
    stream.set_nodelay(true).unwrap();
    let socket = osier::net::TcpStream::from(stream);
    Client::over(connector().connect("localhost", socket).expect("a name"))
}

pub fn connect(site: &Site) -> Secure {
    over(TcpStream::connect(site.addr).expect("the server listens"))
}

pub fn hello() -> Router {
    Router::new()
        .get("/", |_| "hello")
        .get("/tls", |request: &mut Request<'_>| {
            let tls = request.tls().expect("a connection with TLS");
            let name = tls.server_name().unwrap_or("?").to_owned();
            let certificates = tls.peer_certificates().len();
            let version = tls.version().map_or("?", |version| version.as_str());
            format!("{} {name} {version} {certificates}", request.is_https())
        })
        .post("/count", |request: &mut Request<'_>| {
            let mut sink = std::io::sink();
            std::io::copy(request.body(), &mut sink).map(|count| count.to_string())
        })
        .get("/stream", |_| {
            Response::stream(|out| (0..1000).try_for_each(|i| write!(out, "{i},")))
        })
        .get("/resting", |_| {
            let metrics = osier::inspect::metrics().expect("inside of a runtime");
            metrics.workers[0].resting.to_string()
        })
        .get("/broken", |_| {
            Response::stream(|out| {
                out.write_all(&[b'x'; 100_000])?;
                Err(ErrorKind::Other.into())
            })
        })
}

#[test]
fn requests_are_served_over_tls_one_by_one_and_in_a_row() {
    let site = site(hello(), |server| server);
    let mut client = connect(&site);
    assert_eq!(client.get("/").text(), "hello");
    assert_eq!(client.get("/tls").text(), "true localhost TLSv1.3 0");
    let expected: String = (0..1000).map(|i| format!("{i},")).collect();
    assert_eq!(client.get("/stream").text(), expected);
    let body = vec![b'b'; 1_000_000];
    client.send(format!(
        "POST /count HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    client.send(&body);
    assert_eq!(client.reply().text(), "1000000");
    // More requests than a read takes: some wait decrypted, of which no event tells.
    let count = 2000;
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(count));
    for _ in 0..count {
        assert_eq!(client.reply().text(), "hello");
    }
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(client.reply().text(), "hello");
    client.expect_end();
}

#[test]
fn a_request_in_the_clear_gets_a_line_that_says_so() {
    let site = site(hello(), |server| server);
    let mut client = site.connect();
    let reply = client.get("/");
    assert_eq!(
        (reply.status, reply.text()),
        (400, "this port speaks TLS: write https:// in the URL\n")
    );
    client.expect_end();
    assert!(site.logged("plain HTTP request"));
    let mut garbage = site.connect();
    garbage.send([0xff; 100]);
    let alert = garbage.rest();
    assert!(alert.starts_with(&[21, 3]), "{alert:?}");
}

/// Passes bytes to the server one by one, the first ones and some others when the server has read the one before, and those back as
/// they come.
fn drip(site: &Site) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut client, _) = listener.accept().unwrap();
    let mut server = TcpStream::connect(site.addr).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut back, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    thread::spawn(move || {
        let _ = std::io::copy(&mut back, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    thread::spawn(move || {
        let mut byte = [0];
        for count in 0.. {
            if !matches!(client.read(&mut byte), Ok(1)) || server.write_all(&byte).is_err() {
                break;
            }
            if count < 16 || count % 32 == 0 {
                taken(&server);
            }
        }
        let _ = server.shutdown(Shutdown::Write);
    });
    near
}

#[test]
fn a_handshake_and_a_request_may_come_byte_by_byte() {
    let timeouts = Timeouts {
        handshake: 6 * PATIENCE,
        header: 6 * PATIENCE,
        ..Timeouts::default()
    };
    let site = site(hello(), |server| server.timeouts(timeouts));
    // Each look at the kernel's queues reads the table of all sockets, of which other tests have thousands.
    let mut client = over_with(drip(&site), 6 * PATIENCE);
    assert_eq!(client.get("/").text(), "hello");
    assert_eq!(client.get("/tls").text(), "true localhost TLSv1.3 0");
}

#[test]
fn a_record_that_never_ends_is_a_head_that_never_comes() {
    let (reasons, ended) = mpsc::channel();
    let site = site(hello(), |server| {
        let timeouts = Timeouts {
            header: Duration::from_secs(2),
            ..Timeouts::default()
        };
        server.timeouts(timeouts).on_connection(move |event| {
            if let ConnectionEvent::Closed(reason) = event {
                let _ = reasons.send(reason);
            }
        })
    });
    let mut client = connect(&site);
    assert_eq!(client.get("/").text(), "hello");
    let socket = client.stream.socket();
    { socket }.write_all(&[23, 3, 3, 1, 0, 7, 7]).unwrap();
    let reply = client.reply();
    assert_eq!(reply.status, 408);
    client.expect_end();
    drop(client);
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(CloseReason::HeaderTimeout));
}

pub const LENGTH: usize = 6 << 20;

fn byte_at(place: usize) -> u8 {
    (place % 251) as u8
}

pub fn files() -> (Folder, Router) {
    let folder = Folder::new();
    folder.write("file", (0..LENGTH).map(byte_at).collect::<Vec<u8>>());
    folder.write("small", "a small file");
    let files = Files::open(folder.path()).unwrap().handler();
    (folder, hello().fallback(files))
}

#[test]
fn a_slow_reader_of_a_file_holds_no_stack_and_gets_every_byte_and_the_next_responses() {
    let (_folder, router) = files();
    let site = site(router, |server| server);
    let mut asker = connect(&site);
    eventually("no other connection is left", || asker.get("/resting").text() == "1");
    let mut client = over(connect_narrowly(site.addr));
    let file = "GET /file HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let next = "GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n";
    client.send(format!("{next}{file}{next}{file}"));
    assert_eq!(client.reply().text(), "a small file");
    eventually("the connection rests", || asker.get("/resting").text() == "2");
    for text in [Some("a small file"), None] {
        let reply = client.reply();
        assert_eq!((reply.status, reply.body.len()), (200, LENGTH));
        let mut bytes = reply.body.iter().enumerate();
        assert!(bytes.all(|(place, byte)| *byte == byte_at(place)));
        if let Some(text) = text {
            assert_eq!(client.reply().text(), text);
        }
    }
    assert_eq!(client.get("/").text(), "hello", "the connection goes on");
}

#[test]
fn a_reader_of_a_file_that_takes_nothing_is_cut_without_a_goodbye() {
    let (_folder, router) = files();
    let (reasons, ended) = mpsc::channel();
    let site = site(router, |server| {
        let timeouts = Timeouts {
            write: Duration::from_millis(300),
            ..Timeouts::default()
        };
        server.timeouts(timeouts).on_connection(move |event| {
            if let ConnectionEvent::Closed(reason) = event {
                let _ = reasons.send(reason);
            }
        })
    });
    let mut client = connect(&site);
    client.send("GET /file HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(CloseReason::WriteTimeout));
    let mut sink = Vec::new();
    client.stream.read_to_end(&mut sink).expect_err("it is cut");
}

#[test]
fn a_broken_response_ends_without_a_goodbye() {
    let site = site(hello(), |server| server);
    let mut client = connect(&site);
    client.send("GET /broken HTTP/1.0\r\n\r\n");
    let mut body = Vec::new();
    let error = client.stream.read_to_end(&mut body).expect_err("it is cut");
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
}

#[test]
fn an_idle_connection_ends_with_a_goodbye() {
    let timeouts = Timeouts {
        // The client has to ask before.
        idle: Duration::from_secs(1),
        ..Timeouts::default()
    };
    let site = site(hello(), |server| server.timeouts(timeouts));
    let mut client = connect(&site);
    assert_eq!(client.get("/").text(), "hello");
    client.expect_end();
}

#[test]
fn a_client_that_has_ended_its_direction_gets_a_goodbye() {
    // RFC 5246 7.2.1 and RFC 8446 6.1 want it of both ends. A client that reads on would take the end for a cut without it.
    let site = site(hello(), |server| server);
    for asks in [false, true] {
        let mut client = connect(&site);
        match asks {
            true => assert_eq!(client.get("/").text(), "hello"),
            false => client.stream.handshake().unwrap(),
        }
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.stream.read(&mut [0; 16]).unwrap(), 0);
    }
}

#[test]
fn a_shutdown_serves_what_was_sent_and_says_goodbye() {
    let (entered, begins) = mpsc::channel();
    let (go, waits) = mpsc::channel::<()>();
    let waits = std::sync::Mutex::new(Some(waits));
    let router = hello().get("/slow", move |_| {
        let waits = waits.lock().unwrap().take().unwrap();
        entered.send(()).unwrap();
        osier::unblock(move || waits.recv()).unwrap();
        "late"
    });
    let site = site(router, |server| server);
    let (mut idle, mut busy) = (connect(&site), connect(&site));
    assert_eq!(idle.get("/").text(), "hello");
    busy.send("GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n");
    begins.recv_timeout(PATIENCE).unwrap();
    site.stop.shutdown();
    idle.expect_end();
    go.send(()).unwrap();
    assert_eq!(busy.reply().text(), "late");
    busy.expect_end();
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0));
}

#[test]
fn websockets_of_both_styles_work_over_tls() {
    struct Echo;
    impl ws::Callbacks for Echo {
        fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
            let _ = sender.send(message);
        }
    }
    let router = hello()
        .get("/loop", |request: &mut Request<'_>| {
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
    let site = site(router, |server| server);
    for path in ["/loop", "/dormant"] {
        let mut client = connect(&site);
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ));
        assert_eq!(client.head().0, 101);
        client.send(masked(0x81, b"hi"));
        assert_eq!(client.take(4), b"\x81\x02hi");
        // Many small messages in one record, more than one read takes.
        client.send(masked(0x82, &[7; 100]).repeat(400));
        for _ in 0..400 {
            assert_eq!(client.take(102)[2..], [7; 100]);
        }
        let large = vec![9; 60_000];
        client.send(masked(0x82, &large));
        assert_eq!(client.take(60_004)[4..], large);
        client.send(masked(0x88, &1000_u16.to_be_bytes()));
        assert_eq!(client.take(4), [0x88, 2, 3, 0xe8]);
        client.expect_end();
    }
}

#[test]
fn a_websocket_over_tls_gets_each_message_of_another_thread() {
    struct Member(mpsc::Sender<ws::Sender>);
    impl ws::Callbacks for Member {
        fn on_open(&mut self, sender: &ws::Sender) {
            self.0.send(sender.clone()).unwrap();
        }
        fn on_message(&mut self, _: ws::Message, _: &ws::Sender) {}
    }
    let (members, opened) = mpsc::channel();
    let router = hello().get("/ws", move |request: &mut Request<'_>| {
        ws::Options::default().upgrade_dormant(request, Member(members.clone()))
    });
    let site = site(router, |server| server);
    let mut client = connect(&site);
    client.send(
        "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    assert_eq!(client.head().0, 101);
    let sender = opened.recv_timeout(PATIENCE).unwrap();
    for _ in 0..3 {
        // One at a time: the queue has a single frame then.
        sender.send("hi");
        assert_eq!(client.take(4), b"\x81\x02hi");
    }
}

#[test]
fn a_client_that_leaves_cancels_its_handler() {
    let (left, leaves) = mpsc::channel();
    let (entered, begins) = mpsc::channel();
    struct Tell(mpsc::Sender<()>);
    impl Drop for Tell {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let wait = move |_: &mut Request<'_>| {
        let _tell = Tell(left.clone());
        entered.send(()).unwrap();
        crate::common::forever();
    };
    let router = Router::new().route("/wait", osier_web::Route::new().get(wait).cancel_when_gone());
    let site = site(router, |server| server);
    let mut client = connect(&site);
    client.send("GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
    begins.recv_timeout(PATIENCE).unwrap();
    drop(client);
    leaves.recv_timeout(PATIENCE).expect("the handler is cancelled");
}

/// As a browser does whose tab is closed: that is no failure of the server.
#[test]
fn an_upload_that_ends_without_a_goodbye_is_one_that_its_client_broke_off() {
    let site = site(hello(), |server| server);
    let mut client = connect(&site);
    client.send("POST /count HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
    drop(client);
    let expected = "POST /count was refused with 400: the connection ended inside the request's body";
    let is_refused = || site.refused.lock().unwrap().iter().any(|line| line.contains(expected));
    eventually("it is refused", || is_refused() || !site.log.lock().unwrap().is_empty());
    assert!(is_refused(), "{:?}", site.log);
}

#[test]
fn a_proxy_header_comes_before_the_handshake() {
    let router = hello().get("/peer", |request: &mut Request<'_>| request.peer().to_string());
    let site = site(router, |server| server.proxy_protocol(|_| true));
    for split in [0, 3, 40] {
        let mut stream = TcpStream::connect(site.addr).unwrap();
        let header = b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 443\r\n";
        stream.write_all(&header[..split]).unwrap();
        if split > 0 {
            taken(&stream);
        }
        stream.write_all(&header[split..]).unwrap();
        let mut client = over(stream);
        assert_eq!(client.get("/peer").text(), "192.0.2.7:4711");
    }
}

#[test]
fn a_client_may_have_to_show_a_certificate() {
    let alice = Pem::of("alice");
    let clients = ClientCertificates::Required(alice.chain.clone().into_bytes());
    let acceptor = Acceptor::builder(LOCALHOST.identity())
        .client_certificates(clients)
        .build()
        .unwrap();
    let site = site(hello(), |server| server.tls(acceptor));
    let connector = Connector::builder()
        .ca_pem(LOCALHOST.chain.as_bytes())
        .identity(alice.identity())
        .build()
        .unwrap();
    let socket = osier::net::TcpStream::from(TcpStream::connect(site.addr).unwrap());
    let mut client = Client::over(connector.connect("localhost", socket).unwrap());
    assert_eq!(client.get("/tls").text(), "true localhost TLSv1.3 1");
    // One without a certificate is refused.
    let mut stranger = connect(&site);
    let refused = stranger
        .stream
        .write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
        .and_then(|()| stranger.stream.read(&mut [0]));
    let error = refused.expect_err("a certificate is required");
    assert!(tls::Error::of(&error).is_some_and(tls::Error::is_alert), "{error}");
}

#[test]
fn connections_are_counted_by_protocol() {
    let site = site(hello(), |server| server);
    let of = |protocol| site.connections.of_protocol(protocol);
    let mut shaking = TcpStream::connect(site.addr).unwrap();
    shaking.write_all(&[22]).unwrap();
    eventually("it is in its handshake", || of(Protocol::Handshake) == 1);
    let mut client = connect(&site);
    assert_eq!(client.get("/").text(), "hello");
    assert_eq!((of(Protocol::Http1Tls13), of(Protocol::Http1)), (1, 0));
    drop((shaking, client));
    eventually("they are gone", || {
        Protocol::ALL.iter().all(|&protocol| of(protocol) == 0)
    });
}

/// The server ends its reading direction, which looks like a client without its last word.
#[test]
fn near_the_limit_of_memory_a_client_whose_body_does_not_come_gets_its_response() {
    let test = "tls::near_the_limit_of_memory_a_client_whose_body_does_not_come_gets_its_response";
    in_a_small_child(test, || {
        let (begun, count) = counts();
        let site = site(Router::new().post("/count", count), |server| server);
        let mut client = connect(&site);
        client.send("POST /count HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nx");
        eventually("the handler reads", || begun.load(Ordering::Relaxed) == 1);
        let all = Account::named("greedy").charge(memory::limit().expect("the child has one"));
        assert_eq!(client.reply().status, 408);
        client.expect_end();
        drop(all);
    });
}
