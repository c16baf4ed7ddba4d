//! Guests of chat rooms. One of each room says numbered lines, and every guest must hear each of them once.
//!
//! A guest whose connection ends comes back, and the lines in the history that it gets then count as heard.

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{self, ErrorKind, Read, Result, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Guests of a room.
const GUESTS: usize = 100;

/// The pause between two lines of a room.
const PAUSE: Duration = Duration::from_millis(500);

/// The longest wait for the last lines.
const PATIENCE: Duration = Duration::from_secs(10);

struct Guest {
    room: usize,
    stream: TcpStream,
    /// Received, up to a whole frame.
    bytes: Vec<u8>,
    /// The number of the last line that it has heard.
    heard: u64,
}

pub struct Rooms {
    port: u16,
    epoll: OwnedFd,
    guests: Vec<Guest>,
    /// The number of the last line of each room.
    said: Vec<u64>,
    counts: Counts,
}

#[derive(Default)]
pub struct Counts {
    /// Lines that a guest has heard.
    heard: u64,
    /// Lines that a guest of the room has not heard.
    lost: u64,
    /// Lines that a guest has heard again.
    doubled: u64,
    /// Guests whose connection has ended.
    dropped: u64,
    /// Guests whose connection was reset.
    reset: u64,
}

impl Counts {
    pub fn print(&self) {
        for (name, number) in [
            ("heard", self.heard),
            ("lost", self.lost),
            ("doubled", self.doubled),
            ("dropped", self.dropped),
            ("reset", self.reset),
        ] {
            println!("guests_{name} {number}");
        }
    }
}

impl Rooms {
    pub fn enter(port: u16, count: usize) -> Result<Rooms> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut guests = Vec::with_capacity(count);
        for index in 0..count {
            let (stream, bytes) = enter(port, index / GUESTS)?;
            watch(&epoll, &stream, index)?;
            guests.push(Guest {
                room: index / GUESTS,
                stream,
                bytes,
                heard: 0,
            });
        }
        let mut rooms = Rooms {
            port,
            epoll,
            guests,
            said: vec![0; count.div_ceil(GUESTS)],
            counts: Counts::default(),
        };
        // The news of those who came later.
        while rooms.hear(Duration::from_millis(300))? {}
        Ok(rooms)
    }

    /// Says lines and hears them until it is told to stop, and hears the last ones.
    pub fn talk(mut self, stop: &AtomicBool) -> Counts {
        let mut due = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= due {
                due = now + PAUSE;
                self.say();
            }
            self.hear(due - now).expect("epoll");
        }
        let end = Instant::now() + PATIENCE;
        while self.missing() > 0 && Instant::now() < end {
            self.hear(Duration::from_millis(100)).expect("epoll");
        }
        self.counts.lost += self.missing();
        self.counts
    }

    /// The lines that guests have still to hear.
    fn missing(&self) -> u64 {
        let missing = |guest: &Guest| self.said[guest.room].saturating_sub(guest.heard);
        self.guests.iter().map(missing).sum()
    }

    /// The first guest of each room says a line.
    fn say(&mut self) {
        for (room, said) in self.said.iter_mut().enumerate() {
            *said += 1;
            // If its connection has ended, the line is lost.
            let speaker = &mut self.guests[room * GUESTS].stream;
            let _ = speaker.write_all(&frame(format!("{{\"text\":\"@{said}@\"}}").as_bytes()));
        }
    }

    /// Waits for at most `wait` until guests have something to hear, and says whether they had.
    fn hear(&mut self, wait: Duration) -> Result<bool> {
        let wait = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let mut events = [MaybeUninit::uninit(); 1024];
        let (events, _) = epoll::wait(&self.epoll, &mut events, Some(&wait))?;
        for event in &*events {
            let index = event.data.u64() as usize;
            let guest = &mut self.guests[index];
            let ended = match guest.listen(&mut self.counts) {
                Ok(()) => continue,
                Err(error) => error.kind(),
            };
            self.counts.dropped += 1;
            self.counts.reset += u64::from(ended == ErrorKind::ConnectionReset);
            (guest.stream, guest.bytes) = come_back(self.port, guest.room);
            watch(&self.epoll, &guest.stream, index)?;
        }
        Ok(!events.is_empty())
    }
}

impl Guest {
    /// Reads what is there, and counts the lines.
    fn listen(&mut self, counts: &mut Counts) -> Result<()> {
        let mut piece = [0; 16 << 10];
        match self.stream.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => self.bytes.extend_from_slice(&piece[..count]),
        }
        let mut at = 0;
        while let Some((first, payload, length)) = parse(&self.bytes[at..]) {
            match first & 15 {
                8 => return Err(ErrorKind::ConnectionAborted.into()),
                9 => self.stream.write_all(&[0x8a, 0x80, 0, 0, 0, 0])?,
                _ => {}
            }
            let is_history = payload.starts_with(b"{\"is\":\"history\"");
            for number in numbers(payload) {
                match number.checked_sub(self.heard + 1) {
                    Some(missed) => {
                        counts.lost += missed;
                        counts.heard += 1;
                        self.heard = number;
                    }
                    None if is_history => {}
                    None => counts.doubled += 1,
                }
            }
            at += length;
        }
        self.bytes.drain(..at);
        Ok(())
    }
}

/// The numbers of the lines in a message.
fn numbers(message: &[u8]) -> impl Iterator<Item = u64> {
    let pieces = message.split(|byte| *byte == b'@');
    pieces.filter_map(|piece| str::from_utf8(piece).ok()?.parse().ok())
}

fn come_back(port: u16, room: usize) -> (TcpStream, Vec<u8>) {
    let begun = Instant::now();
    loop {
        match enter(port, room) {
            Ok(entered) => return entered,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "a guest cannot come back: {error}"),
        }
    }
}

fn watch(epoll: &OwnedFd, stream: &TcpStream, index: usize) -> Result<()> {
    epoll::add(epoll, stream, EventData::new_u64(index as u64), EventFlags::IN)?;
    Ok(())
}

/// Connects and upgrades. Returns what came behind the head, too.
fn enter(port: u16, room: usize) -> Result<(TcpStream, Vec<u8>)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let head = format!(
        "GET /chat?room=r{room}&name=guest HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece)? {
            0 => return Err(io::Error::other("the connection ended in the handshake")),
            count => bytes.extend_from_slice(&piece[..count]),
        }
    };
    if !bytes.starts_with(b"HTTP/1.1 101") {
        return Err(io::Error::other("no WebSocket there"));
    }
    bytes.drain(..end);
    Ok((stream, bytes))
}

/// A text as a client sends it; the mask is zero.
fn frame(text: &[u8]) -> Vec<u8> {
    [&[0x81, 0x80 | text.len() as u8, 0, 0, 0, 0], text].concat()
}

/// The first byte and the payload of the first frame, and the frame's length.
fn parse(bytes: &[u8]) -> Option<(u8, &[u8], usize)> {
    let (length, at) = match *bytes.get(1)? {
        126 => (u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?) as usize, 4),
        127 => (u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize, 10),
        length => (length as usize, 2),
    };
    Some((bytes[0], bytes.get(at..at + length)?, at + length))
}
