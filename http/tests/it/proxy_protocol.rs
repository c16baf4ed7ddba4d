//! PROXY headers, valid and malformed: whole, at every split, and with more bytes after them.

use osier_http::proxy_protocol::{Addresses, HEADER_MAX, Header, Malformed, V1_MAX, V2_BODY_MAX, parse};
use proptest::prelude::*;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A case: its header, and the addresses in it.
enum Case {
    Inet(&'static str, &'static str),
    Unknown,
    Local,
    Bad(Malformed),
}

fn v2(version_command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[version_command, family], &length, body].concat()
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap().to_be_bytes();
    [&[kind], &length[..], value].concat()
}

const INET4: &[u8] = &[192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 4, 1, 0xbb];

fn inet6() -> Vec<u8> {
    let mut body = vec![0; 36];
    body[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
    body[15] = 9;
    body[31] = 1;
    body[32..].copy_from_slice(&[0, 80, 0x1f, 0x90]);
    body
}

fn cases() -> Vec<(&'static str, Vec<u8>, Case)> {
    use Case::{Bad, Inet, Local, Unknown};
    let four = || Inet("192.0.2.7:56324", "198.51.100.1:443");
    let six = || Inet("[2001:db8::9]:80", "[::1]:8080");
    let longest =
        "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
    let all = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
    let unknown_of = |length: usize| format!("PROXY UNKNOWN {}\r\n", "x".repeat(length - 16)).into_bytes();
    let text = |text: &str| text.as_bytes().to_vec();
    let with = |tlvs: &[u8]| v2(0x21, 0x11, &[INET4, tlvs].concat());
    let filled = |length: usize| with(&tlv(4, &vec![0; length - INET4.len() - 3]));
    vec![
        ("TCP4", text("PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n"), four()),
        ("TCP6", text("PROXY TCP6 2001:db8::9 ::1 80 8080\r\n"), six()),
        ("the longest that has a meaning", text(longest), Inet(all, all)),
        (
            "port 0",
            text("PROXY TCP4 0.0.0.0 255.255.255.255 0 0\r\n"),
            Inet("0.0.0.0:0", "255.255.255.255:0"),
        ),
        ("UNKNOWN", text("PROXY UNKNOWN\r\n"), Unknown),
        (
            "UNKNOWN with more",
            text("PROXY UNKNOWN ff::1 what ever  65536\r\n"),
            Unknown,
        ),
        ("as long as may be", unknown_of(V1_MAX), Unknown),
        ("a byte too long", unknown_of(V1_MAX + 1), Bad(Malformed::TooLong)),
        (
            "endless",
            [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat(),
            Bad(Malformed::TooLong),
        ),
        ("HTTP", text("GET / HTTP/1.1\r\n\r\n"), Bad(Malformed::Signature)),
        ("HTTP, POST", text("POST / HTTP/1.1\r\n\r\n"), Bad(Malformed::Signature)),
        ("TLS", b"\x16\x03\x01\x02\0".to_vec(), Bad(Malformed::Signature)),
        (
            "small letters",
            text("proxy TCP4 1.1.1.1 1.1.1.1 1 1\r\n"),
            Bad(Malformed::Signature),
        ),
        (
            "a tab",
            text("PROXY\tTCP4 1.1.1.1 1.1.1.1 1 1\r\n"),
            Bad(Malformed::Signature),
        ),
        (
            "two spaces",
            text("PROXY  TCP4 1.1.1.1 1.1.1.1 1 1\r\n"),
            Bad(Malformed::Line),
        ),
        (
            "two spaces later",
            text("PROXY TCP4 1.1.1.1  1.1.1.1 1 1\r\n"),
            Bad(Malformed::Line),
        ),
        (
            "a space at the end",
            text("PROXY TCP4 1.1.1.1 1.1.1.1 1 1 \r\n"),
            Bad(Malformed::Line),
        ),
        (
            "bare LF",
            text("PROXY TCP4 1.1.1.1 1.1.1.1 1 1\n"),
            Bad(Malformed::Line),
        ),
        ("bare CR", text("PROXY UNKNOWN a\rb\r\n"), Bad(Malformed::Line)),
        ("two CR", text("PROXY UNKNOWN\r\r\n"), Bad(Malformed::Line)),
        (
            "no bytes of text",
            b"PROXY UNKNOWN \xff\xfe\r\n".to_vec(),
            Bad(Malformed::Line),
        ),
        ("no protocol", text("PROXY \r\n"), Bad(Malformed::Line)),
        (
            "another protocol",
            text("PROXY UDP4 1.1.1.1 1.1.1.1 1 1\r\n"),
            Bad(Malformed::Line),
        ),
        (
            "too few",
            text("PROXY TCP4 1.1.1.1 1.1.1.1 1\r\n"),
            Bad(Malformed::Line),
        ),
        (
            "too many",
            text("PROXY TCP4 1.1.1.1 1.1.1.1 1 1 1\r\n"),
            Bad(Malformed::Line),
        ),
        ("6 in 4", text("PROXY TCP4 ::1 ::1 1 1\r\n"), Bad(Malformed::Line)),
        (
            "4 in 6",
            text("PROXY TCP6 1.1.1.1 1.1.1.1 1 1\r\n"),
            Bad(Malformed::Line),
        ),
        (
            "half and half",
            text("PROXY TCP4 1.1.1.1 ::1 1 1\r\n"),
            Bad(Malformed::Line),
        ),
        (
            "an octet too large",
            text("PROXY TCP4 1.1.1.256 1.1.1.1 1 1\r\n"),
            Bad(Malformed::Line),
        ),
        (
            "an octet with a zero",
            text("PROXY TCP4 1.1.1.01 1.1.1.1 1 1\r\n"),
            Bad(Malformed::Line),
        ),
        (
            "a scope",
            text("PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n"),
            Bad(Malformed::Line),
        ),
        ("brackets", text("PROXY TCP6 [::1] ::1 1 1\r\n"), Bad(Malformed::Line)),
        (
            "a port too large",
            text("PROXY TCP4 1.1.1.1 1.1.1.1 65536 1\r\n"),
            Bad(Malformed::Line),
        ),
        (
            "a port with a zero",
            text("PROXY TCP4 1.1.1.1 1.1.1.1 01 1\r\n"),
            Bad(Malformed::Line),
        ),
        (
            "a port with a sign",
            text("PROXY TCP4 1.1.1.1 1.1.1.1 +1 1\r\n"),
            Bad(Malformed::Line),
        ),
        (
            "an empty port",
            text("PROXY TCP4 1.1.1.1 1.1.1.1 1 \r\n"),
            Bad(Malformed::Line),
        ),
        ("v2 IPv4", v2(0x21, 0x11, INET4), four()),
        ("v2 IPv4, datagrams", v2(0x21, 0x12, INET4), four()),
        ("v2 IPv6", v2(0x21, 0x21, &inet6()), six()),
        ("v2 LOCAL", v2(0x20, 0, &[]), Local),
        ("v2 LOCAL with addresses", v2(0x20, 0x11, INET4), Local),
        ("v2 LOCAL with anything", v2(0x20, 0xff, b"any"), Local),
        ("v2 unspecified", v2(0x21, 0, &[]), Unknown),
        ("v2 unspecified with more", v2(0x21, 0, b"what ever"), Unknown),
        ("v2 IPv4 of no protocol", v2(0x21, 0x10, INET4), Unknown),
        (
            "v2 TLVs",
            with(&[tlv(2, b"example.org"), tlv(5, b"id"), tlv(0xe0, b"")].concat()),
            four(),
        ),
        ("v2 checksum", with(&tlv(3, &CHECKSUM)), four()),
        (
            "v2 checksum, then more",
            with(&[tlv(3, &CHECKSUM_BEFORE), tlv(4, b"more")].concat()),
            four(),
        ),
        ("v2 as long as may be", filled(V2_BODY_MAX), four()),
        (
            "v2 a byte too long",
            filled(V2_BODY_MAX + 1),
            Bad(Malformed::Length(4097)),
        ),
        ("v2 version 1", v2(0x11, 0x11, INET4), Bad(Malformed::Version(1))),
        ("v2 version 3", v2(0x31, 0x11, INET4), Bad(Malformed::Version(3))),
        ("v2 command 2", v2(0x22, 0x11, INET4), Bad(Malformed::Command(2))),
        ("v2 family 4", v2(0x21, 0x41, INET4), Bad(Malformed::Family(0x41))),
        ("v2 protocol 3", v2(0x21, 0x13, INET4), Bad(Malformed::Family(0x13))),
        ("v2 IPv4 cut", v2(0x21, 0x11, &INET4[..11]), Bad(Malformed::Length(11))),
        (
            "v2 IPv6 with room for IPv4",
            v2(0x21, 0x21, INET4),
            Bad(Malformed::Length(12)),
        ),
        ("v2 Unix cut", v2(0x21, 0x31, &[0; 215]), Bad(Malformed::Length(215))),
        ("v2 a TLV cut", with(&[4, 0, 2, 0]), Bad(Malformed::Tlv)),
        ("v2 a TLV's head cut", with(&[4, 0]), Bad(Malformed::Tlv)),
        ("v2 a byte after the TLVs", with(&[4, 0, 0, 4]), Bad(Malformed::Tlv)),
        (
            "v2 checksum of a wrong size",
            with(&tlv(3, b"abc")),
            Bad(Malformed::Tlv),
        ),
        ("v2 wrong checksum", with(&tlv(3, b"abcd")), Bad(Malformed::Checksum)),
        (
            "v2 two checksums",
            with(&CHECKSUMS.map(|checksum| tlv(3, &checksum)).concat()),
            Bad(Malformed::Checksum),
        ),
    ]
}

// Computed apart from the code under test, by table; the second with the TLV of type 4 behind.
const CHECKSUM: [u8; 4] = [0x54, 0x8e, 0x28, 0xff];
const CHECKSUM_BEFORE: [u8; 4] = [0x4a, 0x23, 0x59, 0x28];
/// Each is right beside the other.
const CHECKSUMS: [[u8; 4]; 2] = [[0x1a, 0x89, 0x35, 0xed], [0x4c, 0x09, 0xc1, 0x0a]];

fn check(name: &str, bytes: &[u8], case: &Case) {
    let expected = match case {
        Case::Bad(malformed) => Err(*malformed),
        Case::Inet(source, destination) => Ok(Addresses::Inet {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        }),
        Case::Unknown => Ok(Addresses::Unknown),
        Case::Local => Ok(Addresses::Local),
    };
    match expected {
        Ok(addresses) => {
            let length = bytes.len();
            assert_eq!(parse(bytes), Ok(Some(Header { addresses, length })), "{name}");
            let more = [bytes, b"GET / HTTP/1.1\r\n"].concat();
            assert_eq!(
                parse(&more),
                Ok(Some(Header { addresses, length })),
                "{name}, with more"
            );
            for at in 0..length {
                assert_eq!(parse(&bytes[..at]), Ok(None), "{name}, cut at {at}");
            }
        }
        Err(malformed) => {
            assert_eq!(parse(bytes), Err(malformed), "{name}");
            // Refused at some byte, whatever follows.
            let refused = (0..=bytes.len()).find(|&at| parse(&bytes[..at]).is_err()).unwrap();
            for at in refused..=bytes.len() {
                assert_eq!(parse(&bytes[..at]), Err(malformed), "{name}, cut at {at}");
            }
        }
    }
}

#[test]
fn every_header_is_told_or_refused_however_it_is_cut() {
    let cases = cases();
    for (name, bytes, case) in &cases {
        check(name, bytes, case);
    }
    println!("{} headers", cases.len());
}

#[test]
fn paths_of_unix_sockets_end_before_their_padding() {
    let mut body = vec![0; 216];
    body[..9].copy_from_slice(b"/run/sock");
    body[108..112].copy_from_slice(b"\0abs");
    for family in [0x31, 0x32] {
        let header = v2(0x21, family, &body);
        let expected = Addresses::Unix {
            source: b"/run/sock",
            destination: b"\0abs",
        };
        assert_eq!(parse(&header).unwrap().unwrap().addresses, expected);
    }
    let header = v2(0x21, 0x31, &[b'x'; 216]);
    let whole: &[u8] = &[b'x'; 108];
    let expected = Addresses::Unix {
        source: whole,
        destination: whole,
    };
    assert_eq!(parse(&header).unwrap().unwrap().addresses, expected);
    let unnamed = v2(0x21, 0x31, &[0; 216]);
    let expected = Addresses::Unix {
        source: b"",
        destination: b"",
    };
    assert_eq!(parse(&unnamed).unwrap().unwrap().addresses, expected);
}

fn address() -> impl Strategy<Value = (std::net::SocketAddr, std::net::SocketAddr)> {
    prop_oneof![
        any::<([u8; 4], [u8; 4], u16, u16)>().prop_map(|(a, b, c, d)| ((a, c).into(), (b, d).into())),
        any::<([u8; 16], [u8; 16], u16, u16)>().prop_map(|(a, b, c, d)| ((a, c).into(), (b, d).into())),
    ]
}

proptest! {
    #[test]
    fn addresses_come_out_as_they_went_in((source, destination) in address(), tail in proptest::collection::vec(any::<u8>(), 0..50)) {
        let name = if source.is_ipv4() { "TCP4" } else { "TCP6" };
        let (a, b, c, d) = (source.ip(), destination.ip(), source.port(), destination.port());
        let line = format!("PROXY {name} {a} {b} {c} {d}\r\n").into_bytes();
        let octets = |ip| match ip {
            std::net::IpAddr::V4(ip) => ip.octets().to_vec(),
            std::net::IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let body = [octets(a), octets(b), c.to_be_bytes().to_vec(), d.to_be_bytes().to_vec(), tlv(5, &tail)].concat();
        let family = if source.is_ipv4() { 0x11 } else { 0x21 };
        for header in [line, v2(0x21, family, &body)] {
            let length = header.len();
            let addresses = Addresses::Inet { source, destination };
            let input = [header, tail.clone()].concat();
            prop_assert_eq!(parse(&input), Ok(Some(Header { addresses, length })));
        }
    }

    #[test]
    fn whatever_comes_never_panics_and_more_bytes_change_no_answer(
        start in prop_oneof![Just(&b""[..]), Just(&b"PROXY "[..]), Just(&b"PROXY TCP4 "[..]), Just(SIGNATURE), Just(&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0"[..])],
        rest in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b' '), Just(b'\r'), Just(b'\n'), Just(0)], 0..300),
    ) {
        let input = [start, &rest].concat();
        let mut answer = None;
        for at in 0..=input.len() {
            let now = parse(&input[..at]);
            if let Some(before) = &answer {
                prop_assert_eq!(before, &now);
            } else if now != Ok(None) {
                if let Ok(Some(header)) = now {
                    prop_assert!(header.length <= at && at <= HEADER_MAX);
                }
                answer = Some(now);
            }
        }
    }
}
