//! Carries the requests of the ACME client over HTTPS, each over a connection of its own.
//!
//! An order takes some twenty requests, every two months. A kept connection would save nothing that anybody notices.

use std::io::{self, Read, Write};
use std::time::Duration;

use osier::net::TcpStream;
use osier_http::{BodyDecoder, BodyLength, HeaderError, Limits, Method, Reply, ReplyScanner, RequestWriter, Slots};
use osier_tls::Connector;

use super::protocol::{Received, Transport};
use super::settings::Issuer;

/// Longest time for one request, from the name's lookup to the last byte.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The largest body. A chain of certificates has some KiB.
const BODY_MAX: usize = 1 << 20;

/// The most interim responses before the final one.
const INTERIM_MAX: usize = 16;

/// The value of User-Agent, which RFC 8555 section 6.1 demands.
const USER_AGENT: &str = concat!("osier/", env!("CARGO_PKG_VERSION"));

/// Connections to issuers.
pub struct Https {
    connector: Connector,
}

/// The parts of a URL.
#[derive(Debug, PartialEq, Eq)]
struct Url<'u> {
    host: &'u str,
    port: u16,
    /// The host and the port, as they stand in the Host field.
    authority: &'u str,
    target: &'u str,
}

impl Https {
    /// Connections that accept the certificate of this issuer's server.
    ///
    /// # Errors
    /// One line: the file of authorities cannot be used.
    ///
    /// # Blocks the thread
    /// While the authorities are read.
    pub fn to(issuer: &Issuer) -> Result<Https, String> {
        let builder = Connector::builder();
        let builder = match &issuer.ca {
            Some(path) => builder.ca_file(path),
            None => builder,
        };
        let connector = builder.build().map_err(|error| error.to_string())?;
        Ok(Https { connector })
    }
}

impl Transport for Https {
    fn send(&self, method: &str, url: &str, body: Option<&str>) -> io::Result<Received> {
        let url = Url::parse(url).ok_or_else(|| invalid(format!("{url:?} is not an https:// URL")))?;
        let exchange = || {
            let socket = connect(&url, TIMEOUT)?;
            socket.set_nodelay(true)?;
            let mut stream = self.connector.connect(url.host, socket).map_err(io::Error::other)?;
            stream.write_all(&request(method, &url, body).map_err(|_| invalid("a URL that cannot be sent".into()))?)?;
            receive(&mut stream, method)
        };
        osier::timeout(TIMEOUT, exchange).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Sends a GET, by http or https as the URL says, and returns the status.
///
/// # Suspends
/// Until the response is there, for `patience` at most.
///
/// # Errors
/// The connection's errors, and `InvalidData` for a malformed URL.
pub fn status(url: &str, patience: Duration) -> io::Result<u16> {
    let is_plain = url.starts_with("http://");
    let parsed = match url.strip_prefix("http://") {
        Some(rest) => Url::of(rest, 80),
        None => Url::parse(url),
    };
    let url = parsed.ok_or_else(|| invalid(format!("{url:?} is no URL")))?;
    let request = request("GET", &url, None).map_err(|_| invalid(format!("the URL of {} cannot be sent", url.host)))?;
    let exchange = || {
        let mut socket = connect(&url, patience)?;
        if is_plain {
            socket.write_all(&request)?;
            return receive(&mut socket, "GET");
        }
        let connector = osier::shield(|| osier::unblock(|| Connector::builder().build()));
        let connector = connector.map_err(io::Error::other)?;
        let mut stream = connector.connect(url.host, socket).map_err(io::Error::other)?;
        stream.write_all(&request)?;
        receive(&mut stream, "GET")
    };
    let received = osier::timeout(patience, exchange).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    received.map(|received| received.status)
}

/// Connects to the host of a URL, for a request that may take `limit`. Half of it is for the connection, so that the error of one that is
/// not made has time to name the addresses.
fn connect(url: &Url<'_>, limit: Duration) -> io::Result<TcpStream> {
    TcpStream::connect_within((url.host, url.port), limit / 2)
}

impl<'u> Url<'u> {
    /// Parses an `https://` URL.
    fn parse(url: &'u str) -> Option<Url<'u>> {
        Url::of(url.strip_prefix("https://")?, 443)
    }

    /// Parses the part of a URL after the scheme.
    fn of(rest: &'u str, default_port: u16) -> Option<Url<'u>> {
        let (authority, target) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
            _ => (authority, default_port),
        };
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let target = if target.is_empty() { "/" } else { target };
        let is_plain = !host.is_empty() && !authority.contains('@');
        is_plain.then_some(Url {
            host,
            port,
            authority,
            target,
        })
    }
}

/// The bytes of a request.
fn request(method: &str, url: &Url<'_>, body: Option<&str>) -> Result<Vec<u8>, HeaderError> {
    let mut bytes = Vec::new();
    let mut head = RequestWriter::begin(&mut bytes, method, url.target, url.authority)?;
    head.header("user-agent", USER_AGENT.as_bytes())?;
    match body {
        Some(body) => {
            head.header("content-type", b"application/jose+json")?;
            head.finish(BodyLength::Known(body.len() as u64));
            bytes.extend_from_slice(body.as_bytes());
        }
        None => head.finish(BodyLength::None),
    }
    Ok(bytes)
}

/// Receives a response, after interim ones.
fn receive(stream: &mut impl Read, method: &str) -> io::Result<Received> {
    let (mut bytes, limits) = (Vec::new(), Limits::DEFAULT);
    for _ in 0..INTERIM_MAX {
        let mut scanner = ReplyScanner::new();
        let length = loop {
            match scanner.scan(&bytes, &limits) {
                Ok(Some(length)) => break length,
                Ok(None) if more(stream, &mut bytes)? => {}
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(reject) => return Err(invalid(reject.reason().to_owned())),
            }
        };
        let mut rest = bytes.split_off(length);
        let asked = if method == "HEAD" { Method::Head } else { Method::Get };
        let mut slots: Slots = Slots::new();
        let reply = Reply::parse(&bytes, &mut slots, &limits, asked);
        let reply = reply.map_err(|reject| invalid(reject.reason().to_owned()))?;
        if reply.is_interim() {
            bytes = rest;
            continue;
        }
        let text = |name: &str| {
            reply
                .header(name)
                .and_then(|value| str::from_utf8(value).ok())
                .map(str::to_owned)
        };
        let mut received = Received {
            status: reply.status(),
            location: text("location"),
            nonce: text("replay-nonce"),
            retry_after: text("retry-after"),
            body: Vec::new(),
        };
        let mut decoder = BodyDecoder::of_reply(reply.body(), &limits);
        loop {
            let piece = decoder
                .decode(&rest, BODY_MAX)
                .map_err(|reject| invalid(reject.reason().to_owned()))?;
            let (consumed, is_done) = (piece.consumed, piece.done);
            received.body.extend_from_slice(piece.data);
            rest.drain(..consumed);
            if is_done || decoder.is_done() {
                return Ok(received);
            }
            if received.body.len() > BODY_MAX {
                return Err(invalid(format!("a body of more than {BODY_MAX} bytes")));
            }
            if consumed == 0 && !more(stream, &mut rest)? {
                decoder
                    .at_end()
                    .map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            }
        }
    }
    Err(invalid(format!("more than {INTERIM_MAX} interim responses")))
}

/// Receives more bytes. False at the end of the stream.
fn more(stream: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<bool> {
    let filled = bytes.len();
    bytes.resize(filled + 4096, 0);
    let read = stream.read(&mut bytes[filled..]);
    bytes.truncate(filled + read.as_ref().map_or(0, |count| *count));
    read.map(|count| count > 0)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let parsed = |host, port, authority, target| {
            Some(Url {
                host,
                port,
                authority,
                target,
            })
        };
        assert_eq!(
            Url::parse("https://a.example"),
            parsed("a.example", 443, "a.example", "/")
        );
        assert_eq!(
            Url::parse("https://a:14000/dir?x"),
            parsed("a", 14000, "a:14000", "/dir?x")
        );
        assert_eq!(Url::parse("https://[::1]:80/"), parsed("::1", 80, "[::1]:80", "/"));
        assert_eq!(Url::parse("https://[::1]/"), parsed("::1", 443, "[::1]", "/"));
        for url in [
            "http://a/",
            "https://",
            "https:///x",
            "https://a:99999/",
            "https://a@b/",
            "a",
        ] {
            assert_eq!(Url::parse(url), None, "{url}");
        }
    }

    #[test]
    fn a_request_has_its_body_and_its_client() {
        let url = Url::parse("https://a:14000/new").unwrap();
        let bytes = request("POST", &url, Some("{}")).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(
            text.starts_with("POST /new HTTP/1.1\r\nhost: a:14000\r\nuser-agent: osier/"),
            "{text}"
        );
        assert!(
            text.ends_with("content-type: application/jose+json\r\ncontent-length: 2\r\n\r\n{}"),
            "{text}"
        );
    }

    #[test]
    fn responses_in_every_framing() {
        let got = |bytes: &str, method| receive(&mut bytes.as_bytes(), method);
        let first = got(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nReplay-Nonce: n\r\nLocation: https://a/1\r\nContent-Length: 2\r\n\r\n{}",
            "POST",
        );
        let first = first.unwrap();
        assert_eq!(
            (first.status, first.nonce.as_deref(), first.location.as_deref()),
            (201, Some("n"), Some("https://a/1"))
        );
        assert_eq!(first.body, b"{}");
        let chunked = got(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
            "POST",
        );
        assert_eq!(chunked.unwrap().body, b"abc");
        assert_eq!(
            got("HTTP/1.1 200 OK\r\n\r\nto the end", "GET").unwrap().body,
            b"to the end"
        );
        assert_eq!(
            got(
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nReplay-Nonce: n\r\n\r\n",
                "HEAD"
            )
            .unwrap()
            .body,
            b""
        );
        for broken in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab",
        ] {
            assert_eq!(
                got(broken, "GET").unwrap_err().kind(),
                io::ErrorKind::UnexpectedEof,
                "{broken}"
            );
        }
        assert_eq!(
            got("SSH-2.0\r\n\r\n", "GET").unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
