//! The stacks of a worker, and the words for the lack of them and of places at the poller: one line a second, however many fibers
//! cannot start.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use osier_coro::{overflow, stack};
use rustix::io::Errno;

use crate::worker::core;
use crate::worker::stderr::say;

/// Time between two lines.
const SAY_AGAIN: Duration = Duration::from_secs(1);

/// Makes the pool of a worker. A stack that overflows tells what its fiber was doing.
pub(crate) fn pool(config: stack::Config) -> io::Result<stack::Pool> {
    overflow::describe_by(core::describe_overflow);
    stack::Pool::new(config)
}

/// The failures since the last line, and its time.
#[derive(Default)]
pub(crate) struct Shortage(Cell<(u32, Option<Instant>)>);

impl Shortage {
    /// Says that a connection is closed.
    #[cold]
    pub(crate) fn say_closed(&self, now: Instant, error: &io::Error) {
        self.say(
            now,
            format_args!("a connection is closed because there is no stack for it: {error}"),
        );
    }

    /// Says that a connection is closed because its events cannot be had.
    #[cold]
    pub(crate) fn say_refused(&self, now: Instant, error: &io::Error) {
        let remedy = match error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) {
            true => "; raise the sysctl fs.epoll.max_user_watches",
            false => "",
        };
        self.say(
            now,
            format_args!("a connection is closed because the poller does not take its socket: {error}{remedy}"),
        );
    }

    /// Says what is lacking, unless it has just been said.
    #[cold]
    pub(crate) fn say(&self, now: Instant, line: fmt::Arguments<'_>) {
        let (unsaid, since) = self.0.get();
        if since.is_some_and(|since| now.saturating_duration_since(since) < SAY_AGAIN) {
            return self.0.set((unsaid + 1, since));
        }
        self.0.set((0, Some(now)));
        match unsaid {
            0 => say(format_args!("osier: {line}")),
            _ => say(format_args!("osier: {line}; {unsaid} more times since the last line")),
        }
    }
}
