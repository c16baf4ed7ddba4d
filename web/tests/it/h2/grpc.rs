//! gRPC through the proxy, with Python's grpcio at both ends, and the errors of the proxy itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use osier_web::proxy::{Options, Proxy};
use osier_web::tls::Connector;
use osier_web::upstream::{Builder, Upstream};
use osier_web::{IntoResponse, Response, Router, Server, Timeouts};
use testkit::Folder;

use super::client::Client;
use super::upstream::{proxy, upstream};
use crate::common::backend::{self, Backend, serve, serve_large};
use crate::common::{site, site_with};
use crate::tls::LOCALHOST;

/// Debian installs grpcio for this interpreter.
const PYTHON: &str = "/usr/bin/python3";

fn has_grpcio() -> bool {
    // To import it takes a second of CPU time.
    let found = Command::new(PYTHON)
        .args([
            "-c",
            "import importlib.util, sys; sys.exit(importlib.util.find_spec('grpc') is None)",
        ])
        .stderr(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
}

#[test]
fn grpcio_agrees() {
    agrees(&[], |upstream| upstream);
}

#[test]
fn grpcio_agrees_behind_a_backend_that_speaks_tls() {
    let folder = Folder::new();
    let files = [
        folder.write("key", &LOCALHOST.key),
        folder.write("chain", &LOCALHOST.chain),
    ];
    let arguments = files.each_ref().map(|file| file.to_str().unwrap());
    // grpcio's server ends a handshake without `h2`.
    let connector = Connector::builder().ca_pem(LOCALHOST.chain.as_bytes());
    let connector = connector.alpn(["http/1.1"]).build().unwrap();
    agrees(&arguments, |upstream| upstream.tls(connector).tls_name("localhost"));
}

/// Makes all kinds of calls through a proxy to grpcio's server, which starts with these arguments.
fn agrees(arguments: &[&str], set: impl FnOnce(Builder) -> Builder) {
    if !has_grpcio() {
        println!("skipped: {PYTHON} has no module grpc");
        return;
    }
    let mut peer = Command::new(PYTHON)
        .args(["-u", "-c", include_str!("grpc.py")])
        .args(arguments)
        .env("GRPC_VERBOSITY", "NONE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it has just run");
    let mut output = BufReader::new(peer.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    let (version, port) = (line(), line());
    let backend = upstream(format!("127.0.0.1:{port}").parse().expect("a port"));
    let front = serve_large(Proxy::with(set(backend).build().unwrap(), Options::default()));
    writeln!(peer.stdin.take().unwrap(), "{}", front.addr).unwrap();
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    assert!(peer.wait().unwrap().success(), "{said} {:?}", front.log.lock().unwrap());
    let expected = "\
unary b'olleh'
metadata b'value' {'x-trail': 'after', 'x-trail-bin': b'\\x00\\xff'}
fail FAILED_PRECONDITION: nicht so, 50%
missing UNIMPLEMENTED: Method not found!
large 3000000
server stream 300 790000
client stream b'1000000'
both 50
deadline DEADLINE_EXCEEDED
the server has seen the end True
cancelled True
the server has seen the end True
after cancelling b'llits'
stopped UNAVAILABLE: the backend has failed or cannot be reached
";
    assert_eq!(said, expected, "{version} {:?}", front.log.lock().unwrap());
}

#[test]
fn the_errors_of_the_proxy_itself_have_a_status_of_grpc() {
    let call = |front: &crate::common::Site| {
        let mut client = Client::connect(front.addr);
        let fields: [(&str, &[u8]); 2] = [("content-type", b"application/grpc+proto"), ("te", b"trailers")];
        let reply = client.send("POST", "/a.B/C", &fields, b"\0\0\0\0\0");
        let field = |name| reply.header(name).map(str::to_owned);
        assert_eq!(
            (reply.status, field("content-type").as_deref()),
            (200, Some("application/grpc"))
        );
        assert!(reply.body.is_empty());
        (field("grpc-status").unwrap(), field("grpc-message").unwrap())
    };
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let front = serve(proxy(closed));
    assert_eq!(
        call(&front),
        ("14".into(), "the backend has failed or cannot be reached".into())
    );
    let log = front.log.lock().unwrap().join("\n");
    assert!(
        log.contains("POST /a.B/C failed: upstream app: cannot connect to"),
        "{log}"
    );

    let silent = Backend::start(|_, conn| while conn.line().is_some() {});
    let options = Options {
        first_byte: Duration::from_millis(100),
        ..Options::default()
    };
    let front = serve(Proxy::with(upstream(silent.addr).build().unwrap(), options));
    assert_eq!(
        call(&front),
        ("4".into(), "the backend has not answered in time".into())
    );

    // A client that sends more than it may is no failure of the server.
    let router = Router::new().fallback_answering({
        let proxy = proxy(silent.addr);
        move |request| match request.body().limit(2) {
            Ok(()) => proxy.answer_after_body(request),
            Err(error) => error.into_response().into(),
        }
    });
    let front = site(router);
    let mut client = front.connect();
    client.send("POST /a.B/C HTTP/1.1\r\nHost: t\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    let reply = client.reply();
    assert_eq!((reply.status, reply.header("grpc-status")), (200, Some("8")));
    let refused = front.refused.lock().unwrap().join("\n");
    let expected = "POST /a.B/C was refused with 413: the body is larger than the limit of 2 bytes";
    assert!(refused.contains(expected), "{refused}, {:?}", front.log);

    let broken = Backend::answering_once("HTTP/1.1 200 OK\r\n\r\n");
    let front = serve(proxy(broken.addr));
    assert_eq!(call(&front).0, "14");
}

/// A proxy whose clients may send two bytes.
fn limited(backend: &crate::common::Site, buffer: bool) -> crate::common::Site {
    let options = Options {
        buffer,
        ..Options::default()
    };
    let proxy = Proxy::with(upstream(backend.addr).build().unwrap(), options);
    site(
        Router::new().fallback_answering(move |request| match request.body().limit(2) {
            Ok(()) => proxy.answer_after_body(request),
            Err(error) => error.into_response().into(),
        }),
    )
}

#[test]
fn a_client_that_sends_too_much_once_messages_have_come_gets_the_status_of_the_call() {
    let backend = site(Router::new().get("/a", |_| "a").fallback(|_| {
        Response::stream(|out| {
            out.write_all(b"a")?;
            out.flush()?;
            crate::common::forever();
            Ok(())
        })
    }));
    let front = limited(&backend, true);
    let mut client = Client::connect(front.addr);
    let fields: [(&str, &[u8]); 2] = [("content-type", b"application/grpc"), ("te", b"trailers")];
    let stream = client.begin("POST", "/a.B/C", &fields, false);
    client.body(stream, b"xy", false);
    client.until("a message", |client| client.replies[&stream].body == b"a");
    client.body(stream, b"z", false);
    let reply = client.reply(stream);
    assert_eq!(reply.reset, None, "{:?}", front.log);
    let trailer = |name| reply.trailers.iter().find(|(known, _)| known == name);
    assert_eq!(trailer("grpc-status").map(|(_, value)| &**value), Some("8"));
    assert_eq!(
        trailer("grpc-message").map(|(_, value)| &**value),
        Some("the request is too large")
    );
    assert_eq!(client.get("/a").status, 200, "the connection goes on");

    let mut client = front.connect();
    client.send("POST /a.B/C HTTP/1.1\r\nHost: t\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxy\r\n");
    assert_eq!((client.head().0, client.take(9)), (200, b"0001\r\na\r\n".to_vec()));
    client.send("1\r\nz\r\n");
    let rest = String::from_utf8(client.rest()).unwrap();
    let expected = "0\r\ngrpc-status: 8\r\ngrpc-message: the request is too large\r\n\r\n";
    assert_eq!(rest.to_ascii_lowercase(), expected);
    // It is the mistake of the client.
    let refused = front.refused.lock().unwrap().join("\n");
    let expected = "POST /a.B/C was refused with 413: the body is larger than the limit of 2 bytes";
    assert_eq!(refused.matches(expected).count(), 2, "{refused}");
    assert!(front.log.lock().unwrap().is_empty(), "{:?}", front.log);
}

#[test]
fn a_client_of_http_2_that_sends_too_much_is_told() {
    let backend = site(Router::new().fallback(|request: &mut osier_web::Request<'_>| {
        let mut text = String::new();
        request.body().read_to_string(&mut text).map(|_| text)
    }));
    for buffer in [true, false] {
        let front = limited(&backend, buffer);
        let mut client = Client::connect(front.addr);
        let stream = client.begin("POST", "/", &[], false);
        client.body(stream, b"xyz", false);
        let reply = client.reply(stream);
        assert_eq!((reply.status, reply.reset), (413, None), "{:?}", front.log);
    }
}

/// A client that watches sends one message, and is silent from then on.
#[test]
fn a_client_may_be_silent_while_the_messages_of_its_call_come() {
    let body = Duration::from_millis(100);
    let backend = site(Router::new().fallback(move |_| {
        Response::stream(move |out| {
            out.write_all(b"a")?;
            out.flush()?;
            osier::sleep(10 * body);
            out.write_all(b"b")
        })
    }));
    let timeouts = Timeouts {
        body,
        ..Timeouts::default()
    };
    let server = Server::new(backend::router(proxy(backend.addr))).timeouts(timeouts);
    let front = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let watch = |content_type: &str| {
        let mut client = front.connect();
        client.send(format!(
            "POST /a.B/C HTTP/1.1\r\nHost: t\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
        ));
        client
    };
    let reply = watch("application/grpc").reply();
    assert_eq!((reply.status, reply.text()), (200, "ab"), "{:?}", front.log);
    // Any other body that stops is that of a slow client.
    assert_eq!(watch("text/plain").reply().status, 408);

    // Both sides are silent.
    let backend = site(Router::new().fallback(|_| {
        Response::stream(|out| {
            out.write_all(b"a")?;
            out.flush()?;
            crate::common::forever();
            Ok(())
        })
    }));
    let options = Options {
        between: Duration::from_millis(100),
        ..Options::default()
    };
    let front = serve(Proxy::with(upstream(backend.addr).build().unwrap(), options));
    let mut client = front.connect();
    client.send("POST /a.B/C HTTP/1.1\r\nHost: t\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    assert_eq!((client.head().0, client.rest().len()), (200, "0001\r\na\r\n".len()));
    assert!(
        front.logged("no byte came for 100ms ('timeouts.between')"),
        "{:?}",
        front.log
    );
}

#[test]
fn only_a_backend_of_http_2_gets_the_body_of_a_call_as_it_comes() {
    let backend = site(Router::new().fallback(|_| "called"));
    let address = || backend.addr.to_string().parse().unwrap();
    let of_http1 = Upstream::builder("app").backend(address()).build().unwrap();
    let front = serve(Proxy::new(of_http1.clone()));
    let mut client = front.connect();
    client.send("POST /a.B/C HTTP/1.1\r\nHost: t\r\nContent-Type: application/grpc\r\nContent-Length: 2\r\n\r\na");
    // A request behind it has an answer before the slow body has held the backend.
    let mut other = front.connect();
    other.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(other.reply().text(), "called");
    let stats = &of_http1.stats()[0];
    assert_eq!((stats.leases, stats.connects), (0, 1), "the body is received first");
    client.send("b");
    assert_eq!(client.reply().text(), "called");
}
