//! The agent against servers of the same runtime: many fibers of one thread, the pool, TLS, timeouts, cancellation.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use osier::net::TcpListener;
use osier_ureq::ureq;
use osier_web::{Body, Request, Router, Server};
use ureq::config::Config;

/// Runs a test on a fiber of a runtime. It may not hang the run.
fn run<T: Send>(workers: usize, test: impl FnOnce() -> T + Send) -> T {
    let runtime = osier::Runtime::builder().workers(workers).build().unwrap();
    runtime.run(|| osier::timeout(Duration::from_secs(60), test).expect("the test hangs"))
}

fn serve(router: Router) -> SocketAddr {
    let server = Server::new(router).bind("127.0.0.1:0").unwrap();
    let address = server.local_addr();
    osier::spawn(move || server.run());
    address
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn text(agent: &ureq::Agent, url: &str) -> Result<String, ureq::Error> {
    agent.get(url).call()?.body_mut().read_to_string()
}

#[test]
fn many_fibers_of_one_thread_ask_at_once() {
    run(1, || {
        let router = Router::new().get("/{n}", |request: &mut Request<'_>| {
            // All are on their way at once, or this takes a second.
            osier::sleep(Duration::from_millis(50));
            request.param("n").unwrap_or_default().into_owned()
        });
        let (address, agent) = (serve(router), osier_ureq::agent());
        let fibers: Vec<_> = (0..20)
            .map(|n| {
                let agent = agent.clone();
                osier::spawn(move || text(&agent, &format!("http://{address}/{n}")))
            })
            .collect();
        for (n, fiber) in fibers.into_iter().enumerate() {
            assert_eq!(fiber.join().unwrap().unwrap(), n.to_string());
        }
    });
}

#[test]
fn a_handler_asks_its_own_server() {
    // One worker: ureq's own sockets would stop it before the second request is read.
    run(1, || {
        let agent = osier_ureq::agent();
        let asks = move |request: &mut Request<'_>| {
            let host = request.header_str("host").unwrap_or_default();
            text(&agent, &format!("http://{host}/inner")).map_err(io::Error::other)
        };
        let router = Router::new()
            .get("/outer", asks)
            .get("/inner", |_: &mut Request<'_>| "from inside");
        let address = serve(router);
        let answer = text(&osier_ureq::agent(), &format!("http://{address}/outer"));
        assert_eq!(answer.unwrap(), "from inside");
    });
}

#[test]
fn connections_are_kept_and_bodies_streamed() {
    run(2, || {
        let router = Router::new()
            .get("/peer", |request: &mut Request<'_>| request.peer().to_string())
            .post("/mirror", |request: &mut Request<'_>| {
                let mut body = Vec::new();
                request.body().read_to_end(&mut body)?;
                Ok::<_, io::Error>(Body::from(body))
            });
        let (address, agent) = (serve(router), osier_ureq::agent());
        let peer = || text(&agent, &format!("http://{address}/peer")).unwrap();
        assert_eq!(peer(), peer(), "the same connection");
        let said: Vec<u8> = (0..700_000_usize).map(|at| (at % 251) as u8).collect();
        let sent = ureq::SendBody::from_owned_reader(io::Cursor::new(said.clone()));
        let mut response = agent.post(format!("http://{address}/mirror")).send(sent).unwrap();
        let mut heard = Vec::new();
        response.body_mut().as_reader().read_to_end(&mut heard).unwrap();
        assert!(heard == said);
        let by_name = agent.get(format!("http://localhost:{}/peer", address.port())).call();
        assert_eq!(by_name.unwrap().status(), 200);
    });
}

#[test]
fn timeouts_errors_and_cancellation_are_told_apart() {
    run(2, || {
        let (silent, address) = listen();
        let limit = Some(Duration::from_millis(30));
        let limited = osier_ureq::with(Config::builder().timeout_global(limit).build());
        let late = limited.get(format!("http://{address}/")).call();
        assert!(matches!(late, Err(ureq::Error::Timeout(_))), "{late:?}");

        let agent = osier_ureq::agent();
        let cancelled = osier::spawn(move || match agent.get(format!("http://{address}/")).call() {
            Err(ureq::Error::Io(error)) => osier::Cancelled::is(&error),
            other => panic!("{other:?}"),
        });
        osier::sleep(Duration::from_millis(10)); // until it waits
        cancelled.cancel();
        assert!(cancelled.join().unwrap());

        drop(silent);
        let refused = limited.get(format!("http://{address}/")).call();
        assert!(
            matches!(&refused, Err(ureq::Error::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused),
            "{refused:?}"
        );
        let nowhere = limited.get("http://nowhere.invalid/").call();
        assert!(nowhere.is_err(), "{nowhere:?}");
    });
}

#[cfg(feature = "rustls")]
mod tls {
    use std::io::{BufRead, BufReader, Write};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use osier_ureq::ureq::tls::{Certificate, RootCerts, TlsConfig};
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
    use rustls::{ServerConfig, ServerConnection, StreamOwned};

    use super::*;

    /// A certificate authority, and the configuration of a server for `localhost` that it vouches for.
    fn authority() -> (CertificateDer<'static>, Arc<ServerConfig>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["localhost".into()]).unwrap();
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        let chain = vec![leaf.der().clone()];
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        (
            root.der().clone(),
            Arc::new(config.with_single_cert(chain, key.into()).unwrap()),
        )
    }

    /// Answers each request by its path. Counts connections.
    fn serve_tls(config: Arc<ServerConfig>) -> (SocketAddr, Arc<AtomicUsize>) {
        let (listener, address) = listen();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        osier::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::Relaxed);
                let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
                osier::spawn(move || -> io::Result<()> {
                    let mut stream = BufReader::new(StreamOwned::new(tls, stream));
                    loop {
                        let mut lines = Vec::new();
                        while !lines.ends_with(b"\r\n\r\n") {
                            if stream.read_until(b'\n', &mut lines)? == 0 {
                                return Ok(());
                            }
                        }
                        osier::sleep(Duration::from_millis(10)); // others are served meanwhile
                        let head = String::from_utf8_lossy(&lines);
                        let path = head.split(' ').nth(1).unwrap_or_default();
                        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}", path.len());
                        stream.get_mut().write_all(response.as_bytes())?;
                    }
                });
            }
        });
        (address, count)
    }

    fn trusting(root: &CertificateDer<'_>) -> ureq::Agent {
        let roots = RootCerts::from([Certificate::from_der(root)].into_iter().map(|root| root.to_owned()));
        let tls = TlsConfig::builder().root_certs(roots).build();
        osier_ureq::with(
            Config::builder()
                .tls_config(tls)
                .max_idle_connections_per_host(10)
                .build(),
        )
    }

    #[test]
    fn tls_by_an_authority_of_ones_own_with_kept_connections() {
        let (root, config) = authority();
        run(1, move || {
            let (address, connections) = serve_tls(config);
            let agent = trusting(&root);
            let url = |n: usize| format!("https://localhost:{}/{n}", address.port());
            for n in 0..5 {
                assert_eq!(text(&agent, &url(n)).unwrap(), format!("/{n}"));
            }
            assert_eq!(connections.load(Ordering::Relaxed), 1);
            let fibers: Vec<_> = (0..10)
                .map(|n| {
                    let (agent, url) = (agent.clone(), url(n));
                    osier::spawn(move || text(&agent, &url))
                })
                .collect();
            for (n, fiber) in fibers.into_iter().enumerate() {
                assert_eq!(fiber.join().unwrap().unwrap(), format!("/{n}"));
            }
            assert!(connections.load(Ordering::Relaxed) <= 10);
        });
    }

    #[test]
    fn a_stranger_is_refused_and_a_silent_handshake_times_out() {
        let ((_, config), (other, _)) = (authority(), authority());
        run(1, move || {
            let (address, _) = serve_tls(config);
            let refused = text(&trusting(&other), &format!("https://localhost:{}/", address.port()));
            assert!(refused.unwrap_err().to_string().contains("certificate"));
            let (_silent, address) = listen();
            let limit = Some(Duration::from_millis(30));
            let agent = osier_ureq::with(Config::builder().timeout_connect(limit).build());
            let late = agent.get(format!("https://localhost:{}/", address.port())).call();
            assert!(matches!(late, Err(ureq::Error::Timeout(_))), "{late:?}");
        });
    }
}

/// No [`osier::timeout`] ends a call there.
#[test]
fn timeouts_hold_on_a_plain_thread() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let agent = |millis| {
        let limit = Some(Duration::from_millis(millis));
        osier_ureq::with(Config::builder().timeout_global(limit).build())
    };
    let late = agent(100).get(format!("http://{address}/")).call();
    assert!(matches!(late, Err(ureq::Error::Timeout(_))), "{late:?}");
    // The first one is still in the backlog.
    let half = std::thread::spawn(move || {
        drop(silent.accept().unwrap());
        let (mut stream, _) = silent.accept().unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
            .unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    // The head has to come in time on a busy machine.
    let late = agent(2000).get(format!("http://{address}/")).call();
    let late = late.unwrap().body_mut().read_to_string();
    assert!(matches!(late, Err(ureq::Error::Timeout(_))), "{late:?}");
    half.join().unwrap();
}
