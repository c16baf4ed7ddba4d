//! Reading a request by type: path, query, form, JSON, cookies, state, and the response to each
//! mistake.

use std::collections::HashMap;
use std::io::{self, Cursor};

use osier_web::cookie::{Cookie, SameSite};
use osier_web::test::{Client, Reply};
use osier_web::{IntoResponse, Json, Limits, Rejection, Request, Response, Route, Router, Server, http::StatusCode};
use serde::{Deserialize, Serialize};

use crate::common::site;

fn status_and_text(reply: &Reply) -> (u16, &str) {
    (reply.status().as_u16(), reply.text())
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Note,
    Photo,
}

#[test]
fn path_parameters_become_structs_tuples_and_single_values() {
    #[derive(Deserialize)]
    struct Item {
        kind: Kind,
        id: u64,
    }
    #[derive(Deserialize)]
    struct Id(u64);
    let router = Router::new()
        .get("/named/{kind}/{id}", |request: &mut Request<'_>| {
            let Item { kind, id } = request.params()?;
            Ok::<_, Rejection>(format!("{kind:?} {id}"))
        })
        .get("/tuple/{a}/{b}/{c}", |request: &mut Request<'_>| {
            let (a, b, c): (String, Option<char>, f32) = request.params()?;
            Ok::<_, Rejection>(format!("{a} {b:?} {c}"))
        })
        .get("/one/{id}", |request: &mut Request<'_>| {
            let Id(id) = request.params()?;
            Ok::<_, Rejection>(id.to_string())
        })
        .get("/map/{a}/{b}", |request: &mut Request<'_>| {
            let map: HashMap<String, String> = request.params()?;
            Ok::<_, Rejection>(format!("{} {}", map["a"], map["b"]))
        })
        .get("/list/{a}/{b}", |request: &mut Request<'_>| {
            let list: Vec<i8> = request.params()?;
            Ok::<_, Rejection>(format!("{list:?}"))
        });
    let client = Client::new(router);
    for (path, answer) in [
        ("/named/note/7", "Note 7"),
        ("/named/photo/18446744073709551615", "Photo 18446744073709551615"),
        ("/tuple/a%20b/%C3%A9/-1.5", "a b Some('é') -1.5"),
        ("/one/42", "42"),
        ("/map/x%2Fy/z", "x/y z"),
        ("/list/-1/2", "[-1, 2]"),
    ] {
        assert_eq!(status_and_text(&client.get(path).send()), (200, answer), "{path}");
    }
    for (path, part) in [
        ("/named/note/x", "path parameter \"id\": \"x\""),
        ("/named/film/7", "path parameter \"kind\": \"film\""),
        ("/named/note/-7", "path parameter \"id\": \"-7\""),
        ("/one/4.2", "path parameter \"id\": \"4.2\""),
        ("/one/%ff", "path parameter \"id\" is not UTF-8"),
        ("/list/1/300", "path parameter \"b\": \"300\""),
    ] {
        let reply = client.get(path).send();
        assert_eq!(reply.status(), 400, "{path}");
        assert!(reply.text().starts_with(part), "{path}: {}", reply.text());
    }
}

#[test]
fn a_type_that_the_route_does_not_fit_is_the_programs_mistake() {
    #[derive(Debug, Deserialize)]
    #[allow(dead_code)] // never made
    struct Other {
        other: String,
    }
    let router = Router::new()
        .get("/a/{id}", |request: &mut Request<'_>| {
            request.params::<Other>().map(|_| ())
        })
        .get("/b/{id}", |request: &mut Request<'_>| {
            request.params::<(u8, u8)>().map(|_| ())
        })
        .get("/c", |request: &mut Request<'_>| request.params::<u8>().map(|_| ()));
    let site = site(router);
    for (path, line) in [
        ("/a/1", "missing field `other`"),
        ("/b/1", "2 values are asked for, the route has 1"),
        ("/c", "one value is asked for, the route has 0"),
    ] {
        let reply = site.get(path);
        assert_eq!(
            (reply.status, reply.text()),
            (500, "500 Internal Server Error\n"),
            "{path}"
        );
        assert!(site.logged(line), "{line}: {:?}", site.log);
    }
}

#[test]
fn queries_are_forms() {
    #[derive(Deserialize)]
    struct Search {
        q: String,
        #[serde(default)]
        tag: Vec<String>,
        page: Option<u32>,
    }
    let router = Router::new().get("/", |request: &mut Request<'_>| {
        let Search { q, tag, page } = request.query_as()?;
        Ok::<_, Rejection>(format!("{q:?} {tag:?} {page:?}"))
    });
    let client = Client::new(router);
    for (query, answer) in [
        ("?q=a+b%2B%C3%A9", "\"a b+é\" [] None"),
        ("?tag=x&q=&tag=y&page=3&other=1", "\"\" [\"x\", \"y\"] Some(3)"),
    ] {
        let reply = client.get(&format!("/{query}")).send();
        assert_eq!(status_and_text(&reply), (200, answer), "{query}");
    }
    for query in ["", "?", "?tag=x", "?q=1&page=x", "?q=1&q=2"] {
        let reply = client.get(&format!("/{query}")).send();
        assert_eq!(reply.status(), 400, "{query}");
        assert!(reply.text().starts_with("the query: "), "{}", reply.text());
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct Login {
    user: String,
    age: u8,
}

#[test]
fn forms_are_read_by_type_and_their_mistakes_named() {
    let login = |request: &mut Request<'_>| {
        let Login { user, age } = request.form()?;
        Ok::<_, Rejection>(format!("{user:?} {age}"))
    };
    let client = Client::new(Router::new().post("/", login));
    let ada = Login {
        user: "Ada & Co".into(),
        age: 36,
    };
    let reply = client.post("/").form(&ada).send();
    assert_eq!(status_and_text(&reply), (200, "\"Ada & Co\" 36"));
    let of_type = |kind: &str, body: &str| client.post("/").header("content-type", kind).body(body).send();
    let form = "application/x-www-form-urlencoded";
    let with_charset = of_type("Application/X-WWW-Form-UrlEncoded; charset=utf-8", "user=a&age=1");
    assert_eq!(with_charset.status(), 200);
    assert_eq!(of_type(form, "user=a&age=300").status(), 422);
    assert_eq!(of_type(form, "user=a").status(), 422);
    assert_eq!(of_type("text/plain", "user=a&age=1").status(), 415);
    assert_eq!(client.post("/").body("user=a&age=1").send().status(), 415);
    let large = format!("user={}&age=1", "x".repeat((2 << 20) + 1));
    assert_eq!(of_type(form, &large).status(), 413);
}

#[test]
fn a_body_that_is_read_twice_is_a_failure_of_the_handler() {
    let twice = |request: &mut Request<'_>| {
        let first: Result<Login, Rejection> = request.json();
        let second: Result<Login, Rejection> = request.json();
        let said = second.err().map(|error| error.to_string());
        Ok::<_, Rejection>(format!("{} {}", first.is_ok(), said.unwrap_or_default()))
    };
    let again = |request: &mut Request<'_>| {
        let _ = request.bytes(100)?;
        request.form::<Login>().map(|login| login.user)
    };
    let client = Client::new(Router::new().post("/twice", twice).post("/again", again));
    let ada = Login {
        user: "Ada".into(),
        age: 18,
    };
    let reply = client.post("/twice").json(&ada).send();
    assert_eq!(
        reply.text(),
        "true the body has been read before: a body can be read once"
    );
    let form = "application/x-www-form-urlencoded";
    let reply = client
        .post("/again")
        .header("content-type", form)
        .body("user=a&age=1")
        .send();
    assert_eq!(reply.status(), 500);
}

#[test]
fn json_is_read_and_written_by_type() {
    let double = |request: &mut Request<'_>| {
        let mut login: Login = request.json()?;
        login.age *= 2;
        Ok::<_, Rejection>(Json(login))
    };
    let client = Client::new(Router::new().post("/", double));
    let ada = Login {
        user: "Ada \u{1f600}".into(),
        age: 18,
    };
    let reply = client.post("/").json(&ada).send();
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let back: Login = reply.json().unwrap();
    assert_eq!((back.user.as_str(), back.age), ("Ada \u{1f600}", 36));
    let of_type = |kind: &str, body: &str| client.post("/").header("content-type", kind).body(body).send();
    assert_eq!(of_type("application/ld+json", r#"{"user":"a","age":1}"#).status(), 200);
    for (status, body, text) in [
        (
            400,
            "",
            "the body is not JSON: EOF while parsing a value at line 1 column 0\n",
        ),
        (
            400,
            "{",
            "the body is not JSON: EOF while parsing an object at line 1 column 1\n",
        ),
        (
            400,
            "{\n  \"user\": trx\n}",
            "the body is not JSON: expected ident at line 2 column 13\n",
        ),
        (
            400,
            r#"{"user":"a","age":1} x"#,
            "the body is not JSON: trailing characters at line 1 column 22\n",
        ),
        (
            422,
            "{\"user\": \"a\",\n \"age\": 300}",
            "the JSON: invalid value: integer `300`, expected u8 at line 2 column 11\n",
        ),
        (
            422,
            "{\"user\": \"a\"}",
            "the JSON: missing field `age` at line 1 column 13\n",
        ),
    ] {
        let reply = of_type("application/json", body);
        assert_eq!(status_and_text(&reply), (status, text), "{body}");
    }
    for kind in ["text/plain", "text/json", "application/jsonx", "multipart/form-data"] {
        assert_eq!(of_type(kind, "{}").status(), 415, "{kind}");
    }
}

/// A document that nests deeper than any honest one gives an error, on the small stack of a fiber.
#[test]
fn deep_json_is_refused() {
    let read = |request: &mut Request<'_>| request.json::<serde_json::Value>().map(|_| "read");
    let client = Client::new(Router::new().post("/", read));
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let ask = |body: String| {
        client
            .post("/")
            .header("content-type", "application/json")
            .body(body)
            .send()
    };
    assert_eq!(ask(nested(64)).status(), 200);
    let text = format!("\"{}\\\"{}\"", "[".repeat(100), "{".repeat(100));
    assert_eq!(ask(text).status(), 200, "in a string nothing nests");
    for depth in [65, 1_000_000] {
        let reply = ask(nested(depth));
        let text = "the body nests deeper than 64 levels at line 1 column 65\n";
        assert_eq!(status_and_text(&reply), (400, text));
    }
    assert!(ask("[\n".repeat(65)).text().ends_with("at line 65 column 1\n"));
}

#[test]
fn a_form_of_100_000_fields_is_refused_and_logged() {
    type Fields = HashMap<String, String>;
    let count = |request: &mut Request<'_>| request.form::<Fields>().map(|fields| fields.len().to_string());
    let read = |request: &mut Request<'_>| request.json::<serde_json::Value>().map(|_| "read");
    let site = site(Router::new().post("/", count).post("/json", read));
    let ask = |path: &str, kind: &str, body: String| {
        let length = body.len();
        site.ask(&format!(
            "POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/{kind}\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
    };
    let form = |fields: usize| {
        let fields: Vec<_> = (0..fields).map(|number| format!("{number}=x")).collect();
        ask("/", "x-www-form-urlencoded", fields.join("&"))
    };
    assert_eq!(form(10_000).text(), "10000");
    for fields in [10_001, 100_000] {
        let reply = form(fields);
        assert_eq!(
            (reply.status, reply.text()),
            (413, "the form has more than 10000 fields\n")
        );
    }
    assert!(site.logged("the form has more than 10000 fields"), "{:?}", site.log);
    assert_eq!(ask("/json", "json", "[".repeat(1_000_000)).status, 400);
    assert!(site.logged("the body nests deeper than 64 levels"), "{:?}", site.log);
}

#[test]
fn a_value_that_is_no_json_is_500_and_a_log_line() {
    let router = Router::new().get("/", |_: &mut Request<'_>| Json(HashMap::from([((1, 2), 3)])));
    let site = site(router);
    assert_eq!(site.get("/").status, 500);
    assert!(site.logged("key must be a string"), "{:?}", site.log);
}

#[test]
fn bodies_are_bounded_announced_or_not() {
    let router = Router::new()
        .post("/", |request: &mut Request<'_>| {
            request.bytes(10).map(|bytes| bytes.len().to_string())
        })
        .route(
            "/small",
            Route::new()
                .post(|request: &mut Request<'_>| request.json::<serde_json::Value>().map(|_| ()))
                .body_limit(4),
        );
    let client = Client::of(Server::new(router).limits(Limits {
        body: 100,
        ..Limits::default()
    }));
    for (count, status) in [(0, 200), (10, 200), (11, 413), (101, 413)] {
        let body = vec![b'x'; count];
        assert_eq!(client.post("/").body(body.clone()).send().status(), status, "{count}");
        let reply = client.post("/").reader(Cursor::new(body)).send();
        assert_eq!(reply.status(), status, "{count} in chunks");
    }
    let small = client.post("/small").json(&"abc").send();
    assert_eq!(small.status(), 413);
    let in_chunks = client.post("/small").header("content-type", "application/json");
    assert_eq!(in_chunks.reader(Cursor::new("[1,2,3]")).send().status(), 413);
}

#[test]
fn a_handler_may_take_larger_or_smaller_forms_and_documents() {
    const MOST: u64 = 3 << 20;
    let json =
        |limit| move |request: &mut Request<'_>| request.json_up_to::<String>(limit).map(|text| text.len().to_string());
    let form = |limit| {
        move |request: &mut Request<'_>| {
            let login: Login = request.form_up_to(limit)?;
            Ok::<_, Rejection>(login.user.len().to_string())
        }
    };
    let large = |route: Route| route.body_limit(2 * MOST);
    let client = Client::new(
        Router::new()
            .route("/json", large(Route::new().post(json(MOST))))
            .route("/form", large(Route::new().post(form(MOST))))
            .post("/json/of-the-server", json(MOST))
            .post("/json/small", json(100)),
    );
    let text = |bytes: u64| "x".repeat(bytes as usize);
    let of = |path: &str, bytes: u64| client.post(path).json(&text(bytes)).send();
    assert_eq!(status_and_text(&of("/json", MOST - 2)), (200, "3145726"));
    assert_eq!(of("/json", MOST - 1).status(), 413);
    assert_eq!(
        of("/json/of-the-server", MOST - 2).status(),
        413,
        "its limit counts too"
    );
    assert_eq!(of("/json/small", 98).status(), 200);
    assert_eq!(of("/json/small", 99).status(), 413);
    let of = |bytes: u64| {
        client
            .post("/form")
            .form(&Login {
                user: text(bytes),
                age: 1,
            })
            .send()
    };
    let names = "user=&age=1".len() as u64;
    assert_eq!(of(MOST - names).text(), (MOST - names).to_string());
    assert_eq!(of(MOST - names + 1).status(), 413);
}

/// A body that fails keeps its own status through a rejection, and through an `io::Error` around that.
#[test]
fn what_the_body_says_comes_through() {
    fn outer(request: &mut Request<'_>) -> io::Result<String> {
        let Login { user, .. } = request.json()?;
        Ok(user)
    }
    let router = Router::new()
        .post("/rejection", |request: &mut Request<'_>| {
            request.json::<Login>().map(|login| login.user)
        })
        .post("/io", outer);
    let client = Client::new(router);
    let json = |path: &str| client.post(path).header("content-type", "application/json");
    for path in ["/rejection", "/io"] {
        let cut = json(path).sized_reader(Cursor::new("{\"us"), 100).send();
        assert_eq!(cut.status(), 400, "{path}");
        assert!(cut.text().contains("ended inside"), "{path}: {}", cut.text());
        let data = json(path).body("[]").send();
        assert_eq!(data.status(), 422, "{path}");
        assert_eq!(client.post(path).send().status(), 415, "{path}");
    }
}

#[test]
fn a_rejection_of_ones_own_is_what_it_says() {
    let router = Router::new().get("/", |_: &mut Request<'_>| {
        Err::<(), _>(Rejection::new(StatusCode::CONFLICT, "somebody was faster"))
    });
    let reply = Client::new(router).get("/").send();
    assert_eq!(status_and_text(&reply), (409, "somebody was faster\n"));
    let rejection = Rejection::new(StatusCode::CONFLICT, "x");
    assert_eq!(
        (rejection.status(), rejection.to_string()),
        (StatusCode::CONFLICT, "x".into())
    );
    let through_io = Rejection::from(io::Error::from(rejection));
    assert_eq!(through_io.status(), StatusCode::CONFLICT);
    assert_eq!(through_io.into_response().status(), StatusCode::CONFLICT);
}

#[test]
fn cookies_are_read_as_they_were_sent() {
    let router = Router::new().get("/", |request: &mut Request<'_>| {
        let all: Vec<_> = request.cookies().collect();
        format!("{:?} {all:?}", request.cookie("a"))
    });
    let client = Client::new(router);
    for (line, answer) in [
        ("a=1", r#"Some("1") [("a", "1")]"#),
        (
            "b=2; a=x=y; a=3",
            r#"Some("x=y") [("b", "2"), ("a", "x=y"), ("a", "3")]"#,
        ),
        ("A=1;; =2; c", r#"None [("A", "1")]"#),
        ("a=\"q u\"", r#"Some("q u") [("a", "\"q u\"")]"#),
    ] {
        let reply = client.get("/").header("cookie", line).send();
        assert_eq!(reply.text(), answer, "{line}");
    }
    let two = client.get("/").header("cookie", "b=1").header("Cookie", "a=2").send();
    assert_eq!(two.text(), r#"Some("2") [("b", "1"), ("a", "2")]"#);
    assert_eq!(client.get("/").send().text(), "None []");
}

#[test]
fn cookies_are_set_with_their_attributes_and_cannot_be_injected() {
    let set = |request: &mut Request<'_>| {
        let value = request.query_param("value").unwrap_or_default().into_owned();
        let path = request.query_param("path").unwrap_or_default().into_owned();
        let session = Cookie::build(("session", value))
            .path(path)
            .secure(true)
            .http_only(true);
        let mut gone = Cookie::from("old");
        gone.make_removal();
        Response::new(StatusCode::OK)
            .cookie(session.same_site(SameSite::Strict))
            .cookie(gone)
    };
    let site = site(Router::new().get("/", set));
    let reply = site.get("/?value=8f3a&path=/");
    let lines: Vec<_> = reply
        .head
        .lines()
        .filter(|line| line.starts_with("set-cookie: "))
        .collect();
    assert_eq!(
        lines[0],
        "set-cookie: session=8f3a; HttpOnly; SameSite=Strict; Secure; Path=/"
    );
    assert!(
        lines[1].starts_with("set-cookie: old=; Max-Age=0; Expires="),
        "{lines:?}"
    );
    for query in [
        "value=a;+Domain%3Dexample.org",
        "value=a%0d%0aX:+1",
        "value=a%20b",
        "value=a,b",
        "value=%22a",
        "value=%C3%A9",
        "value=a&path=/;+Domain%3Dx",
        "value=a&path=/%0d%0a",
    ] {
        let reply = site.get(&format!("/?{query}"));
        assert_eq!(reply.status, 500, "{query}");
        assert!(!reply.head.contains("set-cookie: session"), "{}", reply.head);
    }
    assert!(site.logged("cookie \"session\""), "{:?}", site.log);
}

#[test]
fn state_is_found_by_its_type_and_a_missing_one_is_named() {
    struct Name(&'static str);
    struct Nobody;
    let name = |request: &mut Request<'_>| request.state::<Name>().map(|name| name.0);
    let inner = Router::new().get("/own", name).state(Name("inner"));
    let plain = Router::new().get("/outer", name).fallback(name);
    let router = Router::new()
        .get("/before", name)
        .nest("/inner", inner)
        .nest("/plain", plain)
        .state(Name("outer"))
        .state(7_u32)
        .get("/after", name)
        .get("/number", |request: &mut Request<'_>| {
            request.state::<u32>().map(u32::to_string)
        })
        .get("/nobody", |request: &mut Request<'_>| {
            request.state::<Nobody>().map(|_| ())
        });
    let site = site(router);
    for (path, answer) in [
        ("/before", "outer"),
        ("/after", "outer"),
        ("/inner/own", "inner"),
        ("/plain/outer", "outer"),
        ("/plain/fallback", "outer"),
        ("/number", "7"),
    ] {
        assert_eq!(site.get(path).text(), answer, "{path}");
    }
    assert_eq!(site.get("/nobody").status, 500);
    assert!(
        site.logged("Nobody: give it to the router by Router::state"),
        "{:?}",
        site.log
    );
}

#[test]
#[should_panic(expected = "the router has a state of type u32 already")]
fn a_second_state_of_a_type_is_refused() {
    let _ = Router::new().state(1_u32).state(2_u32);
}

/// The same functions over a connection: a body in small pieces, and one that stops.
#[test]
fn json_comes_over_a_connection_in_pieces() {
    let site = site(Router::new().post("/", |request: &mut Request<'_>| {
        request.json::<Login>().map(|login| login.user)
    }));
    let body = r#"{"user": "Ada", "age": 36}"#;
    let mut client = site.connect();
    let head = "POST / HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n";
    client.send(format!("{head}Content-Length: {}\r\n\r\n", body.len()));
    for byte in body.bytes() {
        client.send([byte]);
    }
    assert_eq!(client.reply().text(), "Ada");
    client.send(format!("{head}Content-Length: 100\r\n\r\n{{"));
    client.finish_sending();
    assert_eq!(
        client.reply().text(),
        "the connection ended inside the request's body\n"
    );
}
