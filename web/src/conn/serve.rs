//! The interface between a connection and the code that serves its requests: input bytes, the
//! output, and the next step of the connection.
//!
//! A connection does not know requests, and the serving code does not know when a connection rests.
//! A connection calls the serving code once for each burst, not once for each request.
//!
//! A fiber that is sent to a worker, with a new socket or to end the server, finds the server's
//! [`Local`] there by a thread-local list.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
#[cfg(feature = "h2")]
use std::task::{Context, Poll};
#[cfg(feature = "h2")]
use std::time::Instant;

use http::Extensions;
#[cfg(feature = "h2")]
use osier::dormant::Cause;
use osier_http::HeadScanner;
#[cfg(feature = "h2")]
use osier_http::{Head, Reject};

use crate::conn::awaiting::{Awaiting, Receiving};
use crate::conn::close::CloseReason;
use crate::conn::output::Output;
use crate::conn::paused::Paused;
#[cfg(feature = "h2")]
use crate::conn::paused::Unfinished;
use crate::conn::peer::Peer;
use crate::conn::rest::Unsent;
use crate::conn::server_state::ServerState;
use crate::conn::upgrade::Takeover;
#[cfg(feature = "h2")]
use crate::conn::worker::Link;
use crate::conn::worker::Worker;

thread_local! {
    static HERE: RefCell<Vec<Rc<Local>>> = const { RefCell::new(Vec::new()) };
}

/// A server as all threads see it: the state that its workers share, and the code that serves the
/// requests.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) state: Arc<ServerState>,
    pub(crate) app: Arc<dyn Serve>,
}

/// The part of a server on one worker: the state of the worker, and the code that serves the
/// requests.
pub(crate) struct Local {
    pub(crate) worker: Rc<Worker>,
    pub(crate) app: Arc<dyn Serve>,
}

impl Local {
    /// Returns the part of `service` on this worker, which is made at the first use.
    pub(crate) fn here(service: &Service) -> Rc<Local> {
        let index = osier::fiber::worker().expect("only fibers come here");
        HERE.with_borrow_mut(|here| {
            if let Some(local) = here.iter().find(|local| local.is_part_of(&service.state, index)) {
                return local.clone();
            }
            let local = Local::alone(service, index);
            local.worker.let_trim();
            here.push(local.clone());
            local
        })
    }

    /// Returns the part of a server on this worker, if it has one.
    pub(crate) fn find(server: &Arc<ServerState>) -> Option<Rc<Local>> {
        let index = osier::fiber::worker()?;
        HERE.with_borrow(|here| here.iter().find(|local| local.is_part_of(server, index)).cloned())
    }

    /// Makes a part that is in no list, for one request without a connection.
    pub(crate) fn alone(service: &Service, index: usize) -> Rc<Local> {
        Rc::new(Local {
            worker: Worker::new(&service.state, index),
            app: service.app.clone(),
        })
    }

    /// Removes the part of `service` on this worker from the list. Running connections keep it
    /// alive.
    pub(crate) fn leave(service: &Service) {
        let index = osier::fiber::worker();
        HERE.with_borrow_mut(|here| {
            here.retain(|local| !index.is_some_and(|index| local.is_part_of(&service.state, index)));
        });
    }

    /// Closes up to `count` connections of this worker, of all servers: those that are idle longest. Returns how many.
    pub(crate) fn evict_here(count: usize) -> usize {
        let index = osier::fiber::worker();
        HERE.with_borrow(|here| {
            let workers = || here.iter().map(|local| &local.worker);
            let idle = || workers().filter(|worker| Some(worker.index) == index);
            let longest = || {
                idle()
                    .filter_map(|worker| worker.idle_longest())
                    .max_by_key(|(idle, _)| *idle)
            };
            (0..count)
                .map_while(|_| longest())
                .map(|(_, link)| link.evict())
                .count()
        })
    }

    /// The parts of all servers on this worker.
    #[cfg(feature = "fibers")]
    pub(crate) fn all_here() -> Vec<Rc<Local>> {
        let index = osier::fiber::worker();
        HERE.with_borrow(|here| {
            let of_worker = here.iter().filter(|local| Some(local.worker.index) == index);
            of_worker.cloned().collect()
        })
    }

    /// Whether it is the part of a server on worker `index`. A thread has several workers in a simulation.
    fn is_part_of(&self, server: &Arc<ServerState>, index: usize) -> bool {
        self.worker.index == index && Arc::ptr_eq(&self.worker.server, server)
    }
}

/// The code that serves requests.
pub(crate) trait Serve: Send + Sync {
    /// Serves the requests that are whole in `input`, in order. Their responses are in `output` or
    /// already sent.
    ///
    /// # Suspends
    ///
    /// Suspends when a handler or a flush does.
    fn serve(&self, peer: Peer<'_>, output: &Output<'_>, input: &mut Input) -> After;

    /// Serves the first request of `input`, whose body has been received or has failed, and then those behind it.
    ///
    /// # Suspends
    ///
    /// Suspends when a handler or a flush does.
    fn serve_received(
        &self,
        peer: Peer<'_>,
        output: &Output<'_>,
        input: &mut Input,
        request: Box<dyn Receiving>,
    ) -> After;

    /// Goes on with a response that has paused, and then serves the requests that are whole in `input`.
    ///
    /// # Suspends
    ///
    /// Suspends when the code of the body, a handler or a flush does.
    fn serve_paused(&self, peer: Peer<'_>, output: &Output<'_>, input: &mut Input, paused: Box<Paused>) -> After;

    /// Serves the request of a stream, whose head is this. The response is in `output` or already sent. `None`
    /// if the body of the request has been read to its end, too.
    ///
    /// # Suspends
    ///
    /// Suspends when a handler or a flush does.
    #[cfg(feature = "h2")]
    fn serve_stream(&self, client: Peer<'_>, output: &Output<'_>, head: ReadHead<'_>) -> Option<After>;

    /// Goes on with a response of a stream that has paused, whose request has this head and holds `held`. Returns what `serve_stream` does.
    ///
    /// # Suspends
    ///
    /// Suspends when the code of the body or a flush does.
    #[cfg(feature = "h2")]
    fn serve_paused_stream(
        &self,
        client: Peer<'_>,
        output: &Output<'_>,
        head: &Head<'_>,
        response: Box<dyn Unfinished>,
        held: &mut Extensions,
    ) -> Option<After>;

    /// Makes the connection of a client that speaks HTTP/2.
    #[cfg(feature = "h2")]
    fn multiplex(&self, local: &Rc<Local>, link: &Rc<Link>) -> Box<dyn Multiplexed>;

    /// Makes the connection of a client that speaks HTTP/2 of what another process has exported. `None` if that cannot be read.
    #[cfg(all(feature = "h2", feature = "upgrade"))]
    fn multiplex_imported(&self, local: &Rc<Local>, link: &Rc<Link>, exported: &[u8]) -> Option<Box<dyn Multiplexed>>;

    /// Responds to a client whose request head did not arrive as a whole in time. These bytes of it have been received.
    ///
    /// # Suspends
    ///
    /// May suspend until the client has taken the response.
    fn head_timed_out(&self, peer: Peer<'_>, output: &Output<'_>, received: &[u8]) -> io::Result<()>;

    /// Tells the observer of a request that was refused on its stream, and whose head is not there.
    #[cfg(feature = "h2")]
    fn observe_refused(&self, link: &Link, status: u16);
}

/// The head of the request of a stream, or why the request is refused, with its method.
#[cfg(feature = "h2")]
pub(crate) type ReadHead<'h> = Result<&'h Head<'h>, (Reject, &'h str)>;

/// A connection whose requests come on streams. Its calls come as those of [`Dormant`](osier::dormant::Dormant) do.
#[cfg(feature = "h2")]
pub(crate) trait Multiplexed {
    /// Takes received bytes, the first ones for example.
    ///
    /// # Suspends
    ///
    /// When the connection ends: until its streams have ended.
    fn receive(&mut self, bytes: &[u8]) -> Next;

    /// Reads, or does what is due.
    ///
    /// # Suspends
    ///
    /// As [`receive`](Multiplexed::receive), and while the client makes work but reads nothing.
    fn wake(&mut self, cause: Cause) -> Next;

    /// Polls what the connection waits for besides its socket.
    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// The state of the connection, for another process that gets the socket. `None` while a stream runs.
    #[cfg(feature = "upgrade")]
    fn export(&self) -> Option<Vec<u8>>;
}

/// The next step of a connection whose requests come on streams.
#[cfg(feature = "h2")]
pub(crate) enum Next {
    /// Rest until bytes arrive or the time is over.
    Sleep(Option<Instant>),
    /// Close at once.
    Close(CloseReason),
    /// Close, while the client may still be sending.
    Linger(CloseReason),
}

/// The input of a connection. The bytes `start..end` are not served yet.
pub(crate) struct Input {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The next step of a connection after a burst.
pub(crate) enum After {
    /// Wait for bytes. The rest of the input is an incomplete head, which the scanner has seen.
    Wait(HeadScanner),
    /// Close after the last response, while the client may still be sending (a lingering close).
    Linger(CloseReason),
    /// Close.
    End(CloseReason),
    /// Close without sending anything, because the client is gone.
    Gone,
    /// Leave HTTP. The rest of the input belongs to the new protocol. The connection keeps the
    /// extensions of the request until it ends.
    Taken(Takeover, Extensions),
    /// Send the rest of the response without a stack, then go on.
    Send(Box<Unsent>),
    /// Wait without a stack for what the code of the response's body waits for, then go on with it.
    Pause(Box<Paused>),
    /// Receive the body of the request without a stack, then serve it.
    #[cfg_attr(
        not(any(feature = "fastcgi", feature = "proxy")),
        allow(dead_code, reason = "only gateways receive bodies first")
    )]
    Receive(Box<Awaiting>),
}
