//! Functions around a handler (middleware). Each sees the request before the handler and the
//! response after it.
//!
//! The [`Surroundings`] of a handler are complete when the router is built. Each handler has its
//! own list, in order, so a request searches for nothing.

use std::sync::Arc;

use osier_http::Head;

use crate::request::state::States;
use crate::router::answer::{Answer, Kind};
use crate::{IntoResponse, Request, Response};

/// A handler without its return type. It writes its answer through a reference. A returned
/// response would be copied at each level of wrapping functions.
pub(crate) type Erased = Box<dyn Fn(&mut Request<'_>, &mut Option<Answer>) + Send + Sync>;

pub(crate) fn erase<F, R>(handler: F) -> Erased
where
    F: Fn(&mut Request<'_>) -> R + Send + Sync + 'static,
    R: IntoResponse + 'static,
{
    Box::new(move |request, answer| *answer = Some(Answer(Kind::Now(handler(request).into_response()))))
}

/// A function around a handler, without its return type.
pub(crate) type Middleware = Arc<dyn Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync>;

pub(crate) fn erase_wrap<F, R>(wrap: F) -> Middleware
where
    F: Fn(&mut Request<'_>, Next<'_>) -> R + Send + Sync + 'static,
    R: IntoResponse + 'static,
{
    Arc::new(move |request, next| wrap(request, next).into_response())
}

/// The functions and states around one handler.
#[derive(Clone, Default)]
pub(crate) struct Surroundings {
    /// Functions, the outermost first.
    wraps: Vec<Middleware>,
    pub(crate) states: States,
}

impl Surroundings {
    pub(crate) const NOTHING: Surroundings = Surroundings {
        wraps: Vec::new(),
        states: States::NONE,
    };

    /// Returns the number of functions.
    #[inline]
    pub(crate) fn depth(&self) -> usize {
        self.wraps.len()
    }

    /// Inserts a function inside the first `at` functions.
    pub(crate) fn wrap(&mut self, at: usize, wrap: Middleware) {
        self.wraps.insert(at, wrap);
    }

    /// Puts all of these functions and states inside `outer`.
    pub(crate) fn put_inside(&mut self, outer: &Surroundings) {
        self.wraps.splice(0..0, outer.wraps.iter().cloned());
        self.states.inherit_all(&outer.states);
    }
}

/// The remaining steps after a function [around](crate::Router::wrap) a handler: the next functions
/// and finally the handler.
pub struct Next<'n> {
    wraps: &'n [Middleware],
    handler: Option<&'n Erased>,
    /// Makes the response if there is no handler.
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

    /// Runs the remaining functions and the handler, and returns the response.
    ///
    /// # Suspends
    ///
    /// May suspend, if the handler does.
    ///
    /// # Panics
    ///
    /// Panics if the handler does.
    pub fn run(self, request: &mut Request<'_>) -> Response {
        if let Some((wrap, wraps)) = self.wraps.split_first() {
            return wrap(request, Next { wraps, ..self });
        }
        let Some(handler) = self.handler else {
            return (self.unhandled)(request.head);
        };
        let mut answer = None;
        handler(request, &mut answer);
        answer.expect("an erased handler leaves an answer").wait(request)
    }
}

osier_queue::impl_debug!(Next<'a>, self => { further: self.wraps.len(), .. });
