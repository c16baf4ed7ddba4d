//! A descriptor monitor: it calls a callback when a descriptor becomes readable or writable. The wait is the leaf of
//! `wait/descriptor.rs`.

use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{fmt, io};

use osier_poll::{Interest, Ready};

use super::io_queue::Handle;
use super::request::{CancelHandle, Request, Work};
use super::{Refused, Status};
use crate::wait::descriptor::Place;

/// A descriptor and a callback for its readiness.
///
/// The monitor holds the descriptor by value and so keeps it open: an owned one, an [`Arc`] of one, or one borrowed
/// for `'static`. It neither reads nor changes the descriptor. Any number of monitors may wait for the same
/// descriptor.
///
/// ```
/// use osier::io::Interest;
/// use osier::callbacks::{FdMonitor, IoQueue, Status};
/// use std::io::Write;
/// use std::sync::mpsc;
///
/// let queue = IoQueue::new(0)?;
/// let (reader, mut writer) = std::io::pipe()?;
/// let (sender, receiver) = mpsc::channel();
/// FdMonitor::new(&queue, reader).wait(Interest::READABLE, move |_monitor, status, ready| {
///     sender.send((status, ready.unwrap().is_readable())).unwrap();
/// })?;
/// writer.write_all(b"!")?;
/// queue.iterate()?;
/// assert_eq!(receiver.try_recv(), Ok((Status::Done, true)));
/// # std::io::Result::Ok(())
/// ```
pub struct FdMonitor<F: AsFd> {
    request: Arc<Request<Interest>>,
    fd: F,
}

impl<F: AsFd + Send + 'static> FdMonitor<F> {
    /// Makes a monitor of this descriptor. Its callbacks run on `queue`.
    pub fn new(queue: &Handle, fd: F) -> FdMonitor<F> {
        FdMonitor {
            request: Request::new(queue.shared()),
            fd,
        }
    }

    /// Calls `callback` once the descriptor is ready for a part of `interest`. Readiness is level-triggered. An empty
    /// interest is satisfied at once.
    ///
    /// The callback gets the monitor, so that it can be used again, and the readiness: nothing if the wait was
    /// cancelled. A hang-up and an error of the descriptor count as readiness, as for
    /// [`io::ready`](crate::io::ready). The callback gets an error only if the wait itself failed, for example for a
    /// descriptor that cannot be waited for.
    ///
    /// # Errors
    ///
    /// [`Refused`], which holds the monitor, once the queue is shut down.
    pub fn wait<C>(self, interest: Interest, callback: C) -> Result<CancelHandle<Interest>, Refused<FdMonitor<F>>>
    where
        C: FnOnce(FdMonitor<F>, Status, io::Result<Ready>) + Send + 'static,
    {
        let request = Arc::clone(&self.request);
        let waiting = Box::pin(Waiting {
            monitor: self,
            interest,
            place: Place::default(),
            seen: Ok(Ready::NONE),
            callback,
        });
        request
            .begin(waiting)
            .map_err(|refused| refused.map(|waiting| Pin::into_inner(waiting).monitor))
    }
}

impl<F: AsFd> FdMonitor<F> {
    /// The descriptor.
    pub fn fd(&self) -> &F {
        &self.fd
    }

    /// Gives the descriptor back.
    pub fn into_inner(self) -> F {
        self.fd
    }
}

impl CancelHandle<Interest> {
    /// Waits for another interest from now on. With an empty interest the callback comes at once. Returns false if it
    /// is too late: the wait is over or was cancelled.
    pub fn rewait(&self, interest: Interest) -> bool {
        self.change(interest)
    }
}

impl<F: AsFd> fmt::Debug for FdMonitor<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FdMonitor").field("fd", &self.fd.as_fd()).finish()
    }
}

struct Waiting<F: AsFd, C> {
    monitor: FdMonitor<F>,
    interest: Interest,
    place: Place,
    seen: io::Result<Ready>,
    callback: C,
}

// No part of it is pinned.
impl<F: AsFd, C> Unpin for Waiting<F, C> {}

impl<F, C> Work<Interest> for Waiting<F, C>
where
    F: AsFd + Send,
    C: FnOnce(FdMonitor<F>, Status, io::Result<Ready>) + Send,
{
    fn change(mut self: Pin<&mut Self>, interest: Interest) {
        let this = &mut *self;
        this.place.leave(this.monitor.fd.as_fd());
        this.interest = interest;
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.seen = Ok(Ready::NONE);
        if this.interest.is_empty() {
            return Poll::Ready(());
        }
        let polled = this.place.poll(this.monitor.fd.as_fd(), this.interest, cx);
        polled.map(|seen| this.seen = seen)
    }

    fn finish(self: Pin<Box<Self>>, status: Status) {
        let Waiting {
            monitor,
            mut place,
            seen,
            callback,
            ..
        } = *Pin::into_inner(self);
        place.leave(monitor.fd.as_fd());
        callback(monitor, status, seen);
    }
}
