//! The rows about the reverse proxy: Osier, nginx and HAProxy in front of the same backend, which is an nginx with files.
//!
//! The backend runs on the core of the load and is not measured. Each proxy keeps up to 64 connections to it, and tells it the client's
//! address, protocol and host. Large files have nginx with buffers of 64 KiB and HAProxy with splice(2), too. `null` makes the system calls of a proxied hello and does nothing else: no proxy costs less.

use std::rc::Rc;

use super::{BELOW, HELLO, Row, contestant, sample, site};
use crate::bench::Plan;
use crate::bench::load::{self, Asked};
use crate::bench::programs::program;
use crate::bench::server::{Server, haproxy, nginx};
use std::path::Path;

/// The goals for small responses.
pub(super) const OF_NGINX: Option<f64> = Some(0.85);
pub(super) const OF_HAPROXY: Option<f64> = Some(0.95);

/// Both sizes, and the small one with a longer request.
pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let large: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
    vec![
        row(plan, "proxied hello", "/", HELLO.to_vec(), &[]),
        row(
            plan,
            "proxied hello, a browser's fields",
            "/",
            HELLO.to_vec(),
            load::OF_BROWSERS,
        ),
        row(plan, "proxied file of 1 MiB", "/1048576.bin", large, &[]),
    ]
}

fn row<'a>(plan: &'a Plan, name: &str, path: &'static str, body: Vec<u8>, fields: &'static [&'static str]) -> Row<'a> {
    let body = Rc::new(body);
    let under_load = move |body: Rc<Vec<u8>>, start: fn(&Plan, u16) -> Result<Server, String>| {
        let backend = backend(plan)?;
        if path != "/" {
            let file = site(plan).join(&path[1..]);
            std::fs::write(&file, &*body).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        let proxy = start(plan, backend.port)?;
        proxy.check(path, &body)?;
        let asked = Asked {
            fields,
            ..Asked::path(path)
        };
        load::requests(plan, &proxy, asked).map(sample)
    };
    let (of_ours, of_nginx, of_haproxy, of_null) = (body.clone(), body.clone(), body.clone(), body);
    let is_small = path == "/";
    let mut rivals = vec![
        contestant("nginx", if is_small { OF_NGINX } else { BELOW }, move || {
            under_load(of_nginx.clone(), behind_nginx)
        }),
        contestant("HAProxy", OF_HAPROXY, move || {
            under_load(of_haproxy.clone(), behind_haproxy)
        }),
    ];
    if is_small {
        // It knows small responses only.
        let null = contestant("null", None, move || under_load(of_null.clone(), null));
        rivals.push(null.needs(&["null-gateway"]));
    } else {
        // As a user sets them who has large files: their own settings make many calls of 4 and of 16 KiB.
        let large = of_null.clone();
        rivals.push(contestant("nginx, buffers of 64 KiB", BELOW, move || {
            under_load(large.clone(), behind_nginx_with_large_buffers)
        }));
        rivals.push(contestant("HAProxy, splice", BELOW, move || {
            under_load(of_null.clone(), behind_splicing_haproxy)
        }));
    }
    Row {
        name: name.into(),
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        load: &[],
        ours: vec![contestant("osier", None, move || under_load(of_ours.clone(), osier)).needs(&["osier-proxy"])],
        rivals,
    }
}

pub(super) fn backend(plan: &Plan) -> Result<Server, String> {
    let site = site(plan);
    Server::start_on(plan.cores.1, Path::new("nginx"), |port| {
        nginx::args(plan, nginx::files(&plan.scratch, &site, port)?)
    })
}

fn osier(plan: &Plan, backend: u16) -> Result<Server, String> {
    Server::start(plan, &program("osier-proxy"), |port| {
        Ok(vec![port.to_string().into(), backend.to_string().into()])
    })
}

fn null(plan: &Plan, backend: u16) -> Result<Server, String> {
    Server::start(plan, &program("null-gateway"), |port| {
        Ok(vec![port.to_string().into(), "http".into(), backend.to_string().into()])
    })
}

pub(super) fn behind_nginx(plan: &Plan, backend: u16) -> Result<Server, String> {
    Server::start(plan, Path::new("nginx"), |port| {
        nginx::args(plan, nginx::proxy(&plan.scratch, port, backend)?)
    })
}

fn behind_nginx_with_large_buffers(plan: &Plan, backend: u16) -> Result<Server, String> {
    Server::start(plan, Path::new("nginx"), |port| {
        let config = nginx::proxy(&plan.scratch, port, backend)?;
        nginx::args(plan, nginx::with(config, nginx::LARGE_BUFFERS)?)
    })
}

fn behind_splicing_haproxy(plan: &Plan, backend: u16) -> Result<Server, String> {
    Server::start(plan, Path::new("haproxy"), |port| {
        haproxy::splicing(&plan.scratch, port, backend, haproxy::Splice::Responses)
    })
}

pub(super) fn behind_haproxy(plan: &Plan, backend: u16) -> Result<Server, String> {
    Server::start(plan, Path::new("haproxy"), |port| {
        haproxy::proxy(&plan.scratch, port, backend)
    })
}
