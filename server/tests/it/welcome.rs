//! The built-in site without a browser: who may see live data, the format of the stream, and its end.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;

use crate::support::{Client, DEADLINE, Folder, Reply, Server, Signal};
use serde_json::Value;

const LIVE: [&str; 3] = ["/live/connections", "/live/events", "/live/fibers"];

fn welcome(arguments: &[&str]) -> Server {
    let mut command = crate::support::osier();
    command.args(["-w", "2"]).args(arguments);
    Server::spawn(command)
}

/// The status of a request with this host and these fields.
fn status(address: SocketAddr, target: &str, host: &str, fields: &[&str]) -> u16 {
    let mut client = Client::new(address);
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    client.send_raw(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n").as_bytes());
    client.receive_head().status
}

/// An address of this machine that others can see. Nothing is sent to find it.
fn outer_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

#[test]
fn live_data_is_for_this_machine() {
    let server = welcome(&["-l", "127.0.0.1:0"]);
    for target in LIVE {
        for host in ["localhost", "127.0.0.1:8080", "[::1]", "site.localhost"] {
            assert_eq!(status(server.address, target, host, &[]), 200, "{target} {host}");
        }
        // A name that somebody else owns, pointed here.
        for host in ["example.org", "127.0.0.1.example.org", "192.0.2.1"] {
            assert_eq!(status(server.address, target, host, &[]), 403, "{target} {host}");
        }
        // A proxy on this machine that speaks for others; whatever it says of them.
        for field in [
            "X-Forwarded-For: 203.0.113.7",
            "X-Forwarded-For: 127.0.0.1",
            "Forwarded: for=127.0.0.1",
            "X-Real-IP: 127.0.0.1",
            "Via: 1.1 proxy",
        ] {
            assert_eq!(
                status(server.address, target, "localhost", &[field]),
                403,
                "{target} {field}"
            );
        }
        for (site, expected) in [("cross-site", 403), ("same-origin", 200), ("none", 200)] {
            let field = format!("Sec-Fetch-Site: {site}");
            assert_eq!(
                status(server.address, target, "localhost", &[&field]),
                expected,
                "{target} {site}"
            );
        }
    }
}

#[test]
fn a_page_may_ask_beforehand_whether_it_may_see() {
    let server = welcome(&["-l", "127.0.0.1:0"]);
    for target in LIVE.into_iter().chain(["/hello"]) {
        for (field, status) in [
            ("X: y", 200),
            ("X-Forwarded-For: 127.0.0.1", if target == "/hello" { 200 } else { 403 }),
        ] {
            let mut client = server.connect();
            client.send("HEAD", target, &[field]);
            assert_eq!(client.receive("HEAD").status, status, "{target} {field}");
            client.send("GET", "/hello", &[]);
            assert_eq!(client.receive("GET").text(), "hello\n");
        }
    }
}

#[test]
fn other_machines_see_it_only_if_that_was_asked_for() {
    let Some(ip) = outer_address() else {
        println!("skipped: this machine has no address but those of the loopback");
        return;
    };
    for (arguments, expected) in [(&[][..], 403), (&["--live-for-all"], 200)] {
        let server = welcome(&[&["-l", ":0"], arguments].concat());
        let address = SocketAddr::new(ip, server.address.port());
        let host = address.to_string();
        // From there it is another machine's address that the server sees.
        assert_eq!(status(address, "/", &host, &[]), 200);
        for target in LIVE {
            assert_eq!(status(address, target, &host, &[]), expected, "{target}");
            // Nobody gets in by saying where it comes from.
            for field in [
                "X-Forwarded-For: 127.0.0.1",
                "Forwarded: for=127.0.0.1",
                "X-Real-IP: ::1",
            ] {
                for host in [host.as_str(), "localhost"] {
                    assert_eq!(status(address, target, host, &[field]), expected, "{target} {field}");
                }
            }
            assert_eq!(
                status(address, target, "localhost", &["Sec-Fetch-Site: cross-site"]),
                403
            );
        }
    }
}

/// A stream of events, read as it comes.
struct Events {
    client: Client,
    text: String,
}

impl Events {
    fn open(server: &Server) -> Events {
        let mut client = server.connect();
        client.send("GET", "/live/events", &[]);
        let head = client.receive_head();
        assert_eq!(
            (head.status, head.field("content-type")),
            (200, Some("text/event-stream")),
            "{head:?}"
        );
        assert!(
            head.field("cache-control")
                .is_some_and(|value| value.starts_with("no-")),
            "{head:?}"
        );
        Events {
            client,
            text: String::new(),
        }
    }

    /// The first event that `accepts` takes.
    fn until(&mut self, accepts: impl Fn(&Value) -> bool) -> Value {
        let give_up = Instant::now() + DEADLINE;
        loop {
            let event = self.next();
            if accepts(&event) {
                return event;
            }
            assert!(Instant::now() < give_up, "{event}");
        }
    }

    /// The next event, as JSON. Chunk heads lie between the lines, and none within: each event is written at once.
    fn next(&mut self) -> Value {
        loop {
            while let Some((line, rest)) = self.text.split_once('\n') {
                let event = line
                    .strip_prefix("data: ")
                    .map(|data| serde_json::from_str(data).unwrap());
                self.text = rest.to_owned();
                if let Some(event) = event {
                    return event;
                }
            }
            let mut piece = [0; 16 * 1024];
            let count = self.client.stream.read(&mut piece).unwrap();
            assert!(count > 0, "the stream has ended");
            self.text.push_str(str::from_utf8(&piece[..count]).unwrap());
        }
    }
}

#[test]
fn the_stream_counts_each_worker() {
    let server = welcome(&["-l", "127.0.0.1:0"]);
    let mut events = Events::open(&server);
    // A connection that has just been accepted may not count yet.
    let first = events.until(|event| event["protocols"][0].is_array());
    assert_eq!(first["protocol"], "HTTP/1.1, no TLS");
    let (name, tls) = (&first["protocols"][0][0], &first["protocols"][0][1]);
    assert_eq!((name, tls), (&"http/1.1".into(), &"none".into()));
    assert!(first["protocols"][0][2].as_u64() >= Some(1));
    let mut kept: Vec<Client> = (0..20).map(|_| server.connect()).collect();
    for client in &mut kept {
        for _ in 0..5 {
            client.send("GET", "/hello", &[]);
            assert_eq!(client.receive("GET").text(), "hello\n");
        }
    }
    let sum = |event: &Value, key: &str| {
        let workers = event["workers"].as_array().unwrap();
        workers.iter().map(|worker| worker[key].as_u64().unwrap()).sum::<u64>()
    };
    let last = events.until(|event| sum(event, "requests") >= 100 && sum(event, "turns") > sum(&first, "turns"));
    // The stream itself is a connection and a fiber, but no request that has been answered.
    assert_eq!((sum(&last, "requests"), sum(&last, "connections")), (100, 21), "{last}");
    assert!(
        sum(&last, "fibers") >= 1 && last["at"].as_u64() > first["at"].as_u64(),
        "{last}"
    );
    let workers = last["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2);
    for worker in workers {
        let latency: u64 = worker["latency"]
            .as_array()
            .unwrap()
            .iter()
            .map(|count| count.as_u64().unwrap())
            .sum();
        assert_eq!(worker["requests"], latency, "{worker}");
        assert!(
            worker["name"].as_str().is_some_and(|name| name.starts_with("osier-")),
            "{worker}"
        );
    }
    drop(kept);
    events.until(|event| sum(event, "connections") <= 1);
}

#[test]
fn a_server_that_stops_does_not_wait_for_viewers() {
    let mut server = welcome(&["-l", "127.0.0.1:0", "--drain", "600"]);
    let mut events: Vec<Events> = (0..4).map(|_| Events::open(&server)).collect();
    events.iter_mut().for_each(|events| drop(events.next()));
    server.signal(Signal::TERM);
    assert!(server.wait().success(), "it would have been killed after {DEADLINE:?}");
    for mut events in events {
        // With the mark of an end that was meant.
        let rest = events.client.receive_rest();
        assert!(rest.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&rest));
    }
}

#[test]
fn viewers_are_bounded_and_their_places_are_free_again() {
    let server = welcome(&["-l", "127.0.0.1:0"]);
    let refused = |reply: &Reply| reply.status == 503 && reply.field("retry-after").is_some();
    let mut open = Vec::new();
    loop {
        let mut client = server.connect();
        client.send("GET", "/live/events", &[]);
        let reply = client.receive_head();
        if refused(&reply) {
            break;
        }
        assert_eq!(reply.status, 200);
        open.push(client);
        assert!(open.len() <= 64, "no bound");
    }
    assert_eq!(open.len(), 64);
    drop(open);
    testkit::eventually("the places of viewers that are gone", || {
        let mut client = server.connect();
        client.send("GET", "/live/events", &[]);
        !refused(&client.receive_head())
    });
}

#[test]
fn every_fiber_is_shown_with_where_it_waits() {
    let server = welcome(&["-l", "127.0.0.1:0"]);
    let mut events = Events::open(&server);
    events.next();
    let reply = server.get("/live/fibers");
    assert_eq!((reply.status, reply.field("cache-control")), (200, Some("no-store")));
    for part in [
        "worker 'osier-0'",
        "worker 'osier-1'",
        "accept",
        "welcome::live::events",
        "bytes of stack",
    ] {
        assert!(reply.text().contains(part), "{part} is missing in {}", reply.text());
    }
}

#[test]
fn pages_and_documents_are_served_under_a_strict_policy() {
    let server = welcome(&["-l", "127.0.0.1:0", "--header", "X-Own: 1"]);
    for (path, mime, part) in [
        ("/", "text/html; charset=utf-8", "Osier is running"),
        ("/chat", "text/html; charset=utf-8", "<ol id=\"lines\""),
        ("/runtime", "text/html; charset=utf-8", "Show every fiber"),
        ("/docs", "text/html; charset=utf-8", "/docs/ARCHITECTURE.md"),
        ("/docs/README.md", "text/plain; charset=utf-8", "# Osier"),
        ("/docs", "text/html; charset=utf-8", "/docs/guide/waiting.md"),
        (
            "/docs/guide/waiting.md",
            "text/plain; charset=utf-8",
            "# Fibers and waiting",
        ),
        ("/docs/ARCHITECTURE.md", "text/plain; charset=utf-8", "# Architecture"),
        ("/style.css", "text/css; charset=utf-8", "prefers-color-scheme"),
        ("/chat.js", "text/javascript; charset=utf-8", "WebSocket"),
        ("/runtime.js", "text/javascript; charset=utf-8", "EventSource"),
        ("/icon.svg", "image/svg+xml", "<svg"),
    ] {
        let reply = server.get(path);
        assert_eq!((reply.status, reply.field("content-type")), (200, Some(mime)), "{path}");
        assert!(reply.text().contains(part), "{path}");
        assert_eq!(reply.field("x-own"), Some("1"), "{path}");
        assert_eq!(reply.field("x-content-type-options"), Some("nosniff"), "{path}");
        let policy = reply.field("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
    }
    for path in ["/docs/", "/docs/../Cargo.toml", "/docs/none.md", "/live"] {
        assert!(matches!(server.get(path).status, 400 | 404), "{path}");
    }
}

#[test]
fn the_table_has_a_row_for_each_connection_up_to_its_bound() {
    let server = welcome(&["-l", "127.0.0.1:0"]);
    let table = |client: &mut Client| -> Value {
        client.send("GET", "/live/connections", &[]);
        let reply = client.receive("GET");
        assert_eq!(
            (reply.status, reply.field("content-type")),
            (200, Some("application/json"))
        );
        serde_json::from_str(reply.text()).unwrap()
    };
    let mut viewer = server.connect();
    let mut idle = server.connect();
    idle.send("GET", "/hello", &[]);
    idle.receive("GET");
    let mut partial = server.connect();
    partial.stream.write_all(b"GET /hello HTTP/1.1\r\n").unwrap();
    let of = |table: &Value, client: &Client| -> Option<Value> {
        let peer = client.stream.local_addr().unwrap().to_string();
        let rows = table["rows"].as_array().unwrap();
        rows.iter().find(|row| row[0] == peer.as_str()).cloned()
    };
    let state = |table: &Value, client: &Client| of(table, client).map(|row| row[3].as_str().unwrap().to_owned());
    let since = Instant::now();
    loop {
        let seen = table(&mut viewer);
        let states = [&viewer, &idle, &partial].map(|client| state(&seen, client));
        let states: Vec<_> = states.iter().map(Option::as_deref).collect();
        if states == [Some("serving"), Some("idle"), Some("head")] {
            let row = of(&seen, &idle).unwrap();
            assert_eq!(
                (&row[1], &row[2], &row[4]),
                (&"http/1.1".into(), &"none".into(), &0.into())
            );
            assert!(row[5].as_u64().is_some_and(|age| age < 60_000), "{row}");
            assert_eq!(seen["all"], 3);
            break;
        }
        assert!(since.elapsed() < DEADLINE, "{seen}");
    }
    let many: Vec<Client> = (0..210).map(|_| server.connect()).collect();
    loop {
        let seen = table(&mut viewer);
        let rows = seen["rows"].as_array().unwrap().len();
        assert!(rows <= 200, "{rows} rows");
        // A connection counts a moment before it has a row.
        if seen["all"] == 3 + many.len() && rows == 200 {
            break;
        }
        assert!(since.elapsed() < DEADLINE, "{rows} rows of {}", seen["all"]);
    }
}

#[test]
fn a_folder_has_none_of_it() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    let server = Server::start(&folder, &[]);
    assert_eq!(server.get("/a.txt").text(), "a");
    for target in [
        "/live/connections",
        "/live/events",
        "/live/fibers",
        "/chat",
        "/chat/socket",
        "/runtime",
        "/hello",
        "/style.css",
    ] {
        assert_eq!(server.get(target).status, 404, "{target}");
    }
}
