//! An HTTP/2 client for tests, on the client's side of `osier_http::h2` and a plain socket.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use osier_http::h2::{Connection, ErrorCode, Event, Limits, Outgoing, StreamId};

use crate::common::PATIENCE;

/// The parts of a response that have come.
#[derive(Default)]
pub struct Reply {
    pub status: u16,
    pub interim: Vec<u16>,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    pub ended: bool,
    pub reset: Option<ErrorCode>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields.find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("a text")
    }

    /// Whether nothing more will come.
    pub fn is_over(&self) -> bool {
        self.ended || self.reset.is_some()
    }
}

pub struct Client {
    pub stream: TcpStream,
    pub machine: Connection,
    pub replies: BTreeMap<StreamId, Reply>,
    /// The last GOAWAY: its last stream and its code.
    pub goaway: Option<(StreamId, ErrorCode)>,
    /// Whether the server has ended the connection.
    pub closed: bool,
    /// Streams whose bodies are received but not read: their windows stay as they are.
    pub stalled: Vec<StreamId>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Client {
        Client::with(addr, &Limits::default())
    }

    pub fn with(addr: SocketAddr, limits: &Limits) -> Client {
        Client::over(TcpStream::connect(addr).expect("the server listens"), limits)
    }

    pub fn over(stream: TcpStream, limits: &Limits) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Client {
            stream,
            machine: Connection::client(limits, Instant::now()),
            replies: BTreeMap::new(),
            goaway: None,
            closed: false,
            stalled: Vec::new(),
        };
        client.flush();
        client
    }

    /// Puts a request into the output.
    pub fn begin(&mut self, method: &str, path: &str, fields: &[(&str, &[u8])], end: bool) -> StreamId {
        let target = Outgoing {
            method,
            scheme: "http",
            authority: "test",
            path,
            protocol: None,
        };
        self.open(&target, fields, end)
    }

    pub fn open(&mut self, target: &Outgoing<'_>, fields: &[(&str, &[u8])], end: bool) -> StreamId {
        let stream = self
            .machine
            .request(target, fields.iter().copied(), end)
            .expect("a stream");
        self.replies.insert(stream, Reply::default());
        stream
    }

    /// Sends a request without a body and waits for its response.
    pub fn get(&mut self, path: &str) -> Reply {
        let stream = self.begin("GET", path, &[], true);
        self.reply(stream)
    }

    /// Sends a request and waits for its response. The body goes as the windows allow.
    pub fn send(&mut self, method: &str, path: &str, fields: &[(&str, &[u8])], body: &[u8]) -> Reply {
        let stream = self.begin(method, path, fields, false);
        self.body(stream, body, true);
        self.reply(stream)
    }

    /// Sends bytes of a body.
    pub fn body(&mut self, stream: StreamId, mut bytes: &[u8], end: bool) {
        loop {
            let count = self.machine.send_data(stream, bytes, end, Instant::now());
            bytes = &bytes[count..];
            self.flush();
            if bytes.is_empty() || self.replies[&stream].is_over() {
                return;
            }
            while !self.may_send(stream) {
                self.pump();
                if self.closed || self.replies[&stream].is_over() {
                    return;
                }
            }
        }
    }

    /// Whether the stream may send bytes of its body.
    pub fn may_send(&mut self, stream: StreamId) -> bool {
        while self.machine.next_writable().is_some() {}
        self.machine.room(stream) > 0
    }

    /// Writes the output.
    pub fn flush(&mut self) {
        while !self.machine.output().is_empty() {
            match self.stream.write(self.machine.output()) {
                Ok(count) => self.machine.advance(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    /// Writes the output and reads once.
    pub fn pump(&mut self) {
        self.flush();
        let mut piece = vec![0; 64 << 10];
        match self.stream.read(&mut piece) {
            Ok(0) => self.closed = true,
            Ok(count) => self.take(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => self.closed = true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("no bytes: {error}; {:?}", self.machine),
        }
        self.flush();
    }

    /// Reads once, no longer than the timeout of the socket.
    pub fn look(&mut self) {
        self.flush();
        let mut piece = vec![0; 64 << 10];
        match self.stream.read(&mut piece) {
            Ok(count @ 1..) => self.take(&piece[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            ended => panic!("the connection ends: {ended:?}"),
        }
        self.flush();
    }

    fn take(&mut self, mut bytes: &[u8]) {
        loop {
            let received = self.machine.receive(bytes, Instant::now());
            let (count, event) = received.expect("the server keeps to the protocol");
            bytes = &bytes[count..];
            match event {
                Some(event) => self.note(event),
                None if bytes.is_empty() => return,
                None => {}
            }
        }
    }

    fn note(&mut self, event: Event<'_>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match event {
            Event::Response { stream, head, end } => {
                let reply = self.replies.get_mut(&stream).expect("asked for");
                if head.status() < 200 {
                    return reply.interim.push(head.status());
                }
                reply.status = head.status();
                reply.fields = head
                    .fields()
                    .iter()
                    .map(|(name, value)| (name.to_owned(), text(value)))
                    .collect();
                reply.ended = end;
            }
            Event::Data { stream, bytes, end } => {
                let reply = self.replies.get_mut(&stream).expect("asked for");
                reply.body.extend_from_slice(bytes);
                reply.ended = end;
                if !self.stalled.contains(&stream) {
                    self.machine.consumed(stream, bytes.len());
                }
            }
            Event::Trailers { stream, fields } => {
                let reply = self.replies.get_mut(&stream).expect("asked for");
                reply.trailers = fields
                    .iter()
                    .map(|(name, value)| (name.to_owned(), text(value)))
                    .collect();
                reply.ended = true;
            }
            Event::Reset { stream, code, .. } => {
                self.replies.get_mut(&stream).expect("asked for").reset = Some(code);
            }
            Event::GoAway { last, code } => self.goaway = Some((last, code)),
            _ => {}
        }
    }

    /// Waits until a condition holds, or the connection ends.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Client) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(!self.closed, "the connection ended before: {what}; {:?}", self.machine);
            assert!(start.elapsed() < PATIENCE, "not in time: {what}");
            self.pump();
        }
    }

    /// Waits for a response to its end, and ends the stream.
    #[track_caller]
    pub fn reply(&mut self, stream: StreamId) -> Reply {
        self.until("the whole response", |client| client.replies[&stream].is_over());
        self.machine.finish(stream);
        self.flush();
        self.replies.remove(&stream).expect("asked for")
    }

    /// Reads until the server ends the connection.
    pub fn until_closed(&mut self) {
        let start = Instant::now();
        while !self.closed {
            assert!(start.elapsed() < PATIENCE, "the connection does not end");
            self.pump();
        }
    }
}
