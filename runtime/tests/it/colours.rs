//! The places where a future can be polled, for tests that must pass in all of them.
#![allow(dead_code)]

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Makes the future anew for a fiber, a plain thread, a foreign executor and a thread that polls by hand.
pub fn in_every_colour<F: Future>(make: impl Fn() -> F + Send + Sync + 'static + Clone) {
    let on_fiber = make.clone();
    osier::run(move || drop(osier::block_on(on_fiber())));
    osier::block_on(make());
    futures_lite::future::block_on(make());
    poll_by_hand(make());
}

#[derive(Default)]
pub struct Count(AtomicUsize);

impl Count {
    pub fn new() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (Arc::clone(&count), Waker::from(count))
    }

    pub fn wakes(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Waits until it was woken more than `seen` times.
    pub fn wait_beyond(&self, seen: usize) {
        testkit::eventually("a future that is woken", || self.wakes() > seen);
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls on this thread only when woken.
pub fn poll_by_hand<F: Future>(future: F) -> F::Output {
    let (count, waker) = Count::new();
    let mut future = pin!(future);
    loop {
        let seen = count.wakes();
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        count.wait_beyond(seen);
    }
}

/// Polls once, with a waker that does nothing.
pub fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
