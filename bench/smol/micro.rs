//! smol: spawn and join, and yield, on a LocalExecutor.
#![forbid(unsafe_code)]

use std::rc::Rc;

fn main() {
    let ex = Rc::new(smol::LocalExecutor::new());
    measure::print("spawn-join", |n| {
        let own = ex.clone();
        let task = ex.spawn(async move {
            for _ in 0..n {
                own.spawn(async {}).await;
            }
        });
        smol::block_on(ex.run(task));
    });
    measure::print("yield", |n| {
        let task = ex.spawn(async move {
            for _ in 0..n {
                smol::future::yield_now().await;
            }
        });
        smol::block_on(ex.run(task));
    });
}
