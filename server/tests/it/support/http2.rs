//! An HTTP/2 client, on the client's side of `osier_http::h2`.

use std::io::{Read, Write};
use std::time::Instant;

use osier_http::h2::{Connection, Event, Limits, Outgoing, StreamId};

pub struct Http2<S> {
    pub stream: S,
    machine: Connection,
    /// Whether the server has sent GOAWAY.
    pub goes_away: bool,
    /// The status and the body of the response that comes.
    reply: (u16, Vec<u8>),
    is_over: bool,
}

impl<S: Read + Write> Http2<S> {
    /// Begins a connection over a stream that has its timeouts. The preface is sent.
    pub fn new(stream: S) -> Http2<S> {
        let mut client = Http2 {
            stream,
            machine: Connection::client(&Limits::default(), Instant::now()),
            goes_away: false,
            reply: (0, Vec::new()),
            is_over: false,
        };
        client.flush();
        client
    }

    /// Sends the head of a request.
    pub fn begin(&mut self, method: &str, path: &str, end: bool) -> StreamId {
        let target = Outgoing {
            method,
            scheme: "https",
            authority: "x",
            path,
            protocol: None,
        };
        // The tables of both ends hold it from the second request on.
        let fields = [("x-kept", b"in the table of both ends".as_slice())];
        let stream = self.machine.request(&target, fields, end).expect("a stream");
        (self.reply, self.is_over) = ((0, Vec::new()), false);
        self.flush();
        stream
    }

    /// Begins a WebSocket, whose frames are the bytes of the stream (RFC 8441).
    pub fn websocket(&mut self, path: &str) -> StreamId {
        while !self.machine.takes_extended_connect() {
            assert!(self.read(), "the settings have not come");
        }
        let target = Outgoing {
            method: "CONNECT",
            scheme: "https",
            authority: "x",
            path,
            protocol: Some("websocket"),
        };
        let fields = [("sec-websocket-version", b"13".as_slice())];
        let stream = self.machine.request(&target, fields, false).expect("a stream");
        (self.reply, self.is_over) = ((0, Vec::new()), false);
        self.flush();
        stream
    }

    /// Takes so many bytes of a response that goes on.
    pub fn take(&mut self, count: usize) -> Vec<u8> {
        while self.reply.1.len() < count {
            assert!(self.read(), "the connection has ended; {:?}", self.machine);
        }
        testkit::take_front(&mut self.reply.1, count)
    }

    pub fn send(&mut self, stream: StreamId, bytes: &[u8], end: bool) {
        assert_eq!(self.machine.send_data(stream, bytes, end, Instant::now()), bytes.len());
        self.flush();
    }

    /// Waits for a response to its end. Returns its status and its text.
    pub fn receive(&mut self, stream: StreamId) -> (u16, String) {
        while !self.is_over {
            assert!(self.read(), "the connection has ended; {:?}", self.machine);
        }
        self.machine.finish(stream);
        self.flush();
        let (status, body) = std::mem::take(&mut self.reply);
        (status, String::from_utf8(body).unwrap())
    }

    /// Waits until the server has sent GOAWAY.
    pub fn until_goes_away(&mut self) {
        while !self.goes_away {
            assert!(self.read(), "the connection has ended; {:?}", self.machine);
        }
    }

    pub fn get(&mut self, path: &str) -> (u16, String) {
        let stream = self.begin("GET", path, true);
        self.receive(stream)
    }

    /// Reads once. False at the end of the connection.
    fn read(&mut self) -> bool {
        let mut piece = vec![0; 64 << 10];
        let count = self.stream.read(&mut piece).unwrap();
        let mut bytes = &piece[..count];
        loop {
            let (used, event) = self.machine.receive(bytes, Instant::now()).expect("HTTP/2");
            bytes = &bytes[used..];
            match event {
                Some(Event::Response { head, end, .. }) => (self.reply.0, self.is_over) = (head.status(), end),
                Some(Event::Data { stream, bytes, end }) => {
                    self.reply.1.extend_from_slice(bytes);
                    self.is_over = end;
                    self.machine.consumed(stream, bytes.len());
                }
                Some(Event::Reset { code, .. }) => panic!("the stream was reset: {code:?}"),
                Some(Event::GoAway { .. }) => self.goes_away = true,
                Some(_) => {}
                None if bytes.is_empty() => break,
                None => {}
            }
        }
        if count > 0 {
            self.flush();
        }
        count > 0
    }

    fn flush(&mut self) {
        while !self.machine.output().is_empty() {
            let count = self.stream.write(self.machine.output()).unwrap();
            self.machine.advance(count);
        }
    }
}
