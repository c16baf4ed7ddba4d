//! A server on loopback, and a client that sends bytes and reads responses, for all tests.
#![allow(dead_code)] // each test file uses its part

pub mod backend;
pub mod folder;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use testkit::DEADLINE;
pub use testkit::eventually;

use osier_web::{Connections, Handler, Level, Record, Server, ShutdownHandle};

/// Longest wait of a test for anything. A build with a better niceness leaves a test little of a processor: answers of real applications then
/// took more than 20 s.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits as [`eventually`] does, but suspends the fiber: what it waits for may need its worker.
#[track_caller]
pub fn eventually_on_fiber(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "not in {DEADLINE:?}: {what}");
        osier::sleep(Duration::from_millis(2)); // between two looks at what gives no notice
    }
}

/// Waits until the fiber is cancelled: a handler that takes longer than its test.
pub fn forever() {
    osier::sync::Event::new().wait();
}

/// A running server. Its drop stops it.
pub struct Site {
    pub addr: SocketAddr,
    pub stop: ShutdownHandle,
    /// Failures.
    pub log: Arc<Mutex<Vec<String>>>,
    /// The request ids of the failures, empty for a line about no request.
    pub ids: Arc<Mutex<Vec<String>>>,
    /// The lines about what clients do wrong.
    pub refused: Arc<Mutex<Vec<String>>>,
    pub connections: Connections,
    /// Receives the result of `Listening::run`.
    pub ended: mpsc::Receiver<usize>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Starts a router, or a function, on one worker.
pub fn site(handler: impl Into<Handler>) -> Site {
    site_with(1, Server::new(handler), |server| server.bind("127.0.0.1:0"))
}

/// Starts a configured server on `workers` workers.
pub fn site_with(
    workers: usize,
    server: Server,
    bind: impl FnOnce(Server) -> std::io::Result<osier_web::Listening> + Send + 'static,
) -> Site {
    let [log, ids, refused] = [(); 3].map(|()| Arc::new(Mutex::new(Vec::new())));
    let (failures, of_failures, refusals) = (log.clone(), ids.clone(), refused.clone());
    let server = server.on_log(move |record| {
        if record.level() > Level::Warning {
            return refusals.lock().unwrap().push(record.to_string());
        }
        let id = record.id().map_or(String::new(), |id| id.to_string());
        of_failures.lock().unwrap().push(id);
        failures.lock().unwrap().push(record.to_string());
    });
    let mut site = run(workers, server, bind);
    site.log = log;
    site.ids = ids;
    site.refused = refused;
    site
}

/// Starts a configured server on one worker, whose log goes to `on_log`.
pub fn logging_site(server: Server, on_log: impl Fn(&Record<'_>) + Send + Sync + 'static) -> Site {
    run(1, server.on_log(on_log), |server| server.bind("127.0.0.1:0"))
}

fn run(
    workers: usize,
    server: Server,
    bind: impl FnOnce(Server) -> std::io::Result<osier_web::Listening> + Send + 'static,
) -> Site {
    let (ready, started) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        let runtime = osier::Runtime::builder().workers(workers).build().expect("a runtime");
        runtime.run(|| {
            let listening = bind(server).expect("a free port on loopback");
            ready
                .send((listening.local_addr(), listening.handle(), listening.connections()))
                .expect("the test waits");
            let _ = end.send(listening.run());
        });
    });
    let (addr, stop, connections) = started.recv_timeout(PATIENCE).expect("the server starts");
    Site {
        addr,
        stop,
        log: Arc::default(),
        ids: Arc::default(),
        refused: Arc::default(),
        connections,
        ended,
        thread: Some(thread),
    }
}

/// A listener whose connections hold few bytes that are sent to clients.
pub fn narrow_listener() -> osier::net::TcpListener {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let socket = socket2::SockRef::from(&listener);
    socket.set_send_buffer_size(16 << 10).unwrap();
    osier::net::TcpListener::from(listener)
}

/// Connects with a receive buffer of a few kilobytes, so that the server soon has bytes left.
pub fn connect_narrowly(addr: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&addr.into()).expect("the server listens");
    socket.into()
}

impl Site {
    pub fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.addr).expect("the server listens"))
    }

    /// Sends one request on a connection of its own.
    pub fn ask(&self, request: &str) -> Reply {
        let mut client = self.connect();
        client.send(request);
        client.reply()
    }

    pub fn get(&self, path: &str) -> Reply {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"))
    }

    pub fn logged(&self, text: &str) -> bool {
        let any = |lines: &Mutex<Vec<String>>| lines.lock().unwrap().iter().any(|line| line.contains(text));
        any(&self.log) || any(&self.refused)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.shutdown();
        if let (Some(thread), false) = (self.thread.take(), thread::panicking()) {
            thread.join().expect("the server ends without a panic");
        }
    }
}

/// Waits until the server has read everything that was sent over IPv4, so that the next bytes
/// arrive as a piece of their own.
pub fn taken(client: &TcpStream) {
    let (ours, theirs) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
    eventually("the server has read what was sent", || {
        let table = socket_table();
        let (sent, read) = (queues(&table, ours, theirs), queues(&table, theirs, ours));
        sent.is_some_and(|queues| queues.starts_with("00000000:"))
            && read.is_some_and(|queues| queues.ends_with(":00000000"))
    });
}

/// Waits until everything that was sent over IPv4 lies in the socket of a server that does not read now.
pub fn arrived(client: &TcpStream) {
    let (ours, theirs) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
    eventually("what was sent has arrived", || {
        let table = socket_table();
        let (sent, unread) = (queues(&table, ours, theirs), queues(&table, theirs, ours));
        sent.is_some_and(|queues| queues.starts_with("00000000:"))
            && unread.is_some_and(|queues| !queues.ends_with(":00000000"))
    });
}

/// Waits until a server has read everything that its clients have sent over IPv4.
pub fn all_taken(server: SocketAddr) {
    let server = kernel_name(server);
    eventually("the server has read what was sent", || {
        socket_table().lines().skip(1).all(|line| {
            // Its number, its address, its peer, its state, its queues.
            let words: Vec<&str> = line.split_whitespace().take(5).collect();
            match words[..] {
                [_, ours, _, "01", queues] if ours == server => queues.ends_with(":00000000"),
                [_, _, theirs, "01", queues] if theirs == server => queues.starts_with("00000000:"),
                _ => true,
            }
        })
    });
}

/// The bytes that a socket between IPv4 addresses holds: those that are not acknowledged, and those
/// that are not read. `None` if the kernel has no such socket, closed or not.
pub fn kernel_queues(from: SocketAddr, to: SocketAddr) -> Option<String> {
    queues(&socket_table(), from, to)
}

fn socket_table() -> String {
    std::fs::read_to_string("/proc/net/tcp").expect("Linux tells of its sockets")
}

/// An IPv4 address as the kernel's table has it.
fn kernel_name(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(v4) => format!("{:08X}:{:04X}", u32::from_ne_bytes(v4.ip().octets()), v4.port()),
        SocketAddr::V6(_) => panic!("a test over IPv4"),
    }
}

fn queues(table: &str, from: SocketAddr, to: SocketAddr) -> Option<String> {
    let (from, to) = (kernel_name(from), kernel_name(to));
    table.lines().find_map(|line| {
        // Its number, its address, its peer, its state, its queues.
        let words: Vec<&str> = line.split_whitespace().take(5).collect();
        (words.get(1..3)? == [&*from, &*to]).then(|| words[4].to_owned())
    })
}

/// A connection of a test.
pub struct Client<S = TcpStream> {
    pub stream: S,
    /// Received bytes that are not yet part of a reply.
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (known, value) = line.split_once(": ")?;
            known.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("a text")
    }
}

impl Client {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client::over(stream)
    }

    pub fn finish_sending(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Ends the connection by RST.
    pub fn reset(self) {
        // An SO_LINGER of zero makes close send a reset (socket(7)).
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Whether no byte arrives within `time`. It is for events that must not happen, so a slow
    /// machine can only make it pass.
    pub fn is_quiet_for(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let mut byte = [0];
        let quiet = self.buffer.is_empty() && self.stream.peek(&mut byte).is_err();
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        quiet
    }
}

impl<S: Read + Write> Client<S> {
    /// Makes a client that sends its bytes over `stream`.
    pub fn over(stream: S) -> Self {
        Client {
            stream,
            buffer: Vec::new(),
        }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server takes it");
    }

    /// Sends bytes that the server may refuse.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    pub fn get(&mut self, path: &str) -> Reply {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
        self.reply()
    }

    fn more(&mut self) -> usize {
        let mut piece = [0; 16384];
        let count = self.stream.read(&mut piece).expect("the server answers in time");
        self.buffer.extend_from_slice(&piece[..count]);
        count
    }

    pub fn take(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            assert_ne!(
                self.more(),
                0,
                "the connection ended inside a reply: {:?}",
                String::from_utf8_lossy(&self.buffer)
            );
        }
        testkit::take_front(&mut self.buffer, count)
    }

    /// Reads a line, without its end.
    pub fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.take(end + 2);
                return String::from_utf8(line[..end].to_vec()).expect("a line of text");
            }
            assert_ne!(
                self.more(),
                0,
                "the connection ended inside a line: {:?}",
                String::from_utf8_lossy(&self.buffer)
            );
        }
    }

    /// Reads the head of the next reply: its status and its text.
    pub fn head(&mut self) -> (u16, String) {
        let mut head = String::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            head += &line;
            head += "\n";
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("not a head: {head:?}")), head)
    }

    /// Reads the next reply in its own framing.
    pub fn reply(&mut self) -> Reply {
        let (status, head) = self.head();
        let mut reply = Reply {
            status,
            head,
            body: Vec::new(),
        };
        if matches!(status, 100..=199 | 204 | 304) {
            return reply;
        }
        if let Some(length) = reply.header("content-length") {
            let length = length.parse().expect("a length");
            reply.body = self.take(length);
        } else if reply.header("transfer-encoding") == Some("chunked") {
            reply.body = self.chunks();
        } else {
            reply.body = self.rest();
        }
        reply
    }

    /// Reads the data of all chunks up to the last, and the trailer.
    pub fn chunks(&mut self) -> Vec<u8> {
        let mut data = Vec::new();
        loop {
            let length = usize::from_str_radix(&self.line(), 16).expect("a chunk size");
            if length == 0 {
                while !self.line().is_empty() {}
                return data;
            }
            data.extend(self.take(length));
            assert_eq!(self.line(), "");
        }
    }

    /// Reads everything up to the end of the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut piece = [0; 16384];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => self.buffer.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("the connection does not end: {error}"),
            }
        }
        std::mem::take(&mut self.buffer)
    }

    /// Asserts that the connection ends without further bytes.
    pub fn expect_end(&mut self) {
        assert_eq!(String::from_utf8_lossy(&self.rest()), "");
    }
}

/// A request body whose reader panics once, and then ends.
pub enum Panicking {
    AtFirstRead,
    /// The first read waits for this silent stream until it is cancelled.
    AtSecondRead(osier::net::UnixStream),
    HasPanicked,
}

impl Read for Panicking {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match std::mem::replace(self, Panicking::HasPanicked) {
            Panicking::AtFirstRead => panic!("the body's reader panics on purpose"),
            Panicking::AtSecondRead(silent) => {
                *self = Panicking::AtFirstRead;
                (&silent).read(into)
            }
            Panicking::HasPanicked => Ok(0),
        }
    }
}

/// Sends `POST path` with this body. Returns the response and the server's log. Fails if there is no response in time.
pub fn post_panicking(
    handler: impl Into<Handler>,
    path: &'static str,
    body: Panicking,
) -> (osier_web::test::Reply, Vec<String>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let lines = log.clone();
    let server = Server::new(handler).on_log(move |record| lines.lock().unwrap().push(record.to_string()));
    let client = osier_web::test::Client::of(server);
    let (done, replied) = mpsc::channel();
    thread::spawn(move || {
        let _ = done.send(client.post(path).sized_reader(body, 100_000).send());
    });
    // A scripted backend ends its connection after PATIENCE.
    let reply = replied.recv_timeout(PATIENCE / 2).expect("a response, or its end");
    let lines = log.lock().unwrap().clone();
    (reply, lines)
}
