//! Guests of a chat over WebSockets: some of them speak, all of them listen. Arguments: PORT PATH GUESTS SPEAKERS PAUSE MILLISECONDS.
//!
//! Prints `ready` when all are connected. At a line on its standard input the speakers speak: each after PAUSE milliseconds, one after
//! the other; or, with a PAUSE of 0, the next as soon as everybody has heard the one before. A line holds the time it was said at. After
//! MILLISECONDS it waits until all has been heard and prints deliveries, seconds, and the 50th and 99th hundredth of the delivery
//! times in microseconds; it keeps the connections until its standard input ends.
#![forbid(unsafe_code)]

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{BufRead, Read, Write, stdin};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// While lines come this looks for the next one before it sleeps: else the server pays, for every few of them, for waking a processor,
/// which guests on other machines would not make it do.
const LINGER: Duration = Duration::from_micros(100);

/// What is not heard by then is lost, and the figure with it.
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
    println!("ready");
    stdin().lock().read_line(&mut String::new())?;

    let start = Instant::now();
    let end = start + Duration::from_millis(number(millis));
    let (mut said, mut times) = (0, Vec::new());
    let mut due = start;
    let mut events = Vec::with_capacity(1024);
    let mut last_heard = None;
    loop {
        let now = Instant::now();
        let all_heard = times.len() >= said * count;
        if now >= end && all_heard {
            break;
        }
        if now > end + PATIENCE {
            return Err(std::io::Error::other("not everything was heard"));
        }
        if now < end && if pause == 0 { all_heard } else { now >= due } {
            let text = format!("{{\"text\":\"@{:020}@\"}}", start.elapsed().as_nanos());
            guests[said % speakers].stream.write_all(&frame(text.as_bytes()))?;
            said += 1;
            due += Duration::from_millis(pause) / speakers as u32;
        }
        let is_busy = last_heard.is_some_and(|last| now.duration_since(last) < LINGER);
        let wait = if is_busy {
            Duration::ZERO
        } else if pause == 0 || now >= end {
            Duration::from_millis(100)
        } else {
            due.saturating_duration_since(now)
        };
        let wait = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), Some(&wait))?;
        if !events.is_empty() {
            last_heard = Some(Instant::now());
        }
        for event in &events {
            listen(&mut guests[event.data.u64() as usize], start, &mut times)?;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    times.sort_unstable();
    let hundredth = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0) as f64 / 1e3;
    println!("{} {seconds:.6} {:.1} {:.1}", times.len(), hundredth(50), hundredth(99));
    stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
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
