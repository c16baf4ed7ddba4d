//! A limit for calls that have none of their own.

use std::io;
use std::time::Duration;

/// Runs `call` within `limit`, if this is a fiber.
///
/// # Suspends
///
/// Where `call` does. Without a fiber it blocks the thread.
pub(super) fn within<T>(limit: Duration, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if osier::fiber::current().is_none() {
        return call();
    }
    osier::timeout(limit, call).unwrap_or_else(|elapsed| Err(io::Error::new(io::ErrorKind::TimedOut, elapsed)))
}
