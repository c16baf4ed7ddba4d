//! A request whose handler waits for a future, such as a long poll: its response has not begun.
//!
//! The burst that has called the handler leaves an [`Unbegun`] response to the connection, which waits for it as for a response that has
//! paused. The next burst reads the head again and goes on with the handler.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use osier_http::{Head, Slots};

use crate::Request;
use crate::conn::paused::{Paused, Unfinished};
use crate::conn::peer::Gone;
use crate::conn::serve::After;
use crate::conn::server_state::ServerState;
use crate::router::answer::{AfterWait, Answer, Kind};
use crate::server::burst::{App, Burst};
use crate::server::received::{Resumed, Wait, Waiting};
use crate::server::served::{CLIENT_GONE, Client};

/// A response that has not begun.
pub(crate) struct Unbegun {
    waiting: Box<Waiting>,
    client: (SocketAddr, bool),
    server: Arc<ServerState>,
    /// `None` without an observer.
    app: Option<Arc<App>>,
}

impl Unfinished for Unbegun {
    fn has_begun(&self) -> bool {
        false
    }

    fn bytes(&self) -> usize {
        match &self.waiting.wait {
            Wait::Lasts(wait) => wait.bytes,
            Wait::IsOver(_) => 0,
        }
    }

    fn is_ready(&self) -> bool {
        matches!(self.waiting.wait, Wait::IsOver(_))
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Wait::Lasts(wait) = &mut self.waiting.wait {
            self.waiting.wait = Wait::IsOver(ready!(wait.code.as_mut().poll(cx)));
        }
        Poll::Ready(())
    }

    fn report(&self, head: &[u8]) {
        let mut slots: Slots = Slots::new();
        // It was read once before.
        let head = Head::parse(head, &mut slots, &self.server.limits).ok();
        self.tell(head.as_ref());
    }

    #[cfg(feature = "h2")]
    fn report_stream(&self, head: &Head<'_>) {
        self.tell(Some(head));
    }
}

impl Unbegun {
    /// Goes on in a burst.
    pub(crate) fn resume(self, may_rest: bool) -> Resumed {
        let mut waiting = self.waiting;
        waiting.may_rest = may_rest;
        Resumed::Waiting(waiting)
    }

    fn tell(&self, head: Option<&Head<'_>>) {
        if let Some(app) = &self.app {
            let client = Client::Known(self.client.0, self.client.1);
            app.report(client, &self.waiting.held.marks, (head, None), CLIENT_GONE, 0);
        }
    }
}

impl Burst<'_> {
    /// Waits for what the handler waits for: leaves the request to the connection, or waits here if the request may not rest.
    ///
    /// # Suspends
    ///
    /// As the handler does, if the request may not rest.
    pub(crate) fn wait_for_code(
        &self,
        (head, request): (&Head<'_>, &mut Request<'_>),
        answer: Option<Answer>,
        may_rest: bool,
    ) -> Result<Option<Answer>, After> {
        let wait = match answer {
            Some(Answer(Kind::AfterWait(wait))) => wait,
            answer => return Ok(answer),
        };
        // A request that goes on without its client must not end with it.
        if may_rest && request.gone == Gone::Default && request.body.is_done() && self.output.may_rest() {
            return Err(self.rest((head, request), wait));
        }
        let mut answer = None;
        let _ = self.catch(head, || {
            answer = Some(Answer(Kind::AfterWait(wait)).wait(request).into());
        });
        Ok(answer)
    }

    /// Leaves a request to the connection, whose handler waits.
    ///
    /// # Suspends
    ///
    /// Until the client has taken the responses before this one.
    fn rest(&self, (head, request): (&Head<'_>, &mut Request<'_>), wait: AfterWait) -> After {
        if self.output.flush().is_err() {
            self.observe(Some(head), CLIENT_GONE, 0);
            return After::Gone;
        }
        let held = self.hold((head, request), wait.waits_for);
        After::Pause(Box::new(Paused::new(Unbegun {
            waiting: Box::new(Waiting {
                held,
                wait: Wait::Lasts(wait),
                may_rest: true,
            }),
            client: Client::of(self.peer, &self.marks).address(),
            server: self.peer.worker.server.clone(),
            app: self.app.observing(),
        })))
    }
}
