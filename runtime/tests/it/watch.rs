//! `sync::watch`: the order of wake-ups, the last state, and races between senders and receivers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::Context;
use std::thread;
use std::time::Duration;

use osier::sim::Sim;
use osier::sync::watch;

use crate::colours::{Count, in_every_colour, poll_once};
use crate::given::on;

/// The numbers of receivers in the order in which a new state wakes them.
fn woken(receivers: usize) -> Vec<usize> {
    let order = Arc::new(Mutex::new(Vec::new()));
    let (sender, first) = watch::channel(0);
    let fibers: Vec<_> = (0..receivers)
        .map(|number| {
            let (mut receiver, order) = (first.clone(), Arc::clone(&order));
            osier::spawn(move || {
                receiver.changed().unwrap();
                order.lock().unwrap().push(number);
            })
        })
        .collect();
    osier::sleep(Duration::from_millis(1));
    sender.send(1);
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    let order = order.lock().unwrap();
    order.clone()
}

#[test]
fn receivers_are_woken_in_the_order_in_which_they_wait() {
    let expected: Vec<_> = (0..50).collect();
    assert_eq!(on(1).run(|| woken(50)), expected);
}

#[test]
fn a_simulation_with_many_receivers_repeats() {
    let run = |seed| {
        let orders = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&orders);
        let report = Sim::new(seed).report(move |_| {
            let order = woken(20);
            theirs.lock().unwrap().push(order);
        });
        assert_eq!(report.failure, None, "seed {seed}");
        orders.lock().unwrap().clone()
    };
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

#[test]
fn the_last_state_comes_before_the_end_in_every_colour() {
    in_every_colour(|| async {
        let (sender, mut receiver) = watch::channel(0);
        let other = sender.clone();
        sender.send(1);
        drop(sender);
        assert_eq!(receiver.has_changed(), Ok(true));
        other.send(2);
        drop(other);
        assert!(receiver.has_changed().is_err());
        assert_eq!(
            receiver
                .clone()
                .wait_for_async(|value| *value == 2)
                .await
                .map(|value| *value),
            Ok(2)
        );
        assert_eq!(
            receiver
                .clone()
                .wait_for_async(|_| false)
                .await
                .map(|value| *value)
                .unwrap_err()
                .to_string(),
            "every sender is gone"
        );
        assert_eq!(receiver.changed_async().await, Ok(()));
        assert_eq!(*receiver.borrow(), 2);
        assert!(receiver.changed_async().await.is_err());
    });
}

#[test]
fn a_state_that_was_borrowed_and_seen_is_not_waited_for() {
    let (sender, mut receiver) = watch::channel(0);
    sender.send(1);
    assert_eq!(*receiver.borrow(), 1);
    assert_eq!(receiver.has_changed(), Ok(true));
    assert_eq!(*receiver.borrow_and_update(), 1);
    assert_eq!(receiver.has_changed(), Ok(false));
    assert!(poll_once(pin!(receiver.changed_async())).is_pending());
    assert_eq!(*sender.borrow(), 1);
    let fresh = sender.subscribe();
    assert_eq!((fresh.has_changed(), sender.receiver_count()), (Ok(false), 2));
}

#[test]
fn a_change_that_is_none_or_panics_wakes_nobody() {
    let (sender, mut receiver) = watch::channel(0);
    let (count, waker) = Count::new();
    let mut changed = pin!(receiver.changed_async());
    assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(!sender.send_if_modified(|value| {
        *value = 1;
        false
    }));
    let panicked = catch_unwind(AssertUnwindSafe(|| sender.send_modify(|_| panic!("on purpose"))));
    assert!(panicked.is_err() && count.wakes() == 0);
    assert_eq!(sender.send(2), 1);
    assert_eq!(count.wakes(), 1);
    assert!(changed.poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn a_wait_that_is_dropped_has_seen_nothing() {
    let (sender, mut receiver) = watch::channel(0);
    let (count, waker) = Count::new();
    {
        let mut changed = pin!(receiver.changed_async());
        assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        sender.send(1);
    }
    assert_eq!(count.wakes(), 1);
    assert_eq!(receiver.has_changed(), Ok(true));
    assert!(format!("{sender:?}{receiver:?}").contains("data: 1"));
}

/// A borrow is a lock of the thread. A fiber that yielded with one would make the sender stop the worker for ever.
#[test]
fn no_fiber_yields_with_a_borrow() {
    for selects in [false, true] {
        let (end, ended) = mpsc::channel();
        thread::spawn(move || {
            on(1).run(move || {
                let (sender, mut receiver) = watch::channel(0);
                let watches = osier::spawn_local(move || {
                    for _ in 0..1000 {
                        match selects {
                            false => drop(receiver.wait_for(|_| true)),
                            true => osier::select! { value = receiver.wait_for_async(|_| true) => drop(value) },
                        }
                    }
                });
                while !watches.is_finished() {
                    sender.send(1);
                    osier::yield_now();
                }
                watches.join().unwrap();
            });
            end.send(())
        });
        ended.recv_timeout(testkit::DEADLINE).expect("the worker turns");
    }
}

#[test]
fn no_change_is_lost_between_threads() {
    const STATES: u32 = 20_000;
    let (sender, receiver) = watch::channel(0);
    let watchers: Vec<_> = (0..3)
        .map(|_| {
            let mut receiver = receiver.clone();
            thread::spawn(move || {
                let mut last = 0;
                while receiver.changed().is_ok() {
                    let value = *receiver.borrow();
                    assert!(value >= last);
                    last = value;
                }
                last
            })
        })
        .collect();
    drop(receiver);
    let senders = [sender.clone(), sender].map(|sender| {
        thread::spawn(move || {
            for _ in 0..STATES {
                sender.send_modify(|value| *value += 1);
            }
        })
    });
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    for watcher in watchers {
        assert_eq!(watcher.join().unwrap(), 2 * STATES, "the last state");
    }
}
