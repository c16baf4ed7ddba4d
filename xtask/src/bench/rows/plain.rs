//! The rows about HTTP/1.1 in the clear, about echoes, and about memory.

use super::{BELOW, Contestant, HELLO, Row, Sample, contestant, figure, on_port, sample, site};
use crate::bench::Plan;
use crate::bench::load::{self, Asked};
use crate::bench::programs::{SERVER, osier, program};
use crate::bench::server::{self, Server};
use std::ffi::OsString;
use std::path::Path;
use std::rc::Rc;

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let files = [
        ("100 B", 100, Some(0.65)),
        ("16 KiB", 16 << 10, Some(0.9)),
        ("1 MiB", 1 << 20, BELOW),
    ];
    let single = Asked::path("/");
    let pipelined = Asked {
        pipelined: true,
        ..single
    };
    let of_browser = |asked| Asked {
        fields: load::OF_BROWSERS,
        ..asked
    };
    let mut rows = vec![
        hello(
            plan,
            "hello, keep-alive, 64 connections",
            single,
            [Some(1.04), Some(1.0)],
        ),
        hello(plan, "hello, pipelined 16", pipelined, [Some(1.12), Some(0.9)]),
        hello(plan, "hello, a browser's fields", of_browser(single), [None, BELOW]),
        hello(
            plan,
            "hello, pipelined 16, a browser's fields",
            of_browser(pipelined),
            [None, BELOW],
        ),
        short_lived(plan),
    ];
    rows.extend(files.map(|(size, bytes, goal)| file(plan, size, bytes, goal)));
    rows.extend([idle(plan), fibers(plan, 100_000), fibers(plan, 1_000_000), echo(plan)]);
    rows
}

/// The same short answer to every request. The goals are those against null and may_minihttp.
fn hello<'a>(plan: &'a Plan, name: &str, asked: Asked<'static>, [of_null, of_may]: [Option<f64>; 2]) -> Row<'a> {
    let under_load = move |server: Server| {
        server.check("/", HELLO)?;
        load::requests(plan, &server, asked).map(sample)
    };
    let on = |name, binary, goal| contestant(name, goal, move || under_load(on_port(plan, binary)?)).needs(&[binary]);
    let mut rivals = vec![
        on("null", "null", of_null),
        contestant("nginx", BELOW, move || under_load(nginx(plan)?)),
        on("hyper", "hyper", BELOW),
        on("may_minihttp", "may-http", of_may),
        on("tokio, no parser", "tokio-null", None),
        on("smol, no parser", "smol-null", None),
    ];
    if plan.all {
        rivals.extend(["axum", "actix", "ntex"].map(|name| on(name, name, BELOW)));
    }
    served_row(plan, name.into(), vec![on("osier", "osier-hello", None)], rivals)
}

/// A connection for each request, as clients do that send one request.
fn short_lived(plan: &Plan) -> Row<'_> {
    const CONNECTIONS: usize = 32;
    let under_load = move |server: Server| {
        server.check("/", HELLO)?;
        let asked = Asked {
            connections: CONNECTIONS,
            fields: &["Connection: close"],
            ..Asked::path("/")
        };
        load::requests(plan, &server, asked).map(sample)
    };
    let on = |name, binary, goal| contestant(name, goal, move || under_load(on_port(plan, binary)?)).needs(&[binary]);
    let ours = vec![on("osier", "osier-hello", None)];
    let rivals = vec![
        contestant("nginx", Some(0.9), move || under_load(nginx(plan)?)),
        contestant("nginx, deferred", Some(0.9), move || under_load(deferred_nginx(plan)?)),
        on("hyper", "hyper", BELOW),
    ];
    let name = format!("connection per request, {CONNECTIONS} at once");
    served_row(plan, name, ours, rivals)
}

/// A file of a folder, warm in the page cache. Osier sends a small one from its own memory; nginx has sendfile(2) on, and off in a second
/// entry, which saves two calls.
fn file<'a>(plan: &'a Plan, size: &str, bytes: usize, goal: Option<f64>) -> Row<'a> {
    let under_load = move |server: Server| {
        let path = format!("/{bytes}.bin");
        server.check(&path, &super::file(plan, bytes)?)?;
        load::requests(plan, &server, Asked::path(&path)).map(sample)
    };
    let under_load = Rc::new(under_load);
    let (with_ours, with_nginx, without_sendfile) = (under_load.clone(), under_load.clone(), under_load);
    let ours = vec![contestant("osier", None, move || with_ours(osier_on_files(plan)?)).needs(&[SERVER])];
    let mut rivals = vec![contestant("nginx", goal, move || with_nginx(nginx(plan)?))];
    if bytes <= 16 << 10 {
        rivals.push(contestant("nginx, sendfile off", goal, move || {
            without_sendfile(nginx_without_sendfile(plan)?)
        }));
    }
    served_row(plan, format!("file of {size}"), ours, rivals)
}

/// 64 bytes there and back, on many connections at once.
fn echo(plan: &Plan) -> Row<'_> {
    const CONNECTIONS: usize = 1000;
    let on = |name, binary: &'static str, args: &'static [&'static str], goal| {
        let run = move || {
            let server = Server::start(plan, &program(binary), |port| {
                let args = args.iter().map(OsString::from);
                Ok(std::iter::once(port.to_string().into()).chain(args).collect())
            })?;
            if binary == "monoio-echo" {
                // It takes io_uring where the system has it.
                let driver = if server.has_ring() { "io_uring" } else { "epoll" };
                println!("    monoio runs on {driver}");
            }
            load::echoes(plan, &server, CONNECTIONS, None).map(sample)
        };
        contestant(name, goal, run).needs(&[binary])
    };
    Row {
        name: format!("echo of 64 B, {CONNECTIONS} connections"),
        unit: "µs CPU/round trip",
        rounds: plan.rounds,
        bound: None,
        load: &["load-echo"],
        ours: vec![
            on("fibers", "osier-echo", &[], None),
            on("futures", "osier-echo", &["futures"], None),
        ],
        rivals: vec![
            on("tokio", "tokio-echo", &[], BELOW),
            on("smol", "smol-echo", &[], BELOW),
            on("may", "may-echo", &[], BELOW),
            on("monoio", "monoio-echo", &[], BELOW),
        ],
    }
}

/// Memory that a connection costs while it waits for its next request.
fn idle(plan: &Plan) -> Row<'_> {
    const CONNECTIONS: usize = 10_000;
    let held = move |server: Server| {
        server.check("/", HELLO)?;
        let figure = load::idle_connections(plan, &server, "/", CONNECTIONS)?;
        Ok(Sample::from(figure))
    };
    let on = |name, binary, goal| contestant(name, goal, move || held(on_port(plan, binary)?)).needs(&[binary]);
    let rivals = vec![
        contestant("nginx", BELOW, move || held(nginx(plan)?)),
        on("hyper", "hyper", BELOW),
        on("may_minihttp", "may-http", BELOW),
    ];
    Row {
        name: format!("idle connection, of {CONNECTIONS}"),
        unit: "private bytes",
        rounds: plan.rounds.min(3),
        bound: Some(400.0),
        load: &["hold"],
        ours: vec![on("osier", "osier-hello", None)],
        rivals,
    }
}

/// Resident memory and page tables that a suspended fiber costs.
fn fibers(plan: &Plan, count: usize) -> Row<'_> {
    // corosensei's own stacks are two mappings each, and Linux allows 65,530.
    const MOST_MAPPED_ALONE: usize = 20_000;
    let run = |name, binary, count: usize| {
        contestant(name, None, move || figure(plan, binary, "fiber", &[count.to_string()])).needs(&[binary])
    };
    Row {
        name: format!("suspended fiber, of {count}"),
        unit: "bytes",
        rounds: plan.rounds.min(2),
        bound: Some(4700.0),
        load: &[],
        ours: vec![run("osier", "osier-fibers", count)],
        rivals: vec![run(
            "corosensei, 20,000",
            "corosensei-fibers",
            count.min(MOST_MAPPED_ALONE),
        )],
    }
}

/// A row of what a request costs under the load of wrk.
fn served_row<'a>(plan: &'a Plan, name: String, ours: Vec<Contestant<'a>>, rivals: Vec<Contestant<'a>>) -> Row<'a> {
    Row {
        name,
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        load: &[],
        ours,
        rivals,
    }
}

fn osier_on_files(plan: &Plan) -> Result<Server, String> {
    let site = site(plan);
    Server::start(plan, &osier(), |port| {
        Ok(vec![
            site.clone().into(),
            "-l".into(),
            format!("127.0.0.1:{port}").into(),
            "-w".into(),
            "1".into(),
        ])
    })
}

fn nginx(plan: &Plan) -> Result<Server, String> {
    let site = site(plan);
    Server::start(plan, Path::new("nginx"), |port| {
        server::nginx::args(plan, server::nginx::files(&plan.scratch, &site, port)?)
    })
}

fn nginx_without_sendfile(plan: &Plan) -> Result<Server, String> {
    let site = site(plan);
    Server::start(plan, Path::new("nginx"), |port| {
        let config = server::nginx::files(&plan.scratch, &site, port)?;
        server::nginx::args(plan, server::nginx::without_sendfile(config)?)
    })
}

fn deferred_nginx(plan: &Plan) -> Result<Server, String> {
    let site = site(plan);
    Server::start(plan, Path::new("nginx"), |port| {
        let config = server::nginx::files(&plan.scratch, &site, port)?;
        server::nginx::args(plan, server::nginx::deferred(config, port)?)
    })
}
