//! A lab: each attack on HTTP/2 by 2,000 connections at once, or by 100 that have a hundred streams each, beside a quiet client.
//!
//! ```text
//! cargo run --release -p osier-web --example h2_attack_lab --features full [CONNECTIONS [PART OF A NAME]]
//! ```
//!
//! Each attack meets a server of its own: two workers, the default limits, and timeouts of two seconds. The program prints the limit that
//! ends the attack, the bytes that a connection sends, how many connections the server ended or reset, the server's CPU time and memory
//! for a connection, and the waits of a quiet client, which asks for a small page on a kept connection every two milliseconds. The memory
//! is the peak of the process above its former memory, divided by the connections. The attackers share the machine with the server.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use osier_web::{Request, Router, Server, Timeouts};
use testkit::h2_attacks::{ATTACKS, Attack};

/// The timeouts of the server, and how long an attacker stays at most.
const TIMEOUT: Duration = Duration::from_secs(2);
const STAY: Duration = Duration::from_secs(8);

/// The most bytes that a connection sends.
const BYTES: usize = 8 << 20;

fn main() -> io::Result<()> {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("serve") {
        return serve();
    }
    let count: usize = argument.map_or(2000, |text| text.parse().expect("a number of connections"));
    if !testkit::allow_descriptors(2 * count as u64 + 100) {
        println!("skipped: {count} connections need more descriptors");
        return Ok(());
    }
    println!("{count} connections of each attack; the quiet client without any:");
    println!("{}", quiet_alone()?);
    println!(
        "{:<36}{:<26}{:>9}{:>12}{:>8}{:>9}{:>9}{:>10}{:>10}",
        "attack", "limit", "bytes", "ended", "s", "CPU µs", "KiB", "median ms", "worst ms"
    );
    let part = std::env::args().nth(2).unwrap_or_default();
    for attack in ATTACKS.iter().filter(|attack| attack.name.contains(&part)) {
        // Each connection of these has a hundred streams, with a stack each.
        let has_streams = attack.waits() || attack.answer().is_some();
        let count = if has_streams { count.div_ceil(20) } else { count };
        run(attack, count)?;
    }
    Ok(())
}

/// The server, in a process of its own.
fn serve() -> io::Result<()> {
    let router = Router::new()
        .get("/", |_| "hello")
        .post("/", |request: &mut Request<'_>| {
            io::copy(request.body(), &mut io::sink()).map(|count| count.to_string())
        })
        .get("/big", |_| vec![b'x'; 4096]);
    osier::Runtime::builder().workers(2).build()?.run(|| {
        let timeouts = Timeouts {
            header: TIMEOUT,
            body: TIMEOUT,
            write: TIMEOUT,
            ..Timeouts::default()
        };
        let server = Server::new(router).timeouts(timeouts).bind("127.0.0.1:0")?;
        println!("{}", server.local_addr());
        server.run();
        Ok(())
    })
}

/// A running server.
struct Target {
    child: Child,
    addr: SocketAddr,
}

impl Target {
    fn start() -> io::Result<Target> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg("serve").stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line)?;
        let addr = line.trim().parse().map_err(io::Error::other)?;
        Ok(Target { child, addr })
    }

    /// The CPU time of its threads so far.
    fn cpu(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let nanos = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let stat = fs::read_to_string(task.path().join("schedstat")).ok()?;
            stat.split_whitespace().next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanos.sum())
    }

    /// A line of the process's status, in KiB.
    fn kib(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks until `ends` is set, and returns the times in their order.
fn quiet(addr: SocketAddr, ends: &AtomicBool) -> io::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    let (mut times, mut answer) = (Vec::new(), [0; 1024]);
    while !ends.load(Ordering::Relaxed) {
        let begun = Instant::now();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        let mut count = 0;
        while !answer[..count].ends_with(b"\r\n\r\nhello") {
            match stream.read(&mut answer[count..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => count += more,
            }
        }
        times.push(begun.elapsed());
        std::thread::sleep(Duration::from_millis(2)); // the pace of the client
    }
    times.sort();
    Ok(times)
}

fn millis(time: Option<&Duration>) -> f64 {
    time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

fn quiet_alone() -> io::Result<String> {
    let target = Target::start()?;
    let ends = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        let times = scope.spawn(|| quiet(target.addr, &ends));
        std::thread::sleep(Duration::from_secs(1)); // the time of the measurement
        ends.store(true, Ordering::Relaxed);
        times.join().expect("it does not panic")
    })?;
    Ok(format!(
        "median {:.2} ms, worst {:.2} ms",
        millis(times.get(times.len() / 2)),
        millis(times.last())
    ))
}

fn run(attack: &Attack, count: usize) -> io::Result<()> {
    let target = Target::start()?;
    let bytes = Arc::new(match attack.answer() {
        Some(_) => Vec::new(),
        None => attack.bytes(BYTES),
    });
    let (sent, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let ends = AtomicBool::new(false);
    let (before, cpu, begun) = (target.kib("VmRSS:"), target.cpu(), Instant::now());
    let times = std::thread::scope(|scope| {
        let times = scope.spawn(|| quiet(target.addr, &ends));
        let (addr, attack) = (target.addr, *attack);
        osier::run(|| {
            let attackers: Vec<_> = (0..count)
                .map(|_| {
                    let (bytes, sent, ended) = (bytes.clone(), sent.clone(), ended.clone());
                    osier::spawn(move || {
                        let struck = match attack.answer() {
                            Some(answer) => talk(addr, &attack, answer),
                            None => strike(addr, &bytes, attack.waits()),
                        };
                        let (count, is_ended) = struck.unwrap_or_default();
                        sent.fetch_add(count, Ordering::Relaxed);
                        ended.fetch_add(usize::from(is_ended), Ordering::Relaxed);
                    })
                })
                .collect();
            for attacker in attackers {
                let _ = attacker.join();
            }
        });
        ends.store(true, Ordering::Relaxed);
        times.join().expect("it does not panic")
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = (target.cpu() - cpu).as_micros() as usize / count;
    let held = target.kib("VmHWM:").saturating_sub(before) as f64 / count as f64;
    let (sent, ended) = (sent.load(Ordering::Relaxed), ended.load(Ordering::Relaxed));
    println!(
        "{:<36}{:<26}{:>9}{:>12}{seconds:>8.1}{cpu:>9}{held:>9.1}{:>10.2}{:>10.1}",
        attack.name,
        attack.limit.setting(),
        sent / count,
        format!("{ended}/{count}"),
        millis(times.get(times.len() / 2)),
        millis(times.last()),
    );
    Ok(())
}

/// One attacker: how many bytes the server's side took, and whether the server ended the connection. For an attack that waits, a reset
/// counts too.
fn strike(addr: SocketAddr, bytes: &[u8], waits: bool) -> io::Result<(usize, bool)> {
    let stream = osier::net::TcpStream::connect(addr)?;
    let reader = stream.try_clone()?;
    let reading = osier::spawn(move || is_ended(&reader, waits));
    let mut count = 0;
    while count < bytes.len() {
        match (&stream).write(&bytes[count..]) {
            Ok(more) => count += more,
            Err(_) => break,
        }
    }
    Ok((count, reading.join().unwrap_or(false)))
}

/// Same as [`strike`], for an attacker that reads the answer to each piece.
fn talk(addr: SocketAddr, attack: &Attack, answer: usize) -> io::Result<(usize, bool)> {
    let mut stream = osier::net::TcpStream::connect(addr)?;
    let until = Instant::now() + STAY;
    let (mut sent, mut piece) = (0, vec![0; 64 << 10]);
    for (turn, bytes) in attack.pieces().enumerate() {
        if stream.write_all(&bytes).is_err() {
            return Ok((sent, true));
        }
        sent += bytes.len();
        let mut left = if turn == 0 { 0 } else { answer };
        while left > 0 {
            let time = until.saturating_duration_since(Instant::now());
            if time.is_zero() {
                return Ok((sent, false));
            }
            stream.set_read_timeout(Some(time))?;
            match stream.read(&mut piece) {
                Ok(count @ 1..) => left = left.saturating_sub(count),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok((sent, false)),
                Ok(0) | Err(_) => return Ok((sent, true)),
            }
        }
    }
    Ok((sent, false))
}

/// Reads until the server ends the connection or, if that counts, resets a stream. False after `STAY`.
fn is_ended(mut stream: &osier::net::TcpStream, by_reset: bool) -> bool {
    let until = Instant::now() + STAY;
    let mut piece = [0; 4096];
    // The last bytes of the piece before stand in front: a frame may be cut.
    let mut kept = 0;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return false;
        }
        let filled = match stream.read(&mut piece[kept..]) {
            Ok(0) => return true,
            Ok(count) => kept + count,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return false,
            Err(_) => return true,
        };
        if by_reset && piece[..filled].windows(RESET.len()).any(|frame| frame == RESET) {
            return true;
        }
        kept = filled.min(RESET.len() - 1);
        piece.copy_within(filled - kept..filled, 0);
    }
}

/// The beginning of RST_STREAM: its length, its type and its flags.
const RESET: [u8; 5] = [0, 0, 4, 3, 0];
