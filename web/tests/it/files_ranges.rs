//! Several ranges of a file, listings as JSON, and files that the request's path does not name.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::folder::prose;
use crate::common::{Reply, Site, site};
use osier_web::files::{Files, Options};
use osier_web::{Request, Router};
use testkit::Folder;

fn ask(site: &Site, path: &str, fields: &[&str]) -> Reply {
    let lines: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    site.ask(&format!("GET {path} HTTP/1.1\r\nHost: test\r\n{lines}\r\n"))
}

/// Takes a multipart body apart by its boundary alone: first and last byte, length, content.
fn parts(reply: &Reply) -> Vec<(usize, usize, usize, Vec<u8>)> {
    let kind = reply.header("content-type").unwrap();
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").expect(kind);
    let delimiter = format!("\r\n--{boundary}");
    let mut found = Vec::new();
    let mut rest = reply
        .body
        .strip_prefix(delimiter.as_bytes())
        .expect("a delimiter first");
    while let Some(part) = rest.strip_prefix(b"\r\n") {
        let end = part.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let head = std::str::from_utf8(&part[..end]).unwrap();
        assert!(head.contains("Content-Type: text/plain; charset=utf-8"), "{head}");
        let range = head.split("Content-Range: bytes ").nth(1).unwrap();
        let numbers: Vec<usize> = range
            .lines()
            .next()
            .unwrap()
            .split(['-', '/'])
            .map(|number| number.parse().unwrap())
            .collect();
        let body = &part[end + 4..];
        let next = body
            .windows(delimiter.len())
            .position(|window| window == delimiter.as_bytes())
            .expect("a delimiter behind it");
        found.push((numbers[0], numbers[1], numbers[2], body[..next].to_vec()));
        rest = &body[next + delimiter.len()..];
    }
    assert_eq!(rest, b"--\r\n");
    found
}

#[test]
fn several_ranges_from_memory_and_from_disk() {
    let folder = Folder::new();
    for (name, size) in [("small.txt", 20_000), ("large.txt", 3 << 20)] {
        folder.write(name, prose(size));
        let site = site(Router::new().fallback(Files::open(folder.path()).unwrap().handler()));
        let path = format!("/{name}");
        let text = prose(size);
        let reply = ask(&site, &path, &["Range: bytes=0-9, 5000-9999, -7"]);
        assert_eq!((reply.status, reply.header("content-range")), (206, None));
        assert_eq!(reply.header("etag"), ask(&site, &path, &[]).header("etag"));
        let got = parts(&reply);
        let expected = [(0, 9), (5000, 9999), (size - 7, size - 1)];
        assert_eq!(got.len(), 3, "{name}");
        for ((first, last, length, body), expected) in got.into_iter().zip(expected) {
            assert_eq!((first, last, length), (expected.0, expected.1, size), "{name}");
            assert!(body == text[first..=last], "{name}: {first}");
        }
        // Overlapping and near ones are one, which is no multipart; floods get the whole file once.
        let reply = ask(&site, &path, &["Range: bytes=0-99,50-149,200-299"]);
        let range = format!("bytes 0-299/{size}");
        assert_eq!(
            (reply.status, reply.header("content-range")),
            (206, Some(range.as_str()))
        );
        assert!(reply.body == text[..300]);
        let flood: String = (0..100).map(|n| format!("{}-{},", n * 150, n * 150 + 1)).collect();
        let reply = ask(&site, &path, &[&format!("Range: bytes={flood}")]);
        assert_eq!((reply.status, reply.body.len()), (200, size));
        let reply = ask(&site, &path, &["Range: bytes=9999999-,99999999-"]);
        assert_eq!(reply.status, 416);
        // The connection goes on behind it.
        let mut client = site.connect();
        for _ in 0..2 {
            client.send(format!(
                "GET {path} HTTP/1.1\r\nHost: x\r\nRange: bytes=1-1,500-501\r\n\r\n"
            ));
            assert_eq!(parts(&client.reply()).len(), 2);
        }
        // Encoded, it is sent whole: the coding would be that of the parts' wrapping.
        let reply = ask(&site, &path, &["Range: bytes=0-0,500-509", "Accept-Encoding: gzip"]);
        assert_eq!((reply.status, reply.header("content-encoding")), (200, Some("gzip")));
    }
}

#[test]
fn curl_takes_several_ranges() {
    let folder = Folder::new();
    folder.write("a.txt", prose(100_000));
    let site = site(Router::new().fallback(Files::open(folder.path()).unwrap().handler()));
    let curl = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--noproxy", "*", "-i"])
        .args(["-r", "0-4,90000-90004"])
        .arg(format!("http://{}/a.txt", site.addr))
        .output();
    let output = match curl {
        Ok(output) => output,
        Err(error) => return println!("skipped: curl cannot be started: {error}"),
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let plain = String::from_utf8(prose(100_000)).unwrap();
    assert!(output.status.success() && text.starts_with("HTTP/1.1 206 "), "{text}");
    for (first, last) in [(0, 4), (90_000, 90_004)] {
        let part = format!("bytes {first}-{last}/100000\r\n\r\n{}\r\n--", &plain[first..=last]);
        assert!(text.contains(&part), "{text}");
    }
}

#[test]
fn listings_as_json() {
    let folder = Folder::new();
    folder.write("b \"quoted\".txt", "12345");
    folder.write("sub/x", "");
    folder.write(".hidden", "");
    let serve = |hidden| {
        let options = Options {
            listing: true,
            hidden,
            ..Options::default()
        };
        let files = Files::with(folder.path(), options).unwrap();
        site(Router::new().mount("/files", files.handler()))
    };
    let site = serve(false);
    for (path, accept, is_json) in [
        ("/files/", "text/html,application/xhtml+xml,*/*;q=0.8", false),
        ("/files/", "*/*", false),
        ("/files/", "application/json", true),
        ("/files/", "application/json, text/html;q=0.9", true),
        ("/files/", "application/json;q=0.5, text/html", false),
        ("/files/?format=json", "text/html", true),
        ("/files/?x=format=json", "text/html", false),
    ] {
        let reply = ask(&site, path, &[&format!("Accept: {accept}")]);
        let kind = if is_json {
            "application/json"
        } else {
            "text/html; charset=utf-8"
        };
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (200, Some(kind)),
            "{path} {accept}"
        );
        assert_eq!(reply.header("vary"), Some("accept"));
        if is_json {
            let listing: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
            assert_eq!((&listing["path"], &listing["complete"]), (&"/".into(), &true.into()));
            let entries = listing["entries"].as_array().unwrap();
            assert_eq!(entries.len(), 2, "{listing}");
            assert_eq!(
                (&entries[0]["name"], &entries[0]["type"]),
                (&"sub".into(), &"folder".into())
            );
            assert_eq!(
                (&entries[1]["name"], &entries[1]["size"]),
                (&"b \"quoted\".txt".into(), &5.into())
            );
            let modified = entries[1]["modified"].as_str().unwrap();
            assert!(modified.len() == 20 && modified.ends_with('Z'), "{modified}");
            // The link leads there.
            let href = entries[1]["href"].as_str().unwrap();
            assert_eq!(ask(&site, &format!("/files/{href}"), &[]).text(), "12345");
        }
    }
    assert!(ask(&serve(true), "/files/", &[]).text().contains(".hidden"));
    assert_eq!(ask(&site, "/files/.hidden", &[]).status, 404);
    assert_eq!(ask(&serve(true), "/files/.hidden", &[]).status, 200);
    // The mount point has one spelling. A longer name with the same beginning is not below it.
    let reply = ask(&site, "/files?x=1", &[]);
    assert_eq!((reply.status, reply.header("location")), (301, Some("/files/?x=1")));
    let reply = ask(&site, "/files/sub", &[]);
    assert_eq!((reply.status, reply.header("location")), (301, Some("/files/sub/")));
    assert_eq!(ask(&site, "/files-not", &[]).status, 404);
    // As the client spells it, `//files` would be another host.
    for (path, location) in [("//files", "/files/"), ("//%66iles/sub", "/files/sub/")] {
        let reply = ask(&site, path, &[]);
        assert_eq!(
            (reply.status, reply.header("location")),
            (301, Some(location)),
            "{path}"
        );
    }
}

#[test]
fn several_sites_in_one_process_keep_apart() {
    let folders: Vec<Folder> = (0..3).map(|_| Folder::new()).collect();
    let mut router = Router::new();
    for (n, folder) in folders.iter().enumerate() {
        folder.write("a.txt", format!("site {n}"));
        let options = Options {
            index: vec!["none".into(), "a.txt".into()],
            headers: vec![("x-site".into(), n.to_string())],
            ..Options::default()
        };
        router = router.mount(&format!("/{n}"), Files::with(folder.path(), options).unwrap().handler());
    }
    let site = site(router);
    for _ in 0..3 {
        for n in 0..3 {
            for path in ["a.txt", ""] {
                let reply = ask(&site, &format!("/{n}/{path}"), &[]);
                assert_eq!((reply.status, reply.text()), (200, format!("site {n}").as_str()));
                assert_eq!(reply.header("x-site"), Some(n.to_string().as_str()));
            }
        }
    }
    let error = Files::with(
        folders[0].path(),
        Options {
            headers: vec![("x".into(), "a\r\nb".into())],
            ..Options::default()
        },
    );
    assert_eq!(error.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn files_that_the_path_does_not_name_stay_inside_the_root() {
    let folder = Folder::new();
    folder.write("secret.txt", "outside");
    folder.write("root/.store/50% off.txt", prose(5000));
    let files = Files::open(folder.path().join("root")).unwrap();
    let handler = move |request: &mut Request<'_>| {
        let name = request.query_param("name").unwrap_or_default().into_owned();
        files.answer_with(request, &name)
    };
    let site = site(
        Router::new()
            .get("/download", handler.clone())
            .post("/download", handler),
    );
    let text = prose(5000);
    for _ in 0..2 {
        let reply = ask(&site, "/download?name=.store/50%25+off.txt", &[]);
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (200, Some("text/plain; charset=utf-8"))
        );
        assert!(reply.body == text);
    }
    let reply = ask(&site, "/download?name=.store/50%25+off.txt", &["Range: bytes=10-19"]);
    assert!(reply.status == 206 && reply.body == text[10..20]);
    let tag = ask(&site, "/download?name=.store/50%25+off.txt", &[]);
    let tag = format!("If-None-Match: {}", tag.header("etag").unwrap());
    assert_eq!(ask(&site, "/download?name=.store/50%25+off.txt", &[&tag]).status, 304);
    let post =
        format!("POST /download?name=.store/50%25+off.txt HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{tag}\r\n\r\n");
    assert_eq!(site.ask(&post).status, 200);
    for outside in [
        "../secret.txt",
        "/etc/passwd",
        ".store",
        "",
        "missing",
        "a%00b",
        ".store/../../secret.txt",
    ] {
        assert_eq!(
            ask(&site, &format!("/download?name={outside}"), &[]).status,
            404,
            "{outside}"
        );
    }
}

#[test]
fn a_folder_is_a_handler_with_a_prefix_and_a_cache_control() {
    let folder = Folder::new();
    folder.write("a.txt", "text");
    let options = Options {
        strip: Some("/assets/".into()),
        cache_control: Some("max-age=60".into()),
        ..Options::default()
    };
    let files = Files::with(folder.path(), options).unwrap();
    let site = site(move |request: &mut Request<'_>| files.answer(request));
    for (path, status, cache) in [
        ("/assets/a.txt", 200, Some("max-age=60")),
        ("/assets/b.txt", 404, None),
        ("/a.txt", 404, None),
    ] {
        let reply = site.get(path);
        assert_eq!((reply.status, reply.header("cache-control")), (status, cache), "{path}");
    }

    let whole = crate::common::site(Files::open(folder.path()).unwrap());
    assert_eq!(whole.get("/a.txt").text(), "text");

    let bad = Options {
        cache_control: Some("a\nb".into()),
        ..Options::default()
    };
    let refused = Files::with(folder.path(), bad).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn listings_have_no_cache_control_and_pages_of_an_application_depend_on_accept() {
    let folder = Folder::new();
    folder.write("index.html", "the page");
    folder.write("sub/a.txt", "text");
    let options = Options {
        listing: true,
        spa: true,
        cache_control: Some("max-age=60".into()),
        ..Options::default()
    };
    let site = site(Files::with(folder.path(), options).unwrap());
    for (path, accept, status, cache, varies) in [
        ("/sub/a.txt", "text/html", 200, Some("max-age=60"), false),
        ("/sub/", "text/html", 200, None, true),
        ("/page", "text/html", 200, Some("max-age=60"), true),
        ("/page", "application/json", 404, None, true),
        ("/none.png", "text/html", 404, None, false),
    ] {
        let reply = ask(&site, path, &[&format!("Accept: {accept}")]);
        let varies_by_it = reply.head.lines().any(|line| line == "vary: accept");
        let fields = (reply.header("cache-control"), varies_by_it);
        assert_eq!((reply.status, fields), (status, (cache, varies)), "{path} {accept}");
    }
}

/// Holds a lease on a file, as Samba and NFS do for their clients. Says so, and ends with its input.
const LEASE: &str = "
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('held', flush=True)
sys.stdin.read()
";

#[test]
fn a_file_under_a_lease_of_another_program_is_unavailable_and_no_failure() {
    let folder = Folder::new();
    let path = folder.write("a.txt", "text");
    let program = Command::new("python3")
        .args(["-c", LEASE])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut program) = program else {
        return println!("skipped: there is no python3");
    };
    let mut line = String::new();
    let said = BufReader::new(program.stdout.take().unwrap()).read_line(&mut line);
    if said.is_err() || line != "held\n" {
        let _ = program.wait();
        return println!("skipped: the file system has no leases");
    }
    let site = site(Files::open(folder.path()).unwrap());
    let reply = site.get("/a.txt");
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    drop(program.stdin.take());
    program.wait().unwrap();
    assert_eq!(site.get("/a.txt").text(), "text");
}
