//! The reasons that a server reports for the ends of its connections. Server and clients are fibers on a virtual clock, so no
//! test waits.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use osier::net::TcpStream;
use osier::time::VirtualClock;
use osier_web::http::StatusCode;
use osier_web::{CloseReason, ConnectionEvent, Request, Response, Router, Server, Timeouts};

const SECOND: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(100);

fn router() -> Router {
    Router::new()
        .get("/", |_| "hi")
        .get("/large", |_| vec![b'x'; 16 << 20])
        .get("/broken", |_| {
            Response::stream(|out| {
                out.write_all(&[b'x'; 1000])?;
                out.flush()?;
                Err(io::Error::other("no more"))
            })
        })
        .get("/cut", |_| {
            Response::stream(|out| {
                out.write_all(&[b'x'; 1000])?;
                out.flush()?;
                // The connection still has these bytes when the body fails.
                out.write_all(b"more")?;
                Err(io::Error::other("no more"))
            })
        })
        .get("/up", |_| {
            Response::upgrade("test", |client| {
                let _ = client.write_all(b"bye");
            })
        })
        .post("/", |request: &mut Request<'_>| {
            let read = request.body().read_to_end(&mut Vec::new());
            read.map(|count| format!("{count} bytes"))
        })
}

/// Runs clients of a server. Returns why its connections ended, in the order of the ends.
fn reasons_of(
    change: impl FnOnce(Server) -> Server + Send,
    clients: impl FnOnce(SocketAddr) + Send,
) -> Vec<CloseReason> {
    reasons_on(2, change, clients)
}

/// Same as [`reasons_of`], on so many workers. One alone sees what has been sent before the clock goes on.
fn reasons_on(
    workers: usize,
    change: impl FnOnce(Server) -> Server + Send,
    clients: impl FnOnce(SocketAddr) + Send,
) -> Vec<CloseReason> {
    let timeouts = Timeouts {
        header: 2 * SECOND,
        body: 3 * SECOND,
        idle: IDLE,
        write: 4 * SECOND,
        ..Timeouts::default()
    };
    let events: Arc<Mutex<Vec<ConnectionEvent>>> = Arc::default();
    let log = Arc::clone(&events);
    let runtime = osier::Runtime::builder().workers(workers).clock(VirtualClock::new());
    runtime.build().unwrap().run(|| {
        let server = Server::new(router()).timeouts(timeouts).on_log(|_| {});
        let server = server.on_connection(move |event| log.lock().unwrap().push(event));
        let server = change(server).bind("127.0.0.1:0").unwrap();
        let (address, handle) = (server.local_addr(), server.handle());
        let serving = osier::spawn(move || server.run());
        clients(address);
        handle.shutdown();
        serving.join().unwrap();
    });
    let events = events.lock().unwrap();
    let reasons: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            ConnectionEvent::Closed(reason) => Some(*reason),
            _ => None,
        })
        .collect();
    assert_eq!(
        events.len(),
        2 * reasons.len(),
        "each opened connection is closed: {events:?}"
    );
    reasons
}

/// Sends these bytes and reads to the end of the connection.
fn reason_after(sent: &str) -> CloseReason {
    let reasons = reasons_of(
        |server| server,
        |address| {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(sent.as_bytes()).unwrap();
            // The end, or a reset.
            let _ = client.read_to_end(&mut Vec::new());
            drop(client);
            osier::sleep(10 * SECOND);
        },
    );
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    reasons[0]
}

/// Waits until the server has answered.
fn get(address: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    let mut received = Vec::new();
    while !received.ends_with(b"hi") {
        let mut piece = [0; 1024];
        let count = client.read(&mut piece).unwrap();
        assert!(count > 0, "{received:?}");
        received.extend_from_slice(&piece[..count]);
    }
    client
}

#[test]
fn a_server_says_what_a_client_did_or_did_not_do() {
    let cases = [
        (
            "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
            CloseReason::LastResponse,
        ),
        ("GET / HTTP/1.0\r\n\r\n", CloseReason::LastResponse),
        ("", CloseReason::IdleTimeout),
        ("GET / HTTP/1.1\r\nHost: t\r\n\r\n", CloseReason::IdleTimeout),
        ("GET / HTTP/1.1\r\nHo", CloseReason::HeaderTimeout),
        (
            "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nhal",
            CloseReason::BodyTimeout,
        ),
        ("BAD\r\n\r\n", CloseReason::ProtocolError),
        (
            "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            CloseReason::ProtocolError,
        ),
        ("GET /broken HTTP/1.1\r\nHost: t\r\n\r\n", CloseReason::Failed),
        (
            "GET /up HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: test\r\n\r\n",
            CloseReason::Upgraded,
        ),
    ];
    for (sent, reason) in cases {
        assert_eq!(reason_after(sent), reason, "{sent:?}");
    }
}

#[test]
fn a_client_that_leaves_or_takes_nothing_is_told_apart() {
    let leaves = reasons_of(
        |server| server,
        |address| {
            drop(get(address));
            // Half of a head.
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
            osier::sleep(SECOND);
            drop(client);
            osier::sleep(10 * SECOND);
        },
    );
    assert_eq!(leaves, [CloseReason::Client; 2]);
    let takes_nothing = reasons_of(
        |server| server,
        |address| {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(b"GET /large HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
            osier::sleep(20 * SECOND);
        },
    );
    assert_eq!(takes_nothing, [CloseReason::WriteTimeout]);
}

#[test]
fn limits_and_the_shutdown_are_reasons_of_the_server() {
    let refused = reasons_of(
        |server| server.max_connections_per_client(1),
        |address| {
            let first = get(address);
            // The reset may come before the call returns.
            let refused = TcpStream::connect(address).and_then(|mut second| {
                // A connection is accepted with its first byte.
                second.write_all(b"G")?;
                second.read(&mut [0])
            });
            assert!(!refused.is_ok_and(|count| count > 0));
            drop(first);
            osier::sleep(SECOND);
        },
    );
    assert_eq!(refused, [CloseReason::ClientLimit, CloseReason::Client]);
    let evicted = reasons_of(
        |server| server.max_connections(1),
        |address| {
            let mut first = get(address);
            let second = get(address);
            assert_eq!(first.read(&mut [0]).unwrap(), 0);
            drop(second);
            osier::sleep(SECOND);
        },
    );
    assert_eq!(evicted, [CloseReason::Evicted, CloseReason::Client]);
    let mut kept = None;
    let shut_down = reasons_of(|server| server, |address| kept = Some(get(address)));
    assert_eq!(shut_down, [CloseReason::Shutdown]);
}

#[test]
fn the_report_of_a_request_has_the_bytes_of_its_body() {
    let received: Arc<Mutex<Vec<(StatusCode, u64)>>> = Arc::default();
    let log = Arc::clone(&received);
    reasons_of(
        |server| server.on_request(move |served| log.lock().unwrap().push((served.status(), served.received()))),
        |address| {
            let mut client = TcpStream::connect(address).unwrap();
            let chunked =
                "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
            let known = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 7\r\n\r\nseven b";
            let last = "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
            client.write_all([chunked, known, last].concat().as_bytes()).unwrap();
            client.read_to_end(&mut Vec::new()).unwrap();
        },
    );
    let ok = StatusCode::OK;
    assert_eq!(*received.lock().unwrap(), [(ok, 5), (ok, 7), (ok, 0)]);
}

#[test]
fn an_end_that_is_the_only_framing_is_a_reset_if_the_body_is_cut() {
    let reasons = reasons_of(
        |server| server,
        |address| {
            // The chunks of HTTP/1.1 tell that the last one is missing.
            for (head, is_reset) in [
                ("/broken HTTP/1.0\r\n\r\n", true),
                ("/cut HTTP/1.0\r\n\r\n", true),
                ("/broken HTTP/1.1\r\nHost: t\r\n\r\n", false),
                ("/cut HTTP/1.1\r\nHost: t\r\n\r\n", false),
            ] {
                let mut client = TcpStream::connect(address).unwrap();
                write!(client, "GET {head}").unwrap();
                let end = client.read_to_end(&mut Vec::new());
                let is_end = |error: io::Error| error.kind() == io::ErrorKind::ConnectionReset;
                assert_eq!(end.is_err_and(is_end), is_reset, "{head}");
            }
        },
    );
    assert_eq!(reasons, [CloseReason::Failed; 4]);
}

#[test]
fn empty_lines_do_not_push_the_idle_deadline_back() {
    let reasons = reasons_on(
        1,
        |server| server,
        |address| {
            let mut client = get(address);
            for _ in 0..20 {
                osier::sleep(IDLE / 5);
                if client.write_all(b"\r\n").is_err() {
                    break;
                }
                // The clock stands still while this thread does. Two lines at once are the beginning of a head.
                std::thread::sleep(Duration::from_millis(20));
            }
        },
    );
    assert_eq!(reasons, [CloseReason::IdleTimeout]);
}
