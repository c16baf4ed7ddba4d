//! Guests of a chat over WebSockets: some of them speak, all of them listen. Arguments: PORT PATH GUESTS SPEAKERS PAUSE MILLISECONDS.
//!
//! All guests connect and read what the room has sent meanwhile. They send some lines that do not count (`WARM`). Then the program
//! prints `ready` and waits for a line on its standard input. Now the speakers send lines in turn: one every PAUSE milliseconds or,
//! with a PAUSE of 0, one as soon as every guest has received the line before. A line holds the time when it was sent. After
//! MILLISECONDS the program waits until every line has arrived. It prints deliveries, seconds, and the 50th and 99th percentile of
//! the delivery times in microseconds. It keeps the connections until its standard input ends.
#![forbid(unsafe_code)]

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{BufRead, Read, Write, stdin};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// While lines come this looks for the next one before it sleeps: else the server pays, for every few of them, for waking a processor,
/// which guests on other machines would not make it do.
const LINGER: Duration = Duration::from_micros(100);

/// Lines before those that count. A receiver acknowledges the first 16 segments of its connection at once, later ones after a while; on
/// loopback the processor that sends does that for it, so that the first lines of a room take a quarter longer than all later ones.
const WARM: usize = 20;

/// A room that has sent nothing for this time has delivered every line.
const QUIET: Duration = Duration::from_millis(300);

/// A line that has not arrived after this time is lost, and the run fails.
const PATIENCE: Duration = Duration::from_secs(20);

struct Guest {
    stream: TcpStream,
    /// Received, up to a whole frame.
    bytes: Vec<u8>,
}

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [port, path, guests, speakers, pause, millis] = &args[..] else {
        panic!("arguments: PORT PATH GUESTS SPEAKERS PAUSE MILLISECONDS");
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (count, speakers, pause) = (number(guests) as usize, number(speakers) as usize, number(pause));
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: most,
            maximum: most,
        },
    )?;

    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut guests = Vec::new();
    for i in 0..count {
        let guest = enter(number(port) as u16, path)?;
        epoll::add(&epoll, &guest.stream, EventData::new_u64(i as u64), EventFlags::IN)?;
        guests.push(guest);
    }
    let mut room = Room {
        epoll,
        guests,
        start: Instant::now(),
        said: 0,
        times: Vec::new(),
    };
    while room.hear(QUIET)? {}
    for _ in 0..WARM {
        room.say(speakers)?;
        while !room.is_all_heard() {
            if !room.hear(PATIENCE)? {
                return Err(not_heard());
            }
        }
    }
    println!("ready");
    stdin().lock().read_line(&mut String::new())?;

    room.said = 0;
    room.times.clear();
    room.start = Instant::now();
    room.talk(
        speakers,
        Duration::from_millis(pause) / speakers as u32,
        Duration::from_millis(number(millis)),
    )?;
    let seconds = room.start.elapsed().as_secs_f64();
    let times = &mut room.times;
    times.sort_unstable();
    let hundredth = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0) as f64 / 1e3;
    println!("{} {seconds:.6} {:.1} {:.1}", times.len(), hundredth(50), hundredth(99));
    stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

struct Room {
    epoll: OwnedFd,
    guests: Vec<Guest>,
    /// Lines tell their time from here.
    start: Instant,
    said: usize,
    /// How long each delivery took, in nanoseconds.
    times: Vec<u64>,
}

impl Room {
    fn is_all_heard(&self) -> bool {
        self.times.len() >= self.said * self.guests.len()
    }

    /// Says one line, the next speaker does.
    fn say(&mut self, speakers: usize) -> std::io::Result<()> {
        let text = format!("{{\"text\":\"@{:020}@\"}}", self.start.elapsed().as_nanos());
        self.guests[self.said % speakers]
            .stream
            .write_all(&frame(text.as_bytes()))?;
        self.said += 1;
        Ok(())
    }

    /// Waits for at most `wait` until guests have something to hear, and says whether they had.
    fn hear(&mut self, wait: Duration) -> std::io::Result<bool> {
        let wait = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let mut events = [MaybeUninit::uninit(); 1024];
        let (events, _) = epoll::wait(&self.epoll, &mut events, Some(&wait))?;
        for event in &*events {
            listen(&mut self.guests[event.data.u64() as usize], self.start, &mut self.times)?;
        }
        Ok(!events.is_empty())
    }

    /// A line every `pause`, or, if that is nothing, when all have heard the last; until `length` has passed and all is heard.
    fn talk(&mut self, speakers: usize, pause: Duration, length: Duration) -> std::io::Result<()> {
        let (mut due, end) = (self.start, self.start + length);
        let mut last_heard = None;
        loop {
            let now = Instant::now();
            if now >= end && self.is_all_heard() {
                return Ok(());
            }
            if now > end + PATIENCE {
                return Err(not_heard());
            }
            let is_turn = if pause.is_zero() {
                self.is_all_heard()
            } else {
                now >= due
            };
            if now < end && is_turn {
                self.say(speakers)?;
                due += pause;
            }
            let is_busy = last_heard.is_some_and(|last| now.duration_since(last) < LINGER);
            let wait = if is_busy {
                Duration::ZERO
            } else if pause.is_zero() || now >= end {
                Duration::from_millis(100)
            } else {
                due.saturating_duration_since(now)
            };
            if self.hear(wait)? {
                last_heard = Some(Instant::now());
            }
        }
    }
}

fn not_heard() -> std::io::Error {
    std::io::Error::other("not everything was heard")
}

/// Connects and upgrades.
fn enter(port: u16, path: &str) -> std::io::Result<Guest> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
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
            0 => return Err(std::io::Error::other("the connection ended in the handshake")),
            n => bytes.extend_from_slice(&piece[..n]),
        }
    };
    if !bytes.starts_with(b"HTTP/1.1 101") {
        return Err(std::io::Error::other("no WebSocket there"));
    }
    bytes.drain(..end);
    Ok(Guest { stream, bytes })
}

/// A text as a client sends it; the mask is zero.
fn frame(text: &[u8]) -> Vec<u8> {
    [&[0x81, 0x80 | text.len() as u8, 0, 0, 0, 0], text].concat()
}

/// Reads what is there, and notes how long each line was on its way.
fn listen(guest: &mut Guest, start: Instant, times: &mut Vec<u64>) -> std::io::Result<()> {
    let mut piece = [0; 16 << 10];
    match guest.stream.read(&mut piece)? {
        0 => return Err(std::io::Error::other("a connection ended")),
        n => guest.bytes.extend_from_slice(&piece[..n]),
    }
    let now = start.elapsed().as_nanos() as u64;
    let mut at = 0;
    while let Some((payload, len)) = parse(&guest.bytes[at..]) {
        at += len;
        // Whatever else is said, who has come for example, holds no time.
        let time = payload.iter().position(|byte| *byte == b'@');
        let time = time.and_then(|from| payload.get(from + 1..from + 21));
        if let Some(time) = time.and_then(|digits| str::from_utf8(digits).ok()?.parse::<u64>().ok()) {
            times.push(now.saturating_sub(time));
        }
    }
    guest.bytes.drain(..at);
    Ok(())
}

/// The payload of the first frame, and the frame's length.
fn parse(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (length, at) = match *bytes.get(1)? {
        126 => (u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?) as usize, 4),
        127 => (u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize, 10),
        length => (length as usize, 2),
    };
    Some((bytes.get(at..at + length)?, at + length))
}
