//! An executor and a timer for hyper.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// An executor for hyper. Each future becomes a task of the caller's runtime, as with
/// [`spawn_future`](crate::spawn_future).
///
/// With the feature `tokio-rt`, a connection in `adapters::tokio::with_tokio` passes its tokio runtime on: hyper gives the streams of
/// HTTP/2 to the executor, and their handlers find the runtime as those of HTTP/1.1 do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Executor;

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, future: F) {
        #[cfg(feature = "tokio-rt")]
        if let Ok(tokio) = tokio::runtime::Handle::try_current() {
            drop(crate::spawn_future(super::tokio::with_tokio(tokio, future)));
            return;
        }
        // Dropping the handle detaches the task.
        drop(crate::spawn_future(future));
    }
}

/// A timer for hyper, made of [`time::Sleep`](crate::time::Sleep).
#[derive(Clone, Copy, Debug, Default)]
pub struct Timer;

impl hyper::rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Sleep(crate::time::Sleep::new(duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Sleep(crate::time::Sleep::until(deadline)))
    }

    fn now(&self) -> Instant {
        crate::time::now()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn hyper::rt::Sleep>>, deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Sleep>() {
            Some(mut sleep) => sleep.0.reset(deadline),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}

struct Sleep(crate::time::Sleep);

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl hyper::rt::Sleep for Sleep {}
