//! A response whose body has paused, as a burst leaves it and goes on with it.
//!
//! The burst that has sent the first part leaves a [`PausedResponse`] to the connection, with all that the answer still needs apart from
//! the request's head. The connection keeps the bytes of the head, and the next burst parses them for the log and for the observer.

use std::any::Any;
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

#[cfg(feature = "h2")]
use http::Extensions;
use http::StatusCode;
use osier::fiber::{RequestWords, describe_request, waits_for};
use osier_http::{Head, Sent, Slots, Transfer};

use crate::conn::close::CloseReason;
use crate::conn::output::{PausedCode, Producer};
use crate::conn::paused::{Paused, Unfinished};
use crate::conn::peer::SLOW_AFTER;
#[cfg(feature = "fibers")]
use crate::conn::resting::AtRest;
use crate::conn::serve::{After, Input};
use crate::conn::server_state::ServerState;
use crate::request::Marks;
use crate::server::burst::{App, Burst};
use crate::server::served::Client;
#[cfg(all(feature = "h2", any(feature = "fastcgi", feature = "proxy")))]
use crate::server::uploading::Uploading;
#[cfg(feature = "proxy")]
use crate::server::waiting::Unbegun;

/// A body that has paused for a shorter time is busy: it does not pause again at once.
const BUSY: Duration = Duration::from_millis(100);

/// A response whose head has been written.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) sent: Sent,
    pub(crate) status: StatusCode,
    /// The length of the body, if it was announced.
    pub(crate) len: Option<u64>,
    /// Whether the body has paused and is a stream of events, which may be silent for ever.
    #[cfg(feature = "fibers")]
    pub(crate) is_event_stream: bool,
}

pub(crate) struct PausedResponse {
    body: Body,
    begun: Begun,
    /// The bytes of the body that have been passed on.
    passed: u64,
    since: Instant,
    marks: Marks,
    #[cfg(feature = "fibers")]
    at_rest: AtRest,
    client: (SocketAddr, bool),
    server: Arc<ServerState>,
    /// `None` without an observer.
    app: Option<Arc<App>>,
}

/// The rest of a body.
enum Body {
    Waits(PausedCode),
    GoesOn(Producer),
}

impl Unfinished for PausedResponse {
    fn has_begun(&self) -> bool {
        true
    }

    fn is_ready(&self) -> bool {
        matches!(self.body, Body::GoesOn(_))
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Body::Waits(paused) = &mut self.body {
            self.body = Body::GoesOn(ready!(paused.code.as_mut().poll(cx)));
        }
        Poll::Ready(())
    }

    fn report(&self, head: &[u8]) {
        let Some(app) = &self.app else { return };
        let mut slots: Slots = Slots::new();
        // It was read once before.
        let head = Head::parse(head, &mut slots, &self.server.limits).ok();
        self.tell(app, head.as_ref());
    }

    #[cfg(feature = "h2")]
    fn report_stream(&self, head: &Head<'_>) {
        if let Some(app) = &self.app {
            self.tell(app, Some(head));
        }
    }
}

impl PausedResponse {
    /// The response that a burst has left.
    fn left(response: Box<dyn Any>) -> PausedResponse {
        let response = response.downcast();
        *response.unwrap_or_else(|_| unreachable!("no burst leaves another type"))
    }

    fn tell(&self, app: &App, head: Option<&Head<'_>>) {
        let client = Client::Known(self.client.0, self.client.1);
        let status = self.begun.status.as_u16();
        app.report(client, &self.marks, (head, None), status, self.passed);
    }
}

impl Burst<'_> {
    /// Leaves the rest of a response to the connection.
    #[cold]
    pub(crate) fn pause(&self, head: &Head<'_>, begun: Begun, passed: u64, paused: PausedCode) -> Box<Paused> {
        let waits_for = paused.waits_for;
        self.leave_fiber(head, waits_for);
        Box::new(Paused::new(PausedResponse {
            body: Body::Waits(paused),
            begun,
            passed,
            since: osier::time::coarse_now(),
            marks: self.marks.clone(),
            #[cfg(feature = "fibers")]
            at_rest: match begun.is_event_stream {
                true => AtRest::default(),
                false => self.list_at_rest(head, waits_for),
            },
            client: Client::of(self.peer, &self.marks).address(),
            server: self.peer.worker.server.clone(),
            app: self.app.observing(),
        }))
    }

    /// Goes on with a response that has paused, and then serves the requests behind it. A response that has not begun is that of the first
    /// request in `input`.
    ///
    /// # Suspends
    ///
    /// As the code of the body or the handler does, and as [`run`](Burst::run) does.
    pub(crate) fn go_on(&self, mut paused: Paused, input: &mut Input) -> After {
        let response: Box<dyn Any> = paused.response.take().expect("only one burst takes it");
        #[cfg(feature = "proxy")]
        let response = match response.downcast::<Unbegun>() {
            Ok(unbegun) => {
                self.received.set(Some(unbegun.resume(paused.may_pause)));
                drop(paused);
                return self.run(input);
            }
            Err(begun) => begun,
        };
        let mut slots: Slots = Slots::new();
        let bytes = std::mem::take(&mut paused.head);
        let Ok(head) = Head::parse(&bytes, &mut slots, &self.peer.worker.server.limits) else {
            unreachable!("it was read once before")
        };
        let may_pause = paused.may_pause;
        match self.finish(&head, response, may_pause) {
            Ok(true) => {
                // The values of this request must not count with the next one.
                drop(paused);
                self.run(input)
            }
            Ok(false) if input.start == input.end && (!head.keep_alive() || self.peer.closes_after_response()) => {
                After::End(CloseReason::LastResponse)
            }
            Ok(false) => After::Linger(CloseReason::LastResponse),
            Err(After::Pause(mut again)) => {
                (again.head, again.may_pause) = (bytes, may_pause);
                again.extensions = std::mem::take(&mut paused.extensions);
                After::Pause(again)
            }
            Err(After::Send(mut unsent)) => {
                unsent.head = bytes;
                unsent.extensions = std::mem::take(&mut paused.extensions);
                After::Send(unsent)
            }
            Err(after) => after,
        }
    }

    /// Goes on with a response of a stream that has paused, whose request holds `held`.
    ///
    /// # Suspends
    ///
    /// As the code of the body or the handler does.
    #[cfg(feature = "h2")]
    pub(crate) fn go_on_stream(
        &self,
        head: &Head<'_>,
        response: Box<dyn Unfinished>,
        held: &mut Extensions,
    ) -> Option<After> {
        let response: Box<dyn Any> = response;
        #[cfg(any(feature = "fastcgi", feature = "proxy"))]
        let response = match response.downcast::<Uploading>() {
            Ok(uploading) => {
                self.received.set(Some(uploading.resume()));
                return self.run_stream(head);
            }
            Err(other) => other,
        };
        #[cfg(feature = "proxy")]
        let response = match response.downcast::<Unbegun>() {
            Ok(unbegun) => {
                self.received.set(Some(unbegun.resume(true)));
                return self.run_stream(head);
            }
            Err(begun) => begun,
        };
        let mut after = self.finish(head, response, true).err();
        if let Some(After::Pause(again)) = &mut after {
            again.extensions = std::mem::take(held);
        }
        after
    }

    /// Goes on with a response that has paused. It may pause again, if `may_pause` is set. Returns whether the connection may be kept.
    ///
    /// # Suspends
    ///
    /// As the code of the body does.
    fn finish(&self, head: &Head<'_>, response: Box<dyn Any>, may_pause: bool) -> Result<bool, After> {
        let response = PausedResponse::left(response);
        let (method, target) = head.line();
        let words = RequestWords {
            method,
            target,
            route: &"",
            peer: self.peer.packed_addr(),
        };
        let done = describe_request(&words, || self.send_rest(head, response, may_pause));
        self.end_watch(head, matches!(done, Err(After::Pause(_))));
        self.marks.timing.end();
        if done.is_ok() {
            self.restore_pace();
        }
        done
    }

    fn send_rest(&self, head: &Head<'_>, response: PausedResponse, may_pause: bool) -> Result<bool, After> {
        let PausedResponse {
            body,
            begun,
            marks,
            passed,
            since,
            #[cfg(feature = "fibers")]
            at_rest,
            ..
        } = response;
        #[cfg(feature = "fibers")]
        drop(at_rest);
        self.marks.set(&marks);
        self.marks.slow.enter_fiber();
        self.suspended.set(true);
        // An event of many clients should not take a stack for each at once.
        let patience = match osier::time::coarse_now().saturating_duration_since(since) < BUSY {
            true => SLOW_AFTER,
            false => Duration::ZERO,
        };
        self.output.let_leave(true, may_pause.then_some(patience));
        let (passed, mut body) = (Cell::new(passed), Some(body));
        let form = (begun.sent.transfer == Transfer::Chunked, begun.len);
        let mut send = || {
            let code = match body.take().expect("called once") {
                Body::GoesOn(code) => code,
                // The client has sent too much.
                Body::Waits(paused) => waits_for(paused.waits_for, || osier::block_on(paused.code)),
            };
            self.output.produce(code, form, &passed)
        };
        let done = self.catch(head, || self.send_while_connected(&mut send));
        self.conclude(head, begun, passed.get(), done, None, None)
    }
}
