//! Load on a server: `wrk` and `load-raw` for requests, `load-echo` for echoes, `hold` for idle connections; and runs of micro programs. `h2.rs` runs
//! `h2load`, `steady.rs` the same at a fixed rate, `tls.rs` the TLS clients.
//!
//! Everything here runs to its end before it returns.

pub mod h2;
pub mod steady;
pub mod tls;

use super::programs::program;
use super::server::Server;
use super::{Plan, pinned, pinned_to};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The work of one server under load.
pub struct Served {
    /// CPU time of the server for each request, in microseconds.
    pub micros: f64,
    pub per_second: f64,
    /// The most it had resident, in bytes.
    pub memory: u64,
}

/// The fields that a browser sends with a request.
pub const OF_BROWSERS: &[&str] = &[
    "Connection: keep-alive",
    "Cache-Control: max-age=0",
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36",
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
    "Accept-Encoding: gzip, deflate, br, zstd",
    "Accept-Language: en-GB,en;q=0.9",
    "Cookie: session=0123456789abcdef0123456789abcdef; theme=dark",
    "Sec-Fetch-Dest: document",
    "Sec-Fetch-Mode: navigate",
    "Sec-Fetch-Site: same-origin",
    "Sec-Fetch-User: ?1",
    "Upgrade-Insecure-Requests: 1",
];

/// The request that wrk repeats, on one thread for each core of the load.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub path: &'a str,
    pub connections: usize,
    /// Sends 16 requests per write.
    pub pipelined: bool,
    pub tls: bool,
    /// Fields of each request.
    pub fields: &'a [&'a str],
    /// The requests that this script of wrk makes, in place of those for the path.
    pub script: Option<&'a Path>,
    /// Requests for one of so many things of a kind of `bench/scale.lua` in place of those for the path.
    pub drawn: Option<(&'a str, usize)>,
}

impl Asked<'_> {
    /// This path, on 64 connections that stay open, in the clear.
    pub fn path(path: &str) -> Asked<'_> {
        Asked {
            path,
            connections: 64,
            pipelined: false,
            tls: false,
            fields: &[],
            script: None,
            drawn: None,
        }
    }
}

/// Loads the server.
pub fn requests(plan: &Plan, server: &Server, asked: Asked) -> Result<Served, String> {
    served(server, |load| wrk(plan, server, asked, load), plan)
}

/// As [`requests`], and the number of all answered requests, with those of the warm-up.
pub fn all_requests(plan: &Plan, server: &Server, asked: Asked) -> Result<(Served, f64), String> {
    served_of_all(server, |load| wrk(plan, server, asked, load), plan)
}

/// Runs `load` for a second, and then for as long as the plan says. `load` returns the answered requests and the seconds.
fn served(
    server: &Server,
    load: impl Fn(Duration) -> Result<(f64, f64), String>,
    plan: &Plan,
) -> Result<Served, String> {
    served_of_all(server, load, plan).map(|(served, _)| served)
}

fn served_of_all(
    server: &Server,
    load: impl Fn(Duration) -> Result<(f64, f64), String>,
    plan: &Plan,
) -> Result<(Served, f64), String> {
    let (warm_up, _) = load(Duration::from_secs(1))?;
    let before = server.cpu();
    let (requests, seconds) = load(plan.load)?;
    let cpu = server.cpu() - before;
    let measured = Served {
        micros: cpu.as_secs_f64() * 1e6 / requests,
        per_second: requests / seconds,
        memory: server.peak_memory(),
    };
    Ok((measured, warm_up + requests))
}

/// Runs wrk; returns how many requests were answered and in how many seconds.
fn wrk(plan: &Plan, server: &Server, asked: Asked, load: Duration) -> Result<(f64, f64), String> {
    let cores = plan.load_cores();
    let mut command = pinned_to(&cores, "wrk");
    command.args([
        &format!("-t{}", cores.len()),
        &format!("-c{}", asked.connections),
        &format!("-d{}s", load.as_secs()),
        // A response may be late where php-fpm has the load's core too: these rows count CPU time. wrk gives up after 2 s.
        "--timeout",
        "30s",
    ]);
    if asked.pipelined {
        command.args(["-s", "bench/pipeline.lua"]);
    }
    if let Some(script) = asked.script {
        command.arg("-s").arg(script);
    }
    if asked.drawn.is_some() {
        command.args(["-s", "bench/scale.lua"]);
    }
    for field in asked.fields {
        command.args(["-H", field]);
    }
    let scheme = if asked.tls { "https" } else { "http" };
    command.arg(format!("{scheme}://127.0.0.1:{}{}", server.port, asked.path));
    if let Some((kind, count)) = asked.drawn {
        command.args(["--", kind, &count.to_string()]);
    }
    let output = command.output().map_err(|error| format!("wrk: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    read_wrk(&text)
}

/// Loads the server by requests that stand in files, on so many connections, each of which ends after `each` responses, or never if `each`
/// is 0.
pub fn raw(
    plan: &Plan,
    server: &Server,
    files: &[PathBuf],
    (connections, each): (usize, usize),
) -> Result<Served, String> {
    let load = |load: Duration| {
        let mut command = pinned(plan.cores.1, program("load-raw"));
        command.args([server.port as usize, connections, each, load.as_millis() as usize].map(|n| n.to_string()));
        let output = command
            .args(files)
            .output()
            .map_err(|error| format!("load-raw: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<f64> = text
            .split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        match numbers[..] {
            [responses, seconds] if responses > 0.0 => Ok((responses, seconds)),
            _ => Err(format!("load-raw: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    };
    served(server, load, plan)
}

/// A quiet client beside downloads.
pub struct Beside {
    /// The 99th percentile of its times, in milliseconds.
    pub p99: f64,
    /// Bytes that the downloads have received in a second, as they are on the way.
    pub downloaded: f64,
}

/// Sends one request after another for `path`, while so many clients download a large response in a content coding.
pub fn beside_downloads(
    plan: &Plan,
    server: &Server,
    path: &str,
    (large, coding, clients): (&str, &str, usize),
) -> Result<Beside, String> {
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", server.port);
    let mut downloads = pinned(plan.cores.1, "wrk");
    downloads.args(["-t1", &format!("-c{clients}"), "-d600s", "--timeout", "600s"]);
    downloads.args(["-H", &format!("Accept-Encoding: {coding}"), &url(large)]);
    downloads.stdout(Stdio::piped());
    let mut downloads = downloads.spawn().map_err(|error| format!("wrk: {error}"))?;
    std::thread::sleep(Duration::from_millis(500));
    // Real-time priority for the quiet client. Otherwise it waits for the downloads of its own core.
    let mut hello = pinned(plan.cores.1, "chrt");
    hello.args([
        "-f",
        "10",
        "wrk",
        "-t1",
        "-c1",
        "--latency",
        &format!("-d{}s", plan.load.as_secs()),
        &url(path),
    ]);
    let output = hello.output();
    let ended = downloads.try_wait();
    // It prints what it has seen.
    let _ = Command::new("kill")
        .args(["-INT", &downloads.id().to_string()])
        .status();
    let seen = downloads.wait_with_output().map_err(|error| format!("wrk: {error}"))?;
    let output = output.map_err(|error| format!("chrt: {error}"))?;
    if !matches!(ended, Ok(None)) {
        return Err("wrk: the downloads have ended early".into());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    read_wrk(&text)?;
    Ok(Beside {
        p99: read_p99(&text).ok_or_else(|| format!("wrk: no latency: {}", text.trim()))?,
        downloaded: read_transfer(&String::from_utf8_lossy(&seen.stdout))?,
    })
}

/// "Transfer/sec:    312.50MB", in bytes, and no line about errors. Long downloads need not have ended.
fn read_transfer(text: &str) -> Result<f64, String> {
    refuse_errors(text)?;
    let units = [
        ("GB", 1024.0 * 1024.0 * 1024.0),
        ("MB", 1024.0 * 1024.0),
        ("KB", 1024.0),
        ("B", 1.0),
    ];
    let rate = text.lines().find_map(|line| line.strip_prefix("Transfer/sec:"));
    let bytes = rate.and_then(|rate| {
        let number = |(unit, bytes)| Some(rate.trim().strip_suffix(unit)?.parse::<f64>().ok()? * bytes);
        units.into_iter().find_map(number)
    });
    match bytes {
        Some(bytes) if bytes > 0.0 => Ok(bytes),
        _ => Err(format!("wrk: the downloads received nothing: {}", text.trim())),
    }
}

/// "     99%    1.23ms", in milliseconds.
fn read_p99(text: &str) -> Option<f64> {
    let time = text.lines().find_map(|line| line.trim().strip_prefix("99%"))?.trim();
    let units = [("us", 1e-3), ("ms", 1.0), ("s", 1e3)];
    units
        .into_iter()
        .find_map(|(unit, millis)| Some(time.strip_suffix(unit)?.parse::<f64>().ok()? * millis))
}

/// "  91332 requests in 4.00s, 11.58MB read", and no line about errors.
fn read_wrk(text: &str) -> Result<(f64, f64), String> {
    refuse_errors(text)?;
    let line = text.lines().find(|line| line.contains(" requests in ")).map(str::trim);
    let line = line.ok_or_else(|| format!("wrk: no count: {}", text.trim()))?;
    let (count, rest) = line.split_once(" requests in ").unwrap_or((line, ""));
    let time = rest.split(',').next().unwrap_or_default();
    let seconds = match (time.strip_suffix("ms"), time.strip_suffix('s'), time.strip_suffix('m')) {
        (Some(milli), ..) => milli.parse().map(|n: f64| n / 1000.0),
        (_, Some(seconds), _) => seconds.parse(),
        (.., Some(minutes)) => minutes.parse().map(|n: f64| n * 60.0),
        _ => return Err(format!("wrk: no time: {line}")),
    };
    match (count.parse(), seconds) {
        (Ok(count), Ok(seconds)) if count > 0.0 => Ok((count, seconds)),
        _ => Err(format!("wrk: no request was answered: {line}")),
    }
}

/// Fails at a line of wrk about errors.
fn refuse_errors(text: &str) -> Result<(), String> {
    let is_about_errors = |line: &&str| line.contains("Socket errors") || line.contains("Non-2xx");
    match text.lines().find(is_about_errors) {
        Some(line) => Err(format!("wrk: not every request was answered well: {}", line.trim())),
        None => Ok(()),
    }
}

/// Private bytes of the server for each of `count` connections that asked once and then stay idle.
pub fn idle_connections(plan: &Plan, server: &Server, path: &str, count: usize) -> Result<f64, String> {
    let held = |count: usize| {
        let args = [server.port.to_string(), count.to_string(), path.into()];
        Held::start(plan, "hold", &args)?.after("held")
    };
    held_memory(server, held, count)
}

/// Private bytes of the server for each of `count` connections that asked for `path`, which sends no response.
pub fn silent_connections(plan: &Plan, server: &Server, path: &str, count: usize) -> Result<f64, String> {
    let held = |count: usize| {
        let args = [server.port.to_string(), count.to_string(), path.into(), "silent".into()];
        Held::start(plan, "hold", &args)?.after("held")
    };
    held_memory(server, held, count)
}

/// Private bytes of the server for each of `count` WebSockets at `path` that have had one echo and then stay idle.
pub fn idle_sockets(plan: &Plan, server: &Server, path: &str, count: usize) -> Result<f64, String> {
    let held = |count: usize| {
        let args = [server.port.to_string(), count.to_string(), "1".into(), path.into()];
        Held::start(plan, "load-echo", &args)?.after("ready")
    };
    held_memory(server, held, count)
}

/// Bytes of the kernel for each of `count` idle connections, both ends: what its tables of objects grow by.
pub fn kernel_memory_of_idle(plan: &Plan, server: &Server, path: &str, count: usize) -> Result<f64, String> {
    let hold = |count: usize| {
        let args = [server.port.to_string(), count.to_string(), path.into()];
        Held::start(plan, "hold", &args)?.after("held")
    };
    drop(hold(200)?);
    std::thread::sleep(Duration::from_millis(500));
    let before = kernel_memory()?;
    let held = hold(count)?;
    std::thread::sleep(Duration::from_millis(500));
    let after = kernel_memory()?;
    drop(held);
    Ok(after.saturating_sub(before) as f64 / count as f64)
}

/// Bytes of all objects in use that `/proc/slabinfo` counts for sockets, files and pollers. Only root may read it.
fn kernel_memory() -> Result<u64, String> {
    const KINDS: [&str; 7] = [
        "TCP",
        "sock_inode_cache",
        "dentry",
        "filp",
        "eventpoll_epi",
        "eventpoll_pwq",
        "skbuff_",
    ];
    let text = std::fs::read_to_string("/proc/slabinfo").map_err(|error| format!("/proc/slabinfo: {error}"))?;
    let bytes = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let is_wanted = KINDS
            .iter()
            .any(|kind| name == *kind || (kind.ends_with('_') && name.starts_with(kind)));
        let (used, _, size) = (words.next()?, words.next()?, words.next()?);
        Some(u64::from(is_wanted) * used.parse::<u64>().ok()? * size.parse::<u64>().ok()?)
    });
    Ok(bytes.sum())
}

/// Private bytes of the server for each of `count` connections that `hold` makes and keeps.
fn held_memory(server: &Server, hold: impl Fn(usize) -> Result<Held, String>, count: usize) -> Result<f64, String> {
    // A server may give back the memory of a wait once that lasts, and the pools of its beginning in steps.
    const SETTLES: Duration = Duration::from_secs(10);
    // The first connections make the server set up things for all of them. They come and go before, so that does not count.
    drop(hold(200)?);
    std::thread::sleep(SETTLES);
    let before = server.private_memory();
    let held = hold(count)?;
    std::thread::sleep(SETTLES);
    let after = server.private_memory();
    drop(held);
    Ok(after.saturating_sub(before) as f64 / count as f64)
}

/// A client that keeps its connections; closed by the drop.
struct Held(std::process::Child, String);

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Held {
    fn start(plan: &Plan, name: &str, args: &[String]) -> Result<Held, String> {
        let mut command = pinned_to(&plan.load_cores(), program(name));
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        Ok(Held(child, name.into()))
    }

    /// The next line that it prints; empty if it has ended.
    fn line(&mut self) -> String {
        let mut line = String::new();
        if let Some(stdout) = &mut self.0.stdout {
            // It prints no more than one line at a time, so nothing is lost with the buffer.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        line.trim().to_string()
    }

    /// This client, once it has printed that line.
    fn after(mut self, line: &str) -> Result<Held, String> {
        match self.line() == line {
            true => Ok(self),
            false => Err(format!("{}: it could not do its work", self.1)),
        }
    }

    /// The numbers of the next line.
    fn numbers(&mut self) -> Vec<f64> {
        let line = self.line();
        line.split(' ').filter_map(|number| number.parse().ok()).collect()
    }

    fn go(&mut self) {
        if let Some(stdin) = &mut self.0.stdin {
            // If it has ended, its next line is missing.
            let _ = stdin.write_all(b"\n");
        }
    }
}

/// A message on its way in each of `count` connections, sent again as soon as it is back. With a path the connections are WebSockets.
pub fn echoes(plan: &Plan, server: &Server, count: usize, path: Option<&str>) -> Result<Served, String> {
    let millis = (plan.load / 2).as_millis().to_string();
    let numbers = [server.port.to_string(), count.to_string(), millis];
    let args: Vec<String> = numbers.into_iter().chain(path.map(String::from)).collect();
    let mut held = Held::start(plan, "load-echo", &args)?.after("ready")?;
    let before = server.cpu();
    held.go();
    let numbers = held.numbers();
    let cpu = server.cpu() - before;
    match numbers[..] {
        [rounds, seconds] if rounds > 0.0 => Ok(Served {
            micros: cpu.as_secs_f64() * 1e6 / rounds,
            per_second: rounds / seconds,
            memory: server.peak_memory(),
        }),
        _ => Err("load-echo: a message did not come back as it was sent".into()),
    }
}

/// The deliveries that the guests of a room have seen.
pub struct Heard {
    /// CPU time of the server for each delivery, in microseconds.
    pub micros: f64,
    pub per_second: f64,
    /// The most it had resident, in bytes.
    pub memory: u64,
    /// Private bytes of the server for each guest, when the first lines have been heard.
    pub guest_bytes: f64,
    /// Delivery times in milliseconds.
    pub median: f64,
    pub p99: f64,
}

/// A room, and who is in it.
#[derive(Clone, Copy)]
pub struct Room {
    pub guests: usize,
    pub speakers: usize,
    /// The pause between two lines of a speaker. Zero: the next line follows when everybody has heard the last one.
    pub pause: Duration,
    /// The length of this load, as a multiple of that of other loads.
    pub loads: u32,
}

/// Puts the guests of `room` on the server and measures it.
pub fn room(plan: &Plan, server: &Server, path: &str, room: Room) -> Result<Heard, String> {
    let millis = (plan.load * room.loads).as_millis().to_string();
    let start = |guests: usize| {
        let numbers = [guests, room.speakers, room.pause.as_millis() as usize].map(|number| number.to_string());
        let args = [
            [server.port.to_string(), path.into()].to_vec(),
            numbers.to_vec(),
            vec![millis.clone()],
        ]
        .concat();
        Held::start(plan, "load-ws", &args)?.after("ready")
    };
    // As in `held_memory`.
    drop(start(200)?);
    std::thread::sleep(Duration::from_millis(500));
    let before = server.private_memory();
    let mut held = start(room.guests)?;
    std::thread::sleep(Duration::from_millis(500));
    let guest_bytes = server.private_memory().saturating_sub(before) as f64 / room.guests as f64;
    let cpu = server.cpu();
    held.go();
    let numbers = held.numbers();
    let cpu = server.cpu() - cpu;
    match numbers[..] {
        [deliveries, seconds, median, p99] if deliveries > 0.0 => Ok(Heard {
            micros: cpu.as_secs_f64() * 1e6 / deliveries,
            per_second: deliveries / seconds,
            memory: server.peak_memory(),
            guest_bytes,
            median: median / 1e3,
            p99: p99 / 1e3,
        }),
        _ => Err("load-ws: not everybody has heard everything".into()),
    }
}

/// Runs a program that prints "NAME NUMBER" lines and returns them.
pub fn figures(cores: &[usize], program: &Path, args: &[String]) -> Result<Vec<(String, f64)>, String> {
    let name = program.file_name().unwrap_or_default().display();
    let output = pinned_to(cores, program)
        .args(args)
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        let last = String::from_utf8_lossy(&output.stderr)
            .trim()
            .lines()
            .last()
            .unwrap_or_default()
            .to_string();
        return Err(format!("{name}: {}: {last}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = text.lines().filter_map(|line| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_string(), number.parse().ok()?))
    });
    Ok(figures.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_count_and_the_time_of_wrk() {
        assert_eq!(
            read_wrk("Running\n  91332 requests in 4.00s, 11.58MB read\n"),
            Ok((91332.0, 4.0))
        );
        assert_eq!(read_wrk("  10 requests in 500.00ms, 1KB read"), Ok((10.0, 0.5)));
        assert_eq!(read_wrk("  10 requests in 1.50m, 1KB read"), Ok((10.0, 90.0)));
    }

    #[test]
    fn reads_the_latency_of_wrk() {
        let text = |time: &str| format!("  Latency Distribution\n     50%  100.00us\n     99%    {time}\n");
        assert_eq!(read_p99(&text("1.50ms")), Some(1.5));
        assert_eq!(read_p99(&text("250.00us")), Some(0.25));
        assert_eq!(read_p99(&text("2.00s")), Some(2000.0));
        assert_eq!(read_p99("no figures"), None);
    }

    #[test]
    fn reads_what_downloads_have_received() {
        let text = |rate: &str| {
            format!("  0 requests in 4.00s, 1.22GB read\nRequests/sec:      0.00\nTransfer/sec:  {rate}\n")
        };
        assert_eq!(read_transfer(&text("  2.50MB")), Ok(2.5 * 1024.0 * 1024.0));
        assert_eq!(read_transfer(&text(" 12.00B")), Ok(12.0));
        assert!(read_transfer(&text("0.00B")).is_err());
        let refused = text("1.00MB") + "  Non-2xx or 3xx responses: 8\n";
        assert!(read_transfer(&refused).is_err());
        assert!(read_transfer("").is_err());
    }

    #[test]
    fn a_failed_request_is_no_figure() {
        assert!(read_wrk("  10 requests in 4.00s, 1KB read\n  Non-2xx or 3xx responses: 1").is_err());
        assert!(read_wrk("  0 requests in 4.00s, 0B read").is_err());
        assert!(read_wrk("unable to connect").is_err());
    }
}
