//! The callback face: run queue, timers, descriptor monitors.
