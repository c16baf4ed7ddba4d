//! HTTP/2 while memory is short.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use osier::memory::{self, Account, Pressure};
use osier::sync::Event;
use osier_http::h2::ErrorCode;
use osier_web::{Request, Router, Server, Timeouts};

use super::client::Client;
use crate::common::{arrived, eventually, site, site_with};
use crate::memory::{counts, greedy, in_a_small_child};

#[test]
fn near_the_limit_streams_behind_one_that_waits_are_refused_and_may_come_again() {
    let test = "h2::memory::near_the_limit_streams_behind_one_that_waits_are_refused_and_may_come_again";
    in_a_small_child(test, || {
        let greedy = |_: &mut Request<'_>| {
            let _all = Account::named("greedy").charge(memory::limit().expect("the child has one"));
            osier::sleep(Duration::from_millis(50));
            "has waited"
        };
        let site = site(Router::new().get("/", |_| "hello").get("/greedy", greedy));
        let mut client = Client::connect(site.addr);
        assert_eq!(client.get("/").status, 200);
        let first = client.begin("GET", "/greedy", &[], true);
        let behind: Vec<_> = (0..3).map(|_| client.begin("GET", "/", &[], true)).collect();
        for stream in behind {
            assert_eq!(client.reply(stream).reset, Some(ErrorCode::REFUSED_STREAM));
        }
        assert_eq!(client.reply(first).text(), "has waited");
        assert_eq!(client.get("/").status, 200);
    });
}

#[test]
fn near_the_limit_streams_whose_bodies_do_not_come_are_reset() {
    let test = "h2::memory::near_the_limit_streams_whose_bodies_do_not_come_are_reset";
    in_a_small_child(test, || {
        let (begun, count) = counts();
        let router = Router::new().get("/", |_| "hello").post("/count", count);
        let server = Server::new(router.get("/greedy", greedy(&FREE))).timeouts(Timeouts {
            body: Duration::from_secs(600),
            ..Timeouts::default()
        });
        let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
        let mut client = Client::connect(site.addr);
        let silent: Vec<_> = (0..5).map(|_| client.begin("POST", "/count", &[], false)).collect();
        client.flush();
        let mut sends = Client::connect(site.addr);
        let upload = sends.begin("POST", "/count", &[], false);
        sends.body(upload, b"first", false);
        eventually("all handlers read", || begun.load(Relaxed) == 6);
        let mut other = Client::connect(site.addr);
        let waits = other.begin("GET", "/greedy", &[], true);
        other.flush();
        eventually("memory is short", || memory::pressure() == Pressure::Critical);
        let head = client.begin("HEAD", "/", &[], true);
        let reply = client.reply(head);
        assert_eq!((reply.status, reply.reset), (503, None));
        assert!(reply.body.is_empty());
        // A client that sends goes on.
        let mut sent = 5;
        client
            .stream
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        eventually("the silent streams are reset", || {
            sends.body(upload, b"x", false);
            sent += 1;
            client.look();
            silent.iter().all(|stream| client.replies[stream].is_over())
        });
        for stream in silent {
            let reply = client.reply(stream);
            assert_eq!((reply.status, reply.reset), (0, Some(ErrorCode::ENHANCE_YOUR_CALM)));
        }
        sends.body(upload, b"", true);
        assert_eq!(sends.reply(upload).text(), sent.to_string());
        FREE.set();
        assert_eq!(other.reply(waits).text(), "has waited");
        // The others may have been ended as idle ones, before memory was free.
        assert_eq!(Client::connect(site.addr).get("/").status, 200);
    });
}

/// The fiber has waited for long, because its worker was busy, and so has nobody read the bytes that have arrived meanwhile.
#[test]
fn near_the_limit_bytes_that_have_arrived_keep_their_stream() {
    let test = "h2::memory::near_the_limit_bytes_that_have_arrived_keep_their_stream";
    in_a_small_child(test, || {
        let (blocks, goes_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (is_blocked, may_go_on) = (blocks.clone(), goes_on.clone());
        let greedy = move |_: &mut Request<'_>| {
            let _all = Account::named("greedy").charge(memory::limit().expect("the child has one"));
            is_blocked.store(1, Relaxed);
            while may_go_on.load(Relaxed) == 0 {
                std::thread::sleep(Duration::from_millis(1)); // keeps the worker from all else
            }
            FREE.wait();
            "has waited"
        };
        let (begun, count) = counts();
        let server = Server::new(Router::new().post("/count", count).get("/greedy", greedy));
        let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
        let mut client = Client::connect(site.addr);
        let upload = client.begin("POST", "/count", &[], false);
        client.flush();
        eventually("the handler reads", || begun.load(Relaxed) == 1);
        let mut other = Client::connect(site.addr);
        let waits = other.begin("GET", "/greedy", &[], true);
        other.flush();
        eventually("the worker is busy", || blocks.load(Relaxed) == 1);
        std::thread::sleep(Duration::from_millis(2500)); // longer than a client may be silent
        client.body(upload, b"bytes", false);
        arrived(&client.stream);
        goes_on.store(1, Relaxed);
        client.body(upload, b"", true);
        let reply = client.reply(upload);
        assert_eq!((reply.reset, reply.text()), (None, "5"));
        FREE.set();
        assert_eq!(other.reply(waits).text(), "has waited");
    });
}

/// Set when the memory may be free again.
static FREE: Event = Event::new();
