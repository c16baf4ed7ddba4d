//! A server from listening to its last connection: graceful shutdown, distribution over workers,
//! the limit of connections, the access log.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::{Client, PATIENCE, Site, eventually, forever, logging_site, site, site_with};
use osier_web::http::StatusCode;
use osier_web::{ConnectionEvent, Limits, Request, Response, Route, Router, Server, Timeouts};

const MIB: usize = 1 << 20;

#[test]
fn shutdown_closes_idle_connections_and_finishes_running_requests() {
    let (begun, has_begun) = mpsc::channel();
    let begun = Mutex::new(begun);
    let release = Arc::new(osier::sync::Event::new());
    let released = Arc::clone(&release);
    let router = Router::new()
        .get("/", |_| "hi")
        .get("/slow", move |_: &mut Request<'_>| {
            begun.lock().unwrap().send(()).unwrap();
            released.wait();
            "slow"
        });
    let site = site(router);
    let mut idle = site.connect();
    assert_eq!(idle.get("/").text(), "hi");
    let mut running = site.connect();
    running.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n");
    has_begun.recv_timeout(PATIENCE).unwrap();

    site.stop.shutdown();
    idle.expect_end();
    release.set();
    let reply = running.reply();
    assert_eq!((reply.text(), reply.header("connection")), ("slow", Some("close")));
    running.expect_end();
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0));
    assert!(std::net::TcpStream::connect(site.addr).is_err());
}

#[test]
fn a_drain_is_bounded() {
    let (begun, has_begun) = mpsc::channel();
    let begun = Mutex::new(begun);
    let router = Router::new().get("/", move |_: &mut Request<'_>| {
        begun.lock().unwrap().send(()).unwrap();
        forever();
    });
    let timeouts = Timeouts {
        drain: Duration::from_millis(100),
        ..Timeouts::default()
    };
    let server = Server::new(router).timeouts(timeouts);
    let site = site_with(2, server, |server| server.bind("127.0.0.1:0"));
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    has_begun.recv_timeout(PATIENCE).unwrap();
    site.stop.shutdown();
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(1));
    client.expect_end();
}

#[test]
fn connections_are_handed_to_the_emptiest_worker() {
    let router = Router::new().get("/", |_| osier::fiber::worker().expect("on a worker").to_string());
    // There is one listener, so worker 0 accepts all sockets.
    let site = site_with(2, Server::new(router), |server| {
        server.listener(osier::net::TcpListener::bind("127.0.0.1:0")?)
    });
    let mut clients: Vec<Client> = Vec::new();
    let mut on_each = [0, 0];
    for _ in 0..64 {
        let mut client = site.connect();
        on_each[client.get("/").text().parse::<usize>().unwrap()] += 1;
        clients.push(client);
    }
    assert!(on_each[1] >= 16, "{on_each:?}");
    // A connection stays on its worker.
    let before: Vec<String> = clients
        .iter_mut()
        .map(|client| client.get("/").text().to_owned())
        .collect();
    let after: Vec<String> = clients
        .iter_mut()
        .map(|client| client.get("/").text().to_owned())
        .collect();
    assert_eq!(before, after);
}

#[test]
fn open_connections_are_counted() {
    let (give, taken) = mpsc::channel();
    let site = site_with(2, Server::new(Router::new().get("/", |_| "hi")), move |server| {
        let listening = server.bind("127.0.0.1:0")?;
        give.send(listening.connections()).unwrap();
        Ok(listening)
    });
    let connections = taken.recv_timeout(PATIENCE).unwrap();
    assert_eq!(connections.count(), 0);
    let mut clients: Vec<Client> = (0..5).map(|_| site.connect()).collect();
    for client in &mut clients {
        client.get("/");
    }
    assert_eq!(connections.count(), 5);
    assert_eq!((0..2).map(|index| connections.of_worker(index)).sum::<usize>(), 5);
    assert_eq!(connections.of_worker(2), 0);
    clients.truncate(2);
    eventually("three are gone", || connections.count() == 2);
}

#[test]
fn every_worker_serves_on_the_shared_address() {
    let router = Router::new().get("/", |_| osier::fiber::worker().expect("on a worker").to_string());
    let site = site_with(2, Server::new(router), |server| server.bind("127.0.0.1:0"));
    let mut clients: Vec<Client> = (0..128).map(|_| site.connect()).collect();
    let seen: HashSet<String> = clients
        .iter_mut()
        .map(|client| client.get("/").text().to_owned())
        .collect();
    assert_eq!(seen.len(), 2, "{seen:?}");
}

/// A router whose `/hold` answers only when its client has gone, and the receiver that hears of each such request.
fn holding() -> (Router, mpsc::Receiver<()>) {
    let (begun, has_begun) = mpsc::channel();
    let begun = Mutex::new(begun);
    let hold = move |_: &mut Request<'_>| {
        begun.lock().unwrap().send(()).unwrap();
        forever();
    };
    let router = Router::new()
        .get("/", |_| "hi")
        .route("/hold", Route::new().get(hold).cancel_when_gone());
    (router, has_begun)
}

#[test]
fn no_more_connections_than_allowed() {
    let (router, has_begun) = holding();
    let server = Server::new(router).max_connections(2);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    // Connections with an in-flight request are never closed for others.
    let mut busy = [site.connect(), site.connect()];
    for client in &mut busy {
        client.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
        has_begun.recv_timeout(PATIENCE).unwrap();
    }
    let mut waiting = site.connect();
    waiting.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    assert!(waiting.is_quiet_for(Duration::from_millis(100)));
    eventually("it is said", || site.logged("2 connections, none of them idle"));
    let listener = format!("; raise 'max_connections' of {}", site.addr);
    assert!(site.logged(&listener));
    let [first, _second] = busy;
    drop(first);
    assert_eq!(waiting.reply().text(), "hi");
}

#[test]
fn workers_without_room_have_one_line_together() {
    let (router, has_begun) = holding();
    let server = Server::new(router).max_connections(1);
    let site = site_with(4, server, |server| server.bind("127.0.0.1:0"));
    let mut busy = site.connect();
    busy.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
    has_begun.recv_timeout(PATIENCE).unwrap();
    let start = std::time::Instant::now();
    // The kernel spreads them over the workers. Each connection makes its worker say that it waits, and the next one waits behind it.
    let mut waiting: Vec<Client> = (0..64).map(|_| site.connect()).collect();
    for client in &mut waiting {
        client.send("GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    }
    eventually("it is said", || site.logged("1 connections, none of them idle"));
    drop(busy);
    for client in &mut waiting {
        assert_eq!(client.reply().text(), "hi");
    }
    let said = site.log.lock().unwrap().len();
    // Another line may follow five seconds later.
    assert!(said <= 1 + start.elapsed().as_secs() as usize / 5, "{said}");
}

#[test]
fn a_connection_that_waits_for_room_is_served_at_a_shutdown() {
    let (router, has_begun) = holding();
    let server = Server::new(router).max_connections(1);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut busy = site.connect();
    busy.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
    has_begun.recv_timeout(PATIENCE).unwrap();
    let mut waiting = site.connect();
    waiting.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    eventually("it waits", || site.logged("1 connections, none of them idle"));
    site.stop.close();
    assert_eq!(waiting.reply().text(), "hi");
    drop(busy);
}

#[test]
fn silent_connections_make_room_for_new_ones() {
    let server = Server::new(Router::new().get("/", |_| "hi")).max_connections(20);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut kept = site.connect();
    assert_eq!(kept.get("/").text(), "hi");
    let silent: Vec<Client> = (0..200).map(|_| site.connect()).collect();
    assert_eq!(site.get("/").text(), "hi");
    let is_over = |client: &&Client| {
        client.stream.set_nonblocking(true).unwrap();
        !matches!(client.stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    // The kernel gives them to the server after a second. Each takes the place of one that was silent for longer.
    eventually("most are gone", || silent.iter().filter(is_over).count() >= 180);
    // One that sends gets a response in any case.
    assert_eq!(site.get("/").text(), "hi");
    assert!(site.logged("the ones that are idle longest are closed"));
    drop(kept);
}

#[test]
fn a_client_that_was_refused_and_goes_on_sending_makes_room() {
    let server = Server::new(Router::new().get("/", |_| "hi")).max_connections(1);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut refused = site.connect();
    refused.send("nonsense\r\n\r\n");
    assert_eq!(refused.reply().status, 400);
    let mut waiting = site.connect();
    waiting.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    // Without a pause of five seconds the server would read for a minute.
    waiting.stream.set_nonblocking(true).unwrap();
    eventually("it is answered", || {
        let _ = refused.stream.write(b"x");
        waiting.stream.peek(&mut [0]).is_ok()
    });
    waiting.stream.set_nonblocking(false).unwrap();
    assert_eq!(waiting.reply().text(), "hi");
}

#[test]
fn the_connection_that_is_idle_longest_closes() {
    let server = Server::new(Router::new().get("/", |_| "hi")).max_connections(6);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let ask = |client: &mut Client| {
        // The order of two requests in one millisecond is not known.
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(client.get("/").text(), "hi");
    };
    let mut kept: Vec<Client> = (0..6).map(|_| site.connect()).collect();
    // The order of the last requests is neither that of the connections nor its reverse.
    for index in [0, 1, 2, 3, 4, 5, 0, 3, 1] {
        ask(&mut kept[index]);
    }
    let mut later = Vec::new();
    for oldest in [2, 4, 5, 0, 3] {
        let mut new = site.connect();
        ask(&mut new);
        later.push(new);
        kept[oldest].expect_end();
    }
    ask(&mut kept[1]);
    later.iter_mut().for_each(ask);
}

#[test]
fn a_worker_with_busy_connections_alone_asks_the_others() {
    let worker = |_: &mut Request<'_>| osier::fiber::worker().unwrap().to_string();
    let router = Router::new()
        .get("/", worker)
        .get("/hold", |_: &mut Request<'_>| forever());
    let server = Server::new(router).max_connections(16);
    let site = site_with(2, server, |server| server.bind("127.0.0.1:0"));
    let (mut busy, mut idle) = (Vec::new(), Vec::new());
    // Connections of worker 1 become busy, so only worker 0 has idle ones.
    for round in 0..100 {
        let mut client = site.connect();
        match client.get("/").text() {
            "1" => {
                client.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
                busy.push(client);
            }
            _ => idle.push(client),
        }
        if busy.len() == 12 && round >= 24 {
            return;
        }
        if busy.len() >= 14 {
            break;
        }
    }
    println!(
        "skipped: the kernel gave worker 1 {} connections, too few or too many",
        busy.len()
    );
}

/// A site that loses the fiber that accepts: the hook for its log panics there, at the line about a client with two connections.
fn without_a_fiber_that_accepts() -> Site {
    let server = Server::new(Router::new().get("/", |_| "hi")).max_connections_per_client(1);
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let site = logging_site(server, move |record| {
        let line = record.to_string();
        if line.contains("connections of one client") {
            panic!("on purpose");
        }
        log.lock().unwrap().push(line);
    });
    let mut first = site.connect();
    assert_eq!(first.get("/").text(), "hi");
    let mut second = site.connect();
    second.send("G");
    let line = "the fiber that accepts on worker 0 panicked: on purpose; another one follows in 1s";
    eventually("the fiber is lost", || *lines.lock().unwrap() == [line]);
    drop(first);
    eventually("the client may come again", || site.connections.count() == 0);
    site
}

#[test]
fn a_listener_whose_accepting_fiber_is_lost_gets_another_one() {
    let site = without_a_fiber_that_accepts();
    assert_eq!(site.get("/").text(), "hi");
}

#[test]
fn a_server_that_stops_before_a_lost_fiber_is_replaced_serves_its_backlog() {
    let site = without_a_fiber_that_accepts();
    let mut waiting = site.connect();
    waiting.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    site.stop.shutdown();
    assert_eq!(waiting.reply().text(), "hi");
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0));
}

#[test]
fn a_server_that_stops_as_soon_as_it_runs_serves_its_backlog() {
    let (give, taken) = mpsc::channel();
    let server = Server::new(Router::new().get("/", |_| "hi"));
    let site = site_with(2, server, move |server| {
        let listening = server.bind("127.0.0.1:0")?;
        let mut waiting = std::net::TcpStream::connect(listening.local_addr())?;
        waiting.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")?;
        give.send(waiting).unwrap();
        listening.handle().shutdown();
        Ok(listening)
    });
    let mut waiting = Client::new(taken.recv_timeout(PATIENCE).unwrap());
    assert_eq!(waiting.reply().text(), "hi");
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0));
}

#[test]
fn a_hook_that_panics_costs_no_connection_and_no_place() {
    let server = Server::new(Router::new().get("/", |_| "hi"))
        .max_connections_per_client(1)
        .on_connection(|event| panic!("at {event:?}"));
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    for _ in 0..3 {
        assert_eq!(site.get("/").text(), "hi");
        eventually("the place is free again", || site.connections.count() == 0);
    }
    assert!(site.logged("the hook of 'on_connection' panicked: at Opened"));
    eventually("the end is logged", || {
        site.logged("the hook of 'on_connection' panicked: at Closed(")
    });
    assert!(!site.logged("the fiber that accepts"));
}

/// The shutdown cancelled the fiber that accepts within the hook: the connection was lost, and so were those in the backlog.
#[test]
fn a_hook_that_waits_at_the_shutdown_costs_no_connection() {
    let hook = |event| {
        if event == ConnectionEvent::Opened {
            osier::sleep(Duration::from_millis(300));
        }
    };
    let server = Server::new(Router::new().get("/", |_| "hi")).on_connection(hook);
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut clients: Vec<Client> = (0..4).map(|_| site.connect()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    eventually("one is accepted", || site.connections.count() > 0);
    site.stop.shutdown();
    for client in &mut clients {
        assert_eq!(client.reply().text(), "hi");
    }
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0));
}

#[test]
fn a_client_has_so_many_connections() {
    let server = Server::new(Router::new().get("/", |_| "hi")).max_connections_per_client(3);
    let site = site_with(2, server, |server| server.bind("127.0.0.1:0"));
    let mut held: Vec<Client> = (0..3).map(|_| site.connect()).collect();
    for client in &mut held {
        assert_eq!(client.get("/").text(), "hi");
    }
    let is_served = || {
        let mut client = site.connect();
        client.try_send("GET / HTTP/1.1\r\nHost: t\r\n\r\n") && matches!(client.stream.read(&mut [0]), Ok(1))
    };
    assert!(!is_served(), "a fourth one");
    // The line comes after the reset.
    eventually("the line", || {
        site.logged("3 connections of one client, 127.0.0.1: further ones are reset ('max_connections_per_client')")
    });
    assert_eq!(held[0].get("/").text(), "hi");
    drop(held.pop());
    eventually("the place is free again", is_served);
}

#[test]
fn a_connection_whose_worker_ends_before_it_takes_the_connection_is_counted_no_longer() {
    let runtime = osier::Runtime::builder().workers(2).build().unwrap();
    let (send, receive) = mpsc::channel();
    drop(runtime.spawn(move || {
        let listener = osier::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::new(Router::new()).max_connections_per_client(1000);
        // One listener, so that worker 0 accepts all connections.
        let listening = server.listener(listener).unwrap();
        send.send((listening.local_addr(), listening.connections())).unwrap();
        listening.run();
    }));
    let (addr, connections) = receive.recv_timeout(PATIENCE).unwrap();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel();
    drop(runtime.spawn(move || {
        let blocked = osier::fiber::Builder::new().worker(1).spawn(move || {
            begun.send(()).unwrap();
            let _ = may_go_on.recv_timeout(PATIENCE);
        });
        blocked.join().unwrap();
    }));
    has_begun.recv_timeout(PATIENCE).unwrap();
    let held: Vec<_> = (0..40).map(|_| std::net::TcpStream::connect(addr).unwrap()).collect();
    eventually("all are accepted", || connections.count() == held.len());
    assert!(connections.of_worker(1) > 0);
    let ending = std::thread::spawn(move || drop(runtime));
    eventually("worker 0 has ended its own", || connections.of_worker(0) == 0);
    go_on.send(()).unwrap();
    ending.join().unwrap();
    assert_eq!(connections.count(), 0);
}

#[test]
fn a_request_on_its_way_at_the_shutdown_is_answered() {
    let (begun, has_begun) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let (begun, may_go_on) = (Mutex::new(begun), Mutex::new(may_go_on));
    let router = Router::new()
        .get("/", |_| "hi")
        // Blocks the only worker, so that everything below arrives while the server does nothing.
        .get("/stop", move |_: &mut Request<'_>| {
            begun.lock().unwrap().send(()).unwrap();
            let _ = may_go_on.lock().unwrap().recv_timeout(PATIENCE);
            "stopped"
        });
    let site = site(router);
    let mut kept: Vec<Client> = (0..10).map(|_| site.connect()).collect();
    for client in &mut kept {
        assert_eq!(client.get("/").text(), "hi");
    }
    let mut silent = site.connect();
    let mut late = site.connect();
    eventually("all are accepted", || site.connections.count() == 12);
    let mut stopping = site.connect();
    stopping.send("GET /stop HTTP/1.1\r\nHost: t\r\n\r\n");
    has_begun.recv_timeout(PATIENCE).unwrap();

    // Requests in the buffers of kept connections, and in the backlog.
    for client in &mut kept {
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    let mut backlog: Vec<Client> = (0..50).map(|_| site.connect()).collect();
    for client in &mut backlog {
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    site.stop.shutdown();
    go_on.send(()).unwrap();
    assert_eq!(stopping.reply().text(), "stopped");
    for client in kept.iter_mut().chain(&mut backlog) {
        assert_eq!(client.reply().text(), "hi");
        client.expect_end();
    }
    // The connection is accepted, and its first request arrives a little later.
    late.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(late.reply().text(), "hi");
    silent.expect_end();
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0));
}

/// Other systems have no such option.
#[cfg(target_os = "linux")]
#[test]
fn a_client_is_accepted_with_its_first_bytes_or_after_a_second() {
    let site = site(Router::new().get("/", |_| "hi"));
    // A thread that has stood still for a second tries again.
    let silent = (0..20).find_map(|_| {
        eventually("those of the last try have ended", || site.connections.count() == 0);
        let silent = site.connect();
        let mut speaks = site.connect();
        assert_eq!(speaks.get("/").text(), "hi");
        (site.connections.count() == 1).then_some(silent)
    });
    let mut silent = silent.expect("a client that speaks is accepted before one that connected earlier");
    eventually("the silent one is accepted", || site.connections.count() == 1);
    assert_eq!(silent.get("/").text(), "hi");
}

/// Other systems have no such option.
#[cfg(target_os = "linux")]
#[test]
fn a_client_that_first_speaks_after_the_shutdown_is_reset() {
    // A thread that has stood still for a second tries again: the client was accepted then.
    let is_reset = (0..20).any(|_| {
        let site = site(Router::new().get("/", |_| "hi"));
        let mut late = site.connect();
        site.stop.shutdown();
        assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0));
        late.try_send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        late.stream
            .read(&mut [0])
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
    });
    assert!(is_reset);
}

/// A shutdown meets connections in every state: requests that wait in the kernel behind a busy worker are answered, idle connections
/// get the end and no reset.
#[test]
fn hundreds_of_shutdowns_lose_no_request_that_has_arrived() {
    std::thread::scope(|s| {
        for thread in 0..4 {
            s.spawn(move || (0..75).for_each(|round| stop_in_every_state(thread * 75 + round)));
        }
    });
}

fn stop_in_every_state(seed: u64) {
    let router = Router::new().get("/", |_| "hi").get("/work", |_| {
        let until = std::time::Instant::now() + Duration::from_micros(300);
        while std::time::Instant::now() < until {
            std::hint::spin_loop();
        }
        "done"
    });
    let site = site(router);
    let mut kept: Vec<Client> = (0..5).map(|_| site.connect()).collect();
    for client in &mut kept {
        assert_eq!(client.get("/").text(), "hi");
    }
    let (mut idle, mut busy) = (kept.remove(0), kept.remove(0));
    busy.send("GET /work HTTP/1.1\r\nHost: t\r\n\r\n");
    for client in &mut kept {
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        // Pauses that differ from round to round: the worker is before, in and behind its work.
        (0..seed * 7919 % 3000).for_each(|_| std::hint::spin_loop());
    }
    site.stop.shutdown();
    assert_eq!(busy.reply().text(), "done", "{seed}");
    busy.expect_end();
    for client in &mut kept {
        assert_eq!(client.reply().text(), "hi", "{seed}");
        client.expect_end();
    }
    idle.expect_end();
}

#[test]
fn an_early_answer_reaches_a_client_that_is_still_sending() {
    const BODY: usize = 32 << 20;
    let limits = Limits {
        body: BODY as u64,
        ..Limits::default()
    };
    let refused = Server::new(Router::new().post("/", |_| (StatusCode::FORBIDDEN, "no")));
    let too_large = Server::new(Router::new().post("/", |_| "not called"));
    for (server, status, text) in [
        (refused.limits(limits), 403, "no"),
        (too_large, 413, "the body is larger than the limit\n"),
    ] {
        let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
        let mut client = site.connect();
        client.send(format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {BODY}\r\n\r\n"));
        for _ in 0..BODY / MIB {
            assert!(client.try_send([b'x'; MIB]), "the server has reset the connection");
        }
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (status, text));
        client.expect_end();
    }
}

#[test]
fn a_port_in_use_is_a_clear_error() {
    let site = site(Router::new());
    let addr = site.addr;
    let error = osier::run(move || Server::new(Router::new()).bind(addr).map(drop).unwrap_err());
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
}

#[test]
fn a_timeout_of_zero_is_a_clear_error() {
    let timeouts = Timeouts {
        write: Duration::ZERO,
        ..Timeouts::default()
    };
    let error = osier::run(move || {
        Server::new(Router::new())
            .timeouts(timeouts)
            .bind("127.0.0.1:0")
            .map(drop)
            .unwrap_err()
    });
    assert!(error.to_string().contains("Timeouts::write is zero"), "{error}");
}

#[test]
fn the_observer_sees_every_request() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let lines = seen.clone();
    let router = Router::new()
        .get("/", |_| "hello")
        .get("/stream", |_| Response::stream(|out| out.write_all(&[b'x'; 1000])))
        .route("/slow", Route::new().get(|_| forever()).cancel_when_gone());
    let server = Server::new(router).on_request(move |served| {
        let agent = String::from_utf8_lossy(served.header("user-agent").unwrap_or_default()).into_owned();
        let (method, target, status) = (served.method(), served.target(), served.status().as_u16());
        assert!(served.duration() < PATIENCE);
        let line = format!(
            "{} {method} {target} {} {status} {} {agent}",
            served.peer(),
            served.protocol(),
            served.bytes()
        );
        lines.lock().unwrap().push(line);
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = site.connect();
    let peer = client.stream.local_addr().unwrap();
    client.send("GET /?q HTTP/1.1\r\nHost: t\r\nUser-Agent: test\r\n\r\n");
    client.reply();
    client.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    client.reply();
    let mut client = site.connect();
    let other = client.stream.local_addr().unwrap();
    client.get("/none");
    client.send("broken\r\n\r\n");
    client.reply();
    let mut client = site.connect();
    let gone = client.stream.local_addr().unwrap();
    client.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n");
    client.finish_sending();
    client.expect_end();
    eventually("five lines", || seen.lock().unwrap().len() == 5);
    let expected = [
        format!("{peer} GET /?q HTTP/1.1 200 5 test"),
        format!("{peer} GET /stream HTTP/1.0 200 1000 "),
        format!("{other} GET /none HTTP/1.1 404 14 "),
        format!("{other}   HTTP/1.1 400 25 "),
        format!("{gone} GET /slow HTTP/1.1 499 0 "),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}
