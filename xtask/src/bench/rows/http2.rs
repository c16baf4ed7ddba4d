//! The rows about HTTP/2: many streams at once, over TLS and in the clear, and idle connections.

use super::secure::{self, Key, Start};
use super::tls::{IDLE, body};
use super::{BELOW, Contestant, Row, Sample, contestant, sample};
use crate::bench::Plan;
use crate::bench::load::{h2, tls as clients};
use crate::bench::programs::SERVER;
use crate::bench::server::Server;
use std::rc::Rc;

/// Level with h2o: what two runs of one program differ by.
const LEVEL: Option<f64> = Some(1.05);

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let requests = |what: &str, path, tls| {
        let way = if tls { "over TLS" } else { "in the clear" };
        let name = format!("{what}, HTTP/2 {way}, {} x {} streams", h2::CONNECTIONS, h2::STREAMS);
        requests(plan, name, path, tls)
    };
    vec![
        requests("hello", "/", true),
        requests("hello", "/", false),
        requests("16 KiB", "/16384.bin", true),
        requests("16 KiB", "/16384.bin", false),
        idle(plan),
    ]
}

/// Ours and the rivals, each running `run` with its server.
fn entered<'a>(
    plan: &'a Plan,
    tls: bool,
    against_h2o: Option<f64>,
    run: impl Fn(Server) -> Result<Sample, String> + 'a,
) -> (Vec<Contestant<'a>>, Vec<Contestant<'a>>) {
    let run = Rc::new(run);
    let one = |name, goal, start: Start| {
        let run = run.clone();
        contestant(name, goal, move || run(start(plan, tls.then_some(Key::P256))?))
    };
    let ours = vec![one("osier", None, secure::ours).needs(&[SERVER])];
    let rivals = vec![
        one("nginx", BELOW, secure::nginx),
        one("hyper", BELOW, secure::hyper).needs(&["hyper-tls"]),
        one("h2o", against_h2o, secure::h2o),
    ];
    (ours, rivals)
}

fn requests<'a>(plan: &'a Plan, name: String, path: &'static str, tls: bool) -> Row<'a> {
    let (ours, rivals) = entered(plan, tls, LEVEL, move |server| {
        let scheme = if tls { "https" } else { "http" };
        server.check_by(scheme, &body(plan, path)?, path)?;
        h2::requests(plan, &server, path, tls).map(sample)
    });
    Row {
        name,
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        load: &[],
        ours,
        rivals,
    }
}

fn idle(plan: &Plan) -> Row<'_> {
    let (ours, rivals) = entered(plan, true, BELOW, move |server| {
        let figure = clients::idle_connections(plan, &server, "h2", "/", IDLE)?;
        Ok(Sample::from(figure))
    });
    Row {
        name: format!("idle HTTP/2 connection over TLS, of {IDLE}"),
        unit: "private bytes",
        rounds: plan.rounds.min(3),
        bound: Some(6000.0),
        load: &["hold-tls"],
        ours,
        rivals,
    }
}
