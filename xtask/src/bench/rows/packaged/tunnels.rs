//! The rows about WebSockets, event streams and long polls through the proxy: the load of `sockets.rs`, with a proxy before the echo server, which is not measured.

use std::path::Path;

use super::{osier, row};
use crate::bench::Plan;
use crate::bench::load;
use crate::bench::programs::program;
use crate::bench::rows::{BELOW, Row, Sample, contestant, sample};
use crate::bench::server::{Server, haproxy, nginx};

/// The load, and the server that echoes.
const LOAD: &[&str] = &["load-echo", "hold", BACKEND];
const BACKEND: &str = "osier-ws-echo";

/// The path at which it echoes without a stack.
const PATH: &str = "/dormant";

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    vec![
        echoes(plan, 1000),
        idle(plan, 4000),
        idle_events(plan, 2000),
        idle_polls(plan, 2000),
    ]
}

fn echoes(plan: &Plan, connections: usize) -> Row<'_> {
    let name = format!("WebSocket echo of 64 B through the proxy, {connections} connections");
    let load = move |server: &Server| load::echoes(plan, server, connections, Some(PATH)).map(sample);
    Row {
        unit: "µs CPU/round trip",
        ..proxied(plan, &name, load)
    }
}

/// Memory that a WebSocket costs while nobody sends.
fn idle(plan: &Plan, connections: usize) -> Row<'_> {
    let name = format!("idle WebSocket through the proxy, of {connections}");
    let load = move |server: &Server| load::idle_sockets(plan, server, PATH, connections).map(Sample::from);
    Row {
        unit: "private bytes",
        rounds: plan.rounds.min(3),
        ..proxied(plan, &name, load)
    }
}

/// Memory that a stream of events costs while there is none.
fn idle_events(plan: &Plan, connections: usize) -> Row<'_> {
    let name = format!("idle event stream through the proxy, of {connections}");
    let load = move |server: &Server| load::idle_connections(plan, server, "/events", connections).map(Sample::from);
    Row {
        unit: "private bytes",
        rounds: plan.rounds.min(3),
        ..proxied(plan, &name, load)
    }
}

/// Memory that a request costs while its response does not begin.
fn idle_polls(plan: &Plan, connections: usize) -> Row<'_> {
    let name = format!("long poll through the proxy, of {connections}");
    let load = move |server: &Server| load::silent_connections(plan, server, "/poll", connections).map(Sample::from);
    Row {
        unit: "private bytes",
        rounds: plan.rounds.min(3),
        ..proxied(plan, &name, load)
    }
}

/// A row about proxies before the echo server.
fn proxied<'a>(plan: &'a Plan, name: &str, load: impl Fn(&Server) -> Result<Sample, String> + Copy + 'a) -> Row<'a> {
    let under_load = move |start: &dyn Fn(u16) -> Result<Server, String>| {
        let backend = Server::start_on(plan.cores.1, &program(BACKEND), |port| {
            Ok(vec![port.to_string().into()])
        })?;
        load(&start(backend.port)?)
    };
    let ours = move |binary| under_load(&|port| osier(plan, binary, &format!("proxy = \"127.0.0.1:{port}\"")));
    let of_nginx = move |backend| {
        Server::start(plan, Path::new("nginx"), |port| {
            nginx::args(plan, nginx::tunnel(&plan.scratch, port, backend)?)
        })
    };
    let of_small_nginx = move |backend| {
        Server::start(plan, Path::new("nginx"), |port| {
            let config = nginx::tunnel(&plan.scratch, port, backend)?;
            nginx::args(plan, nginx::with(config, nginx::SMALL_BUFFER)?)
        })
    };
    let of_haproxy = move |backend| {
        Server::start(plan, Path::new("haproxy"), |port| {
            haproxy::streams(&plan.scratch, port, backend)
        })
    };
    let rivals = vec![
        contestant("nginx", BELOW, move || under_load(&of_nginx)),
        contestant("nginx, buffers of 1 KiB", BELOW, move || under_load(&of_small_nginx)),
        contestant("HAProxy", BELOW, move || under_load(&of_haproxy)),
    ];
    Row {
        load: LOAD,
        ..row(plan, name, ours, rivals)
    }
}
