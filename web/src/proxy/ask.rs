//! One GET to a backend by this server itself, with the whole response in memory.
//!
//! A policy for authentication asks a backend about a request, which waits for the answer. So time and size are bounded.

use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use http::StatusCode;
use osier::Cancelled;
use osier_http::{FieldLines, Limits, Method, Reply, ReplyLength};

use super::backend_response::{BackendResponse, NoHead};
use super::client_response::passing;
use super::forwarded;
use super::sender::Progress;
use crate::Address;
use crate::upstream::affinity::Affinity;
use crate::upstream::attempt::{Failed, Unanswered};
use crate::upstream::carrier::Carrier;
use crate::upstream::{Unavailable, Upstream};

/// Extra time before the exchange is cut. Read timeouts alone do not end a response that drips in.
const GRACE: Duration = Duration::from_secs(1);

/// The bounds of one question.
pub(crate) struct Bounds {
    /// Time from the question to the end of the response.
    pub(crate) time: Duration,
    pub(crate) head_bytes: usize,
    pub(crate) body_bytes: usize,
}

/// The response of a backend.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// The fields without the hop-by-hop ones.
    pub(crate) fields: FieldLines,
    pub(crate) body: Vec<u8>,
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum Silence {
    Unavailable(Unavailable),
    /// The label of the backend, and its failure.
    Broken(String, String),
    TooLate(Duration),
    Cancelled(io::Error),
}

impl Silence {
    /// The status of a gateway's response: 502, 503 or 504.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Silence::Unavailable(unavailable) => unavailable.status(),
            Silence::Broken(..) | Silence::Cancelled(_) => StatusCode::BAD_GATEWAY,
            Silence::TooLate(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::Unavailable(unavailable) => unavailable.fmt(f),
            Silence::Broken(backend, why) => write!(f, "backend {backend} {why}"),
            Silence::TooLate(limit) => write!(f, "no answer within {limit:?}"),
            Silence::Cancelled(error) => error.fmt(f),
        }
    }
}

/// Sends `head`, a whole request without a body, and reads the response. The body of a response that `needs_body` rejects is not read
/// if it is long.
///
/// # Suspends
///
/// Always, for the time in `bounds` and a second at most.
pub(crate) fn get(
    upstream: &Upstream,
    bounds: &Bounds,
    needs_body: &dyn Fn(StatusCode) -> bool,
    head: &dyn Fn(&Address) -> Vec<u8>,
) -> Result<Answer, Silence> {
    let deadline = osier::time::now() + bounds.time;
    let exchange = || {
        upstream.attempt_http(Affinity::default(), false, |carrier| {
            attempt(carrier, bounds, deadline, needs_body, head)
        })
    };
    match osier::timeout(bounds.time + GRACE, exchange) {
        Ok(Ok((answer, _))) => Ok(answer),
        Ok(Err(Unanswered::Unavailable(Unavailable::Cancelled(error)))) => Err(Silence::Cancelled(error)),
        Ok(Err(Unanswered::Unavailable(unavailable))) => Err(Silence::Unavailable(unavailable)),
        Ok(Err(Unanswered::Failed(silence))) => Err(silence),
        Err(_) => Err(Silence::TooLate(bounds.time)),
    }
}

fn attempt(
    carrier: Carrier,
    bounds: &Bounds,
    deadline: Instant,
    needs_body: &dyn Fn(StatusCode) -> bool,
    head: &dyn Fn(&Address) -> Vec<u8>,
) -> Result<Answer, Failed<Silence>> {
    let reused = carrier.ticket().is_reused();
    let (head, progress) = (head(carrier.ticket().address()), Rc::new(Progress::default()));
    let outcome = send(&carrier, &head, bounds, deadline);
    if outcome.is_ok() {
        progress.taken.set(head.len() as u64);
        progress.over.set(Some(osier::time::coarse_now()));
    }
    let mut response = BackendResponse::new(carrier, progress);
    let outcome = outcome
        .map_err(|error| Failure::Io { error, begun: false })
        .and_then(|()| read(&mut response, bounds, needs_body));
    let failure = match outcome {
        Ok(answer) => return Ok(answer),
        Err(failure) => failure,
    };
    let is_unprocessed = response.carrier().is_some_and(|carrier| carrier.is_unprocessed());
    let may_repeat = (reused || is_unprocessed) && matches!(failure, Failure::Io { begun: false, .. });
    let label = response.carrier().map_or_else(String::new, |carrier| {
        match failure.is_late() {
            _ if may_repeat || failure.is_cancelled() => {}
            true => carrier.ticket().timed_out(&failure),
            false => carrier.ticket().failed(&failure),
        }
        carrier.ticket().address().to_string()
    });
    let failure = match failure {
        Failure::Io { error, .. } if Cancelled::is(&error) => Silence::Cancelled(error),
        failure if failure.is_late() => Silence::TooLate(bounds.time),
        failure => Silence::Broken(label, failure.to_string()),
    };
    let may_repeat = may_repeat && matches!(failure, Silence::Broken(..));
    Err(Failed { failure, may_repeat })
}

fn send(carrier: &Carrier, head: &[u8], bounds: &Bounds, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(osier::time::now());
    let left = left.clamp(Duration::from_millis(1), bounds.time);
    carrier.set_timeouts(left, left)?;
    match carrier {
        Carrier::Bytes(lease) => {
            let mut transport = lease.transport();
            transport.write_all(head)?;
            transport.flush()
        }
        #[cfg(feature = "h2")]
        Carrier::Stream(stream) => stream.send_head(head, true),
    }
}

enum Failure {
    /// `begun`: a byte of the response had arrived.
    Io {
        error: io::Error,
        begun: bool,
    },
    Malformed(&'static str),
    TooLong(usize),
}

impl Failure {
    fn is_cancelled(&self) -> bool {
        matches!(self, Failure::Io { error, .. } if Cancelled::is(error))
    }

    fn is_late(&self) -> bool {
        matches!(self, Failure::Io { error, .. } if error.kind() == io::ErrorKind::TimedOut)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Io { error, begun: false } => write!(f, "has not answered: {error}"),
            Failure::Io { error, begun: true } => write!(f, "broke off inside its response: {error}"),
            Failure::Malformed(reason) => write!(f, "has sent an invalid response: {reason}"),
            Failure::TooLong(most) => write!(f, "has sent a body of more than {most} bytes"),
        }
    }
}

fn read(
    response: &mut BackendResponse,
    bounds: &Bounds,
    needs_body: &dyn Fn(StatusCode) -> bool,
) -> Result<Answer, Failure> {
    let limits = Limits {
        head_bytes: bounds.head_bytes,
        ..Limits::DEFAULT
    };
    let look = |reply: &Reply<'_>| {
        const UNFIT: &str = "a status or a Connection field that cannot be passed on";
        let status = StatusCode::from_u16(reply.status()).ok();
        let status = status.filter(|status| *status != StatusCode::SWITCHING_PROTOCOLS);
        let status = status.ok_or(UNFIT)?;
        if forwarded::lists_too_many(reply.connection_names_others(), reply.headers()) {
            return Err(UNFIT);
        }
        let mut fields = FieldLines::new();
        for (name, value) in passing(reply) {
            // The strict parser accepts only fields that can be written.
            let _ = fields.push(name, value);
        }
        Ok((status, fields, reply.body()))
    };
    let found = response.read_head(&limits, Method::Get, false, |_| {}, look);
    let (status, fields, length) = found.map_err(|reason| match reason {
        NoHead::Broken { error, begun } => Failure::Io { error, begun },
        NoHead::TooEarly => Failure::Malformed("it came before the request"),
        NoHead::Malformed(reason) => Failure::Malformed(reason),
        NoHead::Silent => Failure::Io {
            error: io::ErrorKind::TimedOut.into(),
            begun: false,
        },
    })?;
    if let Some(carrier) = response.carrier() {
        carrier.ticket().answered();
    }
    let mut body = Vec::new();
    let is_short = match length {
        ReplyLength::None => true,
        ReplyLength::Known(length) => length <= bounds.body_bytes as u64,
        _ => false,
    };
    if is_short || needs_body(status) {
        read_body(response, bounds.body_bytes, &mut body)?;
    }
    Ok(Answer { status, fields, body })
}

fn read_body(response: &mut BackendResponse, most: usize, body: &mut Vec<u8>) -> Result<(), Failure> {
    let begun = |error| Failure::Io { error, begun: true };
    let mut is_whole = response.take_received(body).map_err(begun)?;
    while !is_whole && body.len() <= most {
        let filled = body.len();
        body.resize(filled + PIECE, 0);
        let count = response.read(&mut body[filled..]).map_err(begun)?;
        body.truncate(filled + count);
        is_whole = count == 0;
    }
    match body.len() > most {
        true => Err(Failure::TooLong(most)),
        false => Ok(()),
    }
}

/// The most bytes of a body that are read at once.
const PIECE: usize = 4 << 10;
