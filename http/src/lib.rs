//! Strict codecs for HTTP/1.x and HTTP/2, without I/O: they turn bytes into messages, and messages into bytes.
//!
//! The codecs know no sockets and no clock. That of HTTP/1.x allocates only in the output vector. A server owns the buffers and passes
//! the bytes of a connection to one value after the other:
//!
//! ```text
//!             ┌──────────────────────────── next request ─────────────────────────────┐
//!             ▼                                                                       │
//!   bytes ─▶ HeadScanner::scan ─▶ Head::parse ─▶ BodyDecoder::decode ─▶ (done) ───────┤ kept alive
//!             │  None: read more   │              │  needs input: read more           │
//!             │                    │              │                                   ▼
//!             └────────── Reject: write_reject, close ──────────┘     HeadWriter … finish ─▶ Sent
//!                                                                       │ Plain(n), Chunked, UntilClose:
//!                                                                       ▼ the body in that form
//! ```
//!
//! The protocol between server and codec:
//!
//! 1. Use one [`HeadScanner`] for each head. Whenever bytes arrive, call [`scan`](HeadScanner::scan) with all bytes of the head
//!    so far. It searches only the new ones, and returns the length of the head.
//! 2. Pass exactly these bytes to [`Head::parse`]. The head borrows them, so the server splits its buffer there. [`Outline`] does
//!    both steps in one pass for a usual head that is complete.
//! 3. Make a [`BodyDecoder`] from [`Head::body`]. It refuses a body that is too large; send [`CONTINUE`] only after that, if
//!    [`Head::expect_continue`]. Feed it the bytes after the head until [`Piece::done`]. The bytes that it has not consumed belong
//!    to the next request. If a handler leaves a part of the body unread, read and drop that part, or close the connection.
//! 4. Write the response's head with a [`HeadWriter`], made from [`Head::exchange`]. Send the body in the form of
//!    [`Sent::transfer`], and close the connection unless [`Sent::keep_alive`].
//! 5. After any [`Reject`], send [`write_reject`] and close the connection: the beginning of the next request is unknown.
//!
//! The codec answers 400 to everything that two parsers could read in two ways (request smuggling). It has no lenient mode.
//! `tests/it/table.rs` has the bytes of each case. Every part of a request has a bound in [`Limits`], checked while the bytes
//! arrive.
//!
//! A gateway also needs the other side of a connection. [`RequestWriter`] writes the head for a backend. [`ReplyScanner`] and
//! [`Reply`] read the backend's response with the same strictness.
//!
//! Further formats, equally strict and without I/O: [`fastcgi`] has the records of FastCGI, [`cgi`] the head of a CGI response,
//! [`proxy_protocol`] the header that a load balancer sends, and [`multipart`] the parts of a form with files.
//!
//! [`h2`] has HTTP/2 for servers and clients: [`h2::Connection`] is the state of one connection.
//!
//! [`Path`] reads a request's path once, for routes, policies and handlers.
//!
//! The crate has no WebSocket frames, no dates and no timeouts.
//!
//! # Features and requirements
//!
//! `fastcgi` gives the modules [`fastcgi`] and [`cgi`], `h2` gives [`h2`], `multipart` gives [`multipart`]. All are on by default. The crate
//! forbids `unsafe`, and each parser has a fuzz target. Rust 1.95; any system.
//!
//! # Example
//!
//! Two pipelined requests, the second with a chunked body, in one buffer:
//!
//! ```
//! use osier_http::{BodyDecoder, Head, HeadScanner, HeadWriter, Limits, ResponseBody, Slots};
//!
//! let mut input: &[u8] = b"GET /first HTTP/1.1\r\nHost: example.org\r\n\r\n\
//!     POST /second HTTP/1.1\r\nHost: example.org\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
//!     5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n";
//! let limits = Limits::default();
//! let mut output = Vec::new();
//!
//! while let Some(end) = HeadScanner::new().scan(input, &limits)? {
//!     let (head, rest) = input.split_at(end);
//!     input = rest;
//!     let mut slots: Slots = Slots::new();
//!     let head = Head::parse(head, &mut slots, &limits)?;
//!
//!     let mut body = Vec::new();
//!     let mut decoder = BodyDecoder::new(head.body(), &limits)?;
//!     while !decoder.is_done() {
//!         let piece = decoder.decode(input, usize::MAX)?;
//!         body.extend_from_slice(piece.data);
//!         input = &input[piece.consumed..];
//!     }
//!
//!     let text = format!("{} {} {}\n", head.method(), head.path(), String::from_utf8_lossy(&body));
//!     let mut response = HeadWriter::begin(&mut output, 200, head.exchange())?;
//!     response.header("content-type", b"text/plain")?;
//!     let sent = response.finish(ResponseBody::Known(text.len() as u64));
//!     output.extend_from_slice(text.as_bytes());
//!     if !sent.keep_alive {
//!         break;
//!     }
//! }
//!
//! let output = String::from_utf8(output)?;
//! let (first, second) = output.split_once("GET /first \n").unwrap();
//! assert_eq!(first, "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 12\r\n\r\n");
//! assert!(second.ends_with("connection: close\r\n\r\nPOST /second hello, world\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "fastcgi", feature = "h2", feature = "multipart")),
    allow(
        rustdoc::broken_intra_doc_links,
        reason = "the modules of a feature that is off are not there"
    )
)]

mod backend;
mod body;
#[cfg(feature = "fastcgi")]
pub mod cgi;
#[cfg(feature = "fastcgi")]
pub mod fastcgi;
#[cfg(feature = "h2")]
pub mod h2;
mod message;
#[cfg(feature = "multipart")]
pub mod multipart;
pub mod path;
pub mod proxy_protocol;
mod request;
mod response;

pub use backend::{LineTemplate, Reply, ReplyLength, ReplyOutline, ReplyScanner, RequestWriter};
pub use body::{BodyDecoder, CHUNK_END, ChunkHead, ChunkedDecoder, LAST_CHUNK, Piece, write_chunk};
pub use message::{
    Exchange, FieldLines, FieldList, HeaderError, Headers, Limits, Method, Reject, Slots, Version, is_field,
    percent_decode, reason_phrase,
};
pub use path::{BadPath, Path};
pub use request::{BodyLength, Form, Head, HeadScanner, LEADING_EMPTY_LINES, Outline};
pub use response::{CONTINUE, DateLine, HeadTemplate, HeadWriter, ResponseBody, Sent, Transfer, write_reject};

/// The program of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
