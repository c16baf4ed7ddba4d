//! The result of a handler: a response, or a function that makes it once the body of the request has been received.
//!
//! A gateway receives a body before it asks a backend, and a client may send its body over minutes. So the handler returns, and
//! the connection receives the body without a stack ([`Awaiting`](crate::conn::awaiting::Awaiting)).

#[cfg(any(feature = "fastcgi", feature = "proxy"))]
use std::sync::Arc;

#[cfg(any(feature = "fastcgi", feature = "proxy"))]
use crate::body::spool::{Failed, Limits, Spool};
use crate::{Request, Response};

/// The result of a handler that may have to wait for the body of its request. [`Handler::answering`](crate::Handler::answering)
/// takes a function that returns it.
pub struct Answer(pub(crate) Kind);

pub(crate) enum Kind {
    Now(Response),
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    AfterBody(AfterBody),
}

/// Makes the response to a request from its body.
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) type Then = Box<dyn FnOnce(&mut Request<'_>, Result<Spool, Failed>) -> Response>;

/// A handler that waits for the body of its request.
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) struct AfterBody {
    pub(crate) limits: Arc<Limits>,
    pub(crate) then: Then,
}

impl Answer {
    /// Makes an answer that `then` gives, from the body of the request.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn after_body(
        limits: &Arc<Limits>,
        then: impl FnOnce(&mut Request<'_>, Result<Spool, Failed>) -> Response + 'static,
    ) -> Answer {
        Answer(Kind::AfterBody(AfterBody {
            limits: limits.clone(),
            then: Box::new(then),
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
            Kind::AfterBody(AfterBody { limits, then }) => Answer::after_body(&limits, move |request, body| {
                let response = then(request, body);
                change(request, response)
            }),
        }
    }

    /// Changes how the response is made from the body, if it is not there yet: `around` is called with the request and the function
    /// that makes the response.
    #[must_use]
    #[cfg_attr(
        not(any(feature = "fastcgi", feature = "proxy")),
        expect(unused_variables, reason = "only gateways need the body first")
    )]
    pub fn around(
        self,
        around: impl FnOnce(&mut Request<'_>, &mut dyn FnMut(&mut Request<'_>) -> Response) -> Response + 'static,
    ) -> Answer {
        match self.0 {
            now @ Kind::Now(_) => Answer(now),
            #[cfg(any(feature = "fastcgi", feature = "proxy"))]
            Kind::AfterBody(AfterBody { limits, then }) => Answer::after_body(&limits, move |request, body| {
                let mut then = Some((then, body));
                around(request, &mut |request| match then.take() {
                    Some((then, body)) => then(request, body),
                    None => Response::internal_error("the response was made before"),
                })
            }),
        }
    }

    /// Returns the response.
    ///
    /// # Errors
    ///
    /// The answer itself, if the body has to be received first.
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
            Kind::AfterBody(_) => unreachable!("the burst has received the body"),
        }
    }

    /// Returns the response. Receives the body of the request on this fiber, if the response needs it.
    ///
    /// # Suspends
    ///
    /// Until the client has sent the body, and where the handler does.
    #[cfg_attr(
        not(any(feature = "fastcgi", feature = "proxy")),
        expect(unused_variables, reason = "only gateways need the body first")
    )]
    pub fn wait(self, request: &mut Request<'_>) -> Response {
        match self.0 {
            Kind::Now(response) => response,
            #[cfg(any(feature = "fastcgi", feature = "proxy"))]
            Kind::AfterBody(AfterBody { limits, then }) => {
                let body = Spool::fill(&mut request.body, &limits);
                then(request, body)
            }
        }
    }
}

impl From<Response> for Answer {
    #[inline]
    fn from(response: Response) -> Answer {
        Answer(Kind::Now(response))
    }
}

osier_queue::impl_debug!(Answer, self => { is_ready: matches!(self.0, Kind::Now(_)), .. });
