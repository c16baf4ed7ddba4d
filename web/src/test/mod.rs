//! A client for tests of an application. It needs no socket, no port and no runtime.
//!
//! A request takes the same path as over a connection, from the bytes of its head to the bytes of
//! the response; only the socket is missing. The handler runs on a fiber, so it may sleep, spawn
//! and wait.
//!
//! ```
//! use osier_web::{Request, Router, test::Client};
//!
//! let client = Client::new(Router::new().get("/{name}", |request: &mut Request<'_>| {
//!     osier::sleep(std::time::Duration::from_millis(1));
//!     format!("hello, {}\n", request.param("name").unwrap_or_default())
//! }));
//! let reply = client.get("/Ada").header("accept", "text/plain").send();
//! assert_eq!(reply.status(), 200);
//! assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
//! assert_eq!(reply.text(), "hello, Ada\n");
//! ```
//!
//! Differences from a connection:
//!
//! - Each exchange has one request.
//! - The client does not disconnect while a handler waits. It disconnects only at the limit of
//!   [`RequestBuilder::leave_after`].
//! - A response is collected in memory as a whole.
//! - An upgrade ends with its 101 response, unless the test calls [`RequestBuilder::upgrade`] or `websocket`.

#[cfg(feature = "multipart")]
mod form;
mod jar;
#[cfg(feature = "ws")]
mod websocket;

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use osier::Runtime;
use osier::net::PackedAddr;
use osier_http::{BodyDecoder, Limits, Method, ReplyScanner, Slots};
#[cfg(any(feature = "forms", feature = "json"))]
use serde::Serialize;
#[cfg(feature = "json")]
use serde::de::DeserializeOwned;

use crate::conn::output::Output;
use crate::conn::peer::Memory;
use crate::conn::serve::{After, Input, Local, Service};
use crate::conn::{Conn, End};
use crate::test::jar::Jar;
use crate::{Handler, Server, Stream, lock};

#[cfg(feature = "multipart")]
pub use form::Form;
#[cfg(feature = "ws")]
pub use websocket::WebSocket;

/// Client address that handlers see by default.
const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4);

/// Default limit of a response in bytes, so that a test cannot fill the machine's memory.
const REPLY_BYTES: usize = 256 << 20;

/// Sends requests to a router, a function or a server, without a connection.
#[doc(alias("TestServer", "TestClient"))]
pub struct Client {
    service: Service,
    /// Runtime for callers on plain threads, made for the first of them.
    runtime: Arc<OnceLock<Runtime>>,
    cookies: Option<Mutex<Jar>>,
}

impl Client {
    /// Makes a client of a router or a function, with the limits of a default [`Server`].
    pub fn new(handler: impl Into<Handler>) -> Client {
        Client::of(Server::new(handler))
    }

    /// Makes a client of `server`, with its limits, its observer and its log.
    pub fn of(server: Server) -> Client {
        Client {
            service: server.service(1, None),
            runtime: Arc::default(),
            cookies: None,
        }
    }

    /// Makes another client of the same server, which keeps cookies as a browser does: it sends them with the requests for their path,
    /// until a response removes them. A `Secure` cookie is kept, too, and `Expires` is not read. A request with a field `cookie` of its
    /// own sends that instead.
    ///
    /// ```
    /// use osier_web::{Request, Response, Router, http::StatusCode, test::Client};
    ///
    /// let login = |_: &mut Request<'_>| Response::new(StatusCode::OK).header("set-cookie", "user=ada; Path=/; HttpOnly");
    /// let home = |request: &mut Request<'_>| request.cookie("user").unwrap_or("nobody").to_owned();
    /// let client = Client::new(Router::new().get("/", home).post("/login", login));
    /// let (ada, other) = (client.with_cookies(), client.with_cookies());
    /// ada.post("/login").send();
    /// assert_eq!((ada.get("/").send().text(), other.get("/").send().text()), ("ada", "nobody"));
    /// ```
    pub fn with_cookies(&self) -> Client {
        Client {
            service: self.service.clone(),
            runtime: self.runtime.clone(),
            cookies: Some(Mutex::default()),
        }
    }

    /// Starts a `GET` request.
    pub fn get(&self, target: &str) -> RequestBuilder<'_> {
        self.request("GET", target)
    }

    /// Starts a `HEAD` request.
    pub fn head(&self, target: &str) -> RequestBuilder<'_> {
        self.request("HEAD", target)
    }

    /// Starts a `POST` request.
    pub fn post(&self, target: &str) -> RequestBuilder<'_> {
        self.request("POST", target)
    }

    /// Starts a `PUT` request.
    pub fn put(&self, target: &str) -> RequestBuilder<'_> {
        self.request("PUT", target)
    }

    /// Starts a `PATCH` request.
    pub fn patch(&self, target: &str) -> RequestBuilder<'_> {
        self.request("PATCH", target)
    }

    /// Starts a `DELETE` request.
    pub fn delete(&self, target: &str) -> RequestBuilder<'_> {
        self.request("DELETE", target)
    }

    /// Starts a request of any method. Method and target go into the head unchanged; the server
    /// rejects what HTTP does not allow.
    pub fn request(&self, method: &str, target: &str) -> RequestBuilder<'_> {
        RequestBuilder {
            client: self,
            method: method.to_owned(),
            target: target.to_owned(),
            head: format!("{method} {target} HTTP/1.1\r\n"),
            has_host: false,
            has_cookie: false,
            body: None,
            peer: PEER,
            bound: REPLY_BYTES,
        }
    }
}

osier_queue::impl_debug!(Client, self => { .. });

/// A request under construction.
#[must_use = "nothing is sent before `send`"]
pub struct RequestBuilder<'c> {
    client: &'c Client,
    method: String,
    target: String,
    head: String,
    has_host: bool,
    has_cookie: bool,
    body: Option<Outgoing>,
    peer: SocketAddr,
    bound: usize,
}

/// A request's body, and its length if that is announced.
struct Outgoing {
    reader: Box<dyn Read + Send>,
    len: Option<u64>,
}

impl RequestBuilder<'_> {
    /// Adds a field. The default `host` is `test`.
    pub fn header(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.has_host |= name.eq_ignore_ascii_case("host");
        self.has_cookie |= name.eq_ignore_ascii_case("cookie");
        self.head += &format!("{name}: {value}\r\n");
        self
    }

    /// Sets the body, sent with its length.
    pub fn body(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        self.body = Some(Outgoing {
            len: Some(bytes.len() as u64),
            reader: Box::new(io::Cursor::new(bytes)),
        });
        self
    }

    /// Sets a chunked body of what `reader` yields. The handler's reads return the reader's pieces.
    /// If the reader fails or panics, so does the connection.
    pub fn reader(mut self, reader: impl Read + Send + 'static) -> Self {
        self.body = Some(Outgoing {
            reader: Box::new(reader),
            len: None,
        });
        self
    }

    /// Sets a body that is announced with `len` bytes and of which only the bytes of `reader`
    /// arrive.
    pub fn sized_reader(mut self, reader: impl Read + Send + 'static, len: u64) -> Self {
        self.body = Some(Outgoing {
            reader: Box::new(reader),
            len: Some(len),
        });
        self
    }

    /// Sets `value` as a JSON body, with its content type.
    ///
    /// # Panics
    ///
    /// If `value` cannot be serialised.
    #[cfg(feature = "json")]
    pub fn json(self, value: &impl Serialize) -> Self {
        let bytes = serde_json::to_vec(value).expect("the test's value is JSON");
        self.header("content-type", "application/json").body(bytes)
    }

    /// Sets `value` as a form's body, with its content type.
    ///
    /// # Panics
    ///
    /// If `value` cannot be serialised.
    #[cfg(feature = "forms")]
    pub fn form(self, value: &impl Serialize) -> Self {
        let text = serde_html_form::to_string(value).expect("the test's value is a form");
        self.header("content-type", "application/x-www-form-urlencoded")
            .body(text)
    }

    /// Sets a form with files as the body, with its content type.
    #[cfg(feature = "multipart")]
    pub fn multipart(self, form: Form) -> Self {
        let (content_type, body) = form.finish();
        self.header("content-type", content_type).body(body)
    }

    /// Sets the client address that the handler sees; `127.0.0.1:4` by default.
    pub fn peer(mut self, peer: SocketAddr) -> Self {
        self.peer = peer;
        self
    }

    /// Lets the client disconnect after this many bytes of the response, its head included. It ends
    /// an endless response.
    pub fn leave_after(mut self, bytes: usize) -> Self {
        self.bound = bytes;
        self
    }

    /// Sends the request and waits for the response.
    ///
    /// # Suspends
    ///
    /// Where the handler suspends.
    ///
    /// # Blocks the thread
    ///
    /// Until the response is complete, when called on a plain thread.
    ///
    /// # Panics
    ///
    /// If the result is not a response, because the client left before the head was complete. On a
    /// plain thread also if no runtime can be started.
    pub fn send(self) -> Reply {
        self.exchange(false).0
    }

    /// Sends an upgrade request and waits for the response. After a 101 the connection is returned
    /// too: one end of a pair of sockets within this process, usable on a thread or a fiber. The
    /// handler's code holds the other end. If `upgrade` is called on a plain thread, that code runs
    /// only as long as the [`Client`] exists.
    ///
    /// ```
    /// use osier_web::{Request, Router, test::Client, ws};
    /// use std::io::{Read, Write};
    ///
    /// let client = Client::new(Router::new().get("/echo", |request: &mut Request<'_>| {
    ///     ws::upgrade(request, |socket| {
    ///         while let Some(message) = socket.read()? {
    ///             socket.send(message)?;
    ///         }
    ///         Ok(())
    ///     })
    /// }));
    /// let request = client.get("/echo").header("sec-websocket-version", 13).header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    /// let (reply, connection) = request.upgrade("websocket");
    /// assert_eq!(reply.status(), 101);
    /// let mut connection = connection.unwrap();
    /// connection.write_all(b"\x81\x82\0\0\0\0hi")?; // a masked text frame; a WebSocket library would encode it
    /// let mut answer = [0; 4];
    /// connection.read_exact(&mut answer)?;
    /// assert_eq!(&answer, b"\x81\x02hi");
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Suspends
    ///
    /// Same as [`send`](RequestBuilder::send).
    ///
    /// # Blocks the thread
    ///
    /// Same as [`send`](RequestBuilder::send).
    ///
    /// # Panics
    ///
    /// Same as [`send`](RequestBuilder::send). Also if no descriptors are left for the pair.
    pub fn upgrade(self, protocol: &str) -> (Reply, Option<Stream>) {
        self.header("connection", "upgrade")
            .header("upgrade", protocol)
            .exchange(true)
    }

    fn exchange(self, goes_on: bool) -> (Reply, Option<Stream>) {
        let RequestBuilder {
            client,
            method,
            target,
            mut head,
            has_host,
            has_cookie,
            body,
            peer,
            bound,
        } = self;
        if !has_host {
            head += "host: test\r\n";
        }
        if let (Some(jar), false) = (&client.cookies, has_cookie)
            && let Some(field) = lock(jar).field(&target)
        {
            head += &format!("cookie: {field}\r\n");
        }
        if let Some(body) = &body {
            match body.len {
                Some(len) => head += &format!("content-length: {len}\r\n"),
                None => head += "transfer-encoding: chunked\r\n",
            }
        }
        head += "\r\n";
        let service = client.service.clone();
        let exchange = move || {
            let body: Box<dyn Read> = match body {
                Some(Outgoing { reader, len: Some(_) }) => reader,
                Some(Outgoing { reader, len: None }) => Box::new(Chunks::of(reader)),
                None => Box::new(io::empty()),
            };
            exchange(&service, head.into_bytes(), body, peer, bound, goes_on)
        };
        let (bytes, connection) = match osier::fiber::worker() {
            Some(_) => exchange(),
            None => client.runtime().run(exchange),
        };
        let reply = Reply::read(&bytes, Method::new(&method)).unwrap_or_else(|why| {
            let text = String::from_utf8_lossy(&bytes);
            assert!(
                bytes.len() < bound,
                "the client left after {bound} bytes, in the head of the response: leave_after counts the head; got {text:?}"
            );
            panic!("no response ({why}) but {text:?}")
        });
        if let Some(jar) = &client.cookies {
            let fields = reply
                .headers
                .get_all("set-cookie")
                .iter()
                .filter_map(|value| value.to_str().ok());
            fields.for_each(|field| lock(jar).set(&target, field));
        }
        (reply, connection)
    }
}

impl Client {
    fn runtime(&self) -> &Runtime {
        self.runtime.get_or_init(|| {
            Runtime::builder()
                .workers(1)
                .build()
                .expect("a runtime with one worker")
        })
    }
}

/// Serves one request on this fiber. Returns the bytes that a client would receive, and the
/// connection if it is upgraded.
fn exchange(
    service: &Service,
    head: Vec<u8>,
    body: Box<dyn Read>,
    peer: SocketAddr,
    bound: usize,
    goes_on: bool,
) -> (Vec<u8>, Option<Stream>) {
    let local = Local::alone(service, 0);
    let memory = Memory {
        worker: local.worker.clone(),
        peer: PackedAddr::new(peer, false),
        is_encrypted: false,
        local: None,
        body: RefCell::new(body),
        received: RefCell::new(Vec::new()),
        bound,
    };
    let output = Output::new(&memory, Vec::new());
    let mut input = Input {
        start: 0,
        end: head.len(),
        bytes: head.into_boxed_slice(),
    };
    let after = local.app.serve((&memory).into(), &output, &mut input);
    // A client that has disconnected misses the remaining bytes.
    let _ = output.flush();
    let connection = match after {
        After::Taken(takeover, extensions) if goes_on => {
            let connection = Conn::begin_with((takeover, extensions), End::Pair, &local, peer);
            Some(connection.expect("a pair of sockets can be had"))
        }
        _ => None,
    };
    (memory.received.into_inner(), connection)
}

/// A response as a client receives it.
#[derive(Clone, Debug)]
pub struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    is_whole: bool,
}

impl Reply {
    fn read(bytes: &[u8], method: Method<'_>) -> Result<Reply, osier_http::Reject> {
        let limits = Limits {
            head_bytes: REPLY_BYTES,
            ..Limits::DEFAULT
        };
        let mut rest = bytes;
        loop {
            let end = ReplyScanner::new().scan(rest, &limits)?;
            let end = end.ok_or(osier_http::Reject::StatusLine)?;
            let (head, behind) = rest.split_at(end);
            rest = behind;
            let mut slots: Slots = Slots::new();
            let head = osier_http::Reply::parse(head, &mut slots, &limits, method)?;
            if head.is_interim() {
                continue;
            }
            let mut reply = Reply {
                status: StatusCode::from_u16(head.status()).map_err(|_| osier_http::Reject::StatusLine)?,
                headers: HeaderMap::new(),
                body: Vec::new(),
                is_whole: false,
            };
            for (name, value) in head.headers() {
                // The codec has checked both by the same rules already.
                if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value)) {
                    reply.headers.append(name, value);
                }
            }
            let mut decoder = BodyDecoder::of_reply(head.body(), &limits);
            while !decoder.is_done() {
                let piece = decoder.decode(rest, usize::MAX)?;
                reply.body.extend_from_slice(piece.data);
                rest = &rest[piece.consumed..];
                if piece.consumed == 0 {
                    break;
                }
            }
            reply.is_whole = decoder.is_done() || decoder.at_end().is_ok();
            return Ok(reply);
        }
    }

    /// The status code.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// All header fields, including the server's own.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The first field of that name, if its value is visible ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The body, decoded.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body as text.
    ///
    /// # Panics
    ///
    /// If the body is not UTF-8.
    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("the body is UTF-8")
    }

    /// The body as JSON.
    ///
    /// # Errors
    ///
    /// If the body is not JSON of this type.
    #[cfg(feature = "json")]
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// Whether the body is complete. A handler that fails in the middle cuts it off.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}

/// A reader's bytes, framed as a chunked body.
struct Chunks {
    reader: Box<dyn Read>,
    /// Framed bytes that are not yet read.
    framed: io::Cursor<Vec<u8>>,
    ended: bool,
}

impl Chunks {
    fn of(reader: Box<dyn Read>) -> Chunks {
        Chunks {
            reader,
            framed: io::Cursor::default(),
            ended: false,
        }
    }
}

impl Read for Chunks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.framed.read(into)?;
        if count > 0 || self.ended {
            return Ok(count);
        }
        let mut piece = vec![0; 16 << 10];
        let len = self.reader.read(&mut piece)?;
        let mut framed = Vec::with_capacity(len + 16);
        match len {
            0 => {
                self.ended = true;
                framed.write_all(osier_http::LAST_CHUNK)?;
            }
            len => osier_http::write_chunk(&mut framed, &piece[..len]),
        }
        self.framed = io::Cursor::new(framed);
        self.framed.read(into)
    }
}
