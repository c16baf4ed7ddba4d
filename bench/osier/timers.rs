//! Osier: a million timers that are set and removed again, and a million that are set and waited for, on one worker.
#![forbid(unsafe_code)]

use osier::time::Sleep;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

const COUNT: u32 = 1_000_000;
/// How far apart the deadlines are, and how far ahead: longer than it takes to set them.
const SPREAD: u32 = 512;
const AHEAD: Duration = Duration::from_secs(1);

fn main() {
    let rt = osier::Runtime::builder()
        .workers(1)
        .build()
        .expect("one worker needs a thread and an epoll");
    rt.run(|| {
        measure::print_mass("timers-cancel", COUNT, |n| in_task(cancel(n)));
        measure::print_mass("timers-fire", COUNT, |n| in_task(fire(n)));
    });
}

fn in_task(future: impl Future<Output = ()> + Send + 'static) {
    osier::spawn_future(future).join().expect("it does not panic");
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
    let mut timers: Vec<_> = (0..n).map(|i| Box::pin(Sleep::new(delay(i)))).collect();
    poll_fn(|cx| {
        for timer in &mut timers {
            assert!(timer.as_mut().poll(cx).is_pending(), "none is due yet");
        }
        Poll::Ready(())
    })
    .await;
    timers
}
