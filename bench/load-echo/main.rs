//! Load on an echo server: many connections, a message of 64 bytes on its way in each. Arguments: PORT CONNECTIONS MILLISECONDS.
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
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let (Some(Ok(port)), Some(Ok(count)), Some(Ok(millis))) = (args.next(), args.next(), args.next()) else {
        panic!("arguments: PORT CONNECTIONS MILLISECONDS");
    };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut streams = Vec::new();
    for i in 0..count {
        let mut stream = TcpStream::connect(("127.0.0.1", port as u16))?;
        stream.set_nodelay(true)?;
        stream.write_all(&MESSAGE)?;
        receive(&mut stream)?;
        epoll::add(&epoll, &stream, EventData::new_u64(i), EventFlags::IN)?;
        streams.push(stream);
    }
    println!("ready");
    stdin().lock().read_line(&mut String::new())?;

    for stream in &mut streams {
        stream.write_all(&MESSAGE)?;
    }
    let start = Instant::now();
    let (mut rounds, mut events) = (0_u64, Vec::with_capacity(1024));
    while start.elapsed() < Duration::from_millis(millis) {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        for event in &events {
            let stream = &mut streams[event.data.u64() as usize];
            receive(stream)?;
            stream.write_all(&MESSAGE)?;
            rounds += 1;
        }
    }
    println!("{rounds} {:.6}", start.elapsed().as_secs_f64());
    stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Takes one message and compares it: a fast wrong answer is no result.
fn receive(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut buf = [0; 64];
    stream.read_exact(&mut buf)?;
    match buf == MESSAGE {
        true => Ok(()),
        false => Err(std::io::Error::other("another answer than what was sent")),
    }
}
