//! The line of the `date` field, made once per second and worker.
//!
//! One worker owns a line. A burst refreshes it from the runtime's cached time, so that no request
//! reads a clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use osier_http::DateLine;

pub(crate) struct DateCache {
    line: DateLine,
    /// When the second of the line ends.
    until: Instant,
}

impl DateCache {
    pub(crate) fn new(now: Instant) -> Self {
        Self::at(now, osier::time::system_now())
    }

    /// Makes a new line if the second of the old one has ended at `now`.
    #[inline]
    pub(crate) fn refresh(&mut self, now: Instant) {
        if now >= self.until {
            *self = Self::new(now);
        }
    }

    #[inline]
    pub(crate) fn line(&self) -> &DateLine {
        &self.line
    }

    fn at(now: Instant, wall: SystemTime) -> Self {
        let since = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        // `fmt_http_date` panics beyond the year 9999. A clock beyond it gives the last second of
        // that year.
        let seconds = since.as_secs().min(253_402_300_799);
        let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
        let date = text
            .as_bytes()
            .try_into()
            .expect("RFC 9110 5.6.7: an IMF-fixdate has 29 bytes");
        let line = DateLine::new(date).expect("a date has no control bytes");
        let left = Duration::from_secs(1) - Duration::from_nanos(since.subsec_nanos().into());
        DateCache {
            line,
            until: now + left,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_lasts_to_the_end_of_its_second() {
        let now = Instant::now();
        let mut date = DateCache::at(now, UNIX_EPOCH + Duration::from_millis(784_111_777_250));
        assert_eq!(date.line().as_bytes(), b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        date.refresh(now + Duration::from_millis(749));
        assert_eq!(date.line().as_bytes(), b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        date.refresh(now + Duration::from_millis(750));
        assert_ne!(date.line().as_bytes(), b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    }
}
