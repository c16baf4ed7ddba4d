//! Diagnostics: the dump, the watchdog and the metrics.
//!
//! | part | shows | file |
//! |---|---|---|
//! | [`dump`] | every fiber, each asked on its own stack; every task | `dump.rs`, `frames.rs` |
//! | the panic hook | the fiber that panicked, and what it did | `panics.rs` |
//! | the watchdog | a worker that no longer turns its loop, and what it runs | `watchdog.rs`, `stuck.rs`, `waiters.rs` |
//! | [`Runtime::metrics`](crate::Runtime::metrics), [`metrics()`] | counters | `metrics.rs` |
//!
//! None of them changes what it shows. Each worker writes its own numbers to its desk; `worker/desk.rs` has that
//! protocol.

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
