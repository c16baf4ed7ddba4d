//! Waiting on many.
