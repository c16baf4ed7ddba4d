//! The second half of a burst: it writes a response to the output. It also makes the responses that
//! no handler gives.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::mem;

use http::{Extensions, StatusCode};
use osier::Cancelled;
use osier::fiber::Activity;
use osier::io::HalfClose;
use osier_http::{Exchange, Head, HeadWriter, Reject, ResponseBody, Sent, Slots, Transfer, write_reject};

use crate::body::incoming::BodyError;
use crate::body::outgoing::Kind;
use crate::conn::close::CloseReason;
use crate::conn::log::Causes;
use crate::conn::log::record::{Level, Reason, Record};
use crate::conn::output::Mark;
use crate::conn::peer::SLOW_AFTER;
use crate::conn::rest::{Report, Unsent};
use crate::conn::serve::After;
use crate::conn::transport::Transport;
use crate::conn::upgrade::Takeover;
use crate::conn::worker::Link;
use crate::response::broken::Broken;
use crate::server::burst::{Burst, DRAIN_BYTES, Panicked};
use crate::server::paused::Begun;
use crate::server::served::{CLIENT_GONE, Client};
use crate::{RequestBody, Response};

impl Burst<'_> {
    /// Writes head and body to the output. Returns whether the connection may be kept, or as an
    /// error its next step without lingering.
    #[inline]
    pub(crate) fn answer(
        &self,
        response: &mut Response,
        head: &Head<'_>,
        body: &mut RequestBody<'_>,
    ) -> Result<bool, After> {
        if matches!(response.body.kind, Kind::Upgrade(..) | Kind::Duplex(_))
            && let Some(done) = self.answer_in_person(response, head, body)
        {
            return done;
        }
        let can_go_on = body.is_drainable(DRAIN_BYTES);
        let is_sendable = response.cause.is_none() && response.status.as_u16() >= 200;
        if !is_sendable && !self.complain(response, head, body) {
            self.observe(Some(head), CLIENT_GONE, 0);
            return Err(After::Gone);
        }
        let closing = !can_go_on || response.close || self.peer.closes_after_response();
        let exchange = if closing {
            head.exchange().closing()
        } else {
            head.exchange()
        };
        if response.body.kind.is_slow() {
            let patience = response.ends_with_client.then_some(SLOW_AFTER);
            self.output.let_leave(body.is_done(), patience);
            return self.answer_slowly(response, head, exchange, None);
        }
        let sent = self.write_head(response, exchange);
        // The client does not take the body. The head may have been sent, so no error response is possible.
        let bytes = self.output.send(&mut response.body, sent);
        let count = bytes.as_ref().map_or_else(|_| self.output.cut(), |bytes| *bytes);
        self.observe(Some(head), response.status.as_u16(), count);
        bytes
            .map(|_| sent.keep_alive)
            .map_err(|_| After::End(CloseReason::Failed))
    }

    /// Sends a response that needs the connection itself: an upgrade, or a body that is produced
    /// while the body of the request is still being read. `None` if that is impossible. `response`
    /// is then an error response.
    #[cold]
    fn answer_in_person(
        &self,
        response: &mut Response,
        head: &Head<'_>,
        body: &mut RequestBody<'_>,
    ) -> Option<Result<bool, After>> {
        if matches!(response.body.kind, Kind::Duplex(_)) {
            if response.cause.is_some() || response.status.as_u16() < 200 {
                return None;
            }
            body.welcome();
            let exchange = match response.close || self.peer.closes_after_response() {
                true => head.exchange().closing(),
                false => head.exchange(),
            };
            return Some(self.answer_slowly(response, head, exchange, Some(body)));
        }
        let asked = match head.version() {
            osier_http::Version::Http11 => asks_for_upgrade(head),
            // An extended CONNECT (RFC 8441).
            osier_http::Version::Http2 => head.upgrade().is_some(),
            osier_http::Version::Http10 => false,
        };
        if response.status != StatusCode::SWITCHING_PROTOCOLS || !asked || !body.is_done() {
            *response = Response::internal_error("an upgrade for a request that has not asked for one, or has a body");
            return None;
        }
        let Kind::Upgrade(protocol, mut takeover) = mem::take(&mut response.body).kind else {
            unreachable!("the caller has looked")
        };
        let mut state = self.output.state();
        let mut out = HeadWriter::begin(&mut state.buffer, 101, head.exchange()).expect("101 has three digits");
        out.upgrade(protocol.as_bytes())
            .expect("checked when the response was made");
        out.lines(&response.fields);
        out.finish(ResponseBody::Stream);
        drop(state);
        self.observe_upgrade(head, &mut takeover);
        Some(Err(After::Taken(takeover, Extensions::new())))
    }

    /// Sends a body that code produces while it is being sent. If the code fails before anything
    /// has been sent, the client gets a 500, or the status that a gateway's error names. If it
    /// fails later, the connection ends.
    fn answer_slowly(
        &self,
        response: &mut Response,
        head: &Head<'_>,
        exchange: Exchange,
        mut from: Option<&mut RequestBody<'_>>,
    ) -> Result<bool, After> {
        if self.marks.slow.due().is_some() && response.is_event_stream() {
            self.marks.slow.end(); // it lasts as long as its client stays
        }
        let mark = self.output.mark();
        let begun = Begun {
            sent: self.write_head(response, exchange),
            status: response.status,
            len: response.body.len(),
            #[cfg(feature = "fibers")]
            is_event_stream: response.is_event_stream(),
        };
        let passed = Cell::new(0);
        let body = &mut response.body;
        let mut send = || {
            self.output
                .send_slowly(mem::take(body), begun.sent, from.as_deref_mut(), &passed)
        };
        let done = self.catch(head, || match response.ends_with_client {
            true => self.send_while_connected(&mut send),
            false => send(),
        });
        self.conclude(head, begun, passed.get(), done, Some((mark, exchange)), from.as_deref())
    }

    /// Sends the body of a response, and cancels that when the client leaves.
    ///
    /// # Suspends
    ///
    /// As `send` does.
    pub(crate) fn send_while_connected(&self, send: &mut dyn FnMut() -> io::Result<u64>) -> io::Result<u64> {
        let sent = self.peer.while_connected(HalfClose::IsGone, send);
        sent.unwrap_or_else(|_| Err(Cancelled.into()))
    }

    /// Ends a response whose code has ended, or has paused. `passed` is the number of bytes that it has passed on before it failed. With
    /// `before`, the place of its head, a response that has failed may still become another one.
    pub(crate) fn conclude(
        &self,
        head: &Head<'_>,
        begun: Begun,
        passed: u64,
        done: Result<io::Result<u64>, Panicked>,
        before: Option<(Mark, Exchange)>,
        from: Option<&RequestBody<'_>>,
    ) -> Result<bool, After> {
        let Begun { sent, mut status, .. } = begun;
        let (bytes, kept) = match done {
            Ok(Ok(bytes)) => (bytes, Ok(sent.keep_alive)),
            Ok(Err(error)) if self.output.is_broken() || Cancelled::is_cause_of(&error) => {
                (passed + self.output.cut(), Err(After::Gone))
            }
            failed => {
                let mut instead = None;
                if let Ok(Err(error)) = failed {
                    let refused = BodyError::of(&error).zip(from);
                    if let Some((BodyError::Refused(reject), body)) = refused {
                        instead = Some(Response::plain(BodyError::Refused(reject).status()));
                        self.log_refused_body(head, body, reject);
                    } else {
                        instead = Broken::status_of(&error).map(Response::plain);
                        let (method, target) = (head.method(), head.target());
                        self.log(
                            Level::Error,
                            Some(head),
                            format_args!("the response body of {method} {target} failed: {}", Causes(&error)),
                        );
                    }
                }
                if self.ends_with_trailer(sent.transfer) {
                    (passed, Ok(false))
                } else if let Some((mark, exchange)) = before
                    && self.output.take_back(mark)
                {
                    let mut response = instead.unwrap_or_else(|| Response::plain(StatusCode::INTERNAL_SERVER_ERROR));
                    status = response.status;
                    let sent = self.write_head(&response, exchange.closing());
                    (self.output.send(&mut response.body, sent).unwrap_or(0), Ok(false))
                } else {
                    self.reset_if_end_is_framing(sent.transfer);
                    (passed + self.output.cut(), Err(After::End(CloseReason::Failed)))
                }
            }
        };
        if let Some(paused) = self.output.take_paused() {
            return match kept {
                Ok(_) => Err(After::Pause(self.pause(head, begun, bytes, paused))),
                // The client has left in the last moment.
                Err(after) => {
                    self.observe(Some(head), status.as_u16(), bytes);
                    Err(after)
                }
            };
        }
        if let Some(rest) = self.output.take_rest() {
            self.marks.timing.leave_fiber(Activity::Writing);
            let unsent = Unsent {
                rest,
                head: Box::default(),
                report: self.report_later(status.as_u16(), bytes),
                keep_alive: sent.keep_alive,
                keep_alive_asked: head.keep_alive(),
                extensions: Extensions::new(),
            };
            return Err(After::Send(Box::new(unsent)));
        }
        self.observe(Some(head), status.as_u16(), bytes);
        kept
    }

    /// Makes the close a reset where only that tells the client that the body is cut. TLS ends without its last word.
    fn reset_if_end_is_framing(&self, transfer: Transfer) {
        let socket = self.peer.transport().and_then(Transport::plain);
        if let (Transfer::UntilClose, Some(socket)) = (transfer, socket) {
            // Bytes that are sent last, with an end, would come before the reset.
            self.output.state().buffer.clear();
            Link::abandon(socket);
        }
    }

    /// Ends a body that has failed, if its trailer says so and can be sent. Returns whether it is ended.
    fn ends_with_trailer(&self, transfer: Transfer) -> bool {
        let has_trailer = self.output.has_trailer();
        match transfer {
            Transfer::Chunked if has_trailer => self.output.end_chunks(),
            // The end of the stream has the trailer.
            Transfer::UntilClose if has_trailer && self.peer.transport().is_none() => {}
            _ => return false,
        }
        !self.output.is_broken()
    }

    /// Returns the report of a response that the connection finishes without a burst.
    pub(crate) fn report_later(&self, status: u16, bytes: u64) -> Option<Report> {
        let app = self.app.observing()?;
        let (client, is_proxied) = Client::of(self.peer, &self.marks).address();
        let (marks, server) = (self.marks.clone(), self.peer.worker.server.clone());
        Some(Box::new(move |head, left| {
            let mut slots: Slots = Slots::new();
            // It was read once before.
            let head = Head::parse(head, &mut slots, &server.limits).ok();
            let client = Client::Known(client, is_proxied);
            let bytes = bytes.saturating_sub(left);
            app.report(client, &marks, (head.as_ref(), None), status, bytes);
        }))
    }

    /// Logs the cause of a response that has one, and replaces a response that cannot be sent by a
    /// 500. Returns `false` if the handler failed because the client is gone: that is no failure of
    /// the application. A mistake of the client is none either.
    #[cold]
    fn complain(&self, response: &mut Response, head: &Head<'_>, body: &RequestBody<'_>) -> bool {
        let status = response.status;
        if status.as_u16() < 200 {
            *response = Response::internal_error(format!("the handler returned {status}, which is not a final status"));
        }
        let Some(cause) = response.cause.take() else {
            return true;
        };
        let (method, target) = (head.method(), head.target());
        let log = |level, text: fmt::Arguments<'_>| self.log(level, Some(head), text);
        // A gRPC client gets such a refusal with the status 200.
        let refusal = cause.downcast_ref().filter(|error| !matches!(error, BodyError::Ended));
        let status = refusal.map_or(response.status, |error| error.status());
        if status.is_client_error() {
            let status = status.as_u16();
            match cause.downcast_ref() {
                Some(BodyError::Refused(reject)) => self.log_refused_body(head, body, *reject),
                Some(BodyError::TimedOut) if self.peer.is_evicted() => log(
                    Level::Info,
                    format_args!(
                        "{method} {target} was refused with {status}: {cause} (near the limit of memory no body is waited for)"
                    ),
                ),
                // The client does not learn which settings.
                Some(BodyError::TimedOut) => log(
                    Level::Info,
                    format_args!(
                        "{method} {target} was refused with {status}: {cause} ('timeouts.body' or 'rates.body')"
                    ),
                ),
                _ => log(
                    Level::Info,
                    format_args!("{method} {target} was refused with {status}: {cause}"),
                ),
            }
            return true;
        }
        if body.has_lost_its_client() || self.output.is_broken() || Cancelled::is_cause_of(&*cause) {
            log(
                Level::Debug,
                format_args!("{method} {target} ended because the client left: {cause}"),
            );
            return false;
        }
        log(
            Level::Error,
            format_args!("{method} {target} failed: {}", Causes(&*cause)),
        );
        true
    }

    /// Logs a line about the current request.
    #[cold]
    pub(crate) fn log(&self, level: Level, head: Option<&Head<'_>>, text: fmt::Arguments<'_>) {
        self.peer.worker.server.log(&self.record(level, head, text));
    }

    /// Logs why HTTP or a limit forbids the body of the current request.
    #[cold]
    fn log_refused_body(&self, head: &Head<'_>, body: &RequestBody<'_>, reject: Reject) {
        let (method, target, status) = (
            head.method(),
            head.target(),
            BodyError::Refused(reject).status().as_u16(),
        );
        let reason = Reason(reject, body.limit_of(reject));
        let text = format_args!("{method} {target} was refused with {status}: {reason}");
        self.log_refused(Some(head), text, reject);
    }

    /// Logs why HTTP or a limit forbids the current request.
    #[cold]
    fn log_refused(&self, head: Option<&Head<'_>>, text: fmt::Arguments<'_>, reject: Reject) {
        let record = self.record(Level::Info, head, text).of_refused(Some(reject));
        self.peer.worker.server.log(&record);
    }

    fn record<'r>(&self, level: Level, head: Option<&'r Head<'_>>, text: fmt::Arguments<'r>) -> Record<'r> {
        let (client, is_proxied) = Client::of(self.peer, &self.marks).address();
        let host = head.and_then(|head| head.host());
        Record::new(level, text)
            .of_client(client, is_proxied)
            .of_request(host, self.marks.id(head))
    }

    #[inline]
    fn write_head(&self, response: &Response, exchange: Exchange) -> Sent {
        let mut state = self.output.state();
        let status = response.status.as_u16();
        let length = response.body.len();
        if !response.has_date {
            let mut date = self.peer.worker.date.borrow_mut();
            if self.suspended.take() {
                date.refresh(osier::time::coarse_now());
            }
            if status == 200
                && response.fields.is_empty()
                && let Some(length) = length
                && let Some(template) = date.template(response.content_type.value())
                && let Some(sent) = template.write(&mut state.buffer, exchange, length)
            {
                return sent;
            }
        }
        let mut head = HeadWriter::begin(&mut state.buffer, status, exchange).expect("a StatusCode has three digits");
        response.content_type.write(&mut head);
        head.lines(&response.fields);
        if !response.has_date {
            head.date(self.peer.worker.date.borrow().line());
        }
        head.finish(length.map_or(ResponseBody::Stream, ResponseBody::Known))
    }

    /// Responds to a request whose head HTTP or a limit forbids. `request` begins with its method.
    #[cold]
    pub(crate) fn refuse_head(&self, reject: Reject, request: &[u8]) -> After {
        self.refuse(reject, None, Exchange::rejected(request))
    }

    /// Responds to a request that HTTP or a limit forbids. The connection cannot be kept, because
    /// the place of the next request is unknown.
    #[cold]
    pub(crate) fn refuse(&self, reject: Reject, head: Option<&Head<'_>>, exchange: Exchange) -> After {
        // They may be those of the request before.
        self.marks.clear();
        self.begin_timing(0);
        let (status, reason) = (reject.status(), Reason::beyond(reject, &self.peer.worker.server.limits));
        match head {
            None => self.log_refused(
                None,
                format_args!("a request was refused with {status}: {reason}"),
                reject,
            ),
            Some(head) => {
                let (method, target) = (head.method(), head.target());
                self.log_refused(
                    Some(head),
                    format_args!("{method} {target} was refused with {status}: {reason}"),
                    reject,
                );
            }
        }
        let bytes = write_reject(
            &mut self.output.state().buffer,
            reject,
            exchange,
            self.peer.worker.date.borrow().line(),
        );
        self.observe(head, reject.status(), bytes as u64);
        self.marks.timing.end();
        After::Linger(CloseReason::ProtocolError)
    }

    /// Responds to a head that did not arrive as a whole in time. It begins with `received`.
    pub(crate) fn head_timed_out(&self, received: &[u8]) -> io::Result<()> {
        self.begin_timing(0);
        self.suspended.set(true);
        self.log(
            Level::Info,
            None,
            format_args!(
                "a request was refused with 408: its head did not arrive in time ('timeouts.header' or 'rates.head')"
            ),
        );
        let mut response = Response::new(StatusCode::REQUEST_TIMEOUT).body("the request did not arrive in time\n");
        let sent = self.write_head(&response, Exchange::rejected(received));
        let bytes = self.output.send(&mut response.body, sent)?;
        self.observe(None, StatusCode::REQUEST_TIMEOUT.as_u16(), bytes);
        self.marks.timing.end();
        self.output.flush()
    }

    /// Calls the observer, if there is one, which may leave a hook for the end of a tunnel.
    fn observe_upgrade(&self, head: &Head<'_>, takeover: &mut Takeover) {
        let Takeover::Rest(session) = takeover else {
            return self.observe(Some(head), 101, 0);
        };
        if self.app.observer.is_some() {
            let (client, hook) = (Client::of(self.peer, &self.marks), Cell::new(None));
            let tunnel = session.is_tunnel().then_some(&hook);
            self.app.report(client, &self.marks, (Some(head), tunnel), 101, 0);
            if let Some(hook) = hook.take() {
                session.at_tunnel_end(hook);
            }
        }
    }

    /// Calls the observer, if there is one.
    #[inline(always)]
    pub(crate) fn observe(&self, head: Option<&Head<'_>>, status: u16, bytes: u64) {
        if self.app.observer.is_some() {
            let client = Client::of(self.peer, &self.marks);
            self.app.report(client, &self.marks, (head, None), status, bytes);
        }
    }
}

/// Whether the request has the Upgrade field and the connection option that makes it hop-by-hop
/// (RFC 9110 section 7.8).
fn asks_for_upgrade(head: &Head<'_>) -> bool {
    let is_upgrade = |option: &[u8]| option.trim_ascii().eq_ignore_ascii_case(b"upgrade");
    let mut connection = head
        .headers()
        .filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
    head.header("upgrade").is_some() && connection.any(|(_, value)| value.split(|&byte| byte == b',').any(is_upgrade))
}
