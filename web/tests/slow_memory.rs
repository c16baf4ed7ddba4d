//! The memory of slow clients: of a file, and in front of a proxied backend; as the system counts it.
//!
//! The test has a process of its own, so that the figure includes nothing else.

#[path = "it/common/mod.rs"]
mod common;

use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::backend::Backend;
use common::{eventually, site};
use osier_web::{Body, Request, Router};
use testkit::{allow_descriptors, resident_bytes};

/// Enough that what is not per connection does not matter.
const POSTING: usize = 2000;
const READING: usize = 500;
const LOADING: usize = 2000;

/// Readers that do not count: the pools of stacks and buffers fill.
const FIRST: usize = 100;

/// More than the buffers of the kernel and the memory of the proxy hold.
const LENGTH: usize = 4 << 20;

/// The most bytes of a slow client. A request that waits for its body and a reader of a file or of a
/// proxied response hold no stack and no buffer, but the allocator keeps more than is used.
const MOST: usize = 8 << 10;

/// Time in which the server gives memory back: a second of patience, and some looks at its pools.
const QUIET: Duration = Duration::from_secs(5);

/// A client whose kernel takes few bytes.
fn connect(addr: std::net::SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&addr.into()).unwrap();
    socket.into()
}

/// Waits until the memory no longer changes, and returns it.
fn settled() -> usize {
    let mut last = resident_bytes().unwrap();
    loop {
        // A worker gives memory back in steps, one a second.
        thread::sleep(Duration::from_millis(1500));
        let now = resident_bytes().unwrap();
        if now.abs_diff(last) < 64 << 10 {
            return now;
        }
        last = now;
    }
}

#[test]
fn slow_clients_cost_little_memory() {
    let wanted = (2 * (POSTING + LOADING) + 6 * READING) as u64;
    if !allow_descriptors(wanted) {
        return println!("skipped: the connections need {wanted} descriptors");
    }
    if resident_bytes().is_none() {
        return println!("skipped: there is no RssAnon in /proc/self/status");
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
    let site = site(Router::new().get("/file", load).fallback_answering(forward));
    let mut clients: Vec<TcpStream> = (0..POSTING + READING + LOADING).map(|_| connect(site.addr)).collect();
    let (posting, rest) = clients.split_at_mut(POSTING);
    let (reading, loading) = rest.split_at_mut(READING);
    let idle = settled();
    for client in &mut *posting {
        client
            .write_all(b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\n")
            .unwrap();
    }
    for _ in 0..3 {
        posting.iter_mut().for_each(|client| client.write_all(b"x").unwrap());
        thread::sleep(Duration::from_millis(50)); // a slow client
    }
    thread::sleep(QUIET);
    let dripped = settled();
    let each = dripped.saturating_sub(idle) / POSTING;
    println!("a slow POST: {each} bytes beyond a fresh connection");
    assert!(each <= MOST, "a slow POST: {each} bytes");
    let mut pooled = dripped;
    for (number, client) in reading.iter_mut().enumerate() {
        if number == FIRST {
            thread::sleep(QUIET);
            pooled = settled();
        }
        client.write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
        eventually("the backend is free", || {
            backend.accepted() > number && backend.open() == 0
        });
    }
    thread::sleep(QUIET);
    let read = settled();
    let each = read.saturating_sub(pooled) / (READING - FIRST);
    println!("a slow reader of a proxied response: {each} bytes beyond a fresh connection");
    assert!(each <= MOST, "a slow reader: {each} bytes");
    for client in &mut *loading {
        client.write_all(b"GET /file HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    }
    thread::sleep(QUIET);
    let loaded = settled();
    let each = loaded.saturating_sub(read) / LOADING;
    println!("a slow reader of a file: {each} bytes beyond a fresh connection");
    assert!(each <= MOST, "a slow reader of a file: {each} bytes");
}

/// A file without a name.
fn file() -> File {
    let path = std::env::temp_dir().join(format!("osier-slow-memory-{}", std::process::id()));
    std::fs::write(&path, vec![b'x'; LENGTH]).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}
