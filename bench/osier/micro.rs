//! Ours: spawn and join, and yield, on one worker.
#![forbid(unsafe_code)]

fn main() {
    let rt = osier::Runtime::builder()
        .workers(1)
        .build()
        .expect("one worker needs a thread and an epoll");
    rt.run(|| {
        measure::print("spawn-join", |n| {
            for _ in 0..n {
                osier::spawn(|| ()).join().expect("it does not panic");
            }
        });
        measure::print("spawn-local-join", |n| {
            for _ in 0..n {
                osier::spawn_local(|| ()).join().expect("it does not panic");
            }
        });
        measure::print("yield", |n| (0..n).for_each(|_| osier::yield_now()));
    });
}
