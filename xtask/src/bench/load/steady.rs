//! Load at a fixed rate, far below what a server can do, as most servers have it: `h2load` sends so many requests in a second, and each is timed.
//!
//! A connection that still waits for a response sends late, and its time counts from then. So times of a server that stalls for
//! longer than the pause between two requests of a connection are better than they were.
//!
//! Both cores spin at the lowest priority meanwhile. A core without work stops until the next interrupt, which in a virtual machine gives
//! it to others: a response came up to 60 ms late then, and most often where the server had the least to do.

use crate::bench::server::Server;
use crate::bench::{Plan, pinned};
use std::path::Path;
use std::process::Child;

const CONNECTIONS: usize = 64;

/// The requests of a run and what the server did for them.
pub struct Steady {
    /// CPU time of the server for each request, in microseconds.
    pub micros: f64,
    /// The time that 99 of 100 responses take at most, in microseconds.
    pub p99: f64,
}

/// Keeps a core from stopping, until it is dropped.
struct Awake(Child);

impl Awake {
    fn keep(core: usize) -> Result<Awake, String> {
        let mut command = pinned(core, "chrt");
        let spinning = command.args(["--idle", "0", "sh", "-c", "while :; do :; done"]).spawn();
        spinning.map(Awake).map_err(|error| format!("chrt: {error}"))
    }

    /// Fails if it has ended: a chrt that may not set the priority does so at once.
    fn check(&mut self) -> Result<(), String> {
        match self.0.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("chrt: the core did not stay awake: {status}")),
            Err(error) => Err(format!("chrt: {error}")),
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks for `path` so many times in a second.
pub fn requests(plan: &Plan, server: &Server, path: &str, per_second: usize) -> Result<Steady, String> {
    let mut awake = [Awake::keep(plan.cores.0)?, Awake::keep(plan.cores.1)?];
    run(plan, server, path, per_second, 1)?;
    let before = server.cpu();
    let times = run(plan, server, path, per_second, plan.load.as_secs() as usize)?;
    let cpu = server.cpu() - before;
    awake.iter_mut().try_for_each(Awake::check)?;
    Ok(Steady {
        micros: cpu.as_secs_f64() * 1e6 / times.len() as f64,
        p99: times[times.len() * 99 / 100],
    })
}

/// The times of the responses in microseconds, the shortest first.
fn run(plan: &Plan, server: &Server, path: &str, per_second: usize, seconds: usize) -> Result<Vec<f64>, String> {
    let log = plan.scratch.join("steady.log");
    // h2load adds to a file that is there.
    let _ = std::fs::remove_file(&log);
    let requests = per_second * seconds;
    let mut command = pinned(plan.cores.1, "h2load");
    command.args(["--h1", "-t1", &format!("-c{CONNECTIONS}"), &format!("-n{requests}")]);
    command.arg(format!("--rps={}", per_second as f64 / CONNECTIONS as f64));
    // One connection after another: those that begin at once send at once, for ever.
    command.args(["--rate=1", "--rate-period=3ms"]);
    command.arg(format!("--log-file={}", log.display()));
    command.arg(format!("http://127.0.0.1:{}{path}", server.port));
    let output = command.output().map_err(|error| format!("h2load: {error}"))?;
    let times = read(&log)?;
    match times.len() == requests {
        true => Ok(times),
        false => Err(format!(
            "h2load: {} of {requests} requests were answered well: {}",
            times.len(),
            String::from_utf8_lossy(&output.stdout).trim()
        )),
    }
}

fn read(log: &Path) -> Result<Vec<f64>, String> {
    let text = std::fs::read_to_string(log).map_err(|error| format!("{}: {error}", log.display()))?;
    let mut times: Vec<f64> = text.lines().filter_map(time).collect();
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// "1446873574000000\t200\t123" is 123 µs; other statuses than 200 have no time.
fn time(line: &str) -> Option<f64> {
    let mut columns = line.split('\t').skip(1);
    columns.next().filter(|status| *status == "200")?;
    columns.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn only_good_responses_have_a_time() {
        assert_eq!(time("1446873574000000\t200\t123"), Some(123.0));
        assert_eq!(time("1446873574000000\t502\t123"), None);
        assert_eq!(time("1446873574000000\t-1\t0"), None);
        assert_eq!(time(""), None);
    }
}
