//! Where the time of a request goes, over HTTP/1 and HTTP/2, in the clear and over TLS, and the log of slow requests. The
//! clock is virtual: server, client and backend are fibers of one worker, and a handler that computes advances the clock.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use osier::net::{TcpListener, TcpStream};
use osier::time::VirtualClock;
use osier_http::h2::{Connection, Event, Limits, Outgoing};
use osier_web::proxy::Proxy;
use osier_web::tls::{Acceptor, Connector};
use osier_web::upstream::Upstream;
use osier_web::{Level, Phase, Request, Response, Router, Server, Timeouts, Times, sse, wrap};

use crate::tls::LOCALHOST;

const SECOND: Duration = Duration::from_secs(1);
/// More than the socket buffers of a connection hold.
const BIG: usize = 12 << 20;

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// The path, the times in whole seconds, and the duration of a request.
type Report = (String, Vec<(Phase, u64)>, u64);

/// The words of a server.
#[derive(Default)]
struct Said {
    served: Vec<Report>,
    /// The warnings and errors.
    log: Vec<String>,
    /// Every line of the log, and the fates of the connections.
    all: Vec<String>,
}

/// Prints what a server has said if its client panics.
struct Tells(Arc<Mutex<Said>>);

impl Drop for Tells {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = self.0.lock().unwrap();
            eprintln!("the server has served {:?} and said {:#?}", said.served, said.all);
        }
    }
}

fn seconds(time: Duration) -> u64 {
    (time + SECOND / 2).as_secs()
}

fn phases(times: &Times) -> Vec<(Phase, u64)> {
    let all = times.iter().map(|(phase, time)| (phase, seconds(time)));
    all.filter(|(_, seconds)| *seconds > 0).collect()
}

/// Runs a server of this router and `client` on one worker.
fn with_server(router: fn(&VirtualClock) -> Router, is_tls: bool, client: impl FnOnce(SocketAddr) + Send) -> Said {
    let said = Arc::new(Mutex::new(Said::default()));
    let (noted, logged, seen) = (said.clone(), said.clone(), said.clone());
    let clock = VirtualClock::new();
    let long = Duration::from_secs(24 * 3600);
    let timeouts = Timeouts {
        header: long,
        body: long,
        idle: long,
        write: long,
        ..Timeouts::default()
    };
    let mut server = Server::new(router(&clock))
        .timeouts(timeouts)
        .on_request(move |served| {
            let mut said = noted.lock().unwrap();
            let request = (
                served.path().to_owned(),
                phases(&served.times()),
                seconds(served.duration()),
            );
            said.served.push(request);
        })
        .on_connection(move |event| seen.lock().unwrap().all.push(format!("{event:?}")))
        .on_log(move |record| {
            let mut said = logged.lock().unwrap();
            said.all.push(format!("{:?}: {record}", record.level()));
            if record.level() <= Level::Warning {
                let id = record.id().map_or(0, |id| id.as_str().len());
                said.log.push(format!("{id} {record}"));
            }
        });
    if is_tls {
        let acceptor = Acceptor::builder(LOCALHOST.identity()).alpn(["h2", "http/1.1"]);
        server = server.tls(acceptor.build().unwrap());
    }
    let runtime = osier::Runtime::builder().workers(1).clock(clock);
    runtime.build().unwrap().run(|| {
        // A listener of `Server::bind` would accept a silent client after a second of the machine's clock.
        let server = server.listener(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let (address, handle) = (server.local_addr(), server.handle());
        let serving = osier::spawn(move || server.run());
        let tells = Tells(Arc::clone(&said));
        client(address);
        drop(tells);
        handle.shutdown();
        serving.join().unwrap();
    });
    Arc::into_inner(said).unwrap().into_inner().unwrap()
}

/// A backend that responds after three seconds.
fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(osier::spawn_local(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        osier::sleep(3 * SECOND);
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
        stream.write_all(response).unwrap();
    }));
    address
}

/// A handler that spends a different number of seconds in each phase. The client adds four for the body and six for the
/// response.
fn work(clock: &VirtualClock, request: &mut Request<'_>) -> Vec<u8> {
    let mut body = String::new();
    request.body().read_to_string(&mut body).unwrap();
    assert_eq!(body, "hello");
    osier::sleep(SECOND);
    static LOCK: osier::sync::Mutex<()> = osier::sync::Mutex::new(());
    drop(osier::spawn_local(|| {
        let _held = LOCK.lock();
        osier::sleep(2 * SECOND);
    }));
    osier::yield_now();
    drop(LOCK.lock());
    let mut upstream = TcpStream::connect(backend()).unwrap();
    upstream.write_all(b"hello").unwrap();
    upstream.read_to_end(&mut Vec::new()).unwrap();
    clock.advance(5 * SECOND);
    osier::spawn_local(|| osier::sleep(7 * SECOND)).join().unwrap();
    vec![b'x'; BIG]
}

fn router(clock: &VirtualClock) -> Router {
    let clock = clock.clone();
    Router::new()
        .post("/work", move |request: &mut Request<'_>| work(&clock, request))
        .get("/", |_| "hello")
}

/// The phases of [`work`].
fn expected() -> Vec<(Phase, u64)> {
    vec![
        (Phase::Run, 5),
        (Phase::Upstream, 3),
        (Phase::Lock, 2),
        (Phase::Sleep, 1),
        (Phase::Client, 4),
        (Phase::Write, 6),
        (Phase::Other, 7),
    ]
}

fn connect(address: SocketAddr, protocol: Option<&str>) -> Box<dyn Stream> {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_nodelay(true).unwrap();
    match protocol {
        None => Box::new(socket),
        Some(protocol) => {
            let connector = Connector::builder().ca_pem(LOCALHOST.chain.as_bytes()).alpn([protocol]);
            Box::new(connector.build().unwrap().connect("localhost", socket).unwrap())
        }
    }
}

fn over_http1(mut stream: Box<dyn Stream>) {
    let head = b"POST /work HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\n";
    stream.write_all(head).unwrap();
    stream.flush().unwrap();
    osier::sleep(4 * SECOND);
    stream.write_all(b"hello").unwrap();
    stream.flush().unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut count = stream.read(&mut buffer).unwrap();
    osier::sleep(6 * SECOND);
    while count < BIG {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "ended after {count}");
        count += read;
    }
}

fn over_http2(mut stream: Box<dyn Stream>) {
    let mut machine = Connection::client(&Limits::default(), Instant::now());
    let target = Outgoing {
        method: "POST",
        scheme: "http",
        authority: "t",
        path: "/work",
        protocol: None,
    };
    let id = machine.request(&target, [], false).unwrap();
    let flush = |machine: &mut Connection, stream: &mut Box<dyn Stream>| {
        while !machine.output().is_empty() {
            let count = stream.write(machine.output()).unwrap();
            machine.advance(count);
        }
        stream.flush().unwrap();
    };
    flush(&mut machine, &mut stream);
    osier::sleep(4 * SECOND);
    assert_eq!(machine.send_data(id, b"hello", true, Instant::now()), 5);
    flush(&mut machine, &mut stream);
    let (mut buffer, mut count, mut slept) = (vec![0; 1 << 20], 0, false);
    while count < BIG {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "ended after {count}");
        let mut bytes = &buffer[..read];
        while !bytes.is_empty() {
            let (taken, event) = machine.receive(bytes, Instant::now()).unwrap();
            bytes = &bytes[taken..];
            if let Some(Event::Data { stream, bytes, .. }) = event {
                count += bytes.len();
                let len = bytes.len();
                if !slept {
                    slept = true;
                    osier::sleep(6 * SECOND);
                }
                machine.consumed(stream, len);
            }
        }
        flush(&mut machine, &mut stream);
    }
}

#[test]
fn every_phase_is_told_over_every_protocol() {
    for (protocol, client) in [
        (None, over_http1 as fn(Box<dyn Stream>)),
        (Some("http/1.1"), over_http1),
        (None, over_http2),
        (Some("h2"), over_http2),
    ] {
        let said = with_server(router, protocol.is_some(), |address| client(connect(address, protocol)));
        assert_eq!(said.served, [("/work".to_owned(), expected(), 28)], "{protocol:?}");
    }
}

fn ask(stream: &mut TcpStream, path: &str) {
    // In one write: the kernel holds a second one back for longer than the clock waits.
    let head = format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
}

fn get(stream: &mut TcpStream, path: &str) -> String {
    ask(stream, path);
    let mut answer = Vec::new();
    while !answer.ends_with(b"hello") {
        let mut buffer = [0; 1024];
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "{:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8(answer).unwrap()
}

#[test]
fn a_request_behind_another_waits_for_the_worker() {
    fn router(clock: &VirtualClock) -> Router {
        let clock = clock.clone();
        let busy = move |_: &mut Request<'_>| {
            clock.advance(3 * SECOND);
            "hello"
        };
        Router::new().get("/busy", busy).get("/", |_| "hello")
    }
    let said = with_server(router, false, |address| {
        let [mut first, mut second] = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        osier::sleep(8 * SECOND);
        get(&mut first, "/");
        get(&mut second, "/");
        // Both are there when the worker looks.
        ask(&mut first, "/busy");
        get(&mut second, "/");
    });
    let of = |phases: &[(Phase, u64)], duration| (phases.to_vec(), duration);
    let served: Vec<_> = said
        .served
        .into_iter()
        .map(|(_, phases, duration)| (phases, duration))
        .collect();
    let first = of(&[(Phase::Accept, 8)], 0);
    let expected = [
        first.clone(),
        first,
        of(&[(Phase::Run, 3)], 3),
        of(&[(Phase::Worker, 3)], 0),
    ];
    assert_eq!(served, expected);
}

#[test]
fn a_gateway_waits_for_its_backend() {
    fn router(_: &VirtualClock) -> Router {
        let proxy = |request: &mut Request<'_>| -> Response {
            let address = backend().to_string().parse().unwrap();
            let upstream = Upstream::builder("app").backend(address).build().unwrap();
            Proxy::new(upstream).answer(request)
        };
        Router::new().get("/proxied", proxy).wrap(wrap::server_timing())
    }
    let said = with_server(router, false, |address| {
        let response = get(&mut TcpStream::connect(address).unwrap(), "/proxied");
        let field = response.lines().find_map(|line| line.strip_prefix("server-timing: "));
        let upstream = field
            .unwrap()
            .split(", ")
            .find_map(|part| part.strip_prefix("upstream;dur="));
        assert_eq!(upstream.unwrap().parse::<f64>().unwrap().round(), 3000.0, "{response}");
    });
    assert_eq!(said.served, [("/proxied".to_owned(), vec![(Phase::Upstream, 3)], 3)]);
}

/// A backend that pauses for three seconds inside the body of its response.
fn streaming_backend(kind: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(osier::spawn_local(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        stream.write_all(b"data: 1\n\n").unwrap();
        osier::sleep(3 * SECOND);
        stream.write_all(b"data: 2\n\n").unwrap();
    }));
    address
}

fn stream(kind: &'static str) -> Router {
    Router::new().get("/stream", move |request: &mut Request<'_>| -> Response {
        let address = streaming_backend(kind).to_string().parse().unwrap();
        let upstream = Upstream::builder("app").backend(address).build().unwrap();
        Proxy::new(upstream).answer(request)
    })
}

fn read_stream(address: SocketAddr) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.contains("data: 2"), "{response}");
}

#[test]
fn a_stream_waits_for_its_backend() {
    let said = with_server(|_| stream("text/event-stream"), false, read_stream);
    assert_eq!(said.served, [("/stream".to_owned(), vec![(Phase::Upstream, 3)], 3)]);
}

/// A router whose requests are slow after two seconds.
fn slow(clock: &VirtualClock) -> Router {
    let clock = clock.clone();
    let busy = move |_: &mut Request<'_>| {
        clock.advance(3 * SECOND);
        "hello"
    };
    let sleeps = |request: &mut Request<'_>| {
        let seconds: u32 = request.param("seconds").unwrap().parse().unwrap();
        wait_here(seconds);
        "hello"
    };
    let events = |_: &mut Request<'_>| {
        sse::stream(|sink| {
            sink.sleep(5 * SECOND)?;
            sink.send(sse::Event::new("the end"))
        })
    };
    Router::new()
        .get("/busy", busy)
        .get("/events", events)
        .get("/sleep/{seconds}", sleeps)
        .wrap(wrap::slow(2 * SECOND))
}

#[inline(never)]
fn wait_here(seconds: u32) {
    osier::sleep(seconds * SECOND);
    std::hint::black_box(());
}

#[test]
fn a_slow_request_is_logged_once_while_it_waits() {
    let said = with_server(slow, false, |address| {
        let started = osier::time::now();
        let mut quick = TcpStream::connect(address).unwrap();
        get(&mut quick, "/sleep/1");
        osier::scope(|scope| {
            for seconds in [5, 1, 9] {
                scope.spawn_local(move || get(&mut TcpStream::connect(address).unwrap(), &format!("/sleep/{seconds}")));
            }
        });
        get(&mut quick, "/sleep/1");
        assert_eq!(seconds(osier::time::now() - started), 11);
    });
    assert_eq!(said.log.len(), 2, "{:?}", said.log);
    for (line, path) in said.log.iter().zip(["/sleep/5", "/sleep/9"]) {
        let rest = line.strip_prefix(&format!("16 GET {path} (route /sleep/{{seconds}}), 127.0.0.1:"));
        let rest = rest.unwrap_or_else(|| panic!("{line}"));
        // At that moment, and not when it ends.
        assert!(rest.contains(" has taken 2.0s so far ("), "{line}");
        assert!(
            rest.contains("sleep 2000.000 ms") || rest.contains("sleep 2001"),
            "{line}"
        );
        assert!(
            rest.contains("it is in 'sleep', waiting for a timer; backtrace: "),
            "{line}"
        );
        // CI builds this program without the debug information that has the file and the line.
        assert!(rest.contains("wait_here"), "{line}");
    }
}

#[test]
fn a_slow_request_whose_response_has_paused_is_logged_without_a_fiber() {
    let router = |_: &VirtualClock| stream("text/plain").wrap(wrap::slow(2 * SECOND));
    let said = with_server(router, false, read_stream);
    assert_eq!(said.log.len(), 1, "{:?}", said.log);
    let line = &said.log[0];
    assert!(line.starts_with("16 GET /stream, 127.0.0.1:"), "{line}");
    assert!(line.contains(" has taken 2.0s so far ("), "{line}");
    assert!(line.contains("it is in 'upstream'"), "{line}");
    assert!(line.ends_with(", without a fiber of its own"), "{line}");
}

#[test]
fn a_request_that_blocks_its_worker_is_logged_when_it_lets_go() {
    let said = with_server(slow, false, |address| {
        get(&mut TcpStream::connect(address).unwrap(), "/busy");
    });
    assert_eq!(said.log.len(), 1, "{:?}", said.log);
    let line = &said.log[0];
    assert!(
        line.starts_with("16 GET /busy has taken 3.0s (run 3000.000 ms)"),
        "{line}"
    );
    // This request has kept it busy, but another one may have done so.
    assert!(
        line.ends_with("; its worker was too busy to report it earlier"),
        "{line}"
    );
}

/// A stream of events takes as long as its client stays.
#[test]
fn a_stream_of_events_is_never_slow() {
    let said = with_server(slow, false, |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        ask(&mut stream, "/events");
        let mut text = Vec::new();
        while !text.ends_with(b"0\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            text.extend(byte);
        }
        assert!(text.windows(7).any(|part| part == b"the end"));
    });
    assert_eq!(said.log, [""; 0]);
    assert_eq!(said.served.len(), 1);
}
