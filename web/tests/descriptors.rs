//! A server without free descriptors: accepting pauses, the log says so, and the server goes on.
//! The test lowers the limit of its process, so it has a process of its own.

#[path = "it/common/mod.rs"]
mod common;

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use common::backend::{self, Backend};
use common::{eventually, site};
use osier::sync::Event;
use osier_web::Router;
use osier_web::proxy::Proxy;
use rustix::process::{Resource, getrlimit, setrlimit};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn accepting_waits_for_descriptors() {
    let backends = [Backend::answering(HELLO), Backend::answering(HELLO)];
    let upstream = backend::upstream(&backends.each_ref().map(|backend| backend.addr));
    let proxy = Proxy::new(upstream.keep(0).build().expect("two backends"));
    let open = Arc::new(Event::new());
    let gate = open.clone();
    let (begins, begun) = std::sync::mpsc::channel();
    let router = Router::new()
        .get("/", |_| "hi")
        .get("/proxied", proxy.handler())
        .get("/held", move |_| {
            begins.send(()).expect("the test waits for it");
            gate.wait();
            "held"
        });
    let site = site(router);
    // It is in the middle of a request and then of the next ones, so it is never idle, and the server frees no descriptor.
    let mut busy = site.connect();
    assert_eq!(busy.get("/").text(), "hi");
    busy.send("GET /held HTTP/1.1\r\nHost: t\r\n\r\n");
    begun
        .recv_timeout(Duration::from_secs(60))
        .expect("the handler is called");

    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(limit.current.unwrap_or(1024).min(256));
    setrlimit(Resource::Nofile, limit).expect("lowering is always allowed");
    let fill = || std::iter::from_fn(|| File::open("/dev/null").ok());
    let mut filling: Vec<File> = fill().collect();
    assert!(filling.len() < 256);
    // The kernel reserves a descriptor for a thread that waits in accept(2). A backend whose thread is late takes its own now, not the one
    // that the server makes free.
    filling.truncate(filling.len() - 2);
    std::thread::sleep(Duration::from_millis(250));
    filling.extend(fill());

    // The client takes the last descriptor; the server has none for its own end.
    filling.pop();
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    eventually("a log line", || site.logged("cannot accept"));
    assert!(site.logged("raise the limit of open files"), "the line has a remedy");
    assert!(client.is_quiet_for(Duration::from_millis(250)));
    assert_eq!(site.log.lock().unwrap().len(), 1, "it says so once, not at every try");

    busy.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    busy.send("GET /proxied HTTP/1.1\r\nHost: t\r\n\r\n".repeat(8));
    open.set();
    assert_eq!(busy.reply().text(), "held");
    assert_eq!(busy.reply().text(), "hi");
    for _ in 0..8 {
        assert_eq!(busy.reply().status, 502);
    }
    // It is idle now, so it makes room.
    assert_eq!(client.reply().text(), "hi");
    busy.expect_end();
    // The backends have done nothing wrong: they are not left alone afterwards.
    drop(filling);
    assert_eq!(client.get("/proxied").text(), "hello");
}
