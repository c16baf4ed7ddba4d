//! `with_tokio`: a future that needs a tokio runtime, on any executor.
//!
//! tokio's own leaves (its sockets, its timers, `tokio::spawn`) find their runtime in a thread-local that
//! [`Handle::enter`] sets. The guard of `enter` must not be held across a suspension: other fibers of the thread
//! would see that runtime, and guards that are dropped out of order panic. So each poll, and the drop, enters the
//! runtime anew. Both may call code that suspends the fiber; hooks leave the runtime for that time.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::runtime::Handle;

use crate::worker::hook::around_switch;

/// Polls and drops `future` with the tokio runtime of `handle` entered. Between polls the runtime is not entered.
/// Hooks of [`before_suspend`](crate::fiber::before_suspend) that are further out run as if inside of the poll.
///
/// tokio's threads drive the future's sockets and timers, so there must be such threads. A multi-thread runtime has
/// them; a current-thread runtime has one only while a thread is in its `block_on`.
///
/// ```
/// use osier::adapters::tokio::with_tokio;
/// let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
/// let handle = tokio.handle().clone();
/// let answer = osier::run(|| {
///     osier::block_on(with_tokio(handle, async { tokio::spawn(async { 6 * 7 }).await.unwrap() }))
/// });
/// assert_eq!(answer, 42);
/// # std::io::Result::Ok(())
/// ```
///
/// # Cancellation
///
/// The cancellation of the inner future.
#[doc(alias = "enter")]
pub fn with_tokio<F: Future>(handle: Handle, future: F) -> WithTokio<F> {
    WithTokio {
        future: Some(future),
        handle,
    }
}

pin_project! {
    /// The future of [`with_tokio`].
    #[must_use = "a future does nothing until it is polled"]
    pub struct WithTokio<F> {
        // `None` once it was dropped, with the runtime entered.
        #[pin]
        future: Option<F>,
        handle: Handle,
    }

    impl<F> PinnedDrop for WithTokio<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            entered(this.handle, || this.future.set(None));
        }
    }
}

impl<F: Future> Future for WithTokio<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let future = this.future.as_pin_mut().expect("only its drop takes it");
        entered(this.handle, || future.poll(cx))
    }
}

/// Runs `body` with the runtime entered, except while the fiber is suspended in it.
fn entered<T>(handle: &Handle, body: impl FnOnce() -> T) -> T {
    let guard = Cell::new(Some(handle.enter()));
    let leave = || drop(guard.take());
    let enter = || guard.set(guard.take().or_else(|| Some(handle.enter())));
    around_switch(&leave, &enter, body)
}

osier_queue::impl_debug!(WithTokio<F>, self => { .. });
