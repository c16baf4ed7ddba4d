//! A bounded buffer of lines and the thread that writes them, so that a slow output never stops a worker.
//!
//! Code that logs appends whole lines under a short lock. The thread writes the buffer four times a second. It writes
//! at once when 64 KiB are waiting, and each line at once if the log is a prompt one. A full buffer drops lines, and
//! the number of dropped lines is reported once there is room. Lines that a full disk or a pipe without a reader does not
//! take are tried again. [`Writer::finish`] waits until the thread has written the remaining lines. Dropping the writer
//! does not wait: a worker may drop the last reference to a log that a reload has removed.
//!
//! Lock order: there is one lock. Nothing is written or formatted while it is held.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// Bytes that may wait for the writer thread. Lines beyond them are dropped.
pub const FULL: usize = 4 * 1024 * 1024;
/// Bytes of room for lines that a buffer keeps when it is empty.
const KEPT: usize = 4 * EAGER;
/// Waiting bytes that wake the writer thread early.
const EAGER: usize = 64 * 1024;
/// The longest time that a line waits for others before it is written.
const PATIENCE: Duration = Duration::from_millis(250);
/// How often an output that cannot be reached is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long the end of a log may take: an output that takes nothing must not hold up the shutdown.
const FAREWELL: Duration = Duration::from_secs(3);

/// Tells the operator about the log itself.
pub type Report = Arc<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;

/// The outcome of a write.
pub enum Written {
    All,
    /// This many lines are lost.
    Lost(u64, io::Error),
    /// Only this many bytes, which are whole lines, are written. The rest may be tried again later.
    Later(usize, io::Error),
}

/// A destination of lines.
pub trait Output: Send {
    /// Writes whole lines, each with its line feed.
    ///
    /// # Blocks the thread
    /// As long as the output does.
    fn write(&mut self, lines: &[u8]) -> Written;
}

/// The buffer of a log and its thread.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    report: Report,
    /// Whether a line wakes the thread at once.
    is_prompt: bool,
}

#[derive(Default)]
struct Shared {
    pending: Mutex<Pending>,
    /// The number of lines that the thread has taken and may not have written yet.
    taken: AtomicU64,
    wake: Condvar,
    /// Notified when the thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Pending {
    lines: Vec<u8>,
    /// Bytes that the thread has taken and may not have written yet.
    taken_bytes: usize,
    dropped: u64,
    /// When the thread was asked to write the remaining lines and end.
    closing: Option<Instant>,
    has_ended: bool,
    /// The output for these lines and all later ones.
    replaced: Option<Box<dyn Output>>,
}

impl Writer {
    /// Starts a thread that writes to `out`. `report` gets texts about errors and missing lines.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(out: Box<dyn Output>, is_prompt: bool, report: Report) -> io::Result<Writer> {
        Writer::start_with(out, None, is_prompt, report)
    }

    /// Same as [`start`](Writer::start). `heir` gets the lines that `out` has not taken at the end, instead of a report.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start_with(
        out: Box<dyn Output>,
        heir: Option<Box<dyn Output>>,
        is_prompt: bool,
        report: Report,
    ) -> io::Result<Writer> {
        let shared = Arc::new(Shared::default());
        let thread = thread::Builder::new().name("osier-log".into()).spawn({
            let (shared, report) = (Arc::clone(&shared), Arc::clone(&report));
            move || {
                write_out(&shared, (out, heir), is_prompt, &report);
                shared.lock().has_ended = true;
                shared.ended.notify_all();
            }
        })?;
        Ok(Writer {
            shared,
            thread: Mutex::new(Some(thread)),
            report,
            is_prompt,
        })
    }

    /// Adds lines, each with its line feed.
    pub fn push(&self, lines: &[u8]) {
        let mut pending = self.shared.lock();
        if pending.taken_bytes + pending.lines.len() + lines.len() > FULL {
            pending.dropped += count(lines);
            return;
        }
        let before = pending.lines.len();
        pending.lines.extend_from_slice(lines);
        let has_grown = before < EAGER && pending.lines.len() >= EAGER;
        drop(pending);
        if has_grown || self.is_prompt {
            self.shared.wake.notify_one();
        }
    }

    /// Sends the lines that are not written yet, and all later ones, to another output.
    pub fn replace(&self, out: Box<dyn Output>) {
        self.shared.lock().replaced = Some(out);
        self.shared.wake.notify_one();
    }

    /// Lets the thread write the remaining lines and end. Does not wait for it. Lines added later are lost.
    pub fn close(&self) {
        self.shared.lock().closing.get_or_insert_with(Instant::now);
        self.shared.wake.notify_one();
    }

    /// Closes the log and waits for the end of its thread. Reports how many lines an output that is stuck has left.
    ///
    /// # Blocks the thread
    /// Until every line is written, for [`FAREWELL`] after the log was closed at most.
    pub fn finish(&self) {
        self.close();
        let pending = self.shared.lock();
        let since = pending.closing.map_or(Duration::ZERO, |closing| closing.elapsed());
        let ended = self
            .shared
            .ended
            .wait_timeout_while(pending, FAREWELL.saturating_sub(since), |pending| !pending.has_ended);
        let (pending, _) = ended.unwrap_or_else(PoisonError::into_inner);
        let has_ended = pending.has_ended;
        let left = self.shared.taken.load(Relaxed) + pending.dropped + count(&pending.lines);
        drop(pending);
        match self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(thread) if has_ended => drop(thread.join()),
            Some(_) => (self.report)(format_args!(
                "up to {left} lines are lost at the end, because a write has not returned"
            )),
            None => {}
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.shared.lock();
        f.debug_struct("Writer")
            .field("bytes", &pending.lines.len())
            .field("dropped", &pending.dropped)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        // No code that holds the lock leaves the buffer in a bad state, so a panic elsewhere does not stop logging.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of lines.
pub fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// The thread of a writer. An error is reported once, and the number of lost lines when a write succeeds again. Later
/// lines are tried all the same, since a full disk may be emptied.
fn write_out(
    shared: &Shared,
    (out, heir): (Box<dyn Output>, Option<Box<dyn Output>>),
    is_prompt: bool,
    report: &Report,
) {
    let mut writing = Writing {
        out,
        lines: Vec::new(),
        has_rest: false,
        has_failed: false,
        lost: 0,
    };
    let enough = if is_prompt { 1 } else { EAGER };
    loop {
        let (dropped, is_closing) = writing.take(shared, enough);
        shared.taken.store(count(&writing.lines), Relaxed);
        match writing.write(report) {
            Some(error) => {
                writing.lost += dropped;
                if !std::mem::replace(&mut writing.has_failed, true) {
                    report(format_args!(
                        "{error}; the server goes on without it until it can be written"
                    ));
                }
            }
            None if dropped > 0 => report(format_args!(
                "{dropped} lines were dropped because they came faster than they could be written"
            )),
            None => {}
        }
        if is_closing {
            return writing.end(heir, report);
        }
    }
}

/// The state of the thread of a writer.
struct Writing {
    out: Box<dyn Output>,
    /// The lines that are being written.
    lines: Vec<u8>,
    /// Whether they have to be tried again. New lines wait in the buffer meanwhile.
    has_rest: bool,
    /// Whether an error was reported since the last write that succeeded.
    has_failed: bool,
    /// The number of lines that were lost since then.
    lost: u64,
}

impl Writing {
    /// Waits until lines are due, and takes them. Returns how many were dropped, and whether these are the last ones.
    fn take(&mut self, shared: &Shared, enough: usize) -> (u64, bool) {
        let mut pending = shared.lock();
        let patience = if self.has_rest { RETRY } else { PATIENCE };
        if !self.has_rest {
            self.lines.clear();
            self.lines.shrink_to(KEPT);
        }
        pending.taken_bytes = self.lines.len();
        let (mut pending, _) = shared
            .wake
            .wait_timeout_while(pending, patience, |pending| {
                let is_due = !self.has_rest && pending.lines.len() >= enough;
                pending.closing.is_none() && pending.replaced.is_none() && !is_due
            })
            .unwrap_or_else(PoisonError::into_inner);
        if !self.has_rest {
            std::mem::swap(&mut self.lines, &mut pending.lines);
        } else if pending.closing.is_some() {
            self.lines.append(&mut pending.lines);
        }
        pending.taken_bytes = self.lines.len();
        if let Some(replaced) = pending.replaced.take() {
            (self.out, self.has_failed) = (replaced, false);
        }
        (std::mem::take(&mut pending.dropped), pending.closing.is_some())
    }

    /// Writes the lines. Returns the error, if there is one.
    fn write(&mut self, report: &Report) -> Option<io::Error> {
        self.has_rest = false;
        match self.out.write(&self.lines) {
            Written::All => {
                if (self.has_failed || self.lost > 0) && !self.lines.is_empty() {
                    match self.lost {
                        0 => report(format_args!("it can be written again; no line is missing")),
                        lost => report(format_args!("it can be written again; {lost} lines are missing")),
                    }
                    (self.has_failed, self.lost) = (false, 0);
                }
                None
            }
            Written::Lost(count, error) => {
                self.lost += count;
                Some(error)
            }
            Written::Later(done, error) => {
                self.lines.drain(..done);
                self.has_rest = true;
                Some(error)
            }
        }
    }

    /// Gives the lines that nobody has taken to the heir, and reports how many are lost.
    fn end(mut self, heir: Option<Box<dyn Output>>, report: &Report) {
        match heir {
            Some(mut heir) if self.has_rest => {
                report(format_args!("nobody has taken the last lines, which follow here"));
                heir.write(&self.lines);
            }
            _ if self.has_rest => self.lost += count(&self.lines),
            _ => {}
        }
        if self.lost > 0 {
            report(format_args!("{} lines are lost at the end", self.lost));
        }
    }
}

/// A file or another stream as an output.
pub struct Stream {
    out: Box<dyn Write + Send>,
    /// Whether the output ends within a line. The next write then begins with a line feed.
    torn: bool,
}

impl Stream {
    /// An output at the beginning of a line.
    pub fn new(out: impl Write + Send + 'static) -> Stream {
        Stream {
            out: Box::new(out),
            torn: false,
        }
    }
}

impl Output for Stream {
    fn write(&mut self, lines: &[u8]) -> Written {
        match write_lines(&mut *self.out, lines, &mut self.torn) {
            Ok(()) => Written::All,
            // A reader may come, and a disk may be emptied.
            Err((_, done, error)) if is_passing(&error) => Written::Later(done, error),
            Err((lost, _, error)) => Written::Lost(lost, error),
        }
    }
}

/// Whether a file may take later what it refuses now: a pipe that nobody reads, or a disk without room.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, QuotaExceeded, StorageFull};
    matches!(error.kind(), BrokenPipe | QuotaExceeded | StorageFull)
}

/// A file that cannot be opened yet: a named pipe without a reader, or a file that this user may not write. Each write
/// tries again.
struct Unopened {
    path: PathBuf,
    opened: Option<Stream>,
}

impl Output for Unopened {
    fn write(&mut self, lines: &[u8]) -> Written {
        if self.opened.is_none() {
            match append(&self.path) {
                Ok(file) => self.opened = Some(Stream::new(file)),
                Err(error) => return Written::Later(0, error),
            }
        }
        match &mut self.opened {
            Some(opened) => opened.write(lines),
            None => Written::All,
        }
    }
}

/// A file that is open only while lines are written. Lines wait for the reader of a pipe, for room on the disk, and for a descriptor. They
/// are lost if it cannot be opened otherwise: a user without the right to create it after a rotation never gets it.
struct Brief {
    path: PathBuf,
    torn: bool,
}

impl Output for Brief {
    fn write(&mut self, lines: &[u8]) -> Written {
        if lines.is_empty() {
            return Written::All;
        }
        match append(&self.path) {
            Ok(file) => {
                let mut stream = Stream {
                    torn: self.torn,
                    ..Stream::new(file)
                };
                let written = stream.write(lines);
                self.torn = stream.torn;
                written
            }
            Err(error) if is_passing(&error) || opens_later(&error) => Written::Later(0, error),
            Err(error) => Written::Lost(count(lines), error),
        }
    }
}

/// Whether a file that cannot be opened now may be opened later: a pipe that nobody reads, or the process or the system lacks descriptors or
/// memory.
fn opens_later(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotConnected
        || matches!(
            Errno::from_io_error(error),
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)
        )
}

/// Opens a file for appending, and creates it if need be. A named pipe that nobody reads waits for its reader.
///
/// Each write ends with a whole line. So the file may be rotated by copy and truncate, or by renaming it and opening it
/// again.
///
/// # Errors
/// When the file cannot be opened.
pub fn file(path: &Path) -> io::Result<Box<dyn Output>> {
    match append(path) {
        Ok(file) => Ok(Box::new(Stream::new(file))),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(later(path)),
        Err(error) => Err(error),
    }
}

/// An output that opens a file as soon as it can be opened. Until then the lines wait, as far as the buffer has room.
pub fn later(path: &Path) -> Box<dyn Output> {
    Box::new(Unopened {
        path: path.to_owned(),
        opened: None,
    })
}

/// An output that opens a file for each write and closes it again.
pub fn briefly(path: &Path) -> Box<dyn Output> {
    Box::new(Brief {
        path: path.to_owned(),
        torn: false,
    })
}

/// Opens a file for appending without waiting: a pipe that nobody reads is an error of the kind `NotConnected`.
fn append(path: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let opened = File::options()
        .append(true)
        .create(true)
        .custom_flags(nonblocking)
        .open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NXIO) => io::Error::new(io::ErrorKind::NotConnected, "it is a pipe that nobody reads"),
        _ => error,
    })?;
    // A write may wait: only the writer thread writes.
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Writes `lines`. The error holds the number of lines that were not written completely, and the bytes of those before
/// them. `torn`: the output ends within a line, so the next write begins with a line feed.
pub fn write_lines(out: &mut dyn Write, lines: &[u8], torn: &mut bool) -> Result<(), (u64, usize, io::Error)> {
    let failed = |done: usize, error| {
        let end = lines[..done].iter().rposition(|&byte| byte == b'\n');
        let done = end.map_or(0, |end| end + 1);
        (count(&lines[done..]), done, error)
    };
    if *torn && !lines.is_empty() {
        out.write_all(b"\n").map_err(|error| failed(0, error))?;
        *torn = false;
    }
    let mut done = 0;
    while done < lines.len() {
        let written = match out.write(&lines[done..]) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            written => written,
        };
        done += written.map_err(|error| failed(done, error))?;
        *torn = lines[done - 1] != b'\n';
    }
    out.flush().map_err(|error| failed(lines.len(), error))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A report that nobody reads.
    pub fn unread() -> Report {
        Arc::new(|_| {})
    }

    /// Sends each write over a channel, as slowly as the test receives.
    pub struct Slow(pub mpsc::SyncSender<Vec<u8>>);

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
    fn a_stuck_output_costs_lines_but_neither_time_nor_memory() {
        let (sender, receiver) = mpsc::sync_channel(0);
        let writer = Writer::start(Box::new(Stream::new(Slow(sender))), false, unread()).unwrap();
        let line = format!("{}\n", "x".repeat(4095));
        for _ in 0..4 * FULL / line.len() {
            writer.push(line.as_bytes());
        }
        let pending = writer.shared.lock();
        assert!(pending.lines.len() <= FULL && pending.dropped > 0);
        drop(pending);
        // The thread cannot write the unread lines any more: it sees a broken pipe and ends.
        drop(receiver);
        drop(writer);
    }

    #[test]
    fn lines_that_are_being_written_take_room_until_they_are_written() {
        let (sender, receiver) = mpsc::sync_channel(0);
        let writer = Writer::start(Box::new(Stream::new(Slow(sender))), false, unread()).unwrap();
        let line = format!("{}\n", "x".repeat(EAGER - 1));
        let fill = || (0..2 * FULL / EAGER).for_each(|_| writer.push(line.as_bytes()));
        writer.push(line.as_bytes());
        testkit::eventually("the thread writes", || writer.shared.lock().lines.is_empty());
        fill();
        let held = |pending: &Pending| pending.taken_bytes + pending.lines.len();
        assert_eq!(held(&writer.shared.lock()), FULL);
        let read = |bytes: usize| {
            let mut left = bytes;
            while left > 0 {
                left -= receiver.recv().unwrap().len();
            }
        };
        read(FULL);
        testkit::eventually("the room is free", || held(&writer.shared.lock()) == 0);
        fill();
        assert_eq!(held(&writer.shared.lock()), FULL);
        drop(receiver);
    }

    #[test]
    fn a_drop_does_not_wait_for_a_stuck_output() {
        let (sender, receiver) = mpsc::sync_channel(0);
        let writer = Writer::start(Box::new(Stream::new(Slow(sender))), true, unread()).unwrap();
        writer.push(b"one\n");
        let begin = Instant::now();
        drop(writer);
        assert!(begin.elapsed() < FAREWELL, "{:?}", begin.elapsed());
        assert_eq!(receiver.iter().collect::<Vec<_>>().concat(), b"one\n");
    }

    #[test]
    fn a_prompt_log_does_not_wait_for_further_lines() {
        let (sender, receiver) = mpsc::sync_channel(8);
        let writer = Writer::start(Box::new(Stream::new(Slow(sender))), true, unread()).unwrap();
        writer.push(b"one\n");
        assert_eq!(receiver.recv().unwrap(), b"one\n");
        drop(writer);
    }

    /// An output that is not there until the test lets it be.
    struct Late(Arc<Mutex<(bool, Vec<u8>)>>);

    impl Output for Late {
        fn write(&mut self, lines: &[u8]) -> Written {
            let mut late = self.0.lock().unwrap();
            if !late.0 {
                return Written::Later(0, io::ErrorKind::NotFound.into());
            }
            late.1.extend_from_slice(lines);
            Written::All
        }
    }

    #[test]
    fn lines_wait_for_an_output_that_is_not_there_yet() {
        let late = Arc::new(Mutex::new((false, Vec::new())));
        let (sender, reports) = mpsc::channel();
        let report: Report = Arc::new(move |text| sender.send(text.to_string()).unwrap());
        let writer = Writer::start(Box::new(Late(Arc::clone(&late))), true, report).unwrap();
        writer.push(b"early\n");
        assert!(
            reports
                .recv()
                .unwrap()
                .ends_with("the server goes on without it until it can be written")
        );
        late.lock().unwrap().0 = true;
        // Its end does not wait for the next attempt.
        writer.push(b"late\n");
        writer.finish();
        assert_eq!(late.lock().unwrap().1, b"early\nlate\n");
        assert_eq!(reports.recv().unwrap(), "it can be written again; no line is missing");
    }

    #[test]
    fn late_lines_of_a_file_that_cannot_be_opened_do_not_wait_for_it() {
        let folder = testkit::Folder::new();
        let mut late = briefly(&folder.join("gone/log"));
        assert!(matches!(late.write(b"one\ntwo\n"), Written::Lost(2, _)));
        std::fs::create_dir(folder.join("gone")).unwrap();
        assert!(matches!(late.write(b"three\n"), Written::All));
        assert_eq!(std::fs::read_to_string(folder.join("gone/log")).unwrap(), "three\n");
    }

    /// A test of its own process, which has no descriptor left.
    #[test]
    fn late_lines_wait_for_a_descriptor() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let test = "log::writer::tests::late_lines_wait_for_a_descriptor";
        let ran = testkit::in_a_child(test, || {
            let folder = testkit::Folder::new();
            let mut late = briefly(&folder.join("log"));
            let before = getrlimit(Resource::Nofile);
            let none = Rlimit {
                current: Some(0),
                maximum: before.maximum,
            };
            setrlimit(Resource::Nofile, none).unwrap();
            assert!(matches!(late.write(b"one\n"), Written::Later(0, _)));
            setrlimit(Resource::Nofile, before).unwrap();
            assert!(matches!(late.write(b"one\n"), Written::All));
        });
        if let Some(ran) = ran {
            assert!(ran.status.success(), "{ran:?}");
        }
    }

    #[test]
    fn the_end_counts_what_nobody_took() {
        let late = Arc::new(Mutex::new((false, Vec::new())));
        let (sender, reports) = mpsc::channel();
        let report: Report = Arc::new(move |text| sender.send(text.to_string()).unwrap());
        let writer = Writer::start(Box::new(Late(late)), false, report).unwrap();
        writer.push(b"one\ntwo\n");
        drop(writer);
        assert_eq!(reports.iter().last().unwrap(), "2 lines are lost at the end");
    }

    /// An output of which every write fails.
    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_end_counts_what_no_disk_has_taken() {
        // Lines are lost at once by the first error, and at the end by the second.
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::StorageFull] {
            let (sender, reports) = mpsc::channel();
            let report: Report = Arc::new(move |text| sender.send(text.to_string()).unwrap());
            let writer = Writer::start(Box::new(Stream::new(Broken(kind))), true, report).unwrap();
            writer.push(b"one\ntwo\n");
            let failed = reports.recv().unwrap();
            assert!(failed.ends_with("until it can be written"), "{failed}");
            writer.push(b"three\n");
            writer.finish();
            drop(writer);
            assert_eq!(
                reports.iter().collect::<Vec<_>>(),
                ["3 lines are lost at the end"],
                "{kind}"
            );
        }
    }

    #[test]
    fn the_ends_of_stuck_logs_do_not_add_up_and_are_reported() {
        let (reporter, reports) = mpsc::channel();
        let stuck: Vec<_> = (0..3)
            .map(|_| {
                let (sender, receiver) = mpsc::sync_channel(0);
                let reporter = reporter.clone();
                let report: Report = Arc::new(move |text| drop(reporter.send(text.to_string())));
                let writer = Writer::start(Box::new(Stream::new(Slow(sender))), true, report).unwrap();
                writer.push(b"one\ntwo\n");
                (writer, receiver)
            })
            .collect();
        let begin = Instant::now();
        stuck.iter().for_each(|(writer, _)| writer.close());
        stuck.iter().for_each(|(writer, _)| writer.finish());
        // The default log is there twice.
        stuck[0].0.finish();
        assert!(begin.elapsed() < 2 * FAREWELL, "{:?}", begin.elapsed());
        let expected = "up to 2 lines are lost at the end, because a write has not returned";
        assert_eq!(reports.try_iter().collect::<Vec<_>>(), [expected; 3]);
    }

    #[test]
    fn a_pipe_loses_nothing_while_its_reader_restarts() {
        let folder = testkit::Folder::new();
        let path = folder.join("log");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        let read = || {
            let nonblocking = OFlags::NONBLOCK.bits() as i32;
            File::options()
                .read(true)
                .custom_flags(nonblocking)
                .open(&path)
                .unwrap()
        };
        let until = |reader: &mut File, text: &str| {
            let mut read = String::new();
            testkit::eventually("a line", || {
                let _ = io::Read::read_to_string(reader, &mut read);
                read.ends_with(text)
            });
            read
        };
        let mut reader = read();
        let (sender, reports) = mpsc::channel();
        let report: Report = Arc::new(move |text| sender.send(text.to_string()).unwrap());
        let writer = Writer::start(file(&path).unwrap(), true, report).unwrap();
        writer.push(b"one\n");
        assert_eq!(until(&mut reader, "one\n"), "one\n");
        drop(reader);
        writer.push(b"two\n");
        assert!(reports.recv().unwrap().ends_with("until it can be written"));
        writer.push(b"three\n");
        let mut reader = read();
        assert_eq!(until(&mut reader, "three\n"), "two\nthree\n");
        assert_eq!(reports.recv().unwrap(), "it can be written again; no line is missing");
        writer.finish();
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
        let (lost, done, error) = write_lines(&mut disk, b"one\ntwo\nthree\nfour\n", &mut torn).unwrap_err();
        assert_eq!((lost, done, torn), (2, 8, false));
        assert!(is_passing(&error), "{error}");
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
