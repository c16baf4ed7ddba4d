//! Attacks on the memory of a server, one after the other, and a quiet client after each. The server runs in a cage that somebody else
//! has made: a cgroup, or `ulimit -v`.
//!
//! ```text
//! cargo run --release -p osier-examples --bin cage -- 127.0.0.1:8080 PID[,PID] [ATTACKERS [TLS [HTTP2]]]
//! ```
//!
//! The attackers come at once and stay: with a head of 28 KB that does not end, with 60 KB of the body of `POST /app`, with a thousand
//! requests for `GET /small` in a row whose responses they do not read, with a request for `GET /big` of which they read nothing, or
//! with nothing at all. At the address TLS they send all but the last byte of a record of 16 KiB. At HTTP2, where the server takes HTTP/2 in
//! the clear, a hundredth of them each ask for `GET /big` on 100 streams without a window. The program prints how many were let in, the resident memory of the processes, and when the quiet client was
//! served while the attackers stayed and after they had left. A process that has died is named.

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use osier::net::TcpStream;

const SECOND: Duration = Duration::from_secs(1);

/// The longest that the quiet client tries.
const PATIENCE: Duration = Duration::from_secs(20);

/// The attacks, with the place of their address among the arguments.
const KINDS: [(&str, usize); 7] = [
    ("heads", 0),
    ("bodies", 0),
    ("unread responses", 0),
    ("readers", 0),
    ("idle", 0),
    ("handshakes", 1),
    ("closed windows", 2),
];

/// The streams of a connection of HTTP/2.
const STREAMS: u8 = 100;

/// The bytes that an attacker of this kind sends.
fn bytes(kind: &str) -> Vec<u8> {
    match kind {
        "heads" => {
            let fields = (0..28).map(|number| format!("X-{number}: {}\r\n", "x".repeat(1000)));
            ["GET /small HTTP/1.1\r\nHost: a\r\n".to_owned()]
                .into_iter()
                .chain(fields)
                .collect::<String>()
                .into_bytes()
        }
        "bodies" => {
            let mut body = b"POST /app HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n".to_vec();
            body.resize(body.len() + 60_000, b'x');
            body
        }
        "unread responses" => b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000),
        "readers" => b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        "handshakes" => [&[22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3][..], &[0; 16_377]].concat(),
        "closed windows" => {
            // SETTINGS with INITIAL_WINDOW_SIZE of 0, and requests without entries of the dynamic table.
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0".to_vec();
            for stream in 0..STREAMS {
                bytes.extend([0, 0, 11, 1, 5, 0, 0, 0, 2 * stream + 1]);
                bytes.extend(b"\x82\x86\x04\x04/big\x01\x01a");
            }
            bytes
        }
        _ => Vec::new(),
    }
}

/// Connects and sends. The connection stays as long as the stream.
fn attack(addr: SocketAddr, bytes: &[u8]) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&addr, 2 * SECOND)?;
    stream.set_write_timeout(Some(2 * SECOND))?;
    match stream.write_all(bytes) {
        // The server takes no more: it may be what the attack wants.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(stream),
        done => done.map(|()| stream),
    }
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

/// Asks until there is a 200. Tells when, and what came before.
fn served(addr: SocketAddr) -> String {
    let (begun, mut shed, mut failed) = (Instant::now(), 0, 0);
    while begun.elapsed() < PATIENCE {
        match ask(addr) {
            Ok(200) => return format!("after {:.1?}, {shed} times 503, {failed} failed", begun.elapsed()),
            Ok(_) => shed += 1,
            Err(_) => failed += 1,
        }
        osier::sleep(SECOND / 20); // a quiet client
    }
    format!("NOT within {PATIENCE:?}, {shed} times 503, {failed} failed")
}

/// The resident memory of a process, in KiB. `None` if it has ended.
fn resident(pid: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(addr), Some(pids)) = (args.next(), args.next()) else {
        return Err("usage: cage ADDRESS PID[,PID] [ATTACKERS]".into());
    };
    let addr: SocketAddr = addr.parse()?;
    let pids: Vec<String> = pids.split(',').map(str::to_owned).collect();
    let attackers: usize = args.next().map_or(Ok(8000), |text| text.parse())?;
    let mut addrs = vec![addr];
    for text in args {
        addrs.push(text.parse()?);
    }
    osier::run(move || {
        for (kind, place) in KINDS {
            let Some(&target) = addrs.get(place) else { continue };
            let bytes = Arc::<[u8]>::from(bytes(kind));
            let attackers = match kind {
                "closed windows" => attackers / usize::from(STREAMS),
                _ => attackers,
            };
            let here = Arc::new(Mutex::new(Vec::new()));
            let begun = Instant::now();
            let jobs: Vec<_> = (0..attackers)
                .map(|_| {
                    let (bytes, here) = (Arc::clone(&bytes), Arc::clone(&here));
                    osier::spawn(move || {
                        if let Ok(stream) = attack(target, &bytes) {
                            here.lock().unwrap().push(stream);
                        }
                    })
                })
                .collect();
            for job in jobs {
                let _ = job.join();
            }
            let came = here.lock().unwrap().len();
            let (took, during) = (begun.elapsed(), served(addr));
            let held: u64 = pids.iter().filter_map(|pid| resident(pid)).sum();
            here.lock().unwrap().clear();
            println!(
                "{kind}: {came} of {attackers} in {took:.1?}, {} MiB resident\n  served {during}; alone again {}",
                held >> 10,
                served(addr)
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
