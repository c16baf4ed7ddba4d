//! Holds many idle TLS or HTTP/2 connections: each sends one request, reads the response, and stays open.
//! Arguments: PORT PROTOCOL COUNT PATH. PROTOCOL is `http/1.1` or `h2`, both over TLS, or `h2c`, HTTP/2 in the clear.
//!
//! The program prints `held` when all connections are idle. It ends when its standard input ends.
#![forbid(unsafe_code)]

use load_tls::{Offer, config, name};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;
use std::sync::Arc;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [port, protocol, count, path] = &args[..] else {
        panic!("arguments: PORT PROTOCOL COUNT PATH");
    };
    let port: u16 = port.parse().expect("a port");
    let count: usize = count.parse().expect("a number");
    let offer = Offer {
        protocol: match &protocol[..] {
            "http/1.1" => "http/1.1",
            _ => "h2",
        },
        ..Offer::default()
    };
    let config = config(&offer).map_err(Error::other)?;
    let held: Result<Vec<Held>> = (0..count)
        .map(|_| {
            let socket = TcpStream::connect(("127.0.0.1", port))?;
            socket.set_nodelay(true)?;
            match &protocol[..] {
                "http/1.1" => {
                    let mut stream = secured(socket, &config)?;
                    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
                    load_tls::read_answer(&mut stream)?;
                    Ok(Held::Tls(Box::new(stream)))
                }
                "h2" => {
                    let mut stream = secured(socket, &config)?;
                    ask_by_h2(&mut stream, path)?;
                    Ok(Held::Tls(Box::new(stream)))
                }
                "h2c" => {
                    let mut socket = socket;
                    ask_by_h2(&mut socket, path)?;
                    Ok(Held::Clear(socket))
                }
                _ => panic!("no protocol {protocol:?}"),
            }
        })
        .collect();
    let held = held?;
    println!("held");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(held);
    Ok(())
}

/// A connection, kept open.
#[expect(dead_code, reason = "it is only kept")]
enum Held {
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    Clear(TcpStream),
}

fn secured(socket: TcpStream, config: &Arc<ClientConfig>) -> Result<StreamOwned<ClientConnection, TcpStream>> {
    let connection = ClientConnection::new(config.clone(), name()).map_err(Error::other)?;
    Ok(StreamOwned::new(connection, socket))
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// One request on stream 1, its answer to the end, and the acknowledgement of the server's settings.
fn ask_by_h2(stream: &mut (impl Read + Write), path: &str) -> Result<()> {
    // GET, the scheme https, the path as a literal, the authority as a literal.
    let mut block = vec![0x82, 0x87, 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(b"\x01\x09localhost");
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    out.extend(frame(SETTINGS, 0, 0, &[]));
    out.extend(frame(HEADERS, END_STREAM | END_HEADERS, 1, &block));
    stream.write_all(&out)?;
    stream.flush()?;
    let (mut has_ended, mut has_settings) = (false, false);
    while !(has_ended && has_settings) {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload)?;
        match kind {
            SETTINGS if flags & ACK == 0 => {
                stream.write_all(&frame(SETTINGS, ACK, 0, &[]))?;
                stream.flush()?;
                has_settings = true;
            }
            DATA | HEADERS if u32::from_be_bytes(id) == 1 => {
                // The status 200 is one byte of the static table, after what changes the size of the table.
                if kind == HEADERS && !payload.iter().take(4).any(|byte| *byte == 0x88) {
                    return Err(Error::other("another status than 200"));
                }
                has_ended |= flags & END_STREAM != 0;
            }
            3 | 7 => return Err(Error::other("the stream or the connection was refused")),
            _ => {}
        }
    }
    Ok(())
}

fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags];
    frame.extend_from_slice(&id.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}
