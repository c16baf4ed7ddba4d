//! The rows about load at a fixed rate, a fraction of what each server can do: how late a response is, and what it costs where the server sleeps
//! between two requests. Other rows keep the server busy.

use super::{of_files, osier, row};
use crate::bench::Plan;
use crate::bench::load::steady::{self, Steady};
use crate::bench::rows::proxy::{behind_haproxy, behind_nginx};
use crate::bench::rows::{BELOW, HELLO, Row, Sample, contestant, file, site};
use crate::bench::server::{Server, nginx};
use std::ffi::OsString;
use std::path::Path;

/// The figure of a run that a row shows.
#[derive(Clone, Copy)]
struct Figure {
    name: &'static str,
    unit: &'static str,
    of: fn(Steady) -> Sample,
}

const FIGURES: [Figure; 2] = [
    Figure {
        name: "99 of 100 responses",
        unit: "µs",
        of: |run| run.p99.into(),
    },
    Figure {
        name: "CPU time",
        unit: "µs CPU/request",
        of: |run| run.micros.into(),
    },
];

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let of_a_figure = |figure| [files(plan, 10_000, figure), proxied(plan, 5_000, figure)];
    FIGURES.into_iter().flat_map(of_a_figure).collect()
}

fn files(plan: &Plan, per_second: usize, figure: Figure) -> Row<'_> {
    const BYTES: usize = 100;
    let under_load = move |server: Server| {
        let path = format!("/{BYTES}.bin");
        server.check(&path, &file(plan, BYTES)?)?;
        steady::requests(plan, &server, &path, per_second).map(figure.of)
    };
    let ours = move |binary| {
        let route = format!("files = {:?}", site(plan).display().to_string());
        under_load(osier(plan, binary, &route)?)
    };
    let rivals = vec![contestant("nginx", BELOW, move || under_load(of_files(plan)?))];
    Row {
        unit: figure.unit,
        ..row(plan, &named("file of 100 B", per_second, figure), ours, rivals)
    }
}

fn proxied(plan: &Plan, per_second: usize, figure: Figure) -> Row<'_> {
    let under_load = move |start: &dyn Fn(u16) -> Result<Server, String>| {
        let backend = backend_first(plan)?;
        let server = start(backend.port)?;
        server.check("/", HELLO)?;
        steady::requests(plan, &server, "/", per_second).map(figure.of)
    };
    let ours = move |binary| under_load(&|port| osier(plan, binary, &format!("proxy = \"127.0.0.1:{port}\"")));
    let rivals = vec![
        contestant("nginx", BELOW, move || under_load(&|port| behind_nginx(plan, port))),
        contestant("HAProxy", BELOW, move || under_load(&|port| behind_haproxy(plan, port))),
    ];
    Row {
        unit: figure.unit,
        ..row(plan, &named("proxied hello", per_second, figure), ours, rivals)
    }
}

/// The backend of the other rows, before everything else on its core, as if it had one of its own. Otherwise it waits for the load there, for a slice of the scheduler
/// (3 ms) where 99 of 100 responses take a fifth of that, and which of the two goes first depends on the proxy's timing.
fn backend_first(plan: &Plan) -> Result<Server, String> {
    let site = site(plan);
    Server::start_on(plan.cores.1, Path::new("chrt"), |port| {
        let mut args: Vec<OsString> = ["--rr", "1", "nginx"].map(OsString::from).into();
        args.extend(nginx::args(plan, nginx::files(&plan.scratch, &site, port)?)?);
        Ok(args)
    })
}

fn named(what: &str, per_second: usize, figure: Figure) -> String {
    format!("{what}, {per_second} a second: {}", figure.name)
}
