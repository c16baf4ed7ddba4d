//! Shared parts of the black-box tests: a folder to serve, a server process, and a client that sends and reads raw bytes.
//!
//! Every wait has a deadline far beyond what a loaded machine needs. None is a measurement.

pub mod certs;
pub mod fastcgi;
pub mod http2;
pub mod serving;
pub mod sites;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Instant, SystemTime};

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
pub use testkit::{DEADLINE, Folder};

/// Makes a named pipe.
pub fn make_fifo(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::from_raw_mode(0o644)).unwrap();
}

/// Takes every permission away.
pub fn lock(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
}

pub fn age(path: &Path, modified: SystemTime) {
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(modified)
        .unwrap();
}

/// The binary, serving.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub ready_line: String,
}

impl Server {
    /// Serves `folder` with further arguments, on a port the system chooses.
    pub fn start(folder: &Folder, arguments: &[&str]) -> Server {
        let mut command = osier();
        command.arg(folder.path()).args(["-l", "127.0.0.1:0"]).args(arguments);
        if !arguments.contains(&"-w") {
            command.args(["-w", "2"]);
        }
        Server::spawn(command)
    }

    /// Waits for the line that says it is ready.
    pub fn spawn(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let mut stdout = BufReader::new(stdout);
            let _ = stdout.read_line(&mut line);
            let _ = sender.send(line);
            let _ = std::io::copy(&mut stdout, &mut std::io::sink());
        });
        let line = receiver.recv_timeout(DEADLINE).unwrap_or_default();
        let Some(url) = urls(&line).next() else {
            let _ = child.kill();
            panic!("no ready line from {command:?}, but {line:?}");
        };
        let address = url.split('/').next().unwrap().parse().unwrap();
        Server {
            child,
            address,
            ready_line: line,
        }
    }

    pub fn connect(&self) -> Client {
        Client::new(self.address)
    }

    /// One GET on a connection of its own.
    pub fn get(&self, target: &str) -> Reply {
        self.get_with(target, &[])
    }

    /// One GET with further field lines.
    pub fn get_with(&self, target: &str, fields: &[&str]) -> Reply {
        self.ask("GET", target, fields)
    }

    pub fn ask(&self, method: &str, target: &str, fields: &[&str]) -> Reply {
        let mut client = self.connect();
        client.send(method, target, fields);
        client.receive(method)
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self) -> ExitStatus {
        testkit::wait_for("the end of the server", || self.child.try_wait().unwrap())
    }

    /// Whether the process is still there.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

/// The addresses of a ready line, without their scheme.
pub fn urls(line: &str) -> impl Iterator<Item = &str> {
    line.split("://").skip(1)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn osier() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
    command.stdin(Stdio::null());
    command
}

/// Runs `osier check` in a folder. Returns its status and its messages.
pub fn check(folder: &Folder, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = osier();
    command.arg("check").args(arguments).current_dir(folder.path());
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// A connection.
pub struct Client<S = TcpStream> {
    pub stream: S,
    unread: Vec<u8>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Client {
        Client::over(TcpStream::connect(address).unwrap())
    }

    /// The other end of a connection: also an application behind the server.
    pub fn over(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Client::of(stream)
    }

    /// Whether bytes have arrived that nobody has read. Waits for nothing.
    pub fn has_unread(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        matches!(peeked, Ok(1))
    }
}

impl<S: Read + Write> Client<S> {
    /// A client over a stream that has its timeouts.
    pub fn of(stream: S) -> Client<S> {
        Client {
            stream,
            unread: Vec::new(),
        }
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn send(&mut self, method: &str, target: &str, fields: &[&str]) {
        let mut request = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n");
        for field in fields {
            request.push_str(field);
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        self.send_raw(request.as_bytes());
    }

    /// Reads one response; `method` says whether it has a body.
    pub fn receive(&mut self, method: &str) -> Reply {
        let mut reply = self.receive_head();
        let bodiless = method == "HEAD" || matches!(reply.status, 204 | 304);
        let length = reply
            .field("content-length")
            .map_or(0, |length| length.parse().unwrap());
        if let Some(coding) = reply.field("transfer-encoding") {
            assert_eq!(coding, "chunked", "{reply:?}");
            reply.body = self.receive_chunks();
        } else if !bodiless {
            while self.unread.len() < length {
                assert!(
                    self.fill() > 0,
                    "the connection ended after {} of {length} bytes: {reply:?}",
                    self.unread.len()
                );
            }
            reply.body = testkit::take_front(&mut self.unread, length);
        }
        reply
    }

    /// Reads the head of a request; none at the end of the connection.
    pub fn receive_head_of_request(&mut self) -> Option<String> {
        let end = loop {
            if let Some(at) = self.unread.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if self.fill() == 0 {
                return None;
            }
        };
        let head = testkit::take_front(&mut self.unread, end);
        Some(String::from_utf8(head).unwrap())
    }

    /// Reads one request and gives its body; none at the end of the connection.
    pub fn receive_request(&mut self) -> Option<Vec<u8>> {
        let head = self.receive_head_of_request()?.to_ascii_lowercase();
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if field("transfer-encoding:") == Some("chunked") {
            return Some(self.receive_chunks());
        }
        let length = field("content-length:").map_or(0, |length| length.parse().unwrap());
        while self.unread.len() < length {
            assert!(self.fill() > 0, "the connection ended inside a body");
        }
        Some(testkit::take_front(&mut self.unread, length))
    }

    /// A chunked body, to its end.
    fn receive_chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let end = self.unread.windows(2).position(|window| window == b"\r\n");
            let size = end.map(|end| std::str::from_utf8(&self.unread[..end]).unwrap());
            let size = size.map(|size| usize::from_str_radix(size, 16).unwrap());
            if let (Some(end), Some(size)) = (end, size)
                && self.unread.len() >= end + size + 4
            {
                body.extend_from_slice(&self.unread[end + 2..end + 2 + size]);
                assert_eq!(&self.unread[end + 2 + size..end + size + 4], b"\r\n");
                self.unread.drain(..end + size + 4);
                if size == 0 {
                    return body;
                }
                continue;
            }
            assert!(self.fill() > 0, "the connection ended inside a chunked body");
        }
    }

    pub fn receive_head(&mut self) -> Reply {
        let end = loop {
            if let Some(at) = self.unread.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(
                self.fill() > 0,
                "the connection ended: {:?}",
                String::from_utf8_lossy(&self.unread)
            );
        };
        let head = testkit::take_front(&mut self.unread, end);
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().unwrap();
        assert!(status_line.starts_with("HTTP/1.1 "), "{status_line}");
        let fields = lines.map(|line| line.split_once(": ").unwrap_or_else(|| panic!("field line {line:?}")));
        Reply {
            status: status_line[9..12].parse().unwrap(),
            fields: fields
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_string()))
                .collect(),
            body: Vec::new(),
        }
    }

    /// Everything up to the end of the connection, with what was read before. A reset is an end.
    pub fn receive_rest(&mut self) -> Vec<u8> {
        let give_up = Instant::now() + DEADLINE;
        let mut piece = [0; 64 * 1024];
        loop {
            assert!(Instant::now() < give_up, "the connection does not end");
            match self.stream.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => self.unread.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error} after {} bytes", self.unread.len()),
            }
        }
        std::mem::take(&mut self.unread)
    }

    /// Takes the bytes that have been read and belong to no response yet.
    pub fn take_unread(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unread)
    }

    fn fill(&mut self) -> usize {
        let mut piece = [0; 64 * 1024];
        // With a timeout a signal interrupts the call.
        let count = loop {
            match self.stream.read(&mut piece) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                count => break count.unwrap(),
            }
        };
        self.unread.extend_from_slice(&piece[..count]);
        count
    }
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    /// The first value of a field, named in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// Bytes that differ from place to place, so that a wrong offset shows.
pub fn pattern(length: usize) -> Vec<u8> {
    const PERIOD: usize = 251 * 256;
    let mut bytes: Vec<u8> = (0..length.min(PERIOD))
        .map(|at| (at % 251) as u8 ^ (at / 251) as u8)
        .collect();
    while bytes.len() < length {
        bytes.extend_from_within(..bytes.len().min(length - bytes.len()));
    }
    bytes
}
