//! Log output: the access log of requests, and the error log with lines for the operator.
//!
//! ```text
//!   Served ─▶ access.rs ─▶ entry.rs, fields.rs: one line a request ─┐
//!                                                                   ├▶ syslog.rs: a header ─▶ writer.rs: buffer, thread, output
//!   Say ─▶ operator.rs: level, one line a cause and second ─────────┘
//!             └─ standard error is written at once, if it takes the whole line
//! ```
//!
//! No call that logs waits for an output.

pub mod access;
mod entry;
pub mod fields;
pub mod operator;
pub mod settings;
pub mod syslog;
mod text;
mod writer;
