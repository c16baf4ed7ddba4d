//! The error log: writes lines for the operator to standard error, a file or syslog.
//!
//! A line has the time, the level, and the site, the client and the request id that it is about. These stand before the
//! text, and invisible characters in the text are escaped. So nothing that a client sends looks like one of them or
//! like another line.
//!
//! A line must never stop a worker, and a peer can provoke lines. So a line is written to standard error only if that
//! takes all of it at once; while an access log writes there, the thread of that log writes it. A pipe or a socket that
//! nobody reads loses lines, and the next line that gets through reports how many. Files and syslog have a [`Writer`].
//!
//! A failed or refused request is not logged if its reason was logged within the last second. Once that second is over,
//! another line reports how many were left out. Each failed login has its line, up to [`LOGINS`] in a second: programs such as
//! fail2ban count lines.
//!
//! The log begins on standard error. [`ErrorLog::open`] moves it once the process has the rights that it keeps. The destination then gets
//! the lines that went to standard error before, too: errors of certificates, for example.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Stderr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use osier::sync::Event;
use osier_web::Level;

use super::operator::{LOGIN_FAILED, Line, Say};
use super::settings::{self, To};
use super::stderr::{LONGEST, Shared, stderr};
use super::syslog::{self, severity};
use super::text::{Rfc3339, escape_json, now, put, visible};
use super::writer::{self, Output, Report, Writer};

/// The time during which a cause is not logged again.
const REPEAT: Duration = Duration::from_secs(1);

/// The lines about failed logins of one client as one user within [`REPEAT`]. No program that counts them waits for more.
const LOGINS: u32 = 10;

/// The number of causes that are remembered. While as many are remembered, a line with another cause is logged if it is
/// more serious than [`Level::Info`]. Other lines are counted: a client can make up causes, names of fields for
/// example.
const REMEMBERED: usize = 64;

/// How the lines about closed connections begin.
const CLOSED: &str = "closed a";

/// The most lines that wait for the destination of the log while the server starts.
const EARLY: usize = 256;

/// The error log of the process.
pub struct ErrorLog {
    log: Mutex<Log<Stderr>>,
    /// Set when a line is left out.
    left_out: Event,
}

impl ErrorLog {
    /// A log with the default settings, on standard error. A closed standard error is not a failure.
    pub fn new() -> Arc<ErrorLog> {
        let mut log = Log::new(stderr());
        log.early = Some(Vec::new());
        Arc::new(ErrorLog {
            log: Mutex::new(log),
            left_out: Event::new(),
        })
    }

    /// Logs to this log.
    pub fn say(self: &Arc<Self>) -> Say {
        let log = Arc::clone(self);
        Say::new(move |line| {
            let is_left_out = log.lock().say(line, Instant::now());
            if is_left_out {
                log.left_out.set();
            }
        })
    }

    /// Starts a fiber that reports in time how many lines were left out. Before that, only the next line causes the
    /// report.
    pub fn count_in_time(self: &Arc<Self>) {
        let log = Arc::clone(self);
        let fiber = osier::fiber::Builder::new().name("error log");
        drop(fiber.spawn(move || {
            loop {
                log.left_out.wait();
                while log.lock().remembers() {
                    osier::sleep(REPEAT);
                    log.lock().count_repeated(Some(Instant::now()));
                }
            }
        }));
    }

    fn lock(&self) -> MutexGuard<'_, Log<Stderr>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the level and the form of lines. The destination stays.
    pub fn set(&self, settings: &settings::ErrorLog) {
        let mut log = self.lock();
        log.settings = settings::ErrorLog {
            to: log.settings.to.clone(),
            ..settings.clone()
        };
        log.in_journal = settings.journald.unwrap_or_else(is_in_journal);
    }

    /// Takes over all settings. If a file cannot be opened, the log says so and continues where it is.
    ///
    /// # Blocks the thread
    /// While the file is opened. The thread of the old destination writes its last lines.
    pub fn open(&self, settings: &settings::ErrorLog) {
        self.set(settings);
        if self.lock().settings.to == settings.to {
            self.lock().early = None;
            return;
        }
        match Queue::open(&settings.to) {
            Ok(queue) => {
                let mut log = self.lock();
                log.settings.to = settings.to.clone();
                log.queue = queue;
                for (time, entry) in log.early.take().unwrap_or_default() {
                    log.push(&entry, time);
                }
            }
            Err(error) => {
                self.lock().early = None;
                self.complain(&error);
            }
        }
    }

    /// Opens the file again after somebody has renamed or removed it.
    ///
    /// # Blocks the thread
    /// While the file is opened.
    pub fn reopen(&self) {
        let To::File(path) = self.lock().settings.to.clone() else {
            return;
        };
        match writer::file(&path) {
            Ok(file) => {
                if let Some(queue) = &self.lock().queue {
                    queue.writer.replace(file);
                }
            }
            Err(error) => self.complain(&error),
        }
    }

    /// Logs that the log cannot be opened.
    fn complain(&self, error: &io::Error) {
        let text = format_args!("cannot open the error log: {error}; it continues where it was");
        self.lock().say(&Line::new(Level::Error, text), Instant::now());
    }

    /// Writes the lines that wait, and how many were left out. Lines logged later go to standard error.
    ///
    /// # Blocks the thread
    /// Until every line is written, for a few seconds at most.
    pub fn finish(&self) {
        let queue = {
            let mut log = self.lock();
            log.count_repeated(None);
            log.queue.take()
        };
        if let Some(queue) = queue {
            queue.writer.finish();
        }
    }
}

/// A count of lines in words.
fn more_lines(count: u64) -> String {
    format!("{count} more line{}", if count == 1 { "" } else { "s" })
}

/// Whether standard error is a stream of systemd's journal (`$JOURNAL_STREAM`, systemd.exec(5)).
fn is_in_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let found = rustix::fs::fstat(io::stderr());
    found.is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

/// A destination that a thread writes to.
struct Queue {
    writer: Writer,
    syslog: Option<syslog::Header>,
}

impl Queue {
    /// Opens a destination. None for standard error, which has no thread.
    fn open(to: &To) -> io::Result<Option<Queue>> {
        let (out, syslog): (Box<dyn Output>, _) = match to {
            To::Stderr => return Ok(None),
            To::File(path) => {
                let path_of = |error: io::Error| io::Error::new(error.kind(), format!("'{}': {error}", path.display()));
                (writer::file(path).map_err(path_of)?, None)
            }
            To::Syslog(settings) => (
                Box::new(syslog::Socket::new(settings.to.clone())),
                Some(syslog::Header::new(settings)),
            ),
        };
        // The log cannot report its own losses to itself.
        let own = Mutex::new(Log::new(stderr()));
        let report: Report = Arc::new(move |text| {
            let mut stderr = own.lock().unwrap_or_else(PoisonError::into_inner);
            stderr.say(
                &Line::new(Level::Error, format_args!("error log: {text}")),
                Instant::now(),
            );
        });
        // Access logs report their losses to this log: at the end of the process the operator still gets these lines.
        let heir = Box::new(stderr());
        Ok(Some(Queue {
            writer: Writer::start_with(out, Some(heir), true, report)?,
            syslog,
        }))
    }
}

/// The state of the log. `W` is standard error, or the stream of a test.
struct Log<W> {
    settings: settings::ErrorLog,
    /// Whether lines on standard error begin with a priority.
    in_journal: bool,
    stream: Arc<Shared<W>>,
    /// The destination. None for the stream.
    queue: Option<Queue>,
    /// The lines so far, for the destination. None once that is open.
    early: Option<Vec<(Duration, Entry)>>,
    /// Lines that the stream did not take.
    lost: u64,
    recent: Vec<Recent>,
    /// When the first line was left out because too many causes are remembered, and the count of such lines.
    others: Option<(Instant, u64)>,
}

/// A line that was logged within [`REPEAT`].
struct Recent {
    cause: u64,
    entry: Entry,
    written: Instant,
    /// How many more lines with the same cause may be written.
    more: u32,
    /// The count of lines with the same cause that were left out since.
    again: u64,
}

/// A line whose invisible characters are escaped.
#[derive(Clone)]
struct Entry {
    level: Level,
    about: Vec<(&'static str, String)>,
    text: String,
    report: String,
}

impl Entry {
    fn new(level: Level, text: String) -> Entry {
        Entry {
            level,
            about: Vec::new(),
            text,
            report: String::new(),
        }
    }

    /// The entry with so many lines of its report, and one that says how many more there are.
    fn shortened(&self, most: usize) -> Entry {
        let mut lines: Vec<&str> = self.report.lines().collect();
        let more = lines.split_off(most).len();
        let tail = format!("... {}: run 'osier check'", more_lines(more as u64));
        lines.push(&tail);
        let report = lines.join("\n");
        Entry { report, ..self.clone() }
    }
}

impl<W: AsFd> Log<W> {
    fn new(stream: Arc<Shared<W>>) -> Log<W> {
        Log {
            settings: settings::ErrorLog::default(),
            in_journal: is_in_journal(),
            stream,
            queue: None,
            early: None,
            lost: 0,
            recent: Vec::new(),
            others: None,
        }
    }

    /// Logs a line, or counts it as left out. Returns whether it was left out.
    fn say(&mut self, line: &Line<'_>, now: Instant) -> bool {
        if line.level > self.settings.level {
            return false;
        }
        let entry = Entry {
            level: line.level,
            about: line.about.fields().collect(),
            text: visible(&line.text.to_string()),
            report: line.report.to_owned(),
        };
        self.count_repeated(Some(now));
        let Some(cause) = cause(&entry.text) else {
            self.put(&entry);
            return false;
        };
        if let Some(recent) = self.recent.iter_mut().find(|recent| recent.cause == cause) {
            if recent.more == 0 {
                recent.again += 1;
                return true;
            }
            recent.more -= 1;
            self.put(&entry);
            return false;
        }
        let is_full = self.recent.len() >= REMEMBERED;
        if is_full && entry.level >= Level::Info {
            self.others.get_or_insert((now, 0)).1 += 1;
            return true;
        }
        self.put(&entry);
        if !is_full {
            let is_login = entry.text.starts_with(LOGIN_FAILED);
            self.recent.push(Recent {
                cause,
                entry,
                written: now,
                more: if is_login { LOGINS - 1 } else { 0 },
                again: 0,
            });
        }
        false
    }

    /// Whether there may be lines to report as left out.
    fn remembers(&self) -> bool {
        !self.recent.is_empty() || self.others.is_some()
    }

    /// Writes how many lines were left out, for the causes that were logged [`REPEAT`] before `now`, or for all at the
    /// end.
    fn count_repeated(&mut self, now: Option<Instant>) {
        let is_over = |since: Instant| now.is_none_or(|now| now.duration_since(since) >= REPEAT);
        let old: Vec<Recent> = self.recent.extract_if(.., |recent| is_over(recent.written)).collect();
        for Recent { mut entry, again, .. } in old {
            if again > 0 {
                // The lines may be about other sites, clients and requests.
                entry.about.clear();
                entry.text = format!("{} with this cause: {}", more_lines(again), shared(&entry.text));
                self.put(&entry);
            }
        }
        if let Some((_, count)) = self.others.take_if(|(first, _)| is_over(*first)) {
            let text = format!("{} with other causes", more_lines(count));
            self.put(&Entry::new(Level::Info, text));
        }
    }

    /// Writes a line. On the stream, a report of the lines that were lost before comes first, and a line that the
    /// stream does not take counts as lost.
    fn put(&mut self, entry: &Entry) {
        let time = now();
        if self.push(entry, time) {
            return;
        }
        if let Some(early) = self.early.as_mut().filter(|early| early.len() < EARLY) {
            early.push((time, entry.clone()));
        }
        if self.lost > 0 {
            let text = format!("{} lines were lost here because nobody read them", self.lost);
            if self.write(&Entry::new(Level::Warning, text), time) {
                self.lost = 0;
            }
        }
        if self.lost > 0 || !self.write(entry, time) {
            self.lost += 1;
        }
    }

    /// Gives a line of this time to the destination, if that is open. Returns whether it is.
    fn push(&self, entry: &Entry, time: Duration) -> bool {
        let Some(queue) = &self.queue else { return false };
        let mut lines = Vec::new();
        self.format(&mut lines, entry, time, queue.syslog.as_ref());
        queue.writer.push(&lines);
        true
    }

    /// Writes a line to the stream, if that takes it. Returns whether it did.
    fn write(&mut self, entry: &Entry, time: Duration) -> bool {
        let mut lines = Vec::new();
        self.format(&mut lines, entry, time, None);
        let mut most = entry.report.lines().count();
        while lines.len() > LONGEST && most > 0 {
            most = (most * LONGEST / lines.len()).min(most - 1);
            lines.clear();
            self.format(&mut lines, &entry.shortened(most), time, None);
        }
        cut_lines(&mut lines);
        self.stream.put(&lines)
    }

    /// Formats a line with its line feed. The journal and syslog take single lines, so there each line of a report is
    /// one of its own.
    fn format(&self, lines: &mut Vec<u8>, entry: &Entry, time: Duration, syslog: Option<&syslog::Header>) {
        let mut report = entry.report.lines();
        let mut text = Some(entry.text.as_str());
        let is_journal = self.in_journal && self.queue.is_none();
        let is_split = is_journal || syslog.is_some();
        while let Some(line) = text {
            if let Some(header) = syslog {
                header.begin(lines, entry.level, time);
            } else if is_journal {
                put(lines, format_args!("<{}>", severity(entry.level)));
            }
            match self.settings.json {
                true => self.json(lines, entry, line, time, is_split),
                false => self.text(lines, entry, line, time, is_split),
            }
            text = report.next().filter(|_| is_split);
        }
    }

    /// Formats one line. `is_split`: the receiver adds the time, the level and the name of the program, and the report
    /// goes into lines of its own.
    fn text(&self, lines: &mut Vec<u8>, entry: &Entry, text: &str, time: Duration, is_split: bool) {
        let begin = lines.len();
        if !is_split {
            put(lines, format_args!("{} {} ", Rfc3339(time), name(entry.level)));
        }
        for (name, value) in &entry.about {
            put(lines, format_args!("{name}={value} "));
        }
        if !is_split {
            lines.extend_from_slice(b"osier: ");
        }
        lines.extend_from_slice(text.as_bytes());
        // The priority for the journal stands before the line, and the line feed after it.
        cut(lines, begin, LONGEST - "<3>".len() - 1);
        if !is_split && !entry.report.is_empty() {
            put(lines, format_args!("\n{}", entry.report.trim_end()));
        }
        lines.push(b'\n');
    }

    /// Formats a line as a JSON object.
    fn json(&self, lines: &mut Vec<u8>, entry: &Entry, text: &str, time: Duration, is_split: bool) {
        put(
            lines,
            format_args!("{{\"time\":\"{}\",\"level\":\"{}\"", Rfc3339(time), name(entry.level)),
        );
        let begin_member = |lines: &mut Vec<u8>, name: &str, value: &str, most: usize| {
            put(lines, format_args!(",\"{name}\":\""));
            // Escapes make the object longer than the text.
            let mut escaped = Vec::new();
            escape_json(&mut escaped, value.as_bytes());
            cut_escaped(&mut escaped, most);
            lines.extend_from_slice(&escaped);
        };
        for (name, value) in &entry.about {
            begin_member(lines, name, value, LONGEST / 8);
            lines.push(b'"');
        }
        begin_member(lines, "text", text, LONGEST / 2);
        if !is_split && !entry.report.is_empty() {
            escape_json(lines, format!("\n{}", entry.report.trim_end()).as_bytes());
        }
        lines.extend_from_slice(b"\"}\n");
    }
}

/// Shortens a line to what a pipe takes at once.
fn cut_lines(lines: &mut Vec<u8>) {
    if lines.len() > LONGEST {
        let end = lines[..LONGEST].iter().rposition(|&byte| byte == b'\n');
        lines.truncate(end.map_or(LONGEST, |end| end + 1));
    }
}

/// Shortens the text after `begin` to `most` bytes, without a torn character.
fn cut(lines: &mut Vec<u8>, begin: usize, most: usize) {
    if lines.len() - begin <= most {
        return;
    }
    let mut end = begin + most;
    while end > begin && lines[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    lines.truncate(end);
}

/// Shortens the inside of a JSON string to `most` bytes, without a torn character or escape.
fn cut_escaped(text: &mut Vec<u8>, most: usize) {
    if text.len() <= most {
        return;
    }
    cut(text, 0, most);
    /// Bytes of the longest escape, `\u001b`.
    const ESCAPE: usize = 6;
    let tail = text.len().saturating_sub(ESCAPE - 1);
    // A backslash that is itself escaped begins nothing.
    let slashes = |at: usize| text[..at].iter().rev().take_while(|&&byte| byte == b'\\').count();
    let torn = (tail..text.len()).find(|&at| {
        let is_begin = text[at] == b'\\' && slashes(at) % 2 == 0;
        let length = if text.get(at + 1) == Some(&b'u') { ESCAPE } else { 2 };
        is_begin && at + length > text.len()
    });
    if let Some(at) = torn {
        text.truncate(at);
    }
}

/// The name of a level.
fn name(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warning => "warning",
        Level::Info => "info",
        Level::Debug => "debug",
    }
}

/// A hash of the [`reason`] of a line, if it has one.
fn cause(line: &str) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    reason(line)?.hash(&mut hasher);
    Some(hasher.finish())
}

/// The end of a line that says why a request has failed or was refused, or why a connection was closed. It leaves out the
/// target and the port, which the peer chooses. None for every other line.
fn reason(line: &str) -> Option<&str> {
    let marks = [" failed: ", " was refused with "];
    let at = match line.starts_with(CLOSED) {
        true => line.find(": "),
        false => marks.iter().find_map(|mark| line.find(mark)),
    };
    Some(&line[at?..])
}

/// The text that lines with the same [`reason`] share. A failed login names its client and user in the reason.
fn shared(line: &str) -> String {
    match reason(line) {
        Some(reason) if line.starts_with(CLOSED) => format!("closed ...{reason}"),
        Some(reason) if !line.starts_with(LOGIN_FAILED) => format!("...{reason}"),
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests;
