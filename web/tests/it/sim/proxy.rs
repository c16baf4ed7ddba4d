//! A proxy with two backends that crash, restart and are cut off.
//!
//! Invariants:
//! - A response belongs to its request.
//! - A request that may not be repeated (POST) is handled at most once, whatever fails.
//! - When the clients are gone, no lease is left, and once the network is well again the proxy serves.

use std::sync::Arc;

use osier::sim::{Faults, World};
use osier_web::proxy::Proxy;
use osier_web::upstream::Upstream;
use osier_web::{Address, Request, Router, Server};

use super::client::{Asked, Connection};
use super::server::{Handled, check_posts, clients, echo};
use super::{SECOND, below, once_in, some_faults, some_of};

fn backend(handled: &Handled) -> impl Fn() + 'static {
    let handled = Arc::clone(handled);
    move || {
        let handled = Arc::clone(&handled);
        let router = Router::new().fallback(move |request: &mut Request<'_>| echo(request, &handled));
        Server::new(router).on_log(|_| ()).bind("0.0.0.0:8080").unwrap().run();
    }
}

fn front(leases: &Arc<std::sync::Mutex<Option<Upstream>>>) -> impl Fn() + 'static {
    let leases = Arc::clone(leases);
    move || {
        let backends = ["one:8080", "two:8080"].map(|name| Address::Tcp(name.into()));
        let upstream = Upstream::builder("backends").backends(backends).on_log(|_| ());
        let upstream = upstream.build().unwrap();
        *leases.lock().unwrap() = Some(upstream.clone());
        let proxy = Proxy::new(upstream);
        let router = Router::new().fallback_answering(move |request| proxy.answer_after_body(request));
        Server::new(router).on_log(|_| ()).bind("0.0.0.0:80").unwrap().run();
    }
}

/// Lets things happen to the backends for a while.
fn misfortunes(world: &World) {
    let hosts = ["one", "two"].map(|name| world.find(name));
    let front = world.find("front");
    for _ in 0..below(6) {
        osier::sleep(some_of(15 * SECOND));
        let host = &hosts[below(2) as usize];
        match below(5) {
            0 => host.crash(),
            1 => host.kill(),
            2 => world.partition(&front, host),
            3 => drop(world.reset(&front, host)),
            _ => drop(world.half_close(host, &front)),
        }
        osier::sleep(some_of(20 * SECOND));
        host.restart();
        world.heal(&front, host);
    }
}

fn scenario(world: &World) {
    let (handled, leases) = (Handled::default(), Arc::default());
    for name in ["one", "two"] {
        world.host(name, backend(&handled));
    }
    world.host("front", front(&leases));
    osier::sleep(SECOND);
    world.faults(some_faults());
    let clients = clients(world, "front:80", 10, &handled);
    if !once_in(3) {
        misfortunes(world);
    }
    clients.iter().for_each(|client| client.wait());

    world.faults(Faults::none());
    osier::sleep(400 * SECOND);
    let upstream: Upstream = leases.lock().unwrap().take().unwrap();
    for backend in upstream.stats() {
        assert_eq!(backend.leases, 0, "leases are left");
    }
    check_posts(&handled);
    let asked = Asked {
        method: "GET",
        key: 9_000_000,
        body: Vec::new(),
    };
    let mut connection = Connection::open("front:80").unwrap();
    connection.send(&asked).unwrap();
    let reply = connection.reply().unwrap();
    assert_eq!(reply.status, 200, "the proxy serves again: {}", reply.head);
}

#[test]
fn a_proxy_mixes_nothing_and_repeats_no_post() {
    super::check(&[], 20, scenario);
}
