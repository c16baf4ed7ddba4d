//! A request of a stream whose handler waits for the body: it holds no stack meanwhile.
//!
//! The burst that has called the handler leaves an [`Uploading`] request to the stream, which waits for bytes as for a response that has
//! paused. Each burst behind that reads the head again, adds the bytes to the spool, and goes on with the handler once the body is whole.
//! A connection of HTTP/1.1 has [`Awaiting`](crate::conn::awaiting) for that.

use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use osier::time::Sleep;
use osier_http::Head;

use crate::conn::awaiting::Receiving;
use crate::conn::inlet::Inlet;
use crate::conn::paused::{Paused, Unfinished};
use crate::conn::serve::After;
use crate::server::burst::{App, Burst};
use crate::server::received::{Received, Resumed};
use crate::server::served::{CLIENT_GONE, Client};

/// A request whose body arrives on a stream.
pub(crate) struct Uploading {
    received: Box<Received>,
    inlet: Rc<Inlet>,
    since: Instant,
    /// The end of the client's time.
    end: Pin<Box<Sleep>>,
    is_late: bool,
    client: (SocketAddr, bool),
    /// `None` without an observer.
    app: Option<Arc<App>>,
}

impl Unfinished for Uploading {
    fn has_begun(&self) -> bool {
        false
    }

    fn is_ready(&self) -> bool {
        self.is_late || self.inlet.is_readable()
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.inlet.is_readable() {
            return Poll::Ready(());
        }
        let late = self.end.as_mut().poll(cx);
        self.is_late = late.is_ready();
        late
    }

    /// The head is none of HTTP/1.1.
    fn report(&self, _: &[u8]) {
        self.tell(None);
    }

    fn report_stream(&self, head: &Head<'_>) {
        self.tell(Some(head));
    }
}

impl Uploading {
    fn tell(&self, head: Option<&Head<'_>>) {
        if let Some(app) = &self.app {
            let client = Client::Known(self.client.0, self.client.1);
            app.report(client, &self.received.held.marks, (head, None), CLIENT_GONE, 0);
        }
    }

    /// Goes on in a burst.
    pub(crate) fn resume(self) -> Resumed {
        let mut received = self.received;
        received.held.body.waited(self.since);
        if self.is_late {
            received.time_out();
        }
        Resumed::Received(received)
    }
}

impl Burst<'_> {
    /// Leaves a request to its stream until more of its body has arrived.
    pub(crate) fn rest_on_stream(&self, received: Received) -> After {
        let inlet = self.peer.inlet().expect("the request came on a stream");
        After::Pause(Box::new(Paused::new(Uploading {
            received: Box::new(received),
            inlet,
            since: osier::time::coarse_now(),
            end: Box::pin(Sleep::new(self.peer.worker.server.timeouts.body)),
            is_late: false,
            client: Client::of(self.peer, &self.marks).address(),
            app: self.app.observing(),
        })))
    }
}
