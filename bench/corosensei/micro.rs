//! The bare context switch below Osier's fibers: the lower bound of the micro rows.
#![forbid(unsafe_code)]

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

fn main() {
    // One warm stack, taken by each coroutine and given back.
    let mut stack = Some(DefaultStack::default());
    // The least part of a spawn and a join: a coroutine made on a warm stack and run to its end.
    measure::print("spawn-join", |n| {
        for _ in 0..n {
            run(&mut stack, |_| ());
        }
    });
    // The least part of a yield: one switch there and one back.
    measure::print("yield", |n| {
        run(&mut stack, move |yielder| (0..n).for_each(|_| yielder.suspend(())))
    });
}

fn run(stack: &mut Option<DefaultStack>, body: impl FnOnce(&Yielder<(), ()>) + 'static) {
    let warm = stack.take().expect("the last coroutine gave it back");
    let mut coroutine = Coroutine::<(), (), (), _>::with_stack(warm, |yielder, ()| body(yielder));
    while let CoroutineResult::Yield(()) = coroutine.resume(()) {}
    *stack = Some(coroutine.into_stack());
}
