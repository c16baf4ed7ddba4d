//! An HTTP/2 client that believes nothing: it sends requests side by side, cancels some and reads others late, and holds every response
//! against the request that it belongs to.
//!
//! The codec is that of the server, on its other side. The checks are about the responses that come out of it.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use osier::net::TcpStream;
use osier_http::h2::{self, ErrorCode, Event, Limits, Outgoing, StreamId};

use super::client::{Asked, Reply, connect};
use super::{SECOND, below, once_in, some_bytes, some_of};

/// The longest time for all requests of a row. A loaded server of the scenarios answers far earlier.
const PATIENCE: Duration = Duration::from_secs(300);

/// The fate of a request.
pub enum Fate {
    /// It has the whole response.
    Answered(Reply),
    /// The server says that it has not read it. It is sent again, on another connection.
    Unread,
    /// The server has reset it.
    Reset(ErrorCode),
    /// Its connection has ended.
    Lost,
    /// The client has cancelled it.
    Cancelled,
}

/// A request that is being sent, and the response as far as it has come.
struct Exchange {
    asked: Asked,
    sent: usize,
    status: u16,
    head: String,
    body: Vec<u8>,
    /// Bytes of the response that the window does not have back, and when it gets them.
    late: usize,
    reads_at: Option<Instant>,
    cancels_at: Option<Instant>,
}

/// A connection that speaks HTTP/2 in the clear from its first byte.
struct Connection {
    stream: TcpStream,
    machine: h2::Connection,
    exchanges: BTreeMap<StreamId, Exchange>,
    has_received: bool,
    /// The server has found this client too slow, which is right where a partition holds its bytes back.
    too_slow: Option<ErrorCode>,
    /// The fates since the owner has looked.
    fates: Vec<(Asked, Fate)>,
}

fn in_some(longest: Duration) -> Instant {
    osier::time::now() + some_of(longest)
}

impl Connection {
    fn open(address: &str) -> io::Result<Connection> {
        let mut connection = Connection {
            stream: connect(address)?,
            machine: h2::Connection::client(&Limits::default(), osier::time::now()),
            exchanges: BTreeMap::new(),
            has_received: false,
            too_slow: None,
            fates: Vec::new(),
        };
        if once_in(4) {
            // A part of the preface, and a pause.
            let part = 1 + below(30) as usize;
            let count = connection.stream.try_write(&connection.machine.output()[..part])?;
            connection.machine.advance(count);
            osier::sleep(some_of(2 * SECOND));
        }
        Ok(connection)
    }

    /// Whether the server takes another request.
    fn has_slot(&self) -> bool {
        self.machine.slots() > 0
    }

    fn begin(&mut self, asked: Asked) {
        let path = format!("/echo?key={}", asked.key);
        let target = Outgoing {
            method: asked.method,
            scheme: "http",
            authority: "sim",
            path: &path,
            protocol: None,
        };
        let length = asked.body.len().to_string();
        let fields = [("content-length", length.as_bytes())];
        let known = usize::from(once_in(2));
        let stream = self
            .machine
            .request(&target, fields[..known].iter().copied(), asked.body.is_empty());
        let stream = stream.expect("there is a slot");
        let exchange = Exchange {
            asked,
            sent: 0,
            status: 0,
            head: String::new(),
            body: Vec::new(),
            late: 0,
            reads_at: once_in(6).then(|| in_some(20 * SECOND)),
            cancels_at: once_in(12).then(|| in_some(5 * SECOND)),
        };
        self.exchanges.insert(stream, exchange);
    }

    /// Goes on until all requests have their fates, or as long as `rest` says.
    fn go_on(&mut self, rest: Option<Duration>) -> io::Result<()> {
        let end = osier::time::now() + rest.unwrap_or(PATIENCE);
        let mut piece = [0; 4096];
        loop {
            self.keep_dates();
            self.send_bodies();
            let mut is_stuck = true;
            match self.write() {
                Ok(count) => is_stuck = count == 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            match self.stream.try_read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    is_stuck = false;
                    let is_first = !std::mem::replace(&mut self.has_received, true);
                    if is_first && b"HTTP/1.1 408".starts_with(&piece[..count.min(12)]) {
                        // A partition has delayed a part of the preface.
                        return Err(ErrorKind::TimedOut.into());
                    }
                    self.take(&piece[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if !is_stuck {
                continue;
            }
            let now = osier::time::now();
            match rest {
                None if self.exchanges.is_empty() => return Ok(()),
                None => assert!(now < end, "no answer within {PATIENCE:?}: {:?}", self.machine),
                Some(_) if now >= end => return Ok(()),
                Some(_) => {}
            }
            let dates = self.exchanges.values().flat_map(|one| [one.reads_at, one.cancels_at]);
            let next = dates.flatten().min().unwrap_or(end).min(end);
            let has_output = !self.machine.output().is_empty();
            osier::select! {
                ready = self.stream.readable_async() => ready?,
                ready = self.stream.writable_async(), if has_output => ready?,
                until next => {}
            }
        }
    }

    /// Writes what the socket takes at once.
    fn write(&mut self) -> io::Result<usize> {
        let output = self.machine.output();
        if output.is_empty() {
            return Ok(0);
        }
        let count = self.stream.try_write(output)?;
        self.machine.advance(count);
        Ok(count)
    }

    /// Cancels requests, and gives the windows of late readers back, when it is time.
    fn keep_dates(&mut self) {
        let now = osier::time::now();
        for (&stream, exchange) in &mut self.exchanges {
            if exchange.reads_at.is_some_and(|at| at <= now) {
                exchange.reads_at = None;
                self.machine.consumed(stream, std::mem::take(&mut exchange.late));
            }
        }
        let due = |exchange: &Exchange| exchange.cancels_at.is_some_and(|at| at <= now);
        let cancelled = self.exchanges.iter().filter(|(_, exchange)| due(exchange));
        for stream in cancelled.map(|(&stream, _)| stream).collect::<Vec<_>>() {
            self.machine.reset(stream, ErrorCode::CANCEL);
            self.end(stream, |_| Fate::Cancelled);
        }
    }

    fn send_bodies(&mut self) {
        while self.machine.next_writable().is_some() {}
        for (&stream, exchange) in &mut self.exchanges {
            let left = &exchange.asked.body[exchange.sent..];
            if !left.is_empty() && self.machine.room(stream) > 0 {
                exchange.sent += self.machine.send_data(stream, left, true, osier::time::now());
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8]) {
        loop {
            let received = self.machine.receive(bytes, osier::time::now());
            let (count, event) =
                received.unwrap_or_else(|error| panic!("{error} in {:?}", bytes.escape_ascii().to_string()));
            bytes = &bytes[count..];
            let ended = match event {
                Some(Event::Response { stream, head, end }) => {
                    let exchange = self.exchanges.get_mut(&stream).expect("a response to a request");
                    if head.status() < 200 {
                        continue;
                    }
                    exchange.status = head.status();
                    for (name, value) in head.fields().iter() {
                        let value = str::from_utf8(value).expect("a text");
                        exchange.head += &format!("{name}: {value}\r\n");
                    }
                    end.then_some(stream)
                }
                Some(Event::Data { stream, bytes, end }) => {
                    let exchange = self.exchanges.get_mut(&stream).expect("a body of a response");
                    exchange.body.extend_from_slice(bytes);
                    match exchange.reads_at {
                        Some(_) => exchange.late += bytes.len(),
                        None => self.machine.consumed(stream, bytes.len()),
                    }
                    end.then_some(stream)
                }
                Some(Event::Trailers { .. }) => panic!("the handlers send no trailers"),
                Some(Event::Reset { stream, code, .. }) => {
                    self.end(stream, |_| match code {
                        ErrorCode::REFUSED_STREAM => Fate::Unread,
                        code => Fate::Reset(code),
                    });
                    None
                }
                Some(Event::GoAway { code, .. }) => {
                    match code {
                        ErrorCode::NO_ERROR => {}
                        ErrorCode::SETTINGS_TIMEOUT | ErrorCode::ENHANCE_YOUR_CALM => self.too_slow = Some(code),
                        code => panic!("the server ends the connection with {code:?}"),
                    }
                    None
                }
                Some(_) => None,
                None if bytes.is_empty() => return,
                None => None,
            };
            if let Some(stream) = ended {
                self.end(stream, |exchange| {
                    Fate::Answered(Reply::new(exchange.status, &exchange.head, &exchange.body))
                });
            }
        }
    }

    /// Ends a request.
    fn end(&mut self, stream: StreamId, fate: impl FnOnce(&Exchange) -> Fate) {
        self.machine.finish(stream);
        if let Some(exchange) = self.exchanges.remove(&stream) {
            let fate = fate(&exchange);
            self.fates.push((exchange.asked, fate));
        }
    }

    /// Sends rows of requests. Between two rows the connection rests for at most `rest`.
    fn talk(&mut self, keys: &mut Vec<u64>, rest: Duration) -> io::Result<()> {
        for _ in 0..1 + below(4) {
            for _ in 0..1 + below(6) {
                let Some(key) = keys.pop_if(|_| self.has_slot()) else {
                    break;
                };
                let method = ["GET", "PUT", "POST"][below(3) as usize];
                self.begin(Asked {
                    method,
                    key,
                    body: some_bytes(key),
                });
                if once_in(4) {
                    self.go_on(Some(some_of(2 * SECOND)))?;
                }
            }
            self.go_on(None)?;
            if once_in(2) {
                self.go_on(Some(some_of(rest)))?;
            }
        }
        if once_in(3) {
            self.machine.shutdown(osier::time::now());
            self.go_on(Some(Duration::ZERO))?;
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        Ok(())
    }
}

/// Sends `count` requests over as many connections as it takes, and notes the fate of each. A request that the server has not read is sent
/// again. `rest` is the longest time for which a connection has no request.
pub fn requests(address: &str, first_key: u64, count: u64, rest: Duration, note: impl Fn(&Asked, &Fate)) {
    let mut keys: Vec<u64> = (first_key..first_key + count).rev().collect();
    while let Some(&key) = keys.last() {
        let Ok(mut connection) = Connection::open(address) else {
            note(&unsent(key), &Fate::Lost);
            keys.pop();
            osier::sleep(some_of(3 * SECOND));
            continue;
        };
        if let Err(error) = connection.talk(&mut keys, rest) {
            osier::sim::note(format_args!("the connection has ended: {error}"));
        }
        let lost = std::mem::take(&mut connection.exchanges).into_values();
        connection.fates.extend(lost.map(|lost| (lost.asked, Fate::Lost)));
        if let Some(code) = connection.too_slow {
            note(&unsent(first_key), &Fate::Reset(code));
        }
        for (asked, fate) in &connection.fates {
            note(asked, fate);
            if let Fate::Unread = fate {
                keys.push(asked.key);
            }
        }
    }
}

/// A request that has found no server.
fn unsent(key: u64) -> Asked {
    Asked {
        method: "GET",
        key,
        body: Vec::new(),
    }
}
