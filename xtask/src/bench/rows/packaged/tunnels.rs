//! The row about WebSockets through the proxy: echoes as in `sockets.rs`, with a proxy before the echo server, which is not measured.

use std::path::Path;

use super::{osier, proxy, row};
use crate::bench::Plan;
use crate::bench::load;
use crate::bench::programs::program;
use crate::bench::rows::{BELOW, Row, contestant, sample};
use crate::bench::server::{Server, nginx};

/// The load, and the server that echoes.
const LOAD: &[&str] = &["load-echo", BACKEND];
const BACKEND: &str = "osier-ws-echo";

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    vec![echoes(plan, 1000)]
}

fn echoes(plan: &Plan, connections: usize) -> Row<'_> {
    let under_load = move |start: &dyn Fn(u16) -> Result<Server, String>| {
        let backend = Server::start_on(plan.cores.1, &program(BACKEND), |port| {
            Ok(vec![port.to_string().into()])
        })?;
        let server = start(backend.port)?;
        load::echoes(plan, &server, connections, Some("/dormant")).map(sample)
    };
    let ours = move |binary| under_load(&|port| osier(plan, binary, &format!("proxy = \"127.0.0.1:{port}\"")));
    let of_nginx = move |backend| {
        Server::start(plan, Path::new("nginx"), |port| {
            nginx::args(plan, nginx::tunnel(&plan.scratch, port, backend)?)
        })
    };
    let rivals = vec![
        contestant("nginx", BELOW, move || under_load(&of_nginx)),
        contestant("HAProxy", BELOW, move || {
            under_load(&|port| proxy::behind_haproxy(plan, port))
        }),
    ];
    let name = format!("WebSocket echo of 64 B through the proxy, {connections} connections");
    Row {
        unit: "µs CPU/round trip",
        load: LOAD,
        ..row(plan, &name, ours, rivals)
    }
}
