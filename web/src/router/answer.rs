//! The result of a handler: a response, or a function that makes it once something has arrived.
//!
//! A gateway receives a body before it asks a backend, and a client may send its body over minutes. A backend may take as long to
//! respond: a long poll. So the handler returns, and the connection waits without a stack: for the body
//! ([`Awaiting`](crate::conn::awaiting::Awaiting)), or for a future ([`Paused`](crate::conn::paused::Paused)).

#[cfg(feature = "proxy")]
use std::pin::Pin;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
use std::rc::Rc;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
use std::sync::Arc;

#[cfg(feature = "proxy")]
use osier::fiber::{Activity, waits_for};

#[cfg(any(feature = "fastcgi", feature = "proxy"))]
use crate::body::spool::{Failed, Limits, Spool};
#[cfg(feature = "proxy")]
use crate::upstream::client::while_client_stays;
use crate::{Request, Response};

/// The result of a handler that may have to wait for the body of its request, or for a backend.
/// [`Handler::answering`](crate::Handler::answering) takes a function that returns it.
pub struct Answer(pub(crate) Kind);

pub(crate) enum Kind {
    Now(Response),
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    AfterBody(AfterBody),
    #[cfg(feature = "proxy")]
    AfterWait(AfterWait),
}

/// Makes the response to a request from its body.
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) type Then = Box<dyn FnOnce(&mut Request<'_>, Result<Spool, Failed>) -> Answer>;

/// Goes on with a request after a wait.
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) type GoOn = Box<dyn FnOnce(&mut Request<'_>) -> Answer>;

/// A handler that waits for something else than the body of its request, which it has.
#[cfg(feature = "proxy")]
pub(crate) struct AfterWait {
    /// Ends with the wait.
    pub(crate) code: Pin<Box<dyn Future<Output = GoOn>>>,
    pub(crate) waits_for: Activity,
    /// The memory that it holds, in bytes, apart from a few fields.
    pub(crate) bytes: usize,
}

/// A handler that waits for the body of its request.
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) struct AfterBody {
    pub(crate) limits: Arc<Limits>,
    pub(crate) then: Then,
    /// The part that an earlier burst has received.
    pub(crate) begun: Option<Box<Spool>>,
}

impl Answer {
    /// Makes an answer that `then` gives, from the body of the request.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn after_body(
        limits: &Arc<Limits>,
        then: impl FnOnce(&mut Request<'_>, Result<Spool, Failed>) -> Answer + 'static,
    ) -> Answer {
        Answer(Kind::AfterBody(AfterBody {
            limits: limits.clone(),
            then: Box::new(then),
            begun: None,
        }))
    }

    /// Makes an answer that `code` leads to. The handler has the body of the request. If the client leaves, `code` is dropped.
    #[cfg(feature = "proxy")]
    pub(crate) fn after_wait(waits_for: Activity, bytes: usize, code: impl Future<Output = GoOn> + 'static) -> Answer {
        Answer(Kind::AfterWait(AfterWait {
            code: Box::pin(code),
            waits_for,
            bytes,
        }))
    }

    /// Changes the response by `change`: now, or once there is one.
    #[must_use]
    pub fn map(
        self,
        request: &Request<'_>,
        change: impl FnOnce(&Request<'_>, Response) -> Response + 'static,
    ) -> Answer {
        match self.0 {
            Kind::Now(response) => change(request, response).into(),
            #[cfg(any(feature = "fastcgi", feature = "proxy"))]
            Kind::AfterBody(AfterBody { limits, then, .. }) => Answer::after_body(&limits, move |request, body| {
                let answer = then(request, body);
                answer.map(request, change)
            }),
            #[cfg(feature = "proxy")]
            Kind::AfterWait(AfterWait { code, waits_for, bytes }) => Answer::after_wait(waits_for, bytes, async move {
                let go_on = code.await;
                let go_on: GoOn = Box::new(move |request| go_on(request).map(request, change));
                go_on
            }),
        }
    }

    /// Changes how the response is made, if it is not there yet: `around` is called with the request and the function that goes on with
    /// it. It is called after each wait of the handler, but not for a body that has failed: nothing is left to do then but to say so.
    #[must_use]
    #[cfg_attr(
        not(any(feature = "fastcgi", feature = "proxy")),
        expect(unused_variables, reason = "only gateways wait")
    )]
    pub fn around(
        self,
        around: impl Fn(&mut Request<'_>, &mut dyn FnMut(&mut Request<'_>) -> Answer) -> Answer + 'static,
    ) -> Answer {
        match self.0 {
            now @ Kind::Now(_) => Answer(now),
            #[cfg(any(feature = "fastcgi", feature = "proxy"))]
            waiting => Answer(waiting).inside(Rc::new(around)),
        }
    }

    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    fn inside(self, around: Rc<Around>) -> Answer {
        let run = |around: Rc<Around>, request: &mut Request<'_>, go_on: GoOn| {
            let mut go_on = Some(go_on);
            let answer = around(request, &mut |request| match go_on.take() {
                Some(go_on) => go_on(request),
                None => Response::internal_error("the response was made before").into(),
            });
            answer.inside(around)
        };
        match self.0 {
            now @ Kind::Now(_) => Answer(now),
            Kind::AfterBody(AfterBody { limits, then, .. }) => {
                Answer::after_body(&limits, move |request, body| match body {
                    Ok(_) => run(around, request, Box::new(move |request| then(request, body))),
                    // It must not wait in a queue to be refused.
                    Err(_) => then(request, body),
                })
            }
            #[cfg(feature = "proxy")]
            Kind::AfterWait(AfterWait { code, waits_for, bytes }) => Answer::after_wait(waits_for, bytes, async move {
                let go_on = code.await;
                let go_on: GoOn = Box::new(move |request| run(around, request, go_on));
                go_on
            }),
        }
    }

    /// Whether the answer waits for a body that the client has not sent to its end.
    #[cfg_attr(
        not(any(feature = "fastcgi", feature = "proxy")),
        expect(unused_variables, reason = "only gateways wait")
    )]
    pub(crate) fn waits_for_client(&self, request: &Request<'_>) -> bool {
        match &self.0 {
            #[cfg(any(feature = "fastcgi", feature = "proxy"))]
            Kind::AfterBody(_) => !request.body.has_all_received(),
            #[cfg(feature = "proxy")]
            Kind::AfterWait(_) => false,
            Kind::Now(_) => false,
        }
    }

    /// Returns the response.
    ///
    /// # Errors
    ///
    /// The answer itself, if something has to be waited for.
    pub fn ready(self) -> Result<Response, Answer> {
        match self.0 {
            Kind::Now(response) => Ok(response),
            #[cfg(any(feature = "fastcgi", feature = "proxy"))]
            waiting => Err(Answer(waiting)),
        }
    }

    /// The response, which has been [waited](Answer::wait) for.
    #[inline]
    pub(crate) fn response(&mut self) -> &mut Response {
        match &mut self.0 {
            Kind::Now(response) => response,
            #[cfg(any(feature = "fastcgi", feature = "proxy"))]
            _ => unreachable!("the burst has waited"),
        }
    }

    /// Whether the response is there.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.0, Kind::Now(_))
    }

    /// Returns the response. Waits on this fiber for what the response needs: the body of the request, or a backend.
    ///
    /// # Suspends
    ///
    /// Until that is there, and where the handler does.
    ///
    /// # Cancellation
    ///
    /// As for the handler.
    #[cfg_attr(
        not(any(feature = "fastcgi", feature = "proxy")),
        expect(unused_variables, reason = "only gateways wait")
    )]
    pub fn wait(self, request: &mut Request<'_>) -> Response {
        match self.0 {
            Kind::Now(response) => response,
            #[cfg(any(feature = "fastcgi", feature = "proxy"))]
            Kind::AfterBody(AfterBody { limits, then, begun }) => {
                let mut spool = begun.map_or_else(Spool::default, |spool| *spool);
                let body = spool.go_on(&mut request.body, &limits).map(|()| spool);
                then(request, body).wait(request)
            }
            #[cfg(feature = "proxy")]
            Kind::AfterWait(AfterWait {
                code, waits_for: what, ..
            }) => {
                let mut code = Some(code);
                while_client_stays(request, &mut |request| {
                    let Some(code) = code.take() else {
                        unreachable!("called once")
                    };
                    osier::fiber::shrink_stack();
                    let go_on = waits_for(what, || osier::block_on(code));
                    go_on(request).wait(request)
                })
            }
        }
    }
}

/// Runs around each part of a handler that waits.
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
type Around = dyn Fn(&mut Request<'_>, &mut dyn FnMut(&mut Request<'_>) -> Answer) -> Answer;

impl From<Response> for Answer {
    #[inline]
    fn from(response: Response) -> Answer {
        Answer(Kind::Now(response))
    }
}

osier_queue::impl_debug!(Answer, self => { is_ready: matches!(self.0, Kind::Now(_)), .. });
