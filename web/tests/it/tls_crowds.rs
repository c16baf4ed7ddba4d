//! Many connections over TLS at once: their memory and stacks, at rest and in the handshake, and a client beside them.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use osier_web::tls::Connector;
use osier_web::{CloseReason, ConnectionEvent, Timeouts};

use crate::common::{Client, PATIENCE, eventually};
use crate::tls::{LOCALHOST, connect, connector, hello, site};

/// Connections that the memory is measured with.
const IDLE: usize = 400;

/// The most private bytes of an idle connection.
const IDLE_BYTES: usize = 2000;

/// Handshakes that the memory is measured with, and the most private bytes of one.
const HALF_OPEN: usize = 500;
const BEGUN_BYTES: usize = 6000;
const ANSWERED_BYTES: usize = 12_000;

#[test]
fn half_open_handshakes_hold_no_stack_and_end_in_time() {
    if !testkit::allow_descriptors(8192) {
        return testkit::skip("the connections need more descriptors");
    }
    let (reasons, ended) = mpsc::channel();
    let site = site(hello(), |server| {
        let timeouts = Timeouts {
            handshake: Duration::from_secs(3),
            ..Timeouts::default()
        };
        server.timeouts(timeouts).on_connection(move |event| {
            if let ConnectionEvent::Closed(reason) = event {
                let _ = reasons.send(reason);
            }
        })
    });
    // The beginning of a ClientHello.
    let begun = Instant::now();
    let begin = [22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let half_open: Vec<_> = (0..HALF_OPEN)
        .map(|index| {
            let mut client = site.connect();
            client.send(&begin[..index % begin.len()]);
            client
        })
        .collect();
    let mut quiet = connect(&site);
    assert_eq!(quiet.get("/").text(), "hello");
    // The metrics are those of the last turn, when the quiet one was at rest too.
    let all = (HALF_OPEN + 1).to_string();
    if begun.elapsed() < Duration::from_secs(1) {
        eventually("they rest", || quiet.get("/resting").text() == all);
    }
    for _ in 0..HALF_OPEN {
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(CloseReason::HandshakeTimeout));
    }
    drop(half_open);
    assert_eq!(quiet.get("/").text(), "hello");
}

/// The environment variable that makes a test executable the server of the memory test.
const IS_SERVER: &str = "OSIER_TEST_TLS_SERVER";

/// The server whose memory is measured: a process of its own, which ends with its standard input.
#[test]
fn idle_connections_server() {
    if std::env::var_os(IS_SERVER).is_none() {
        return;
    }
    let router = hello().get("/memory", |_| testkit::resident_bytes().unwrap_or(0).to_string());
    let site = site(router, |server| server);
    println!("\n{} {}", site.addr, LOCALHOST.chain.replace('\n', "|"));
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn an_idle_connection_costs_less_than_half_a_page() {
    if testkit::resident_bytes().is_none() || testkit::is_emulated() {
        return testkit::skip("there is no RssAnon in /proc/self/status, or an emulator's is none");
    }
    if !testkit::allow_descriptors(8192) {
        return testkit::skip("the connections need more descriptors");
    }
    let mut child = testkit::this_test()
        .args(["--exact", "tls_crowds::idle_connections_server", "--nocapture"])
        .env(IS_SERVER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.starts_with("127.0.0.1:")).unwrap();
    let (addr, chain) = line.split_once(' ').unwrap();
    let ca = chain.replace('|', "\n");
    let connector = Connector::builder().ca_pem(ca.as_bytes()).build().unwrap();
    let connect = || {
        let socket = osier::net::TcpStream::from(TcpStream::connect(addr).unwrap());
        let mut client = Client::over(connector.connect("localhost", socket).unwrap());
        assert_eq!(client.get("/").text(), "hello");
        client
    };
    let mut asker = connect();
    let mut settled = || {
        let mut last = usize::MAX;
        loop {
            thread::sleep(Duration::from_millis(300)); // between two looks
            let now: usize = asker.get("/memory").text().parse().unwrap();
            if now.abs_diff(last) < 8 << 10 {
                return now;
            }
            last = now;
        }
    };
    // The first ones fill the pools.
    drop((0..100).map(|_| connect()).collect::<Vec<_>>());
    let before = settled();
    let held: Vec<_> = (0..IDLE).map(|_| connect()).collect();
    let each = settled().saturating_sub(before) / IDLE;
    println!("an idle connection over TLS: {each} bytes");
    drop(held);
    let mut open_half = |name: &str, bytes: &[u8]| {
        let _held: Vec<_> = (0..HALF_OPEN)
            .map(|_| {
                let mut socket = TcpStream::connect(addr).unwrap();
                socket.write_all(bytes).unwrap();
                socket
            })
            .collect();
        let each = settled().saturating_sub(before) / HALF_OPEN;
        println!("a handshake that has got {name}: {each} bytes");
        each
    };
    let hello = client_hello();
    let begun = open_half("half of a ClientHello", &hello[..hello.len() / 2]);
    let answered = open_half("no answer to its certificate", &hello);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(each <= IDLE_BYTES, "{each} bytes");
    assert!(
        begun <= BEGUN_BYTES && answered <= ANSWERED_BYTES,
        "{begun} and {answered} bytes"
    );
}

/// The first message of a client, as it is sent.
fn client_hello() -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = osier::net::TcpStream::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    let client = connector().connect("localhost", socket).unwrap();
    assert_eq!(client.try_handshake().unwrap_err().kind(), ErrorKind::WouldBlock);
    let (mut server, _) = listener.accept().unwrap();
    let mut head = [0; 5];
    server.read_exact(&mut head).unwrap();
    let mut hello = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    server.read_exact(&mut hello).unwrap();
    [&head[..], &hello].concat()
}

#[test]
fn many_handshakes_at_once_do_not_hold_up_a_quiet_client() {
    const AT_ONCE: usize = 2000;
    if !testkit::allow_descriptors(8192) {
        return testkit::skip("the connections need more descriptors");
    }
    // On a busy machine the last of them wait for longer than by default.
    let timeouts = Timeouts {
        handshake: Duration::MAX,
        ..Timeouts::default()
    };
    let site = site(hello(), |server| server.timeouts(timeouts));
    let hello = client_hello();
    let mut quiet = connect(&site);
    assert_eq!(quiet.get("/").text(), "hello");
    let is_over = AtomicBool::new(false);
    let (mut times, total) = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut times = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                assert_eq!(quiet.get("/").text(), "hello");
                times.push(begun.elapsed());
                thread::sleep(Duration::from_millis(1)); // its pause
            }
            times
        });
        let begun = Instant::now();
        let mut clients: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let mut client = site.connect();
                client.send(&hello);
                client
            })
            .collect();
        let answered = clients
            .iter_mut()
            .try_for_each(|client| client.stream.read_exact(&mut [0]));
        let total = begun.elapsed();
        // Also where one of them has failed: the scope waits for the quiet client.
        is_over.store(true, Ordering::Relaxed);
        answered.expect("the server's part of the handshake");
        (asking.join().unwrap(), total)
    });
    times.sort();
    let median = times[times.len() / 2];
    println!(
        "{AT_ONCE} handshakes in {total:?}; {} requests meanwhile, median {median:?}, 9 of 10 below {:?}, worst {:?}",
        times.len(),
        times[times.len() * 9 / 10],
        times[times.len() - 1]
    );
    assert!(8 * median < total, "{median:?} of {total:?}");
}
