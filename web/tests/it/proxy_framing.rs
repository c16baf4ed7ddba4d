//! A proxy with backends that send wrong framing, break off or send malformed responses, and with
//! clients that try to smuggle a request.

use std::sync::mpsc;

use crate::common::backend::Backend;
use crate::common::{Client, Site, site};
use osier_web::Router;

fn proxied(backend: &Backend) -> Site {
    site(Router::new().fallback(backend.proxy().handler()))
}

/// Asks once through a proxy for what a backend answers and then closes.
fn passed(answer: &[u8]) -> (crate::common::Reply, Site) {
    let backend = Backend::answering_once(answer);
    let site = proxied(&backend);
    let reply = site.get("/x");
    (reply, site)
}

const LONG: &str = "0123456789abcdef";

#[test]
fn every_honest_framing_arrives_and_is_framed_anew() {
    let answers: &[(&str, &[u8], &str, Option<&str>)] = &[
        (
            "known",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "hello",
            Some("5"),
        ),
        ("empty", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "", Some("0")),
        (
            "chunked, all at once",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n",
            "hello!",
            Some("6"),
        ),
        (
            "chunked, with a trailer",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
            "hello",
            None,
        ),
        ("until the end", b"HTTP/1.1 200 OK\r\n\r\nhello", "hello", None),
        ("1.0 until the end", b"HTTP/1.0 200 OK\r\n\r\nhello", "hello", None),
        (
            "1.0 known",
            b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "hello",
            Some("5"),
        ),
        (
            "interim before",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
            "x",
            Some("1"),
        ),
    ];
    for (name, answer, body, length) in answers {
        let (reply, _site) = passed(answer);
        assert_eq!((reply.status, reply.text()), (200, *body), "{name}");
        assert_eq!(reply.header("content-length"), *length, "{name}: {}", reply.head);
        assert_eq!(reply.header("transfer-encoding").is_some(), length.is_none(), "{name}");
        assert!(!reply.head.contains("X-T"), "{name}");
    }
}

#[test]
fn interim_responses_are_passed_on_when_they_come_but_for_continue_and_for_clients_of_1_0() {
    const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\ncontent-security-policy: default-src 'self'\r\n\
         Set-Cookie: a=1\r\nX-Secret: 1\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n";
    const FINAL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let (seen, go) = mpsc::channel::<()>();
    let go = std::sync::Mutex::new(go);
    let backend = Backend::start(move |_, conn| {
        while conn.head().is_some_and(|asked| {
            conn.send(format!("HTTP/1.1 100 Continue\r\n\r\n{HINTS}"));
            // What has to be sent early leaves before the answer is there, and before the request's body is.
            let _ = go.lock().unwrap().recv();
            let length = asked
                .header("content-length")
                .map_or(0, |length| length.parse().unwrap());
            conn.take(length).is_some()
        }) {
            conn.send(FINAL);
        }
    });
    let site = site(Router::new().fallback(backend.streaming_proxy().handler()));
    let mut client = site.connect();
    for (request, body) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", ""),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", "hello"),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", ""),
    ] {
        client.send(request);
        let (status, head) = client.head();
        assert_eq!(status, 103, "{head}");
        assert!(head.contains("Link: </a.css>; rel=preload"), "{head}");
        assert!(head.contains("content-security-policy: default-src 'self'"), "{head}");
        // Nothing else: what the site sets and takes off its responses does not reach this one.
        assert_eq!(head.trim_end().lines().count(), 3, "{head}");
        seen.send(()).unwrap();
        client.send(body);
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (200, "ok"));
        assert_eq!(reply.header("link"), None);
    }
    assert_eq!(backend.accepted(), 1, "and its connection is kept");
    seen.send(()).unwrap();
    let mut old = site.connect();
    old.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(old.head().0, 200);

    let processing = "HTTP/1.1 102 Processing\r\nLink: </a.css>\r\nX-Secret: 1\r\n\r\n";
    let backend = Backend::answering_once(format!("{processing}{FINAL}"));
    let site = proxied(&backend);
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (status, head) = client.head();
    assert_eq!((status, head.trim_end().lines().count()), (102, 1), "{head}");
    assert_eq!(client.reply().text(), "ok");

    let backend = Backend::answering_once(HINTS);
    let site = proxied(&backend);
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(
        (client.head().0, client.reply().status),
        (103, 502),
        "when nothing follows"
    );
}

#[test]
fn every_framing_lie_is_502_and_its_line_in_the_log_has_the_request_s_number() {
    let lies: &[(&str, &[u8], &str)] = &[
        (
            "CL and TE",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "both Content-Length",
        ),
        (
            "two lengths",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
            "more than one Content-Length",
        ),
        (
            "bad length",
            b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
            "malformed Content-Length",
        ),
        (
            "xchunked",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
            "Transfer-Encoding",
        ),
        (
            "gzip, chunked",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "transfer coding",
        ),
        (
            "chunked in 1.0",
            b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "Transfer-Encoding in an HTTP/1.0",
        ),
        ("bare LF", b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", "line feed"),
        ("fold", b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "header name"),
        ("NUL", b"HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n", "header value"),
        (
            "space before the colon",
            b"HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
            "header name",
        ),
        ("no HTTP", b"220 mail ready\r\n\r\n", "status line"),
        ("HTTP/0.9", b"<html>hello</html>", "status line"),
        ("HTTP/2", b"HTTP/2 200\r\n\r\n", "status line"),
        ("status 99", b"HTTP/1.1 099 Low\r\n\r\n", "status line"),
        (
            "101 unasked",
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
            "not asked for",
        ),
        (
            "bad chunk",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
            "chunk size",
        ),
        (
            "short of its length",
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
            "inside the body",
        ),
        ("nothing", b"", "has not answered: it has closed the connection"),
        (
            "a TLS alert",
            b"\x15\x03\x03\0\x02\x02\x46",
            "it speaks TLS; write https:// before its address",
        ),
        (
            "settings of HTTP/2",
            b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64",
            "it speaks HTTP/2; write h2c:// before its address",
        ),
        ("half a head", b"HTTP/1.1 200 OK\r\nA: b\r\n", "inside the head"),
        (
            "only interim",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            "broke off inside the head",
        ),
    ];
    for (name, answer, reason) in lies {
        let (reply, site) = passed(answer);
        assert_eq!((reply.status, reply.text()), (502, "502 Bad Gateway\n"), "{name}");
        let log = site.log.lock().unwrap();
        assert_eq!(log.len(), 1, "{name}: {log:?}");
        let line = &log[0];
        assert!(
            line.starts_with("GET /x failed: ") && line.contains("upstream app: backend 127.0.0.1:"),
            "{name}: {line}"
        );
        assert!(line.contains(reason), "{name}: {line}");
        assert!(!line.ends_with(')'), "no status of a request: {name}: {line}");
        let id = &site.ids.lock().unwrap()[0];
        assert!(
            id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{name}: {line}"
        );
    }
    let large = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "x".repeat(70 << 10));
    let (reply, site) = passed(large.as_bytes());
    assert_eq!(reply.status, 502);
    assert!(site.logged("larger than the limit"));
}

/// A long operation may send 102 Processing every few seconds (RFC 2518 section 10.1).
#[test]
fn many_interim_responses_arrive_and_endless_ones_are_502() {
    const INTERIM: &str = "HTTP/1.1 102 Processing\r\n\r\n";
    let fit = (64 << 10) / INTERIM.len();
    for (sent, last) in [(fit, 204), (fit + 1, 502)] {
        let backend = Backend::answering_once(format!("{}HTTP/1.1 204 No\r\n\r\n", INTERIM.repeat(sent)));
        let site = proxied(&backend);
        let mut client = site.connect();
        client.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!((0..fit).all(|_| client.head().0 == 102));
        assert_eq!(client.head().0, last);
        assert_eq!(site.logged("too many interim responses"), last == 502);
    }
}

#[test]
fn a_long_head_within_the_limit_arrives() {
    let value = "x".repeat(60 << 10);
    let (reply, _site) = passed(format!("HTTP/1.1 200 OK\r\nX-Long: {value}\r\nContent-Length: 1\r\n\r\ny").as_bytes());
    assert_eq!((reply.status, reply.header("x-long")), (200, Some(&*value)));
}

#[test]
fn a_large_body_that_breaks_off_ends_the_connection_without_the_end_mark() {
    for framing in ["Content-Length: 1000000", "Transfer-Encoding: chunked"] {
        let mut answer = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n").into_bytes();
        if framing.starts_with('T') {
            answer.extend_from_slice(b"30000\r\n");
        }
        answer.extend_from_slice(&[b'x'; 150_000]);
        let backend = Backend::answering_once(answer);
        let site = proxied(&backend);
        let mut client = site.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let (status, head) = client.head();
        assert_eq!(status, 200, "{head}");
        let rest = client.rest();
        assert!(rest.len() >= 100_000 && rest.len() < 200_000, "{}", rest.len());
        assert!(!rest.ends_with(b"0\r\n\r\n"), "no end mark");
        crate::common::eventually("the log says it", || site.logged("inside the body"));
        assert!(site.logged("the response body of GET / failed: "));
    }
}

#[test]
fn a_body_that_lasts_until_the_end_is_chunked_for_1_1_and_plain_for_1_0() {
    let backend = Backend::answering_once(format!("HTTP/1.1 200 OK\r\n\r\n{LONG}"));
    let site = proxied(&backend);
    let reply = site.ask("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(reply.text(), LONG);
    assert!(reply.header("transfer-encoding").is_none());
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let reply = client.reply();
    assert_eq!(
        (reply.text(), reply.header("transfer-encoding")),
        (LONG, Some("chunked"))
    );
    assert_eq!(client.get("/").text(), LONG, "the client's connection is kept");
}

#[test]
fn answers_without_a_body_have_none_and_head_tells_the_length() {
    let head = Backend::start(|_, conn| {
        while let Some(asked) = conn.request() {
            let status = asked.head.split(['/', ' ']).nth(2).unwrap().to_owned();
            match asked.head.starts_with("HEAD") {
                true => conn.send("HTTP/1.1 200 OK\r\nContent-Length: 500\r\nX: y\r\n\r\n"),
                false if status == "304" => {
                    conn.send("HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\nETag: \"a\"\r\n\r\n")
                }
                false => conn.send(format!("HTTP/1.1 {status} Some\r\n\r\n")),
            };
        }
    });
    let site = proxied(&head);
    let mut client = site.connect();
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (status, text) = client.head();
    assert!(status == 200 && text.contains("content-length: 500\n"), "{text}");
    for status in [304, 204] {
        client.send(format!("GET /{status} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let (got, text) = client.head();
        assert_eq!(got, status, "{text}");
        assert!(!text.contains("ontent-") && !text.contains("ransfer-"), "{text}");
    }
    // Nothing of a body has come: the next answer begins where it must.
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().0, 200);
    assert_eq!(head.accepted(), 1, "and the backend's connection is kept");
}

#[test]
fn an_answer_to_head_that_sends_a_body_poisons_nothing() {
    let backend = Backend::start(|number, conn| {
        while let Some(asked) = conn.request() {
            let lie = "HTTP/1.1 200 OK\r\nContent-Length: 43\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nEVIL!";
            match asked.head.starts_with("HEAD") {
                true => conn.send(lie),
                false => conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}")),
            };
        }
    });
    let site = proxied(&backend);
    let mut client = site.connect();
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().0, 200);
    let reply = client.get("/");
    assert_eq!(
        reply.text(),
        "1",
        "on another connection: what lay in the first was nobody's answer"
    );
}

#[test]
fn bytes_behind_an_answer_are_nobody_s() {
    let backend = Backend::start(|number, conn| {
        while conn.request().is_some() {
            let surplus = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nEVIL!";
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}{surplus}"));
        }
    });
    let site = proxied(&backend);
    let mut client = site.connect();
    for number in 0..5 {
        assert_eq!(client.get("/").text(), number.to_string());
    }
}

/// Requests that a client must not smuggle through the proxy. The strict parser refuses them, or
/// the proxy makes them harmless. Only heads of one request each may reach the backend.
#[test]
fn smuggled_requests_do_not_reach_the_backend() {
    let backend = Backend::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let site = proxied(&backend);
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n";
    let chunked = format!("0\r\n\r\n{smuggled}");
    let post = |fields: &str, body: &str| format!("POST /front HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}");
    let refused = [
        post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", &chunked),
        post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", &chunked),
        post("Content-Length: 0\r\nContent-Length: 44\r\n", smuggled),
        post("Content-Length: 0, 44\r\n", smuggled),
        post("Content-Length: +0\r\n", smuggled),
        post("Content-Length : 0\r\n", smuggled),
        post("Transfer-Encoding: xchunked\r\n", &chunked),
        post("Transfer-Encoding : chunked\r\n", &chunked),
        post("Transfer-Encoding:\x0bchunked\r\n", &chunked),
        post("Transfer-Encoding: chunked, identity\r\n", &chunked),
        post("Transfer-Encoding: identity, chunked\r\n", &chunked),
        post("Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n", &chunked),
        post("X: y\nTransfer-Encoding: chunked\r\n", &chunked),
        post("X: y\rTransfer-Encoding: chunked\r\n", &chunked),
        post("X: y\r\n Transfer-Encoding: chunked\r\n", &chunked),
        post("Transfer-Encoding: chunked\r\n", &format!("0;a\n\r\n{smuggled}")),
        post("Transfer-Encoding: chunked\r\n", &format!("2\r\nxx0\r\n\r\n{smuggled}")),
        post(
            "Transfer-Encoding: chunked\r\n",
            &format!("0\r\nContent-Length: 44\r\n\r\n{smuggled}"),
        ),
        post("Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 1\r\n", "x"),
        format!("GET /front HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n{smuggled}"),
        format!("GET /front HTTP/1.1\nHost: a\n\n{smuggled}"),
        format!("GET /front\x20HTTP/1.1\r\n\r\n{smuggled}"),
        "GET /a/../../smuggled HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET /a/%2e%2E/smuggled HTTP/1.1\r\nHost: a\r\n\r\n".into(),
    ];
    for request in &refused {
        let mut client = site.connect();
        client.try_send(request);
        let reply = client.reply();
        assert!([400, 501].contains(&reply.status), "{request:?}: {reply:?}");
    }
    for head in backend.heads.lock().unwrap().iter() {
        assert!(!head.contains("smuggled"), "{head}");
        assert!(!head.starts_with("GET"), "{head}");
    }
}

/// Requests that are allowed, and that a backend reads in only one way: each request arrives once,
/// framed by one field.
#[test]
fn what_may_pass_is_framed_anew() {
    let backend = Backend::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let site = proxied(&backend);
    let inner = "GET /inner HTTP/1.1\r\nHost: a\r\n\r\n";
    let requests = [
        // The body is a request: it stays a body.
        format!(
            "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{inner}",
            inner.len()
        ),
        format!(
            "POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n{:x};x=\"\\\"\"\r\n{inner}\r\n0\r\nX-Trailer: 1\r\n\r\n",
            inner.len()
        ),
        "POST /3 HTTP/1.1\r\nHost: a\r\nContent-Length: 0003\r\n\r\nabc".into(),
        "POST /4 HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET http://b/5?q HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET /6 HTTP/1.1\r\nHost: a\r\nContent_Length: 7\r\nX-Transfer-Encoding: chunked\r\n\r\n".into(),
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".into(),
    ];
    let mut client = Client::new(site.connect().stream);
    for request in &requests {
        client.send(request);
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (200, "ok"), "{request:?}");
    }
    let heads = backend.heads.lock().unwrap();
    let lines: Vec<_> = heads.iter().map(|head| head.lines().next().unwrap()).collect();
    assert_eq!(
        lines,
        [
            "POST /1 HTTP/1.1",
            "POST /2 HTTP/1.1",
            "POST /3 HTTP/1.1",
            "POST /4 HTTP/1.1",
            "GET /5?q HTTP/1.1",
            "GET /6 HTTP/1.1",
            "OPTIONS * HTTP/1.1"
        ]
    );
    let framing = |head: &str| -> Vec<String> {
        let lines = head
            .lines()
            .filter(|line| line.starts_with("content-length:") || line.starts_with("transfer-encoding:"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(framing(&heads[0]), [format!("content-length: {}", inner.len())]);
    assert_eq!(framing(&heads[1]), ["transfer-encoding: chunked"]);
    assert_eq!(framing(&heads[2]), ["content-length: 3"], "made anew, not passed on");
    assert_eq!(framing(&heads[3]), ["content-length: 0"]);
    assert!(
        framing(&heads[4]).is_empty() && heads[4].contains("\r\nhost: b\r\n"),
        "{}",
        heads[4]
    );
    assert!(!heads[1].contains("railer"));
}
