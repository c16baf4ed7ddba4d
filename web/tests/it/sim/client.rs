//! An HTTP client that believes nothing: every response is held against the request that it belongs to.

use std::io::{self, Read, Write};
use std::net::Shutdown;

use osier::net::TcpStream;

use super::{SECOND, below, once_in, piece_of, some_bytes, some_of};

/// A request of a client.
#[derive(Clone)]
pub struct Asked {
    pub method: &'static str,
    pub key: u64,
    pub body: Vec<u8>,
}

/// A response, as far as it came.
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    closes: bool,
}

impl Reply {
    /// A response with a connection of its own, or a stream: `head` has its fields.
    pub fn new(status: u16, head: &str, body: &[u8]) -> Reply {
        Reply {
            status,
            head: head.to_owned(),
            body: body.to_owned(),
            closes: true,
        }
    }

    /// Whether no other response follows on the connection.
    pub fn closes(&self) -> bool {
        self.closes
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// A connection over a stream.
pub struct Connection<S = TcpStream> {
    stream: S,
    received: Vec<u8>,
}

/// Connects to a server.
pub fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = osier::timeout(30 * SECOND, || TcpStream::connect(address));
    let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    stream.set_read_timeout(Some(100 * SECOND))?;
    stream.set_write_timeout(Some(100 * SECOND))?;
    Ok(stream)
}

impl Connection {
    pub fn open(address: &str) -> io::Result<Connection> {
        connect(address).map(Connection::over)
    }

    /// Says that no request follows.
    pub fn end(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

impl<S: Read + Write> Connection<S> {
    pub fn over(stream: S) -> Connection<S> {
        Connection {
            stream,
            received: Vec::new(),
        }
    }

    /// Sends a request, at once or with pauses.
    pub fn send(&mut self, asked: &Asked) -> io::Result<()> {
        let Asked { method, key, body } = asked;
        let chunked = !body.is_empty() && once_in(3);
        let framing = match chunked {
            true => "Transfer-Encoding: chunked".to_string(),
            false => format!("Content-Length: {}", body.len()),
        };
        let head = format!("{method} /echo?key={key} HTTP/1.1\r\nHost: sim\r\n{framing}\r\n\r\n");
        let mut bytes = head.into_bytes();
        match chunked {
            false => bytes.extend_from_slice(body),
            true => {
                for chunk in body.chunks(piece_of(body.len(), 9000)) {
                    bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
            }
        }
        if once_in(4) {
            let pause = bytes.len() * below(100) as usize / 100;
            self.stream.write_all(&bytes[..pause])?;
            osier::sleep(some_of(2 * SECOND));
            bytes.drain(..pause);
        }
        self.stream.write_all(&bytes)
    }

    /// Reads the next response. An error that is not of the connection is a defect.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let head = loop {
            if let Some(end) = self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let rest = self.received.split_off(end + 4);
                let head = std::mem::replace(&mut self.received, rest);
                break String::from_utf8(head).expect("a head is text");
            }
            self.more()?;
        };
        let mut words = head.split(' ');
        assert_eq!(words.next(), Some("HTTP/1.1"), "{head}");
        let status: u16 = words.next().and_then(|word| word.parse().ok()).expect("a status");
        let mut reply = Reply {
            status,
            head,
            body: Vec::new(),
            closes: false,
        };
        if status / 100 == 1 {
            // A final one follows.
            return self.reply();
        }
        reply.closes = reply
            .header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if let Some(length) = reply.header("content-length") {
            let length: usize = length.parse().expect("a length");
            while self.received.len() < length {
                self.more()?;
            }
            let rest = self.received.split_off(length);
            reply.body = std::mem::replace(&mut self.received, rest);
        } else if reply.header("transfer-encoding").is_some() {
            self.chunks(&mut reply.body)?;
        }
        Ok(reply)
    }

    fn chunks(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let end = loop {
                if let Some(end) = self.received.windows(2).position(|bytes| bytes == b"\r\n") {
                    break end;
                }
                self.more()?;
            };
            let size = std::str::from_utf8(&self.received[..end]).expect("a size is text");
            let size = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("no size: {size:?}"));
            while self.received.len() < end + 2 + size + 2 {
                self.more()?;
            }
            body.extend_from_slice(&self.received[end + 2..end + 2 + size]);
            assert_eq!(&self.received[end + 2 + size..end + 4 + size], b"\r\n");
            self.received.drain(..end + 4 + size);
            if size == 0 {
                return Ok(());
            }
        }
    }

    fn more(&mut self) -> io::Result<()> {
        let mut buf = [0; 4096];
        match self.stream.read(&mut buf)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.received.extend_from_slice(&buf[..count]);
                Ok(())
            }
        }
    }

    /// Nothing follows a last response but the end.
    pub fn expect_end(mut self) {
        match self.more() {
            Ok(()) => panic!(
                "bytes after the last response: {:?}",
                String::from_utf8_lossy(&self.received)
            ),
            Err(_) => assert!(self.received.is_empty()),
        }
    }
}

/// Sends `count` requests over as many connections as it takes, and gives each response to `check` with its request. A request whose
/// connection breaks has no response, and is not sent again.
pub fn requests(address: &str, first_key: u64, count: u64, check: impl Fn(&Asked, &Reply)) {
    let mut key = first_key;
    while key < first_key + count {
        let Ok(mut connection) = Connection::open(address) else {
            osier::sleep(some_of(3 * SECOND));
            key += 1;
            continue;
        };
        // A row of requests, sent before the first response is read.
        let mut rows = 1 + below(4);
        let mut is_read = true;
        while rows > 0 && key < first_key + count {
            let row = 1 + if once_in(3) { below(3) } else { 0 };
            let asked: Vec<Asked> = (key..(key + row).min(first_key + count))
                .map(|key| Asked {
                    method: ["GET", "PUT", "POST"][below(3) as usize],
                    key,
                    body: some_bytes(key),
                })
                .collect();
            key += asked.len() as u64;
            rows -= 1;
            match talk(&mut connection, &asked, rows == 0, &check) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    is_read = false;
                    rows = 0;
                }
            }
            if once_in(10) {
                osier::sleep(some_of(90 * SECOND));
            }
        }
        if is_read && once_in(3) {
            connection.end();
            connection.expect_end();
        }
    }
}

/// Sends a row of requests and reads the responses. Returns whether the connection can be used again.
fn talk(
    connection: &mut Connection,
    asked: &[Asked],
    is_last: bool,
    check: &impl Fn(&Asked, &Reply),
) -> io::Result<bool> {
    for asked in asked {
        connection.send(asked)?;
    }
    if is_last && once_in(3) {
        connection.end();
    }
    if once_in(12) {
        // It leaves without the response.
        return Err(io::ErrorKind::Interrupted.into());
    }
    for asked in asked {
        let reply = connection.reply()?;
        check(asked, &reply);
        if reply.closes() {
            return Ok(false);
        }
    }
    Ok(true)
}
