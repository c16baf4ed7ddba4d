//! [`wait_until`]: waits until a condition holds. Other code makes the condition true and announces it ([`News`]).
//!
//! The waiter joins the queue before it checks the condition, so it hears every announcement that comes after the
//! check.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::block_on;
use crate::sync::Event;
#[cfg(feature = "sync")]
use crate::sync::Notify;
use crate::wait::budget;

/// Waits until `condition` holds. It is looked at now, and again at each notification.
///
/// ```
/// use osier::sync::Notify;
/// use osier::time::wait_until;
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// let (done, progress) = (AtomicU32::new(0), Notify::new());
/// osier::run(|| {
///     osier::scope(|s| {
///         for _ in 0..3 {
///             s.spawn(|| {
///                 done.fetch_add(1, Ordering::SeqCst);
///                 progress.notify_all();
///             });
///         }
///         wait_until(&progress, || done.load(Ordering::SeqCst) == 3);
///     });
/// });
/// ```
///
/// Make the condition true before you notify. No such notification is lost, however the two race. If several wait for
/// different conditions, notify all of them: a single notification may find a waiter whose condition does not hold.
///
/// The condition is a look, not a wait: it runs where a future is polled.
///
/// # Suspends
///
/// Unless the condition holds. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// Unwinds. A notification meant for this waiter alone goes to the next.
///
/// # Panics
///
/// If the condition does. In a future or callback on a worker, if it would have to wait: use [`wait_until_async`]
/// there.
#[doc(alias = "eventually")]
pub fn wait_until<N: News>(news: &N, condition: impl FnMut() -> bool) {
    block_on(wait_until_async(news, condition));
}

/// Waits as [`wait_until`] does, in a future. A future that is dropped leaves the queue.
pub async fn wait_until_async<N: News>(news: &N, mut condition: impl FnMut() -> bool) {
    // A condition that holds already uses up no notification.
    while !condition() {
        let mut notified = pin!(news.wait_async());
        // Without a budget: after a refusal it would not be in the queue while the condition is looked at.
        let already = poll_fn(|cx| Poll::Ready(budget::without(|| notified.as_mut().poll(cx)).is_ready())).await;
        if condition() {
            return;
        }
        match already {
            true => budget::call().await,
            false => notified.await,
        }
    }
}

/// A source of news for [`wait_until`]: [`Notify`] and [`Event`], shared in an [`Arc`] or not.
pub trait News: sealed::Sealed {
    /// Waits for the next news. It is in the queue from its first poll.
    fn wait_async(&self) -> impl Future<Output = ()> + Send;
}

mod sealed {
    use super::{Arc, Event};

    pub trait Sealed {}
    #[cfg(feature = "sync")]
    impl Sealed for super::Notify {}
    impl Sealed for Event {}
    impl<N: Sealed> Sealed for Arc<N> {}
}

#[cfg(feature = "sync")]
impl News for Notify {
    fn wait_async(&self) -> impl Future<Output = ()> + Send {
        Notify::wait_async(self)
    }
}

impl News for Event {
    fn wait_async(&self) -> impl Future<Output = ()> + Send {
        Event::wait_async(self)
    }
}

impl<N: News> News for Arc<N> {
    fn wait_async(&self) -> impl Future<Output = ()> + Send {
        N::wait_async(self)
    }
}
