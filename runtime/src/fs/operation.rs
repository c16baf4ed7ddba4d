//! One call of the file system as a future. The first poll begins it, on the pool for blocking work.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use crate::wait::block_on::{Pooled, pooled};
use crate::wait::{self, Stop};
use crate::worker::context::{self, Caller};

/// The future of a call of [`fs`](super). It does nothing until it is polled.
///
/// # Cancellation
///
/// A future that is dropped before a thread of the pool has begun the call has no effect. Later, the call runs to its
/// end.
///
/// # Panics
///
/// If it is polled again after it has completed.
#[must_use = "a future does nothing until it is polled"]
pub struct Operation<T>(State<T>);

enum State<T> {
    Waiting(Box<dyn FnOnce() -> io::Result<T> + Send>),
    Running(Pooled<io::Result<T>>),
    Done(T),
    Over,
}

impl<T: Send + 'static> Operation<T> {
    pub(super) fn new(call: impl FnOnce() -> io::Result<T> + Send + 'static) -> Operation<T> {
        Operation(State::Waiting(Box::new(call)))
    }

    /// A call whose result is known.
    pub(super) fn done(result: T) -> Operation<T> {
        Operation(State::Done(result))
    }

    /// Runs the call and waits for it. A plain thread makes the call itself.
    pub(super) fn block(mut self) -> io::Result<T> {
        if let State::Done(result) = self.0 {
            return Ok(result);
        }
        match context::caller(|caller| match caller {
            Caller::Fiber(..) => Some(true),
            Caller::Thread => Some(false),
            Caller::Worker => None,
        }) {
            Some(true) => {
                let mut this = pin!(self);
                wait::wait_for_disk(|cx| this.as_mut().poll(cx))?
            }
            Some(false) => match std::mem::replace(&mut self.0, State::Over) {
                State::Waiting(call) => call(),
                _ => unreachable!("it has just been made"),
            },
            // Fails before it begins. Otherwise it would depend on the pool's speed whether the call works.
            None => Err(Stop::NotHere.into()),
        }
    }
}

impl<T> Unpin for Operation<T> {}

impl<T: Send + 'static> Future for Operation<T> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        match std::mem::replace(&mut self.0, State::Over) {
            State::Waiting(call) => self.0 = State::Running(pooled(call)?),
            State::Done(result) => return Poll::Ready(Ok(result)),
            begun => self.0 = begun,
        }
        let State::Running(task) = &mut self.0 else {
            panic!("polled after it had completed");
        };
        let polled = Pin::new(task).poll(cx);
        if polled.is_ready() {
            self.0 = State::Over;
        }
        polled
    }
}

osier_queue::impl_debug!(Operation<T>, self => { .. });
