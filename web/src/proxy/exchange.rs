//! One request through the proxy: lease a connection, send the request, read the response's head, and try a second time where
//! that is safe.
//!
//! A backend that has the whole request and sends nothing for a while leaves a [`Silent`] exchange. It waits in a future, so a long poll
//! costs no stack.

use std::borrow::Cow;
use std::io;

use http::{StatusCode, Version};
use osier::Cancelled;
use osier_http::{BodyLength, Reply};

use super::backend_response::{BackendResponse, NoHead};
use super::client_response::{self, Head};
use super::failure::{Failure, Why};
use super::sender::{Sender, Unsent};
use super::{Settings, forwarded, grpc, outgoing};
use crate::upstream::affinity::Affinity;
use crate::upstream::attempt::{Attempted, Failed, Unanswered, is_idempotent, while_sending};
use crate::upstream::carrier::Carrier;
use crate::{IntoResponse, Request, Response};

/// Returns the request target for the backend.
///
/// # Errors
///
/// The response to a request that is not forwarded.
pub(super) fn target<'r>(settings: &Settings, request: &Request<'r>) -> Result<Cow<'r, str>, Response> {
    outgoing::target(settings, request).map_err(|error| bad(error.reason()))
}

fn bad(reason: &'static str) -> Response {
    let response = Response::new(StatusCode::BAD_REQUEST).body(format!("{reason}\n"));
    response.because(reason)
}

/// Returns the sender of the request; `None` if the body has to be received first.
///
/// # Errors
///
/// The response to a request that is not forwarded.
pub(super) fn sender(settings: &Settings, request: &mut Request<'_>) -> Result<Option<Sender>, Response> {
    if forwarded::lists_too_many(request.head.connection_names_others(), request.headers()) {
        return Err(bad("a Connection field that lists too many names"));
    }
    if request.version() == Version::HTTP_2
        && let Some(protocol) = request.head.upgrade()
        && !protocol.eq_ignore_ascii_case(b"websocket")
    {
        // RFC 9220 section 3. No `Upgrade` to a backend of HTTP/1.1 begins these: their streams carry capsules (RFC 9297).
        let response = Response::new(StatusCode::NOT_IMPLEMENTED);
        return Err(response.because("an extended CONNECT with a protocol other than websocket"));
    }
    let mut sender = Sender::of(request);
    if outgoing::is_streamed(settings, request) {
        return Ok(Some(sender));
    }
    let is_here = sender.take_received(&mut request.body);
    let is_here = is_here.map_err(IntoResponse::into_response)?;
    Ok(is_here.then_some(sender))
}

/// The outcome of an attempt that has not failed.
enum Outcome {
    Response(Response),
    /// The backend has the whole request, and has sent nothing for a while.
    Silent(BackendResponse),
}

/// A request that has been forwarded.
pub(super) enum Passed {
    Response(Response),
    Silent(Box<Silent>),
}

/// An exchange whose backend has sent nothing for a while.
pub(super) struct Silent {
    backend: BackendResponse,
    sender: Sender,
    by: Attempted,
    /// Whether a second attempt may follow.
    is_first: bool,
}

impl Silent {
    fn new(backend: BackendResponse, sender: &mut Sender, is_first: bool) -> Option<Silent> {
        let mut sender = std::mem::replace(sender, Sender::new(BodyLength::None));
        sender.shrink();
        let by = backend.carrier()?.ticket().attempt();
        Some(Silent {
            backend,
            sender,
            by,
            is_first,
        })
    }

    /// The memory that it holds of the request, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.sender.bytes()
    }

    /// Waits until the backend has sent bytes, or no longer may.
    pub(super) async fn head_arrives(&self) -> io::Result<()> {
        self.backend.head_arrives().await
    }
}

/// The parts of a request that each attempt needs.
struct Asked<'r> {
    affinity: Affinity,
    is_idempotent: bool,
    /// The protocols that the client may change to.
    upgrade: Option<&'r [u8]>,
}

impl<'r> Asked<'r> {
    fn of(settings: &Settings, request: &Request<'r>) -> Asked<'r> {
        let upgrade = request.head.upgrade();
        Asked {
            affinity: settings.upstream.affinity(request),
            is_idempotent: is_idempotent(request.method()),
            upgrade: upgrade.filter(|list| settings.options.tunnels && !carries_requests(list)),
        }
    }
}

/// Forwards the request with this [`target`]. Returns the response, or an error response.
///
/// # Suspends
///
/// Until there is a connection, and then for not long until the backend responds, if it has the whole request.
pub(super) fn pass(settings: &Settings, request: &mut Request<'_>, target: &str, sender: &mut Sender) -> Passed {
    let asked = Asked::of(settings, request);
    let upstream = &settings.upstream;
    let mut tries = 0;
    let passed = upstream.attempt_http(asked.affinity, asked.upgrade.is_some(), |carrier| {
        tries += 1;
        attempt(settings, request, &asked, target, sender, carrier)
    });
    conclude(settings, request, &asked, passed, (sender, tries == 1))
}

/// Goes on with a request whose backend has been waited for.
///
/// # Suspends
///
/// As [`pass`] does, and while the head arrives.
pub(super) fn go_on(settings: &Settings, request: &mut Request<'_>, silent: Silent, waited: io::Result<()>) -> Passed {
    let asked = Asked::of(settings, request);
    let Silent {
        backend,
        mut sender,
        by,
        mut is_first,
    } = silent;
    let failed = match proceed(settings, request, &asked, &mut sender, backend, waited) {
        Ok(outcome) => {
            let passed = Ok((outcome, by.backend()));
            return conclude(settings, request, &asked, passed, (&mut sender, is_first));
        }
        Err(failed) => failed,
    };
    let passed = match std::mem::take(&mut is_first) {
        true => match target(settings, request) {
            Ok(target) => {
                let upgrades = asked.upgrade.is_some();
                settings
                    .upstream
                    .attempt_http_again(asked.affinity, upgrades, (by, failed), |carrier| {
                        attempt(settings, request, &asked, &target, &mut sender, carrier)
                    })
            }
            Err(response) => return Passed::Response(response),
        },
        false => Err(Unanswered::Failed(failed.failure)),
    };
    conclude(settings, request, &asked, passed, (&mut sender, is_first))
}

/// Makes the response of what the attempts have led to.
fn conclude(
    settings: &Settings,
    request: &Request<'_>,
    asked: &Asked<'_>,
    passed: Result<(Outcome, usize), Unanswered<Failure>>,
    (sender, is_first): (&mut Sender, bool),
) -> Passed {
    let failure = match passed {
        Ok((Outcome::Response(response), backend)) => {
            let is_https = || outgoing::is_https(settings, request);
            let upstream = &settings.upstream;
            return Passed::Response(upstream.stick_by(asked.affinity, backend, is_https, response));
        }
        Ok((Outcome::Silent(backend), number)) => match Silent::new(backend, sender, is_first) {
            Some(silent) => return Passed::Silent(Box::new(silent)),
            None => Failure::Backend(number, Why::TooLate(settings.options.first_byte)),
        },
        Err(Unanswered::Unavailable(unavailable)) => Failure::Unavailable(unavailable),
        Err(Unanswered::Failed(failure)) => failure,
    };
    let failed = failure.answer(settings);
    Passed::Response(match grpc::is_call(request) {
        true => grpc::fail(failed),
        false => failed,
    })
}

/// Whether one of these protocols is HTTP or can hide it. Requests inside such a tunnel would bypass all rules.
fn carries_requests(protocols: &[u8]) -> bool {
    let names = protocols.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    names
        .filter_map(|protocol| protocol.split(|&byte| byte == b'/').next())
        .any(|name| {
            [b"h2c".as_slice(), b"h2", b"http", b"tls"]
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name))
        })
}

/// Whether the request may be sent a second time: the backend has taken no byte of it; or the whole body is here, and the method is
/// idempotent and no byte of a response has arrived, or the backend has declared the request unprocessed.
fn may_repeat(failure: &Failure, sender: &Sender, is_idempotent: bool) -> bool {
    let is_repeatable = is_idempotent && sender.can_restart();
    let Failure::Backend(_, why) = failure else {
        return false;
    };
    match why {
        Why::Unsent(error) if error.kind() == io::ErrorKind::TimedOut => false,
        Why::Unsent(_) => sender.is_untouched() || is_repeatable,
        Why::Broken { begun: false, .. } => is_repeatable,
        Why::Unprocessed(_) => sender.is_untouched() || sender.can_restart(),
        _ => false,
    }
}

fn attempt(
    settings: &Settings,
    request: &mut Request<'_>,
    asked: &Asked<'_>,
    target: &str,
    sender: &mut Sender,
    carrier: Carrier,
) -> Result<Outcome, Failed<Failure>> {
    let address = carrier.ticket().address();
    // An HTTP/2 stream does not leave HTTP.
    let upgrade = asked.upgrade.filter(|_| carrier.lease().is_some());
    if outgoing::write_head(settings, request, target, address, upgrade, &mut sender.head).is_err() {
        // The strict parser accepts only what can be written. A host or prefix of the settings may be invalid.
        let reason = "the proxy's host or prefix cannot be written in a request";
        return Ok(Outcome::Response(Response::internal_error(reason)));
    }
    ask(settings, request, sender, carrier, upgrade).map_err(|failure| failed(failure, sender, asked))
}

/// Notes whether the request may be sent a second time. It is then ready for it.
fn failed(failure: Failure, sender: &mut Sender, asked: &Asked<'_>) -> Failed<Failure> {
    let may_repeat = may_repeat(&failure, sender, asked.is_idempotent);
    if may_repeat {
        sender.restart();
    }
    Failed { failure, may_repeat }
}

fn ask(
    settings: &Settings,
    request: &mut Request<'_>,
    sender: &mut Sender,
    carrier: Carrier,
    upgrade: Option<&[u8]>,
) -> Result<Outcome, Failure> {
    let limit = settings.options.first_byte;
    let set = carrier.set_timeouts(limit, limit);
    set.map_err(|error| of_backend(&carrier, Why::Unsent(error)))?;

    sender.collect(&mut request.body).map_err(Failure::of_client)?;
    let whole = sender
        .send_collected(&carrier)
        .map_err(|unsent| not_sent(&carrier, unsent))?;
    let mut backend = BackendResponse::new(carrier, sender.progress());
    let found = match whole {
        true => read_head(settings, request, &mut backend, upgrade),
        false => send_and_await(settings, request, sender, &mut backend, upgrade)?,
    };
    respond(settings, request, sender, backend, found)
}

/// Reads the head of a response that has been waited for.
fn proceed(
    settings: &Settings,
    request: &mut Request<'_>,
    asked: &Asked<'_>,
    sender: &mut Sender,
    mut backend: BackendResponse,
    waited: io::Result<()>,
) -> Result<Outcome, Failed<Failure>> {
    let is_stream = backend.carrier().is_none_or(|carrier| carrier.lease().is_none());
    let found = match waited {
        Ok(()) => {
            let upgrade = asked.upgrade.filter(|_| !is_stream);
            read_head(settings, request, &mut backend, upgrade)
        }
        Err(error) => Err(NoHead::Broken { error, begun: false }),
    };
    respond(settings, request, sender, backend, found).map_err(|failure| failed(failure, sender, asked))
}

/// Makes the response of this head.
fn respond(
    settings: &Settings,
    request: &mut Request<'_>,
    sender: &mut Sender,
    backend: BackendResponse,
    found: Result<Head, NoHead>,
) -> Result<Outcome, Failure> {
    if matches!(found, Err(NoHead::Silent)) {
        return Ok(Outcome::Silent(backend));
    }
    let carrier = backend.carrier().expect("the response's body has not been read");
    let head = found.map_err(|reason| not_answered(settings, carrier, reason))?;
    carrier.ticket().answered();
    if grpc::is_call(request) {
        // A client that only listens sends nothing while messages come. `between` bounds the silence of both sides from here on.
        request.body.allow_pauses();
        sender.progress().may_pause.set(true);
    }
    client_response::make(settings, request, sender, backend, head).map(Outcome::Response)
}

fn read_head(
    settings: &Settings,
    request: &mut Request<'_>,
    backend: &mut BackendResponse,
    upgrade: Option<&[u8]>,
) -> Result<Head, NoHead> {
    let (asked, output) = (request.head, request.body.output());
    let interim = |reply: &Reply<'_>| client_response::pass_interim(reply, asked, output);
    backend.read_head(&settings.limits, asked.method(), true, interim, |reply| {
        Head::of(reply, upgrade)
    })
}

#[cold]
fn not_sent(carrier: &Carrier, unsent: Unsent) -> Failure {
    match unsent {
        Unsent::Backend(error) if carrier.is_unprocessed() => blame(carrier, Why::Unprocessed(error)),
        Unsent::Backend(error) => blame(carrier, Why::Unsent(error)),
        Unsent::Cancelled(error) | Unsent::Client(error) => Failure::of_client(error),
    }
}

#[cold]
fn not_answered(settings: &Settings, carrier: &Carrier, reason: NoHead) -> Failure {
    let why = match reason {
        NoHead::Broken { error, .. } if Cancelled::is(&error) => return Failure::Cancelled(error),
        NoHead::Broken { error, .. } if error.kind() == io::ErrorKind::TimedOut => {
            Why::TooLate(settings.options.first_byte)
        }
        NoHead::Broken { error, .. } if carrier.is_unprocessed() => Why::Unprocessed(error),
        NoHead::Broken { error, begun } => Why::Broken { error, begun },
        NoHead::TooEarly => {
            let error = io::Error::new(
                io::ErrorKind::InvalidData,
                "it has answered the request before this one twice",
            );
            Why::Broken { error, begun: false }
        }
        NoHead::Malformed(reason) => Why::Malformed(reason),
        NoHead::Silent => Why::TooLate(settings.options.first_byte),
    };
    blame(carrier, why)
}

/// Counts the failure against the backend, and returns it. A reused connection that ends before the response says nothing about the backend, so
/// it is not counted. A request that an HTTP/2 backend has declared unprocessed is not counted either.
fn blame(carrier: &Carrier, why: Why) -> Failure {
    let ticket = carrier.ticket();
    let is_stale = match &why {
        Why::Broken { begun: false, .. } | Why::Unsent(_) => ticket.is_reused(),
        Why::Unprocessed(_) => true,
        _ => false,
    };
    let is_late = match &why {
        Why::TooLate(_) => true,
        Why::Unsent(error) => error.kind() == io::ErrorKind::TimedOut,
        _ => false,
    };
    match is_late {
        _ if is_stale => {}
        true => ticket.timed_out(&why),
        false => ticket.failed(&why),
    }
    of_backend(carrier, why)
}

/// Sends the rest of the request on another fiber while this one waits for the response's head. Stops the other fiber when the
/// head has arrived.
fn send_and_await(
    settings: &Settings,
    request: &mut Request<'_>,
    sender: &mut Sender,
    backend: &mut BackendResponse,
    upgrade: Option<&[u8]>,
) -> Result<Result<Head, NoHead>, Failure> {
    let carrier = backend.carrier().expect("nothing has been read").clone();
    backend.mark_sending();
    request.body.invite().map_err(Failure::of_client)?;
    let (asked, output) = (request.head, request.body.output());
    let body = &mut request.body;
    let (found, sent) = while_sending(
        || sender.send(body, &carrier),
        || carrier.cancel(),
        || {
            let interim = |reply: &Reply<'_>| client_response::pass_interim(reply, asked, output);
            backend.read_head(&settings.limits, asked.method(), false, interim, |reply| {
                Head::of(reply, upgrade)
            })
        },
    );
    match sent {
        Some(Err(Unsent::Client(error))) => Err(Failure::of_client(error)),
        // A backend that does not read the rest may have answered why.
        Some(Ok(()) | Err(Unsent::Backend(_) | Unsent::Cancelled(_))) | None => Ok(found),
    }
}

fn of_backend(carrier: &Carrier, why: Why) -> Failure {
    Failure::Backend(carrier.ticket().backend(), why)
}
