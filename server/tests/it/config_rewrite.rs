//! Rewrite rules of a configuration file: routes again, spellings of paths, and conditions on posted forms.

use crate::support::Client;
use crate::support::sites::{Sites, recipes, send, text};

#[test]
fn a_rule_on_a_posted_field_is_not_passed_by_bytes_that_are_no_text() {
    let sites = Sites::start(
        "[[site]]\n[[site.route]]\nrewrite = { pattern = \"^/order$\", to = \"/pay\", if = [{ of = \"post\", name = \"step\", is = \"pay\" }] }\n\
         [[site.route]]\npath = \"/pay\"\nrespond = \"pay\"\n[[site.route]]\nrespond = \"passed\"\n",
    );
    let step = |body: &[u8]| {
        let mut client = sites.connect();
        let length = format!("Content-Length: {}", body.len());
        let kind = "Content-Type: application/x-www-form-urlencoded";
        send(&mut client, "POST", "x", "/order", &[kind, &length]);
        client.send_raw(body);
        client.receive("POST").text().to_owned()
    };
    assert_eq!(step(b"step=pay&name=cafe"), "pay");
    assert_eq!(step(b"step=pay&name=caf\xe9"), "pay");
    assert_eq!(step(b"\xff=\xfe&step=pay"), "pay");
    assert_eq!(step(b"step=p\xe9y"), "passed");
}

#[test]
fn rewrites_go_through_the_routes_again() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\nheaders = { X-Site = \"1\" }\nerror_pages = { 500 = \"404.html\" }\n\
         [[site.route]]\npath = \"/loop\"\nrewrite = { pattern = \"^/loop$\", to = \"/loop\" }\n\
         [[site.route]]\nrewrite = [\n\
           { pattern = \"^/blog/([a-z]+)$\", to = \"/$1.txt\" },\n\
           { pattern = \"^/moved$\", to = \"/a.txt\", redirect = 301, query = \"drop\" },\n\
           { pattern = \"^/style$\", to = \"/a.txt\", if = [{ of = \"cookie\", name = \"dark\", is = \"1\" }] },\n\
         ]\n\
         [[site.route]]\npath = \"/style\"\nrespond = \"plain style\"\n\
         [[site.route]]\nfiles = \"www\"\n",
    );
    assert_eq!(text(&sites.get("x", "/blog/a")), (200, "the file a"));
    assert_eq!(sites.get("x", "/blog/b").status, 404);
    assert_eq!(text(&sites.get("x", "/a.txt")), (200, "the file a"));
    let reply = sites.get("x", "/moved?x=1");
    assert_eq!((reply.status, reply.field("location")), (301, Some("/a.txt")));
    assert_eq!(sites.get("x", "/style").text(), "plain style");
    assert_eq!(
        sites.ask("GET", "x", "/style", &["Cookie: dark=1"]).text(),
        "the file a"
    );
    let reply = sites.get("x", "/loop");
    assert_eq!(text(&reply), (500, "<h1>lost</h1>"));
    assert_eq!(reply.field("x-site"), Some("1"));
    assert!(sites.said().contains("rewrite loop: \"/loop\""), "{}", sites.said());
}

#[test]
fn no_spelling_of_a_path_leads_around_a_rewrite() {
    let folder = Sites::folder();
    folder.write("www/admin/x.txt", "the secret");
    let sites = Sites::start_in(
        folder,
        "[[site]]\n[[site.route]]\nrewrite = [{ pattern = \"^/admin(/|$)\", to = \"/login\", redirect = 302 }]\n\
         [[site.route]]\nfiles = \"www\"\n",
    );
    for target in ["/admin/x.txt", "//admin/x.txt", "/admin//x.txt", "/%61dmin/x.txt"] {
        assert_eq!(sites.get("x", target).field("location"), Some("/login"), "{target}");
    }
    for target in ["/admin%2fx.txt", "/%2fadmin/x.txt"] {
        assert_eq!(sites.get("x", target).status, 400, "{target}");
    }
    assert_eq!(text(&sites.get("x", "/a.txt")), (200, "the file a"));
}

#[test]
fn rules_look_at_a_posted_form_and_leave_it_to_who_answers() {
    // Answers with the body that came to it.
    let application = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = application.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in application.incoming() {
            let mut client = Client::over(stream.unwrap());
            std::thread::spawn(move || {
                while let Some(body) = client.receive_request() {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    client.send_raw(head.as_bytes());
                    client.send_raw(&body);
                }
            });
        }
    });
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\n\
         [[site.route]]\npath = \"/small\"\nlimits = {{ body = 4 }}\nrespond = \"small\"\n\
         [[site.route]]\nrewrite = [\
           {{ pattern = \"^/form$\", to = \"/echo/$0\", if = [{{ of = \"post\", name = \"step\", is = \"two words\" }}] }},\
           {{ pattern = \"^/form$\", to = \"/small\", if = [{{ of = \"post\", name = \"small\" }}] }},\
         ]\n\
         [[site.route]]\npath = \"/echo\"\nlimits = {{ body = \"1MiB\" }}\nproxy = \"127.0.0.1:{port}\"\n\
         [[site.route]]\nlimits = {{ body = \"1MiB\" }}\nrespond = \"other\"\n"
    ));
    let post = |kind: &str, more: &str, body: &str, chunked: bool| {
        let mut client = sites.connect();
        let framing = match chunked {
            false => format!("Content-Length: {}", body.len()),
            true => "Transfer-Encoding: chunked".into(),
        };
        send(
            &mut client,
            "POST",
            "x",
            "/form",
            &[&framing, &format!("Content-Type: {kind}"), more],
        );
        if more.starts_with("Expect") {
            client.send_raw(b"");
            assert_eq!(client.receive_head().status, 100);
        }
        match chunked {
            false => client.send_raw(body.as_bytes()),
            true => body.as_bytes().chunks(7).for_each(|piece| {
                client.send_raw(format!("{:x}\r\n", piece.len()).as_bytes());
                client.send_raw(piece);
                client.send_raw(b"\r\n");
            }),
        }
        if chunked {
            client.send_raw(b"0\r\n\r\n");
        }
        let reply = client.receive("POST");
        // And the connection is where it should be.
        if reply.field("connection") != Some("close") {
            send(&mut client, "GET", "x", "/else", &[]);
            assert_eq!(client.receive("GET").text(), "other");
        }
        reply
    };
    let form = "application/x-www-form-urlencoded";
    let right = "a=1&step=two+words&b=%26";
    for (more, chunked) in [("X: y", false), ("X: y", true), ("Expect: 100-continue", false)] {
        assert_eq!(
            text(&post(form, more, right, chunked)),
            (200, right),
            "{more} {chunked}"
        );
    }
    // More than anybody reads in one piece.
    let wide = format!("{right}&x={}", "y".repeat(60 << 10));
    for chunked in [false, true] {
        assert!(post(form, "X: y", &wide, chunked).text() == wide, "{chunked}");
    }
    assert_eq!(
        post(&format!("{form}; charset=utf-8"), "X: y", right, false).text(),
        right
    );
    for (kind, body) in [
        (form, "step=three"),
        (form, "xstep=two+words"),
        ("text/plain", right),
        (form, ""),
    ] {
        assert_eq!(post(kind, "X: y", body, false).text(), "other", "{kind} {body}");
    }
    // The bound of the route that answers in the end holds for what was looked at, too.
    assert_eq!(
        text(&post(form, "X: y", "small", false)),
        (413, "413 Content Too Large\n")
    );
    assert_eq!(
        text(&post(form, "X: y", "small", true)),
        (413, "413 Content Too Large\n")
    );
    assert_eq!(post(form, "X: y", "smal", false).text(), "other");
    // Larger than a person fills in: no rule looks at it, and it arrives whole all the same.
    let large = format!("{right}&x={}", "y".repeat(65 << 10));
    assert_eq!(post(form, "X: y", &large, false).text(), "other");
    assert_eq!(post(form, "X: y", &large, true).text(), "other");
}

/// The recipe in place of `try_files $uri @app` of nginx.
#[test]
fn an_application_answers_what_is_no_file() {
    let folder = Sites::folder();
    folder.write("public/a.css", "a{}");
    folder.write("public/sub/b c.js", "b");
    folder.write("public/.secret", "secret");
    let public = folder.join("public");
    let text = recipes("An application whose files the server sends")[0]
        .replace("/usr/share/redmine/public", public.to_str().unwrap())
        .replace("proxy = \"unix:/run/redmine/puma.sock\"", "respond = \"application\"");
    let sites = Sites::start_in(folder, &text);
    let get = |path| sites.get("redmine.example.org", path);
    assert_eq!(get("/a.css?1").text(), "a{}");
    assert_eq!(get("/sub/b%20c.js").text(), "b");
    for path in ["/", "/sub", "/sub/", "/issues/1", "/a.css/x"] {
        assert_eq!(get(path).text(), "application", "{path}");
    }
    assert_eq!(get("/.secret").status, 404);
}

#[test]
fn a_condition_on_the_host_takes_the_names_that_lead_to_its_site() {
    let sites = Sites::start(
        "[[site]]\nhost = \"a.example\"\n\
         [[site.route]]\nrewrite = { pattern = \"^/admin$\", to = \"/no\", if = [{ of = \"host\", is = \"a.example\" }] }\n\
         [[site.route]]\npath = \"/no\"\nrespond = 403\n[[site.route]]\nrespond = \"in\"\n",
    );
    for host in ["a.example", "a.example.", "A.example:80", "a.example.:80"] {
        assert_eq!(sites.get(host, "/admin").status, 403, "{host}");
    }
}
