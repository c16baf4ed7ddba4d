//! Osier: the memory of suspended fibers, each on a guarded stack of its own. Argument: how many.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

fn main() {
    let count = measure::argument();
    let rt = osier::Runtime::builder()
        .workers(1)
        .build()
        .expect("one worker needs a thread and an epoll");
    rt.run(move || {
        let before = measure::memory();
        let asleep = Rc::new(Cell::new(0));
        for _ in 0..count {
            let asleep = asleep.clone();
            osier::spawn_local(move || {
                asleep.set(asleep.get() + 1);
                osier::sleep(Duration::from_secs(3600));
            });
        }
        // One worker: when this fiber runs, every other one that has started is suspended.
        while asleep.get() < count {
            osier::yield_now();
        }
        measure::print_memory("fiber", before, count);
        // Unwinding them one by one is not what is measured.
        std::process::exit(0);
    });
}
