//! The row about JSON: an answer of 1 KiB that serde makes for each request.

use super::{Contestant, Row, contestant, on_port, sample};
use crate::bench::Plan;
use crate::bench::load::{self, Asked};

/// Against both rivals.
const GOAL: Option<f64> = Some(0.8);

const PATH: &str = "/json";

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    vec![Row {
        name: "JSON of 1 KiB (serde)".into(),
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        load: &[],
        ours: vec![served(plan, "osier", "osier-json", None)],
        rivals: vec![
            served(plan, "axum", "axum", GOAL),
            served(plan, "actix-web", "actix", GOAL),
        ],
    }]
}

fn served<'a>(plan: &'a Plan, name: &'static str, binary: &'static str, goal: Option<f64>) -> Contestant<'a> {
    let run = move || {
        let server = on_port(plan, binary)?;
        let (head, body) = server.ask(PATH)?;
        if !head.contains("application/json") || !(1000..1100).contains(&body.len()) {
            return Err(format!(
                "GET {PATH}: {} bytes that are not the JSON of the row",
                body.len()
            ));
        }
        load::requests(plan, &server, Asked::path(PATH)).map(sample)
    };
    contestant(name, goal, run).needs(&[binary])
}
