//! Three servers that count together, and a client that adds.
//!
//! ```text
//! cargo run -p osier-examples --bin replicated_counter -- 100
//! ```
//!
//! On a reliable network the counter is right with either naming of entries. The simulation in `../tests/it/simulation.rs` finds the
//! faults that break one of them.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "the simulation has the other naming too")]
mod counter;

use std::io;

use counter::Naming;
use osier::net::TcpListener;

fn main() -> io::Result<()> {
    let additions: usize = match std::env::args().nth(1).map(|text| text.parse()) {
        None => 10,
        Some(Ok(additions)) => additions,
        Some(Err(_)) => {
            eprintln!("usage: replicated_counter [ADDITIONS]");
            std::process::exit(2);
        }
    };
    osier::run(|| {
        let listeners: Vec<TcpListener> = (0..3)
            .map(|_| TcpListener::bind("127.0.0.1:0"))
            .collect::<io::Result<_>>()?;
        let servers: Vec<String> = listeners
            .iter()
            .map(|listener| Ok(listener.local_addr()?.to_string()))
            .collect::<io::Result<_>>()?;
        for (number, listener) in listeners.into_iter().enumerate() {
            let others = servers
                .iter()
                .filter(|server| **server != servers[number])
                .cloned()
                .collect();
            osier::spawn(move || counter::serve(&format!("server-{number}"), &listener, others, Naming::ByClient));
        }
        for addition in 0..additions {
            counter::add(&servers[addition % 3..], &format!("key-{addition}"));
        }
        for server in &servers {
            while counter::count(server)? < additions {
                osier::sleep(std::time::Duration::from_millis(50));
            }
            println!("{server} counts {}", counter::count(server)?);
        }
        Ok(())
    })
}
