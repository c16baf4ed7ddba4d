//! may: spawn and join, and yield, on one worker.

fn main() {
    may::config().set_workers(1);
    measure::print("spawn-join", |n| {
        in_coroutine(move || {
            for _ in 0..n {
                // SAFETY: the coroutine uses no thread-local and next to no stack, which is what spawn asks for.
                unsafe { may::coroutine::spawn(|| ()) }
                    .join()
                    .expect("it does not panic");
            }
        });
    });
    measure::print("yield", |n| {
        in_coroutine(move || (0..n).for_each(|_| may::coroutine::yield_now()));
    });
}

fn in_coroutine(body: impl FnOnce() + Send + 'static) {
    // SAFETY: the bodies above use no thread-local and next to no stack.
    unsafe { may::coroutine::spawn(body) }
        .join()
        .expect("it does not panic");
}
