//! A scripted FastCGI backend, on threads and sockets of std, with its own record layer.
#![allow(dead_code)] // each test file uses its part

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::common::{PATIENCE, Site, site_with};
use osier_web::fastcgi::{self, FastCgi, Options};
use osier_web::upstream::{Builder, Upstream};
use osier_web::{Address, Limits, Router, Server};

pub const BEGIN: u8 = 1;
pub const ABORT: u8 = 2;
pub const END: u8 = 3;
pub const PARAMS: u8 = 4;
pub const STDIN: u8 = 5;
pub const STDOUT: u8 = 6;
pub const STDERR: u8 = 7;

pub fn record(kind: u8, id: u16, content: &[u8], padding: u8) -> Vec<u8> {
    let ([id_high, id_low], [high, low]) = (id.to_be_bytes(), (content.len() as u16).to_be_bytes());
    let mut record = vec![1, kind, id_high, id_low, high, low, padding, 0];
    record.extend_from_slice(content);
    record.resize(record.len() + usize::from(padding), 0xee);
    record
}

pub fn stdout(bytes: &[u8]) -> Vec<u8> {
    let records = bytes.chunks(65_535).map(|piece| record(STDOUT, 1, piece, 0));
    records.collect::<Vec<_>>().concat()
}

pub fn stderr(text: &str) -> Vec<u8> {
    record(STDERR, 1, text.as_bytes(), 0)
}

pub fn end(app_status: u32, protocol_status: u8) -> Vec<u8> {
    let mut content = app_status.to_be_bytes().to_vec();
    content.extend([protocol_status, 0, 0, 0]);
    record(END, 1, &content, 0)
}

/// A whole response.
pub fn answer(output: &[u8]) -> Vec<u8> {
    [stdout(output), record(STDOUT, 1, b"", 0), end(0, 0)].concat()
}

pub fn text(body: &str) -> Vec<u8> {
    answer(format!("Content-Type: text/plain\r\n\r\n{body}").as_bytes())
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection from the server.
pub struct Conn {
    socket: Socket,
    /// Number of earlier connections.
    pub number: usize,
    received: Vec<u8>,
}

/// The beginning of a request.
#[derive(Debug, Default, Clone)]
pub struct Opening {
    pub keep: bool,
    pub params: HashMap<String, String>,
    /// Every parameter name, repeated as it was received.
    pub names: Vec<String>,
}

impl Opening {
    pub fn get(&self, name: &str) -> &str {
        self.params.get(name).map_or("(unset)", String::as_str)
    }
}

impl Conn {
    pub fn socket(&mut self) -> &mut dyn ReadWrite {
        match &mut self.socket {
            Socket::Tcp(stream) => stream,
            Socket::Unix(stream) => stream,
        }
    }

    /// The next record: its type and content; `None` at the end of the connection.
    pub fn record(&mut self) -> Option<(u8, Vec<u8>)> {
        let head = self.take(8)?;
        assert_eq!((head[0], head[2], head[3]), (1, 0, 1), "version and id");
        let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
        let content = self.take(length)?;
        self.take(head[6].into())?;
        Some((head[1], content))
    }

    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.received.len() < count {
            let mut piece = [0; 65_536];
            match self.socket().read(&mut piece) {
                Ok(0) => return None,
                Ok(got) => self.received.extend_from_slice(&piece[..got]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the server sends nothing: {error}"),
            }
        }
        Some(testkit::take_front(&mut self.received, count))
    }

    /// The beginning of a request up to the end of its parameters.
    pub fn opening(&mut self) -> Option<Opening> {
        let (kind, begin) = self.record()?;
        assert_eq!(
            (kind, begin.len(), &begin[..2]),
            (BEGIN, 8, &[0, 1][..]),
            "a responder is asked"
        );
        let mut stream = Vec::new();
        loop {
            match self.record()? {
                (PARAMS, content) if content.is_empty() => break,
                (PARAMS, content) => stream.extend(content),
                other => panic!("{other:?} among the parameters"),
            }
        }
        let mut opening = Opening {
            keep: begin[2] & 1 != 0,
            ..Opening::default()
        };
        let mut rest = stream.as_slice();
        while !rest.is_empty() {
            let (name, value) = (length(&mut rest), length(&mut rest));
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            opening.names.push(text(&rest[..name]));
            opening
                .params
                .insert(text(&rest[..name]), text(&rest[name..name + value]));
            rest = &rest[name + value..];
        }
        Some(opening)
    }

    /// The rest of the body.
    pub fn body(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            match self.record()? {
                (STDIN, content) if content.is_empty() => return Some(body),
                (STDIN, content) => body.extend(content),
                other => panic!("{other:?} inside the body"),
            }
        }
    }

    /// A whole request.
    pub fn request(&mut self) -> Option<(Opening, Vec<u8>)> {
        let opening = self.opening()?;
        Some((opening, self.body()?))
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.socket().write_all(bytes.as_ref()).is_ok()
    }

    /// Waits until the server closes.
    pub fn wait_for_end(&mut self) {
        while self.record().is_some() {}
    }

    /// Ends both directions now, though this lives on.
    pub fn close(&mut self) {
        let _ = match &self.socket {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    pub fn finish(&mut self) {
        let _ = match &self.socket {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }
}

fn length(stream: &mut &[u8]) -> usize {
    let count = if stream[0] < 128 { 1 } else { 4 };
    let (bytes, rest) = stream.split_at(count);
    *stream = rest;
    match *bytes {
        [short] => short.into(),
        [a, b, c, d] => u32::from_be_bytes([a & 0x7f, b, c, d]) as usize,
        _ => unreachable!(),
    }
}

pub trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// A request, with its body.
pub type Asked = (Opening, Vec<u8>);

/// A listening application; its threads end with their connections.
pub struct Responder {
    pub address: Address,
    /// Connections so far.
    pub connections: Arc<AtomicUsize>,
    pub requests: Arc<Mutex<Vec<Asked>>>,
}

impl Responder {
    pub fn unix(folder: &Path, script: impl Fn(&mut Conn) + Send + Sync + 'static) -> Responder {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let path: PathBuf = folder.join(format!("app{}.sock", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let listener = UnixListener::bind(&path).expect("a socket in a folder of ours");
        Responder::new(Address::Unix(path), script, move || {
            listener.accept().map(|(stream, _)| Socket::Unix(stream))
        })
    }

    pub fn tcp(script: impl Fn(&mut Conn) + Send + Sync + 'static) -> Responder {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = Address::Tcp(listener.local_addr().expect("bound").to_string());
        Responder::new(address, script, move || {
            listener.accept().map(|(stream, _)| Socket::Tcp(stream))
        })
    }

    fn new(
        address: Address,
        script: impl Fn(&mut Conn) + Send + Sync + 'static,
        accept: impl Fn() -> io::Result<Socket> + Send + 'static,
    ) -> Responder {
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        let script = Arc::new(script);
        thread::spawn(move || {
            while let Ok(socket) = accept() {
                let number = counted.fetch_add(1, Ordering::SeqCst);
                match &socket {
                    Socket::Tcp(stream) => stream.set_read_timeout(Some(PATIENCE)).unwrap(),
                    Socket::Unix(stream) => stream.set_read_timeout(Some(PATIENCE)).unwrap(),
                }
                let script = script.clone();
                thread::spawn(move || {
                    script(&mut Conn {
                        socket,
                        number,
                        received: Vec::new(),
                    })
                });
            }
        });
        Responder {
            address,
            connections,
            requests: Arc::default(),
        }
    }

    /// Responds to every request of every connection by `answer`, and records the requests.
    pub fn answering(folder: &Path, answer: impl Fn(&Opening, &[u8]) -> Vec<u8> + Send + Sync + 'static) -> Responder {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        let responder = Responder::unix(folder, move |conn| {
            while let Some((opening, body)) = conn.request() {
                let said = answer(&opening, &body);
                let keep = opening.keep;
                seen.lock().unwrap().push((opening, body));
                if !conn.send(said) || !keep {
                    break;
                }
            }
        });
        Responder { requests, ..responder }
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> Vec<Asked> {
        self.requests.lock().unwrap().clone()
    }
}

/// A folder of its own with the files of a site; removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(files: &[(&str, &str)]) -> Folder {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("osier-fastcgi-{}-{number}", std::process::id()));
        let folder = Folder(path);
        std::fs::create_dir_all(folder.root()).expect("a temporary folder");
        for (name, content) in files {
            folder.write(name, content);
        }
        folder
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn root(&self) -> PathBuf {
        self.0.join("root")
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.root().join(name);
        std::fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
        std::fs::write(path, content).expect("a file");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A time for events that must time out. The test's own applications must be faster, also on a busy machine.
pub const SHORT: Duration = Duration::from_millis(600);

pub fn folder() -> Folder {
    Folder::new(&[
        ("index.php", ""),
        ("a.php", ""),
        ("sub/index.php", ""),
        ("photo.jpg", "a photo"),
        ("files/secret.txt", "a secret"),
    ])
}

/// An upstream of this application server alone, with default settings.
pub fn upstream(responder: &Responder) -> Upstream {
    upstream_builder(responder).build().expect("an upstream")
}

pub fn upstream_builder(responder: &Responder) -> Builder {
    fastcgi::upstream("fastcgi", [responder.address.clone()])
}

pub fn serve(folder: &Folder, responder: &Responder, options: Options) -> Site {
    serve_over(folder, upstream_builder(responder), options)
}

pub fn serve_all<const N: usize>(folder: &Folder, backends: [Address; N], options: Options) -> Site {
    serve_over(folder, fastcgi::upstream("fastcgi", backends), options)
}

pub fn serve_over(folder: &Folder, upstream: Builder, options: Options) -> Site {
    let upstream = upstream.build().expect("an upstream");
    let handler = FastCgi::with(folder.root(), upstream, options).expect("a handler");
    let limits = Limits {
        body: 100 << 20,
        ..Limits::default()
    };
    let server = Server::new(Router::new().fallback(handler.handler())).limits(limits);
    site_with(1, server, |server| server.bind("127.0.0.1:0"))
}

/// Options that pass a request body on while it comes.
pub fn streaming() -> Options {
    Options {
        buffer: false,
        ..Options::default()
    }
}

pub fn impatient() -> Options {
    Options {
        first_byte: SHORT,
        between: SHORT,
        ..Options::default()
    }
}

pub fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A backend that responds to the first request of each connection with `bytes`, and closes.
pub fn saying(folder: &Folder, bytes: Vec<u8>) -> Responder {
    Responder::unix(folder.path(), move |conn| {
        if conn.request().is_some() {
            conn.send(&bytes);
        }
    })
}
