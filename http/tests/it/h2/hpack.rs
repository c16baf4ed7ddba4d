//! Field compression: the examples of RFC 7541, every rule of the decoder, the choices of the encoder, and every split of a block.

use osier_http::h2::hpack::{BlockStatus, Decoder, Encoder, FieldLimits};
use osier_http::h2::{Error, ErrorCode};
use proptest::prelude::*;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;
type Pairs<'p> = &'p [(&'p str, &'p str)];

const LIMITS: FieldLimits = FieldLimits {
    bytes: 16 << 10,
    fields: 100,
};

fn decode_pieces(decoder: &mut Decoder, pieces: &[&[u8]]) -> Result<(BlockStatus, Fields), Error> {
    let mut fields = Vec::new();
    let mut status = BlockStatus::More;
    for (i, piece) in pieces.iter().enumerate() {
        assert_eq!(status, BlockStatus::More);
        let last = i + 1 == pieces.len();
        status = decoder.decode(piece, last, &mut |name, value| {
            fields.push((name.to_vec(), value.to_vec()))
        })?;
    }
    Ok((status, fields))
}

/// Decodes a block, and checks that no split changes the result or the table.
fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<(BlockStatus, Fields), Error> {
    let before = decoder.clone();
    let whole = decode_pieces(decoder, &[block]);
    let step = block.len().div_ceil(150).max(1);
    for at in (0..=block.len()).step_by(step) {
        let mut again = before.clone();
        assert_eq!(
            decode_pieces(&mut again, &[&block[..at], &block[at..]]),
            whole,
            "cut at {at}"
        );
        // A table is read entry by entry, so not for each cut.
        if whole.is_ok() && at % 8 == 0 {
            assert_eq!(table(&again), table(decoder), "cut at {at}");
        }
    }
    let mut bytewise: Vec<&[u8]> = block.chunks(1).collect();
    bytewise.push(&[]);
    assert_eq!(decode_pieces(&mut before.clone(), &bytewise), whole);
    whole
}

fn fields(of: Pairs<'_>) -> Fields {
    of.iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

/// The entries of the dynamic table: each index above the static table, up to the first one that names nothing.
fn table(decoder: &Decoder) -> Fields {
    let unlimited = |index: u8| decode_pieces(&mut decoder.clone(), &[&[0x80 | index]]);
    (62..127)
        .map_while(|index| unlimited(index).ok())
        .flat_map(|(_, fields)| fields)
        .collect()
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Decodes blocks of one connection in order, each with its fields and with the table after it.
fn check(decoder: &mut Decoder, blocks: &[(&str, Pairs<'_>, Pairs<'_>)]) {
    for (block, expected, after) in blocks {
        assert_eq!(
            decode(decoder, &hex(block)),
            Ok((BlockStatus::Done, fields(expected))),
            "{block}"
        );
        assert_eq!(table(decoder), fields(after), "{block}");
    }
}

fn refused(block: &[u8]) -> ErrorCode {
    decode(&mut Decoder::new(LIMITS), block)
        .expect_err("the block must be refused")
        .code
}

/// RFC 7541 C.2.
#[test]
fn representations_of_the_rfc() {
    let custom = ("custom-key", "custom-header");
    for (block, field, after) in [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            custom,
            &[custom][..],
        ),
        ("040c 2f73 616d 706c 652f 7061 7468", (":path", "/sample/path"), &[]),
        (
            "1008 7061 7373 776f 7264 0673 6563 7265 74",
            ("password", "secret"),
            &[],
        ),
        ("82", (":method", "GET"), &[]),
    ] {
        check(&mut Decoder::new(LIMITS), &[(block, &[field], after)]);
    }
}

const FIRST: Pairs<'_> = &[
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "www.example.com"),
];
const SECOND: Pairs<'_> = &[
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "www.example.com"),
    ("cache-control", "no-cache"),
];
const THIRD: Pairs<'_> = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
];
const AFTER_THIRD: Pairs<'_> = &[
    ("custom-key", "custom-value"),
    ("cache-control", "no-cache"),
    (":authority", "www.example.com"),
];

/// RFC 7541 C.3.
#[test]
fn requests_of_the_rfc_without_huffman() {
    check(
        &mut Decoder::new(LIMITS),
        &[
            (
                "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                FIRST,
                &AFTER_THIRD[2..],
            ),
            ("8286 84be 5808 6e6f 2d63 6163 6865", SECOND, &AFTER_THIRD[1..]),
            (
                "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
                THIRD,
                AFTER_THIRD,
            ),
        ],
    );
}

/// RFC 7541 C.4.
#[test]
fn requests_of_the_rfc_with_huffman() {
    check(
        &mut Decoder::new(LIMITS),
        &[
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", FIRST, &AFTER_THIRD[2..]),
            ("8286 84be 5886 a8eb 1064 9cbf", SECOND, &AFTER_THIRD[1..]),
            (
                "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
                THIRD,
                AFTER_THIRD,
            ),
        ],
    );
}

const EARLY: (&str, &str) = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");
const LATE: (&str, &str) = ("date", "Mon, 21 Oct 2013 20:13:22 GMT");
const PRIVATE: (&str, &str) = ("cache-control", "private");
const LOCATION: (&str, &str) = ("location", "https://www.example.com");
const COOKIE: (&str, &str) = ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1");
const GZIP: (&str, &str) = ("content-encoding", "gzip");

fn check_responses(blocks: [&str; 3]) {
    // The examples assume a table of 256 bytes from the beginning. Here the first block says so.
    let first = format!("3fe101 {}", blocks[0]);
    let found = (":status", "302");
    let moved = (":status", "307");
    check(
        &mut Decoder::new(LIMITS),
        &[
            (
                &first,
                &[found, PRIVATE, EARLY, LOCATION],
                &[LOCATION, EARLY, PRIVATE, found],
            ),
            (
                blocks[1],
                &[moved, PRIVATE, EARLY, LOCATION],
                &[moved, LOCATION, EARLY, PRIVATE],
            ),
            (
                blocks[2],
                &[(":status", "200"), PRIVATE, LATE, LOCATION, GZIP, COOKIE],
                &[COOKIE, GZIP, LATE],
            ),
        ],
    );
}

/// RFC 7541 C.5.
#[test]
fn responses_of_the_rfc_without_huffman() {
    check_responses([
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120
         474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738
         666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33
         3630 303b 2076 6572 7369 6f6e 3d31",
    ]);
}

/// RFC 7541 C.6.
#[test]
fn responses_of_the_rfc_with_huffman() {
    check_responses([
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718
         63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7
         b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ]);
}

#[test]
fn an_index_must_name_an_entry() {
    assert_eq!(refused(&[0x80]), ErrorCode::COMPRESSION_ERROR);
    assert_eq!(refused(&[0xbe]), ErrorCode::COMPRESSION_ERROR);
    // The same for the name of a literal, in each of its three forms.
    for block in [&b"\x7f\x00\x01v"[..], b"\x0f\x2f\x01v", b"\x1f\x2f\x01v"] {
        assert_eq!(refused(block), ErrorCode::COMPRESSION_ERROR);
    }
    assert_eq!(refused(b"\x40\x01n\x01v\x82\xbf"), ErrorCode::COMPRESSION_ERROR);
}

#[test]
fn an_entry_may_stand_in_the_table_twice() {
    let entry = ("n", "v");
    check(
        &mut Decoder::new(LIMITS),
        &[("4001 6e01 76 4001 6e01 76 bebf", &[entry; 4], &[entry; 2])],
    );
}

#[test]
fn a_block_must_end_with_an_instruction() {
    for block in [
        &b"\xff"[..],
        b"\x40",
        b"\x40\x01",
        b"\x40\x01n",
        b"\x40\x01n\x02v",
        b"\x82\x3f",
        b"\x0f",
    ] {
        assert_eq!(refused(block), ErrorCode::COMPRESSION_ERROR, "{}", block.escape_ascii());
    }
}

#[test]
fn integers_that_overflow_are_refused() {
    for first in [0xff, 0x7f, 0x0f, 0x1f, 0x3f] {
        for rest in [
            &[0xff; 5][..],
            &[0x80, 0x80, 0x80, 0x80, 0x00],
            &[0xff, 0xff, 0xff, 0xff, 0x0f],
        ] {
            assert_eq!(refused(&[&[first], rest].concat()), ErrorCode::COMPRESSION_ERROR);
        }
    }
    assert_eq!(
        refused(b"\x40\x7f\xff\xff\xff\xff\xff\xff"),
        ErrorCode::COMPRESSION_ERROR
    );
}

#[test]
fn wrong_huffman_strings_are_refused() {
    // EOS, padding of eight ones, padding of zeros: as a name and as a value.
    for code in [&b"\x84\xff\xff\xff\xff"[..], b"\x82\x07\xff", b"\x81\x00", b"\x81\xff"] {
        assert_eq!(
            refused(&[b"\x40", code, b"\x01v"].concat()),
            ErrorCode::COMPRESSION_ERROR
        );
        assert_eq!(refused(&[b"\x00\x01n", code].concat()), ErrorCode::COMPRESSION_ERROR);
    }
}

#[test]
fn the_table_changes_its_size_only_before_fields() {
    let mut decoder = Decoder::new(LIMITS);
    let entry = ("n", "v");
    check(
        &mut decoder,
        &[
            ("4001 6e01 76", &[entry], &[entry]),
            // Smaller than the entry, then as it was: the entry is gone.
            ("20 3fe11f 82", &[(":method", "GET")], &[]),
            ("4001 6e01 76 82", &[entry, (":method", "GET")], &[entry]),
            ("3f02", &[], &[]),
            ("4001 6e01 76", &[entry], &[]),
            ("3f03 4001 6e01 76", &[entry], &[entry]),
        ],
    );
    assert_eq!(refused(b"\x82\x20"), ErrorCode::COMPRESSION_ERROR);
    assert_eq!(refused(b"\x3f\xe2\x1f"), ErrorCode::COMPRESSION_ERROR, "4,097 bytes");
}

#[test]
fn a_smaller_setting_must_be_confirmed_by_the_next_block() {
    let mut decoder = Decoder::new(LIMITS);
    decoder.set_max_table_size(100);
    for block in [&b"\x82"[..], b"", b"\x3f\x46\x82"] {
        assert_eq!(
            decode(&mut decoder.clone(), block).unwrap_err().code,
            ErrorCode::COMPRESSION_ERROR
        );
    }
    assert!(decode(&mut decoder.clone(), b"\x3f\x45\x82").is_ok());
    assert!(decode(&mut decoder.clone(), b"\x20\x82").is_ok());
    // The setting grew again before the block: the lowest size comes first.
    decoder.set_max_table_size(200);
    assert_eq!(
        decode(&mut decoder.clone(), b"\x3f\x80\x01\x82").unwrap_err().code,
        ErrorCode::COMPRESSION_ERROR
    );
    assert!(decode(&mut decoder.clone(), b"\x3f\x45\x3f\xa9\x01\x82").is_ok());
    assert_eq!(
        decode(&mut decoder, b"\x3f\x45\x3f\xaa\x01").unwrap_err().code,
        ErrorCode::COMPRESSION_ERROR
    );
}

#[test]
fn a_larger_setting_need_not_be_used() {
    let mut decoder = Decoder::new(LIMITS);
    decoder.set_max_table_size(8192);
    assert!(decode(&mut decoder.clone(), b"\x82").is_ok());
    assert!(decode(&mut decoder, b"\x3f\xe1\x3f\x82").is_ok());
}

#[test]
fn an_entry_may_take_its_name_from_the_entry_that_it_evicts() {
    let (name, value) = ("n".repeat(20), "v".repeat(40));
    let mut decoder = Decoder::new(LIMITS);
    let mut block = b"\x3f\x45\x40\x14".to_vec(); // a table of 100 bytes
    block.extend([name.as_bytes(), b"\x01v"].concat());
    check(&mut decoder, &[(&to_hex(&block), &[(&name, "v")], &[(&name, "v")])]);
    let block = [b"\x7e\x28", value.as_bytes()].concat();
    check(
        &mut decoder,
        &[(&to_hex(&block), &[(&name, &value)], &[(&name, &value)])],
    );
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn fields_are_counted_with_their_overhead() {
    let limits = |bytes, fields| Decoder::new(FieldLimits { bytes, fields });
    // `:method: GET` counts 42 bytes.
    assert_eq!(decode(&mut limits(126, 3), &[0x82; 3]).unwrap().0, BlockStatus::Done);
    let (large, many) = (BlockStatus::TooLarge, BlockStatus::TooMany);
    for (bytes, count, status, reported) in [
        (125, 3, large, 2),
        (126, 2, many, 2),
        (0, 9, large, 0),
        (999, 0, many, 0),
    ] {
        let (ended, seen) = decode(&mut limits(bytes, count), &[0x82; 3]).unwrap();
        assert_eq!((ended, seen.len()), (status, reported));
    }
}

#[test]
fn the_limits_hold_for_each_block_and_the_table_follows_beyond_them() {
    let mut decoder = Decoder::new(FieldLimits { bytes: 200, fields: 2 });
    let block = b"\x82\x82\x82\x40\x01n\x01v";
    assert_eq!(decode(&mut decoder, block).unwrap().0, BlockStatus::TooMany);
    assert_eq!(
        decode(&mut decoder, b"\xbe"),
        Ok((BlockStatus::Done, fields(&[("n", "v")])))
    );
}

#[test]
fn a_bomb_of_references_reports_no_more_than_the_limit() {
    let mut decoder = Decoder::new(LIMITS);
    let mut block = b"\x40\x01n\x7f\xe1\x1d".to_vec(); // an entry of 4,000 bytes
    block.extend([b'v'; 3936]);
    block.extend([0xbe; 50]);
    let (status, seen) = decode_pieces(&mut decoder, &[&block]).unwrap();
    assert_eq!(status, BlockStatus::TooLarge);
    assert!(
        seen.iter()
            .map(|(name, value)| name.len() + value.len() + 32)
            .sum::<usize>()
            <= LIMITS.bytes as usize
    );
    // 16 times the bytes, and 16 times the fields: the rest is not worth the work.
    for bomb in [[0xbe; 70].as_slice(), &[0x90; 1601]] {
        let error = decode_pieces(&mut decoder.clone(), &[bomb]).unwrap_err();
        assert_eq!(error.code, ErrorCode::ENHANCE_YOUR_CALM);
        assert!(decode_pieces(&mut decoder.clone(), &[&bomb[..bomb.len() - 10]]).is_ok());
    }
}

#[test]
fn strings_beyond_the_limit_are_skipped_without_being_held() {
    let limits = FieldLimits {
        bytes: 1000,
        fields: 10,
    };
    let length = 20_000; // above four tables
    let mut long = vec![0x7f];
    let mut rest = length - 127;
    while rest >= 128 {
        long.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    long.push(rest as u8);
    long.extend(vec![b'x'; length]);
    let entry = ("n", "v");
    let before = b"\x40\x01n\x01v";
    for (block, kept) in [
        ([&b"\x00\x01n"[..], &long].concat(), true),
        ([&b"\x40\x01n"[..], &long].concat(), false),
        ([&b"\x00"[..], &long, b"\x01v"].concat(), true),
        ([&b"\x40"[..], &long, b"\x01v"].concat(), false),
        ([&b"\x40"[..], &long, &long].concat(), false),
        ([&b"\x10"[..], &long, b"\x00"].concat(), true),
    ] {
        let mut decoder = Decoder::new(limits);
        decode(&mut decoder, before).unwrap();
        assert_eq!(decode(&mut decoder, &block), Ok((BlockStatus::TooLarge, vec![])));
        assert_eq!(table(&decoder), if kept { fields(&[entry]) } else { vec![] });
        // The next block is not affected.
        assert_eq!(decode(&mut decoder, before), Ok((BlockStatus::Done, fields(&[entry]))));
        assert_eq!(
            decode(&mut decoder, &block[..block.len() - 1]).unwrap_err().code,
            ErrorCode::COMPRESSION_ERROR
        );
    }
}

#[test]
fn a_decoder_at_rest_loses_nothing() {
    let mut decoder = Decoder::new(LIMITS);
    let cut = decoder.decode(b"\x40\x01n\x03v", false, &mut |_, _| panic!("no field is complete"));
    assert_eq!(cut, Ok(BlockStatus::More));
    decoder.rest();
    assert_eq!(
        decode_pieces(&mut decoder, &[b"al"]),
        Ok((BlockStatus::Done, fields(&[("n", "val")])))
    );
    decoder.rest();
    assert_eq!(table(&decoder), fields(&[("n", "val")]));
}

fn encode(encoder: &mut Encoder, of: Pairs<'_>) -> Vec<u8> {
    let mut block = Vec::new();
    encoder.begin(&mut block);
    for (name, value) in of {
        encoder.field(&mut block, name.as_bytes(), value.as_bytes());
    }
    block
}

#[test]
fn a_repeated_response_becomes_one_byte_a_field() {
    let response = [
        (":status", "200"),
        ("server", "osier"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("content-type", "text/html; charset=utf-8"),
        ("x-frame-options", "DENY"),
    ];
    let (mut encoder, mut decoder) = (Encoder::new(1024), Decoder::new(LIMITS));
    let lengths: Vec<usize> = (0..4)
        .map(|_| {
            let block = encode(&mut encoder, &response);
            assert_eq!(decode(&mut decoder, &block), Ok((BlockStatus::Done, fields(&response))));
            block.len()
        })
        .collect();
    assert!(lengths[0] > 60 && lengths[1] > 60, "{lengths:?}");
    assert_eq!(lengths[2..], [5, 5]);
}

#[test]
fn values_that_change_do_not_enter_the_table() {
    let (mut encoder, mut decoder) = (Encoder::new(1024), Decoder::new(LIMITS));
    for i in 0..50 {
        let id = format!("{i:030}");
        let response = [
            (":status", "200"),
            ("server", "osier"),
            ("x-request-id", &id),
            ("content-length", &id),
        ];
        let block = encode(&mut encoder, &response);
        assert_eq!(decode(&mut decoder, &block), Ok((BlockStatus::Done, fields(&response))));
    }
    assert_eq!(table(&decoder), fields(&[("server", "osier")]));
}

#[test]
fn secrets_are_never_indexed() {
    let secrets = [
        ("authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
        ("proxy-authorization", "x"),
        ("set-cookie", "session=1234567890123456789012345"),
        ("cookie", "short=1"),
    ];
    let (mut encoder, mut decoder) = (Encoder::new(1024), Decoder::new(LIMITS));
    for _ in 0..3 {
        for secret in secrets {
            let block = encode(&mut encoder, &[secret]);
            let form = block
                .iter()
                .find(|byte| **byte >> 5 != 1 && **byte != 0xe1 && **byte != 0x07)
                .unwrap();
            assert_eq!(form >> 4, 1, "{secret:?}: {block:02x?}");
            assert_eq!(decode(&mut decoder, &block), Ok((BlockStatus::Done, fields(&[secret]))));
        }
    }
    assert!(table(&decoder).is_empty());
    let long = [("cookie", "session=1234567890123456789012345")];
    for _ in 0..3 {
        let block = encode(&mut encoder, &long);
        decode(&mut decoder, &block).unwrap();
    }
    assert_eq!(table(&decoder), fields(&long));
}

#[test]
fn the_encoder_announces_the_size_of_its_table() {
    let announced = |encoder: &mut Encoder| encode(encoder, &[(":method", "GET")]);
    let mut encoder = Encoder::new(1024);
    assert_eq!(announced(&mut encoder), b"\x3f\xe1\x07\x82");
    assert_eq!(announced(&mut encoder), b"\x82");
    encoder.set_max_table_size(8192);
    assert_eq!(announced(&mut encoder), b"\x82");
    encoder.set_max_table_size(0);
    assert_eq!(announced(&mut encoder), b"\x20\x82");
    encoder.set_max_table_size(10);
    encoder.set_max_table_size(100);
    encoder.set_max_table_size(50);
    assert_eq!(announced(&mut encoder), b"\x2a\x3f\x13\x82");

    assert_eq!(announced(&mut Encoder::new(4096)), b"\x82");
    assert_eq!(announced(&mut Encoder::new(0)), b"\x20\x82");
    let mut large = Encoder::new(1 << 16);
    assert_eq!(announced(&mut large), b"\x82");
    large.set_max_table_size(8192);
    assert_eq!(announced(&mut large), b"\x3f\xe1\x3f\x82");
}

#[test]
fn every_status_is_encoded() {
    let (mut encoder, mut decoder) = (Encoder::new(256), Decoder::new(LIMITS));
    for status in 100..1000 {
        let mut block = Vec::new();
        encoder.begin(&mut block);
        encoder.status(&mut block, status);
        let expected = fields(&[(":status", &status.to_string())]);
        assert_eq!(decode(&mut decoder, &block), Ok((BlockStatus::Done, expected)));
    }
}

proptest! {
    /// Any blocks: no panic, and the same result for any pieces.
    #[test]
    fn splits_do_not_change_blocks(
        blocks in prop::collection::vec(prop::collection::vec(prop_oneof![any::<u8>(), 0x3eu8..0x48, 0xbdu8..0xc4, 0u8..4], 0..40), 1..5),
    ) {
        let mut decoder = Decoder::new(FieldLimits { bytes: 300, fields: 5 });
        for block in &blocks {
            if decode(&mut decoder, block).is_err() {
                break;
            }
        }
    }

    /// The decoder gets what the encoder got, whatever happens to the sizes of the table.
    #[test]
    fn decoded_fields_are_those_that_were_encoded(
        blocks in prop::collection::vec((prop::option::of(0u32..600), prop::collection::vec((0usize..12, 0usize..12), 0..12)), 1..12),
    ) {
        let long = "x".repeat(150);
        let names = ["x", ":path", ":method", "date", "cookie", "set-cookie", "content-type", "x-a-longer-name", "via", "etag", "\u{e9}", ""];
        let values = ["", "GET", "/", "a", "text/html", "Mon, 21 Oct 2013 20:13:21 GMT", "\u{1}\u{7f}\u{e9}", "12345678", "a value of more than twenty bytes", &long, "\\\\\\\\", "0"];
        let (mut encoder, mut decoder) = (Encoder::new(500), Decoder::new(LIMITS));
        for (size, block) in &blocks {
            if let Some(size) = size {
                encoder.set_max_table_size(*size);
                decoder.set_max_table_size(*size);
            }
            let sent: Vec<(&str, &str)> = block.iter().map(|(name, value)| (names[*name], values[*value])).collect();
            let block = encode(&mut encoder, &sent);
            prop_assert_eq!(decode(&mut decoder, &block), Ok((BlockStatus::Done, fields(&sent))));
        }
    }
}
