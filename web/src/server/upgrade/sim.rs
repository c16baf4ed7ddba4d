//! A program that is upgraded again and again while clients talk to it, by HTTP/1 and HTTP/2, in the clear and over TLS, guests chat, and
//! tunnels lead to a backend. Some of the new processes fail.
//!
//! Each process is a host of the simulation; the sockets have the address of the first one, as those of one machine have.
//!
//! Invariants:
//! - As long as no process dies that has connections, every connection is accepted, and every request has its response.
//! - A request is handled at most once, and a response belongs to its request. One that a server says it has not read (HTTP/2) was not
//!   handled, and is answered when it is sent again.
//! - After a failed upgrade, the old process serves. After a successful one, the old process has no socket left and ends.
//! - A tunnel carries each byte of both sides once, and ends when they end it.
//! - A guest of the chat stays, sees each line once, and everybody sees the lines in one order.
//! - When the clients are gone and the idle timeout has passed, no connection is left.
//!
//! TLS takes random numbers from the system. They change bytes and no length, because the certificate has an Ed25519 key, and the trace
//! has lengths alone. So a seed is one run although its bytes differ.

#[path = "../../../tests/it/sim/chance.rs"]
#[allow(dead_code, reason = "the scenarios of tests/it/sim use the rest")]
mod chance;
#[allow(dead_code, reason = "the scenarios of tests/it/sim use the rest")]
#[path = "../../../tests/it/sim/client.rs"]
mod client;
#[path = "../../../tests/it/sim/guest.rs"]
mod guest;
#[cfg(feature = "h2")]
#[path = "../../../tests/it/sim/http2_client.rs"]
mod http2_client;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};

use osier::net::{TcpListener, TcpStream};
use osier::sim::{self, Faults, HostOptions, World};

use super::new::Arriving;
use super::{Program, Upgrade};
use crate::chat::{Chat, Options};
use crate::http::StatusCode;
use crate::proxy::Proxy;
use crate::tls::{Acceptor, Connector, Identity};
use crate::upstream::Upstream;
use crate::{Connections, Request, Response, Router, Server};
use chance::{SECOND, below, once_in, piece_of, some_bytes, some_of};
use client::{Asked, Connection, connect};
use guest::Guest;

/// The state that the processes and the clients share.
struct Shared {
    world: World,
    workers: usize,
    /// How often each request was handled.
    handled: Arc<Mutex<BTreeMap<u64, u32>>>,
    /// The connections of each process.
    connections: Mutex<Vec<Connections>>,
    /// Whether new processes fail at times.
    fails: bool,
    /// Whether a process has died that may have had connections.
    has_died: Arc<AtomicBool>,
    /// Whether upgrades go on.
    goes_on: Arc<AtomicBool>,
    upgrades: AtomicUsize,
    /// The lines that each stay in the chat has seen.
    stays: Arc<Mutex<Vec<Vec<String>>>>,
}

/// The ways in which a new process fails.
#[derive(Clone, Copy, PartialEq)]
enum Failure {
    Never,
    /// It ends before it has read what the old process gives.
    AtOnce,
    /// It says that it cannot serve.
    Refuses,
    /// It is never ready.
    Sleeps,
    /// It dies while connections move.
    Dies,
}

fn draw_failure(shared: &Shared) -> Failure {
    use Failure::{AtOnce, Dies, Refuses, Sleeps};
    match shared.fails && once_in(2) {
        true => [AtOnce, Refuses, Sleeps, Dies][below(4) as usize],
        false => Failure::Never,
    }
}

/// A certificate and its key, as PEM.
static PEM: LazyLock<(String, String)> = LazyLock::new(|| {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
    // A random one may have fewer bytes.
    params.serial_number = Some(1.into());
    let certificate = params.self_signed(&key).expect("a certificate");
    (certificate.pem(), key.serialize_pem())
});

fn acceptor() -> Acceptor {
    let (chain, key) = &*PEM;
    let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).expect("a chain and its key");
    Acceptor::builder(identity)
        .alpn(["http/1.1"])
        .build()
        .expect("an acceptor")
}

trait Duplex: Read + Write {}

impl<T: Read + Write> Duplex for T {}

/// Connects in the clear or over TLS.
fn open(is_secure: bool) -> io::Result<Connection<Box<dyn Duplex>>> {
    let stream: Box<dyn Duplex> = if is_secure {
        let connector = Connector::builder()
            .ca_pem(PEM.0.as_bytes())
            .build()
            .expect("a connector");
        let stream = connect("process-0:443")?;
        let stream = connector.connect("localhost", stream).expect("a name of a host");
        stream.handshake()?;
        Box::new(stream)
    } else {
        Box::new(connect("process-0:80")?)
    };
    Ok(Connection::over(stream))
}

fn echo(request: &mut Request<'_>, handled: &Mutex<BTreeMap<u64, u32>>) -> std::io::Result<Response> {
    let key: u64 = request.query_param("key").unwrap().parse().unwrap();
    *handled.lock().unwrap().entry(key).or_default() += 1;
    let mut body = Vec::new();
    if once_in(6) {
        osier::sleep(some_of(5 * SECOND));
    }
    request.body().read_to_end(&mut body)?;
    if once_in(6) {
        osier::sleep(some_of(5 * SECOND));
    }
    let response = Response::new(StatusCode::OK).body(body);
    Ok(response.header("x-key", key.to_string()))
}

/// Starts a process on a host of its own. The first one has no channel.
fn start(shared: &Rc<Shared>, number: usize, channel: Option<UnixStream>, failure: Failure) {
    let (options, channel) = (
        HostOptions {
            workers: shared.workers,
            ..HostOptions::default()
        },
        RefCell::new(channel),
    );
    let name = format!("process-{number}");
    let (inner, own_name) = (Rc::clone(shared), name.clone());
    shared.world.host_with(&name, options, move || {
        process(&inner, number, channel.borrow_mut().take(), failure);
        // The process ends, and its system closes what is left.
        inner.world.find(&own_name).kill();
    });
}

fn process(shared: &Rc<Shared>, number: usize, channel: Option<UnixStream>, failure: Failure) {
    let this = shared.world.find(&format!("process-{number}"));
    if failure == Failure::AtOnce {
        return;
    }
    let Ok(arrived) = channel.map(Arriving::by).transpose() else {
        return;
    };
    let upgrade = Upgrade::made(arrived);
    let handled = Arc::clone(&shared.handled);
    let chat = Chat::with(Options {
        history: 10_000,
        burst: 10_000,
        ..Options::default()
    });
    chat.upgradable(&upgrade, "chat");
    let echo_here = move |request: &mut Request<'_>| echo(request, &handled);
    let backend = Upstream::builder("backend").backend("backend:80".parse().unwrap());
    let backend = backend.on_log(|_| ()).build().unwrap();
    let router = Router::new()
        .fallback(echo_here.clone())
        .get("/chat", chat.handler())
        .get("/tunnel", Proxy::new(backend).handler());
    let server = Server::new(router).on_log(|_| ()).upgradable(&upgrade, "web");
    let server = server.bind("0.0.0.0:80").unwrap();
    let secure = Server::new(Router::new().fallback(echo_here)).tls(acceptor());
    let secure = secure.on_log(|_| ()).upgradable(&upgrade, "secure");
    let secure = secure.bind("0.0.0.0:443").unwrap();
    let connections = [server.connections(), secure.connections()];
    let serving = osier::spawn(move || server.run());
    let serving_secure = osier::spawn(move || secure.run());
    osier::sleep(some_of(2 * SECOND));
    match failure {
        Failure::Refuses => return upgrade.refuse("a bad day"),
        Failure::Sleeps => osier::sleep(100 * SECOND),
        _ => {}
    }
    if upgrade.ready().is_err() {
        return;
    }
    if failure == Failure::Dies {
        osier::sleep(some_of(SECOND / 50));
        if upgrade.predecessor().is_some() {
            shared.has_died.store(true, Relaxed);
            return;
        }
    }
    shared.connections.lock().unwrap().extend(connections);
    while shared.goes_on.load(Relaxed) {
        osier::sleep(some_of(15 * SECOND));
        if hand_over(shared, &upgrade, number) {
            let _ = (serving.join(), serving_secure.join());
            // Handlers whose connections were cut have ended: there are none.
            osier::sleep(SECOND);
            assert_eq!(this.open_sockets(), 0, "process {number} leaves with sockets");
            return;
        }
    }
    let _ = (serving.join(), serving_secure.join());
}

/// Starts the next process and hands over to it. Returns whether this process is to end.
fn hand_over(shared: &Rc<Shared>, upgrade: &Upgrade, number: usize) -> bool {
    let next = shared.upgrades.fetch_add(1, Relaxed) + 1;
    let failure = draw_failure(shared);
    let program = Program::new("next").patience(20 * SECOND);
    let successor = upgrade.start_by(&program, |theirs| {
        start(shared, next, Some(theirs), failure);
        Ok(None)
    });
    let handed = successor.and_then(|successor| successor.hand_over(|| ()));
    if let Err(why) = &handed {
        osier::sim::note(format_args!("upgrade {number} to {next}: {why}"));
        assert!(failure != Failure::Never, "an upgrade fails: {why}");
    }
    handed.is_ok()
}

/// Sends requests, and holds each response against its request.
fn client(first_key: u64, handled: &Mutex<BTreeMap<u64, u32>>, may_fail: &AtomicBool) {
    let mut key = first_key;
    let last = key + 12;
    while key < last {
        let mut connection = match open(once_in(3)) {
            Ok(connection) => connection,
            Err(error) => {
                assert!(may_fail.load(Relaxed), "no connection: {error}");
                key += 1;
                continue;
            }
        };
        for _ in 0..1 + below(5) {
            if key >= last {
                break;
            }
            let asked = Asked {
                method: ["GET", "PUT", "POST"][below(3) as usize],
                key,
                body: some_bytes(key),
            };
            key += 1;
            let reply = connection.send(&asked).and_then(|()| connection.reply());
            let reply = match reply {
                Ok(reply) => reply,
                Err(error) => {
                    assert!(may_fail.load(Relaxed), "no response to {}: {error}", asked.key);
                    break;
                }
            };
            assert_eq!(reply.status, 200, "{}", reply.head);
            assert_eq!(reply.header("x-key"), Some(asked.key.to_string().as_str()));
            assert!(
                reply.body == asked.body,
                "the body of another request, or a part of this one"
            );
            assert_eq!(handled.lock().unwrap()[&asked.key], 1);
            if reply.closes() {
                break;
            }
            if once_in(2) {
                osier::sleep(some_of(20 * SECOND));
            }
        }
    }
}

/// Sends requests by HTTP/2, many at a time, over connections that rest in between.
#[cfg(feature = "h2")]
fn http2_client(first_key: u64, handled: &Mutex<BTreeMap<u64, u32>>, may_fail: &AtomicBool) {
    use http2_client::{Fate, requests};
    requests("process-0:80", first_key, 16, 20 * SECOND, |asked, fate| {
        let times = handled.lock().unwrap().get(&asked.key).copied();
        match fate {
            Fate::Answered(reply) => {
                assert_eq!(reply.status, 200, "{}", reply.head);
                assert_eq!(reply.header("x-key"), Some(asked.key.to_string().as_str()));
                assert!(
                    reply.body == asked.body,
                    "the body of another request, or a part of this one"
                );
                assert_eq!(times, Some(1));
            }
            Fate::Unread => assert_eq!(times, None, "{} was handled, and refused", asked.key),
            Fate::Cancelled => {}
            Fate::Reset(code) => assert!(may_fail.load(Relaxed), "{} is reset: {code:?}", asked.key),
            Fate::Lost => assert!(may_fail.load(Relaxed), "no response to {}", asked.key),
        }
    });
}

/// The backend of the tunnels: sends back what it gets, and the number of these bytes behind the end.
fn backend() {
    let listener = TcpListener::bind("0.0.0.0:80").expect("a free port");
    loop {
        let Ok((mut stream, _)) = listener.accept() else { return };
        osier::spawn(move || -> io::Result<()> {
            read_head(&mut stream)?;
            stream.write_all(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")?;
            let (mut piece, mut count) = ([0; 3000], 0);
            loop {
                if once_in(8) {
                    osier::sleep(some_of(20 * SECOND));
                }
                match stream.read(&mut piece)? {
                    0 => return stream.write_all(format!(" {count}").as_bytes()),
                    read => {
                        stream.write_all(&piece[..read])?;
                        count += read;
                    }
                }
            }
        });
    }
}

/// Reads a head, byte by byte.
fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(head)
}

/// Sends bytes through a tunnel, with pauses, and reads them back.
fn dig(number: u64, may_fail: &AtomicBool) {
    let carried = (|| {
        let mut stream = connect("process-0:80")?;
        stream.write_all(b"GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")?;
        let head = read_head(&mut stream)?;
        if head.starts_with(b"HTTP/1.1 50") || head.starts_with(b"HTTP/1.1 408") {
            // Faults of the network between the server and its backend, or a request that comes late.
            return Ok(());
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        let mut sent = 0;
        for turn in 0..1 + below(6) {
            let bytes = some_bytes(number * 100 + turn);
            stream.write_all(&bytes)?;
            let mut back = vec![0; bytes.len()];
            stream.read_exact(&mut back)?;
            assert!(back == bytes, "a tunnel carries other bytes");
            sent += bytes.len();
            if once_in(2) {
                osier::sleep(some_of(20 * SECOND));
            }
        }
        stream.shutdown(Shutdown::Write)?;
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest)?;
        if rest.is_empty() {
            // A process that dies closes its sockets.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        assert_eq!(String::from_utf8_lossy(&rest), format!(" {sent}"));
        io::Result::Ok(())
    })();
    if let Err(error) = carried {
        assert!(may_fail.load(Relaxed), "a tunnel ends: {error}");
    }
}

/// Comes to the chat, says some lines and leaves, some times.
fn visit(number: u64, shared: &Shared) {
    for stay in 0..1 + below(3) {
        let mut seen = Vec::new();
        let stayed = (|| {
            let mut guest = Guest::enter("process-0:80", &format!("guest-{number}"))?;
            let stayed = (|| {
                // A few lines, or so many in short succession that some are said while guests move.
                let (lines, pause) = [(below(8), 8 * SECOND), (200, SECOND / 5)][below(2) as usize];
                for line in 0..lines {
                    guest.say(&format!("{number}.{stay}.{line:03}"))?;
                    guest.listen(some_of(pause))?;
                }
                guest.listen(some_of(60 * SECOND))
            })();
            if stayed.is_ok() {
                guest.leave();
            }
            seen = guest.seen;
            stayed
        })();
        if let Err(error) = stayed {
            assert!(shared.has_died.load(Relaxed), "a guest is thrown out: {error}");
        }
        shared.stays.lock().unwrap().push(seen);
        osier::sleep(some_of(10 * SECOND));
    }
}

/// Checks that all guests have seen the lines in one order, each line once.
fn check_stays(shared: &Shared, guests: u64) {
    let mut last = Guest::enter("process-0:80", "last").expect("a process serves");
    last.listen(SECOND).unwrap();
    let history = last.seen;
    for guest in 0..guests {
        let of_guest = history.iter().filter(|line| line.starts_with(&format!("{guest}.")));
        assert!(of_guest.is_sorted_by(|one, next| one < next), "{history:?}");
    }
    for seen in shared.stays.lock().unwrap().iter() {
        assert!(history.starts_with(seen), "a guest saw {seen:?} of {history:?}");
    }
}

fn scenario(world: &World) {
    upgrades(world, client);
}

/// Clients of both protocols.
#[cfg(feature = "h2")]
fn scenario_with_http2(world: &World) {
    upgrades(world, |first_key, handled, may_fail| match once_in(3) {
        true => client(first_key, handled, may_fail),
        false => http2_client(first_key, handled, may_fail),
    });
}

type Client = fn(u64, &Mutex<BTreeMap<u64, u32>>, &AtomicBool);

fn upgrades(world: &World, client: Client) {
    let shared = Rc::new(Shared {
        world: world.clone(),
        workers: 1 + below(2) as usize,
        handled: Arc::default(),
        connections: Mutex::default(),
        fails: once_in(2),
        has_died: Arc::default(),
        goes_on: Arc::new(AtomicBool::new(true)),
        upgrades: AtomicUsize::new(0),
        stays: Arc::default(),
    });
    drop(world.host("backend", backend));
    start(&shared, 0, None, Failure::Never);
    osier::sleep(3 * SECOND);
    world.faults([Faults::none(), Faults::mild()][below(2) as usize].clone());
    let clients: Vec<_> = (0..1 + below(4))
        .map(|number| {
            let (handled, may_fail) = (Arc::clone(&shared.handled), Arc::clone(&shared.has_died));
            world.host(&format!("client-{number}"), move || {
                client(number * 1000, &handled, &may_fail);
            })
        })
        .collect();
    let guests = below(4);
    let visitors: Vec<_> = (0..guests)
        .map(|number| {
            let shared = Rc::clone(&shared);
            world.host(&format!("guest-{number}"), move || visit(number, &shared))
        })
        .collect();
    let diggers: Vec<_> = (0..below(4))
        .map(|number| {
            let may_fail = Arc::clone(&shared.has_died);
            world.host(&format!("digger-{number}"), move || dig(number, &may_fail))
        })
        .collect();
    clients
        .iter()
        .chain(&visitors)
        .chain(&diggers)
        .for_each(sim::Host::wait);

    shared.goes_on.store(false, Relaxed);
    world.faults(Faults::none());
    osier::sleep(300 * SECOND);
    let handled = shared.handled.lock().unwrap();
    assert!(handled.values().all(|&times| times == 1), "a request is handled twice");
    for connections in &*shared.connections.lock().unwrap() {
        assert_eq!(connections.count(), 0, "connections are left");
    }
    drop(handled);
    if !shared.has_died.load(Relaxed) {
        let asked = Asked {
            method: "GET",
            key: 9_000_000,
            body: Vec::new(),
        };
        let mut connection = Connection::open("process-0:80").expect("a process serves");
        connection.send(&asked).unwrap();
        assert_eq!(connection.reply().unwrap().status, 200);
        check_stays(&shared, guests);
    }
}

#[test]
fn upgrades_lose_no_connection_and_handle_nothing_twice() {
    // In the second run a line is said while a guest moves.
    chance::check(&[0, 102], 3, scenario);
}

#[cfg(feature = "h2")]
#[test]
fn upgrades_move_connections_of_http2_between_their_streams() {
    // In run 22 a client reads the last response late, and sends updates of windows meanwhile.
    chance::check(&[22], 3, scenario_with_http2);
}
