//! Sockets that systemd has opened (sd_listen_fds(3)), and notifications to systemd (sd_notify(3)).
//!
//! [`Sockets`] are taken once, before any other socket is bound. [`Notify`] connects at the same time, because a change
//! of the root folder hides the path of its socket. The connection stays.

use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;
use std::{env, io};

use osier::net::{Inherited, TcpListener, UnixListener};
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::time::{ClockId, clock_gettime};

/// Sockets that systemd has opened and that no listener has taken yet.
#[derive(Debug, Default)]
pub struct Sockets(Vec<Inherited>);

/// A listening socket.
#[derive(Debug)]
pub enum Socket {
    /// `ListenStream=` with a port.
    Tcp(TcpListener),
    /// `ListenStream=` with a path.
    Unix(UnixListener),
}

impl Sockets {
    /// Takes every socket.
    ///
    /// # Errors
    /// One line, when the environment names descriptors that are not there.
    pub fn take() -> Result<Sockets, String> {
        let taken = osier::net::inherited();
        taken
            .map(Sockets)
            .map_err(|error| format!("cannot take the sockets of systemd: {error}"))
    }

    /// Takes the sockets with this name. A socket unit with several addresses gives several sockets.
    ///
    /// # Errors
    /// One line, when no socket has the name, or one of them does not listen.
    pub fn named(&mut self, name: &str) -> Result<Vec<Socket>, String> {
        let mut found = Vec::new();
        for socket in self.0.extract_if(.., |socket| socket.name == name) {
            found.push(listening(socket.fd).map_err(|why| format!("systemd:{name} {why}"))?);
        }
        if found.is_empty() {
            let others: Vec<&str> = self.0.iter().map(|socket| socket.name.as_str()).collect();
            let there = match others.as_slice() {
                [] => "systemd has passed none to this process: start it by its socket unit".into(),
                others => format!(
                    "systemd has passed {}: see FileDescriptorName= of the socket unit",
                    others.join(", ")
                ),
            };
            return Err(format!("systemd:{name} is not a socket of this process; {there}"));
        }
        Ok(found)
    }

    /// Names of the sockets that no listener has taken. Their clients would wait for ever.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|socket| socket.name.as_str())
    }
}

/// The socket behind a descriptor, if it listens. The error completes the sentence `systemd:NAME …`.
fn listening(fd: OwnedFd) -> Result<Socket, String> {
    let not = |_| "is not a socket".to_owned();
    let stream = sockopt::socket_type(&fd).map_err(not)? == SocketType::STREAM;
    if !stream || !sockopt::socket_acceptconn(&fd).map_err(not)? {
        return Err("does not listen: its unit needs ListenStream= and Accept=no".into());
    }
    match sockopt::socket_domain(fd.as_fd()).map_err(not)? {
        AddressFamily::INET | AddressFamily::INET6 => Ok(Socket::Tcp(fd.into())),
        AddressFamily::UNIX => Ok(Socket::Unix(fd.into())),
        family => Err(format!(
            "has the address family {}, which osier does not serve",
            family.as_raw()
        )),
    }
}

/// The connection to the service manager. Without a service manager, its methods do nothing.
#[derive(Clone, Debug, Default)]
pub struct Notify(Option<Arc<UnixDatagram>>);

impl Notify {
    /// Connects to `NOTIFY_SOCKET`.
    ///
    /// # Errors
    /// One line, when `NOTIFY_SOCKET` cannot be reached.
    pub fn from_env() -> Result<Notify, String> {
        let Some(name) = env::var_os("NOTIFY_SOCKET") else {
            return Ok(Notify(None));
        };
        connect(name.as_bytes())
            .map(|socket| Notify(Some(Arc::new(socket))))
            .map_err(|error| format!("cannot reach NOTIFY_SOCKET={}: {error}", name.display()))
    }

    /// Notifies over a connected socket, which a former process has used.
    pub fn over(socket: Arc<UnixDatagram>) -> Notify {
        Notify(Some(socket))
    }

    /// Another descriptor of the connection, for a process that takes over.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        self.0.as_ref()?.try_clone().ok().map(OwnedFd::from)
    }

    /// Reports which process is the main process of the service from now on. The old one sends this, because the
    /// manager accepts messages from the main process only.
    pub fn main_process(&self, id: u32) {
        self.send(&format!("MAINPID={id}"));
    }

    /// Reports that every listener is open, or that a reload has ended.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// Reports that a reload has begun. [`ready`](Notify::ready) reports its end.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// Reports the end of a failed reload, with the reason as the status. The protocol has no word for a failure, and
    /// the manager waits for the end.
    pub fn not_reloaded(&self, why: &str) {
        self.send(&format!(
            "READY=1\nSTATUS=the reload failed, the old configuration stays: {}",
            line(why)
        ));
    }

    /// Reports that an upgrade has failed: the status says why.
    pub fn not_upgraded(&self, why: &str) {
        self.send(&format!(
            "STATUS=the upgrade failed, the old process goes on: {}",
            line(why)
        ));
    }

    /// Reports that the service is alive.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// The time within which the service manager wants to hear [`alive`](Notify::alive) again. None without a watchdog
    /// for this process.
    ///
    /// # Errors
    /// One line, when `WATCHDOG_USEC` is not a number above 0.
    pub fn watchdog() -> Result<Option<Duration>, String> {
        let of_another = env::var("WATCHDOG_PID").is_ok_and(|pid| pid != std::process::id().to_string());
        let Some(micros) = env::var_os("WATCHDOG_USEC").filter(|_| !of_another) else {
            return Ok(None);
        };
        let number = micros
            .to_str()
            .and_then(|text| text.parse().ok())
            .filter(|micros| *micros > 0);
        let number = number.ok_or_else(|| format!("WATCHDOG_USEC={} is not a number above 0", micros.display()))?;
        Ok(Some(Duration::from_micros(number)))
    }

    /// Reports that the shutdown has begun, and how long it takes at most. The manager waits that long even if that is
    /// more than `TimeoutStopSec=` of the unit.
    pub fn stopping(&self, status: &str, most: Duration) {
        let micros = most.as_micros();
        self.send(&format!(
            "STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\nSTATUS={}",
            line(status)
        ));
    }

    /// Sends a message. The socket does not block: a manager that does not read loses the message.
    fn send(&self, message: &str) {
        if let Some(socket) = &self.0 {
            let _ = socket.send(message.as_bytes());
        }
    }
}

/// Connects to a socket by its path, or by its name behind an `@`.
fn connect(name: &[u8]) -> io::Result<UnixDatagram> {
    let address = match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
        _ => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it begins with neither '/' nor '@'",
            ));
        }
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Replaces line ends: a second line would be a second assignment.
fn line(status: &str) -> String {
    status.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use testkit::Folder;

    /// Runs a process with the sockets at descriptor 3 and up, as systemd starts one. A shell puts them there.
    fn start(fds: &[&dyn AsFd], pid: &str, names: Option<&str>) -> (bool, String) {
        // Copies without close-on-exec, at numbers that do not collide with their places.
        let copies: Vec<OwnedFd> = fds
            .iter()
            .map(|fd| rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 100).unwrap())
            .collect();
        for copy in &copies {
            rustix::io::fcntl_setfd(copy, rustix::io::FdFlags::empty()).unwrap();
        }
        let places: String = copies
            .iter()
            .enumerate()
            .map(|(at, fd)| format!("{}<&{} ", at + 3, fd.as_raw_fd()))
            .collect();
        let test = "--exact process::systemd::tests::child --ignored --nocapture --test-threads=1";
        let script = format!("export LISTEN_PID={pid}; exec {places}; exec \"$0\" {test}");
        let mut command = Command::new("bash");
        command
            .arg0("bash")
            .arg("-c")
            .arg(script)
            .arg(std::env::current_exe().unwrap());
        command
            .env("LISTEN_FDS", fds.len().to_string())
            .env_remove("LISTEN_FDNAMES");
        if let Some(names) = names {
            command.env("LISTEN_FDNAMES", names);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), said)
    }

    #[test]
    #[ignore = "the child process of other tests: cargo test -p osier-server --bin osier process::systemd"]
    fn child() {
        let mut sockets = match Sockets::take() {
            Ok(sockets) => sockets,
            Err(why) => return println!("said: {why}"),
        };
        for name in ["web", "local", "missing"] {
            match sockets.named(name) {
                Ok(found) => {
                    for socket in found {
                        let _ = match socket {
                            Socket::Tcp(listener) => listener.accept().map(|(mut stream, _)| stream.write_all(b"tcp")),
                            Socket::Unix(listener) => {
                                listener.accept().map(|(mut stream, _)| stream.write_all(b"unix"))
                            }
                        };
                        println!("said: served {name}");
                    }
                }
                Err(why) => println!("said: {why}"),
            }
        }
        println!("said: unused {:?}", sockets.unused().collect::<Vec<_>>());
        println!("said: again {}", Sockets::take().unwrap().unused().count());
    }

    fn said(output: &str) -> Vec<&str> {
        output
            .lines()
            .filter_map(|line| Some(line.split_once("said: ")?.1))
            .collect()
    }

    #[test]
    fn sockets_of_systemd_are_served_by_their_names() {
        let folder = Folder::new();
        let path = folder.path().join("socket");
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let spare = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut to_tcp = std::net::TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        let mut to_unix = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let (ended, output) = start(&[&tcp, &unix, &spare], "$$", Some("web:local:spare"));
        assert!(ended, "{output}");
        let expected = [
            "served web",
            "served local",
            "systemd:missing is not a socket of this process; systemd has passed spare: see FileDescriptorName= of the socket unit",
            r#"unused ["spare"]"#,
            "again 0",
        ];
        assert_eq!(said(&output), expected, "{output}");
        let (mut one, mut two) = (String::new(), String::new());
        to_tcp.read_to_string(&mut one).unwrap();
        to_unix.read_to_string(&mut two).unwrap();
        assert_eq!((one.as_str(), two.as_str()), ("tcp", "unix"));
    }

    #[test]
    fn what_is_not_meant_for_this_process_or_no_listener_is_not_served() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let none = "systemd:web is not a socket of this process; systemd has passed none to this process: start it by its socket unit";
        for (fds, pid, names, expected) in [
            (&[&tcp as &dyn AsFd][..], "1", Some("web"), none),
            (&[], "$$", None, none),
            (&[&file], "$$", Some("web"), "systemd:web is not a socket"),
            (
                &[&udp],
                "$$",
                Some("web"),
                "systemd:web does not listen: its unit needs ListenStream= and Accept=no",
            ),
            (
                &[&tcp],
                "$$",
                None,
                "systemd:web is not a socket of this process; systemd has passed unknown: see FileDescriptorName= of the socket unit",
            ),
            (
                &[&tcp],
                "$$",
                Some("a:b"),
                "cannot take the sockets of systemd: LISTEN_FDNAMES has 2 names for 1 descriptors",
            ),
            (
                &[&tcp],
                "x",
                None,
                "cannot take the sockets of systemd: LISTEN_PID is not a number",
            ),
        ] {
            let (ended, output) = start(fds, pid, names);
            assert!(ended, "{output}");
            assert_eq!(said(&output)[0], expected);
        }
    }

    #[test]
    fn the_manager_is_told() {
        let folder = Folder::new();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notify = Notify(Some(Arc::new(connect(path.as_os_str().as_bytes()).unwrap())));
        let heard = || {
            let mut buffer = [0; 500];
            let count = manager.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..count].to_vec()).unwrap()
        };
        notify.ready("serving 2 sites\nREADY=0");
        assert_eq!(heard(), "READY=1\nSTATUS=serving 2 sites READY=0");
        notify.reloading();
        let reloading = heard();
        let micros: u64 = reloading
            .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
            .unwrap()
            .parse()
            .unwrap();
        assert!(micros > 0);
        notify.not_upgraded("no\nprogram");
        assert_eq!(
            heard(),
            "STATUS=the upgrade failed, the old process goes on: no program"
        );
        notify.stopping("", Duration::from_millis(1500));
        assert_eq!(heard(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=1500000\nSTATUS=");
        // A manager that does not read blocks nobody.
        (0..10_000).for_each(|_| notify.ready("more"));
    }

    #[test]
    fn names_of_the_managers_socket() {
        let name = format!("osier-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        Notify(Some(Arc::new(connect(format!("@{name}").as_bytes()).unwrap()))).ready("x");
        assert_eq!(manager.recv(&mut [0; 100]).unwrap(), 16);
        assert!(connect(b"vsock:2:1234").is_err() && connect(b"").is_err() && connect(b"/no/such/socket").is_err());
        // Without a manager nothing happens.
        Notify(None).ready("x");
    }
}
