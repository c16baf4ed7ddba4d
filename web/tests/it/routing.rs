//! The router's own responses, and the request as handlers see it.

use crate::common::site;
use osier_web::{
    IntoResponse, Next, Rejection, Request, Response, Route, Router, Server, http::Method, http::StatusCode,
    test::Client,
};
use std::sync::mpsc;

#[test]
fn unknown_paths_and_methods() {
    let router = Router::new().get("/x", |_| "x").post("/x", |_| "posted").route(
        "/y",
        Route::new().on(Method::from_bytes(b"PURGE").unwrap(), |_| "purged"),
    );
    let site = site(router);
    let mut client = site.connect();
    assert_eq!(client.get("/none").status, 404);

    client.send("DELETE /x HTTP/1.1\r\nHost: t\r\n\r\n");
    let reply = client.reply();
    assert_eq!(
        (reply.status, reply.header("allow")),
        (405, Some("GET, POST, HEAD, OPTIONS"))
    );

    client.send("OPTIONS /x HTTP/1.1\r\nHost: t\r\n\r\n");
    let reply = client.reply();
    assert_eq!(
        (reply.status, reply.header("allow")),
        (204, Some("GET, POST, HEAD, OPTIONS"))
    );

    client.send("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(client.reply().status, 204);

    client.send("PURGE /y HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(client.reply().text(), "purged");
    client.send("CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n");
    assert_eq!(client.reply().status, 501);
}

#[test]
fn parameters_queries_and_fields() {
    let router = Router::new().get("/u/{name}/{*rest}", |request: &mut Request<'_>| {
        format!(
            "{} {} {} {} {} {}",
            request.param("name").unwrap_or_default(),
            request.param_raw("rest").unwrap_or_default(),
            request.query_param("q").unwrap_or_default(),
            request.host().unwrap_or_default(),
            request.header_str("X-Thing").unwrap_or_default(),
            request.peer().ip(),
        )
    });
    let reply = site(router)
        .ask("GET /u/J%C3%BCrgen/a/b%20c?p=1&q=one+two%21 HTTP/1.1\r\nHost: example.org:81\r\nx-thing: t\r\n\r\n");
    assert_eq!(reply.text(), "Jürgen a/b%20c one two! example.org:81 t 127.0.0.1");
}

/// A path is matched by its meaning, so no other spelling gets around the functions of a route.
#[test]
fn a_path_is_matched_by_what_it_means_and_an_encoded_slash_separates_nothing() {
    let admin = Router::new()
        .get("/", |_| "admin")
        .mount("/files", |request: &mut Request<'_>| {
            format!("{} below {}", request.rest(), request.mount_point())
        })
        .wrap(
            |request: &mut Request<'_>, next: Next<'_>| match request.cookie("member") {
                Some(_) => next.run(request),
                None => StatusCode::FORBIDDEN.into_response(),
            },
        );
    let router = Router::new()
        .nest("/admin", admin)
        .get("/u/{name}", |request: &mut Request<'_>| {
            let typed: String = request.params()?;
            let (name, sent) = (request.param("name").unwrap(), request.param_raw("name").unwrap());
            assert_eq!(typed, name);
            Ok::<_, Rejection>(format!("{name} from {sent}"))
        })
        .get("/a%20b/caf\u{e9}", |_| "the cafe")
        .fallback(|_| "else");
    let site = site(router);
    let mut client = site.connect();
    for (path, status, text) in [
        ("/admin", 403, ""),
        ("/%61dmin", 403, ""),
        ("/adm%69n/%66iles/x", 403, ""),
        ("/admin%2Ffiles", 200, "else"),
        ("/u/a%2Fb", 200, "a/b from a%2Fb"),
        ("/%75/%2561%2f", 200, "%61/ from %2561%2f"),
        ("/u/%4A%C3%BC", 200, "J\u{fc} from %4A%C3%BC"),
        ("/u/a/b", 200, "else"),
        ("/a%20b/caf%c3%a9", 200, "the cafe"),
        ("/%61%20b/caf%C3%A9", 200, "the cafe"),
        ("/u/%zz", 400, "400 Bad Request\n"),
        ("/u/%2", 400, "400 Bad Request\n"),
        ("/u/a%00", 400, "400 Bad Request\n"),
        ("/nowhere%", 400, "400 Bad Request\n"),
        ("/u/a%0Ab", 400, "400 Bad Request\n"),
        ("/u/../admin", 400, "400 Bad Request\n"),
        ("/u/%2e%2E/admin", 400, "400 Bad Request\n"),
        ("/u/..%2fadmin", 400, "400 Bad Request\n"),
        ("/u/..;x/admin", 400, "400 Bad Request\n"),
        ("//admin", 403, ""),
        ("/adm%69n//files/x", 403, ""),
        ("/u//a", 200, "a from a"),
        ("//", 200, "else"),
    ] {
        let reply = client.get(path);
        assert_eq!((reply.status, reply.text()), (status, text), "{path}");
    }
    client.send("GET /%61dmin/f%69les/x%2Fy/z HTTP/1.1\r\nHost: t\r\nCookie: member=1\r\n\r\n");
    assert_eq!(client.reply().text(), "/x%2Fy/z below /%61dmin/f%69les");
}

#[test]
fn a_function_without_a_router_gets_the_path_as_it_was_sent() {
    let site = site(|request: &mut Request<'_>| request.path().to_owned());
    assert_eq!(site.ask("CONNECT t:1 HTTP/1.1\r\nHost: t:1\r\n\r\n").status, 501);
    for path in ["/100%", "/%zz/%61"] {
        assert_eq!(site.get(path).text(), path);
    }
}

#[test]
#[should_panic(expected = "route \"/100%\" cannot be added: the path has a '%' that begins no escape")]
fn a_pattern_with_an_escape_that_is_none_is_named() {
    let _ = Router::new().get("/100%", |_| ());
}

#[test]
#[should_panic(expected = "route \"/x\" cannot be added: it has a handler for GET already")]
fn a_second_handler_for_a_method_of_a_path_is_refused() {
    let inner = Router::new().get("/x", |_| "hidden");
    let _ = Router::new().get("/x", |_| "x").post("/x", |_| "").nest("", inner);
}

#[test]
#[should_panic(expected = "a route has a handler for PUT already")]
fn a_second_handler_for_a_method_of_a_route_is_refused() {
    let _ = Route::new().put(|_| "x").get(|_| "").put(|_| "hidden");
}

type Build = fn(Router) -> Router;

/// Returns the text with which building a router panics.
fn refusal(build: Build) -> String {
    let panic = std::panic::catch_unwind(|| build(Router::new())).expect_err("it was built");
    *panic.downcast::<String>().expect("a text with values")
}

#[test]
fn a_second_handler_for_a_prefix_is_refused() {
    let text = |prefix: &str| {
        format!(
            "prefix {prefix:?} has a handler already (a fallback or a mount): \
             remove one of the two, or mount one at a longer prefix"
        )
    };
    let with_fallback = || Router::new().fallback(|_| "inner");
    let builds: [(&str, Build); 5] = [
        ("", |router| router.fallback(|_| "a").fallback(|_| "b")),
        ("", |router| {
            router.mount("/", |_| "a").fallback_answering(|_| unreachable!())
        }),
        ("/files", |router| {
            router.mount("/files/", |_| "a").mount("//f%69les", |_| "b")
        }),
        ("/api", |router| {
            router
                .mount("/api", |_| "a")
                .nest("/api", Router::new().fallback(|_| "b"))
        }),
        ("/v1/docs", |router| {
            let inner = || Router::new().mount("/docs", |_| "docs");
            router.nest("/v1", inner()).nest("/v1", inner())
        }),
    ];
    for (prefix, build) in builds {
        assert_eq!(refusal(build), text(prefix));
    }
    let router = Router::new()
        .nest("/api", with_fallback())
        .nest("/api", Router::new().get("/x", |_| "x").mount("/longer", |_| "longer"))
        .fallback(|_| "outer");
    let client = Client::new(router);
    for (path, text) in [
        ("/api/x", "x"),
        ("/api/y", "inner"),
        ("/api/longer/y", "longer"),
        ("/y", "outer"),
    ] {
        assert_eq!(client.get(path).send().text(), text);
    }
}

#[test]
fn a_prefix_with_a_parameter_is_refused_where_it_is_literal() {
    let text = "prefix \"/{user}\" is literal for a mount or a fallback: give a route \"/{user}/{*rest}\" to the handler, \
                or write a brace as %7B or %7D";
    assert_eq!(refusal(|router| router.mount("/{user}", |_| "")), text);
    assert_eq!(
        refusal(|router| router.nest("/{user}", Router::new().fallback(|_| ""))),
        text
    );
    let inner = Router::new()
        .get("/x", |_| "x")
        .mount("/%7Ba%7D", |request: &mut Request<'_>| request.rest().to_owned());
    let client = Client::new(
        Router::new()
            .nest("/b", inner)
            .nest("/{user}", Router::new().get("/y", |_| "y")),
    );
    assert_eq!(client.get("/b/%7Ba%7D/rest").send().text(), "/rest");
    assert_eq!(client.get("/me/y").send().text(), "y");
}

#[test]
fn parameters_of_other_routers_are_refused_unless_they_are_escaped() {
    let builds: [(&str, Build); 5] = [
        (
            "pattern \"/u/:id/x\": \":id\" is no parameter, but \"{id}\" is; write %3A for a literal ':'",
            |router| router.get("/u/:id/x", |_| ""),
        ),
        (
            "pattern \"/*rest\": \"*rest\" is no parameter, but \"{*rest}\" is; write %2A for a literal '*'",
            |router| router.route("/*rest", Route::new().get(|_| "")),
        ),
        (
            "pattern \"/*\": \"*\" is no parameter, but \"{*rest}\" is; write %2A for a literal '*'",
            |router| router.nest("", Router::new().get("/*", |_| "")),
        ),
        (
            "pattern \"/:user\": \":user\" is no parameter, but \"{user}\" is; write %3A for a literal ':'",
            |router| router.nest("/:user", Router::new().get("/", |_| "")),
        ),
        (
            "pattern \"/:user\": \":user\" is no parameter, but \"{user}\" is; write %3A for a literal ':'",
            |router| router.mount("/:user", |_| ""),
        ),
    ];
    for (text, build) in builds {
        assert_eq!(refusal(build), text);
    }
    let inner = Router::new()
        .get("/%3Aid", |_| "colon")
        .get("/%2A", |_| "star")
        .get("/a:b*c", |_| "inside");
    let client = Client::new(
        Router::new()
            .nest("/%3Ain", inner)
            .get("/:{verb}", |_| "verb")
            .get("/:", |_| "only"),
    );
    for (path, text) in [
        ("/:in/:id", "colon"),
        ("/%3ain/*", "star"),
        ("/:in/a:b*c", "inside"),
        ("/:do", "verb"),
        ("/:", "only"),
    ] {
        assert_eq!(client.get(path).send().text(), text, "{path}");
    }
}

#[test]
fn requests_convert_to_http_types() {
    let router = Router::new().get("/{*any}", |request: &mut Request<'_>| {
        let converted = request.to_http().expect("a request");
        let values: Vec<_> = converted
            .headers()
            .get_all("x-many")
            .iter()
            .map(|v| v.to_str().unwrap())
            .collect();
        format!(
            "{} {} {:?} {values:?}",
            converted.method(),
            converted.uri(),
            converted.version()
        )
    });
    let reply = site(router).ask("GET /a?b HTTP/1.1\r\nHost: t\r\nX-Many: 1\r\nx-many: 2\r\n\r\n");
    assert_eq!(reply.text(), r#"GET /a?b HTTP/1.1 ["1", "2"]"#);
}

#[test]
fn results_and_own_errors_become_responses() {
    struct Refused(&'static str);
    impl IntoResponse for Refused {
        fn into_response(self) -> Response {
            (StatusCode::CONFLICT, self.0).into_response()
        }
    }
    fn handler(request: &mut Request<'_>) -> Result<String, Refused> {
        let text = request.query_param("n").ok_or(Refused("no n"))?;
        let n: u32 = text.parse().map_err(|_| Refused("not a number"))?;
        Ok((n + 1).to_string())
    }
    let site = site(Router::new().get("/", handler));
    let mut client = site.connect();
    let mut answer = |path| {
        let reply = client.get(path);
        (reply.status, reply.text().to_owned())
    };
    assert_eq!(answer("/?n=41"), (200, "42".to_owned()));
    assert_eq!(answer("/?n=x"), (409, "not a number".to_owned()));
    assert_eq!(answer("/"), (409, "no n".to_owned()));
}

#[test]
fn nested_routers_and_fallbacks() {
    let api = Router::new().get("/items/{id}", |r: &mut Request<'_>| {
        format!("item {}", r.param("id").unwrap())
    });
    let api = api.fallback(|_| (StatusCode::NOT_FOUND, "no such call"));
    let router = Router::new()
        .nest("/api", api)
        .fallback(|r: &mut Request<'_>| format!("page {}", r.path()));
    let site = site(router);
    let mut client = site.connect();
    assert_eq!(client.get("/api/items/7").text(), "item 7");
    let reply = client.get("/api/nothing");
    assert_eq!((reply.status, reply.text()), (404, "no such call"));
    assert_eq!(client.get("/about").text(), "page /about");
}

#[test]
fn a_router_that_has_only_a_fallback_reads_paths_as_any_router_does() {
    let seen = |request: &mut Request<'_>| format!("{}|{}", request.mount_point(), request.rest());
    let (routed, bare) = (Client::new(Router::new().fallback(seen)), Client::new(seen));
    for (path, status) in [
        ("/", 200),
        ("/a//b", 200),
        ("/%61/b", 200),
        ("/a%2Fb", 200),
        ("/a/../b", 400),
        ("/a/%2e", 400),
        ("/a%00", 400),
        ("/a%0", 400),
        ("/%zz", 400),
    ] {
        let reply = routed.get(path).send();
        assert_eq!(reply.status().as_u16(), status, "{path}");
        let reply_of_function = bare.get(path).send();
        assert_eq!(reply_of_function.text(), format!("|{path}"), "{path}");
        if status == 200 {
            assert_eq!(reply.text(), reply_of_function.text(), "{path}");
        }
    }
    assert_eq!(routed.request("OPTIONS", "*").send().text(), "|*");
}

#[test]
fn an_absolute_target_is_routed_by_its_path() {
    let site = site(Router::new().get("/x", |r: &mut Request<'_>| r.host().unwrap_or_default().to_owned()));
    assert_eq!(
        site.ask("GET http://example.org/x HTTP/1.1\r\nHost: other\r\n\r\n")
            .text(),
        "example.org"
    );
}

#[test]
fn a_request_may_be_given_other_targets() {
    let router = Router::new().fallback(|request: &mut Request<'_>| {
        let (first, sent) = (request.path(), request.target());
        let refused =
            ["", "x", "http://evil.example/", "/a b", "/a\r\nb", "*"].map(|target| request.retarget(target).is_err());
        let mut seen = vec![format!("{refused:?}"), first.to_owned(), sent.to_owned()];
        for target in ["/b?c=d", "/e", "/f?", "/g", "/h", "/i"] {
            request.retarget(target)?;
            seen.push(format!("{} {:?}", request.path(), request.query()));
        }
        seen.push(request.host().unwrap_or_default().to_owned());
        std::io::Result::Ok(seen.join(","))
    });
    let site = site(router);
    let mut client = site.connect();
    let expected = |sent: &str, host: &str| {
        let refused = [true; 6];
        format!("{refused:?},/a,{sent},/b Some(\"c=d\"),/e None,/f Some(\"\"),/g None,/h None,/i None,{host}")
    };
    // The target of a pipelined request does not affect the next one.
    client.send("GET /a?x HTTP/1.1\r\nHost: t\r\n\r\nGET http://other:81/a HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(client.reply().text(), expected("/a?x", "t"));
    assert_eq!(client.reply().text(), expected("http://other:81/a", "other:81"));
}

#[test]
fn a_handler_may_bound_the_body() {
    let router = Router::new().fallback(|request: &mut Request<'_>| {
        request.body().limit(5)?;
        let mut body = String::new();
        std::io::Read::read_to_string(request.body(), &mut body)?;
        std::io::Result::Ok(body)
    });
    let site = site(router);
    let known = |body: &str| {
        format!(
            "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let chunked = |chunks: [&str; 2]| {
        let [a, b] = chunks.map(|chunk| format!("{:x}\r\n{chunk}\r\n", chunk.len()));
        format!("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n{a}{b}0\r\n\r\n")
    };
    assert_eq!(site.ask(&known("12345")).text(), "12345");
    assert_eq!(site.ask(&known("123456")).status, 413);
    assert_eq!(site.ask(&chunked(["123", "45"])).text(), "12345");
    assert_eq!(site.ask(&chunked(["123", "456"])).status, 413);
}

/// Middleware and the observer know the same pattern, for all requests of one kind.
#[test]
fn the_pattern_of_the_route_is_known_before_the_handler_and_after_the_response() {
    let inner = Router::new()
        .get("/", |_| "root")
        .get("/users/{id}", |_| "user")
        .fallback(|_: &mut Request<'_>| StatusCode::NOT_FOUND);
    let router = Router::new()
        .nest("/api/{version}", Router::new().get("/x%20y/{*rest}", |_| "deep"))
        .nest("/v2", inner)
        .mount("/docs", |_: &mut Request<'_>| "docs")
        .post("/moved/{id}", |request: &mut Request<'_>| request.path().to_owned())
        .wrap(|request: &mut Request<'_>, next: Next<'_>| {
            if request.path().starts_with("/moved/") {
                request.retarget("/docs/there").unwrap();
            }
            let pattern = request.pattern().unwrap_or("-");
            next.run(request).header("x-pattern", pattern)
        });
    let (told, hears) = mpsc::channel();
    let server = Server::new(router).on_request(move |served| {
        let pattern = served.pattern().unwrap_or("-").to_owned();
        told.send((pattern, served.status().as_u16())).unwrap();
    });
    let client = Client::of(server);
    let cases = [
        ("GET", "/v2/users/7?q=1", 200, "/v2/users/{id}"),
        ("HEAD", "/v2//users/%37", 200, "/v2/users/{id}"),
        ("DELETE", "/v2/users/7", 405, "/v2/users/{id}"),
        ("OPTIONS", "/v2/users/7", 204, "/v2/users/{id}"),
        ("GET", "/v2", 200, "/v2"),
        ("GET", "/v2/none/at/all", 404, "/v2"),
        ("GET", "/api/3/x%20y/a/b", 200, "/api/{version}/x y/{*rest}"),
        ("GET", "/docs/a.html", 200, "/docs"),
        ("POST", "/moved/1", 200, "/moved/{id}"),
        ("GET", "/none", 404, "-"),
        ("OPTIONS", "*", 204, "-"),
        ("CONNECT", "v2:443", 501, "-"),
        ("GET", "/v2/users/%zz", 400, "-"),
    ];
    for (method, target, status, pattern) in cases {
        let reply = client.request(method, target).header("host", "v2:443").send();
        let seen = (reply.status().as_u16(), reply.header("x-pattern"));
        assert_eq!(seen, (status, Some(pattern)), "{method} {target}");
        assert_eq!(hears.recv(), Ok((pattern.to_owned(), status)), "{method} {target}");
    }
    let function = Client::new(|request: &mut Request<'_>| format!("{:?}", request.pattern()));
    assert_eq!(function.get("/").send().text(), "None");
}
