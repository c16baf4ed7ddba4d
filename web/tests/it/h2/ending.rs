//! How HTTP/2 connections end: shutdowns, timeouts, violations, and clients that leave.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use osier::sync::Event;
use osier_http::h2::ErrorCode;
use osier_web::{CloseReason, ConnectionEvent, Router, Server, Timeouts};

use super::client::Client;
use super::router;
use crate::common::{PATIENCE, Site, eventually, site, site_with};

fn with_timeouts(timeouts: Timeouts) -> (Site, Arc<Mutex<Vec<CloseReason>>>) {
    serving(router(), timeouts)
}

fn serving(router: Router, timeouts: Timeouts) -> (Site, Arc<Mutex<Vec<CloseReason>>>) {
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let seen = reasons.clone();
    let server = Server::new(router).timeouts(timeouts).on_connection(move |event| {
        if let ConnectionEvent::Closed(reason) = event {
            seen.lock().unwrap().push(reason);
        }
    });
    (site_with(1, server, |server| server.bind("127.0.0.1:0")), reasons)
}

#[test]
fn a_shutdown_lets_streams_end_and_refuses_new_ones() {
    let go_on = Arc::new(Event::new());
    let wait = go_on.clone();
    let site = site(router().get("/long", move |_| {
        wait.wait();
        "long"
    }));
    let mut client = Client::connect(site.addr);
    let long = client.begin("GET", "/long", &[], true);
    assert_eq!(client.get("/").text(), "hello");
    site.stop.shutdown();
    client.until("GOAWAY", |client| client.goaway.is_some());
    assert_eq!(client.goaway, Some((u32::MAX >> 1, ErrorCode::NO_ERROR)));
    go_on.set();
    assert_eq!(client.reply(long).text(), "long");
    client.until_closed();
    assert_eq!(client.goaway, Some((3, ErrorCode::NO_ERROR)));
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0), "no connection was cut");
}

#[test]
fn a_connection_whose_client_goes_away_ends_with_its_last_stream() {
    let go_on = Arc::new(Event::new());
    let wait = go_on.clone();
    let timeouts = Timeouts {
        idle: Duration::from_secs(600),
        ..Timeouts::default()
    };
    let long = router().get("/long", move |_| {
        wait.wait();
        "long"
    });
    let (site, reasons) = serving(long, timeouts);
    let mut client = Client::connect(site.addr);
    let long = client.begin("GET", "/long", &[], true);
    client.flush();
    assert_eq!(client.get("/").text(), "hello");
    // The client reads on, and sends nothing more.
    client
        .stream
        .write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        .unwrap();
    go_on.set();
    assert_eq!(client.reply(long).text(), "long");
    client.until_closed();
    eventually("the reason is known", || {
        *reasons.lock().unwrap() == [CloseReason::Client]
    });
}

#[test]
fn a_shutdown_ends_an_idle_connection_at_once() {
    let site = site(router());
    let mut client = Client::connect(site.addr);
    assert_eq!(client.get("/").text(), "hello");
    let start = Instant::now();
    site.stop.shutdown();
    client.until_closed();
    assert!(client.goaway.is_some_and(|(_, code)| code == ErrorCode::NO_ERROR));
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// A client that has the response to a request whose body nobody reads, and the PING behind it. It answers no PING, and may go on sending.
fn silent(site: &Site) -> TcpStream {
    let mut client = TcpStream::connect(site.addr).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let settings = b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0";
    let post = b"\0\0\x06\x01\x04\0\0\0\x01\x83\x86\x84\x41\x01a";
    let hello = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], settings, post].concat();
    client.write_all(&hello).unwrap();
    until_arrived(&client, b"\0\0\x08\x06\0\0\0\0\0read");
    client
}

/// Waits until these bytes have arrived, and leaves all bytes in the socket.
fn until_arrived(client: &TcpStream, bytes: &[u8]) {
    let mut arrived = vec![0; 4096];
    eventually("the bytes arrive", || {
        let count = client.peek(&mut arrived).unwrap();
        arrived[..count].windows(bytes.len()).any(|window| window == bytes)
    });
}

#[test]
fn a_client_that_never_answers_the_ping_behind_a_response_is_closed_as_any_other() {
    let (site, reasons) = with_timeouts(Timeouts {
        // The client has to ask before.
        idle: Duration::from_secs(1),
        ..Timeouts::default()
    });
    let mut client = silent(&site);
    client.read_to_end(&mut Vec::new()).unwrap();
    drop(client);
    eventually("the reason", || *reasons.lock().unwrap() == [CloseReason::IdleTimeout]);
    drop(site);

    // A shutdown waits a second for the answer to its own PING.
    let site = self::site(router());
    let mut client = silent(&site);
    site.stop.shutdown();
    client.read_to_end(&mut Vec::new()).unwrap();
    drop(client);
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0), "no connection was cut");
}

#[test]
fn a_shutdown_reads_on_while_a_client_may_send_a_body_that_nobody_reads() {
    let site = site(router());
    let mut client = silent(&site);
    site.stop.shutdown();
    until_arrived(&client, b"\0\0\x08\x07\0\0\0\0\0\0\0\0\x01\0\0\0\0");
    // The client has read nothing yet. It sends what the window lets through, and a closed socket would answer by a reset.
    let data = [&b"\0\x04\0\0\0\0\0\0\x01"[..], &[0; 1024]].concat();
    for _ in 0..10 {
        client.write_all(&data).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut received = Vec::new();
    client.read_to_end(&mut received).expect("no reset of the connection");
    let reset = b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\0";
    assert!(received.windows(13).any(|window| window == reset));
    drop(client);
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0), "no connection was cut");
}

#[test]
fn an_idle_connection_is_told_and_closed() {
    // The client has to ask before.
    let idle = Duration::from_secs(1);
    let (site, reasons) = with_timeouts(Timeouts {
        idle,
        ..Timeouts::default()
    });
    let mut client = Client::connect(site.addr);
    let slow = client.begin("GET", "/slow", &[], true);
    assert_eq!(client.reply(slow).text(), "slow");
    client.until_closed();
    assert_eq!(client.goaway, Some((1, ErrorCode::NO_ERROR)));
    drop(client);
    eventually("the reason", || *reasons.lock().unwrap() == [CloseReason::IdleTimeout]);
}

#[test]
fn a_client_that_sends_only_the_preface_is_closed() {
    let header = Duration::from_millis(50);
    let (site, reasons) = with_timeouts(Timeouts {
        header,
        ..Timeouts::default()
    });
    let mut client = TcpStream::connect(site.addr).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    drop(client);
    eventually("the reason", || {
        *reasons.lock().unwrap() == [CloseReason::HeaderTimeout]
    });
}

#[test]
fn a_violation_ends_the_connection_with_goaway_and_the_handlers_run_on() {
    let (go_on, has_ended) = (Arc::new(Event::new()), Arc::new(AtomicBool::new(false)));
    let (wait, ended) = (go_on.clone(), has_ended.clone());
    let router = router().get("/later", move |_| {
        wait.wait();
        ended.store(true, Ordering::Relaxed);
    });
    let (site, reasons) = serving(router, Timeouts::default());
    let mut client = Client::connect(site.addr);
    assert_eq!(client.get("/").text(), "hello");
    client.begin("GET", "/later", &[], true);
    client.flush();
    // DATA on stream 0.
    client.stream.write_all(&[0, 0, 1, 0, 0, 0, 0, 0, 0, b'x']).unwrap();
    client.until("GOAWAY", |client| client.goaway.is_some());
    go_on.set();
    client.until_closed();
    assert!(has_ended.load(Ordering::Relaxed));
    assert_eq!(client.goaway, Some((3, ErrorCode::PROTOCOL_ERROR)));
    drop(client);
    eventually("the reason", || {
        *reasons.lock().unwrap() == [CloseReason::ProtocolError]
    });
    assert!(site.logged("closed an HTTP/2 connection"));
}

#[test]
fn a_malformed_request_is_reset_and_the_log_says_why() {
    let (site, _) = with_timeouts(Timeouts::default());
    let mut client = Client::connect(site.addr);
    let stream = client.begin("GET", "/", &[("te", b"gzip")], true);
    assert_eq!(client.reply(stream).reset, Some(ErrorCode::PROTOCOL_ERROR));
    assert_eq!(client.get("/").text(), "hello");
    assert!(site.logged("a request was refused with PROTOCOL_ERROR: a TE other than `trailers`"));
}

#[test]
fn refused_heads_are_told_to_the_observer() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let server = Server::new(router()).on_request(move |served| {
        let has_head = served.method() == "GET";
        log.lock().unwrap().push((served.status().as_u16(), has_head));
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = Client::connect(site.addr);
    let malformed = client.begin("GET", "/", &[("te", b"gzip")], true);
    client.reply(malformed);
    let long = vec![b'x'; 30_000];
    let fields: Vec<(&str, &[u8])> = vec![("a", &long), ("b", &long), ("c", &long)];
    let large = client.begin("GET", "/", &fields, true);
    assert_eq!(client.reply(large).status, 431);
    client.get("/");
    assert_eq!(*seen.lock().unwrap(), [(400, false), (431, false), (200, true)]);
}

#[test]
fn a_body_that_stops_coming_is_408_for_its_stream() {
    let body = Duration::from_millis(50);
    let (site, _) = with_timeouts(Timeouts {
        body,
        ..Timeouts::default()
    });
    let mut client = Client::connect(site.addr);
    let stream = client.begin("POST", "/count", &[], false);
    client.body(stream, b"begun", false);
    assert_eq!(client.reply(stream).status, 408);
    assert_eq!(client.get("/").text(), "hello");
}

#[test]
fn a_stream_whose_window_stays_shut_is_reset_and_the_others_go_on() {
    // The other stream has to be faster.
    let write = Duration::from_secs(1);
    let (site, _) = with_timeouts(Timeouts {
        write,
        ..Timeouts::default()
    });
    let mut client = Client::connect(site.addr);
    let slow = client.begin("GET", "/big/100000", &[], true);
    client.stalled.push(slow);
    client.until("the reset", |client| client.replies[&slow].reset.is_some());
    assert_eq!(client.replies[&slow].body.len(), 65_535);
    // Its unread bytes hold the window of the connection.
    client.machine.consumed(slow, 65_535);
    client.machine.finish(slow);
    assert_eq!(client.get("/big/100000").body.len(), 100_000);
}

#[test]
fn a_client_that_reads_nothing_is_cut() {
    let write = Duration::from_millis(200);
    let (site, reasons) = with_timeouts(Timeouts {
        write,
        ..Timeouts::default()
    });
    let limits = osier_http::h2::Limits {
        stream_window: u32::MAX >> 1,
        connection_window: u32::MAX >> 1,
        ..Default::default()
    };
    let mut client = Client::with(site.addr, &limits);
    client.get("/"); // the server knows the windows
    client.begin("GET", "/big/100000000", &[], true);
    client.flush();
    eventually("the reason", || *reasons.lock().unwrap() == [CloseReason::WriteTimeout]);
}

#[test]
fn timeouts_may_be_for_ever() {
    let for_ever = Duration::MAX;
    let (site, _) = with_timeouts(Timeouts {
        header: for_ever,
        body: for_ever,
        idle: for_ever,
        write: for_ever,
        ..Timeouts::default()
    });
    let mut client = Client::connect(site.addr);
    assert_eq!(client.get("/big/200000").body.len(), 200_000);
    assert_eq!(client.send("POST", "/count", &[], &[b'x'; 200_000]).text(), "200000");
}

#[test]
fn a_server_without_http2_takes_the_preface_for_a_bad_request() {
    let server = Server::new(router()).http2(false);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = TcpStream::connect(site.addr).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 505 "), "{reply}");
}

#[test]
fn the_preface_may_follow_the_first_bytes_only() {
    let site = site(router());
    let mut client = site.connect();
    assert_eq!(client.get("/").text(), "hello");
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(client.reply().status, 505);
}
