//! Two leaves that make one call on a watched descriptor, such as a read, and wait where it would block.
//!
//! [`Io`] is a future. It borrows the descriptor and keeps its waiter inside itself, so nothing is allocated.
//! [`Side`] is for traits such as `AsyncRead`, whose polls are calls without a future that could keep the waiter. It
//! boxes its waiter at the first would-block and keeps it. Both try the call first while the descriptor has no entry in the table of sockets. So a
//! descriptor that never waits never gets an entry.
//!
//! # Protocol
//! A waiter belongs to the list of one descriptor's entry, and must not outlive the descriptor. An `Io` borrows the
//! descriptor. The owner of a `Side` drops it before the descriptor.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use osier_queue::Waiter;
use pin_project_lite::pin_project;

use crate::wait::budget;
use crate::wait::fd::Fd;
use crate::wait::socket::{Direction, Moved, Watched};

pin_project! {
    /// The future of one call. After it has completed it may be polled again, and makes the call again.
    #[must_use = "a future does nothing until it is polled"]
    pub(crate) struct Io<'a, C> {
        watched: &'a Watched,
        direction: Direction,
        #[pin]
        waiter: Option<Waiter<'static>>,
        call: C,
    }
}

impl<'a, C> Io<'a, C> {
    pub(crate) fn new<T>(watched: &'a Watched, direction: Direction, call: C) -> Io<'a, C>
    where
        C: FnMut(Fd<'_>) -> io::Result<Moved<T>>,
    {
        Io {
            watched,
            direction,
            waiter: None,
            call,
        }
    }
}

impl<T, C: FnMut(Fd<'_>) -> io::Result<Moved<T>>> Future for Io<'_, C> {
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        budget::poll(cx, |cx| self.poll_call(cx))
    }
}

impl<T, C: FnMut(Fd<'_>) -> io::Result<Moved<T>>> Io<'_, C> {
    fn poll_call(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let mut this = self.project();
        let (watched, direction) = (*this.watched, *this.direction);
        if this.waiter.is_none() {
            if !watched.has_entry()
                && let Some(done) = watched.attempt(direction, &mut *this.call)
            {
                return Poll::Ready(done);
            }
            this.waiter.set(Some(watched.waiter(direction)));
        }
        let waiter = this.waiter.as_mut().as_pin_mut().expect("just set");
        let polled = watched.poll_io(direction, waiter, cx, this.call);
        if polled.is_ready() {
            this.waiter.set(None);
        }
        polled
    }
}

/// The waiter that an adapter keeps for one direction.
#[derive(Default)]
pub(crate) struct Side(Option<Pin<Box<Waiter<'static>>>>);

impl Side {
    /// Makes the call, and waits for the next poll where it would block.
    #[inline]
    pub(crate) fn poll_io<T>(
        &mut self,
        watched: &Watched,
        direction: Direction,
        cx: &mut Context<'_>,
        call: impl FnMut(Fd<'_>) -> io::Result<Moved<T>>,
    ) -> Poll<io::Result<T>> {
        budget::poll(cx, |cx| self.poll_call(watched, direction, cx, call))
    }

    #[inline]
    fn poll_call<T>(
        &mut self,
        watched: &Watched,
        direction: Direction,
        cx: &mut Context<'_>,
        mut call: impl FnMut(Fd<'_>) -> io::Result<Moved<T>>,
    ) -> Poll<io::Result<T>> {
        let waiter = match &mut self.0 {
            Some(waiter) => waiter,
            none => {
                if let Some(done) = watched.attempt(direction, &mut call) {
                    return Poll::Ready(done);
                }
                none.insert(Box::pin(watched.waiter(direction)))
            }
        };
        let polled = watched.poll_io(direction, waiter.as_mut(), cx, &mut call);
        if polled.is_ready() {
            // A later event for others must not wake the waker of this wait, which is over.
            waiter.as_mut().remove();
        }
        polled
    }
}
