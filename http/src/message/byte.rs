//! Classes of bytes, as tables built at compile time.

/// Whether the byte is a `tchar` (RFC 9110 5.6.2). Methods, field names and parameter names have no other bytes.
#[inline]
pub(crate) const fn is_token(byte: u8) -> bool {
    CLASS[byte as usize] & TOKEN != 0
}

/// Whether all bytes are `tchar`s. The loop has no early exit: names are short.
#[inline]
pub(crate) fn are_tokens(bytes: &[u8]) -> bool {
    bytes.iter().fold(TOKEN, |class, &byte| class & CLASS[byte as usize]) == TOKEN
}

/// Whether the host of an authority may contain the byte: `reg-name` of RFC 3986 3.2.2 without percent signs.
///
/// RFC 3986 also allows the comma. It is refused here, because intermediaries join two Host fields with one.
#[inline]
pub(crate) fn is_host(byte: u8) -> bool {
    CLASS[byte as usize] & HOST != 0
}

/// Whether a field value may contain the byte (RFC 9110 5.5): any byte except controls other than the tab.
#[inline]
pub(crate) const fn is_value(byte: u8) -> bool {
    (byte >= b' ' && byte != 0x7f) || byte == b'\t'
}

/// Whether `name`, that of a field of a received head, is `known`, which is spelled with small letters, digits and hyphens. The case of
/// `name` does not matter.
///
/// The bytes are compared in words. A name has no other bytes than those of a token, and for these the bit of the case is the only
/// difference between the spellings.
#[inline(always)]
pub fn is_field(name: &str, known: &'static str) -> bool {
    is_field_name(name.as_bytes(), known.as_bytes())
}

/// The same for names in bytes. Requires tokens, too.
#[inline(always)]
pub(crate) fn is_field_name(name: &[u8], known: &'static [u8]) -> bool {
    const CASE: [u8; 8] = [0x20; 8];
    let is_word = |name: &[u8; 8], known: &[u8; 8]| {
        u64::from_le_bytes(*name) | u64::from_le_bytes(CASE) == u64::from_le_bytes(*known)
    };
    let is_half = |name, known| u32::from_le_bytes(name) | 0x2020_2020 == u32::from_le_bytes(known);
    if name.len() != known.len() {
        return false;
    }
    if let (Some(last), Some(known_last)) = (name.last_chunk(), known.last_chunk()) {
        let (words, _) = name.as_chunks();
        let (known_words, _) = known.as_chunks();
        return words.iter().zip(known_words).all(|(word, known)| is_word(word, known)) && is_word(last, known_last);
    }
    // Two halves of a word, which may overlap.
    let halves = |name: &[u8]| Some((*name.first_chunk::<4>()?, *name.last_chunk::<4>()?));
    match (halves(name), halves(known)) {
        (Some((first, last)), Some((known_first, known_last))) => {
            is_half(first, known_first) && is_half(last, known_last)
        }
        _ => { name.iter() }.zip(known).all(|(byte, known)| byte | 0x20 == *known),
    }
}

const TOKEN: u8 = 1;
const HOST: u8 = 2;

static CLASS: [u8; 256] = {
    let mut class = [0; 256];
    let mut b = 0;
    while b < 256 {
        let byte = b as u8;
        if byte.is_ascii_alphanumeric() {
            class[b] = TOKEN | HOST;
        }
        b += 1;
    }
    let mut i = 0;
    let token = b"!#$%&'*+-.^_`|~";
    while i < token.len() {
        class[token[i] as usize] |= TOKEN;
        i += 1;
    }
    let mut i = 0;
    let host = b"-._~!$&'()*+;=";
    while i < host.len() {
        class[host[i] as usize] |= HOST;
        i += 1;
    }
    class
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_case_is_the_only_difference_that_does_not_matter() {
        const KNOWN: &[u8] = b"abcdefghijklmnopqrstuvwxyz-0123456789";
        for (at, known) in KNOWN.iter().enumerate() {
            for byte in (0..=255).filter(|&byte| is_token(byte)) {
                let single = &KNOWN[at..=at];
                assert_eq!(
                    is_field_name(&[byte], single),
                    byte.eq_ignore_ascii_case(known),
                    "{byte}"
                );
                let mut long = KNOWN.to_ascii_uppercase();
                long[at] = byte;
                assert_eq!(is_field_name(&long, KNOWN), byte.eq_ignore_ascii_case(known), "{byte}");
            }
        }
        for length in 0..KNOWN.len() {
            assert!(is_field_name(&KNOWN[..length].to_ascii_uppercase(), &KNOWN[..length]));
            assert!(!is_field_name(&KNOWN[..length], KNOWN));
            assert!(!is_field_name(KNOWN, &KNOWN[..length]));
            for at in 0..length {
                let mut other = KNOWN[..length].to_vec();
                other[at] = b'!';
                assert!(!is_field_name(&other, &KNOWN[..length]), "{at} of {length}");
            }
        }
    }
}
