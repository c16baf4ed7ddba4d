//! hyper 1 on tokio-rustls and tokio's current_thread runtime. Arguments: PORT [CERT KEY [CLEAR HTTP2]].
//!
//! ALPN chooses between HTTP/1.1 and HTTP/2. Without a certificate the server speaks HTTP/2 in the clear. With the port CLEAR it speaks
//! HTTP/1.1 in the clear there, and HTTP/2 in the clear at HTTP2. It answers `/` with hello, and `/N.bin` with N bytes, from memory. For
//! `examples/cage.rs`, `/small` has 100 bytes, `/big` has 1 MB, and `/app` collects the body of the request.
#![forbid(unsafe_code)]

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{Error, Result};
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{CipherSuite, ServerConfig};

/// The protocol of a port.
#[derive(Clone)]
enum Speaks {
    Tls(TlsAcceptor),
    Http1,
    Http2,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let ports: Vec<(&String, Speaks)> = match &args[..] {
        [port] => vec![(port, Speaks::Http2)],
        [port, cert, key, clear @ ..] => {
            let clear = clear.iter().zip([Speaks::Http1, Speaks::Http2]);
            [(port, Speaks::Tls(acceptor(cert, key)?))]
                .into_iter()
                .chain(clear)
                .collect()
        }
        _ => panic!("arguments: PORT [CERT KEY [CLEAR HTTP2]]"),
    };
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?
        .block_on(async {
            let accepting: Vec<_> = ports
                .into_iter()
                .map(|(port, speaks)| tokio::spawn(accept(port.parse().expect("a port"), speaks)))
                .collect();
            for ended in accepting {
                ended.await??;
            }
            Ok(())
        })
}

async fn accept(port: u16, speaks: Speaks) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(serve(stream, speaks.clone()));
    }
}

fn acceptor(cert: &str, key: &str) -> Result<TlsAcceptor> {
    let certs: std::result::Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).map_err(Error::other)?.collect();
    let key = PrivateKeyDer::from_pem_file(key).map_err(Error::other)?;
    let mut provider = default_provider();
    provider.cipher_suites.sort_by_key(|suite| !is_first(suite.suite()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(Error::other)?
        .with_no_client_auth()
        .with_single_cert(certs.map_err(Error::other)?, key)
        .map_err(Error::other)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // The suites and the tickets of Osier: otherwise the rows would compare suites and not servers.
    config.ignore_client_order = true;
    config.send_tls13_tickets = 1;
    config.ticketer = Ticketer::new().map_err(Error::other)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Whether it is one of the suites that Osier prefers.
fn is_first(suite: CipherSuite) -> bool {
    matches!(
        suite,
        CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    )
}

async fn serve(stream: TcpStream, speaks: Speaks) {
    let acceptor = match speaks {
        Speaks::Http1 => return by_http1(stream).await,
        Speaks::Http2 => return by_http2(stream).await,
        Speaks::Tls(acceptor) => acceptor,
    };
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        return by_http2(stream).await;
    }
    by_http1(stream).await;
}

async fn by_http1(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static) {
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
    let _ = connection.await;
}

async fn by_http2(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static) {
    let connection =
        http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service_fn(answer));
    let _ = connection.await;
}

async fn answer(request: Request<Incoming>) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path();
    let (body, kind) = match path {
        "/" => (Some(Bytes::from_static(b"Hello, World!")), "text/plain; charset=utf-8"),
        "/small" => (file("/100.bin"), "application/octet-stream"),
        "/big" => (file("/1000000.bin"), "application/octet-stream"),
        "/app" => {
            let body = request.into_body().collect().await;
            (body.ok().map(|body| body.to_bytes()), "application/octet-stream")
        }
        _ => (file(path), "application/octet-stream"),
    };
    let Some(body) = body else {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NOT_FOUND;
        return Ok(response);
    };
    let mut response = Response::new(Full::new(body));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

/// The bytes of `/N.bin`, made once.
fn file(path: &str) -> Option<Bytes> {
    thread_local! {
        static FILES: RefCell<HashMap<usize, Bytes>> = RefCell::default();
    }
    let length: usize = path.strip_prefix('/')?.strip_suffix(".bin")?.parse().ok()?;
    let made = || (0..length).map(|i| (i % 251) as u8).collect::<Vec<u8>>().into();
    (length <= 1 << 20).then(|| FILES.with_borrow_mut(|files| files.entry(length).or_insert_with(made).clone()))
}
