//! Operations that must not allocate. The allocator counts.

use osier_coro::stack::{Config, Pool};
use osier_coro::{Coroutine, CoroutineResult};
use testkit::allocations::{Counting, allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn counted(f: impl FnOnce()) -> usize {
    let before = allocations();
    f();
    allocations() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(counted(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn reset_and_run_does_not_allocate() {
    let pool = Pool::new(Config::default()).unwrap();
    let mut coroutine = Coroutine::new(pool.take(None).unwrap(), |_, n: usize| n);
    coroutine.resume(0);
    let count = counted(|| {
        for n in 0..1000 {
            let captured = [n; 64];
            coroutine.reset(move |y, input| y.suspend(captured[7]) + input);
            assert_eq!(coroutine.resume(1), CoroutineResult::Yield(n));
            assert_eq!(coroutine.resume(2), CoroutineResult::Return(3));
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn a_coroutine_on_a_warm_stack_does_not_allocate() {
    let pool = Pool::new(Config::default()).unwrap();
    pool.give(pool.take(None).unwrap());
    let count = counted(|| {
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
    assert_eq!(count, 0);
}
