//! Osier: spawn and join, and yield, on one worker, with and without the watchdog; then spawn and join of futures.
#![forbid(unsafe_code)]

use std::time::Duration;

fn main() {
    on_one_worker(None, || {
        fibers(["spawn-join", "spawn-local-join", "yield"]);
        futures();
    });
    on_one_worker(Some(Duration::from_secs(1)), || {
        fibers(["spawn-join-watched", "spawn-local-join-watched", "yield-watched"]);
    });
}

fn on_one_worker(watchdog: Option<Duration>, body: impl FnOnce() + Send) {
    osier::Runtime::builder()
        .workers(1)
        .watchdog(watchdog)
        .build()
        .expect("one worker needs a thread and an epoll")
        .run(body);
}

fn fibers([spawn, spawn_local, yields]: [&str; 3]) {
    measure::print(spawn, |n| {
        for _ in 0..n {
            osier::spawn(|| ()).join().expect("it does not panic");
        }
    });
    measure::print(spawn_local, |n| {
        for _ in 0..n {
            osier::spawn_local(|| ()).join().expect("it does not panic");
        }
    });
    measure::print(yields, |n| (0..n).for_each(|_| osier::yield_now()));
}

fn futures() {
    measure::print("spawn-future", |n| {
        let spawner = osier::spawn_future(async move {
            for _ in 0..n {
                osier::spawn_future(async {}).await.expect("it does not panic");
            }
        });
        spawner.join().expect("it does not panic");
    });
    measure::print("spawn-future-local", |n| {
        let spawner = osier::spawn_future_local(async move {
            for _ in 0..n {
                osier::spawn_future_local(async {}).await.expect("it does not panic");
            }
        });
        spawner.join().expect("it does not panic");
    });
}
