//! Connections that leave HTTP, and responses whose handler reads the request's body while it
//! writes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;

use crate::common::{Client, PATIENCE, eventually, site, site_with};
use osier::dormant::{AfterBurst, Cause};
use osier::sync::Event;
use osier_web::http::StatusCode;
use osier_web::{Body, Request, Response, Router, Server, Session, Upgraded};

const ASK: &str = "GET /up HTTP/1.1\r\nHost: test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\n";
const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nupgrade: echo\r\nconnection: upgrade\r\nx-kept: yes\r\n\r\n";

fn echo(stream: &mut Upgraded) {
    let mut buf = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buf) {
        if stream.write_all(&buf[..count]).is_err() {
            break;
        }
    }
}

fn exactly(client: &mut Client, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    client.stream.read_exact(&mut bytes).expect("that many bytes");
    bytes
}

#[test]
fn a_closure_takes_the_connection_over_with_what_came_behind_the_request() {
    let router = Router::new().get("/up", |_: &mut Request<'_>| {
        Response::upgrade("echo", echo).header("x-kept", "yes")
    });
    let site = site(router);
    let mut client = site.connect();
    client.send(format!("{ASK}early"));
    assert_eq!(
        String::from_utf8(exactly(&mut client, SWITCHED.len())).unwrap(),
        SWITCHED
    );
    assert_eq!(exactly(&mut client, 5), b"early");
    client.send("later");
    assert_eq!(exactly(&mut client, 5), b"later");
}

#[test]
fn an_upgrade_nobody_asked_for_is_500_and_a_log_line() {
    let site = site(Router::new().on_all("/up"));
    for request in [
        "GET /up HTTP/1.1\r\nHost: t\r\n\r\n",
        "GET /up HTTP/1.1\r\nHost: t\r\nUpgrade: echo\r\n\r\n",
        "GET /up HTTP/1.0\r\nHost: t\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n",
    ] {
        assert_eq!(site.ask(request).status, 500, "{request:?}");
    }
    // With a body, the beginning of the new protocol would be unknown. The codec refuses it before
    // any handler.
    let with_body =
        "POST /up HTTP/1.1\r\nHost: t\r\nUpgrade: echo\r\nConnection: upgrade\r\nContent-Length: 3\r\n\r\nabc";
    assert_eq!(site.ask(with_body).status, 400);
    assert!(site.logged("has not asked for one"));
}

trait OnAll {
    fn on_all(self, path: &str) -> Router;
}

impl OnAll for Router {
    fn on_all(self, path: &str) -> Router {
        let up = |_: &mut Request<'_>| Response::upgrade("echo", echo);
        self.get(path, up).post(path, up)
    }
}

/// Echoes, and sends "woken" whenever the event is set.
struct Woken {
    event: Arc<Event>,
    wait: Option<Pin<Box<dyn Future<Output = ()>>>>,
    bursts: Arc<AtomicUsize>,
}

impl Woken {
    fn wait(event: Arc<Event>) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move { event.wait_async().await })
    }
}

impl Session for Woken {
    fn open(&mut self, io: &mut Upgraded) -> AfterBurst {
        io.write_all(b"hi").expect("the client reads");
        AfterBurst::Sleep(None)
    }

    fn wake(&mut self, io: &mut Upgraded, cause: Cause) -> AfterBurst {
        self.bursts.fetch_add(1, Ordering::Relaxed);
        let mut buf = [0; 64];
        match cause {
            Cause::Woken => {
                self.wait = None;
                io.write_all(b"woken").expect("the client reads");
            }
            Cause::Readable => match io.read(&mut buf) {
                Ok(0) => {
                    let _ = io.write_all(if io.is_draining() { b"bye" } else { b"fin" });
                    return AfterBurst::End;
                }
                Ok(count) => io.write_all(&buf[..count]).expect("the client reads"),
                Err(_) => return AfterBurst::End,
            },
            Cause::Writable | Cause::Deadline | Cause::Shutdown => return AfterBurst::End,
        }
        AfterBurst::Sleep(None)
    }

    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let event = self.event.clone();
        self.wait.get_or_insert_with(|| Woken::wait(event)).as_mut().poll(cx)
    }
}

#[test]
fn a_session_rests_without_a_stack_and_is_woken_by_bytes_and_by_leaves() {
    let (event, bursts) = (Arc::new(Event::new()), Arc::new(AtomicUsize::new(0)));
    let parts = (event.clone(), bursts.clone());
    let router = Router::new().get("/up", move |_: &mut Request<'_>| {
        let session = Woken {
            event: parts.0.clone(),
            wait: None,
            bursts: parts.1.clone(),
        };
        Response::upgrade_dormant("echo", Box::new(session)).header("x-kept", "yes")
    });
    let site = site_with(2, Server::new(router), |server| server.bind("127.0.0.1:0"));
    let mut client = site.connect();
    client.send(format!("{ASK}early"));
    exactly(&mut client, SWITCHED.len());
    assert_eq!(exactly(&mut client, 7), b"hiearly");
    client.send("more");
    assert_eq!(exactly(&mut client, 4), b"more");
    for _ in 0..3 {
        event.set();
        assert_eq!(exactly(&mut client, 5), b"woken");
    }
    assert_eq!(bursts.load(Ordering::Relaxed), 5);
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(exactly(&mut client, 3), b"fin");
}

#[test]
fn a_session_whose_poll_panics_ends_and_takes_nobody_along() {
    struct Panics(Arc<AtomicUsize>);
    impl Session for Panics {
        fn wake(&mut self, _: &mut Upgraded, _: Cause) -> AfterBurst {
            self.0.fetch_add(1, Ordering::Relaxed);
            AfterBurst::Sleep(None) // never of its own accord
        }
        fn poll_woken(&mut self, _: &mut Context<'_>) -> Poll<()> {
            panic!("as the test wants it");
        }
    }
    let wakes = Arc::new(AtomicUsize::new(0));
    let count = wakes.clone();
    let router = Router::new()
        .get("/up", move |_: &mut Request<'_>| {
            Response::upgrade_dormant("none", Box::new(Panics(count.clone())))
        })
        .get("/", |_| "here");
    let site = site_with(1, Server::new(router), |server| server.bind("127.0.0.1:0"));
    for _ in 0..3 {
        let mut client = site.connect();
        client.send(ASK);
        let mut rest = Vec::new();
        client.stream.read_to_end(&mut rest).expect("the connection ends");
        assert!(rest.starts_with(b"HTTP/1.1 101 "));
        assert_eq!(site.connect().get("/").text(), "here");
    }
    assert_eq!(wakes.load(Ordering::Relaxed), 0, "nothing is called any more");
}

#[test]
fn a_drain_ends_upgraded_connections() {
    let event = Arc::new(Event::new());
    let router = Router::new()
        .get("/up", |_: &mut Request<'_>| Response::upgrade("echo", echo))
        .get("/rest", move |_: &mut Request<'_>| {
            let session = Woken {
                event: event.clone(),
                wait: None,
                bursts: Arc::default(),
            };
            Response::upgrade_dormant("echo", Box::new(session))
        });
    let site = site(router);
    let (mut blocking, mut resting) = (site.connect(), site.connect());
    blocking.send(ASK);
    resting.send(ASK.replace("/up", "/rest"));
    let head = SWITCHED.len() - "x-kept: yes\r\n".len();
    exactly(&mut blocking, head);
    exactly(&mut resting, head + 2);
    site.stop.shutdown();
    assert_eq!(site.ended.recv_timeout(PATIENCE).unwrap(), 0, "none was cut");
    let mut rest = Vec::new();
    resting.stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"bye");
}

#[test]
fn a_duplex_response_reads_and_writes_at_once() {
    const LEN: usize = 8 << 20;
    let router = Router::new().post("/echo", |_: &mut Request<'_>| {
        Response::new(StatusCode::OK).body(Body::duplex(|from, to| std::io::copy(from, to).map(drop)))
    });
    let site = site_with(
        1,
        Server::new(router).limits(osier_web::Limits {
            body: 64 << 20,
            ..Default::default()
        }),
        |server| server.bind("127.0.0.1:0"),
    );
    let mut client = site.connect();
    let mut writer = client.stream.try_clone().unwrap();
    // More bytes than all buffers on the way hold. They pass only if both directions move.
    let sender = thread::spawn(move || {
        let head = format!("POST /echo HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {LEN}\r\n\r\n");
        writer.write_all(head.as_bytes()).unwrap();
        for piece in 0..LEN / 4096 {
            writer.write_all(&[piece as u8; 4096]).unwrap();
        }
    });
    assert_eq!(exactly(&mut client, 25), b"HTTP/1.1 100 Continue\r\n\r\n");
    let reply = client.reply();
    sender.join().unwrap();
    assert_eq!((reply.status, reply.body.len()), (200, LEN));
    assert!(
        reply
            .body
            .chunks(4096)
            .enumerate()
            .all(|(piece, bytes)| bytes.iter().all(|&byte| byte == piece as u8))
    );
    // The connection goes on.
    client.send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(client.reply().text(), "ok");
}

#[test]
fn a_unix_socket_serves_and_a_dead_servers_file_is_replaced() {
    let dir = std::env::temp_dir().join(format!("osier-unix-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("web.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let router = || {
        Router::new().get("/", |request: &mut Request<'_>| {
            format!("{} {:?}", request.peer(), request.local_addr())
        })
    };
    let at = path.clone();
    let first = site_with(2, Server::new(router()), move |server| server.bind_unix(at));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.ends_with("0.0.0.0:0 None"), "{reply}");

    let at = path.clone();
    osier::Runtime::builder().workers(1).build().unwrap().run(move || {
        let error = Server::new(Router::new()).bind_unix(&at).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    });
    drop(first);
    eventually("the file is gone", || !path.exists());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_unix_socket_may_outlive_the_server_that_has_bound_it() {
    let dir = std::env::temp_dir().join(format!("osier-handed-over-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("web.sock");
    let at = path.clone();
    osier::Runtime::builder().workers(2).build().unwrap().run(move || {
        let ask = || {
            let at = at.clone();
            osier::unblock(move || {
                let mut stream = UnixStream::connect(at).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(b"GET / HTTP/1.0\r\nHost: t\r\n\r\n").unwrap();
                let mut reply = String::new();
                stream.read_to_string(&mut reply).unwrap();
                reply
            })
        };
        let server = |answer: &'static str| Server::new(Router::new().get("/", move |_: &mut Request<'_>| answer));
        let mut first = server("first").bind_unix(&at).unwrap();
        let file = first.take_file().expect("the file of a socket that it has bound");
        let sockets = first.sockets();
        let second = server("second").listeners(sockets.try_clone().unwrap()).unwrap();
        let (stop, ended) = (first.handle(), osier::spawn(move || first.run()));
        assert!(ask().ends_with("first") && !stop.is_closed());
        stop.close();
        crate::common::eventually_on_fiber("it is closed", || stop.is_closed());
        assert!(!sockets.are_closed());
        stop.shutdown();
        assert_eq!(ended.join().unwrap(), 0);
        let closed = sockets.try_clone().unwrap_err();
        assert_eq!(
            (sockets.are_closed(), closed.kind()),
            (true, std::io::ErrorKind::NotConnected)
        );
        let (stop, ended) = (second.handle(), osier::spawn(move || second.run()));
        assert!(ask().ends_with("second"));
        stop.shutdown();
        ended.join().unwrap();
        assert!(at.exists() && stop.is_closed());
        drop(file);
        assert!(!at.exists());
    });
    assert!(!path.exists());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_request_has_one_number() {
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let served = seen.clone();
    let router = Router::new().get("/", |request: &mut Request<'_>| {
        request.set_label(7);
        assert_eq!(request.id(), request.id());
        assert!(
            request
                .local_addr()
                .is_some_and(|addr| addr.ip().is_loopback() && addr.port() != 0)
        );
        request.id().to_string()
    });
    let server =
        Server::new(router).on_request(move |one| served.lock().unwrap().push((one.id().to_string(), one.label())));
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = site.connect();
    let (first, second) = (client.get("/"), client.get("/"));
    client.get("/none");
    assert_ne!(first.text(), second.text());
    assert_eq!(first.text().len(), 16);
    eventually("all are notified", || seen.lock().unwrap().len() == 3);
    let seen = seen.lock().unwrap();
    let expected = [(first.text().to_owned(), 7), (second.text().to_owned(), 7)];
    assert_eq!(seen[..2], expected);
    // Nobody has asked for the id of the third before.
    assert_eq!((seen[2].0.len(), seen[2].1), (16, 0));
}

#[test]
fn a_unix_socket_whose_server_is_too_busy_is_neither_taken_nor_waited_for() {
    let path = std::env::temp_dir().join(format!("osier-busy-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let unix = || socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    let address = socket2::SockAddr::unix(&path).unwrap();
    let server = unix();
    server.bind(&address).unwrap();
    server.listen(0).unwrap();
    let mut waiting = Vec::new();
    loop {
        let client = unix();
        client.set_nonblocking(true).unwrap();
        match client.connect(&address) {
            Ok(()) => waiting.push(client),
            Err(error) => break assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
    let (done, bound) = std::sync::mpsc::channel();
    let at = path.clone();
    std::thread::spawn(move || done.send(osier_web::Listener::bind_unix(at).map_err(|error| error.kind())));
    let bound = bound
        .recv_timeout(std::time::Duration::from_secs(10))
        .expect("an answer at once");
    assert_eq!(bound.err(), Some(std::io::ErrorKind::AddrInUse));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn of_servers_that_find_a_dead_socket_at_once_one_gets_it() {
    let path = std::env::temp_dir().join(format!("osier-stale-{}.sock", std::process::id()));
    for round in 0..500 {
        let _ = std::fs::remove_file(&path);
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let begin = Arc::new(std::sync::Barrier::new(8));
        let servers: Vec<_> = (0..8)
            .map(|_| {
                let (path, begin) = (path.clone(), begin.clone());
                thread::spawn(move || {
                    begin.wait();
                    osier_web::Listener::bind_unix(path)
                })
            })
            .collect();
        let listeners: Vec<_> = servers.into_iter().map(|server| server.join().unwrap()).collect();
        assert_eq!(listeners.iter().flatten().count(), 1, "round {round}: {listeners:?}");
        UnixStream::connect(&path).expect("the one that has it listens");
    }
    std::fs::remove_file(&path).unwrap();
}
