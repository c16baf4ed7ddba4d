//! Connections that are kept, and asked now and then.

use load_tls::{Offer, config, name};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The outcomes of requests and of connections.
#[derive(Default)]
pub struct Counts {
    asked: u64,
    /// Requests without a whole answer.
    failed: u64,
    /// Connections that a reset has ended, whether a request was on its way or not.
    reset: u64,
    /// Connections that the server has closed while they were idle.
    closed: u64,
    /// Connections that the server has ended with an answer that said so.
    ended: u64,
    /// Attempts to connect that were refused.
    refused: u64,
    longest: Duration,
}

impl Counts {
    pub fn print(&self, kind: &str) {
        for (name, number) in [
            ("asked", self.asked),
            ("failed", self.failed),
            ("reset", self.reset),
            ("closed", self.closed),
            ("ended", self.ended),
            ("refused", self.refused),
            ("longest_us", self.longest.as_micros() as u64),
        ] {
            println!("{kind}_{name} {number}");
        }
    }
}

/// A port, and how to speak to it.
#[derive(Clone)]
pub struct Target {
    port: u16,
    tls: Option<Arc<ClientConfig>>,
}

pub enum Socket {
    Clear(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Target {
    pub fn new(port: u16, is_tls: bool) -> io::Result<Target> {
        let tls = is_tls.then(|| config(&Offer::default()).map_err(io::Error::other));
        Ok(Target {
            port,
            tls: tls.transpose()?,
        })
    }

    fn connect(&self) -> io::Result<Socket> {
        let socket = TcpStream::connect(("127.0.0.1", self.port))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let Some(config) = &self.tls else {
            return Ok(Socket::Clear(socket));
        };
        let connection = ClientConnection::new(Arc::clone(config), name()).map_err(io::Error::other)?;
        Ok(Socket::Tls(Box::new(StreamOwned::new(connection, socket))))
    }

    /// Connects, again and again if it is refused.
    pub fn connect_at_last(&self, counts: &mut Counts) -> Socket {
        let begun = Instant::now();
        loop {
            match self.connect() {
                Ok(socket) => return socket,
                Err(error) => {
                    counts.refused += 1;
                    assert!(begun.elapsed() < PATIENCE, "nobody listens: {error}");
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
}

/// The state of an idle connection.
enum Idle {
    Open,
    Closed,
    Reset,
}

impl Socket {
    /// Looks whether the server has ended the connection, as the loop of a client would.
    fn look(&mut self) -> Idle {
        let _ = self.tcp().set_nonblocking(true);
        let read = self.read(&mut [0]);
        let _ = self.tcp().set_nonblocking(false);
        match read {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Idle::Open,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Idle::Reset,
            _ => Idle::Closed,
        }
    }

    /// Asks, and counts what comes of it. Returns whether the connection can be asked again.
    pub fn ask(&mut self, counts: &mut Counts) -> bool {
        let begun = Instant::now();
        counts.asked += 1;
        let done = self
            .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .and_then(|()| self.receive());
        counts.longest = counts.longest.max(begun.elapsed());
        match done {
            Ok(true) => return true,
            Ok(false) => counts.ended += 1,
            Err(error) => {
                counts.failed += 1;
                let is_reset = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
                counts.reset += u64::from(is_reset);
            }
        }
        false
    }

    /// Reads an answer with a Content-Length. Returns whether the connection stays.
    fn receive(&mut self) -> io::Result<bool> {
        let (mut answer, mut piece) = (Vec::new(), [0; 2048]);
        loop {
            let count = self.read(&mut piece)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&piece[..count]);
            let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
                continue;
            };
            let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
            let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let length: usize = field("content-length:")
                .and_then(|length| length.parse().ok())
                .ok_or(ErrorKind::InvalidData)?;
            if answer.len() >= end + 4 + length {
                let is_well = head.starts_with("http/1.1 200 ") && length == 13;
                let stays = field("connection:") != Some("close");
                return if is_well {
                    Ok(stays)
                } else {
                    Err(ErrorKind::InvalidData.into())
                };
            }
        }
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Socket::Clear(socket) => socket,
            Socket::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Clear(socket) => socket.read(into),
            Socket::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Clear(socket) => socket.write(bytes),
            Socket::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Clear(socket) => socket.flush(),
            Socket::Tls(stream) => stream.flush(),
        }
    }
}

/// Makes connections that have been asked once.
pub fn connect(target: &Target, count: usize) -> io::Result<Vec<Socket>> {
    (0..count)
        .map(|_| {
            let mut socket = target.connect()?;
            match socket.ask(&mut Counts::default()) {
                true => Ok(socket),
                false => Err(io::Error::other("a connection does not stay")),
            }
        })
        .collect()
}

/// Asks one connection after another until it is told to stop, and then each one once more.
pub fn walk(mut held: Vec<Socket>, target: &Target, stop: &AtomicBool, rate: u32) -> Counts {
    let mut counts = Counts::default();
    let (mut due, mut next) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) && !held.is_empty() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        // After a pause it does not catch up.
        due = due.max(Instant::now() - Duration::from_secs(1)) + Duration::from_secs(1) / rate;
        turn(&mut held[next], target, &mut counts);
        next = (next + 1) % held.len();
    }
    for socket in &mut held {
        turn(socket, target, &mut counts);
    }
    counts
}

fn turn(socket: &mut Socket, target: &Target, counts: &mut Counts) {
    match socket.look() {
        Idle::Open => {}
        Idle::Closed => {
            counts.closed += 1;
            *socket = target.connect_at_last(counts);
        }
        Idle::Reset => {
            counts.reset += 1;
            *socket = target.connect_at_last(counts);
        }
    }
    if !socket.ask(counts) {
        *socket = target.connect_at_last(counts);
    }
}
