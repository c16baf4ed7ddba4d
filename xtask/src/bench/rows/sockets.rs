//! The rows about echoes over WebSockets: a binary message of 64 bytes there and back on each of many connections at once.

use super::{Contestant, Row, contestant, on_port, sample};
use crate::bench::{Plan, load};

/// Against the best of the rivals, and so against each.
const GOAL: Option<f64> = Some(0.9);

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    [1000, 10_000].map(|connections| row(plan, connections)).into()
}

fn row(plan: &Plan, connections: usize) -> Row<'_> {
    let on = |name, binary, path, goal| echo(plan, name, (binary, path), connections, goal);
    Row {
        name: format!("WebSocket echo of 64 B, {connections} connections"),
        unit: "µs CPU/round trip",
        rounds: plan.rounds,
        bound: None,
        load: &["load-echo"],
        ours: vec![
            on("closure", "osier-ws-echo", "/", None),
            on("callbacks", "osier-ws-echo", "/dormant", None),
        ],
        rivals: vec![
            on("tokio-tungstenite", "tungstenite-echo", "/", GOAL),
            on("fastwebsockets", "fastwebsockets-echo", "/", GOAL),
        ],
    }
}

fn echo<'a>(
    plan: &'a Plan,
    name: &'static str,
    (binary, path): (&'static str, &'static str),
    connections: usize,
    goal: Option<f64>,
) -> Contestant<'a> {
    let run = move || {
        let server = on_port(plan, binary)?;
        load::echoes(plan, &server, connections, Some(path)).map(sample)
    };
    contestant(name, goal, run).needs(&[binary])
}
