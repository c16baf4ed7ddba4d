//! Deadlines: for the greeting, for a head, for the acknowledgement of settings, for the last answers of a peer, and for bodies that wait
//! for windows.

use std::time::{Duration, Instant};

use super::Connection;
use super::ending::Ending;
use crate::h2::event::Event;
use crate::h2::{Error, ErrorCode};

impl Connection {
    /// The time at which the owner calls [`expire`](Self::expire). It changes with every other call.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.failed.is_some() {
            return None;
        }
        let announced = match self.ending {
            Ending::Announced(at) => Some(at),
            _ => None,
        };
        // Woken streams count too: they may have to wait again at once.
        let stalled = self.streams.iter().filter(|stream| stream.reset.is_none());
        let stalled = stalled.filter_map(|stream| stream.waiting_since).min();
        let stalled = stalled.map(|since| since + self.limits.stall_timeout);
        [
            self.greeting,
            self.acknowledgement,
            announced,
            self.answers_deadline(),
            self.head_deadline(),
            stalled,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The time at which the field block in progress must have ended.
    fn head_deadline(&self) -> Option<Instant> {
        let partial = self.partial.as_ref()?;
        Some(partial.since + self.limits.head_timeout)
    }

    /// Does what is due at `now`. The owner calls it until it returns `None`.
    ///
    /// # Errors
    /// The connection has failed, as in [`receive`](Self::receive).
    pub fn expire(&mut self, now: Instant) -> Result<Option<Event<'static>>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let is_due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if is_due(self.greeting) {
            return Err(self.fail(Error::new(ErrorCode::SETTINGS_TIMEOUT, "no SETTINGS in time")));
        }
        if is_due(self.acknowledgement) {
            let reason = "the settings were not acknowledged in time";
            return Err(self.fail(Error::new(ErrorCode::SETTINGS_TIMEOUT, reason)));
        }
        if is_due(self.head_deadline()) {
            let reason = "a head did not end in time";
            return Err(self.fail(Error::new(ErrorCode::ENHANCE_YOUR_CALM, reason)));
        }
        if matches!(self.ending, Ending::Announced(at) if at <= now) {
            self.end_finally();
        }
        self.expire_answers(now);
        self.expire_stalled(now).map_err(|error| self.fail(error))
    }

    /// Resets one stream whose body has sent nothing for that long, because the peer's windows are shut. An owner that is short of memory
    /// calls it until it returns `None`.
    ///
    /// # Errors
    /// The connection has failed, as in [`receive`](Self::receive).
    pub fn reset_stalled(&mut self, patience: Duration, now: Instant) -> Result<Option<Event<'static>>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let is_due = |since: Instant| now.saturating_duration_since(since) >= patience;
        // A stream with a window of its own waits for that of the connection, or for the output, which the owner times.
        let waiting = || self.streams.iter().filter_map(|stream| stream.held_since);
        let is_shut = self.send_window.left() == 0 && is_due(waiting().fold(self.progress.0, Instant::max));
        let held = self.streams.iter().find(|stream| {
            let is_held = stream.reset.is_none() && stream.held_since.is_some_and(is_due);
            is_held && (is_shut || stream.send_window.left() == 0)
        });
        match held.map(|stream| stream.id) {
            Some(id) => self
                .stream_error(id, ErrorCode::CANCEL, now)
                .map_err(|error| self.fail(error)),
            None => Ok(None),
        }
    }

    /// Resets one stream whose body has waited too long for the peer's windows.
    fn expire_stalled(&mut self, now: Instant) -> Result<Option<Event<'static>>, Error> {
        let is_due = |since: Instant| since + self.limits.stall_timeout <= now;
        // A stream with a window of its own waits for the others, as long as these make progress, or for the output, which the
        // owner times.
        let others = if self.send_window.left() > 0 {
            now
        } else {
            self.progress.0
        };
        let mut stalled = None;
        for stream in self.streams.iter_mut().filter(|stream| stream.reset.is_none()) {
            let Some(since) = stream.waiting_since.filter(|since| is_due(*since)) else {
                continue;
            };
            let since = if stream.send_window.left() > 0 {
                since.max(others)
            } else {
                since
            };
            if is_due(since) {
                stalled = Some(stream.id);
                break;
            }
            stream.waiting_since = Some(since);
        }
        match stalled {
            Some(id) => self.stream_error(id, ErrorCode::CANCEL, now),
            None => Ok(None),
        }
    }
}
