//! A request whose body the connection receives before its handler goes on.
//!
//! The handler has returned a function that takes the body. The burst that called it leaves a [`Received`] to the connection, with all that the request holds apart from its head: the connection keeps the bytes of the head, and the last burst
//! parses them and finds the route again.

use std::sync::Arc;

use http::Extensions;
use osier::memory::Account;

use crate::body::incoming::Paused;
use crate::body::spool::{Failed, Limits, Spool};
use crate::conn::awaiting::{Arrived, Receiving};
use crate::conn::output::Output;
use crate::conn::peer::Peer;
use crate::request::Marks;
use crate::request::changes::Texts;
use crate::router::answer::Then;
use crate::{Request, RequestBody, Response};

pub(crate) struct Received {
    pub(crate) body: Paused,
    pub(crate) spool: Spool,
    pub(crate) failed: Option<Failed>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) then: Then,
    pub(crate) marks: Marks,
    pub(crate) extensions: Extensions,
    /// The changes of the head.
    pub(crate) changes: Vec<Texts>,
}

impl Received {
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

    /// Gives the request what it held, and returns its response.
    ///
    /// # Suspends
    ///
    /// As the handler does.
    pub(crate) fn respond(self: Box<Self>, request: &mut Request<'_>) -> Response {
        request.extensions = self.extensions;
        if let Err(error) = request.change_again(self.changes) {
            return Response::internal_error(error);
        }
        let body = self.failed.map_or(Ok(self.spool), Err);
        (self.then)(request, body)
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
        let before = (self.spool.len(), self.body.progress());
        let mut body = self
            .body
            .resume(client, &output, &mut buffers.input, &self.marks.received);
        let read = self.spool.read_arrived(&mut body, &self.limits);
        self.body = body.pause();
        client.worker.give_buffers(buffers);
        match read {
            Ok(true) => Arrived::All,
            Ok(false) if (self.spool.len(), self.body.progress()) == before => Arrived::Nothing,
            Ok(false) => Arrived::Some,
            Err(failed) => {
                self.failed = Some(failed);
                Arrived::All
            }
        }
    }

    fn received(&self) -> u64 {
        self.marks.received.get()
    }

    fn time_out(&mut self) {
        self.failed = Some(Failed::Client(self.body.time_out()));
    }

    fn unread(&self) -> &[u8] {
        self.body.unread()
    }
}
