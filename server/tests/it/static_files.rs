//! Responses for the paths of a folder: files, types, folders, listings, methods, the single-page fallback, added header fields.

use crate::support::{Folder, Server, pattern};

#[test]
fn files_of_every_size_arrive_unchanged() {
    let folder = Folder::new();
    let sizes = [0, 1, 100, 16 * 1024, 32 * 1024, 32 * 1024 + 1, 1 << 20, (5 << 20) + 7];
    for size in sizes {
        folder.write(format!("{size}.bin"), pattern(size));
    }
    let server = Server::start(&folder, &[]);
    let mut client = server.connect();
    // Twice, so that the second comes from the cache; all on one connection, so that framing errors show.
    for size in sizes.into_iter().chain(sizes) {
        let target = format!("/{size}.bin");
        client.send("HEAD", &target, &[]);
        let head = client.receive("HEAD");
        client.send("GET", &target, &[]);
        let reply = client.receive("GET");
        assert_eq!((head.status, reply.status), (200, 200), "{target}");
        assert!(
            reply.body == pattern(size),
            "{target}: {} bytes, or others",
            reply.body.len()
        );
        assert_eq!(
            head.field("content-length"),
            Some(size.to_string().as_str()),
            "{target}"
        );
        assert_eq!(head.field("etag"), reply.field("etag"), "{target}");
        for needed in ["date", "etag", "last-modified", "accept-ranges", "content-type"] {
            assert!(
                reply.field(needed).is_some(),
                "{target} lacks {needed}: {:?}",
                reply.fields
            );
        }
    }
}

#[test]
fn files_that_are_on_disk_only_arrive_too() {
    let folder = Folder::new();
    let sizes = [100, 30_000, 3 << 20];
    for size in sizes {
        let path = folder.write(size.to_string(), pattern(size));
        let file = std::fs::File::open(path).unwrap();
        file.sync_all().unwrap();
        // Where the folder lies in memory for good, this changes nothing, and the test repeats another one.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
    let server = Server::start(&folder, &["-w", "1"]);
    for size in sizes {
        let reply = server.get(&format!("/{size}"));
        assert!(
            reply.status == 200 && reply.body == pattern(size),
            "{size}: {}",
            reply.status
        );
    }
}

#[test]
fn types_carry_their_charset() {
    let folder = Folder::new();
    let expected = [
        ("a.html", "text/html; charset=utf-8"),
        ("a.css", "text/css; charset=utf-8"),
        ("a.js", "text/javascript; charset=utf-8"),
        ("a.json", "application/json; charset=utf-8"),
        ("a.svg", "image/svg+xml; charset=utf-8"),
        ("a.png", "image/png"),
        ("a.wasm", "application/wasm"),
        ("a.unknown", "application/octet-stream"),
    ];
    for (name, _) in expected {
        folder.write(name, "x");
    }
    let server = Server::start(&folder, &[]);
    for (name, mime) in expected {
        assert_eq!(
            server.get(&format!("/{name}")).field("content-type"),
            Some(mime),
            "{name}"
        );
    }
}

#[test]
fn paths() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    folder.write("sub/index.html", "index of sub");
    folder.write("sub/b c.txt", "b c");
    folder.write("sub/ä.txt", "umlaut");
    folder.write("plain/c.txt", "c");
    folder.write("100%.txt", "percent");
    folder.write(".env", "secret");
    folder.write(".git/config", "secret");
    folder.write("sub/.hidden/x.txt", "secret");
    folder.write(".well-known/security.txt", "contact");
    let server = Server::start(&folder, &[]);
    for (target, status, body) in [
        ("/a.txt", 200, "a"),
        ("/a.txt?query=/../x", 200, "a"),
        ("//a.txt", 200, "a"),
        ("/./a.txt", 400, "400 Bad Request\n"),
        ("/sub/../a.txt", 400, "400 Bad Request\n"),
        ("/sub/%2e%2e/a.txt", 400, "400 Bad Request\n"),
        ("/%61.txt", 200, "a"),
        ("/sub/", 200, "index of sub"),
        ("/sub/b%20c.txt", 200, "b c"),
        ("/sub/%C3%A4.txt", 200, "umlaut"),
        ("/100%25.txt", 200, "percent"),
        ("/.well-known/security.txt", 200, "contact"),
        ("/missing", 404, "404 Not Found\n"),
        ("/missing/", 404, "404 Not Found\n"),
        ("/a.txt/", 404, "404 Not Found\n"),
        ("/a.txt/b", 404, "404 Not Found\n"),
        ("/.env", 404, "404 Not Found\n"),
        ("/%2eenv", 404, "404 Not Found\n"),
        ("/.git/config", 404, "404 Not Found\n"),
        ("/.git/", 404, "404 Not Found\n"),
        ("/sub/.hidden/x.txt", 404, "404 Not Found\n"),
        ("/sub/.well-known/x", 404, "404 Not Found\n"),
        ("/a.txt%00.html", 400, "400 Bad Request\n"),
        ("/100%.txt", 400, "400 Bad Request\n"),
        ("/%zz", 400, "400 Bad Request\n"),
    ] {
        let reply = server.get(target);
        assert_eq!((reply.status, reply.text()), (status, body), "{target}");
    }
}

#[test]
fn a_folder_without_its_slash_is_redirected_on_this_host() {
    let folder = Folder::new();
    folder.write("sub dir/x/index.html", "x");
    folder.write("evil.example/index.html", "x");
    let server = Server::start(&folder, &[]);
    for (target, location) in [
        ("/evil.example", "/evil.example/"),
        ("//evil.example", "/evil.example/"),
        ("///evil.example", "/evil.example/"),
        ("//evil.example?a=b&c=//d", "/evil.example/?a=b&c=//d"),
        ("/sub%20dir", "/sub%20dir/"),
        ("/sub%20dir/x?y", "/sub%20dir/x/?y"),
    ] {
        let reply = server.get(target);
        assert_eq!(
            (reply.status, reply.field("location")),
            (301, Some(location)),
            "{target}"
        );
    }
}

#[test]
fn listings() {
    let folder = Folder::new();
    folder.write("sub/<b>.txt", "12345");
    folder.write("sub/.hidden", "");
    folder.write("sub/deeper/x", "");
    let server = Server::start(&folder, &[]);
    let reply = server.get("/sub/");
    assert_eq!(
        (reply.status, reply.field("content-type")),
        (200, Some("text/html; charset=utf-8"))
    );
    let page = reply.text();
    for part in [
        "<title>/sub/</title>",
        "href=\"../\"",
        "href=\"deeper/\"",
        "href=\"%3Cb%3E.txt\">&lt;b&gt;.txt</a><td>5 B<td>",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(!page.contains("hidden"), "{page}");
    assert_eq!(server.get("/sub/%3Cb%3E.txt").text(), "12345");
    assert_eq!(server.get("/").status, 200);

    let silent = Server::start(&folder, &["--no-listing"]);
    assert_eq!(silent.get("/sub/").status, 404);
    assert_eq!(silent.get("/").status, 404);
    assert_eq!(silent.get("/sub/%3Cb%3E.txt").status, 200);
}

#[test]
fn methods() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    let server = Server::start(&folder, &[]);
    for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "get"] {
        let reply = server.ask(method, "/a.txt", &["Content-Length: 0"]);
        assert_eq!(
            (reply.status, reply.field("allow")),
            (405, Some("GET, HEAD, OPTIONS")),
            "{method}"
        );
    }
    for target in ["/a.txt", "/missing"] {
        let reply = server.ask("OPTIONS", target, &[]);
        assert_eq!(
            (reply.status, reply.field("allow")),
            (204, Some("GET, HEAD, OPTIONS")),
            "{target}"
        );
    }
    // The server as a whole: sites differ in what they take.
    assert_eq!(server.ask("OPTIONS", "*", &[]).status, 204);
    let head = server.ask("HEAD", "/missing", &[]);
    assert_eq!((head.status, head.field("content-length")), (404, Some("14")));
}

#[test]
fn single_page_applications() {
    let folder = Folder::new();
    folder.write("index.html", "the application");
    folder.write("app.css", "css");
    folder.write("docs/index.html", "docs");
    folder.write("assets/x.png", "png");
    let server = Server::start(&folder, &["--spa"]);
    let html = "Accept: text/html,application/xhtml+xml,*/*;q=0.8";
    for (target, accept, status, body) in [
        ("/", html, 200, "the application"),
        ("/users/7", html, 200, "the application"),
        ("/users/7?tab=x", html, 200, "the application"),
        ("/users/7", "Accept: */*", 200, "the application"),
        ("/assets/", html, 200, "the application"),
        ("/docs/", html, 200, "docs"),
        ("/app.css", html, 200, "css"),
        ("/users/7", "Accept: application/json", 404, "404 Not Found\n"),
        ("/missing.css", html, 404, "<h1>404 Not Found</h1>"),
        ("/users/x.js", html, 404, "<h1>404 Not Found</h1>"),
        ("/.env", html, 404, "<h1>404 Not Found</h1>"),
        ("/.git/config", html, 404, "<h1>404 Not Found</h1>"),
    ] {
        let reply = server.get_with(target, &[accept]);
        let is_page = body.starts_with("<h1>") && reply.text().contains(body);
        assert!(
            reply.status == status && (is_page || reply.text() == body),
            "{target} {accept}: {reply:?}"
        );
    }
    // The page has one tag, whatever path it is reached by; a range and a condition work on it.
    let tag = server.get("/").field("etag").unwrap().to_string();
    assert_eq!(server.get_with("/a/b", &[&format!("If-None-Match: {tag}")]).status, 304);
    // Without the option it is 404.
    assert_eq!(Server::start(&folder, &[]).get("/users/7").status, 404);
}

#[test]
fn added_fields_stand_on_every_answer() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    folder.write("sub/x", "");
    let server = Server::start(
        &folder,
        &["--header", "X-One: 1", "--header", "Cache-Control:max-age=60"],
    );
    let tag = server.get("/a.txt").field("etag").unwrap().to_string();
    for (method, target, field, status) in [
        ("GET", "/a.txt", "X: y", 200),
        ("HEAD", "/a.txt", "X: y", 200),
        ("GET", "/a.txt", "Range: bytes=0-0", 206),
        ("GET", "/a.txt", &format!("If-None-Match: {tag}"), 304),
        ("GET", "/sub", "X: y", 301),
        ("GET", "/sub/", "X: y", 200),
        ("GET", "/missing", "X: y", 404),
        ("DELETE", "/a.txt", "X: y", 405),
        ("OPTIONS", "/a.txt", "Access-Control-Request-Method: GET", 204),
    ] {
        let reply = server.ask(method, target, &[field]);
        assert_eq!(reply.status, status, "{method} {target}");
        assert_eq!(
            (reply.field("x-one"), reply.field("cache-control")),
            (Some("1"), Some("max-age=60")),
            "{method} {target}"
        );
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let folder = Folder::new();
    folder.write("small.txt", "small");
    folder.write("large.bin", pattern(200_000));
    let server = Server::start(&folder, &[]);
    let mut client = server.connect();
    let mut requests = String::new();
    let targets = ["/small.txt", "/large.bin", "/missing", "/small.txt", "/large.bin"];
    for target in targets {
        requests.push_str(&format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"));
    }
    client.send_raw(requests.as_bytes());
    let replies = targets.map(|_| client.receive("GET"));
    assert_eq!(replies.each_ref().map(|reply| reply.status), [200, 200, 404, 200, 200]);
    assert_eq!(
        replies.each_ref().map(|reply| reply.body.len()),
        [5, 200_000, 14, 5, 200_000]
    );
    assert!(replies[1].body == pattern(200_000) && replies[4].body == pattern(200_000));
}

#[test]
fn a_client_that_ends_its_own_direction_is_answered() {
    let folder = Folder::new();
    folder.write("large.bin", pattern(20 << 20));
    folder.write("sub/x.txt", "x");
    let server = Server::start(&folder, &[]);
    // A listing is made on another thread, a large file takes longer than the kernel's buffers hold.
    for (target, at_least) in [("/sub/", 100), ("/large.bin", 20 << 20), ("/sub/x.txt", 1), ("/sub", 0)] {
        for _ in 0..10 {
            let mut client = server.connect();
            client.send("GET", target, &[]);
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
            let reply = client.receive("GET");
            assert!(
                reply.body.len() >= at_least,
                "{target}: {} {}",
                reply.status,
                reply.body.len()
            );
        }
    }
}

#[test]
fn the_welcome_site() {
    let mut command = crate::support::osier();
    command.args(["-l", "127.0.0.1:0"]);
    let server = Server::spawn(command);
    assert!(server.ready_line.contains("the welcome site"), "{}", server.ready_line);
    let reply = server.get("/");
    assert_eq!(
        (reply.status, reply.field("content-type")),
        (200, Some("text/html; charset=utf-8"))
    );
    assert!(reply.text().contains("Osier is running"), "{}", reply.text());
    assert!(reply.field("content-security-policy").is_some());
    let tag = format!("If-None-Match: {}", reply.field("etag").unwrap());
    assert_eq!(server.get_with("/", &[&tag]).status, 304);
    assert_eq!(server.get("/index.html").status, 200);
    assert_eq!(server.get("/other").status, 404);
    assert_eq!(server.ask("POST", "/", &["Content-Length: 0"]).status, 405);
    assert_eq!(server.ask("POST", "/live/fibers", &["Content-Length: 0"]).status, 405);
}

#[test]
fn changes_show_within_seconds() {
    let folder = Folder::new();
    folder.write("a.txt", "one");
    let server = Server::start(&folder, &[]);
    assert_eq!(server.get("/a.txt").text(), "one");
    std::fs::write(folder.join("a.txt"), "two").unwrap();
    await_reply(&server, "/a.txt", 200, "two");
    // Removed, and another thing under the name.
    std::fs::remove_file(folder.join("a.txt")).unwrap();
    await_reply(&server, "/a.txt", 404, "404 Not Found\n");
    std::fs::create_dir(folder.join("a.txt")).unwrap();
    await_reply(&server, "/a.txt", 301, "");
}

/// One reply like that: each worker remembers for itself, so the next may come from one that has not looked yet.
fn await_reply(server: &Server, target: &str, status: u16, text: &str) {
    testkit::eventually(format!("{target}: {status} {text:?}"), || {
        let reply = server.get(target);
        (reply.status, reply.text()) == (status, text)
    });
}
