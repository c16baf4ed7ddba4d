//! The clock of the micro programs: the same loop around everybody's primitive.
//!
//! It counts CPU time of the whole process, as the rows about servers do, so that neighbours on the core do not show.
#![forbid(unsafe_code)]

use rustix::time::{ClockId, clock_gettime};

/// Batches that count; one before them warms up.
const BATCHES: usize = 9;
const ITERATIONS: u32 = 200_000;

/// Runs `batch(n)`, which does its thing `n` times, and prints `NAME NANOSECONDS` for one: the median of the batches.
pub fn print(name: &str, mut batch: impl FnMut(u32)) {
    batch(ITERATIONS);
    let mut each: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = cpu_nanos();
            batch(ITERATIONS);
            (cpu_nanos() - start) as f64 / f64::from(ITERATIONS)
        })
        .collect();
    each.sort_by(f64::total_cmp);
    println!("{name} {:.2}", each[BATCHES / 2]);
}

/// CPU time that all threads of this process have used.
fn cpu_nanos() -> i64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
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
