//! smol: spawn and join, and yield, on a LocalExecutor; spawn and join on an Executor too, whose tasks may move.
#![forbid(unsafe_code)]

use std::rc::Rc;
use std::sync::Arc;

fn main() {
    let ex = Rc::new(smol::LocalExecutor::new());
    for name in ["spawn-join", "spawn-future-local"] {
        measure::print(name, |n| {
            let own = ex.clone();
            let task = ex.spawn(async move {
                for _ in 0..n {
                    own.spawn(async {}).await;
                }
            });
            smol::block_on(ex.run(task));
        });
    }
    measure::print("yield", |n| {
        let task = ex.spawn(async move {
            for _ in 0..n {
                smol::future::yield_now().await;
            }
        });
        smol::block_on(ex.run(task));
    });
    let ex = Arc::new(smol::Executor::new());
    measure::print("spawn-future", |n| {
        let own = ex.clone();
        let task = ex.spawn(async move {
            for _ in 0..n {
                own.spawn(async {}).await;
            }
        });
        smol::block_on(ex.run(task));
    });
}
