//! The rows about compression on the fly: a text of 32 KiB from a backend, compressed anew for each request.
//!
//! The backend runs on the core of the load and is not measured. Each server keeps its connections to it. Each server has the level that it has by default: the table shows
//! how long the compressed text is.

use super::{Contestant, Row, contestant, sample, site};
use crate::bench::Plan;
use crate::bench::load::{self, Asked};
use crate::bench::programs::{SERVER, osier};
use crate::bench::server::{Server, nginx};
use std::path::{Path, PathBuf};

/// Level with the rivals.
const GOAL: Option<f64> = Some(1.0);

/// Real text, of this repository.
const TEXT: &str = "docs/configuration.md";

const TEXT_BYTES: usize = 32 << 10;

type Start = fn(&Plan, u16, &str) -> Result<Server, String>;

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let row = |coding, rivals| Row {
        name: format!("{coding} of 32 KiB on the fly"),
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        load: &[],
        ours: vec![served(plan, "osier", coding, None, ours).needs(&[SERVER])],
        rivals,
    };
    let caddy = |coding| served(plan, "Caddy", coding, GOAL, caddy);
    let nginx = || served(plan, "nginx, gzip", "gzip", GOAL, behind_nginx);
    vec![
        row("gzip", vec![nginx(), caddy("gzip")]),
        row("zstd", vec![nginx(), caddy("zstd")]),
        // Caddy has no brotli. nginx has it by a module of Debian.
        row(
            "br",
            vec![served(plan, "nginx, brotli", "br", GOAL, nginx_with_brotli), nginx()],
        ),
    ]
}

fn served<'a>(
    plan: &'a Plan,
    name: &'static str,
    coding: &'static str,
    goal: Option<f64>,
    start: Start,
) -> Contestant<'a> {
    contestant(name, goal, move || {
        let backend = backend(plan)?;
        let server = start(plan, backend.port, coding)?;
        let length = server.length_by("/text.txt", coding)?;
        println!("    {length} bytes");
        let field = format!("Accept-Encoding: {coding}");
        let asked = Asked {
            fields: &[&field],
            ..Asked::path("/text.txt")
        };
        let mut sample = load::requests(plan, &server, asked).map(sample)?;
        sample.bytes = Some(length);
        Ok(sample)
    })
}

fn backend(plan: &Plan) -> Result<Server, String> {
    let site = site(plan);
    let mut text = std::fs::read(TEXT).map_err(|error| format!("{TEXT}: {error}"))?;
    text.truncate(TEXT_BYTES);
    written(&site.join("text.txt"), &text)?;
    Server::start_on(plan.cores.1, Path::new("nginx"), |port| {
        nginx::args(plan, nginx::files(&plan.scratch, &site, port)?)
    })
}

fn ours(plan: &Plan, backend: u16, coding: &str) -> Result<Server, String> {
    Server::start(plan, &osier(), |port| {
        let config = format!(
            "workers = 1\n[[listen]]\naddress = \"127.0.0.1:{port}\"\n[[site]]\ndefault = true\nlog = false\n\
             compress = {{ codings = [\"{coding}\"] }}\n[[site.route]]\nproxy = \"127.0.0.1:{backend}\"\n"
        );
        let path = plan.scratch.join(format!("codings-{port}.toml"));
        Ok(vec![written(&path, config.as_bytes())?.into()])
    })
}

fn behind_nginx(plan: &Plan, backend: u16, _: &str) -> Result<Server, String> {
    Server::start(plan, Path::new("nginx"), |port| {
        nginx::args(plan, nginx::gzip(&plan.scratch, port, backend)?)
    })
}

fn nginx_with_brotli(plan: &Plan, backend: u16, _: &str) -> Result<Server, String> {
    Server::start(plan, Path::new("nginx"), |port| {
        nginx::args(plan, nginx::brotli(&plan.scratch, port, backend)?)
    })
}

fn caddy(plan: &Plan, backend: u16, coding: &str) -> Result<Server, String> {
    Server::start(plan, Path::new("caddy"), |port| {
        let config = format!(
            "{{\n admin off\n auto_https off\n}}\n\
             http://127.0.0.1:{port} {{\n encode {coding}\n reverse_proxy 127.0.0.1:{backend}\n}}\n"
        );
        let path = plan.scratch.join(format!("Caddyfile-{port}"));
        written(&path, config.as_bytes())?;
        Ok(["run", "--adapter", "caddyfile", "--config"]
            .into_iter()
            .map(Into::into)
            .chain([path.into()])
            .collect())
    })
}

fn written(path: &Path, bytes: &[u8]) -> Result<PathBuf, String> {
    std::fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path.to_path_buf())
}
