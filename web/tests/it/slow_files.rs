//! Slow readers of files: after a while a connection holds no stack, and its client still gets every byte.

use std::io::Read;
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use osier_web::files::Files;
use osier_web::{Router, Server, Timeouts};
use testkit::Folder;

use crate::common::{Client, Site, connect_narrowly, eventually, site_with};

/// More than the buffers of the kernel hold.
const LENGTH: usize = 12 << 20;

/// Time without progress after which a client is cut.
const WRITE: Duration = Duration::from_secs(4);

/// The file. It is compared by the slice: a comparison of each byte takes seconds in a build without optimisation.
static FILE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = (0..251).collect::<Vec<u8>>().repeat(LENGTH / 251 + 1);
    bytes.truncate(LENGTH);
    bytes
});

/// The patterns, paths and byte counts that the observer was told.
type Told = Arc<Mutex<Vec<(String, u64)>>>;

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("file", FILE.as_slice());
    folder
}

fn site(folder: &Folder) -> (Site, Told) {
    let told = Told::default();
    let router = Router::new()
        .get("/resting", |_| {
            let metrics = osier::inspect::metrics().expect("inside of a runtime");
            metrics.workers[0].resting.to_string()
        })
        .get("/memory", |_| vec![b'x'; LENGTH])
        .get("/{*file}", Files::open(folder.path()).unwrap().handler());
    let timeouts = Timeouts {
        write: WRITE,
        ..Timeouts::default()
    };
    let tell = told.clone();
    let server = Server::new(router).timeouts(timeouts).on_request(move |served| {
        let place = format!("{} for {}", served.pattern().unwrap_or("none"), served.target());
        tell.lock().unwrap().push((place, served.bytes()));
    });
    (site_with(1, server, |server| server.bind("127.0.0.1:0")), told)
}

/// A client whose kernel takes few bytes.
fn slow_client(site: &Site) -> Client {
    Client::new(connect_narrowly(site.addr))
}

/// A client that asks, and takes nothing until its connection holds no stack.
fn asks_and_waits(site: &Site, requests: &str) -> Client {
    // The metrics are those of the last turn, when its own connection was at rest.
    let mut asker = site.connect();
    eventually("no other connection is left", || asker.get("/resting").text() == "1");
    let mut client = slow_client(site);
    client.send(requests);
    client.stream.peek(&mut [0]).unwrap();
    eventually("the connection rests", || asker.get("/resting").text() == "2");
    client
}

fn expect_file(client: &mut Client) {
    let reply = client.reply();
    assert_eq!((reply.status, reply.body.len()), (200, LENGTH));
    assert!(reply.body == *FILE);
}

fn told_of_file(told: &Told) -> Vec<u64> {
    let told = told.lock().unwrap();
    told.iter()
        .filter(|(place, _)| place == "/{*file} for /file")
        .map(|(_, bytes)| *bytes)
        .collect()
}

#[test]
fn a_slow_reader_holds_no_stack_and_gets_every_byte_and_the_next_responses() {
    let folder = folder();
    let (site, told) = site(&folder);
    let request = "GET /file HTTP/1.1\r\nHost: test\r\n\r\n";
    let next = "GET /none HTTP/1.1\r\nHost: test\r\n\r\n";
    let mut client = asks_and_waits(&site, &format!("{request}{next}{request}"));
    assert!(told_of_file(&told).is_empty(), "told at the end");
    expect_file(&mut client);
    assert_eq!(client.reply().status, 404);
    expect_file(&mut client);
    eventually("both are told", || told_of_file(&told) == [LENGTH as u64; 2]);
    assert_eq!(client.get("/none").status, 404, "the connection goes on");
    drop(client);
    let closing = "GET /file HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    let mut client = asks_and_waits(&site, closing);
    expect_file(&mut client);
    client.expect_end();
}

#[test]
fn several_ranges_are_sent_without_a_stack_too() {
    let folder = folder();
    let (site, told) = site(&folder);
    let asked = [(10, LENGTH / 2), (LENGTH / 2 + 100, LENGTH - 5)];
    let ranges = asked.map(|(from, to)| format!("{from}-{to}")).join(",");
    let mut client = asks_and_waits(
        &site,
        &format!("GET /file HTTP/1.1\r\nHost: test\r\nRange: bytes={ranges}\r\n\r\n"),
    );
    let reply = client.reply();
    assert_eq!(reply.status, 206, "{}", reply.head);
    let mut rest = &reply.body[..];
    for (from, to) in asked {
        let head = rest.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
        let part = &rest[head..head + to - from + 1];
        assert!(*part == FILE[from..=to], "{from}");
        rest = &rest[head + part.len()..];
    }
    assert!(rest.starts_with(b"\r\n--") && rest.ends_with(b"--\r\n"));
    eventually("it is told", || told_of_file(&told) == [reply.body.len() as u64]);
    assert_eq!(client.get("/none").status, 404, "the connection goes on");
}

#[test]
fn a_reader_that_takes_little_is_not_cut_and_one_that_takes_nothing_is() {
    let folder = folder();
    let (site, told) = site(&folder);
    let request = "GET /file HTTP/1.1\r\nHost: test\r\n\r\n";
    let mut dead = asks_and_waits(&site, request);
    eventually("the server gives up", || told_of_file(&told).len() == 1);
    let sent = told_of_file(&told)[0];
    assert!((1..LENGTH as u64).contains(&sent), "{sent}");
    let mut piece = vec![0; 64 << 10];
    let end = loop {
        match dead.stream.read(&mut piece) {
            Ok(0) => break None,
            Ok(_) => {}
            Err(error) => break Some(error.kind()),
        }
    };
    assert_eq!(end, Some(std::io::ErrorKind::ConnectionReset));

    let mut steady = asks_and_waits(&site, request);
    let (status, _) = steady.head();
    assert_eq!(status, 200);
    let (start, mut taken) = (Instant::now(), 0);
    // It takes too few bytes for the socket to become writable, for longer than the limit.
    while start.elapsed() < WRITE * 3 / 2 {
        let piece = steady.take(2000);
        assert!(piece == FILE[taken..taken + piece.len()]);
        taken += piece.len();
        thread::sleep(WRITE / 80); // the pace of the client
    }
    let rest = steady.take(LENGTH - taken);
    assert!(rest == FILE[taken..]);
    eventually("it is told", || told_of_file(&told) == [sent, LENGTH as u64]);
}

#[test]
fn a_client_that_leaves_while_its_connection_rests_is_told() {
    let folder = folder();
    let (site, told) = site(&folder);
    let client = asks_and_waits(&site, "GET /file HTTP/1.1\r\nHost: test\r\n\r\n");
    client.reset();
    eventually("it is told", || told_of_file(&told).len() == 1);
    let sent = told_of_file(&told)[0];
    assert!((1..LENGTH as u64).contains(&sent), "{sent}");
}

#[test]
fn a_response_that_a_client_has_cut_is_told_as_far_as_it_was_sent() {
    let folder = folder();
    let (site, told) = site(&folder);
    // It takes bytes all the time, so the response is sent from a fiber until it is cut.
    let mut client = site.connect();
    client.send("GET /file HTTP/1.1\r\nHost: test\r\n\r\n");
    client.head();
    client.take(LENGTH / 2);
    client.reset();
    eventually("it is told", || told_of_file(&told).len() == 1);
    let sent = told_of_file(&told)[0];
    assert!((LENGTH as u64 / 2..LENGTH as u64).contains(&sent), "{sent}");

    // A request whose body never comes: the connection cannot rest, so one call sends the whole file.
    let mut client = site.connect();
    client.send("GET /file HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\n");
    client.head();
    client.take(LENGTH / 2);
    client.reset();
    eventually("it is told", || told_of_file(&told).len() == 2);
    let sent = told_of_file(&told)[1];
    assert!((LENGTH as u64 / 2..LENGTH as u64).contains(&sent), "{sent}");

    let mut client = crate::h2::client::Client::connect(site.addr);
    let stream = client.begin("GET", "/file", &[], true);
    client.until("some bytes", |client| client.replies[&stream].body.len() > LENGTH / 2);
    drop(client);
    eventually("it is told", || told_of_file(&told).len() == 3);
    let sent = told_of_file(&told)[2];
    assert!((LENGTH as u64 / 2..LENGTH as u64).contains(&sent), "{sent}");

    // A body in memory, which the client does not take.
    let mut client = slow_client(&site);
    client.send("GET /memory HTTP/1.1\r\nHost: test\r\n\r\n");
    client.head();
    client.reset();
    let memory = || {
        let told = told.lock().unwrap();
        let found = told.iter().find(|(place, _)| place == "/memory for /memory");
        found.map(|(_, bytes)| *bytes)
    };
    eventually("it is told", || memory().is_some());
    assert!((1..LENGTH as u64).contains(&memory().unwrap()), "{:?}", memory());
}

#[test]
fn a_stop_waits_for_a_slow_reader_of_a_file() {
    let folder = folder();
    let (site, _) = site(&folder);
    let mut client = asks_and_waits(&site, "GET /file HTTP/1.1\r\nHost: test\r\n\r\n");
    site.stop.shutdown();
    expect_file(&mut client);
    client.expect_end();
}
