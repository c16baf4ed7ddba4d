//! Clients that make a connection work for nothing, beside one that asks quietly.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use osier_http::h2::{Connection, ErrorCode, Limits, Outgoing};
use osier_web::{Router, Server, Timeouts};
use testkit::h2_attacks::{ATTACKS, Attack};

use super::client::Client;
use crate::common::{Site, site, site_with};

/// No attack takes as long. The server has one worker for all of them.
const LONG: Duration = Duration::from_secs(300);

/// The pause of the quiet client. Without one it would keep a core busy for as long as the attacks take.
const PAUSE: Duration = Duration::from_millis(1);

/// The preface and `count` requests, each of which is cancelled at once.
fn rapid_resets(count: usize) -> Vec<u8> {
    let now = Instant::now();
    let mut machine = Connection::client(&Limits::default(), now);
    let target = Outgoing {
        method: "GET",
        scheme: "http",
        authority: "test",
        path: "/",
        protocol: None,
    };
    for _ in 0..count {
        let stream = machine.request(&target, [], true).expect("a stream");
        machine.reset(stream, ErrorCode::CANCEL);
        machine.finish(stream);
    }
    machine.output().to_vec()
}

/// A router behind limits that forgive nothing with time: on a busy machine an attack takes longer.
fn strict_site(router: Router, timeout: Duration) -> (Site, Limits) {
    let limits = Limits {
        reset_rate: 0,
        frame_rate: 0,
        ..Limits::default()
    };
    let server = Server::new(router).http2_limits(limits).timeouts(Timeouts {
        header: timeout,
        body: timeout,
        write: timeout,
        ..Timeouts::default()
    });
    (site_with(1, server, |server| server.bind("127.0.0.1:0")), limits)
}

/// Asks quietly until no attack is left. Returns the number of responses, each of which is the right one.
fn ask_quietly(quiet: &mut Client, attacks: &AtomicUsize) -> usize {
    let mut times = Vec::new();
    while attacks.load(Ordering::Relaxed) > 0 {
        let start = Instant::now();
        assert_eq!(quiet.get("/").text(), "hello");
        times.push(start.elapsed());
        std::thread::sleep(PAUSE);
    }
    times.sort();
    let (median, worst) = (times.get(times.len() / 2), times.last());
    println!("{} quiet requests, median {median:?}, worst {worst:?}", times.len());
    times.len()
}

#[test]
fn rapid_resets_do_not_hold_up_a_quiet_client() {
    const ATTACKERS: usize = 4;
    const CONNECTIONS: usize = 200;
    const RESETS: usize = 1000;
    let handled = Arc::new(AtomicUsize::new(0));
    let count = handled.clone();
    let router = Router::new().get("/", move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        "hello"
    });
    let (site, limits) = strict_site(router, LONG);
    let bytes = rapid_resets(RESETS);
    let attacks = AtomicUsize::new(ATTACKERS);
    let mut quiet = Client::connect(site.addr);
    let served = std::thread::scope(|scope| {
        let (bytes, attacks, addr) = (&bytes, &attacks, site.addr);
        for _ in 0..ATTACKERS {
            scope.spawn(move || {
                let _ended = Ended(attacks);
                for _ in 0..CONNECTIONS / ATTACKERS {
                    let mut stream = TcpStream::connect(addr).expect("the server listens");
                    stream.set_read_timeout(Some(LONG)).unwrap();
                    // The server ends the connection before it has read all.
                    let _ = stream.write_all(bytes);
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            });
        }
        ask_quietly(&mut quiet, attacks)
    });
    let handled = handled.load(Ordering::Relaxed) - served;
    println!("{handled} handlers ran for {} cancelled requests", CONNECTIONS * RESETS);
    assert!(handled <= CONNECTIONS * (limits.reset_burst as usize + 1), "{handled}");
    // It has its turn among the attackers.
    assert!(served >= CONNECTIONS / 100, "{served} quiet requests");
    assert!(site.logged("too many resets"));
}

/// Smaller than the lab, `web/examples/h2_attack_lab.rs`: one connection of each attack, all at once.
fn attack(timeout: Duration, is_meant: impl Fn(&Attack) -> bool) {
    let router = super::router().get("/big", |_| vec![b'x'; 4096]);
    let (site, _) = strict_site(router, timeout);
    let meant: Vec<&Attack> = ATTACKS.iter().filter(|attack| is_meant(attack)).collect();
    let attacks = AtomicUsize::new(meant.len());
    let mut quiet = Client::connect(site.addr);
    assert_eq!(quiet.get("/").text(), "hello");
    let served = std::thread::scope(|scope| {
        let (attacks, addr) = (&attacks, site.addr);
        for attack in meant.iter().copied() {
            scope.spawn(move || {
                let _ended = Ended(attacks);
                let mut stream = TcpStream::connect(addr).expect("the server listens");
                stream.set_read_timeout(Some(LONG)).unwrap();
                if let Some(answer) = attack.answer() {
                    return talk(&mut stream, attack, answer);
                }
                let mut writer = stream.try_clone().unwrap();
                // A client that only writes may wait for a server that waits for a reader.
                let writing = std::thread::spawn(move || flood(attack, &mut writer));
                until_ended(&mut stream, attack);
                drop(stream);
                writing.join().unwrap();
            });
        }
        ask_quietly(&mut quiet, attacks)
    });
    for attack in &meant {
        if let Some(reason) = attack.limit.reason() {
            assert!(site.logged(reason), "{}: {reason}", attack.name);
        }
    }
    // It has its turn among the attackers.
    assert!(served > meant.len(), "{served} quiet requests");
}

#[test]
fn every_attack_ends_at_its_limit_and_none_holds_up_a_quiet_client() {
    // No timeout ends an attack before its limit does.
    attack(LONG, |attack| !attack.waits());
}

#[test]
fn every_attack_that_waits_ends_by_its_timeout_and_none_holds_up_a_quiet_client() {
    attack(Duration::from_secs(2), Attack::waits);
}

/// Takes one attack off the count, also where it panics.
struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sends an attack until the server takes no more.
fn flood(attack: &Attack, writer: &mut TcpStream) {
    let mut bytes = Vec::new();
    for piece in attack.pieces() {
        bytes.extend_from_slice(&piece);
        if bytes.len() >= 4096 {
            if writer.write_all(&bytes).is_err() {
                return;
            }
            bytes.clear();
        }
    }
    let _ = writer.write_all(&bytes);
}

/// Sends an attack turn by turn, and reads the answer to each, until the server ends the connection.
fn talk(stream: &mut TcpStream, attack: &Attack, answer: usize) {
    let mut piece = vec![0; 64 << 10];
    for (turn, bytes) in attack.pieces().enumerate() {
        // The frames of the client alone end a connection after 900 turns.
        assert!(turn < 200, "{}: the answers cost nothing", attack.name);
        if stream.write_all(&bytes).is_err() {
            return;
        }
        let mut left = if turn == 0 { 0 } else { answer };
        while left > 0 {
            match stream.read(&mut piece) {
                Ok(count @ 1..) => left = left.saturating_sub(count),
                Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{}: {error}", attack.name),
                Ok(0) | Err(_) => return,
            }
        }
    }
}

/// Reads until the server ends the connection. For an attack that waits, an RST_STREAM frame counts too.
fn until_ended(stream: &mut TcpStream, attack: &Attack) {
    let mut received = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return,
            Ok(count) => received.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("{}: {error}", attack.name),
        }
        if attack.waits() && received.windows(5).any(|begin| begin == [0, 0, 4, 3, 0]) {
            return;
        }
    }
}

#[test]
fn a_client_that_cancels_often_is_not_punished() {
    let site = site(super::router());
    // What is on its way to a stream that it has cancelled is work for nothing, but its own fault.
    let limits = Limits {
        frame_burst: 10_000_000,
        ..Limits::default()
    };
    let mut client = Client::with(site.addr, &limits);
    for _ in 0..1000 {
        let stream = client.begin("GET", "/big/1000000", &[], true);
        client.until("the response has begun", |client| client.replies[&stream].status == 200);
        client.machine.reset(stream, ErrorCode::CANCEL);
        client.machine.finish(stream);
    }
    assert_eq!(client.get("/").text(), "hello");
}
