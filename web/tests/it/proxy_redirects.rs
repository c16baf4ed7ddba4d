//! Redirects of backends: which `Location` leads back to this server.

use osier_web::Router;
use osier_web::proxy::{Host, Options, Redirects};

use crate::common::backend::Backend;
use crate::common::site;

/// A backend that answers with the `Location` that it is told, in which `@` is its address.
fn backend() -> Backend {
    Backend::start(|_, conn| {
        let address = conn.stream.local_addr().unwrap().to_string();
        while let Some(asked) = conn.request() {
            let status = asked.header("x-status").unwrap_or("302 Found");
            let location = asked.header("x-location").unwrap_or_default().replace('@', &address);
            conn.send(format!(
                "HTTP/1.1 {status}\r\nLocation: {location}\r\nX-Own: 1\r\nContent-Length: 0\r\n\r\n"
            ));
        }
    })
}

/// Checks what becomes of values of `Location`. `*` is a value that stays.
fn check(options: Options, cases: &[(&str, &str)]) {
    check_at("/api/a", options, cases);
}

fn check_at(target: &str, options: Options, cases: &[(&str, &str)]) {
    let backend = backend();
    let front = site(Router::new().fallback(backend.proxy_with(options).handler()));
    for (location, expected) in cases {
        let reply = front.ask(&format!(
            "GET {target} HTTP/1.1\r\nHost: Example.org\r\nX-Location: {location}\r\n\r\n"
        ));
        let sent = location.replace('@', &backend.addr.to_string());
        let expected = if *expected == "*" { &sent } else { *expected };
        assert_eq!(reply.header("location"), Some(expected), "{location}");
        assert_eq!(reply.header("x-own"), Some("1"));
    }
}

fn stripping(redirects: Redirects) -> Options {
    Options {
        strip: Some("/api/".into()),
        redirects,
        ..Options::default()
    }
}

#[test]
fn a_redirect_to_the_backend_leads_back_to_the_server() {
    check(
        Options::default(),
        &[
            ("http://@/x?y#z", "/x?y#z"),
            ("HTTPS://@/x", "/x"),
            ("http://@", "/"),
            ("http://@?q", "/?q"),
            ("http://@#f", "/#f"),
            // Others stay.
            ("/x", "*"),
            ("x", "*"),
            ("http://other.example/x", "*"),
            ("http://@.other.example/x", "*"),
            ("http://@1/x", "*"),
            ("http://user@@/x", "*"),
            ("//@/x", "*"),
            ("https://example.org/x", "*"),
            ("ftp://@/x", "*"),
            // What is left must not name another host.
            ("http://@//evil.example", "*"),
            ("http://@/\\evil.example", "*"),
            ("http://@\\evil.example", "*"),
            ("http://@/\t/evil.example", "*"),
        ],
    );
}

#[test]
fn a_redirect_to_the_backend_leads_below_the_prefix_that_it_does_not_see() {
    let cases = [
        ("http://@/x", "/api/x"),
        ("http://@", "/api/"),
        ("http://@/api/x", "/api/x"),
        ("http://@/apis", "/api/apis"),
        ("http://@//evil.example", "*"),
    ];
    check(stripping(Redirects::Backend), &cases);
    check(stripping(Redirects::Prefix), &cases);
    // The prefix as the client has spelled it would name a host.
    check_at("//api/a", stripping(Redirects::Backend), &cases);
    // Another path has lost no prefix.
    check_at("/a", stripping(Redirects::Prefix), &[("http://@/x", "/x"), ("/x", "*")]);
    check(
        Options {
            strip: Some("/api".into()),
            replacement: "/v1".into(),
            ..Options::default()
        },
        &[
            ("http://@/v1/x", "/api/x"),
            ("http://@/v1", "/api"),
            ("http://@/v12", "*"),
        ],
    );
    check_at(
        "/%C3%BC/a",
        Options {
            strip: Some("/\u{fc}".into()),
            ..Options::default()
        },
        &[("http://@/x", "/%C3%BC/x")],
    );
}

#[test]
fn a_path_gets_the_prefix_if_the_application_does_not_know_it() {
    check(
        stripping(Redirects::Prefix),
        &[
            ("/x", "/api/x"),
            ("/", "/api/"),
            ("/?q", "/api/?q"),
            ("/api", "*"),
            ("/api?q", "*"),
            ("/apis", "/api/apis"),
            ("https://example.org/x", "https://example.org/api/x"),
            ("https://example.org/api/x", "*"),
            ("x", "*"),
            ("//evil.example", "*"),
            ("/\\evil.example", "*"),
            ("https://other.example/x", "*"),
        ],
    );
    check(
        stripping(Redirects::Backend),
        &[("/x", "*"), ("https://example.org/x", "*")],
    );
}

#[test]
fn the_host_that_the_backend_gets_is_its_own_unless_it_is_the_clients() {
    let fixed = Options {
        host: Host::Fixed("app.internal".into()),
        ..Options::default()
    };
    check(
        fixed,
        &[("https://APP.internal/x", "/x"), ("http://example.org/x", "*")],
    );
    let preserved = Options {
        redirects: Redirects::Preserve,
        ..Options::default()
    };
    check(preserved, &[("http://@/x", "*")]);
}

/// A path would lead the client to the same request for ever where the scheme is the point of the redirect.
#[test]
fn a_redirect_to_the_host_that_the_client_asked_for_stays() {
    let cases = [
        ("https://example.org/api/a", "*"),
        ("HTTPS://EXAMPLE.ORG/api/a", "*"),
        ("https://example.org:443/api/a", "*"),
        ("http://example.org/x", "*"),
        ("http://@/x", "/x"),
    ];
    for host in ["example.org", "Example.Org", "EXAMPLE.ORG:443"] {
        let fixed = || Options {
            host: Host::Fixed(host.into()),
            ..Options::default()
        };
        check(fixed(), &cases);
        let strip = Some("/api".into());
        check(
            Options { strip, ..fixed() },
            &[("https://example.org/x", "*"), ("http://@/x", "/api/x")],
        );
        let prefixed = Options {
            host: Host::Fixed(host.into()),
            ..stripping(Redirects::Prefix)
        };
        check(prefixed, &[("https://example.org/x", "https://example.org/api/x")]);
    }
    // The site has another name, too, which has to lead to https.
    let app = backend();
    let fixed = Options {
        host: Host::Fixed("example.org".into()),
        ..Options::default()
    };
    let front = site(Router::new().fallback(app.proxy_with(fixed).handler()));
    let reply = front
        .ask("GET /login?a=b HTTP/1.1\r\nHost: www.example.org\r\nX-Location: https://example.org/login?a=b#c\r\n\r\n");
    assert_eq!(reply.header("location"), Some("https://example.org/login?a=b#c"));
    let reply = front.ask("GET /a HTTP/1.1\r\nHost: www.example.org\r\nX-Location: https://example.org/login\r\n\r\n");
    assert_eq!(reply.header("location"), Some("/login"));
    // The backend's address is the public one of the site.
    let backend = backend();
    let front = site(Router::new().fallback(backend.proxy().handler()));
    let location = |host: &str, location: &str| {
        let reply = front.ask(&format!(
            "GET / HTTP/1.1\r\nHost: {host}\r\nX-Location: {location}\r\n\r\n"
        ));
        reply.header("location").unwrap().to_owned()
    };
    let public = backend.addr.to_string();
    let to_https = format!("https://{public}/login");
    assert_eq!(location(&public, &to_https), to_https);
    assert_eq!(location("example.org", &to_https), "/login");
}

#[test]
fn a_location_of_other_responses_stays() {
    let backend = backend();
    let front = site(Router::new().fallback(backend.proxy().handler()));
    let location = |status: &str| {
        let reply = front.ask(&format!(
            "GET / HTTP/1.1\r\nHost: t\r\nX-Status: {status}\r\nX-Location: http://@/x\r\n\r\n"
        ));
        reply.header("location").unwrap().to_owned()
    };
    assert_eq!(location("201 Created"), "/x");
    assert_eq!(location("200 OK"), format!("http://{}/x", backend.addr));
}
