//! A coroutine suspended in mid-unwind, with its thread's panic count taken out: pins what `panic_count` relies on in std.

use crate::small_stack;
use osier_coro::{Coroutine, CoroutineResult, Yielder, panic_count};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, panicking};

/// Suspends while it is dropped, and checks that the thread then panics as before.
struct SuspendInDrop<'a>(&'a Yielder<(), usize>, usize);

impl Drop for SuspendInDrop<'_> {
    fn drop(&mut self) {
        assert!(panicking());
        self.0.suspend(self.1);
        assert!(panicking(), "the count was not put back");
    }
}

/// Ends by a panic that is caught inside, having suspended `depth` times while unwinding, each time one panic deeper.
fn unwinding(depth: usize) -> Coroutine<(), usize, ()> {
    fn level(y: &Yielder<(), usize>, now: usize, depth: usize) {
        struct Deeper<'a>(&'a Yielder<(), usize>, usize, usize);
        impl Drop for Deeper<'_> {
            fn drop(&mut self) {
                if self.1 < self.2 {
                    level(self.0, self.1 + 1, self.2);
                }
                assert!(panicking());
            }
        }
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _deeper = Deeper(y, now, depth);
            let _suspends = SuspendInDrop(y, now);
            resume_unwind(Box::new(now));
        }));
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&now));
    }
    Coroutine::new(small_stack(0), move |y, ()| {
        level(y, 1, depth);
        assert!(!panicking());
    })
}

/// The work of a neighbour. Nothing in it may notice the panic.
fn neighbour() {
    assert!(!panicking());
    let lock = Mutex::new(0);
    *lock.lock().unwrap() += 1;
    assert!(!lock.is_poisoned());
    let caught = catch_unwind(|| resume_unwind(Box::new("neighbour")));
    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"neighbour"));
    assert!(!panicking());
}

#[test]
fn neighbours_of_an_unwinding_coroutine_see_no_panic() {
    assert_eq!(panic_count::take(), 0);
    let run = |depth: usize| {
        let mut coroutine = unwinding(depth);
        let mut held = 0;
        for level in 1..=depth {
            panic_count::put(held);
            assert_eq!(coroutine.resume(()), CoroutineResult::Yield(level));
            assert!(panicking(), "without this the test shows nothing");
            held = panic_count::take();
            assert_eq!(held, level, "one per panic that is under way");
            neighbour();
        }
        panic_count::put(held);
        assert_eq!(coroutine.resume(()), CoroutineResult::Return(()));
        neighbour();
    };
    for depth in 1..=4 {
        run(depth);
    }
}

#[test]
fn many_at_once_end_in_any_order() {
    let mut parked: Vec<_> = (0..100)
        .map(|n| {
            let mut coroutine = unwinding(1 + n % 2);
            assert_eq!(coroutine.resume(()), CoroutineResult::Yield(1));
            (coroutine, panic_count::take())
        })
        .collect();
    let mut step = 0;
    while !parked.is_empty() {
        step += 37;
        let index = step % parked.len();
        let (mut coroutine, held) = parked.swap_remove(index);
        panic_count::put(held);
        let result = coroutine.resume(());
        match result {
            CoroutineResult::Yield(_) => parked.push((coroutine, panic_count::take())),
            CoroutineResult::Return(()) => neighbour(),
        }
    }
}

#[test]
fn threads_do_not_disturb_each_other() {
    let barrier = Arc::new(Barrier::new(4));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let barrier = barrier.clone();
            thread::spawn(move || {
                for _ in 0..200 {
                    let mut coroutine = unwinding(2);
                    barrier.wait();
                    let mut held = 0;
                    for level in 1..=2 {
                        panic_count::put(held);
                        assert_eq!(coroutine.resume(()), CoroutineResult::Yield(level));
                        held = panic_count::take();
                        neighbour();
                    }
                    panic_count::put(held);
                    coroutine.resume(());
                    neighbour();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn a_real_panic_with_its_hook_works_the_same() {
    let mut coroutine = Coroutine::new(small_stack(0), |y, ()| {
        let _suspends = SuspendInDrop(y, 7);
        panic!("expected by this test");
    });
    assert_eq!(coroutine.resume(()), CoroutineResult::<_, ()>::Yield(7));
    let held = panic_count::take();
    assert_eq!(held, 1);
    neighbour();
    panic_count::put(held);
    let payload = catch_unwind(AssertUnwindSafe(|| coroutine.resume(()))).unwrap_err();
    assert_eq!(payload.downcast_ref(), Some(&"expected by this test"));
    neighbour();
}
