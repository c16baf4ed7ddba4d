//! Standard error, which the error log shares with access logs. No worker waits for it.
//!
//! An access log has a thread that waits until the stream takes a piece. Meanwhile a line of the error log waits in a
//! bounded buffer, and the thread writes it before the next line of the access log. While no thread writes, a line of
//! the error log is written at once if the stream takes it.
//!
//! Each write is one of at most [`LONGEST`] bytes, after poll(2) has said that the stream takes them. No write holds
//! std's lock of standard error, which a panic takes.
//!
//! Lock order: `torn` before `errors`. Only threads of access logs take `torn`, and they hold it while they wait for
//! the stream. A thread that waits for the stream does not hold `errors`.

use std::io::{self, Stderr, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr, write};

use super::writer::{Output, Written, count, write_lines};

/// Bytes of the longest write. A writable pipe takes this many at once (pipe(7)), so the write does not block.
pub const LONGEST: usize = 4096;

/// Bytes of error lines that may wait for the thread of an access log.
const WAITING: usize = 64 * 1024;

/// Standard error of the process.
pub fn stderr() -> Arc<Shared<Stderr>> {
    static STDERR: LazyLock<Arc<Shared<Stderr>>> = LazyLock::new(|| Shared::new(io::stderr()));
    Arc::clone(&STDERR)
}

/// A stream with lines of the error log and of access logs.
pub struct Shared<W> {
    stream: W,
    /// Whether the stream ends within a line. The thread that writes holds the lock.
    torn: Mutex<bool>,
    errors: Mutex<Errors>,
}

/// The lines of the error log.
#[derive(Default)]
struct Errors {
    /// Whether the thread of an access log writes. It then writes `waiting` too.
    is_writing: bool,
    waiting: Vec<u8>,
}

impl<W: AsFd> Shared<W> {
    /// Shares a stream.
    pub fn new(stream: W) -> Arc<Shared<W>> {
        Arc::new(Shared {
            stream,
            torn: Mutex::default(),
            errors: Mutex::default(),
        })
    }

    /// Writes lines of the error log, at most [`LONGEST`] bytes, or leaves them to the thread that writes. False if
    /// they are lost.
    pub fn put(&self, lines: &[u8]) -> bool {
        let mut errors = self.errors();
        if errors.is_writing {
            let has_room = errors.waiting.len() + lines.len() <= WAITING;
            if has_room {
                errors.waiting.extend_from_slice(lines);
            }
            return has_room;
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut ready = [PollFd::new(&self.stream, PollFlags::OUT)];
        // A stream that cannot be polled is closed. The write then fails, and its error is ignored.
        if matches!(poll(&mut ready, Some(&now)), Ok(0)) {
            return false;
        }
        !matches!(retry_on_intr(|| write(&self.stream, lines)), Err(Errno::AGAIN))
    }

    fn errors(&self) -> MutexGuard<'_, Errors> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lines of the error log that wait. None if there are none and the thread `is_done`, which ends its
    /// writing.
    fn waiting(&self, is_done: bool) -> Option<Vec<u8>> {
        let mut errors = self.errors();
        errors.is_writing = !is_done || !errors.waiting.is_empty();
        errors.is_writing.then(|| mem::take(&mut errors.waiting))
    }
}

/// The output of an access log, whose thread calls it.
impl<W: AsFd + Send + Sync> Output for Arc<Shared<W>> {
    fn write(&mut self, lines: &[u8]) -> Written {
        let mut torn = self.torn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = Patient(&self.stream);
        let (mut rest, mut written) = (lines, Written::All);
        while let Some(errors) = self.waiting(rest.is_empty()) {
            let _ = write_lines(&mut out, &errors, &mut torn);
            let (piece, after) = rest.split_at(piece(rest));
            rest = after;
            if let Err((lost, _, error)) = write_lines(&mut out, piece, &mut torn) {
                written = Written::Lost(lost + count(after), error);
                rest = &[];
            }
        }
        written
    }
}

/// The length of the next piece: whole lines of at most [`LONGEST`] bytes together, or one longer line.
fn piece(lines: &[u8]) -> usize {
    let is_end = |&byte: &u8| byte == b'\n';
    let most = lines.len().min(LONGEST);
    let end = lines[..most].iter().rposition(is_end);
    end.or_else(|| lines.iter().position(is_end))
        .map_or(lines.len(), |end| end + 1)
}

/// Waits until the stream takes bytes before it writes them.
struct Patient<'a, W>(&'a W);

impl<W: AsFd> Write for Patient<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(LONGEST)];
        loop {
            match poll(&mut [PollFd::new(self.0, PollFlags::OUT)], None) {
                Err(Errno::INTR) => continue,
                polled => polled?,
            };
            match write(self.0, bytes) {
                // Another process that shares the stream was faster.
                Err(Errno::AGAIN | Errno::INTR) => {}
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::thread;

    /// Nobody reads while the thread of an access log writes 1.6 MB. `put` returns all the same, and its lines are
    /// between whole lines of the access log, also of those that need several writes.
    #[test]
    fn error_lines_do_not_wait_for_an_access_log() {
        let (mut reader, stream) = io::pipe().unwrap();
        let shared = Shared::new(stream);
        let lines: Vec<String> = (0..200)
            .map(|n| format!("{n} {}\n", "x".repeat([5, 4000, 20_000][n % 3])))
            .collect();
        let writing = thread::spawn({
            let (mut shared, lines) = (Arc::clone(&shared), lines.concat());
            move || matches!(shared.write(lines.as_bytes()), Written::All)
        });
        while !shared.errors().is_writing {
            thread::yield_now();
        }
        let taken = (0..10_000)
            .filter(|n| shared.put(format!("error {n:5}\n").as_bytes()))
            .count();
        // The lines in the bounded buffer, and the lines that the thread had taken from it.
        assert!((WAITING / 12..10_000).contains(&taken), "{taken}");
        drop(shared);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert!(writing.join().unwrap(), "lines are lost");
        let (errors, access): (Vec<&str>, Vec<&str>) =
            text.split_inclusive('\n').partition(|line| line.starts_with("error "));
        assert!(access == lines, "{} lines", access.len());
        assert_eq!(errors.len(), taken);
        assert!(errors.is_sorted() && errors.iter().all(|line| line.len() == 12));
        assert!(!text.ends_with(errors[taken - 1]), "the thread wrote error lines last");
    }

    #[test]
    fn a_closed_stream_loses_the_lines_of_the_access_log() {
        let (reader, stream) = io::pipe().unwrap();
        drop(reader);
        let mut shared = Shared::new(stream);
        match shared.write(b"one\ntwo\n") {
            Written::Lost(lost, _) => assert_eq!(lost, 2),
            _ => panic!("nobody reads"),
        }
        assert!(!shared.errors().is_writing);
    }
}
