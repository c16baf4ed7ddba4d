//! The fibers that serve streams.
//!
//! One fiber of a connection serves new streams one after the other, and writes the output whenever it is full. A stream that has to
//! wait keeps that fiber for itself, and another fiber becomes the serving one. So streams that need not wait share a stack, and a
//! stream begins only when there is room for its response.

use std::cell::Cell;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use osier::memory::{self, Pressure};
use osier_http::Head;
use osier_http::h2::{RequestHead, StreamId};

use crate::conn::serve::ReadHead;
use crate::server::h2::exchange::{self, Next};
use crate::server::h2::paused;
use crate::server::h2::shared::Shared;
use crate::server::h2::stream::Stream;

/// The streams after which other fibers get their turn, if none of them has to wait.
const TURN: usize = 32;

/// The bytes that one write to TLS takes. Within a turn fewer wait for the responses of further streams.
const PIECE: usize = 32 << 10;

impl Shared {
    /// Spawns a serving fiber for the new streams, if there is room for a response and there is no such fiber.
    pub(super) fn serve_soon(self: &Rc<Self>) {
        if self.served.get().is_none() && self.has_work() {
            let serving = Serving {
                shared: self.clone(),
                stream: Cell::new(StreamId::MIN),
            };
            self.served.set(Some(StreamId::MIN));
            drop(osier::spawn_local(move || serving.run()));
        }
    }

    /// The stream has to wait: another fiber becomes the serving one. Near the limit of memory there is none, because a stream that waits
    /// keeps a stack: the new streams are refused, and the client may send them again.
    pub(super) fn pass_on(self: &Rc<Self>, stream: StreamId) {
        if self.served.get() == Some(stream) {
            self.served.set(None);
            match memory::pressure() {
                Pressure::Critical => self.refuse_new(),
                _ => self.serve_soon(),
            }
            self.flush_soon();
        }
    }
}

/// The serving fiber, as long as `served` has its stream.
struct Serving {
    shared: Rc<Shared>,
    /// The last stream. The first id of all, which no stream has, before the first one.
    stream: Cell<StreamId>,
}

impl Serving {
    /// Serves at least one stream: bodies that fill the output again and again must not keep new streams from beginning.
    ///
    /// # Suspends
    ///
    /// As [`exchange::serve`] does, and between streams.
    fn run(self) {
        let shared = &self.shared;
        let mut turn = Turn::default();
        let mut next = shared.take_new();
        while let Some((mut id, request)) = next.take() {
            // Streams whose clients repeat a head are served by the same parsed one.
            let head = Head::from_http2(&request);
            let head = head.as_ref().map_err(|reject| (*reject, request.method()));
            loop {
                if !self.serve(id, &request, head) {
                    return;
                }
                if !turn.goes_on(shared) {
                    break;
                }
                match shared.take_new() {
                    Some((other, same)) if Arc::ptr_eq(&same, &request) => id = other,
                    other => {
                        next = other;
                        break;
                    }
                }
            }
        }
        shared.write_now(1);
    }

    /// Serves a stream. Returns whether this is the serving fiber still.
    ///
    /// # Suspends
    ///
    /// As [`exchange::serve`] does.
    fn serve(&self, id: StreamId, request: &Arc<RequestHead>, head: ReadHead<'_>) -> bool {
        let shared = &self.shared;
        self.stream.set(id);
        shared.served.set(Some(id));
        let running = Running(shared, id);
        let stream = Stream::new(shared.clone(), id, request);
        match osier::fiber::before_suspend(&|| shared.pass_on(id), || exchange::serve(&stream, head)) {
            Next::Ends => {
                drop(stream);
                drop(running);
            }
            Next::GoesOn => mem::forget(running),
            Next::Pauses(response) => {
                paused::begin(stream.detached(), request.clone(), response);
                mem::forget(running);
            }
        }
        shared.served.get() == Some(id)
    }
}

/// The streams that a serving fiber serves before other fibers get their turn.
struct Turn {
    left: usize,
    has_written: bool,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn {
            left: TURN,
            has_written: false,
        }
    }
}

impl Turn {
    /// Ends a stream. Returns whether a new one may begin.
    ///
    /// # Suspends
    ///
    /// At the end of the turn.
    fn goes_on(&mut self, shared: &Rc<Shared>) -> bool {
        if !shared.machine.borrow().has_room() {
            shared.write_now(PIECE);
            self.has_written = true;
        }
        if !shared.has_work() {
            return false;
        }
        self.left -= 1;
        if self.left == 0 {
            if self.has_written {
                // So the buffer is empty while other connections have their turns, and they use the same one.
                shared.write_now(1);
            }
            *self = Turn::default();
            osier::yield_now();
        }
        true
    }
}

/// The end of a serving fiber, also by a cancellation. One that has never run had no stack: then the new streams are refused.
impl Drop for Serving {
    fn drop(&mut self) {
        let shared = &self.shared;
        if shared.served.get() == Some(self.stream.get()) {
            shared.served.set(None);
            if self.stream.get() == StreamId::MIN {
                shared.refuse_new();
            }
            shared.serve_soon();
            shared.flush_soon();
            shared.written.set();
        }
    }
}

/// A running stream. Its drop ends the stream: the machine resets one that has not been answered by then.
struct Running<'s>(&'s Rc<Shared>, StreamId);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.remove(self.1);
    }
}
