//! The operator's log on standard error: failures, reloads and other events. Requests go to the access log.
//!
//! Every part that logs is given a [`Say`] when it is made. So a test can collect the lines.
//!
//! A line must never stop a worker, and a peer can provoke lines. So a line is written only when standard error takes all of
//! it at once. A pipe or a socket that nobody reads loses lines, and the next line that gets through reports how many. A
//! failed request is not logged if its reason was logged within the last second; a later line reports how many were
//! left out.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Logs one line, given without its line end.
pub type Say = Arc<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;

/// Bytes of the longest line. A writable pipe takes this many at once (pipe(7)), so the write does not block.
const LONGEST: usize = 4096;

/// The time during which a cause is not logged again.
const REPEAT: Duration = Duration::from_secs(1);

/// The number of causes that are remembered. When as many are remembered, a line with another cause is always logged.
const REMEMBERED: usize = 64;

/// A [`Say`] for standard error. Each line is one write. A closed standard error is not a failure.
pub fn to_stderr() -> Say {
    to(io::stderr())
}

fn to(stream: impl Write + AsFd + Send + 'static) -> Say {
    let log = Mutex::new(Log {
        stream,
        lost: 0,
        recent: Vec::new(),
    });
    Arc::new(move |line| {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.say(line.to_string(), Instant::now());
    })
}

struct Log<W> {
    stream: W,
    /// Lines that the stream did not take.
    lost: u64,
    recent: Vec<Recent>,
}

/// A line that was logged within [`REPEAT`].
struct Recent {
    cause: u64,
    line: String,
    written: Instant,
    /// How many lines with the same cause were left out since.
    again: u64,
}

impl<W: Write + AsFd> Log<W> {
    fn say(&mut self, line: String, now: Instant) {
        let old = |recent: &mut Recent| now.duration_since(recent.written) >= REPEAT;
        let old: Vec<Recent> = self.recent.extract_if(.., old).collect();
        for Recent { line, again, .. } in old {
            if again > 0 {
                self.put(&format!("{again} more lines with this cause: {line}"));
            }
        }
        let Some(cause) = cause(&line) else {
            return self.put(&line);
        };
        if let Some(recent) = self.recent.iter_mut().find(|recent| recent.cause == cause) {
            recent.again += 1;
            return;
        }
        self.put(&line);
        if self.recent.len() < REMEMBERED {
            self.recent.push(Recent {
                cause,
                line,
                written: now,
                again: 0,
            });
        }
    }

    /// Writes a line, after a report of the lines that were lost before it. Counts the line as lost if the stream does not take it.
    fn put(&mut self, line: &str) {
        if self.lost > 0 && self.write(&format!("{} lines were lost here because nobody read them", self.lost)) {
            self.lost = 0;
        }
        if self.lost > 0 || !self.write(line) {
            self.lost += 1;
        }
    }

    /// Writes a line if the stream takes it now. Returns whether it did.
    fn write(&mut self, line: &str) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut ready = [PollFd::new(&self.stream, PollFlags::OUT)];
        // A stream that cannot be polled is closed. The write then fails, and its error is ignored.
        if matches!(poll(&mut ready, Some(&now)), Ok(0)) {
            return false;
        }
        let prefix = "osier: ";
        let room = LONGEST - prefix.len() - 1;
        let line = format!("{prefix}{}\n", &line[..line.floor_char_boundary(room)]);
        let _ = self.stream.write_all(line.as_bytes());
        true
    }
}

/// A hash of the reason of a failed request. The peer chooses the target, so it is left out. None for every other line.
fn cause(line: &str) -> Option<u64> {
    let (_, reason) = line.split_once(" failed: ")?;
    let mut hasher = DefaultHasher::new();
    reason.hash(&mut hasher);
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn log() -> (Log<UnixStream>, UnixStream) {
        let (stream, reader) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        let log = Log {
            stream,
            lost: 0,
            recent: Vec::new(),
        };
        (log, reader)
    }

    fn read(reader: &mut UnixStream) -> String {
        let mut text = Vec::new();
        let _ = reader.read_to_end(&mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_cause_is_written_once_a_second() {
        let (mut log, mut reader) = log();
        let start = Instant::now();
        for n in 0..100 {
            log.say(format!("GET /{n} failed: no backend"), start);
        }
        log.say("reloaded".into(), start);
        log.say("reloaded".into(), start);
        assert_eq!(
            read(&mut reader),
            "osier: GET /0 failed: no backend\nosier: reloaded\nosier: reloaded\n"
        );
        log.say("GET / failed: no backend".into(), start + REPEAT);
        assert_eq!(
            read(&mut reader),
            "osier: 99 more lines with this cause: GET /0 failed: no backend\n\
             osier: GET / failed: no backend\n"
        );
    }

    #[test]
    fn lines_that_nobody_takes_are_counted_and_stop_nobody() {
        let (mut log, mut reader) = log();
        let start = Instant::now();
        for n in 0..1000 {
            log.say(format!("{n}: {}", "x".repeat(3000)), start);
        }
        assert!(log.lost > 0, "the socket has room for all");
        let lost = log.lost;
        read(&mut reader);
        log.say("back".into(), start);
        let expected = format!("osier: {lost} lines were lost here because nobody read them\nosier: back\n");
        assert_eq!(read(&mut reader), expected);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let (mut log, mut reader) = log();
        log.say("ü".repeat(5000), Instant::now());
        let text = read(&mut reader);
        assert!(text.len() <= LONGEST && text.ends_with("ü\n"), "{}", text.len());
    }
}
