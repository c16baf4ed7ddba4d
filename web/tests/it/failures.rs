//! Handlers that fail, and clients that leave while a handler works.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::{PATIENCE, eventually, forever, logging_site, site};
use osier_web::{Level, Request, Response, Route, Router, Server, http::StatusCode};

#[test]
fn a_panic_is_a_500_and_a_log_line_and_the_connection_lives() {
    let router = Router::new()
        .get("/panic", |_| -> &str { panic!("on purpose") })
        .get("/", |_| "fine");
    let site = site(router);
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\nGET /panic HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(client.reply().text(), "fine");
    let reply = client.reply();
    assert_eq!((reply.status, reply.text()), (500, "500 Internal Server Error\n"));
    assert_eq!(client.get("/").text(), "fine");
    assert!(site.logged("the handler of GET /panic panicked: on purpose"));
}

#[test]
fn a_panic_in_a_stream_is_a_500_only_before_the_head_has_gone() {
    let router = Router::new()
        .get("/before", |_| Response::stream(|_| panic!("on purpose")))
        .get("/after", |_| {
            Response::stream(|out| {
                out.write_all(b"some")?;
                out.flush()?;
                panic!("on purpose")
            })
        })
        .get("/error", |_| Response::stream(|_| Err(io::Error::other("no data"))));
    let site = site(router);
    for path in ["/before", "/error"] {
        let mut client = site.connect();
        let reply = client.get(path);
        assert_eq!((reply.status, reply.header("connection")), (500, Some("close")));
        client.expect_end();
    }
    let mut client = site.connect();
    client.send("GET /after HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(client.head().0, 200);
    assert_eq!(client.rest(), b"0004\r\nsome\r\n");
    assert!(site.logged("no data"));
}

/// An error and the errors that have caused it, each once: many name their source in their own text.
#[test]
fn the_log_has_the_sources_of_an_error() {
    #[derive(Debug)]
    struct Failed(&'static str, Option<Box<Failed>>);
    impl std::fmt::Display for Failed {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }
    impl std::error::Error for Failed {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_deref().map(|source| source as _)
        }
    }
    fn away() -> Failed {
        let refused = Failed("connection refused", None);
        let unreachable = Failed("no connection: connection refused", Some(Box::new(refused)));
        Failed("the shop is closed", Some(Box::new(unreachable)))
    }
    let router = Router::new()
        .get("/error", |_| Err::<(), _>(osier_web::Error::from(away())))
        .get("/io", |_| Err::<(), _>(io::Error::other(away())))
        .get("/stream", |_| Response::stream(|_| Err(io::Error::other(away()))));
    let site = site(router);
    let cause = "failed: the shop is closed: no connection: connection refused";
    for path in ["/error", "/io", "/stream"] {
        assert_eq!(site.get(path).status, 500);
        assert!(site.logged(&format!("GET {path} {cause}")), "{path}");
    }
    assert!(!site.logged("refused: connection refused"));
}

/// Each line of the log has a level, and says whom it is about.
#[test]
fn a_line_has_a_level_a_client_a_host_and_an_id() {
    let router = Router::new()
        .get("/broken", |_| Err::<(), _>(io::Error::other("no data")))
        .get("/denied", |_| {
            Response::new(StatusCode::FORBIDDEN).because("it is a secret")
        })
        .get("/silent", |_| Response::new(StatusCode::FORBIDDEN));
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = lines.clone();
    let site = logging_site(Server::new(router), move |record| {
        let (client, host) = (
            record.client_ip().map(|ip| ip.to_string()),
            record.host().map(String::from),
        );
        let id = record.id().map(|id| id.to_string());
        log.lock()
            .unwrap()
            .push((record.to_string(), (record.level(), client, host), id));
    });
    for (request, status) in [
        ("GET /broken HTTP/1.1\r\nHost: test\r\n\r\n", 500),
        ("GET /denied HTTP/1.1\r\nHost: h:81\r\n\r\n", 403),
        ("GET /silent HTTP/1.1\r\nHost: h\r\n\r\n", 403),
        ("GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        ("GET /denied HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", 400),
        (
            "POST /denied HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\n",
            413,
        ),
    ] {
        assert_eq!(site.ask(request).status, status, "{request}");
    }
    let lines = lines.lock().unwrap();
    let shown: Vec<(&str, Level, Option<&str>)> = lines
        .iter()
        .map(|(text, (level, _, host), _)| (text.as_str(), *level, host.as_deref()))
        .collect();
    assert_eq!(
        shown,
        [
            ("GET /broken failed: no data", Level::Error, Some("test")),
            (
                "GET /denied was refused with 403: it is a secret",
                Level::Info,
                Some("h:81")
            ),
            (
                "GET /%zz was refused with 400: the path has a '%' that begins no escape; write %25",
                Level::Info,
                Some("h")
            ),
            (
                "a request was refused with 400: more than one Host field",
                Level::Info,
                None
            ),
            (
                "POST /denied was refused with 413: the body is larger than the limit of 2097152 bytes",
                Level::Info,
                Some("h")
            ),
        ]
    );
    for (text, (_, client, _), id) in lines.iter() {
        assert_eq!(
            (client.as_deref(), id.as_ref().map(String::len)),
            (Some("127.0.0.1"), Some(16)),
            "{text}"
        );
    }
}

#[test]
fn an_io_error_is_a_500_whose_cause_is_logged_and_not_sent() {
    let site = site(Router::new().get("/", |_| Err::<(), _>(io::Error::other("secret detail"))));
    let reply = site.get("/");
    assert_eq!((reply.status, reply.text()), (500, "500 Internal Server Error\n"));
    assert!(site.logged("GET / failed: secret detail"));
}

#[test]
fn a_header_from_input_cannot_split_the_response() {
    let site = site(Router::new().get("/", |request: &mut Request<'_>| {
        Response::new(osier_web::http::StatusCode::OK).header("x-echo", request.query_param("v").unwrap().as_bytes())
    }));
    let reply = site.get("/?v=a%0d%0aset-cookie:%20b");
    assert_eq!((reply.status, reply.header("set-cookie")), (500, None));
}

#[test]
fn a_final_status_is_needed() {
    let site = site(Router::new().get("/", |_| osier_web::http::StatusCode::CONTINUE));
    assert_eq!(site.get("/").status, 500);
}

/// Reports in `Drop` that the handler has been left, and how.
struct Left(mpsc::Sender<&'static str>, bool);

impl Drop for Left {
    fn drop(&mut self) {
        let _ = self.0.send(if self.1 { "finished" } else { "cancelled" });
    }
}

/// A handler that reports its start, waits for a time and returns.
fn waiting(
    time: Duration,
) -> (
    impl Fn(&mut Request<'_>) -> &'static str + Send + Sync + Clone + 'static,
    mpsc::Receiver<&'static str>,
) {
    let (sender, receiver) = mpsc::channel();
    let sender = Arc::new(Mutex::new(sender));
    let handler = move |_: &mut Request<'_>| {
        let sender = sender.lock().unwrap().clone();
        sender.send("begun").unwrap();
        let mut left = Left(sender, false);
        // A handler that takes its time, and may be cancelled meanwhile.
        osier::sleep(time);
        left.1 = true;
        "waited"
    };
    (handler, receiver)
}

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(100);
const GET: &str = "GET / HTTP/1.1\r\nHost: t\r\n\r\n";

#[test]
fn a_reset_cancels_the_handler_without_a_log_line() {
    let (handler, receiver) = waiting(LONG);
    let site = site(Router::new().route("/", Route::new().get(handler).cancel_when_gone()));
    let mut client = site.connect();
    client.send(GET);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("begun"));
    client.reset();
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("cancelled"));
    assert!(site.log.lock().unwrap().is_empty());
}

#[test]
fn a_fin_cancels_a_sleeping_handler_after_the_earlier_responses() {
    let (handler, receiver) = waiting(LONG);
    let route = Route::new().get(handler).cancel_when_gone();
    let site = site(Router::new().route("/", route).get("/first", |_| "first"));
    let mut client = site.connect();
    client.send("GET /first HTTP/1.1\r\nHost: t\r\n\r\n");
    client.send(GET);
    client.finish_sending();
    assert_eq!(client.reply().text(), "first");
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("begun"));
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("cancelled"));
    client.expect_end();
}

#[test]
fn a_stream_that_waits_is_cancelled_too() {
    let (sender, receiver) = mpsc::channel();
    let sender = Arc::new(Mutex::new(sender));
    let stream = move |_: &mut Request<'_>| {
        let sender = sender.lock().unwrap().clone();
        Response::stream(move |out| {
            out.write_all(b"begun")?;
            let _left = Left(sender, false);
            forever();
            Ok(())
        })
    };
    let site = site(Router::new().route("/", Route::new().get(stream).cancel_when_gone()));
    let mut client = site.connect();
    client.send(GET);
    client.head();
    client.take(10);
    client.reset();
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("cancelled"));
}

#[test]
fn a_route_may_finish_although_the_client_is_gone() {
    let (handler, receiver) = waiting(SHORT);
    let site = site(Router::new().route("/", Route::new().get(handler).finish_when_gone()));
    let mut client = site.connect();
    client.send(GET);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("begun"));
    client.reset();
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("finished"));
}

#[test]
fn a_handler_finishes_although_its_client_has_gone() {
    for leave in [crate::common::Client::reset, |client: crate::common::Client| {
        drop(client)
    }] {
        let (handler, receiver) = waiting(SHORT);
        let site = site(Router::new().get("/", handler.clone()).post("/", handler));
        for method in ["GET", "POST"] {
            let mut client = site.connect();
            client.send(format!("{method} / HTTP/1.1\r\nHost: t\r\n\r\n"));
            assert_eq!(receiver.recv_timeout(PATIENCE), Ok("begun"));
            leave(client);
            assert_eq!(receiver.recv_timeout(PATIENCE), Ok("finished"));
        }
        assert!(site.log.lock().unwrap().is_empty());
    }
}

#[test]
fn a_client_that_leaves_poisons_no_lock_and_ends_no_process() {
    /// A destructor that panics aborts the process if its fiber unwinds.
    struct Bomb(mpsc::Sender<()>);
    impl Drop for Bomb {
        fn drop(&mut self) {
            let _ = self.0.send(());
            panic!("the destructor panics on purpose");
        }
    }
    let (sender, receiver) = mpsc::channel();
    let sender = Arc::new(Mutex::new(sender));
    let shared = Arc::new(Mutex::new(()));
    let held = Arc::clone(&shared);
    let site = site(Router::new().get("/bomb", move |_: &mut Request<'_>| {
        let sender = sender.lock().unwrap().clone();
        let _held = held.lock();
        sender.send(()).unwrap();
        let bomb = Bomb(sender);
        osier::sleep(SHORT);
        drop(_held);
        drop(bomb);
    }));
    let mut client = site.connect();
    client.send("GET /bomb HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(()));
    client.reset();
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(()), "the handler came to its end");
    assert!(!shared.is_poisoned());
    eventually("the panic is logged", || {
        site.logged("the handler of GET /bomb panicked: the destructor panics on purpose")
    });
}

#[test]
fn a_body_that_ends_early_is_no_failure_of_the_application() {
    let (sender, receiver) = mpsc::channel();
    let sender = Arc::new(Mutex::new(sender));
    let site = site(Router::new().post("/", move |request: &mut Request<'_>| {
        let sender = sender.lock().unwrap().clone();
        sender.send("begun").unwrap();
        let read = io::copy(request.body(), &mut io::sink());
        let _ = sender.send("read");
        // As an application that wraps its errors does.
        read.map_err(|error| io::Error::other(format!("storing the upload: {error}")))
            .map(|count| count.to_string())
    }));
    let mut client = site.connect();
    client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nabc");
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("begun"));
    client.reset();
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("read"));
    eventually("the connection is gone", || site.connections.count() == 0);
    assert_eq!(*site.log.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn a_cancellation_inside_another_error_is_not_logged() {
    let (sender, receiver) = mpsc::channel();
    let sender = Arc::new(Mutex::new(sender));
    let handler = move |_: &mut Request<'_>| {
        let sender = sender.lock().unwrap().clone();
        let (ours, _theirs) = osier::net::UnixStream::pair()?;
        sender.send("begun").unwrap();
        let read = io::Read::read(&mut &ours, &mut [0]);
        let _ = sender.send("read");
        read.map_err(io::Error::other).map(|_| ())
    };
    let site = site(Router::new().route("/", Route::new().get(handler).cancel_when_gone()));
    let mut client = site.connect();
    client.send(GET);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("begun"));
    client.reset();
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("read"));
    eventually("the connection is gone", || site.connections.count() == 0);
    assert_eq!(*site.log.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn before_an_abort_the_fiber_and_its_cancellation_are_named() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    const CHILD: &str = "OSIER_TEST_BOMB";
    if std::env::var_os(CHILD).is_some() {
        let (sender, receiver) = mpsc::channel();
        let sender = Arc::new(Mutex::new(sender));
        let handler = move |_: &mut Request<'_>| {
            let _bomb = Bomb;
            sender.lock().unwrap().send(()).unwrap();
            forever();
        };
        let site = site(Router::new().route("/bomb", Route::new().get(handler).cancel_when_gone()));
        let mut client = site.connect();
        client.send("GET /bomb HTTP/1.1\r\nHost: t\r\n\r\n");
        receiver.recv_timeout(PATIENCE).unwrap();
        client.reset();
        std::thread::sleep(PATIENCE); // the abort ends it
        return;
    }
    let name = "failures::before_an_abort_the_fiber_and_its_cancellation_are_named";
    let output = testkit::this_test()
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(6),
        "{text}"
    );
    let line = text.lines().find(|line| line.starts_with("osier: in fiber"));
    let line = line.unwrap_or_else(|| panic!("no line of ours in {text}"));
    assert!(line.contains("GET /bomb, 127.0.0.1:"), "{line}");
    assert!(line.ends_with("while it was cancelled: the client left"), "{line}");
}

/// A process cannot go on after a stack overflow. Its report names the request.
#[test]
fn a_recursion_without_end_names_its_request() {
    #[allow(unconditional_recursion)]
    fn endless(depth: u64) -> u64 {
        std::hint::black_box([depth; 64]);
        endless(depth + 1) + 1
    }
    const CHILD: &str = "OSIER_TEST_RECURSION";
    if let Ok(path) = std::env::var(CHILD) {
        let handler = |_: &mut Request<'_>| endless(0).to_string();
        let router = Router::new()
            .get("/deep", handler)
            .route("/deep/own", Route::new().get(handler).stack_bytes(1 << 20));
        let site = site(router);
        let mut client = site.connect();
        client.send(format!("GET {path}?a=b HTTP/1.1\r\nHost: t\r\n\r\n"));
        std::thread::sleep(PATIENCE); // the abort ends it
        return;
    }
    for (path, bytes) in [("/deep", "of 262144 bytes"), ("/deep/own", "of 1048576 bytes")] {
        let output = testkit::this_test()
            .args(["--exact", "failures::a_recursion_without_end_names_its_request"])
            .args(["--nocapture", "--test-threads=1"])
            .env(CHILD, path)
            .stdout(std::process::Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&output.status),
            Some(6),
            "{text}"
        );
        assert!(
            text.contains("has overflowed its stack") && text.contains(bytes),
            "{text}"
        );
        assert!(text.contains("raise stack_bytes"), "{text}");
        let words = format!("it was at work for: GET {path}?a=b, 127.0.0.1:");
        assert!(text.contains(&words), "{text}");
    }
}

#[test]
fn a_stream_that_writes_ends_with_its_client() {
    let (sender, receiver) = mpsc::channel();
    let sender = Arc::new(Mutex::new(sender));
    let site = site(Router::new().get("/", move |_: &mut Request<'_>| {
        let sender = sender.lock().unwrap().clone();
        Response::stream(move |out| {
            let written = loop {
                if let Err(error) = out.write_all(&[b'x'; 4096]).and_then(|()| out.flush()) {
                    break error;
                }
                osier::sleep(Duration::from_millis(1));
            };
            let _ = sender.send("the write failed");
            Err(written)
        })
    }));
    let mut client = site.connect();
    client.send(GET);
    client.head();
    client.take(10);
    client.reset();
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("the write failed"));
    eventually("the connection is gone", || site.connections.count() == 0);
    assert_eq!(*site.log.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn a_route_may_allow_half_close() {
    let (handler, receiver) = waiting(SHORT);
    let site = site(Router::new().route("/", Route::new().get(handler).allow_half_close()));
    let mut client = site.connect();
    client.send(GET);
    client.finish_sending();
    assert_eq!(client.reply().text(), "waited");
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("begun"));
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("finished"));

    let (handler, receiver) = waiting(LONG);
    let site = self::site(Router::new().route("/", Route::new().get(handler).allow_half_close()));
    let mut client = site.connect();
    client.send(GET);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("begun"));
    client.reset();
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("cancelled"));
}

#[test]
fn a_client_that_stays_cancels_nothing() {
    let (handler, _told) = waiting(SHORT);
    let site = site(Router::new().get("/", handler));
    let mut client = site.connect();
    for _ in 0..3 {
        assert_eq!(client.get("/").text(), "waited");
    }
}

#[test]
fn what_a_cancelled_handler_held_is_dropped() {
    struct Held(Arc<AtomicUsize>);
    impl Drop for Held {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let live = Arc::new(AtomicUsize::new(0));
    let count = live.clone();
    let handler = move |_: &mut Request<'_>| {
        count.fetch_add(1, Ordering::SeqCst);
        let _held = Held(count.clone());
        forever();
    };
    let site = site(Router::new().route("/", Route::new().get(handler).cancel_when_gone()));
    let mut clients: Vec<_> = (0..50).map(|_| site.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(GET));
    eventually("all handlers run", || live.load(Ordering::SeqCst) == 50);
    clients.into_iter().for_each(crate::common::Client::reset);
    eventually("all handlers are gone", || live.load(Ordering::SeqCst) == 0);
}

#[test]
fn panics_leave_nothing_behind() {
    let held = Arc::new(());
    let theirs = Arc::clone(&held);
    let router = Router::new()
        .get("/panic", move |_: &mut Request<'_>| -> &'static str {
            let _held = Arc::clone(&theirs);
            osier::yield_now();
            panic!("on purpose");
        })
        .get("/fibers", |_| {
            let workers = osier::inspect::metrics().expect("a worker asks").workers;
            workers.iter().map(|worker| worker.fibers).sum::<usize>().to_string()
        });
    let site = site(router);
    let fibers = || site.get("/fibers").text().parse::<usize>().unwrap();
    // A worker tells the number of its last turn, and the first request may be in the turn in which the server begins.
    fibers();
    let before = fibers();
    let mut kept: Vec<_> = (0..4).map(|_| site.connect()).collect();
    for _ in 0..500 {
        for client in &mut kept {
            assert_eq!(client.get("/panic").status, 500);
        }
    }
    for _ in 0..100 {
        assert_eq!(site.get("/panic").status, 500);
    }
    drop(kept);
    eventually("all connections are gone", || site.connections.count() <= 1);
    assert_eq!(Arc::strong_count(&held), 2, "one here, one in the handler");
    eventually("all fibers are gone", || fibers() <= before);
}

#[test]
fn an_error_of_any_type_is_a_500_with_a_log_line_unless_it_says_otherwise() {
    use osier_web::{Error, Rejection, http::StatusCode};
    fn fail(request: &mut Request<'_>) -> Result<String, Error> {
        match request.path() {
            "/parse" => Ok("seven".parse::<u8>()?.to_string()),
            "/text" => Err("a text")?,
            "/io" => Err(io::Error::other("the disk"))?,
            "/rejected" => Err(Rejection::new(StatusCode::CONFLICT, "taken"))?,
            "/inside" => Err(io::Error::from(Rejection::new(StatusCode::CONFLICT, "taken")))?,
            "/cancelled" => Err(osier::Cancelled)?,
            "/status" => Err(Error::new("not for clients").with_status(StatusCode::NOT_FOUND)),
            _ => Err(Error::new("no backend").with_status(StatusCode::BAD_GATEWAY)),
        }
    }
    let site = site(Router::new().get("/{what}", fail));
    for (path, status, line) in [
        ("/parse", 500, Some("GET /parse failed: invalid digit found in string")),
        ("/text", 500, Some("GET /text failed: a text")),
        ("/io", 500, Some("GET /io failed: the disk")),
        ("/rejected", 409, None),
        ("/inside", 409, None),
        ("/status", 404, None),
        ("/gateway", 502, Some("GET /gateway failed: no backend")),
    ] {
        let mut client = site.connect();
        let reply = client.get(path);
        assert_eq!(reply.status, status, "{path}");
        assert!(line.is_none_or(|line| site.logged(line)), "{path}");
    }
    let mut client = site.connect();
    client.send("GET /cancelled HTTP/1.1\r\nHost: t\r\n\r\n");
    client.expect_end();
    let log = site.log.lock().unwrap();
    assert_eq!(log.len(), 4, "{log:?}");
}

#[test]
fn a_page_shows_what_every_fiber_does() {
    let (sender, receiver) = mpsc::channel();
    let sender = Arc::new(Mutex::new(sender));
    let handler = move |_: &mut Request<'_>| {
        sender.lock().unwrap().send(()).unwrap();
        forever();
    };
    let by_route = handler.clone();
    let router = Router::new()
        .route("/slow", Route::new().get(handler).cancel_when_gone())
        .route("/users/{id}", Route::new().get(by_route).cancel_when_gone())
        .get("/fibers", osier_web::fibers::page);
    let site = site(router);
    let mut user = site.connect();
    user.send("GET /users/7 HTTP/1.1\r\nHost: t\r\n\r\n");
    receiver.recv_timeout(PATIENCE).unwrap();
    let mut slow = site.connect();
    slow.send("GET /slow?page=7 HTTP/1.1\r\nHost: t\r\n\r\n");
    receiver.recv_timeout(PATIENCE).unwrap();
    let all = site.get("/fibers");
    assert!(all.text().contains("(GET /slow?page=7, 127.0.0.1:"), "{}", all.text());
    let by_route = "(GET /users/7 (route /users/{id}), 127.0.0.1:";
    assert!(all.text().contains(by_route), "{}", all.text());
    let found = site.get("/fibers?find=page%3D7");
    let fibers = |text: &str| text.lines().filter(|line| line.starts_with("  fiber ")).count();
    assert_eq!(fibers(found.text()), 1, "{}", found.text());
    assert!(fibers(all.text()) > 1);
    slow.reset();
    user.reset();
}

#[test]
fn a_route_may_have_a_larger_stack() {
    fn deep(_: &mut Request<'_>) -> String {
        let frame = [1_u8; 600 << 10];
        osier::yield_now();
        std::hint::black_box(&frame)
            .iter()
            .map(|byte| usize::from(*byte))
            .sum::<usize>()
            .to_string()
    }
    let (handler, receiver) = waiting(LONG);
    let router = Router::new()
        .route("/deep", Route::new().get(deep).stack_bytes(1 << 20))
        .route(
            "/panic",
            Route::new()
                .get(|_| -> &str { panic!("on purpose") })
                .stack_bytes(1 << 20),
        )
        .route(
            "/slow",
            Route::new().get(handler).stack_bytes(1 << 20).cancel_when_gone(),
        )
        .route("/half", Route::new().get(deep).stack_bytes(1 << 20).cancel_when_gone());
    let site = site(router);
    // A half-close cancels waits for something else than the client. The fiber of the connection waits for the handler's.
    let mut client = site.connect();
    client.send("GET /half HTTP/1.1\r\nHost: t\r\n\r\n");
    client.finish_sending();
    assert_eq!(client.reply().text(), (600 << 10).to_string());
    let mut client = site.connect();
    client.send("GET /deep HTTP/1.1\r\nHost: t\r\n\r\nGET /deep HTTP/1.1\r\nHost: t\r\n\r\n");
    for _ in 0..2 {
        assert_eq!(client.reply().text(), (600 << 10).to_string());
    }
    assert_eq!(client.get("/panic").status, 500);
    assert!(site.logged("the handler of GET /panic panicked: on purpose"));
    client.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("begun"));
    client.reset();
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("cancelled"));
    eventually("the connection is gone", || site.connections.count() == 0);
}
