//! tokio: a million timers that are set and removed again, and a million that are set and waited for, on current_thread.
#![forbid(unsafe_code)]

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::unconstrained;
use tokio::time::{Sleep, sleep};

const COUNT: u32 = 1_000_000;
/// How far apart the deadlines are, and how far ahead: longer than it takes to set them.
const SPREAD: u32 = 512;
const AHEAD: Duration = Duration::from_secs(1);

fn main() {
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime with a clock needs nothing");
    measure::print_mass("timers-cancel", COUNT, |n| in_task(&rt, cancel(n)));
    measure::print_mass("timers-fire", COUNT, |n| in_task(&rt, fire(n)));
}

/// Inside a task: the future given to block_on is polled by other rules. Without a budget: once it is spent no timer would
/// be set any more.
fn in_task(rt: &Runtime, future: impl Future<Output = ()> + Send + 'static) {
    rt.block_on(rt.spawn(unconstrained(future))).expect("it does not panic");
}

async fn cancel(n: u32) {
    drop(set(n).await);
}

async fn fire(n: u32) {
    for timer in set(n).await {
        timer.await;
    }
}

/// Each is polled once, which sets it.
async fn set(n: u32) -> Vec<Pin<Box<Sleep>>> {
    let delay = |i: u32| AHEAD + Duration::from_millis((i.wrapping_mul(7919) % SPREAD).into());
    let mut timers: Vec<_> = (0..n).map(|i| Box::pin(sleep(delay(i)))).collect();
    poll_fn(|cx| {
        for timer in &mut timers {
            assert!(timer.as_mut().poll(cx).is_pending(), "none is due yet");
        }
        Poll::Ready(())
    })
    .await;
    timers
}
