//! Forward authentication: what the authentication server is asked, what its answer does, and that its failure opens nothing.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use osier::time::{VirtualClock, now};
use osier_web::proxy::Proxy;
use osier_web::test::Client;
use osier_web::wrap::cache::{Cache, Store, StoreOptions};
use osier_web::wrap::forward_auth::{ForwardAuth, Options};
use osier_web::{Request, Response, Router};

use crate::common::backend::{Asked, Backend, upstream};
use crate::common::{Reply, Site, site};

/// An application behind `gate`: it tells its fields, takes a body, and changes the protocol.
fn app(gate: SocketAddr, change: impl FnOnce(&mut Options)) -> Router {
    let mut options = Options::default();
    change(&mut options);
    let gate = ForwardAuth::with(upstream(&[gate]).build().unwrap(), "/check?a=b", options).unwrap();
    let tell = |request: &mut Request<'_>| {
        let fields = request
            .headers()
            .map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value)));
        fields.collect::<String>()
    };
    let store = |request: &mut Request<'_>| {
        let mut body = String::new();
        request.body().read_to_string(&mut body).map(|_| body)
    };
    let echo = |_: &mut Request<'_>| Response::upgrade("echo", |stream| drop(stream.write_all(b"hello")));
    Router::new()
        .get("/{*path}", tell)
        .post("/store", store)
        .get("/echo", echo)
        .wrap(|request: &mut Request<'_>, next: osier_web::Next<'_>| {
            if request.path() == "/old" {
                request.retarget("/new")?;
            }
            std::io::Result::Ok(next.run(request))
        })
        .wrap(gate.wrap())
}

fn gate(answer: &str) -> Backend {
    Backend::answering(format!("HTTP/1.1 {answer}"))
}

fn heads(backend: &Backend) -> Vec<Asked> {
    let heads = backend.heads.lock().unwrap();
    let asked = |head: &String| Asked {
        head: head.clone(),
        body: Vec::new(),
    };
    heads.iter().map(asked).collect()
}

fn named(options: &mut Options) {
    options.response_headers = vec!["X-User".into(), "X-Groups".into()];
}

fn ask(site: &Site, fields: &str) -> Reply {
    site.ask(&format!("GET /page?q=1 HTTP/1.1\r\nHost: app.example\r\n{fields}\r\n"))
}

#[test]
fn named_fields_of_a_2xx_reach_the_client_and_no_others() {
    let gate = gate(
        "200 OK\r\nSet-Cookie: sid=2\r\nset-cookie: theme=dark\r\nX-Seen: gate\r\nX-Other: 1\r\nContent-Length: 0\r\n\r\n",
    );
    let options = Options {
        client_headers: vec!["Set-Cookie".into(), "X-Seen".into()],
        ..Options::default()
    };
    let auth = ForwardAuth::with(upstream(&[gate.addr]).build().unwrap(), "/", options).unwrap();
    let cookie = |_: &mut Request<'_>| {
        let response = Response::new(osier_web::http::StatusCode::OK);
        response
            .header("set-cookie", "own=1")
            .header("x-seen", "handler")
            .body("x")
    };
    let asked = site(Router::new().get("/page", cookie).wrap(auth.wrap()));
    let reply = ask(&asked, "");
    let all = |name: &str| -> Vec<&str> {
        let lines = reply.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect()
    };
    assert_eq!(all("set-cookie"), ["own=1", "sid=2", "theme=dark"]);
    assert_eq!((all("x-seen"), all("x-other")), (vec!["gate"], vec![]));
    let silent = site(app(gate.addr, |_| {}));
    assert_eq!(ask(&silent, "").header("set-cookie"), None, "unless they are asked for");
}

#[test]
fn the_authentication_server_sees_the_request_without_what_a_stranger_says_of_itself() {
    let gate = gate("204 No Content\r\n\r\n");
    let site = site(app(gate.addr, |_| {}));
    let fields = "Cookie: sid=1\r\nAuthorization: Bearer t\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Uri: /public\r\n\
         X_Forwarded_Method: HEAD\r\nForwarded: for=6.6.6.6\r\nConnection: X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\nIf-None-Match: \"1\"\r\n\
         Range: bytes=0-1\r\nX-Own: 1\r\n";
    assert_eq!(ask(&site, fields).status, 200);
    let asked = heads(&gate).pop().unwrap();
    assert!(asked.head.starts_with("GET /check?a=b HTTP/1.1\r\n"), "{}", asked.head);
    for (name, value) in [
        ("host", gate.addr.to_string().as_str()),
        ("cookie", "sid=1"),
        ("authorization", "Bearer t"),
        ("x-own", "1"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "app.example"),
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/page?q=1"),
    ] {
        assert_eq!(asked.header(name), Some(value), "{name}");
    }
    for name in [
        "connection",
        "x-hop",
        "te",
        "if-none-match",
        "range",
        "content-length",
        "x_forwarded_method",
    ] {
        assert_eq!(asked.header(name), None, "{name}: {}", asked.head);
    }
}

#[test]
fn the_target_that_the_client_sent_is_told_after_a_rewrite_too() {
    let gate = gate("200 OK\r\nContent-Length: 0\r\n\r\n");
    let site = site(app(gate.addr, |_| {}));
    assert_eq!(site.get("/old").status, 200);
    assert_eq!(heads(&gate)[0].header("x-forwarded-uri"), Some("/old"));
}

#[test]
fn a_body_stays_for_the_handler() {
    let gate = gate("200 OK\r\nContent-Length: 2\r\n\r\nin");
    let site = site(app(gate.addr, |_| {}));
    let reply =
        site.ask("POST /store HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!((reply.status, reply.text()), (200, "hello"));
    let asked = heads(&gate).pop().unwrap();
    assert_eq!(asked.header("x-forwarded-method"), Some("POST"));
    assert!(asked.header("content-type").is_none() && asked.header("content-length").is_none());
}

#[test]
fn a_change_of_protocol_is_asked_for_too() {
    let upgrade = "GET /echo HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let open = gate("200 OK\r\nContent-Length: 0\r\n\r\n");
    let admitted = site(app(open.addr, named));
    let mut client = admitted.connect();
    client.send(upgrade);
    assert_eq!(client.head().0, 101);
    assert_eq!(client.rest(), b"hello");
    assert_eq!(heads(&open)[0].header("upgrade"), None);

    let closed = gate("403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
    let reply = site(app(closed.addr, named)).ask(upgrade);
    assert_eq!((reply.status, reply.text()), (403, "no"));
}

#[test]
fn named_fields_are_those_of_the_authentication_server_alone() {
    let spoofed = "X-User: mallory\r\nx_user: mallory\r\nX-GROUPS: root\r\nX-Other: kept\r\n";
    let gate = gate("200 OK\r\nX-User: ada\r\nX-Secret: s\r\nX-Groups: a\r\nX-Groups: b\r\nContent-Length: 0\r\n\r\n");
    let site_of = site(app(gate.addr, named));
    let reply = ask(&site_of, spoofed);
    assert_eq!(
        reply.text(),
        "Host: app.example\nX-Other: kept\nX-User: ada\nX-Groups: a\nX-Groups: b\n"
    );
    // Without them in the response, a client's own are gone all the same.
    let silent = Backend::answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let reply = ask(&site(app(silent.addr, named)), spoofed);
    assert_eq!(reply.text(), "Host: app.example\nX-Other: kept\n");
}

#[test]
fn a_client_cannot_take_a_named_field_away_from_the_backend() {
    let gate = gate("200 OK\r\nX-User: ada\r\nContent-Length: 0\r\n\r\n");
    let backend = Backend::answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let mut options = Options::default();
    named(&mut options);
    let wrap = ForwardAuth::with(upstream(&[gate.addr]).build().unwrap(), "/check", options).unwrap();
    let proxy = Proxy::new(upstream(&[backend.addr]).build().unwrap());
    let site = site(Router::new().get("/{*path}", proxy.handler()).wrap(wrap.wrap()));
    let fields = "Connection: X-User, X-Groups, X-Own\r\nX-User: mallory\r\nX-Groups: root\r\nX-Own: 1\r\n";
    assert_eq!(ask(&site, fields).status, 200);
    let asked = heads(&backend).pop().unwrap();
    assert_eq!(asked.header("x-user"), Some("ada"));
    assert_eq!((asked.header("x-groups"), asked.header("x-own")), (None, None));
}

#[test]
fn no_handler_sees_a_field_that_the_authentication_server_has_not_seen() {
    let gate = gate("200 OK\r\nX-User: ada\r\nContent-Length: 0\r\n\r\n");
    let site = site(app(gate.addr, named));
    let fields = "Connection: X-Tenant, x-user, Cookie, Host\r\nX-Tenant: victim\r\nx_tenant: victim\r\nCookie: a=b\r\nX-Own: 1\r\n";
    let reply = ask(&site, fields);
    assert_eq!(
        reply.text(),
        "Host: app.example\nConnection: X-Tenant, x-user, Cookie, Host\nX-Own: 1\nX-User: ada\n"
    );
    let asked = heads(&gate).pop().unwrap();
    for name in ["x-tenant", "x_tenant", "cookie"] {
        assert_eq!(asked.header(name), None, "{name}: {}", asked.head);
    }
}

#[test]
fn each_of_several_authentication_servers_renews_its_cookie() {
    let gates =
        ["outer", "inner"].map(|name| gate(&format!("200 OK\r\nSet-Cookie: {name}=1\r\nContent-Length: 0\r\n\r\n")));
    let wrap = |gate: &Backend| {
        let options = Options {
            client_headers: vec!["Set-Cookie".into()],
            ..Options::default()
        };
        let auth = ForwardAuth::with(upstream(&[gate.addr]).build().unwrap(), "/", options);
        auth.unwrap().wrap()
    };
    let router = Router::new().get("/page", |_: &mut Request<'_>| "x");
    let reply = ask(&site(router.wrap(wrap(&gates[0])).wrap(wrap(&gates[1]))), "");
    let cookies: Vec<&str> = reply
        .head
        .lines()
        .filter(|line| line.to_ascii_lowercase().starts_with("set-cookie"))
        .filter_map(|line| line.split_once(": "))
        .map(|(_, value)| value)
        .collect();
    assert_eq!(cookies, ["inner=1", "outer=1"]);
}

#[test]
fn a_named_field_may_be_called_as_those_of_proxies_are() {
    let gate = gate("200 OK\r\nX-Forwarded-User: ada\r\nX-Forwarded-Proto: gopher\r\nContent-Length: 0\r\n\r\n");
    let backend = Backend::answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let options = Options {
        response_headers: vec!["X-Forwarded-User".into(), "X-Forwarded-Proto".into()],
        ..Options::default()
    };
    let wrap = ForwardAuth::with(upstream(&[gate.addr]).build().unwrap(), "/check", options).unwrap();
    let proxy = || Proxy::new(upstream(&[backend.addr]).build().unwrap()).handler();
    let cache = Cache::new(Arc::new(Store::open(StoreOptions::default()).unwrap()));
    let router = Router::new()
        .get("/page", proxy())
        .get("/cached", cache.around(proxy()))
        .wrap(wrap.wrap());
    let site = site(router);
    for path in ["/page", "/cached"] {
        let fields = "X-Forwarded-User: mallory\r\nX_Forwarded_User: mallory\r\nX-Forwarded-Email: mallory\r\n";
        let reply = site.ask(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        assert_eq!(reply.status, 200);
        let asked = heads(&backend).pop().unwrap();
        assert_eq!(asked.header("x-forwarded-user"), Some("ada"), "{path}");
        assert_eq!(asked.header("x-forwarded-proto"), Some("http"), "the proxy's own");
        let head = asked.head.to_ascii_lowercase();
        assert_eq!(head.matches("user").count(), 1, "{head}");
        assert!(!head.contains("mallory") && !head.contains("gopher"), "{head}");
    }
}

#[test]
fn a_client_says_nothing_about_the_original_request_or_itself() {
    let gate = gate("200 OK\r\nContent-Length: 0\r\n\r\n");
    let site = site(app(gate.addr, named));
    let fields = "X-Original-URL: https://a/public\r\nX_Original_Method: HEAD\r\nX-Rewrite-Url: /public\r\nX_Real_Ip: 6.6.6.6\r\n\
        X-User: root\r\nx_groups: root\r\n";
    assert_eq!(ask(&site, fields).status, 200);
    let head = heads(&gate).pop().unwrap().head.to_ascii_lowercase();
    for name in ["original", "rewrite", "real", "user", "groups"] {
        assert!(!head.contains(name), "{name}: {head}");
    }
}

#[test]
fn only_chosen_fields_are_sent() {
    let gate = gate("200 OK\r\nContent-Length: 0\r\n\r\n");
    let site = site(app(gate.addr, |options| {
        options.request_headers = Some(vec!["cookie".into(), "Range".into()]);
        options.host = Some("gate.internal".into());
    }));
    ask(
        &site,
        "Cookie: a=1\r\nRange: bytes=0-1\r\nAuthorization: Basic x\r\nX-Own: 1\r\n",
    );
    let asked = heads(&gate).pop().unwrap();
    assert_eq!(
        (asked.header("cookie"), asked.header("range")),
        (Some("a=1"), Some("bytes=0-1"))
    );
    assert_eq!((asked.header("authorization"), asked.header("x-own")), (None, None));
    assert_eq!(asked.header("host"), Some("gate.internal"));
}

#[test]
fn a_refusal_goes_to_the_client_with_its_cookies_and_its_body() {
    let gate = gate(
        "302 Found\r\nLocation: https://login.example/?rd=%2Fpage\r\nSet-Cookie: csrf=1; Path=/\r\nSet-Cookie: b=2\r\nConnection: X-Hop\r\n\
         X-Hop: 1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nlog \r\n2\r\nin\r\n0\r\n\r\n",
    );
    let reply = ask(&site(app(gate.addr, named)), "");
    assert_eq!((reply.status, reply.text()), (302, "log in"));
    assert_eq!(reply.header("location"), Some("https://login.example/?rd=%2Fpage"));
    assert_eq!(reply.head.matches("Set-Cookie: ").count(), 2, "{}", reply.head);
    assert!(reply.header("x-hop").is_none());
}

#[test]
fn connections_are_kept_and_a_stale_one_is_replaced() {
    let gate = Backend::start(|number, conn| {
        // The first connection ends after its first answer, as if an idle timeout had come.
        while conn.request().is_some() && conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") && number > 0 {}
    });
    let site = site(app(gate.addr, |_| {}));
    for _ in 0..4 {
        assert_eq!(ask(&site, "").status, 200);
    }
    assert_eq!(gate.accepted(), 2);
}

#[test]
fn without_an_answer_nobody_passes() {
    let nobody = testkit::nobody();
    let reply = ask(&site(app(nobody, |_| {})), "");
    assert_eq!(reply.status, 502, "nobody listens");
    let long = format!("403 No\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000));
    let endless = format!(
        "403 No\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        "5\r\nxxxxx\r\n".repeat(10_000)
    );
    for answer in [
        "",
        "200 OK\r\nContent-Length: 5\r\n\r\nab",
        "403 No\r\nContent-Length: 5\r\n\r\nab",
        "101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        "999 Odd\r\nContent-Length: x\r\n\r\n",
        "200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        &format!("200 OK\r\nX-Long: {}\r\n\r\n", "x".repeat(70_000)),
        &long,
        &endless,
    ] {
        let gate = Backend::answering_once(format!("HTTP/1.1 {answer}"));
        let site = site(app(gate.addr, |options| options.body_bytes = 20_000));
        let reply = ask(&site, "");
        assert_eq!(reply.status, 502, "{:.60}", answer);
        assert!(site.logged("forward_auth app: "), "{:.60}", answer);
    }
}

#[test]
fn an_authentication_server_that_is_silent_or_drips_costs_its_time() {
    for drip in [false, true] {
        let runtime = osier::Runtime::builder().workers(1).clock(VirtualClock::new());
        runtime.build().unwrap().run(|| {
            let listener = osier::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let gate = listener.local_addr().unwrap();
            let dripping = osier::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX: ");
                while drip && stream.write_all(b"x").is_ok() {
                    osier::sleep(Duration::from_secs(1));
                }
                let _ = stream.read(&mut [0]);
            });
            let client = Client::new(app(gate, |options| options.timeout = Duration::from_secs(5)));
            let start = now();
            assert_eq!(client.get("/x").send().status(), 504);
            let waited = now() - start;
            assert!(
                waited >= Duration::from_secs(5) && waited < Duration::from_secs(7),
                "{waited:?}"
            );
            dripping.cancel();
            let _ = dripping.join();
        });
    }
}

#[test]
fn settings_that_cannot_be_sent_are_refused() {
    let with = |target: &str, change: &dyn Fn(&mut Options)| {
        let mut options = Options::default();
        change(&mut options);
        ForwardAuth::with(
            upstream(&["127.0.0.1:1".parse().unwrap()]).build().unwrap(),
            target,
            options,
        )
        .is_ok()
    };
    assert!(with("/check", &named));
    assert!(!with("check", &|_| {}) && !with("/a b", &|_| {}) && !with("/a\r\nX: 1", &|_| {}));
    for name in ["a b", "", "Host", "Content-Length", "connection", "Upgrade", "x:y"] {
        assert!(
            !with("/", &|options| options.response_headers = vec![name.into()]),
            "{name:?}"
        );
    }
    assert!(!with("/", &|options| options.request_headers = Some(vec!["a b".into()])));
    assert!(!with("/", &|options| options.host = Some("a\r\nb".into())));
}
