//! The client's response, made from the backend's: which fields pass, and how the body follows.

use std::io;

use http::StatusCode;
use osier::Cancelled;
use osier_http::{FieldLines, HeadWriter, Method, Reply, ReplyLength, ResponseBody, Version, is_field};

use super::backend_response::BackendResponse;
use super::failure::{Failure, Why};
use super::relay::Relay;
use super::sender::{Sender, Unsent};
use super::tunnel::{Idle, ToBackend};
use super::{SMALL, Settings, forwarded, grpc, redirect};
use crate::body;
use crate::body::incoming::BodyError;
use crate::body::outgoing::Kind;
use crate::conn::output::{Outlet, Output};
use crate::conn::trailers::Trailers;
use crate::upstream::attempt::while_sending;
use crate::{Body, Request, Response};

/// The parts of the backend's head that are kept.
pub(super) struct Head {
    status: StatusCode,
    fields: FieldLines,
    has_date: bool,
    /// The backend does not want its response buffered.
    is_stream: bool,
    body: ReplyLength,
    declared: Option<u64>,
    /// The protocol of a 101, one that the client has asked for.
    protocol: Option<String>,
}

impl Head {
    /// Reads the head. `upgrade` is the list of protocols that the client has asked for. The error says why it cannot be passed on.
    pub(super) fn of(reply: &Reply<'_>, upgrade: Option<&[u8]>) -> Result<Head, &'static str> {
        let status = StatusCode::from_u16(reply.status()).map_err(|_| "a status nobody can send")?;
        let protocol = reply.upgrade().filter(|chosen| {
            let asked = upgrade.unwrap_or_default().split(|&byte| byte == b',');
            asked
                .map(<[u8]>::trim_ascii)
                .any(|asked| asked.eq_ignore_ascii_case(chosen))
        });
        if status == StatusCode::SWITCHING_PROTOCOLS && protocol.is_none() {
            return Err("a change of protocol that was not asked for");
        }
        if forwarded::lists_too_many(reply.connection_names_others(), reply.headers()) {
            return Err("a Connection field that lists too many names");
        }
        let mut fields = FieldLines::new();
        let (mut has_date, mut is_stream) = (false, false);
        fields.pass(reply.headers(), |name, value| {
            let passes = is_passing(reply, name);
            match name.len() {
                4 => has_date |= passes && is_field(name, "date"),
                12 | 17 => is_stream |= passes && body::relay::is_stream(name, value),
                _ => {}
            }
            passes
        });
        Ok(Head {
            status,
            fields,
            has_date,
            is_stream,
            body: reply.body(),
            declared: reply.content_length(),
            protocol: protocol.map(|protocol| String::from_utf8_lossy(protocol).into_owned()),
        })
    }
}

/// The fields that are not hop-by-hop.
pub(super) fn passing<'r>(reply: &'r Reply<'_>) -> impl Iterator<Item = (&'r str, &'r [u8])> {
    reply.headers().filter(|(name, _)| is_passing(reply, name))
}

#[inline(always)]
fn is_passing(reply: &Reply<'_>, name: &str) -> bool {
    let is_of_connection = forwarded::may_be_known(name) && forwarded::is_of_connection(name);
    !(is_of_connection || reply.connection_names(name))
}

/// The fields that a 103 Early Hints keeps: RFC 8297, and the ones that browsers read. An interim response does not pass the
/// layers that set and remove fields, so no other field passes.
const HINTS: [&str; 2] = ["link", "content-security-policy"];

/// Passes an interim response on (RFC 9110 15.2), 103 Early Hints for example, if the client speaks HTTP/1.1 or HTTP/2. A 100 Continue
/// does not pass, as this server sends its own. The response is sent when this fiber, the connection's, suspends.
pub(super) fn pass_interim(reply: &Reply<'_>, asked: &osier_http::Head<'_>, output: &Output<'_>) {
    // An interim response is only a hint. One with a list that is too long is dropped.
    let is_passed = reply.status() != StatusCode::CONTINUE.as_u16()
        && asked.version() != Version::Http10
        && !forwarded::lists_too_many(reply.connection_names_others(), reply.headers());
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
        // The strict parser accepts only fields that can be written.
        let _ = head.header(name, value);
    }
    head.finish(ResponseBody::Stream);
}

/// Makes the client's response. `backend` is at the beginning of its body. `sender` may still have to send a part of the request.
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
    let carrier = backend.carrier().expect("the body has not been read");
    let number = carrier.ticket().backend();
    let location = match head.status.as_u16() {
        201 | 300..400 => head.fields.first("location"),
        _ => None,
    };
    let location = location.and_then(|value| redirect::location(settings, request, carrier.ticket().address(), value));
    let fail = |error: io::Error| match Cancelled::is(&error) {
        true => Failure::Cancelled(error),
        false => Failure::Backend(number, Why::Body(error)),
    };
    carrier
        .set_timeouts(settings.options.between, settings.options.first_byte)
        .map_err(fail)?;

    let is_sending = !sender.is_done() && sender.progress().over.get().is_none();
    if !sender.is_done() && !is_sending {
        backend.close_after();
    }
    let mut received = Vec::new();
    let relay = || Relay::new(settings, head.is_stream, number);
    let kind = if head.body == ReplyLength::None {
        if !sender.is_done() {
            backend.close_after();
        }
        backend.take_received(&mut received).map_err(fail)?;
        bodiless(request, head.declared)
    } else if is_sending {
        let sender = std::mem::replace(sender, Sender::new(osier_http::BodyLength::None));
        let (relay, is_call) = (relay(), grpc::is_call(request));
        Kind::Duplex(Box::new(move |body, out| {
            send_and_relay(sender, body, backend, (relay, is_call), out)
        }))
    } else if backend.take_received(&mut received).map_err(fail)? {
        in_memory(received, backend.take_trailers())
    } else if let ReplyLength::Known(length @ ..=SMALL) = head.body {
        // Bounded by SMALL.
        read_up_to(length as usize, &mut backend, &mut received).map_err(fail)?;
        in_memory(received, backend.take_trailers())
    } else {
        let length = match head.body {
            ReplyLength::Known(length) => Some(length),
            _ => None,
        };
        let relay = relay();
        let produce = move |out: &mut dyn Outlet| relay.run(backend, received, out);
        Kind::Stream(Box::new(produce), length)
    };
    let mut response = Response::new(head.status);
    response.fields = head.fields;
    if let Some(location) = location {
        response.fields.remove("location");
        // The strict parser has accepted what it is made of.
        let _ = response.fields.push("location", location.as_bytes());
    }
    response.has_date = head.has_date;
    response.of_backend = true;
    response.body = Body { kind, text: None };
    Ok(response)
}

/// Reads the rest of a body of this length, and its end.
fn read_up_to(length: usize, backend: &mut BackendResponse, body: &mut Vec<u8>) -> io::Result<()> {
    let mut filled = body.len();
    body.resize(length, 0);
    while filled < length {
        match backend.read(&mut body[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    // The end of a stream may come behind the last byte.
    backend.read(&mut [0])?;
    Ok(())
}

/// A body that is in memory. The length of one with a trailer is not announced: HTTP/1.1 has trailers behind chunks only.
fn in_memory(bytes: Vec<u8>, trailers: Trailers) -> Kind {
    if trailers.is_empty() {
        return Kind::Owned(bytes);
    }
    let produce = move |out: &mut dyn Outlet| {
        out.write_all(&bytes)?;
        out.set_trailers(trailers);
        Ok(())
    };
    Kind::Stream(Box::new(produce), None)
}

/// The body of a response without a body. A response to HEAD keeps the Content-Length of the backend, if there is one.
fn bodiless(request: &Request<'_>, declared: Option<u64>) -> Kind {
    if request.head.method() != Method::Head {
        return Kind::Empty;
    }
    Kind::Reader {
        reader: Box::new(io::empty()),
        len: declared,
    }
}

/// Sends the rest of the request on another fiber while this one relays the response. A client that sends more than it may gets that as
/// the outcome of a gRPC call.
fn send_and_relay(
    mut sender: Sender,
    body: &mut crate::RequestBody<'_>,
    mut backend: BackendResponse,
    (relay, is_call): (Relay, bool),
    out: &mut dyn Outlet,
) -> io::Result<()> {
    let carrier = backend.carrier().expect("nothing has been read").clone();
    let given_up = carrier.clone();
    backend.mark_sending();
    // A backend that does not read the rest may still answer. A failing client ends the connection.
    let send = move || match sender.send(body, &carrier) {
        Ok(()) => None,
        // A connection with a second owner is not kept: the next request would be read as the rest of this one.
        Err(unsent) => Some((unsent, carrier)),
    };
    let give_up = move || given_up.cancel();
    let (relayed, sent) = while_sending(send, give_up, || relay.run(backend, Vec::new(), &mut *out));
    match (relayed, sent.flatten()) {
        (Err(_), Some((Unsent::Client(error), _))) if BodyError::is_refusal(&error) => {
            if let Some(refused) = BodyError::of(&error).filter(|_| is_call) {
                out.set_trailers(grpc::failure(refused.status()));
            }
            Err(error)
        }
        (relayed, _) => relayed,
    }
}

fn upgrade(
    settings: &Settings,
    backend: BackendResponse,
    protocol: &str,
    fields: FieldLines,
    has_date: bool,
) -> Response {
    let idle = Idle {
        both: settings.options.tunnel_idle,
        half_closed: settings.options.tunnel_half_closed,
    };
    let (carrier, received) = backend
        .into_tunnel()
        .expect("only a connection of HTTP/1.1 changes the protocol");
    let mut response = Response::upgrade_dormant(protocol, Box::new(ToBackend::new(carrier, received, idle)));
    response.fields = fields;
    response.has_date = has_date;
    response
}
