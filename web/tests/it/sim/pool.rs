//! A pool of connections to three backends, used by fibers of several workers, with a second attempt where the first was on a kept
//! connection.
//!
//! Invariants:
//! - A lease belongs to one fiber: it reads the response to its own request, and nothing is left of a former one.
//! - No backend has more leases, or more idle connections, than the pool allows.
//! - A request on a new connection fails only with the network. A second attempt takes a new connection.
//! - When all is well again, every backend is in, and requests succeed. No lease is left, and later no connection.

use std::io::{self, BufRead, BufReader, Write};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use osier::net::TcpListener;
use osier::sim::{Faults, HostOptions, World};
use osier::sync::Event;
use osier_web::Address;
use osier_web::upstream::{Balance, Builder, Check, Lease, Unavailable, Upstream};

use super::{SECOND, below, once_in, some_of};

const BACKENDS: [&str; 3] = ["one", "two", "three"];

/// The beginning of the requests that are made when all is well again.
const LAST: &str = "last";

/// A backend that returns lines, slowly at times, and that hangs up now and then.
fn backend() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:700")?;
    loop {
        let (stream, _) = listener.accept()?;
        osier::spawn(move || -> io::Result<()> {
            stream.set_read_timeout(Some(100 * SECOND))?;
            let (mut lines, mut out) = (BufReader::new(&stream), &stream);
            let mut line = String::new();
            while lines.read_line(&mut line)? > 0 && line.ends_with('\n') {
                if once_in(10) && !line.starts_with(LAST) {
                    osier::sleep(some_of(8 * SECOND));
                }
                out.write_all(line.as_bytes())?;
                line.clear();
                if once_in(15) {
                    break;
                }
            }
            Ok(())
        });
    }
}

/// The limits of the pool.
#[derive(Clone, Copy)]
struct Bounds {
    leases: usize,
    keep: usize,
}

fn check_bounds(upstream: &Upstream, bounds: Bounds) {
    for backend in upstream.stats() {
        assert!(backend.leases <= bounds.leases, "{} leases", backend.leases);
        assert!(backend.kept <= bounds.keep, "{} connections are kept", backend.kept);
    }
}

/// Sends a line over a lease, and reads the response.
fn talk(lease: &Lease, key: &str) -> io::Result<()> {
    let mut stream = lease.stream();
    stream.set_read_timeout(Some(5 * SECOND))?;
    stream.set_write_timeout(Some(5 * SECOND))?;
    stream.write_all(format!("{key}\n").as_bytes())?;
    let (mut response, mut lines) = (String::new(), BufReader::with_capacity(64, &mut stream));
    if lines.read_line(&mut response)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if response.ends_with('\n') {
        assert_eq!(response.trim_end(), key, "the response to another request");
        assert!(lines.buffer().is_empty(), "more than a response");
    }
    match response.ends_with('\n') {
        true => Ok(()),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Makes a request, and a second attempt if a kept connection has failed.
fn request(upstream: &Upstream, key: &str, deadline: Option<Instant>) -> Result<(), Option<Unavailable>> {
    let mut lease = upstream.lease(deadline).map_err(Some)?;
    for attempt in 0..2 {
        assert!(
            attempt == 0 || !lease.is_reused(),
            "a second attempt takes a new connection"
        );
        match talk(&lease, key) {
            Ok(()) => {
                lease.answered();
                if !once_in(8) {
                    lease.keep();
                }
                return Ok(());
            }
            Err(error) => {
                lease.failed(error);
                let (was_reused, backend) = (lease.is_reused(), lease.backend());
                drop(lease);
                if !was_reused {
                    return Err(None);
                }
                lease = upstream.lease_anew(deadline, Some(backend)).map_err(Some)?;
            }
        }
    }
    Err(None)
}

fn gateway(bounds: Bounds, place: &Mutex<Option<Upstream>>, is_well: &Event) {
    let backends = BACKENDS.map(|name| Address::Tcp(format!("{name}:700")));
    let builder: Builder = Upstream::builder("pool").backends(backends).on_log(|_| ());
    let mut builder = builder
        .max_leases(bounds.leases)
        .keep(bounds.keep)
        .balance([Balance::LeastConnections, Balance::RoundRobin, Balance::RandomTwo][below(3) as usize].clone())
        .failures(1 + below(3) as u32)
        .slow_start(some_of(20 * SECOND))
        .resolve_every(some_of(30 * SECOND))
        .idle_timeout(30 * SECOND);
    if once_in(2) {
        builder = builder.check(Check::connect());
    }
    let upstream = builder.build().unwrap();
    *place.lock().unwrap() = Some(upstream.clone());
    let fibers: Vec<_> = (0..1 + below(8))
        .map(|fiber| {
            let upstream = upstream.clone();
            osier::spawn(move || {
                for number in 0..12 {
                    let deadline = once_in(3).then(|| osier::time::now() + some_of(4 * SECOND));
                    let done = request(&upstream, &format!("{fiber}.{number}"), deadline);
                    if let Err(Some(why)) = done {
                        osier::sim::note(format_args!("unavailable: {why}"));
                    }
                    check_bounds(&upstream, bounds);
                    if once_in(4) {
                        osier::sleep(some_of(40 * SECOND));
                    }
                }
            })
        })
        .collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());

    // A backend that is out is tried within ten seconds, by a request.
    is_well.wait();
    for number in 0..25 {
        let done = request(&upstream, &format!("{LAST}.{number}"), None);
        assert!(done.is_ok(), "request {number} fails though all is well: {done:?}");
        osier::sleep(SECOND);
    }
    for backend in upstream.stats() {
        assert!(backend.is_in, "{} is out though all is well", backend.address);
    }
}

fn scenario(world: &World) {
    let hosts = BACKENDS.map(|name| world.host(name, backend_until_killed));
    osier::sleep(SECOND);
    world.faults(match below(3) {
        0 => Faults::none(),
        1 => Faults::mild(),
        _ => Faults::rough(),
    });
    let bounds = Bounds {
        leases: [1, 2, 100][below(3) as usize],
        keep: [0, 1, 64][below(3) as usize],
    };
    let place: Arc<Mutex<Option<Upstream>>> = Arc::default();
    let options = HostOptions {
        workers: 1 + below(3) as usize,
        ..HostOptions::default()
    };
    let is_well = Arc::new(Event::manual());
    let (for_gateway, well) = (Arc::clone(&place), Arc::clone(&is_well));
    let front = world.host_with("gateway", options, move || gateway(bounds, &for_gateway, &well));
    for _ in 0..below(6) {
        osier::sleep(some_of(15 * SECOND));
        let host = &hosts[below(3) as usize];
        match below(4) {
            0 => host.crash(),
            1 => host.kill(),
            2 => world.partition(&front, host),
            _ => drop(world.reset(&front, host)),
        }
        osier::sleep(some_of(20 * SECOND));
        host.restart();
        world.heal(&front, host);
    }
    world.faults(Faults::none());
    // Longer than any cut by chance.
    osier::sleep(60 * SECOND);
    is_well.set();
    front.wait();
    osier::sleep(100 * SECOND);
    let upstream = place.lock().unwrap().take().unwrap();
    for backend in upstream.stats() {
        assert_eq!((backend.leases, backend.kept), (0, 0), "{} is used", backend.address);
    }
    // The checks of backends end with it.
    drop(upstream);
    osier::sleep(10 * SECOND);
    assert_eq!(front.open_sockets(), 0, "a connection is left");
}

/// A backend's connections may break.
fn backend_until_killed() {
    let _ = backend();
}

#[test]
fn a_pool_gives_a_connection_to_one_and_keeps_its_bounds() {
    super::check(&[], 15, scenario);
}
