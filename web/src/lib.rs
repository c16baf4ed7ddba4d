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
//! A handler reads its request, makes blocking calls (sockets, sleeps, [`osier::unblock`]), and
//! returns any type that [implements](IntoResponse) a response. A connection that waits for its
//! next request holds no stack. Responses to pipelined requests are sent in order and together.
//! When a handler suspends, the responses before its own are sent first. A handler runs to its end
//! although its client has left, unless its route has [`Route::cancel_when_gone`].
//!
//! # What an application needs
//!
//! | to | see |
//! |---|---|
//! | read path, query, form and JSON by type | [`Request::params`], [`query_as`](Request::query_as), [`form`](Request::form), [`json`](Request::json); [`Json`] as a response |
//! | take files from a browser | [`Request::multipart`] and [`multipart`] |
//! | read and set cookies | [`Request::cookie`], [`Response::cookie`]; signed or encrypted: [`wrap::session::CookieKeys`] |
//! | remember values of a browser | [`wrap::session`] |
//! | refuse a malformed request | [`Rejection`], by `?` |
//! | run code before and after handlers | [`Router::wrap`], [`Route::wrap`], [`wrap`] |
//! | share state between handlers | [`Router::state`], [`Request::state`] |
//! | give a whole prefix to one handler | [`Router::mount`]; [`files`], [`fastcgi`] and [`proxy`] have such handlers |
//! | use a handler that is a type (`Files`, `FastCgi`, `Proxy`, `Chat`) | `new(..)`, or `open(..)` where it reads the disk; `with(.., Options)`; then `handler()`, or `answer(request)` inside a handler of yours |
//! | make calls that block the thread (a database, a password hash) | [`osier::unblock`] |
//! | test without a socket | [`test::Client`] |
//!
//! An application with its test; it needs the feature `json`:
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
//! # Features
//!
//! No feature is on by default. The core is a router, requests and responses. `full` turns all
//! features on.
//!
//! | feature | what it adds |
//! |---|---|
//! | `serde` | [`Request::params`] |
//! | `forms` | [`Request::query_as`], [`Request::form`]; `serde` |
//! | `json` | [`Request::json`], [`Json`]; `serde` |
//! | `cookies` | [`Request::cookies`] and [`Request::cookie`], which `proxy` and `fastcgi` bring too; [`Response::cookie`] |
//! | `multipart` | [`Request::multipart`] |
//! | `compress` | [`compress`] |
//! | `jwt` | [`wrap::jwt`]; `cookies`, `json` |
//! | `sessions` | [`wrap::session`], signed and encrypted cookies; `cookies`, `json` |
//! | `cors`, `rate` | [`wrap::cors`] and [`wrap::rate`], functions around handlers |
//! | `fibers` | [`fibers`], a page of all live fibers |
//! | `files` | [`files`]; `compress` |
//! | `h2` | HTTP/2: [`Server::http2`], on by default then |
//! | `proxy` | [`proxy`], [`upstream`], [`wrap::forward_auth`] |
//! | `fastcgi` | [`fastcgi`], [`upstream`]; `files` |
//! | `cache` | [`wrap::cache`], a shared cache around handlers; `files`, `proxy` |
//! | `ws` | [`ws`] |
//! | `sse` | [`sse`] |
//! | `redis` | [`pubsub`] |
//! | `chat` | [`chat`]; `json`, `redis`, `ws` |
//! | `tls` | [`Server::tls`], [`Request::tls`], [`tls`] |
//! | `upgrade` | [`upgrade`], [`Server::upgradable`]: a new process takes over |
//!
//! # Names that you know
//!
//! A search on this page finds these names, too.
//!
//! | in axum or actix-web | here |
//! |---|---|
//! | `async fn` handlers, extractors | `fn(&mut Request) -> impl IntoResponse`; a method of [`Request`] for each extractor, with `?` |
//! | `Path`, `Query`, `Form`, `Json`, `Bytes` | [`params`](Request::params), [`query_as`](Request::query_as), [`form`](Request::form), [`json`](Request::json), [`bytes`](Request::bytes) |
//! | `Html` | [`Html`] |
//! | `State`, `Data`, `app_data` | [`Router::state`], [`Request::state`], or a value that the closure owns |
//! | `Extension` | [`Request::extensions`] |
//! | `ConnectInfo` | [`Request::client_ip`], [`Request::peer`] |
//! | `layer`, `middleware::from_fn`, `wrap_fn` | [`Router::wrap`], [`Route::wrap`]: a function around the handler. tower's layers do not fit |
//! | `nest`, `scope`; `nest_service` | [`Router::nest`]; [`Router::mount`] |
//! | `MethodRouter`, `routing::get` | [`Route`], [`Router::get`] |
//! | `fallback`, `default_service` | [`Router::fallback`] |
//! | `impl IntoResponse for AppError`, `ResponseError` | [`IntoResponse`] for your type; [`Rejection`] for a status and a line; [`Error`] for any error |
//! | `DefaultBodyLimit` | [`Limits`], [`Route::body_limit`] |
//! | `TimeoutLayer` | [`osier::timeout`] around [`Next::run`]; [`Timeouts`] and [`Rates`] bound the clients |
//! | `Body::from_stream`, `Sse` | [`Response::stream`], [`Body::reader`]; `sse::stream` |
//! | `WebSocketUpgrade` | `ws::upgrade` |
//! | `ServeDir`, `NamedFile` | `files::Files` |
//! | `with_graceful_shutdown` | [`ShutdownHandle::shutdown`], then [`Listening::run`] returns |
//! | `TestServer`, `oneshot` | [`test::Client`] |
//!
//! # Graceful shutdown
//!
//! ```no_run
//! use osier::signal::{Signal, Signals};
//! use osier_web::{Router, Server};
//!
//! let signals = Signals::new([Signal::TERM, Signal::INT])?;
//! osier::run(move || -> std::io::Result<()> {
//!     let listening = Server::new(Router::new().get("/", |_| "hello\n")).bind("127.0.0.1:8080")?;
//!     let server = listening.handle();
//!     osier::spawn(move || {
//!         let _ = signals.recv();
//!         server.shutdown();
//!     });
//!     listening.run(); // until every response has been sent, or `Timeouts::drain` is over
//!     Ok(())
//! })
//! # .unwrap();
//! # std::io::Result::Ok(())
//! ```
//!
//! # Requirements and promises
//!
//! Rust 1.95, a 64-bit Unix and `panic = "unwind"`, as `osier`; every test runs on Linux. The crate forbids `unsafe`. A handler that panics
//! is a 500 and a line in the log. Before 1.0 a minor release may break the API, a patch release does not. Without features it has about 30
//! dependencies, with `full` about 95; ring and zstd need a C compiler then. It logs to the standard error stream unless
//! [`Server::on_log`] says otherwise.

// # Layout
//
// | module | contents |
// |---|---|
// | `listen`, `invalid` | addresses and listening sockets; the error of a setting |
// | `conn` | a connection: its rest without a stack, its output buffer, its upgrade after a 101; lines for the operator, request ids |
// | `body` | the body of a request, the body of a response |
// | `request`, `response` | the input and the result of a handler: fields, cookies, forms, typed extraction |
// | `router`, `wrap` | the handler of a path, and the functions around the handler |
// | `server` | accepting, bursts of requests, HTTP/2 streams, responses, graceful shutdown |
// | `files`, `compress` | a handler for a folder; content codings |
// | `upstream`, `proxy`, `fastcgi` | groups of backends, and the handlers that forward requests to them |
// | `ws`, `sse`, `pubsub`, `chat` | WebSockets, server-sent events, topics between processes, a chat room |
// | `test` | a client without a socket |
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "full"),
    allow(
        rustdoc::broken_intra_doc_links,
        rustdoc::private_intra_doc_links,
        reason = "the items of a feature that is off are not there"
    )
)]

mod body;
#[cfg(feature = "chat")]
pub mod chat;
#[cfg(feature = "compress")]
pub mod compress;
mod conn;
#[cfg(feature = "fastcgi")]
pub mod fastcgi;
#[cfg(feature = "files")]
pub mod files;
mod invalid;
mod listen;
#[cfg(feature = "proxy")]
pub mod proxy;
#[cfg(feature = "redis")]
pub mod pubsub;
mod request;
mod response;
mod router;
mod server;
#[cfg(feature = "sse")]
pub mod sse;
pub mod test;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub mod upstream;
pub mod wrap;
#[cfg(feature = "ws")]
pub mod ws;

#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub use body::Spooled;
pub use body::incoming::RequestBody;
pub use body::outgoing::Body;
pub use conn::close::{CloseReason, ConnectionEvent};
pub use conn::listed::{ConnectionInfo, ConnectionState};
pub use conn::log::id::RequestId;
pub use conn::log::record::{Level, Record};
pub use conn::network::ClientNetwork;
pub use conn::protocol::Protocol;
pub use conn::rates::Rates;
pub use conn::settings::Timeouts;
pub use conn::times::{Phase, Times};
pub use conn::trailers::Trailers;
pub use conn::tunnel::{EndedTunnel, TunnelEnd};
pub use conn::upgrade::{Session, Upgraded};
#[cfg(feature = "cookies")]
pub use cookie;
pub use http;
pub use invalid::InvalidSetting;
pub use listen::{Address, Listener, Sockets};
pub use osier::net::Stream;
#[cfg(feature = "h2")]
pub use osier_http::h2::Limits as Http2Limits;
pub use osier_http::{Headers, Limits, Reject, path, percent_decode};
#[cfg(feature = "tls")]
pub use osier_tls as tls;
pub use request::Request;
#[cfg(feature = "serde")]
pub use request::extract::Validate;
#[cfg(feature = "json")]
pub use request::extract::json::Json;
pub use request::hops::ForwardedBy;
#[cfg(feature = "multipart")]
pub use request::multipart;
#[cfg(feature = "tls")]
pub use request::tls::Tls;
pub use request::trace::TraceContext;
pub use response::error::Error;
pub use response::html::Html;
pub use response::into_response::IntoResponse;
pub use response::rejection::Rejection;
pub use response::{Fields, Response};
pub use router::Router;
pub use router::answer::Answer;
pub use router::handler::Handler;
pub use router::next::Next;
pub use router::route::Route;
#[cfg(feature = "fibers")]
pub use server::fibers;
pub use server::served::Served;
#[cfg(feature = "upgrade")]
pub use server::upgrade;
pub use server::{Connections, Listening, Server, ShutdownHandle, SocketFile, serve};

/// The program of the README, compiled as a test.
#[cfg(all(doctest, feature = "full"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Locks a mutex under which no code panics half way: what it holds is whole, also after a panic.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
