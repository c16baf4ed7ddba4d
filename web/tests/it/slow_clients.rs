//! Many slow clients in front of a backend with few workers: the other clients still get their
//! responses.

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::backend::Backend;
use crate::common::{Client, Site, eventually, site};
use crate::responder::{Folder, Responder, folder, text, upstream_builder};
use osier_web::Handler;
use osier_web::fastcgi::FastCgi;

/// Connections that send slowly.
const SLOW: usize = 50;

/// Requests of other clients meanwhile.
const HONEST: usize = 12;

/// Time in which an honest client wants its response.
const SOON: Duration = Duration::from_secs(5);

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
            if conn.request().is_some() {
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nxx");
            }
        });
    });
    let proxy = backend.proxy();
    (backend, proxy.into())
}

/// The same over FastCGI.
fn application(folder: &Folder) -> (Responder, Handler) {
    let workers = Workers::new();
    let app = Responder::unix(folder.path(), move |conn| {
        workers.run(|| {
            if conn.request().is_some() {
                conn.send(text("xx"));
            }
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
