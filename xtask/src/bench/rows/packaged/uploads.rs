//! The rows about request bodies through the proxy: 1 MiB, received in full before the backend is asked, or passed on as it comes.
//!
//! Osier and nginx receive it in full unless they are told otherwise, and both put most of it into a file. HAProxy passes it on.

use std::path::Path;

use super::{osier, proxy, row};
use crate::bench::Plan;
use crate::bench::load::{self, Asked};
use crate::bench::rows::{BELOW, Contestant, HELLO, Row, contestant, sample};
use crate::bench::server::{Server, haproxy, nginx};

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    vec![upload(plan, true), upload(plan, false)]
}

fn upload(plan: &Plan, is_whole: bool) -> Row<'_> {
    let under_load = move |start: &dyn Fn(u16) -> Result<Server, String>| {
        let backend = Server::start_on(plan.cores.1, Path::new("nginx"), |port| {
            nginx::args(plan, nginx::sink(&plan.scratch, port)?)
        })?;
        let server = start(backend.port)?;
        server.check("/", HELLO)?;
        let asked = Asked {
            connections: 16,
            script: Some(Path::new("bench/upload.lua")),
            ..Asked::path("/")
        };
        load::requests(plan, &server, asked).map(sample)
    };
    let ours = move |binary| {
        under_load(&|port| {
            let route = format!("proxy = {{ to = \"127.0.0.1:{port}\", buffer = {is_whole} }}");
            osier(plan, binary, &route)
        })
    };
    let of_nginx = move |backend, directives: &str| {
        Server::start(plan, Path::new("nginx"), |port| {
            let config = nginx::proxy(&plan.scratch, port, backend)?;
            let passing = if is_whole { "" } else { nginx::UNBUFFERED };
            nginx::args(plan, nginx::with(config, &format!("{passing} {directives}"))?)
        })
    };
    let nginx = |name, directives| contestant(name, BELOW, move || under_load(&|port| of_nginx(port, directives)));
    let mut rivals: Vec<Contestant> = vec![
        nginx("nginx", ""),
        nginx("nginx, client_body_buffer_size 128k", nginx::LARGE_UPLOADS),
    ];
    if !is_whole {
        rivals.push(contestant("HAProxy, splice", BELOW, move || {
            under_load(&|backend| {
                Server::start(plan, Path::new("haproxy"), |port| {
                    haproxy::splicing(&plan.scratch, port, backend, haproxy::Splice::Requests)
                })
            })
        }));
        rivals.push(contestant("HAProxy", BELOW, move || {
            under_load(&|port| proxy::behind_haproxy(plan, port))
        }));
    }
    let name = match is_whole {
        true => "upload of 1 MiB through the proxy, received first",
        false => "upload of 1 MiB through the proxy, as it comes",
    };
    row(plan, name, ours, rivals)
}
