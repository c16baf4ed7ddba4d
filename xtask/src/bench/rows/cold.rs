//! The rows about files that are not in memory: a short response while many clients read such files.
//!
//! Each server has one worker. The readers drop their files from the page cache before they ask for them (`bench/load-cold`).

use super::{Row, Sample, contestant, site};
use crate::bench::programs::{SERVER, osier, program};
use crate::bench::server::{Server, nginx};
use crate::bench::{Plan, load};
use std::path::Path;

const READERS: usize = 64;

/// The length of each file, in mebibytes.
const FILE_MIB: usize = 16;

/// The goal for the median of the short response: as a multiple of what it is without the readers.
const BOUND: f64 = 1.2;

type Start = fn(&Plan) -> Result<Server, String>;

/// The figure of a row, made of what the load has printed.
type Figure = fn(&dyn Fn(&str) -> Result<f64, String>) -> Result<f64, String>;

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    vec![
        row(plan, "median of hello, beside / alone", "times", Some(BOUND), |of| {
            Ok(of("beside_median_us")? / of("alone_median_us")?)
        }),
        row(plan, "p99 of hello", "µs", None, |of| of("beside_p99_us")),
        row(plan, "time to read", "ms/GB", None, |of| Ok(1e6 / of("read_mb_s")?)),
    ]
}

fn row<'a>(plan: &'a Plan, what: &str, unit: &'static str, bound: Option<f64>, figure: Figure) -> Row<'a> {
    let run = move |name, start: Start| contestant(name, None, move || measured(plan, start, figure));
    Row {
        name: format!("{what}: {READERS} readers of cold files of {FILE_MIB} MiB"),
        unit,
        rounds: plan.rounds.min(3),
        bound,
        load: &["load-cold"],
        ours: vec![run("osier", ours).needs(&[SERVER])],
        rivals: vec![
            run("nginx", |plan| on_nginx(plan, "")),
            run("nginx, aio threads", |plan| on_nginx(plan, "aio threads;")),
        ],
    }
}

fn measured(plan: &Plan, start: Start, figure: Figure) -> Result<Sample, String> {
    let server = start(plan)?;
    server.check("/hello", super::HELLO)?;
    let numbers = [
        usize::from(server.port),
        READERS,
        FILE_MIB,
        plan.load.as_millis() as usize,
    ];
    let [port, numbers @ ..] = numbers.map(|number| number.to_string());
    // Real-time priority for the quiet client, and for no thread that it starts. Otherwise it waits for the readers of its own core.
    let run = ["-R", "-f", "10"].map(str::to_string).to_vec();
    let args = vec![
        program("load-cold").display().to_string(),
        port,
        site(plan).display().to_string(),
    ];
    let args = [run, args, numbers.to_vec()].concat();
    let printed = load::figures(&[plan.cores.1], Path::new("chrt"), &args)?;
    let figure = figure(&|name| {
        let found = printed.iter().find(|(known, _)| known == name);
        Ok(found.ok_or_else(|| format!("load-cold: printed no {name}"))?.1)
    });
    figure.map(Sample::from)
}

/// Osier with a short response and the files of the site.
pub fn ours(plan: &Plan) -> Result<Server, String> {
    Server::start(plan, &osier(), |port| {
        let config = format!(
            "workers = 1\n[[listen]]\naddress = \"127.0.0.1:{port}\"\n[[site]]\ndefault = true\nlog = false\n\
             [[site.route]]\npath = \"/hello\"\nrespond = \"Hello, World!\"\n\
             [[site.route]]\nfiles = \"{}\"\n",
            site(plan).display()
        );
        let path = plan.scratch.join(format!("cold-{port}.toml"));
        std::fs::write(&path, config).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(vec![path.into()])
    })
}

/// The same with nginx.
pub fn on_nginx(plan: &Plan, setting: &str) -> Result<Server, String> {
    let site = site(plan);
    Server::start(plan, Path::new("nginx"), |port| {
        let server = format!(
            r#"server {{
        listen 127.0.0.1:{port}; root {}; {setting}
        location = /hello {{ return 200 "Hello, World!"; }}
    }}"#,
            site.display()
        );
        nginx::args(plan, nginx::write(&plan.scratch, port, &server)?)
    })
}
