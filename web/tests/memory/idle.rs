//! An idle connection, with HTTP/1.1 and with HTTP/2.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use osier_http::h2::{Connection, Limits, Outgoing};
use osier_web::Router;

use crate::common::{PATIENCE, site_with};
use crate::{Asker, allows, alone, each, heap, patient, worker};

/// Enough that what is not per connection does not matter.
const CONNECTIONS: usize = 1000;

/// Connections that do not count: the pools fill.
const FIRST: usize = 20;

/// The most bytes of an idle connection with HTTP/2.
const MOST: isize = 3000;

#[test]
fn an_idle_connection_is_small() {
    let _alone = alone();
    if !allows(2 * (CONNECTIONS + FIRST)) {
        return;
    }
    let router = Router::new().get("/", |_| "hello").get("/worker", worker);
    let site = site_with(1, patient(router), |server| server.bind("127.0.0.1:0"));
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
    let mut asker = Asker::new(&site);
    let first = [(); FIRST].map(|()| (connected(site.addr, &http1), connected(site.addr, &http2)));
    let mut count = 2 * FIRST;
    let mut measured = |request: &[u8]| {
        asker.until_rest(count);
        let before = heap();
        let connections: Vec<_> = (0..CONNECTIONS).map(|_| connected(site.addr, request)).collect();
        count += CONNECTIONS;
        asker.until_rest(count);
        (each(before, CONNECTIONS), connections)
    };
    let (one, two) = (measured(&http1), measured(&http2));
    println!(
        "an idle connection: {} bytes with HTTP/1.1, {} bytes with HTTP/2",
        one.0, two.0
    );
    assert!(50 < one.0 && one.0 < two.0 && two.0 <= MOST, "{} {}", one.0, two.0);
    drop(first);
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
