//! The cases of framing, UTF-8, closing and fragmentation: what a client sends, and what it must
//! get. The parent module has the encoder, `masked`. The seeds of the fuzzer are written from this
//! table too.

use super::masked;

/// A frame of the server: its first byte and its payload.
pub type Frame = (u8, Vec<u8>);

/// The expected reply.
pub enum Want {
    /// These frames. Then the connection is still open and echoes.
    Frames(Vec<Frame>),
    /// These frames, then a close frame with the code, then the end.
    Close(Vec<Frame>, u16),
    /// The end, with or without a close frame before.
    Empty,
}

fn text(payload: &str) -> Frame {
    (0x81, payload.as_bytes().to_vec())
}

fn binary(payload: &[u8]) -> Frame {
    (0x82, payload.to_vec())
}

fn pong(payload: &[u8]) -> Frame {
    (0x8A, payload.to_vec())
}

pub fn close(code: u16, reason: &str) -> Vec<u8> {
    masked(0x88, &[&code.to_be_bytes(), reason.as_bytes()].concat())
}

pub fn join(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.concat()
}

/// Frames that carry `payload`, a piece each, as a message of this opcode.
fn fragments(opcode: u8, payload: &[u8], piece: usize) -> Vec<u8> {
    let mut pieces: Vec<&[u8]> = payload.chunks(piece).collect();
    let last = pieces.pop().unwrap_or_default();
    let mut bytes = Vec::new();
    for (n, piece) in pieces.iter().enumerate() {
        bytes.extend(masked(if n == 0 { opcode } else { 0 }, piece));
    }
    bytes.extend(masked(0x80 | if pieces.is_empty() { opcode } else { 0 }, last));
    bytes
}

pub type Case = (String, Vec<u8>, Want);

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut case = |name: &str, send: Vec<u8>, want: Want| cases.push((name.into(), send, want));

    // 1: framing.
    for length in [0, 1, 125, 126, 127, 128, 65_535, 65_536] {
        let payload = "*".repeat(length);
        case(
            &format!("1.1 text of {length}"),
            masked(0x81, payload.as_bytes()),
            Want::Frames(vec![text(&payload)]),
        );
        let payload = vec![0xFE; length];
        case(
            &format!("1.2 binary of {length}"),
            masked(0x82, &payload),
            Want::Frames(vec![binary(&payload)]),
        );
    }

    // 2: pings and pongs.
    for length in [0, 1, 5, 125] {
        let payload = vec![0xFE; length];
        case(
            &format!("2 ping of {length}"),
            masked(0x89, &payload),
            Want::Frames(vec![pong(&payload)]),
        );
    }
    case("2.5 ping of 126", masked(0x89, &[0xFE; 126]), Want::Close(vec![], 1002));
    case("2.7 unasked pong", masked(0x8A, b""), Want::Frames(vec![]));
    case(
        "2.8 unasked pong with payload",
        masked(0x8A, b"x"),
        Want::Frames(vec![]),
    );
    case(
        "2.9 pong, then ping",
        join(&[masked(0x8A, b"x"), masked(0x89, b"y")]),
        Want::Frames(vec![pong(b"y")]),
    );
    let pings: Vec<Vec<u8>> = (0..10_u8).map(|n| masked(0x89, &[n])).collect();
    case(
        "2.10 ten pings",
        join(&pings),
        Want::Frames((0..10_u8).map(|n| pong(&[n])).collect()),
    );

    // 3: reserved bits.
    for bits in [0x10_u8, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70] {
        case(
            &format!("3 text with bits {bits:#x}"),
            masked(0x81 | bits, b"hello"),
            Want::Close(vec![], 1002),
        );
    }
    case(
        "3.2 good text, then reserved bits",
        join(&[masked(0x81, b"good"), masked(0xA1, b"bad"), masked(0x89, b"")]),
        Want::Close(vec![text("good")], 1002),
    );
    case(
        "3.6 ping with a reserved bit",
        masked(0xC9, b""),
        Want::Close(vec![], 1002),
    );
    case(
        "3.7 close with reserved bits",
        masked(0xF8, &1000_u16.to_be_bytes()),
        Want::Close(vec![], 1002),
    );

    // 4: reserved opcodes.
    for opcode in [3_u8, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        case(
            &format!("4 opcode {opcode}"),
            masked(0x80 | opcode, b""),
            Want::Close(vec![], 1002),
        );
        case(
            &format!("4 opcode {opcode} with payload, after a text"),
            join(&[masked(0x81, b"good"), masked(0x80 | opcode, b"x"), masked(0x89, b"")]),
            Want::Close(vec![text("good")], 1002),
        );
    }

    // 5: fragmentation.
    case(
        "5.1 fragmented ping",
        join(&[masked(0x09, b"a"), masked(0x80, b"b")]),
        Want::Close(vec![], 1002),
    );
    case(
        "5.2 fragmented pong",
        join(&[masked(0x0A, b"a"), masked(0x80, b"b")]),
        Want::Close(vec![], 1002),
    );
    case(
        "5.3 text in two",
        fragments(1, b"fragment", 4),
        Want::Frames(vec![text("fragment")]),
    );
    case(
        "5.6 a ping between fragments",
        join(&[masked(0x01, b"frag"), masked(0x89, b"ping"), masked(0x80, b"ment")]),
        Want::Frames(vec![pong(b"ping"), text("fragment")]),
    );
    case(
        "5.9 continuation without a message",
        masked(0x80, b"x"),
        Want::Close(vec![], 1002),
    );
    case(
        "5.10 continuation, not the last, without a message",
        join(&[masked(0x00, b"x"), masked(0x81, b"y")]),
        Want::Close(vec![], 1002),
    );
    case(
        "5.15 continuation after a finished message",
        join(&[fragments(1, b"ab", 1), masked(0x00, b"c"), masked(0x81, b"d")]),
        Want::Close(vec![text("ab")], 1002),
    );
    case(
        "5.18 text inside of a text",
        join(&[masked(0x01, b"a"), masked(0x81, b"b")]),
        Want::Close(vec![], 1002),
    );
    let mut many = masked(0x01, b"a");
    for n in 0..3_u8 {
        many.extend(masked(0x89, &[n]));
        many.extend(masked(0x00, b"b"));
    }
    many.extend(masked(0x80, b"c"));
    case(
        "5.19 pings between all fragments",
        many,
        Want::Frames(vec![pong(&[0]), pong(&[1]), pong(&[2]), text("abbbc")]),
    );
    case(
        "5.x empty fragments",
        fragments_of_nothing(),
        Want::Frames(vec![text("")]),
    );

    // 6: UTF-8.
    for (n, good) in [
        "Hello-µ@ßöäüàá-UTF-8!!",
        "κόσμε",
        "\u{0}",
        "\u{80}",
        "\u{7FF}\u{800}\u{FFFF}",
        "\u{10000}\u{10FFFF}",
        "\u{D7FF}\u{E000}\u{FFFD}",
        "\u{FFFE}\u{1FFFE}\u{10FFFE}",
    ]
    .into_iter()
    .enumerate()
    {
        case(
            &format!("6 good text {n}"),
            masked(0x81, good.as_bytes()),
            Want::Frames(vec![text(good)]),
        );
        let bytes = fragments(1, good.as_bytes(), 1);
        case(
            &format!("6 good text {n}, a byte a frame"),
            bytes,
            Want::Frames(vec![text(good)]),
        );
    }
    for (n, bad) in [
        &b"\xCE\xBA\xE1\xBD\xB9\xCF\x83\xCE\xBC\xCE\xB5\xED\xA0\x80edited"[..], // a surrogate
        b"\xF8\x88\x80\x80\x80",                                                // five bytes
        b"\xFC\x84\x80\x80\x80\x80",                                            // six
        b"\xF7\xBF\xBF\xBF",                                                    // beyond the last
        b"\xF4\x90\x80\x80",
        b"\x80", // a continuation alone
        b"\xBF\x80",
        b"\xC0\xAF", // too long a form
        b"\xE0\x80\xAF",
        b"\xF0\x80\x80\xAF",
        b"\xC1\xBF",
        b"\xED\xAF\xBF\xED\xBF\xBF",
        b"\xFE",
        b"\xFF",
        b"\xC3", // cut
        b"\xE2\x82",
        b"\xF0\x9F\x98",
    ]
    .into_iter()
    .enumerate()
    {
        case(&format!("6 bad text {n}"), masked(0x81, bad), Want::Close(vec![], 1007));
        case(
            &format!("6 bad text {n}, a byte a frame"),
            fragments(1, bad, 1),
            Want::Close(vec![], 1007),
        );
        case(
            &format!("6 the same as binary {n}"),
            masked(0x82, bad),
            Want::Frames(vec![binary(bad)]),
        );
    }
    // 6.4: at the first bad byte, though the message never ends.
    case(
        "6.4 bad text in a fragment that is not the last",
        masked(0x01, b"\xCE\xBA\xF4\x90\x80\x80"),
        Want::Close(vec![], 1007),
    );
    let long = masked(0x81, &[b"\xCE\xBA\xF4\x90".as_slice(), &[b'x'; 60]].concat());
    case(
        "6.4 bad text in a frame that is not whole",
        long[..20].to_vec(),
        Want::Close(vec![], 1007),
    );

    // 7: closing.
    case(
        "7.1 close, then text",
        join(&[close(1000, ""), masked(0x81, b"late")]),
        Want::Close(vec![], 1000),
    );
    case(
        "7.1 text, then close",
        join(&[masked(0x81, b"a"), close(1000, "")]),
        Want::Close(vec![text("a")], 1000),
    );
    case(
        "7.1 close in the middle of a message",
        join(&[masked(0x01, b"fragment1"), close(1000, ""), masked(0x80, b"fragment2")]),
        Want::Close(vec![], 1000),
    );
    case("7.3 close without a code", masked(0x88, b""), Want::Empty);
    case("7.3 close of one byte", masked(0x88, b"a"), Want::Close(vec![], 1002));
    case(
        "7.3 close with a reason",
        close(1000, "Hello World!"),
        Want::Close(vec![], 1000),
    );
    case(
        "7.3 close with the longest reason",
        close(1000, &"*".repeat(123)),
        Want::Close(vec![], 1000),
    );
    case(
        "7.3 close with too long a reason",
        close(1000, &"*".repeat(124)),
        Want::Close(vec![], 1002),
    );
    let bad_reason = [&1000_u16.to_be_bytes()[..], b"\xCE\xBA\xED\xA0\x80"].concat();
    case(
        "7.5 close with a reason that is not UTF-8",
        masked(0x88, &bad_reason),
        Want::Close(vec![], 1007),
    );
    for code in [
        1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999,
    ] {
        case(
            &format!("7.7 close {code}"),
            close(code, "why"),
            Want::Close(vec![], code),
        );
    }
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
        case(&format!("7.9 close {code}"), close(code, ""), Want::Close(vec![], 1002));
    }

    // 9: sizes, and limits.
    for (size, piece) in [
        (64 << 10, 1 << 20),
        (1 << 20, 1 << 20),
        (1 << 20, 64 << 10),
        (256 << 10, 1024),
    ] {
        let payload = "x".repeat(size);
        case(
            &format!("9 text of {size} in pieces of {piece}"),
            fragments(1, payload.as_bytes(), piece),
            Want::Frames(vec![text(&payload)]),
        );
    }
    case(
        "a frame beyond the limit",
        masked(0x82, &vec![0; (2 << 20) + 1])[..14].to_vec(),
        Want::Close(vec![], 1009),
    );
    let parts: Vec<Vec<u8>> = (0..3)
        .map(|n| masked(if n == 0 { 2 } else { 0 }, &[0; 2 << 20]))
        .collect();
    let two_and_a_head = join(&[parts[0].clone(), parts[1].clone(), parts[2][..14].to_vec()]);
    case("a message beyond the limit", two_and_a_head, Want::Close(vec![], 1009));

    // What is not in the suite.
    case("not masked", b"\x81\x05hello".to_vec(), Want::Close(vec![], 1002));
    case(
        "16 bits of length where 7 do",
        b"\x81\xFE\x00\x05\0\0\0\0hello".to_vec(),
        Want::Close(vec![], 1002),
    );
    case(
        "64 bits where 16 do",
        b"\x82\xFF\0\0\0\0\0\0\x01\x00\0\0\0\0".to_vec(),
        Want::Close(vec![], 1002),
    );
    case(
        "a negative length",
        b"\x82\xFF\x80\0\0\0\0\0\0\0\0\0\0\0".to_vec(),
        Want::Close(vec![], 1002),
    );
    cases
}

fn fragments_of_nothing() -> Vec<u8> {
    join(&[masked(0x01, b""), masked(0x00, b""), masked(0x80, b"")])
}
