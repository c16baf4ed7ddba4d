//! The lower bound of every server: one thread, one epoll, no buffers of its own, no parser. Argument: PORT.
//!
//! It is edge-triggered, and takes a read that is shorter than the buffer for the last one.
#![forbid(unsafe_code)]

use heads::{Heads, RESPONSE};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(u64::MAX), EventFlags::IN)?;

    let mut connections: Vec<Option<(TcpStream, Heads)>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    let responses = heads::responses();
    let mut buf = vec![0; 16 * 1024];
    loop {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        for event in &events {
            let Ok(fd) = usize::try_from(event.data.u64()) else {
                continue;
            };
            if event.data.u64() == u64::MAX {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    let fd = stream.as_raw_fd() as usize;
                    epoll::add(
                        &epoll,
                        &stream,
                        EventData::new_u64(fd as u64),
                        EventFlags::IN | EventFlags::ET,
                    )?;
                    connections.resize_with(connections.len().max(fd + 1), || None);
                    connections[fd] = Some((stream, Heads::default()));
                }
                continue;
            }
            if !answer(&mut connections[fd], &mut buf, &responses) {
                connections[fd] = None;
            }
        }
    }
}

/// Reads what is there and answers it; false when the connection is over.
fn answer(connection: &mut Option<(TcpStream, Heads)>, buf: &mut [u8], responses: &[u8]) -> bool {
    let Some((stream, heads)) = connection else { return true };
    loop {
        let read = match stream.read(buf) {
            Ok(0) => return false,
            Ok(read) => read,
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        };
        let bytes = heads.count(&buf[..read]) * RESPONSE.len();
        // A client that does not read its answers is no part of the bench.
        if bytes > 0 && stream.write_all(&responses[..bytes]).is_err() {
            return false;
        }
        if read < buf.len() {
            return true;
        }
    }
}
