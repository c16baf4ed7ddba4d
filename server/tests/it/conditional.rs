//! Conditional requests against a file, small and large: RFC 9110 section 13 over the wire.

use crate::support::{Folder, Server, age, pattern};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MODIFIED: u64 = 784_111_777;
const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

#[test]
fn every_field_and_their_precedence() {
    let folder = Folder::new();
    for (name, size) in [("small.txt", 5), ("large.txt", 100_000)] {
        age(
            &folder.write(name, pattern(size)),
            UNIX_EPOCH + Duration::from_secs(MODIFIED),
        );
    }
    let server = Server::start(&folder, &[]);
    for target in ["/small.txt", "/large.txt"] {
        let whole = server.get(target);
        assert_eq!(whole.field("last-modified"), Some(SAME));
        let tag = whole.field("etag").unwrap().to_string();
        assert!(tag.starts_with('"') && tag.ends_with('"'), "{tag} is not strong");
        for (fields, expected) in [
            (vec![format!("If-None-Match: {tag}")], 304),
            (vec![format!("If-None-Match: W/{tag}")], 304),
            (vec![format!("If-None-Match: \"x\", {tag}")], 304),
            (
                vec!["If-None-Match: \"x\"".into(), format!("If-None-Match: {tag}")],
                304,
            ),
            (vec!["If-None-Match: *".into()], 304),
            (vec!["If-None-Match: \"x\"".into()], 200),
            (vec![format!("If-None-Match: {}", tag.trim_matches('"'))], 200),
            (vec![format!("If-Modified-Since: {SAME}")], 304),
            (vec![format!("If-Modified-Since: {AFTER}")], 304),
            (vec![format!("If-Modified-Since: {BEFORE}")], 200),
            (vec!["If-Modified-Since: yesterday".into()], 200),
            (
                vec!["If-None-Match: \"x\"".into(), format!("If-Modified-Since: {AFTER}")],
                200,
            ),
            (
                vec![format!("If-None-Match: {tag}"), format!("If-Modified-Since: {BEFORE}")],
                304,
            ),
            (vec![format!("If-Match: {tag}")], 200),
            (vec!["If-Match: *".into()], 200),
            (vec![format!("If-Match: W/{tag}")], 412),
            (vec!["If-Match: \"x\"".into()], 412),
            (vec![format!("If-Unmodified-Since: {SAME}")], 200),
            (vec![format!("If-Unmodified-Since: {BEFORE}")], 412),
            (
                vec![format!("If-Match: {tag}"), format!("If-Unmodified-Since: {BEFORE}")],
                200,
            ),
            (vec!["If-Match: \"x\"".into(), format!("If-None-Match: {tag}")], 412),
            (
                vec![
                    format!("If-Unmodified-Since: {BEFORE}"),
                    format!("If-None-Match: {tag}"),
                ],
                412,
            ),
            // The condition is weighed before the range.
            (vec![format!("If-None-Match: {tag}"), "Range: bytes=0-1".into()], 304),
            (vec!["If-Match: \"x\"".into(), "Range: bytes=0-1".into()], 412),
            (vec![format!("If-Match: {tag}"), "Range: bytes=0-1".into()], 206),
        ] {
            let lines: Vec<&str> = fields.iter().map(String::as_str).collect();
            for method in ["GET", "HEAD"] {
                let expected = if method == "HEAD" && expected == 206 {
                    200
                } else {
                    expected
                };
                let reply = server.ask(method, target, &lines);
                assert_eq!(reply.status, expected, "{method} {target} {fields:?}");
                if expected == 304 {
                    assert_eq!(reply.field("etag"), Some(tag.as_str()), "{fields:?}");
                    assert_eq!(reply.field("content-type"), None, "{fields:?}");
                }
            }
        }
    }
}

#[test]
fn a_304_leaves_the_connection_in_step() {
    let folder = Folder::new();
    folder.write("a.txt", "hello");
    let server = Server::start(&folder, &[]);
    let mut client = server.connect();
    for _ in 0..3 {
        client.send("GET", "/a.txt", &["If-None-Match: *"]);
        assert_eq!(client.receive("GET").status, 304);
        client.send("GET", "/a.txt", &[]);
        assert_eq!(client.receive("GET").text(), "hello");
    }
}

#[test]
fn a_file_from_the_future_has_no_date() {
    let folder = Folder::new();
    age(
        &folder.write("a.txt", "a"),
        SystemTime::now() + Duration::from_secs(86_400),
    );
    let server = Server::start(&folder, &[]);
    let reply = server.get_with("/a.txt", &["If-Modified-Since: Fri, 31 Dec 9999 23:59:59 GMT"]);
    assert_eq!((reply.status, reply.field("last-modified")), (200, None));
    assert!(reply.field("etag").is_some());
}
