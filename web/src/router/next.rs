//! Functions around a handler: each sees the request before the handler and the response after it.
//!
//! A [`Surroundings`] is complete when the router is: every handler has its own, in order, so that a request looks for nothing.

use std::fmt;
use std::sync::Arc;

use osier_http::Head;

use crate::request::state::States;
use crate::{IntoResponse, Request, Response};

/// A handler after its return type has been erased. It writes its response to where that is needed: returned, and wrapped
/// by all who pass it on, a response would be copied several times.
pub(crate) type Erased = Box<dyn Fn(&mut Request<'_>, &mut Option<Response>) + Send + Sync>;

pub(crate) fn erase<F, R>(handler: F) -> Erased
where
    F: Fn(&mut Request<'_>) -> R + Send + Sync + 'static,
    R: IntoResponse + 'static,
{
    Box::new(move |request, response| *response = Some(handler(request).into_response()))
}

/// A function around a handler, after its return type has been erased.
pub(crate) type Around = Arc<dyn Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync>;

pub(crate) fn erase_wrap<F, R>(wrap: F) -> Around
where
    F: Fn(&mut Request<'_>, Next<'_>) -> R + Send + Sync + 'static,
    R: IntoResponse + 'static,
{
    Arc::new(move |request, next| wrap(request, next).into_response())
}

/// The functions and states around one handler.
#[derive(Clone, Default)]
pub(crate) struct Surroundings {
    /// The outermost first.
    wraps: Vec<Around>,
    pub(crate) states: States,
}

impl Surroundings {
    pub(crate) const NOTHING: Surroundings = Surroundings {
        wraps: Vec::new(),
        states: States::NONE,
    };

    /// The number of functions.
    #[inline]
    pub(crate) fn depth(&self) -> usize {
        self.wraps.len()
    }

    /// Adds a function inside of the first `at`.
    pub(crate) fn wrap(&mut self, at: usize, wrap: Around) {
        self.wraps.insert(at, wrap);
    }

    /// Puts it, whole, inside of `outer`.
    pub(crate) fn put_inside(&mut self, outer: &Surroundings) {
        self.wraps.splice(0..0, outer.wraps.iter().cloned());
        self.states.inherit_all(&outer.states);
    }
}

/// The rest of the way from a function [around](crate::Router::wrap) a handler: the next function, and at last the handler.
pub struct Next<'n> {
    wraps: &'n [Around],
    handler: Option<&'n Erased>,
    /// The response where there is no handler.
    unhandled: &'n dyn Fn(&Head<'_>) -> Response,
}

impl<'n> Next<'n> {
    pub(crate) fn new(
        around: &'n Surroundings,
        handler: Option<&'n Erased>,
        unhandled: &'n dyn Fn(&Head<'_>) -> Response,
    ) -> Next<'n> {
        Next {
            wraps: &around.wraps,
            handler,
            unhandled,
        }
    }

    /// Answers `request`.
    ///
    /// # Suspends
    ///
    /// As the handler does.
    ///
    /// # Panics
    ///
    /// As the handler does.
    pub fn run(self, request: &mut Request<'_>) -> Response {
        if let Some((wrap, wraps)) = self.wraps.split_first() {
            return wrap(request, Next { wraps, ..self });
        }
        let mut response = None;
        match self.handler {
            Some(handler) => handler(request, &mut response),
            None => response = Some((self.unhandled)(request.head)),
        }
        response.expect("an erased handler leaves a response")
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next")
            .field("further", &self.wraps.len())
            .finish_non_exhaustive()
    }
}
