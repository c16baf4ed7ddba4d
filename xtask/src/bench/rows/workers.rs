//! The rows about a second worker: what a request costs with two, against one, and against two of others.
//!
//! The servers and the load all use both cores, in the runs with one worker too. So they wait for each other, and the figures are noisier than
//! those of other rows.

use super::{BELOW, Contestant, HELLO, Row, Sample, contestant, file, sample, site};
use crate::bench::Plan;
use crate::bench::load::{self, Asked, Room, Served};
use crate::bench::programs::{SERVER, osier, program};
use crate::bench::server::{Server, nginx};
use std::path::Path;

/// The goal against one worker.
const NO_DEARER: Option<f64> = Some(1.1);

const FILE_BYTES: usize = 16 << 10;
const ECHOES: usize = 1000;

const ROOM: Room = Room {
    guests: 1000,
    speakers: 1,
    pause: std::time::Duration::ZERO,
    loads: 1,
};

/// Starts a server with so many workers.
type Start = fn(&Plan, usize) -> Result<Server, String>;

type Load = fn(&Plan, &Server) -> Result<Served, String>;

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let (hello, proxy): (Start, Start) = (on_hello, on_proxy);
    let nginx = |load| vec![with(plan, "nginx, two workers", 2, on_nginx, load).below()];
    let tokio = |name, start, load, binary| with(plan, name, 2, start, load).needs(&[binary]).below();
    let no_parser = |load| tokio("tokio, no parser, two workers", on_tokio as Start, load, "tokio-null");
    let mut echo = row(plan, "echo of 64 B", "osier-echo", on_echo, echoes, vec![]);
    echo.rivals.push(tokio(
        "tokio, two workers",
        on_tokio_echo as Start,
        echoes,
        "tokio-echo",
    ));
    echo.load = &["load-echo"];
    let mut room = row(plan, "broadcast to 1000", "osier-chat", on_chat, deliveries, vec![]);
    room.load = &["load-ws"];
    let mut rows = vec![
        row(plan, "hello", "osier-hello", hello, plain, nginx(plain)),
        row(
            plan,
            "hello, pipelined 16",
            "osier-hello",
            hello,
            pipelined,
            nginx(pipelined),
        ),
        row(
            plan,
            "file of 16 KiB",
            SERVER,
            on_files,
            static_file,
            nginx(static_file),
        ),
        row(plan, "proxied hello", "osier-proxy", proxy, plain, vec![]),
    ];
    rows[0].rivals.push(no_parser(plain));
    rows[1].rivals.push(no_parser(pipelined));
    rows[3]
        .rivals
        .push(with(plan, "nginx, two workers", 2, on_nginx_proxy, plain).below());
    rows.extend([echo, room]);
    rows
}

/// A row of ours with two workers, against ours with one and the rivals.
fn row<'a>(
    plan: &'a Plan,
    what: &str,
    binary: &'static str,
    start: Start,
    load: Load,
    rivals: Vec<Contestant<'a>>,
) -> Row<'a> {
    let mut one = with(plan, "osier, one worker", 1, start, load).needs(&[binary]);
    one.goal = NO_DEARER;
    Row {
        name: format!("two workers: {what}"),
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        load: &[],
        ours: vec![with(plan, "osier", 2, start, load).needs(&[binary])],
        rivals: std::iter::once(one).chain(rivals).collect(),
    }
}

fn with<'a>(plan: &'a Plan, name: &'static str, workers: usize, start: Start, load: Load) -> Contestant<'a> {
    contestant(name, None, move || -> Result<Sample, String> {
        let plan = Plan {
            spread: true,
            ..plan.clone()
        };
        load(&plan, &start(&plan, workers)?).map(sample)
    })
}

impl Contestant<'_> {
    fn below(mut self) -> Self {
        self.goal = BELOW;
        self
    }
}

fn plain(plan: &Plan, server: &Server) -> Result<Served, String> {
    server.check("/", HELLO)?;
    load::requests(plan, server, Asked::path("/"))
}

fn pipelined(plan: &Plan, server: &Server) -> Result<Served, String> {
    server.check("/", HELLO)?;
    let asked = Asked {
        pipelined: true,
        ..Asked::path("/")
    };
    load::requests(plan, server, asked)
}

fn static_file(plan: &Plan, server: &Server) -> Result<Served, String> {
    let path = format!("/{FILE_BYTES}.bin");
    server.check(&path, &file(plan, FILE_BYTES)?)?;
    load::requests(plan, server, Asked::path(&path))
}

fn echoes(plan: &Plan, server: &Server) -> Result<Served, String> {
    load::echoes(plan, server, ECHOES, None)
}

fn deliveries(plan: &Plan, server: &Server) -> Result<Served, String> {
    let heard = load::room(plan, server, "/room", ROOM)?;
    Ok(Served {
        micros: heard.micros,
        per_second: heard.per_second,
        memory: heard.memory,
    })
}

fn on_port(plan: &Plan, binary: &str, more: &[&str], workers: usize) -> Result<Server, String> {
    Server::start(plan, &program(binary), |port| {
        let args = std::iter::once(port.to_string()).chain(more.iter().map(|text| text.to_string()));
        Ok(args.chain([workers.to_string()]).map(Into::into).collect())
    })
}

fn on_hello(plan: &Plan, workers: usize) -> Result<Server, String> {
    on_port(plan, "osier-hello", &[], workers)
}

fn on_tokio(plan: &Plan, workers: usize) -> Result<Server, String> {
    on_port(plan, "tokio-null", &[], workers)
}

fn on_echo(plan: &Plan, workers: usize) -> Result<Server, String> {
    on_port(plan, "osier-echo", &["fibers"], workers)
}

fn on_tokio_echo(plan: &Plan, workers: usize) -> Result<Server, String> {
    on_port(plan, "tokio-echo", &[], workers)
}

fn on_chat(plan: &Plan, workers: usize) -> Result<Server, String> {
    on_port(plan, "osier-chat", &[], workers)
}

fn on_files(plan: &Plan, workers: usize) -> Result<Server, String> {
    let site = site(plan);
    Server::start(plan, &osier(), |port| {
        let args = [
            "-l".into(),
            format!("127.0.0.1:{port}"),
            "-w".into(),
            workers.to_string(),
        ];
        Ok(std::iter::once(site.clone().into())
            .chain(args.map(Into::into))
            .collect())
    })
}

fn on_nginx(plan: &Plan, workers: usize) -> Result<Server, String> {
    let site = site(plan);
    Server::start(plan, Path::new("nginx"), |port| {
        let config = nginx::files(&plan.scratch, &site, port)?;
        nginx::args(plan, nginx::with_workers(config, workers)?)
    })
}

fn on_proxy(plan: &Plan, workers: usize) -> Result<Server, String> {
    let backend = backend(plan)?;
    let server = on_port(plan, "osier-proxy", &[&backend.port.to_string()], workers)?;
    Ok(server.beside(backend))
}

fn on_nginx_proxy(plan: &Plan, workers: usize) -> Result<Server, String> {
    let backend = backend(plan)?;
    let server = Server::start(plan, Path::new("nginx"), |port| {
        let config = nginx::proxy(&plan.scratch, port, backend.port)?;
        nginx::args(plan, nginx::with_workers(config, workers)?)
    })?;
    Ok(server.beside(backend))
}

/// The server behind a proxy, which is not measured.
fn backend(plan: &Plan) -> Result<Server, String> {
    let site = site(plan);
    Server::start_on(plan.cores.1, Path::new("nginx"), |port| {
        nginx::args(plan, nginx::files(&plan.scratch, &site, port)?)
    })
}
