//! Load by `h2load`: many streams at once on each of many HTTP/2 connections.

use super::{Served, served};
use crate::bench::server::Server;
use crate::bench::{Plan, pinned};
use std::time::Duration;

/// The connections of the load.
pub const CONNECTIONS: usize = 64;

/// The streams of each connection.
pub const STREAMS: usize = 100;

/// Asks for `path` again and again.
pub fn requests(plan: &Plan, server: &Server, path: &str, tls: bool) -> Result<Served, String> {
    let scheme = if tls { "https" } else { "http" };
    let url = format!("{scheme}://127.0.0.1:{}{path}", server.port);
    loaded(plan, server, (CONNECTIONS, STREAMS), &[], &[url])
}

/// Asks for these paths over TLS in turn, as clients that accept compressed files. The streams are fewer than those of
/// [`requests`]: a server that compresses on the fly held 17 GB for 6,400 of them.
pub fn requests_in_turn(plan: &Plan, server: &Server, paths: &[String]) -> Result<Served, String> {
    let urls = paths
        .iter()
        .map(|path| format!("https://127.0.0.1:{}{path}", server.port));
    loaded(
        plan,
        server,
        (4, 32),
        &["-H", "accept-encoding: br;q=1, gzip;q=0.8"],
        &urls.collect::<Vec<_>>(),
    )
}

fn loaded(
    plan: &Plan,
    server: &Server,
    (connections, streams): (usize, usize),
    fields: &[&str],
    urls: &[String],
) -> Result<Served, String> {
    let load = |load: Duration| {
        let mut command = pinned(plan.cores.1, "h2load");
        command.args(["-t1", &format!("-c{connections}"), &format!("-m{streams}")]);
        command.arg(format!("-D{}", load.as_secs())).args(fields).args(urls);
        let output = command.output().map_err(|error| format!("h2load: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        match read(&text) {
            Ok(requests) => Ok((requests, load.as_secs_f64())),
            Err(why) => Err(format!("h2load: {why}: {}", text.trim())),
        }
    };
    served(server, load, plan)
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
