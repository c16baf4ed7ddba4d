//! async-std: spawn and join of futures, on its executor with one thread.
#![forbid(unsafe_code)]

use async_std::task;

fn main() {
    // One thread is what it makes of one core, and the program is pinned to one.
    measure::print("spawn-future", |n| {
        let spawner = task::spawn(async move {
            for _ in 0..n {
                task::spawn(async {}).await;
            }
        });
        task::block_on(spawner);
    });
}
