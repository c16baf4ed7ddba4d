//! A wait on many leaves allocates nothing: with one to eight leaves, ready or pending, with and without a deadline.
//!
//! The allocator counts on the thread of the one worker, so that other threads do not change the figure.

use std::future::{Future, pending, ready};
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};
use testkit::allocations as counting;

use osier::{Runtime, race, select, wait_all, wait_any, wait_any_until};
use tokio::sync::Semaphore;

const LONG: Duration = Duration::from_secs(3600);

/// Counts the allocations of a hundred rounds of `wait`, after a few that may fill pools and tables.
fn allocations(mut wait: impl FnMut()) -> usize {
    (0..10).for_each(|_| wait());
    let before = counting::allocations();
    (0..100).for_each(|_| wait());
    counting::allocations() - before
}

async fn take(permits: &Semaphore) {
    permits.acquire().await.expect("it is not closed").forget();
}

#[test]
fn no_wait_on_up_to_eight_leaves_allocates() {
    assert!(allocations(|| drop(Box::new(1))) >= 100, "the allocator does not count");
    Runtime::builder().workers(1).build().unwrap().run(|| {
        let permits: [Semaphore; 8] = std::array::from_fn(|_| Semaphore::new(0));
        osier::scope(|scope| {
            // One permit per turn of the fibers, so that each wait below really suspends.
            let giver = scope.spawn_local(|| {
                for n in (0..permits.len()).cycle() {
                    permits[n].add_permits(1);
                    osier::yield_now();
                }
            });
            osier::yield_now();
            let [a, b, c, d, e, f, g, h] = &permits;
            let counted = [
                (
                    "ready",
                    allocations(|| select! { () = ready(()) => {}, () = pending() => {} }),
                ),
                (
                    "default",
                    allocations(|| select! { () = pending() => {}, () = pending() => {}, default => {} }),
                ),
                (
                    "eight arms",
                    allocations(|| {
                        select! {
                            () = take(a) => {}
                            () = take(b) => {}
                            () = take(c) => {}
                            () = take(d) => {}
                            () = take(e) => {}
                            () = take(f) => {}
                            () = take(g) => {}
                            () = take(h) => {}
                        }
                    }),
                ),
                (
                    "eight arms and a timeout",
                    allocations(|| {
                        select! {
                            biased;
                            () = take(a) => {}
                            () = take(b) => {}
                            () = take(c) => {}
                            () = take(d) => {}
                            () = take(e) => {}
                            () = take(f) => {}
                            () = take(g) => {}
                            () = take(h) => {}
                            timeout LONG => unreachable!("permits come all the time"),
                        }
                    }),
                ),
                (
                    "a timeout that ends",
                    allocations(|| {
                        select! { () = pending() => {}, () = pending() => {}, timeout Duration::from_micros(100) => {} }
                    }),
                ),
                (
                    "wait_any and wait_any_until",
                    allocations(|| {
                        let (mut first, mut second, mut third) = (pin!(take(a)), pin!(take(b)), pin!(pending()));
                        let mut leaves: [Pin<&mut dyn Future<Output = ()>>; 3] =
                            [first.as_mut(), second.as_mut(), third.as_mut()];
                        let (winner, ()) = wait_any(&mut leaves);
                        let rest = if winner == 0 {
                            &mut leaves[1..]
                        } else {
                            &mut leaves[..1]
                        };
                        assert!(wait_any_until(rest, Instant::now() + LONG).is_some());
                    }),
                ),
                (
                    "wait_all",
                    allocations(|| {
                        let leaves: [Pin<&mut dyn Future<Output = ()>>; 8] = [
                            pin!(take(a)),
                            pin!(take(b)),
                            pin!(take(c)),
                            pin!(take(d)),
                            pin!(take(e)),
                            pin!(take(f)),
                            pin!(take(g)),
                            pin!(take(h)),
                        ];
                        wait_all(leaves);
                    }),
                ),
                (
                    "join",
                    allocations(|| {
                        osier::join!(take(a), take(b), take(c), take(d), take(e), take(f), take(g), take(h));
                    }),
                ),
                ("race", allocations(|| race((take(a), take(b), take(c), take(d))))),
                (
                    "select_async",
                    allocations(|| {
                        osier::block_on(async {
                            osier::select_async! { () = take(a) => {}, () = take(b) => {}, timeout LONG => {} }
                        });
                    }),
                ),
            ];
            giver.cancel();
            assert!(giver.join().is_err());
            for (what, allocations) in counted {
                assert_eq!(allocations, 0, "allocations by 100 × {what}");
            }
        });
    });
}
