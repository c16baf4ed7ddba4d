//! A request between two bursts: its handler goes on once its body, or something else, has arrived.
//!
//! The handler has returned a function. The burst that called it leaves a [`Held`] to the connection, with all that the request holds apart
//! from its head: the connection keeps the bytes of the head, and the last burst parses them and finds the route again.

use std::sync::Arc;

use http::Extensions;
use osier::memory::Account;

use crate::body::incoming::Paused;
use crate::body::spool::{Failed, Limits, Spool};
use crate::conn::awaiting::{Arrived, Receiving};
use crate::conn::output::Output;
use crate::conn::peer::Peer;
#[cfg(feature = "fibers")]
use crate::conn::resting::AtRest;
use crate::request::Marks;
use crate::request::changes::Texts;
use crate::router::answer::{AfterBody, Answer, Kind, Then};
#[cfg(feature = "proxy")]
use crate::router::answer::{AfterWait, GoOn};
use crate::{Request, RequestBody, Response};

/// A request that goes on in another burst.
pub(crate) enum Resumed {
    Received(Box<Received>),
    #[cfg(feature = "proxy")]
    Waiting(Box<Waiting>),
}

impl Resumed {
    pub(crate) fn held(&self) -> &Held {
        match self {
            Resumed::Received(received) => &received.held,
            #[cfg(feature = "proxy")]
            Resumed::Waiting(waiting) => &waiting.held,
        }
    }

    /// Whether the connection may wait once more without a stack.
    pub(crate) fn may_rest(&self) -> bool {
        match self {
            Resumed::Received(_) => true,
            #[cfg(feature = "proxy")]
            Resumed::Waiting(waiting) => waiting.may_rest,
        }
    }

    /// Gives the request what it held, and goes on with its handler.
    ///
    /// # Suspends
    ///
    /// As the handler does.
    pub(crate) fn answer(self, request: &mut Request<'_>) -> Answer {
        match self {
            Resumed::Received(received) => received.answer(request),
            #[cfg(feature = "proxy")]
            Resumed::Waiting(waiting) => waiting.answer(request),
        }
    }
}

/// A request apart from its head.
pub(crate) struct Held {
    pub(crate) body: Paused,
    pub(crate) marks: Marks,
    pub(crate) extensions: Extensions,
    /// The changes of the head.
    pub(crate) changes: Vec<Texts>,
    #[cfg(feature = "fibers")]
    pub(crate) at_rest: AtRest,
}

impl Held {
    /// Gives it back to the request.
    ///
    /// # Errors
    ///
    /// The response, if that is impossible.
    pub(crate) fn give_back(self, request: &mut Request<'_>) -> Result<(), Response> {
        #[cfg(feature = "fibers")]
        drop(self.at_rest);
        request.extensions = self.extensions;
        request.change_again(self.changes).map_err(Response::internal_error)
    }

    /// Goes on with the body. `buffer` holds `received` bytes from the end of the head on.
    pub(crate) fn resume<'b>(
        &self,
        client: Peer<'b>,
        output: &'b Output<'b>,
        (buffer, received): (&'b mut [u8], usize),
        marks: &'b Marks,
    ) -> RequestBody<'b> {
        self.body.resume_at(client, output, (buffer, received), &marks.received)
    }

    /// The notes on the request.
    pub(crate) fn notes(&self) -> &Marks {
        &self.marks
    }
}

/// A request whose body the connection receives before its handler goes on, or its stream.
pub(crate) struct Received {
    pub(crate) held: Held,
    pub(crate) spool: Spool,
    /// Whether the spool has the body to its end.
    pub(crate) is_whole: bool,
    pub(crate) failed: Option<Failed>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) then: Then,
}

impl Received {
    fn answer(self: Box<Self>, request: &mut Request<'_>) -> Answer {
        let this = *self;
        if let Err(response) = this.held.give_back(request) {
            return response.into();
        }
        match this.failed {
            Some(failed) => (this.then)(request, Err(failed)),
            None if this.is_whole => (this.then)(request, Ok(this.spool)),
            // More of it may have arrived.
            None => Answer(Kind::AfterBody(AfterBody {
                limits: this.limits,
                then: this.then,
                begun: Some(Box::new(this.spool)),
            })),
        }
    }
}

/// A request whose handler waits for something else.
#[cfg(feature = "proxy")]
pub(crate) struct Waiting {
    pub(crate) held: Held,
    pub(crate) wait: Wait,
    /// Whether the connection may wait once more without a stack.
    pub(crate) may_rest: bool,
}

#[cfg(feature = "proxy")]
pub(crate) enum Wait {
    Lasts(AfterWait),
    IsOver(GoOn),
}

#[cfg(feature = "proxy")]
impl Waiting {
    fn answer(self: Box<Self>, request: &mut Request<'_>) -> Answer {
        let this = *self;
        if let Err(response) = this.held.give_back(request) {
            return response.into();
        }
        match this.wait {
            Wait::IsOver(go_on) => go_on(request),
            // The client has sent too much.
            Wait::Lasts(wait) => Answer(Kind::AfterWait(wait)),
        }
    }
}

impl Receiving for Received {
    fn read_on(&mut self, client: Peer<'_>) -> Arrived {
        let Some(transport) = client.transport() else {
            unreachable!("only a connection rests")
        };
        let mut buffers = client.worker.take_buffers();
        // A file may have to be waited for.
        let _charge = Account::REQUESTS.charge(buffers.input.len());
        let output = Output::new(transport, Vec::new());
        let before = (self.spool.len(), self.held.body.progress());
        let mut body = self
            .held
            .body
            .resume(client, &output, &mut buffers.input, &self.held.marks.received);
        let read = self.spool.read_arrived(&mut body, &self.limits);
        self.held.body = body.pause();
        client.worker.give_buffers(buffers);
        match read {
            Ok(true) => {
                self.is_whole = true;
                Arrived::All
            }
            Ok(false) if (self.spool.len(), self.held.body.progress()) == before => Arrived::Nothing,
            Ok(false) => Arrived::Some,
            Err(failed) => {
                self.failed = Some(failed);
                Arrived::All
            }
        }
    }

    fn received(&self) -> u64 {
        self.held.marks.received.get()
    }

    fn time_out(&mut self) {
        self.failed = Some(Failed::Client(self.held.body.time_out()));
    }

    fn unread(&self) -> &[u8] {
        self.held.body.unread()
    }
}
