//! The fields that a proxy forwards in each direction, and those that it adds.

use std::io::{Read, Write};

use crate::common::backend::{Asked, Backend};
use crate::common::{Site, site, site_with};
use osier_web::files::Files;
use osier_web::http::StatusCode;
use osier_web::proxy::{Host, Options, Proxy};
use osier_web::{Request, Response, Router, Server};

/// A backend whose response body is the request's head.
fn mirror() -> Backend {
    Backend::start(|_, conn| {
        while let Some(asked) = conn.request() {
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}",
                asked.head.len(),
                asked.head
            ));
        }
    })
}

fn asked(site: &Site, request: &str) -> Asked {
    let reply = site.ask(request);
    assert_eq!(reply.status, 200, "{reply:?}");
    Asked {
        head: reply.text().to_owned(),
        body: Vec::new(),
    }
}

fn through(options: Options) -> (Site, Backend) {
    trusting(options, |proxy| proxy)
}

fn trusting(options: Options, trust: impl FnOnce(Proxy) -> Proxy) -> (Site, Backend) {
    let backend = mirror();
    let proxy = trust(backend.proxy_with(options));
    (site(Router::new().fallback(proxy.handler())), backend)
}

#[test]
fn fields_of_the_connection_stay_here_and_all_others_pass() {
    let (site, _backend) = through(Options::default());
    let seen = asked(
        &site,
        "GET /a?b HTTP/1.1\r\nHost: example.org:81\r\nAccept: */*\r\nCookie: a=1\r\nCookie: b=2\r\nConnection: keep-alive, X-Hop\r\n\
         X-Hop: secret\r\nx-hop: again\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\nTrailer: X\r\nProxy-Connection: close\r\n\
         Proxy-Authorization: Basic x\r\nProxy: http://evil\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nX-Last: caf\u{e9}\r\n\r\n",
    );
    assert!(
        seen.head.starts_with("GET /a?b HTTP/1.1\r\nhost: example.org:81\r\n"),
        "{}",
        seen.head
    );
    assert_eq!(seen.all("cookie").collect::<Vec<_>>(), ["a=1", "b=2"]);
    assert_eq!(
        (seen.header("accept"), seen.header("x-last")),
        (Some("*/*"), Some("caf\u{e9}"))
    );
    assert_eq!(seen.header("trailer"), Some("X"), "it announces, and trailers pass");
    for gone in [
        "x-hop",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "proxy",
        "upgrade",
        "http2-settings",
        "transfer-encoding",
        "content-length",
    ] {
        assert_eq!(seen.header(gone), None, "{gone}: {}", seen.head);
    }
    // This server takes trailers for the client.
    assert_eq!(
        (seen.header("te"), seen.header("connection")),
        (Some("trailers"), Some("te"))
    );
}

#[test]
fn what_a_stranger_says_of_itself_is_replaced() {
    let (site, _backend) = through(Options::default());
    let seen = asked(
        &site,
        "GET / HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\n\
         X-Forwarded-Port: 1\r\nForwarded: for=1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\n\r\n",
    );
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("x-forwarded-host"), Some("a.example"));
    assert_eq!(
        seen.header("forwarded"),
        Some("for=127.0.0.1;host=\"a.example\";proto=http")
    );
    assert_eq!(
        (seen.header("x-real-ip"), seen.header("x-forwarded-port")),
        (None, None)
    );
}

#[test]
fn a_stranger_s_word_passes_under_no_other_spelling() {
    // Applications behind CGI, WSGI and Rack have one name for `-` and `_`.
    let (site, _backend) = through(Options::default());
    let seen = asked(
        &site,
        "GET / HTTP/1.1\r\nHost: a\r\nX_Forwarded_For: 1.2.3.4\r\nX-Forwarded_Proto: https\r\nX_Real_IP: 1.2.3.4\r\n\
         Content_Length: 7\r\nTransfer_Encoding: chunked\r\nX-Forwarded-Ssl: on\r\nX-Forwarded-Protocol: https\r\n\
         X_Mine: 1\r\n\r\n",
    );
    for gone in [
        "x_forwarded_for",
        "x-forwarded_proto",
        "x_real_ip",
        "content_length",
        "transfer_encoding",
        "x-forwarded-ssl",
        "x-forwarded-protocol",
    ] {
        assert_eq!(seen.header(gone), None, "{gone}: {}", seen.head);
    }
    assert_eq!(seen.header("x_mine"), Some("1"));
}

#[test]
fn what_a_trusted_proxy_says_is_added_to() {
    let (site, _backend) = trusting(Options::default(), |proxy| proxy.trust(|ip| ip.is_loopback()));
    let seen = asked(
        &site,
        "GET / HTTP/1.1\r\nHost: inner\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\nX-Forwarded-Proto: https\r\n\
         X-Forwarded-Host: outer\r\nForwarded: for=1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\n\r\n",
    );
    assert_eq!(seen.header("x-forwarded-for"), Some("1.2.3.4, 5.6.7.8, 127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
    assert_eq!(seen.header("x-forwarded-host"), Some("outer"));
    assert_eq!(
        seen.header("forwarded"),
        Some("for=1.2.3.4, for=127.0.0.1;host=\"inner\";proto=https")
    );
    assert_eq!(seen.header("x-real-ip"), Some("1.2.3.4"));

    let (site, _backend) = trusting(
        Options {
            forwarded: false,
            ..Options::default()
        },
        |proxy| proxy.trust(|_| false),
    );
    let seen = asked(
        &site,
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\nForwarded: for=x\r\n\r\n",
    );
    assert_eq!((seen.header("x-forwarded-for"), seen.header("forwarded")), (None, None));
}

#[test]
fn host_is_kept_or_the_backend_s_or_fixed() {
    let ask = |site: &Site| {
        asked(site, "GET / HTTP/1.1\r\nHost: asked\r\n\r\n")
            .header("host")
            .map(str::to_owned)
    };
    let (site, _backend) = through(Options::default());
    assert_eq!(ask(&site).as_deref(), Some("asked"));
    let (site, backend) = through(Options {
        host: Host::Backend,
        ..Options::default()
    });
    assert_eq!(ask(&site), Some(backend.addr.to_string()));
    let (site, _backend) = through(Options {
        host: Host::Fixed("fixed.example".into()),
        ..Options::default()
    });
    assert_eq!(ask(&site).as_deref(), Some("fixed.example"));
    // HTTP/1.0 may have none.
    let (site, _backend) = through(Options::default());
    assert_eq!(
        asked(&site, "GET / HTTP/1.0\r\n\r\n").head.lines().nth(1),
        Some("host: ")
    );
}

#[test]
fn a_prefix_of_the_path_is_replaced_at_whole_segments() {
    let target = |site: &Site, target: &str| {
        let seen = asked(site, &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        seen.head.split(' ').nth(1).unwrap().to_owned()
    };
    let (site, _backend) = through(Options {
        strip: Some("/api/".into()),
        ..Options::default()
    });
    let stripped = [
        ("/api/x?y=/api", "/x?y=/api"),
        ("/api", "/"),
        ("/api/", "/"),
        ("/api?q", "/?q"),
        ("/apis/x", "/apis/x"),
        ("/x", "/x"),
        ("http://h/api/%2Fx", "/%2Fx"),
        // Routes compare paths in this way too. The rest is forwarded in its own spelling.
        ("/%61p%69/%78?y", "/%78?y"),
        // An encoded slash ends no segment, and empty ones do not count.
        ("/api%2Fx", "/api%2Fx"),
        ("/api/x%2Fy?z", "/x%2Fy?z"),
        ("//api/x", "/x"),
        ("/%2F/api//x", "/%2F/api//x"),
        ("//api//x", "//x"),
        ("/api%2F", "/api%2F"),
        ("//apis/x", "//apis/x"),
    ];
    for (from, to) in stripped {
        assert_eq!(target(&site, from), to, "{from}");
    }
    let (site, _backend) = through(Options {
        strip: Some("/api".into()),
        replacement: "/v1/".into(),
        ..Options::default()
    });
    for (from, to) in [
        ("/api/x", "/v1/x"),
        ("/api", "/v1"),
        ("/api/", "/v1/"),
        ("/other", "/other"),
    ] {
        assert_eq!(target(&site, from), to, "{from}");
    }
    let (site, _backend) = through(Options {
        strip: Some("/".into()),
        replacement: "/all".into(),
        ..Options::default()
    });
    assert_eq!(target(&site, "/x"), "/all/x");
}

#[test]
fn the_location_of_a_backend_is_sent_as_the_backend_wrote_it() {
    for location in ["//example.org/x", "https://example.org/x", "/\\example.org", "x/../y"] {
        let backend = Backend::answering(format!(
            "HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
        ));
        let site = site(Router::new().fallback(backend.proxy().handler()));
        let reply = site.get("/");
        assert_eq!((reply.status, reply.header("location")), (302, Some(location)));
    }
}

#[test]
fn of_an_answer_pass_all_fields_but_those_of_the_connection() {
    let backend = Backend::answering(
        "HTTP/1.1 418 Teapot\r\nServer: b\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n\
         Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nTrailer: X\r\nUpgrade: h2c\r\nProxy-Authenticate: x\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n",
    );
    let site = site(Router::new().fallback(backend.proxy().handler()));
    let reply = site.get("/");
    assert_eq!(reply.status, 418);
    let all = |name: &str| {
        let lines = reply.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines
            .filter(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect::<Vec<_>>()
    };
    assert_eq!(all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(all("date"), ["Sun, 06 Nov 1994 08:49:37 GMT"], "the backend's, once");
    assert_eq!((all("server"), all("location")), (vec!["b"], vec!["/there"]));
    assert!(all("content-type").is_empty(), "none is made up");
    assert_eq!(all("trailer"), ["X"]);
    for gone in ["connection", "x-hop", "keep-alive", "upgrade", "proxy-authenticate"] {
        assert!(all(gone).is_empty(), "{gone}: {}", reply.head);
    }
}

#[test]
fn a_connection_field_of_many_names_is_refused() {
    // Each name is compared with each field: a head full of them would cost a thousand heads.
    let (site, backend) = through(Options::default());
    let names = vec!["a"; 14_000].join(",");
    let reply = site.ask(&format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {names}\r\n\r\n"));
    assert_eq!(reply.status, 400, "{}", reply.text());
    let lines = "Connection: a\r\n".repeat(40);
    assert_eq!(
        site.ask(&format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")).status,
        400
    );
    assert_eq!(backend.accepted(), 0);

    let backend = Backend::answering(format!("HTTP/1.1 204 None\r\nConnection: {names}\r\n\r\n"));
    let site = crate::common::site(osier_web::Router::new().fallback(backend.proxy().handler()));
    assert_eq!(site.get("/").status, 502);
}

#[test]
fn a_path_that_leads_up_is_refused_however_it_is_written() {
    let (site, backend) = through(Options::default());
    for path in [
        "/a/../b",
        "/a/%2E%2e/b",
        "/a/..%2fb",
        "/a%2F..%2Fb",
        "/a%5c..%5Cb",
        "/a\\..\\b",
        "/a/..;/b",
        "/a/.;x=1/b",
        "/a/..;",
        "/..",
        "/%",
        "/%2",
        "/%00",
    ] {
        assert_eq!(site.get(path).status, 400, "{path}");
    }
    assert_eq!(backend.accepted(), 0);
    for path in [
        "/a;x=..",
        "/a..;/b",
        "/...",
        "/;/..a",
        "/a%2fb",
        "/%2e%2e%2e",
        "/a?../b",
    ] {
        assert_eq!(
            asked(&site, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
                .head
                .split(' ')
                .nth(1),
            Some(path)
        );
    }
}

#[test]
fn a_forwarded_id_takes_the_place_of_the_clients() {
    let backend = mirror();
    let proxy = backend.proxy();
    let site = site(Router::new().fallback(move |request: &mut Request<'_>| {
        if request.path() == "/forwarded" {
            request.forward_id();
        }
        let id = request.id();
        proxy.answer(request).header("x-made", id.as_str())
    }));
    let fields = "Host: a\r\nX-Request-ID: mine\r\nX_Request-ID: mine\r\n";
    let reply = site.ask(&format!("GET /forwarded HTTP/1.1\r\n{fields}\r\n"));
    let head = reply.text().to_owned();
    let seen = Asked { head, body: Vec::new() };
    let ids: Vec<&str> = seen.all("x-request-id").collect();
    assert_eq!(ids, [reply.header("x-made").unwrap()], "{}", seen.head);
    assert_eq!(seen.header("x_request-id"), None, "{}", seen.head);
    let plain = asked(&site, &format!("GET /plain HTTP/1.1\r\n{fields}\r\n"));
    assert_eq!(plain.all("x-request-id").collect::<Vec<_>>(), ["mine"]);
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn a_trace_goes_on_with_an_id_of_this_server() {
    let backend = mirror();
    let proxy = backend.proxy();
    let site = site(Router::new().fallback(move |request: &mut Request<'_>| {
        match request.path() {
            "/traced" => drop(request.start_trace(true, false)),
            "/anew" => drop(request.start_trace(false, true)),
            _ => {}
        }
        let trace = request.trace().map(|trace| trace.to_string()).unwrap_or_default();
        proxy.answer(request).header("x-trace", trace)
    }));
    let ask = |path: &str, fields: &str| {
        let reply = site.ask(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        let head = reply.text().to_owned();
        let trace = reply.header("x-trace").unwrap_or_default().to_owned();
        (Asked { head, body: Vec::new() }, trace)
    };
    let of = |asked: &Asked, name: &str| asked.all(name).map(String::from).collect::<Vec<_>>();
    let client = format!("TraceParent: {PARENT}\r\nTraceState: a=1\r\ntracestate: b=2 , c=3\r\n");
    let (seen, trace) = ask("/traced", &client);
    assert_eq!(of(&seen, "traceparent"), [&*trace]);
    assert_eq!(of(&seen, "tracestate"), ["a=1,b=2,c=3"]);
    assert!(
        trace.starts_with(&PARENT[..36]) && trace.ends_with("-01") && trace != PARENT,
        "{trace}"
    );
    // A bad state leaves, a bad parent takes the state along. Two parents are a bad one.
    let bad_state = format!("traceparent: {PARENT}\r\ntracestate: a=1,a=2\r\n");
    let (seen, trace) = ask("/traced", &bad_state);
    assert!(
        trace.starts_with(&PARENT[..36]) && of(&seen, "tracestate").is_empty(),
        "{trace}"
    );
    let twice = format!("traceparent: {PARENT}\r\ntraceparent: {PARENT}\r\ntracestate: a=1\r\n");
    for bad in [
        "traceparent: 00-xyz\r\ntracestate: a=1\r\n",
        &twice,
        "tracestate: a=1\r\n",
    ] {
        let (seen, trace) = ask("/traced", bad);
        assert_eq!(of(&seen, "traceparent"), [&*trace]);
        assert!(
            trace.len() == 55 && trace[..36] != PARENT[..36] && trace.ends_with("-00"),
            "{trace}"
        );
        assert!(of(&seen, "tracestate").is_empty());
    }
    let (seen, trace) = ask("/anew", &client);
    assert_eq!(of(&seen, "traceparent"), [&*trace]);
    assert!(trace[..36] != PARENT[..36] && trace.ends_with("-01") && of(&seen, "tracestate").is_empty());
    // Without a trace of its own the proxy passes them on.
    let (seen, trace) = ask("/plain", &client);
    assert_eq!((of(&seen, "traceparent"), &*trace), (vec![PARENT.to_owned()], ""));
    assert_eq!(of(&seen, "tracestate"), ["a=1", "b=2 , c=3"]);
}

/// RFC 7239 section 6.2. No one trusts such a client, and its own fields do not pass.
#[test]
fn a_client_of_a_unix_socket_is_unknown() {
    let backend = mirror();
    let folder = testkit::Folder::new();
    let path = folder.path().join("site.sock");
    let proxy = backend.proxy().trust(|_| true).handler();
    let bound = path.clone();
    let _site = site_with(1, Server::new(Router::new().fallback(proxy)), |server| {
        server.bind_unix(bound)
    });
    let mut client = std::os::unix::net::UnixStream::connect(path).unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    let (_, head) = reply.split_once("\r\n\r\n").unwrap();
    let seen = Asked {
        head: head.to_owned(),
        body: Vec::new(),
    };
    assert_eq!(seen.header("x-forwarded-for"), Some("unknown"));
    assert_eq!(seen.header("forwarded"), Some("for=unknown;host=\"a\";proto=http"));
}

// ---- files that the backend names ----

/// A backend that answers by the file that `x-name` says. A body shows the fields by which Rack chooses files.
fn naming(set: bool) -> (Site, Backend) {
    let backend = Backend::start(|_, conn| {
        while let Some(asked) = conn.request() {
            let lines = asked.head.to_ascii_lowercase();
            let choosing = lines
                .lines()
                .filter(|line| line.contains("sendfile") || line.contains("mapping"));
            let body = choosing.collect::<Vec<_>>().join(",");
            let named = asked
                .header("x-name")
                .map(|name| format!("X-Accel-Redirect: {name}\r\n"));
            let fields = "X-Accel-Expires: 5\r\nx-accel-limit-rate: 5\r\nX-Accel-Charset: x\r\nX-Accel-Buffering: no\r\nX-Own: 1\r\n\
                          Set-Cookie: a=1\r\nCache-Control: private\r\nContent-Type: text/own\r\nETag: \"own\"\r\n";
            let (named, length) = (named.unwrap_or_default(), body.len());
            conn.send(format!(
                "HTTP/1.1 200 OK\r\n{named}{fields}Content-Length: {length}\r\n\r\n{body}"
            ));
        }
    });
    const LARGE: &[u8] = &[b'x'; 100_000];
    let files = Files::embedded([
        ("file", "text/plain", b"a secret".as_slice()),
        ("large", "text/plain", LARGE),
    ]);
    let proxy = backend.proxy().on_internal(move |request, path| match path {
        "/moved" => Response::redirect(StatusCode::FOUND, "/x"),
        _ => files.answer_with(request, &path[1..]),
    });
    let router = Router::new().fallback_answering(move |request| {
        if set {
            let fields = [("x-sendfile-type", "X-Accel-Redirect"), ("x-accel-mapping", "/own/=/")];
            let names = fields.map(|(name, _)| name);
            request.replace_headers(&names, fields).expect("valid fields");
        }
        proxy.answer_after_body(request)
    });
    (site(router), backend)
}

#[test]
fn a_handler_answers_for_the_path_that_the_backend_names() {
    let (site, backend) = naming(false);
    let ask = |method: &str, name: &str, more: &str| {
        site.ask(&format!(
            "{method} / HTTP/1.1\r\nHost: test\r\nX-Name: {name}\r\n{more}\r\n"
        ))
    };
    for reply in [
        ask("GET", "//f%69le?x", ""),
        ask("POST", "/file", "Content-Length: 0\r\n"),
    ] {
        assert_eq!((reply.status, reply.text()), (200, "a secret"), "{reply:?}");
        assert_eq!(reply.header("content-type"), Some("text/own"));
        assert_eq!(
            (reply.header("set-cookie"), reply.header("cache-control")),
            (Some("a=1"), Some("private"))
        );
        assert_ne!(reply.header("etag"), Some("\"own\""));
        assert!(!reply.head.to_ascii_lowercase().contains("x-accel") && reply.header("x-own").is_none());
    }
    let tag = ask("GET", "/file", "").header("etag").expect("of the file").to_owned();
    let same = ask("GET", "/file", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!(
        (same.status, same.header("content-type"), same.header("set-cookie")),
        (304, None, Some("a=1"))
    );
    let part = ask("GET", "/file", "Range: bytes=2-4\r\n");
    assert_eq!(
        (part.status, part.text(), part.header("content-type")),
        (206, "sec", Some("text/own"))
    );
    let parts = ask("GET", "/large", "Range: bytes=0-0,50000-50002\r\n");
    let kind = parts.header("content-type").unwrap();
    assert!(
        parts.status == 206 && kind.starts_with("multipart/byteranges"),
        "{kind}"
    );
    assert_eq!(
        (parts.header("set-cookie"), parts.header("cache-control")),
        (Some("a=1"), Some("private"))
    );
    let text = parts.text();
    assert_eq!(
        text.to_ascii_lowercase()
            .matches("content-type: text/plain\r\n")
            .count(),
        2,
        "{text}"
    );
    assert!(text.contains("bytes 50000-50002/100000\r\n\r\nxxx\r\n"), "{text}");
    let none = ask("GET", "/none", "");
    assert_eq!((none.status, none.header("set-cookie")), (404, None));
    assert_ne!(none.header("content-type"), Some("text/own"));
    assert_eq!(ask("GET", "/moved", "").header("location"), Some("/x"));
    for name in ["/../file", "file", "http://evil.example/file", "/%00"] {
        assert_eq!(ask("GET", name, "").status, 502, "{name}");
    }
    // All these responses were short, so their connection is used again.
    assert_eq!(backend.accepted(), 1);
}

#[test]
fn a_client_does_not_choose_the_file_that_the_backend_names() {
    let choice =
        "X-Sendfile-Type: X-Accel-Redirect\r\nX_SENDFILE_TYPE: x\r\nX-Accel-Mapping: /=/\r\nx_accel-mapping: /=/\r\n";
    let own = "x-sendfile-type: x-accel-redirect,x-accel-mapping: /own/=/";
    for (set, expected) in [(false, ""), (true, own)] {
        let (site, _backend) = naming(set);
        let reply = site.ask(&format!("GET / HTTP/1.1\r\nHost: test\r\n{choice}\r\n"));
        assert_eq!((reply.status, reply.text()), (200, expected));
        // What was not for a file passes, but for the fields that are for this server.
        assert_eq!(
            (reply.header("x-own"), reply.header("etag")),
            (Some("1"), Some("\"own\""))
        );
        let accel = reply.head.to_ascii_lowercase().matches("x-accel-").count();
        assert_eq!(
            (accel, reply.header("x-accel-buffering")),
            (1, Some("no")),
            "{}",
            reply.head
        );
        // The body comes later, so that the request rests.
        let mut client = site.connect();
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: test\r\n{choice}Content-Length: 2\r\n\r\n"
        ));
        std::thread::sleep(std::time::Duration::from_millis(50)); // a slow client
        client.send("xx");
        assert_eq!(client.reply().text(), expected);
    }
    // Without a handler for files, all fields pass in both directions.
    let (site, _backend) = through(Options::default());
    let seen = asked(&site, &format!("GET / HTTP/1.1\r\nHost: test\r\n{choice}\r\n"));
    assert_eq!(seen.header("x-accel-mapping"), Some("/=/"));
}

/// Backends that merge trailers into the head believe them.
#[test]
fn a_trailer_has_no_field_that_code_before_the_proxy_has_removed_or_set() {
    for buffer in [true, false] {
        let backend = Backend::start(|_, conn| {
            while conn.head().is_some() {
                let lines = std::iter::from_fn(|| conn.line().filter(|line| !line.is_empty()));
                let body = lines.collect::<Vec<_>>().join(",").to_ascii_lowercase();
                conn.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                ));
            }
        });
        let proxy = backend.proxy_with(Options {
            buffer,
            ..Options::default()
        });
        let proxy = proxy.on_internal(|_, _| Response::new(StatusCode::NOT_FOUND));
        let site = site(Router::new().fallback(move |request: &mut Request<'_>| {
            request.start_trace(false, false);
            let set = request.replace_headers(&["x-user", "x-role"], [("x-role", "guest"), ("x-id", "1")]);
            set.expect("valid fields");
            let nothing: [(&str, &str); 0] = [];
            request.replace_headers(&["x-only"], nothing).expect("valid fields");
            proxy.answer(request)
        }));
        // At once, and after the head.
        for pause in [false, true] {
            let mut client = site.connect();
            client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
            if pause {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            client.send("1\r\nx\r\n0\r\nX-User: evil\r\nX_Role: admin\r\nX-ID: 2\r\nX-Only: 3\r\nX-Sum: 9\r\n");
            client.send("X-Accel-Mapping: /=/\r\nX_Sendfile_Type: x\r\ntraceparent: x\r\n\r\n");
            assert_eq!(
                client.reply().text(),
                "1,x,0,x-sum: 9",
                "buffer: {buffer}, pause: {pause}"
            );
        }
    }
}
