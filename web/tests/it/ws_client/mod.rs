//! A WebSocket client that sends any bytes that a test wants and decodes frames. It uses none of
//! the server's code.
#![allow(dead_code)] // each test file uses its part

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::common::PATIENCE;

pub use testkit::websocket::masked;

pub const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

pub struct Peer {
    pub stream: TcpStream,
    /// Received and not yet taken.
    buffer: Vec<u8>,
    pub head: String,
}

/// A frame of the server: its first byte and its payload.
#[derive(Debug, PartialEq, Eq)]
pub struct Got(pub u8, pub Vec<u8>);

pub fn handshake(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
}

impl Peer {
    pub fn open(addr: SocketAddr, path: &str) -> Peer {
        Peer::with(addr, handshake(path).as_bytes())
    }

    /// Sends the handshake, and whatever follows it in `bytes`; reads the head of the answer.
    pub fn with(addr: SocketAddr, bytes: &[u8]) -> Peer {
        let stream = TcpStream::connect(addr).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let (buffer, head) = (Vec::new(), String::new());
        let mut peer = Peer { stream, buffer, head };
        peer.send(bytes);
        let end = loop {
            if let Some(end) = peer.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            assert!(
                peer.more() > 0,
                "no answer: {:?}",
                String::from_utf8_lossy(&peer.buffer)
            );
        };
        peer.head = String::from_utf8(peer.buffer.drain(..end).collect()).expect("a head is text");
        peer
    }

    fn more(&mut self) -> usize {
        let mut piece = [0; 16384];
        let count = self.stream.read(&mut piece).expect("the server answers in time");
        self.buffer.extend_from_slice(&piece[..count]);
        count
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server takes it");
    }

    pub fn text(&mut self, text: &str) {
        self.send(&masked(0x81, text.as_bytes()));
    }

    /// The next frame; `None` at the end of the connection.
    pub fn frame(&mut self) -> Option<Got> {
        loop {
            if let Some((got, len)) = parse(&self.buffer) {
                self.buffer.drain(..len);
                return Some(got);
            }
            if self.more() == 0 {
                assert_eq!(self.buffer, b"", "the connection ended inside a frame");
                return None;
            }
        }
    }

    pub fn expect_text(&mut self, text: &str) {
        let got = self.frame().expect("a frame");
        assert_eq!((got.0, String::from_utf8_lossy(&got.1).as_ref()), (0x81, text));
    }

    /// Asserts that the server closes with `code` and ends the connection.
    pub fn expect_close(&mut self, code: u16) {
        let got = self.frame().expect("a close frame");
        assert_eq!(
            (got.0, got.1.get(..2)),
            (0x88, Some(&code.to_be_bytes()[..])),
            "{got:?}"
        );
        // What the protocol wants of a client; the server may be gone already.
        let _ = self.stream.write_all(&masked(0x88, &code.to_be_bytes()));
        self.expect_end();
    }

    pub fn expect_end(&mut self) {
        let mut piece = [0; 4096];
        match self.stream.read(&mut piece) {
            Ok(0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("the connection does not end: {other:?}"),
        }
    }
}

/// The frame at the beginning of `bytes` and its length, if it is whole.
fn parse(bytes: &[u8]) -> Option<(Got, usize)> {
    let (first, second) = (*bytes.first()?, *bytes.get(1)?);
    assert_eq!(second & 0x80, 0, "a server does not mask");
    let (length, at) = match second {
        126 => (u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?) as usize, 4),
        127 => (u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize, 10),
        length => (length as usize, 2),
    };
    let payload = bytes.get(at..at + length)?.to_vec();
    Some((Got(first, payload), at + length))
}
