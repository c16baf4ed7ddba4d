//! Multipart forms: their parts, and the refused forms, however the bytes are split.

use osier_http::multipart::{Event, Limits, Malformed, Multipart, boundary};
use proptest::prelude::*;

/// A part as an application sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    name: String,
    file_name: Option<String>,
    content_type: Option<String>,
    data: Vec<u8>,
}

const ROOMY: Limits = Limits::DEFAULT;

/// All parts of a body in pieces that end at `ends`. Also checks that the parser holds back no byte without need.
fn read_in(body: &[u8], ends: impl IntoIterator<Item = usize>, limits: Limits) -> Result<Vec<Seen>, Malformed> {
    let mut form = Multipart::new("cut", limits)?;
    let (mut seen, mut start) = (Vec::new(), 0);
    let mut under_way: Option<Seen> = None;
    for end in ends {
        loop {
            let (consumed, event) = form.next(&body[start..end])?;
            start += consumed;
            assert!(start <= end);
            match event {
                Event::NeedMore => break,
                Event::Part(part) => {
                    assert!(under_way.is_none());
                    under_way = Some(Seen {
                        name: part.name().into(),
                        file_name: part.file_name().map(str::to_owned),
                        content_type: part.content_type().map(str::to_owned),
                        data: Vec::new(),
                    });
                }
                Event::Data(data) => {
                    assert!(!data.is_empty());
                    under_way
                        .as_mut()
                        .expect("a part has begun")
                        .data
                        .extend_from_slice(data);
                }
                Event::PartEnd => seen.push(under_way.take().expect("a part has begun")),
                Event::End => return Ok(seen),
            }
        }
        assert!(end - start <= ROOMY.head_bytes + 256, "what is kept is bounded");
    }
    Err(Malformed::Ended)
}

/// Reads the form whole, byte by byte, and split at every place.
fn read(body: &[u8]) -> Result<Vec<Seen>, Malformed> {
    let whole = read_in(body, [body.len()], ROOMY);
    assert_eq!(read_in(body, 0..=body.len(), ROOMY), whole, "byte by byte");
    for cut in 0..body.len() {
        assert_eq!(read_in(body, [cut, body.len()], ROOMY), whole, "cut at {cut}");
    }
    whole
}

fn part(name: &str, data: &[u8]) -> Seen {
    Seen {
        name: name.into(),
        data: data.into(),
        ..Seen::default()
    }
}

#[test]
fn what_a_browser_sends_comes_back() {
    let body = b"--cut\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\nA d\xc3\xa9j\xc3\xa0 vu\r\n\
        --cut\r\nContent-Disposition: form-data; name=\"photo\"; filename=\"a \xe2\x82\xac b.png\"\r\nContent-Type: image/png\r\n\r\n\
        \x89PNG\r\n\x1a\n\0\r\n--cu\r\n-\r\n\r\n--cut\r\ncontent-disposition:form-data;name=empty\r\n\r\n\r\n--cut--\r\n";
    let photo = Seen {
        name: "photo".into(),
        file_name: Some("a \u{20ac} b.png".into()),
        content_type: Some("image/png".into()),
        data: b"\x89PNG\r\n\x1a\n\0\r\n--cu\r\n-\r\n".to_vec(),
    };
    let expected = vec![part("title", "A déjà vu".as_bytes()), photo, part("empty", b"")];
    assert_eq!(read(body), Ok(expected));
}

const HEAD: &str = "--cut\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n";

#[test]
fn delimiters_are_found_where_they_are_and_nowhere_else() {
    for (body, data) in [
        (format!("{HEAD}x\r\n--cut--"), "x"),
        (format!("{HEAD}x\r\n--cut--\r\nepilogue\r\n--cut\r\n"), "x"),
        (format!("preamble\r\n{HEAD}x\r\n--cut--"), "x"),
        (format!("\r\n{HEAD}x\r\n--cut--"), "x"),
        (format!("--cu\r\n{HEAD}x\r\n--cut--"), "x"),
        (format!("{HEAD}\r\n--cut--"), ""),
        // RFC 2046: no body at all.
        (format!("{HEAD}--cut--"), ""),
        (format!("{HEAD}--cu\r\n--cut--"), "--cu"),
        (format!("{HEAD}\r\r\n\r\n--cut--"), "\r\r\n"),
        (
            format!("{HEAD}\n--cut\r--cut\r\n-cut\r\n--cut--"),
            "\n--cut\r--cut\r\n-cut",
        ),
        (format!("{HEAD}x --cut--\r\n--cut--"), "x --cut--"),
        (HEAD.replace("--cut\r", "--cut \t\r") + "x\r\n--cut--", "x"),
    ] {
        assert_eq!(read(body.as_bytes()), Ok(vec![part("a", data.as_bytes())]), "{body:?}");
    }
    assert_eq!(read(b"--cut--"), Ok(vec![]), "a form without parts");
    assert_eq!(
        read(format!("{HEAD}--cut\r\nContent-Disposition: form-data; name=b\r\n\r\n1\r\n--cut--").as_bytes()),
        Ok(vec![part("a", b""), part("b", b"1")])
    );
}

#[test]
fn names_are_read_as_clients_write_them() {
    for (disposition, name, file) in [
        ("form-data; name=a", "a", None),
        ("FORM-DATA; NAME=\"a\"; FILENAME=\"b\"", "a", Some("b")),
        ("form-data ; filename=\"a;b\" ; name=\"x\" ;", "x", Some("a;b")),
        (
            r#"form-data; name="a\"b"; filename="C:\dir\file.txt""#,
            "a\"b",
            Some(r"C:\dir\file.txt"),
        ),
        (r#"form-data; name="a\\b"; filename="""#, r"a\b", Some("")),
        (r#"form-data; name="x"; filename="a\""#, "x", Some(r"a\")),
        (r#"form-data; name="x"; filename="a\b\" "#, "x", Some(r"a\b\")),
        ("form-data; name=\"a%22b\"; filename*=UTF-8''x", "a%22b", None),
        ("form-data; name=\"../../etc/passwd\"", "../../etc/passwd", None),
    ] {
        let body = format!("--cut\r\nContent-Disposition: {disposition}\r\n\r\n1\r\n--cut--");
        let expected = Seen {
            file_name: file.map(str::to_owned),
            ..part(name, b"1")
        };
        assert_eq!(read(body.as_bytes()), Ok(vec![expected]), "{disposition}");
    }
}

#[test]
fn what_is_no_form_is_refused() {
    let with = |head: &str| format!("--cut\r\n{head}\r\n\r\n1\r\n--cut--").into_bytes();
    let named = "Content-Disposition: form-data; name=a\r\n";
    for (body, why) in [
        (Vec::new(), Malformed::Ended),
        (b"--cut".to_vec(), Malformed::Ended),
        (b"--cut-".to_vec(), Malformed::Ended),
        (b"--cut\r\n".to_vec(), Malformed::Ended),
        (format!("{HEAD}x").into_bytes(), Malformed::Ended),
        (format!("{HEAD}x\r\n--cut").into_bytes(), Malformed::Ended),
        (format!("{HEAD}x\r\n--cut\r\n").into_bytes(), Malformed::Ended),
        (
            format!("{HEAD}x\r\n--cutter\r\n--cut--").into_bytes(),
            Malformed::Delimiter,
        ),
        (format!("{HEAD}x\r\n--cut \n").into_bytes(), Malformed::Delimiter),
        (b"--cut x".to_vec(), Malformed::Delimiter),
        ([b"--cut".as_slice(), &[b' '; 65]].concat(), Malformed::Delimiter),
        (vec![b'p'; 9000], Malformed::Preamble),
        (b"--cut\r\n\r\n1\r\n--cut--".to_vec(), Malformed::Disposition),
        (with("Content-Type: text/plain"), Malformed::Disposition),
        (with("Content-Disposition: form-data"), Malformed::Disposition),
        (with("Content-Disposition: attachment; name=a"), Malformed::Disposition),
        (with("Content-Disposition: form-data; name=\"a"), Malformed::Disposition),
        (
            with(r#"Content-Disposition: form-data; name="a\"; filename="b""#),
            Malformed::Disposition,
        ),
        (
            with("Content-Disposition: form-data; name=\"a\" b"),
            Malformed::Disposition,
        ),
        (
            with("Content-Disposition: form-data; name=a; name=b"),
            Malformed::Disposition,
        ),
        (
            with(&format!("{named}Content-Disposition: form-data; name=b")),
            Malformed::Disposition,
        ),
        (
            with(&format!("{named}Content-Type: a\r\nContent-Type: b")),
            Malformed::Field,
        ),
        (with(&format!("{named} folded: 1")), Malformed::Field),
        (with(&format!("{named}No-Colon")), Malformed::Field),
        (with(&format!("{named}X : 1")), Malformed::Field),
        (with(&format!("{named}X: \u{1}")), Malformed::Field),
        (with(&format!("{named}X: 1\nY: 2")), Malformed::Field),
        (
            with(&format!("{named}Content-Transfer-Encoding: base64")),
            Malformed::Encoding,
        ),
    ] {
        assert_eq!(read(&body), Err(why), "{:?}", String::from_utf8_lossy(&body));
    }
    let not_utf8 = b"--cut\r\nContent-Disposition: form-data; name=\"\xff\"\r\n\r\n1\r\n--cut--";
    assert_eq!(read(not_utf8), Err(Malformed::Disposition));
    assert!(read(&with(&format!("{named}Content-Transfer-Encoding: Binary"))).is_ok());
}

#[test]
fn each_limit_holds_to_the_byte() {
    let parts = |count: usize, data: &str| {
        let one = format!("{HEAD}{data}\r\n");
        (one.repeat(count) + "--cut--").into_bytes()
    };
    let check = |body: &[u8], fits: Limits, less: Limits, why: Malformed| {
        for ends in [vec![body.len()], (0..=body.len()).collect()] {
            assert!(read_in(body, ends.clone(), fits).is_ok(), "{why:?} too early");
            assert_eq!(read_in(body, ends, less), Err(why));
        }
        assert_eq!(why.status(), 413);
    };
    let limits = |change: fn(&mut Limits, usize), value: usize| {
        let mut limits = ROOMY;
        change(&mut limits, value);
        limits
    };
    let of = |body: &[u8], change: fn(&mut Limits, usize), value: usize, why: Malformed| {
        check(body, limits(change, value), limits(change, value - 1), why);
    };
    of(&parts(3, "x"), |limits, n| limits.parts = n, 3, Malformed::TooManyParts);
    of(
        &parts(2, "12345"),
        |limits, n| limits.part_bytes = n as u64,
        5,
        Malformed::PartTooLarge,
    );
    of(
        &parts(2, "12345"),
        |limits, n| limits.total_bytes = n as u64,
        10,
        Malformed::TooLarge,
    );
    let head = HEAD.len() - "--cut\r\n".len();
    of(
        &parts(2, "x"),
        |limits, n| limits.head_bytes = n,
        head,
        Malformed::HeadTooLarge,
    );
    let named =
        "--cut\r\nA: 1\r\nContent-Disposition: form-data; name=\"abcd\"; filename=\"12345\"\r\n\r\n1\r\n--cut--";
    of(
        named.as_bytes(),
        |limits, n| limits.headers = n,
        2,
        Malformed::TooManyHeaders,
    );
    of(
        named.as_bytes(),
        |limits, n| limits.name_bytes = n,
        5,
        Malformed::NameTooLong,
    );
}

#[test]
fn the_boundary_is_what_the_content_type_says() {
    for (value, expected) in [
        ("multipart/form-data; boundary=cut", "cut"),
        ("Multipart/Form-Data;boundary=\"a b'()+_,-./:=?c\"", "a b'()+_,-./:=?c"),
        (
            "multipart/form-data; charset=utf-8; Boundary=----WebKitFormBoundaryX1",
            "----WebKitFormBoundaryX1",
        ),
        ("multipart/form-data; boundary=a/b=c", "a/b=c"),
    ] {
        assert_eq!(boundary(value.as_bytes()).as_deref(), Ok(expected), "{value}");
    }
    let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
    for value in [
        "",
        "text/plain; boundary=a",
        "multipart/mixed; boundary=a",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"\"",
        "multipart/form-data; boundary=\"a ",
        "multipart/form-data; boundary=\"a \"",
        "multipart/form-data; boundary=a b",
        "multipart/form-data; boundary=\"a\rb\"",
        "multipart/form-data; boundary=a; boundary=b",
        "multipart/form-data boundary=a",
        &long,
    ] {
        assert_eq!(boundary(value.as_bytes()), Err(Malformed::Boundary), "{value}");
    }
    assert_eq!(Multipart::new("a\r\nb", ROOMY).err(), Some(Malformed::Boundary));
}

/// A body full of beginnings of delimiters, one byte at a time. A search that starts again each time would look at 10^12 bytes.
#[test]
fn beginnings_of_delimiters_do_not_cost_more_than_their_length() {
    let mut body = HEAD.as_bytes().to_vec();
    body.extend(b"\r\n--cu".repeat(170_000));
    let data = body.len() - HEAD.len();
    body.extend(b"\r\n--cut--");
    let mut form = Multipart::new("cut", ROOMY).unwrap();
    let (mut start, mut seen, mut looked_at) = (0, 0, 0);
    for end in 0..=body.len() {
        loop {
            let input = &body[start..end];
            looked_at += input.len();
            let (consumed, event) = form.next(input).unwrap();
            start += consumed;
            match event {
                Event::NeedMore | Event::End => break,
                Event::Data(piece) => seen += piece.len(),
                Event::Part(_) | Event::PartEnd => {}
            }
        }
    }
    assert_eq!(seen, data);
    // The parser holds back at most a head or a delimiter.
    assert!(looked_at < 20 * body.len(), "{looked_at} for {}", body.len());
}

proptest! {
    #[test]
    fn any_parts_come_back_however_they_are_cut(
        parts in prop::collection::vec(("[a-z\"\\\\ ;=]{0,8}", prop::collection::vec(prop::sample::select(b"\r\n-cut x\0".to_vec()), 0..60)), 0..5),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut body = Vec::new();
        for (name, data) in &parts {
            // Data must not contain the delimiter; the client has to ensure that.
            let held = [b"\r\n".as_slice(), data, b"\r\n--cu"].concat();
            prop_assume!(!held.windows(7).any(|window| window == b"\r\n--cut"));
            let name = name.replace('\\', "\\\\").replace('"', "\\\"");
            body.extend(format!("--cut\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n").bytes());
            body.extend(data);
            body.extend(b"\r\n");
        }
        body.extend(b"--cut--\r\n");
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len())).collect();
        ends.push(body.len());
        ends.sort_unstable();
        let expected: Vec<Seen> = parts.iter().map(|(name, data)| part(name, data)).collect();
        prop_assert_eq!(read_in(&body, ends, ROOMY), Ok(expected.clone()));
        prop_assert_eq!(read_in(&body, 0..=body.len(), ROOMY), Ok(expected));
    }

    #[test]
    fn any_bytes_mean_the_same_however_they_are_cut(
        text in prop::collection::vec(prop::sample::select(vec![
            "--cut", "\r\n", "\r", "\n", "-", "--", " ", "x", "Content-Disposition: form-data; name=\"a\"", "A: 1", ":", "\r\n--cut\r\n", "\r\n\r\n", "--cut--",
        ]), 0..24),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let body = text.concat().into_bytes();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        ends.push(body.len());
        ends.sort_unstable();
        let whole = read_in(&body, [body.len()], ROOMY);
        prop_assert_eq!(read_in(&body, ends, ROOMY), whole.clone());
        prop_assert_eq!(read_in(&body, 0..=body.len(), ROOMY), whole);
    }
}
