//! The memory for a peer that does not read is bounded. The tests measure how many bytes the other
//! side can send. All sockets are Unix sockets, in which the kernel buffers at most a quarter of a
//! MiB.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Site, eventually, site_with};
use crate::responder::{Folder, Responder, folder, stdout, upstream};
use osier_web::fastcgi::FastCgi;
use osier_web::proxy::{Options, Proxy};
use osier_web::upstream::Upstream;
use osier_web::{Limits, Router, Server};

const MIB: usize = 1 << 20;

/// Bytes to send in all.
const ALL: usize = 48 * MIB;

/// Most bytes that may be under way: [`AHEAD`], those that one call moves, and the kernel's buffers
/// on both sides.
const BOUND: usize = 2 * MIB;

/// Default of the bytes that a proxy reads ahead of its client.
const AHEAD: usize = 256 << 10;

/// Starts the site on a Unix socket in `folder`, and connects a client to it.
fn serve(folder: &Folder, router: Router) -> (Site, UnixStream) {
    let path = folder.path().join("site.sock");
    let limits = Limits {
        body: u64::MAX,
        ..Limits::default()
    };
    let bound = path.clone();
    let site = site_with(1, Server::new(router).limits(limits), move |server| {
        server.bind_unix(bound)
    });
    let client = UnixStream::connect(path).expect("the server listens");
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    (site, client)
}

/// Counts the bytes that a socket takes.
#[derive(Clone, Default)]
struct Gauge(Arc<AtomicUsize>);

impl Gauge {
    /// Sends `count` bytes, in pieces that `frame` makes, or as many as are taken.
    fn send(&self, mut to: impl Write, count: usize, frame: impl Fn(&[u8]) -> Vec<u8>) {
        let piece = vec![b'x'; 16 << 10];
        let mut left = count;
        while left > 0 {
            let piece = &piece[..left.min(piece.len())];
            let mut framed = &frame(piece)[..];
            while !framed.is_empty() {
                match to.write(framed) {
                    Ok(taken) => framed = &framed[taken..],
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
            self.0.fetch_add(piece.len(), Ordering::SeqCst);
            left -= piece.len();
        }
    }

    /// Waits until no more bytes are taken. Returns how many were.
    fn standstill(&self) -> usize {
        let (mut last, mut since) = (0, Instant::now());
        while last == 0 || since.elapsed() < Duration::from_millis(500) {
            let now = self.0.load(Ordering::SeqCst);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            assert!(since.elapsed() < PATIENCE, "nothing is taken");
            // Between two looks: what is taken has to stand for a while.
            thread::sleep(Duration::from_millis(10));
        }
        last
    }
}

/// Starts a backend on a Unix socket in `folder`.
fn backend(folder: &Folder, serve: impl Fn(UnixStream) + Send + 'static) -> Upstream {
    let path = folder.path().join("backend.sock");
    let listener = UnixListener::bind(&path).expect("a socket in a folder of ours");
    thread::spawn(move || serve(listener.accept().expect("the proxy comes").0));
    let address = format!("unix:{}", path.display()).parse().unwrap();
    Upstream::builder("app").backend(address).build().unwrap()
}

/// Reads everything up to the end of a head.
fn read_head(mut from: &UnixStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        from.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("a head is text")
}

/// Reads at most `most` bytes. Returns how many came.
fn drain(from: &UnixStream, most: usize) -> usize {
    std::io::copy(&mut from.take(most as u64), &mut std::io::sink()).expect("it is sent") as usize
}

fn chunk(piece: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()
}

/// The bytes after `head` wait at their sender while the client does not read, and again after it
/// has read some. No byte is lost.
fn is_held_back(gauge: &Gauge, client: &UnixStream, head: &str) {
    let sent = gauge.standstill();
    assert!(sent < BOUND, "{sent} bytes are on the way, after {head:?}");
    read_head(client);
    assert_eq!(drain(client, 8 * MIB), 8 * MIB);
    let sent = gauge.standstill();
    assert!(
        sent < 8 * MIB + BOUND,
        "{sent} bytes were sent for 8 MiB, after {head:?}"
    );
    assert_eq!(drain(client, ALL - 8 * MIB), ALL - 8 * MIB, "after {head:?}");
}

/// Bytes wait at the backend, whether they are spliced, read ahead, or tunnelled.
#[test]
fn a_proxied_answer_waits_in_the_backend_for_a_client_that_does_not_read() {
    let known = format!("HTTP/1.1 200 OK\r\nContent-Length: {ALL}\r\n\r\n");
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let tunnel = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    for head in [&known, chunked, "HTTP/1.1 200 OK\r\n\r\n", tunnel] {
        let (folder, gauge) = (folder(), Gauge::default());
        let (counted, sent_head) = (gauge.clone(), head.to_owned());
        let upstream = backend(&folder, move |mut stream| {
            read_head(&stream);
            stream.write_all(sent_head.as_bytes()).unwrap();
            match sent_head.contains("chunked") {
                true => counted.send(&stream, ALL, chunk),
                false => counted.send(&stream, ALL, <[u8]>::to_vec),
            }
            let _ = stream.write_all(b"0\r\n\r\n");
        });
        let proxy = Proxy::with(
            upstream,
            Options {
                read_ahead: AHEAD,
                read_ahead_file: 0,
                ..Options::default()
            },
        );
        let (_site, mut client) = serve(&folder, Router::new().fallback(proxy.handler()));
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
            .unwrap();
        is_held_back(&gauge, &client, head);
    }
}

#[test]
fn a_proxied_body_waits_in_the_client_for_a_backend_that_does_not_read() {
    for head in [format!("Content-Length: {ALL}"), "Transfer-Encoding: chunked".into()] {
        let folder = folder();
        let (go_on, may_read) = std::sync::mpsc::channel::<()>();
        let read = Gauge::default();
        let counted = read.clone();
        let upstream = backend(&folder, move |stream| {
            read_head(&stream);
            let _ = may_read.recv();
            counted.0.store(drain(&stream, ALL), Ordering::SeqCst);
        });
        let proxy = Proxy::with(
            upstream,
            Options {
                buffer: false,
                ..Options::default()
            },
        )
        .handler();
        let (_site, mut client) = serve(&folder, Router::new().fallback(proxy));
        write!(client, "PUT / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n").unwrap();
        let (gauge, is_chunked) = (Gauge::default(), head.contains("chunked"));
        let (sending, counted) = (client.try_clone().unwrap(), gauge.clone());
        thread::spawn(move || match is_chunked {
            true => counted.send(&sending, ALL, chunk),
            false => counted.send(&sending, ALL, <[u8]>::to_vec),
        });
        let sent = gauge.standstill();
        assert!(sent < BOUND, "{sent} bytes are on the way, after {head:?}");
        go_on.send(()).unwrap();
        eventually("all of it comes", || read.0.load(Ordering::SeqCst) == ALL);
    }
}

fn fastcgi(folder: &Folder, app: &Responder) -> (Site, UnixStream) {
    let handler = FastCgi::with(folder.root(), upstream(app), crate::responder::streaming()).unwrap();
    serve(folder, Router::new().fallback(handler.handler()))
}

/// A backend that sends `head`.
fn answering(folder: &Path, head: &'static str, gauge: &Gauge) -> Responder {
    let gauge = gauge.clone();
    Responder::unix(folder, move |conn| {
        conn.request();
        conn.send(stdout(head.as_bytes()));
        gauge.send(conn.socket(), ALL, stdout);
        conn.send(crate::responder::end(0, 0));
    })
}

#[test]
fn an_answer_over_fastcgi_waits_in_the_application_for_a_client_that_does_not_read() {
    const KNOWN: &str = "Content-Length: 50331648\r\n\r\n";
    assert!(KNOWN.contains(&ALL.to_string()));
    for head in [KNOWN, "Content-Type: text/plain\r\n\r\n"] {
        let (folder, gauge) = (folder(), Gauge::default());
        let app = answering(folder.path(), head, &gauge);
        let (_site, mut client) = fastcgi(&folder, &app);
        client.write_all(b"GET /a.php HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        is_held_back(&gauge, &client, head);
    }
}

#[test]
fn a_body_for_fastcgi_waits_in_the_client_while_the_application_does_not_read() {
    let folder = folder();
    let (go_on, may_read) = std::sync::mpsc::channel::<()>();
    let may_read = std::sync::Mutex::new(may_read);
    let app = Responder::unix(folder.path(), move |conn| {
        conn.opening();
        let _ = may_read.lock().unwrap().recv();
        let body = conn.body().expect("the body");
        conn.send(crate::responder::text(&body.len().to_string()));
    });
    let (_site, mut client) = fastcgi(&folder, &app);
    write!(
        client,
        "POST /a.php HTTP/1.1\r\nHost: a\r\nContent-Length: {ALL}\r\n\r\n"
    )
    .unwrap();
    let gauge = Gauge::default();
    let (sending, counted) = (client.try_clone().unwrap(), gauge.clone());
    thread::spawn(move || counted.send(&sending, ALL, <[u8]>::to_vec));
    let sent = gauge.standstill();
    assert!(sent < BOUND, "{sent} bytes are on the way");
    go_on.send(()).unwrap();
    read_head(&client);
    let mut body = vec![0; ALL.to_string().len()];
    client.read_exact(&mut body).unwrap();
    assert_eq!(String::from_utf8(body).unwrap(), ALL.to_string());
}
