//! Load by `h2load`: many streams at once on each of many HTTP/2 connections.

use super::{Served, served};
use crate::bench::server::Server;
use crate::bench::{Plan, pinned};
use std::ffi::OsStr;
use std::process::{Child, Stdio};
use std::time::Duration;

/// The connections of the load.
pub const CONNECTIONS: usize = 64;

/// The streams of each connection.
pub const STREAMS: usize = 100;

/// A run of `h2load`: so many connections, each with so many streams.
#[derive(Clone, Copy)]
pub struct Streams<'a> {
    pub connections: usize,
    pub streams: usize,
    /// Whether the connections are over TLS.
    pub tls: bool,
    /// Options of `h2load`: fields of the requests, a file with targets, a body.
    pub options: &'a [&'a OsStr],
    /// The path, or that of a server whose targets stand in a file.
    pub path: &'a str,
}

/// Asks for `path` again and again.
pub fn requests(plan: &Plan, server: &Server, path: &str, tls: bool) -> Result<Served, String> {
    let asked = Streams {
        connections: CONNECTIONS,
        streams: STREAMS,
        tls,
        options: &[],
        path,
    };
    at_once(plan, server, &[asked])
}

/// Runs all of these at once.
pub fn at_once(plan: &Plan, server: &Server, asked: &[Streams]) -> Result<Served, String> {
    let load = |load: Duration| {
        let runs = asked.iter().map(|asked| start(plan, server, asked, load));
        let runs: Vec<Child> = runs.collect::<Result<_, _>>()?;
        // Each run is awaited, whatever another one says.
        let counts = runs.into_iter().map(count).collect::<Vec<_>>();
        let requests = counts.into_iter().sum::<Result<f64, String>>()?;
        Ok((requests, load.as_secs_f64()))
    };
    served(server, load, plan)
}

fn start(plan: &Plan, server: &Server, asked: &Streams, load: Duration) -> Result<Child, String> {
    let scheme = if asked.tls { "https" } else { "http" };
    let url = format!("{scheme}://127.0.0.1:{}{}", server.port, asked.path);
    let mut command = pinned(plan.cores.1, "h2load");
    command.args([
        "-t1",
        &format!("-c{}", asked.connections),
        &format!("-m{}", asked.streams),
    ]);
    command.arg(format!("-D{}", load.as_secs())).args(asked.options);
    match asked.options.contains(&OsStr::new("-i")) {
        true => command.arg("-B").arg(url),
        false => command.arg(url),
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().map_err(|error| format!("h2load: {error}"))
}

/// The requests of a run that succeeded.
fn count(run: Child) -> Result<f64, String> {
    let output = run.wait_with_output().map_err(|error| format!("h2load: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    read(&text).map_err(|why| format!("h2load: {why}: {}", text.trim()))
}

/// "requests: 70189 total, 72237 started, 70189 done, 70189 succeeded, 0 failed, 0 errored, 0 timeout", and no other status than 2xx.
fn read(text: &str) -> Result<f64, &'static str> {
    let numbers = |start: &str, name: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(start))?;
        let number = line.split(',').find_map(|part| part.trim().strip_suffix(name))?;
        number.trim().parse().ok()
    };
    let succeeded = numbers("requests:", "succeeded").ok_or("no count")?;
    let others = ["failed", "errored", "timeout"].map(|name| numbers("requests:", name));
    let statuses = ["3xx", "4xx", "5xx"].map(|name| numbers("status codes:", name));
    if others.into_iter().chain(statuses).any(|count| count != Some(0.0)) {
        return Err("not every request was answered well");
    }
    if !text
        .lines()
        .any(|line| line == "Application protocol: h2" || line == "Application protocol: h2c")
    {
        return Err("it did not speak HTTP/2");
    }
    match succeeded > 0.0 {
        true => Ok(succeeded),
        false => Err("no request was answered"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Application protocol: h2\n\
        requests: 70189 total, 72237 started, 70189 done, 70180 succeeded, 0 failed, 0 errored, 0 timeout\n\
        status codes: 71783 2xx, 0 3xx, 0 4xx, 0 5xx\n";

    #[test]
    fn reads_what_succeeded() {
        assert_eq!(read(GOOD), Ok(70180.0));
    }

    #[test]
    fn a_failed_request_is_no_figure() {
        assert!(read(&GOOD.replace("0 failed", "1 failed")).is_err());
        assert!(read(&GOOD.replace("0 5xx", "3 5xx")).is_err());
        assert!(read(&GOOD.replace("protocol: h2", "protocol: http/1.1")).is_err());
        assert!(read("unable to connect").is_err());
    }
}
