//! The lower bound of every gateway: one thread, one epoll, and for each request the system calls that nobody can leave out.
//! Arguments: PORT http BACKEND_PORT, or PORT fastcgi SOCKET SCRIPT, or PORT fastcgi-kept SOCKET SCRIPT.
//!
//! ```text
//!   client ─ recv ─▶ [socket, connect, epoll_ctl] ─ send ─▶ backend ─ recv ─▶ send ─▶ client [close]
//! ```
//!
//! The calls in brackets are those of a connection per request. Each client has a backend connection of its own. A request has come with
//! the first read, and a response too: the bench sends small ones.
#![forbid(unsafe_code)]

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The fields that a proxy adds.
const ADDED: &[u8] = b"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: 127.0.0.1\r\n\r\n";

enum Backend {
    Http(u16),
    FastCgi {
        socket: String,
        request: Vec<u8>,
        is_kept: bool,
    },
}

trait Wire: Read + Write + AsFd {}

impl<T: Read + Write + AsFd> Wire for T {}

struct Client {
    stream: TcpStream,
    backend: Option<Box<dyn Wire>>,
}

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse().expect("a port");
    let (port, backend) = match args[..] {
        [port, "http", backend] => (number(port), Backend::Http(number(backend))),
        [port, how @ ("fastcgi" | "fastcgi-kept"), socket, script] => {
            let is_kept = how == "fastcgi-kept";
            let request = request(script, is_kept);
            let socket = socket.to_owned();
            (
                number(port),
                Backend::FastCgi {
                    socket,
                    request,
                    is_kept,
                },
            )
        }
        _ => panic!("arguments: PORT http BACKEND_PORT, or PORT (fastcgi | fastcgi-kept) SOCKET SCRIPT"),
    };
    serve(&TcpListener::bind(("127.0.0.1", port))?, &backend)
}

fn serve(listener: &TcpListener, backend: &Backend) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(u64::MAX), EventFlags::IN)?;
    let mut clients: Vec<Option<Client>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    let mut buf = vec![0; 16 * 1024];
    loop {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        for event in &events {
            if event.data.u64() == u64::MAX {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    watch(&epoll, &stream, 2 * clients.len() as u64)?;
                    clients.push(Some(Client { stream, backend: None }));
                }
                continue;
            }
            // Twice the number of the client, and one more for its backend.
            let (number, is_backend) = (event.data.u64() as usize / 2, event.data.u64() % 2 == 1);
            let Some(client) = &mut clients[number] else { continue };
            let goes_on = match is_backend {
                true => client.answer(backend, &mut buf),
                false => client.ask(backend, &mut buf, &epoll, event.data.u64() + 1),
            };
            match goes_on {
                Ok(true) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => clients[number] = None,
            }
        }
    }
}

impl Client {
    /// Passes a request on. Returns false when the client is gone.
    fn ask(&mut self, to: &Backend, buf: &mut [u8], epoll: &OwnedFd, key: u64) -> io::Result<bool> {
        let read = self.stream.read(buf)?;
        if read == 0 {
            return Ok(false);
        }
        let wire = match &mut self.backend {
            Some(wire) => wire,
            none => {
                let wire: Box<dyn Wire> = match to {
                    Backend::Http(port) => Box::new(nonblocking(TcpStream::connect(("127.0.0.1", *port))?)?),
                    Backend::FastCgi { socket, .. } => {
                        let stream = UnixStream::connect(socket)?;
                        stream.set_nonblocking(true)?;
                        Box::new(stream)
                    }
                };
                watch(epoll, &wire, key)?;
                none.insert(wire)
            }
        };
        match to {
            Backend::Http(_) => {
                let end = read - 2;
                buf[end..end + ADDED.len()].copy_from_slice(ADDED);
                wire.write_all(&buf[..end + ADDED.len()])?;
            }
            Backend::FastCgi { request, .. } => wire.write_all(request)?,
        }
        Ok(true)
    }

    /// Passes a response back. Returns false when the backend is gone.
    fn answer(&mut self, from: &Backend, buf: &mut [u8]) -> io::Result<bool> {
        let Some(wire) = &mut self.backend else { return Ok(true) };
        match from {
            Backend::Http(_) => {
                let read = wire.read(buf)?;
                self.stream.write_all(&buf[..read])?;
                Ok(read > 0)
            }
            Backend::FastCgi { is_kept, .. } => {
                const STATUS: &[u8] = b"HTTP/1.1 200 OK\r\n";
                // The record's header is as long as half of the status, and the rest of its place is free.
                let at = STATUS.len();
                let read = wire.read(&mut buf[at..])?;
                if read > 0 {
                    let length = usize::from(u16::from_be_bytes([buf[at + 4], buf[at + 5]]));
                    buf.copy_within(at + 8..at + 8 + length, at);
                    buf[..at].copy_from_slice(STATUS);
                    self.stream.write_all(&buf[..at + length])?;
                }
                if !is_kept {
                    self.backend = None;
                }
                Ok(true)
            }
        }
    }
}

fn nonblocking(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn watch(epoll: &OwnedFd, source: &impl AsFd, key: u64) -> io::Result<()> {
    epoll::add(epoll, source, EventData::new_u64(key), EventFlags::IN | EventFlags::ET)?;
    Ok(())
}

/// A FastCGI request for a script, with the parameters that a server in front of php-fpm sends.
fn request(script: &str, is_kept: bool) -> Vec<u8> {
    let (root, name) = script.rsplit_once('/').expect("an absolute path");
    let name = format!("/{name}");
    let params = [
        ("SCRIPT_FILENAME", script),
        ("QUERY_STRING", ""),
        ("REQUEST_METHOD", "GET"),
        ("CONTENT_TYPE", ""),
        ("CONTENT_LENGTH", ""),
        ("SCRIPT_NAME", &name),
        ("REQUEST_URI", &name),
        ("DOCUMENT_URI", &name),
        ("DOCUMENT_ROOT", root),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("REQUEST_SCHEME", "http"),
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("SERVER_SOFTWARE", "null"),
        ("REMOTE_ADDR", "127.0.0.1"),
        ("REMOTE_PORT", "1"),
        ("SERVER_ADDR", "127.0.0.1"),
        ("SERVER_PORT", "80"),
        ("SERVER_NAME", "localhost"),
    ];
    let mut pairs = Vec::new();
    for (name, value) in params {
        // All of them are shorter than 128 bytes.
        pairs.extend([name.len() as u8, value.len() as u8]);
        pairs.extend(name.bytes().chain(value.bytes()));
    }
    let record = |kind: u8, content: &[u8]| {
        let [high, low] = (content.len() as u16).to_be_bytes();
        [&[1, kind, 0, 1, high, low, 0, 0], content].concat()
    };
    // Begin as a responder, the parameters and their end, and the end of the empty body.
    let begin = record(1, &[0, 1, u8::from(is_kept), 0, 0, 0, 0, 0]);
    [begin, record(4, &pairs), record(4, &[]), record(5, &[])].concat()
}
