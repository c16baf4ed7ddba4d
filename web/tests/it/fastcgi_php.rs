//! The FastCGI handler with a real php-fpm.

use std::path::Path;
use std::time::Duration;

use crate::common::{Site, eventually, site_with};
use crate::responder::Folder;
use osier_web::fastcgi::{self, FastCgi, Options};
use osier_web::upstream::Builder;
use osier_web::{Limits, Router, Server};
use testkit::php::{Fpm, Listen};

const SCRIPTS: &[(&str, &str)] = &[
    ("hello.php", "<?php echo 'hello';"),
    (
        "server.php",
        "<?php header('Content-Type: application/json'); echo json_encode($_SERVER);",
    ),
    (
        "post.php",
        "<?php echo $_POST['name'], '/', $_SERVER['CONTENT_LENGTH'];",
    ),
    (
        "upload.php",
        "<?php $f = $_FILES['file']; echo $f['name'], ' ', $f['size'], \"\\n\"; readfile($f['tmp_name']);",
    ),
    (
        "echo.php",
        "<?php header('X-Length: ' . $_SERVER['CONTENT_LENGTH']); $in = fopen('php://input', 'r'); fpassthru($in);",
    ),
    ("sleep.php", "<?php sleep(30);"),
    (
        "error.php",
        "<?php error_log('this went wrong'); http_response_code(418); echo 'teapot';",
    ),
    ("fatal.php", "<?php no_such_function();"),
    (
        "status.php",
        "<?php http_response_code((int) $_GET['s']); header('ETag: \"e\"'); echo 'body';",
    ),
    ("move.php", "<?php header('Location: /hello.php');"),
    (
        "long.php",
        "<?php for ($i = 0; $i < 12; $i++) setcookie(\"c$i\", str_repeat('x', 3900)); echo 'long';",
    ),
    (
        "accel.php",
        "<?php header('X-Accel-Redirect: /data/file.txt'); header('Content-Type: text/data');",
    ),
    ("data/file.txt", "from the file"),
    ("send.php", "<?php header('X-Sendfile: ' . __DIR__ . '/data/file.txt');"),
    (
        "large.php",
        "<?php for ($i = 0; $i < 400; $i++) echo str_repeat(chr(97 + $i % 26), 10000);",
    ),
    (
        "events.php",
        "<?php header('Content-Type: text/event-stream'); echo \"data: 1\\n\\n\"; flush();
         while (!file_exists(__DIR__ . '/go')) { usleep(5000); clearstatcache(); } echo \"data: 2\\n\\n\";",
    ),
    (
        "leave.php",
        "<?php ignore_user_abort(true); while (!connection_aborted()) { echo 'x'; flush(); usleep(5000); }
         file_put_contents(__DIR__ . '/left', 'it has gone');",
    ),
];

/// A php-fpm and a server in front of it; `None` where there is no php-fpm.
fn start(listen: Listen, settings: &str, options: Options) -> Option<(Folder, Fpm, Site)> {
    let folder = Folder::new(SCRIPTS);
    let fpm = Fpm::start(folder.path(), listen, settings)?;
    let site = serve(&folder.root(), upstream(&fpm), options);
    Some((folder, fpm, site))
}

fn upstream(fpm: &Fpm) -> Builder {
    fastcgi::upstream("php", [fpm.address.parse().expect("an address")])
}

fn serve(root: &Path, upstream: Builder, options: Options) -> Site {
    let upstream = upstream.build().expect("an upstream");
    let handler = FastCgi::with(root, upstream, options).expect("a handler");
    let limits = Limits {
        body: 100 << 20,
        ..Limits::default()
    };
    let server = Server::new(Router::new().fallback(handler.handler())).limits(limits);
    site_with(1, server, |server| server.bind("127.0.0.1:0"))
}

const TWO: &str = "pm.max_children = 2";

#[test]
fn scripts_run() {
    for listen in [Listen::Unix, Listen::Tcp] {
        let Some((_folder, _fpm, site)) = start(listen, TWO, Options::default()) else {
            return;
        };
        let mut client = site.connect();
        for _ in 0..5 {
            let reply = client.get("/hello.php");
            assert_eq!((reply.status, reply.text()), (200, "hello"));
            assert!(
                reply
                    .header("content-type")
                    .is_some_and(|value| value.starts_with("text/html"))
            );
        }
        let reply = client.get("/hello.php/x.php");
        assert_eq!((reply.status, reply.text()), (200, "hello"));
        assert_eq!(client.get("/none.php").status, 404);
        assert_eq!(client.get("/data/file.txt/x.php").status, 404);
        assert!(
            !site.logged("stderr"),
            "php has not been asked for what is not there: {:?}",
            site.log
        );
        let reply = client.get("/large.php");
        assert_eq!(reply.body.len(), 4_000_000);
        let reply = client.get("/long.php");
        assert_eq!(
            (reply.status, reply.text(), reply.head.matches("Set-Cookie").count()),
            (200, "long", 12)
        );
    }
}

#[test]
fn a_root_behind_a_link_or_a_way_up_is_the_same_root() {
    let Some((folder, fpm, _)) = start(Listen::Unix, TWO, Options::default()) else {
        return;
    };
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.root(), &link).unwrap();
    for root in [link, folder.root().join("data/..")] {
        let site = serve(&root, upstream(&fpm), Options::default());
        assert_eq!(site.get("/hello.php").text(), "hello", "{}", root.display());
        // PHP follows links for __DIR__.
        assert_eq!(site.get("/send.php").text(), "from the file", "{}", root.display());
    }
}

#[test]
fn php_knows_what_was_asked() {
    let Some((folder, _fpm, site)) = start(Listen::Unix, TWO, Options::default()) else {
        return;
    };
    let reply = site.get("/server.php/path/in%20fo?a=1");
    let known: serde_json::Value = serde_json::from_slice(&reply.body).expect("json");
    let root = folder.root().display().to_string();
    for (name, value) in [
        ("PATH_INFO", "/path/in fo"),
        ("SCRIPT_NAME", "/server.php"),
        ("PHP_SELF", "/server.php/path/in fo"),
        ("REQUEST_URI", "/server.php/path/in%20fo?a=1"),
        ("QUERY_STRING", "a=1"),
        ("SCRIPT_FILENAME", &format!("{root}/server.php")),
        ("DOCUMENT_ROOT", &root),
        ("REMOTE_ADDR", "127.0.0.1"),
        ("HTTP_HOST", "test"),
    ] {
        assert_eq!(known[name], value, "{name}: {known}");
    }
}

#[test]
fn bodies_arrive() {
    let Some((_folder, _fpm, site)) = start(Listen::Unix, TWO, Options::default()) else {
        return;
    };
    let form = "POST /post.php HTTP/1.1\r\nHost: test\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 8\r\n\r\nname=a+b";
    assert_eq!(site.ask(form).text(), "a b/8");

    let file: Vec<u8> = (0..5 << 20).map(|i: u32| (i % 251) as u8).collect();
    let before =
        "--xyz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f.bin\"\r\nContent-Type: a/b\r\n\r\n";
    let body = [before.as_bytes(), &file, b"\r\n--xyz--\r\n"].concat();
    let mut client = site.connect();
    let length = body.len();
    client.send(format!(
        "POST /upload.php HTTP/1.1\r\nHost: test\r\nContent-Type: multipart/form-data; boundary=xyz\r\nContent-Length: {length}\r\n\r\n"
    ));
    client.send(&body);
    let reply = client.reply();
    assert!(
        reply.body.starts_with(b"f.bin 5242880\n") && reply.body.ends_with(&file),
        "{}",
        reply.body.len()
    );

    // Chunked, and long enough to go through the temporary file.
    for length in [0, 10, 3 << 20] {
        client.send("POST /echo.php HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n");
        for chunk in file[..length].chunks(100_001) {
            client.send(format!("{:x}\r\n", chunk.len()));
            client.send(chunk);
            client.send("\r\n");
        }
        client.send("0\r\n\r\n");
        let reply = client.reply();
        assert_eq!(reply.header("x-length"), Some(&*length.to_string()));
        assert!(reply.body == file[..length], "{length}");
    }
}

#[test]
fn clients_that_send_slowly_hold_no_worker_of_php() {
    let Some((_folder, _fpm, site)) = start(Listen::Unix, TWO, Options::default()) else {
        return;
    };
    let mut slow: Vec<_> = (0..8).map(|_| site.connect()).collect();
    for client in &mut slow {
        client.send("POST /echo.php HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    }
    for _ in 0..5 {
        assert_eq!(site.get("/hello.php").text(), "hello");
    }
    for client in &mut slow {
        client.send("0\r\n\r\n");
        assert_eq!(client.reply().text(), "hello");
    }
}

#[test]
fn kept_connections_outlive_workers_that_php_ends() {
    let ask = |site: &Site| {
        let reply = site.get("/hello.php");
        assert_eq!((reply.status, reply.text()), (200, "hello"), "{:?}", site.log);
    };
    for listen in [Listen::Tcp, Listen::Unix] {
        let folder = Folder::new(SCRIPTS);
        let Some(mut fpm) = Fpm::start(folder.path(), listen, "pm.max_children = 2\npm.max_requests = 3") else {
            return;
        };
        let site = serve(&folder.root(), upstream(&fpm).keep(1), Options::default());
        // Each worker ends at least twice. A request costs 20 ms of CPU time, as PHP starts anew for every third.
        (0..15).for_each(|_| ask(&site));
        for _ in 0..2 {
            fpm.restart();
            (0..4).for_each(|_| ask(&site));
        }
    }
}

#[test]
fn a_script_that_takes_too_long_is_a_gateway_timeout() {
    let options = Options {
        // The other script has to be faster.
        first_byte: Duration::from_secs(3),
        ..Options::default()
    };
    let Some((_folder, _fpm, site)) = start(Listen::Unix, TWO, options) else {
        return;
    };
    assert_eq!(site.get("/sleep.php").status, 504);
    assert_eq!(site.get("/hello.php").text(), "hello");
}

#[test]
fn errors_of_scripts_are_in_the_log_with_the_requests_number() {
    let Some((_folder, _fpm, site)) = start(Listen::Unix, TWO, Options::default()) else {
        return;
    };
    let reply = site.get("/error.php?q=1");
    assert_eq!((reply.status, reply.text()), (418, "teapot"));
    let line = site
        .log
        .lock()
        .unwrap()
        .iter()
        .find(|line| line.contains("this went wrong"))
        .cloned()
        .expect("a line");
    assert!(line.starts_with("fastcgi GET /error.php?q=1: "), "{line}");
    assert_eq!(site.ids.lock().unwrap()[0].len(), 16);
    assert_eq!(site.get("/fatal.php").status, 500);
    assert!(site.logged("no_such_function"), "{:?}", site.log);
}

#[test]
fn statuses_heads_and_redirects_are_what_the_script_says() {
    let Some((_folder, _fpm, site)) = start(Listen::Unix, TWO, Options::default()) else {
        return;
    };
    let mut client = site.connect();
    for status in [204, 304] {
        let reply = client.get(&format!("/status.php?s={status}"));
        assert_eq!((reply.status, reply.header("etag")), (status, Some("\"e\"")));
    }
    client.send("HEAD /hello.php HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(client.head().0, 200);
    let reply = client.get("/move.php");
    assert_eq!((reply.status, reply.header("location")), (302, Some("/hello.php")));
    let reply = client.get("/accel.php");
    assert_eq!((reply.status, reply.text()), (200, "from the file"));
    assert!(
        reply
            .header("content-type")
            .is_some_and(|value| value.starts_with("text/data")),
        "{}",
        reply.head
    );
}

#[test]
fn events_go_out_as_they_come_and_a_client_that_leaves_is_noticed() {
    let Some((folder, _fpm, site)) = start(Listen::Unix, TWO, Options::default()) else {
        return;
    };
    let mut client = site.connect();
    client.send("GET /events.php HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(client.head().0, 200);
    assert_eq!(client.take(17), b"0009\r\ndata: 1\n\n\r\n");
    folder.write("go", "");
    assert_eq!(client.chunks(), b"data: 2\n\n");

    let mut client = site.connect();
    client.send("GET /leave.php HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(client.head().0, 200);
    client.reset();
    eventually("php knows", || folder.root().join("left").exists());
}
