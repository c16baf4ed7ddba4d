//! gRPC errors: a gRPC client reads the outcome of a call from fields, not from the HTTP status.

use std::fmt::Write;

use http::{Method, StatusCode};

use crate::conn::ignoring_case::strip_prefix;
use crate::conn::trailers::Trailers;
use crate::{Request, Response};

/// Whether the request is a gRPC call: POST, with a type of the protocol.
pub(super) fn is_call(request: &Request<'_>) -> bool {
    let rest = |value| strip_prefix(value, b"application/grpc");
    let is_end = |rest: &[u8]| matches!(rest.trim_ascii_start().first(), None | Some(b'+' | b';'));
    request.method() == Method::POST && request.header("content-type").and_then(rest).is_some_and(is_end)
}

/// Turns an error response of the proxy itself into a gRPC response without messages ("Trailers-Only"). The cause stays for the log.
pub(super) fn fail(failed: Response) -> Response {
    let status = failed.status();
    let (code, message) = outcome(status);
    let mut response = Response::new(StatusCode::OK)
        .header("content-type", "application/grpc")
        .header("grpc-status", code)
        .header("grpc-message", encoded(message));
    response.cause = failed.cause;
    response
}

/// The trailer that ends the response of a call with the error of a status.
pub(super) fn failure(status: StatusCode) -> Trailers {
    let (code, message) = outcome(status);
    Trailers::of([
        ("grpc-status", code.as_bytes()),
        ("grpc-message", encoded(message).as_bytes()),
    ])
}

/// The gRPC code for a status, and what it means here.
fn outcome(status: StatusCode) -> (&'static str, &'static str) {
    match status.as_u16() {
        // DEADLINE_EXCEEDED: the backend may have done the work, so the call is not simply repeated.
        504 => ("4", "the backend has not answered in time"),
        // UNAVAILABLE
        502 => ("14", "the backend has failed or cannot be reached"),
        503 => ("14", "no backend is available"),
        // CANCELLED
        408 => ("1", "the request has not arrived in time"),
        // RESOURCE_EXHAUSTED
        413 | 431 => ("8", "the request is too large"),
        // INTERNAL
        400 => ("13", "the request is malformed"),
        _ => ("13", "the gateway has failed"),
    }
}

/// Percent-encodes a message, as the field wants it.
fn encoded(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b'%' | ..b' ' | b'\x7f'.. => drop(write!(text, "%{byte:02X}")),
            byte => text.push(char::from(byte)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_encoded() {
        assert_eq!(encoded("50% of \u{e4}\n"), "50%25 of %C3%A4%0A");
    }
}
