//! The rules for single fields: names, values, and the fields that HTTP/2 does not have (RFC 9113 8.2).

use crate::message::byte::{is_token, is_value};

/// Whether `name` is a valid name of a regular field: a token without upper-case letters (RFC 9113 8.2.1).
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|&byte| is_token(byte) && !byte.is_ascii_uppercase())
}

/// Whether `value` is a valid value: no control characters except tabs, and no white space around it (RFC 9113 8.2.1).
pub(super) fn is_field_value(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    // No early exit, so the compiler can vectorise the loop.
    value.iter().fold(true, |good, &byte| good & is_value(byte)) && !is_space(value.first()) && !is_space(value.last())
}

/// Whether a message can have the field, once its name is in lower case.
pub(in crate::h2) fn is_sendable(name: &[u8], value: &[u8]) -> bool {
    let is_valued = value.iter().fold(true, |good, &byte| good & is_value(byte));
    is_valued && !name.is_empty() && name.iter().fold(true, |good, &byte| good & is_token(byte))
}

/// Whether the field belongs to an HTTP/1.1 connection (RFC 9113 8.2.2). The length is compared first. `name` may have any case.
pub(in crate::h2) fn is_connection_field(name: &[u8]) -> bool {
    let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
    match name.len() {
        7 => is("upgrade"),
        10 => is("connection") || is("keep-alive"),
        16 => is("proxy-connection"),
        17 => is("transfer-encoding"),
        _ => false,
    }
}

/// Whether `scheme` has the form of RFC 3986 3.1.
pub(super) fn is_scheme(scheme: &[u8]) -> bool {
    scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme
            .iter()
            .all(|&byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

/// Whether `path` is in origin form, or `*` with OPTIONS (RFC 9113 8.3.1). Only visible characters may stand in it.
pub(super) fn is_path(path: &[u8], method: &str) -> bool {
    let has_form = path.starts_with(b"/") || (path == b"*" && method == "OPTIONS");
    has_form && path.iter().all(u8::is_ascii_graphic)
}
