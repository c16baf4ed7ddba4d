//! Heads of CGI responses: their meaning, the fields that are left out, and the refused ones, however the bytes are split.

use osier_http::cgi::{HEAD_BYTES, Head, Malformed, Scanner, longest_field};
use proptest::prelude::*;

/// The result of reading `answer`, which must not depend on the pieces.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    status: u16,
    local: Option<String>,
    length: Option<u64>,
    fields: Vec<(String, Vec<u8>)>,
    body_at: usize,
}

fn read_in(answer: &[u8], ends: impl IntoIterator<Item = usize>, limit: usize) -> Result<Option<Read>, Malformed> {
    let mut scanner = Scanner::new(limit);
    for end in ends {
        let Some(body_at) = scanner.scan(&answer[..end])? else {
            continue;
        };
        let head = Head::parse(&answer[..body_at])?;
        let fields = head.fields().map(|(name, value)| (name.to_owned(), value.to_vec()));
        return Ok(Some(Read {
            status: head.status(),
            local: head.local_redirect().map(str::to_owned),
            length: head.content_length(),
            fields: fields.collect(),
            body_at,
        }));
    }
    Ok(None)
}

fn read(answer: &[u8]) -> Result<Option<Read>, Malformed> {
    let whole = read_in(answer, [answer.len()], HEAD_BYTES);
    assert_eq!(read_in(answer, 0..=answer.len(), HEAD_BYTES), whole, "byte by byte");
    for cut in 0..answer.len() {
        assert_eq!(read_in(answer, [cut, answer.len()], HEAD_BYTES), whole, "cut at {cut}");
    }
    whole
}

fn fields(answer: &str) -> Vec<(String, String)> {
    let read = read(answer.as_bytes()).unwrap().expect("a whole head");
    let text = |value: Vec<u8>| String::from_utf8(value).unwrap();
    read.fields
        .into_iter()
        .map(|(name, value)| (name, text(value)))
        .collect()
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[test]
fn lines_end_with_lf_or_crlf_and_the_body_begins_after_the_empty_one() {
    for (answer, body) in [
        ("A: 1\nB: 2\n\nbody", "body"),
        ("A: 1\r\nB: 2\r\n\r\nbody", "body"),
        ("A: 1\r\nB: 2\n\r\nbody", "body"),
        ("A: 1\nB: 2\r\n\n\nbody", "\nbody"),
        ("A:1\nB:\t2 \n\n", ""),
    ] {
        let head = read(answer.as_bytes()).unwrap().expect("a whole head");
        assert_eq!(&answer[head.body_at..], body, "{answer:?}");
        assert_eq!(fields(answer), [pair("A", "1"), pair("B", "2")], "{answer:?}");
    }
    for incomplete in ["", "A", "A: 1", "A: 1\r\n", "A: 1\n\r", "\r"] {
        assert_eq!(read(incomplete.as_bytes()), Ok(None), "{incomplete:?}");
    }
}

#[test]
fn status_and_location_mean_what_cgi_says() {
    let read = |answer: &str| {
        let read = read(answer.as_bytes()).unwrap().expect("a whole head");
        (read.status, read.local)
    };
    assert_eq!(read("Content-Type: text/plain\n\n"), (200, None));
    assert_eq!(read("status: 404 Not Found\n\n"), (404, None));
    assert_eq!(read("Status: 204\n\n"), (204, None));
    assert_eq!(read("Location: https://example.org/\n\n"), (302, None));
    assert_eq!(read("Location: /other?a=1\n\n"), (302, Some("/other?a=1".into())));
    assert_eq!(
        read("Status: 301 Moved\nLocation: /other\n\n"),
        (301, None),
        "for the client"
    );
    assert_eq!(
        read("Location: /other\nStatus: 201 Made\n\n"),
        (201, None),
        "in whatever order"
    );
    assert_eq!(
        read("Location: //example.org/\n\n"),
        (302, None),
        "another host is not local"
    );
    assert_eq!(
        read("Location: other\n\n"),
        (302, None),
        "a relative one is the client's to resolve"
    );
    assert_eq!(fields("Status: 302 Found\nLocation: /a\n\n"), [pair("Location", "/a")]);
    for location in ["/a b", "/\u{e4}", ""] {
        let answer = format!("Location: {location}\n\n");
        assert_eq!(read(&answer), (302, None), "{location:?} is the client's to read");
        assert_eq!(fields(&answer), [pair("Location", location)]);
    }
}

#[test]
fn what_frames_or_concerns_the_connection_is_left_out() {
    let answer = "Content-Length: 5\nTransfer-Encoding: chunked\nConnection: close, X-Hop,,x-other\nX-Hop: 1\nKeep-Alive: 5\n\
                  Proxy-Connection: a\nTE: trailers\nTrailer: X\nUpgrade: h2c\nX-Other: 2\nX-Kept: 3\nSet-Cookie: a\nSet-Cookie: b\n\n";
    let expected = [pair("X-Kept", "3"), pair("Set-Cookie", "a"), pair("Set-Cookie", "b")];
    assert_eq!(fields(answer), expected);
    assert_eq!(read(answer.as_bytes()).unwrap().unwrap().length, Some(5));
    let twice = read(b"Content-Length: 5\nContent-Length: 5\n\n").unwrap().unwrap();
    assert_eq!((twice.length, twice.fields), (Some(5), vec![]));
    // If Connection lists only `close`, a field with the name `close` passes.
    assert_eq!(fields("Connection: close\nClose: 1\n\n"), [pair("Close", "1")]);
}

#[test]
fn fields_mean_the_same_at_any_place_of_a_long_head() {
    let lines = [
        "Connection: x-hop",
        "X-1: 1",
        "Content-Length: 5",
        "X-Hop: 1",
        "X-2: 2",
        "Status: 404 Not Found",
        "X-3: 3",
        "Keep-Alive: 5",
        "X-4: 4",
        "X-5: 5",
        "X-6:  6 ",
        "Location: /a",
    ];
    for first in 0..lines.len() {
        let mut lines = lines;
        lines.rotate_left(first);
        let answer = lines.join("\n") + "\n\n";
        let passing = lines
            .iter()
            .filter(|line| line.starts_with("X-") && !line.starts_with("X-Hop") || line.starts_with("Location"));
        let expected = passing.map(|line| {
            line.split_once(':')
                .map(|(name, value)| pair(name, value.trim()))
                .unwrap()
        });
        assert_eq!(fields(&answer), expected.collect::<Vec<_>>());
        let head = Head::parse(answer.as_bytes()).unwrap();
        assert_eq!(
            (head.status(), head.content_length(), head.location()),
            (404, Some(5), Some(&b"/a"[..]))
        );
        assert_eq!((head.field("x-6"), head.field("x-hop")), (Some(&b"6"[..]), None));
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    use Malformed as M;
    let names: Vec<String> = (0..17).map(|i| format!("n{i}")).collect();
    let listing = format!("Connection: {}\n\n", names.join(","));
    let refused: &[(&str, M)] = &[
        ("\n", M::Empty),
        ("\r\nbody", M::Empty),
        ("HTTP/1.1 200 OK\r\nA: 1\r\n\r\n", M::Field(1)),
        ("A: 1\n: 2\n\n", M::Field(2)),
        ("A: 1\nB : 2\n\n", M::Field(2)),
        ("A: 1\n B: 2\n\n", M::Field(2)),
        ("A: 1\n\tfolded\n\n", M::Field(2)),
        ("A\u{e4}: 1\n\n", M::Field(1)),
        ("no colon\n\n", M::Field(1)),
        ("A: 1\rB: 2\n\n", M::Value(1)),
        ("A: 1\nB: \0\n\n", M::Value(2)),
        ("A: \x7f\n\n", M::Value(1)),
        ("A: 1\r\r\n\n", M::Value(1)),
        ("Status: 20\n\n", M::Status),
        ("Status: 2000\n\n", M::Status),
        ("Status: OK\n\n", M::Status),
        ("Status: +20\n\n", M::Status),
        ("Status:\n\n", M::Status),
        ("Status: 100 Continue\n\n", M::Status),
        ("Status: 101 Switching Protocols\n\n", M::Status),
        ("Status: 200 OK\nStatus: 200 OK\n\n", M::Status),
        ("Location: /a\nLocation: /b\n\n", M::Location),
        ("Content-Length: 5\nContent-Length: 6\n\n", M::ContentLength),
        ("Content-Length: +5\n\n", M::ContentLength),
        ("Content-Length: 5, 5\n\n", M::ContentLength),
        ("Content-Length: -1\n\n", M::ContentLength),
        ("Content-Length: 0x5\n\n", M::ContentLength),
        ("Content-Length:\n\n", M::ContentLength),
        ("Content-Length: 99999999999999999999\n\n", M::ContentLength),
        ("Content-Type: a\nContent-Type: a\n\n", M::ContentType),
        (&listing, M::Connection),
    ];
    for (answer, offence) in refused {
        assert_eq!(read(answer.as_bytes()), Err(*offence), "{answer:?}");
        assert!(!offence.to_string().is_empty());
    }
}

#[test]
fn the_fields_of_a_head_have_a_bound() {
    let head = |count: usize| format!("Connection: hop\n{}hop: 1\n\n", "a:\n".repeat(count - 2));
    let most = head(4096);
    let most = Head::parse(most.as_bytes()).unwrap();
    assert!(
        most.fields().all(|field| field == ("a", b"")),
        "the listed one is left out"
    );
    assert_eq!((most.fields().count(), most.field("hop")), (4094, None));
    let refused = Head::parse(head(4097).as_bytes()).unwrap_err();
    assert_eq!(refused, Malformed::TooManyFields);
    assert!(refused.to_string().contains("more than 4096 fields"));
}

#[test]
fn a_head_has_a_bound_and_the_log_can_name_what_was_long() {
    let fitting = format!("A: {}\n\n", "x".repeat(HEAD_BYTES - 5));
    assert_eq!(fitting.len(), HEAD_BYTES);
    let cuts = [1000, HEAD_BYTES - 1, HEAD_BYTES];
    assert!(read_in(fitting.as_bytes(), cuts, HEAD_BYTES).unwrap().is_some());
    // A body after the head does not count.
    let with_body = format!("{fitting}{fitting}");
    assert!(
        read_in(with_body.as_bytes(), [with_body.len()], HEAD_BYTES)
            .unwrap()
            .is_some()
    );

    let long = format!("B: 1\nX-Long: {}\n\n", "x".repeat(100));
    assert_eq!(
        read_in(long.as_bytes(), 0..=long.len(), 50),
        Err(Malformed::TooLong(50))
    );
    assert_eq!(read_in(long.as_bytes(), [long.len()], 50), Err(Malformed::TooLong(50)));
    assert_eq!(longest_field(&long.as_bytes()[..51]), Some(("X-Long", 46)));
    assert!(Malformed::TooLong(50).to_string().contains("50 bytes"));
    assert_eq!(longest_field(b"no colon"), None);
}

proptest! {
    #[test]
    fn any_bytes_mean_the_same_in_any_pieces(
        lines in prop::collection::vec(prop_oneof![
            "[A-Za-z-]{1,9}: ?[ -~]{0,12}",
            "(Status|Location|Content-Length|Connection|Transfer-Encoding): [ -~]{0,8}",
            "Status: [2-5][0-9]{2} OK",
            "\\PC{0,8}",
        ], 0..8),
        end in "(\r?\n){1,2}|",
        rest in prop::collection::vec(any::<u8>(), 0..40),
        cuts in prop::collection::vec(0usize..300, 0..5),
        limit in prop_oneof![Just(HEAD_BYTES), 1usize..120],
    ) {
        let mut answer: Vec<u8> = lines.join("\n").into_bytes();
        answer.extend(end.as_bytes());
        answer.extend(rest);
        let whole = read_in(&answer, [answer.len()], limit);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(answer.len())).collect();
        cuts.sort_unstable();
        cuts.push(answer.len());
        prop_assert_eq!(&read_in(&answer, cuts, limit), &whole);
        if let Ok(Some(read)) = whole {
            prop_assert!((200..1000).contains(&read.status));
            prop_assert!(read.body_at <= limit && answer[..read.body_at].ends_with(b"\n"));
            for (name, value) in read.fields {
                let framing = ["content-length", "transfer-encoding", "connection", "upgrade", "status"];
                prop_assert!(!framing.contains(&&*name.to_ascii_lowercase()), "{}", name);
                prop_assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
            }
        }
    }
}
