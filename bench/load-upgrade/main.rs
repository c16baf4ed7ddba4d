//! The clients of a server whose process changes meanwhile. Arguments: PORT TLS_PORT CONNECTIONS TLS_CONNECTIONS GUESTS. A TLS_PORT of 0:
//! none.
//!
//! Idle connections are made, each asks once, and then one after another asks again, some hundred a second: what an idle client is
//! that writes just when its server leaves. New connections come besides. Guests of chat rooms hear numbered lines (`guests.rs`).
//!
//! The program prints `ready` when everybody is connected, and waits for the end of its standard input. Then every connection asks a last
//! time, the last lines are heard, and it prints a line `NAME NUMBER` for each figure.
#![forbid(unsafe_code)]

mod guests;
mod kept;

use kept::{Counts, Target};
use std::io::{Read, Result, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Requests a second on idle connections, in the clear and with TLS, and on new connections.
const RATES: [u32; 3] = [500, 200, 50];

fn main() -> Result<()> {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .map(|text| text.parse().expect("a number"))
        .collect();
    let [port, tls_port, clear, tls, guests] = numbers[..] else {
        panic!("arguments: PORT TLS_PORT CONNECTIONS TLS_CONNECTIONS GUESTS");
    };
    raise_limit()?;
    let targets = [Target::new(port as u16, false)?, Target::new(tls_port as u16, true)?];
    let stop = Arc::new(AtomicBool::new(false));
    let counts = [clear, if tls_port == 0 { 0 } else { tls }];
    let mut walks = Vec::new();
    for ((target, count), rate) in targets.iter().zip(counts).zip(RATES) {
        let (held, target, stop) = (kept::connect(target, count)?, target.clone(), Arc::clone(&stop));
        walks.push(move || kept::walk(held, &target, &stop, rate));
    }
    let rooms = guests::Rooms::enter(port as u16, guests)?;
    println!("ready");
    let (target, fresh_stop) = (targets[0].clone(), Arc::clone(&stop));
    let fresh = thread::spawn(move || ask_anew(&target, &fresh_stop));
    let walking: Vec<_> = walks.into_iter().map(thread::spawn).collect();
    let guests_stop = Arc::clone(&stop);
    let talking = thread::spawn(move || rooms.talk(&guests_stop));
    stdin().read_to_end(&mut Vec::new())?;
    stop.store(true, Ordering::Relaxed);
    for (name, walk) in ["clear", "tls"].into_iter().zip(walking) {
        walk.join().expect("it does not panic").print(name);
    }
    fresh.join().expect("it does not panic").print("new");
    talking.join().expect("it does not panic").print();
    Ok(())
}

/// Asks once on each of many new connections.
fn ask_anew(target: &Target, stop: &AtomicBool) -> Counts {
    let mut counts = Counts::default();
    let (mut due, pause) = (Instant::now(), Duration::from_secs(1) / RATES[2]);
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        due += pause;
        let mut socket = target.connect_at_last(&mut counts);
        socket.ask(&mut counts);
    }
    counts
}

fn raise_limit() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    Ok(setrlimit(Resource::Nofile, limit)?)
}
