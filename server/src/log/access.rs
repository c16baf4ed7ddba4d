//! The access log: one line per request, to standard error, a file or syslog. The line of a tunnel is written at its end.
//!
//! Workers format a line and add it to the buffer of a [`Writer`], whose thread writes it. So a slow disk or terminal
//! never stops a worker. A full buffer drops lines, and the number of dropped lines is reported.

use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use osier::memory::{Account, Charge};
use osier_web::{Level, Phase, Served, Times};

use super::entry::{Entry, combined, cut, json, json_of, template};
use super::fields::Field;
use super::operator::Say;
use super::settings::{Format, Log, To};
use super::stderr::stderr;
use super::syslog;
use super::text::{begins_with_priority, now};
use super::writer::{self, Output, Report, Writer};
use crate::reader::Reason;

/// Bytes of the longest line on standard error. Docker splits longer lines, and the journal those of 48 KiB. The second
/// part might begin with bytes of a client, which the journal would take for a priority.
const STDERR_LINE: usize = (16 << 10) - 1;

/// Bytes that are kept of each text of a request until its tunnel ends.
const TEXT_MOST: usize = 1 << 10;

/// How long a log is kept that the configuration no longer has, for requests that began before. Tunnels may take longer.
const LATE: Duration = Duration::from_secs(3600);

/// Bytes of room for a line that a thread keeps. Lines are seldom longer.
const KEPT: usize = 4 << 10;

/// The formats of the access log on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Apache's combined log format.
    Combined,
    /// One JSON object per line.
    Json,
    /// No access log.
    Off,
}

impl From<LogFormat> for Format {
    fn from(format: LogFormat) -> Format {
        match format {
            LogFormat::Combined => Format::Combined,
            LogFormat::Json => Format::Json(Vec::new()),
            LogFormat::Off => Format::Off,
        }
    }
}

/// An open access log, shared by the workers.
#[derive(Debug)]
pub struct AccessLog {
    format: Format,
    /// Whether lines have the name of the site.
    pub has_site: bool,
    /// Whether lines have the request id. Other log lines about the request bear the same id.
    has_id: bool,
    /// Whether lines have times by phase.
    has_times: bool,
    /// The fields of lines that are texts of the request.
    texts: Box<[Field]>,
    /// The tunnels whose lines are to come.
    tunnels: AtomicUsize,
    /// When the configuration has lost the log.
    retired: OnceLock<Instant>,
    writer: Writer,
    /// The file that [`AccessLog::reopen`] and [`AccessLog::retire`] open again. None for another destination.
    path: Option<PathBuf>,
    syslog: Option<syslog::Header>,
    /// Whether lines go to standard error, and their format gives them no priority for the journal. A client must not give them one.
    hides_priority: bool,
    /// Bytes of the longest line that its readers take whole.
    longest: usize,
}

impl AccessLog {
    /// Opens the log and starts its thread. `None` for a log that is off.
    ///
    /// # Errors
    /// One line: what cannot be opened.
    pub fn open(settings: &Log, say: &Say) -> Result<Option<AccessLog>, Reason> {
        if settings.format == Format::Off {
            return Ok(None);
        }
        let (mut path, mut header, mut longest) = (None, None, usize::MAX);
        let out: Box<dyn Output> = match &settings.to {
            To::Stderr => {
                longest = STDERR_LINE;
                Box::new(stderr())
            }
            To::File(file) => {
                path = Some(file.clone());
                match writer::file(file) {
                    // `osier check` refuses a missing folder, so it is refused here too.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        return Err(format!("cannot write the access log '{}': {error}", file.display()).into());
                    }
                    // Anything else must not keep the sites from being served: the file is opened again and again.
                    Err(error) => {
                        say.error(format_args!("cannot open the access log '{}': {error}", file.display()));
                        writer::later(file)
                    }
                    Ok(opened) => opened,
                }
            }
            To::Syslog(syslog) => {
                (header, longest) = (Some(syslog::Header::new(syslog)), syslog::LONGEST);
                Box::new(syslog::Socket::new(syslog.to.clone()))
            }
        };
        let (say, name) = (
            say.clone(),
            path.as_ref()
                .map_or_else(String::new, |path| format!(" '{}'", path.display())),
        );
        let report: Report = Arc::new(move |text| say.warning(format_args!("access log{name}: {text}")));
        let log = AccessLog::start(settings.format.clone(), out, report);
        let log = log.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Some(AccessLog {
            path,
            syslog: header,
            hides_priority: settings.to == To::Stderr && !settings.format.has_priority(),
            longest,
            ..log
        }))
    }

    fn start(format: Format, out: Box<dyn Output>, report: Report) -> io::Result<AccessLog> {
        let has = |field: Field| match &format {
            Format::Template(template) => template.has(&field),
            Format::Json(fields) => fields.contains(&field) || (fields.is_empty() && field == Field::RequestId),
            Format::Combined | Format::Off => false,
        };
        let header = |name: &str| Field::Header(name.into());
        let named = match &format {
            Format::Template(template) => template.fields().cloned().collect(),
            Format::Json(fields) if !fields.is_empty() => fields.clone(),
            Format::Json(_) => {
                let (referer, agent) = (header("referer"), header("user-agent"));
                vec![Field::User, Field::Request, Field::Host, referer, agent]
            }
            Format::Combined | Format::Off => {
                vec![Field::User, Field::Request, header("referer"), header("user-agent")]
            }
        };
        let mut texts = Vec::new();
        for field in named {
            let parts = match field {
                Field::Request => vec![Field::Method, Field::Target],
                field => vec![field],
            };
            for part in parts {
                if is_text(&part) && !texts.contains(&part) {
                    texts.push(part);
                }
            }
        }
        Ok(AccessLog {
            texts: texts.into(),
            tunnels: AtomicUsize::new(0),
            retired: OnceLock::new(),
            has_site: has(Field::Site),
            has_id: has(Field::RequestId),
            has_times: has(Field::Times) || Phase::ALL.iter().copied().any(|phase| has(Field::Phase(phase))),
            format,
            writer: Writer::start(out, false, report)?,
            path: None,
            syslog: None,
            hides_priority: false,
            longest: usize::MAX,
        })
    }

    /// Opens the file again after somebody has renamed or removed it. Lines that are not written yet, and all later
    /// ones, go to the new file. Does nothing for a log that is not a file, or whose file is open for no longer than a line is written.
    ///
    /// # Blocks the thread
    /// While the file is opened.
    ///
    /// # Errors
    /// One line: why the file cannot be opened. The log then continues in the old file.
    pub fn reopen(&self) -> Result<(), String> {
        if let Some(path) = self.path.as_ref().filter(|_| self.retired.get().is_none()) {
            let file = writer::file(path).map_err(|error| format!("'{}': {error}", path.display()))?;
            self.writer.replace(file);
        }
        Ok(())
    }

    /// Adds a line.
    pub fn record(&self, entry: &Entry<'_>) {
        thread_local! {
            /// Room for a line, kept by the thread.
            static LINE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
        }
        let mut line = LINE.take();
        self.format(&mut line, entry);
        // The fields after a long value of a client must not be cut, or begin another line.
        let mut most = self.longest / 4;
        while line.len() > self.longest && most > 0 {
            self.format(&mut line, &entry.cut(most, &|name| cut((entry.fields)(name), most)));
            most /= 2;
        }
        line.push(b'\n');
        self.writer.push(&line);
        if line.capacity() <= KEPT {
            LINE.set(line);
        }
    }

    /// Makes `line` the line of an entry, without its line feed.
    fn format(&self, line: &mut Vec<u8>, entry: &Entry<'_>) {
        line.clear();
        if let Some(header) = &self.syslog {
            header.begin(line, Level::Info, entry.time);
        }
        match &self.format {
            Format::Combined | Format::Off => combined(line, entry),
            Format::Json(fields) if fields.is_empty() => json(line, entry),
            Format::Json(fields) => json_of(line, fields, entry),
            Format::Template(form) => template(line, form, entry),
        }
        if self.hides_priority && begins_with_priority(line) {
            line.splice(..1, *b"\\x3c");
        }
    }

    /// Adds the line of a request whose response has just been sent. `site` is the name of its site. The line of a tunnel comes at its end.
    pub fn record_served(self: &Arc<Self>, served: &Served<'_>, site: Option<&str>) {
        if served.begins_tunnel() {
            return self.record_at_end(served, site);
        }
        let user = served.user();
        self.record(&Entry {
            client: served.client_ip(),
            user: user.as_deref().unwrap_or_default().as_bytes(),
            time: now(),
            method: served.method().as_bytes(),
            target: served.target().as_bytes(),
            path: served.path().as_bytes(),
            query: served.query().unwrap_or_default().as_bytes(),
            version: served.protocol(),
            status: served.status().as_u16(),
            bytes: served.bytes(),
            received: served.received(),
            tunnel: None,
            host: served.host().unwrap_or_default().as_bytes(),
            site: site.unwrap_or_default(),
            fields: &|name| served.header(name).unwrap_or_default(),
            took: Some(served.duration()),
            times: if self.has_times { served.times() } else { Times::ZERO },
            trace: served.trace(),
            id: self.has_id.then(|| served.id()),
        });
    }

    /// Adds the line of a request once the tunnel that it has begun has ended. Until then what the line needs of the request is kept.
    fn record_at_end(self: &Arc<Self>, served: &Served<'_>, site: Option<&str>) {
        let kept = Kept::new(self, served, site.unwrap_or_default());
        let times = self.has_times.then(|| Box::new(served.times()));
        let (client, version) = (served.client_ip(), served.protocol());
        let (status, before, trace) = (served.status().as_u16(), served.duration(), served.trace());
        let id = self.has_id.then(|| served.id());
        served.at_tunnel_end(move |tunnel| {
            let text = |field| kept.text(|known| *known == field);
            kept.log.record(&Entry {
                client,
                user: text(Field::User),
                time: now(),
                method: text(Field::Method),
                target: text(Field::Target),
                path: text(Field::Path),
                query: text(Field::Query),
                version,
                status,
                bytes: tunnel.sent(),
                received: tunnel.received(),
                tunnel: Some((tunnel.backend(), tunnel.end().as_str())),
                host: text(Field::Host),
                site: std::str::from_utf8(text(Field::Site)).unwrap_or_default(),
                fields: &|name| kept.text(|known| matches!(known, Field::Header(known) if **known == *name)),
                took: Some(before + tunnel.duration()),
                times: times.as_deref().copied().unwrap_or(Times::ZERO),
                trace,
                id,
            });
        });
    }

    /// Notes that the configuration no longer has the log. Requests and tunnels that began before may still write to it, whenever they
    /// end. Its file is opened for each of these lines, so that it is closed meanwhile: it may be rotated, compressed and removed.
    pub fn retire(&self) {
        let is_first = self.retired.set(Instant::now()).is_ok();
        if let Some(path) = self.path.as_ref().filter(|_| is_first) {
            self.writer.replace(writer::briefly(path));
        }
    }

    /// Whether lines may still come to a log that the configuration no longer has.
    pub fn is_awaited(&self) -> bool {
        self.has_tunnels() || self.retired.get().is_none_or(|since| since.elapsed() < LATE)
    }

    /// Whether lines of tunnels are to come.
    fn has_tunnels(&self) -> bool {
        self.tunnels.load(Relaxed) > 0
    }

    /// Lets the thread of the log write the remaining lines and end. Lines recorded later are lost.
    pub fn close(&self) {
        self.writer.close();
    }

    /// Closes the log, and waits until the remaining lines are written.
    ///
    /// # Blocks the thread
    /// For a few seconds after the log was closed at most.
    pub fn finish(&self) {
        self.writer.finish();
    }
}

/// Whether the value of a field is a text of the request.
fn is_text(field: &Field) -> bool {
    use Field::{Header, Host, Method, Path, Query, Site, Target, User};
    matches!(field, Site | User | Host | Method | Target | Path | Query | Header(_))
}

/// The texts of a request until its tunnel ends. Only the format of the log says which.
struct Kept {
    log: Arc<AccessLog>,
    /// The texts in the order of [`AccessLog::texts`], each behind its length in two bytes.
    bytes: Box<[u8]>,
    _charge: Charge,
}

impl Kept {
    fn new(log: &Arc<AccessLog>, served: &Served<'_>, site: &str) -> Kept {
        let (mut bytes, user) = (Vec::new(), served.user());
        for field in &log.texts {
            let text = match field {
                Field::Site => site.as_bytes(),
                Field::User => user.as_deref().unwrap_or_default().as_bytes(),
                Field::Host => served.host().unwrap_or_default().as_bytes(),
                Field::Method => served.method().as_bytes(),
                Field::Target => served.target().as_bytes(),
                Field::Path => served.path().as_bytes(),
                Field::Query => served.query().unwrap_or_default().as_bytes(),
                Field::Header(name) => served.header(name).unwrap_or_default(),
                _ => b"",
            };
            let text = cut(text, TEXT_MOST);
            bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
            bytes.extend_from_slice(text);
        }
        log.tunnels.fetch_add(1, Relaxed);
        Kept {
            log: Arc::clone(log),
            _charge: Account::CONNECTIONS.charge(bytes.len()),
            bytes: bytes.into(),
        }
    }

    /// The text of the field that `is` knows.
    fn text(&self, is: impl Fn(&Field) -> bool) -> &[u8] {
        let mut rest = &*self.bytes;
        for field in &self.log.texts {
            let [low, high, behind @ ..] = rest else { break };
            let (text, behind) = behind.split_at(u16::from_le_bytes([*low, *high]).into());
            if is(field) {
                return text;
            }
            rest = behind;
        }
        b""
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.log.tunnels.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::entry::tests::ENTRY;
    use crate::log::fields::Template;
    use crate::log::writer::tests::{Slow, unread};
    use std::os::unix::net::UnixDatagram;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;
    use testkit::Folder;

    fn json_file(path: &std::path::Path) -> AccessLog {
        let settings = Log {
            format: Format::Json(Vec::new()),
            to: To::File(path.to_owned()),
        };
        AccessLog::open(&settings, &Say::new(|_| {})).unwrap().unwrap()
    }

    #[test]
    fn lines_arrive_whole_and_the_last_ones_on_drop() {
        let (sender, receiver) = mpsc::sync_channel(1024);
        let out = Box::new(writer::Stream::new(Slow(sender)));
        let log = AccessLog::start(Format::Combined, out, unread()).unwrap();
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

    /// The file is rotated by rename while four threads write. Every line is in one of the files, whole, and none
    /// twice.
    #[test]
    fn reopened_without_losing_a_line() {
        let folder = std::env::temp_dir().join(format!("osier-log-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("access.log");
        let log = json_file(&path);
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
        log.finish();
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
        let gone = json_file(&path);
        std::fs::rename(&folder, folder.with_extension("moved")).unwrap();
        assert!(gone.reopen().unwrap_err().contains("No such file"));
        gone.record(&Entry { bytes: 9999, ..ENTRY });
        gone.finish();
        let moved = folder.with_extension("moved");
        let text = std::fs::read_to_string(moved.join("access.log")).unwrap();
        assert!(text.lines().last().unwrap().contains("\"bytes\":9999"), "{text}");
        std::fs::remove_dir_all(moved).unwrap();
    }

    #[test]
    fn a_long_value_does_not_push_the_others_out_of_a_message() {
        let folder = Folder::new();
        let socket = folder.join("log");
        let receiver = UnixDatagram::bind(&socket).unwrap();
        let template = Template::parse("$target $header_user_agent $status").unwrap();
        let chosen = ["header_user_agent", "path", "status"].map(|name| Field::named(name).unwrap());
        let long = vec![0xff; 9000];
        let entry = Entry {
            target: &long,
            path: &long,
            fields: &|_| &[b'"'; 9000],
            ..ENTRY
        };
        for (format, end) in [
            (Format::Combined, "\""),
            (
                Format::Json(Vec::new()),
                "\"status\":200,\"bytes\":2326,\"seconds\":1.000042}",
            ),
            (Format::Json(chosen.to_vec()), "\"status\":200}"),
            (Format::Template(template), " 200"),
        ] {
            let settings = Log {
                format,
                to: To::Syslog(syslog::Settings {
                    to: syslog::To::Unix(socket.clone()),
                    format: None,
                    facility: syslog::DAEMON,
                    tag: "osier".into(),
                }),
            };
            let log = AccessLog::open(&settings, &Say::new(|_| {})).unwrap().unwrap();
            log.record(&entry);
            log.finish();
            let mut message = vec![0; 2 * syslog::LONGEST];
            let count = receiver.recv(&mut message).unwrap();
            let message = String::from_utf8(message[..count].to_vec()).unwrap();
            assert!(count <= syslog::LONGEST && message.ends_with(end), "{message}");
            assert!(message.contains(&r#"\""#.repeat(300)), "{message}");
        }
    }

    #[test]
    fn off_is_no_log() {
        assert!(AccessLog::open(&Log::OFF, &Say::new(|_| {})).unwrap().is_none());
    }
}
