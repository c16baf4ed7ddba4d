//! The rows over TLS: files over HTTP/2, and a proxied hello. The library and its rivals have rows of their own in `tls.rs` and `http2.rs`.

use std::path::Path;

use super::{osier_with, proxy, row};
use crate::bench::Plan;
use crate::bench::load::h2::{self, Streams};
use crate::bench::load::{self, Asked};
use crate::bench::rows::proxy::{OF_HAPROXY, OF_NGINX};
use crate::bench::rows::secure::{self, Key};
use crate::bench::rows::{BELOW, HELLO, Row, contestant, file, sample, site};
use crate::bench::server::{Server, haproxy, nginx, suites};

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    vec![streamed(plan, 8), proxied(plan)]
}

/// A file on so many streams of each connection.
fn streamed(plan: &Plan, streams: usize) -> Row<'_> {
    const BYTES: usize = 100;
    let under_load = move |start: &dyn Fn() -> Result<Server, String>| {
        let (path, body) = (format!("/{BYTES}.bin"), file(plan, BYTES)?);
        let server = start()?;
        server.check_by("https", &body, &path)?;
        let asked = Streams {
            connections: h2::CONNECTIONS,
            streams,
            tls: true,
            options: &[],
            path: &path,
        };
        h2::at_once(plan, &server, &[asked]).map(sample)
    };
    let ours = move |binary| {
        let route = format!("files = {:?}", site(plan).display().to_string());
        under_load(&|| over_tls(plan, binary, &route))
    };
    let rival =
        |name, start: secure::Start| contestant(name, BELOW, move || under_load(&|| start(plan, Some(Key::P256))));
    let rivals = vec![rival("nginx", secure::nginx), rival("h2o", secure::h2o)];
    let name = format!(
        "file of 100 B, HTTP/2 over TLS, {} x {streams} streams",
        h2::CONNECTIONS
    );
    row(plan, &name, ours, rivals)
}

fn proxied(plan: &Plan) -> Row<'_> {
    let under_load = move |start: &dyn Fn(u16) -> Result<Server, String>| {
        let backend = proxy::backend(plan)?;
        let server = start(backend.port)?;
        server.check_by("https", HELLO, "/")?;
        let asked = Asked {
            tls: true,
            ..Asked::path("/")
        };
        load::requests(plan, &server, asked).map(sample)
    };
    let ours = move |binary| under_load(&|port| over_tls(plan, binary, &format!("proxy = \"127.0.0.1:{port}\"")));
    let of_nginx = move |backend| {
        let (cert, key) = secure::certificate_files(plan)?;
        Server::start(plan, Path::new("nginx"), |port| {
            let config = nginx::proxy(&plan.scratch, port, backend)?;
            nginx::args(plan, nginx::over_tls(config, port, &cert, &key)?)
        })
    };
    let of_haproxy = move |backend| {
        let (cert, key) = secure::certificate_files(plan)?;
        Server::start(plan, Path::new(suites::PROGRAM), |port| {
            haproxy::over_tls(&plan.scratch, port, backend, &cert, &key)
        })
    };
    let rivals = vec![
        contestant("nginx", OF_NGINX, move || under_load(&of_nginx)),
        contestant("HAProxy", OF_HAPROXY, move || under_load(&of_haproxy)),
    ];
    row(plan, "proxied hello over TLS", ours, rivals)
}

/// One of the two servers of ours with one route and a certificate.
fn over_tls(plan: &Plan, binary: &str, route: &str) -> Result<Server, String> {
    let (cert, key) = secure::certificate_files(plan)?;
    let site = format!("tls = {{ cert = {cert:?}, key = {key:?} }}");
    osier_with(plan, binary, "tls = true", &site, route)
}
