//! Redis from a handler, in blocking style.
//!
//! ```text
//! cargo run --release --manifest-path mixing/Cargo.toml --bin redis -- [ADDR [REDIS]]
//!
//! curl localhost:8080/greeting -X PUT -d 'hello'
//! curl localhost:8080/greeting
//! curl localhost:8080/visits -X POST
//! ```
//!
//! The file `mixing/src/redis.rs`, included below, runs the `redis` crate's commands and parser over an Osier stream. Copy it into your
//! own program. Each call waits for its reply, and the worker serves others meanwhile.

use std::io;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use osier_web::{Address, IntoResponse, Rejection, Request, Response, Router, Stream, http::StatusCode};
use redis::{Commands, ConnectionLike, RedisError, RedisResult};

#[path = "../mixing/src/redis.rs"]
mod connection;
mod start;

type Connection = connection::Connection<Stream>;

/// How long connecting to Redis may take, and how long one of its replies.
const PATIENCE: Duration = Duration::from_secs(3);

/// The largest value that a client may store.
const VALUE_BYTES: u64 = 1 << 20;

/// The most idle connections to keep.
const IDLE: usize = 16;

/// The idle connections. The lock is never held across a wait.
struct Pool {
    address: Address,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> RedisResult<T>) -> Result<T, Failure> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle().pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let result = work(&mut connection);
        let mut idle = idle();
        if connection.is_open() && idle.len() < IDLE {
            idle.push(connection);
        }
        Ok(result?)
    }

    fn connect(&self) -> io::Result<Connection> {
        let stream = self.address.connect(PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Connection::new(stream))
    }
}

enum Failure {
    Request(Rejection),
    Redis(RedisError),
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Failure::Request(rejection) => rejection.into_response(),
            Failure::Redis(error) => {
                eprintln!("redis: {error}");
                (StatusCode::BAD_GATEWAY, "redis does not answer as it should\n").into_response()
            }
        }
    }
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Self {
        Failure::Request(rejection)
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Failure::Redis(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Redis(error.into())
    }
}

fn get(request: &mut Request<'_>) -> Result<Option<Vec<u8>>, Failure> {
    let key: String = request.params()?;
    request.state::<Pool>()?.with(|redis| redis.get(key))
}

fn put(request: &mut Request<'_>) -> Result<StatusCode, Failure> {
    let key: String = request.params()?;
    let value = request.bytes(VALUE_BYTES)?;
    request
        .state::<Pool>()?
        .with(|redis| redis.set::<_, _, ()>(key, value))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Adds one, with several commands in one round trip.
fn count(request: &mut Request<'_>) -> Result<String, Failure> {
    let key: String = request.params()?;
    let (count,): (i64,) = request
        .state::<Pool>()?
        .with(|redis| redis::pipe().incr(&key, 1).expire(&key, 3600).ignore().query(redis))?;
    Ok(format!("{count}\n"))
}

fn main() -> ExitCode {
    start::serve("redis", |args| {
        let address = args.first().map_or("127.0.0.1:6379", String::as_str);
        let address = address.parse().map_err(|error| {
            let what = format!("{address}: {error}");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        let idle = Mutex::default();
        let router = Router::new()
            .get("/{key}", get)
            .put("/{key}", put)
            .post("/{key}", count);
        Ok(router.state(Pool { address, idle }))
    })
}
