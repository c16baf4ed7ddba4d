//! The rows with an access log: a file, and a proxied hello, each with one line a request in Apache's combined format.
//!
//! By default nginx makes a system call for each line, and with a buffer it collects lines. Osier's lines are always written by a thread
//! of the server, whose time counts. HAProxy writes its lines to its standard output, which is the file, by a call for each. A run whose log
//! has fewer lines than requests, those of the warm-up included, is no result.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{osier_with, proxy, row};
use crate::bench::Plan;
use crate::bench::load::{self, Asked};
use crate::bench::rows::proxy::{OF_HAPROXY, OF_NGINX};
use crate::bench::rows::{BELOW, HELLO, Row, Sample, contestant, file as made, sample, site};
use crate::bench::server::{Server, haproxy, nginx};

/// The end of nginx's directive that collects lines.
const COLLECTED: &str = " buffer=64k flush=1s";

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    vec![file(plan), proxied(plan)]
}

fn file(plan: &Plan) -> Row<'_> {
    const BYTES: usize = 100;
    let under_load = move |start: &dyn Fn(&Log) -> Result<Server, String>| {
        let path = format!("/{BYTES}.bin");
        let body = made(plan, BYTES)?;
        logged(plan, &path, &body, start)
    };
    let ours = move |binary| {
        let route = format!("files = {:?}", site(plan).display().to_string());
        under_load(&|log| osier_with(plan, binary, "", &log.of_osier(), &route))
    };
    let rival = |name, collected| {
        contestant(name, BELOW, move || {
            under_load(&|log| {
                of_nginx(plan, log, collected, |port| {
                    nginx::files(&plan.scratch, &site(plan), port)
                })
            })
        })
    };
    let rivals = vec![rival("nginx", ""), rival("nginx, buffer=64k", COLLECTED)];
    row(plan, "file of 100 B, access log", ours, rivals)
}

fn proxied(plan: &Plan) -> Row<'_> {
    let under_load = move |start: &dyn Fn(&Log, u16) -> Result<Server, String>| {
        let backend = proxy::backend(plan)?;
        logged(plan, "/", HELLO, &|log| start(log, backend.port))
    };
    let ours = move |binary| {
        under_load(&|log, backend| {
            let route = format!("proxy = \"127.0.0.1:{backend}\"");
            osier_with(plan, binary, "", &log.of_osier(), &route)
        })
    };
    let rival = |name, collected| {
        contestant(name, OF_NGINX, move || {
            under_load(&|log, backend| {
                of_nginx(plan, log, collected, |port| nginx::proxy(&plan.scratch, port, backend))
            })
        })
    };
    let of_haproxy = move || {
        under_load(&|log, backend| {
            Server::start(plan, Path::new("sh"), |port| {
                haproxy::logged(&plan.scratch, port, backend, &log.0)
            })
        })
    };
    let rivals = vec![
        rival("nginx", ""),
        rival("nginx, buffer=64k", COLLECTED),
        contestant("HAProxy", OF_HAPROXY, of_haproxy),
    ];
    row(plan, "proxied hello, access log", ours, rivals)
}

/// Loads a server that writes to a log of its own.
fn logged(
    plan: &Plan,
    path: &str,
    body: &[u8],
    start: &dyn Fn(&Log) -> Result<Server, String>,
) -> Result<Sample, String> {
    let log = Log(plan.scratch.join("access.log"));
    log.remove();
    let server = start(&log)?;
    server.check(path, body)?;
    let (served, requests) = load::all_requests(plan, &server, Asked::path(path))?;
    // And a line for the check.
    log.check(requests as usize + 1)?;
    Ok(sample(served))
}

fn of_nginx(
    plan: &Plan,
    log: &Log,
    collected: &str,
    config: impl Fn(u16) -> Result<PathBuf, String>,
) -> Result<Server, String> {
    Server::start(plan, Path::new("nginx"), |port| {
        nginx::args(plan, nginx::logged(config(port)?, &log.0, collected)?)
    })
}

/// The access log of one run, removed by the drop.
struct Log(PathBuf);

impl Log {
    /// The line of a site of ours.
    fn of_osier(&self) -> String {
        format!("log = {{ file = {:?} }}", self.0.display().to_string())
    }

    /// Waits until the log has a line for each of so many requests. The last lines come within a second.
    fn check(&self, requests: usize) -> Result<(), String> {
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let lines = self.lines()?;
            if lines >= requests {
                return Ok(());
            }
            if Instant::now() > patience {
                return Err(format!("{lines} lines in the log for {requests} requests"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn lines(&self) -> Result<usize, String> {
        let failed = |error| format!("{}: {error}", self.0.display());
        let (mut file, mut piece, mut lines) = (File::open(&self.0).map_err(failed)?, vec![0; 1 << 20], 0);
        loop {
            match file.read(&mut piece).map_err(failed)? {
                0 => return Ok(lines),
                read => lines += piece[..read].iter().filter(|byte| **byte == b'\n').count(),
            }
        }
    }

    fn remove(&self) {
        // A run begins without one.
        let _ = fs::remove_file(&self.0);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.remove();
    }
}
