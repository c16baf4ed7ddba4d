//! Paths: the meaning of each spelling, the refused ones, and the properties of every path.

use std::borrow::Cow;

use osier_http::path::{BadPath, Path, canonical_part, is_below};
use osier_http::percent_decode;
use proptest::prelude::*;

#[test]
fn every_spelling_has_one_canonical_form() {
    for (sent, expected) in [
        ("/", "/"),
        ("/a/b.c", "/a/b.c"),
        ("/a/", "/a/"),
        ("//", "/"),
        ("//a///b//", "/a/b/"),
        ("/%61dmin", "/admin"),
        ("/%2a", "/*"),
        ("/a%20b", "/a b"),
        ("/a b", "/a b"),
        ("/a%2fb", "/a%2Fb"),
        ("/a%2F/b", "/a%2F/b"),
        ("/%2F/", "/%2F/"),
        ("/a%5cb", "/a\\b"),
        ("/a\\b", "/a\\b"),
        ("/%2561", "/%2561"),
        ("/50%25", "/50%25"),
        ("/%252e%252e/x", "/%252e%252e/x"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/caf\u{e9}", "/caf%C3%A9"),
        ("/%ff", "/%FF"),
        ("/%c0%ae%c0%ae/", "/%C0%AE%C0%AE/"),
        ("/a;b=c/d", "/a;b=c/d"),
        ("/a%3bb", "/a;b"),
        ("/a%3Fb%23", "/a?b#"),
        ("/a+b", "/a+b"),
        ("/...", "/..."),
        ("/.a/..b/c.", "/.a/..b/c."),
        ("/.well-known/x", "/.well-known/x"),
        ("/%7Bx%7d", "/{x}"),
    ] {
        assert_eq!(Path::parse(sent).unwrap().canonical(), expected, "{sent}");
    }
}

#[test]
fn what_has_no_safe_meaning_is_refused() {
    use BadPath::*;
    for (sent, expected) in [
        ("", NoSlash),
        ("*", NoSlash),
        ("a", NoSlash),
        ("%2Fa", NoSlash),
        ("/%", Escape),
        ("/a%", Escape),
        ("/a%2", Escape),
        ("/%zz", Escape),
        ("/%+1", Escape),
        ("/%u002e", Escape),
        ("/a%\u{e9}", Escape),
        ("/%6/1", Escape),
        ("/%00", Control),
        ("/a%0d%0ab", Control),
        ("/a%09", Control),
        ("/a\tb", Control),
        ("/%7f", Control),
        ("/\u{7f}", Control),
        ("/.", DotSegment),
        ("/..", DotSegment),
        ("/./a", DotSegment),
        ("/a/../b", DotSegment),
        ("/a/.", DotSegment),
        ("//..//", DotSegment),
        ("/%2e%2E/a", DotSegment),
        ("/.%2e", DotSegment),
        ("/%2e", DotSegment),
        ("/..%2fa", DotSegment),
        ("/a%2F..%2Fb", DotSegment),
        ("/a%2f.", DotSegment),
        ("/..\\a", DotSegment),
        ("/a%5c..%5Cb", DotSegment),
        ("/..;", DotSegment),
        ("/..;x=y/a", DotSegment),
        ("/.;/a", DotSegment),
        ("/%2e.%3bx", DotSegment),
    ] {
        assert_eq!(Path::parse(sent).err(), Some(expected), "{sent}");
    }
}

#[test]
fn a_usual_path_is_its_own_form_and_nothing_is_copied() {
    for sent in ["/", "/a/b.c", "/index.html", "/a;b/~c/", "/a b"] {
        let path = Path::parse(sent).unwrap();
        assert!(std::ptr::eq(path.canonical(), sent), "{sent}");
        assert!(matches!(path.text(), Cow::Borrowed(_)), "{sent}");
        assert!(matches!(path.file_name(), Some(Cow::Borrowed(_))), "{sent}");
    }
}

#[test]
fn files_are_named_by_decoded_segments() {
    let name = |sent: &str| {
        let name = Path::parse(sent).unwrap().file_name()?.into_owned();
        Some(String::from_utf8(name).unwrap())
    };
    for (sent, expected) in [
        ("/", ""),
        ("/a", "a"),
        ("//a///b//", "a/b"),
        ("/a%20b/%C3%A4", "a b/\u{e4}"),
        ("/a%252fb", "a%2fb"),
        ("/100%25.txt", "100%.txt"),
    ] {
        assert_eq!(name(sent).as_deref(), Some(expected), "{sent}");
    }
    for sent in ["/a%2Fb", "/%2f", "/a\\b", "/a%5cb", "/x/a%2fb/"] {
        assert_eq!(name(sent), None, "{sent}");
    }
}

#[test]
fn segments_know_where_they_stand() {
    let path = Path::parse("//%61%2fb//c%5c;x/caf%c3%a9/").unwrap();
    assert_eq!(path.canonical(), "/a%2Fb/c\\;x/caf%C3%A9/");
    let mut seen = Vec::new();
    for segment in path.segments() {
        assert_eq!(&path.canonical()[segment.place()], segment.canonical());
        seen.push((
            path.sent_part(segment.place()),
            segment.name().is_some(),
            segment.data().into_owned(),
        ));
    }
    let expected = [
        ("%61%2fb", false, b"a/b".to_vec()),
        ("c%5c;x", false, b"c\\;x".to_vec()),
        ("caf%c3%a9", true, "caf\u{e9}".into()),
    ];
    assert_eq!(seen, expected);
    assert_eq!(path.text(), "/a%2Fb/c\\;x/caf\u{e9}/".as_bytes());
    assert!(path.is_folder());
}

#[test]
fn what_follows_a_prefix_stays_as_it_was_sent() {
    for (sent, prefix, expected) in [
        ("/api", "/api", Some("")),
        ("/api/", "/api", Some("/")),
        ("/api/x", "/api", Some("/x")),
        ("/apis", "/api", None),
        ("/ap", "/api", None),
        ("/", "/api", None),
        ("/API/x", "/api", None),
        ("/x", "", Some("/x")),
        ("//x", "", Some("//x")),
        ("/%61p%69/%78", "/api", Some("/%78")),
        ("//api//x/", "/api", Some("//x/")),
        ("/a//b/x", "/a/b", Some("/x")),
        ("/api%2Fx", "/api", None),
        ("/a%2fb/x", "/a%2Fb", Some("/x")),
        ("/caf%c3%a9/%c3%a9", "/caf%C3%A9", Some("/%c3%a9")),
        ("/caf\u{e9}/\u{e9}", "/caf%C3%A9", Some("/\u{e9}")),
    ] {
        let path = Path::parse(sent).unwrap();
        assert_eq!(path.strip_prefix(prefix), expected, "{sent} {prefix}");
        assert_eq!(path.is_below(prefix), expected.is_some(), "{sent} {prefix}");
    }
}

#[test]
fn a_reader_that_decodes_slashes_is_foreseen() {
    for (sent, expected) in [
        ("/a/b", None),
        ("/a%252Fb", None),
        ("/a%2fb", Some("/a/b")),
        ("/%2fa", Some("/a")),
        ("/a%2F%2F/%2fb%2f", Some("/a/b/")),
        ("/%2F", Some("/")),
    ] {
        assert_eq!(
            Path::parse(sent).unwrap().with_slashes_decoded().as_deref(),
            expected,
            "{sent}"
        );
    }
}

#[test]
fn parts_of_patterns_have_no_dot_segments_to_look_for() {
    assert_eq!(canonical_part("..%2f").as_deref(), Ok("..%2F"));
    assert_eq!(canonical_part("/%61//").as_deref(), Ok("/a/"));
    assert_eq!(canonical_part("100%"), Err(BadPath::Escape));
    assert!(is_below("/a", "") && is_below("/a/b", "/a") && !is_below("/ab", "/a"));
}

/// Paths made of texts that readers disagree about.
fn odd_path() -> impl Strategy<Value = String> {
    "/([a./;\\\\ \u{e9}]|%2[eEfF5]|%61|%5[cC]|%3b|%[cC]3%a9|%ff|%00|%){0,16}"
}

/// The path as a careless decoder reads it, with repeated slashes merged.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut merged = String::new();
    for char in text.chars() {
        if char != '/' || !merged.ends_with('/') {
            merged.push(char);
        }
    }
    percent_decode(merged.as_bytes())
}

proptest! {
    #[test]
    fn canonicalising_twice_changes_nothing(sent in odd_path()) {
        let Ok(path) = Path::parse(&sent) else { return Ok(()) };
        let again = Path::parse(path.canonical()).unwrap();
        prop_assert_eq!(again.canonical(), path.canonical());
        prop_assert_eq!(again.has_encoded_slash(), path.has_encoded_slash());
        prop_assert!(path.canonical().is_ascii() && path.canonical().starts_with('/') && !path.canonical().contains("//"));
        prop_assert_eq!(decoded(path.canonical()), decoded(&sent));
    }

    #[test]
    fn no_segment_leads_anywhere(sent in odd_path()) {
        let Ok(path) = Path::parse(&sent) else { return Ok(()) };
        for segment in path.segments() {
            let data = segment.data();
            prop_assert!(!data.is_empty() && !data.contains(&0));
            // A reader that also splits at an encoded slash, a backslash or `;` finds no dot segment either.
            for name in data.split(|byte| matches!(byte, b'/' | b'\\')) {
                let name = name.split(|&byte| byte == b';').next().unwrap();
                prop_assert!(!matches!(name, b"." | b".."), "{:?}", sent);
            }
            if let Some(name) = segment.name() {
                prop_assert!(!name.contains(&b'/') && !name.contains(&b'\\'));
            }
        }
        if let Some(name) = path.file_name() {
            let names = path.segments().map(|segment| segment.name().unwrap().into_owned());
            prop_assert_eq!(name.into_owned(), names.collect::<Vec<_>>().join(&b'/'));
        }
        if let Some(other) = path.with_slashes_decoded() {
            prop_assert!(Path::parse(&other).is_ok(), "{}", other);
        }
    }

    #[test]
    fn parts_are_found_again_in_what_was_sent(sent in odd_path()) {
        let Ok(path) = Path::parse(&sent) else { return Ok(()) };
        prop_assert_eq!(path.sent_len(path.canonical().len()), sent.len());
        prop_assert_eq!(path.sent_places().count(), path.segments().count());
        let mut at = 0;
        for (segment, sent_place) in path.segments().zip(path.sent_places()) {
            let part = path.sent_part(segment.place());
            prop_assert_eq!(&sent[sent_place], part);
            prop_assert_eq!(canonical_part(part).unwrap(), segment.canonical());
            let found = sent[at..].find(part).unwrap();
            prop_assert!(sent[at..at + found].bytes().all(|byte| byte == b'/'), "{} in {}", part, sent);
            at += found + part.len();
            // Every segment ends a prefix. The rest begins with the slash after that segment.
            let prefix = &path.canonical()[..segment.place().end];
            prop_assert_eq!(path.strip_prefix(prefix), Some(&sent[at..]));
        }
        prop_assert!(sent[at..].bytes().all(|byte| byte == b'/'));
    }

    #[test]
    fn the_glance_and_the_careful_reading_agree(sent in "/[a./%\\\\;]{0,8}") {
        // The doubled first slash forces the slow path, which must give the same result as the fast one.
        let careful = format!("/{sent}");
        match (Path::parse(&sent), Path::parse(&careful)) {
            (Ok(path), Ok(careful)) => prop_assert_eq!(path.canonical(), careful.canonical()),
            (path, careful) => prop_assert_eq!(path.err(), careful.err()),
        }
    }
}
