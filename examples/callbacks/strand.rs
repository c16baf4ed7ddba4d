//! A strand: a chain of requests in which each callback makes the next request. The state moves along the chain, so it needs
//! no lock, whichever thread of the pool runs a callback.
//!
//! ```text
//! cargo run -p osier-examples --bin strand
//! ```

use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::mpsc;

use osier::callbacks::{IoQueue, Socket};

/// Receives a line in pieces, then sends it back in capitals.
fn receive(socket: Socket, mut line: Vec<u8>, done: mpsc::Sender<io::Result<usize>>) {
    let next = socket.clone();
    let received = move |_, received: io::Result<usize>, buffer: Vec<u8>| match received {
        Err(error) => _ = done.send(Err(error)),
        Ok(n) => {
            line.extend_from_slice(&buffer[..n]);
            match n == 0 || line.ends_with(b"\n") {
                true => answer(next, line.to_ascii_uppercase(), done),
                false => receive(next, line, done),
            }
        }
    };
    let _ = socket.recv(vec![0; 4], received);
}

fn answer(socket: Socket, mut left: Vec<u8>, done: mpsc::Sender<io::Result<usize>>) {
    let next = socket.clone();
    let sent = move |_, sent: io::Result<usize>, buffer: Vec<u8>| match sent {
        Ok(n) if n < buffer.len() => answer(next, buffer[n..].to_vec(), done),
        sent => _ = done.send(sent.map(|_| buffer.len())),
    };
    if left.is_empty() {
        left.push(b'\n');
    }
    let _ = socket.send(left, sent);
}

fn main() -> io::Result<()> {
    let queue = IoQueue::new(2)?;
    let listener = Socket::new(&queue);
    listener.listen((Ipv4Addr::LOCALHOST, 0).into())?;
    let mut client = std::net::TcpStream::connect(listener.local_addr()?)?;
    client.write_all(b"one strand of callbacks\n")?;

    let (done, finished) = mpsc::channel();
    listener.accept(move |_, accepted| match accepted {
        Ok(socket) => receive(socket, Vec::new(), done),
        Err(error) => _ = done.send(Err(error)),
    })?;
    let sent = loop {
        queue.iterate()?;
        if let Ok(sent) = finished.try_recv() {
            break sent?;
        }
    };
    let mut reply = vec![0; sent];
    io::Read::read_exact(&mut client, &mut reply)?;
    print!("{}", String::from_utf8_lossy(&reply));
    Ok(())
}
