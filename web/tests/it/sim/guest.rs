//! A guest of a chat, who notes every line.

use std::io::{self, Read, Write};

use osier::net::TcpStream;
use testkit::websocket::masked;

use super::SECOND;

/// A guest in the lobby.
pub struct Guest {
    stream: TcpStream,
    received: Vec<u8>,
    /// The lines that it has seen.
    pub seen: Vec<String>,
}

impl Guest {
    pub fn enter(address: &str, name: &str) -> io::Result<Guest> {
        let stream = osier::timeout(20 * SECOND, || TcpStream::connect(address));
        let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        let mut guest = Guest {
            stream,
            received: Vec::new(),
            seen: Vec::new(),
        };
        let handshake = format!(
            "GET /chat?room=lobby&name={name} HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        guest.stream.write_all(handshake.as_bytes())?;
        guest.stream.set_read_timeout(Some(20 * SECOND))?;
        let end = loop {
            if let Some(end) = guest.received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end + 4;
            }
            guest.more()?;
        };
        let head: Vec<u8> = guest.received.drain(..end).collect();
        if head.starts_with(b"HTTP/1.1 408") {
            // A partition has delayed a part of the request.
            return Err(io::ErrorKind::TimedOut.into());
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        Ok(guest)
    }

    fn more(&mut self) -> io::Result<()> {
        let mut buf = [0; 2000];
        match self.stream.read(&mut buf)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.received.extend_from_slice(&buf[..count]);
                Ok(())
            }
        }
    }

    pub fn say(&mut self, text: &str) -> io::Result<()> {
        self.stream
            .write_all(&masked(0x81, format!("{{\"text\":\"{text}\"}}").as_bytes()))
    }

    /// Takes in what has come, for at most `time`.
    pub fn listen(&mut self, time: std::time::Duration) -> io::Result<()> {
        let end = osier::time::now() + time;
        loop {
            while let Some(frame) = self.frame() {
                self.take(frame)?;
            }
            let left = end.saturating_duration_since(osier::time::now());
            if left.is_zero() || !self.stream.wait_readable(left)? {
                return Ok(());
            }
            self.more()?;
        }
    }

    /// Says goodbye, and waits for the answer.
    pub fn leave(&mut self) {
        let _ = self.stream.write_all(&masked(0x88, &1000u16.to_be_bytes()));
        let _ = self.listen(5 * SECOND);
    }

    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let bytes = &self.received;
        let (first, short) = (*bytes.first()?, *bytes.get(1)?);
        let (head, length) = match short {
            126 => (4, usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]))),
            127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().unwrap()) as usize),
            short => (2, usize::from(short)),
        };
        let payload = bytes.get(head..head + length)?.to_vec();
        self.received.drain(..head + length);
        Some((first, payload))
    }

    fn take(&mut self, (first, payload): (u8, Vec<u8>)) -> io::Result<()> {
        match first {
            0x81 => {}
            0x88 => return Err(io::ErrorKind::ConnectionAborted.into()),
            0x89 => return self.stream.write_all(&masked(0x8a, &payload)),
            first => panic!("a frame {first:x}"),
        }
        let message: serde_json::Value = serde_json::from_slice(&payload).expect("JSON");
        let line = |line: &serde_json::Value| line["text"].as_str().expect("text").to_string();
        match message["is"].as_str() {
            Some("history") => {
                assert!(self.seen.is_empty(), "the history comes first");
                self.seen.extend(message["lines"].as_array().unwrap().iter().map(line));
            }
            Some("line") => self.seen.push(line(&message)),
            _ => {}
        }
        Ok(())
    }
}
