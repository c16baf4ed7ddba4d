//! The part of a burst for a handler that wants the whole body of its request first.

use std::mem;

use osier::fiber::Activity;
use osier_http::Head;

use crate::Request;
use crate::body::spool::Spool;
use crate::conn::awaiting::Awaiting;
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
        }
    }

    /// Replaces an answer that waits by a response. Leaves the request to the connection if it `may_rest`.
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
        let has_connection = self.peer.transport().is_some();
        *answer = self.wait_for_body((head, request), answer.take(), may_rest && has_connection)?;
        #[cfg(feature = "proxy")]
        {
            *answer = self.wait_for_code((head, request), answer.take(), may_rest)?;
        }
        Ok(())
    }

    /// Calls the function that makes the response from the body of the request, if the body has arrived. Leaves the request to the
    /// connection otherwise, or receives the body here if the request may not rest.
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
        let Some(Answer(Kind::AfterBody(AfterBody { limits, then }))) = answer else {
            return Ok(answer);
        };
        let mut spool = Spool::default();
        let arrived = match may_rest {
            true => spool.read_arrived(&mut request.body, &limits),
            false => Spool::fill(&mut request.body, &limits).map(|whole| {
                spool = whole;
                true
            }),
        };
        let body = match arrived {
            Ok(true) => Ok(spool),
            Err(failed) => Err(failed),
            Ok(false) => {
                let received = Received {
                    held: self.hold((head, request), Activity::Client),
                    spool,
                    failed: None,
                    limits,
                    then,
                };
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
