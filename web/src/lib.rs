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
//! # What an application needs
//!
//! | to | see |
//! |---|---|
//! | read path, query, form and JSON by type | [`Request::params`], [`query_as`](Request::query_as), [`form`](Request::form), [`json`](Request::json); [`Json`] as an answer |
//! | take files from a browser | [`Request::multipart`] and [`multipart`] |
//! | read and set cookies | [`Request::cookie`], [`Response::cookie`] |
//! | refuse what cannot be understood | [`Rejection`], by `?` |
//! | do something around handlers | [`Router::wrap`], [`Route::wrap`], [`wrap`] |
//! | share what all handlers use | [`Router::state`], [`Request::state`] |
//! | give a whole prefix to one handler | [`Router::mount`]; [`files`], [`fastcgi`] and [`proxy`] have such |
//! | call what blocks the thread (a database, a password hash) | [`osier::unblock`] |
//! | test without a socket | [`test::Client`] |
//!
//! ```
//! use osier_web::{Json, Rejection, Request, Router, http::StatusCode, test::Client, wrap};
//! use std::collections::BTreeMap;
//! use std::sync::Mutex;
//!
//! #[derive(Default)]
//! struct Prices(Mutex<BTreeMap<String, u32>>);
//!
//! #[derive(serde::Deserialize)]
//! struct Price { cents: u32 }
//!
//! fn set(request: &mut Request<'_>) -> Result<StatusCode, Rejection> {
//!     let (item,): (String,) = request.params()?;
//!     let Price { cents } = request.json()?;
//!     let Prices(prices) = request.state()?;
//!     prices.lock().unwrap().insert(item, cents);
//!     Ok(StatusCode::NO_CONTENT)
//! }
//!
//! fn all(request: &mut Request<'_>) -> Result<Json<BTreeMap<String, u32>>, Rejection> {
//!     let Prices(prices) = request.state()?;
//!     Ok(Json(prices.lock().unwrap().clone()))
//! }
//!
//! let router = Router::new()
//!     .get("/prices", all)
//!     .put("/prices/{item}", set)
//!     .state(Prices::default())
//!     .wrap(wrap::request_id("x-request-id"));
//!
//! let client = Client::new(router);
//! let price = |cents| serde_json::json!({ "cents": cents });
//! assert_eq!(client.put("/prices/tea").json(&price(120)).send().status(), 204);
//! assert_eq!(client.get("/prices").send().text(), r#"{"tea":120}"#);
//! let reply = client.put("/prices/tea").json(&price(-1)).send();
//! assert_eq!(reply.status(), 422);
//! assert_eq!(reply.text(), "the JSON: invalid value: integer `-1`, expected u32 at line 1 column 11\n");
//! ```
//!
//! # Layout
//!
//! From the socket to the handler: `accept` places it on a worker, `conn` waits without a stack, `burst` takes the requests
//! that have come, `router` finds the handler and what is `around` it, `incoming` is the request's body, `answer` and `output` make the bytes that
//! go back, `upgrade` is what becomes of a connection after a 101. On top lie the handlers: `files`, and `proxy`, which takes
//! its connections from an `upstream`; and `ws`, `sse` and `chat`, which live on topics, with `pubsub` between processes.
//! `extract`, `cookies` and `multipart` read a request by type; `wire` is what a connection and a test have in common.
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
pub use osier_http::{Limits, percent_decode};
pub use rejection::Rejection;
pub use request::Request;
pub use request_id::RequestId;
pub use response::{Fields, Response};
pub use router::{Route, Router};
pub use server::{Connections, Listening, Server, ShutdownHandle, SocketFile, serve};
pub use upgrade::{Session, Upgraded};

/// The README's programs, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
