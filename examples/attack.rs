//! Slow attackers of four kinds against a server, and a quiet client beside them.
//!
//! ```text
//! cargo run --release -p osier-examples --bin attack -- 127.0.0.1:8080 PID[,PID] [ATTACKERS [SECONDS]]
//! ```
//!
//! A quarter of the attackers send a byte of a head each second, a quarter a byte of the body of `POST /app`, a quarter read a byte of
//! `GET /big` each second, and a quarter are idle after one request. The program prints what the quiet client waits for a small file on
//! a connection of its own, before and during the attack; what an attacker costs the processes in resident memory; and when the
//! attackers of each kind are cut off.

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use osier::net::TcpStream;

const SECOND: Duration = Duration::from_secs(1);

/// The time between two requests of the quiet client.
const QUIET: Duration = Duration::from_millis(10);

/// The time for which the quiet client measures without attackers.
const BEFORE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Head,
    Body,
    Reader,
    Idle,
}

const KINDS: [(Kind, &str); 4] = [
    (Kind::Head, "slow head"),
    (Kind::Body, "slow body"),
    (Kind::Reader, "slow reader"),
    (Kind::Idle, "idle"),
];

/// The times after which attackers were cut off, by kind.
type Cut = Arc<Mutex<[Vec<Duration>; 4]>>;

/// Attacks until the server ends the connection.
fn attack(kind: Kind, addr: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SECOND))?;
    let begin: &[u8] = match kind {
        Kind::Head => b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ",
        Kind::Body => b"POST /app HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n",
        Kind::Reader => b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n",
        Kind::Idle => b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n",
    };
    stream.write_all(begin)?;
    let mut piece = [0; 4096];
    loop {
        let read = match kind {
            Kind::Reader => {
                osier::sleep(SECOND); // the pace of the attack
                // A reset ends a read only after the megabytes that wait in the socket's buffer have been read.
                if let Some(error) = stream.take_error()? {
                    return Err(error);
                }
                stream.read(&mut piece[..1])
            }
            _ => stream.read(&mut piece),
        };
        match read {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => return Err(error),
        }
        if matches!(kind, Kind::Head | Kind::Body) {
            stream.write_all(b"x")?;
        }
    }
}

/// Requests a small file on a connection of its own.
fn ask(addr: SocketAddr) -> io::Result<Duration> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(10 * SECOND))?;
    stream.write_all(b"GET /small HTTP/1.1\r\nHost: q\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    match answer.starts_with(b"HTTP/1.1 200 ") {
        true => Ok(start.elapsed()),
        false => Err(io::Error::other(String::from_utf8_lossy(&answer).into_owned())),
    }
}

/// Sends the quiet client's requests until `end`, and prints the times.
fn measure(what: &str, addr: SocketAddr, end: Instant) {
    let (mut times, mut failures) = (Vec::new(), 0);
    while Instant::now() < end {
        match ask(addr) {
            Ok(time) => times.push(time),
            Err(_) => failures += 1,
        }
        osier::sleep(QUIET); // the pace of the client
    }
    times.sort();
    let part = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
    println!(
        "{what}: {} requests, {failures} failed, median {:?}, p99 {:?}, longest {:?}",
        times.len(),
        part(50),
        part(99),
        times.last().copied().unwrap_or_default()
    );
}

/// The resident memory of the processes, in KiB.
fn resident(pids: &[String]) -> u64 {
    let of = |pid: &String| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    pids.iter().filter_map(of).sum()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(addr), Some(pids)) = (args.next(), args.next()) else {
        return Err("usage: attack ADDRESS PID[,PID] [ATTACKERS [SECONDS]]".into());
    };
    let addr: SocketAddr = addr.parse()?;
    let pids: Vec<String> = pids.split(',').map(str::to_owned).collect();
    let attackers: usize = args.next().map_or(Ok(8000), |text| text.parse())?;
    let seconds: u64 = args.next().map_or(Ok(90), |text| text.parse())?;
    osier::run(move || -> () {
        if let Err(error) = ask(addr) {
            eprintln!("attack: GET /small of {addr} must answer 200: {error}");
            std::process::exit(1);
        }
        measure("without attackers", addr, Instant::now() + BEFORE);
        let before = resident(&pids);
        let cut = Cut::default();
        let start = Instant::now();
        for number in 0..attackers {
            let (index, cut) = (number % KINDS.len(), Arc::clone(&cut));
            drop(osier::spawn(move || {
                let start = Instant::now();
                let _ = attack(KINDS[index].0, addr);
                cut.lock().unwrap()[index].push(start.elapsed());
            }));
        }
        let pids = &pids;
        osier::scope(|scope| {
            scope.spawn_local(|| {
                // All attackers have connected by then, and no slow one has been cut off yet.
                osier::sleep(8 * SECOND);
                let gone: usize = cut.lock().unwrap().iter().map(Vec::len).sum();
                let (held, here) = (resident(pids).saturating_sub(before), attackers - gone);
                println!(
                    "after 8 s: {here} attackers, {:.1} KiB of resident memory each",
                    held as f64 / here.max(1) as f64
                );
            });
            let all = start + seconds as u32 * SECOND;
            measure("with attackers", addr, all);
        });
        let cut = cut.lock().unwrap();
        for ((_, name), times) in KINDS.iter().zip(cut.iter()) {
            let mut times = times.clone();
            times.sort();
            let of = attackers / KINDS.len();
            match (times.get(times.len() / 2), times.last()) {
                (Some(median), Some(last)) => println!(
                    "{name}: {} of {of} cut off, median after {:.1} s, the last after {:.1} s",
                    times.len(),
                    median.as_secs_f64(),
                    last.as_secs_f64()
                ),
                _ => println!("{name}: 0 of {of} cut off in {seconds} s"),
            }
        }
        println!(
            "at the end: {} KiB more resident memory than before",
            resident(pids).saturating_sub(before)
        );
        // Do not wait for the remaining attackers.
        std::process::exit(0)
    });
    Ok(())
}
