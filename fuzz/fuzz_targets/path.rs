//! Fuzzes a path. The parser never panics, canonicalising twice changes nothing, and no segment is `.` or `..` to any reader.
#![cfg_attr(fuzzing, no_main)]

use osier_fuzz::fuzz_target;
use osier_http::path::Path;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(path) = Path::parse(text) else { return };
    let again = Path::parse(path.canonical()).expect("a canonical path is accepted");
    assert_eq!(again.canonical(), path.canonical());
    assert_eq!(path.sent_len(path.canonical().len()), text.len());
    assert_eq!(path.sent_places().count(), path.segments().count());
    for (segment, sent) in path.segments().zip(path.sent_places()) {
        assert_eq!(path.sent_part(segment.place()), &text[sent]);
        let data = segment.data();
        assert!(!data.contains(&0));
        assert!(
            data.split(|byte| matches!(byte, b'/' | b'\\'))
                .all(|name| !matches!(name, b"." | b".."))
        );
        if let Some(name) = segment.name() {
            assert!(!name.is_empty() && !name.contains(&b'/'));
        }
    }
    if let Some(other) = path.with_slashes_decoded() {
        assert!(Path::parse(&other).is_ok());
    }
});
