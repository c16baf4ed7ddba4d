//! Connects to several addresses, some of which do not answer.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use super::{SECOND, echo_server};
use osier::Cancelled;
use osier::net::TcpStream;
use osier::sim::{self, Link, World};

/// The time after which the next attempt joins one that has no answer.
const DELAY: Duration = Duration::from_millis(250);

/// The addresses of hosts with these names, whose servers run. Those named "dead" have lost their power.
fn servers<const N: usize>(world: &World, names: [&str; N]) -> [SocketAddr; N] {
    let hosts = names.map(|name| (name, world.host(name, echo_server)));
    osier::sleep(SECOND);
    hosts.map(|(name, host)| {
        if name.starts_with("dead") {
            host.crash();
        }
        SocketAddr::new(host.ip(), 7)
    })
}

#[test]
fn each_dead_address_costs_a_quarter_of_a_second() {
    sim::check(0..20, |world| {
        let addrs = servers(world, ["dead", "dead too", "alive"]);
        type Connect = fn(&[SocketAddr]) -> std::io::Result<TcpStream>;
        let faces: [Connect; 3] = [
            |addrs| TcpStream::connect(addrs),
            |addrs| TcpStream::connect_within(addrs, SECOND),
            |addrs| osier::block_on(TcpStream::connect_async(addrs)),
        ];
        for connect in faces {
            let before = world.elapsed();
            let stream = osier::timeout(SECOND, || connect(&addrs)).unwrap().unwrap();
            assert_eq!(stream.peer_addr().unwrap(), addrs[2]);
            let took = world.elapsed() - before;
            assert!((2 * DELAY..3 * DELAY).contains(&took), "{took:?}");
            assert_eq!(world.here().open_sockets(), 1, "the other sockets are closed");
        }
    });
}

#[test]
fn an_address_that_refuses_costs_no_time() {
    sim::check(0..20, |world| {
        let [alive] = servers(world, ["alive"]);
        let refused = SocketAddr::new(alive.ip(), 9);
        let before = world.elapsed();
        let stream = TcpStream::connect(&[refused, refused, refused, alive][..]).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), alive);
        let took = world.elapsed() - before;
        assert!(took < DELAY / 2, "{took:?}");
    });
}

#[test]
fn an_answer_that_comes_late_still_wins_and_the_loser_is_closed() {
    sim::check(0..20, |world| {
        let addrs = servers(world, ["slow", "slower"]);
        let latency = |millis| Link {
            latency: Duration::from_millis(millis),
            ..Link::default()
        };
        world.link(&world.here(), &world.find("slow"), latency(200));
        world.link(&world.here(), &world.find("slower"), latency(180));
        // The answers come after 400 ms and 250 + 360 ms.
        let stream = TcpStream::connect(&addrs[..]).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addrs[0]);
        osier::sleep(10 * SECOND);
        assert_eq!(world.find("slow").open_sockets(), 2, "its listener and the connection");
        assert_eq!(world.find("slower").open_sockets(), 1, "its listener");
    });
}

#[test]
fn a_limit_is_for_all_addresses_together_and_its_error_names_those_that_were_tried() {
    sim::run(1, |world| {
        let addrs = servers(world, ["dead", "alive"]);
        let refused = SocketAddr::new(addrs[1].ip(), 9);
        let before = world.elapsed();
        let error = TcpStream::connect_within(&[addrs[0], refused, addrs[0]][..], SECOND).unwrap_err();
        let took = world.elapsed() - before;
        assert!((SECOND..SECOND + DELAY).contains(&took), "{took:?}");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let text = error.to_string();
        let silent = format!("{}: no answer in time", addrs[0]);
        assert!(
            text.contains(&format!("{refused}: ")) && text.matches(&silent).count() == 2,
            "{text}"
        );
    });
}

#[test]
fn a_cancelled_connect_closes_its_sockets() {
    sim::run(1, |world| {
        let addrs = servers(world, ["dead", "dead too"]);
        let connecting = osier::spawn(move || TcpStream::connect(&addrs[..]).map(drop));
        osier::sleep(SECOND);
        assert_eq!(world.here().open_sockets(), 2);
        connecting.cancel();
        assert!(Cancelled::is(&connecting.join().unwrap().unwrap_err()));
        assert_eq!(world.here().open_sockets(), 0);
    });
}
