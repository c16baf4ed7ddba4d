//! The paths of a server. A thread of this process is the client: its instructions count, too, some hundred a request, and for TLS as many as
//! the server's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use osier::Runtime;
use osier::pubsub::Topic;
use osier_tls::{Acceptor, Identity};
use osier_web::fastcgi::FastCgi;
use osier_web::files::Files;
use osier_web::proxy::Proxy;
use osier_web::upstream::Upstream;
use osier_web::{Address, Request, Router, Server, Timeouts, fastcgi as cgi, ws};
use rustls::pki_types::ServerName;

use crate::backends;
use crate::series::Series;

const HELLO: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: counts\r\nAccept: */*\r\n\r\n";
const FILE: &[u8] = b"GET /file.txt HTTP/1.1\r\nHost: localhost\r\nUser-Agent: counts\r\nAccept: */*\r\n\r\n";
const SCRIPT: &[u8] = b"GET /index.php HTTP/1.1\r\nHost: localhost\r\nUser-Agent: counts\r\nAccept: */*\r\n\r\n";
/// The requests that are on their way at once.
const PIPELINED: usize = 16;
/// The guests of a room.
const GUESTS: usize = 8;
/// The text "Hello, World!" from a client, with a mask of zeros.
const MESSAGE: &[u8] = b"\x81\x8d\0\0\0\0Hello, World!";
/// The length of that text from a server.
const DELIVERED: usize = 2 + 13;

pub fn hello(runtime: &Runtime, count: u32) {
    let router = Router::new().get("/", |_| "Hello, World!");
    serve(
        runtime,
        || Server::new(router),
        move |address| ask(&mut connect(address), HELLO, count),
    );
}

/// Hello, counted as the `osier` binary counts the requests of a route, without the times of their phases.
pub fn counted(runtime: &Runtime, count: u32) {
    let router = Router::new().get("/", |_| "Hello, World!");
    let series = Series::new(1);
    let server = || Server::new(router).on_request(move |served| _ = series.record(&served.into()));
    let client = move |address| ask(&mut connect(address), HELLO, count);
    serve(runtime, server, client);
}

/// The same with the times of the phases and a limit for slow requests. The difference is the cost of both.
pub fn timed(runtime: &Runtime, count: u32) {
    let router = Router::new().get("/", |request: &mut Request<'_>| {
        request.set_slow(Duration::from_secs(2));
        "Hello, World!"
    });
    let series = Series::new(1);
    let server = || Server::new(router).on_request(move |served| series.record_served(served));
    let client = move |address| ask(&mut connect(address), HELLO, count);
    serve(runtime, server, client);
}

pub fn pipelined(runtime: &Runtime, count: u32) {
    let router = Router::new().get("/", |_| "Hello, World!");
    let client = move |address| ask(&mut connect(address), &HELLO.repeat(PIPELINED), count);
    serve(runtime, || Server::new(router), client);
}

/// A file of 100 bytes.
pub fn file(runtime: &Runtime, count: u32) {
    let folder = Folder::with("file.txt", &[b'x'; 100]);
    let files = Files::open(&folder.0).expect("the folder is there");
    serve(
        runtime,
        || Server::new(files),
        move |address| ask(&mut connect(address), FILE, count),
    );
}

pub fn proxied(runtime: &Runtime, count: u32) {
    let server = || {
        let backend = backends::start(backends::END_OF_HEAD, backends::http()).expect("a free port");
        let upstream = Upstream::builder("backend")
            .backend(Address::Tcp(backend.to_string()))
            .keep(4);
        Server::new(Proxy::new(upstream.build().expect("it has a backend")))
    };
    serve(runtime, server, move |address| ask(&mut connect(address), HELLO, count));
}

pub fn fastcgi(runtime: &Runtime, count: u32) {
    let folder = Folder::with("index.php", b"");
    let root = folder.0.clone();
    let server = move || {
        let backend = backends::start(backends::END_OF_STDIN, backends::fastcgi()).expect("a free port");
        let upstream = cgi::upstream("backend", [Address::Tcp(backend.to_string())]).keep(4);
        let upstream = upstream.build().expect("it has a backend");
        Server::new(FastCgi::open(root, upstream).expect("the folder is there"))
    };
    serve(runtime, server, move |address| {
        ask(&mut connect(address), SCRIPT, count)
    });
}

/// A message to a room, and its way to every guest.
pub fn room(runtime: &Runtime, count: u32) {
    struct Guest(Topic<ws::Frame>);
    impl ws::Callbacks for Guest {
        fn on_open(&mut self, sender: &ws::Sender) {
            sender.join(&self.0);
        }
        fn on_message(&mut self, message: ws::Message, _: &ws::Sender) {
            self.0.publish(message.into());
        }
    }
    let room = Topic::new();
    let router = Router::new().get("/", move |request: &mut Request<'_>| {
        ws::Options::default().upgrade_dormant(request, Guest(room.clone()))
    });
    let client = move |address| {
        let mut guests: Vec<TcpStream> = (0..GUESTS).map(|_| enter(address)).collect();
        for _ in 0..count {
            guests[0].write_all(MESSAGE).expect("the server reads");
            for guest in &mut guests {
                guest.read_exact(&mut [0; DELIVERED]).expect("the message comes");
            }
        }
    };
    serve(runtime, || Server::new(router), client);
}

/// Becomes a guest of the room.
fn enter(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    let upgrade = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(upgrade).expect("the server reads");
    let length = stream.read(&mut [0; 1024]).expect("the server answers");
    assert!(length > 0, "no answer to the upgrade");
    stream
}

/// Hello over TLS 1.3, after the handshake.
pub fn tls(runtime: &Runtime, count: u32) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).expect("they belong together");
    let acceptor = Acceptor::builder(identity).build().expect("it has a certificate");
    let router = Router::new().get("/", |_| "Hello, World!");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("it is a certificate");
    let client = move |address| {
        let config = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("it is a name");
        let session = rustls::ClientConnection::new(Arc::new(config), name).expect("it has roots");
        ask(&mut rustls::StreamOwned::new(session, connect(address)), HELLO, count);
    };
    serve(runtime, || Server::new(router).tls(acceptor), client);
}

/// Serves until the client on a thread of its own is done. `server` runs on the worker.
fn serve(runtime: &Runtime, server: impl FnOnce() -> Server + Send, client: impl FnOnce(SocketAddr) + Send + 'static) {
    let client = runtime.run(move || {
        // The counter makes a handshake take seconds on a busy machine.
        let timeouts = Timeouts {
            handshake: Duration::from_secs(600),
            ..Timeouts::default()
        };
        let server = server().timeouts(timeouts);
        let listening = server.bind("127.0.0.1:0").expect("a free port");
        let (address, handle) = (listening.local_addr(), listening.handle());
        let client = std::thread::spawn(move || {
            // The server ends also when the client panics.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client(address)));
            handle.shutdown();
            result.expect("the client is done");
        });
        listening.run();
        client
    });
    client.join().expect("the client is done");
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("it is a socket");
    stream
}

/// Sends the same requests `count` times, and waits for the answers each time. All answers have the length of the first one.
fn ask(stream: &mut (impl Read + Write), requests: &[u8], count: u32) {
    let mut answers = vec![0; 65_536];
    let mut length = 0;
    // The first answers: they are all there when their bodies are.
    let wanted = requests.windows(4).filter(|bytes| bytes == b"\r\n\r\n").count();
    let bodies = |answers: &[u8]| answers.windows(4).filter(|bytes| bytes == b"\r\n\r\n").count();
    stream.write_all(requests).expect("the server reads");
    while bodies(&answers[..length]) < wanted || !ends(&answers[..length]) {
        match stream.read(&mut answers[length..]).expect("the server answers") {
            0 => panic!("the server has ended the connection"),
            read => length += read,
        }
    }
    assert!(
        answers.starts_with(b"HTTP/1.1 200 OK\r\n"),
        "{}",
        String::from_utf8_lossy(&answers[..length])
    );
    for _ in 0..count {
        stream.write_all(requests).expect("the server reads");
        stream.read_exact(&mut answers[..length]).expect("the server answers");
    }
}

/// Whether the last answer is whole: the bodies here end in `!` or `x`, and no part of them does before.
fn ends(answers: &[u8]) -> bool {
    answers.ends_with(b"Hello, World!") || answers.ends_with(&[b'x'; 100])
}

/// A folder with one file, removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn with(name: &str, content: &[u8]) -> Folder {
        let folder = std::env::temp_dir().join(format!("osier-counts-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for temporary files");
        std::fs::write(folder.join(name), content).expect("room for a file");
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
