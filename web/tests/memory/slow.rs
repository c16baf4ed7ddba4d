//! Slow clients: those that send a body, and readers of a file and of a proxied response.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

use osier_web::{Body, Request, Router};

use crate::common::backend::Backend;
use crate::common::{Site, all_taken, connect_narrowly, eventually, narrow_listener, site_with};
use crate::{Asker, allows, alone, each, heap, patient, worker};

/// Enough that what is not per connection does not matter.
const POSTING: usize = 500;
const READING: usize = 100;
const LOADING: usize = 500;

/// More than the buffers of the kernel and the memory of the proxy hold.
const LENGTH: usize = 1 << 20;

/// The most bytes of a slow client. A request that waits for its body and a reader of a file or of a proxied response hold no buffer.
const MOST: isize = 4 << 10;

/// Waits until each of `count` clients, which have come since the heap was `before`, costs little and has no stack: a slow client has them for
/// a second.
fn are_small(what: &str, before: isize, count: usize, asker: &mut Asker) {
    let now = || each(before, count);
    let wanted = fmt::from_fn(|f| write!(f, "{what}: at most {MOST} bytes instead of {}", now()));
    eventually(wanted, || now() <= MOST);
    asker.until_rest(0);
    println!("{what}: {} bytes", now());
    assert!(now() > 50, "{} bytes: the measure measures nothing", now());
}

#[test]
fn slow_clients_cost_little_memory() {
    let _alone = alone();
    // A file each for a reader of a proxied response.
    if !allows(POSTING + 2 * READING + LOADING) {
        return;
    }
    let body: &'static [u8] = vec![b'x'; LENGTH].leak();
    let backend = Backend::start(move |_, conn| {
        if conn.request().is_some() {
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\nConnection: close\r\n\r\n"
            ));
            conn.send(body);
        }
    });
    let file = Arc::new(file());
    let load = move |_: &mut Request<'_>| Body::file(file.clone(), 0, LENGTH as u64);
    let proxy = backend.proxy();
    let forward = move |request: &mut Request<'_>| proxy.answer_after_body(request);
    let router = Router::new().get("/file", load).get("/worker", worker);
    let server = patient(router.fallback_answering(forward));
    let site = site_with(1, server, |server| server.listener(narrow_listener()));
    let mut asker = Asker::new(&site);
    asker.until_rest(0);

    let idle = heap();
    let posting = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\n";
    let mut posting = (0..POSTING).map(|_| asks(&site, posting)).collect::<Vec<_>>();
    for _ in 0..3 {
        all_taken(site.addr);
        posting.iter_mut().for_each(|client| client.write_all(b"x").unwrap());
    }
    all_taken(site.addr);
    are_small("a slow POST", idle, POSTING, &mut asker);

    let idle = heap();
    let _reading: Vec<_> = (0..READING)
        .map(|number| {
            let client = asks(&site, b"GET / HTTP/1.1\r\nHost: test\r\n\r\n");
            eventually("the backend is free", || {
                backend.accepted() > number && backend.open() == 0
            });
            client
        })
        .collect();
    are_small("a slow reader of a proxied response", idle, READING, &mut asker);

    let idle = heap();
    let file = b"GET /file HTTP/1.1\r\nHost: test\r\n\r\n";
    let _loading = (0..LOADING).map(|_| asks(&site, file)).collect::<Vec<_>>();
    all_taken(site.addr);
    are_small("a slow reader of a file", idle, LOADING, &mut asker);
}

/// A client whose kernel takes few bytes, and its request.
fn asks(site: &Site, request: &[u8]) -> TcpStream {
    let mut client = connect_narrowly(site.addr);
    client.write_all(request).unwrap();
    client
}

/// A file without a name.
fn file() -> File {
    let path = std::env::temp_dir().join(format!("osier-slow-memory-{}", std::process::id()));
    std::fs::write(&path, vec![b'x'; LENGTH]).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}
