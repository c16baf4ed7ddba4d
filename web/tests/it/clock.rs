//! The timeouts of connections on a virtual clock. Server and clients are fibers of one runtime, so
//! no test waits.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use osier::net::TcpStream;
use osier::time::{VirtualClock, now};
use osier_web::{Connections, Router, Server, Timeouts};

const IDLE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// Serves a router whose connections may idle for a minute, and runs `client` beside it. Each of two workers may have either.
fn with_server(router: Router, client: impl FnOnce(SocketAddr) + Send) {
    with_connections(router, |address, _| client(address));
}

/// Same as [`with_server`], for a client that also looks at the open connections.
fn with_connections(router: Router, client: impl FnOnce(SocketAddr, Connections) + Send) {
    let long = Duration::from_secs(24 * 3600);
    let timeouts = Timeouts {
        header: long,
        body: long,
        idle: IDLE,
        write: long,
        ..Timeouts::default()
    };
    let runtime = osier::Runtime::builder().workers(2).clock(VirtualClock::new());
    runtime.build().unwrap().run(|| {
        let server = Server::new(router).timeouts(timeouts).bind("127.0.0.1:0").unwrap();
        let (address, handle) = (server.local_addr(), server.handle());
        let connections = server.connections();
        let serving = osier::spawn(move || server.run());
        client(address, connections);
        handle.shutdown();
        serving.join().unwrap();
    });
}

/// Requests `/` and reads the response, which ends with `end`.
fn get(stream: &mut TcpStream, end: &str) {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(end.as_bytes()) {
        let mut buf = [0; 1024];
        let count = stream.read(&mut buf).unwrap();
        assert!(count > 0, "closed within {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buf[..count]);
    }
}

#[test]
fn an_idle_connection_is_closed() {
    with_server(Router::new().get("/", |_| "hi"), |address| {
        let start = now();
        let mut fresh = TcpStream::connect(address).unwrap();
        let mut used = TcpStream::connect(address).unwrap();
        get(&mut used, "hi");
        assert_eq!(used.read(&mut [0]).unwrap(), 0);
        let idled = now() - start;
        assert!((IDLE..IDLE + SECOND).contains(&idled), "closed after {idled:?}");
        assert_eq!(fresh.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn requests_push_the_idle_deadline_back() {
    with_server(Router::new().get("/", |_| "hi"), |address| {
        let mut client = TcpStream::connect(address).unwrap();
        let start = now();
        for _ in 0..100 {
            get(&mut client, "hi");
            osier::sleep(IDLE - SECOND); // on the virtual clock
        }
        assert!(now() - start >= 100 * (IDLE - SECOND));
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert!(now() - start < 101 * IDLE, "a second after the last of them");
    });
}

#[test]
fn a_handler_may_take_longer_than_a_connection_may_idle() {
    let router = Router::new().get("/", |_| {
        osier::sleep(10 * IDLE); // on the virtual clock
        "waited"
    });
    with_server(router, |address| {
        let mut client = TcpStream::connect(address).unwrap();
        let start = now();
        for _ in 0..3 {
            get(&mut client, "waited");
        }
        assert!(now() - start >= 30 * IDLE);
    });
}

/// The seconds for which a client that was refused with 413 is read from. It sends a byte every `pause` seconds.
fn lingers(pause: u64) -> u64 {
    let mut seconds = 0;
    with_connections(Router::new().post("/", |_| "taken"), |address, connections| {
        let mut client = TcpStream::connect(address).unwrap();
        // Nothing waits for an acknowledgement, which comes in real time.
        client.set_nodelay(true).unwrap();
        let head = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100000000\r\n\r\n";
        client.write_all(head).unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
        while connections.count() > 0 {
            osier::sleep(SECOND); // on the virtual clock
            seconds += 1;
            if seconds % pause == 0 {
                client.write_all(b"x").unwrap();
            }
        }
    });
    seconds
}

#[test]
fn a_refused_client_is_read_from_for_a_minute_or_until_it_is_silent() {
    let (sending, silent) = (lingers(4), lingers(1000));
    assert!((60..=61).contains(&sending), "{sending} s");
    assert!((5..=6).contains(&silent), "{silent} s");
}
