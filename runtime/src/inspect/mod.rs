//! Diagnostics: the dump, the watchdog and the metrics.
//!
//! | part | shows |
//! |---|---|
//! | [`dump()`], [`dump_on_sigquit`] | every fiber, each asked on its own stack; every task |
//! | the panic hook | the fiber that panicked, and what it did |
//! | the watchdog, [`Builder::watchdog`](crate::Builder::watchdog) | a worker that no longer turns its loop, and what it runs |
//! | [`Runtime::metrics`](crate::Runtime::metrics), [`metrics()`] | counters |
//!
//! None of them changes what it shows.

//   dump        dump.rs, frames.rs
//   panic hook  panics.rs
//   watchdog    watchdog.rs, stuck.rs, waiters.rs
//   metrics     metrics.rs: each worker writes its own numbers to its desk; worker/desk.rs has that protocol

pub(crate) mod dump;
mod frames;
pub(crate) mod metrics;
#[cfg(not(feature = "backtrace"))]
mod no_backtrace;
pub(crate) mod panics;
mod sigquit;
mod stuck;
mod waiters;
pub(crate) mod watchdog;

pub use dump::{Dump, DumpedFiber, DumpedTask, DumpedWorker, RunState, StackFrame, Wait, Work, dump, dump_fiber};
pub use metrics::{LatencyHistogram, Metrics, StackDepth, WorkerMetrics, metrics};
pub use sigquit::dump_on_sigquit;
