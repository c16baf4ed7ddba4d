//! The crate `redis` over a stream of Osier: its commands and its parser, with Osier's socket between them.
//!
//! The crate's own connections open std's sockets. But all of its typed commands need only one trait, which this module
//! implements for any stream that reads and writes.

use std::io::{Read, Write};

use redis::{ConnectionLike, Parser, RedisResult, Value};

/// A connection to a redis server; `redis::Commands` and pipelines work on it. The calls suspend the fiber.
pub struct Connection<S> {
    stream: S,
    // Keeps what it has read beyond one reply.
    parser: Parser,
    broken: bool,
}

impl<S: Read + Write> Connection<S> {
    /// Makes a connection on a stream that is connected already.
    pub fn new(stream: S) -> Connection<S> {
        Connection {
            stream,
            parser: Parser::new(),
            broken: false,
        }
    }

    fn exchange<T>(&mut self, packed: &[u8], replies: impl FnOnce(&mut Self) -> RedisResult<T>) -> RedisResult<T> {
        // Until all is read the connection is of no use: a fiber may be cancelled in the middle.
        self.broken = true;
        self.stream.write_all(packed)?;
        let replies = replies(self)?;
        self.broken = false;
        Ok(replies)
    }

    fn reply(&mut self) -> RedisResult<Value> {
        self.parser.parse_value(&mut self.stream)
    }
}

impl<S: Read + Write> ConnectionLike for Connection<S> {
    fn req_packed_command(&mut self, packed: &[u8]) -> RedisResult<Value> {
        self.exchange(packed, Self::reply)
    }

    fn req_packed_commands(&mut self, packed: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        let all: Vec<Value> = self.exchange(packed, |this| (0..offset + count).map(|_| this.reply()).collect())?;
        Ok(all.into_iter().skip(offset).collect())
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        redis::cmd("PING").exec(self).is_ok()
    }

    fn is_open(&self) -> bool {
        !self.broken
    }
}
