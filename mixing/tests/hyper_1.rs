//! hyper 1, server and client, over Osier's streams, executor and timer; and each against another peer.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_lite::{AsyncReadExt, AsyncWriteExt, StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, client, server};
use osier::adapters::hyper::{Executor, Timer};
use osier::adapters::tokio::with_tokio;
use osier::adapters::{AsyncStream, Compat};
use osier::net::TcpStream;
use osier_mixing::{listen, pattern, run, serve};
use osier_web::Router;

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// The stream that hyper reads from and writes to.
type Io = Compat<AsyncStream<TcpStream>>;

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body of unknown length.
fn streamed(pieces: impl stream::Stream<Item = Bytes> + Send + 'static) -> Body {
    StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece)))).boxed_unsync()
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    Ok(match request.uri().path() {
        "/hello" => Response::new(full("hello")),
        "/echo" => Response::new(request.into_body().boxed_unsync()),
        "/ticks" => Response::new(streamed(stream::unfold(0, |n| async move {
            osier::time::Sleep::new(Duration::from_millis(1)).await;
            (n < 5).then(|| (Bytes::from(format!("tick {n}\n")), n + 1))
        }))),
        // A handler may not block in its poll, but wait for a fiber that does.
        "/fiber" => {
            let asleep = osier::spawn(|| {
                osier::yield_now();
                "slept"
            });
            Response::new(full(asleep.await.expect("it does not panic")))
        }
        "/upgrade" => {
            osier::spawn_future(async {
                let upgraded = hyper::upgrade::on(request).await.expect("the client asked for it");
                echo(upgraded).await
            });
            let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
            let response = response.header(CONNECTION, "upgrade").header(UPGRADE, "echo");
            response.body(full("")).expect("these are valid")
        }
        _ => {
            let response = Response::builder().status(StatusCode::NOT_FOUND);
            response.body(full("")).expect("this is valid")
        }
    })
}

/// The stream as it was before hyper took it, and what hyper had read too much.
async fn echo(upgraded: hyper::upgrade::Upgraded) -> std::io::Result<()> {
    let parts = upgraded.downcast::<Io>().expect("this is what hyper was given");
    let mut stream = parts.io.into_inner();
    stream.write_all(&parts.read_buf).await?;
    let mut buf = [0; 512];
    loop {
        match stream.read(&mut buf).await? {
            0 => return Ok(()),
            count => stream.write_all(&buf[..count]).await?,
        }
    }
}

/// Serves with hyper until the runtime ends; the number says how many connections there were.
fn hyper_server(header_limit: Duration) -> (SocketAddr, Arc<AtomicUsize>) {
    let (listener, address) = listen();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    osier::spawn_future(async move {
        let mut incoming = listener.incoming_async();
        while let Some(Ok(stream)) = incoming.next().await {
            count.fetch_add(1, Ordering::Relaxed);
            osier::spawn_future(async move {
                let mut http = server::conn::http1::Builder::new();
                http.timer(Timer).header_read_timeout(header_limit);
                // Whoever does not end well is the client's affair: each test looks at what it gets.
                let served = http.serve_connection(stream.compat(), service_fn(answer));
                let _ = served.with_upgrades().await;
            });
        }
    });
    (address, accepted)
}

const PATIENT: Duration = Duration::from_secs(30);

/// A connection of hyper's client, driven by a task.
async fn connect(address: SocketAddr) -> SendRequest<Body> {
    let stream = TcpStream::connect_async(address).await.expect("somebody listens");
    let (sender, connection) = client::conn::http1::handshake(stream.compat())
        .await
        .expect("no peer is asked");
    osier::spawn_future(connection.with_upgrades());
    sender
}

fn request(method: &str, path: &str, body: Body) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    request.body(body).expect("these are valid")
}

async fn collect(response: Response<Incoming>) -> Bytes {
    response.into_body().collect().await.expect("it comes whole").to_bytes()
}

#[test]
fn a_thousand_requests_come_over_twenty_kept_connections() {
    run(|| {
        let (address, accepted) = hyper_server(PATIENT);
        let clients: Vec<_> = (0..20)
            .map(|client| {
                osier::spawn_future(async move {
                    let mut sender = connect(address).await;
                    for n in 0..50 {
                        sender.ready().await.expect("the connection is kept");
                        let said = format!("{client} says {n}");
                        let response = sender.send_request(request("POST", "/echo", full(said.clone()))).await;
                        assert_eq!(collect(response.expect("it is answered")).await, said);
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        assert_eq!(accepted.load(Ordering::Relaxed), 20);
    });
}

#[test]
fn bodies_of_unknown_length_are_chunked_both_ways() {
    run(|| {
        let (address, _) = hyper_server(PATIENT);
        let whole = pattern(1 << 20);
        let pieces: Vec<Bytes> = whole.chunks(7001).map(Bytes::copy_from_slice).collect();
        // On a fiber: it suspends for each of the futures.
        let mut sender = osier::block_on(connect(address));
        let body = streamed(stream::iter(pieces));
        let response = osier::block_on(sender.send_request(request("POST", "/echo", body))).unwrap();
        assert_eq!(response.headers()[TRANSFER_ENCODING], "chunked");
        assert!(!response.headers().contains_key(CONTENT_LENGTH));
        assert!(osier::block_on(collect(response)) == whole);

        let response = osier::block_on(sender.send_request(request("GET", "/ticks", full("")))).unwrap();
        assert_eq!(response.headers()[TRANSFER_ENCODING], "chunked");
        let ticks = osier::block_on(collect(response));
        assert_eq!(ticks, "tick 0\ntick 1\ntick 2\ntick 3\ntick 4\n");
    });
}

#[test]
fn an_upgraded_connection_belongs_to_both_sides() {
    run(|| {
        let (address, _) = hyper_server(PATIENT);
        osier::block_on(async {
            let mut sender = connect(address).await;
            let mut asked = request("GET", "/upgrade", full(""));
            asked.headers_mut().insert(CONNECTION, "upgrade".parse().unwrap());
            asked.headers_mut().insert(UPGRADE, "echo".parse().unwrap());
            let response = sender.send_request(asked).await.unwrap();
            assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
            let upgraded = hyper::upgrade::on(response).await.unwrap();
            let mut stream = upgraded.downcast::<Io>().unwrap().io.into_inner();
            for said in ["over", "and", "out"] {
                stream.write_all(said.as_bytes()).await.unwrap();
                let mut heard = vec![0; said.len()];
                stream.read_exact(&mut heard).await.unwrap();
                assert_eq!(heard, said.as_bytes());
            }
            // Back to a blocking stream, on either side.
            drop(stream.into_inner());
        });
    });
}

#[test]
fn a_handler_waits_for_a_fiber_that_blocks() {
    run(|| {
        let (address, _) = hyper_server(PATIENT);
        osier::block_on(async {
            let mut sender = connect(address).await;
            let response = sender.send_request(request("GET", "/fiber", full(""))).await.unwrap();
            assert_eq!(collect(response).await, "slept");
        });
    });
}

#[test]
fn a_connection_may_have_a_fiber_instead_of_a_task() {
    run(|| {
        let (listener, address) = listen();
        let server = osier::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            // Neither this service nor its futures are Send.
            let seen = std::rc::Rc::new(std::cell::Cell::new(0));
            let service = service_fn(|request| {
                seen.set(seen.get() + 1);
                answer(request)
            });
            let http = server::conn::http1::Builder::new();
            osier::block_on(http.serve_connection(stream.compat(), service)).unwrap();
            seen.get()
        });
        osier::block_on(async {
            let mut sender = connect(address).await;
            for _ in 0..3 {
                sender.ready().await.unwrap();
                let response = sender.send_request(request("GET", "/hello", full(""))).await.unwrap();
                assert_eq!(collect(response).await, "hello");
            }
        });
        assert_eq!(server.join().unwrap(), 3);
    });
}

#[test]
fn http2_spawns_on_our_executor() {
    run(|| {
        let (listener, address) = listen();
        osier::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut http = server::conn::http2::Builder::new(Executor);
            http.timer(Timer).keep_alive_interval(Duration::from_millis(5));
            osier::block_on(http.serve_connection(stream.compat(), service_fn(answer)))
        });
        osier::block_on(async {
            let stream = TcpStream::connect_async(address).await.unwrap();
            let mut http = client::conn::http2::Builder::new(Executor);
            let (sender, connection) = http.timer(Timer).handshake(stream.compat()).await.unwrap();
            let driver = osier::spawn_future(connection);
            // Longer than a stream's first window.
            let tasks: Vec<_> = (0..10)
                .map(|n| {
                    let mut sender = sender.clone();
                    osier::spawn_future(async move {
                        let said = pattern(100_000 + n);
                        let pieces: Vec<Bytes> = said.chunks(9999).map(Bytes::copy_from_slice).collect();
                        let request = Request::post("http://localhost/echo").body(streamed(stream::iter(pieces)));
                        let response = sender.send_request(request.unwrap()).await.unwrap();
                        assert!(collect(response).await == said);
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            drop(sender);
            driver.await.unwrap().unwrap();
        });
    });
}

/// hyper gives each stream of HTTP/2 to the executor, so the future around the connection is not the one that is polled.
#[test]
fn the_streams_of_a_connection_with_tokio_have_tokio() {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    run(|| {
        let (listener, address) = listen();
        let handle = tokio.handle().clone();
        osier::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let slow = service_fn(|_: Request<Incoming>| async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Ok::<_, Infallible>(Response::new(full("slept")))
            });
            let connection = server::conn::http2::Builder::new(Executor).serve_connection(stream.compat(), slow);
            osier::block_on(with_tokio(handle, connection))
        });
        let text = osier::block_on(async {
            let stream = TcpStream::connect_async(address).await.unwrap();
            let (mut sender, connection) = client::conn::http2::handshake(Executor, stream.compat()).await.unwrap();
            osier::spawn_future(connection);
            let asked = Request::get(format!("http://{address}/")).body(full("")).unwrap();
            let response = sender.send_request(asked).await.unwrap();
            response.into_body().collect().await.unwrap().to_bytes()
        });
        assert_eq!(text, "slept");
    });
}

#[test]
fn hypers_deadlines_run_on_our_timer() {
    run(|| {
        let (address, _) = hyper_server(Duration::from_millis(50));
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /hello HTTP/1.1\r\nHost: too-slow\r\n").unwrap();
        // Half a head, for ever: hyper's side has to end it.
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut rest).unwrap();
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
    });
}

#[test]
fn hypers_client_talks_to_our_server() {
    run(|| {
        let router = Router::new()
            .get("/hello/{name}", |request: &mut osier_web::Request<'_>| {
                format!("hello, {}", request.param("name").unwrap_or_default())
            })
            .post("/count", |request: &mut osier_web::Request<'_>| {
                let mut body = Vec::new();
                Read::read_to_end(request.body(), &mut body)?;
                Ok::<_, std::io::Error>(body.len().to_string())
            });
        let address = serve(router);
        osier::block_on(async {
            let mut sender = connect(address).await;
            for n in 0..10 {
                sender.ready().await.unwrap();
                let path = format!("/hello/{n}");
                let response = sender.send_request(request("GET", &path, full(""))).await.unwrap();
                assert_eq!(collect(response).await, format!("hello, {n}"));
            }
            sender.ready().await.unwrap();
            let pieces = (0..100).map(|_| Bytes::from(pattern(999)));
            let body = streamed(stream::iter(pieces));
            let response = sender.send_request(request("POST", "/count", body)).await.unwrap();
            assert_eq!(collect(response).await, "99900");
        });
    });
}

#[test]
fn curl_talks_to_hypers_server() {
    let can_run = Command::new("curl").arg("--version").stdout(Stdio::null()).status();
    if !can_run.is_ok_and(|status| status.success()) {
        println!("skipped: curl is not installed");
        return;
    }
    run(|| {
        let (address, _) = hyper_server(PATIENT);
        let curl = |arguments: &[&str], path: &str| {
            let mut command = Command::new("curl");
            command.args(["--silent", "--show-error", "--max-time", "30"]);
            command.args(arguments).arg(format!("http://{address}{path}"));
            let output = osier::unblock(move || command.output()).unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(curl(&[], "/hello"), "hello");
        assert_eq!(curl(&[], "/ticks").lines().count(), 5);
        let chunked = ["--header", "Transfer-Encoding: chunked", "--data", "as it was"];
        assert_eq!(curl(&chunked, "/echo"), "as it was");
        let status = ["--output", "/dev/null", "--write-out", "%{http_code}"];
        assert_eq!(curl(&status, "/nowhere"), "404");
    });
}
