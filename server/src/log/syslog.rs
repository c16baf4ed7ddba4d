//! Syslog: the header of a message in both formats, and the datagram sockets that messages are sent to.
//!
//! ```text
//!   RFC 5424  <27>1 2026-11-23T03:31:45.123Z web1 osier 4711 - - text
//!   RFC 3164  <27>Nov 23 03:31:45 web1 osier[4711]: text              without the host on a Unix socket, as syslog(3) writes it
//! ```
//!
//! One line of a log is one datagram. While the daemon's socket is not there, or has been replaced, the lines wait and
//! the socket is looked for again.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use osier_web::Level;

use super::text::{Clock, Rfc3339, month, put, utc};
use super::writer::{Output, Written, count};

/// Bytes of the longest message. rsyslog takes 8 KiB by default.
pub const LONGEST: usize = 8192;

/// How long one message may wait for a slow receiver.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where messages go, and how they are written.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub to: To,
    /// None for RFC 3164 on a Unix socket, which local daemons read, and RFC 5424 on the network.
    pub format: Option<Rfc>,
    pub facility: u8,
    pub tag: String,
}

/// A datagram socket of a syslog daemon.
#[derive(Debug, Clone, PartialEq)]
pub enum To {
    Unix(PathBuf),
    /// `host:port`. The name is looked up when the socket is opened.
    Udp(String),
}

/// The format of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rfc {
    Rfc3164,
    Rfc5424,
}

/// The facilities with their numbers (RFC 5424 section 6.2.1). The missing numbers have no name on Linux.
pub const FACILITIES: [(&str, u8); 20] = [
    ("kern", 0),
    ("user", 1),
    ("mail", 2),
    ("daemon", 3),
    ("auth", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("cron", 9),
    ("authpriv", 10),
    ("ftp", 11),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
];

/// The default facility.
pub const DAEMON: u8 = 3;

/// The severity of a level (RFC 5424 section 6.2.1).
pub fn severity(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warning => 4,
        Level::Info => 6,
        Level::Debug => 7,
    }
}

/// Writes the headers of messages.
#[derive(Debug)]
pub struct Header {
    format: Rfc,
    facility: u8,
    tag: String,
    /// The name of this machine. None if the receiver is on this machine, and the format leaves it out then.
    host: Option<String>,
    pid: u32,
}

impl Header {
    /// The headers of a log with these settings.
    pub fn new(settings: &Settings) -> Header {
        let is_local = matches!(settings.to, To::Unix(_));
        let natural = if is_local { Rfc::Rfc3164 } else { Rfc::Rfc5424 };
        let format = settings.format.unwrap_or(natural);
        let host = || {
            let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let is_fine = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
            if is_fine { name } else { "-".to_owned() }
        };
        Header {
            format,
            facility: settings.facility,
            tag: settings.tag.clone(),
            host: (!is_local || format == Rfc::Rfc5424).then(host),
            pid: std::process::id(),
        }
    }

    /// Writes the header of a message.
    pub fn begin(&self, line: &mut Vec<u8>, level: Level, time: Duration) {
        let priority = self.facility * 8 + severity(level);
        let (tag, pid, host) = (&self.tag, self.pid, self.host.as_deref());
        match self.format {
            Rfc::Rfc5424 => {
                let host = host.unwrap_or("-");
                put(
                    line,
                    format_args!("<{priority}>1 {} {host} {tag} {pid} - - ", Rfc3339(time)),
                );
            }
            Rfc::Rfc3164 => {
                let at = utc(time);
                put(
                    line,
                    format_args!("<{priority}>{} {:>2} {} ", month(&at), at.day, Clock(at)),
                );
                if let Some(host) = host {
                    put(line, format_args!("{host} "));
                }
                put(line, format_args!("{tag}[{pid}]: "));
            }
        }
    }
}

/// The socket that messages are sent to.
pub struct Socket {
    to: To,
    open: Option<Open>,
    /// The last error of UDP, and when it came. The network tells few of them, and late: some seconds without one are no sign of life before.
    doubt: Option<(Instant, io::ErrorKind, String)>,
}

/// The time without an error over UDP after which lines count as received.
const DOUBT: Duration = Duration::from_secs(5);

enum Open {
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

impl Socket {
    /// Opens nothing yet: the daemon may start later.
    pub fn new(to: To) -> Socket {
        Socket {
            to,
            open: None,
            doubt: None,
        }
    }

    fn open(&self) -> io::Result<Open> {
        match &self.to {
            To::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path).map_err(|error| self.to.named(error))?;
                socket.set_write_timeout(Some(PATIENCE))?;
                Ok(Open::Unix(socket))
            }
            To::Udp(address) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for address in address.to_socket_addrs().map_err(|error| self.to.named(error))? {
                    match udp(address) {
                        Ok(socket) => return Ok(Open::Udp(socket)),
                        Err(error) => last = error,
                    }
                }
                Err(self.to.named(last))
            }
        }
    }

    /// Sends a message, over a new socket if there is none or if the daemon has closed the old one. Returns the error of the message
    /// before, if nobody has received that: the network tells it late.
    fn send(&mut self, message: &[u8]) -> io::Result<Option<io::Error>> {
        let had_one = self.open.is_some();
        match self.try_send(message) {
            Err(error) if had_one && is_closed(&error) => {
                self.open = None;
                self.try_send(message)?;
                Ok(matches!(self.to, To::Udp(_)).then_some(error))
            }
            sent => sent.map(|()| None),
        }
    }

    fn try_send(&mut self, message: &[u8]) -> io::Result<()> {
        let open = match &self.open {
            Some(open) => open,
            None => {
                let opened = self.open()?;
                self.open.insert(opened)
            }
        };
        let sent = match open {
            Open::Unix(socket) => socket.send(message),
            Open::Udp(socket) => socket.send(message),
        };
        sent.map(drop).map_err(|error| self.to.named(error))
    }
}

impl To {
    /// The error with the receiver that it is about.
    fn named(&self, error: io::Error) -> io::Error {
        let kind = error.kind();
        let text = match (self, kind) {
            (To::Unix(path), io::ErrorKind::WouldBlock) => {
                format!("'{}': its daemon reads no lines", path.display())
            }
            (To::Unix(path), _) => format!("'{}': {error}", path.display()),
            (To::Udp(address), _) => format!("{address}: {error}"),
        };
        io::Error::new(kind, text)
    }
}

/// Whether the receiver is gone, or not there yet. The error may come from an earlier datagram.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, NotConnected, NotFound};
    matches!(
        error.kind(),
        ConnectionRefused | ConnectionReset | NotConnected | NotFound
    )
}

/// Opens a UDP socket to an address.
fn udp(to: SocketAddr) -> io::Result<UdpSocket> {
    let any = match to {
        SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

impl Output for Socket {
    fn write(&mut self, lines: &[u8]) -> Written {
        let mut lost: Option<(u64, io::Error)> = None;
        let mut done = 0;
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            let message = line.strip_suffix(b"\n").unwrap_or(line);
            match self.send(cut(message)) {
                Ok(None) => {}
                Ok(Some(error)) => lost = Some((lost.map_or(0, |(count, _)| count) + 1, error)),
                // While the daemon is not there, or takes nothing, the lines wait.
                Err(error) if self.open.is_none() || error.kind() == io::ErrorKind::WouldBlock => {
                    return match lost {
                        None => Written::Later(done, error),
                        Some((lost, error)) => Written::Lost(lost + count(&lines[done..]), error),
                    };
                }
                Err(error) => lost = Some((lost.map_or(0, |(count, _)| count) + 1, error)),
            }
            done += line.len();
        }
        match (lost, &self.doubt) {
            (None, Some((at, kind, text))) if at.elapsed() < DOUBT => {
                Written::Lost(0, io::Error::new(*kind, text.clone()))
            }
            (None, _) => Written::All,
            (Some((count, error)), _) => {
                let is_udp = matches!(self.to, To::Udp(_));
                self.doubt = is_udp.then(|| (Instant::now(), error.kind(), error.to_string()));
                Written::Lost(count, error)
            }
        }
    }
}

/// The beginning of a message that is too long, without a torn character.
fn cut(message: &[u8]) -> &[u8] {
    if message.len() <= LONGEST {
        return message;
    }
    let mut end = LONGEST;
    while end > 0 && message[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    &message[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Folder;

    const TIME: Duration = Duration::from_millis(784_111_777_042);

    fn settings(to: To, format: Option<Rfc>) -> Settings {
        Settings {
            to,
            format,
            facility: DAEMON,
            tag: "osier".into(),
        }
    }

    fn begun(to: To, format: Option<Rfc>, level: Level) -> String {
        let mut line = Vec::new();
        Header::new(&settings(to, format)).begin(&mut line, level, TIME);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn headers_are_those_of_the_standards() {
        let pid = std::process::id();
        let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
        let unix = || To::Unix("/dev/log".into());
        let udp = || To::Udp("127.0.0.1:514".into());
        assert_eq!(
            begun(unix(), None, Level::Error),
            format!("<27>Nov  6 08:49:37 osier[{pid}]: ")
        );
        assert_eq!(
            begun(udp(), None, Level::Info),
            format!("<30>1 1994-11-06T08:49:37.042Z {host} osier {pid} - - ")
        );
        assert_eq!(
            begun(udp(), Some(Rfc::Rfc3164), Level::Warning),
            format!("<28>Nov  6 08:49:37 {host} osier[{pid}]: ")
        );
        assert_eq!(
            begun(unix(), Some(Rfc::Rfc5424), Level::Debug),
            format!("<31>1 1994-11-06T08:49:37.042Z {host} osier {pid} - - ")
        );
    }

    #[test]
    fn a_line_is_a_datagram() {
        let folder = Folder::new();
        let path = folder.join("log");
        let receiver = UnixDatagram::bind(&path).unwrap();
        let mut socket = Socket::new(To::Unix(path));
        let long = "ä".repeat(LONGEST);
        assert!(matches!(
            socket.write(format!("one\ntwo\n{long}\n").as_bytes()),
            Written::All
        ));
        let mut piece = vec![0; 2 * LONGEST];
        let mut received = || {
            let count = receiver.recv(&mut piece).unwrap();
            String::from_utf8(piece[..count].to_vec()).unwrap()
        };
        assert_eq!((received(), received()), ("one".into(), "two".into()));
        assert_eq!(received().len(), LONGEST);
    }

    #[test]
    fn lines_wait_for_a_daemon_that_starts_later_or_again() {
        let folder = Folder::new();
        let path = folder.join("log");
        let mut socket = Socket::new(To::Unix(path.clone()));
        assert!(matches!(socket.write(b"early\n"), Written::Later(0, _)));
        let first = UnixDatagram::bind(&path).unwrap();
        assert!(matches!(socket.write(b"early\n"), Written::All));
        drop(first);
        assert!(matches!(socket.write(b"between\n"), Written::Later(0, _)));
        std::fs::remove_file(&path).unwrap();
        let second = UnixDatagram::bind(&path).unwrap();
        assert!(matches!(socket.write(b"between\nlate\n"), Written::All));
        let mut piece = [0; 64];
        let count = second.recv(&mut piece).unwrap();
        assert_eq!(&piece[..count], b"between");
    }

    #[test]
    fn lines_that_no_daemon_has_received_over_udp_are_counted() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = receiver.local_addr().unwrap();
        drop(receiver);
        let mut socket = Socket::new(To::Udp(address.to_string()));
        assert!(matches!(socket.write(b"one\n"), Written::All));
        let Written::Lost(1, error) = socket.write(b"two\n") else {
            panic!("nobody has received the first line");
        };
        assert_eq!(
            error.to_string(),
            format!("{address}: Connection refused (os error 111)")
        );
        let receiver = UdpSocket::bind(address).unwrap();
        assert!(matches!(socket.write(b"three\n"), Written::Lost(1, _)));
        // The next error may come late.
        assert!(matches!(socket.write(b"four\n"), Written::Lost(0, _)));
        let mut piece = [0; 64];
        for line in ["three", "four"] {
            let count = receiver.recv(&mut piece).unwrap();
            assert_eq!(&piece[..count], line.as_bytes());
        }
    }

    #[test]
    fn a_full_socket_keeps_the_rest_for_later() {
        let folder = Folder::new();
        let path = folder.join("log");
        let receiver = UnixDatagram::bind(&path).unwrap();
        let mut socket = Socket::new(To::Unix(path));
        let line = format!("{}\n", "x".repeat(4000));
        let lines = line.repeat(2000);
        let Written::Later(done, error) = socket.write(lines.as_bytes()) else {
            panic!("the socket has room for all");
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let text = format!("'{}': its daemon reads no lines", folder.join("log").display());
        assert_eq!(error.to_string(), text);
        assert!(done % line.len() == 0 && done < lines.len(), "{done}");
        let mut piece = vec![0; LONGEST];
        for _ in 0..done / line.len() {
            assert_eq!(receiver.recv(&mut piece).unwrap(), line.len() - 1);
        }
    }
}
