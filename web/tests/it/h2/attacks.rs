//! Clients that make a connection work for nothing, beside one that asks quietly.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use osier_http::h2::{Connection, ErrorCode, Limits, Outgoing};
use osier_web::Router;

use super::client::Client;
use crate::common::{PATIENCE, site};

/// The preface and `count` requests, each of which is cancelled at once.
fn rapid_resets(count: usize) -> Vec<u8> {
    let now = Instant::now();
    let mut machine = Connection::client(&Limits::default(), now);
    let target = Outgoing {
        method: "GET",
        scheme: "http",
        authority: "test",
        path: "/",
        protocol: None,
    };
    for _ in 0..count {
        let stream = machine.request(&target, [], true).expect("a stream");
        machine.reset(stream, ErrorCode::CANCEL);
        machine.finish(stream);
    }
    machine.output().to_vec()
}

#[test]
fn two_thousand_rapid_resets_do_not_hold_up_a_quiet_client() {
    let handled = Arc::new(AtomicUsize::new(0));
    let count = handled.clone();
    let site = site(Router::new().get("/", move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        "hello"
    }));
    let bytes = rapid_resets(1000);
    let attacks = AtomicBool::new(true);
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        let (bytes, attacks, addr) = (&bytes, &attacks, site.addr);
        let attackers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    for _ in 0..500 {
                        let mut stream = TcpStream::connect(addr).expect("the server listens");
                        stream.set_read_timeout(Some(PATIENCE)).unwrap();
                        // The server ends the connection before it has read all.
                        let _ = stream.write_all(bytes);
                        let _ = stream.read_to_end(&mut Vec::new());
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            attackers
                .into_iter()
                .for_each(|attacker| attacker.join().expect("it attacks to the end"));
            attacks.store(false, Ordering::Relaxed);
        });
        let mut quiet = Client::connect(addr);
        while attacks.load(Ordering::Relaxed) {
            let start = Instant::now();
            assert_eq!(quiet.get("/").text(), "hello");
            times.push(start.elapsed());
        }
    });
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    let handled = handled.load(Ordering::Relaxed) - times.len();
    println!(
        "2,000 connections of 1,000 resets: {} quiet requests, median {median:?}, worst {worst:?}",
        times.len()
    );
    println!("{handled} handlers ran for 2,000,000 cancelled requests");
    assert!(
        median < Duration::from_millis(50) && worst < Duration::from_secs(3),
        "{median:?} {worst:?}"
    );
    assert!(site.logged("too many resets"));
}

#[test]
fn a_client_that_cancels_often_is_not_punished() {
    let site = site(super::router());
    // What is on its way to a stream that it has cancelled is work for nothing, but its own fault.
    let limits = Limits {
        frame_burst: 10_000_000,
        ..Limits::default()
    };
    let mut client = Client::with(site.addr, &limits);
    for _ in 0..1000 {
        let stream = client.begin("GET", "/big/1000000", &[], true);
        client.until("the response has begun", |client| client.replies[&stream].status == 200);
        client.machine.reset(stream, ErrorCode::CANCEL);
        client.machine.finish(stream);
    }
    assert_eq!(client.get("/").text(), "hello");
}
