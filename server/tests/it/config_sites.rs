//! Sites of a configuration file: which host, route and handler a request gets, and the policies around the handler.

use crate::support::sites::{Sites, send};
use crate::support::{Client, Folder, Reply, Server, osier};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

fn text(reply: &Reply) -> (u16, &str) {
    (reply.status, reply.text())
}

#[test]
fn the_only_site_is_the_default() {
    let sites = Sites::start("[[site]]\n[[site.route]]\nfiles = \"www\"\n");
    assert_eq!(text(&sites.get("any.example", "/")), (200, "the index"));
    // One that names its hosts answers for no other.
    let said = sites.reload("[[site]]\nhost = \"a.example\"\n[[site.route]]\nfiles = \"www\"\n");
    assert!(said.contains("reloaded"), "{said}");
    assert_eq!(sites.get("any.example", "/").status, 421);
    assert_eq!(sites.get("a.example", "/").status, 200);
}

#[test]
fn a_site_of_six_lines() {
    let sites = Sites::start("[[site]]\ndefault = true\n[[site.route]]\nfiles = \"www\"\n");
    assert!(
        sites.server.ready_line.contains("(1 site, 1 route, 1 listener)"),
        "{}",
        sites.server.ready_line
    );
    assert_eq!(text(&sites.get("any.example", "/")), (200, "the index"));
    assert_eq!(text(&sites.get("any.example", "/a.txt")), (200, "the file a"));
    assert_eq!(sites.get("any.example", "/none").status, 404);
    assert_eq!(sites.get("any.example", "/sub").field("location"), Some("/sub/"));
    let mut client = sites.connect();
    client.send_raw(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.receive("OPTIONS").status, 204);
}

#[test]
fn hosts_are_exact_then_wildcards_then_the_default() {
    let respond = |body: &str| format!("[[site.route]]\nrespond = \"{body}\"\n");
    let file = [
        format!(
            "[[site]]\nhost = [\"example.org\", \"www.example.org\"]\n{}",
            respond("exact")
        ),
        format!("[[site]]\nhost = \"*.example.org\"\n{}", respond("below")),
        format!("[[site]]\nhost = \"*.b.example.org\"\n{}", respond("further below")),
        format!("[[site]]\ndefault = true\n{}", respond("default")),
    ];
    let sites = Sites::start(&file.concat());
    for (host, expected) in [
        ("example.org", "exact"),
        ("Example.ORG:8080", "exact"),
        ("www.example.org", "exact"),
        ("a.example.org", "below"),
        ("a.b.example.org", "further below"),
        ("b.example.org", "below"),
        ("example.com", "default"),
        ("127.0.0.1", "default"),
    ] {
        assert_eq!(text(&sites.get(host, "/")), (200, expected), "{host}");
    }
    // Without a default: nobody answers.
    let sites = Sites::start(&file[..2].concat());
    assert_eq!(sites.get("example.com", "/").status, 421);
    assert_eq!(sites.get("example.org", "/").status, 200);
}

#[test]
fn each_listener_has_its_sites() {
    let sites = Sites::start(
        "[[listen]]\nname = \"a\"\naddress = \"127.0.0.1:0\"\n[[listen]]\nname = \"b\"\naddress = \"127.0.0.1:0\"\n\
         [[site]]\ndefault = true\nlisten = \"a\"\n[[site.route]]\nrespond = \"of a\"\n\
         [[site]]\ndefault = true\nlisten = \"b\"\n[[site.route]]\nrespond = \"of b\"\n\
         [[site]]\nhost = \"both.example\"\nlisten = [\"a\", \"b\"]\n[[site.route]]\nrespond = \"of both\"\n",
    );
    for (address, host, expected) in [
        (0, "x", "of a"),
        (1, "x", "of b"),
        (0, "both.example", "of both"),
        (1, "both.example", "of both"),
    ] {
        let mut client = Client::new(sites.addresses[address]);
        send(&mut client, "GET", host, "/", &[]);
        assert_eq!(client.receive("GET").text(), expected, "{address} {host}");
    }
}

#[test]
fn the_first_route_that_fits_answers() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\n\
         [[site.route]]\npath = \"/api\"\nmethods = \"POST\"\nrespond = \"post\"\n\
         [[site.route]]\npath = \"/api/v1\"\nrespond = \"v1\"\n\
         [[site.route]]\nglob = [\"*.php\", \"*.php/**\"]\nrespond = \"php\"\n\
         [[site.route]]\nglob = \"/img/*.png\"\nrespond = \"png\"\n\
         [[site.route]]\npath = \"/api\"\nmethods = [\"GET\"]\nrespond = \"get\"\n",
    );
    for (method, target, expected) in [
        ("POST", "/api", (200, "post")),
        ("POST", "/api/v1", (200, "post")),
        ("GET", "/api/v1", (200, "v1")),
        ("GET", "/api/v1/x?y", (200, "v1")),
        ("GET", "/api/v2", (200, "get")),
        ("GET", "/x.php", (200, "php")),
        ("GET", "/a/b/x.php", (200, "php")),
        ("GET", "/a/b/x.php/more/path", (200, "php")),
        ("GET", "/x.phps", (404, "404 Not Found\n")),
        ("GET", "/img/a.png", (200, "png")),
        ("GET", "/img/sub/a.png", (404, "404 Not Found\n")),
        ("GET", "/x/img/a.png", (404, "404 Not Found\n")),
        ("DELETE", "/api", (405, "405 Method Not Allowed\n")),
        ("GET", "/apis", (404, "404 Not Found\n")),
    ] {
        let reply = sites.ask(method, "x", target, &[]);
        assert_eq!(text(&reply), expected, "{method} {target}");
        if reply.status == 405 {
            assert_eq!(reply.field("allow"), Some("GET, POST"));
        }
    }
    assert_eq!(sites.ask("HEAD", "x", "/api", &[]).status, 200);
}

#[test]
fn no_spelling_of_a_path_leads_around_a_route() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/admin\"\nrespond = 403\n\
         [[site.route]]\nglob = \"*.php\"\nrespond = 403\n[[site.route]]\nfiles = \"www\"\n",
    );
    for target in [
        "/admin",
        "/admin/",
        "/admin/x",
        "//admin",
        "///admin//x",
        "/%61dmin",
        "/admin?x",
        "/x.ph%70",
        "//x.php",
    ] {
        assert_eq!(sites.get("x", target).status, 403, "{target}");
    }
    for target in [
        "/a/../admin",
        "/./admin",
        "/%2e/admin",
        "/a/%2e%2e/admin",
        "/a%2f..%2fadmin",
        // A reader that takes an encoded slash for one would be sent elsewhere.
        "/%2Fadmin",
        "/admin%2Fx",
        "/%61dmin%2F%2fx",
        "/%00admin",
        "/%zz",
    ] {
        assert_eq!(sites.get("x", target).status, 400, "{target}");
    }
}

#[test]
fn files_below_a_path() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/static\"\n\
         files = { root = \"www\", strip = true, cache = \"max-age=60\", listing = true }\n\
         [[site.route]]\npath = \"/list\"\nfiles = { root = \"www/sub\", strip = true, index = \"none.html\", listing = true }\n\
         [[site.route]]\nfiles = { root = \"other\", spa = true }\n",
    );
    let reply = sites.get("x", "/static/a.txt");
    assert_eq!(
        (text(&reply), reply.field("cache-control")),
        ((200, "the file a"), Some("max-age=60"))
    );
    assert_eq!(sites.get("x", "/static/none").field("cache-control"), None);
    assert!(sites.get("x", "/list/").text().contains("index.html"));
    assert_eq!(text(&sites.get("x", "/any/page")), (200, "the other index"));
}

#[test]
fn redirects() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\n\
         [[site.route]]\npath = \"/old\"\nredirect = { to = \"https://new.example{rest}{query}\", status = 301 }\n\
         [[site.route]]\npath = \"/host\"\nredirect = { to = \"https://{host}{path}\", status = 302 }\n\
         [[site.route]]\npath = \"/fixed\"\nredirect = \"/elsewhere\"\n\
         [[site.route]]\npath = \"/slash\"\nredirect = \"/{rest}{query}\"\n\
         [[site.route]]\npath = \"/rest\"\nredirect = \"{rest}{query}\"\n\
         [[site.route]]\nredirect = { to = \"{path}\", status = 307 }\n",
    );
    for (target, status, location) in [
        ("/old/a%20b?c=d", 301, "https://new.example/a%20b?c=d"),
        ("/old", 301, "https://new.example"),
        ("/host/x", 302, "https://h.example/host/x"),
        ("/fixed/any?q", 308, "/elsewhere"),
        // Never another host, whatever the path looks like.
        ("/slash/evil.example?q", 308, "/evil.example?q"),
        ("/slash//evil.example", 308, "/evil.example"),
        ("/slash/%2F%2Fevil.example", 308, "/%2F%2Fevil.example"),
        ("/slash", 308, "/"),
        ("/rest/evil.example?q", 308, "/evil.example?q"),
        ("/rest?q", 308, "/?q"),
        ("//evil.example/x", 307, "/evil.example/x"),
        ("/%2Fevil.example", 307, "/%2Fevil.example"),
        ("/%5cevil.example", 307, "/%5Cevil.example"),
        ("/100%25", 307, "/100%25"),
    ] {
        let reply = sites.get("h.example:81", target);
        assert_eq!(
            (reply.status, reply.field("location")),
            (status, Some(location)),
            "{target}"
        );
    }
    // Its path would stand in place of the host.
    let mut client = Client::new(sites.addresses[0]);
    client.send_raw(b"GET /host/evil.example HTTP/1.0\r\n\r\n");
    let reply = client.receive("GET");
    assert_eq!((reply.status, reply.field("location")), (400, None));
}

#[test]
fn fixed_answers() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\n\
         [[site.route]]\npath = \"/gone\"\nrespond = 410\n\
         [[site.route]]\npath = \"/robots.txt\"\nrespond = \"User-agent: *\\nDisallow: /\\n\"\n\
         [[site.route]]\npath = \"/page\"\nrespond = { status = 503, file = \"404.html\" }\nheaders = { Retry-After = \"60\" }\n\
         [[site.route]]\npath = \"/json\"\nrespond = { body = \"{}\", content_type = \"application/json\" }\n",
    );
    assert_eq!(text(&sites.get("x", "/gone")), (410, "410 Gone\n"));
    let reply = sites.get("x", "/robots.txt");
    assert_eq!(text(&reply), (200, "User-agent: *\nDisallow: /\n"));
    assert_eq!(reply.field("content-type"), Some("text/plain; charset=utf-8"));
    let reply = sites.get("x", "/page");
    assert_eq!(text(&reply), (503, "<h1>lost</h1>"));
    assert_eq!(reply.field("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(reply.field("retry-after"), Some("60"));
    assert_eq!(sites.get("x", "/json").field("content-type"), Some("application/json"));
}

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
fn what_is_still_being_sent_counts_as_at_the_same_time() {
    let folder = Sites::folder();
    folder.write("www/large.bin", crate::support::pattern(32 << 20));
    let sites = Sites::start_in(
        folder,
        "[[site]]\n[[site.route]]\nrate = { requests = 1000, per = \"1s\", burst = 1000, concurrent = 1 }\nfiles = \"www\"\n",
    );
    let mut slow = sites.connect();
    send(&mut slow, "GET", "x", "/large.bin", &[]);
    assert_eq!(slow.receive_head().status, 200);
    assert_eq!(sites.get("x", "/a.txt").status, 429);
    drop(slow);
    crate::support::sites::wait_for("the end of the first", || sites.get("x", "/a.txt").status == 200);
    assert_eq!(sites.get("x", "/a.txt").status, 200);
}

#[test]
fn fields_and_error_pages() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\nheaders = { X-Frame-Options = \"DENY\", Link = [\"</a>\", \"</b>\"] }\n\
         error_pages = { 404 = \"404.html\", 403 = \"404.html\", 400 = \"404.html\" }\n\
         [[site.route]]\npath = \"/no\"\ndeny = [\"127.0.0.0/8\"]\nrespond = \"never\"\n\
         [[site.route]]\npath = \"/bare\"\nheaders = { Link = false, X-Route = \"1\" }\nrespond = \"bare\"\n\
         [[site.route]]\npath = \"/files\"\nfiles = { root = \"www\", strip = true }\n",
    );
    for target in ["/files/none", "/nowhere", "/no/x", "/%zz"] {
        let reply = sites.get("x", target);
        assert_eq!(reply.text(), "<h1>lost</h1>", "{target}");
        assert_eq!(
            reply.field("content-type"),
            Some("text/html; charset=utf-8"),
            "{target}"
        );
        assert_eq!(reply.field("x-frame-options"), Some("DENY"), "{target}");
    }
    assert_eq!(sites.get("x", "/nowhere").status, 404);
    assert_eq!(sites.get("x", "/no").status, 403);
    let reply = sites.get("x", "/files/a.txt");
    let links = reply.fields.iter().filter(|(name, _)| name == "link").count();
    assert_eq!((reply.status, links), (200, 2));
    let reply = sites.get("x", "/bare");
    assert_eq!(
        (reply.field("x-route"), reply.field("x-frame-options")),
        (Some("1"), Some("DENY"))
    );
}

#[test]
fn fields_of_a_route_replace_those_of_its_site() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\nheaders = { X-Both = \"site\", X-Site = \"1\", X-Gone = [\"1\", \"2\"], X-Back = false }\n\
         [[site.route]]\npath = \"/route\"\nheaders = { x-both = [\"a\", \"b\"], X-Gone = false, X-Back = \"1\" }\nrespond = \"x\"\n\
         [[site.route]]\nrespond = \"x\"\n",
    );
    let fields = |target| -> Vec<(String, String)> {
        let reply = sites.get("x", target);
        let ours = reply.fields.iter().filter(|(name, _)| name.starts_with("x-"));
        ours.map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    };
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    };
    let expected = pairs(&[("x-site", "1"), ("x-both", "a"), ("x-both", "b"), ("x-back", "1")]);
    assert_eq!(fields("/route"), expected);
    let expected = pairs(&[("x-both", "site"), ("x-site", "1"), ("x-gone", "1"), ("x-gone", "2")]);
    assert_eq!(fields("/"), expected);
}

#[test]
fn addresses_rates_passwords_and_origins() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\nallow = \"192.0.2.0/24\"\n\
         [[site.route]]\npath = \"/inherited\"\nrespond = \"x\"\n\
         [[site.route]]\npath = \"/open\"\nallow = [\"127.0.0.1\"]\nrespond = \"open\"\n\
         [[site.route]]\npath = \"/slow\"\nallow = [\"127.0.0.1\"]\nrate = { requests = 2, per = \"1h\" }\nrespond = \"slow\"\n\
         [[site.route]]\npath = \"/cors\"\nallow = [\"127.0.0.1\"]\ncors = { origins = \"https://a.example\", methods = \"PUT\" }\n\
         respond = \"cors\"\n",
    );
    assert_eq!(sites.get("x", "/inherited").status, 403);
    assert_eq!(sites.get("x", "/open").text(), "open");
    assert_eq!(sites.get("x", "/slow").status, 200);
    assert_eq!(sites.get("x", "/slow").status, 200);
    let reply = sites.get("x", "/slow");
    assert_eq!(reply.status, 429);
    assert!(reply.field("retry-after").is_some(), "{reply:?}");
    let fields = ["Origin: https://a.example", "Access-Control-Request-Method: PUT"];
    let reply = sites.ask("OPTIONS", "x", "/cors", &fields);
    assert_eq!(
        (reply.status, reply.field("access-control-allow-origin")),
        (204, Some("https://a.example"))
    );
    let reply = sites.ask("GET", "x", "/cors", &fields[..1]);
    assert_eq!(
        (reply.text(), reply.field("access-control-allow-origin")),
        ("cors", Some("https://a.example"))
    );
    let reply = sites.ask("GET", "x", "/cors", &["Origin: https://b.example"]);
    assert_eq!(
        (reply.text(), reply.field("access-control-allow-origin")),
        ("cors", None)
    );
}

#[test]
fn bodies_have_the_bound_of_their_route() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\nlimits = { body = 10 }\n\
         [[site.route]]\npath = \"/large\"\nlimits = { body = \"3MiB\" }\nrespond = \"large\"\n\
         [[site.route]]\nrespond = \"small\"\n",
    );
    for (target, length, status) in [
        ("/large", 3 << 20, 200),
        ("/large", (3 << 20) + 1, 413),
        ("/", 10, 200),
        ("/", 11, 413),
    ] {
        let mut client = sites.connect();
        send(
            &mut client,
            "POST",
            "x",
            target,
            &[&format!("Content-Length: {length}")],
        );
        let reply = client.receive("POST");
        assert_eq!(reply.status, status, "{target} {length}");
    }
    // The default, where nobody says.
    let sites = Sites::start("[[site]]\ndefault = true\n[[site.route]]\nrespond = \"x\"\n");
    for (length, status) in [(2 << 20, 200), ((2 << 20) + 1, 413)] {
        let mut client = sites.connect();
        send(&mut client, "POST", "x", "/", &[&format!("Content-Length: {length}")]);
        assert_eq!(client.receive("POST").status, status, "{length}");
    }
}

#[test]
fn mistakes_and_missing_listeners_serve_nothing() {
    let folder = Folder::new();
    folder.write("bad.toml", "worker = 1\n");
    let output = osier().arg("bad.toml").current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.starts_with("bad.toml:1:1: ") && said.contains("unknown key 'worker'"),
        "{said}"
    );
    assert!(output.stdout.is_empty());

    let other = Sites::start("[[site]]\ndefault = true\n[[site.route]]\nrespond = 404\n");
    let taken = other.addresses[0];
    let text = format!("[[listen]]\naddress = \"{taken}\"\n[[site]]\ndefault = true\n[[site.route]]\nrespond = 404\n");
    folder.write("taken.toml", text);
    let output = osier()
        .arg("serve")
        .arg("taken.toml")
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains(&taken.to_string()) && said.contains("'address'"),
        "{said}"
    );
}

#[test]
fn a_signal_ends_it() {
    let mut sites = Sites::start("[[site]]\ndefault = true\n[[site.route]]\nfiles = \"www\"\n");
    assert_eq!(sites.get("x", "/").status, 200);
    sites.server.signal(crate::support::Signal::TERM);
    assert_eq!(sites.server.wait().code(), Some(0));
    let _: &Server = &sites.server;
}

#[test]
fn each_route_has_its_log() {
    let mut sites = Sites::start(
        "log = { file = \"all.log\" }\n\
         [[site]]\nhost = \"a.example\"\nlog = { file = \"a.log\", format = \"json\" }\n\
         [[site.route]]\npath = \"/quiet\"\nlog = false\nrespond = \"x\"\n\
         [[site.route]]\npath = \"/own\"\nlog = { file = \"own.log\" }\nrespond = \"x\"\n\
         [[site.route]]\nrespond = \"x\"\n\
         [[site]]\nhost = \"b.example\"\n[[site.route]]\npath = \"/b\"\nrespond = \"x\"\n",
    );
    for (host, target) in [
        ("a.example", "/a1"),
        ("a.example", "/quiet"),
        ("a.example", "/own"),
        ("b.example", "/b"),
        ("b.example", "/missing"),
        ("nobody.example", "/nobody"),
    ] {
        sites.get(host, target);
    }
    sites.server.signal(crate::support::Signal::TERM);
    assert_eq!(sites.server.wait().code(), Some(0));
    let log = |name: &str| std::fs::read_to_string(sites.folder.join(name)).unwrap();
    let targets = |name: &str| {
        let log = log(name);
        let of = |line: &str| {
            ["/a1", "/quiet", "/own", "/b ", "/missing", "/nobody"]
                .into_iter()
                .find(|target| line.contains(target))
        };
        log.lines().map(|line| of(line).unwrap_or("?")).collect::<Vec<_>>()
    };
    assert!(log("a.log").starts_with("{\"time\":"), "{}", log("a.log"));
    assert!(log("a.log").contains("\"target\":\"/a1\""));
    assert_eq!((targets("a.log"), targets("own.log")), (vec!["/a1"], vec!["/own"]));
    assert_eq!(targets("all.log"), ["/b ", "/missing", "/nobody"]);
}

#[test]
fn trusted_peers_say_whom_they_speak_for() {
    let site = "[[site]]\ndefault = true\n[[site.route]]\nallow = \"192.0.2.7\"\nrespond = \"in\"\n";
    let listen =
        |trusted: &str| format!("[[listen]]\naddress = \"127.0.0.1:0\"\nproxy_protocol = \"{trusted}\"\n{site}");
    let ask = |sites: &Sites, line: &str| {
        let mut client = sites.connect();
        client.send_raw(line.as_bytes());
        send(&mut client, "GET", "x", "/", &[]);
        client.receive("GET").status
    };
    let sites = Sites::start(&listen("127.0.0.0/8"));
    assert_eq!(ask(&sites, "PROXY TCP4 192.0.2.7 127.0.0.1 1 2\r\n"), 200);
    assert_eq!(ask(&sites, "PROXY TCP4 192.0.2.8 127.0.0.1 1 2\r\n"), 403);
    // Somebody else is taken for who he is, and his announcement for a bad request.
    let sites = Sites::start(&listen("10.0.0.0/8"));
    assert_eq!(ask(&sites, ""), 403);
    assert_eq!(ask(&sites, "PROXY TCP4 192.0.2.7 127.0.0.1 1 2\r\n"), 400);
}

#[test]
fn text_is_compressed_for_who_asks() {
    let folder = Sites::folder();
    folder.write("www/long.txt", "compress me ".repeat(1000));
    let long = "x".repeat(5000);
    let sites = Sites::start_in(
        folder,
        &format!(
            "[[site]]\ndefault = true\ncompress = true\n[[site.route]]\npath = \"/plain\"\ncompress = false\nrespond = \"{long}\"\n\
             [[site.route]]\npath = \"/fixed\"\nrespond = \"{long}\"\n[[site.route]]\nfiles = \"www\"\n"
        ),
    );
    for (target, coding) in [("/fixed", Some("gzip")), ("/plain", None), ("/long.txt", Some("gzip"))] {
        let reply = sites.ask("GET", "x", target, &["Accept-Encoding: gzip"]);
        assert_eq!(
            (reply.status, reply.field("content-encoding")),
            (200, coding),
            "{target}"
        );
        assert_eq!(sites.get("x", target).field("content-encoding"), None, "{target}");
    }
}

#[test]
fn a_site_asks_for_a_password_and_a_route_may_not() {
    let hash = "$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW";
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\nauth = {{ realm = \"all\", users = {{ ada = \"{hash}\" }} }}\n\
         [[site.route]]\npath = \"/open\"\nauth = false\nrespond = \"open\"\n\
         [[site.route]]\npath = \"/own\"\nauth = {{ realm = \"own\", users = {{ bob = \"{hash}\" }} }}\nrespond = \"own\"\n\
         [[site.route]]\npath = \"/again\"\nmethods = \"PUT\"\nrespond = \"x\"\n\
         [[site.route]]\nfiles = \"www\"\n"
    ));
    // ada:sesame, bob:sesame, ada:wrong
    let [ada, bob, wrong] = ["YWRhOnNlc2FtZQ==", "Ym9iOnNlc2FtZQ==", "YWRhOndyb25n"];
    let ask = |target: &str, who: &str| {
        let field = format!("Authorization: Basic {who}");
        sites.ask("GET", "x", target, &[&field])
    };
    for (target, realm) in [("/", "all"), ("/a.txt", "all"), ("/none", "all"), ("/own", "own")] {
        let reply = sites.get("x", target);
        let challenge = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"");
        assert_eq!(
            (reply.status, reply.field("www-authenticate")),
            (401, Some(&*challenge)),
            "{target}"
        );
    }
    assert_eq!(text(&sites.get("x", "/open")), (200, "open"));
    assert_eq!(text(&ask("/a.txt", ada)), (200, "the file a"));
    assert_eq!(text(&ask("/own", bob)), (200, "own"));
    for (target, who) in [("/a.txt", bob), ("/own", ada), ("/a.txt", wrong), ("/own", wrong)] {
        assert_eq!(ask(target, who).status, 401, "{target}");
    }
}

#[test]
fn an_answer_that_does_not_begin_in_time_is_504() {
    // Listens, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let folder = Sites::folder();
    folder.write("www/large.bin", crate::support::pattern(8 << 20));
    let sites = Sites::start_in(
        folder,
        &format!(
            "[[site]]\ndefault = true\nlimits = {{ time = \"300ms\" }}\nerror_pages = {{ 504 = \"404.html\" }}\n\
             [[site.route]]\npath = \"/silent\"\nproxy = \"127.0.0.1:{port}\"\n\
             [[site.route]]\npath = \"/patient\"\nlimits = {{ time = \"1h\" }}\nproxy = \"127.0.0.1:{port}\"\n\
             [[site.route]]\nfiles = \"www\"\n"
        ),
    );
    assert_eq!(text(&sites.get("x", "/silent")), (504, "<h1>lost</h1>"));
    // For the head alone: a client may take its time over the body.
    let mut slow = sites.connect();
    send(&mut slow, "GET", "x", "/large.bin", &[]);
    assert_eq!(slow.receive_head().status, 200);
    let mut patient = sites.connect();
    send(&mut patient, "GET", "x", "/patient", &[]);
    assert_eq!(sites.get("x", "/silent").status, 504);
    patient.stream.set_nonblocking(true).unwrap();
    let nothing = patient.stream.read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    let left = (8 << 20) - slow.take_unread().len();
    assert_eq!(
        (&slow.stream).take(left as u64).read_to_end(&mut Vec::new()).unwrap(),
        left
    );
}

#[test]
fn clients_of_a_unix_socket_have_no_address() {
    let route = |path: &str, rule: &str| format!("[[site.route]]\npath = \"/{path}\"\n{rule}\nrespond = \"{path}\"\n");
    let sites = Sites::start(
        &[
            "[[listen]]\naddress = \"127.0.0.1:0\"\n[[listen]]\naddress = \"unix:o.sock\"\nproxy_protocol = \"unix\"\n\
             [[listen]]\naddress = \"unix:p.sock\"\n[[site]]\ndefault = true\nlog = { file = \"access.log\" }\n"
                .to_owned(),
            route("unix", "allow = \"unix\""),
            route("not-unix", "deny = [\"unix\"]"),
            route("all-addresses", "allow = [\"0.0.0.0/0\", \"::/0\"]"),
            route("no-address", "deny = [\"0.0.0.0/0\", \"::/0\"]"),
            route("both", "allow = [\"unix\", \"127.0.0.1\"]"),
            route("rated", "rate = { requests = 1, per = \"1h\" }"),
            "[[site.route]]\nrewrite = { pattern = \"^/who$\", to = \"/unix\", if = [{ of = \"client\", is = \"unix\" }] }\n"
                .to_owned(),
            "[[site.route]]\nrespond = \"else\"\n".to_owned(),
        ]
        .concat(),
    );
    let over = |socket: &str, before: &str, path: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(sites.folder.join(socket)).unwrap();
        stream.set_read_timeout(Some(crate::support::DEADLINE)).unwrap();
        let request = format!("{before}GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply[9..12].parse::<u16>().unwrap()
    };
    let header = "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
    for (path, tcp, unix, through) in [
        ("unix", 403, 200, 403),
        ("not-unix", 200, 403, 200),
        ("all-addresses", 200, 403, 200),
        ("no-address", 403, 200, 403),
        ("both", 200, 200, 403),
        ("who", 200, 200, 200),
    ] {
        assert_eq!(sites.get("x", &format!("/{path}")).status, tcp, "{path} over TCP");
        assert_eq!(over("p.sock", "", path), unix, "{path} over a Unix socket");
        assert_eq!(over("o.sock", header, path), through, "{path} through a balancer");
    }
    let logged = || {
        let log = std::fs::read_to_string(sites.folder.join("access.log")).unwrap_or_default();
        let lines = log.lines().filter(|line| line.contains("\"GET /both "));
        let mut clients: Vec<_> = lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        clients.sort();
        clients
    };
    crate::support::sites::wait_for("the lines of the log", || {
        logged() == ["127.0.0.1", "192.0.2.1", "unix"]
    });
    // All of them are one client to a rate; whoever a balancer tells is another.
    assert_eq!((over("p.sock", "", "rated"), over("p.sock", "", "rated")), (200, 429));
    assert_eq!(
        (over("o.sock", header, "rated"), sites.get("x", "/rated").status),
        (200, 200)
    );
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

#[test]
fn the_built_in_site_as_a_route() {
    let file = "drain = \"600s\"\n[[site]]\nhost = \"localhost\"\n[[site.route]]\nwelcome = true\n\
                [[site]]\nhost = \"all.localhost\"\n[[site.route]]\nwelcome = { live_for_all = true }\n\
                [[site]]\ndefault = true\n[[site.route]]\nfiles = \"www\"\n";
    let mut sites = Sites::start(file);
    for (target, part) in [
        ("/", "Osier is running"),
        ("/chat", "Chat"),
        ("/docs/rewrite.md", "# Rewriting"),
        ("/hello", "hello"),
    ] {
        let reply = sites.get("localhost", target);
        assert!(
            reply.status == 200 && reply.text().contains(part),
            "{target}: {reply:?}"
        );
    }
    assert_eq!(sites.get("localhost", "/none").status, 404);
    assert_eq!(sites.ask("POST", "localhost", "/live/fibers", &[]).status, 405);
    assert_eq!(text(&sites.get("other", "/")), (200, "the index"));
    assert!(sites.get("localhost", "/live/fibers").text().contains("fiber"));
    // For this machine alone, unless that is said.
    for (host, status) in [("localhost", 403), ("all.localhost", 200)] {
        let reply = sites.ask("GET", host, "/live/fibers", &["X-Forwarded-For: 203.0.113.7"]);
        assert_eq!(reply.status, status, "{host}");
    }
    // What all listeners do is shown, on this connection and on others.
    let stream = |sites: &Sites| {
        let mut viewer = sites.connect();
        send(&mut viewer, "GET", "localhost", "/live/events", &[]);
        assert_eq!(viewer.receive_head().status, 200);
        viewer
    };
    let mut viewer = stream(&sites);
    let mut seen = String::from_utf8(viewer.take_unread()).unwrap();
    while !seen.contains("\"connections\":1") || !seen.contains("\"requests\":") {
        let mut piece = [0; 4096];
        let count = viewer.stream.read(&mut piece).unwrap();
        assert!(count > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&piece[..count]).unwrap());
    }
    // A reload that leaves it alone does not end the stream; one that takes it away does.
    assert!(sites.hang_up().contains("reloaded"));
    assert!(viewer.stream.read(&mut [0; 4096]).unwrap() > 0);
    assert!(
        sites
            .reload(&file.replace(
                "[[site.route]]\nwelcome = true\n",
                "[[site.route]]\nrespond = \"gone\"\n"
            ))
            .contains("reloaded")
    );
    let mut rest = Vec::new();
    while !rest.ends_with(b"\r\n0\r\n\r\n") && rest != b"0\r\n\r\n" {
        let mut piece = [0; 4096];
        let count = viewer.stream.read(&mut piece).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&rest));
        rest.extend_from_slice(&piece[..count]);
    }
    assert_eq!(sites.get("localhost", "/").text(), "gone");
    // Nor does a server that ends wait for its viewers.
    assert!(sites.reload(file).contains("reloaded"));
    let mut viewer = stream(&sites);
    sites.server.signal(crate::support::Signal::TERM);
    assert!(sites.server.wait().success());
    assert!(viewer.receive_rest().ends_with(b"0\r\n\r\n"));
}

#[test]
fn a_unix_socket() {
    let sites = Sites::start(
        "[[listen]]\naddress = \"127.0.0.1:0\"\n[[listen]]\naddress = \"unix:o.sock\"\nmode = \"0600\"\n\
         [[site]]\ndefault = true\n[[site.route]]\nfiles = \"www\"\n",
    );
    let path = sites.folder.join("o.sock");
    assert!(
        sites.server.ready_line.contains("o.sock"),
        "{}",
        sites.server.ready_line
    );
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(crate::support::DEADLINE)).unwrap();
    stream
        .write_all(b"GET /a.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(
        reply.starts_with("HTTP/1.1 200 ") && reply.ends_with("the file a"),
        "{reply}"
    );
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
