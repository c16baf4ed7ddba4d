//! Every limit is exact: a part at its bound is accepted, and one byte or field more is refused with the right status as soon as it
//! arrives.

use crate::connection::{End, run};
use osier_http::{BodyDecoder, BodyLength, Head, HeadScanner, Limits, Reject, Slots};

fn end_of(bytes: &[u8], limits: &Limits) -> End {
    let whole = run([bytes], limits, usize::MAX);
    assert_eq!(run(bytes.chunks(1), limits, usize::MAX), whole, "byte by byte");
    whole.end
}

const DONE: End = End::Waiting { buffered: 0 };

/// A request line of `length` bytes and a small head.
fn with_line(length: usize) -> Vec<u8> {
    let target = "a".repeat(length - "GET / HTTP/1.1".len());
    format!("GET /{target} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
}

#[test]
fn request_line() {
    let limits = Limits {
        request_line: 100,
        ..Limits::default()
    };
    assert_eq!(end_of(&with_line(100), &limits), DONE);
    assert_eq!(
        end_of(&with_line(101), &limits),
        End::Rejected(Reject::RequestLineTooLong)
    );
    assert_eq!(Reject::RequestLineTooLong.status(), 414);
    // Leading empty lines do not count.
    assert_eq!(end_of(&[b"\r\n\r\n", &with_line(100)[..]].concat(), &limits), DONE);
}

#[test]
fn request_line_is_refused_before_its_end() {
    let limits = Limits {
        request_line: 100,
        ..Limits::default()
    };
    let line = with_line(5000);
    assert_eq!(HeadScanner::new().scan(&line[..100], &limits), Ok(None));
    assert_eq!(
        HeadScanner::new().scan(&line[..101], &limits),
        Err(Reject::RequestLineTooLong)
    );
    // The 101st byte may be the CR of a line that fits.
    let fits = with_line(100);
    assert_eq!(HeadScanner::new().scan(&fits[..101], &limits), Ok(None));
    // A broken line end after the limit is not reported; one before it is.
    for length in [101, 102, 110] {
        let broken = [&line[..length], b"\n"].concat();
        assert_eq!(
            end_of(&broken, &limits),
            End::Rejected(Reject::RequestLineTooLong),
            "{length}"
        );
    }
    assert_eq!(
        end_of(&[&line[..100], b"\n"].concat(), &limits),
        End::Rejected(Reject::BareLf)
    );
}

/// A head of `length` bytes.
fn with_head(length: usize) -> Vec<u8> {
    let start = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
    format!("{start}{}\r\n\r\n", "x".repeat(length - start.len() - 4)).into_bytes()
}

#[test]
fn head_bytes() {
    for limit in [100, 333, 32 << 10] {
        let limits = Limits {
            head_bytes: limit,
            ..Limits::default()
        };
        assert_eq!(run([&with_head(limit)[..]], &limits, 1).end, DONE);
        assert_eq!(
            run([&with_head(limit + 1)[..]], &limits, 1).end,
            End::Rejected(Reject::HeadTooLarge)
        );
        assert_eq!(
            HeadScanner::new().scan(&with_head(limit + 1)[..limit - 1], &limits),
            Ok(None)
        );
        assert_eq!(
            HeadScanner::new().scan(&with_head(limit + 1)[..limit], &limits),
            Err(Reject::HeadTooLarge)
        );
    }
    assert_eq!(Reject::HeadTooLarge.status(), 431);
    let limits = Limits {
        head_bytes: 200,
        ..Limits::default()
    };
    assert_eq!(end_of(&with_head(200), &limits), DONE);
    assert_eq!(end_of(&with_head(201), &limits), End::Rejected(Reject::HeadTooLarge));
}

fn with_fields(count: usize) -> Vec<u8> {
    let more: String = (1..count).map(|i| format!("X{i}: y\r\n")).collect();
    format!("GET / HTTP/1.1\r\nHost: a\r\n{more}\r\n").into_bytes()
}

#[test]
fn header_count() {
    let limits = Limits::default();
    assert_eq!(run([&with_fields(100)[..]], &limits, 1).end, DONE);
    assert_eq!(
        run([&with_fields(101)[..]], &limits, 1).end,
        End::Rejected(Reject::TooManyHeaders)
    );
    assert_eq!(Reject::TooManyHeaders.status(), 431);

    let limits = Limits {
        header_count: 3,
        ..Limits::default()
    };
    assert_eq!(end_of(&with_fields(3), &limits), DONE);
    assert_eq!(end_of(&with_fields(4), &limits), End::Rejected(Reject::TooManyHeaders));
}

#[test]
fn slots_bound_the_header_count_too() {
    let limits = Limits {
        header_count: 1000,
        ..Limits::default()
    };
    let five = with_fields(5);
    assert_eq!(
        Head::parse(&five, &mut Slots::<5>::new(), &limits)
            .unwrap()
            .headers()
            .len(),
        5
    );
    assert_eq!(
        Head::parse(&five, &mut Slots::<4>::new(), &limits).unwrap_err(),
        Reject::TooManyHeaders
    );
}

#[test]
fn known_body() {
    let limits = Limits {
        body: 10,
        ..Limits::default()
    };
    assert!(BodyDecoder::new(BodyLength::Known(10), &limits).is_ok());
    assert_eq!(
        BodyDecoder::new(BodyLength::Known(11), &limits).unwrap_err(),
        Reject::BodyTooLarge
    );
    assert_eq!(Reject::BodyTooLarge.status(), 413);
}

fn chunked(body: &str, limits: &Limits) -> End {
    end_of(
        format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}").as_bytes(),
        limits,
    )
}

#[test]
fn chunked_body() {
    let limits = Limits {
        body: 10,
        ..Limits::default()
    };
    assert_eq!(chunked("6\r\nabcdef\r\n4\r\nghij\r\n0\r\n\r\n", &limits), DONE);
    let refused = End::Rejected(Reject::BodyTooLarge);
    // The size line is refused before a byte of the chunk has arrived.
    assert_eq!(chunked("6\r\nabcdef\r\n5\r\n", &limits), refused);
    assert_eq!(chunked("b\r\n", &limits), refused);
    assert_eq!(chunked("a\r\n0123456789\r\n0\r\n\r\n", &limits), DONE);
}

#[test]
fn chunk_extensions_of_the_whole_body() {
    let limits = Limits {
        chunk_extension_bytes: 10,
        ..Limits::default()
    };
    assert_eq!(chunked("1;abcd\r\nx\r\n1;efgh\r\nx\r\n0\r\n\r\n", &limits), DONE);
    let refused = End::Rejected(Reject::ChunkExtensionTooLong);
    assert_eq!(chunked("1;abcd\r\nx\r\n1;efghi\r\nx\r\n0\r\n\r\n", &limits), refused);
    assert_eq!(chunked("1;abcdefghi\r\nx\r\n0\r\n\r\n", &limits), DONE);
    assert_eq!(chunked("1;abcdefghij", &limits), refused);
}

#[test]
fn trailer_bytes_and_count() {
    // "X: 1\r\n" is six bytes, the last CRLF two.
    let limits = Limits {
        trailer_bytes: 14,
        ..Limits::default()
    };
    assert_eq!(chunked("0\r\nX: 1\r\nY: 2\r\n\r\n", &limits), DONE);
    let refused = End::Rejected(Reject::TrailerTooLarge);
    assert_eq!(chunked("0\r\nX: 1\r\nY: 23\r\n\r\n", &limits), refused);
    assert_eq!(Reject::TrailerTooLarge.status(), 431);

    let limits = Limits {
        header_count: 2,
        ..Limits::default()
    };
    assert_eq!(chunked("0\r\nX: 1\r\nY: 2\r\n\r\n", &limits), DONE);
    assert_eq!(chunked("0\r\nX: 1\r\nY: 2\r\nZ: 3\r\n\r\n", &limits), refused);
}

#[test]
fn any_limits_however_small_never_panic() {
    let bytes = [with_line(60), with_head(100), with_fields(6)].concat();
    let bytes = [b"\r\n\r\n", &bytes[..]].concat();
    for size in 0..80 {
        let limits = Limits {
            request_line: size,
            head_bytes: size,
            header_count: size,
            body: size as u64,
            chunk_extension_bytes: size,
            trailer_bytes: size,
        };
        assert!(matches!(end_of(&bytes, &limits), End::Rejected(_)), "{size}");
    }
}
