//! A task takes one allocation, for its state, its future and its value.
//!
//! The allocator counts on the thread of the one worker, so that other threads do not change the figure.

use osier::future::yield_now;
use osier::{Runtime, spawn_future, spawn_future_local};
use testkit::allocations as counting;

const ROUNDS: usize = 1000;

/// Counts the allocations of a thousand rounds, after a few that may fill queues and tables.
fn allocations(mut round: impl FnMut()) -> usize {
    (0..100).for_each(|_| round());
    let before = counting::allocations();
    (0..ROUNDS).for_each(|_| round());
    counting::allocations() - before
}

#[test]
fn a_task_with_its_handle_wakers_and_value_is_one_allocation() {
    let counted = Runtime::builder().workers(1).build().unwrap().run(|| {
        let task = |n: u64| async move {
            let captured = [n; 16];
            yield_now().await;
            captured[3]
        };
        [
            allocations(|| assert_eq!(spawn_future(task(3)).join().unwrap(), 3)),
            allocations(|| assert_eq!(spawn_future_local(task(4)).join().unwrap(), 4)),
            allocations(|| drop(spawn_future(task(5)))),
        ]
    });
    println!("{ROUNDS} tasks each: {counted:?} allocations");
    for counted in counted {
        // Dropped handles leave the tasks to run later, so that the tables of those still grow.
        assert!((ROUNDS..ROUNDS + 50).contains(&counted), "{counted}");
    }
}
