//! Many slow clients in front of a backend with few workers: the other clients still get their
//! responses.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::backend::{Backend, options};
use crate::common::{Client, Site, connect_narrowly, eventually, site, site_with};
use crate::responder::{Folder, Responder, answer, folder, upstream_builder};
use osier_web::fastcgi::FastCgi;
use osier_web::proxy::Proxy;
use osier_web::{Handler, Server, Timeouts};

const MIB: usize = 1 << 20;

/// Connections that send or read slowly.
const SLOW: usize = 50;

/// Requests of other clients meanwhile.
const HONEST: usize = 12;

/// Time in which an honest client wants its response.
const SOON: Duration = Duration::from_secs(5);

/// A response that no buffer of the kernel holds.
const LARGE: usize = 12 * MIB;

/// The workers of a backend: eight, as php-fpm has children.
#[derive(Clone)]
struct Workers(Arc<(Mutex<usize>, Condvar)>);

impl Workers {
    fn new() -> Workers {
        Workers(Arc::new((Mutex::new(8), Condvar::new())))
    }

    /// Runs `work` as soon as a worker is free.
    fn run(&self, work: impl FnOnce()) {
        let (free, freed) = &*self.0;
        *freed.wait_while(free.lock().unwrap(), |free| *free == 0).unwrap() -= 1;
        work();
        *free.lock().unwrap() += 1;
        freed.notify_one();
    }
}

/// A backend over HTTP. A worker serves one connection at a time.
fn http() -> (Backend, Handler) {
    let workers = Workers::new();
    let backend = Backend::start(move |_, conn| {
        workers.run(|| {
            let Some(asked) = conn.request() else { return };
            let length = if asked.head.contains("/large") { LARGE } else { 2 };
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            ));
            conn.send(vec![b'x'; length]);
        });
    });
    let proxy = backend.proxy();
    (backend, proxy.into())
}

/// The same over FastCGI.
fn application(folder: &Folder) -> (Responder, Handler) {
    let workers = Workers::new();
    let [large, small] = [LARGE, 2].map(|length| {
        let head = format!("Content-Length: {length}\n\n").into_bytes();
        answer(&[head, vec![b'x'; length]].concat())
    });
    let app = Responder::unix(folder.path(), move |conn| {
        workers.run(|| {
            let Some((told, _)) = conn.request() else { return };
            let is_large = told.get("QUERY_STRING") == "/large";
            conn.send(if is_large { &large } else { &small });
        });
    });
    let handler = FastCgi::open(folder.root(), upstream_builder(&app).build().unwrap()).unwrap();
    (app, handler.into())
}

/// How many of the honest clients get their response.
fn served(site: &Site) -> usize {
    let asked: Vec<_> = (0..HONEST)
        .map(|_| {
            let mut client = site.connect();
            client.stream.set_read_timeout(Some(SOON)).unwrap();
            client.send("GET /a.php HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
            client
        })
        .collect();
    let replies = asked.into_iter().map(|mut client| {
        let mut reply = String::new();
        let read = client.stream.read_to_string(&mut reply);
        read.is_ok() && reply.starts_with("HTTP/1.1 200 ") && reply.ends_with("xx")
    });
    replies.filter(|is_served| *is_served).count()
}

/// Sends bodies a byte at a time while honest clients ask.
fn drip(handler: Handler, framing: &str) {
    let site = site(handler);
    let mut slow: Vec<Client> = (0..SLOW).map(|_| site.connect()).collect();
    for client in &mut slow {
        client.send(format!("POST /a.php HTTP/1.1\r\nHost: test\r\n{framing}\r\n\r\n"));
    }
    let site = &site;
    let (over, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|s| {
        let (over, sent) = (&over, &sent);
        s.spawn(move || {
            while !over.load(Ordering::SeqCst) {
                for client in &mut slow {
                    client.send(if framing.contains("chunked") { "1\r\nx\r\n" } else { "x" });
                }
                sent.fetch_add(1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(50)); // a slow client
            }
        });
        eventually("every client has sent", || sent.load(Ordering::SeqCst) > 2);
        let served = served(site);
        over.store(true, Ordering::SeqCst);
        assert_eq!(served, HONEST, "{framing}");
    });
}

/// A site whose clients may read nothing while another reads all. A busy machine takes more than the usual 30 s for that.
fn patient_site(handler: impl Into<Handler>) -> Site {
    let server = Server::new(handler).timeouts(Timeouts {
        write: Duration::from_secs(600),
        ..Timeouts::default()
    });
    site_with(1, server, |server| server.bind("127.0.0.1:0"))
}

/// Reads nothing of large responses while honest clients ask.
fn stall(handler: Handler) {
    let site = patient_site(handler);
    let mut slow: Vec<Client> = (0..SLOW).map(|_| slow_reader(&site)).collect();
    for client in &mut slow {
        client.send("GET /a.php?/large HTTP/1.1\r\nHost: test\r\n\r\n");
    }
    for client in &mut slow {
        assert_eq!(client.head().0, 200, "the first bytes come at once");
    }
    assert_eq!(served(&site), HONEST);
    // Every byte comes in the end.
    let sent = [b'x'; 64 << 10];
    for mut client in slow.into_iter().take(3) {
        let mut left = LARGE;
        while left > 0 {
            let piece = client.take(left.min(sent.len()));
            assert!(piece == sent[..piece.len()]);
            left -= piece.len();
        }
    }
}

/// A client whose kernel takes few bytes.
fn slow_reader(site: &Site) -> Client {
    Client::new(connect_narrowly(site.addr))
}

#[test]
fn slow_bodies_occupy_no_worker_of_a_proxied_backend() {
    for framing in ["Content-Length: 100000", "Transfer-Encoding: chunked"] {
        let (_backend, handler) = http();
        drip(handler, framing);
    }
}

#[test]
fn slow_bodies_occupy_no_worker_of_an_application() {
    for framing in ["Content-Length: 100000", "Transfer-Encoding: chunked"] {
        let folder = folder();
        let (_app, handler) = application(&folder);
        drip(handler, framing);
    }
}

#[test]
fn slow_readers_occupy_no_worker_of_a_proxied_backend() {
    let (_backend, handler) = http();
    stall(handler);
}

#[test]
fn slow_readers_occupy_no_worker_of_an_application() {
    let folder = folder();
    let (_app, handler) = application(&folder);
    stall(handler);
}

/// A body whose pieces differ.
fn patterned(length: usize) -> Arc<Vec<u8>> {
    Arc::new((0..length).map(|i| (i / 977 % 251) as u8).collect())
}

/// A backend that sends this body in chunks. Such a body is never spliced, so it stays in one queue from its beginning to its end.
fn chunked(body: &Arc<Vec<u8>>) -> Backend {
    let body = body.clone();
    Backend::start(move |_, conn| {
        conn.request();
        // The proxy takes nothing while the clients of others read.
        conn.stream.set_write_timeout(None).unwrap();
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        conn.send_chunks(&body, 50_000);
    })
}

/// The kernel sends a file's own pages, also after the send has returned. A file that is used a second time must therefore leave
/// the pages alone that wait for a slow client.
#[test]
fn bytes_on_their_way_to_a_client_are_not_overwritten_in_the_file() {
    const LENGTH: usize = 24 * MIB;
    let body = patterned(LENGTH);
    let backend = chunked(&body);
    let upstream = backend.upstream().build().unwrap();
    // A small file is used up and filled again while the socket is full of its bytes.
    let options = options(|to| (to.read_ahead, to.read_ahead_file) = (0, 128 << 10));
    let site = site(Proxy::with(upstream, options));
    let mut client = slow_reader(&site);
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().0, 200);
    let mut at = 0;
    loop {
        let length = usize::from_str_radix(&client.line(), 16).expect("a chunk size");
        if length == 0 {
            break;
        }
        if at % (500 << 10) + length > 500 << 10 {
            thread::sleep(Duration::from_millis(10)); // slow: the socket and the file fill up
        }
        let expected = &body[at..at + length];
        assert!(client.take(length) == expected, "the backend's bytes from {at} on");
        assert_eq!(client.line(), "");
        at += length;
    }
    assert_eq!(at, LENGTH);
}

/// Bytes that wait in memory and in the file come in their order, in every framing.
#[test]
fn a_client_that_is_slow_now_and_then_gets_every_byte_in_its_place_from_the_file_too() {
    const LENGTH: usize = 24 * MIB;
    let body = patterned(LENGTH);
    for (framing, memory, has_folder) in [
        ("length", 0, true),
        ("length", 200_000, true),
        ("chunked", 200_000, true),
        ("length", 200_000, false),
        ("chunked", 200_000, false),
    ] {
        let sent = body.clone();
        let backend = Backend::start(move |_, conn| {
            conn.request();
            if framing == "length" {
                conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n"));
                conn.send(&*sent);
                return;
            }
            conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            conn.send_chunks(&sent, 50_000);
        });
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = log.clone();
        let upstream = backend
            .upstream()
            .on_log(move |line| lines.lock().unwrap().push(line.to_string()));
        let upstream = upstream.build().unwrap();
        let options = options(|to| {
            to.read_ahead = memory;
            if !has_folder {
                to.spool_folder = "/nowhere".into();
            }
        });
        let site = site(Proxy::with(upstream.clone(), options));
        let mut client = slow_reader(&site);
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        thread::sleep(Duration::from_millis(200)); // slow
        if has_folder {
            eventually("the backend is free", || upstream.stats()[0].leases == 0);
        }
        assert!(client.reply().body == *body, "{framing}, {memory}, {has_folder}");
        let lines = log.lock().unwrap();
        assert_eq!(lines.len(), usize::from(!has_folder), "{lines:?}");
        assert!(
            has_folder || lines[0].contains("a temporary file in /nowhere"),
            "{lines:?}"
        );
    }
}

/// The bytes of the unnamed files in `folder`. A file counts once, also while a thread of the pool reads it by a descriptor of its own.
fn file_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let paths = entries.map(|entry| entry.path());
    let files = paths.filter(|path| fs::read_link(path).is_ok_and(|target| target.starts_with(folder)));
    let files = files.filter_map(|path| fs::metadata(path).ok());
    let lengths: HashMap<u64, u64> = files.map(|file| (file.ino(), file.len())).collect();
    lengths.values().sum()
}

/// The bound is that of a process, so the test has one of its own: the files of other tests would take the space.
#[test]
fn the_files_of_many_slow_readers_stay_within_their_bound_and_every_byte_comes() {
    let name = "slow_clients::the_files_of_many_slow_readers_stay_within_their_bound_and_every_byte_comes";
    if let Some(child) = testkit::in_a_child(name, fill_all_space) {
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(
            said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&child.stderr)
        );
    }
}

/// The other clients wait with their backends as long as the files of some have all the space.
fn fill_all_space() {
    const LENGTH: usize = 12 * MIB;
    const TOTAL: u64 = 4 << 20;
    let body = patterned(LENGTH);
    let backend = chunked(&body);
    let folder = testkit::Folder::new();
    let path = folder.path().canonicalize().unwrap();
    let options = options(|to| {
        to.read_ahead_total = TOTAL;
        to.spool_folder = path.clone();
    });
    let site = patient_site(Proxy::with(backend.upstream().build().unwrap(), options));
    let mut clients: Vec<_> = (0..8).map(|_| slow_reader(&site)).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    }
    // No file ends meanwhile: the clients read nothing.
    let checked_bytes = || {
        let bytes = file_bytes(&path);
        assert!(bytes <= TOTAL, "{bytes} bytes in files");
        bytes
    };
    eventually("the files have more than half of the space", || {
        checked_bytes() > TOTAL / 2
    });
    // Nothing tells when the backends have stopped.
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(10)); // slow
        checked_bytes();
    }
    for mut client in clients {
        assert!(client.reply().body == *body);
    }
    eventually("all files are closed", || file_bytes(&path) == 0);
}
