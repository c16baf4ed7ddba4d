//! Functions around a handler (middleware). Each sees the request before the handler and the
//! response after it.
//!
//! The [`Surroundings`] of a handler are complete when the router is built. Each handler has its
//! own list, in order, so a request searches for nothing.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// The code that runs the functions and the handler.
pub(crate) trait Caller {
    /// Makes the response if there is no handler.
    fn unhandled(&self, head: &Head<'_>) -> Response;

    /// Logs a panic, and makes the response. A cancellation unwinds further.
    fn panicked(&self, payload: Box<dyn Any + Send>, head: &Head<'_>) -> Response;
}

/// Notes in the extensions of a request that a function or the handler has panicked.
#[derive(Clone, Copy)]
pub(crate) struct HasPanicked;

/// The remaining steps after a function [around](crate::Router::wrap) a handler: the next functions
/// and finally the handler.
///
/// A limit for the time of all handlers:
///
/// ```
/// use osier_web::{IntoResponse, Next, Request, Response, Router, http::StatusCode, test::Client};
/// use std::time::Duration;
///
/// fn in_time(request: &mut Request<'_>, next: Next<'_>) -> Response {
///     match osier::timeout(Duration::from_millis(20), || next.run(request)) {
///         Ok(response) => response,
///         Err(_) => (StatusCode::GATEWAY_TIMEOUT, "it takes too long\n").into_response(),
///     }
/// }
///
/// let slow = |_: &mut Request<'_>| osier::sleep(Duration::from_secs(60));
/// let client = Client::new(Router::new().get("/", slow).wrap(in_time));
/// assert_eq!(client.get("/").send().status(), 504);
/// ```
#[doc(alias = "middleware")]
pub struct Next<'n> {
    wraps: &'n [Middleware],
    handler: Option<&'n Erased>,
    caller: &'n dyn Caller,
}

impl<'n> Next<'n> {
    pub(crate) fn new(around: &'n Surroundings, handler: Option<&'n Erased>, caller: &'n dyn Caller) -> Next<'n> {
        Next {
            wraps: &around.wraps,
            handler,
            caller,
        }
    }

    /// Runs the remaining functions and the handler, and returns the response. If one of them panics, the log gets a line, and the
    /// response is a 500.
    ///
    /// # Suspends
    ///
    /// May suspend, if the handler does.
    ///
    /// # Cancellation
    ///
    /// Unwinds, if the handler is cancelled: because its client has left
    /// ([`Route::cancel_when_gone`](crate::Route::cancel_when_gone)), or by an [`osier::timeout`] around this call.
    pub fn run(self, request: &mut Request<'_>) -> Response {
        let caller = self.caller;
        catch_unwind(AssertUnwindSafe(|| self.begin(request))).unwrap_or_else(|payload| {
            let response = caller.panicked(payload, request.head);
            request.extensions.insert(HasPanicked);
            response
        })
    }

    /// Same as [`run`](Next::run), but a panic unwinds.
    pub(crate) fn begin(self, request: &mut Request<'_>) -> Response {
        if let Some((wrap, wraps)) = self.wraps.split_first() {
            return wrap(request, Next { wraps, ..self });
        }
        let Some(handler) = self.handler else {
            return self.caller.unhandled(request.head);
        };
        let mut answer = None;
        handler(request, &mut answer);
        answer.expect("an erased handler leaves an answer").wait(request)
    }
}

osier_queue::impl_debug!(Next<'a>, self => { further: self.wraps.len(), .. });
