//! The replicated counter in a simulation: a seed finds its bug, and no seed finds one without it.

#[allow(dead_code, reason = "the program uses all of it")]
#[path = "../../replicated_counter/counter.rs"]
mod counter;

use std::io::{Read, Write};
use std::time::Duration;

use osier::net::{TcpListener, TcpStream};
use osier::sim::{Faults, Sim, World};

use counter::Naming;

const SERVERS: [&str; 3] = ["one", "two", "three"];
const ADDITIONS: usize = 6;

/// Adds from two clients while the network loses packets, and counts when all is well again.
fn count(world: &World, naming: Naming) {
    let addresses = || SERVERS.map(|server| format!("{server}:7000"));
    for name in SERVERS {
        world.host(name, move || {
            let others = addresses()
                .into_iter()
                .filter(|other| !other.starts_with(name))
                .collect();
            let listener = TcpListener::bind("0.0.0.0:7000")?;
            counter::serve(name, &listener, others, naming)
        });
    }
    osier::sleep(Duration::from_secs(1));
    world.faults(Faults {
        loss: 10,
        partition: 50,
        ..Faults::none()
    });
    let clients: Vec<_> = (0..2)
        .map(|client| {
            world.host(&format!("client-{client}"), move || {
                for number in 0..ADDITIONS / 2 {
                    counter::add(&addresses(), &format!("{client}.{number}"));
                }
            })
        })
        .collect();
    clients.iter().for_each(|client| client.wait());
    world.faults(Faults::none());
    // A link is cut for ten seconds at most, and the servers exchange their entries each second.
    osier::sleep(Duration::from_secs(25));
    for server in addresses() {
        assert_eq!(counter::count(&server).unwrap(), ADDITIONS, "at {server}");
    }
}

#[test]
fn a_seed_finds_the_additions_that_count_twice() {
    let wrong = |world: &World| count(world, Naming::ByServer);
    let found = (0..200)
        .map(|seed| Sim::new(seed).report(wrong))
        .find(|report| report.failure.is_some())
        .expect("a seed finds it");
    let shrunk = Sim::new(found.schedule).shrink(40, wrong).expect("it fails again");
    assert!(
        shrunk.schedule.choices().unwrap() < shrunk.choices_before / 4,
        "{}",
        shrunk.schedule
    );
    assert!(shrunk.report.failure.unwrap().contains("at "));
}

#[test]
fn no_seed_finds_any_where_the_client_names_them() {
    Sim::new(0).check(testkit::seeds(20), |world| count(world, Naming::ByClient));
}

#[test]
fn a_request_that_does_not_end_costs_its_connection_alone() {
    Sim::new(0).check(0..1, |world| {
        world.host("one", || {
            let listener = TcpListener::bind("0.0.0.0:7000")?;
            counter::serve("one", &listener, Vec::new(), Naming::ByClient)
        });
        osier::sleep(Duration::from_secs(1));
        let endless = || {
            let mut stream = TcpStream::connect("one:7000").unwrap();
            let _ = stream.write_all(&vec![b'x'; 2 << 20]);
            stream.read_to_end(&mut Vec::new())
        };
        let ended = osier::timeout(Duration::from_secs(60), endless);
        assert!(ended.is_ok_and(|read| read.is_err() || read.is_ok_and(|count| count == 0)));
        assert_eq!(counter::count("one:7000").unwrap(), 0);
    });
}
