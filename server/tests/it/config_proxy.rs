//! A `proxy` route: requests reach the backend, and an upgraded connection survives reloads of other routes.

use crate::support::certs::Authority;
use crate::support::sites::{Sites, send, wait_for};
use crate::support::{Client, Folder};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use testkit::Program;

/// An application that says what it was asked, or echoes when it is asked to upgrade. Ends with the test's process.
fn application() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    address
}

fn serve(mut stream: TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    if head.to_ascii_lowercase().contains("upgrade: websocket") {
        let _ =
            stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
        let mut reader = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut reader, &mut stream);
        if head.starts_with("GET /silent ") {
            // Neither sends nor closes.
            loop {
                thread::park();
            }
        }
        return;
    }
    if let Some(path) = head.lines().find_map(|line| line.strip_prefix("x-file: ")) {
        let fields = "Content-Type: text/own\r\nX-Own: 1\r\nContent-Length: 4\r\nConnection: close\r\n";
        let answer = format!("HTTP/1.1 200 OK\r\nX-Accel-Redirect: {path}\r\n{fields}\r\nnone");
        let _ = stream.write_all(answer.as_bytes());
        return;
    }
    if head.starts_with("GET /events ") {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n");
        // Sends nothing more, until the client has gone.
        let _ = stream.read(&mut byte);
        return;
    }
    if head.starts_with("GET /moved") {
        let to = match head.starts_with("GET /moved/url ") {
            true => format!("http://{}/x", stream.local_addr().unwrap()),
            false => "/x".to_owned(),
        };
        let fields = "Content-Length: 0\r\nConnection: close\r\n";
        let _ = stream.write_all(format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\n{fields}\r\n").as_bytes());
        return;
    }
    if head.starts_with("GET /overloaded ") {
        let fields =
            "Content-Encoding: br\r\nETag: \"1\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nX-Own: 1\r\n";
        let answer =
            format!("HTTP/1.1 502 Bad Gateway\r\n{fields}Content-Length: 2\r\nConnection: close\r\n\r\n\x0b\x02");
        let _ = stream.write_all(answer.as_bytes());
        return;
    }
    let line = head.lines().next().unwrap_or_default();
    let host = head
        .lines()
        .find(|line| line.to_ascii_lowercase().starts_with("host:"))
        .unwrap_or_default();
    let body = format!("{line}|{host}");
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
}

fn file(application: SocketAddr, more: &str) -> String {
    format!(
        "[[site]]\ndefault = true\nerror_pages = {{ 502 = \"404.html\" }}\n[[site.route]]\npath = \"/fixed\"\nrespond = \"@\"\n\
         [[site.route]]\npath = \"/api\"\nproxy = {{ to = \"{application}\", strip = true, host = \"api.internal\" }}\n\
         [[site.route]]\nproxy = \"{application}\"\n{more}"
    )
}

#[test]
fn requests_reach_the_application() {
    let sites = Sites::start(&file(application(), ""));
    assert_eq!(
        sites.get("x.example", "/a?b").text(),
        "GET /a?b HTTP/1.1|host: x.example"
    );
    assert_eq!(
        sites.get("x.example", "/api/v1").text(),
        "GET /v1 HTTP/1.1|host: api.internal"
    );
    // What the route takes as its path, the prefix takes off.
    for path in ["//api/v1", "/%61pi/v1", "///a%70i/v1"] {
        assert_eq!(
            sites.get("x.example", path).text(),
            "GET /v1 HTTP/1.1|host: api.internal",
            "{path}"
        );
    }
    for path in ["/api%2Fv1", "/%2f/a%70i/v1"] {
        assert_eq!(sites.get("x.example", path).status, 400, "{path}");
    }
    let below = sites.get("x.example", "/api/a%2fb");
    assert_eq!(below.text(), "GET /a%2fb HTTP/1.1|host: api.internal");
    assert_eq!(sites.get("x.example", "/fixed").text(), "@");
    let nobody = testkit::nobody();
    let sites = Sites::start(&file(nobody, ""));
    let reply = sites.get("x.example", "/a");
    assert_eq!((reply.status, reply.text()), (502, "<h1>lost</h1>"));
}

#[test]
fn a_file_that_the_application_names_is_sent_if_the_folder_is_configured() {
    let application = application();
    let folder = Sites::folder();
    std::fs::create_dir_all(folder.join("private/a b")).unwrap();
    std::fs::write(folder.join("private/a b/file"), "secret").unwrap();
    std::fs::write(folder.join("outside"), "outside").unwrap();
    std::os::unix::fs::symlink("../outside", folder.join("private/link")).unwrap();
    let proxy = |path: &str, more: &str| {
        format!("[[site.route]]\npath = \"/{path}\"\nproxy = {{ to = \"{application}\"{more} }}\n")
    };
    let text = [
        "[[site]]\ndefault = true\n",
        &proxy(
            "below",
            ", internal_root = \"private\", internal_path = \"/protected/\"",
        ),
        &proxy("all", ", internal_root = \"private\""),
        &proxy("none", ""),
    ]
    .concat();
    let sites = Sites::start_in(folder, &text);
    for (path, named, status, body) in [
        ("/all", "/a%20b/file", 200, "secret"),
        ("/all", "/%61%20b//file?x", 200, "secret"),
        ("/below", "/protected/a%20b/file", 200, "secret"),
        ("/below", "/protectedx/a%20b/file", 404, ""),
        ("/below", "/a%20b/file", 404, ""),
        ("/below", "/protected", 404, ""),
        ("/below", "/protected/%2561%20b/file", 404, ""),
        ("/below", "/protected/../protected/a%20b/file", 502, ""),
        ("/all", "/a%20b", 404, ""),
        ("/all", "/link", 404, ""),
        ("/all", "/%2e%2e/outside", 502, ""),
        ("/all", "//outside", 404, ""),
        ("/all", "https://evil.example/", 502, ""),
    ] {
        let reply = sites.ask("GET", "x", path, &[&format!("x-file: {named}")]);
        assert_eq!(reply.status, status, "{path} {named}: {}", reply.text());
        assert_eq!(reply.field("x-accel-redirect"), None, "{named}");
        assert_eq!(reply.field("location"), None, "{named}");
        if status == 200 {
            assert_eq!(
                (reply.text(), reply.field("content-type")),
                (body, Some("text/own")),
                "{named}"
            );
        }
    }
    assert!(
        sites
            .said()
            .contains("the backend names /protectedx/a b/file, which cannot be sent"),
        "{}",
        sites.said()
    );
    // Another server may be the one that the field is for.
    let reply = sites.ask("GET", "x", "/none", &["x-file: /a"]);
    assert_eq!((reply.text(), reply.field("x-accel-redirect")), ("none", Some("/a")));
}

#[test]
fn a_redirect_of_the_application_leads_back_through_its_route() {
    let application = application();
    let route = |path: &str, more: &str| {
        format!("[[site.route]]\npath = \"/{path}\"\nproxy = {{ to = \"{application}\", strip = true{more} }}\n")
    };
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\n{}{}{}",
        route("usual", ""),
        route("prefix", ", redirects = \"prefix\""),
        route("none", ", redirects = false"),
    ));
    let own = format!("http://{application}/x");
    for (path, expected) in [
        ("/usual/moved/url", "/usual/x"),
        ("/usual/moved", "/x"),
        ("/prefix/moved/url", "/prefix/x"),
        ("/prefix/moved", "/prefix/x"),
        ("/none/moved/url", &own),
        ("/none/moved", "/x"),
    ] {
        let reply = sites.get("x.example", path);
        assert_eq!((reply.status, reply.field("location")), (302, Some(expected)), "{path}");
    }
}

#[test]
fn an_error_page_is_not_described_as_the_body_that_it_replaces() {
    let sites = Sites::start(&file(application(), ""));
    let reply = sites.get("x", "/overloaded");
    assert_eq!((reply.status, reply.text()), (502, "<h1>lost</h1>"));
    for name in ["content-encoding", "etag", "last-modified"] {
        assert_eq!(reply.field(name), None, "{name}");
    }
    assert_eq!(reply.field("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(reply.field("x-own"), Some("1"));
}

fn upgraded(sites: &Sites, path: &str) -> Client {
    let mut client = sites.connect();
    send(
        &mut client,
        "GET",
        "x",
        path,
        &[
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ],
    );
    assert_eq!(client.receive_head().status, 101);
    client
}

#[test]
fn a_tunnel_that_one_side_has_closed_is_cut_when_the_other_is_silent() {
    let application = application();
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\n[[site.route]]\nproxy = {{ to = \"{application}\", tunnel_half_closed = \"200ms\" }}\n"
    ));
    let mut client = upgraded(&sites, "/silent");
    client.stream.shutdown(Shutdown::Write).unwrap();
    // Not the 30 s that it would be.
    client.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn an_upgraded_connection_lives_through_reloads() {
    let text = file(application(), "");
    let sites = Sites::start(&text);
    let mut client = upgraded(&sites, "/socket");
    let mut echo = |text: &str| {
        client.send_raw(text.as_bytes());
        let mut back = vec![0; text.len()];
        client.stream.read_exact(&mut back).unwrap();
        assert_eq!(back, text.as_bytes());
    };
    echo("before");
    assert!(sites.reload(&text.replace('@', "other")).contains("reloaded"));
    wait_for("the new route", || sites.get("x", "/fixed").text() == "other");
    echo("after a reload of another route");
    // Even of its own: who has been connected stays.
    assert!(
        sites
            .reload("[[site]]\ndefault = true\n[[site.route]]\nrespond = 404\n")
            .contains("reloaded")
    );
    assert_eq!(sites.get("x", "/socket").status, 404);
    echo("after its route has gone");
}

#[test]
fn what_stays_open_counts_as_at_the_same_time() {
    const RATE: &str = "rate = { requests = 1000, burst = 1000, concurrent = 2 }\n";
    let to = application();
    // A route for each, so that none waits for the places of another.
    let file = format!(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/chat\"\n{RATE}chat = true\n\
         [[site.route]]\npath = \"/events\"\n{RATE}proxy = \"{to}\"\n[[site.route]]\n{RATE}proxy = \"{to}\"\n"
    );
    let sites = Sites::start(&file);
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (target, fields, status) in [("/chat", upgrade, 101), ("/echo", upgrade, 101), ("/events", "", 200)] {
        let open = || {
            let mut client = sites.connect();
            client.send_raw(format!("GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n").as_bytes());
            let status = client.receive_head().status;
            (client, status)
        };
        let held: Vec<Client> = (0..2)
            .map(|_| {
                let (client, got) = open();
                assert_eq!(got, status, "{target}");
                client
            })
            .collect();
        assert_eq!(open().1, 429, "{target}: a third one");
        drop(held);
        // Both places come back, also after the refused one.
        wait_for("the end of both", || {
            let (one, two) = (open(), open());
            (one.1, two.1) == (status, status)
        });
    }
}

#[test]
fn a_failure_names_the_backend_once_and_the_request_by_its_id() {
    let sites = Sites::start("[[site]]\ndefault = true\n[[site.route]]\nproxy = \"127.0.0.1:1\"\n");
    let reply = sites.get("x", "/x");
    assert_eq!((reply.status, reply.text()), (502, "502 Bad Gateway\n"));
    let said = sites.wait_until_said("failed");
    let line = said.lines().find(|line| line.contains("failed")).unwrap();
    let (about, rest) = line.split_once(" osier: GET /x failed: ").unwrap();
    let id = about.split_once(" id=").unwrap().1;
    assert!(
        id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{line}"
    );
    assert!(rest.starts_with("cannot connect to 127.0.0.1:1: "), "{line}");
    assert_eq!(line.matches("127.0.0.1:1").count(), 1, "{line}");
}

/// A folder with the authorities `ca.pem` and `other.pem`, and OpenSSL's server with a certificate of the first for `app.internal`. Its page
/// is that of every path. None where there is no openssl.
pub fn https_backend() -> Option<(Folder, u16, Program)> {
    let (folder, authority) = (Sites::folder(), Authority::new("backends"));
    authority.write(&folder, "backend", &["app.internal"]);
    folder.write("ca.pem", &authority.pem);
    folder.write("other.pem", Authority::new("others").pem);
    let port = testkit::nobody().port();
    let mut command = Command::new("openssl");
    command
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.args([
        "s_server",
        "-www",
        "-cert",
        "backend.pem",
        "-key",
        "backend.key",
        "-accept",
    ]);
    command.arg(format!("127.0.0.1:{port}"));
    let backend = Program::start(&mut command)?;
    testkit::eventually("openssl listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    Some((folder, port, backend))
}

#[test]
fn a_backend_with_https_is_trusted_by_its_authority() {
    let Some((folder, port, _backend)) = https_backend() else {
        return;
    };
    let text = |keys: &str| {
        let to = format!("to = \"https://127.0.0.1:{port}\"");
        format!("[[site]]\ndefault = true\n[[site.route]]\nproxy = {{ {to}, {keys} }}\n")
    };
    let sites = Sites::start_in(folder, &text("ca = \"ca.pem\", sni = \"app.internal\""));
    let reply = sites.get("x", "/");
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains("TLSv1.3"), "{}", reply.text());
    for (keys, status) in [
        ("ca = \"other.pem\", sni = \"app.internal\"", 502),
        ("ca = \"ca.pem\"", 502),
        ("verify = false", 200),
    ] {
        sites.reload(&text(keys));
        assert_eq!(sites.get("x", "/").status, status, "{keys}");
    }
}

#[test]
fn a_backend_with_h2c_gets_http_2() {
    let backend = Sites::start(
        "log = { file = \"access.log\", format = \"$protocol $target\" }\n[[site]]\ndefault = true\n[[site.route]]\nfiles = \"www\"\n",
    );
    let to = backend.addresses[0];
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/sub\"\nproxy = {{ to = \"h2c://{to}\", health = {{ path = \"/\" }} }}\n\
         [[site.route]]\nproxy = \"h2c://{to}\"\n"
    ));
    for (target, text) in [("/a.txt", "the file a"), ("/sub/", "sub"), ("/", "the index")] {
        assert_eq!(sites.get("x", target).text(), text);
    }
    let log = || std::fs::read_to_string(backend.folder.join("access.log")).unwrap_or_default();
    wait_for("the log of the backend", || {
        ["HTTP/2.0 /a.txt", "HTTP/2.0 /sub/", "HTTP/2.0 /"]
            .iter()
            .all(|line| log().lines().any(|known| known == *line))
    });
    assert!(!log().contains("HTTP/1"), "{}", log());
}

/// Checks begin with the server, before any request. An application may refuse those that name it by its address.
#[test]
fn a_health_check_names_the_host_of_the_application() {
    let backend = Sites::start(
        "log = { file = \"access.log\", format = \"$host $target\" }\n[[site]]\nhost = \"app.example.org\"\n[[site.route]]\nrespond = \"ok\"\n",
    );
    let to = backend.addresses[0];
    let health = "health = { path = \"/health\", host = \"app.example.org\", every = \"20ms\" }";
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\n[[site.route]]\nproxy = {{ to = \"{to}\", {health} }}\n"
    ));
    let log = || std::fs::read_to_string(backend.folder.join("access.log")).unwrap_or_default();
    wait_for("several checks", || {
        log().lines().filter(|line| *line == "app.example.org /health").count() > 3
    });
    assert_eq!(sites.ask("GET", "app.example.org", "/", &[]).status, 200);
    let said = sites.reload(&format!(
        "[[site]]\ndefault = true\n[[site.route]]\nproxy = {{ to = \"{to}\", health = {{ path = \"/\", host = \"a b\" }} }}\n"
    ));
    assert!(said.contains("write a host, with or without a port"), "{said}");
}
