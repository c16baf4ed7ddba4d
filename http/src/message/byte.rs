//! Classes of bytes, as tables built at compile time.

/// `tchar` of RFC 9110 5.6.2: methods, header names and parameters hold no other bytes.
#[inline]
pub(crate) fn is_token(byte: u8) -> bool {
    CLASS[byte as usize] & TOKEN != 0
}

/// Whether the host part of an authority may hold it: `reg-name` of RFC 3986 3.2.2, brackets and percent signs apart.
///
/// The comma is left out although RFC 3986 has it: it is how intermediaries join two Host fields into one.
#[inline]
pub(crate) fn is_host(byte: u8) -> bool {
    CLASS[byte as usize] & HOST != 0
}

/// `field-content` of RFC 9110 5.5: no control but the tab.
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
