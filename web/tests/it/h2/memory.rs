//! The memory of HTTP/2 connections, in processes of their own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use osier::memory::{self, Account, Pressure};
use osier::sync::Event;
use osier_http::h2::{Connection, ErrorCode, Limits, Outgoing};
use osier_web::{Request, Router, Server, Timeouts};
use testkit::{allow_descriptors, resident_bytes, settled_bytes, this_test};

use super::client::Client;
use super::router;
use crate::common::{PATIENCE, eventually, site, site_with};
use crate::memory::in_a_small_child;

/// Enough that what is not per connection does not matter.
const CONNECTIONS: usize = 2000;

/// Set in the process that measures.
const MEASURES: &str = "OSIER_TEST_MEASURES_H2";

#[test]
fn an_idle_connection_is_small() {
    if std::env::var_os(MEASURES).is_some() {
        return measure();
    }
    let test = ["h2::memory::an_idle_connection_is_small", "--exact", "--nocapture"];
    let output = this_test().args(test).env(MEASURES, "1").output().expect("this test");
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said
        .lines()
        .find(|line| line.contains("idle connection") || line.contains("skipped: "));
    println!("{}", line.unwrap_or_default());
    // A process that finds no test of this name ends well, too.
    assert!(
        output.status.success() && line.is_some(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn measure() {
    let wanted = 4 * CONNECTIONS as u64 + 200;
    if !allow_descriptors(wanted) || resident_bytes().is_none() {
        return println!(
            "skipped: {CONNECTIONS} connections need {wanted} descriptors, and RssAnon in /proc/self/status"
        );
    }
    let site = site(router());
    let http1 = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n".to_vec();
    let mut machine = Connection::client(&Limits::default(), Instant::now());
    let target = Outgoing {
        method: "GET",
        scheme: "http",
        authority: "test",
        path: "/",
        protocol: None,
    };
    machine.request(&target, [], true).expect("a stream");
    let http2 = machine.output().to_vec();
    // Both have run once before anything is measured, and what a worker gives back later has gone.
    let warm = [(); 20].map(|()| (connected(site.addr, &http1), connected(site.addr, &http2)));
    let start = settled_bytes().unwrap();
    let first: Vec<_> = (0..CONNECTIONS).map(|_| connected(site.addr, &http1)).collect();
    let between = settled_bytes().unwrap();
    let second: Vec<_> = (0..CONNECTIONS).map(|_| connected(site.addr, &http2)).collect();
    let end = settled_bytes().unwrap();
    let (one, two) = ((between - start) / CONNECTIONS, (end - between) / CONNECTIONS);
    println!("an idle connection: {one} bytes with HTTP/1.1, {two} bytes with HTTP/2");
    assert!(two <= 3000 && two > one, "{one} {two}");
    drop((warm, first, second));
}

/// Sends a request and reads to the end of its response.
fn connected(addr: SocketAddr, request: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(addr).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).unwrap();
    let (mut received, mut piece) = (Vec::new(), [0; 1024]);
    while !received.ends_with(b"hello") {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "{received:?}");
        received.extend_from_slice(&piece[..count]);
    }
    stream
}

#[test]
fn near_the_limit_streams_behind_one_that_waits_are_refused_and_may_come_again() {
    let test = "h2::memory::near_the_limit_streams_behind_one_that_waits_are_refused_and_may_come_again";
    in_a_small_child(test, || {
        let greedy = |_: &mut Request<'_>| {
            let _all = Account::named("greedy").charge(memory::limit().expect("the child has one"));
            osier::sleep(Duration::from_millis(50));
            "has waited"
        };
        let site = site(Router::new().get("/", |_| "hello").get("/greedy", greedy));
        let mut client = Client::connect(site.addr);
        assert_eq!(client.get("/").status, 200);
        let first = client.begin("GET", "/greedy", &[], true);
        let behind: Vec<_> = (0..3).map(|_| client.begin("GET", "/", &[], true)).collect();
        for stream in behind {
            assert_eq!(client.reply(stream).reset, Some(ErrorCode::REFUSED_STREAM));
        }
        assert_eq!(client.reply(first).text(), "has waited");
        assert_eq!(client.get("/").status, 200);
    });
}

#[test]
fn near_the_limit_streams_whose_bodies_do_not_come_are_reset() {
    let test = "h2::memory::near_the_limit_streams_whose_bodies_do_not_come_are_reset";
    in_a_small_child(test, || {
        let greedy = |_: &mut Request<'_>| {
            let _all = Account::named("greedy").charge(memory::limit().expect("the child has one"));
            FREE.wait();
            "has waited"
        };
        let begun = Arc::new(AtomicUsize::new(0));
        let begins = begun.clone();
        let count = move |request: &mut Request<'_>| {
            begins.fetch_add(1, Relaxed);
            std::io::copy(request.body(), &mut std::io::sink()).map(|count| count.to_string())
        };
        let router = Router::new().get("/", |_| "hello").post("/count", count);
        let server = Server::new(router.get("/greedy", greedy)).timeouts(Timeouts {
            body: Duration::from_secs(600),
            ..Timeouts::default()
        });
        let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
        let mut client = Client::connect(site.addr);
        let silent: Vec<_> = (0..5).map(|_| client.begin("POST", "/count", &[], false)).collect();
        client.flush();
        let mut sends = Client::connect(site.addr);
        let upload = sends.begin("POST", "/count", &[], false);
        sends.body(upload, b"first", false);
        eventually("all handlers read", || begun.load(Relaxed) == 6);
        let mut other = Client::connect(site.addr);
        let waits = other.begin("GET", "/greedy", &[], true);
        other.flush();
        eventually("memory is short", || memory::pressure() == Pressure::Critical);
        let head = client.begin("HEAD", "/", &[], true);
        let reply = client.reply(head);
        assert_eq!((reply.status, reply.reset), (503, None));
        assert!(reply.body.is_empty());
        // A client that sends goes on.
        let mut sent = 5;
        client
            .stream
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        eventually("the silent streams are reset", || {
            sends.body(upload, b"x", false);
            sent += 1;
            client.look();
            silent.iter().all(|stream| client.replies[stream].is_over())
        });
        for stream in silent {
            let reply = client.reply(stream);
            assert_eq!((reply.status, reply.reset), (0, Some(ErrorCode::ENHANCE_YOUR_CALM)));
        }
        sends.body(upload, b"", true);
        assert_eq!(sends.reply(upload).text(), sent.to_string());
        FREE.set();
        assert_eq!(other.reply(waits).text(), "has waited");
        assert_eq!(client.get("/").status, 200);
    });
}

/// Set when the memory may be free again.
static FREE: Event = Event::new();
