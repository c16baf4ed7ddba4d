//! The access log: one line per request, in Apache's combined format or as JSON, to standard error or a file.
//!
//! Workers format a line and append it to one buffer under a short lock. A separate thread writes the buffer four times a
//! second, and at once when 64 KiB are waiting. So a slow disk or terminal never stops a worker: a full buffer drops lines,
//! and the number of dropped lines is reported once there is room. [`AccessLog::finish`], or dropping the log, writes the
//! remaining lines.
//!
//! Lock order: there is one lock. Nothing is written or formatted while it is held.
//!
//! A file is opened for appending and each write ends with a whole line. So the file may be rotated by copy and truncate, or by
//! renaming it and calling [`AccessLog::reopen`].

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use osier_web::Served;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::entry::{Entry, combined, json};

/// The forms of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Apache's combined log format.
    Combined,
    /// One JSON object per line.
    Json,
    /// No access log.
    Off,
}

/// Bytes that may wait for the writer thread. Lines beyond them are dropped.
const FULL: usize = 4 * 1024 * 1024;
/// Bytes that wake the writer thread early.
const EAGER: usize = 64 * 1024;
/// The longest time that a line waits for others before it is written.
const PATIENCE: Duration = Duration::from_millis(250);

/// An open access log, shared by the workers.
#[derive(Debug)]
pub struct AccessLog {
    json: bool,
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// The file that [`AccessLog::reopen`] opens again. None for another sink.
    path: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    wake: Condvar,
}

#[derive(Default)]
struct Pending {
    lines: Vec<u8>,
    dropped: u64,
    closing: bool,
    /// The output for these lines and all later ones, set by [`AccessLog::reopen`].
    reopened: Option<Box<dyn Write + Send>>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending")
            .field("bytes", &self.lines.len())
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}

impl AccessLog {
    /// Starts the writer thread on `out`. `None` for [`LogFormat::Off`].
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(format: LogFormat, out: Box<dyn Write + Send>) -> io::Result<Option<AccessLog>> {
        let json = match format {
            LogFormat::Off => return Ok(None),
            LogFormat::Combined => false,
            LogFormat::Json => true,
        };
        let shared = Arc::new(Shared::default());
        let writer = thread::Builder::new().name("osier-log".into()).spawn({
            let shared = Arc::clone(&shared);
            move || write_out(&shared, out)
        })?;
        Ok(Some(AccessLog {
            json,
            shared,
            writer: Mutex::new(Some(writer)),
            path: None,
        }))
    }

    /// Does the same as [`AccessLog::start`], but appends to the file at `path` and creates it if need be.
    ///
    /// # Errors
    /// When the file cannot be opened or the thread cannot be started.
    pub fn start_file(format: LogFormat, path: &Path) -> io::Result<Option<AccessLog>> {
        let mut log = AccessLog::start(format, Box::new(append(path)?))?;
        if let Some(log) = &mut log {
            log.path = Some(path.to_owned());
        }
        Ok(log)
    }

    /// Opens the file again after somebody has renamed or removed it. Lines that are not written yet, and all later ones, go
    /// to the new file. Does nothing for a log that is not a file.
    ///
    /// # Blocks the thread
    /// While the file is opened.
    ///
    /// # Errors
    /// When the file cannot be opened. The log then continues in the old file.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some(path) = &self.path {
            let file = append(path)?;
            self.shared.lock().reopened = Some(Box::new(file));
            self.shared.wake.notify_one();
        }
        Ok(())
    }

    /// Adds a line.
    pub fn record(&self, entry: &Entry<'_>) {
        let mut line = Vec::with_capacity(256);
        if self.json {
            json(&mut line, entry)
        } else {
            combined(&mut line, entry)
        }
        line.push(b'\n');
        let mut pending = self.shared.lock();
        if pending.lines.len() + line.len() > FULL {
            pending.dropped += 1;
            return;
        }
        let before = pending.lines.len();
        pending.lines.extend_from_slice(&line);
        let grown = before < EAGER && pending.lines.len() >= EAGER;
        drop(pending);
        if grown {
            self.shared.wake.notify_one();
        }
    }

    /// Adds the line of a request whose response has just been sent.
    pub fn record_served(&self, served: &Served<'_>) {
        let field = |name: &str| served.header(name).unwrap_or_default();
        self.record(&Entry {
            client: served.client_ip(),
            time: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs() as i64),
            method: served.method().as_bytes(),
            target: served.target().as_bytes(),
            version: served.protocol(),
            status: served.status().as_u16(),
            bytes: served.bytes(),
            host: field("host"),
            referer: field("referer"),
            user_agent: field("user-agent"),
            took: Some(served.duration()),
            id: served.id(),
        });
    }

    /// Writes the remaining lines and ends the writer thread. Lines recorded later are lost.
    ///
    /// # Blocks the thread
    /// Until every line is written.
    pub fn finish(&self) {
        self.shared.lock().closing = true;
        self.shared.wake.notify_one();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            let _ = writer.join();
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Opens a file for appending without waiting: a pipe that nobody reads is an error.
fn append(path: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let opened = File::options()
        .append(true)
        .create(true)
        .custom_flags(nonblocking)
        .open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NXIO) => io::Error::new(error.kind(), "it is a pipe that nobody reads; start its reader first"),
        _ => error,
    })?;
    // From here on only the writer thread waits.
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Pending> {
        // No code that holds the lock leaves the buffer in a bad state, so a panic elsewhere does not stop logging.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the writer thread. An output error is reported once. When a write succeeds again, the number of lost lines is
/// reported. Later lines are tried all the same, since a full disk may be emptied.
fn write_out(shared: &Shared, mut out: Box<dyn Write + Send>) {
    let mut lines = Vec::new();
    let (mut reported, mut torn, mut lost) = (false, false, 0);
    loop {
        let pending = shared.lock();
        let (mut pending, _) = shared
            .wake
            .wait_timeout_while(pending, PATIENCE, |pending| {
                !pending.closing && pending.reopened.is_none() && pending.lines.len() < EAGER
            })
            .unwrap_or_else(PoisonError::into_inner);
        lines.clear();
        std::mem::swap(&mut lines, &mut pending.lines);
        let (dropped, closing) = (std::mem::take(&mut pending.dropped), pending.closing);
        if let Some(reopened) = pending.reopened.take() {
            (out, reported, torn) = (reopened, false, false);
        }
        drop(pending);
        match write_lines(&mut *out, &lines, &mut torn) {
            Err((left, error)) => {
                lost += left;
                if !std::mem::replace(&mut reported, true) {
                    eprintln!("osier: access log: {error}; requests are served without it until it can be written");
                }
            }
            Ok(()) if lost > 0 && !lines.is_empty() => {
                eprintln!("osier: access log: it can be written again; {lost} lines are missing");
                (reported, lost) = (false, 0);
            }
            Ok(()) => {}
        }
        if dropped > 0 {
            eprintln!(
                "osier: access log: {dropped} lines were dropped because they came faster than they could be written"
            );
        }
        if closing {
            return;
        }
    }
}

/// Writes `lines`. The error holds how many lines were not written completely. `torn` says whether the output ends within
/// a line; the next write then begins with a line feed.
fn write_lines(out: &mut dyn Write, lines: &[u8], torn: &mut bool) -> Result<(), (u64, io::Error)> {
    let mut rest = lines;
    let missing = |rest: &[u8]| rest.iter().filter(|&&byte| byte == b'\n').count() as u64;
    if *torn && !rest.is_empty() {
        out.write_all(b"\n").map_err(|error| (missing(rest), error))?;
        *torn = false;
    }
    while !rest.is_empty() {
        let count = match out.write(rest) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            written => written,
        };
        let count = count.map_err(|error| (missing(rest), error))?;
        *torn = rest[count - 1] != b'\n';
        rest = &rest[count..];
    }
    out.flush().map_err(|error| (0, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::entry::tests::ENTRY;
    use std::sync::mpsc;

    /// Sends each write over a channel, as slowly as the test receives.
    struct Slow(mpsc::SyncSender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_arrive_whole_and_the_last_ones_on_drop() {
        let (sender, receiver) = mpsc::sync_channel(1024);
        let log = AccessLog::start(LogFormat::Combined, Box::new(Slow(sender)))
            .unwrap()
            .unwrap();
        for status in 200..300 {
            log.record(&Entry { status, ..ENTRY });
        }
        drop(log);
        let text = String::from_utf8(receiver.iter().flatten().collect()).unwrap();
        assert_eq!(text.lines().count(), 100);
        assert!(
            text.lines()
                .zip(200..)
                .all(|(line, status)| line.contains(&format!("\" {status} 2326"))),
            "{text}"
        );
    }

    #[test]
    fn a_stuck_output_costs_lines_but_neither_time_nor_memory() {
        let (sender, receiver) = mpsc::sync_channel(0);
        let log = AccessLog::start(LogFormat::Json, Box::new(Slow(sender)))
            .unwrap()
            .unwrap();
        let long = [b'x'; 4096];
        for _ in 0..4 * FULL / long.len() {
            log.record(&Entry { target: &long, ..ENTRY });
        }
        assert!(log.shared.lock().lines.len() <= FULL);
        // The writer thread cannot write the unread lines any more: it sees a broken pipe and ends.
        drop(receiver);
        drop(log);
    }

    /// The file is rotated by rename while four threads write. Every line is in one of the files, whole, and none twice.
    #[test]
    fn reopened_without_losing_a_line() {
        let folder = std::env::temp_dir().join(format!("osier-log-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("access.log");
        let log = AccessLog::start_file(LogFormat::Json, &path).unwrap().unwrap();
        thread::scope(|scope| {
            for writer in 0..4u64 {
                let log = &log;
                scope.spawn(move || {
                    for line in 0..500 {
                        let bytes = writer * 1000 + line;
                        log.record(&Entry { bytes, ..ENTRY });
                        if line % 50 == 0 {
                            thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
            }
            for rotation in 0..5 {
                thread::sleep(Duration::from_millis(2));
                std::fs::rename(&path, folder.join(format!("access.log.{rotation}"))).unwrap();
                log.reopen().unwrap();
            }
        });
        drop(log);
        let mut seen = std::collections::BTreeSet::new();
        for file in std::fs::read_dir(&folder).unwrap() {
            for line in std::fs::read_to_string(file.unwrap().path()).unwrap().lines() {
                let bytes = line.split("\"bytes\":").nth(1).unwrap().split(',').next().unwrap();
                assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
                assert!(seen.insert(bytes.parse::<u64>().unwrap()), "twice: {line}");
            }
        }
        assert_eq!(seen.len(), 2000);
        // If the file cannot be opened again, the log continues in the old one.
        let gone = AccessLog::start_file(LogFormat::Json, &path).unwrap().unwrap();
        std::fs::rename(&folder, folder.with_extension("moved")).unwrap();
        assert_eq!(gone.reopen().unwrap_err().kind(), io::ErrorKind::NotFound);
        gone.record(&Entry { bytes: 9999, ..ENTRY });
        drop(gone);
        let moved = folder.with_extension("moved");
        let text = std::fs::read_to_string(moved.join("access.log")).unwrap();
        assert!(text.lines().last().unwrap().contains("\"bytes\":9999"), "{text}");
        std::fs::remove_dir_all(moved).unwrap();
    }

    #[test]
    fn off_is_no_log() {
        assert!(
            AccessLog::start(LogFormat::Off, Box::new(io::sink()))
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn after_a_full_disk_lines_are_whole_again() {
        /// A disk that has room for so many bytes.
        #[derive(Default)]
        struct Disk {
            bytes: Vec<u8>,
            room: usize,
        }
        impl Write for Disk {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let count = bytes.len().min(self.room);
                if count == 0 {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                self.room -= count;
                self.bytes.extend_from_slice(&bytes[..count]);
                Ok(count)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (mut disk, mut torn) = (Disk::default(), false);
        disk.room = 8;
        let (lost, error) = write_lines(&mut disk, b"one\ntwo\nthree\nfour\n", &mut torn).unwrap_err();
        assert_eq!((lost, error.kind(), torn), (2, io::ErrorKind::StorageFull, false));
        disk.room = 3;
        assert_eq!(write_lines(&mut disk, b"five\nsix\n", &mut torn).unwrap_err().0, 2);
        assert!(torn);
        assert_eq!(write_lines(&mut disk, b"seven\n", &mut torn).unwrap_err().0, 1);
        disk.room = 100;
        write_lines(&mut disk, b"", &mut torn).unwrap();
        write_lines(&mut disk, b"eight\nnine\n", &mut torn).unwrap();
        assert_eq!(disk.bytes, b"one\ntwo\nfiv\neight\nnine\n");
        assert!(!torn);
    }
}
