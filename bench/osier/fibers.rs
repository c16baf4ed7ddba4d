//! Ours: what a suspended fiber costs, each on its own guarded stack. Argument: how many.
#![forbid(unsafe_code)]

use std::time::Duration;

fn main() {
    let count = measure::argument();
    let rt = osier::Runtime::builder()
        .workers(1)
        .build()
        .expect("one worker needs a thread and an epoll");
    rt.run(move || {
        let before = measure::memory();
        let fibers: Vec<_> = (0..count)
            .map(|_| osier::spawn_local(|| osier::sleep(Duration::from_secs(3600))))
            .collect();
        // Long enough for each to have started and gone to sleep: one pass of the ready queue runs them all.
        osier::sleep(Duration::from_millis(10));
        measure::print_memory("fiber", before, fibers.len());
        std::process::exit(0);
    });
}
