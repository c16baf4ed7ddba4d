//! The costs of this crate's operations, uncontended, on one thread: `cargo run --release -p osier-queue --example costs`.
//!
//! Each figure is the fastest of nine runs, in nanoseconds, loop included.

use osier_queue::{Completion, Idle, Inbox, Link, Parker, WaitList, Wheel};
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Instant;

const OPERATIONS: u32 = 2_000_000;

fn measure(name: &str, mut operation: impl FnMut(u32)) {
    let run = |operation: &mut dyn FnMut(u32)| {
        let start = Instant::now();
        for round in 0..OPERATIONS {
            operation(round);
        }
        start.elapsed().as_nanos() as f64 / f64::from(OPERATIONS)
    };
    let fastest = (0..9).map(|_| run(&mut operation)).fold(f64::INFINITY, f64::min);
    println!("{name:<52} {fastest:7.1} ns");
}

fn main() {
    let mut wheel = Wheel::new(0);
    measure("wheel: insert + remove, empty wheel", |round| {
        let key = wheel.insert(u64::from(black_box(round) % 60_000), round);
        black_box(wheel.remove(key));
    });
    for live in 0..10_000u64 {
        wheel.insert(live * 7 % 60_000, 0);
    }
    measure("wheel: insert + remove, 10,000 live", |round| {
        let key = wheel.insert(u64::from(black_box(round) % 60_000), round);
        black_box(wheel.remove(key));
    });
    measure("wheel: next_wakeup", |_| {
        black_box(wheel.next_wakeup());
    });

    let waker = Waker::noop();
    measure("completion: complete + poll", |round| {
        let cell = Completion::new();
        // SAFETY: one producer and one consumer, on this thread.
        unsafe { cell.complete(black_box(round)) };
        // SAFETY: as above.
        assert!(unsafe { cell.poll(&mut Context::from_waker(waker)) }.is_ready());
    });
    measure("completion: poll (waits) + complete + poll", |round| {
        let cell = Completion::new();
        let mut cx = Context::from_waker(waker);
        // SAFETY: one producer and one consumer, on this thread.
        assert!(unsafe { cell.poll(&mut cx) }.is_pending());
        // SAFETY: as above.
        unsafe { cell.complete(black_box(round)) };
        // SAFETY: as above.
        assert!(unsafe { cell.poll(&mut cx) }.is_ready());
    });

    let list = WaitList::new();
    measure("wait list: register + wake_one + poll", |_| {
        let mut waiter = pin!(list.waiter());
        assert!(waiter.as_mut().register(waker));
        assert!(list.wake_one());
        assert!(
            waiter
                .as_mut()
                .poll_notified(&mut Context::from_waker(waker))
                .is_ready()
        );
    });
    measure("wait list: register + wake_all + poll", |_| {
        let mut waiter = pin!(list.waiter());
        assert!(waiter.as_mut().register(waker));
        assert_eq!(list.wake_all(), 1);
        assert!(
            waiter
                .as_mut()
                .poll_notified(&mut Context::from_waker(waker))
                .is_ready()
        );
    });
    measure("wait list: register + drop", |_| {
        let mut waiter = pin!(list.waiter());
        assert!(waiter.as_mut().register(waker));
    });
    measure("wait list: wake_one, nobody waits", |_| {
        black_box(list.wake_one());
    });
    measure("wait list: is_empty", |_| {
        black_box(list.is_empty());
    });

    let (inbox, links) = (Inbox::new(), [(); 64].map(|()| Link::new()));
    measure("inbox: push, and its share of a drain of 64", |round| {
        inbox.push(&links[..], round % 64);
        if round % 64 == 63 {
            inbox.drain(&links[..], |slot| _ = black_box(slot));
        }
    });

    let parker = Parker::new();
    measure("parker: unpark, owner awake", |_| {
        black_box(parker.unpark());
    });
    let idle = Idle::new(2);
    measure("idle: wake_candidate, nobody sleeps", |_| {
        black_box(idle.wake_candidate());
    });
    measure("idle: start_search + stop_search", |_| {
        black_box(idle.start_search() && idle.stop_search());
    });
}
