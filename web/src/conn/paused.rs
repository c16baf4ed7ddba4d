//! A response that has nothing to send for a while: its connection waits without a stack for what the code of the body waits for, or the
//! handler, if the response has not begun.
//!
//! ```text
//!   burst ─▶ the code of a body leaves a future (`Outlet::pause`) and returns, or a handler does (`Answer::after_wait`)
//!               ▼
//!            Paused ─▶ Stage::Paused ◀─▶ dormant; keeps the bytes that the client sends
//!               │ the future is ready                          │ the client leaves
//!               └─▶ a burst that begins with this response     └─▶ the response is cut, and the future dropped
//! ```
//!
//! Only a body that ends with its client pauses. A client that sends more than a burst reads at once gets a fiber again: nothing more is
//! read from it before the response ends.

use std::any::Any;
use std::io;
use std::task::{Context, Poll};

use http::Extensions;
use osier::dormant::AfterBurst;
use osier::memory::{Account, Charge};
#[cfg(feature = "h2")]
use osier_http::Head;

use crate::conn::close::CloseReason;
use crate::conn::worker::{Buffers, INPUT_BYTES};
use crate::conn::{Conn, First, Stage};

/// The memory of a response that has paused, apart from bytes of its client: its notes, and the code of its body.
pub(crate) const PAUSED_BYTES: usize = 1500;

/// A response that is not all sent, as the code that serves requests sees it.
pub(crate) trait Unfinished: Any {
    /// Whether its head has been written. Otherwise the burst that goes on needs the head of the request once more.
    fn has_begun(&self) -> bool;

    /// The memory that it holds, in bytes, apart from a few fields.
    fn bytes(&self) -> usize {
        0
    }

    /// Whether the code of the body goes on.
    fn is_ready(&self) -> bool;

    /// Polls what the code of the body waits for. A stream also polls it each time that something has arrived.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Reports a response that ends here, given the bytes of its request's head.
    fn report(&self, head: &[u8]);

    /// Same as [`report`](Unfinished::report), for a request that came on a stream.
    #[cfg(feature = "h2")]
    fn report_stream(&self, head: &Head<'_>);
}

/// A response that has paused. Its drop reports a response that is cut.
pub(crate) struct Paused {
    /// The head of the request.
    pub(crate) head: Box<[u8]>,
    /// `None` once a burst has taken it.
    pub(crate) response: Option<Box<dyn Unfinished>>,
    /// Received bytes of the next requests.
    pub(crate) received: Vec<u8>,
    /// Whether the response may pause once more.
    pub(crate) may_pause: bool,
    /// The request's. A policy counts the request by a value among them. Empty before the response has begun: the request keeps them.
    pub(crate) extensions: Extensions,
    pub(crate) charge: Charge,
}

impl Paused {
    /// Makes one whose request is to be filled in.
    pub(crate) fn new(response: impl Unfinished) -> Paused {
        Paused {
            head: Box::default(),
            response: Some(Box::new(response)),
            received: Vec::new(),
            may_pause: true,
            extensions: Extensions::new(),
            charge: Account::REQUESTS.charge(0),
        }
    }

    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.response {
            Some(response) => response.poll_ready(cx),
            None => Poll::Pending,
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        if let Some(response) = self.response.take() {
            response.report(&self.head);
        }
    }
}

/// The client of a response that has paused.
enum Heard {
    /// It has sent less than it may.
    Little,
    TooMuch,
    Gone,
}

impl Conn {
    /// Rests until the code of the body has something to do. The connection stays busy: a drain waits for the response.
    pub(super) fn rest_paused(&mut self, mut paused: Box<Paused>) -> AfterBurst {
        let held = paused.response.as_ref().map_or(0, |response| response.bytes());
        let bytes = PAUSED_BYTES + paused.head.len() + paused.received.capacity() + held;
        paused.charge.resize(bytes);
        self.set_stage(Stage::Paused(paused));
        AfterBurst::Sleep(None)
    }

    /// Goes on with the response, or listens to the client.
    ///
    /// # Suspends
    ///
    /// As the code of the body does, if it goes on.
    pub(super) fn wake_paused(&mut self, mut paused: Box<Paused>) -> AfterBurst {
        // The connection may have been woken for another reason.
        if paused.response.as_ref().is_some_and(|response| response.is_ready()) {
            return self.go_on_with(paused);
        }
        match self.listen(&mut paused.received) {
            Heard::Little => self.rest_paused(paused),
            Heard::TooMuch => {
                paused.may_pause = false;
                self.go_on_with(paused)
            }
            Heard::Gone => {
                self.set_stage(Stage::Paused(paused));
                self.close(CloseReason::Client)
            }
        }
    }

    /// Reads what has arrived to `received`, which a burst reads later.
    fn listen(&self, received: &mut Vec<u8>) -> Heard {
        let mut buffers = self.link.worker.take_buffers();
        let heard = loop {
            let room = INPUT_BYTES.saturating_sub(received.len());
            if room == 0 {
                break Heard::TooMuch;
            }
            match self.link.transport.try_read(&mut buffers.input[..room]) {
                Ok(0) => break Heard::Gone,
                Ok(count) => received.extend_from_slice(&buffers.input[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Heard::Little,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break Heard::Gone,
            }
        };
        self.link.worker.give_buffers(buffers);
        heard
    }

    fn go_on_with(&mut self, mut paused: Box<Paused>) -> AfterBurst {
        let received = std::mem::take(&mut paused.received);
        if paused.response.as_ref().is_some_and(|response| !response.has_begun()) {
            let head = std::mem::take(&mut paused.head);
            return self.burst_on([&head, &received], First::Paused(paused));
        }
        if received.is_empty() {
            // Many may go on at once, with a few bytes each.
            let nothing = Buffers {
                input: Box::default(),
                output: Vec::new(),
            };
            return self.burst_with(nothing, 0, First::Paused(paused));
        }
        self.burst_on([&received, &[]], First::Paused(paused))
    }
}
