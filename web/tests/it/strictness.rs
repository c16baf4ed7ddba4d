//! Requests that are refused: beyond limits, or in the shapes of request smuggling. `osier-http`
//! tests the whole table of shapes.

use std::io::Read;

use crate::common::{Client, site, site_with, taken};
use osier_web::{Limits, Request, Route, Router, Server};

fn read_all(request: &mut Request<'_>) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    request.body().read_to_end(&mut bytes)?;
    Ok(bytes.len().to_string())
}

/// Returns the status of the only response to `bytes`, which must close the connection.
fn refusal(mut client: Client, bytes: &[u8]) -> u16 {
    client.try_send(bytes);
    let reply = client.reply();
    assert_eq!(
        reply.header("connection"),
        Some("close"),
        "{}",
        String::from_utf8_lossy(bytes)
    );
    client.expect_end();
    reply.status
}

#[test]
fn smuggling_shapes_are_answered_400_and_closed() {
    let site = site(Router::new().get("/", |_| "got").post("/", read_all));
    let shapes: [&[u8]; 12] = [
        b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: +5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : t\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: t\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\nHost: t\n\n",
        b"GET / HTTP/1.1\r\nHost: t\r\nX: a\0b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ];
    for shape in shapes {
        assert_eq!(
            refusal(site.connect(), shape),
            400,
            "{}",
            String::from_utf8_lossy(shape)
        );
    }
    assert_eq!(refusal(site.connect(), b"GET / HTTP/2.0\r\nHost: t\r\n\r\n"), 505);
}

#[test]
fn malformed_chunks_are_400_through_the_handlers_error() {
    let site = site(Router::new().post("/", read_all));
    let head = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    for chunks in [
        "0x2\r\nab\r\n0\r\n\r\n",
        "2\nab\r\n0\r\n\r\n",
        "2\r\nabc\r\n0\r\n\r\n",
        "2;a\nb\r\nab\r\n0\r\n\r\n",
        "\r\n",
    ] {
        assert_eq!(
            refusal(site.connect(), format!("{head}{chunks}").as_bytes()),
            400,
            "{chunks:?}"
        );
    }
}

#[test]
fn a_refusal_follows_the_responses_before_it() {
    let site = site(Router::new().get("/", |_| "got"));
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\nGET / HTTP/1.1\r\nbroken\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(client.reply().text(), "got");
    assert_eq!(client.reply().status, 400);
    client.expect_end();
}

#[test]
fn limits_have_their_statuses() {
    let limits = Limits {
        request_line: 100,
        head_bytes: 1000,
        header_count: 5,
        body: 100,
        ..Limits::default()
    };
    let router = Router::new().get("/{*any}", |_| "got").post("/", read_all);
    let router = router.route("/wide", Route::new().post(read_all).body_limit(1 << 20));
    let site = site_with(1, Server::new(router).limits(limits), |server| {
        server.bind("127.0.0.1:0")
    });
    let refused = |bytes: String| refusal(site.connect(), bytes.as_bytes());

    assert_eq!(
        refused(format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "a".repeat(100))),
        414
    );
    assert_eq!(refused(format!("GET /{}", "a".repeat(10_000))), 414);
    assert_eq!(
        refused(format!("GET /a HTTP/1.1\r\nHost: t\r\nx: {}\r\n\r\n", "a".repeat(1000))),
        431
    );
    assert_eq!(
        refused(format!("GET /a HTTP/1.1\r\nHost: t\r\n{}\r\n", "a: b\r\n".repeat(5))),
        431
    );
    assert_eq!(
        refused("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 101\r\n\r\n".to_owned()),
        413
    );
    let expecting = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 101\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(refused(expecting.to_owned()), 413);
    let chunk = "10\r\n0123456789abcdef\r\n".repeat(7);
    let chunked = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(refused(format!("{chunked}{chunk}0\r\n\r\n")), 413);

    let within = format!(
        "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{}",
        "b".repeat(100)
    );
    assert_eq!(site.ask(&within).text(), "100");
    let wide = format!(
        "POST /wide HTTP/1.1\r\nHost: t\r\nContent-Length: 5000\r\n\r\n{}",
        "b".repeat(5000)
    );
    assert_eq!(site.ask(&wide).text(), "5000");
}

#[test]
fn a_client_that_goes_on_sending_gets_the_refusal_and_a_clean_end() {
    let site = site(Router::new().post("/", read_all));
    let mut client = site.connect();
    // Much less than a lingering close reads, much more than the server has read when it responds.
    let mut request = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100000000\r\n\r\n".to_vec();
    request.resize(100_000, b'x');
    client.send(request);
    assert_eq!(client.reply().status, 413);
    for _ in 0..10 {
        client.send([b'x'; 1000]);
    }
    // A clean end, not a reset, which could have overtaken the response.
    assert_eq!(client.stream.read(&mut [0]).expect("a clean end"), 0);
}

#[test]
fn a_refusal_reaches_a_client_that_is_sending_when_the_server_stops() {
    let site = site(Router::new().post("/", read_all));
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100000000\r\n\r\n");
    client.stream.peek(&mut [0]).unwrap();
    site.stop.shutdown();
    for _ in 0..3 {
        client.send([b'x'; 1000]);
        taken(&client.stream);
    }
    assert_eq!(client.reply().status, 413);
    assert_eq!(client.stream.read(&mut [0]).expect("a clean end"), 0);
}
