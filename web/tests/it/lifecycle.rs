//! From listening to the last connection: shutdown, spreading over workers, limits on connections, the access log.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::{Client, PATIENCE, eventually, site, site_with};
use osier_web::{Request, Response, Router, Server, Timeouts};

#[test]
fn shutdown_closes_idle_connections_and_finishes_running_requests() {
    let (begun, has_begun) = mpsc::channel();
    let begun = Mutex::new(begun);
    let router = Router::new()
        .get("/", |_| "hi")
        .get("/slow", move |_: &mut Request<'_>| {
            begun.lock().unwrap().send(()).unwrap();
            osier::sleep(Duration::from_millis(300));
            "slow"
        });
    let site = site(router);
    let mut idle = site.connect();
    assert_eq!(idle.get("/").text(), "hi");
    let mut running = site.connect();
    running.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n");
    has_begun.recv_timeout(PATIENCE).unwrap();

    site.stop.shutdown();
    idle.expect_end();
    let reply = running.reply();
    assert_eq!((reply.text(), reply.header("connection")), ("slow", Some("close")));
    running.expect_end();
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0));
    assert!(std::net::TcpStream::connect(site.addr).is_err());
}

#[test]
fn a_drain_is_bounded() {
    let (begun, has_begun) = mpsc::channel();
    let begun = Mutex::new(begun);
    let router = Router::new().get("/", move |_: &mut Request<'_>| {
        begun.lock().unwrap().send(()).unwrap();
        osier::sleep(Duration::from_secs(600));
    });
    let timeouts = Timeouts {
        drain: Duration::from_millis(100),
        ..Timeouts::default()
    };
    let server = Server::new(router).timeouts(timeouts);
    let site = site_with(2, server, |server| server.bind("127.0.0.1:0"));
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    has_begun.recv_timeout(PATIENCE).unwrap();
    site.stop.shutdown();
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(1));
    client.expect_end();
}

#[test]
fn connections_are_handed_to_the_emptiest_worker() {
    let router = Router::new().get("/", |_| osier::fiber::worker().expect("on a worker").to_string());
    // One listener: all sockets are accepted by worker 0.
    let site = site_with(2, Server::new(router), |server| {
        server.listener(osier::net::TcpListener::bind("127.0.0.1:0")?)
    });
    let mut clients: Vec<Client> = Vec::new();
    let mut on_each = [0, 0];
    for _ in 0..64 {
        let mut client = site.connect();
        on_each[client.get("/").text().parse::<usize>().unwrap()] += 1;
        clients.push(client);
    }
    assert!(on_each[1] >= 16, "{on_each:?}");
    // A connection stays where it is.
    let before: Vec<String> = clients
        .iter_mut()
        .map(|client| client.get("/").text().to_owned())
        .collect();
    let after: Vec<String> = clients
        .iter_mut()
        .map(|client| client.get("/").text().to_owned())
        .collect();
    assert_eq!(before, after);
}

#[test]
fn open_connections_are_counted() {
    let (give, taken) = mpsc::channel();
    let site = site_with(2, Server::new(Router::new().get("/", |_| "hi")), move |server| {
        let listening = server.bind("127.0.0.1:0")?;
        give.send(listening.connections()).unwrap();
        Ok(listening)
    });
    let connections = taken.recv_timeout(PATIENCE).unwrap();
    assert_eq!(connections.count(), 0);
    let mut clients: Vec<Client> = (0..5).map(|_| site.connect()).collect();
    for client in &mut clients {
        client.get("/");
    }
    assert_eq!(connections.count(), 5);
    assert_eq!((0..2).map(|index| connections.of_worker(index)).sum::<usize>(), 5);
    assert_eq!(connections.of_worker(2), 0);
    clients.truncate(2);
    eventually("three are gone", || connections.count() == 2);
}

#[test]
fn every_worker_serves_on_the_shared_address() {
    let router = Router::new().get("/", |_| osier::fiber::worker().expect("on a worker").to_string());
    let site = site_with(2, Server::new(router), |server| server.bind("127.0.0.1:0"));
    let mut clients: Vec<Client> = (0..128).map(|_| site.connect()).collect();
    let seen: HashSet<String> = clients
        .iter_mut()
        .map(|client| client.get("/").text().to_owned())
        .collect();
    assert_eq!(seen.len(), 2, "{seen:?}");
}

#[test]
fn no_more_connections_than_allowed() {
    let server = Server::new(Router::new().get("/", |_| "hi")).max_connections(2);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut first = site.connect();
    let mut second = site.connect();
    assert_eq!((first.get("/").status, second.get("/").status), (200, 200));
    let mut third = site.connect();
    third.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    assert!(third.is_quiet_for(Duration::from_millis(100)));
    drop(first);
    assert_eq!(third.reply().text(), "hi");
    assert!(site.logged("2 connections: no more are accepted"));
}

#[test]
fn a_port_in_use_is_a_clear_error() {
    let site = site(Router::new());
    let addr = site.addr;
    let error = osier::run(move || Server::new(Router::new()).bind(addr).map(drop).unwrap_err());
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
}

#[test]
fn a_timeout_of_zero_is_a_clear_error() {
    let timeouts = Timeouts {
        write: Duration::ZERO,
        ..Timeouts::default()
    };
    let error = osier::run(move || {
        Server::new(Router::new())
            .timeouts(timeouts)
            .bind("127.0.0.1:0")
            .map(drop)
            .unwrap_err()
    });
    assert!(error.to_string().contains("Timeouts::write is zero"), "{error}");
}

#[test]
fn the_observer_sees_every_request() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let lines = seen.clone();
    let router = Router::new()
        .get("/", |_| "hello")
        .get("/stream", |_| Response::stream(|out| out.write_all(&[b'x'; 1000])))
        .get("/slow", |_| osier::sleep(Duration::from_secs(600)));
    let server = Server::new(router).on_request(move |served| {
        let agent = String::from_utf8_lossy(served.header("user-agent").unwrap_or_default()).into_owned();
        let (method, target, status) = (served.method(), served.target(), served.status().as_u16());
        assert!(served.duration() < PATIENCE);
        let line = format!(
            "{} {method} {target} {} {status} {} {agent}",
            served.peer(),
            served.protocol(),
            served.bytes()
        );
        lines.lock().unwrap().push(line);
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = site.connect();
    let peer = client.stream.local_addr().unwrap();
    client.send("GET /?q HTTP/1.1\r\nHost: t\r\nUser-Agent: test\r\n\r\n");
    client.reply();
    client.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    client.reply();
    let mut client = site.connect();
    let other = client.stream.local_addr().unwrap();
    client.get("/none");
    client.send("broken\r\n\r\n");
    client.reply();
    let mut client = site.connect();
    let gone = client.stream.local_addr().unwrap();
    client.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n");
    client.finish_sending();
    client.expect_end();
    eventually("five lines", || seen.lock().unwrap().len() == 5);
    let expected = [
        format!("{peer} GET /?q HTTP/1.1 200 5 test"),
        format!("{peer} GET /stream HTTP/1.0 200 1000 "),
        format!("{other} GET /none HTTP/1.1 404 10 "),
        format!("{other}   HTTP/1.1 400 25 "),
        format!("{gone} GET /slow HTTP/1.1 499 0 "),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}
