//! Range and If-Range over the wire, on a file sent from memory and on one sent by sendfile.

use crate::support::{Folder, Server, age, pattern};
use std::time::{Duration, UNIX_EPOCH};

#[test]
fn single_ranges_are_served_and_all_else_is_whole() {
    let folder = Folder::new();
    for size in [100u64, 100_000] {
        folder.write(format!("{size}"), pattern(size as usize));
    }
    folder.write("0", "");
    let server = Server::start(&folder, &[]);
    for size in [100u64, 100_000] {
        let (target, whole) = (format!("/{size}"), pattern(size as usize));
        let last = size - 1;
        let part = |first: u64, last: u64| Some((first, last));
        for (range, expected) in [
            ("bytes=0-9".into(), part(0, 9)),
            ("bytes=0-0".into(), part(0, 0)),
            ("bytes=90-".into(), part(90, last)),
            ("bytes=-10".into(), part(size - 10, last)),
            (format!("bytes=-{}", size * 2), part(0, last)),
            (format!("bytes=5-{}", size * 2), part(5, last)),
            (format!("bytes={last}-"), part(last, last)),
            ("bytes=0-99999999999999999999".into(), part(0, last)),
            ("bytes=9-5".into(), None),
            ("bytes=".into(), None),
            ("bytes=x-y".into(), None),
            ("lines=0-9".into(), None),
            ("bytes=0-1,5-6".into(), part(0, 6)),
            ("bytes=0-50,20-70".into(), part(0, 70)),
            (format!("bytes={}", vec!["0-1"; 500].join(",")), None),
        ] {
            let reply = server.get_with(&target, &[&format!("Range: {range}")]);
            match expected {
                Some((first, last)) => {
                    assert_eq!(reply.status, 206, "{target} {range}");
                    assert_eq!(
                        reply.field("content-range"),
                        Some(format!("bytes {first}-{last}/{size}").as_str())
                    );
                    assert!(reply.body == whole[first as usize..=last as usize], "{target} {range}");
                }
                None => {
                    assert_eq!(
                        (reply.status, reply.field("content-range")),
                        (200, None),
                        "{target} {range}"
                    );
                    assert!(reply.body == whole, "{target} {range}");
                }
            }
        }
        for range in [
            format!("bytes={size}-"),
            "bytes=999999-".into(),
            "bytes=-0".into(),
            "bytes=99999999999999999999-".into(),
        ] {
            let reply = server.get_with(&target, &[&format!("Range: {range}")]);
            let range_of_none = format!("bytes */{size}");
            assert_eq!(
                (reply.status, reply.field("content-range")),
                (416, Some(range_of_none.as_str())),
                "{range}"
            );
        }
        // A range is a matter of GET alone.
        let head = server.ask("HEAD", &target, &["Range: bytes=0-9"]);
        assert_eq!(
            (head.status, head.field("content-length")),
            (200, Some(size.to_string().as_str()))
        );
    }
    assert_eq!(server.get_with("/0", &["Range: bytes=0-"]).status, 416);
    assert_eq!(server.get_with("/0", &["Range: bytes=-5"]).status, 200);
}

#[test]
fn if_range_guards_against_mixing_two_versions() {
    let folder = Folder::new();
    age(
        &folder.write("a", pattern(100)),
        UNIX_EPOCH + Duration::from_secs(784_111_777),
    );
    let server = Server::start(&folder, &[]);
    let tag = server.get("/a").field("etag").unwrap().to_string();
    for (condition, expected) in [
        (tag.clone(), 206),
        (format!("W/{tag}"), 200),
        ("\"other\"".into(), 200),
        ("Sun, 06 Nov 1994 08:49:37 GMT".into(), 206),
        ("Sun, 06 Nov 1994 08:49:38 GMT".into(), 200),
        ("rubbish".into(), 200),
    ] {
        let reply = server.get_with("/a", &["Range: bytes=0-9", &format!("If-Range: {condition}")]);
        assert_eq!(reply.status, expected, "{condition}");
        assert_eq!(reply.body.len(), if expected == 206 { 10 } else { 100 }, "{condition}");
    }
    // Without a range there is nothing to guard.
    assert_eq!(server.get_with("/a", &["If-Range: \"other\""]).status, 200);
}

#[test]
fn a_download_can_be_taken_up_again() {
    let folder = Folder::new();
    let whole = pattern(3 << 20);
    folder.write("a", &whole);
    let server = Server::start(&folder, &[]);
    let tag = server.get("/a").field("etag").unwrap().to_string();
    let mut pieces = Vec::new();
    let mut client = server.connect();
    while pieces.len() < whole.len() {
        let range = format!("Range: bytes={}-{}", pieces.len(), pieces.len() + 700_000);
        client.send("GET", "/a", &[&range, &format!("If-Range: {tag}")]);
        let reply = client.receive("GET");
        assert_eq!(reply.status, 206);
        pieces.extend_from_slice(&reply.body);
    }
    assert!(pieces == whole);
}
