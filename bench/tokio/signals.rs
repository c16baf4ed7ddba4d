//! tokio: two tasks that signal each other in turn through `Notify`; on current_thread, on multi_thread with two workers
//! (where they may meet on one), and each on a runtime of its own (where they cannot).
#![forbid(unsafe_code)]

use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

fn main() {
    let alone = || {
        Builder::new_current_thread()
            .build()
            .expect("a runtime without drivers needs nothing")
    };
    let one = alone();
    measure::print("event", |n| {
        let (ping, pong) = pair(n);
        let (ping, pong) = (one.spawn(ping), one.spawn(pong));
        one.block_on(async { (ping.await, pong.await) })
            .0
            .expect("it does not panic");
    });
    let two: Runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("two workers need two threads");
    measure::print_apart("event-apart", |n| {
        let (ping, pong) = pair(n);
        let (ping, pong) = (two.spawn(ping), two.spawn(pong));
        two.block_on(async { (ping.await, pong.await) })
            .0
            .expect("it does not panic");
    });
    measure::print_apart("event-two-runtimes", |n| {
        let (ping, pong) = pair(n);
        let other = std::thread::spawn(move || alone().block_on(pong));
        one.block_on(ping);
        other.join().expect("it does not panic");
    });
}

fn pair(n: u32) -> (impl Future<Output = ()> + Send, impl Future<Output = ()> + Send) {
    let there: Arc<[Notify; 2]> = Arc::default();
    let back = there.clone();
    let ping = async move {
        for _ in 0..n {
            there[0].notify_one();
            there[1].notified().await;
        }
    };
    let pong = async move {
        for _ in 0..n {
            back[0].notified().await;
            back[1].notify_one();
        }
    };
    (ping, pong)
}
