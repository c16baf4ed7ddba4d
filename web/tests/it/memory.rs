//! Bodies and messages while memory is short. The limit belongs to a process, so the tests run in children of this one.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use osier::memory::{self, Account, Pressure};
use osier::sync::Event;
use osier_web::{
    CloseReason, ConnectionEvent, Connections, IntoResponse, Request, Route, Router, Server, Timeouts, ws,
};

use crate::common::backend::{Backend, options};
use crate::common::{Client, PATIENCE, Site, arrived, eventually, site, site_with};
use crate::ws_client::{Got, Peer, masked};

/// The limit of the child.
const LIMIT: usize = 8 << 20;

/// Clients, who would make the child hold more than twice the limit.
const CLIENTS: usize = 20;
const BODY: usize = 1 << 20;

/// Runs `body` in a child whose memory is limited. `test` is the whole name of the test.
pub fn in_a_small_child(test: &str, body: impl FnOnce()) {
    const CHILD: &str = "OSIER_TEST_SMALL";
    if std::env::var_os(CHILD).is_some() {
        memory::set_limit(Some(LIMIT));
        return body();
    }
    let output = testkit::this_test()
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let (said, text) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{said}{text}");
    print!("{said}");
}

/// The count of the calls of a handler, and that handler, which counts the bytes of a body.
pub fn counts() -> (
    Arc<AtomicUsize>,
    impl Fn(&mut Request<'_>) -> std::io::Result<String> + Send + Sync + 'static,
) {
    let begun = Arc::new(AtomicUsize::new(0));
    let begins = begun.clone();
    let count = move |request: &mut Request<'_>| {
        begins.fetch_add(1, Relaxed);
        std::io::copy(request.body(), &mut std::io::sink()).map(|count| count.to_string())
    };
    (begun, count)
}

/// A handler that takes the whole limit until it is let go.
pub fn greedy(free: &'static Event) -> impl Fn(&mut Request<'_>) -> &'static str + Send + Sync + 'static {
    move |_| {
        let _all = Account::named("greedy").charge(memory::limit().expect("the child has one"));
        free.wait();
        "has waited"
    }
}

/// The server holds nothing any more, and serves.
fn is_as_before(site: &Site, account: Account) {
    eventually("the charges are gone", || {
        assert_eq!(site.get("/").status, 200);
        account.held() <= memory::BATCH_BYTES
    });
}

/// Whether the server has answered.
fn is_answered(client: &Client) -> bool {
    client.stream.set_nonblocking(true).unwrap();
    let peeked = client.stream.peek(&mut [0]);
    client.stream.set_nonblocking(false).unwrap();
    peeked.is_ok()
}

#[test]
fn bodies_beyond_the_limit_are_refused_by_503_and_the_others_are_read() {
    in_a_small_child(
        "memory::bodies_beyond_the_limit_are_refused_by_503_and_the_others_are_read",
        || {
            let begun = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&begun);
            let count = move |request: &mut Request<'_>| {
                counted.fetch_add(1, Relaxed);
                request.bytes(2 << 20).map(|bytes| bytes.len().to_string())
            };
            let site = site(
                Router::new()
                    .get("/", |_| "fine")
                    .route("/count", Route::new().post(count).body_limit(2 << 20)),
            );
            let mut clients: Vec<_> = (0..CLIENTS).map(|_| site.connect()).collect();
            // All requests are read before memory is short.
            for client in &mut clients {
                client.send(format!(
                    "POST /count HTTP/1.1\r\nHost: t\r\nContent-Length: {BODY}\r\n\r\n"
                ));
                client.send([b'x'; 8 << 10]);
            }
            eventually("all handlers read", || begun.load(Relaxed) == CLIENTS);
            let (mut most, mut waiting) = (0, 0);
            for client in &mut clients {
                // A client that is refused may not get rid of all.
                client.try_send(vec![b'x'; BODY - (9 << 10)]);
                // The server holds the body or has refused it before the next one comes, however late it is. The sockets alone would
                // take all bodies, and a server that reads them at once may refuse nearly all.
                waiting += 1;
                eventually("the body is held or refused", || {
                    most = most.max(Account::BODIES.held());
                    let is_refused = is_answered(client);
                    waiting -= usize::from(is_refused);
                    is_refused || Account::BODIES.held() >= waiting * BODY - BODY / 2
                });
            }
            assert!(most < LIMIT + LIMIT / 8, "{most} bytes");
            let (mut read, mut refused) = (0, 0);
            for mut client in clients {
                client.try_send([b'x'; 1 << 10]);
                let reply = client.reply();
                match reply.status {
                    200 => read += 1,
                    503 => {
                        assert_eq!(reply.header("retry-after"), Some("1"), "{}", reply.text());
                        refused += 1;
                    }
                    status => panic!("{status}: {}", reply.text()),
                }
            }
            println!("{read} bodies were read, {refused} refused, {most} bytes held");
            assert!(read >= 4 && refused >= 4, "{read} read, {refused} refused");
            assert!(site.logged("memory is too short for the request's body"));
            is_as_before(&site, Account::BODIES);
        },
    );
}

/// The backend has the whole body by then, and nobody reads it again.
#[test]
fn a_body_is_gone_while_a_handler_answers_for_the_path_that_the_backend_names() {
    in_a_small_child(
        "memory::a_body_is_gone_while_a_handler_answers_for_the_path_that_the_backend_names",
        || {
            const LONG: usize = BODY / 2;
            let backend = Backend::start(|_, conn| {
                while conn.request().is_some() {
                    conn.send("HTTP/1.1 200 OK\r\nX-Accel-Redirect: /file\r\nContent-Length: 0\r\n\r\n");
                }
            });
            let in_memory = options(|to| to.spool_memory = LONG);
            let proxy = backend.proxy_with(in_memory).on_internal(|_, _| {
                memory::settle();
                Account::BODIES.held().to_string().into_response()
            });
            let site = site(Router::new().fallback_answering(move |request| proxy.answer_after_body(request)));
            for _ in 0..3 {
                let mut client = site.connect();
                client.send(format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {LONG}\r\n\r\n"));
                client.send(vec![b'x'; LONG]);
                let held: usize = client.reply().text().parse().unwrap();
                assert!(held < LONG / 2, "{held} bytes");
            }
        },
    );
}

#[test]
fn messages_in_fragments_grow_no_further_and_end_by_1013() {
    struct Ignore;
    impl ws::Callbacks for Ignore {
        fn on_message(&mut self, _: ws::Message, _: &ws::Sender) {}
    }
    in_a_small_child("memory::messages_in_fragments_grow_no_further_and_end_by_1013", || {
        let talk = |request: &mut Request<'_>| ws::Options::default().upgrade_dormant(request, Ignore);
        let site = site(Router::new().get("/", |_| "fine").get("/talk", talk));
        let fragment = masked(0x01, &[b'x'; 32 << 10]);
        let next = masked(0x00, &[b'x'; 32 << 10]);
        let mut peers: Vec<_> = (0..CLIENTS).map(|_| Peer::open(site.addr, "/talk")).collect();
        let (mut most, mut alive) = (0, vec![true; CLIENTS]);
        for round in 0..BODY / (33 << 10) {
            let bytes = if round == 0 { &fragment } else { &next };
            for (peer, alive) in peers.iter_mut().zip(&mut alive) {
                *alive = *alive && peer.stream.write_all(bytes).is_ok();
            }
            most = most.max(Account::WEBSOCKETS.held());
        }
        assert!(most < LIMIT + LIMIT / 8, "{most} bytes");
        let mut closed = 0;
        for peer in &mut peers {
            let _ = peer.stream.shutdown(Shutdown::Write);
            let mut rest = Vec::new();
            let _ = peer.stream.read_to_end(&mut rest);
            let code = ws::Close::TRY_AGAIN.to_be_bytes();
            closed += usize::from(rest.first() == Some(&0x88) && rest.get(2..4) == Some(&code));
        }
        println!("{closed} of {CLIENTS} were closed by 1013, {most} bytes held");
        assert!((4..CLIENTS).contains(&closed), "{closed}");
        drop(peers);
        is_as_before(&site, Account::WEBSOCKETS);
    });
}

#[test]
fn a_long_message_that_does_not_go_on_ends_by_1013_and_a_short_one_is_left() {
    struct Ignore;
    impl ws::Callbacks for Ignore {
        fn on_message(&mut self, _: ws::Message, _: &ws::Sender) {}
    }
    let name = "memory::a_long_message_that_does_not_go_on_ends_by_1013_and_a_short_one_is_left";
    in_a_small_child(name, || {
        let talk = |request: &mut Request<'_>| ws::Options::default().upgrade_dormant(request, Ignore);
        let site = site(Router::new().get("/", talk));
        let [mut long, mut short] = [32 << 10, 1 << 10].map(|bytes| {
            let mut peer = Peer::open(site.addr, "/");
            peer.send(&masked(0x01, &vec![b'x'; bytes]));
            peer.send(&masked(0x89, b""));
            assert_eq!(peer.frame(), Some(Got(0x8A, vec![])));
            peer
        });
        let all = Account::named("greedy").charge(memory::limit().expect("the child has one"));
        for peer in [&mut long, &mut short] {
            peer.send(&masked(0x89, b""));
        }
        assert_eq!(short.frame(), Some(Got(0x8A, vec![])));
        long.expect_close(ws::Close::TRY_AGAIN);
        drop(all);
    });
}

#[test]
fn near_the_limit_handlers_whose_bodies_do_not_come_wait_no_longer() {
    static FREE: Event = Event::new();
    let name = "memory::near_the_limit_handlers_whose_bodies_do_not_come_wait_no_longer";
    in_a_small_child(name, || {
        let (begun, count) = counts();
        let router = Router::new().get("/", |_| "fine").post("/count", count);
        let server = Server::new(router.get("/greedy", greedy(&FREE))).timeouts(Timeouts {
            body: Duration::from_secs(600),
            ..Timeouts::default()
        });
        let evicted = Arc::new(AtomicUsize::new(0));
        let evictions = evicted.clone();
        let server = server.on_connection(move |event| {
            if event == ConnectionEvent::Closed(CloseReason::Evicted) {
                evictions.fetch_add(1, Relaxed);
            }
        });
        let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
        let post = "POST /count HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n";
        let mut silent: Vec<_> = (0..5).map(|_| site.connect()).collect();
        let mut sends = site.connect();
        for client in silent.iter_mut().chain([&mut sends]) {
            client.send(post);
        }
        eventually("all handlers read", || begun.load(Relaxed) == 6);
        let mut other = site.connect();
        other.send("GET /greedy HTTP/1.1\r\nHost: t\r\n\r\n");
        let mut sent = 1;
        eventually("the silent clients have their answers", || {
            sends.send("1\r\nx\r\n");
            sent += 1;
            std::thread::sleep(Duration::from_millis(50)); // between two bytes of a slow client
            silent.iter().all(is_answered)
        });
        for mut client in silent {
            assert_eq!(client.reply().status, 408);
            client.expect_end();
        }
        assert!(site.logged("near the limit of memory no body is waited for"));
        eventually("the ends have their reason", || evicted.load(Relaxed) == 5);
        sends.send("0\r\n\r\n");
        assert_eq!(sends.reply().text(), sent.to_string());
        FREE.set();
        assert_eq!(other.reply().text(), "has waited");
        assert_eq!(site.get("/").text(), "fine");
    });
}

/// The fiber has waited for long, because its worker was busy, and so has nobody read the bytes that have arrived meanwhile.
#[test]
fn near_the_limit_bytes_that_have_arrived_keep_their_connection() {
    static FREE: Event = Event::new();
    let name = "memory::near_the_limit_bytes_that_have_arrived_keep_their_connection";
    in_a_small_child(name, || {
        let (blocks, goes_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (is_blocked, may_go_on) = (blocks.clone(), goes_on.clone());
        let busy = move |_: &mut Request<'_>| {
            let _all = Account::named("greedy").charge(memory::limit().expect("the child has one"));
            is_blocked.store(1, Relaxed);
            while may_go_on.load(Relaxed) == 0 {
                std::thread::sleep(Duration::from_millis(1)); // keeps the worker from all else
            }
            FREE.wait();
            "has waited"
        };
        let (begun, count) = counts();
        let server = Server::new(Router::new().post("/count", count).get("/greedy", busy));
        let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
        let post = "POST /count HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
        // The first one has waited longest.
        let [mut sends, mut silent] = [1, 2].map(|nth| {
            let mut client = site.connect();
            client.send(post);
            eventually("the handler reads", || begun.load(Relaxed) == nth);
            std::thread::sleep(Duration::from_millis(1200)); // the wait is a long one by then
            client
        });
        let mut other = site.connect();
        other.send("GET /greedy HTTP/1.1\r\nHost: t\r\n\r\n");
        eventually("the worker is busy", || blocks.load(Relaxed) == 1);
        std::thread::sleep(Duration::from_millis(2500)); // longer than a client may be silent
        sends.send("5\r\nbytes\r\n");
        arrived(&sends.stream);
        goes_on.store(1, Relaxed);
        assert_eq!(silent.reply().status, 408);
        sends.send("0\r\n\r\n");
        let reply = sends.reply();
        assert_eq!((reply.status, reply.text()), (200, "5"));
        FREE.set();
        assert_eq!(other.reply().text(), "has waited");
    });
}

/// Its client may only listen from the head of the response on.
#[test]
fn near_the_limit_a_call_of_grpc_over_http_1_goes_on_in_silence() {
    static FREE: Event = Event::new();
    let name = "memory::near_the_limit_a_call_of_grpc_over_http_1_goes_on_in_silence";
    in_a_small_child(name, || {
        let backend = Backend::start(|_, conn| {
            while conn.head().is_some() {
                conn.send("HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n");
                if conn.chunks().is_some_and(|body| body == b"xy") {
                    conn.send("5\r\nwhole\r\n0\r\n\r\n");
                }
            }
        });
        let (begun, count) = counts();
        let router = Router::new().post("/count", count).get("/greedy", greedy(&FREE));
        let site = site(router.fallback(backend.streaming_proxy().handler()));
        let chunked = "HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n";
        let mut call = site.connect();
        call.send(format!(
            "POST /a.B/C {chunked}Content-Type: application/grpc\r\nTE: trailers\r\n\r\n1\r\nx\r\n"
        ));
        assert_eq!(call.head().0, 200);
        // This one has been silent for less time.
        let mut silent = site.connect();
        silent.send(format!("POST /count {chunked}\r\n"));
        eventually("the handler reads", || begun.load(Relaxed) == 1);
        let mut other = site.connect();
        other.send("GET /greedy HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!(silent.reply().status, 408);
        call.send("1\r\ny\r\n0\r\n\r\n");
        assert_eq!(call.chunks(), b"whole");
        FREE.set();
        assert_eq!(other.reply().text(), "has waited");
    });
}

#[test]
fn near_the_limit_a_server_for_operators_answers_new_connections() {
    static FREE: Event = Event::new();
    let name = "memory::near_the_limit_a_server_for_operators_answers_new_connections";
    in_a_small_child(name, || {
        let site = site(Router::new().get("/greedy", greedy(&FREE)));
        let server = Server::new(Router::new().get("/", |_| "fine")).for_operators();
        let operators = site_with(1, server, |server| server.bind("127.0.0.1:0"));
        let mut other = site.connect();
        other.send("GET /greedy HTTP/1.1\r\nHost: t\r\n\r\n");
        eventually("memory is short", || memory::pressure() == Pressure::Critical);
        assert_eq!(operators.get("/").text(), "fine");
        FREE.set();
        assert_eq!(other.reply().text(), "has waited");
    });
}

/// Connections in the backlog may need memory.
#[test]
fn memory_is_relieved_until_the_backlog_of_a_server_that_stops_is_accepted() {
    let name = "memory::memory_is_relieved_until_the_backlog_of_a_server_that_stops_is_accepted";
    in_a_small_child(name, || {
        let open: Arc<OnceLock<Connections>> = Arc::default();
        let (stops, stopping) = mpsc::channel();
        let (stops, connections, accepted) = (Mutex::new(stops), open.clone(), AtomicUsize::new(0));
        let (tell, told) = mpsc::channel();
        let tell = Mutex::new(tell);
        // It runs on the fiber that accepts. The second connection is accepted while the server stops.
        let trusted = move |_| {
            if accepted.fetch_add(1, Relaxed) == 1 {
                osier::shield(|| {
                    stops.lock().unwrap().send(()).unwrap();
                    osier::sleep(Duration::from_millis(100)); // the server stops meanwhile
                    let open = connections.get().expect("the test has set it");
                    let before = open.count();
                    let _all = Account::named("greedy").charge(memory::limit().expect("the child has one"));
                    let is_closed = (0..5_000).any(|_| {
                        osier::sleep(Duration::from_millis(2));
                        open.count() < before
                    });
                    tell.lock().unwrap().send(is_closed).unwrap();
                });
            }
            false
        };
        let server = Server::new(Router::new().get("/", |_| "fine")).proxy_protocol(trusted);
        let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
        assert!(open.set(site.connections.clone()).is_ok());
        let mut idle = site.connect();
        assert_eq!(idle.get("/").text(), "fine");
        let mut last = site.connect();
        last.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        stopping.recv_timeout(PATIENCE).unwrap();
        site.stop.shutdown();
        assert!(
            told.recv_timeout(PATIENCE).unwrap(),
            "the idle connection gives its memory"
        );
        idle.expect_end();
        assert_eq!(last.reply().status, 200);
    });
}

/// Tells why it has ended.
struct Tells(mpsc::Sender<ws::End>);

impl ws::Callbacks for Tells {
    fn on_open(&mut self, sender: &ws::Sender) {
        let frame = much();
        (0..MUCH).for_each(|_| _ = sender.send(frame.clone()));
    }

    fn on_message(&mut self, _: ws::Message, _: &ws::Sender) {}

    fn on_close(&mut self, end: &ws::End) {
        let _ = self.0.send(end.clone());
    }
}

/// So many frames are more than the system takes for a client that reads nothing.
const MUCH: usize = 40;

fn much() -> ws::Frame {
    vec![b'x'; 1 << 20].into()
}

#[test]
fn a_websocket_that_takes_nothing_while_memory_is_short_tells_why_it_ends() {
    let name = "memory::a_websocket_that_takes_nothing_while_memory_is_short_tells_why_it_ends";
    in_a_small_child(name, || {
        let (tell, told) = mpsc::channel();
        let tell = Mutex::new(tell);
        let open = move |request: &mut Request<'_>| {
            let (options, tell) = (ws::Options::default(), tell.lock().unwrap().clone());
            if request.param("style").as_deref() == Some("callbacks") {
                return options.upgrade_dormant(request, Tells(tell));
            }
            options.upgrade(request, move |socket| {
                let frame = much();
                let sent = (0..MUCH).try_for_each(|_| socket.send(frame.clone()));
                let _ = tell.send(socket.closed().cloned().expect("the client reads nothing"));
                sent
            })
        };
        let site = site(Router::new().get("/{style}", open));
        for style in ["/callbacks", "/closure"] {
            let peer = Peer::open(site.addr, style);
            let all = Account::named("greedy").charge(memory::limit().expect("the child has one"));
            assert_eq!(told.recv_timeout(PATIENCE), Ok(ws::End::Evicted), "{style}");
            drop((peer, all));
        }
    });
}
