//! The rows about scripts: the same php-fpm behind Osier and behind nginx, with and without kept connections.
//!
//! php-fpm runs on the core of the load, so that the figure is what the server in front of it costs. It has a
//! process for each connection of the load: with fewer, kept connections would starve the others. `null` makes the system calls of such a
//! request and does nothing else.

use super::{Contestant, HELLO, Row, Sample, contestant, sample, site};
use crate::bench::load::{self, Asked};
use crate::bench::programs::program;
use crate::bench::server::{Server, nginx};
use crate::bench::{Plan, pinned};
use crate::peers;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// DESIGN.md: against nginx in the same mode.
pub(super) const GOAL: Option<f64> = Some(0.85);

/// As many as `load::requests` opens connections.
pub(super) const PROCESSES: usize = 64;

const SCRIPT: &str = "<?php header('Content-Type: text/plain'); header('Content-Length: 13'); echo 'Hello, World!';";

/// All of them.
pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let row = |name: &str, kept: usize| Row {
        name: name.into(),
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        load: &[],
        ours: vec![served(plan, "osier", None, move |fpm| ours(plan, fpm, kept)).needs(&["osier-php"])],
        rivals: vec![
            served(plan, "nginx", GOAL, move |fpm| behind_nginx(plan, fpm, kept)),
            served(plan, "null", None, move |fpm| null(plan, fpm, kept)).needs(&["null-gateway"]),
        ],
    };
    vec![
        row("PHP hello through php-fpm (unix socket)", 0),
        row("PHP hello through php-fpm (unix socket), kept connections", PROCESSES),
    ]
}

fn served<'a>(
    plan: &'a Plan,
    name: &'static str,
    goal: Option<f64>,
    start: impl Fn(&Fpm) -> Result<Server, String> + 'a,
) -> Contestant<'a> {
    let run = move || -> Result<Sample, String> {
        let fpm = Fpm::start(plan)?;
        let server = start(&fpm)?;
        server.check("/hello.php", HELLO)?;
        load::requests(plan, &server, Asked::path("/hello.php")).map(sample)
    };
    contestant(name, goal, run)
}

fn ours(plan: &Plan, fpm: &Fpm, kept: usize) -> Result<Server, String> {
    let root = site(plan);
    Server::start(plan, &program("osier-php"), |port| {
        Ok(vec![
            port.to_string().into(),
            root.clone().into(),
            fpm.socket.clone().into(),
            kept.to_string().into(),
        ])
    })
}

fn null(plan: &Plan, fpm: &Fpm, kept: usize) -> Result<Server, String> {
    let (script, how) = (
        site(plan).join("hello.php"),
        ["fastcgi", "fastcgi-kept"][usize::from(kept > 0)],
    );
    Server::start(plan, &program("null-gateway"), |port| {
        Ok(vec![
            port.to_string().into(),
            how.into(),
            fpm.socket.clone().into(),
            script.clone().into(),
        ])
    })
}

pub(super) fn behind_nginx(plan: &Plan, fpm: &Fpm, kept: usize) -> Result<Server, String> {
    let root = site(plan);
    Server::start(plan, Path::new("nginx"), |port| {
        let config = nginx::php(&plan.scratch, &root, &fpm.socket, kept, port)?;
        nginx::args(plan, config)
    })
}

/// A php-fpm; ended by its drop.
pub(super) struct Fpm {
    child: Child,
    pub(super) socket: PathBuf,
}

impl Fpm {
    pub(super) fn start(plan: &Plan) -> Result<Fpm, String> {
        let fpm = peers::php_fpm().ok_or("php-fpm: not installed")?;
        let (socket, config) = (plan.scratch.join("fpm.sock"), plan.scratch.join("fpm.conf"));
        // Opened for all: nginx changes its user when root starts it.
        let text = format!(
            "[global]\nerror_log = {}\ndaemonize = no\n[bench]\nlisten = {}\nlisten.mode = 0666\npm = static\npm.max_children = {PROCESSES}\n",
            plan.scratch.join("fpm.log").display(),
            socket.display()
        );
        let write = |path: &Path, text: &str| {
            std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
        };
        write(&config, &text)?;
        write(&site(plan).join("hello.php"), SCRIPT)?;
        let mut command = pinned(plan.cores.1, &fpm);
        // -R: as root it runs scripts only when asked to; it changes nothing for other users.
        command.args(["-F", "-R", "-y"]).arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("php-fpm: {error}"))?;
        let fpm = Fpm { child, socket };
        let patience = Instant::now() + Duration::from_secs(10);
        while std::os::unix::net::UnixStream::connect(&fpm.socket).is_err() {
            if Instant::now() > patience {
                return Err(format!("php-fpm: does not listen on {}", fpm.socket.display()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(fpm)
    }
}

impl Drop for Fpm {
    fn drop(&mut self) {
        // Politely: it ends its processes only then.
        let kill = format!("kill {}", self.child.id());
        let _ = Command::new("sh").args(["-c", &kill]).status();
        let patience = Instant::now() + Duration::from_secs(5);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
