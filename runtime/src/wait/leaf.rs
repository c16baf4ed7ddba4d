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
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use osier_queue::Waiter;
use pin_project_lite::pin_project;

use crate::wait::socket::{Call, Direction, LEFT, Moved, Watched, leaving};

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
        C: FnMut(BorrowedFd<'_>) -> io::Result<Moved<T>>,
    {
        Io {
            watched,
            direction,
            waiter: None,
            call,
        }
    }
}

impl<T, C: FnMut(BorrowedFd<'_>) -> io::Result<Moved<T>>> Future for Io<'_, C> {
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let this = self.project();
        let mut value = None;
        let (watched, direction) = (*this.watched, *this.direction);
        ready!(poll_call(
            watched,
            direction,
            this.waiter,
            cx,
            &mut leaving(&mut value, this.call)
        ))?;
        Poll::Ready(Ok(value.expect(LEFT)))
    }
}

/// Polls an [`Io`], once for all types of calls.
fn poll_call(
    watched: &Watched,
    direction: Direction,
    mut waiter: Pin<&mut Option<Waiter<'static>>>,
    cx: &mut Context<'_>,
    call: &mut Call<'_>,
) -> Poll<io::Result<()>> {
    if waiter.is_none() {
        if !watched.has_entry()
            && let Some(done) = watched.attempt(call)
        {
            return Poll::Ready(done);
        }
        waiter.set(Some(watched.waiter(direction)));
    }
    let waiting = waiter.as_mut().as_pin_mut().expect("just set");
    let polled = watched.poll_io(direction, waiting, cx, call);
    if polled.is_ready() {
        waiter.set(None);
    }
    polled
}

/// The waiter that an adapter keeps for one direction.
#[derive(Default)]
pub(crate) struct Side(Option<Pin<Box<Waiter<'static>>>>);

impl Side {
    /// Makes the call, and waits for the next poll where it would block.
    pub(crate) fn poll_io<T>(
        &mut self,
        watched: &Watched,
        direction: Direction,
        cx: &mut Context<'_>,
        call: impl FnMut(BorrowedFd<'_>) -> io::Result<Moved<T>>,
    ) -> Poll<io::Result<T>> {
        let mut value = None;
        ready!(self.poll_call(watched, direction, cx, &mut leaving(&mut value, call)))?;
        Poll::Ready(Ok(value.expect(LEFT)))
    }

    fn poll_call(
        &mut self,
        watched: &Watched,
        direction: Direction,
        cx: &mut Context<'_>,
        call: &mut Call<'_>,
    ) -> Poll<io::Result<()>> {
        let waiter = match &mut self.0 {
            Some(waiter) => waiter,
            none => {
                if let Some(done) = watched.attempt(call) {
                    return Poll::Ready(done);
                }
                none.insert(Box::pin(watched.waiter(direction)))
            }
        };
        let polled = watched.poll_io(direction, waiter.as_mut(), cx, call);
        if polled.is_ready() {
            // A later event for others must not wake the waker of this wait, which is over.
            waiter.as_mut().remove();
        }
        polled
    }
}
