//! Upgraded connections through a proxy: a tunnel begins only when the backend agrees, and lasts
//! until both directions have ended.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use osier::memory::{self, Account};

use crate::common::backend::{Backend, Conn, pattern, serve};
use crate::common::{Client, PATIENCE, Site, eventually, site_with, taken};
use crate::memory::in_a_small_child;
use crate::tls;
use osier_web::proxy::{Options, Proxy};
use osier_web::upstream::Upstream;
use osier_web::{CloseReason, ConnectionEvent, Router, Server, Timeouts, TunnelEnd};

const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: ECHO\r\nConnection: upgrade\r\nX-Tunnel: yes\r\n\r\n";

/// A time so long that a busy machine does not explain it.
const LONG: Duration = Duration::from_secs(4);

/// Responds to the first request with a 101 and gives the connection to `then`.
fn switching(then: impl Fn(&mut Conn) + Send + Sync + 'static) -> (Backend, Upstream) {
    let backend = Backend::start(move |_, conn| {
        let asked = conn.head().expect("a request");
        assert_eq!(
            (asked.header("upgrade"), asked.header("connection")),
            (Some("echo"), Some("upgrade"))
        );
        conn.send(SWITCH);
        then(conn);
    });
    let upstream = backend.upstream().build().unwrap();
    (backend, upstream)
}

fn upgraded(site: &Site) -> Client {
    upgrade(site.connect())
}

fn upgrade<S: Read + Write>(mut client: Client<S>) -> Client<S> {
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    let (status, head) = client.head();
    assert_eq!(status, 101, "{head}");
    assert!(
        head.contains("upgrade: ECHO\n") && head.contains("X-Tunnel: yes\n"),
        "{head}"
    );
    assert!(
        !head.contains("content-length") && !head.contains("transfer-encoding"),
        "{head}"
    );
    client
}

#[test]
fn the_end_of_one_direction_is_passed_on_and_the_other_goes_on() {
    // The client ends first.
    let (_backend, upstream) = switching(|conn| {
        assert_eq!(conn.rest(), b"all of it");
        conn.send("thanks");
    });
    let site = serve(Proxy::new(upstream.clone()));
    let mut client = upgraded(&site);
    client.send("all of it");
    client.finish_sending();
    assert_eq!(client.rest(), b"thanks");
    eventually("the lease ends", || upstream.stats()[0].leases == 0);

    // The backend ends first.
    let (all, received) = mpsc::channel();
    let (_backend, upstream) = switching(move |conn| {
        conn.send("that is all");
        conn.finish_sending();
        all.send(conn.rest()).unwrap();
    });
    let site = serve(Proxy::new(upstream.clone()));
    let mut client = upgraded(&site);
    assert_eq!(client.rest(), b"that is all");
    client.send("more");
    client.finish_sending();
    assert_eq!(received.recv_timeout(PATIENCE).unwrap(), b"more");
    eventually("the lease ends", || upstream.stats()[0].leases == 0);
    assert_eq!(upstream.stats()[0].kept, 0, "never kept");
}

#[test]
fn a_failure_of_one_side_ends_both() {
    let (ended, end) = mpsc::channel();
    let (_backend, upstream) = switching(move |conn| {
        conn.rest();
        ended.send(()).unwrap();
    });
    let site = serve(Proxy::new(upstream.clone()));
    let mut client = upgraded(&site);
    client.send("x");
    client.reset();
    end.recv_timeout(PATIENCE).expect("the backend sees the end");

    let (_backend, upstream) = switching(|conn| conn.reset());
    let site = serve(Proxy::new(upstream.clone()));
    upgraded(&site).rest();
    eventually("the lease ends", || upstream.stats()[0].leases == 0);
}

#[test]
fn a_tunnel_without_a_byte_is_ended() {
    let (_backend, upstream) = switching(|conn| {
        conn.rest();
    });
    let idle = Duration::from_millis(300);
    let site = serve(Proxy::with(
        upstream.clone(),
        Options {
            tunnel_idle: idle,
            ..Options::default()
        },
    ));
    upgraded(&site).expect_end();
    eventually("the lease ends", || upstream.stats()[0].leases == 0);
}

#[test]
fn bytes_right_behind_the_switch_arrive_in_both_directions() {
    let backend = Backend::start(|_, conn| {
        conn.head();
        conn.send(format!("{SWITCH}first words"));
        assert_eq!(conn.take(10).unwrap(), b"more words");
    });
    let site = serve(backend.proxy());
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nmore words");
    assert_eq!(client.head().0, 101);
    assert_eq!(client.rest(), b"first words");
    eventually("the backend has them", || backend.open() == 0);
}

/// The bytes behind an upgrade request that got no 101 are the next request. The proxy parses them
/// as strictly as any.
#[test]
fn nothing_is_tunnelled_before_the_backend_has_agreed() {
    let backend = Backend::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno");
    let site = serve(backend.proxy());
    let mut client = site.connect();
    client.send(
        "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n\
         GET /2 HTTP/1.1\r\nHost: a\r\nConnection: X-Forwarded-For\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
         GET /3\nHost: evil\n\n",
    );
    let statuses = [client.reply().status, client.reply().status, client.reply().status];
    assert_eq!(statuses, [200, 200, 400]);
    client.expect_end();
    let heads = backend.heads.lock().unwrap();
    assert_eq!(heads.len(), 2);
    assert!(heads[1].starts_with("GET /2 HTTP/1.1\r\nhost: a\r\n") && heads[1].contains("x-forwarded-for: 127.0.0.1"));
}

#[test]
fn a_switch_to_what_nobody_has_asked_for_is_502() {
    for (upgrade, answer) in [
        ("", SWITCH),
        ("Connection: Upgrade\r\nUpgrade: other\r\n", SWITCH),
        (
            "Connection: Upgrade\r\nUpgrade: echo\r\n",
            "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\n\r\n",
        ),
        (
            "Connection: Upgrade\r\nUpgrade: echo\r\n",
            "HTTP/1.1 101 Switching\r\nUpgrade: echo\r\n\r\n",
        ),
        ("Upgrade: echo\r\n", SWITCH),
    ] {
        let backend = Backend::answering_once(answer);
        let site = serve(backend.proxy());
        let reply = site.ask(&format!("GET / HTTP/1.1\r\nHost: a\r\n{upgrade}\r\n"));
        assert_eq!(reply.status, 502, "{upgrade:?} {answer:?}");
        assert!(site.logged("a change of protocol that was not asked for"));
        assert_eq!(backend.accepted(), 1);
    }
}

#[test]
fn what_would_carry_more_requests_is_not_switched_to() {
    // Rules for paths, addresses and users would not see the requests in such a tunnel.
    for protocol in ["h2c", "H2C", "h2c, websocket", "HTTP/2.0", "TLS/1.2"] {
        let backend = Backend::answering(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{protocol}",
            protocol.len()
        ));
        let site = serve(backend.proxy());
        let reply = site.ask(&format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
        ));
        assert_eq!((reply.status, reply.text()), (200, protocol));
        let heads = backend.heads.lock().unwrap();
        assert!(!heads[0].to_lowercase().contains("upgrade"), "{}", heads[0]);
    }
}

#[test]
fn tunnels_can_be_switched_off() {
    let backend = Backend::answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let site = serve(backend.proxy_with(Options {
        tunnels: false,
        ..Options::default()
    }));
    let reply = site.ask("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(reply.status, 200);
    let heads = backend.heads.lock().unwrap();
    assert!(!heads[0].to_lowercase().contains("upgrade"), "{}", heads[0]);
}

/// A site whose drain lasts so long, in front of this upstream.
fn draining_for(drain: Duration, upstream: &Upstream) -> Site {
    let router = Router::new().fallback(Proxy::new(upstream.clone()).handler());
    let timeouts = Timeouts {
        drain,
        ..Timeouts::default()
    };
    let server = Server::new(router).timeouts(timeouts);
    site_with(1, server, |server| server.bind("127.0.0.1:0"))
}

/// As nginx and HAProxy do: the peers of a tunnel, and nobody else, know when they are done.
#[test]
fn a_drain_lets_a_tunnel_go_on_until_a_side_ends_it() {
    let (_backend, upstream) = switching(|conn| {
        while let Some(asked) = conn.take(4) {
            conn.send(asked);
        }
        conn.send("bye");
    });
    let site = draining_for(PATIENCE, &upstream);
    let mut client = upgraded(&site);
    let tunnels = || (upstream.stats()[0].leases, upstream.stats()[0].tunnels);
    assert_eq!(tunnels(), (1, 1));
    site.stop.shutdown();
    eventually("the drain has begun", || {
        std::net::TcpStream::connect(site.addr).is_err()
    });
    for _ in 0..3 {
        client.send("ping");
        assert_eq!(client.take(4), b"ping");
        assert!(client.is_quiet_for(Duration::from_millis(50)), "nobody has ended it");
    }
    client.finish_sending();
    assert_eq!(client.rest(), b"bye");
    assert_eq!(site.ended.recv_timeout(PATIENCE).unwrap(), 0, "nothing had to be cut");
    assert_eq!(tunnels(), (0, 0));
}

/// Both directions are full of bytes while the server shuts down.
#[test]
fn a_drain_carries_every_byte_of_a_busy_tunnel() {
    const LENGTH: usize = 8 << 20;
    let (_backend, upstream) = switching(|conn| {
        let mut writer = conn.writer();
        let writing = std::thread::spawn(move || writer.write_all(&pattern(LENGTH)));
        assert_eq!(conn.rest(), pattern(LENGTH));
        writing.join().unwrap().unwrap();
    });
    let site = draining_for(PATIENCE, &upstream);
    let mut client = upgraded(&site);
    // The backend has begun, and can go no further.
    assert_eq!(client.take(1), pattern(LENGTH)[..1]);
    site.stop.shutdown();
    client.send(pattern(LENGTH));
    client.finish_sending();
    assert_eq!(client.rest(), pattern(LENGTH)[1..]);
    assert_eq!(site.ended.recv_timeout(PATIENCE).unwrap(), 0, "nothing had to be cut");
}

#[test]
fn the_end_of_a_drain_ends_both_sides_of_a_tunnel() {
    let (ended, end) = mpsc::channel();
    let (_backend, upstream) = switching(move |conn| {
        assert!(conn.rest().is_empty());
        ended.send(()).unwrap();
    });
    let site = draining_for(Duration::from_millis(200), &upstream);
    let mut client = upgraded(&site);
    site.stop.shutdown();
    assert_eq!(client.rest(), b"");
    end.recv_timeout(PATIENCE).expect("the backend sees the end");
    assert_eq!(site.ended.recv_timeout(PATIENCE).unwrap(), 1);
    eventually("the lease ends", || upstream.stats()[0].leases == 0);
}

/// A peer that has ended its sending direction cannot be distinguished from one that has left.
#[test]
fn a_tunnel_that_is_closed_halfway_and_silent_is_ended_sooner_than_an_idle_one() {
    let cut = Duration::from_secs(1);
    let (done, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let (_backend, upstream) = switching(move |conn| {
        assert_eq!(conn.rest(), b"all of it");
        // Neither sends nor closes.
        let _ = wait.lock().unwrap().recv();
    });
    let site = serve(Proxy::with(
        upstream.clone(),
        Options {
            tunnel_half_closed: cut,
            ..Options::default()
        },
    ));
    let mut client = upgraded(&site);
    client.send("all of it");
    client.finish_sending();
    assert_eq!(
        client.rest(),
        b"",
        "the silent direction ends though nobody has ended it"
    );
    eventually("the lease ends", || upstream.stats()[0].leases == 0);
    drop(done);

    // While both directions are open, the shorter time does not count.
    let (_backend, upstream) = switching(move |conn| {
        // Longer than the time that is not counted.
        std::thread::sleep(cut + cut / 5);
        conn.send("late");
    });
    let site = serve(Proxy::with(
        upstream,
        Options {
            tunnel_half_closed: cut,
            ..Options::default()
        },
    ));
    assert_eq!(upgraded(&site).rest(), b"late");
}

/// Bytes in one direction keep a tunnel beyond its idle timeouts, whether the other direction is
/// idle or closed.
#[test]
fn a_tunnel_with_bytes_in_one_direction_goes_on() {
    let dripping = || {
        switching(move |conn| {
            for _ in 0..13 {
                // Longer than the limit in all, each shorter.
                std::thread::sleep(LONG / 12);
                conn.send(".");
            }
        })
    };
    std::thread::scope(|s| {
        s.spawn(|| {
            let (_backend, upstream) = dripping();
            let site = serve(Proxy::with(
                upstream,
                Options {
                    tunnel_half_closed: LONG,
                    ..Options::default()
                },
            ));
            let mut client = upgraded(&site);
            client.finish_sending();
            assert_eq!(client.rest(), b".............", "half-closed");
        });
        s.spawn(|| {
            let (_backend, upstream) = dripping();
            let site = serve(Proxy::with(
                upstream,
                Options {
                    tunnel_idle: LONG,
                    ..Options::default()
                },
            ));
            assert_eq!(upgraded(&site).rest(), b".............", "open");
        });
    });
}

/// The shorter time begins with the half-close. It is the other side's time to respond.
#[test]
fn silence_before_a_half_close_does_not_count() {
    let (_backend, upstream) = switching(|conn| {
        assert!(conn.rest().is_empty());
        // With the wait below, longer than the limit.
        std::thread::sleep(Duration::from_secs(2));
        conn.send("the answer");
    });
    let site = serve(Proxy::with(
        upstream,
        Options {
            tunnel_half_closed: LONG,
            ..Options::default()
        },
    ));
    let mut client = upgraded(&site);
    // As above.
    std::thread::sleep(LONG - Duration::from_secs(1));
    client.finish_sending();
    assert_eq!(client.rest(), b"the answer");
}

/// The number of the server's connections at rest and of its fibers. Both are those of the end of the worker's last turn.
fn at_rest(site: &Site) -> (usize, usize) {
    let text = site.get("/at-rest").text().to_owned();
    let (resting, fibers) = text.split_once(' ').expect("two numbers");
    (resting.parse().unwrap(), fibers.parse().unwrap())
}

#[test]
fn an_idle_tunnel_holds_no_stack_and_carries_the_next_bytes_of_both_sides() {
    const TUNNELS: usize = 20;
    let (_backend, upstream) = switching(|conn| {
        conn.send("first");
        while let Some(asked) = conn.take(4) {
            conn.send(asked);
        }
    });
    let router = Router::new()
        .get("/at-rest", |_| {
            let worker = &osier::inspect::metrics().expect("on a worker").workers[0];
            format!("{} {}", worker.resting, worker.fibers)
        })
        .fallback(Proxy::new(upstream.clone()).handler());
    let site = site_with(1, Server::new(router), |server| server.bind("127.0.0.1:0"));
    let mut clients: Vec<_> = (0..TUNNELS).map(|_| upgraded(&site)).collect();
    for round in 0..3 {
        if round == 0 {
            clients
                .iter_mut()
                .for_each(|client| assert_eq!(client.take(5), b"first"));
        }
        for client in &mut clients {
            client.send("ping");
            assert_eq!(client.take(4), b"ping");
        }
        // A few others are those of the server.
        eventually("both directions rest", || {
            let (resting, fibers) = at_rest(&site);
            resting >= 2 * TUNNELS && fibers < TUNNELS / 2
        });
    }
    drop(clients);
    eventually("the leases end", || upstream.stats()[0].leases == 0);
    eventually("nothing of them is left", || at_rest(&site).0 < TUNNELS);
}

/// Neither side reads before it has sent all: a direction that waits for its receiver does not stop the other.
#[test]
fn a_direction_that_is_not_taken_does_not_stop_the_other() {
    const LENGTH: usize = 8 << 20;
    let (sent, all_sent) = mpsc::channel();
    let (_backend, upstream) = switching(move |conn| {
        // More than the buffers of all sockets hold, while the client reads nothing.
        let bytes = pattern(LENGTH);
        let mut writer = conn.writer();
        let writing = std::thread::spawn(move || writer.write_all(&bytes));
        assert_eq!(conn.take(LENGTH).expect("all"), pattern(LENGTH));
        sent.send(()).unwrap();
        writing.join().unwrap().unwrap();
    });
    let site = serve(Proxy::new(upstream));
    let mut client = upgraded(&site);
    client.send(pattern(LENGTH));
    all_sent.recv_timeout(PATIENCE).expect("the backend has got all");
    assert_eq!(client.rest(), pattern(LENGTH));
}

#[test]
fn the_reason_tells_how_a_tunnel_has_ended() {
    use CloseReason::{Client as ByClient, Failed, IdleTimeout, Upgraded};
    let (reasons, ended) = mpsc::channel();
    let (_backend, upstream) = switching(|conn| match conn.take(1).as_deref() {
        Some(b"e") => {}
        Some(b"r") => conn.reset(),
        _ => drop(conn.rest()),
    });
    let serve = |options| {
        let reasons = reasons.clone();
        let router = Router::new().fallback(Proxy::with(upstream.clone(), options).handler());
        let server = Server::new(router).on_connection(move |event| {
            if let ConnectionEvent::Closed(reason) = event {
                reasons.send(reason).unwrap();
            }
        });
        site_with(1, server, |server| server.bind("127.0.0.1:0"))
    };
    let reason = || ended.recv_timeout(PATIENCE).expect("a connection ends");
    let site = serve(Options::default());

    let mut client = upgraded(&site);
    client.send("e");
    client.rest();
    drop(client);
    assert_eq!(reason(), Upgraded);

    let mut client = upgraded(&site);
    client.send("r");
    client.rest();
    assert_eq!(reason(), Failed);

    let mut client = upgraded(&site);
    client.send("x");
    client.reset();
    assert_eq!(reason(), ByClient);

    let site = serve(Options {
        tunnel_idle: Duration::from_millis(300),
        ..Options::default()
    });
    let _idle = upgraded(&site);
    assert_eq!(reason(), IdleTimeout);
}

#[test]
fn the_end_of_a_tunnel_is_reported_with_its_bytes_its_time_and_its_reason() {
    let (reports, ended) = mpsc::channel();
    let (_backend, upstream) = switching(|conn| match conn.take(3).as_deref() {
        Some(b"end") => assert!(conn.send("12345")),
        Some(b"rst") => conn.reset(),
        _ => drop(conn.rest()),
    });
    let serve = |options, drain| {
        let reports = reports.clone();
        let router = Router::new().fallback(Proxy::with(upstream.clone(), options).handler());
        let timeouts = Timeouts {
            drain,
            ..Timeouts::default()
        };
        let server = Server::new(router).timeouts(timeouts).on_request(move |served| {
            assert!(served.begins_tunnel());
            let (reports, target) = (reports.clone(), served.target().to_owned());
            served.at_tunnel_end(move |tunnel| {
                let bytes = (tunnel.received(), tunnel.sent());
                let text = (target, tunnel.backend().to_owned(), tunnel.end());
                reports.send((bytes, text, tunnel.duration())).unwrap();
            });
        });
        site_with(1, server, |server| server.bind("127.0.0.1:0"))
    };
    let label = upstream.label(0).to_owned();
    let expect = |bytes, end| {
        let (counted, text, time) = ended.recv_timeout(PATIENCE).expect("a tunnel ends");
        assert_eq!((counted, text), (bytes, ("/".into(), label.clone(), end)));
        assert!(time < PATIENCE, "{time:?}");
    };
    let site = serve(Options::default(), Duration::from_millis(100));

    let mut client = upgraded(&site);
    client.send("end");
    assert_eq!(client.rest(), b"12345");
    drop(client);
    expect((3, 5), TunnelEnd::Backend);

    let mut client = upgraded(&site);
    client.send("the rest");
    client.finish_sending();
    client.rest();
    expect((8, 0), TunnelEnd::Client);

    let mut client = upgraded(&site);
    client.send("rst");
    client.rest();
    expect((3, 0), TunnelEnd::BackendFailed);

    let mut client = upgraded(&site);
    client.send("x");
    taken(&client.stream);
    client.reset();
    expect((1, 0), TunnelEnd::ClientFailed);

    let _open = upgraded(&site);
    site.stop.shutdown();
    expect((0, 0), TunnelEnd::Shutdown);

    let idle = Options {
        tunnel_idle: Duration::from_millis(300),
        ..Options::default()
    };
    let site = serve(idle, PATIENCE);
    let _idle = upgraded(&site);
    expect((0, 0), TunnelEnd::IdleTimeout);
    let stats = &upstream.stats()[0];
    let bytes = (stats.tunnel_bytes_to_backend, stats.tunnel_bytes_to_clients);
    assert_eq!((stats.tunnels_ended, bytes), (6, (15, 5)));
    assert!(
        stats.tunnel_time >= Duration::from_millis(400),
        "{:?}",
        stats.tunnel_time
    );
}

/// Each small record is a read and a write of its own, and the client never pauses.
#[test]
fn a_tunnel_of_small_records_over_tls_leaves_others_their_turns() {
    let (_backend, upstream) = switching(|conn| drop(conn.rest()));
    let router = Router::new()
        .get("/other", |_| "served")
        .fallback(Proxy::new(upstream).handler());
    let site = tls::site(router, |server| server);
    let mut client = tls::connect(&site);
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(client.head().0, 101);
    let mut other = tls::connect(&site);
    let (stop, began) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
                client.send("x");
            }
        });
        for _ in 0..50 {
            assert_eq!(other.get("/other").text(), "served");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Sends why each tunnel of the server has ended.
pub fn telling(server: Server) -> (Server, mpsc::Receiver<&'static str>) {
    let (tell, told) = mpsc::channel();
    let server = server.on_request(move |served| {
        let tell = tell.clone();
        served.at_tunnel_end(move |tunnel| {
            let _ = tell.send(tunnel.end().as_str());
        });
    });
    (server, told)
}

/// The end of the drain reaches a TLS session as an end of TCP without a word of TLS.
#[test]
fn the_end_of_a_drain_is_no_failure_of_a_client_over_tls() {
    let (_backend, upstream) = switching(|conn| drop(conn.rest()));
    let router = Router::new().fallback(Proxy::new(upstream).handler());
    let mut told = None;
    let site = tls::site(router, |server| {
        let timeouts = Timeouts {
            drain: Duration::from_millis(200),
            ..Timeouts::default()
        };
        let (server, ends) = telling(server.timeouts(timeouts));
        told = Some(ends);
        server
    });
    let _client = upgrade(tls::connect(&site));
    site.stop.shutdown();
    assert_eq!(told.unwrap().recv_timeout(PATIENCE), Ok("shutdown"));
}

/// The runtime goes on, as it does after a reload that has removed a listener.
#[test]
fn the_end_of_a_drain_ends_a_tunnel_whose_client_has_half_closed() {
    for pours in [false, true] {
        let (done, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let (_backend, upstream) = switching(move |conn| {
            assert!(conn.rest().is_empty());
            conn.send("it has");
            while pours && conn.send([b'x'; 1 << 16]) {}
            let _ = wait.lock().unwrap().recv();
        });
        let options = Options {
            tunnel_half_closed: Duration::from_secs(3600),
            ..Options::default()
        };
        let router = Router::new().fallback(Proxy::with(upstream.clone(), options).handler());
        let timeouts = Timeouts {
            drain: Duration::from_millis(200),
            ..Timeouts::default()
        };
        let (server, told) = telling(Server::new(router).timeouts(timeouts));
        let (started, start) = mpsc::channel();
        let (stop, stopped) = mpsc::channel::<()>();
        let running = thread::spawn(move || {
            let runtime = osier::Runtime::builder().workers(1).build().unwrap();
            runtime.run(move || {
                let listening = server.bind("127.0.0.1:0").unwrap();
                started.send((listening.local_addr(), listening.handle())).unwrap();
                listening.run();
                let _ = osier::unblock(move || stopped.recv());
            });
        });
        let (addr, handle) = start.recv_timeout(PATIENCE).expect("the server starts");
        let mut client = upgrade(Client::new(TcpStream::connect(addr).unwrap()));
        client.finish_sending();
        assert_eq!(client.take(6), b"it has");
        handle.shutdown();
        assert_eq!(told.recv_timeout(PATIENCE), Ok("shutdown"), "{pours}");
        eventually("the lease ends", || upstream.stats()[0].leases == 0);
        drop((done, stop));
        running.join().unwrap();
    }
}

#[test]
fn a_tunnel_that_is_closed_because_memory_is_short_says_so() {
    let name = "proxy_tunnel::a_tunnel_that_is_closed_because_memory_is_short_says_so";
    in_a_small_child(name, || {
        let (_backend, upstream) = switching(|conn| while conn.send([b'x'; 1 << 16]) {});
        let router = Router::new().fallback(Proxy::new(upstream).handler());
        let (server, told) = telling(Server::new(router));
        let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
        for half_closed in [false, true] {
            let client = upgraded(&site);
            if half_closed {
                client.finish_sending();
            }
            let all = Account::named("greedy").charge(memory::limit().expect("the child has one"));
            assert_eq!(told.recv_timeout(PATIENCE), Ok("evicted"), "{half_closed}");
            drop((client, all));
        }
    });
}

#[test]
fn a_hook_that_panics_at_the_end_of_a_tunnel_is_logged() {
    let (_backend, upstream) = switching(|conn| drop(conn.rest()));
    let router = Router::new().fallback(Proxy::new(upstream.clone()).handler());
    let server = Server::new(router).on_request(|served| served.at_tunnel_end(|_| panic!("a bad hook")));
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    drop(upgraded(&site));
    eventually("a line", || {
        site.logged("the hook at the end of a tunnel panicked: a bad hook")
    });
    drop(upgraded(&site));
    eventually("the leases end", || upstream.stats()[0].leases == 0);
}
