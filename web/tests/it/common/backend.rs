//! A backend on loopback that does what a test says, right or wrong, connection by connection.
#![allow(dead_code)] // each test file uses its part

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use osier_web::proxy::{Options, Proxy};
use osier_web::upstream::{Builder, Upstream};
use osier_web::{Limits, Router, Server};

use super::{PATIENCE, Site, site, site_with};

/// Serves through `proxy`.
pub fn serve(proxy: Proxy) -> Site {
    site(router(proxy))
}

pub fn router(proxy: Proxy) -> Router {
    Router::new().fallback_answering(move |request| proxy.answer_after_body(request))
}

/// Serves through `proxy`, with bodies of any length.
pub fn serve_large(proxy: Proxy) -> Site {
    let limits = Limits {
        body: u64::MAX,
        ..Limits::default()
    };
    let server = Server::new(router(proxy)).limits(limits);
    site_with(1, server, |server| server.bind("127.0.0.1:0"))
}

/// Makes bytes that show their place. After a prime number of them, of which no buffer has a multiple, they come again.
pub fn pattern(count: usize) -> Vec<u8> {
    const PERIOD: usize = 65_521;
    let mut bytes: Vec<u8> = (0..count.min(PERIOD))
        .map(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7])
        .collect();
    while bytes.len() < count {
        bytes.extend_from_within(..bytes.len().min(count - bytes.len()));
    }
    bytes
}

pub struct Backend {
    pub addr: SocketAddr,
    accepted: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    /// Every request head that was read, as it came.
    pub heads: Arc<Mutex<Vec<String>>>,
}

impl Backend {
    /// Runs `serve` on a thread for every connection; its number counts from 0.
    pub fn start(serve: impl Fn(usize, &mut Conn) + Send + Sync + 'static) -> Backend {
        Backend::on(TcpListener::bind("127.0.0.1:0").expect("a port on loopback"), serve)
    }

    pub fn on(listener: TcpListener, serve: impl Fn(usize, &mut Conn) + Send + Sync + 'static) -> Backend {
        let backend = Backend {
            addr: listener.local_addr().unwrap(),
            accepted: Arc::default(),
            open: Arc::default(),
            heads: Arc::default(),
        };
        let (accepted, open, heads) = (backend.accepted.clone(), backend.open.clone(), backend.heads.clone());
        let serve = Arc::new(serve);
        thread::spawn(move || {
            for stream in listener.incoming() {
                // A test that takes all descriptors may do so before this thread waits for its first connection.
                let Ok(stream) = stream else {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                };
                let number = accepted.fetch_add(1, Ordering::SeqCst);
                open.fetch_add(1, Ordering::SeqCst);
                let (serve, open) = (serve.clone(), open.clone());
                let mut conn = Conn::new(stream, heads.clone());
                thread::spawn(move || {
                    serve(number, &mut conn);
                    drop(conn);
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        backend
    }

    /// Responds to every request with these bytes, and keeps the connection.
    pub fn answering(answer: impl Into<Vec<u8>>) -> Backend {
        let answer = answer.into();
        Backend::start(move |_, conn| {
            while conn.request().is_some() {
                conn.send(&answer);
            }
        })
    }

    /// Responds to the first request with these bytes, and ends the connection.
    pub fn answering_once(answer: impl Into<Vec<u8>>) -> Backend {
        let answer = answer.into();
        Backend::start(move |_, conn| {
            if conn.request().is_some() {
                conn.send(&answer);
            }
        })
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    pub fn upstream(&self) -> Builder {
        upstream(&[self.addr])
    }

    pub fn proxy(&self) -> Proxy {
        self.proxy_with(Options::default())
    }

    /// A proxy that passes request bodies on while they come.
    pub fn streaming_proxy(&self) -> Proxy {
        self.proxy_with(options(|to| to.buffer = false))
    }

    pub fn proxy_with(&self, options: Options) -> Proxy {
        Proxy::with(self.upstream().build().expect("a backend"), options)
    }
}

/// Options that differ from the default by what `change` does.
pub fn options(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options::default();
    change(&mut options);
    options
}

pub fn upstream(addrs: &[SocketAddr]) -> Builder {
    let addresses = addrs.iter().map(|addr| addr.to_string().parse().expect("an address"));
    Upstream::builder("app").backends(addresses).on_log(|_| {})
}

/// A connection as the backend has it.
pub struct Conn {
    pub stream: TcpStream,
    buffer: Vec<u8>,
    heads: Arc<Mutex<Vec<String>>>,
}

/// A request as the backend has read it.
#[derive(Debug)]
pub struct Asked {
    pub head: String,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn header<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        let mut named = self.all(name);
        let first = named.next();
        assert!(named.next().is_none(), "{name} once: {}", self.head);
        first
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.head.lines().skip(1).filter_map(move |line| {
            let (known, value) = line.split_once(": ")?;
            known.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

impl Conn {
    fn new(stream: TcpStream, heads: Arc<Mutex<Vec<String>>>) -> Conn {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Conn {
            stream,
            buffer: Vec::new(),
            heads,
        }
    }

    /// Sends bytes that the proxy may refuse.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends a body in chunks of at most `size` bytes.
    pub fn send_chunks(&mut self, body: &[u8], size: usize) {
        for chunk in body.chunks(size) {
            self.send(format!("{:x}\r\n", chunk.len()));
            self.send(chunk);
            self.send("\r\n");
        }
        self.send("0\r\n\r\n");
    }

    fn more(&mut self) -> bool {
        let mut piece = [0; 65536];
        match self.stream.read(&mut piece) {
            Ok(0) => false,
            Ok(count) => {
                self.buffer.extend_from_slice(&piece[..count]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("the proxy sends nothing: {error}"),
        }
    }

    /// The head of the next request; `None` at the end of the connection.
    pub fn head(&mut self) -> Option<Asked> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = testkit::take_front(&mut self.buffer, end + 4);
                let head = String::from_utf8_lossy(&head[..end]).into_owned();
                self.heads.lock().unwrap().push(head.clone());
                return Some(Asked { head, body: Vec::new() });
            }
            if !self.more() {
                return None;
            }
        }
    }

    /// The next request, with its body.
    pub fn request(&mut self) -> Option<Asked> {
        let mut asked = self.head()?;
        if let Some(length) = asked.header("content-length") {
            asked.body = self.take(length.parse().unwrap())?;
        } else if asked.header("transfer-encoding").is_some() {
            asked.body = self.chunks()?;
        }
        Some(asked)
    }

    pub fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < count {
            if !self.more() {
                return None;
            }
        }
        Some(testkit::take_front(&mut self.buffer, count))
    }

    pub fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.take(end + 2)?;
                return Some(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if !self.more() {
                return None;
            }
        }
    }

    pub fn chunks(&mut self) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        loop {
            let length = usize::from_str_radix(&self.line()?, 16).expect("a chunk size");
            if length == 0 {
                while !self.line()?.is_empty() {}
                return Some(data);
            }
            data.extend(self.take(length)?);
            assert_eq!(self.line()?, "");
        }
    }

    /// Everything up to the end.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.more() {}
        std::mem::take(&mut self.buffer)
    }

    /// Whether the proxy ends the connection.
    pub fn is_ended(&mut self) -> bool {
        !self.more()
    }

    /// The stream, for another thread that writes.
    pub fn writer(&self) -> TcpStream {
        self.stream.try_clone().unwrap()
    }

    pub fn finish_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub fn reset(&self) {
        let socket = socket2::SockRef::from(&self.stream);
        let _ = socket.set_linger(Some(Duration::ZERO));
    }
}
