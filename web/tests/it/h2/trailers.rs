//! Trailers of requests and responses, over both versions, from handlers and through the proxy.

use std::fmt::Write as _;
use std::net::SocketAddr;

use osier_web::proxy::{Options, Proxy};
use osier_web::upstream::Upstream;
use osier_web::{Body, Request, Response, Router, http::StatusCode};

use super::client::Client;
use super::upstream;
use crate::common::backend::{Backend, serve};
use crate::common::{Site, site};

/// Returns the body, and the trailer with `-back` behind each name.
fn router() -> Router {
    Router::new()
        .post("/echo", |_: &mut Request<'_>| {
            let body = Body::duplex_with_trailers(|from, to, trailers| {
                let count = std::io::copy(from, to)?;
                for (name, value) in from.trailers().iter() {
                    trailers.push(&format!("{name}-back"), value)?;
                }
                trailers.push("x-count", count.to_string())
            });
            Response::new(StatusCode::OK).header("trailer", "x-count").body(body)
        })
        .post("/names", |request: &mut Request<'_>| {
            let before = request.body().trailers().is_empty();
            std::io::copy(request.body(), &mut std::io::sink()).unwrap();
            let announced = request.header_str("trailer");
            let mut names = format!("{before} te={:?} {announced:?}", request.header_str("te"));
            for (name, value) in request.body().trailers().iter() {
                write!(
                    names,
                    " {}={}",
                    name.to_ascii_lowercase(),
                    String::from_utf8_lossy(value)
                )
                .unwrap();
            }
            names
        })
        .get("/none", |_: &mut Request<'_>| {
            Response::stream(|out| out.write_all(b"plain"))
        })
}

const FIELDS: [(&str, &[u8]); 2] = [("x-sum", b"abc"), ("x-forwarded-for", b"1.2.3.4")];

/// Sends a body with a trailer over HTTP/2.
fn ask_http2(addr: SocketAddr, path: &str) -> super::client::Reply {
    let mut client = Client::connect(addr);
    let stream = client.begin("POST", path, &[("te", b"trailers"), ("trailer", b"x-sum")], false);
    client.body(stream, b"hello", false);
    client.machine.send_trailers(stream, FIELDS);
    client.flush();
    client.reply(stream)
}

/// Sends a chunked body with a trailer over HTTP/1.1, and returns the response with its framing.
fn ask_http1(site: &Site, path: &str) -> String {
    let mut client = site.connect();
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nTE: trailers\r\nTrailer: x-sum\r\nConnection: te, close\r\n\
         Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: abc\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n"
    ));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut client.stream, &mut text).unwrap();
    text
}

fn to_http1(addr: SocketAddr, buffer: bool) -> Proxy {
    let upstream = Upstream::builder("app")
        .backend(addr.to_string().parse().unwrap())
        .build()
        .unwrap();
    let options = Options {
        buffer,
        ..Options::default()
    };
    Proxy::with(upstream, options)
}

fn to_http2(addr: SocketAddr, buffer: bool) -> Proxy {
    let options = Options {
        buffer,
        ..Options::default()
    };
    Proxy::with(upstream::upstream(addr).build().unwrap(), options)
}

#[test]
fn handlers_read_and_send_trailers_over_both_versions() {
    let site = site(router());
    let reply = ask_http2(site.addr, "/echo");
    assert_eq!(reply.text(), "hello");
    let fields: Vec<_> = reply.trailers.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(
        fields,
        [
            ("x-sum-back", "abc"),
            ("x-forwarded-for-back", "1.2.3.4"),
            ("x-count", "5")
        ]
    );
    let text = ask_http1(&site, "/echo");
    assert!(
        text.ends_with("\r\n0\r\nX-Sum-back: abc\r\nX-Forwarded-For-back: 1.2.3.4\r\nx-count: 5\r\n\r\n"),
        "{text}"
    );
    let mut client = Client::connect(site.addr);
    assert!(client.get("/none").trailers.is_empty());
}

#[test]
fn trailers_pass_the_proxy_in_all_combinations_of_versions() {
    let backend = site(router());
    for buffer in [true, false] {
        for proxy in [to_http1(backend.addr, buffer), to_http2(backend.addr, buffer)] {
            let front = serve(proxy);
            let reply = ask_http2(front.addr, "/echo");
            assert_eq!(reply.text(), "hello");
            let fields: Vec<_> = reply.trailers.iter().map(|(name, value)| (&**name, &**value)).collect();
            assert_eq!(fields, [("x-sum-back", "abc"), ("x-count", "5")]);
            assert_eq!(reply.header("trailer"), Some("x-count"));
            let text = ask_http1(&front, "/echo").to_ascii_lowercase();
            assert!(
                text.ends_with("\r\n0\r\nx-sum-back: abc\r\nx-count: 5\r\n\r\n"),
                "{text}"
            );
            assert!(text.contains("\r\ntrailer: x-count\r\n"), "{text}");
            let names = "true te=Some(\"trailers\") Some(\"x-sum\") x-sum=abc";
            assert_eq!(ask_http2(front.addr, "/names").text(), names);
            assert!(ask_http1(&front, "/names").ends_with(names));
        }
    }
}

#[test]
fn fields_that_may_not_stand_in_a_trailer_are_dropped() {
    let backend = Backend::answering(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nSet-Cookie: a=b\r\nContent-Type: text/html\r\n\
         Grpc-Status: 0\r\n\r\n",
    );
    let front = serve(backend.proxy());
    let mut client = Client::connect(front.addr);
    let reply = client.get("/");
    assert_eq!((reply.text(), reply.trailers.len()), ("ok", 1));
    assert_eq!(reply.trailers[0], ("grpc-status".into(), "0".into()));
    // An HTTP/1.0 client gets the body without chunks, and no trailer.
    let mut old = front.connect();
    old.send("GET / HTTP/1.0\r\n\r\n");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut old.stream, &mut text).unwrap();
    assert!(text.ends_with("\r\n\r\nok"), "{text}");
}
