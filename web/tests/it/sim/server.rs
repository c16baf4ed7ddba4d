//! A server and its clients.
//!
//! Invariants:
//! - A response belongs to its request: its key and its body are those of the request, in the order of the requests.
//! - A request is handled at most once; one with a response of the handler, exactly once.
//! - When the clients are gone and the idle timeout has passed, no connection is left.
//! - A shutdown ends within the drain timeout. When the handlers have ended whose connections it has cut, no socket is left.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use osier::sim::{Faults, Host, HostOptions, World};
use osier_web::{Request, Response, Router, Server, ShutdownHandle};

use super::client::{Asked, Reply, requests};
use super::{SECOND, below, once_in, some_faults, some_of};

/// How often each key was handled.
#[derive(Default)]
pub struct Counts {
    pub all: BTreeMap<u64, u32>,
    /// The keys of requests that must not be repeated.
    pub posts: BTreeMap<u64, u32>,
}

pub type Handled = Arc<Mutex<Counts>>;

/// Counts a request with this key.
pub fn count(handled: &Handled, key: u64, method: &str) {
    let mut counts = handled.lock().unwrap();
    *counts.all.entry(key).or_default() += 1;
    if method == "POST" {
        *counts.posts.entry(key).or_default() += 1;
    }
}

/// Checks that no request was repeated that must not be.
pub fn check_posts(handled: &Handled) {
    for (key, &times) in &handled.lock().unwrap().posts {
        assert_eq!(times, 1, "POST {key} is handled {times} times");
    }
}

/// Answers with the key and the body of the request, in one of several ways.
pub fn echo(request: &mut Request<'_>, handled: &Handled) -> std::io::Result<Response> {
    let key: u64 = request.query_param("key").unwrap().parse().unwrap();
    count(handled, key, request.method());
    let mut body = Vec::new();
    if once_in(8) {
        osier::sleep(some_of(5 * SECOND));
    }
    std::io::Read::read_to_end(request.body(), &mut body)?;
    if once_in(8) {
        osier::sleep(some_of(5 * SECOND));
    }
    let response = match once_in(3) {
        true => Response::stream(move |out| {
            for piece in body.chunks(4000) {
                out.write_all(piece)?;
            }
            Ok(())
        }),
        false => Response::new(osier_web::http::StatusCode::OK).body(body),
    };
    Ok(response.header("x-key", key.to_string()))
}

/// Holds a response against its request.
pub fn check_reply(asked: &Asked, reply: &Reply, handled: &Handled) {
    if reply.status != 200 {
        return assert!([400, 408, 500, 502, 503, 504].contains(&reply.status), "{}", reply.head);
    }
    assert_eq!(reply.header("x-key"), Some(asked.key.to_string().as_str()));
    assert!(
        reply.body == asked.body,
        "the body of another request, or a part of this one"
    );
    assert!(handled.lock().unwrap().all[&asked.key] >= 1);
}

/// Starts one to three clients on hosts of their own. Each sends `count` requests and holds the responses against them.
pub fn clients(world: &World, address: &'static str, count: u64, handled: &Handled) -> Vec<Host> {
    (0..1 + below(3))
        .map(|number| {
            let handled = Arc::clone(handled);
            world.host(&format!("client-{number}"), move || {
                requests(address, number * 1000, count, |asked, reply| {
                    check_reply(asked, reply, &handled)
                });
            })
        })
        .collect()
}

/// Runs a server, with the clients that `start_clients` starts. Returns whether nothing has disturbed them: neither faults of the network
/// nor a shutdown.
pub fn serve(world: &World, start_clients: impl FnOnce(&World, &Handled) -> Vec<Host>) -> bool {
    let handled = Handled::default();
    let stop: Arc<Mutex<Option<(ShutdownHandle, osier_web::Connections)>>> = Arc::default();
    let (for_server, handle) = (Arc::clone(&handled), Arc::clone(&stop));
    let options = HostOptions {
        workers: 1 + below(3) as usize,
        ..HostOptions::default()
    };
    let server = world.host_with("server", options, move || {
        let handled = Arc::clone(&for_server);
        let router = Router::new().fallback(move |request: &mut Request<'_>| echo(request, &handled));
        let server = Server::new(router).on_log(|_| ()).bind("0.0.0.0:80").unwrap();
        *handle.lock().unwrap() = Some((server.handle(), server.connections()));
        server.run();
    });
    osier::sleep(SECOND);
    let faults = some_faults();
    world.faults(faults.clone());
    let clients = start_clients(world, &handled);
    let stops_early = once_in(4);
    match stops_early {
        true => osier::sleep(some_of(60 * SECOND)),
        false => clients.iter().for_each(|client| client.wait()),
    }
    let (stopping, connections) = stop.lock().unwrap().take().unwrap();
    if !stops_early {
        world.faults(Faults::none());
        // A client without power tells nobody, so it is the idle timeout that counts.
        osier::sleep(200 * SECOND);
        assert_eq!(connections.count(), 0, "connections are left");
    }
    let before = world.elapsed();
    stopping.shutdown();
    server.wait();
    assert!(
        world.elapsed() - before < 25 * SECOND,
        "the drain takes {:?}",
        world.elapsed() - before
    );
    // A handler whose connection was cut runs to its end.
    osier::sleep(60 * SECOND);
    assert_eq!(connections.count(), 0);
    assert_eq!(server.open_sockets(), 0, "sockets are left");
    assert!(
        handled.lock().unwrap().all.values().all(|&times| times == 1),
        "a request is handled twice"
    );
    clients.iter().for_each(|client| client.wait());
    !stops_early && faults == Faults::none()
}

fn scenario(world: &World) {
    serve(world, |world, handled| clients(world, "server:80", 12, handled));
}

#[test]
fn every_request_has_one_answer_or_its_client_is_gone() {
    // They cut a connection whose handler was at work.
    super::check(&[1475, 1853], 40, scenario);
}
