//! What is around a handler: functions that see its request before it and its response after it, and state that it shares.
//!
//! A [`Surroundings`] is put together when the router is: each handler has its own, complete and in order, so that nothing
//! is looked for when a request comes. `burst` calls a handler that has no function around it directly.

use std::any::Any;
use std::sync::Arc;

use crate::router::{Endpoint, Found, Route};
use crate::server::answer::without_handler;
use crate::{Request, Response};

/// A function around a handler, after its return type has been erased.
pub(crate) type Around = Arc<dyn Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync>;

/// What is around one handler.
#[derive(Clone, Default)]
pub(crate) struct Surroundings {
    /// The outermost first.
    wraps: Vec<Around>,
    /// Of each type at most one.
    states: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Surroundings {
    pub(crate) const NOTHING: Surroundings = Surroundings {
        wraps: Vec::new(),
        states: Vec::new(),
    };

    /// How many functions there are.
    #[inline]
    pub(crate) fn depth(&self) -> usize {
        self.wraps.len()
    }

    /// Adds a function inside of the first `at`.
    pub(crate) fn wrap(&mut self, at: usize, wrap: Around) {
        self.wraps.insert(at, wrap);
    }

    pub(crate) fn state<T: Any>(&self) -> Option<&T> {
        self.states.iter().find_map(|state| state.downcast_ref())
    }

    pub(crate) fn has<T: Any>(&self) -> bool {
        self.state::<T>().is_some()
    }

    /// Adds a state from outside, unless there is one of its type.
    pub(crate) fn inherit(&mut self, state: &Arc<dyn Any + Send + Sync>) {
        if self
            .states
            .iter()
            .all(|known| (**known).type_id() != (**state).type_id())
        {
            self.states.push(state.clone());
        }
    }

    /// Puts it, whole, inside of `outer`.
    pub(crate) fn put_inside(&mut self, outer: &Surroundings) {
        self.wraps.splice(0..0, outer.wraps.iter().cloned());
        for state in &outer.states {
            self.inherit(state);
        }
    }
}

/// What a function [around](crate::Router::wrap) a handler goes on to: the next function, and at last the handler.
pub struct Next<'n> {
    wraps: &'n [Around],
    endpoint: Option<&'n Endpoint>,
    route: Option<&'n Route>,
}

impl<'n> Next<'n> {
    pub(crate) fn of(found: Found<'n>) -> Next<'n> {
        Next {
            wraps: &found.around.wraps,
            endpoint: found.endpoint,
            route: found.route,
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
        match self.endpoint {
            Some(endpoint) => (endpoint.handler)(request, &mut response),
            None => response = Some(without_handler(self.route, request.head)),
        }
        response.expect("an erased handler leaves a response")
    }
}

impl std::fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Next")
            .field("further", &self.wraps.len())
            .finish_non_exhaustive()
    }
}
