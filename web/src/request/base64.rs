//! Base64 (RFC 4648): decoding of both alphabets, and encoding for URLs and cookies. Only the canonical form is decoded.

/// Decodes the common alphabet, with or without its padding.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    decode_with(text.trim_end_matches('='), [b'+', b'/'])
}

/// Decodes the alphabet for URLs (section 5), without padding.
#[cfg(any(feature = "jwt", feature = "sessions"))]
pub(crate) fn decode_url(text: &str) -> Option<Vec<u8>> {
    decode_with(text, [b'-', b'_'])
}

fn decode_with(text: &str, last: [u8; 2]) -> Option<Vec<u8>> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        _ => last.iter().position(|&known| known == byte).map(|at| 62 + at as u8),
    };
    let (mut bytes, mut bits, mut held) = (Vec::with_capacity(text.len() * 3 / 4), 0_u32, 0);
    for byte in text.bytes() {
        bits = bits << 6 | u32::from(value(byte)?);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    (held < 6 && bits == 0).then_some(bytes)
}

/// Encodes for URLs, without padding. Every character may stand in a cookie.
#[cfg(any(feature = "sessions", all(test, feature = "jwt")))]
pub(crate) fn encode_url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..=group.len() {
            text.push(char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_decodes_what_is_canonical_and_nothing_else() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg", "foob"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        for text in ["Z", "Zh==", "Zm9=", "Zm 9v", "Zm9v!", "-_-_"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    #[cfg(feature = "sessions")]
    #[test]
    fn what_is_encoded_comes_back() {
        for length in 0..70 {
            let bytes: Vec<u8> = (0..length).map(|i: u8| i.wrapping_mul(83) ^ 0xfb).collect();
            let text = encode_url(&bytes);
            assert_eq!(decode_url(&text), Some(bytes), "{text}");
        }
        assert_eq!(encode_url(&[0xfb, 0xff, 0xbf]), "-_-_");
        for text in ["Zg==", "+/+/", "Zh", "Z"] {
            assert_eq!(decode_url(text), None, "{text}");
        }
    }
}
