//! Listeners that are opened before there is a runtime. The test counts threads, so it has a
//! process of its own.

#[path = "it/common/mod.rs"]
mod common;

use common::{eventually, site_with};
use osier_web::{Router, Server};

#[test]
fn listeners_may_be_opened_before_the_runtime() {
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let before = threads();
    let listeners = osier_web::Listener::bind("127.0.0.1:0".parse().unwrap(), 3).unwrap();
    assert_eq!(threads(), before, "a thread was started");
    let taken = osier_web::Listener::bind("127.0.0.1:0".parse().unwrap(), 1).unwrap();
    let osier_web::Listener::Tcp(taken) = &taken[0] else {
        panic!("TCP");
    };
    let again = osier_web::Listener::bind(taken.local_addr().unwrap(), 2);
    assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);

    let (sender, receiver) = std::sync::mpsc::channel();
    let router = Router::new().get("/", |_| "here");
    // Fewer workers than listeners.
    let site = site_with(2, Server::new(router), move |server| {
        let listening = server.listeners(listeners)?;
        sender.send(listening.connections()).unwrap();
        Ok(listening)
    });
    let connections = receiver.recv().unwrap();
    let mut clients: Vec<_> = (0..20).map(|_| site.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/").body, b"here");
    }
    assert_eq!(connections.count(), 20);
    drop(clients);
    eventually("all are gone", || connections.count() == 0);
    assert!(osier::run(|| Server::new(Router::new()).listeners(Vec::new())).is_err());
}
