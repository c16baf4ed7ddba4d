//! Simulations of servers, gateways, rooms and chats, with their invariants. A run has clients and servers on hosts of their own, a
//! network that fails, and hosts that crash; all of it comes from one seed.
//!
//! `cargo xtask sim` runs more seeds than the tests do. A seed that has found a defect stays in the list of its scenario.

mod chat;
mod client;
mod fastcgi;
mod proxy;
mod pubsub;
mod server;

use std::ops::Range;
use std::time::Duration;

use osier::sim::{Sim, World};

const SECOND: Duration = Duration::from_secs(1);

/// The seeds of a run: `OSIER_SIM_SEEDS` has their number, or a first one and an end as in `1000..2000`.
fn seeds() -> Range<u64> {
    const USUAL: u64 = 200;
    let Ok(text) = std::env::var("OSIER_SIM_SEEDS") else {
        return 0..USUAL;
    };
    let number = |text: &str| -> u64 {
        text.parse()
            .expect("OSIER_SIM_SEEDS: a number, or two as in 1000..2000")
    };
    match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => 0..number(&text),
    }
}

/// Runs a scenario for the seeds that have found defects, and for those of the run. The first ones run twice, and must be the same run.
fn check(found: &[u64], scenario: fn(&World)) {
    const TWICE: u64 = 5;
    let sim = Sim::new(0).limit(Duration::from_secs(100_000));
    for &seed in found {
        sim.clone().check(seed..seed + 1, scenario);
    }
    let seeds = seeds();
    for seed in seeds.start..seeds.end.min(seeds.start + TWICE) {
        let [one, two] = [(); 2].map(|()| Sim::new(seed).report(scenario).trace);
        assert!(one == two, "seed {seed} is two runs: {}", first_difference(&one, &two));
    }
    sim.check(seeds, scenario);
}

fn first_difference(one: &str, two: &str) -> String {
    let differ = |(one, two): &(&str, &str)| one != two;
    match one.lines().zip(two.lines()).find(differ) {
        Some((one, two)) => format!("\n{one}\n{two}"),
        None => "one ends earlier".into(),
    }
}

/// A number below `bound`.
fn below(bound: u64) -> u64 {
    osier::sim::random() % bound
}

/// Whether something happens that happens once in `times`.
fn once_in(times: u64) -> bool {
    below(times) == 0
}

/// A time up to `longest`.
fn some_of(longest: Duration) -> Duration {
    longest * below(1000) as u32 / 1000
}

/// Bytes that tell whose they are.
fn pattern(key: u64, count: usize) -> Vec<u8> {
    (0..count as u64)
        .map(|at| (key.wrapping_mul(31) ^ at ^ (at >> 8)) as u8)
        .collect()
}

/// Bytes of any length, mostly few.
fn some_bytes(key: u64) -> Vec<u8> {
    let most = [0, 10, 2000, 2000, 150_000][below(5) as usize];
    pattern(key, below(most + 1) as usize)
}
