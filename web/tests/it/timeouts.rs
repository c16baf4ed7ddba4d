//! Slow clients: each timeout with a short setting. The only upper bound is the patience of the
//! tests.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Site, connect_narrowly, eventually, kernel_queues, site_with};
use osier_web::{Rates, Request, Router, Server, Timeouts};

const SHORT: Duration = Duration::from_millis(200);

/// A timeout that a client must beat. It is long, because a busy machine may hold up a test.
const MEDIUM: Duration = Duration::from_secs(2);

/// One of the timeouts is short, the others are longer than any test, and no rate is a limit.
fn site_timing_out(router: Router, change: impl FnOnce(&mut Timeouts)) -> Site {
    let long = Duration::MAX;
    let mut timeouts = Timeouts {
        header: long,
        body: long,
        idle: long,
        write: long,
        ..Timeouts::default()
    };
    change(&mut timeouts);
    let server = Server::new(router).timeouts(timeouts).rates(Rates::OFF);
    site_with(1, server, |server| server.bind("127.0.0.1:0"))
}

#[test]
fn an_idle_connection_is_closed() {
    let site = site_timing_out(Router::new().get("/", |_| "hi"), |timeouts| timeouts.idle = MEDIUM);
    let mut fresh = site.connect();
    let mut used = site.connect();
    assert_eq!(used.get("/").text(), "hi");
    let start = Instant::now();
    used.expect_end();
    assert!(start.elapsed() >= MEDIUM / 2, "closed before its time");
    fresh.expect_end();
}

#[test]
fn requests_push_the_idle_deadline_back() {
    let site = site_timing_out(Router::new().get("/", |_| "hi"), |timeouts| timeouts.idle = MEDIUM);
    let mut client = site.connect();
    for _ in 0..6 {
        assert_eq!(client.get("/").text(), "hi");
        // The pace of a client, longer than the limit in all.
        std::thread::sleep(MEDIUM / 4);
    }
}

#[test]
fn a_handler_may_take_longer_than_a_connection_may_idle() {
    let router = Router::new().get("/", |_| {
        // The time of a handler, longer than the limit.
        osier::sleep(MEDIUM + SHORT);
        "waited"
    });
    let site = site_timing_out(router, |timeouts| timeouts.idle = MEDIUM);
    let mut client = site.connect();
    assert_eq!(client.get("/").text(), "waited");
    // The idle time begins with the response.
    assert_eq!(client.get("/").text(), "waited");
}

#[test]
fn an_incomplete_head_is_answered_408() {
    let site = site_timing_out(Router::new().get("/", |_| "hi"), |timeouts| timeouts.header = SHORT);
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHo");
    let reply = client.reply();
    assert_eq!((reply.status, reply.header("connection")), (408, Some("close")));
    client.expect_end();
}

#[test]
fn the_header_deadline_counts_from_the_first_byte() {
    let site = site_timing_out(Router::new().get("/", |_| "hi"), |timeouts| timeouts.header = SHORT);
    let mut client = site.connect();
    // Each byte comes well within the timeout; the head as a whole does not.
    let start = Instant::now();
    while client.try_send("G") && client.is_quiet_for(SHORT / 10) {
        assert!(start.elapsed() < PATIENCE, "each byte has pushed the deadline back");
    }
    assert_eq!(client.reply().status, 408);
}

#[test]
fn a_stray_crlf_after_a_request_is_not_the_beginning_of_another() {
    let site = site_timing_out(Router::new().get("/", |_| "hi"), |timeouts| timeouts.header = SHORT);
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n\r\n");
    assert_eq!(client.reply().text(), "hi");
    assert!(client.is_quiet_for(2 * SHORT));
    assert_eq!(client.get("/").text(), "hi");
}

#[test]
fn pieces_that_fill_a_buffer_exactly_do_not_hold_the_deadline() {
    let site = site_timing_out(Router::new().get("/", |_| "hi"), |timeouts| timeouts.header = SHORT);
    let mut client = site.connect();
    // The first read takes all of this at once, fills its buffer, and cannot know that nothing follows.
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: t\r\nx: {}",
        "a".repeat((16 << 10) - 28)
    ));
    assert_eq!(client.reply().status, 408);

    let site = site_timing_out(Router::new().get("/", |_| "hi"), |timeouts| timeouts.idle = MEDIUM);
    let mut client = site.connect();
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: t\r\nx: {}\r\n\r\n",
        "a".repeat((16 << 10) - 32)
    ));
    assert_eq!(client.reply().text(), "hi");
    client.expect_end();
}

#[test]
fn a_body_that_stops_coming_fails_the_read() {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let handler = move |request: &mut Request<'_>| {
        let error = request.body().read_to_end(&mut Vec::new()).unwrap_err();
        sender.lock().unwrap().send(error.kind()).unwrap();
        Err::<(), _>(error)
    };
    let site = site_timing_out(Router::new().post("/", handler), |timeouts| timeouts.body = SHORT);
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nsome");
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(std::io::ErrorKind::TimedOut));
    assert_eq!(client.reply().status, 408);
    client.expect_end();
}

#[test]
fn a_client_that_does_not_read_is_cut() {
    let page = Arc::new(vec![b'x'; 64 << 20]);
    let served = Arc::new(AtomicUsize::new(0));
    let count = served.clone();
    let router = Router::new().get("/", move |_: &mut Request<'_>| {
        osier_web::Response::new(osier_web::http::StatusCode::OK).body(osier_web::Body::shared(page.clone()))
    });
    let long = Duration::from_secs(600);
    let timeouts = Timeouts {
        write: SHORT,
        header: long,
        body: long,
        idle: long,
        ..Timeouts::default()
    };
    let server = Server::new(router).timeouts(timeouts).on_request(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    eventually("the server gives up", || served.load(Ordering::SeqCst) == 1);
    // The connection is reset, so that the kernel keeps no unsent bytes.
    let (mut piece, mut received) = (vec![0; 64 << 10], 0);
    let end = loop {
        match client.stream.read(&mut piece) {
            Ok(0) => break None,
            Ok(count) => received += count,
            Err(error) => break Some(error.kind()),
        }
    };
    assert_eq!(end, Some(std::io::ErrorKind::ConnectionReset));
    assert!(received < 64 << 20);
}

/// A client asks with this head and never reads. Its response lies in the kernel when the server ends
/// the connection. The bytes are given up after the write timeout, not after minutes.
fn the_kernel_gives_up_unread_bytes(head: &str) {
    let router = Router::new().get("/", |_| vec![b'x'; 200 << 10]);
    // The kernel keeps the bytes long enough that even a busy machine sees them there.
    let write = 3 * MEDIUM;
    let site = site_timing_out(router, |timeouts| (timeouts.idle, timeouts.write) = (SHORT, write));
    let client = connect_narrowly(site.addr);
    (&client).write_all(head.as_bytes()).unwrap();
    let ours = client.local_addr().unwrap();
    eventually("the kernel has the bytes", || {
        kernel_queues(site.addr, ours).is_some_and(|queues| !queues.starts_with("00000000:"))
    });
    eventually("they are given up", || {
        site.connections.count() == 0 && kernel_queues(site.addr, ours).is_none()
    });
}

#[test]
fn the_kernel_gives_up_what_an_idle_client_never_reads() {
    the_kernel_gives_up_unread_bytes("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
}

#[test]
fn the_kernel_gives_up_what_a_client_never_reads_after_the_last_response() {
    the_kernel_gives_up_unread_bytes("GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
}

#[test]
fn dripping_clients_do_not_slow_a_fast_one() {
    let site = site_timing_out(Router::new().get("/", |_| "hi"), |_| ());
    let head = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    let mut slow: Vec<_> = (0..500).map(|_| site.connect()).collect();
    let mut fast = site.connect();
    for byte in &head[..head.len() - 1] {
        for client in &mut slow {
            client.send([*byte]);
        }
        assert_eq!(fast.get("/").text(), "hi");
    }
    for client in &mut slow {
        client.send(b"\n");
        assert_eq!(client.reply().text(), "hi");
    }
}

/// The kernel's own timeout for unacknowledged bytes counts from the first moment at which the client's window was shut.
#[test]
fn a_client_that_reads_slowly_gets_all_of_its_last_response() {
    let page = Arc::new(vec![b'x'; 1 << 20]);
    let router = Router::new().get("/", move |_: &mut Request<'_>| {
        osier_web::Response::new(osier_web::http::StatusCode::OK).body(osier_web::Body::shared(page.clone()))
    });
    let site = site_timing_out(router, |timeouts| (timeouts.write, timeouts.idle) = (MEDIUM, SHORT));
    let addr = site.addr;
    let read = |fields: &str| {
        let mut stream = std::net::TcpStream::connect(addr).unwrap();
        write!(stream, "GET / HTTP/1.1\r\nHost: t\r\n{fields}\r\n").unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut piece, mut received) = (vec![0; 40 << 10], 0);
        loop {
            match stream.read(&mut piece) {
                Ok(0) => break received,
                Ok(count) => received += count,
                Err(error) => panic!("{fields:?}: {error} after {received} bytes"),
            }
            // The pace of a client, which needs some times the write timeout for all.
            std::thread::sleep(MEDIUM / 5);
        }
    };
    std::thread::scope(|scope| {
        for fields in ["", "Connection: close\r\n"] {
            let read = &read;
            scope.spawn(move || assert!(read(fields) > 1 << 20, "{fields:?}"));
        }
    });
}
