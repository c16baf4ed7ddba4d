//! Load by HTTP/1.1 requests that stand in files, as the load generator of HttpArena makes it. Arguments:
//! PORT CONNECTIONS EACH MILLISECONDS FILE...
//!
//! A connection repeats the request of one file. After EACH responses the client resets it, and the next connection in its place repeats
//! the request of the next file. With EACH 0 a connection stays. The server may close a connection if its last response says so.
//!
//! In a file, `{RAND:1:50000}` stands for a number between these two, and `{SEQ:100001}` for this number and those that follow. Each has
//! as many digits as the last number in the braces. A file has at most one of them.
//!
//! It prints the number of responses and the seconds. A response other than 2xx ends it with an error.
#![forbid(unsafe_code)]

mod request;
mod response;

use request::Request;
use response::Head;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (numbers, files) = args.split_at(args.len().min(4));
    let numbers: Vec<u64> = numbers.iter().filter_map(|arg| arg.parse().ok()).collect();
    let ([port, connections, each, millis], [_, ..]) = (&numbers[..], files) else {
        panic!("arguments: PORT CONNECTIONS EACH MILLISECONDS FILE...");
    };
    let mut load = Load {
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        port: *port as u16,
        each: *each,
        requests: files.iter().map(|file| Request::read(file)).collect::<Result<_>>()?,
        input: vec![0; 256 * 1024],
    };
    let start = Instant::now();
    let mut connections = (0..*connections)
        .map(|place| load.connect(place, place as usize))
        .collect::<Result<Vec<_>>>()?;
    let (mut responses, mut events) = (0, Vec::with_capacity(1024));
    while start.elapsed() < Duration::from_millis(*millis) {
        events.clear();
        // The pause lets the time be read if no response comes.
        let pause = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        epoll::wait(&load.epoll, spare_capacity(&mut events), Some(&pause))?;
        for event in &events {
            let place = event.data.u64();
            responses += load.serve(&mut connections[place as usize], place)?;
        }
    }
    println!("{responses} {:.6}", start.elapsed().as_secs_f64());
    Ok(())
}

struct Load {
    epoll: OwnedFd,
    port: u16,
    each: u64,
    requests: Vec<Request>,
    input: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    /// The index of the request that it repeats.
    file: usize,
    request: Vec<u8>,
    /// How much of the request is sent.
    sent: usize,
    /// Whether it waits until it can send more.
    waits: bool,
    /// The part of a response that has come.
    received: Vec<u8>,
    responses: u64,
}

impl Load {
    /// Opens the connection of a place and sends its first request.
    fn connect(&mut self, place: u64, file: usize) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        if self.each > 0 {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        }
        stream.set_nonblocking(true)?;
        epoll::add(&self.epoll, &stream, EventData::new_u64(place), EventFlags::IN)?;
        let file = file % self.requests.len();
        let mut connection = Connection {
            stream,
            file,
            request: self.requests[file].bytes().to_vec(),
            sent: 0,
            waits: false,
            received: vec![],
            responses: 0,
        };
        self.ask(&mut connection, place)?;
        Ok(connection)
    }

    /// Begins the next request of a connection.
    fn ask(&mut self, connection: &mut Connection, place: u64) -> Result<()> {
        self.requests[connection.file].number(&mut connection.request);
        connection.sent = 0;
        self.send(connection, place)
    }

    /// Sends what the connection takes.
    fn send(&self, connection: &mut Connection, place: u64) -> Result<()> {
        let rest = &connection.request[connection.sent..];
        connection.sent += match (&connection.stream).write(rest) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            written => written?,
        };
        let waits = connection.sent < connection.request.len();
        if waits != connection.waits {
            connection.waits = waits;
            let mut interest = EventFlags::IN;
            interest.set(EventFlags::OUT, waits);
            epoll::modify(&self.epoll, &connection.stream, EventData::new_u64(place), interest)?;
        }
        Ok(())
    }

    /// Sends and reads after an event, and returns how many responses have come.
    fn serve(&mut self, connection: &mut Connection, place: u64) -> Result<u64> {
        if connection.waits {
            self.send(connection, place)?;
        }
        let count = match connection.stream.read(&mut self.input) {
            Ok(0) => return Err(Error::other("the server has closed a connection without saying so")),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            read => read?,
        };
        connection.received.extend_from_slice(&self.input[..count]);
        let Some(head) = Head::of(&connection.received)? else {
            return Ok(0);
        };
        let Some(length) = head.whole(&connection.received)? else {
            return Ok(0);
        };
        if length < connection.received.len() {
            return Err(Error::other("bytes behind a response that nobody has asked for"));
        }
        connection.received.clear();
        connection.responses += 1;
        if head.closes || connection.responses == self.each {
            *connection = self.connect(place, connection.file + 1)?;
        } else {
            self.ask(connection, place)?;
        }
        Ok(1)
    }
}
