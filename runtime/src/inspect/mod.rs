//! Diagnostics: what a worker says of itself, and who reads it.
//!
//! | reader | reads | file |
//! |---|---|---|
//! | [`dump`] | every fiber, each asked on its own stack; every task | `dump.rs`, `frames.rs` |
//! | the watchdog | whether a worker turns its loop, and what it runs | `watchdog.rs` |
//! | [`Runtime::metrics`](crate::Runtime::metrics), [`metrics()`] | counters | `metrics.rs` |
//!
//! Each worker writes its numbers on a desk (`worker/desk.rs`), which has the protocol.

pub(crate) mod dump;
mod frames;
pub(crate) mod metrics;
mod sigquit;
pub(crate) mod watchdog;

pub use dump::{Dump, DumpedFiber, DumpedTask, DumpedWorker, Frame, State, Wait, Work, dump};
pub use metrics::{LatencyHistogram, Metrics, StackDepth, WorkerMetrics, metrics};
pub use sigquit::dump_on_sigquit;
