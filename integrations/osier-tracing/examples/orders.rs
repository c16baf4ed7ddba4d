//! Two fibers of one worker take turns, and each logs in its own spans. Run it with `cargo run --example orders`.

use std::time::Duration;

use tracing_subscriber::util::SubscriberInitExt;

fn ship(order: u32) {
    let _order = tracing::info_span!("order", order).entered();
    for item in 1..=2 {
        let _item = tracing::info_span!("item", item).entered();
        osier::sleep(Duration::from_millis(5));
        tracing::info!("packed");
    }
    tracing::info!("shipped");
}

fn main() -> std::io::Result<()> {
    osier_tracing::Fibers::new(tracing_subscriber::fmt().without_time().finish()).init();
    let runtime = osier::Runtime::builder().workers(1).build()?;
    runtime.run(|| {
        osier::scope(|scope| {
            scope.spawn(|| ship(1));
            scope.spawn(|| ship(2));
        });
    });
    Ok(())
}
