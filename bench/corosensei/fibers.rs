//! The memory of suspended coroutines on corosensei's own stacks, each mapped alone. Argument: how many.
#![forbid(unsafe_code)]

use corosensei::{Coroutine, CoroutineResult};

fn main() {
    let count = measure::argument();
    let mut all = Vec::with_capacity(count);
    let before = measure::memory();
    for _ in 0..count {
        let mut coroutine = Coroutine::<(), (), ()>::new(|yielder, ()| yielder.suspend(()));
        assert!(matches!(coroutine.resume(()), CoroutineResult::Yield(())));
        all.push(coroutine);
    }
    measure::print_memory("fiber", before, count);
    // Unwinding them one by one is not what is measured.
    std::process::exit(0);
}
