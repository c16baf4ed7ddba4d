//! The clock of the micro programs: the same loop around the primitive of each library.
//!
//! It counts CPU time of the whole process, as the rows about servers do, so other processes on the core do not show. Where
//! two cores take part it counts elapsed time, because there the wait is what is measured. A program that gets a name as
//! its argument measures only that figure.
#![forbid(unsafe_code)]

use rustix::time::{ClockId, clock_gettime};

/// Batches that count; one before them warms up.
const BATCHES: usize = 9;
const ITERATIONS: u32 = 200_000;
/// Iterations of operations that take two cores. One of them may cost two wake-ups of a thread.
const ITERATIONS_APART: u32 = 10_000;

/// Runs `batch(n)`, which does its operation `n` times, and prints `NAME NANOSECONDS` of CPU for one: the median of the batches.
pub fn print(name: &str, batch: impl FnMut(u32)) {
    median(name, ClockId::ProcessCPUTime, ITERATIONS, batch);
}

/// Does the same as [`print`] in elapsed time, for operations between two cores.
pub fn print_apart(name: &str, batch: impl FnMut(u32)) {
    median(name, ClockId::Monotonic, ITERATIONS_APART, batch);
}

/// As [`print_apart`], for what seldom waits.
pub fn print_abreast(name: &str, batch: impl FnMut(u32)) {
    median(name, ClockId::Monotonic, ITERATIONS, batch);
}

/// As [`print`], of `count` things at once: one batch, which is warm-up and sample enough.
pub fn print_mass(name: &str, count: u32, batch: impl FnOnce(u32)) {
    if is_wanted(name) {
        let start = nanos(ClockId::ProcessCPUTime);
        batch(count);
        let each = (nanos(ClockId::ProcessCPUTime) - start) as f64 / f64::from(count);
        println!("{name} {each:.2}");
    }
}

fn median(name: &str, clock: ClockId, iterations: u32, mut batch: impl FnMut(u32)) {
    if !is_wanted(name) {
        return;
    }
    batch(iterations);
    let mut each: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = nanos(clock);
            batch(iterations);
            (nanos(clock) - start) as f64 / f64::from(iterations)
        })
        .collect();
    each.sort_by(f64::total_cmp);
    println!("{name} {:.2}", each[BATCHES / 2]);
}

/// Whether the arguments ask for this figure: it, or none in particular.
fn is_wanted(name: &str) -> bool {
    std::env::args().nth(1).is_none_or(|wanted| wanted == name)
}

/// CPU time that all threads of this process have used, or what a clock on the wall shows.
fn nanos(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Prints `NAME BYTES`: what `count` things that now exist cost each, `before` being [`memory`] without them.
pub fn print_memory(name: &str, before: u64, count: usize) {
    println!("{name} {:.1}", memory().saturating_sub(before) as f64 / count as f64);
}

/// Bytes this process holds: resident memory and page tables, as the kernel counts them.
pub fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
    let kilobytes = |key: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .expect("every kernel reports it");
        line.trim()
            .trim_end_matches(" kB")
            .parse::<u64>()
            .expect("a number of kB")
    };
    (kilobytes("VmRSS:") + kilobytes("VmPTE:")) * 1024
}

/// The first argument as a number: the port of a server, the count of a memory program.
pub fn argument() -> usize {
    let given = std::env::args().nth(1);
    given
        .and_then(|text| text.parse().ok())
        .expect("one argument: a number")
}
