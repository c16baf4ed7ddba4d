//! `x.br`, `x.zst` and `x.gz` beside `x`: which clients get which file, and how validators tell the files apart.

use crate::support::{Folder, Server, age, pattern};
use std::time::{Duration, SystemTime};

#[test]
fn weights_choose_among_what_exists() {
    let folder = Folder::new();
    for (name, content) in [
        ("all.js", "plain"),
        ("all.js.br", "brotli"),
        ("all.js.zst", "zstandard"),
        ("all.js.gz", "gzip"),
        ("one.js", "plain"),
    ] {
        folder.write(name, content);
    }
    folder.write("one.js.gz", "gzip");
    folder.write("none.js", "plain");
    let server = Server::start(&folder, &[]);
    for (target, accepted, status, body, coding) in [
        ("/all.js", "gzip, deflate, br, zstd", 200, "brotli", Some("br")),
        ("/all.js", "gzip, deflate, zstd", 200, "zstandard", Some("zstd")),
        ("/all.js", "gzip", 200, "gzip", Some("gzip")),
        ("/all.js", "br;q=0.1, gzip;q=0.9", 200, "gzip", Some("gzip")),
        ("/all.js", "br;q=0, zstd;q=0, gzip", 200, "gzip", Some("gzip")),
        ("/all.js", "*", 200, "brotli", Some("br")),
        ("/all.js", "deflate", 200, "plain", None),
        ("/all.js", "identity", 200, "plain", None),
        ("/all.js", "gzip;q=0.5, identity", 200, "plain", None),
        ("/all.js", "identity;q=0, gzip", 200, "gzip", Some("gzip")),
        ("/all.js", "identity;q=0", 406, "406 Not Acceptable\n", None),
        ("/all.js", "*;q=0", 406, "406 Not Acceptable\n", None),
        ("/one.js", "gzip, br", 200, "gzip", Some("gzip")),
        ("/one.js", "br", 200, "plain", None),
        ("/none.js", "gzip, br", 200, "plain", None),
        ("/none.js", "identity;q=0, *;q=0", 406, "406 Not Acceptable\n", None),
    ] {
        let reply = server.get_with(target, &[&format!("Accept-Encoding: {accepted}")]);
        assert_eq!((reply.status, reply.text()), (status, body), "{target} {accepted}");
        assert_eq!(reply.field("content-encoding"), coding, "{target} {accepted}");
        if status == 200 {
            assert_eq!(
                reply.field("content-type"),
                Some("text/javascript; charset=utf-8"),
                "{target} {accepted}"
            );
            let varies = target != "/none.js";
            assert_eq!(
                reply.field("vary"),
                varies.then_some("accept-encoding"),
                "{target} {accepted}"
            );
        }
    }
    assert_eq!(server.get("/all.js").text(), "plain");
    // Asked for by its own name, a sibling is a file like any other.
    let reply = server.get_with("/all.js.gz", &["Accept-Encoding: gzip"]);
    assert_eq!((reply.text(), reply.field("content-encoding")), ("gzip", None));
    assert_eq!(reply.field("content-type"), Some("application/gzip"));
}

#[test]
fn each_form_has_its_own_tag_and_ranges() {
    let folder = Folder::new();
    let (plain, packed) = (pattern(200_000), pattern(90_000));
    folder.write("a.css", &plain);
    folder.write("a.css.gz", &packed);
    let server = Server::start(&folder, &[]);
    let gzip = "Accept-Encoding: gzip";
    let plain_tag = server.get("/a.css").field("etag").unwrap().to_string();
    let packed_tag = server.get_with("/a.css", &[gzip]).field("etag").unwrap().to_string();
    assert_ne!(plain_tag, packed_tag);

    let reply = server.get_with("/a.css", &[gzip, &format!("If-None-Match: {packed_tag}")]);
    assert_eq!((reply.status, reply.field("vary")), (304, Some("accept-encoding")));
    assert_eq!(
        server
            .get_with("/a.css", &[gzip, &format!("If-None-Match: {plain_tag}")])
            .status,
        200
    );
    assert_eq!(
        server
            .get_with("/a.css", &[&format!("If-None-Match: {packed_tag}")])
            .status,
        200
    );

    let reply = server.get_with(
        "/a.css",
        &[gzip, "Range: bytes=10-19", &format!("If-Range: {packed_tag}")],
    );
    assert_eq!(
        (reply.status, reply.field("content-range")),
        (206, Some("bytes 10-19/90000"))
    );
    assert_eq!(reply.field("content-encoding"), Some("gzip"));
    assert!(reply.body == packed[10..20]);
    // A client that resumes the other form gets the whole.
    let reply = server.get_with(
        "/a.css",
        &[gzip, "Range: bytes=10-19", &format!("If-Range: {plain_tag}")],
    );
    assert_eq!((reply.status, reply.body.len()), (200, 90_000));
}

#[test]
fn a_sibling_that_is_out_of_date_or_no_file_is_not_used() {
    let folder = Folder::new();
    folder.write("a.html", "new");
    age(
        &folder.write("a.html.gz", "old"),
        SystemTime::now() - Duration::from_secs(7200),
    );
    std::fs::create_dir(folder.join("a.html.br")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("a.html.zst")).unwrap();
    let server = Server::start(&folder, &[]);
    let reply = server.get_with("/a.html", &["Accept-Encoding: br, gzip, zstd"]);
    assert_eq!(
        (reply.text(), reply.field("content-encoding"), reply.field("vary")),
        ("new", None, None)
    );
}

#[test]
fn an_index_has_siblings_too() {
    let folder = Folder::new();
    folder.write("index.html", "plain");
    folder.write("index.html.br", "brotli");
    let server = Server::start(&folder, &["--spa"]);
    for target in ["/", "/a/page"] {
        let reply = server.get_with(target, &["Accept-Encoding: br"]);
        assert_eq!(
            (reply.text(), reply.field("content-encoding")),
            ("brotli", Some("br")),
            "{target}"
        );
        assert_eq!(
            reply.field("content-type"),
            Some("text/html; charset=utf-8"),
            "{target}"
        );
    }
}
