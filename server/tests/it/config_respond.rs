//! A `respond` route: its body holds fields of the request, and no value from a client becomes markup.

use crate::support::sites::{Sites, send, text};
use crate::support::{Folder, check};

#[test]
fn a_response_holds_fields_of_the_request() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\n\
         [[site.route]]\npath = \"/text\"\nrespond = { status = 201, body = \"$method $host $path?$query $client $header_x_a|$header_none|$$$$\" }\n\
         [[site.route]]\npath = \"/html\"\nrespond = { content_type = \"text/html\", body = \"<p>$path $${query} $header_x_a\" }\n\
         [[site.route]]\npath = \"/json\"\nrespond = { content_type = \"application/json\", body = '{\"path\":\"$path\",\"agent\":\"$header_user_agent\"}' }\n\
         [[site.route]]\npath = \"/short\"\nrespond = \"$path\"\n",
    );
    let reply = sites.ask(
        "POST",
        "h.example:81",
        "/text//%61b?c=%0d%0a",
        &["X-A: v \"q\"", "Content-Length: 0"],
    );
    assert_eq!(
        text(&reply),
        (201, "POST h.example /text/ab?c=%0d%0a 127.0.0.1 v \"q\"||$")
    );
    assert_eq!(reply.field("x-content-type-options"), Some("nosniff"));
    let reply = sites.ask("GET", "x", "/html/%3Cb%3E?a&b", &["X-A: <i>'\"&"]);
    assert_eq!(
        text(&reply),
        (200, "<p>/html/&lt;b&gt; a&amp;b &lt;i&gt;&#39;&quot;&amp;")
    );
    assert_eq!(reply.field("content-type"), Some("text/html"));
    let reply = sites.ask("GET", "x", "/json/%22", &["User-Agent: a\\b\"c"]);
    let value: serde_json::Value = serde_json::from_str(reply.text()).unwrap();
    assert_eq!(value, serde_json::json!({ "path": "/json/\"", "agent": "a\\b\"c" }));
    // Nothing that a client sends becomes a line of the head.
    for bad in ["/text/%0d%0aX:%20y", "/text/%00"] {
        assert_eq!(sites.get("x", bad).status, 400, "{bad}");
    }
    assert_eq!(
        text(&sites.get("x", "/short")),
        (200, "$path"),
        "the short form is the text itself"
    );
    let head = sites.ask("HEAD", "x", "/text", &[]);
    assert_eq!((head.status, head.text()), (201, ""));
}

#[test]
fn a_field_of_the_request_in_a_script_is_a_warning() {
    let respond = |kind: &str, body: &str| {
        let folder = Folder::new();
        let route = format!("respond = {{ content_type = \"{kind}\", body = \"{body}\" }}\n");
        folder.write(
            "site.toml",
            format!("[[site]]\ndefault = true\n[[site.route]]\n{route}"),
        );
        check(&folder, &["site.toml"])
    };
    let (code, said) = respond("text/javascript; charset=utf-8", "hello('$query')");
    assert!(
        code == Some(0)
            && said.contains("site.toml:4:")
            && said.contains("warning: a field of the request in a script"),
        "{said}"
    );
    for (kind, body) in [("text/javascript", "hello('$$$$')"), ("application/json", "'$query'")] {
        assert_eq!(respond(kind, body), (Some(0), String::new()));
    }
}

#[test]
fn errors_are_pages_for_who_prefers_html() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\nerror_pages = { 410 = \"404.html\" }\n[[site.route]]\npath = \"/off\"\nhtml_errors = false\nrespond = 403\n\
         [[site.route]]\npath = \"/own\"\nrespond = { status = 403, body = \"mine\" }\n[[site.route]]\npath = \"/status\"\nrespond = 403\n\
         [[site.route]]\npath = \"/page\"\nrespond = 410\n[[site.route]]\npath = \"/denied\"\nallow = \"::1\"\nrespond = 204\n\
         [[site.route]]\npath = \"/fine\"\nrespond = 200\n[[site.route]]\npath = \"/www\"\nfiles = { root = \"www\", strip = true }\n",
    );
    let browser = "Accept: text/html,application/xml;q=0.9,*/*;q=0.8";
    let seen = |path: &str, accept: &str| {
        let reply = sites.ask("GET", "x", path, &[accept]);
        let field = |name| reply.field(name).unwrap_or("-").to_string();
        (
            reply.status,
            field("content-type"),
            field("vary"),
            reply.text().to_string(),
        )
    };
    for (path, status, reason) in [
        ("/status", "403 Forbidden", ""),
        ("/denied", "403 Forbidden", "<p>your address is not allowed</p>"),
        ("/nowhere", "404 Not Found", ""),
        ("/www/nothing", "404 Not Found", ""),
        ("/www/../x", "400 Bad Request", ""),
    ] {
        let (_, content_type, vary, page) = seen(path, browser);
        assert!(
            page.contains(&format!("<h1>{status}</h1>")) && page.contains(reason),
            "{path}: {page}"
        );
        assert_eq!(
            (content_type.as_str(), vary.as_str()),
            ("text/html; charset=utf-8", "accept"),
            "{path}"
        );
        assert!(!page.to_ascii_lowercase().contains("osier"), "{page}");
        for accept in ["Accept: */*", "X: y"] {
            let (_, content_type, vary, text) = seen(path, accept);
            assert_eq!(
                (content_type.as_str(), vary.as_str()),
                ("text/plain; charset=utf-8", "accept"),
                "{path}"
            );
            assert!(!text.contains('<'), "{path}: {text}");
        }
    }
    let plain = "text/plain; charset=utf-8".to_string();
    assert_eq!(seen("/own", browser), (403, plain.clone(), "-".into(), "mine".into()));
    assert_eq!(
        seen("/off", browser),
        (403, plain.clone(), "-".into(), "403 Forbidden\n".into())
    );
    assert_eq!(seen("/fine", browser), (200, plain, "-".into(), "200 OK\n".into()));
    assert_eq!(seen("/page", browser).3, "<h1>lost</h1>");
}

#[test]
fn a_body_beside_a_status_that_has_none_is_a_mistake() {
    let folder = Folder::new();
    folder.write("a.html", "");
    let respond = |value: &str| {
        let text = format!("[[site]]\ndefault = true\n[[site.route]]\nrespond = {value}\n");
        folder.write("site.toml", text);
        check(&folder, &["site.toml"])
    };
    for status in [204, 205, 304] {
        for (body, key) in [("body = \"x\"", "4:27"), ("file = \"a.html\"", "4:27")] {
            let (code, said) = respond(&format!("{{ status = {status}, {body} }}"));
            let text = format!("{key}: status {status} has no body: leave this out, or choose another status");
            assert!(code == Some(2) && said.contains(&text), "{said}");
        }
        assert_eq!(respond(&format!("{status}")).0, Some(0));
    }
    assert_eq!(respond("{ status = 200, body = \"\" }").0, Some(0));
    for status in [100, 101, 199] {
        assert_eq!(respond(&format!("{{ status = {status}, body = \"x\" }}")).0, Some(2));
    }
}

#[test]
fn a_status_without_a_body_is_sent_without_one() {
    for status in [204, 205, 304] {
        let sites = Sites::start(&format!("[[site]]\n[[site.route]]\nrespond = {status}\n"));
        let mut client = sites.connect();
        for _ in 0..2 {
            send(&mut client, "GET", "a", "/", &[]);
            let reply = client.receive("GET");
            assert_eq!(text(&reply), (status, ""), "the connection lives");
        }
    }
}
