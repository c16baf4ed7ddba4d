//! The PROXY protocol: the client address that a balancer sends counts, but only from a trusted
//! balancer.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Site, eventually, site_with};
use osier_web::{Request, Router, Server, Timeouts};

const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
const TOLD: &str = "PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n";

fn v2(command: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u16).to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[command, 0x11][..], &length, body].concat()
}

const INET: [u8; 12] = [192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 4, 1, 0xbb];

/// Responds with the client's address, and collects the lines of an access log.
fn server() -> (Server, Arc<Mutex<Vec<String>>>) {
    let router = Router::new().get("/", |request: &mut Request<'_>| {
        format!("{} {}", request.peer(), request.is_proxied())
    });
    let served = Arc::new(Mutex::new(Vec::new()));
    let log = served.clone();
    let server = Server::new(router).on_request(move |served| log.lock().unwrap().push(served.peer().to_string()));
    (server, served)
}

/// Nothing more comes; a reset is an end too, where the server had not read all.
fn ended(mut client: crate::common::Client) {
    let mut rest = Vec::new();
    match client.stream.read_to_end(&mut rest) {
        Ok(_) => assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest)),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

/// A site that trusts loopback, or no one.
fn site(trusting: bool) -> (Site, Arc<Mutex<Vec<String>>>) {
    let (server, served) = server();
    let server = server.proxy_protocol(move |peer| trusting && peer == Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    (site_with(1, server, |server| server.bind("127.0.0.1:0")), served)
}

#[test]
fn the_told_client_counts_for_the_limit_of_connections() {
    let (server, _) = server();
    let server = server.proxy_protocol(|_| true).max_connections_per_client(2);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let open = |client: &str| {
        let mut connection = site.connect();
        connection.send(format!("PROXY TCP4 {client} 198.51.100.1 56324 443\r\n{GET}"));
        connection
    };
    let mut held = [open("192.0.2.7"), open("192.0.2.7")];
    for client in &mut held {
        assert_eq!(client.reply().status, 200);
    }
    ended(open("192.0.2.7"));
    eventually("the line", || {
        site.logged("2 connections of one client, 192.0.2.7: further ones are reset")
    });
    assert_eq!(open("192.0.2.8").reply().status, 200, "another client");
    drop(held);
    eventually("the places are free again", || {
        let mut connection = open("192.0.2.7");
        let mut byte = [0];
        matches!(connection.stream.read(&mut byte), Ok(1))
    });
}

/// Connections beyond the limit would wait for ever.
#[test]
fn a_panic_about_a_peer_loses_neither_its_connection_nor_its_place() {
    for workers in [1, 2] {
        let (server, _) = server();
        let calls = AtomicUsize::new(0);
        let trusted = move |_| match calls.fetch_add(1, Relaxed) {
            0 => panic!("no network"),
            _ => false,
        };
        let server = server.proxy_protocol(trusted).max_connections(1);
        let site = site_with(workers, server, |server| server.bind("127.0.0.1:0"));
        for _ in 0..3 {
            let mut client = site.connect();
            client.send(GET);
            assert_eq!(client.reply().status, 200);
            drop(client);
            eventually("its place is free", || site.connections.count() == 0);
        }
        assert!(site.logged("the function of 'proxy_protocol' panicked: no network"));
    }
}

/// The unspecified address and port 0 stand for no address elsewhere.
#[test]
fn a_told_client_without_an_address_gives_its_place_back() {
    let (server, _) = server();
    let server = server.proxy_protocol(|_| true).max_connections_per_client(1);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    for _ in 0..3 {
        eventually("the place is free", || {
            let mut connection = site.connect();
            connection.send(format!("PROXY TCP4 0.0.0.0 198.51.100.1 0 443\r\n{GET}"));
            matches!(connection.stream.read(&mut [0]), Ok(1))
        });
    }
}

#[test]
fn the_told_address_counts_for_every_request_of_the_connection() {
    let (site, served) = site(true);
    for header in [TOLD.as_bytes().to_vec(), v2(0x21, &INET)] {
        let mut client = site.connect();
        client.send([&header, GET.as_bytes()].concat());
        assert_eq!(client.reply().body, b"192.0.2.7:56324 true");
        for _ in 0..4 {
            client.send(GET);
            assert_eq!(client.reply().body, b"192.0.2.7:56324 true");
        }
    }
    let served = served.lock().unwrap();
    assert_eq!((served.len(), served[0].as_str()), (10, "192.0.2.7:56324"));
    assert!(served.iter().all(|peer| *peer == served[0]));
}

#[test]
fn a_header_may_come_in_pieces_and_with_pipelined_requests() {
    let (site, _) = site(true);
    for header in [TOLD.as_bytes().to_vec(), v2(0x21, &[&INET[..], &[4, 0, 0]].concat())] {
        for split in [1, 5, 12, 16, header.len() - 1, header.len()] {
            let mut client = site.connect();
            client.send(&header[..split]);
            crate::common::taken(&client.stream);
            client.send([&header[split..], GET.as_bytes(), GET.as_bytes()].concat());
            assert_eq!(client.reply().body, b"192.0.2.7:56324 true");
            assert_eq!(client.reply().body, b"192.0.2.7:56324 true");
        }
        let mut client = site.connect();
        for byte in header.iter().chain(GET.as_bytes()) {
            client.send([*byte]);
        }
        assert_eq!(client.reply().body, b"192.0.2.7:56324 true");
    }
}

#[test]
fn who_speaks_for_itself_keeps_its_address() {
    let (site, _) = site(true);
    for header in [b"PROXY UNKNOWN\r\n".to_vec(), v2(0x20, &[]), v2(0x20, &INET)] {
        let mut client = site.connect();
        client.send([&header, GET.as_bytes()].concat());
        let body = String::from_utf8(client.reply().body).unwrap();
        assert!(body.starts_with("127.0.0.1:") && body.ends_with(" false"), "{body}");
    }
}

#[test]
fn a_trusted_peer_without_a_header_is_closed_and_named() {
    let (site, served) = site(true);
    let bad = [
        GET.as_bytes().to_vec(),
        b"PROXY TCP4 192.0.2.7 198.51.100.1 x 443\r\n".to_vec(),
        [&b"PROXY "[..], &[b'x'; 200]].concat(),
        v2(0x21, &INET[..11]),
    ];
    for bytes in &bad {
        let mut client = site.connect();
        client.send([&bytes[..], GET.as_bytes()].concat());
        ended(client);
    }
    let log = site.log.lock().unwrap().clone();
    assert_eq!(log.len(), bad.len(), "{log:?}");
    assert!(
        log.iter()
            .all(|line| line.starts_with("closed a connection from the trusted peer 127.0.0.1:")),
        "{log:?}"
    );
    assert!(log[0].ends_with("no PROXY header where one must be"), "{log:?}");
    assert!(served.lock().unwrap().is_empty());
}

#[test]
fn from_everybody_else_a_header_is_a_bad_request() {
    let (site, served) = site(false);
    for header in [TOLD.as_bytes().to_vec(), v2(0x21, &INET)] {
        let mut client = site.connect();
        client.send([&header, GET.as_bytes()].concat());
        assert_eq!(client.reply().status, 400);
        ended(client);
    }
    let body = String::from_utf8(site.get("/").body).unwrap();
    assert!(body.starts_with("127.0.0.1:") && body.ends_with(" false"), "{body}");
    assert!(served.lock().unwrap().iter().all(|peer| peer.starts_with("127.0.0.1:")));
}

#[test]
fn a_header_that_does_not_come_in_time_ends_the_connection() {
    let (server, _) = server();
    let short = Duration::from_millis(100);
    let timeouts = Timeouts {
        header: short,
        ..Timeouts::default()
    };
    let server = server.timeouts(timeouts).proxy_protocol(|_| true);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let start = Instant::now();
    let mut client = site.connect();
    client.send("PROXY TCP4 192.0");
    ended(client);
    assert!(start.elapsed() >= short);
    assert!(site.logged("its PROXY header did not arrive in time"));
    // Drops do not put it off.
    let mut client = site.connect();
    let start = Instant::now();
    for byte in TOLD.bytes().take(20) {
        if (client.stream.write_all(&[byte])).is_err() || start.elapsed() > PATIENCE {
            break;
        }
        // The pace of a slow client.
        std::thread::sleep(Duration::from_millis(20));
    }
    ended(client);
}

#[test]
fn a_unix_peer_is_asked_for_as_nobody() {
    let path = std::env::temp_dir().join(format!("osier-proxy-{}.sock", std::process::id()));
    let (server, _) = server();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let note = asked.clone();
    let server = server.proxy_protocol(move |peer| {
        note.lock().unwrap().push(peer);
        true
    });
    let at = path.clone();
    let site = site_with(1, server, move |server| server.bind_unix(at));
    let mut client = UnixStream::connect(&path).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
        .write_all(
            [TOLD, "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"]
                .concat()
                .as_bytes(),
        )
        .unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    assert!(reply.ends_with("\r\n\r\n192.0.2.7:56324 true"), "{reply}");
    assert_eq!(*asked.lock().unwrap(), [None]);
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(GET.as_bytes()).unwrap();
    let closed = "closed a connection from a trusted peer on a Unix socket: no PROXY header where one must be";
    eventually("a line", || site.logged(closed));
    drop(site);
}
