//! The line of the `date` field, and the heads of usual responses with that line, made once per second and worker.
//!
//! One worker owns a line. A burst refreshes it from the runtime's cached time, so that no request
//! reads a clock.

use std::ptr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use osier_http::{DateLine, FieldLines, HeadTemplate};

/// Most heads that are kept. They are searched in order.
const TEMPLATES: usize = 8;

pub(crate) struct DateCache {
    line: DateLine,
    /// When the second of the line ends.
    until: Instant,
    /// The heads of responses with these content types and no other field.
    templates: Vec<(Option<&'static str>, HeadTemplate)>,
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

    /// The head of a 200 with the current date and this content type. `None` if as many heads as are kept
    /// have other content types.
    #[inline]
    pub(crate) fn template(&mut self, content_type: Option<&'static str>) -> Option<&mut HeadTemplate> {
        let is_same = |known: Option<&'static str>| match (known, content_type) {
            (Some(known), Some(asked)) => ptr::eq(known, asked),
            (None, None) => true,
            _ => false,
        };
        let at = match self.templates.iter().position(|&(known, _)| is_same(known)) {
            Some(at) => at,
            None => self.add_template(content_type)?,
        };
        Some(&mut self.templates[at].1)
    }

    #[cold]
    fn add_template(&mut self, content_type: Option<&'static str>) -> Option<usize> {
        let at = self.templates.len();
        if at == TEMPLATES {
            return None;
        }
        let mut fields = FieldLines::new();
        if let Some(value) = content_type {
            fields.push("content-type", value.as_bytes()).ok()?;
        }
        self.templates
            .push((content_type, HeadTemplate::new(&fields, &self.line)));
        Some(at)
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
            templates: Vec::new(),
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

    #[test]
    fn a_template_has_the_date_of_its_second() {
        use osier_http::{Exchange, Method, Version};
        let now = Instant::now();
        let mut date = DateCache::at(now, UNIX_EPOCH + Duration::from_secs(784_111_777));
        let written = |date: &mut DateCache, content_type| {
            let mut out = Vec::new();
            let exchange = Exchange::new(Method::Get, Version::Http11, true);
            date.template(content_type)?.write(&mut out, exchange, 1234)?;
            String::from_utf8(out).ok()
        };
        let of = |line: &str, date: &str| {
            format!("HTTP/1.1 200 OK\r\n{line}date: {date} GMT\r\ncontent-length: 1234\r\n\r\n")
        };
        for _ in 0..2 {
            let json = written(&mut date, Some("application/json"));
            assert_eq!(
                json.unwrap(),
                of("content-type: application/json\r\n", "Sun, 06 Nov 1994 08:49:37")
            );
            assert_eq!(written(&mut date, None).unwrap(), of("", "Sun, 06 Nov 1994 08:49:37"));
        }
        assert_eq!(date.templates.len(), 2);
        date.refresh(now + Duration::from_secs(1));
        let today = String::from_utf8(date.line().as_bytes().to_vec()).unwrap();
        assert!(written(&mut date, None).unwrap().contains(&today));
        assert_eq!(written(&mut date, Some("a\nb")), None);
        // No length of another response stays.
        for length in [1234, 5, 5, 0, 12, u64::MAX, 5] {
            let mut out = Vec::new();
            let exchange = Exchange::new(Method::Get, Version::Http11, true);
            date.template(None).unwrap().write(&mut out, exchange, length).unwrap();
            let end = format!(" GMT\r\ncontent-length: {length}\r\n\r\n");
            assert!(String::from_utf8(out).unwrap().ends_with(&end), "{length}");
        }
    }
}
