//! The seeds that a simulation runs.

use std::ops::Range;

/// The seeds of a run: the environment variable `OSIER_SIM_SEEDS` has their number, or the first one and an end as in `1000..2000`.
/// Without it there are `usual`.
///
/// # Panics
///
/// If the variable has something else.
pub fn seeds(usual: u64) -> Range<u64> {
    let Ok(text) = std::env::var("OSIER_SIM_SEEDS") else {
        return 0..usual;
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
