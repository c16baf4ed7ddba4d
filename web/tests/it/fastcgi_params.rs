//! The parameters that a FastCGI backend gets with a request.

use std::io::{Read, Write};

use crate::common::{site, site_with};
use crate::responder::*;
use osier_web::fastcgi::{FastCgi, Options};
use osier_web::{ForwardedBy, Limits, Request, Router, Server};
#[test]
fn the_application_is_told_everything() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |_, _| text("ok"));
    let site = serve(&folder, &app, Options::default());
    let reply = site.ask(
        "POST /a.php/extra/path%20x?a=1&b=%20 HTTP/1.1\r\nHost: example.org:8080\r\nContent-Type: text/x\r\nContent-Length: 5\r\n\
         X-One: 1\r\nx-one: 2\r\nCookie: a=1\r\nCookie: b=2\r\nAuthorization: Basic eA==\r\nProxy: http://evil/\r\n\r\nhello",
    );
    assert_eq!((reply.status, reply.text()), (200, "ok"));
    assert_eq!(reply.header("content-length"), Some("2"), "{}", reply.head);
    let (params, body) = &app.requests()[0];
    let root = folder.root().display().to_string();
    let port = site.addr.port().to_string();
    for (name, value) in [
        ("SCRIPT_FILENAME", &*format!("{root}/a.php")),
        ("SCRIPT_NAME", "/a.php"),
        ("DOCUMENT_ROOT", &root),
        ("DOCUMENT_URI", "/a.php/extra/path x"),
        ("PATH_INFO", "/extra/path x"),
        ("PATH_TRANSLATED", &format!("{root}/extra/path x")),
        ("REQUEST_METHOD", "POST"),
        ("REQUEST_URI", "/a.php/extra/path%20x?a=1&b=%20"),
        ("QUERY_STRING", "a=1&b=%20"),
        ("CONTENT_TYPE", "text/x"),
        ("CONTENT_LENGTH", "5"),
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("SERVER_NAME", "example.org"),
        ("SERVER_ADDR", "127.0.0.1"),
        ("SERVER_PORT", &port),
        ("REMOTE_ADDR", "127.0.0.1"),
        ("REDIRECT_STATUS", "200"),
        ("REQUEST_SCHEME", "http"),
        ("HTTPS", "(unset)"),
        ("HTTP_HOST", "example.org:8080"),
        ("HTTP_X_ONE", "1, 2"),
        ("HTTP_COOKIE", "a=1; b=2"),
        ("HTTP_AUTHORIZATION", "Basic eA=="),
        ("HTTP_PROXY", "(unset)"),
        ("HTTP_CONTENT_LENGTH", "(unset)"),
    ] {
        assert_eq!(params.get(name), value, "{name}");
    }
    assert!(params.get("SERVER_SOFTWARE").starts_with("osier/"));
    assert!(params.get("REMOTE_PORT").parse::<u16>().is_ok());
    let mut names = params.names.clone();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), params.names.len(), "no name twice");
    assert_eq!(body, b"hello");
    assert!(!params.keep, "an idle connection on a Unix socket would pin a worker");
}

#[test]
fn a_forwarded_id_takes_the_place_of_the_clients() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |_, _| text("ok"));
    let handler = FastCgi::open(folder.root(), upstream(&app)).unwrap();
    let site = site(Router::new().fallback(move |request: &mut Request<'_>| {
        if request.query().is_some() {
            request.forward_id();
        }
        let id = request.id();
        handler.answer(request).header("x-made", id.as_str())
    }));
    let ask = |path: &str| site.ask(&format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Request-ID: mine\r\n\r\n"));
    let reply = ask("/a.php?forwarded");
    let id = reply.header("x-made").unwrap().to_owned();
    assert_eq!(app.requests()[0].0.get("HTTP_X_REQUEST_ID"), id);
    let names = &app.requests()[0].0.names;
    assert_eq!(names.iter().filter(|name| *name == "HTTP_X_REQUEST_ID").count(), 1);
    ask("/a.php");
    assert_eq!(app.requests()[1].0.get("HTTP_X_REQUEST_ID"), "mine");
}

#[test]
fn a_trace_goes_on_with_an_id_of_this_server() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |_, _| text("ok"));
    let handler = FastCgi::open(folder.root(), upstream(&app)).unwrap();
    let site = site(Router::new().fallback(move |request: &mut Request<'_>| {
        let trace = request.start_trace(true, true).to_string();
        handler.answer(request).header("x-trace", trace)
    }));
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let fields = format!("traceparent: {parent}\r\ntracestate: a=1\r\n");
    let reply = site.ask(&format!("GET /a.php HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    let trace = reply.header("x-trace").unwrap().to_owned();
    let params = &app.requests()[0].0;
    assert_eq!(
        (params.get("HTTP_TRACEPARENT"), params.get("HTTP_TRACESTATE")),
        (&*trace, "a=1")
    );
    assert!(trace.starts_with(&parent[..36]) && trace != parent, "{trace}");
    let names = params.names.iter().filter(|name| name.starts_with("HTTP_TRACE"));
    assert_eq!(names.count(), 2);
}

#[test]
fn a_client_tells_the_application_nothing_of_a_proxy_in_front() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |_, _| text("ok"));
    let handler = FastCgi::open(folder.root(), upstream(&app)).unwrap();
    let site = site(Router::new().fallback(move |request: &mut Request<'_>| {
        let by = match request.query() {
            Some("list") => Some(ForwardedBy::XForwardedFor),
            Some("address") => Some(ForwardedBy::XRealIp),
            Some("standard") => Some(ForwardedBy::Forwarded),
            _ => None,
        };
        if let Some(by) = by {
            request.trust_hops(by, |_| true);
        }
        handler.answer(request)
    }));
    let fields = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Prefix: /x\r\n\
        Forwarded: for=192.0.2.1;proto=https\r\nX-Real-IP: 192.0.2.1\r\nX-Forwards: kept\r\n";
    let names = [
        "HTTP_X_FORWARDED_FOR",
        "HTTP_X_FORWARDED_PROTO",
        "HTTP_X_FORWARDED_HOST",
        "HTTP_X_FORWARDED_PREFIX",
        "HTTP_X_REAL_IP",
        "HTTP_FORWARDED",
    ];
    let told = |query: &str| {
        site.ask(&format!("GET /a.php?{query} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        let (params, _) = app.requests().pop().unwrap();
        assert_eq!(params.get("HTTP_X_FORWARDS"), "kept");
        names.map(|name| params.get(name) != "(unset)")
    };
    assert_eq!(told("nobody"), [false; 6]);
    // A trusted proxy speaks for the fields of its kind. Fields of the other kind may be its client's.
    assert_eq!(told("list"), [true, true, true, true, true, false]);
    assert_eq!(told("address"), [true, true, true, true, true, false]);
    assert_eq!(told("standard"), [false, false, false, false, false, true]);
}

#[test]
fn a_client_of_a_unix_socket_has_no_address() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |_, _| text("ok"));
    let handler = FastCgi::open(folder.root(), upstream(&app)).unwrap();
    let path = folder.path().join("site.sock");
    let bound = path.clone();
    let server = Server::new(Router::new().fallback(handler.handler()));
    let _site = site_with(1, server, |server| server.bind_unix(bound));
    let mut client = std::os::unix::net::UnixStream::connect(path).unwrap();
    client
        .write_all(b"GET /a.php HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
    let (params, _) = &app.requests()[0];
    let of_ends = ["REMOTE_ADDR", "REMOTE_PORT", "SERVER_ADDR", "SERVER_PORT"].map(|name| params.get(name));
    assert_eq!(of_ends, ["unix:", "(unset)", "(unset)", "80"]);
}

#[test]
fn the_host_is_the_one_that_was_asked_for() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |params, _| {
        text(&format!("{} {}", params.get("HTTP_HOST"), params.get("SERVER_NAME")))
    });
    let site = serve(&folder, &app, Options::default());
    // RFC 9112 3.2.2: the Host field of a request for a whole URL means nothing.
    let reply = site.ask("GET http://one.test/a.php HTTP/1.1\r\nHost: two.test\r\n\r\n");
    assert_eq!(reply.text(), "one.test one.test");
}

#[test]
fn options_change_what_it_is_told() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |_, _| text("ok"));
    let options = Options {
        application_root: Some("/in/the/container/".into()),
        server_name: Some("public.example".into()),
        https: true,
        params: vec![
            ("APP_ENV".into(), "test".into()),
            ("SERVER_SOFTWARE".into(), "secret".into()),
        ],
        ..Options::default()
    };
    let site = serve(&folder, &app, options);
    // No body, no query, a target in absolute form.
    assert_eq!(
        site.ask("GET http://name.example/sub/ HTTP/1.1\r\nHost: name.example\r\n\r\n")
            .status,
        200
    );
    let (params, body) = &app.requests()[0];
    for (name, value) in [
        ("SCRIPT_FILENAME", "/in/the/container/sub/index.php"),
        ("DOCUMENT_ROOT", "/in/the/container"),
        ("REQUEST_URI", "/sub/"),
        ("QUERY_STRING", ""),
        ("CONTENT_LENGTH", ""),
        ("PATH_INFO", "(unset)"),
        ("SERVER_NAME", "public.example"),
        ("HTTPS", "on"),
        ("APP_ENV", "test"),
        ("SERVER_SOFTWARE", "secret"),
    ] {
        assert_eq!(params.get(name), value, "{name}");
    }
    assert_eq!(params.names.iter().filter(|name| *name == "SERVER_SOFTWARE").count(), 1);
    assert!(body.is_empty());
}

#[test]
fn fields_that_become_one_variable_are_refused_and_odd_ones_left_out() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |_, _| text("ok"));
    let site = serve(&folder, &app, Options::default());
    let ask = |fields: &str| {
        site.ask(&format!("GET /a.php HTTP/1.1\r\nHost: test\r\n{fields}\r\n"))
            .status
    };
    assert_eq!(ask("X-Real-IP: 1\r\nX_Real_IP: 2\r\n"), 400);
    assert_eq!(ask("X-Real-IP: 1\r\nX.Real-IP: 2\r\n"), 400);
    assert_eq!(app.connections(), 0);
    assert!(site.logged("X-Real-IP and X_Real_IP"));
    assert_eq!(ask("X_Remote_User: root\r\nX-Fine: 1\r\n"), 200);
    let (params, _) = &app.requests()[0];
    assert_eq!(
        (params.get("HTTP_X_REMOTE_USER"), params.get("HTTP_X_FINE")),
        ("(unset)", "1")
    );
}

#[test]
fn a_head_of_many_records_arrives() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |_, _| text("ok"));
    let handler = FastCgi::open(folder.root(), upstream(&app)).unwrap();
    let limits = Limits {
        head_bytes: 300_000,
        ..Limits::default()
    };
    let server = Server::new(Router::new().fallback(handler.handler())).limits(limits);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let long = "v".repeat(200_000);
    let reply = site.ask(&format!(
        "GET /a.php HTTP/1.1\r\nHost: test\r\nX-Long: {long}\r\nX-Short: 1\r\n\r\n"
    ));
    assert_eq!(reply.status, 200, "{:?}", site.log);
    let (params, _) = &app.requests()[0];
    assert!(params.get("HTTP_X_LONG") == long && params.get("HTTP_X_SHORT") == "1");
}
