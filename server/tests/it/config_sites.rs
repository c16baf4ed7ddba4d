//! Sites of a configuration file: which host, route and handler a request gets.

use crate::support::sites::{Sites, send, text};
use crate::support::{Client, Folder, Server, osier};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

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
