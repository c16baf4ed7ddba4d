//! The rows about TLS: requests on kept connections, handshakes, a quiet client beside many handshakes, and idle connections.
//!
//! nginx and hyper have the same certificate, the same cipher suites and as many tickets for resumption (`server/suites.rs`). Two rows have
//! nginx with the suites that it has by default, too. Clients offer X25519, which all servers speak; one row has the
//! post-quantum X25519MLKEM768, which OpenSSL 3.0 does not.

use super::secure::{self, Key, Start};
use super::{BELOW, Contestant, HELLO, Row, Sample, contestant, file, sample};
use crate::bench::Plan;
use crate::bench::load::tls::{self as clients, Handshake};
use crate::bench::load::{self, Asked};
use crate::bench::programs::SERVER;
use crate::bench::server::Server;
use std::rc::Rc;

/// Connections that stay idle.
pub const IDLE: usize = 4096;

/// The rows that have nginx as its users have it, too.
const HELLO_ROW: &str = "hello over TLS, keep-alive, 64 connections";
const HANDSHAKE_ROW: &str = "full handshake, P-256";

/// nginx with the suites and the tickets that it has by default.
const BY_DEFAULT: &str = "nginx, its default suites";

/// Handshakes that arrive at once.
const STORM: usize = 2000;

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let handshake = |version, is_resumed| Handshake {
        version,
        is_resumed,
        group: "x25519",
    };
    let mut rows = vec![
        requests(plan, HELLO_ROW, "/", Some(0.9)),
        requests(plan, "file of 16 KiB over TLS", "/16384.bin", BELOW),
        requests(plan, "file of 1 MiB over TLS", "/1048576.bin", BELOW),
        handshakes(plan, HANDSHAKE_ROW, Key::P256, handshake("1.3", false), Some(0.6)),
        handshakes(
            plan,
            "full handshake, RSA-2048",
            Key::Rsa2048,
            handshake("1.3", false),
            Some(0.8),
        ),
        handshakes(plan, "resumed handshake", Key::P256, handshake("1.3", true), Some(0.6)),
        handshakes(
            plan,
            "resumed handshake, TLS 1.2",
            Key::P256,
            handshake("1.2", true),
            Some(0.6),
        ),
    ];
    let mut post_quantum = handshakes(
        plan,
        "full handshake, P-256, X25519MLKEM768",
        Key::P256,
        Handshake {
            group: "x25519mlkem768",
            ..handshake("1.3", false)
        },
        None,
    );
    post_quantum.rivals.retain(|rival| !rival.name.starts_with("nginx"));
    rows.extend([post_quantum, quiet_client(plan), idle(plan)]);
    for row in &mut rows {
        if ![HELLO_ROW, HANDSHAKE_ROW].contains(&&*row.name) {
            row.rivals.retain(|rival| rival.name != BY_DEFAULT);
        }
    }
    rows
}

/// Ours, nginx with our suites and with its own, and hyper, each running `run` with its server. The goal against hyper is to be below it.
fn entered<'a>(
    plan: &'a Plan,
    key: Key,
    against_nginx: Option<f64>,
    run: impl Fn(Server) -> Result<Sample, String> + 'a,
) -> (Vec<Contestant<'a>>, Vec<Contestant<'a>>) {
    let run = Rc::new(run);
    let one = |name, goal, start: Start| {
        let run = run.clone();
        contestant(name, goal, move || run(start(plan, Some(key))?))
    };
    let ours = vec![one("osier", None, secure::ours).needs(&[SERVER])];
    let rivals = vec![
        one("nginx", against_nginx, secure::nginx),
        one(BY_DEFAULT, None, secure::nginx_by_default),
        one("hyper, tokio-rustls", BELOW, secure::hyper).needs(&["hyper-tls"]),
    ];
    (ours, rivals)
}

fn requests<'a>(plan: &'a Plan, name: &str, path: &'static str, goal: Option<f64>) -> Row<'a> {
    let (ours, rivals) = entered(plan, Key::P256, goal, move |server| {
        server.check_by("https", &body(plan, path)?, path)?;
        let asked = Asked {
            tls: true,
            ..Asked::path(path)
        };
        load::requests(plan, &server, asked).map(sample)
    });
    Row {
        name: name.into(),
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        load: &[],
        ours,
        rivals,
    }
}

/// The body that a server must send for a path. This makes the file of it.
pub fn body(plan: &Plan, path: &str) -> Result<Vec<u8>, String> {
    match path {
        "/" => Ok(HELLO.to_vec()),
        "/16384.bin" => file(plan, 16 << 10),
        _ => file(plan, 1 << 20),
    }
}

fn handshakes<'a>(plan: &'a Plan, name: &str, key: Key, handshake: Handshake, goal: Option<f64>) -> Row<'a> {
    let (ours, rivals) = entered(plan, key, goal, move |server| {
        clients::handshakes(plan, &server, handshake).map(sample)
    });
    Row {
        name: name.into(),
        unit: "µs CPU/handshake",
        rounds: plan.rounds,
        bound: None,
        load: &["load-handshakes"],
        ours,
        rivals,
    }
}

fn quiet_client(plan: &Plan) -> Row<'_> {
    let (ours, rivals) = entered(plan, Key::P256, BELOW, move |server| {
        let figure = clients::quiet_client(plan, &server, "/", STORM)?;
        Ok(Sample::from(figure))
    });
    Row {
        name: format!("median of a quiet client beside {STORM} handshakes"),
        unit: "ms",
        rounds: plan.rounds,
        bound: None,
        load: &["load-storm"],
        ours,
        rivals,
    }
}

fn idle(plan: &Plan) -> Row<'_> {
    let (ours, rivals) = entered(plan, Key::P256, Some(0.25), move |server| {
        let figure = clients::idle_connections(plan, &server, "http/1.1", "/", IDLE)?;
        Ok(Sample::from(figure))
    });
    Row {
        name: format!("idle TLS connection, of {IDLE}"),
        unit: "private bytes",
        rounds: plan.rounds.min(3),
        bound: Some(4000.0),
        load: &["hold-tls"],
        ours,
        rivals,
    }
}
