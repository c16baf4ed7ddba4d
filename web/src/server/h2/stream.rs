//! A stream as its fibers see it: the body of the request, and the way of the response into the output.

use std::cell::{Cell, OnceCell};
use std::io;
use std::mem;
use std::rc::Rc;
use std::time::Duration;

use osier::sync::Interrupt;
use osier_http::h2::{RequestHead, StreamId};

use crate::conn::frames::Writer;
use crate::conn::inlet::Inlet;
use crate::conn::stream::ClientStream;
use crate::conn::trailers::Trailers;
use crate::conn::worker::Link;
use crate::conn::written::WrittenHead;
use crate::server::h2::shared::Shared;

pub(super) struct Stream {
    pub(super) shared: Rc<Shared>,
    pub(super) id: StreamId,
    /// Made when the stream waits for its client, or before by the connection: most streams need none.
    inlet: OnceCell<Rc<Inlet>>,
    /// Whether the request has no body.
    has_ended: bool,
    /// Whether the final head has been sent.
    is_answered: Cell<bool>,
    /// Whether the request is an extended CONNECT, which any 2xx would accept.
    asks_for_protocol: bool,
}

impl Stream {
    pub(super) fn new(shared: Rc<Shared>, id: StreamId, head: &RequestHead) -> Stream {
        Stream {
            shared,
            id,
            inlet: OnceCell::new(),
            has_ended: head.ended(),
            is_answered: Cell::new(false),
            asks_for_protocol: head.protocol().is_some(),
        }
    }

    /// The same stream for code that outlives its fiber.
    pub(super) fn detached(&self) -> Stream {
        Stream {
            shared: self.shared.clone(),
            id: self.id,
            inlet: self.inlet.clone(),
            has_ended: self.has_ended,
            is_answered: self.is_answered.clone(),
            asks_for_protocol: self.asks_for_protocol,
        }
    }

    /// Sets the function to call when bytes, their end or a reset arrive, from now on.
    pub(super) fn on_arrival(&self, call: Box<dyn Fn()>) {
        self.inlet().on_arrival(call);
    }

    /// Whether the stream is reset.
    pub(super) fn is_reset(&self) -> bool {
        self.inlet().is_reset()
    }

    fn inlet(&self) -> &Rc<Inlet> {
        self.inlet.get_or_init(|| {
            let inlet = self.shared.make_inlet(self.id, self.has_ended);
            inlet.expect("a stream that is served is in the table")
        })
    }

    /// Waits until the stream is reset, which may be never.
    pub(super) fn reset(&self) -> impl Future<Output = ()> + 'static {
        let inlet = self.inlet().clone();
        async move {
            while !inlet.is_reset() {
                inlet.arrived.wait_async().await;
            }
        }
    }

    /// Sends the last bytes of the response, and its trailer.
    ///
    /// # Suspends
    ///
    /// While the client takes no more.
    ///
    /// # Errors
    ///
    /// The errors of [`ClientStream::write`].
    pub(super) fn end(&self, bytes: &[u8], trailers: &Trailers) -> io::Result<()> {
        let end = trailers.is_empty();
        if let Some(body) = self.send_heads(bytes, end)? {
            self.send_body(body, end)?;
        }
        if !end {
            self.check_open()?;
            self.shared.lend();
            self.shared.machine.borrow_mut().send_trailers(self.id, trailers.iter());
            self.shared.flush_soon();
        }
        Ok(())
    }

    /// Sends the heads at the beginning of `bytes`, unless the final one has been sent. Returns the rest, or `None` if the final head
    /// has ended the stream.
    fn send_heads<'b>(&self, mut bytes: &'b [u8], end: bool) -> io::Result<Option<&'b [u8]>> {
        while !self.is_answered.get() && !bytes.is_empty() {
            if let Some(length) = self.send_same_head(bytes, end)? {
                bytes = &bytes[length..];
                return Ok((!end || !bytes.is_empty()).then_some(bytes));
            }
            let (head, rest) = WrittenHead::split(bytes);
            // A 101 answers an extended CONNECT, where HTTP/2 has a 200 (RFC 8441 section 5).
            let status = match head.status() {
                101 => 200,
                200..300 if self.asks_for_protocol => return Err(self.refuse_protocol()),
                status => status,
            };
            let is_final = status >= 200;
            let is_last = end && is_final && rest.is_empty();
            self.check_open()?;
            self.shared.lend();
            let mut machine = self.shared.machine.borrow_mut();
            match is_final && !self.asks_for_protocol {
                true => {
                    let text = &bytes[..bytes.len() - rest.len()];
                    machine.send_written_head(self.id, text, (status, head.fields()), is_last);
                }
                false => machine.send_head(self.id, status, head.fields(), is_last),
            }
            drop(machine);
            self.is_answered.set(is_final);
            self.shared.flush_soon();
            if is_last {
                return Ok(None);
            }
            bytes = rest;
        }
        Ok(Some(bytes))
    }

    /// Sends the head at the beginning of `bytes`, if it is the one that the connection has sent last. Returns its length.
    fn send_same_head(&self, bytes: &[u8], end: bool) -> io::Result<Option<usize>> {
        if self.asks_for_protocol {
            return Ok(None);
        }
        self.check_open()?;
        self.shared.lend();
        let sent = self.shared.machine.borrow_mut().send_same_head(self.id, bytes, end);
        if sent.is_some() {
            self.is_answered.set(true);
            self.shared.flush_soon();
        }
        Ok(sent)
    }

    /// Answers an extended CONNECT whose handler does not know the protocol, and has made a response as to a GET.
    #[cold]
    fn refuse_protocol(&self) -> io::Error {
        self.shared.machine.borrow_mut().send_head(self.id, 501, [], true);
        self.is_answered.set(true);
        self.shared.flush_soon();
        io::ErrorKind::BrokenPipe.into()
    }

    /// Sends bytes of the body, and its end.
    ///
    /// # Suspends
    ///
    /// While the client takes no more.
    fn send_body(&self, mut bytes: &[u8], end: bool) -> io::Result<()> {
        if bytes.is_empty() && !end {
            return Ok(());
        }
        loop {
            self.check_open()?;
            self.shared.lend();
            let now = osier::time::coarse_now();
            let count = self.shared.machine.borrow_mut().send_data(self.id, bytes, end, now);
            self.shared.flush_soon();
            bytes = &bytes[count..];
            if bytes.is_empty() {
                return Ok(());
            }
            // It is there before anything can let the stream go on.
            let inlet = self.inlet();
            // The machine resets a stream whose windows stay shut, and the writer gives up a client that takes no bytes.
            let waiting = Waiting(self);
            self.shared.pass_on(self.id);
            inlet.writable.wait();
            mem::forget(waiting);
        }
    }

    /// Fails if the stream is reset.
    fn check_open(&self) -> io::Result<()> {
        let is_reset = match self.inlet.get() {
            Some(inlet) => inlet.is_reset(),
            None => self.shared.is_reset(self.id),
        };
        match is_reset {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }

    /// Notes that the handler is as fast as the client.
    fn waits(&self) {
        self.shared.machine.borrow_mut().reader_waits(self.id);
    }

    /// Reads received bytes and opens the windows for as many. `None` if bytes have to arrive.
    fn take(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let taken = self.inlet().take(into)?;
        if let Some(count @ 1..) = taken {
            self.shared.growth.consumed(&self.shared.machine, self.id, count);
            self.shared.flush_soon();
        }
        Ok(taken)
    }
}

/// A write that waits for room. If it is cancelled, its drop gives the room that was reserved for it to other streams.
struct Waiting<'a>(&'a Stream);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let (shared, now) = (&self.0.shared, osier::time::coarse_now());
        shared.machine.borrow_mut().send_data(self.0.id, &[], false, now);
        shared.wake_writable();
    }
}

impl ClientStream for Stream {
    fn link(&self) -> &Link {
        &self.shared.link
    }

    fn read(&self, into: &mut [u8], patience: Duration) -> io::Result<usize> {
        loop {
            if let Some(count) = self.take(into)? {
                return Ok(count);
            }
            self.wait_readable(patience)?;
        }
    }

    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        self.take(into)?.ok_or_else(|| {
            self.waits();
            io::ErrorKind::WouldBlock.into()
        })
    }

    fn take_trailers(&self) -> Trailers {
        self.inlet().take_trailers()
    }

    fn wait_readable(&self, patience: Duration) -> io::Result<()> {
        let inlet = self.inlet();
        while !inlet.is_readable() {
            self.waits();
            let awaits = inlet.awaits();
            if !inlet.arrived.wait_timeout(patience) {
                awaits.give_up();
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    fn allow_pauses(&self) {
        self.inlet().allow_pauses();
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        match self.send_heads(bytes, false)? {
            Some(body) => self.send_body(body, false),
            None => Ok(()),
        }
    }

    fn room(&self) -> usize {
        self.shared.machine.borrow().room(self.id)
    }

    fn allow_slow(&self) {
        self.shared.machine.borrow_mut().allow_slow(self.id);
    }

    fn gone(&self) -> Interrupt {
        self.inlet().gone()
    }

    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    fn shared_inlet(&self) -> Rc<Inlet> {
        self.inlet().clone()
    }
}
