//! What must not allocate, counted by the allocator.

use osier_coro::stack::{Config, Pool};
use osier_coro::{Coroutine, CoroutineResult, Defers};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: it hands every call to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    f();
    ALLOCATIONS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn reset_and_run_does_not_allocate() {
    let pool = Pool::new(Config::default()).unwrap();
    let mut coroutine = Coroutine::new(pool.take(None).unwrap(), |_, n: usize| n);
    coroutine.resume(0);
    let counted = allocations(|| {
        for n in 0..1000 {
            let captured = [n; 64];
            coroutine.reset(move |y, input| y.suspend(captured[7]) + input);
            assert_eq!(coroutine.resume(1), CoroutineResult::Yield(n));
            assert_eq!(coroutine.resume(2), CoroutineResult::Return(3));
        }
    });
    assert_eq!(counted, 0);
}

#[test]
fn a_coroutine_on_a_warm_stack_does_not_allocate() {
    let pool = Pool::new(Config::default()).unwrap();
    pool.give(pool.take(None).unwrap());
    let counted = allocations(|| {
        for n in 0..1000u64 {
            let stack = pool.take(None).unwrap();
            stack.label(std::panic::Location::caller(), Some("counted"));
            let mut coroutine = Coroutine::<(), u64, u64>::new(stack, move |y, ()| {
                y.suspend(n);
                n + 1
            });
            assert_eq!(coroutine.resume(()), CoroutineResult::Yield(n));
            assert_eq!(coroutine.resume(()), CoroutineResult::Return(n + 1));
            pool.give(coroutine.into_stack());
        }
    });
    assert_eq!(counted, 0);
}

#[test]
fn unused_defers_own_no_memory() {
    assert_eq!(allocations(|| drop(Defers::new())), 0);
}
