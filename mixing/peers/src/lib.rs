//! Servers and a runtime for the tests of this workspace, without the libraries that Osier is mixed with but for those of PostgreSQL.
//!
//! The tests of osier-postgres and of the example `arena` need nothing else, so a change of them alone builds no other library.
#![forbid(unsafe_code)]

pub mod peer;
pub mod postgres;

use std::time::Duration;

/// Longer than any test takes; one that hangs must not hang the run.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on a fiber of a runtime with `workers` workers.
///
/// # Panics
///
/// If it takes too long.
pub fn run_on<T: Send>(workers: usize, test: impl FnOnce() -> T + Send) -> T {
    let runtime = osier::Runtime::builder().workers(workers).build();
    let runtime = runtime.expect("a runtime needs a few threads and descriptors");
    runtime.run(|| osier::timeout(PATIENCE, test).expect("the test hangs"))
}

/// Runs a test on a fiber of a runtime with two workers.
pub fn run<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    run_on(2, test)
}
