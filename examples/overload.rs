//! A handler at up to three times its capacity, without a queue and with one.
//!
//! ```text
//! cargo run --release -p osier-examples --bin overload -- [SECONDS]
//! ```
//!
//! The handler sleeps 50 ms and holds one of ten connections to a database meanwhile: 200 requests a second are its capacity. Requests
//! come at their times, whether earlier ones have been answered or not, each on a connection of its own. A response counts as good that
//! has come within half a second. The queue lets ten run, and has the others wait for at most 200 ms.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use osier::net::TcpStream;
use osier::sync::Semaphore;
use osier_web::wrap::queue::{Options, Queue};
use osier_web::{Router, Server};

/// The connections to the database.
const RUNNING: u32 = 10;

/// The time that a request needs one.
const WORK: Duration = Duration::from_millis(50);

/// The longest that a request waits for its turn.
const WAIT: Duration = Duration::from_millis(200);

/// The longest that a client waits until it is of no use to it.
const GOOD: Duration = Duration::from_millis(500);

/// How long a client waits for anything.
const PATIENCE: Duration = Duration::from_secs(60);

fn handler() -> Router {
    let database = Arc::new(Semaphore::new(RUNNING as usize));
    Router::new().get("/", move |_| {
        let _connection = database.acquire();
        osier::sleep(WORK); // the work
        "done\n"
    })
}

/// The status of a request, and the time that it took.
fn ask(addr: SocketAddr) -> io::Result<(u16, Duration)> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let status = answer
        .get(9..12)
        .and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    Ok((status.ok_or(io::ErrorKind::InvalidData)?, begun.elapsed()))
}

/// Sends `rate` requests a second, and prints what becomes of them.
fn load(name: &str, addr: SocketAddr, rate: u32, time: Duration) {
    let (begun, pace) = (Instant::now(), Duration::from_secs(1) / rate);
    let all = Arc::new(Mutex::new(Vec::new()));
    let mut jobs = Vec::new();
    for number in 0.. {
        let at = begun + number * pace;
        if at > begun + time {
            break;
        }
        osier::sleep(at.saturating_duration_since(Instant::now())); // until the time of the request
        let all = Arc::clone(&all);
        jobs.push(osier::spawn(move || {
            let answer = ask(addr);
            all.lock().unwrap().push(answer);
        }));
    }
    for job in jobs {
        let _ = job.join();
    }
    let all = std::mem::take(&mut *all.lock().unwrap());
    let sent = all.len();
    let answers: Vec<_> = all.into_iter().flatten().collect();
    let times = |status: u16| {
        let mut times: Vec<_> = answers
            .iter()
            .filter(|answer| answer.0 == status)
            .map(|answer| answer.1)
            .collect();
        times.sort();
        times
    };
    let (done, shed) = (times(200), times(503));
    let part = |times: &[Duration], percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
    let good = done.iter().filter(|time| **time <= GOOD).count() as f64 / time.as_secs_f64();
    println!(
        "{name}, {rate}/s: {good:.0} good a second; {} of {sent} done, median {:.0?}, p99 {:.0?}; {} shed, median {:.0?}, p99 {:.0?}; {} failed",
        done.len(),
        part(&done, 50),
        part(&done, 99),
        shed.len(),
        part(&shed, 50),
        part(&shed, 99),
        sent - done.len() - shed.len()
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: u64 = std::env::args().nth(1).map_or(Ok(10), |text| text.parse())?;
    osier::run(move || -> io::Result<()> {
        let options = Options {
            running: RUNNING,
            wait: WAIT,
        };
        let capacity = 1000 / WORK.as_millis() as u32 * RUNNING;
        for (name, router) in [
            ("with a queue", handler().wrap(Queue::new(&options).wrap())),
            ("without", handler()),
        ] {
            let listening = Server::new(router).bind("127.0.0.1:0")?;
            let (addr, handle) = (listening.local_addr(), listening.handle());
            let serving = osier::spawn(move || listening.run());
            for tenths in [9, 10, 15, 30] {
                load(name, addr, capacity / 10 * tenths, Duration::from_secs(seconds));
            }
            handle.shutdown();
            let _ = serving.join();
        }
        Ok(())
    })?;
    Ok(())
}
