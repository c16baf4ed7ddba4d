//! Futures as tasks: what [`spawn_future`](crate::spawn_future) makes, with a name or with locals.
//!
//! A task is polled by the workers between fibers, on whichever has time; it never blocks one. Every primitive of this crate
//! has a future (`wait_async` beside `wait`), so tasks, fibers and threads meet at the same primitives.

pub use crate::executor::{Builder, Current, LocalKey, NoTask, Task, YieldNow, current, yield_now};
