//! PostgreSQL on Osier: connections whose queries suspend the fiber.
//!
//! The protocol is that of tokio-postgres, over Osier's streams and without a tokio runtime. Each connection has a task that reads
//! what the server sends.
//!
//! ```no_run
//! # fn main() -> Result<(), osier_postgres::Error> {
//! use osier_postgres::Pool;
//!
//! osier::run(|| {
//!     let pool = Pool::connect("postgres://app@localhost/shop", 16)?;
//!     let rows = pool.get()?.query("select name from item where price < $1", &[&10_i32])?;
//!     println!("{} items", rows.len());
//!
//!     let mut connection = pool.get()?;
//!     let transaction = connection.transaction()?;
//!     transaction.execute("update item set price = price + 1", &[])?;
//!     transaction.commit()
//! })
//! # }
//! ```
//!
//! A [`Pool`] lends a connection to one fiber at a time. The connections of a [`Pipeline`] are used by many fibers at once, for single
//! statements.
//!
//! # Suspends
//!
//! Every call that asks the server, and [`Pool::get`] while all connections are in use.
//!
//! # Cancellation
//!
//! A cancelled call unwinds, as [`osier::block_on`] does. Its connection does not go back to the pool, and the server is asked to
//! cancel the query. The same holds for a call in [`osier::timeout`].
//!
//! # Features
//!
//! `json` is for columns of JSON: `types::Json`. It is off by default.
//!
//! # Limits
//!
//! - A server that hangs, or whose network is cut, keeps a call waiting. Limit calls by [`osier::timeout`]: a [`Pool`] then closes the
//!   connection and makes another one; a connection of a [`Pipeline`] stays until its socket fails. The server itself ends slow
//!   statements with `options='-c statement_timeout=5s'` among the parameters of the connection.
//! - The socket of a cut network fails after the time that the parameters of the connection set: `keepalives_idle=30 keepalives_interval=10
//!   keepalives_retries=3` (seconds; about a minute together) while the server owes an answer, and `tcp_user_timeout=60` while it has not
//!   acknowledged a statement. By default that takes two hours and a quarter of an hour.
//! - No TLS: use a Unix socket, the loopback or a private network.
//! - `COPY ... FROM STDIN` and `TO STDOUT` need [`Connection::call`]. The other calls refuse them.
//! - Changes of the session (`set`, `listen`, a temporary table, `begin` without an end) stay with the connection, for the next caller
//!   that gets it. Use [`Connection::transaction`] and `set local`.
//! - Connections are made on a runtime of Osier's: [`Pool::connect`] and [`Pool::get`] panic on a plain thread.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

mod connection;
mod copy;
mod error;
mod pipeline;
mod pool;
mod server;
mod statements;

pub use connection::{Connection, Transaction};
pub use error::Error;
pub use pipeline::Pipeline;
pub use pool::Pool;
pub use tokio_postgres::error::{DbError, SqlState};
pub use tokio_postgres::{Config, Row, Statement, ToStatement, types};
