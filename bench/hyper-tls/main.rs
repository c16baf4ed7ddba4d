//! hyper 1 on tokio-rustls and tokio's current_thread runtime. Arguments: PORT [CERT KEY].
//!
//! ALPN chooses between HTTP/1.1 and HTTP/2. Without a certificate the server speaks HTTP/2 in the clear. It answers `/` with hello, and
//! `/N.bin` with N bytes, from memory.
#![forbid(unsafe_code)]

use http_body_util::Full;
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
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::Ticketer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (port, acceptor) = match &args[..] {
        [port] => (port, None),
        [port, cert, key] => (port, Some(acceptor(cert, key)?)),
        _ => panic!("arguments: PORT [CERT KEY]"),
    };
    let port: u16 = port.parse().expect("a port");
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?
        .block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", port)).await?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                tokio::spawn(serve(stream, acceptor.clone()));
            }
        })
}

fn acceptor(cert: &str, key: &str) -> Result<TlsAcceptor> {
    let certs: std::result::Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).map_err(Error::other)?.collect();
    let key = PrivateKeyDer::from_pem_file(key).map_err(Error::other)?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certs.map_err(Error::other)?, key)
        .map_err(Error::other)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = Ticketer::new().map_err(Error::other)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(stream: TcpStream, acceptor: Option<TlsAcceptor>) {
    let Some(acceptor) = acceptor else {
        return by_http2(stream).await;
    };
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        return by_http2(stream).await;
    }
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
