//! A request whose handler waits for the body: the connection receives the body without a stack.
//!
//! ```text
//!   burst ─▶ handler: "call me again with the body"
//!               │ the body has not arrived as a whole
//!               ▼
//!            Awaiting ─▶ Stage::Awaiting ◀─▶ dormant until bytes arrive; each burst adds them to the spool
//!                              │ the body is there, or will not come
//!                              └─▶ a burst that begins with this request
//! ```

use std::any::Any;
use std::time::{Duration, Instant};

use osier::dormant::{AfterBurst, Cause};

use crate::conn::peer::Peer;
use crate::conn::rates::{Rates, Span};
use crate::conn::rest::Report;
use crate::conn::{Conn, First, Stage, after};

/// The bytes of a body that have come since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(any(feature = "fastcgi", feature = "proxy")),
    allow(dead_code, reason = "only gateways receive bodies first")
)]
pub(crate) enum Arrived {
    Nothing,
    Some,
    /// Its end, or an error. The handler gets either.
    All,
}

/// The state of a request that waits for its body.
pub(crate) trait Receiving: Any {
    /// Adds the bytes that have arrived.
    ///
    /// # Suspends
    ///
    /// While a file is written.
    fn read_on(&mut self, client: Peer<'_>) -> Arrived;

    /// The bytes of the body that have arrived.
    fn received(&self) -> u64;

    /// Ends the body with an error: too few bytes have arrived in time.
    fn time_out(&mut self);

    /// The received bytes behind the body.
    fn unread(&self) -> &[u8];
}

/// A request that waits for its body. Its drop reports a request whose client has left.
pub(crate) struct Awaiting {
    /// The head of the request, which the last burst parses again.
    pub(crate) head: Box<[u8]>,
    /// `None` once the last burst has taken it.
    pub(crate) request: Option<Box<dyn Receiving>>,
    /// Called if the body never comes, if there is an observer.
    pub(crate) report: Option<Report>,
    pub(crate) pace: Span,
    /// Since when the connection rests.
    pub(crate) since: Instant,
    /// Whether the body may come at any rate.
    pub(crate) may_be_slow: bool,
}

impl Awaiting {
    /// Begins a rest. Returns whether the client was slower than its rate before it.
    pub(crate) fn is_too_slow(&mut self, rates: &Rates, timeout: Duration) -> bool {
        self.since = osier::time::coarse_now();
        self.pace.is_too_slow(rates, timeout) && !self.may_be_slow
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        if let (Some(_), Some(report)) = (&self.request, self.report.take()) {
            report(&self.head, 0);
        }
    }
}

impl Conn {
    /// Rests until bytes of a request's body arrive. The connection stays busy: a drain waits for the response.
    pub(super) fn rest_until_received(&mut self, mut awaiting: Box<Awaiting>) -> AfterBurst {
        let server = &self.link.worker.server;
        if awaiting.is_too_slow(&server.rates, server.timeouts.body) {
            return self.receive_on(awaiting, None, Cause::Deadline);
        }
        let deadline = after(server.timeouts.body);
        self.set_stage(Stage::Awaiting(awaiting, deadline));
        AfterBurst::Sleep(deadline)
    }

    /// Receives more of a request's body, and serves the request once there is no more to come.
    pub(super) fn receive_on(
        &mut self,
        mut awaiting: Box<Awaiting>,
        deadline: Option<Instant>,
        cause: Cause,
    ) -> AfterBurst {
        let client = (&*self.link).into();
        awaiting.pace.waited(awaiting.since);
        let request = awaiting.request.as_mut().expect("only the last burst takes it");
        let before = request.received();
        let arrived = match cause {
            Cause::Deadline => {
                request.time_out();
                Arrived::All
            }
            _ => request.read_on(client),
        };
        awaiting.pace.received(request.received() - before);
        match arrived {
            Arrived::Some => return self.rest_until_received(awaiting),
            Arrived::Nothing => {
                awaiting.since = osier::time::coarse_now();
                self.set_stage(Stage::Awaiting(awaiting, deadline));
                return AfterBurst::Sleep(deadline);
            }
            Arrived::All => {}
        }
        let unread = request.unread().to_vec();
        let request = awaiting.request.take().expect("only the last burst takes it");
        self.burst_on([&awaiting.head, &unread], First::Received(request))
    }
}
