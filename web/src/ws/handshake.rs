//! The opening handshake of RFC 6455 §4.2, and of RFC 8441 over HTTP/2: checks the request strictly and chooses the subprotocol.

use http::StatusCode;
use tungstenite::handshake::derive_accept_key;

use super::{Options, Origins};
use crate::{Request, Response};

/// The only supported protocol version.
const VERSION: &str = "13";

/// The values for the 101 response to a valid handshake.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    /// `None` over HTTP/2, where the request itself says that it is meant.
    pub(super) accept: Option<String>,
    pub(super) protocol: Option<String>,
}

impl Accepted {
    /// Adds the handshake's fields to the 101 response.
    pub(super) fn complete(&self, response: Response) -> Response {
        let response = match &self.accept {
            Some(accept) => response.header("sec-websocket-accept", accept),
            None => response,
        };
        match &self.protocol {
            Some(protocol) => response.header("sec-websocket-protocol", protocol),
            None => response,
        }
    }
}

/// Checks the upgrade request. The error is the response to an invalid or forbidden one.
pub(super) fn check(request: &Request<'_>, options: &Options) -> Result<Accepted, Response> {
    let refuse = |status: StatusCode, why: &'static str| Err(Response::new(status).body(why));
    if request.method() != "GET" {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "a WebSocket handshake must use GET\n")
            .map_err(|response: Response| response.header("allow", "GET"));
    }
    if request.version() == http::Version::HTTP_2 {
        return check_http2(request, options);
    }
    if request.version() != http::Version::HTTP_11 {
        return refuse(
            StatusCode::BAD_REQUEST,
            "a WebSocket handshake must use HTTP/1.1 or HTTP/2\n",
        );
    }
    if !has_token(request, "upgrade", "websocket") || !has_token(request, "connection", "upgrade") {
        return refuse(
            StatusCode::BAD_REQUEST,
            "this is a WebSocket endpoint: send `Upgrade: websocket` and `Connection: Upgrade`\n",
        );
    }
    if request.header("sec-websocket-version") != Some(VERSION.as_bytes()) {
        return Err(wrong_version().header("upgrade", "websocket"));
    }
    let key = match only(request, "sec-websocket-key") {
        Some(key) if is_key(key) => key,
        _ => {
            return refuse(
                StatusCode::BAD_REQUEST,
                "Sec-WebSocket-Key must be 16 bytes in base64\n",
            );
        }
    };
    if !origin_is_allowed(request, &options.origins) {
        return Err(forbidden_origin());
    }
    Ok(Accepted {
        accept: Some(derive_accept_key(key)),
        protocol: choose_protocol(request, &options.protocols),
    })
}

/// Checks an extended CONNECT, which HTTP/2 has in place of the Upgrade field and the key (RFC 8441 §5).
fn check_http2(request: &Request<'_>, options: &Options) -> Result<Accepted, Response> {
    if request.head.upgrade() != Some(b"websocket") {
        let why = "this is a WebSocket endpoint: send CONNECT with `:protocol = websocket`\n";
        return Err(Response::new(StatusCode::BAD_REQUEST).body(why));
    }
    if request.header("sec-websocket-version") != Some(VERSION.as_bytes()) {
        return Err(wrong_version());
    }
    if !origin_is_allowed(request, &options.origins) {
        return Err(forbidden_origin());
    }
    Ok(Accepted {
        accept: None,
        protocol: choose_protocol(request, &options.protocols),
    })
}

fn wrong_version() -> Response {
    let response = Response::new(StatusCode::UPGRADE_REQUIRED).body("Sec-WebSocket-Version must be 13\n");
    response.header("sec-websocket-version", VERSION)
}

fn forbidden_origin() -> Response {
    Response::new(StatusCode::FORBIDDEN).body("this origin may not open a WebSocket here\n")
}

/// Whether a list field contains the token, ignoring case, on any of its lines.
fn has_token(request: &Request<'_>, name: &str, token: &str) -> bool {
    tokens(request, name).any(|found| found.eq_ignore_ascii_case(token))
}

/// The elements of a list field, from all its lines.
fn tokens<'r>(request: &'r Request<'_>, name: &'r str) -> impl Iterator<Item = &'r str> {
    lines(request, name)
        .filter_map(|value| str::from_utf8(value).ok())
        .flat_map(|value| value.split(','))
        .map(|token| token.trim_matches([' ', '\t']))
        .filter(|token| !token.is_empty())
}

fn lines<'r>(request: &'r Request<'_>, name: &'r str) -> impl Iterator<Item = &'r [u8]> {
    request
        .headers()
        .filter(move |(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

/// The value of a field that occurs exactly once.
fn only<'r>(request: &'r Request<'_>, name: &'r str) -> Option<&'r [u8]> {
    let mut values = lines(request, name);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// Whether the key is 16 bytes in base64: 22 digits, the last of which holds two bits, and the
/// padding.
fn is_key(key: &[u8]) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    match key {
        [digits @ .., last, b'=', b'='] => {
            digits.len() == 21 && digits.iter().all(is_digit) && matches!(last, b'A' | b'Q' | b'g' | b'w')
        }
        _ => false,
    }
}

/// The first of our subprotocols that the client offers.
fn choose_protocol(request: &Request<'_>, ours: &[String]) -> Option<String> {
    let is_offered = |ours: &&String| tokens(request, "sec-websocket-protocol").any(|theirs| theirs == ours.as_str());
    ours.iter().find(is_offered).cloned()
}

/// Whether the request's origin is allowed. Only browsers send an origin, for this check, so a
/// request without one is allowed.
fn origin_is_allowed(request: &Request<'_>, origins: &Origins) -> bool {
    let Some(origin) = request.header_str("origin") else {
        return request.header("origin").is_none();
    };
    match origins {
        Origins::Any => true,
        Origins::Same => {
            let host = origin.split_once("://").map_or("", |(_, host)| host);
            request.host().is_some_and(|ours| ours.eq_ignore_ascii_case(host))
        }
        Origins::These(list) => list.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_sixteen_bytes_in_base64() {
        assert!(is_key(b"dGhlIHNhbXBsZSBub25jZQ=="));
        for bad in [
            &b""[..],
            b"dGhlIHNhbXBsZSBub25jZQ",
            b"dGhlIHNhbXBsZSBub25jZR==",
            b"dGhlIHNhbXBsZSBub25jZQQ=",
            b"dGhlIHNhbXBsZSBub25j ZQ==",
            b"dGhlIHNhbXBsZSBub25jZQ==x",
        ] {
            assert!(!is_key(bad), "{bad:?}");
        }
    }
}
