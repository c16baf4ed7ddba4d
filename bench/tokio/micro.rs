//! tokio: spawn and join, and yield, on its current_thread runtime.
#![forbid(unsafe_code)]

fn main() {
    let rt = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime without drivers needs nothing");
    // Inside a task: the future given to block_on is polled by other rules.
    let in_task = |task: tokio::task::JoinHandle<()>| rt.block_on(task).expect("it does not panic");
    measure::print("spawn-join", |n| {
        in_task(rt.spawn(async move {
            for _ in 0..n {
                tokio::spawn(async {}).await.expect("it does not panic");
            }
        }));
    });
    measure::print("yield", |n| {
        in_task(rt.spawn(async move {
            for _ in 0..n {
                tokio::task::yield_now().await;
            }
        }));
    });
}
