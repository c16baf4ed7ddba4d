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
use crate::running::Fpm;
use std::path::Path;

/// The goal against nginx in the same mode.
pub(super) const GOAL: Option<f64> = Some(0.85);

/// As many as `load::requests` opens connections.
pub(super) const PROCESSES: usize = 64;

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
        let fpm = fpm(plan)?;
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

/// As [`behind_nginx`], with buffers that hold a page.
pub(super) fn behind_nginx_with_large_buffers(plan: &Plan, fpm: &Fpm, kept: usize) -> Result<Server, String> {
    let root = site(plan);
    Server::start(plan, Path::new("nginx"), |port| {
        let config = nginx::php(&plan.scratch, &root, &fpm.socket, kept, port)?;
        nginx::args(plan, nginx::with(config, nginx::LARGE_PAGES)?)
    })
}

/// Starts a php-fpm on the core of the load, and writes the scripts.
pub(super) fn fpm(plan: &Plan) -> Result<Fpm, String> {
    let program = peers::php_fpm().ok_or("php-fpm: not installed")?;
    for (name, text) in [("hello.php", Fpm::HELLO), ("page.php", Fpm::PAGE)] {
        let script = site(plan).join(name);
        std::fs::write(&script, text).map_err(|error| format!("{}: {error}", script.display()))?;
    }
    Fpm::start(pinned(plan.cores.1, &program), &plan.scratch, PROCESSES)
}
