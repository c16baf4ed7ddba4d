//! Futures as tasks of the workers.
