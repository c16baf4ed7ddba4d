//! Load on an echo server: many connections, a message of 64 bytes on its way in each. Arguments: PORT CONNECTIONS MILLISECONDS [PATH].
//!
//! With a PATH the connections become WebSockets there, and each message is one frame.
//!
//! It prints `ready` when each connection has had its first response. After a line on its standard input it sends for MILLISECONDS,
//! prints the number of round trips, and keeps the connections until its standard input ends.
#![forbid(unsafe_code)]

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{BufRead, Read, Write, stdin};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const MESSAGE: [u8; 64] = *b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-";

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (numbers, path) = args.split_at(args.len().min(3));
    let numbers: Vec<u64> = numbers.iter().filter_map(|arg| arg.parse().ok()).collect();
    let ([port, count, millis], [] | [_]) = (&numbers[..], path) else {
        panic!("arguments: PORT CONNECTIONS MILLISECONDS [PATH]");
    };
    let (port, count, millis, path) = (*port, *count, *millis, path.first());
    // What a client sends is masked; what a server sends is not.
    let (message, answer) = match path {
        None => (MESSAGE.to_vec(), MESSAGE.to_vec()),
        Some(_) => (masked(&MESSAGE), [&[0x82, 64], &MESSAGE[..]].concat()),
    };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut streams = Vec::new();
    for i in 0..count {
        let mut stream = TcpStream::connect(("127.0.0.1", port as u16))?;
        stream.set_nodelay(true)?;
        if let Some(path) = path {
            upgrade(&mut stream, path)?;
        }
        stream.write_all(&message)?;
        receive(&mut stream, &answer)?;
        epoll::add(&epoll, &stream, EventData::new_u64(i), EventFlags::IN)?;
        streams.push(stream);
    }
    println!("ready");
    stdin().lock().read_line(&mut String::new())?;

    for stream in &mut streams {
        stream.write_all(&message)?;
    }
    let start = Instant::now();
    let (mut rounds, mut events) = (0_u64, Vec::with_capacity(1024));
    while start.elapsed() < Duration::from_millis(millis) {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        for event in &events {
            let stream = &mut streams[event.data.u64() as usize];
            receive(stream, &answer)?;
            stream.write_all(&message)?;
            rounds += 1;
        }
    }
    println!("{rounds} {:.6}", start.elapsed().as_secs_f64());
    stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Takes one message and compares it: a fast wrong answer is no result.
fn receive(stream: &mut TcpStream, answer: &[u8]) -> std::io::Result<()> {
    let mut buf = [0; 128];
    let buf = &mut buf[..answer.len()];
    stream.read_exact(buf)?;
    match buf == answer {
        true => Ok(()),
        false => Err(std::io::Error::other("another answer than what was sent")),
    }
}

/// Makes a WebSocket of a connection.
fn upgrade(stream: &mut TcpStream, path: &str) -> std::io::Result<()> {
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        answer.push(byte[0]);
    }
    match answer.starts_with(b"HTTP/1.1 101") {
        true => Ok(()),
        false => Err(std::io::Error::other("no WebSocket there")),
    }
}

/// A binary message as a client sends it, with a mask that changes every byte.
fn masked(payload: &[u8]) -> Vec<u8> {
    const MASK: [u8; 4] = [0x5a, 0x17, 0xc3, 0x88];
    let masked = payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask);
    [0x82, 0x80 | payload.len() as u8]
        .into_iter()
        .chain(MASK)
        .chain(masked)
        .collect()
}
