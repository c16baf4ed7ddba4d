//! rustls and tungstenite, which need `Read` and `Write`, over Osier's streams, on fibers.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use osier::net::TcpStream;
use osier_mixing::{listen, pattern, run};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, Stream, StreamOwned};
use tungstenite::{HandshakeError, Message, WebSocket};

/// A server's and a client's side of one certificate, which the client trusts.
fn configs() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".into()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let chain = vec![cert.der().clone()];
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(chain.clone(), key.into()).unwrap();
    (Arc::new(server), trusting(chain))
}

fn trusting(certificates: Vec<rustls::pki_types::CertificateDer<'static>>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    Arc::new(
        ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth(),
    )
}

fn client_side(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::clone(config), name).unwrap()
}

/// Echoes over TLS, a fiber for each connection.
fn tls_server(config: Arc<ServerConfig>) -> SocketAddr {
    let (listener, address) = listen();
    osier::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            osier::spawn(move || -> io::Result<()> {
                let mut stream = Stream::new(&mut tls, &mut stream);
                let mut buf = [0; 4096];
                loop {
                    match stream.read(&mut buf)? {
                        0 => break,
                        count => stream.write_all(&buf[..count])?,
                    }
                }
                stream.conn.send_close_notify();
                stream.conn.complete_io(stream.sock)?;
                Ok(())
            });
        }
    });
    address
}

#[test]
fn tls_works_over_plain_blocking_streams() {
    let (server, client) = configs();
    run(move || {
        let address = tls_server(server);
        let clients: Vec<_> = (0..10)
            .map(|n| {
                let client = Arc::clone(&client);
                osier::spawn(move || {
                    let mut stream = StreamOwned::new(client_side(&client), TcpStream::connect(address)?);
                    for len in [1, 5000 + n, 100_000] {
                        let said = pattern(len);
                        stream.write_all(&said)?;
                        let mut heard = vec![0; len];
                        stream.read_exact(&mut heard)?;
                        assert!(heard == said);
                    }
                    stream.conn.send_close_notify();
                    // An end that was not announced would be an error.
                    assert_eq!(stream.read(&mut [0])?, 0);
                    io::Result::Ok(())
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap().unwrap());
    });
}

#[test]
fn a_certificate_that_is_not_trusted_is_refused() {
    let ((server, _), (_, stranger)) = (configs(), configs());
    run(move || {
        let address = tls_server(server);
        let mut stream = StreamOwned::new(client_side(&stranger), TcpStream::connect(address).unwrap());
        let error = stream.write_all(b"hello").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("certificate"), "{error}");
    });
}

#[test]
fn a_handshake_that_does_not_go_on_ends_with_the_timeout() {
    let (_, client) = configs();
    run(move || {
        let (listener, address) = listen();
        let mut stream = StreamOwned::new(client_side(&client), TcpStream::connect(address).unwrap());
        let elapsed = osier::timeout(Duration::from_millis(10), || stream.write_all(b"hello"));
        assert!(elapsed.is_err());
        drop(listener);
    });
}

/// A WebSocket server over whatever `wrap` makes of a connection: echoes what is no control message.
fn websocket_server<S: Read + Write>(wrap: impl Fn(TcpStream) -> S + Clone + Send + 'static) -> SocketAddr {
    let (listener, address) = listen();
    osier::spawn(move || {
        for stream in listener.incoming().flatten() {
            let wrap = wrap.clone();
            osier::spawn(move || {
                let mut socket = tungstenite::accept(wrap(stream)).map_err(|error| error.to_string())?;
                loop {
                    match socket.read() {
                        Ok(message @ (Message::Text(_) | Message::Binary(_))) => {
                            socket.send(message).map_err(|error| error.to_string())?;
                        }
                        Ok(_) => {}
                        Err(tungstenite::Error::ConnectionClosed) => return Ok(()),
                        Err(error) => return Err(error.to_string()),
                    }
                }
            });
        }
    });
    address
}

fn talk<S: Read + Write>(socket: &mut WebSocket<S>) {
    for len in [0, 125, 126, 65_536, 300_000] {
        let said = Message::binary(pattern(len));
        socket.send(said.clone()).unwrap();
        assert!(socket.read().unwrap() == said, "{len}");
    }
    socket.send(Message::text("grüße")).unwrap();
    assert_eq!(socket.read().unwrap(), Message::text("grüße"));
    socket.send(Message::Ping("still there?".into())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Pong("still there?".into()));
    socket.close(None).unwrap();
    while socket.read().is_ok() {}
    assert!(!socket.can_read() && !socket.can_write());
}

#[test]
fn websockets_work_over_plain_blocking_streams() {
    run(|| {
        let address = websocket_server(|stream| stream);
        let clients: Vec<_> = (0..10)
            .map(|_| {
                osier::spawn(move || {
                    let stream = TcpStream::connect(address).unwrap();
                    let (mut socket, response) = tungstenite::client("ws://localhost/", stream).unwrap();
                    assert_eq!(response.status(), 101);
                    talk(&mut socket);
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
}

#[test]
fn websockets_work_over_tls_over_plain_blocking_streams() {
    let (server, client) = configs();
    run(move || {
        let address = websocket_server(move |stream| {
            StreamOwned::new(ServerConnection::new(Arc::clone(&server)).unwrap(), stream)
        });
        let stream = StreamOwned::new(client_side(&client), TcpStream::connect(address).unwrap());
        let (mut socket, _) = tungstenite::client("wss://localhost/", stream).unwrap();
        talk(&mut socket);
    });
}

#[test]
fn what_is_no_websocket_is_refused() {
    run(|| {
        let (listener, address) = listen();
        let server = osier::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            // Never `Interrupted`: to who calls a blocking stream there is nothing to take up again.
            matches!(tungstenite::accept(stream), Err(HandshakeError::Failure(_)))
        });
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(server.join().unwrap());
    });
}
