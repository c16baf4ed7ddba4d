//! tokio: spawn and join, and yield, on its current_thread runtime; spawn and join on multi_thread with one worker too, whose
//! tasks may move.
#![forbid(unsafe_code)]

use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

fn main() {
    let rt = Builder::new_current_thread()
        .build()
        .expect("a runtime without drivers needs nothing");
    // Inside a task: the future given to block_on is polled by other rules.
    let in_task = |rt: &Runtime, task: tokio::task::JoinHandle<()>| rt.block_on(task).expect("it does not panic");
    measure::print("spawn-join", |n| in_task(&rt, rt.spawn(spawn_join(n))));
    measure::print("yield", |n| {
        let task = rt.spawn(async move {
            for _ in 0..n {
                tokio::task::yield_now().await;
            }
        });
        in_task(&rt, task);
    });
    measure::print("spawn-future-local", |n| {
        let set = LocalSet::new();
        let task = set.spawn_local(async move {
            for _ in 0..n {
                tokio::task::spawn_local(async {}).await.expect("it does not panic");
            }
        });
        set.block_on(&rt, task).expect("it does not panic");
    });
    let rt = Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .expect("one worker needs a thread");
    measure::print("spawn-future", |n| in_task(&rt, rt.spawn(spawn_join(n))));
}

async fn spawn_join(n: u32) {
    for _ in 0..n {
        tokio::spawn(async {}).await.expect("it does not panic");
    }
}
