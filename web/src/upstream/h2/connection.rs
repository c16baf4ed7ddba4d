//! One shared connection to a backend: the protocol's state machine, the streams, and the writer's fiber.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use osier_http::h2::{self, Event, Limits, StreamId};

use super::answer::{Answer, Cut, Lost};
use crate::conn::buffers::{self, Size};
use crate::conn::frames::Writer;
use crate::conn::growth::Growth;
use crate::conn::transport::Transport;

/// The most concurrent streams of one connection. A backend may allow fewer.
const STREAMS: u32 = 100;

/// The size to which the window of one stream grows without a larger window of the connection, in bytes.
const STREAM_WINDOW: u32 = 128 << 10;

/// The most bytes of the heads of all responses on one connection: 20 KiB a stream if all run.
const HEADS: usize = 2 << 20;

/// Bytes of a connection's window that may wait for their announcement. They are not free for the streams meanwhile.
const UNANNOUNCED: u32 = 256 << 10;

/// The bounds of a connection to a backend. Its window has room for all streams: one whose client is slow does not hold up the others.
pub(super) const LIMITS: Limits = Limits {
    max_streams: STREAMS,
    grown_window: STREAM_WINDOW,
    connection_window: STREAMS * STREAM_WINDOW + UNANNOUNCED,
    heads_bytes: HEADS,
    head_bytes: 64 << 10,
    encoder_table: 4_096,
    extended_connect: false,
    ..Limits::DEFAULT
};

/// The longest wait for the backend to take bytes. Then the connection ends.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest wait for the reply to a PING. Then the connection ends.
const PONG_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Connection {
    pub(super) transport: Transport,
    pub(super) machine: RefCell<h2::Connection>,
    pub(super) growth: Growth,
    streams: RefCell<BTreeMap<StreamId, Rc<Answer>>>,
    /// The number of streams that are promised and have not begun.
    promised: Cell<usize>,
    /// Whether the machine has a buffer of the worker for its output.
    has_buffer: Cell<bool>,
    /// Whether the writer's fiber exists.
    is_writing: Cell<bool>,
    /// The reason why the connection has ended, if it has.
    lost: RefCell<Option<Lost>>,
    /// Whether a response has come.
    pub(super) has_answered: Cell<bool>,
    /// When the connection last became idle.
    idle_since: Cell<Instant>,
    /// When bytes last arrived.
    received_at: Cell<Instant>,
    /// The time by which the backend has to answer a PING. No stream begins while it is set.
    pong_until: Cell<Option<Instant>>,
}

impl Connection {
    pub(super) fn new(transport: Transport) -> Rc<Connection> {
        let now = osier::time::coarse_now();
        Rc::new(Connection {
            transport,
            machine: RefCell::new(h2::Connection::client(&LIMITS, now)),
            growth: Growth::default(),
            streams: RefCell::new(BTreeMap::new()),
            promised: Cell::new(0),
            has_buffer: Cell::new(false),
            is_writing: Cell::new(false),
            lost: RefCell::new(None),
            has_answered: Cell::new(false),
            idle_since: Cell::new(now),
            received_at: Cell::new(now),
            pong_until: Cell::new(None),
        })
    }

    /// Promises a stream. Returns false if the connection has none.
    ///
    /// An idle connection is read first: the backend may have ended it, and the worker's poller may not have reported
    /// that yet.
    pub(super) fn promise(self: &Rc<Self>) -> bool {
        if self.is_idle() && self.is_usable() {
            self.read();
        }
        let has_room = self.is_usable() && self.slots() > self.promised.get();
        self.promised.update(|count| count + usize::from(has_room));
        has_room
    }

    /// Takes a promise back.
    pub(super) fn break_promise(&self) {
        self.promised.update(|count| count - 1);
        self.note_idle();
    }

    /// Whether streams may begin on the connection.
    fn is_usable(&self) -> bool {
        self.lost.borrow().is_none() && self.pong_until.get().is_none()
    }

    /// The number of streams that may begin now.
    fn slots(&self) -> usize {
        self.machine.borrow().slots()
    }

    /// Whether no stream runs or is promised.
    pub(super) fn is_idle(&self) -> bool {
        self.streams.borrow().is_empty() && self.promised.get() == 0
    }

    /// Whether the backend takes no more streams on the connection.
    pub(super) fn is_spent(&self) -> bool {
        self.is_idle() && self.slots() == 0
    }

    pub(super) fn idle_since(&self) -> Instant {
        self.idle_since.get()
    }

    pub(super) fn lost(&self) -> Option<Lost> {
        self.lost.borrow().clone()
    }

    /// Begins a promised stream. `begin` sends the head.
    ///
    /// # Errors
    ///
    /// The errors of `begin`, and the reason why the connection has ended.
    pub(super) fn begin(
        self: &Rc<Self>,
        answer: &Rc<Answer>,
        begin: impl FnOnce(&mut h2::Connection) -> Result<StreamId, h2::RequestError>,
    ) -> io::Result<StreamId> {
        if let Some(lost) = &*self.lost.borrow() {
            return Err(lost.to_error());
        }
        self.lend();
        let begun = begin(&mut self.machine.borrow_mut());
        let stream = begun.map_err(|error| io::Error::new(io::ErrorKind::ConnectionAborted, error))?;
        self.promised.update(|count| count - 1);
        self.streams.borrow_mut().insert(stream, answer.clone());
        self.flush_soon();
        Ok(stream)
    }

    /// Ends a stream whose owner is done with its request.
    pub(super) fn end(self: &Rc<Self>, stream: StreamId) {
        let mut machine = self.machine.borrow_mut();
        machine.finish(stream);
        self.growth.note(&machine);
        drop(machine);
        self.streams.borrow_mut().remove(&stream);
        self.wake_writable();
        self.flush_soon();
        self.note_idle();
    }

    /// Notes when the connection has become idle. Ends a connection that can take no more streams.
    fn note_idle(&self) {
        if self.is_idle() {
            self.idle_since.set(osier::time::coarse_now());
            self.machine.borrow_mut().rest();
            if self.is_spent() && self.lost.borrow().is_none() {
                self.lose(Lost::new(
                    io::ErrorKind::ConnectionAborted,
                    "the backend takes no more requests on this connection",
                ));
            }
        }
    }

    /// Sends a PING if the backend has been silent for `silence`. No new request uses the connection before the reply.
    #[cold]
    pub(super) fn doubt(self: &Rc<Self>, silence: Duration) {
        let silent = osier::time::coarse_now().saturating_duration_since(self.received_at.get());
        if silent < silence || !self.is_usable() {
            return;
        }
        self.pong_until.set(osier::time::coarse_now().checked_add(PONG_TIMEOUT));
        self.machine.borrow_mut().ping();
        self.flush_soon();
        let connection = self.clone();
        drop(osier::spawn_local(move || {
            osier::sleep(PONG_TIMEOUT);
            if connection
                .pong_until
                .get()
                .is_some_and(|until| until <= osier::time::now())
            {
                connection.lose(Lost::new(
                    io::ErrorKind::TimedOut,
                    "the backend has not answered a PING",
                ));
            }
        }));
    }

    /// Reads once. Returns false if nothing had arrived.
    pub(super) fn read(self: &Rc<Self>) -> bool {
        let mut buffer = buffers::take(Size::K32);
        let read = self.transport.try_read(&mut buffer);
        let has_read = match read {
            Ok(0) => {
                self.lose(Lost::new(
                    io::ErrorKind::UnexpectedEof,
                    "the backend has closed the connection",
                ));
                false
            }
            Ok(count) => {
                self.receive(&buffer[..count]);
                true
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => false,
            Err(error) => {
                self.lose(Lost::of(&error));
                false
            }
        };
        buffers::give(buffer);
        has_read
    }

    /// Handles received bytes.
    fn receive(self: &Rc<Self>, mut bytes: &[u8]) {
        let now = osier::time::coarse_now();
        self.received_at.set(now);
        self.lend();
        loop {
            let received = self.machine.borrow_mut().receive(bytes, now);
            let (count, event) = match received {
                Ok(received) => received,
                Err(error) => return self.fail(error),
            };
            bytes = &bytes[count..];
            match event {
                Some(event) => self.handle(event),
                None if bytes.is_empty() => break,
                None => {}
            }
        }
        self.wake_writable();
        self.flush_soon();
        self.reclaim();
    }

    fn handle(&self, event: Event<'_>) {
        let answer = |stream: StreamId| self.streams.borrow().get(&stream).cloned();
        match event {
            Event::Response { stream, head, end } => {
                self.has_answered.set(true);
                if let Some(answer) = answer(stream) {
                    answer.receive_head(head, end);
                }
            }
            Event::Data { stream, bytes, end } => {
                if let Some(answer) = answer(stream) {
                    answer.inlet.receive(bytes, end);
                }
            }
            Event::Trailers { stream, fields } => {
                if let Some(answer) = answer(stream) {
                    answer.inlet.end_with(fields);
                }
            }
            Event::Reset { stream, code, by_peer } => {
                if let Some(answer) = answer(stream) {
                    answer.cut(Cut::Stream { code, by_peer });
                }
            }
            Event::Pong => self.pong_until.set(None),
            // The machine opens no more streams after GOAWAY, and a server sends no requests.
            _ => {}
        }
    }

    /// Handles timeouts that are due. Returns the time of the next call.
    pub(super) fn expire(self: &Rc<Self>) -> Option<Instant> {
        let now = osier::time::coarse_now();
        loop {
            let expired = self.machine.borrow_mut().expire(now);
            match expired {
                Ok(Some(event)) => self.handle(event),
                Ok(None) => break,
                Err(error) => {
                    self.fail(error);
                    return None;
                }
            }
        }
        self.wake_writable();
        self.flush_soon();
        self.machine.borrow().next_deadline()
    }

    /// Ends the connection because the backend has violated the protocol.
    #[cold]
    fn fail(self: &Rc<Self>, error: h2::Error) {
        self.write_once();
        self.lose(Lost::new(io::ErrorKind::ConnectionAborted, error.to_string()));
    }

    /// Ends an idle connection with GOAWAY.
    pub(super) fn close(self: &Rc<Self>) {
        self.machine.borrow_mut().close(h2::ErrorCode::NO_ERROR);
        self.write_once();
        self.transport.say_goodbye();
        self.lose(Lost::new(io::ErrorKind::ConnectionAborted, "the connection was idle"));
    }

    /// Writes the last frames, GOAWAY among them, if the socket takes them at once.
    fn write_once(&self) {
        let written = self.transport.try_write(self.machine.borrow().output());
        if let Ok(count) = written {
            self.machine.borrow_mut().advance(count);
        }
    }

    /// Ends the connection: every stream fails. The end of the socket wakes the driver.
    pub(super) fn lose(&self, lost: Lost) {
        if self.lost.borrow().is_some() {
            return;
        }
        *self.lost.borrow_mut() = Some(lost.clone());
        let _ = self.transport.socket().shutdown(std::net::Shutdown::Both);
        let streams: Vec<_> = self.streams.borrow().values().cloned().collect();
        streams
            .iter()
            .for_each(|answer| answer.cut(Cut::Connection(lost.clone())));
    }

    /// Writes the output soon, after the fibers that are ready now.
    pub(super) fn flush_soon(self: &Rc<Self>) {
        let has_output = !self.machine.borrow().output().is_empty() && self.lost.borrow().is_none();
        if !has_output || osier::fiber::worker().is_none() || self.is_writing.replace(true) {
            return;
        }
        let writing = Writing(self.clone());
        drop(osier::spawn_local(move || writing.0.write()));
    }

    /// The work of the writer's fiber.
    ///
    /// # Suspends
    ///
    /// While the backend takes no more.
    fn write(self: &Rc<Self>) {
        if let Err(error) = self.write_output() {
            self.lose(Lost::of(&error));
        }
        self.reclaim();
    }

    /// Lends the machine a buffer for its output.
    fn lend(&self) {
        if !self.has_buffer.replace(true) {
            self.machine.borrow_mut().lend(buffers::take_head());
        }
    }

    /// Takes the buffer back, if it is empty.
    fn reclaim(&self) {
        let mut machine = self.machine.borrow_mut();
        if machine.output().is_empty() {
            self.has_buffer.set(false);
            if let Some(buffer) = machine.reclaim() {
                buffers::give_head(buffer);
            }
        }
    }
}

impl Writer for Connection {
    fn machine(&self) -> &RefCell<h2::Connection> {
        &self.machine
    }

    fn transport(&self) -> &Transport {
        &self.transport
    }

    fn is_lost(&self) -> bool {
        self.lost.borrow().is_some()
    }

    fn wake(&self, stream: StreamId) {
        if let Some(answer) = self.streams.borrow().get(&stream) {
            answer.inlet.writable.set();
        }
    }

    fn wait_writable(&self) -> io::Result<()> {
        match self.transport.socket().wait_writable(WRITE_TIMEOUT)? {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::TimedOut, "the backend does not read")),
        }
    }
}

/// The writer's fiber. Its drop says that there is none.
struct Writing(Rc<Connection>);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.is_writing.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes the output of one machine to the other. Returns the bytes of bodies that have come, by stream.
    fn pass(from: &mut h2::Connection, to: &mut h2::Connection) -> BTreeMap<StreamId, usize> {
        let (now, mut bytes) = (Instant::now(), BTreeMap::new());
        let input = from.output().to_vec();
        from.advance(input.len());
        let mut at = 0;
        loop {
            let (count, event) = to.receive(&input[at..], now).unwrap();
            at += count;
            match event {
                Some(Event::Request { stream, .. }) => to.send_head(stream, 200, [], false),
                Some(Event::Data {
                    stream, bytes: piece, ..
                }) => *bytes.entry(stream).or_default() += piece.len(),
                None if at == input.len() => return bytes,
                _ => {}
            }
        }
    }

    /// The clients of 99 responses do not read. That of the hundredth does.
    #[test]
    fn a_response_comes_whole_while_all_others_wait() {
        let now = Instant::now();
        // The windows of the streams have grown.
        let limits = Limits {
            stream_window: STREAM_WINDOW,
            ..LIMITS
        };
        let mut client = h2::Connection::client(&limits, now);
        let mut server = h2::Connection::server(&Limits::default(), now);
        let target = h2::Outgoing {
            method: "GET",
            scheme: "http",
            authority: "a",
            path: "/",
            protocol: None,
        };
        let streams: Vec<_> = (0..STREAMS)
            .map(|_| client.request(&target, [], true).unwrap())
            .collect();
        let (piece, mut received) = (vec![b'x'; 64 << 10], 0);
        let last = streams[99];
        for _ in 0..200 {
            pass(&mut client, &mut server);
            for stream in &streams {
                while server.send_data(*stream, &piece, false, now) > 0 {
                    let came = pass(&mut server, &mut client).remove(&last).unwrap_or(0);
                    client.consumed(last, came);
                    received += came;
                }
            }
        }
        assert!(received > 10 << 20, "{received} bytes");
    }
}
