//! The part of a burst for a handler that wants the whole body of its request first.

use std::mem;

use osier::fiber::Activity;
use osier_http::Head;

use crate::Request;
#[cfg(feature = "h2")]
use crate::body::spool::Failed;
use crate::body::spool::Spool;
use crate::conn::awaiting::Awaiting;
#[cfg(feature = "h2")]
use crate::conn::peer::Gone;
use crate::conn::rates::Span;
use crate::conn::serve::After;
use crate::router::answer::{AfterBody, Answer, Kind};
use crate::server::burst::Burst;
use crate::server::received::{Held, Received};
use crate::server::served::CLIENT_GONE;

impl Burst<'_> {
    /// Takes what the request holds, which goes on without a fiber. The client has sent `head`, which the handler may have changed.
    pub(crate) fn hold(&self, (head, request): (&Head<'_>, &mut Request<'_>), waits_for: Activity) -> Held {
        self.leave_fiber(head, waits_for);
        Held {
            body: request.body.pause(),
            marks: self.marks.clone(),
            extensions: mem::take(&mut request.extensions),
            changes: request.changes.made(),
            #[cfg(feature = "fibers")]
            at_rest: self.list_at_rest(head, waits_for),
        }
    }

    /// Replaces an answer that waits by a response. Leaves the request to the connection, or to its stream, if it `may_rest`.
    ///
    /// # Suspends
    ///
    /// As the handler does. If the request may not rest, until what it waits for is there.
    #[cold]
    #[inline(never)]
    pub(crate) fn wait_for(
        &self,
        (head, request): (&Head<'_>, &mut Request<'_>),
        answer: &mut Option<Answer>,
        may_rest: bool,
    ) -> Result<(), After> {
        *answer = self.wait_for_body((head, request), answer.take(), may_rest)?;
        #[cfg(feature = "proxy")]
        {
            *answer = self.wait_for_code((head, request), answer.take(), may_rest)?;
        }
        Ok(())
    }

    /// The way in which a request waits for its body. A stream waits as for a response: its request ends with the client.
    fn place(&self, request: &Request<'_>, may_rest: bool) -> Place {
        if !may_rest {
            return Place::Here;
        }
        if self.peer.transport().is_some() {
            return Place::Connection;
        }
        #[cfg(feature = "h2")]
        if self.peer.is_stream() && request.gone == Gone::Default && self.output.may_rest() {
            return Place::Stream;
        }
        let _ = request;
        Place::Here
    }

    /// Calls the function that makes the response from the body of the request, if the body has arrived. Leaves the request to the
    /// connection or its stream otherwise, or receives the body here if the request may not rest.
    ///
    /// # Suspends
    ///
    /// Where the function does, and while a file is written. Until the body has arrived, if the request may not rest.
    fn wait_for_body(
        &self,
        (head, request): (&Head<'_>, &mut Request<'_>),
        answer: Option<Answer>,
        may_rest: bool,
    ) -> Result<Option<Answer>, After> {
        let Some(Answer(Kind::AfterBody(AfterBody { limits, then, begun }))) = answer else {
            return Ok(answer);
        };
        let mut spool = begun.map_or_else(Spool::default, |spool| *spool);
        let place = self.place(request, may_rest);
        let arrived = match place {
            Place::Here => spool.go_on(&mut request.body, &limits).map(|()| true),
            _ => spool.read_arrived(&mut request.body, &limits),
        };
        let body = match arrived {
            Ok(true) => Ok(spool),
            Err(failed) => Err(failed),
            #[cfg(feature = "h2")]
            Ok(false) if place == Place::Stream && request.body.is_too_slow() => {
                Err(Failed::Client(request.body.time_out()))
            }
            Ok(false) => {
                let received = Received {
                    held: self.hold((head, request), Activity::Client),
                    spool,
                    is_whole: false,
                    failed: None,
                    limits,
                    then,
                };
                #[cfg(feature = "h2")]
                if place == Place::Stream {
                    return Err(self.rest_on_stream(received));
                }
                return Err(After::Receive(Box::new(Awaiting {
                    head: Box::default(),
                    request: Some(Box::new(received)),
                    report: self.report_later(CLIENT_GONE, 0),
                    pace: Span::NOTHING,
                    since: osier::time::coarse_now(),
                    may_be_slow: request.body.may_be_slow(),
                })));
            }
        };
        let mut answer = None;
        let _ = self.catch(head, || answer = Some(then(request, body)));
        Ok(answer)
    }
}

/// Where a request waits for its body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// This fiber.
    Here,
    Connection,
    #[cfg(feature = "h2")]
    Stream,
}
