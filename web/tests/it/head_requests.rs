//! HEAD: no response has a body, also none of those that the server makes itself.

use std::time::Duration;

use osier_http::h2::Outgoing;
use osier_web::{Limits, Request, Response, Router, Server, Timeouts, http::StatusCode};

use crate::common::{Site, site_with};
use crate::h2::client::Client;

fn serving() -> Site {
    let router = Router::new()
        .get("/", |_| "hello")
        .get("/panic", |_: &mut Request<'_>| -> &'static str { panic!("on purpose") })
        .get("/busy", |_| {
            Response::new(StatusCode::TOO_MANY_REQUESTS).body("come again later\n")
        })
        .get("/fails", |_: &mut Request<'_>| -> std::io::Result<&'static str> {
            Err(std::io::Error::other("on purpose"))
        })
        .get("/stream", |_| Response::stream(|out| writeln!(out, "a line")));
    let server = Server::new(router)
        .limits(Limits {
            head_bytes: 2000,
            request_line: 500,
            ..Limits::default()
        })
        .timeouts(Timeouts {
            header: Duration::from_millis(400),
            ..Timeouts::default()
        });
    site_with(1, server, |server| server.bind("127.0.0.1:0"))
}

#[test]
fn no_refusal_of_a_head_has_a_body_over_http_1() {
    let site = serving();
    let long = "x".repeat(3000);
    let fields = |more: &str| format!("HEAD / HTTP/1.1\r\nHost: t\r\n{more}\r\n");
    let path = |path: &str| format!("HEAD {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    for (status, request) in [
        (400, "HEAD / HTTP/1.1\r\n\r\n".to_owned()),
        (400, "\r\nHEAD / HTTP/1.1\r\nHost: t\r\nno field\r\n\r\n".to_owned()),
        (505, "HEAD / HTTP/3.0\r\nHost: t\r\n\r\n".to_owned()),
        (417, fields("Expect: more\r\n")),
        (413, fields("Content-Length: 99999999999999\r\n")),
        (431, fields(&format!("Long: {long}\r\n"))),
        (414, format!("HEAD /{long} HTTP/1.1\r\nHost: t\r\n\r\n")),
        (408, "HEAD / HTTP/1.1\r\nHost: ".to_owned()),
        (404, path("/none")),
        (429, path("/busy")),
        (500, path("/panic")),
        (500, path("/fails")),
        (200, path("/stream")),
    ] {
        let mut client = site.connect();
        client.send(&request);
        let response = String::from_utf8(client.rest()).unwrap();
        let asked = request.lines().nth(usize::from(request.starts_with('\r'))).unwrap();
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status} ")),
            "{asked}: {response}"
        );
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, "", "{asked}: {head}");
    }
    // The same with a body, to see that the others had something to leave out.
    let reply = site.ask("GET / HTTP/1.1\r\nHost: t\r\nExpect: more\r\n\r\n");
    assert!(reply.status == 417 && !reply.text().is_empty());
}

#[test]
fn no_refusal_of_a_head_has_a_body_over_http_2() {
    let site = serving();
    let mut client = Client::connect(site.addr);
    let long = "x".repeat(3000);
    let target = |scheme, path| Outgoing {
        method: "HEAD",
        scheme,
        authority: "test",
        path,
        protocol: None,
    };
    for (status, target, field) in [
        (400, target("ftp", "/"), None),
        (417, target("http", "/"), Some(("expect", "more"))),
        (413, target("http", "/"), Some(("content-length", "99999999999999"))),
        (431, target("http", "/"), Some(("long", &*long))),
        (404, target("http", "/none"), None),
        (429, target("http", "/busy"), None),
        (500, target("http", "/panic"), None),
        (500, target("http", "/fails"), None),
        (200, target("http", "/stream"), None),
    ] {
        let fields: Vec<_> = field.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let has_body = fields.iter().any(|(name, _)| *name == "content-length");
        let stream = client.open(&target, &fields, !has_body);
        let reply = client.reply(stream);
        assert_eq!((reply.status, reply.reset), (status, None), "{target:?} {field:?}");
        assert!(reply.ended && reply.body.is_empty(), "{target:?} {field:?}");
    }
    assert!(client.goaway.is_none());
}
