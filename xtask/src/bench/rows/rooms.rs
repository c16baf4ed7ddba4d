//! The rows about WebSockets: the delay of a chat, the cost of a broadcast, and the memory of a guest.

use super::{BELOW, Contestant, Row, Sample, contestant, on_port};
use crate::bench::Plan;
use crate::bench::load::{self, Heard, Room};
use std::time::Duration;

/// A chat on a busy evening: 20 lines in a second.
const CHAT: Room = Room {
    guests: 1000,
    speakers: 10,
    pause: Duration::from_millis(500),
    // With one load, 80 lines are said, and the 99th percentile is the slowest of them.
    loads: 4,
};

const BROADCAST: Room = Room {
    guests: 5000,
    speakers: 1,
    pause: Duration::ZERO,
    loads: 1,
};

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let late = |name, unit, bound, figure: fn(&Heard) -> f64| Row {
        name: format!("chat, {} clients, {} senders: {name}", CHAT.guests, CHAT.speakers),
        unit,
        rounds: plan.rounds.min(3),
        bound,
        ours: vec![heard(plan, "osier", "osier-chat", "/chat?name=a", None, CHAT, figure)],
        load: &["load-ws"],
        rivals: vec![
            heard(plan, "null", "null-room", "/", None, CHAT, figure),
            heard(plan, "tokio-tungstenite", "tungstenite-room", "/", None, CHAT, figure),
        ],
    };
    let broadcast = |name: &str, unit, figure: fn(&Heard) -> f64| Row {
        name: format!("broadcast to {}: {name}", BROADCAST.guests),
        unit,
        rounds: plan.rounds.min(3),
        bound: None,
        ours: vec![heard(plan, "osier", "osier-chat", "/room", None, BROADCAST, figure)],
        load: &["load-ws"],
        rivals: vec![
            heard(plan, "null", "null-room", "/", None, BROADCAST, figure),
            heard(
                plan,
                "tokio-tungstenite",
                "tungstenite-room",
                "/",
                BELOW,
                BROADCAST,
                figure,
            ),
        ],
    };
    vec![
        late("median delivery", "ms", None, |heard| heard.median),
        late("99 of 100 deliveries", "ms", Some(5.0), |heard| heard.p99),
        broadcast("delivery", "µs CPU/message", |heard| heard.micros),
        broadcast("client", "private bytes", |heard| heard.guest_bytes),
    ]
}

fn heard<'a>(
    plan: &'a Plan,
    name: &'static str,
    binary: &'static str,
    path: &'static str,
    goal: Option<f64>,
    room: Room,
    figure: fn(&Heard) -> f64,
) -> Contestant<'a> {
    contestant(name, goal, move || {
        let server = on_port(plan, binary)?;
        let heard = load::room(plan, &server, path, room)?;
        Ok(Sample {
            aside: Some((heard.per_second, heard.memory)),
            ..Sample::from(figure(&heard))
        })
    })
    .needs(&[binary])
}
