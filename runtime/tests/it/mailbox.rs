//! `Mailbox`: flags that fibers, threads and futures raise, wait for and take.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::colours::Count;
use crate::given::{on, settle, timeless};
use osier::Cancelled;
use osier::sync::{Mailbox, MailboxWait};

const GENEROUS: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(10);

fn poll(wait: Pin<&mut MailboxWait<'_>>, waker: &Waker) -> Poll<u32> {
    wait.poll(&mut Context::from_waker(waker))
}

#[test]
fn the_types_go_to_other_threads() {
    fn all<T: Send + Sync>() {}
    all::<Mailbox>();
    all::<MailboxWait<'static>>();
}

#[test]
fn raise_and_take_alone_are_an_atomic_set() {
    let mailbox = Mailbox::new();
    assert_eq!(mailbox.state(), 0);
    mailbox.raise(0b0110);
    mailbox.raise(0b1010);
    assert_eq!(mailbox.state(), 0b1110);
    assert_eq!(mailbox.take(0b0010), 0b1110, "the whole state before");
    assert_eq!(mailbox.state(), 0b1100, "the others stay");
    assert_eq!(mailbox.take(0), 0b1100);
    mailbox.raise(Mailbox::ALL);
    assert_eq!(mailbox.take(Mailbox::ALL), u32::MAX);
    assert_eq!(mailbox.state(), 0);
}

#[test]
fn one_flag_taken_by_one_is_a_lock() {
    // Each fiber that takes the flag counts, and raises the flag again.
    const FREE: u32 = 1 << 5;
    let (mailbox, count) = (Mailbox::new(), AtomicU32::new(0));
    mailbox.raise(FREE);
    on(2).run(|| {
        osier::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..500 {
                        while mailbox.take(FREE) & FREE == 0 {
                            mailbox.wait_any(FREE);
                        }
                        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        mailbox.raise(FREE);
                    }
                });
            }
        });
    });
    assert_eq!(count.into_inner(), 8 * 500);
    assert_eq!(mailbox.state(), FREE);
}

#[test]
fn flags_that_are_raised_suspend_nobody_and_stay() {
    on(1).run(|| {
        let others = Rc::new(Cell::new(false));
        let other = osier::spawn_local({
            let others = Rc::clone(&others);
            move || others.set(true)
        });
        let mailbox = Mailbox::new();
        mailbox.raise(0b101);
        for _ in 0..3 {
            assert_eq!(mailbox.wait_any(0b110), 0b101);
            assert_eq!(mailbox.wait_all(0b101), 0b101);
        }
        assert!(!others.get(), "another fiber ran meanwhile");
        assert_eq!(mailbox.state(), 0b101);
        other.join().unwrap();
    });
}

#[test]
fn the_empty_set_is_satisfied_at_once() {
    let mailbox = Mailbox::new();
    assert_eq!((mailbox.wait_any(0), mailbox.wait_all(0)), (0, 0));
    mailbox.raise(2);
    assert_eq!((mailbox.wait_any(0), mailbox.wait_all(0)), (2, 2));
    on(1).run(|| {
        assert_eq!((mailbox.wait_any(0), mailbox.wait_all(0)), (2, 2));
        assert_eq!(osier::block_on(mailbox.wait_any_async(0)), 2);
    });
}

#[test]
fn fibers_threads_and_futures_wait_for_any_and_all() {
    let mailbox = Mailbox::new();
    on(2).run(|| {
        thread::scope(|threads| {
            osier::scope(|s| {
                let fiber = s.spawn(|| mailbox.wait_any(0b0011));
                let thread = threads.spawn(|| mailbox.wait_all(0b0011));
                let future = threads.spawn(|| osier::block_on(mailbox.wait_all_async(0b0111)));
                let foreign = threads.spawn(|| futures_lite::future::block_on(mailbox.wait_any_async(0b1000)));
                // A wait that ends too early has its chance.
                osier::sleep(SHORT);
                assert!(!thread.is_finished() && !future.is_finished() && !foreign.is_finished());
                mailbox.raise(0b0001);
                assert_eq!(fiber.join().unwrap() & 0b0001, 0b0001);
                assert!(!thread.is_finished() && !future.is_finished() && !foreign.is_finished());
                mailbox.raise(0b0010);
                assert_eq!(thread.join().unwrap() & 0b0011, 0b0011);
                assert!(!future.is_finished() && !foreign.is_finished());
                mailbox.raise(0b0100);
                assert_eq!(future.join().unwrap() & 0b0111, 0b0111);
                assert!(!foreign.is_finished());
                mailbox.raise(0b1000);
                assert_eq!(foreign.join().unwrap(), 0b1111);
            });
        });
    });
}

#[test]
fn a_raise_wakes_those_whom_it_satisfies_and_nobody_else() {
    let mailbox = Mailbox::new();
    let counters: [_; 4] = std::array::from_fn(|_| Count::new());
    let mut waits = [
        Box::pin(mailbox.wait_any_async(0b001)),
        Box::pin(mailbox.wait_any_async(0b011)),
        Box::pin(mailbox.wait_all_async(0b011)),
        Box::pin(mailbox.wait_all_async(0b111)),
    ];
    for (wait, (_, waker)) in waits.iter_mut().zip(&counters) {
        assert!(poll(wait.as_mut(), waker).is_pending());
    }
    let wakes = || counters.each_ref().map(|(counter, _)| counter.wakes());
    mailbox.raise(0b1000);
    assert_eq!(wakes(), [0, 0, 0, 0]);
    mailbox.raise(0b0010);
    assert_eq!(wakes(), [0, 1, 0, 0]);
    mailbox.raise(0b0010);
    assert_eq!(wakes(), [0, 1, 0, 0], "once");
    mailbox.raise(0b0001);
    assert_eq!(wakes(), [1, 1, 1, 0]);
    let states = waits.each_mut().map(|wait| poll(wait.as_mut(), Waker::noop()));
    assert_eq!(
        states,
        [
            Poll::Ready(0b1011),
            Poll::Ready(0b1010),
            Poll::Ready(0b1011),
            Poll::Pending
        ]
    );
}

#[test]
fn a_condition_that_held_for_a_moment_ends_the_wait() {
    let mailbox = Mailbox::new();
    let mut wait = pin!(mailbox.wait_all_async(0b11));
    assert!(poll(wait.as_mut(), Waker::noop()).is_pending());
    mailbox.raise(0b01);
    mailbox.take(0b01);
    mailbox.raise(0b10);
    assert!(poll(wait.as_mut(), Waker::noop()).is_pending(), "never both at once");
    mailbox.raise(0b01);
    mailbox.take(0b11);
    assert_eq!(
        poll(wait.as_mut(), Waker::noop()),
        Poll::Ready(0b11),
        "both at once, and gone"
    );
    assert!(poll(wait, Waker::noop()).is_pending(), "a new wait, for what is now");
}

#[test]
fn a_take_that_races_a_raise_keeps_nobody_waiting() {
    // The thief always takes the flag at once. Each wait was there before its raise, so each must end.
    const ROUNDS: usize = 5000;
    struct Over<'a>(&'a AtomicBool, &'a Mailbox);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
            self.1.raise(0b10);
        }
    }
    let (mailbox, ready, over) = (Mailbox::new(), Mailbox::new(), AtomicBool::new(false));
    thread::scope(|s| {
        let _over = Over(&over, &ready);
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                mailbox.take(1);
            }
        });
        s.spawn(|| {
            while ready.wait_any(0b11) & 0b10 == 0 {
                ready.take(1);
                mailbox.raise(1);
            }
        });
        for _ in 0..ROUNDS {
            let mut wait = pin!(mailbox.wait_any_async(1));
            assert!(poll(wait.as_mut(), Waker::noop()).is_pending());
            ready.raise(1);
            assert_eq!(osier::block_on(wait), 1);
            mailbox.take(1); // if the thief did not
        }
    });
}

#[test]
fn a_wait_that_is_dropped_or_cancelled_takes_nothing() {
    timeless(1).run(|| {
        let mailbox = Rc::new(Mailbox::new());
        let (counter, waker) = Count::new();
        let mut dropped = Box::pin(mailbox.wait_any_async(1));
        assert!(poll(dropped.as_mut(), &waker).is_pending());
        let wait = |set| {
            let mailbox = Rc::clone(&mailbox);
            osier::spawn_local(move || mailbox.wait_any(set))
        };
        let (cancelled, satisfied) = (wait(1), wait(1));
        settle();
        cancelled.cancel();
        assert!(cancelled.join().unwrap_err().is::<Cancelled>());
        drop(dropped);
        mailbox.raise(1);
        assert_eq!(counter.wakes(), 0);
        assert_eq!(satisfied.join().unwrap(), 1);
        assert_eq!(mailbox.state(), 1);
        assert!(osier::timeout(SHORT, || mailbox.wait_all(3)).is_err());
        assert_eq!(mailbox.take(1), 1);
    });
}

#[test]
fn five_thousand_wait_for_their_flags() {
    let (mailbox, ended) = (Mailbox::new(), [const { AtomicUsize::new(0) }; 32]);
    on(2).run(|| {
        osier::scope(|s| {
            for id in 0..5000 {
                let (mailbox, ended) = (&mailbox, &ended);
                s.spawn(move || {
                    let state = mailbox.wait_any(1 << (id % 32));
                    assert!(state >> (id % 32) & 1 == 1);
                    ended[id % 32].fetch_add(1, Ordering::SeqCst);
                });
            }
            for flag in (0..32).rev() {
                assert_eq!(ended[flag].load(Ordering::SeqCst), 0);
                mailbox.raise(1 << flag);
                let all = if flag < 5000 % 32 { 157 } else { 156 };
                let start = Instant::now();
                while ended[flag].load(Ordering::SeqCst) < all {
                    assert!(start.elapsed() < GENEROUS, "flag {flag}: some were not woken");
                    osier::yield_now();
                }
                assert_eq!(ended[flag].load(Ordering::SeqCst), all);
            }
        });
    });
    assert_eq!(mailbox.state(), Mailbox::ALL);
}

#[test]
fn children_are_joined_by_waiting_for_all() {
    let (done, sum) = (Mailbox::new(), AtomicU32::new(0));
    on(2).run(|| {
        osier::scope(|s| {
            for child in 0..32 {
                let (done, sum) = (&done, &sum);
                s.spawn(move || {
                    osier::yield_now();
                    sum.fetch_add(child, Ordering::Relaxed);
                    done.raise(1 << child);
                });
            }
            assert_eq!(done.wait_all(Mailbox::ALL), Mailbox::ALL);
            assert_eq!(sum.load(Ordering::Relaxed), 31 * 32 / 2);
        });
    });
}

#[test]
fn work_that_was_announced_by_many_is_not_lost() {
    const PRODUCERS: usize = 4;
    const EACH: usize = 5000;
    let (mailbox, work) = (Mailbox::new(), [const { AtomicUsize::new(0) }; PRODUCERS]);
    on(2).run(|| {
        osier::scope(|s| {
            for (flag, work) in work.iter().enumerate() {
                let mailbox = &mailbox;
                s.spawn(move || {
                    for turn in 0..EACH {
                        work.fetch_add(1, Ordering::Relaxed);
                        mailbox.raise(1 << flag);
                        if turn % 16 == 0 {
                            osier::yield_now();
                        }
                    }
                });
            }
            let mut taken = 0;
            while taken < PRODUCERS * EACH {
                mailbox.wait_any(0b1111); // for ever, if a raise was lost
                let raised = mailbox.take(Mailbox::ALL);
                for (flag, work) in work.iter().enumerate() {
                    if raised >> flag & 1 == 1 {
                        taken += work.swap(0, Ordering::Relaxed);
                    }
                }
            }
            assert_eq!(taken, PRODUCERS * EACH);
        });
    });
}

#[test]
fn two_fibers_play_ping_pong() {
    for workers in [1, 2] {
        let mailbox = Mailbox::new();
        let play = |mine: u32, other: u32| {
            for _ in 0..10_000 {
                mailbox.wait_any(mine);
                assert_eq!(mailbox.take(mine) & mine, mine);
                mailbox.raise(other);
            }
        };
        on(workers).run(|| {
            osier::scope(|s| {
                s.spawn(|| play(1, 2));
                s.spawn(|| play(2, 1));
                mailbox.raise(1);
            });
        });
        assert_eq!(mailbox.state(), 1);
    }
}

#[test]
fn one_that_is_static_serves_threads_without_a_runtime() {
    static MAILBOX: Mailbox = Mailbox::new();
    let waiter = thread::spawn(|| MAILBOX.wait_all(3));
    thread::spawn(|| MAILBOX.raise(1)).join().unwrap();
    thread::spawn(|| MAILBOX.raise(2)).join().unwrap();
    assert_eq!(waiter.join().unwrap(), 3);
}
