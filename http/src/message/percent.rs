//! Strict percent-decoding: an invalid escape is an error.

/// Decodes percent-encoded bytes (RFC 3986 2.1). Returns `None` if two hexadecimal digits do not follow a `%`: lenient decoders
/// disagree about such an escape.
///
/// ```
/// assert_eq!(osier_http::percent_decode(b"/a%2fb%00").as_deref(), Some(&b"/a/b\0"[..]));
/// assert_eq!(osier_http::percent_decode(b"50%"), None);
/// ```
pub fn percent_decode(raw: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || char::from(*bytes.next()?).to_digit(16);
        // Two digits of four bits each.
        decoded.push((digit()? * 16 + digit()?) as u8);
    }
    Some(decoded)
}
