//! HTTP/2: streams with the handlers of every other request.

mod attacks;
pub mod client;
mod ending;
mod growth;
mod grpc;
mod handlers;
mod hostile_backends;
mod memory;
mod pauses;
mod peers;
mod streams;
mod trailers;
mod upstream;

use std::time::Duration;

use osier_web::{Body, Request, Response, Router, Server, http::StatusCode};

use crate::common::{site, site_with};
use client::Client;

fn router() -> Router {
    Router::new()
        .get("/", |_| "hello")
        .get("/version", |request: &mut Request<'_>| {
            format!(
                "{:?} {} {}",
                request.version(),
                request.host().unwrap_or_default(),
                request.peer().ip()
            )
        })
        .get("/big/{bytes}", |request: &mut Request<'_>| {
            let bytes: usize = request.param("bytes").unwrap().parse().unwrap();
            vec![b'x'; bytes]
        })
        .get("/stream/{pieces}", |request: &mut Request<'_>| {
            let pieces: usize = request.param("pieces").unwrap().parse().unwrap();
            Response::stream(move |out| (0..pieces).try_for_each(|piece| writeln!(out, "piece {piece}")))
        })
        .get("/slow", |_| {
            osier::sleep(Duration::from_millis(20));
            "slow"
        })
        .post("/echo", |_: &mut Request<'_>| {
            Response::new(StatusCode::OK).body(Body::duplex(|from, to| std::io::copy(from, to).map(drop)))
        })
        .post("/count", |request: &mut Request<'_>| {
            let mut sink = std::io::sink();
            std::io::copy(request.body(), &mut sink).map(|count| count.to_string())
        })
        .get("/panic", |_: &mut Request<'_>| -> &'static str { panic!("on purpose") })
}

#[test]
fn a_client_with_prior_knowledge_is_served() {
    let site = site(router());
    let mut client = Client::connect(site.addr);
    let reply = client.get("/");
    assert_eq!((reply.status, reply.text()), (200, "hello"));
    assert_eq!(reply.header("content-length"), Some("5"));
    assert!(reply.header("date").is_some() && reply.header("connection").is_none());
    assert_eq!(client.get("/version").text(), "HTTP/2.0 test 127.0.0.1");
    assert_eq!(client.get("/nothing").status, 404);
    assert_eq!(client.send("POST", "/", &[], b"").status, 405);
    // HTTP/1.1 is there as before.
    assert_eq!(site.get("/version").text(), "HTTP/1.1 test 127.0.0.1");
}

#[test]
fn bodies_of_any_size_go_both_ways() {
    let server = Server::new(router()).limits(osier_web::Limits {
        body: 8 << 20,
        ..Default::default()
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = Client::connect(site.addr);
    for size in [0, 1, 16_383, 16_384, 16_385, 65_535, 65_536, 1 << 20] {
        let reply = client.get(&format!("/big/{size}"));
        assert_eq!((reply.status, reply.body.len()), (200, size));
        let body = vec![b'y'; size];
        assert_eq!(client.send("POST", "/count", &[], &body).text(), size.to_string());
        let length = size.to_string();
        let reply = client.send("POST", "/echo", &[("content-length", length.as_bytes())], &body);
        assert!(reply.body == body, "{size}: {}", reply.body.len());
    }
    let reply = client.get("/stream/100000");
    assert!(reply.text().starts_with("piece 0\npiece 1\n") && reply.text().ends_with("piece 99999\n"));
    assert_eq!(reply.header("transfer-encoding"), None);
}
