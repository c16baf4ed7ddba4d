//! Load by TLS clients: handshakes without a request, many of them at once beside a quiet client, and idle connections.

use super::{Held, Served, held_memory};
use crate::bench::Plan;
use crate::bench::server::Server;

/// The handshake of a connection.
#[derive(Clone, Copy)]
pub struct Handshake {
    /// "1.2" or "1.3".
    pub version: &'static str,
    pub is_resumed: bool,
    /// The group of the key exchange that the client offers.
    pub group: &'static str,
}

/// Connects again and again; each connection ends after its handshake.
pub fn handshakes(plan: &Plan, server: &Server, handshake: Handshake) -> Result<Served, String> {
    let kind = if handshake.is_resumed { "resumed" } else { "full" };
    let millis = plan.load.as_millis().to_string();
    let args = [
        &server.port.to_string(),
        handshake.version,
        kind,
        handshake.group,
        &millis,
    ]
    .map(String::from);
    let mut clients = Held::start(plan, "load-handshakes", &args)?.after("ready")?;
    let before = server.cpu();
    clients.go();
    let numbers = clients.numbers();
    let cpu = server.cpu() - before;
    match numbers[..] {
        [count, seconds] if count > 0.0 => Ok(Served {
            micros: cpu.as_secs_f64() * 1e6 / count,
            per_second: count / seconds,
            memory: server.peak_memory(),
        }),
        _ => Err(format!("load-handshakes: not every handshake was a {kind} one")),
    }
}

/// The median of the times of a quiet client while so many handshakes arrive at once, in milliseconds.
pub fn quiet_client(plan: &Plan, server: &Server, path: &str, handshakes: usize) -> Result<f64, String> {
    let args = [server.port.to_string(), path.into(), handshakes.to_string()];
    let mut clients = Held::start(plan, "load-storm", &args)?.after("ready")?;
    clients.go();
    match clients.numbers()[..] {
        [median, longest, requests, seconds] => {
            println!(
                "    {requests} requests in the {seconds:.2} s of the handshakes, the longest {:.1} ms",
                longest / 1e3
            );
            Ok(median / 1e3)
        }
        _ => Err("load-storm: not every handshake was answered".into()),
    }
}

/// Private bytes of the server for each of `count` connections that asked once by a protocol of `hold-tls` and then stay idle.
pub fn idle_connections(plan: &Plan, server: &Server, protocol: &str, path: &str, count: usize) -> Result<f64, String> {
    let held = |count: usize| {
        let args = [&server.port.to_string(), protocol, &count.to_string(), path].map(String::from);
        Held::start(plan, "hold-tls", &args)?.after("held")
    };
    held_memory(server, held, count)
}
