//! Attacks on the memory of a server, one after the other, and a quiet client beside each. The server runs in a cage that somebody else
//! has made: a cgroup, or `ulimit -v`.
//!
//! ```text
//! cargo run --release -p osier-examples --bin cage -- 127.0.0.1:8080 PID[,PID] [ATTACKERS [TLS [HTTP2 [CHAT [KIND]]]]]
//! ```
//!
//! The attackers come at once and stay: with a head of 28 KB that does not end, with 60 KB of the body of `POST /app`, with a thousand
//! requests for `GET /small` in a row whose responses they do not read, with a request for `GET /big` of which they read nothing, or
//! with nothing at all. At the address TLS they send all but the last byte of a record of 16 KiB. At HTTP2, where the server takes HTTP/2 in
//! the clear, a hundredth of them each ask for `GET /big` on 100 streams without a window. At CHAT, where `/chat` is the chat of the
//! `osier` binary, they send 3 KB of a message that does not end, or are guests who read nothing of what others have said. `-` is no
//! address. With a KIND, only the attack of that name is made.
//!
//! The program prints how many were let in, the resident memory of the processes, and how long the quiet client waited for its responses
//! while the attackers stayed and after they had left. A process that has died is named.

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use osier::net::TcpStream;

const SECOND: Duration = Duration::from_secs(1);

/// The longest that the quiet client tries to get a response.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time for which the quiet client sends requests, with the attackers and without.
const WATCHED: [Duration; 2] = [Duration::from_secs(8), SECOND];

/// The attacks, with the place of their address among the arguments.
const KINDS: [(&str, usize); 9] = [
    ("heads", 0),
    ("bodies", 0),
    ("unread responses", 0),
    ("readers", 0),
    ("idle", 0),
    ("handshakes", 1),
    ("closed windows", 2),
    ("fragments", 3),
    ("guests", 3),
];

/// The streams of a connection of HTTP/2.
const STREAMS: u8 = 100;

/// The guests who have said something before the others come: nine lines of 4 KB each.
const TALKERS: usize = 6;
const LINE: usize = 4000;

/// The bytes of an attacker.
#[derive(Default)]
struct Script {
    /// Whether it enters the chat first.
    is_guest: bool,
    bytes: Vec<u8>,
}

fn script(kind: &str) -> Script {
    let plain = |bytes| Script { is_guest: false, bytes };
    match kind {
        "heads" => {
            let fields = (0..28).map(|number| format!("X-{number}: {}\r\n", "x".repeat(1000)));
            let head: String = ["GET /small HTTP/1.1\r\nHost: a\r\n".to_owned()]
                .into_iter()
                .chain(fields)
                .collect();
            plain(head.into_bytes())
        }
        "bodies" => {
            let mut body = b"POST /app HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n".to_vec();
            body.resize(body.len() + 60_000, b'x');
            plain(body)
        }
        "unread responses" => plain(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000)),
        "readers" => plain(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        "handshakes" => plain([&[22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3][..], &[0; 16_377]].concat()),
        "closed windows" => {
            // SETTINGS with INITIAL_WINDOW_SIZE of 0, and requests without entries of the dynamic table.
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0".to_vec();
            for stream in 0..STREAMS {
                bytes.extend([0, 0, 11, 1, 5, 0, 0, 0, 2 * stream + 1]);
                bytes.extend(b"\x82\x86\x04\x04/big\x01\x01a");
            }
            plain(bytes)
        }
        "fragments" => {
            let mut bytes = message(0x01, &[b'x'; 3000]);
            bytes.pop();
            Script { is_guest: true, bytes }
        }
        "guests" => Script {
            is_guest: true,
            bytes: Vec::new(),
        },
        _ => Script::default(),
    }
}

/// A message of a WebSocket under a mask of zeros.
fn message(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("a short message").to_be_bytes();
    [&[first, 0xfe][..], &length, &[0; 4], payload].concat()
}

/// Connects and sends. The connection stays as long as the stream.
fn attack(addr: SocketAddr, script: &Script) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&addr, 2 * SECOND)?;
    stream.set_write_timeout(Some(2 * SECOND))?;
    if script.is_guest {
        stream.set_read_timeout(Some(2 * SECOND))?;
        stream.write_all(
            b"GET /chat HTTP/1.1\r\nHost: a\r\nOrigin: http://a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        if answer != *b"HTTP/1.1 101" {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
    }
    match stream.write_all(&script.bytes) {
        // The server takes no more: it may be what the attack wants.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(stream),
        done => done.map(|()| stream),
    }
}

/// Fills the history of the chat. The talkers stay as long as the streams.
fn talk(addr: SocketAddr) -> Vec<TcpStream> {
    let line = format!("{{\"text\": \"{}\"}}", "y".repeat(LINE));
    let script = Script {
        is_guest: true,
        bytes: message(0x81, line.as_bytes()).repeat(9),
    };
    (0..TALKERS).filter_map(|_| attack(addr, &script).ok()).collect()
}

/// Requests a small file on a connection of its own. Returns the status.
fn ask(addr: SocketAddr) -> io::Result<u16> {
    let mut stream = TcpStream::connect_timeout(&addr, SECOND)?;
    stream.set_read_timeout(Some(SECOND))?;
    stream.write_all(b"GET /small HTTP/1.1\r\nHost: q\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let status = answer
        .get(9..12)
        .and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    status.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Is a quiet client for a while: it asks until there is a 200, and asks again a moment later. Tells how long each 200 took.
fn served(addr: SocketAddr, watched: Duration) -> String {
    let (begun, mut waits, mut shed, mut failed) = (Instant::now(), vec![], 0, 0);
    while begun.elapsed() < watched {
        let asked = Instant::now();
        loop {
            match ask(addr) {
                Ok(200) => break,
                Ok(_) => shed += 1,
                Err(_) => failed += 1,
            }
            if asked.elapsed() >= PATIENCE {
                let before = waits.len();
                return format!("NOT within {PATIENCE:?}, after {before} responses, {shed} times 503, {failed} failed");
            }
            osier::sleep(SECOND / 20);
        }
        waits.push(asked.elapsed());
        osier::sleep(SECOND / 20);
    }
    let first = waits[0];
    waits.sort();
    let (median, longest, count) = (waits[waits.len() / 2], waits[waits.len() - 1], waits.len());
    format!(
        "first {first:.1?}, median {median:.1?}, longest {longest:.1?} of {count}, {shed} times 503, {failed} failed"
    )
}

/// The resident memory of a process, in KiB. `None` if it has ended.
fn resident(pid: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [addr, pids, further @ ..] = &args[..] else {
        return Err("usage: cage ADDRESS PID[,PID] [ATTACKERS [TLS [HTTP2 [CHAT [KIND]]]]]".into());
    };
    let addr: SocketAddr = addr.parse()?;
    let pids: Vec<String> = pids.split(',').map(str::to_owned).collect();
    let attackers: usize = further.first().map_or(Ok(8000), |text| text.parse())?;
    let mut addrs = vec![Some(addr)];
    for text in further.iter().skip(1).take(3) {
        addrs.push(if text == "-" { None } else { Some(text.parse()?) });
    }
    let only = further.get(4).cloned();
    osier::run(move || {
        for (kind, place) in KINDS {
            let Some(&Some(target)) = addrs.get(place) else {
                continue;
            };
            if only.as_ref().is_some_and(|only| only != kind) {
                continue;
            }
            let script = Arc::new(script(kind));
            let attackers = match kind {
                "closed windows" => attackers / usize::from(STREAMS),
                _ => attackers,
            };
            let talkers = if kind == "guests" { talk(target) } else { vec![] };
            let here = Arc::new(Mutex::new(Vec::new()));
            let begun = Instant::now();
            let jobs: Vec<_> = (0..attackers)
                .map(|_| {
                    let (script, here) = (Arc::clone(&script), Arc::clone(&here));
                    osier::spawn(move || {
                        if let Ok(stream) = attack(target, &script) {
                            here.lock().unwrap().push(stream);
                        }
                    })
                })
                .collect();
            for job in jobs {
                let _ = job.join();
            }
            let came = here.lock().unwrap().len();
            let (took, during) = (begun.elapsed(), served(addr, WATCHED[0]));
            let held: u64 = pids.iter().filter_map(|pid| resident(pid)).sum();
            here.lock().unwrap().clear();
            drop(talkers);
            println!(
                "{kind}: {came} of {attackers} in {took:.1?}, {} MiB resident\n  with them: {during}\n  alone again: {}",
                held >> 10,
                served(addr, WATCHED[1])
            );
            let dead: Vec<_> = pids.iter().filter(|pid| resident(pid).is_none()).collect();
            if !dead.is_empty() {
                println!("  processes that have DIED: {dead:?}");
            }
            if dead.len() == pids.len() {
                return;
            }
        }
    });
    Ok(())
}
