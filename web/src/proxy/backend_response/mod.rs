//! One response of the backend: its head, then its body, from an HTTP/1.1 connection or an HTTP/2 stream.
//!
//! The response owns its carrier until its end. A fiber that still sends the request shares the carrier.

mod http1;
#[cfg(feature = "h2")]
mod http2;

use std::io::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use osier::Cancelled;
use osier::net::Stream;
use osier_http::{Limits, Method, Reject, Reply};

use super::sender::Progress;
use crate::conn::peer::SLOW_AFTER;
use crate::conn::trailers::Trailers;
use crate::conn::waited::Beginning;
use crate::upstream::carrier::Carrier;
use http1::Http1Response;
#[cfg(feature = "h2")]
use http2::Http2Response;

/// The bytes that the interim responses of one response may have left, in their form of HTTP/1.1. Each that comes restarts the time for the
/// next head, so some backends send one now and then for hours: their number alone says nothing.
struct InterimBytes(usize);

impl InterimBytes {
    /// As many as one head may have.
    fn of(limits: &Limits) -> InterimBytes {
        InterimBytes(limits.head_bytes)
    }

    fn take(&mut self, bytes: usize) -> Result<(), NoHead> {
        self.0 = self
            .0
            .checked_sub(bytes)
            .ok_or(NoHead::Malformed("too many interim responses"))?;
        Ok(())
    }
}

pub(super) enum BackendResponse {
    Http1(Http1Response),
    #[cfg(feature = "h2")]
    Http2(Http2Response),
}

/// The reason why there is no head.
#[derive(Debug)]
pub(super) enum NoHead {
    /// The connection or the stream failed or ended. `begun`: a byte of a response had arrived.
    Broken { error: io::Error, begun: bool },
    /// The first bytes were sent before the backend got the request.
    TooEarly,
    /// The head is not valid HTTP, or cannot be passed on.
    Malformed(&'static str),
    /// Nothing has come for a while. The caller [waits](BackendResponse::head_arrives) in another way, and then reads again.
    Silent,
}

impl From<Reject> for NoHead {
    fn from(reject: Reject) -> NoHead {
        NoHead::Malformed(reject.reason())
    }
}

macro_rules! each {
    ($self:ident, $response:ident => $call:expr) => {
        match $self {
            BackendResponse::Http1($response) => $call,
            #[cfg(feature = "h2")]
            BackendResponse::Http2($response) => $call,
        }
    };
}

impl BackendResponse {
    /// Makes a response of which nothing has been read.
    pub(super) fn new(carrier: Carrier, progress: Rc<Progress>) -> BackendResponse {
        let carrier = Rc::new(carrier);
        match &*carrier {
            Carrier::Bytes(_) => BackendResponse::Http1(Http1Response::new(carrier, progress)),
            #[cfg(feature = "h2")]
            Carrier::Stream(_) => BackendResponse::Http2(Http2Response::new(carrier, progress)),
        }
    }

    /// Notes that the request is still being sent.
    pub(super) fn mark_sending(&mut self) {
        each!(self, response => response.mark_sending());
    }

    /// Notes that the connection cannot serve another request.
    pub(super) fn close_after(&mut self) {
        match self {
            BackendResponse::Http1(response) => response.close_after(),
            #[cfg(feature = "h2")]
            BackendResponse::Http2(_) => {}
        }
    }

    /// The carrier of the request. `None` once the body has been read.
    pub(super) fn carrier(&self) -> Option<&Rc<Carrier>> {
        each!(self, response => response.carrier())
    }

    /// Takes the connection for another protocol, with the bytes received after the head.
    pub(super) fn into_tunnel(self) -> Option<(Rc<Carrier>, Vec<u8>)> {
        if let Some(carrier) = self.carrier() {
            carrier.ticket().begin_tunnel();
        }
        match self {
            BackendResponse::Http1(response) => response.into_tunnel(),
            #[cfg(feature = "h2")]
            BackendResponse::Http2(_) => None,
        }
    }

    /// Reads heads: passes those of interim responses to `interim` and that of the final response to `look`, whose error says
    /// why it cannot be passed on. With `may_stop`, it stops where nothing of a head comes for a while.
    ///
    /// # Suspends
    ///
    /// Until the final head has arrived, or until it stops.
    pub(super) fn read_head<T>(
        &mut self,
        limits: &Limits,
        asked: Method<'_>,
        may_stop: bool,
        interim: impl FnMut(&Reply<'_>),
        look: impl FnOnce(&Reply<'_>) -> Result<T, &'static str>,
    ) -> Result<T, NoHead> {
        each!(self, response => response.read_head(limits, asked, may_stop, interim, look))
    }

    /// Waits without a stack where [`read_head`](BackendResponse::read_head) has stopped, within the read timeout.
    pub(super) async fn head_arrives(&self) -> io::Result<()> {
        each!(self, response => response.wait_async(SLOW_AFTER).await)
    }

    /// Waits until the backend has sent bytes, within the read timeout. Nothing is held meanwhile but received bytes. Returns false if
    /// the wait is stopped.
    ///
    /// # Suspends
    ///
    /// Until then.
    pub(super) fn wait(&mut self, beginning: &mut Beginning<'_>) -> io::Result<bool> {
        let waited = each!(self, response => response.wait(beginning));
        waited.map_err(|error| self.broken_off(error))
    }

    /// Waits as [`wait`](BackendResponse::wait) does, without a stack. The backend has been silent for `waited`.
    pub(super) async fn wait_async(&self, waited: Duration) -> io::Result<()> {
        let waited = each!(self, response => response.wait_async(waited).await);
        waited.map_err(|error| self.broken_off(error))
    }

    /// Appends the received part of the body to `into`. Returns whether that is the whole body.
    pub(super) fn take_received(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        let taken = each!(self, response => response.take_received(into));
        taken.map_err(|error| self.broken_off(error))
    }

    /// Writes received bytes of the body to `out`, over HTTP/1.1 after a read if there are none. Returns their number, which may be 0, or the
    /// error of the write. Call [`wait`](BackendResponse::wait) first, where it [may wait](BackendResponse::may_wait).
    ///
    /// # Suspends
    ///
    /// As a write to `out` does.
    pub(super) fn pass_on(&mut self, out: &mut dyn Write) -> io::Result<io::Result<u64>> {
        let passed = each!(self, response => response.pass_on(out));
        passed.map_err(|error| self.broken_off(error))
    }

    /// Reads bytes of the body. Returns 0 at its end.
    ///
    /// # Suspends
    ///
    /// Until there are bytes.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = each!(self, response => response.read(into));
        read.map_err(|error| self.broken_off(error))
    }

    /// Whether the next `count` bytes on the connection belong to the body, and none has been received.
    pub(super) fn is_plain_for(&self, count: u64) -> bool {
        match self {
            BackendResponse::Http1(response) => response.is_plain_for(count),
            #[cfg(feature = "h2")]
            BackendResponse::Http2(_) => false,
        }
    }

    /// Splices at most `most` bytes of the body to `to`, or fails with `Unsupported`. Bytes that `to` does not take at once are
    /// appended to `rest`. Requires [`is_plain_for`](BackendResponse::is_plain_for) one byte. With `may_stop`, it returns `None` if the
    /// backend sends nothing for a while.
    pub(super) fn splice(
        &mut self,
        to: &Stream,
        most: (usize, bool),
        rest: &mut Vec<u8>,
    ) -> io::Result<Option<io::Result<usize>>> {
        let spliced = match self {
            BackendResponse::Http1(response) => response.splice(to, most, rest),
            #[cfg(feature = "h2")]
            BackendResponse::Http2(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        spliced.map_err(|error| self.broken_off(error))
    }

    /// Counts a failure inside the body against the backend, and says which bound it is.
    #[cold]
    fn broken_off(&self, error: io::Error) -> io::Error {
        let Some(carrier) = self.carrier() else { return error };
        if Cancelled::is(&error) || error.kind() == io::ErrorKind::Unsupported {
            return error;
        }
        // The reader fails then, too.
        if let Some(error) = each!(self, response => response.progress()).given_up.take() {
            return io::Error::new(error.kind(), format!("the rest of its request was given up: {error}"));
        }
        carrier.ticket().broke_off();
        match carrier.read_timeout() {
            // The kernel's own timeout is another one.
            Some(limit) if error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none() => {
                io::Error::new(error.kind(), format!("no byte came for {limit:?} ('timeouts.between')"))
            }
            _ => error,
        }
    }

    /// Whether a read of the body may have to wait for the backend.
    pub(super) fn may_wait(&self) -> bool {
        each!(self, response => response.may_wait())
    }

    /// Takes the trailer of a body that has ended.
    pub(super) fn take_trailers(&mut self) -> Trailers {
        each!(self, response => response.take_trailers())
    }

    /// Whether the body has ended.
    pub(super) fn is_done(&self) -> bool {
        each!(self, response => response.is_done())
    }
}

/// The beginning of a wait that stops, or goes on with less memory.
macro_rules! on_and_on {
    () => {
        on_and_on!(false)
    };
    ($may_stop:expr) => {
        crate::conn::waited::Beginning {
            lasts: crate::conn::peer::SLOW_AFTER,
            goes_on: &mut || {
                osier::fiber::shrink_stack();
                !$may_stop
            },
        }
    };
}
use on_and_on;

/// Receives within the read timeout, which counts from the end of the request.
fn patiently<T>(sending: Option<&Progress>, mut receive: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        let begun = osier::time::now();
        let taken = sending.map(|progress| progress.taken.get());
        match receive() {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => match sending {
                // The request was sent completely during this wait.
                Some(progress) if progress.over.get().is_some_and(|over| over > begun) => {}
                // It is still being sent.
                Some(progress) if progress.over.get().is_none() => {
                    if progress.may_pause.get() && taken == Some(progress.taken.get()) {
                        return Err(error);
                    }
                }
                _ => return Err(error),
            },
            other => return other,
        }
    }
}
