//! Files that the server compresses: which client gets which form, and that forms, tags, ranges and
//! conditional fields are never mixed up.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::folder::{decoded, noise, prose};
use crate::common::{PATIENCE, Reply, Site, site};
use osier_web::Router;
use osier_web::files::{CacheLimits, Files, Options};
use testkit::Folder;

/// A file that was changed in the last two seconds is encoded anew for each look, which takes more permits than there are.
fn settle() {
    std::thread::sleep(Duration::from_secs(2));
}

fn serve(folder: &Folder) -> Site {
    settle();
    site(Router::new().fallback(Files::open(folder.path()).unwrap().handler()))
}

fn ask(site: &Site, method: &str, path: &str, fields: &[&str]) -> Reply {
    let mut client = site.connect();
    let lines: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    client.send(format!("{method} {path} HTTP/1.1\r\nHost: test\r\n{lines}\r\n"));
    if method != "HEAD" {
        return client.reply();
    }
    let (status, head) = client.head();
    Reply {
        status,
        head,
        body: Vec::new(),
    }
}

#[test]
fn weights_choose_the_form_and_every_form_is_the_file() {
    let folder = Folder::new();
    let text = prose(200_000);
    folder.write("a.txt", &text);
    let site = serve(&folder);
    for (accept, coding) in [
        ("gzip", Some("gzip")),
        ("br", Some("br")),
        ("zstd", Some("zstd")),
        ("gzip, deflate, br, zstd", Some("br")),
        ("gzip, zstd", Some("zstd")),
        ("gzip;q=1, br;q=0.9", Some("gzip")),
        ("br;q=0, *", Some("zstd")),
        ("identity, gzip;q=0.5", None),
        ("identity;q=0, gzip;q=0.001", Some("gzip")),
        ("deflate", None),
        ("", None),
    ] {
        // Twice: made, and kept.
        for _ in 0..2 {
            let reply = ask(&site, "GET", "/a.txt", &[&format!("Accept-Encoding: {accept}")]);
            assert_eq!(
                (reply.status, reply.header("content-encoding")),
                (200, coding),
                "{accept}"
            );
            assert_eq!(reply.header("vary"), Some("accept-encoding"), "{accept}");
            assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
            assert!(decoded(coding, &reply.body) == text, "{accept}");
            assert!(coding.is_none() || reply.body.len() < text.len() / 2, "{accept}");
        }
    }
    assert!(ask(&site, "GET", "/a.txt", &[]).body == text);
}

#[test]
fn only_what_gains_is_encoded() {
    let folder = Folder::new();
    folder.write("small.txt", prose(1023));
    folder.write("enough.txt", prose(1024));
    folder.write("picture.png", prose(5000));
    folder.write("noise.txt", noise(20_000));
    folder.write("large.txt", prose((8 << 20) + 1));
    folder.write("page.html", prose(5000));
    folder.write("icon.svg", prose(5000));
    folder.write("module.wasm", prose(5000));
    let site = serve(&folder);
    for (path, coding, varies) in [
        ("/small.txt", None, false),
        ("/enough.txt", Some("gzip"), true),
        ("/picture.png", None, false),
        ("/noise.txt", None, true),
        ("/large.txt", None, false),
        ("/page.html", Some("gzip"), true),
        ("/icon.svg", Some("gzip"), true),
        ("/module.wasm", Some("gzip"), true),
    ] {
        for _ in 0..2 {
            let reply = ask(&site, "GET", path, &["Accept-Encoding: gzip"]);
            assert_eq!(reply.header("content-encoding"), coding, "{path}");
            assert_eq!(reply.header("vary"), varies.then_some("accept-encoding"), "{path}");
            let plain = std::fs::read(folder.path().join(&path[1..])).unwrap();
            assert!(decoded(coding, &reply.body) == plain, "{path}");
        }
    }
    let options = Options {
        compress: None,
        ..Options::default()
    };
    let plain = crate::common::site(Router::new().fallback(Files::with(folder.path(), options).unwrap().handler()));
    let reply = ask(&plain, "GET", "/page.html", &["Accept-Encoding: gzip"]);
    assert_eq!((reply.header("content-encoding"), reply.header("vary")), (None, None));
}

#[test]
fn siblings_win_over_what_would_be_made() {
    let folder = Folder::new();
    folder.write("a.js", prose(5000));
    folder.write("a.js.gz", "a sibling");
    let site = serve(&folder);
    for (accept, coding, is_sibling) in [
        ("gzip, br, zstd", "gzip", true),
        ("gzip", "gzip", true),
        ("br", "br", false),
        ("br, gzip;q=0.9", "br", false),
    ] {
        let reply = ask(&site, "GET", "/a.js", &[&format!("Accept-Encoding: {accept}")]);
        assert_eq!(reply.header("content-encoding"), Some(coding), "{accept}");
        assert_eq!(reply.body == b"a sibling", is_sibling, "{accept}");
    }
}

/// The golden rule: whatever a client puts together by tags is one form of one state of the file.
#[test]
fn tags_ranges_and_conditions_belong_to_one_form() {
    let folder = Folder::new();
    let text = prose(300_000);
    folder.write("a.css", &text);
    let site = serve(&folder);
    let codings = [None, Some("gzip"), Some("br"), Some("zstd")];
    let accept = |coding: Option<&str>| format!("Accept-Encoding: {}", coding.unwrap_or("identity"));
    let whole = codings.map(|coding| ask(&site, "GET", "/a.css", &[&accept(coding)]));
    let tags: Vec<&str> = whole.iter().map(|reply| reply.header("etag").unwrap()).collect();
    for (at, coding) in codings.into_iter().enumerate() {
        let (reply, tag) = (&whole[at], tags[at]);
        assert!(tag.starts_with('"'), "strong: {tag}");
        assert_eq!(tags.iter().filter(|other| *other == &tag).count(), 1);
        let encoding = accept(coding);
        // HEAD gives the fields of GET.
        let head = ask(&site, "HEAD", "/a.css", &[&encoding]);
        let fields = |head: &str| {
            let lines = head.lines().skip(1).filter(|line| !line.starts_with("date:"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(
            (head.status, fields(&head.head)),
            (200, fields(&reply.head)),
            "{coding:?}"
        );
        // Every tag is a condition on its own form alone.
        for (other, is_ours) in tags.iter().map(|other| (other, *other == tag)) {
            let got = ask(&site, "GET", "/a.css", &[&encoding, &format!("If-None-Match: {other}")]);
            assert_eq!(got.status, if is_ours { 304 } else { 200 }, "{coding:?} {other}");
            assert_eq!(got.header("vary"), Some("accept-encoding"));
            assert_eq!(got.header("etag"), Some(tag));
            let got = ask(&site, "GET", "/a.css", &[&encoding, &format!("If-Match: {other}")]);
            assert_eq!(got.status, if is_ours { 200 } else { 412 }, "{coding:?} {other}");
        }
        // Two parts of one form are that form; with the tag of another, or a date, there are no parts.
        let middle = reply.body.len() / 2;
        let until = format!("Range: bytes=0-{}", middle - 1);
        let first = ask(&site, "GET", "/a.css", &[&encoding, &until]);
        assert_eq!((first.status, first.header("etag")), (206, Some(tag)));
        let rest = format!("Range: bytes={middle}-");
        for other in &tags {
            let second = ask(
                &site,
                "GET",
                "/a.css",
                &[&encoding, &rest, &format!("If-Range: {other}")],
            );
            if *other == tag {
                assert_eq!((second.status, second.header("content-encoding")), (206, coding));
                let length = format!("bytes {middle}-{}/{}", reply.body.len() - 1, reply.body.len());
                assert_eq!(second.header("content-range"), Some(length.as_str()));
                let both = [first.body.clone(), second.body].concat();
                assert!(decoded(coding, &both) == text, "{coding:?}");
            } else {
                assert_eq!(second.status, 200, "{coding:?} {other}");
                assert!(second.body == reply.body);
            }
        }
        let date = format!("If-Range: {}", reply.header("last-modified").unwrap());
        assert_eq!(ask(&site, "GET", "/a.css", &[&encoding, &rest, &date]).status, 200);
    }
}

#[test]
fn a_change_is_never_answered_with_an_old_form() {
    let folder = Folder::new();
    folder.write("a.txt", prose(10_000));
    let site = serve(&folder);
    let first = ask(&site, "GET", "/a.txt", &["Accept-Encoding: br"]);
    assert_eq!(first.header("content-encoding"), Some("br"));
    let new = prose(20_000);
    folder.write_now("a.txt", &new);
    let start = Instant::now();
    let (mut is_new, mut is_encoded_again) = (false, false);
    while !is_encoded_again {
        assert!(start.elapsed() < PATIENCE, "it stays as it is");
        let reply = ask(&site, "GET", "/a.txt", &["Accept-Encoding: br"]);
        let plain = decoded(reply.header("content-encoding"), &reply.body);
        assert!(
            plain == new || (!is_new && plain == prose(10_000)),
            "{} bytes",
            plain.len()
        );
        is_new |= plain == new;
        is_encoded_again = is_new && reply.header("content-encoding").is_some();
        // Between two looks at a file that is encoded in the background.
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_store_that_is_too_small_costs_time_and_nothing_else() {
    let folder = Folder::new();
    for n in 0..20 {
        folder.write(format!("{n}.txt"), prose(20_000 + n));
    }
    let options = Options {
        cache: CacheLimits {
            compressed: 40_000,
            ..CacheLimits::default()
        },
        ..Options::default()
    };
    settle();
    let site = site(Router::new().fallback(Files::with(folder.path(), options).unwrap().handler()));
    let mut tags = Vec::new();
    for round in 0..2 {
        for n in 0..20 {
            let reply = ask(&site, "GET", &format!("/{n}.txt"), &["Accept-Encoding: gzip"]);
            assert_eq!(reply.header("content-encoding"), Some("gzip"));
            assert!(decoded(Some("gzip"), &reply.body) == prose(20_000 + n));
            let tag = reply.header("etag").unwrap().to_owned();
            // Made again, it is the same.
            match round {
                0 => tags.push(tag),
                _ => assert_eq!(tags[n], tag),
            }
        }
    }
}

#[test]
fn a_store_that_keeps_nothing_makes_nothing() {
    let folder = Folder::new();
    folder.write("a.txt", prose(20_000));
    let cache = CacheLimits {
        compressed: 0,
        ..CacheLimits::default()
    };
    let options = Options {
        cache,
        ..Options::default()
    };
    settle();
    let site = site(Files::with(folder.path(), options).unwrap());
    let reply = ask(&site, "GET", "/a.txt", &["Accept-Encoding: gzip"]);
    // It does not vary: no form is even looked for.
    assert_eq!((reply.header("content-encoding"), reply.header("vary")), (None, None));
}

#[test]
fn many_clients_at_once_get_it_all() {
    let folder = Folder::new();
    let text = prose(1 << 20);
    folder.write("a.json", &text);
    let site = serve(&folder);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            let mut client = site.connect();
            let text = &text;
            scope.spawn(move || {
                client.send("GET /a.json HTTP/1.1\r\nHost: x\r\nAccept-Encoding: zstd\r\n\r\n");
                let reply = client.reply();
                assert_eq!(reply.header("content-encoding"), Some("zstd"));
                assert!(decoded(Some("zstd"), &reply.body) == *text);
            });
        }
    });
}

#[test]
fn curl_undoes_every_coding() {
    let folder = Folder::new();
    let text = prose(100_000);
    folder.write("a.html", &text);
    let page = prose(3000);
    let embedded = Files::embedded([("/page", "text/html; charset=utf-8", &page[..])]);
    let router = Router::new()
        .mount("/files", Files::open(folder.path()).unwrap().handler())
        .fallback(embedded.handler());
    settle();
    let site = site(router);
    for coding in ["gzip", "br", "zstd"] {
        for (path, expected) in [("/files/a.html", &text), ("/page", &page)] {
            let header = format!("Accept-Encoding: {coding}");
            let curl = Command::new("curl")
                .args(["--silent", "--show-error", "--max-time", "20", "--noproxy", "*"])
                .args(["--compressed", "-H", &header, "-w", "%{stderr}%{size_download}"])
                .arg(format!("http://{}{path}", site.addr))
                .output();
            let output = match curl {
                Ok(output) => output,
                Err(error) => return println!("skipped: curl cannot be started: {error}"),
            };
            assert!(output.status.success(), "{coding}: {}", output.status);
            assert!(output.stdout == *expected, "{coding}");
            let size: usize = String::from_utf8(output.stderr).unwrap().trim().parse().unwrap();
            assert!(size < expected.len() / 2, "{coding}: {size} bytes came");
        }
    }
}
