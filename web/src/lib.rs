//! A web framework of plain blocking handlers, on the fibers of [`osier`].
//!
//! ```no_run
//! use osier_web::{Request, Router, serve};
//!
//! fn greet(request: &mut Request<'_>) -> String {
//!     format!("hello, {}\n", request.param("name").unwrap_or_default())
//! }
//!
//! let router = Router::new().get("/", |_| "hello\n").get("/{name}", greet);
//! osier::run(|| serve("127.0.0.1:8080", router))
//! # .unwrap();
//! ```
//!
//! A handler reads its request, calls whatever blocks (sockets, sleeps, [`osier::unblock`]), and returns what
//! [implements](IntoResponse) a response. A connection that waits for its next request holds no stack. Responses to
//! pipelined requests go out in order and together; when a handler suspends, what has been answered before it goes out
//! first. A handler whose client is gone is cancelled at its next suspension, unless its [`Route`] says otherwise.
//!
//! # Layout
//!
//! From the socket to the handler: `accept` places it on a worker, `conn` waits without a stack, `burst` takes the requests
//! that have come, `router` finds the handler, `incoming` is the request's body, `answer` and `output` make the bytes that
//! go back, `upgrade` is what becomes of a connection after a 101. On top lie the handlers: `files`, and `proxy`, which takes
//! its connections from an `upstream`; and `ws`, `sse` and `chat`, which live on topics, with `pubsub` between processes.
#![forbid(unsafe_code)]

mod accept;
mod answer;
mod around;
mod body;
mod burst;
pub mod calendar;
pub mod chat;
pub mod compress;
mod config;
mod conn;
mod cookies;
mod date;
mod extract;
pub mod fastcgi;
pub mod files;
mod incoming;
mod into_response;
mod listen;
pub mod multipart;
mod negotiate;
mod output;
pub mod proxy;
pub mod pubsub;
mod rejection;
mod request;
mod request_id;
mod response;
mod router;
mod server;
pub mod sse;
pub mod test;
mod upgrade;
pub mod upstream;
mod wire;
mod worker;
pub mod wrap;
pub mod ws;

pub use around::Next;
pub use body::Body;
pub use config::{Served, Timeouts};
pub use cookie;
pub use extract::Json;
pub use http;
pub use incoming::RequestBody;
pub use into_response::IntoResponse;
pub use listen::{Address, Listener};
pub use osier::net::Stream;
pub use osier_http::Limits;
pub use rejection::Rejection;
pub use request::Request;
pub use request_id::RequestId;
pub use response::{Fields, Response};
pub use router::{Route, Router};
pub use server::{Connections, Listening, Server, ShutdownHandle, serve};
pub use upgrade::{Session, Upgraded};

/// The README's programs, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
