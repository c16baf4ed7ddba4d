//! The access log: one line per request, in Apache's combined format or as JSON, to standard error or a file.
//!
//! Workers format a line and append it to one buffer under a short lock. A separate thread writes the buffer four times a
//! second, and at once when 64 KiB are waiting. So a slow disk or terminal never stops a worker: a full buffer drops lines,
//! and the number of dropped lines is reported once there is room. [`AccessLog::finish`], or dropping the log, writes the
//! remaining lines.
//!
//! Lock order: there is one lock. Nothing is written or formatted while it is held.
//!
//! Every byte from a client is escaped. A combined line holds no control character and no bare quote; a JSON line is always
//! well-formed UTF-8. A file is opened for appending and each write ends with a whole line. So the file may be rotated by
//! copy and truncate, or by renaming it and calling [`AccessLog::reopen`].

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use osier_web::Served;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use osier_web::files::calendar::Utc;

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

/// One request, recorded after its response was sent. Absent fields are empty.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Address of the client. None, written `unix`, for a client without an address.
    pub client: Option<IpAddr>,
    /// Seconds since 1970.
    pub time: i64,
    /// Method as the client sent it. Empty when the request could not be parsed.
    pub method: &'a [u8],
    /// Request target as the client sent it, with its query.
    pub target: &'a [u8],
    /// Protocol version, `HTTP/1.1` for example.
    pub version: &'a str,
    /// Status of the response.
    pub status: u16,
    /// Bytes of the response body.
    pub bytes: u64,
    /// `Host` field.
    pub host: &'a [u8],
    /// `Referer` field, which HTTP spells this way.
    pub referer: &'a [u8],
    /// `User-Agent` field.
    pub user_agent: &'a [u8],
    /// Time from the parsed head of the request to the last byte of the response, if it was measured.
    pub took: Option<Duration>,
    /// The request id, if somebody has asked for it. Other log lines about the request bear the same id. JSON only.
    pub id: Option<osier_web::RequestId>,
}

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

/// A client, spelled as lists of clients in a configuration spell it.
struct Client(Option<IpAddr>);

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ip) => ip.fmt(f),
            None => f.write_str("unix"),
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

/// Formats `client - - [day/Mon/year:h:m:s +0000] "request line" status bytes "referer" "user agent"`.
fn combined(line: &mut Vec<u8>, entry: &Entry<'_>) {
    let Utc {
        year,
        month,
        day,
        hour,
        minute,
        second,
    } = Utc::from_unix(entry.time);
    let (month, client) = (Utc::MONTHS[usize::from(month) - 1], Client(entry.client));
    put(
        line,
        format_args!("{client} - - [{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000] \""),
    );
    if entry.method.is_empty() {
        line.push(b'-');
    } else {
        escape_combined(line, entry.method);
        line.push(b' ');
        escape_combined(line, entry.target);
        put(line, format_args!(" {}", entry.version));
    }
    put(line, format_args!("\" {} {} ", entry.status, entry.bytes));
    for field in [entry.referer, entry.user_agent] {
        line.push(b'"');
        escape_combined(line, if field.is_empty() { b"-" } else { field });
        line.extend_from_slice(b"\" ");
    }
    line.pop();
}

fn json(line: &mut Vec<u8>, entry: &Entry<'_>) {
    let Utc {
        year,
        month,
        day,
        hour,
        minute,
        second,
    } = Utc::from_unix(entry.time);
    put(
        line,
        format_args!("{{\"time\":\"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z\""),
    );
    put(line, format_args!(",\"client\":\"{}\"", Client(entry.client)));
    let texts = [
        ("method", entry.method),
        ("host", entry.host),
        ("target", entry.target),
        ("version", entry.version.as_bytes()),
    ];
    for (name, value) in texts
        .into_iter()
        .chain([("referer", entry.referer), ("user_agent", entry.user_agent)])
    {
        if !value.is_empty() {
            put(line, format_args!(",\"{name}\":\""));
            escape_json(line, value);
            line.push(b'"');
        }
    }
    put(
        line,
        format_args!(",\"status\":{},\"bytes\":{}", entry.status, entry.bytes),
    );
    if let Some(took) = entry.took {
        put(
            line,
            format_args!(",\"seconds\":{}.{:06}", took.as_secs(), took.subsec_micros()),
        );
    }
    if let Some(id) = entry.id {
        put(line, format_args!(",\"id\":\"{id}\""));
    }
    line.push(b'}');
}

/// Formats into a vector, which cannot fail.
fn put(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = line.write_fmt(text);
}

/// Escapes as Apache does: `\"`, `\\`, and `\xhh` for every byte that is not printable ASCII.
fn escape_combined(line: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => line.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => line.push(byte),
            _ => put(line, format_args!("\\x{byte:02x}")),
        }
    }
}

/// Escapes the inside of a JSON string. Bytes that are not UTF-8 become U+FFFD, because JSON cannot represent them.
fn escape_json(line: &mut Vec<u8>, bytes: &[u8]) {
    for char in String::from_utf8_lossy(bytes).chars() {
        match char {
            '"' | '\\' => line.extend_from_slice(&[b'\\', char as u8]),
            char if char.is_control() => put(line, format_args!("\\u{:04x}", char as u32)),
            char => line.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const ENTRY: Entry<'static> = Entry {
        client: Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1))),
        time: 784_111_777,
        method: b"GET",
        target: b"/a?b=c",
        version: "HTTP/1.1",
        status: 200,
        bytes: 2326,
        host: b"example.org",
        referer: b"",
        user_agent: b"curl/8",
        took: Some(Duration::from_micros(1_000_042)),
        id: None,
    };

    fn as_combined(entry: &Entry<'_>) -> String {
        let mut line = Vec::new();
        combined(&mut line, entry);
        String::from_utf8(line).unwrap()
    }

    fn as_json(entry: &Entry<'_>) -> String {
        let mut line = Vec::new();
        json(&mut line, entry);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn a_plain_request() {
        assert_eq!(
            as_combined(&ENTRY),
            r#"192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "GET /a?b=c HTTP/1.1" 200 2326 "-" "curl/8""#
        );
        assert_eq!(
            as_json(&ENTRY),
            concat!(
                r#"{"time":"1994-11-06T08:49:37Z","client":"192.0.2.1","method":"GET","host":"example.org","target":"/a?b=c","#,
                r#""version":"HTTP/1.1","user_agent":"curl/8","status":200,"bytes":2326,"seconds":1.000042}"#
            )
        );
    }

    #[test]
    fn a_request_with_a_number_says_it_in_json() {
        let id = osier_web::RequestId::random();
        let numbered = Entry { id: Some(id), ..ENTRY };
        assert!(as_json(&numbered).ends_with(&format!(",\"seconds\":1.000042,\"id\":\"{id}\"}}")));
        assert_eq!(as_combined(&numbered), as_combined(&ENTRY));
    }

    #[test]
    fn nothing_a_client_sends_leaves_its_field() {
        let evil = Entry {
            target: b"/\"\\\n\x1b[31m\x00\x7f\xff\xc3\xa4",
            user_agent: b"a\" 200 0 \"b\r\n",
            ..ENTRY
        };
        let line = as_combined(&evil);
        assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
        assert!(
            line.contains(r#""GET /\"\\\x0a\x1b[31m\x00\x7f\xff\xc3\xa4 HTTP/1.1""#),
            "{line}"
        );
        assert!(line.ends_with(r#""a\" 200 0 \"b\x0d\x0a""#), "{line}");
        let line = as_json(&evil);
        assert!(
            line.contains(r#""target":"/\"\\\u000a\u001b[31m\u0000\u007f"#),
            "{line}"
        );
        assert!(line.contains("\u{fffd}ä"), "{line}");
        assert!(line.contains(r#""user_agent":"a\" 200 0 \"b\u000d\u000a""#), "{line}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }

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
