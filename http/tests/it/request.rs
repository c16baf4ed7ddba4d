//! The parts of a request head: target, host, keep-alive, expectation, upgrade.

use crate::connection::{End, Seen, run};
use osier_http::{BodyLength, Head, HeadScanner, Limits, Method, Reject, Slots, Version};

fn parse(bytes: &str) -> Seen {
    let limits = Limits::default();
    assert_eq!(
        HeadScanner::new().scan(bytes.as_bytes(), &limits),
        Ok(Some(bytes.len())),
        "{bytes}"
    );
    let mut slots: Slots = Slots::new();
    Seen::of(&Head::parse(bytes.as_bytes(), &mut slots, &limits).unwrap_or_else(|reject| panic!("{reject}: {bytes}")))
}

#[test]
fn targets() {
    let of = |line: &str| {
        let seen = parse(&format!("{line} HTTP/1.1\r\nHost: field:1\r\n\r\n"));
        (seen.path, seen.query, seen.host.expect("one is there"))
    };
    let expected = |path: &str, query: Option<&str>, host: &str| (path.into(), query.map(Into::into), host.into());
    assert_eq!(of("GET /"), expected("/", None, "field:1"));
    assert_eq!(of("GET /a%20b/?"), expected("/a%20b/", Some(""), "field:1"));
    assert_eq!(of("GET /a?b?c=/d"), expected("/a", Some("b?c=/d"), "field:1"));
    assert_eq!(of("GET //a"), expected("//a", None, "field:1"));
    assert_eq!(of("GET http://target/x?y"), expected("/x", Some("y"), "target"));
    assert_eq!(of("GET HTTPS://target:8443"), expected("/", None, "target:8443"));
    assert_eq!(of("GET http://target?y"), expected("/", Some("y"), "target"));
    assert_eq!(of("OPTIONS http://target"), expected("*", None, "target"));
    assert_eq!(of("OPTIONS http://target/"), expected("/", None, "target"));
    assert_eq!(of("OPTIONS *"), expected("*", None, "field:1"));
    assert_eq!(of("CONNECT target:443"), expected("", None, "target:443"));
    assert_eq!(of("CONNECT [::1]:443"), expected("", None, "[::1]:443"));
    let old = parse("GET / HTTP/1.0\r\n\r\n");
    assert_eq!((old.host, old.version), (None, Version::Http10));
}

#[test]
fn methods() {
    for name in [
        "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
    ] {
        assert_eq!(Method::new(name).as_str(), name);
        assert!(!matches!(Method::new(name), Method::Other(_)));
        let lower = name.to_lowercase();
        assert_eq!(Method::new(&lower), Method::Other(&lower), "methods are case-sensitive");
    }
    assert_eq!(parse("PROPFIND / HTTP/1.1\r\nHost: a\r\n\r\n").method, "PROPFIND");
}

#[test]
fn keep_alive() {
    let of =
        |version: &str, fields: &str| parse(&format!("GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n")).keep_alive;
    assert!(of("1.1", ""));
    assert!(of("1.1", "Connection: keep-alive\r\n"));
    assert!(of("1.1", "Connection: closed\r\n"), "another token");
    assert!(!of("1.1", "Connection: close\r\n"));
    assert!(!of("1.1", "connection: foo ,\tCLOSE\r\n"));
    assert!(
        !of("1.1", "Connection: keep-alive\r\nConnection: close\r\n"),
        "two fields are one list"
    );
    assert!(!of("1.0", ""));
    assert!(of("1.0", "Connection: Keep-Alive\r\n"));
    assert!(!of("1.0", "Connection: keep-alive, close\r\n"));
    assert!(!of("1.0", "Keep-Alive: timeout=5\r\n"));
}

#[test]
fn nothing_is_read_after_a_request_that_closes() {
    let transcript = run(
        [&b"GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n"[..]],
        &Limits::default(),
        1,
    );
    assert_eq!(
        (transcript.requests.len(), transcript.end),
        (1, End::Closed { ignored: 18 })
    );
}

#[test]
fn expectation() {
    let of = |version: &str, fields: &str| {
        parse(&format!(
            "PUT / HTTP/{version}\r\nHost: a\r\nExpect: 100-continue\r\n{fields}\r\n"
        ))
        .expect_continue
    };
    assert!(of("1.1", "Content-Length: 1\r\n"));
    assert!(of("1.1", "Transfer-Encoding: chunked\r\n"));
    assert!(of("1.1", "Content-Length: 1\r\nExpect: 100-CONTINUE\r\n"));
    assert!(!of("1.1", ""), "no body to wait for");
    assert!(!of("1.1", "Content-Length: 0\r\n"));
    assert!(!of("1.0", "Content-Length: 1\r\n"), "1.0 has no interim responses");
}

#[test]
fn upgrade() {
    let of = |version: &str, fields: &str| parse(&format!("GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n")).upgrade;
    assert_eq!(
        of("1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\n"),
        Some(b"websocket".to_vec())
    );
    assert_eq!(
        of("1.1", "Upgrade: websocket\r\nConnection: keep-alive, upgrade\r\n"),
        Some(b"websocket".to_vec())
    );
    assert_eq!(
        of("1.1", "Upgrade: websocket\r\n"),
        None,
        "without the option it is not meant for us"
    );
    assert_eq!(of("1.1", "Connection: upgrade\r\n"), None);
    assert_eq!(of("1.0", "Connection: upgrade\r\nUpgrade: websocket\r\n"), None);
}

#[test]
fn fields_are_found_in_any_case_and_kept_in_order() {
    let text = "POST / HTTP/1.1\r\nhOST: a\r\nX-One: 1\r\nx-one: 2\r\nX_One: 3\r\nCONTENT-length: 4\r\n\r\n";
    let mut slots: Slots = Slots::new();
    let head = Head::parse(text.as_bytes(), &mut slots, &Limits::default()).unwrap();
    assert_eq!(head.header("X-ONE"), Some(&b"1"[..]));
    assert_eq!(head.header("x_one"), Some(&b"3"[..]));
    assert_eq!(head.header("X-Two"), None);
    let names: Vec<_> = head.headers().map(|(name, _)| name).collect();
    assert_eq!(names, ["hOST", "X-One", "x-one", "X_One", "CONTENT-length"]);
    assert_eq!((head.host(), head.body()), (Some("a"), BodyLength::Known(4)));
}

#[test]
fn bytes_that_are_not_exactly_one_head_are_refused() {
    let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let parse = |bytes: &[u8]| Head::parse(bytes, &mut Slots::<9>::new(), &Limits::default()).map(|_| ());
    assert_eq!(parse(head), Ok(()));
    assert_eq!(parse(&[&head[..], b"X"].concat()), Err(Reject::RequestLine));
    for end in 0..head.len() {
        assert_eq!(parse(&head[..end]), Err(Reject::RequestLine), "{end}");
    }
}

#[test]
fn the_debug_form_hides_values() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic c2VjcmV0\r\n\r\n";
    let mut slots: Slots = Slots::new();
    let head = Head::parse(text.as_bytes(), &mut slots, &Limits::default()).unwrap();
    let debug = format!("{head:?}");
    assert!(
        debug.contains("Authorization") && !debug.contains("c2VjcmV0"),
        "{debug}"
    );
}
