//! 1,000,000 guarded, suspended coroutines at once, and what they cost:
//! `cargo run --release -p osier-coro --example million [COUNT]`. Takes about 4.7 GB of memory.

use osier_coro::Coroutine;
use osier_coro::stack::{Config, Pool};
use std::time::Instant;

/// A line of `/proc/self/status`, in KiB.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| l.trim_start_matches(':').split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

fn report(what: &str, start: Instant) {
    let maps = std::fs::read_to_string("/proc/self/maps")
        .unwrap_or_default()
        .lines()
        .count();
    let (rss, tables) = (status("VmRSS"), status("VmPTE"));
    println!(
        "{what:<12} {:>6.2} s   VmRSS {rss:>8} KiB   VmPTE {tables:>7} KiB   maps {maps:>5} lines",
        start.elapsed().as_secs_f64()
    );
}

fn main() -> std::io::Result<()> {
    let count = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(1_000_000usize);
    let pool = Pool::new(Config::default())?;
    let start = Instant::now();
    report("empty", start);
    let mut all = Vec::with_capacity(count);
    for n in 0..count {
        let mut coroutine = Coroutine::<(), usize, usize>::new(pool.take(None)?, move |y, ()| {
            y.suspend(n);
            n
        });
        coroutine.resume(());
        all.push(coroutine);
    }
    report("suspended", start);
    println!("{:?}", pool.counters());
    let mut sum = 0;
    for coroutine in &mut all {
        if let osier_coro::CoroutineResult::Return(n) = coroutine.resume(()) {
            sum += n;
        }
    }
    assert_eq!(sum, count * (count - 1) / 2, "every coroutine kept its own value");
    all.into_iter().for_each(|coroutine| pool.give(coroutine.into_stack()));
    report("pooled", start);
    while pool.trim() > 0 || pool.counters().pooled > 64 {}
    report("trimmed", start);
    Ok(())
}
