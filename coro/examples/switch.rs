//! Nanoseconds per operation of the coroutine layer, the best of several rounds each:
//! `cargo run --release -p osier-coro --example switch`.

use osier_coro::stack::{Config, Pool};
use osier_coro::{Coroutine, CoroutineResult, panic_count};
use std::hint::black_box;
use std::panic::Location;
use std::time::Instant;

const ROUNDS: usize = 15;

/// Prints the best and the median time of one of the `count` operations that `f` makes.
fn measure(what: &str, count: u32, mut f: impl FnMut(u32)) {
    let mut nanos: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            f(count);
            start.elapsed().as_secs_f64() * 1e9 / f64::from(count)
        })
        .collect();
    nanos.sort_by(f64::total_cmp);
    println!("{what:<44} {:>8.2} ns   median {:>8.2}", nanos[0], nanos[ROUNDS / 2]);
}

fn main() -> std::io::Result<()> {
    let pool = Pool::new(Config::default())?;
    pool.give(pool.take(None)?);

    let mut counter = Coroutine::<u32, u32, ()>::new(pool.take(None)?, |y, mut n| {
        loop {
            n = y.suspend(n + 1);
        }
    });
    measure("resume + suspend", 2_000_000, |count| {
        for n in 0..count {
            black_box(counter.resume(n));
        }
    });
    drop(counter);

    measure("take + give, warm stack", 2_000_000, |count| {
        for _ in 0..count {
            pool.give(black_box(pool.take(None).expect("warm")));
        }
    });

    let place = Location::caller();
    measure("take + label + give", 2_000_000, |count| {
        for _ in 0..count {
            let stack = pool.take(None).expect("warm");
            stack.label(black_box(place), None);
            pool.give(stack);
        }
    });

    measure("take + new + run + give", 1_000_000, |count| {
        for n in 0..count {
            let mut coroutine = Coroutine::<(), (), u32>::new(pool.take(None).expect("warm"), move |_, ()| n);
            let CoroutineResult::Return(value) = coroutine.resume(()) else {
                unreachable!("it does not suspend")
            };
            black_box(value);
            pool.give(coroutine.into_stack());
        }
    });

    measure("take + label + new + suspend + end + give", 1_000_000, |count| {
        for n in 0..count {
            let stack = pool.take(None).expect("warm");
            stack.label(black_box(place), None);
            let mut coroutine = Coroutine::<(), u32, u32>::new(stack, move |y, ()| {
                y.suspend(n);
                n
            });
            black_box(coroutine.resume(()));
            black_box(coroutine.resume(()));
            pool.give(coroutine.into_stack());
        }
    });

    let mut again = Coroutine::<(), (), u32>::new(pool.take(None)?, |_, ()| 0);
    measure("reset + run", 1_000_000, |count| {
        for n in 0..count {
            again.reset(move |_, ()| n);
            black_box(again.resume(()));
        }
    });

    for many in [100, 10_000] {
        let mut all = (0..many)
            .map(|_| {
                Ok(Coroutine::<(), u32, ()>::new(pool.take(None)?, |y, ()| {
                    (0..u32::MAX).for_each(|n| y.suspend(n))
                }))
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        measure(&format!("resume + suspend, {many} in turn"), 1_000_000, |count| {
            for _ in 0..count / many {
                for coroutine in &mut all {
                    black_box(coroutine.resume(()));
                }
            }
        });
    }

    struct WhileUnwinding;
    impl Drop for WhileUnwinding {
        fn drop(&mut self) {
            measure("panic count: take + put, while unwinding", 20_000, |count| {
                for _ in 0..count {
                    panic_count::put(black_box(panic_count::take()));
                }
            });
        }
    }
    let caught = std::panic::catch_unwind(|| {
        let _measure = WhileUnwinding;
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(caught.is_err());
    Ok(())
}
