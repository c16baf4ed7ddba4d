//! Chance and time for scenarios, and the runs of one.

use std::time::Duration;

use osier::sim::{Faults, Sim, World};

pub const SECOND: Duration = Duration::from_secs(1);

/// Runs a scenario for the seeds that have found defects, and for those of the run, which are `usual` ones. Every tenth of these runs twice,
/// and must be the same run.
pub fn check(found: &[u64], usual: u64, scenario: fn(&World)) {
    let sim = |seed| Sim::new(seed).limit(Duration::from_secs(100_000));
    let seeds = testkit::seeds(usual);
    for &seed in found.iter().filter(|seed| !seeds.contains(*seed)) {
        sim(seed).check(seed..seed + 1, scenario);
    }
    for seed in seeds {
        if seed % 10 == 0 {
            let [one, two] = [(); 2].map(|()| sim(seed).report(scenario));
            let difference = || first_difference(&one.trace, &two.trace);
            assert!(one.trace == two.trace, "seed {seed} is two runs: {}", difference());
            if one.failure.is_none() {
                continue;
            }
        }
        sim(seed).check(seed..seed + 1, scenario);
    }
}

fn first_difference(one: &str, two: &str) -> String {
    let differ = |(one, two): &(&str, &str)| one != two;
    match one.lines().zip(two.lines()).find(differ) {
        Some((one, two)) => format!("\n{one}\n{two}"),
        None => "one ends earlier".into(),
    }
}

/// A number below `bound`.
pub fn below(bound: u64) -> u64 {
    osier::sim::random() % bound
}

/// Whether something happens that happens once in `times`.
pub fn once_in(times: u64) -> bool {
    below(times) == 0
}

/// A time up to `longest`.
pub fn some_of(longest: Duration) -> Duration {
    longest * below(1000) as u32 / 1000
}

/// The size of the pieces in which so many bytes are sent: at most `largest`, and at most some 50 pieces.
pub fn piece_of(count: usize, largest: u64) -> usize {
    (1 + below(largest) as usize).max(count / 50)
}

/// Bytes that tell whose they are.
fn pattern(key: u64, count: usize) -> Vec<u8> {
    (0..count as u64)
        .map(|at| (key.wrapping_mul(31) ^ at ^ (at >> 8)) as u8)
        .collect()
}

/// Bytes of any length, mostly few.
pub fn some_bytes(key: u64) -> Vec<u8> {
    let most = [0, 10, 2000, 2000, 150_000][below(5) as usize];
    pattern(key, below(most + 1) as usize)
}

/// The faults of a network: none, mild ones or rough ones, with more resets than [`Faults::rough`] has.
pub fn some_faults() -> Faults {
    match below(3) {
        0 => Faults::none(),
        1 => Faults::mild(),
        _ => Faults {
            reset: 100,
            ..Faults::rough()
        },
    }
}
