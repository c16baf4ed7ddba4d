//! The TLS handshake of a connection. It needs no stack while it waits for the client.
//!
//! ```text
//!   bytes ─▶ shake_hands ─┬─ few in this turn ─▶ try_handshake ─▶ idle, or rest until readable or writable
//!                         └─ others ─▶ Line, at rest ─▶ called, PER_TURN a turn ─▶ try_handshake
//! ```
//!
//! A step of a handshake signs, which costs as much as twenty short requests. So a worker makes only a few steps before the other
//! fibers that are ready have their turn, and the bytes of other clients are looked at. The other handshakes stand in line.
//!
//! A client that speaks HTTP in the clear gets a 400 in the clear, because a browser shows it and an alert says nothing.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use osier::dormant::AfterBurst;

use crate::conn::close::CloseReason;
use crate::conn::log::record::{Level, Record};
use crate::conn::transport::Transport;
use crate::conn::worker::Worker;
use crate::conn::{Conn, Stage, after};

/// The response to a request in the clear.
const SPEAKS_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
    content-length: 48\r\nconnection: close\r\n\r\nthis port speaks TLS: write https:// in the URL\n";

/// The steps of handshakes that a worker makes before others have their turn.
const PER_TURN: usize = 4;

/// A handshake at rest.
pub(super) struct Handshake {
    deadline: Option<Instant>,
    place: Place,
}

/// The place of a handshake in the line of its worker.
enum Place {
    /// It waits for its client.
    None,
    /// It joins the line with the next poll.
    Last,
    Numbered(u64),
}

impl Handshake {
    /// A handshake that waits for its client, until then.
    pub(super) fn until(deadline: Option<Instant>) -> Handshake {
        Handshake {
            deadline,
            place: Place::None,
        }
    }

    fn has_been_called(&self, worker: &Worker) -> bool {
        matches!(self.place, Place::Numbered(number) if worker.handshakes.has_called(number))
    }

    /// Ready once a handshake in line is called.
    pub(super) fn poll_called(&mut self, worker: &Worker, cx: &mut Context<'_>) -> Poll<()> {
        match self.place {
            Place::Last => self.place = Place::Numbered(worker.handshakes.join(cx.waker())),
            Place::Numbered(_) if self.has_been_called(worker) => return Poll::Ready(()),
            Place::None | Place::Numbered(_) => {}
        }
        Poll::Pending
    }
}

/// The handshakes of a worker that have to wait for others.
#[derive(Default)]
pub(crate) struct Line {
    /// Steps made since the fiber that calls has had its turn.
    made: Cell<usize>,
    /// Whether that fiber exists. It does while steps are made.
    is_calling: Cell<bool>,
    /// How many have been called: the numbers below.
    called: Cell<u64>,
    /// Those that have not been called, in the order of their numbers. Some may have ended.
    waiting: RefCell<VecDeque<Waker>>,
}

impl Line {
    /// Whether a handshake may make a step now, which is counted.
    fn admits(&self, worker: &Rc<Worker>) -> bool {
        if self.made.get() >= PER_TURN || !self.waiting.borrow().is_empty() {
            return false;
        }
        self.made.set(self.made.get() + 1);
        if !self.is_calling.replace(true) {
            let calling = Calling(worker.clone());
            drop(osier::spawn_local(move || calling.0.handshakes.call_all()));
        }
        true
    }

    fn has_called(&self, number: u64) -> bool {
        number < self.called.get()
    }

    /// Adds a handshake and returns its number.
    fn join(&self, waker: &Waker) -> u64 {
        let mut waiting = self.waiting.borrow_mut();
        waiting.push_back(waker.clone());
        self.called.get() + waiting.len() as u64 - 1
    }

    /// Calls the handshakes in line, a few each time that the other fibers have had their turn.
    ///
    /// # Suspends
    ///
    /// Until none is left.
    fn call_all(&self) {
        loop {
            osier::fiber::yield_now();
            if self.waiting.borrow().is_empty() {
                return;
            }
            self.made.set(PER_TURN);
            self.call(PER_TURN);
        }
    }

    fn call(&self, most: usize) {
        let mut waiting = self.waiting.borrow_mut();
        let count = most.min(waiting.len());
        self.called.set(self.called.get() + count as u64);
        let called: Vec<_> = waiting.drain(..count).collect();
        if waiting.is_empty() {
            *waiting = VecDeque::new();
        }
        drop(waiting);
        called.into_iter().for_each(Waker::wake);
    }
}

/// The fiber that calls. Its drop calls all that are left: there may have been no stack for it.
struct Calling(Rc<Worker>);

impl Drop for Calling {
    fn drop(&mut self) {
        let line = &self.0.handshakes;
        line.is_calling.set(false);
        line.made.set(0);
        line.call(usize::MAX);
    }
}

impl Conn {
    /// Goes on with the handshake, as far as bytes have arrived. It may have to stand in line before.
    pub(super) fn shake_hands(&mut self, handshake: Handshake) -> AfterBurst {
        let (link, deadline) = (self.link.clone(), handshake.deadline);
        let has_turn = handshake.has_been_called(&link.worker) || link.worker.handshakes.admits(&link.worker);
        if !has_turn {
            self.set_stage(Stage::Handshake(Handshake {
                deadline,
                place: Place::Last,
            }));
            return AfterBurst::SleepUntilWoken(deadline);
        }
        let Transport::Tls(stream) = &link.transport else {
            unreachable!("only TLS has a handshake")
        };
        match stream.try_handshake() {
            Ok(()) => self.begin_protocol(stream.protocol()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.set_stage(Stage::Handshake(Handshake::until(deadline)));
                match stream.has_unsent() {
                    true => AfterBurst::SleepUntilWritable(deadline),
                    false => AfterBurst::Sleep(deadline),
                }
            }
            Err(error) => self.refuse_client(&error),
        }
    }

    /// Rests until the first request, in the protocol that the handshake has agreed on.
    fn begin_protocol(&mut self, alpn: Option<&[u8]>) -> AfterBurst {
        #[cfg(feature = "h2")]
        if alpn == Some(b"h2") && self.link.worker.server.http2.is_some() {
            return self.begin_http2(self.link.worker.take_buffers(), 0);
        }
        let _ = alpn;
        AfterBurst::Sleep(after(self.link.worker.server.timeouts.idle))
    }

    /// Ends a connection whose handshake has failed.
    #[cold]
    fn refuse_client(&mut self, error: &io::Error) -> AfterBurst {
        let is_plain_http = osier_tls::Error::of(error).is_some_and(osier_tls::Error::is_plain_http);
        let is_left = !is_plain_http && osier_tls::Error::of(error).is_none();
        if is_left {
            return self.close(CloseReason::Client);
        }
        let text = format_args!("a TLS handshake has failed: {error}");
        let record = Record::new(Level::Info, text).of_client(self.link.peer(), self.link.is_proxied());
        self.link.worker.server.log(&record);
        if is_plain_http {
            // A new socket has room for it.
            let _ = self.link.socket().try_write(SPEAKS_TLS);
        }
        self.linger(CloseReason::ProtocolError)
    }
}
