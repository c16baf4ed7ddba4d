//! `cargo xtask upgrade`: what clients notice of upgrades of this server, of nginx and of HAProxy.
//!
//! The server is pinned to one core, the clients to another. Idle connections, new ones and guests of chats (`bench/load-upgrade`) are there all
//! the time, and so is wrk. The server is upgraded some times in a row. The others have a chat of ours behind them. `servers.rs` has
//! how each of them starts and is upgraded.

mod servers;

use super::{Plan, pinned, programs};
use crate::peers;
use servers::{Kind, Serving};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The clients, and the upgrades.
struct Settings {
    clear: usize,
    tls: usize,
    guests: usize,
    upgrades: u32,
    pause: Duration,
    kinds: Vec<Kind>,
}

/// How often the memory is looked at.
const TICK: Duration = Duration::from_millis(20);

/// The time before the first upgrade, and after the last one.
const EDGE: Duration = Duration::from_secs(2);

pub fn main(args: &[String]) -> ExitCode {
    let done = parsed(args).and_then(|settings| measured(&settings));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("upgrade: {why}");
            ExitCode::from(2)
        }
    }
}

fn parsed(args: &[String]) -> Result<Settings, String> {
    let mut settings = Settings {
        clear: 10_000,
        tls: 2_000,
        guests: 2_000,
        upgrades: 10,
        pause: Duration::from_secs(3),
        kinds: Kind::ALL.to_vec(),
    };
    for pair in args.chunks(2) {
        let [name, value] = pair else {
            return Err(format!("{} needs a value", pair[0]));
        };
        let number = || value.parse::<usize>().map_err(|_| format!("{name} needs a number"));
        match name.as_str() {
            "--clear" => settings.clear = number()?,
            "--tls" => settings.tls = number()?,
            "--guests" => settings.guests = number()?,
            "--upgrades" => settings.upgrades = number()? as u32,
            "--pause" => settings.pause = Duration::from_secs(number()? as u64),
            "--only" => settings.kinds.retain(|kind| kind.name() == value),
            _ => {
                return Err(format!(
                    "{name:?}: known are --clear, --tls, --guests, --upgrades, --pause SECONDS and --only NAME"
                ));
            }
        }
    }
    match settings.kinds.is_empty() {
        true => Err("known are osier, nginx and haproxy".into()),
        false => Ok(settings),
    }
}

fn measured(settings: &Settings) -> Result<(), String> {
    let missing = peers::install(peers::FOR_UPGRADE);
    if !missing.is_empty() {
        return Err(missing.join("\nupgrade: "));
    }
    let plan = Plan::here()?;
    programs::build(&plan, &[programs::SERVER, "load-upgrade"].into())?;
    std::fs::create_dir_all(&plan.scratch).map_err(|error| format!("{}: {error}", plan.scratch.display()))?;
    let mut columns = Vec::new();
    for kind in &settings.kinds {
        let found = run(&plan, settings, *kind);
        columns.push((kind.name(), found.map_err(|why| format!("{}: {why}", kind.name()))));
    }
    let _ = std::fs::remove_dir_all(&plan.scratch);
    println!("\n{}", rendered(settings, &columns));
    let failed = columns.into_iter().find_map(|(_, found)| found.err());
    failed.map_or(Ok(()), Err)
}

type Figures = BTreeMap<String, f64>;

/// Upgrades one server under load.
fn run(plan: &Plan, settings: &Settings, kind: Kind) -> Result<Figures, String> {
    let mut serving = Serving::start(plan, kind, settings.guests)?;
    serving.check()?;
    let mut load = Load::start(plan, &serving, settings)?;
    let memory = Memory::watch(serving.group());
    let mut figures = Figures::new();
    figures.insert("memory_before".into(), memory.now());
    let wrk = wrk(
        plan,
        &serving,
        EDGE * 2 + (settings.pause + Duration::from_secs(1)) * settings.upgrades,
    )?;
    thread::sleep(EDGE);
    let mut times = Vec::new();
    for _ in 0..settings.upgrades {
        let begun = Instant::now();
        serving.upgrade()?;
        times.push(begun.elapsed());
        thread::sleep(settings.pause.saturating_sub(begun.elapsed()));
    }
    thread::sleep(EDGE);
    figures.insert("memory_after".into(), memory.now());
    figures.insert("processes".into(), serving.processes() as f64);
    let heard = finished(wrk)?;
    figures.extend(read_wrk(&heard)?);
    figures.extend(load.figures()?);
    figures.insert("memory_most".into(), memory.most());
    let longest = times.into_iter().max().unwrap_or_default();
    figures.insert("upgrade_s".into(), longest.as_secs_f64());
    Ok(figures)
}

/// The program of the clients.
struct Load(Child, BufReader<std::process::ChildStdout>);

impl Load {
    fn start(plan: &Plan, serving: &Serving, settings: &Settings) -> Result<Load, String> {
        let mut command = pinned(plan.cores.1, programs::program("load-upgrade"));
        let numbers = [
            usize::from(serving.port),
            usize::from(serving.tls_port),
            settings.clear,
            settings.tls,
            settings.guests,
        ];
        command.args(numbers.map(|number| number.to_string()));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("load-upgrade: {error}"))?;
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        let read = output.read_line(&mut line);
        match (read, line.trim()) {
            (Ok(_), "ready") => Ok(Load(child, output)),
            _ => Err("load-upgrade: not every client could connect".into()),
        }
    }

    /// Ends the clients, and reads what they have counted.
    fn figures(&mut self) -> Result<Figures, String> {
        drop(self.0.stdin.take());
        let mut text = String::new();
        let read = self.1.read_to_string(&mut text);
        read.map_err(|error| format!("load-upgrade: {error}"))?;
        let status = self.0.wait().map_err(|error| format!("load-upgrade: {error}"))?;
        let pairs = text.lines().filter_map(|line| {
            let (name, number) = line.split_once(' ')?;
            Some((name.to_owned(), number.parse().ok()?))
        });
        match status.success() {
            true => Ok(pairs.collect()),
            false => Err(format!("load-upgrade: {status}")),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts wrk at full load.
fn wrk(plan: &Plan, serving: &Serving, time: Duration) -> Result<Child, String> {
    let mut command = pinned(plan.cores.1, "wrk");
    command.args([
        "-t1",
        "-c64",
        "--latency",
        "--timeout",
        "20s",
        &format!("-d{}s", time.as_secs()),
    ]);
    command.arg(format!("http://127.0.0.1:{}/", serving.port));
    let child = command.stdout(Stdio::piped()).spawn();
    child.map_err(|error| format!("wrk: {error}"))
}

fn finished(wrk: Child) -> Result<String, String> {
    let output = wrk.wait_with_output().map_err(|error| format!("wrk: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The figures of a report of wrk.
fn read_wrk(text: &str) -> Result<Figures, String> {
    let why = || format!("wrk: no figures in {text}");
    let after = |start: &str| text.lines().find_map(|line| line.trim().strip_prefix(start));
    // "    Latency   635.91us    0.89ms  12.92ms   93.69%"
    let longest = after("Latency").and_then(|rest| millis(rest.split_whitespace().nth(2)?));
    let asked = text.lines().find_map(|line| line.trim().split_once(" requests in "));
    let asked: f64 = asked.and_then(|(count, _)| count.parse().ok()).ok_or_else(why)?;
    // "Socket errors: connect 0, read 12, write 0, timeout 0"
    let errors = after("Socket errors:").unwrap_or_default();
    let error = |name: &str| -> f64 {
        let found = errors.split(", ").find_map(|part| part.trim().strip_prefix(name));
        found.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
    };
    let unwell = after("Non-2xx or 3xx responses:").and_then(|count| count.trim().parse::<f64>().ok());
    let failed = error("read") + error("write") + error("timeout") + unwell.unwrap_or_default();
    Ok(Figures::from([
        ("wrk_asked".into(), asked),
        ("wrk_failed".into(), failed),
        ("wrk_refused".into(), error("connect")),
        ("wrk_longest_us".into(), longest.ok_or_else(why)? * 1e3),
    ]))
}

/// "12.92ms" in milliseconds.
fn millis(text: &str) -> Option<f64> {
    let units = [("us", 1e-3), ("ms", 1.0), ("s", 1e3), ("m", 6e4)];
    units
        .into_iter()
        .find_map(|(unit, millis)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * millis))
}

/// The memory of a group of processes, looked at again and again.
struct Memory {
    group: u32,
    most: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Memory {
    fn watch(group: u32) -> Memory {
        let memory = Memory {
            group,
            most: Arc::default(),
            stop: Arc::default(),
        };
        let (most, stop) = (Arc::clone(&memory.most), Arc::clone(&memory.stop));
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                most.fetch_max(servers::resident(group), Ordering::Relaxed);
                thread::sleep(TICK);
            }
        });
        memory
    }

    /// The memory now, in MB.
    fn now(&self) -> f64 {
        servers::resident(self.group) as f64 / 1e6
    }

    fn most(&self) -> f64 {
        self.most.load(Ordering::Relaxed) as f64 / 1e6
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The lines of the table: their text, and the figures whose sum or, for the longest, whose greatest they are.
const LINES: [(&str, &[&str]); 12] = [
    ("requests of wrk", &["wrk_asked"]),
    ("other requests", &["clear_asked", "tls_asked", "new_asked"]),
    (
        "requests failed",
        &["wrk_failed", "clear_failed", "tls_failed", "new_failed"],
    ),
    (
        "connections reset",
        &["clear_reset", "tls_reset", "new_reset", "guests_reset"],
    ),
    (
        "connections refused",
        &["wrk_refused", "clear_refused", "tls_refused", "new_refused"],
    ),
    (
        "idle connections closed, or ended by a response",
        &["clear_closed", "tls_closed", "clear_ended", "tls_ended"],
    ),
    ("guests thrown out", &["guests_dropped"]),
    ("lines heard", &["guests_heard"]),
    ("lines lost", &["guests_lost"]),
    ("lines doubled", &["guests_doubled"]),
    (
        "longest request, µs",
        &["wrk_longest_us", "clear_longest_us", "tls_longest_us", "new_longest_us"],
    ),
    ("longest upgrade, s", &["upgrade_s"]),
];

const MEMORY: [&str; 3] = ["memory_before", "memory_most", "memory_after"];

fn rendered(settings: &Settings, columns: &[(&str, Result<Figures, String>)]) -> String {
    let Settings {
        clear,
        tls,
        guests,
        upgrades,
        ..
    } = settings;
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let mut table = format!(
        "{upgrades} upgrades in a row; {clear} idle connections, {tls} with TLS, {guests} guests of chats, wrk on 64 connections\n\n\
         | | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    let mut line = |text: &str, cell: &dyn Fn(&Figures) -> String| {
        let cells = columns.iter().map(|(_, found)| match found {
            Ok(figures) => cell(figures),
            Err(_) => "failed".into(),
        });
        let cells: Vec<String> = cells.collect();
        table += &format!("| {text} | {} |\n", cells.join(" | "));
    };
    for (text, names) in LINES {
        line(text, &|figures| {
            let found = names.iter().filter_map(|name| figures.get(*name)).copied();
            match text.starts_with("longest") {
                true => format!("{:.2}", found.fold(0.0, f64::max)).replace(".00", ""),
                false => format!("{}", found.sum::<f64>()),
            }
        });
    }
    line("resident MB before, most, and after", &|figures| {
        let found = MEMORY.map(|name| figures.get(name).map_or("?".into(), |mb| format!("{mb:.0}")));
        found.join(", ")
    });
    line("processes of the server at the end", &|figures| {
        figures.get("processes").map_or("?".into(), f64::to_string)
    });
    table
}

/// Runs a command to its end, and returns what it has printed.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    match output.status.success() {
        true => Ok(said),
        false => Err(format!("{name}: {}: {}", output.status, said.trim())),
    }
}

fn write(path: &std::path::Path, text: &str) -> Result<(), String> {
    let written = std::fs::File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_wrk_is_read() {
        let text = "Running 6s test @ http://127.0.0.1:1/\n  1 threads and 64 connections\n  Thread Stats   Avg      Stdev     Max   +/- Stdev\n    \
                    Latency     1.29ms   90.03us   1.20s    95.00%\n    Req/Sec    50.02k     2.03k   52.00k    70.00%\n  \
                    298811 requests in 6.00s, 40.18MB read\n  Socket errors: connect 1, read 12, write 3, timeout 4\n  \
                    Non-2xx or 3xx responses: 5\n";
        let figures = read_wrk(text).unwrap();
        let expected = [
            ("wrk_asked", 298_811.0),
            ("wrk_failed", 24.0),
            ("wrk_longest_us", 1_200_000.0),
            ("wrk_refused", 1.0),
        ];
        assert!(
            figures
                .iter()
                .map(|(name, figure)| (name.as_str(), *figure))
                .eq(expected)
        );
        let well = text.split("  Socket").next().unwrap();
        assert_eq!(read_wrk(well).unwrap()["wrk_failed"], 0.0);
        assert!(read_wrk("unable to connect").is_err());
    }
}
