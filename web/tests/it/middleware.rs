//! Functions around handlers: their order, their powers, and the requests that they apply to.

use std::collections::HashSet;
use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use osier_web::test::Client;
use osier_web::{IntoResponse, Next, Rejection, Request, Response, Route, Router, Server, http::StatusCode, wrap};

use crate::common::{PATIENCE, site, site_with};

/// Appends `mark` to a value of the request on the way in, and to a field of the response on the
/// way out.
fn mark(mark: &'static str) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
    move |request, next| {
        request
            .extensions_mut()
            .get_or_insert_default::<Trail>()
            .0
            .push_str(mark);
        let response = next.run(request);
        let out = response
            .lookup("out")
            .map(|out| String::from_utf8_lossy(out).into_owned());
        response.remove("out").header("out", out.unwrap_or_default() + mark)
    }
}

#[derive(Clone, Default)]
struct Trail(String);

fn trail(request: &mut Request<'_>) -> String {
    request
        .extensions()
        .get::<Trail>()
        .map(|trail| trail.0.clone())
        .unwrap_or_default()
}

#[test]
fn the_first_added_is_the_outermost_and_routers_are_outside_of_what_they_hold() {
    let inner = Router::new()
        .wrap(mark("c"))
        .route(
            "/route",
            Route::new().get(trail).wrap(mark("e")).wrap(mark("f")).post(trail),
        )
        .get("/plain", trail)
        .wrap(mark("d"))
        .fallback(trail);
    let router = Router::new()
        .wrap(mark("a"))
        .get("/top", trail)
        .nest("/inner", inner)
        .wrap(mark("b"));
    let client = Client::new(router);
    for (method, path, order) in [
        ("GET", "/top", "ab"),
        ("GET", "/inner/plain", "abcd"),
        ("GET", "/inner/route", "abcdef"),
        ("POST", "/inner/route", "abcdef"),
        ("GET", "/inner/anything", "abcd"),
    ] {
        let reply = client.request(method, path).send();
        assert_eq!(reply.text(), order, "{path} on the way in");
        let backwards: String = order.chars().rev().collect();
        assert_eq!(reply.header("out"), Some(backwards.as_str()), "{path} on the way out");
    }
}

#[test]
fn what_no_handler_answers_is_answered_inside_too() {
    let router = Router::new()
        .nest("/inner", Router::new().get("/x", trail).wrap(mark("b")))
        .wrap(mark("a"));
    let client = Client::new(router);
    for (method, path, status, out) in [
        ("GET", "/none", 404, "a"),
        ("GET", "/inner/none", 404, "a"),
        ("DELETE", "/inner/x", 405, "ba"),
        ("OPTIONS", "/inner/x", 204, "ba"),
        ("HEAD", "/inner/x", 200, "ba"),
    ] {
        let reply = client.request(method, path).send();
        assert_eq!(
            (reply.status().as_u16(), reply.header("out")),
            (status, Some(out)),
            "{method} {path}"
        );
    }
    assert_eq!(
        client.delete("/inner/x").send().header("allow"),
        Some("GET, HEAD, OPTIONS")
    );
}

#[test]
fn a_wrap_may_answer_itself_and_read_the_body() {
    let called = Arc::new(AtomicUsize::new(0));
    let counted = called.clone();
    let handler = move |request: &mut Request<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        request.bytes(100)
    };
    fn guard(request: &mut Request<'_>, next: Next<'_>) -> Result<Response, Rejection> {
        if request.cookie("pass").is_none() {
            return Err(Rejection::new(StatusCode::FORBIDDEN, "no pass"));
        }
        if request.query_param("eat").is_some() {
            let eaten = request.bytes(100)?.len();
            return Ok(next.run(request).header("eaten", eaten.to_string()));
        }
        Ok(next.run(request))
    }
    let client = Client::new(Router::new().post("/", handler).wrap(guard));
    let reply = client.post("/").body("hello").send();
    assert_eq!((reply.status().as_u16(), reply.text()), (403, "no pass\n"));
    assert_eq!(called.load(Ordering::Relaxed), 0);
    let reply = client.post("/").header("cookie", "pass=1").body("hello").send();
    assert_eq!(reply.text(), "hello");
    let reply = client.post("/?eat").header("cookie", "pass=1").body("hello").send();
    assert_eq!((reply.text(), reply.header("eaten")), ("", Some("5")));
}

/// Routes of one path from two places keep what is around each.
#[test]
fn merged_routes_keep_their_own() {
    let router = Router::new()
        .route("/x", Route::new().get(trail).wrap(mark("g")))
        .route("/x", Route::new().post(trail).wrap(mark("p")))
        .put("/x", trail);
    let client = Client::new(router);
    for (method, order) in [("GET", "g"), ("POST", "p"), ("PUT", "")] {
        assert_eq!(client.request(method, "/x").send().text(), order, "{method}");
    }
}

#[test]
fn a_panic_is_a_500_for_the_functions_outside_of_it() {
    let refuse = |request: &mut Request<'_>, next: Next<'_>| {
        assert_ne!(request.path(), "/inner", "in the inner function");
        next.run(request)
    };
    let router = Router::new()
        .get("/handler", |_| -> () { panic!("in the handler") })
        .get("/inner", |_| "never")
        .get("/outer", |_| "never")
        .get("/outside/of/all", |_| "never")
        .wrap(|request: &mut Request<'_>, next: Next<'_>| {
            assert_ne!(request.path(), "/outside/of/all", "in the outermost function");
            next.run(request)
        })
        .wrap(mark("o"))
        .wrap(wrap::request_id("x-id"))
        .wrap(move |request: &mut Request<'_>, next: Next<'_>| {
            let response = next.run(request);
            assert_ne!(request.path(), "/outer", "after the handler");
            response.header("x-fields", "kept")
        })
        .wrap(refuse);
    let site = site(router);
    let mut client = site.connect();
    for (path, out, fields) in [
        ("/handler", Some("o"), Some("kept")),
        ("/inner", Some("o"), Some("kept")),
        ("/outer", Some("o"), None),
        ("/outside/of/all", None, None),
    ] {
        let reply = client.get(path);
        assert_eq!(
            (reply.status, reply.text()),
            (500, "500 Internal Server Error\n"),
            "{path}"
        );
        assert_eq!((reply.header("out"), reply.header("x-fields")), (out, fields), "{path}");
        assert_eq!(reply.header("x-id").is_some(), out.is_some(), "{path}");
    }
    for text in [
        "in the handler",
        "in the inner function",
        "after the handler",
        "in the outermost function",
    ] {
        let lines = site
            .log
            .lock()
            .unwrap()
            .iter()
            .filter(|line| line.contains(text))
            .count();
        assert_eq!(lines, 1, "{text}: {:?}", site.log);
    }
}

/// The function outside of a panic goes on with the request as the handler has left it.
#[test]
fn a_function_outside_of_a_panic_reads_on_and_may_answer_otherwise() {
    let half = |request: &mut Request<'_>| -> () {
        request.body().read_exact(&mut [0; 3]).unwrap();
        panic!("on purpose")
    };
    let router =
        Router::new()
            .post("/", half)
            .get("/", |_| "fine")
            .wrap(|request: &mut Request<'_>, next: Next<'_>| {
                let response = next.run(request);
                match response.status().as_u16() {
                    500 => io::read_to_string(request.body()).into_response(),
                    _ => response,
                }
            });
    let (served, is_served) = mpsc::channel();
    let server = Server::new(router).on_request(move |request| {
        let _ = served.send(request.status().as_u16());
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n");
    client.send("2\r\ngh\r\n0\r\n\r\n");
    let reply = client.reply();
    assert_eq!((reply.status, reply.text()), (200, "defgh"));
    assert_eq!(client.get("/").text(), "fine");
    drop(client);
    let statuses: Vec<u16> = (0..2).map(|_| is_served.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!(statuses, [200, 200]);
}

/// A handler that unwraps the error of a cancelled call panics. A function outside of it runs until its first call that waits.
#[test]
fn a_cancelled_handler_that_panics_is_counted_once_and_ends_the_functions_outside() {
    let (said, told) = mpsc::channel();
    let (served, is_served) = mpsc::channel();
    let [inner, outer] = [said.clone(), said].map(Mutex::new);
    let handler = move |_: &mut Request<'_>| {
        inner.lock().unwrap().send("begun").unwrap();
        let (near, _far) = osier::net::UnixStream::pair().unwrap();
        (&near).read_exact(&mut [0]).unwrap();
    };
    let function = move |request: &mut Request<'_>, next: Next<'_>| {
        let response = next.run(request);
        outer.lock().unwrap().send("outside").unwrap();
        osier::sleep(Duration::from_secs(3600));
        outer.lock().unwrap().send("never").unwrap();
        response
    };
    let route = Route::new().get(handler).cancel_when_gone();
    let router = Router::new().route("/", route).wrap(mark("o")).wrap(function);
    let server = Server::new(router).on_request(move |request| {
        let _ = served.send(request.status().as_u16());
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    for _ in 0..2 {
        let mut client = site.connect();
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!(told.recv_timeout(PATIENCE), Ok("begun"));
        client.reset();
        assert_eq!(told.recv_timeout(PATIENCE), Ok("outside"));
        assert_eq!(is_served.recv_timeout(PATIENCE), Ok(499));
    }
    assert!(site.logged("was cancelled and then panicked"));
    drop(site);
    assert_eq!(
        (told.try_recv(), is_served.try_recv().ok()),
        (Err(mpsc::TryRecvError::Disconnected), None)
    );
}

/// Around a handler that suspends, on a kept connection, pipelined.
#[test]
fn wraps_hold_over_a_connection() {
    let slow = |_: &mut Request<'_>| {
        osier::yield_now();
        "slow"
    };
    let router = Router::new()
        .get("/slow", slow)
        .get("/fast", |_| "fast")
        .wrap(mark("a"));
    let site = site(router);
    let mut client = site.connect();
    let ask = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
    client.send([ask("/slow"), ask("/fast"), ask("/none")].concat());
    for (status, text) in [(200, "slow"), (200, "fast"), (404, "404 Not Found\n")] {
        let reply = client.reply();
        assert_eq!(
            (reply.status, reply.text(), reply.header("out")),
            (status, text, Some("a"))
        );
    }
}

#[test]
fn ready_wraps_add_the_number_and_the_fields() {
    let ids = |request: &mut Request<'_>| request.id().to_string();
    let router = Router::new()
        .get("/", ids)
        .get("/own", |_: &mut Request<'_>| {
            Response::new(StatusCode::OK).header("X-Frame-Options", "SAMEORIGIN")
        })
        .wrap(wrap::request_id("x-request-id"))
        .wrap(wrap::headers([
            ("x-frame-options", "DENY"),
            ("x-content-type-options", "nosniff"),
        ]));
    let client = Client::new(router);
    let reply = client.get("/").send();
    assert_eq!(reply.header("x-request-id"), Some(reply.text()));
    assert_eq!(reply.header("x-frame-options"), Some("DENY"));
    let ids: HashSet<String> = (0..20).map(|_| client.get("/").send().text().to_owned()).collect();
    assert!(ids.len() == 20 && ids.iter().all(|id| id.len() == 16), "{ids:?}");
    let own = client.get("/own").send();
    assert_eq!(own.header("x-frame-options"), Some("SAMEORIGIN"));
    assert_eq!(own.headers().get_all("x-frame-options").iter().count(), 1);
    assert_eq!(
        client.get("/none").send().header("x-content-type-options"),
        Some("nosniff")
    );
}

#[test]
fn mounted_handlers_see_the_rest_of_the_path() {
    let show = |request: &mut Request<'_>| format!("{}|{}", request.mount_point(), request.rest());
    let docs = Router::new().mount("/docs/", show).get("/docs/index", show);
    let router = Router::new()
        .mount("/a", show)
        .mount("/a/b", show)
        .nest("/v2", docs)
        .fallback(show);
    let client = Client::new(router);
    for (path, seen) in [
        ("/a", "/a|"),
        ("/a/", "/a|/"),
        ("/a/x/y", "/a|/x/y"),
        ("/a/b/c%2Fd?q", "/a/b|/c%2Fd"),
        ("/ab", "|/ab"),
        ("/v2/docs/x", "/v2/docs|/x"),
        ("/v2/docs/index", "|/v2/docs/index"),
        ("/", "|/"),
    ] {
        assert_eq!(client.get(path).send().text(), seen, "{path}");
    }
}

#[test]
fn files_are_mounted_like_any_handler() {
    let files = osier_web::files::Files::embedded([
        ("/", "text/html", b"<p>hi</p>".as_slice()),
        ("/a.css", "text/css", b"a{}"),
    ]);
    let router = Router::new()
        .nest("/site", Router::new().mount("/files", files.clone().handler()))
        .nest("/other", Router::new().mount("/b", files.clone().handler()))
        .fallback(files.handler());
    let client = Client::new(router);
    for path in ["/site/files/a.css", "/other/b/a.css", "/a.css"] {
        assert_eq!(client.get(path).send().text(), "a{}", "{path}");
    }
    let bare = client.get("/site/files").send();
    assert_eq!(
        (bare.status().as_u16(), bare.header("location")),
        (301, Some("/site/files/"))
    );
    assert_eq!(client.get("/site/files/none").send().status(), 404);
}

#[test]
fn cors_and_rates_stand_around_handlers_without_the_server() {
    use osier_web::wrap::{cors, rate};
    let cors = cors::Options {
        origins: vec!["https://app.example".to_owned()],
        ..cors::Options::default()
    };
    let rate = rate::Options {
        requests: 1,
        per: std::time::Duration::from_secs(3600),
        burst: 2,
        concurrent: Some(1),
    };
    let router = Router::new()
        .get("/", |_| "hello")
        .wrap(cors::Cors::new(&cors).unwrap().wrap())
        .wrap(rate::Rate::new(&rate).wrap());
    let site = crate::common::site(router);
    let ask = |method: &str, extra: &str| {
        let mut client = site.connect();
        client.send(format!("{method} / HTTP/1.1\r\nHost: t\r\n{extra}\r\n"));
        let reply = client.reply();
        (
            reply.status,
            reply.header("access-control-allow-origin").map(str::to_owned),
        )
    };
    let origin = "Origin: https://app.example\r\n";
    let allowed = Some("https://app.example".to_owned());
    let preflight = format!("{origin}Access-Control-Request-Method: GET\r\n");
    // A preflight is answered before the rate counts it.
    for _ in 0..3 {
        assert_eq!(ask("OPTIONS", &preflight), (204, allowed.clone()));
    }
    assert_eq!(
        ask(
            "OPTIONS",
            "Origin: https://evil.example\r\nAccess-Control-Request-Method: GET\r\n"
        )
        .0,
        403
    );
    assert_eq!(ask("GET", origin), (200, allowed.clone()));
    assert_eq!(ask("GET", "Origin: https://evil.example\r\n"), (200, None));
    // A page can read the refusal too.
    assert_eq!(ask("GET", origin), (429, allowed));
}
