//! The head of the request to the backend, made anew from the parsed head of the client.

use std::borrow::Cow;

use osier_http::path::{BadPath, Path};
use osier_http::{Form, HeaderError, RequestWriter};

use super::{Host, Settings, forwarded, grpc};
use crate::conn::log::id;
use crate::request::changes::is_same_name;
use crate::request::trace;
use crate::{Address, Request, RequestId};

/// The request target for the backend.
///
/// # Errors
///
/// [`BadPath`] for a path that is refused: the backend could read it as a path outside a prefix or a rule.
pub(super) fn target<'r>(settings: &Settings, request: &Request<'r>) -> Result<Cow<'r, str>, BadPath> {
    let path = match Path::parse(request.path()) {
        Err(BadPath::NoSlash) => return Ok(Cow::Borrowed("*")),
        path => path?,
    };
    let replaced = settings
        .prefix
        .as_ref()
        .and_then(|(prefix, with)| Some((with.as_str(), path.strip_prefix(prefix)?)));
    let is_origin = request.head.form() == Form::Origin;
    let query = request.query();
    let (first, second) = match replaced {
        None if is_origin => return Ok(Cow::Borrowed(request.target())),
        None => (path.sent(), ""),
        Some(("", "")) if query.is_none() => return Ok(Cow::Borrowed("/")),
        Some(("", "")) => ("/", ""),
        // The rest of the path is its end, and the query follows there.
        Some(("", rest)) if is_origin => {
            return Ok(Cow::Borrowed(&request.target()[path.sent().len() - rest.len()..]));
        }
        Some(parts) => parts,
    };
    let (mark, query) = query.map_or(("", ""), |query| ("?", query));
    Ok(Cow::Owned([first, second, mark, query].concat()))
}

/// Appends the head for the backend at `address` to `out`.
pub(super) fn write_head(
    settings: &Settings,
    request: &Request<'_>,
    target: &str,
    address: &Address,
    upgrade: Option<&[u8]>,
    out: &mut Vec<u8>,
) -> Result<(), HeaderError> {
    let is_trusted = is_trusted(settings, request);
    // A trusted peer has named the client in its own fields, and is the next hop itself.
    let client = match is_trusted {
        true => request.connected_ip(),
        false => request.client_ip(),
    };
    let asked = request.host().unwrap_or_default();
    let host = backend_host(settings, asked, address);
    let mut head = RequestWriter::begin(out, request.method(), target, host)?;
    let (id, trace) = (request.forwarded_id(), request.forwarded_trace());
    let are_all_usual = !request.head.connection_names_others() && id.is_none() && trace.is_none();
    let mut takes_trailers = false;
    head.pass(request.headers(), |name, value| {
        let is_named = || request.head.connection_names(name) && !request.changes.adds(name);
        if are_all_usual && !forwarded::may_be_known(name) {
            return !is_named();
        }
        takes_trailers |= name.eq_ignore_ascii_case("te") && lists_trailers(value);
        let is_replaced =
            (id.is_some() && is_same_name(name, id::FIELD)) || (trace.is_some() && trace::is_replaced(name));
        // A policy may set a field that is named like a proxy's, such as X-Forwarded-User.
        let is_set = || request.changes.adds(name) && !forwarded::is_added(name);
        forwarded::passes(name, is_trusted || is_set()) && !is_replaced && !is_named()
    });
    if settings.options.forwarded {
        let hop = forwarded::Hop {
            client,
            is_https: request.is_https(),
            host: asked,
        };
        forwarded::add(&mut head, request.headers(), is_trusted, &hop)?;
    }
    if let Some(id) = id {
        head.header(id::FIELD, id.as_str().as_bytes())?;
    }
    if let Some((parent, state)) = trace {
        head.header(trace::PARENT, parent.as_bytes())?;
        state.map_or(Ok(()), |state| head.header(trace::STATE, &state))?;
    }
    if upgrade.is_none() && takes_trailers {
        head.take_trailers();
    }
    if let Some(protocol) = upgrade {
        write_upgrade(&mut head, request, protocol)?;
    }
    head.finish(request.head.body());
    Ok(())
}

/// The Host field for the backend at `address`. `asked` is the client's.
pub(super) fn backend_host<'h>(settings: &'h Settings, asked: &'h str, address: &'h Address) -> &'h str {
    match (&settings.options.host, address) {
        (Host::Preserve, _) => asked,
        (Host::Fixed(host), _) => host,
        (Host::Backend, Address::Tcp(host)) => host,
        (Host::Backend, _) => "localhost",
    }
}

#[cold]
fn write_upgrade(head: &mut RequestWriter<'_>, request: &Request<'_>, protocol: &[u8]) -> Result<(), HeaderError> {
    head.upgrade(protocol)?;
    // A WebSocket over HTTP/2 has no key (RFC 8441 section 5). The backend's `Sec-WebSocket-Accept` is not checked.
    if request.version() == http::Version::HTTP_2 && request.header("sec-websocket-key").is_none() {
        head.header("sec-websocket-key", &websocket_key())?;
    }
    Ok(())
}

/// Whether a TE field says that the client takes trailers (RFC 9110 10.1.4).
fn lists_trailers(value: &[u8]) -> bool {
    let mut members = value.split(|&byte| byte == b',');
    members.any(|member| member.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// Makes a key for the handshake of a WebSocket: 16 bytes in base64. Hexadecimal digits are digits of base64, too.
fn websocket_key() -> Vec<u8> {
    let [first, second] = [RequestId::random(), RequestId::random()];
    [first.as_str().as_bytes(), &second.as_str().as_bytes()[..5], b"A=="].concat()
}

/// Whether the other end of the connection is a trusted proxy.
fn is_trusted(settings: &Settings, request: &Request<'_>) -> bool {
    let Some(trust) = &settings.trust else { return false };
    request.connected_ip().is_some_and(trust)
}

/// Whether the client used https.
pub(super) fn is_https(settings: &Settings, request: &Request<'_>) -> bool {
    forwarded::is_https(&request.headers(), is_trusted(settings, request), request.is_https())
}

/// Whether the body is passed on while the client sends it. The two sides of a gRPC call talk to each other. A backend of HTTP/1.1 serves
/// no gRPC, so there the body is received first: a client that only names the type could hold a connection for as long as it likes.
pub(super) fn is_streamed(settings: &Settings, request: &Request<'_>) -> bool {
    !settings.options.buffer || (settings.upstream.speaks_http2() && grpc::is_call(request))
}
