//! A stream for the gateway's fibers: they send the request on it, and take the heads and the body of the response from
//! it.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use osier::time::Sleep;
use osier_http::h2::{ErrorCode, Outgoing, ResponseHead, StreamId};

use super::answer::{Answer, Cut};
use super::connection::Connection;
use crate::conn::trailers::Trailers;
use crate::conn::waited::{Beginning, Waited};
use crate::conn::written::WrittenHead;
use crate::upstream::claim::Claim;
use crate::upstream::ticket::Ticket;

/// A stream of a shared connection to a backend, for one request. Its drop ends the stream, which is cancelled if it is
/// not over.
pub(crate) struct Stream {
    connection: Rc<Connection>,
    answer: Rc<Answer>,
    /// Set once the request has begun.
    id: Cell<Option<StreamId>>,
    pub(crate) ticket: Ticket,
    read_timeout: Cell<Duration>,
    write_timeout: Cell<Duration>,
}

impl Stream {
    /// Makes a stream that `connection` has promised.
    pub(super) fn new(connection: Rc<Connection>, claim: Claim) -> Stream {
        let ticket = Ticket::new(claim, connection.has_answered.get());
        Stream {
            connection,
            answer: Rc::new(Answer::new()),
            id: Cell::new(None),
            ticket,
            read_timeout: Cell::new(Duration::MAX),
            write_timeout: Cell::new(Duration::MAX),
        }
    }

    pub(crate) fn read_timeout(&self) -> Duration {
        self.read_timeout.get()
    }

    /// Sets the longest waits for the backend to send the next bytes, and to take the next bytes.
    pub(crate) fn set_timeouts(&self, read: Duration, write: Duration) {
        self.read_timeout.set(read);
        self.write_timeout.set(write);
    }

    /// Sends the head of the request, which is in HTTP/1.1 form. `end` says that there is no body.
    ///
    /// # Errors
    ///
    /// The reason why the connection has ended meanwhile.
    pub(crate) fn send_head(&self, head: &[u8], end: bool) -> io::Result<()> {
        let (head, _) = WrittenHead::split(head);
        let (method, path) = head.request();
        let host = head.fields().find(|(name, _)| *name == "host").map(|(_, host)| host);
        let host = host
            .and_then(|host| str::from_utf8(host).ok())
            .filter(|host| !host.is_empty());
        let target = Outgoing {
            method,
            scheme: match self.connection.transport.plain() {
                Some(_) => "http",
                None => "https",
            },
            // An HTTP/1.0 client may have named no host, but `:authority` is not empty (RFC 9113 8.3.1).
            authority: host.unwrap_or("localhost"),
            path,
            protocol: None,
        };
        let fields = head.fields().filter(|(name, _)| *name != "host");
        let begin = |machine: &mut osier_http::h2::Connection| machine.request(&target, fields, end);
        self.id.set(Some(self.connection.begin(&self.answer, begin)?));
        Ok(())
    }

    /// Sends some bytes of the body, and returns their number. `end` ends the body with the last of them.
    ///
    /// # Suspends
    ///
    /// While the backend takes none.
    ///
    /// # Errors
    ///
    /// `TimedOut`, and the reason why the stream has ended.
    pub(crate) fn send(&self, bytes: &[u8], end: bool) -> io::Result<usize> {
        loop {
            let count = self.try_send(bytes, end)?;
            if count > 0 || bytes.is_empty() {
                return Ok(count);
            }
            if !self.answer.inlet.writable.wait_timeout(self.write_timeout.get()) {
                return Err(self.late(self.write_timeout.get()));
            }
        }
    }

    /// Sends the bytes of the body that the backend takes now, and returns their number. `end` ends the body with the
    /// last of them.
    ///
    /// # Errors
    ///
    /// The reason why the stream has ended.
    pub(crate) fn try_send(&self, bytes: &[u8], end: bool) -> io::Result<usize> {
        let id = self.id.get().ok_or(io::ErrorKind::NotConnected)?;
        if self.answer.inlet.is_reset() {
            return Err(self.answer.error());
        }
        let now = osier::time::coarse_now();
        let count = self.connection.machine.borrow_mut().send_data(id, bytes, end, now);
        self.connection.flush_soon();
        Ok(count)
    }

    /// Ends the body with a trailer.
    ///
    /// # Errors
    ///
    /// The reason why the stream has ended.
    pub(crate) fn send_trailers(&self, trailers: &Trailers) -> io::Result<()> {
        let id = self.id.get().ok_or(io::ErrorKind::NotConnected)?;
        if self.answer.inlet.is_reset() {
            return Err(self.answer.error());
        }
        self.connection.machine.borrow_mut().send_trailers(id, trailers.iter());
        self.connection.flush_soon();
        Ok(())
    }

    /// Takes the trailer of the response, which is there once the end of the body has been read.
    pub(crate) fn take_trailers(&self) -> Trailers {
        self.answer.inlet.take_trailers()
    }

    /// Takes the next head, with whether the response ends with it. `None` if no head has arrived.
    ///
    /// # Errors
    ///
    /// The reason why the stream has ended.
    pub(crate) fn take_head(&self) -> io::Result<Option<(Box<ResponseHead>, bool)>> {
        match self.answer.take_head() {
            Some(head) => Ok(Some(head)),
            None if self.answer.inlet.is_reset() => Err(self.answer.error()),
            None => Ok(None),
        }
    }

    /// Reads bytes of the body that have arrived. Returns 0 at the end, and `None` if nothing has arrived.
    ///
    /// # Errors
    ///
    /// The reason why the stream has ended.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let taken = self.answer.inlet.take(into).map_err(|_| self.answer.error())?;
        if let (Some(count @ 1..), Some(id)) = (taken, self.id.get()) {
            self.connection.growth.consumed(&self.connection.machine, id, count);
            self.connection.flush_soon();
        }
        Ok(taken)
    }

    /// Waits until a head, bytes of the body or an end have arrived.
    ///
    /// # Suspends
    ///
    /// Until then.
    ///
    /// # Errors
    ///
    /// `TimedOut` after the read timeout.
    pub(crate) fn wait_readable(&self, beginning: &mut Beginning<'_>) -> io::Result<Waited> {
        let limit = self.read_timeout.get();
        let (mut left, mut time) = (limit, beginning.lasts);
        while !self.answer.is_readable() {
            self.waits();
            let now = left.min(time);
            if !now.is_zero() && self.answer.inlet.arrived.wait_timeout(now) {
                (left, time) = (limit, beginning.lasts);
                continue;
            }
            left -= now;
            if left.is_zero() {
                return Err(self.late(limit));
            } else if !(beginning.goes_on)() {
                return Ok(Waited::Stopped);
            }
            time = beginning.next(time);
        }
        Ok(Waited::Readable)
    }

    /// Waits as [`wait_readable`](Stream::wait_readable) does, without a stack. The backend has been silent for `waited`.
    pub(crate) async fn wait_readable_async(&self, waited: Duration) -> io::Result<()> {
        let limit = self.read_timeout.get();
        let readable = async {
            while !self.answer.is_readable() {
                self.waits();
                self.answer.inlet.arrived.wait_async().await;
            }
            Ok(())
        };
        let late = async {
            Sleep::new(limit.saturating_sub(waited)).await;
            Err(self.late(limit))
        };
        osier::race_async((readable, late)).await
    }

    /// Notes that the client is as fast as the backend.
    fn waits(&self) {
        if let Some(id) = self.id.get() {
            self.connection.machine.borrow_mut().reader_waits(id);
        }
    }

    /// Resets the stream. Its reader fails.
    pub(crate) fn cancel(&self) {
        if let Some(id) = self.id.get() {
            self.connection.machine.borrow_mut().reset(id, ErrorCode::CANCEL);
            self.connection.flush_soon();
        }
        self.answer.cut(Cut::Cancelled);
    }

    /// Whether the backend has certainly not processed the request.
    pub(crate) fn is_unprocessed(&self) -> bool {
        self.id.get().is_none() || self.answer.is_refused()
    }

    /// The error of a backend that is late. The connection is doubted.
    #[cold]
    fn late(&self, limit: Duration) -> io::Error {
        self.connection.doubt(limit / 2);
        io::ErrorKind::TimedOut.into()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        match self.id.get() {
            Some(id) => self.connection.end(id),
            None => self.connection.break_promise(),
        }
    }
}
