//! The policy `cache`: what is stored of a proxy and of real PHP, over reloads and restarts, and who may purge.

use crate::support::sites::{Sites, wait_for};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use testkit::php::{Fpm, Listen};

/// A backend that counts its requests. `fields` go into each response; the body is the number of the request, padded to `length`.
struct Application {
    address: SocketAddr,
    count: Arc<AtomicUsize>,
}

impl Application {
    fn start(fields: &'static str, length: usize) -> Application {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counter = count.clone();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
                    head.push(byte[0]);
                }
                let number = counter.fetch_add(1, Ordering::SeqCst);
                let number = number.to_string();
                let body = number.clone() + &" ".repeat(length.saturating_sub(number.len()));
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nConnection: close\r\n{fields}Content-Length: {}\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        Application { address, count }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

const FRESH: &str = "Cache-Control: max-age=600\r\nContent-Type: text/plain\r\n";

#[test]
fn responses_are_stored_purged_and_kept_over_a_reload() {
    let application = Application::start(FRESH, 1);
    let file = format!(
        "[[site]]\ndefault = true\ncache = {{ memory = \"8MiB\", purge = \"127.0.0.1\" }}\n\
         [[site.route]]\npath = \"/live\"\ncache = false\nproxy = \"{0}\"\n\
         [[site.route]]\npath = \"/fixed\"\nrespond = \"@\"\n\
         [[site.route]]\nproxy = \"{0}\"\n",
        application.address
    );
    let sites = Sites::start(&file);
    let get = |target: &str| {
        let reply = sites.get("x", target);
        let said = reply.field("cache-status").unwrap_or_default().to_owned();
        (reply.text().to_owned(), said)
    };
    assert_eq!(get("/a"), ("0".into(), "osier; fwd=miss; stored".into()));
    let (body, said) = get("/a");
    assert!(body == "0" && said.starts_with("osier; hit; ttl="), "{said}");
    assert_eq!(get("/live"), ("1".into(), String::new()));
    assert_eq!(get("/live"), ("2".into(), String::new()));
    assert_eq!(get("/fixed"), ("@".into(), String::new()));
    assert!(sites.reload(&file.replace('@', "new")).contains("reloaded"));
    wait_for("the new route", || get("/fixed").0 == "new");
    assert_eq!(get("/a").0, "0");
    assert_eq!(sites.ask("PURGE", "x", "/a", &[]).text(), "1 purged\n");
    assert_eq!(get("/a").0, "3");
    // Another client may not.
    let closed = file.replace("\"127.0.0.1\" }", "\"192.0.2.1\" }");
    assert!(sites.reload(&closed).contains("reloaded"));
    wait_for("the new clients", || sites.ask("PURGE", "x", "/a", &[]).status == 403);
    assert_eq!((get("/a").0.as_str(), application.count()), ("3", 4));
}

/// Only `fastcgi` tells the application the target that the client has sent.
#[test]
fn targets_that_a_rule_makes_one_share_the_response_of_a_proxy() {
    let application = Application::start(FRESH, 1);
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\n[[site.route]]\nrewrite = {{ pattern = \"^/app/\", to = \"/app.html\" }}\n\
         [[site.route]]\ncache = true\nproxy = \"{}\"\n",
        application.address
    ));
    for target in ["/app/a", "/app/b", "/app.html"] {
        assert_eq!(sites.get("x", target).text(), "0", "{target}");
    }
    assert_eq!(application.count(), 1);
}

#[test]
fn files_are_found_after_a_restart() {
    let application = Application::start(FRESH, 300_000);
    let file = format!(
        "[[site]]\ndefault = true\ncompress = true\n[[site.route]]\nproxy = \"{}\"\n\
         cache = {{ memory = \"8MiB\", memory_entry = \"64KiB\", disk = \"stored\", disk_size = \"64MiB\" }}\n\
         [[listen]]\naddress = \"127.0.0.1:@\"\n",
        application.address
    )
    .replace('@', &testkit::nobody().port().to_string());
    let folder = Sites::folder();
    let stored = folder.join("stored");
    let sites = Sites::start_in(folder, &file);
    let first = sites.get("x", "/a").body;
    assert_eq!(first.len(), 300_000);
    wait_for("the file", || {
        let mut found = std::fs::read_dir(&stored).unwrap().flatten();
        found.any(|file| file.path().extension().is_none())
    });
    assert!(sites.get("x", "/a").body == first);
    let Sites { server, folder, .. } = sites;
    drop(server);
    let sites = Sites::start_in(folder, &file);
    wait_for("the index", || {
        sites.ask("GET", "x", "/a", &["Cache-Control: only-if-cached"]).status == 200
    });
    assert!(sites.get("x", "/a").body == first);
    assert_eq!(application.count(), 1);
    let part = sites.ask("GET", "x", "/a", &["Range: bytes=0-0"]);
    assert_eq!((part.status, part.body), (206, first[..1].to_vec()));
}

#[test]
fn what_memory_holds_is_compressed_for_who_accepts_it() {
    let application = Application::start(
        "Cache-Control: max-age=600\r\nContent-Type: text/plain\r\nETag: \"1\"\r\n",
        20_000,
    );
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\ncompress = true\ncache = true\n[[site.route]]\nproxy = \"{}\"\n",
        application.address
    ));
    let plain = sites.get("x", "/a");
    assert_eq!(
        (plain.field("content-encoding"), plain.field("etag")),
        (None, Some("\"1\""))
    );
    for coding in ["gzip", "zstd", "br"] {
        let reply = sites.ask("GET", "x", "/a", &[&format!("Accept-Encoding: {coding}")]);
        assert_eq!(reply.field("content-encoding"), Some(coding));
        assert_eq!(
            (reply.field("vary"), reply.field("etag")),
            (Some("accept-encoding"), Some("W/\"1\""))
        );
        assert!(reply.body.len() < 2000);
        let again = sites.ask(
            "GET",
            "x",
            "/a",
            &[&format!("Accept-Encoding: {coding}"), "If-None-Match: W/\"1\""],
        );
        assert_eq!(again.status, 304);
    }
    assert_eq!(application.count(), 1);
}

#[test]
fn sites_do_not_share_their_responses() {
    let (one, two) = (Application::start(FRESH, 1), Application::start(FRESH, 2));
    let sites = Sites::start(&format!(
        "[policy.stored]\ncache = true\n[[listen]]\nname = \"a\"\naddress = \"127.0.0.1:0\"\n[[listen]]\nname = \"b\"\naddress = \"[::1]:0\"\n\
         [[site]]\nlisten = \"a\"\ndefault = true\npolicy = \"stored\"\n[[site.route]]\nproxy = \"{}\"\n\
         [[site]]\nlisten = \"b\"\ndefault = true\npolicy = \"stored\"\n[[site.route]]\nproxy = \"{}\"\n",
        one.address, two.address
    ));
    assert_eq!(sites.get("x", "/a").body.len(), 1);
    let mut other = crate::support::Client::new(sites.addresses[1]);
    other.send_raw(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(other.receive("GET").body.len(), 2);
}

#[test]
fn php_behind_a_cache() {
    let folder = Sites::folder();
    folder.write(
        "app/page.php",
        "<?php $file = __DIR__ . '/count'; $n = (int)@file_get_contents($file) + 1; file_put_contents($file, $n);\n\
         if (isset($_GET['private'])) header('Cache-Control: private');\n\
         if (isset($_GET['etag'])) { header('Cache-Control: no-cache'); header('ETag: \"1\"');\n\
         if (($_SERVER['HTTP_IF_NONE_MATCH'] ?? '') === '\"1\"') { http_response_code(304); exit; } }\n\
         echo $n;",
    );
    folder.write("app/style.css", "a{}");
    let Some(fpm) = Fpm::start(folder.path(), Listen::Unix, "pm = static\npm.max_children = 2\n") else {
        return;
    };
    let sites = Sites::start_in(
        folder,
        &format!(
            "[[site]]\ndefault = true\n[[site.route]]\nfastcgi = {{ to = \"{}\", root = \"app\", files = true }}\n\
             cache = {{ default_ttl = {{ 200 = \"10m\" }}, skip_cookies = [\"user_*\"] }}\n",
            fpm.address
        ),
    );
    let get = |target: &str, fields: &[&str]| {
        let reply = sites.ask("GET", "x", target, fields);
        (
            reply.text().to_owned(),
            reply.field("cache-status").unwrap_or_default().to_owned(),
        )
    };
    assert_eq!(get("/page.php", &[]).0, "1");
    assert_eq!(get("/page.php", &[]).0, "1");
    assert_eq!(
        get("/page.php", &["Cookie: user_1=2"]),
        ("2".into(), "osier; fwd=bypass".into())
    );
    assert_eq!(get("/page.php", &["Cookie: theme=dark"]).0, "1");
    assert_eq!(get("/page.php?private", &[]).0, "3");
    assert_eq!(get("/page.php?private", &[]).0, "4");
    assert_eq!(get("/page.php?etag", &[]).0, "5");
    // The script confirms what is stored.
    let (body, said) = get("/page.php?etag", &[]);
    assert_eq!(
        (body.as_str(), said.as_str()),
        ("5", "osier; fwd=stale; fwd-status=304; stored")
    );
    assert_eq!(sites.ask("POST", "x", "/page.php", &["Content-Length: 0"]).text(), "7");
    assert_eq!(get("/page.php", &[]).0, "8");
    // A file is not the backend's.
    for _ in 0..2 {
        let (body, said) = get("/style.css", &[]);
        assert!(
            body == "a{}" && said.contains("fwd=miss") && !said.contains("stored"),
            "{said}"
        );
    }
}

#[test]
fn a_dead_backend_is_covered_by_what_is_stored() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\n[[site.route]]\nproxy = \"{address}\"\ncache = {{ stale_if_error = \"1h\" }}\n"
    ));
    let backend = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\nCache-Control: max-age=0\r\nETag: \"1\"\r\nContent-Length: 1\r\n\r\na");
    });
    assert_eq!(sites.get("x", "/a").text(), "a");
    backend.join().unwrap();
    let reply = sites.get("x", "/a");
    assert_eq!((reply.status, reply.text()), (200, "a"));
    assert!(
        reply.field("cache-status").unwrap().contains("fwd-status=502"),
        "{reply:?}"
    );
    sites.wait_until_said("a stored response is sent");
    assert_eq!(sites.get("x", "/b").status, 502);
}

#[test]
fn mistakes_have_their_places() {
    let folder = Sites::folder();
    for (setting, said) in [
        ("cache = 5", "true, false or a table"),
        ("cache = { memroy = \"1MiB\" }", "did you mean 'memory'"),
        ("cache = { disk_size = \"1MiB\" }", "no effect without 'disk'"),
        (
            "cache = { default_ttl = { 206 = \"1m\" } }",
            "not a status that can be stored",
        ),
        ("cache = { default_ttl = \"soon\" }", "a duration like"),
        ("cache = { disk = \"none/such\" }", "there is no folder"),
        ("cache = { skip_cookies = \"a b\" }", "skip_cookies"),
        ("cache = { purge = \"nobody\" }", "write an address"),
    ] {
        folder.write(
            "t.toml",
            format!("[[site]]\ndefault = true\n[[site.route]]\n{setting}\nproxy = \"127.0.0.1:1\"\n"),
        );
        let output = crate::support::osier()
            .args(["check", "t.toml"])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains(said), "{setting}: {errors}");
    }
    folder.write(
        "t.toml",
        "[[site]]\ndefault = true\n[[site.route]]\ncache = true\nfiles = \"www\"\n",
    );
    let output = crate::support::osier()
        .args(["check", "t.toml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("'cache' has no effect here")
    );
    let two = "[[site.route]]\npath = \"/a\"\ncache = { disk = \"d\" }\nproxy = \"127.0.0.1:1\"\n\
               [[site.route]]\ncache = { disk = \"d\", memory = \"1MiB\" }\nproxy = \"127.0.0.1:1\"\n";
    folder.write("t.toml", format!("[[site]]\ndefault = true\n{two}"));
    let output = crate::support::osier()
        .args(["check", "t.toml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("two caches"), "{errors}");
}
