//! The rows about fairness: how long a short response takes while the same worker sends large ones, as they are or compressed.
//!
//! Both servers have one worker. The text to compress comes from the same backend, which runs on the core of the load and is not
//! measured, and is compressed anew for each download. As it is, the text is a file in the page cache. The last column has what the downloads
//! receive meanwhile, as it is on the way: a server that sends less disturbs less.

use super::{BELOW, HELLO, Row, Sample, cold, contestant, site};
use crate::bench::programs::{SERVER, osier};
use crate::bench::server::{Server, nginx};
use crate::bench::{Plan, load};
use std::path::{Path, PathBuf};

/// Clients that download the large text.
const DOWNLOADS: usize = 8;

/// The path of the large text. Rows of codings have a short one of another name in the same folder.
const LARGE: &str = "/large.txt";

/// The length of the large text, in bytes.
const TEXT_BYTES: usize = 29 << 20;

/// The goal for the slowest of 100 short responses, in milliseconds.
const BOUND: f64 = 25.0;

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let measured = |server: Server, short, coding| {
        server.check(short, HELLO)?;
        match coding {
            "identity" => server.check(LARGE, &text())?,
            _ => drop(server.length_by(LARGE, coding)?),
        }
        let beside = load::beside_downloads(plan, &server, short, (LARGE, coding, DOWNLOADS))?;
        Ok(Sample {
            downloaded: Some(beside.downloaded),
            ..beside.p99.into()
        })
    };
    let compressed = |coding, start: fn(&Plan, u16) -> Result<Server, String>| {
        move || {
            let backend = backend(plan)?;
            backend.check(LARGE, &text())?;
            measured(start(plan, backend.port)?, "/", coding)
        }
    };
    let as_it_is = |start: fn(&Plan) -> Result<Server, String>| {
        move || {
            text_file(plan)?;
            measured(start(plan)?, "/hello", "identity")
        }
    };
    let row = |what: &str, ours, rivals| Row {
        name: format!(
            "p99 of hello beside {DOWNLOADS} downloads of {} MiB{what}",
            TEXT_BYTES >> 20
        ),
        unit: "ms",
        rounds: plan.rounds.min(3),
        bound: Some(BOUND),
        load: &[],
        ours,
        rivals,
    };
    vec![
        row(
            "",
            vec![
                contestant("brotli", None, compressed("br", ours)).needs(&[SERVER]),
                contestant("gzip", None, compressed("gzip", ours)).needs(&[SERVER]),
            ],
            vec![contestant("nginx, gzip", None, compressed("gzip", behind_nginx))],
        ),
        row(
            ", a file in memory",
            vec![contestant("osier", None, as_it_is(cold::ours)).needs(&[SERVER])],
            vec![contestant("nginx", BELOW, as_it_is(|plan| cold::on_nginx(plan, "")))],
        ),
    ]
}

/// Writes the large text into the site, unless it is there.
fn text_file(plan: &Plan) -> Result<(), String> {
    let file = site(plan).join(&LARGE[1..]);
    if !file.exists() {
        std::fs::write(&file, text()).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}

fn backend(plan: &Plan) -> Result<Server, String> {
    text_file(plan)?;
    let site = site(plan);
    Server::start_on(plan.cores.1, Path::new("nginx"), |port| {
        nginx::args(plan, nginx::files(&plan.scratch, &site, port)?)
    })
}

/// Words in an order that repeats after billions: a compressor has work to do.
fn text() -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "fiber ",
        "socket ",
        "the ",
        "of ",
        "response ",
        "request ",
        "header ",
        "waits ",
        "and ",
        "then ",
        "is ",
        "sent, ",
        "worker ",
        "client ",
        "buffer ",
        "again.\n",
    ];
    let (mut text, mut seed) = (Vec::with_capacity(TEXT_BYTES + 16), 1_u64);
    while text.len() < TEXT_BYTES {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        text.extend_from_slice(WORDS[(seed >> 60) as usize].as_bytes());
    }
    text
}

fn ours(plan: &Plan, backend: u16) -> Result<Server, String> {
    Server::start(plan, &osier(), |port| {
        let config = format!(
            "workers = 1\n[[listen]]\naddress = \"127.0.0.1:{port}\"\n[[site]]\ndefault = true\nlog = false\n\
             compress = {{ codings = [\"br\", \"gzip\"] }}\n\
             [[site.route]]\npath = \"{LARGE}\"\nproxy = \"127.0.0.1:{backend}\"\n\
             [[site.route]]\nrespond = \"Hello, World!\"\n"
        );
        Ok(vec![written(plan, &format!("downloads-{port}.toml"), &config)?.into()])
    })
}

fn behind_nginx(plan: &Plan, backend: u16) -> Result<Server, String> {
    Server::start(plan, Path::new("nginx"), |port| {
        let config = nginx::gzip(&plan.scratch, port, backend)?;
        nginx::args(plan, config)
    })
}

fn written(plan: &Plan, name: &str, text: &str) -> Result<PathBuf, String> {
    let path = plan.scratch.join(name);
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
