//! Log output: the access log of requests, and the error log with lines for the operator.
//!
//! ```text
//!   Served ─▶ access.rs ─▶ entry.rs, fields.rs: one line a request ─┐
//!                                                                   ├▶ syslog.rs: a header ─▶ writer.rs: buffer, thread, output
//!   operator.rs: Say ─▶ errors.rs: level, one line a cause and second ─┘
//!             └─ stderr.rs: a line is written at once if the stream takes it, or by the thread of an access log
//! ```
//!
//! No call that logs waits for an output.

pub mod access;
mod entry;
pub mod errors;
pub mod fields;
pub mod operator;
pub mod settings;
mod stderr;
pub mod syslog;
pub mod text;
mod writer;

pub use self::text::Client;
