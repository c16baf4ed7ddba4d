//! A strict HTTP/1.0 and HTTP/1.1 server codec without I/O: bytes in, requests out; responses in, bytes out.
//!
//! The crate knows no sockets, no clock and no allocator beyond the output vector. A server owns the buffers, and
//! drives one value after the other over the bytes of a connection:
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
//! 1. One [`HeadScanner`] a head. Call [`scan`](HeadScanner::scan) with all bytes of the head so far whenever more
//!    have come; what has been searched is not searched again. It returns the head's length.
//! 2. [`Head::parse`] exactly those bytes. The head borrows them, so the server splits its buffer there.
//!    A server that has the bytes of a usual head at hand goes through both steps at once by [`Outline`].
//! 3. [`BodyDecoder::new`] from [`Head::body`]: refuse what is too large before answering `100 Continue`
//!    ([`Head::expect_continue`], [`CONTINUE`]). Feed it what follows until [`Piece::done`]; bytes it has not consumed
//!    belong to the next request. What a handler leaves unread of a body must be read and dropped, or the
//!    connection closed.
//! 4. [`HeadWriter`] with [`Head::exchange`] writes the response's head. Send the body as [`Sent::transfer`] says,
//!    and close unless [`Sent::keep_alive`].
//! 5. After any [`Reject`], [`write_reject`] and close: nobody can say where the next request begins.
//!
//! The crate refuses whatever two parsers could read in two ways (request smuggling) with 400, and has no lenient switch.
//! `tests/it/table.rs` has the bytes of each case. Every part of a request has a bound in [`Limits`], checked as the bytes come.
//!
//! A gateway needs the other side of a connection: [`RequestWriter`] makes the head for its backend, [`ReplyScanner`] and
//! [`Reply`] read the backend's response, as strictly.
//!
//! [`fastcgi`] has the records of FastCGI, [`cgi`] the head of a CGI response, [`proxy_protocol`] the header of a balancer,
//! [`multipart`] the parts of a form with files. All are as strict, and without I/O.
//!
//! [`Path`] is the one reading of a request's path, for routes, policies and handlers.
//!
//! Not here: HTTP/2, WebSocket frames, dates, any timeout.
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

mod backend;
mod body;
pub mod cgi;
pub mod fastcgi;
mod message;
pub mod multipart;
pub mod path;
pub mod proxy_protocol;
mod request;
mod response;

pub use backend::{Reply, ReplyLength, ReplyScanner, RequestWriter, connection_names};
pub use body::{BodyDecoder, CHUNK_END, ChunkHead, ChunkedDecoder, LAST_CHUNK, Piece, write_chunk};
pub use message::{
    Exchange, FieldLines, HeaderError, Headers, Limits, Method, Reject, Slots, Version, percent_decode, reason_phrase,
};
pub use path::{BadPath, Path};
pub use request::{BodyLength, Form, Head, HeadScanner, LEADING_EMPTY_LINES, Outline};
pub use response::{CONTINUE, DateLine, HeadWriter, ResponseBody, Sent, Transfer, write_reject};

/// The program of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
