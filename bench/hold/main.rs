//! Holds many idle connections: each sends one request, reads the response, or the first event of a stream, and stays open. Arguments: PORT COUNT PATH
//! [silent]. With `silent` there must be no response. Another status than 200 ends the program with an error.
//!
//! The program prints `held` when all connections are idle. It ends when its standard input ends.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let port: u16 = args
        .next()
        .and_then(|text| text.parse().ok())
        .expect("arguments: PORT COUNT PATH");
    let count: usize = args
        .next()
        .and_then(|text| text.parse().ok())
        .expect("arguments: PORT COUNT PATH");
    let path = args.next().expect("arguments: PORT COUNT PATH");
    let is_silent = args.next().as_deref() == Some("silent");
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    let mut held = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(request.as_bytes())?;
        if !is_silent {
            read_answer(&mut stream)?;
        }
        held.push(stream);
    }
    if is_silent {
        // A refusal comes at once.
        std::thread::sleep(Duration::from_millis(200));
        held.iter().try_for_each(check_silence)?;
    }
    println!("held");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Fails if there is a response, or an end.
fn check_silence(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    let mut answer = [0; 64];
    match stream.peek(&mut answer) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
        Ok(length) => {
            let answer = String::from_utf8_lossy(&answer[..length]);
            Err(std::io::Error::other(format!("answered {answer:?} instead of nothing")))
        }
    }
}

/// Reads one head and as many bytes of body as it announces, or one event.
fn read_answer(stream: &mut TcpStream) -> std::io::Result<()> {
    let (mut answer, mut buf) = (Vec::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut buf)?;
        if read == 0 {
            return Err(std::io::Error::other("closed before its answer ended"));
        }
        answer.extend_from_slice(&buf[..read]);
        let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
        if !head.starts_with("http/1.1 200") {
            let status = head.lines().next().unwrap_or_default();
            return Err(std::io::Error::other(format!("answered {status:?} instead of 200")));
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        let is_there = match length {
            Some(length) => answer.len() >= end + 4 + length,
            None if head.contains("text/event-stream") => answer[end + 4..].windows(2).any(|bytes| bytes == b"\n\n"),
            None => return Err(std::io::Error::other("an answer without Content-Length")),
        };
        if is_there {
            return Ok(());
        }
    }
}
