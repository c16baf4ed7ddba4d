//! From the backend's answer to the response for the client.

use std::io;

use http::StatusCode;
use osier::Cancelled;
use osier_http::{FieldLines, HeadWriter, Method, Reply, ReplyLength, ResponseBody, Version};

use super::backend_response::BackendResponse;
use super::exchange::{Failure, Why};
use super::sender::Sender;
use super::tunnel::Idle;
use super::{SMALL, Settings, forwarded, relay, tunnel};
use crate::body::outgoing::Kind;
use crate::conn::output::{Outlet, Output};
use crate::upstream::Upstream;
use crate::upstream::attempt::while_sending;
use crate::{Body, Request, RequestId, Response};

/// What is kept of the backend's head.
pub(super) struct Head {
    status: StatusCode,
    fields: FieldLines,
    has_date: bool,
    body: ReplyLength,
    declared: Option<u64>,
    /// The protocol that both have agreed on.
    protocol: Option<String>,
}

impl Head {
    /// `upgrade` is what the client has asked for, a list of protocols.
    pub(super) fn of(reply: &Reply<'_>, upgrade: Option<&[u8]>) -> Result<Head, Why> {
        let status = StatusCode::from_u16(reply.status()).map_err(|_| Why::Malformed("a status nobody can send"))?;
        let protocol = reply.upgrade().filter(|chosen| {
            let asked = upgrade.unwrap_or_default().split(|&byte| byte == b',');
            asked
                .map(<[u8]>::trim_ascii)
                .any(|asked| asked.eq_ignore_ascii_case(chosen))
        });
        if status == StatusCode::SWITCHING_PROTOCOLS && protocol.is_none() {
            return Err(Why::Malformed("a change of protocol that was not asked for"));
        }
        if forwarded::lists_too_many(reply.headers()) {
            return Err(Why::Malformed("a Connection field that lists too many names"));
        }
        let mut fields = FieldLines::new();
        fields.reserve(reply.headers().map(|(name, value)| name.len() + value.len() + 4).sum());
        let mut has_date = false;
        for (name, value) in passing(reply) {
            has_date |= name.eq_ignore_ascii_case("date");
            // The strict parser has let nothing through that could not be written.
            let _ = fields.push(name, value);
        }
        Ok(Head {
            status,
            fields,
            has_date,
            body: reply.body(),
            declared: reply.content_length(),
            protocol: protocol.map(|protocol| String::from_utf8_lossy(protocol).into_owned()),
        })
    }
}

/// The fields that are not for the connection to the backend alone.
fn passing<'r>(reply: &'r Reply<'_>) -> impl Iterator<Item = (&'r str, &'r [u8])> {
    let of_connection = |name: &str| forwarded::is_of_connection(name) || reply.connection_names(name);
    reply.headers().filter(move |(name, _)| !of_connection(name))
}

/// What an early hint may say, RFC 8297 and what browsers read of one. Nothing else, as an interim response does not pass the
/// layers that set fields and take them off.
const HINTS: [&str; 2] = ["link", "content-security-policy"];

/// Passes an interim response on (RFC 9110 15.2), 103 Early Hints for example: to who can read it, and but for 100 Continue,
/// which is answered here. It goes out when the connection's fiber suspends, and that is this one.
pub(super) fn pass_interim(reply: &Reply<'_>, asked: &osier_http::Head<'_>, output: &Output<'_>) {
    // With a list that is too long it is not worth reading: an interim response is a hint, which nobody misses.
    let is_passed = reply.status() != StatusCode::CONTINUE.as_u16()
        && asked.version() == Version::Http11
        && !forwarded::lists_too_many(reply.headers());
    if !is_passed {
        return;
    }
    let mut state = output.state();
    let Ok(mut head) = HeadWriter::begin(&mut state.buffer, reply.status(), asked.exchange()) else {
        return;
    };
    let may_say = |name: &str| {
        reply.status() == StatusCode::EARLY_HINTS.as_u16() && HINTS.iter().any(|hint| name.eq_ignore_ascii_case(hint))
    };
    for (name, value) in passing(reply).filter(|(name, _)| may_say(name)) {
        // As above.
        let _ = head.header(name, value);
    }
    head.finish(ResponseBody::Stream);
}

/// The response. `wire` is at the beginning of the body, and `sender` where it was when the head came.
pub(super) fn make(
    settings: &Settings,
    request: &Request<'_>,
    sender: &mut Sender,
    mut backend: BackendResponse,
    head: Head,
) -> Result<Response, Failure> {
    if let Some(protocol) = head.protocol {
        return Ok(upgrade(settings, backend, &protocol, head.fields, head.has_date));
    }
    let lease = backend.lease().expect("the body has not been read");
    let number = lease.backend();
    let fail = |error: io::Error| match Cancelled::is(&error) {
        true => Failure::Cancelled(error),
        false => Failure::Backend(number, Why::Body(error)),
    };
    lease.stream().set_read_timeout(Some(settings.between)).map_err(fail)?;

    let is_sending = !sender.is_done() && sender.over().get().is_none();
    if !sender.is_done() && !is_sending {
        backend.close_after();
    }
    let mut received = Vec::new();
    let bound = settings.read_ahead;
    let kind = if head.body == ReplyLength::None {
        if !sender.is_done() {
            backend.close_after();
        }
        backend.take_received(&mut received).map_err(fail)?;
        bodiless(request, head.declared)
    } else if is_sending {
        let sender = std::mem::replace(sender, Sender::new(osier_http::BodyLength::None));
        let context = Context::of(settings, request, number);
        Kind::Duplex(Box::new(move |body, out| {
            let done = send_and_relay(sender, body, backend, bound, out);
            done.map_err(|error| context.explain(error))
        }))
    } else if backend.take_received(&mut received).map_err(fail)? {
        Kind::Owned(received)
    } else if let ReplyLength::Known(length @ ..=SMALL) = head.body {
        // Bounded by SMALL.
        let (mut filled, length) = (received.len(), length as usize);
        received.resize(length, 0);
        while filled < length {
            filled += backend.read(&mut received[filled..]).map_err(fail)?;
        }
        Kind::Owned(received)
    } else {
        let length = match head.body {
            ReplyLength::Known(length) => Some(length),
            _ => None,
        };
        let context = Context::of(settings, request, number);
        let produce = move |out: &mut dyn Outlet| {
            relay::relay(backend, &received, bound, out).map_err(|error| context.explain(error))
        };
        Kind::Stream(Box::new(produce), length)
    };
    let mut response = Response::new(head.status);
    response.fields = head.fields;
    response.has_date = head.has_date;
    response.of_backend = true;
    response.body = Body { kind, text: None };
    Ok(response)
}

/// What follows the head where no body does: the answer to HEAD tells the length of the one to GET, if that was told.
fn bodiless(request: &Request<'_>, declared: Option<u64>) -> Kind {
    if request.head.method() != Method::Head {
        return Kind::Empty;
    }
    Kind::Reader {
        reader: Box::new(io::empty()),
        len: declared,
    }
}

/// The rest of the request and the answer, at the same time.
fn send_and_relay(
    mut sender: Sender,
    body: &mut crate::RequestBody<'_>,
    mut backend: BackendResponse,
    bound: usize,
    out: &mut dyn Outlet,
) -> io::Result<()> {
    let lease = backend.lease().expect("nothing has been read").clone();
    backend.while_sending(sender.over());
    // A backend that does not want the rest may still answer; a client that fails ends the connection.
    let send = move || match sender.send(body, &lease) {
        Ok(()) => None,
        // With a second owner it is not kept: the next request would be taken for the rest of this one.
        Err(_) => Some(lease),
    };
    while_sending(send, || relay::relay(backend, &[], bound, out)).0
}

fn upgrade(
    settings: &Settings,
    backend: BackendResponse,
    protocol: &str,
    fields: FieldLines,
    has_date: bool,
) -> Response {
    let idle = Idle {
        both: settings.tunnel_idle,
        half_closed: settings.tunnel_half_closed,
    };
    let (lease, received) = backend.into_tunnel().expect("nothing has been read");
    let mut response = Response::upgrade(protocol, move |client| tunnel::run(client, &lease, &received, idle));
    response.fields = fields;
    response.has_date = has_date;
    response
}

/// What a log line of a failing body says beside the failure.
struct Context {
    upstream: Upstream,
    backend: usize,
    id: RequestId,
}

impl Context {
    fn of(settings: &Settings, request: &Request<'_>, backend: usize) -> Context {
        Context {
            upstream: settings.upstream.clone(),
            backend,
            id: request.id(),
        }
    }

    fn explain(&self, error: io::Error) -> io::Error {
        if Cancelled::is(&error) {
            return error;
        }
        let (id, name, label) = (self.id, self.upstream.name(), self.upstream.label(self.backend));
        io::Error::new(
            error.kind(),
            format!("[{id}] upstream {name}: backend {label}: {error}"),
        )
    }
}
