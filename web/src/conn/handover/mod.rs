//! Sends connections, and messages of the application, to another process in an [upgrade](crate::upgrade).
//!
//! - `format`, `record` and `fields` turn messages and connections into bytes. They depend on nothing else and are
//!   fuzzed alone, with the property in `law`.
//! - `channel` is the socket to the other process. `dialog` is the queue in front of it, and the state that the other
//!   process has reported.

pub(crate) mod channel;
pub(crate) mod dialog;
pub(crate) mod fields;
pub(crate) mod format;
#[cfg(test)]
mod law;
pub(crate) mod record;
