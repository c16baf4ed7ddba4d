//! Classes of bytes, as tables built at compile time.

/// Whether the byte is a `tchar` (RFC 9110 5.6.2). Methods, field names and parameter names have no other bytes.
#[inline]
pub(crate) fn is_token(byte: u8) -> bool {
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
pub(crate) fn is_value(byte: u8) -> bool {
    (byte >= b' ' && byte != 0x7f) || byte == b'\t'
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
