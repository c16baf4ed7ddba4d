//! A test's own folder, content for it, and decompression.

use std::io::Read;

/// Undoes a content coding, named as in its field; no name is none.
pub fn decoded(coding: Option<&str>, mut bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match coding {
        None => bytes.read_to_end(&mut plain),
        Some("br") => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut plain),
        Some("zstd") => zstd::stream::read::Decoder::new(bytes)
            .expect("zstd")
            .read_to_end(&mut plain),
        Some("gzip") => flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain),
        Some(other) => panic!("coding {other}"),
    }
    .expect("well encoded");
    plain
}

/// Words and numbers that differ from place to place, so that a wrong offset shows and compression still gains.
pub fn prose(length: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(length + 64);
    let mut line = 0u32;
    while text.len() < length {
        let number = line.wrapping_mul(2_654_435_761);
        text.extend_from_slice(format!("{line}: the willow bends {number} times and stands up again\n").as_bytes());
        line += 1;
    }
    text.truncate(length);
    text
}

/// Bytes that cannot be compressed; the same each time.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(|_| random()).collect()
}
