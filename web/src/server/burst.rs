//! A burst: it serves the requests that are whole in the input, in order, on one fiber.
//!
//! The connection reads the bytes, runs the burst, flushes the output, and rests. A request passes
//!
//! ```text
//!   scan ─▶ parse ─▶ route ─▶ handler ─▶ answer ─▶ skip what the handler left unread of the body
//!      └───────┴── refused: status, close, linger
//! ```
//!
//! An `Outline` takes the place of the first two steps for a usual head that arrives at once. It
//! decides nothing: any other head takes the steps.
//!
//! A handler whose client is gone runs to its end, unless its route cancels it. Then the burst runs
//! under `while_connected`. It enters that frame once, and again when a route has another policy.
//! Gateways enter it by themselves (`Request::while_client_stays`).

use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
#[cfg(feature = "h2")]
use std::rc::Rc;
use std::sync::{Arc, Weak};

use http::{Extensions, StatusCode};
use matchit::Params;
use osier::Cancelled;
use osier::fiber::RequestWords;
use osier::io::HalfClose;
use osier::memory::{Account, Charge};
use osier_http::path::Path;
use osier_http::{BodyDecoder, BodyLength, Head, HeadScanner, Limits, Outline, Reject, Slots, Version};

use crate::conn::awaiting::Receiving;
use crate::conn::close::CloseReason;
use crate::conn::log::record::{Level, how_it_panicked};
use crate::conn::output::Output;
use crate::conn::paused::Paused;
#[cfg(feature = "h2")]
use crate::conn::paused::Unfinished;
use crate::conn::peer::{Gone, Peer};
use crate::conn::serve::{After, Input, Serve};
#[cfg(feature = "h2")]
use crate::conn::serve::{Local, Multiplexed, ReadHead};
use crate::conn::tunnel::TunnelHook;
#[cfg(feature = "h2")]
use crate::conn::worker::Link;
use crate::conn::worker::{Buffers, INPUT_BYTES};
use crate::request::changes::Changes;
use crate::request::{Marks, Matched};
use crate::router::Found;
#[cfg(not(any(feature = "fastcgi", feature = "proxy")))]
use crate::router::answer::Answer;
use crate::router::handler::Handler;
use crate::router::next::{Caller, Next};
use crate::router::route::{Route, without_handler};
#[cfg(feature = "h2")]
use crate::server::h2;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
use crate::server::received::Resumed;
use crate::server::served::{CLIENT_GONE, Client, Observer, Served};
use crate::{Request, RequestBody, Response};

/// Least room in the buffer for a body that is not there as a whole, in bytes.
const BODY_ROOM: usize = 4 << 10;

/// Room behind the received bytes of a body that the client is still sending. Only the framing of
/// chunks is read into it.
const APART_ROOM: usize = 1 << 10;

/// Most bytes that are read of a body that the handler left unread, so that the connection can be
/// kept.
pub(crate) const DRAIN_BYTES: u64 = 256 << 10;

/// The application of a server: its handler, and its observer, which is called for each request.
pub(crate) struct App {
    /// Itself, for reports about responses that connections finish without a burst.
    this: Weak<App>,
    pub(crate) handler: Handler,
    pub(crate) observer: Option<Observer>,
}

impl App {
    pub(crate) fn new(handler: Handler, observer: Option<Observer>) -> Arc<App> {
        Arc::new_cyclic(|this| App {
            this: this.clone(),
            handler,
            observer,
        })
    }

    /// Returns itself if it has an observer, which is to be called later.
    pub(crate) fn observing(&self) -> Option<Arc<App>> {
        self.observer.as_ref().and_then(|_| self.this.upgrade())
    }

    /// Calls the observer, if there is one.
    #[inline(never)]
    pub(crate) fn report(
        &self,
        client: Client<'_>,
        marks: &Marks,
        (head, tunnel): (Option<&Head<'_>>, Option<&Cell<Option<TunnelHook>>>),
        status: u16,
        bytes: u64,
    ) {
        let Some(observer) = &self.observer else { return };
        let nanos = marks.timing.note_end().unwrap_or(0);
        observer(&Served {
            head,
            status,
            bytes,
            nanos,
            client,
            marks,
            handler: &self.handler,
            tunnel,
        });
    }
}

impl Serve for App {
    fn serve(&self, peer: Peer<'_>, output: &Output<'_>, input: &mut Input) -> After {
        let burst = Burst::new(self, peer, output);
        osier::fiber::before_suspend(&|| burst.before_suspension(), || burst.run(input))
    }

    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    fn serve_received(
        &self,
        peer: Peer<'_>,
        output: &Output<'_>,
        input: &mut Input,
        request: Box<dyn Receiving>,
    ) -> After {
        let request: Box<dyn Any> = request;
        let burst = Burst::new(self, peer, output);
        burst.received.set(request.downcast().ok().map(Resumed::Received));
        osier::fiber::before_suspend(&|| burst.before_suspension(), || burst.run(input))
    }

    #[cfg(not(any(feature = "fastcgi", feature = "proxy")))]
    fn serve_received(&self, _: Peer<'_>, _: &Output<'_>, _: &mut Input, _: Box<dyn Receiving>) -> After {
        unreachable!("only gateways receive bodies first")
    }

    fn serve_paused(&self, peer: Peer<'_>, output: &Output<'_>, input: &mut Input, paused: Box<Paused>) -> After {
        let burst = Burst::new(self, peer, output);
        osier::fiber::before_suspend(&|| burst.before_suspension(), || burst.go_on(*paused, input))
    }

    #[cfg(feature = "h2")]
    fn serve_paused_stream(
        &self,
        client: Peer<'_>,
        output: &Output<'_>,
        head: &Head<'_>,
        response: Box<dyn Unfinished>,
        held: &mut Extensions,
    ) -> Option<After> {
        let burst = Burst::new(self, client, output);
        burst.is_apart.set(true);
        osier::fiber::before_suspend(&|| burst.before_suspension(), || {
            burst.go_on_stream(head, response, held)
        })
    }

    #[cfg(feature = "h2")]
    fn serve_stream(&self, client: Peer<'_>, output: &Output<'_>, head: ReadHead<'_>) -> Option<After> {
        let burst = Burst::new(self, client, output);
        osier::fiber::before_suspend(&|| burst.before_suspension(), || match head {
            Ok(head) => burst.run_stream(head),
            Err((reject, method)) => Some(burst.refuse_head(reject, method.as_bytes())),
        })
    }

    #[cfg(feature = "h2")]
    fn multiplex(&self, local: &Rc<Local>, link: &Rc<Link>) -> Box<dyn Multiplexed> {
        Box::new(h2::Connection::new(local, link))
    }

    #[cfg(all(feature = "h2", feature = "upgrade"))]
    fn multiplex_imported(&self, local: &Rc<Local>, link: &Rc<Link>, exported: &[u8]) -> Option<Box<dyn Multiplexed>> {
        Some(Box::new(h2::Connection::import(local, link, exported)?))
    }

    fn head_timed_out(&self, peer: Peer<'_>, output: &Output<'_>, received: &[u8]) -> io::Result<()> {
        Burst::new(self, peer, output).head_timed_out(received)
    }

    #[cfg(feature = "h2")]
    fn observe_refused(&self, link: &Link, status: u16) {
        let client = Client::Known(link.peer(), link.is_proxied());
        self.report(client, &Marks::default(), (None, None), status, 0);
    }
}

/// How a part of a burst ends.
enum Step {
    Done(After),
    /// The burst goes on at once, under another policy.
    Under(Gone),
    /// The client is still sending the body. The request is served from a small buffer of its own,
    /// because it may wait for long.
    Apart,
}

/// Makes room for `BODY_ROOM` bytes after a head of `len` bytes.
#[inline]
fn make_room(input: &mut Input, len: usize) {
    if input.bytes.len() - input.start - len < BODY_ROOM {
        make_room_slowly(input, len);
    }
}

#[cold]
fn make_room_slowly(input: &mut Input, len: usize) {
    let held = input.end - input.start;
    if input.bytes.len() - len >= BODY_ROOM {
        input.bytes.copy_within(input.start..input.end, 0);
    } else {
        let mut bytes = vec![0; held + BODY_ROOM].into_boxed_slice();
        bytes[..held].copy_from_slice(&input.bytes[input.start..input.end]);
        input.bytes = bytes;
    }
    (input.start, input.end) = (0, held);
}

/// The bytes behind a head in the input.
struct Arrived<'i> {
    /// Buffer from the end of the head on.
    rest: &'i mut [u8],
    /// Number of bytes of `rest` that have arrived.
    received: usize,
    /// Place of `rest` in the input.
    at: usize,
}

impl<'i> Arrived<'i> {
    /// Splits the input, of which the bytes from `place.0` to `place.1` are not served, behind the next `len` bytes, a head.
    #[inline]
    fn split(input: &'i mut [u8], place: (usize, usize), len: usize) -> (&'i mut [u8], Self) {
        let (head, rest) = input[place.0..].split_at_mut(len);
        let arrived = Arrived {
            rest,
            received: place.1 - place.0 - len,
            at: place.0 + len,
        };
        (head, arrived)
    }

    #[inline]
    fn reborrow(&mut self) -> Arrived<'_> {
        Arrived {
            rest: self.rest,
            ..*self
        }
    }

    /// Goes on behind a request without a body, if the next bytes are `head` once more. The bytes from `place.0` to `place.1`
    /// are not served.
    #[inline]
    fn next(self, place: (usize, usize), head: &[u8]) -> Option<Arrived<'i>> {
        let is_again =
            place.0 == self.at && place.1 - place.0 >= head.len() && self.rest.get(..head.len()) == Some(head);
        is_again.then(|| Arrived {
            rest: &mut self.rest[head.len()..],
            received: place.1 - place.0 - head.len(),
            at: place.0 + head.len(),
        })
    }

    /// Whether the body of that length is here. A guess for a chunked one, whose end is not known.
    #[inline]
    fn is_whole(&self, body: BodyLength) -> bool {
        match body {
            BodyLength::None => true,
            BodyLength::Known(len) => len <= self.received as u64,
            BodyLength::Chunked => self.rest[..self.received].ends_with(b"\r\n\r\n"),
        }
    }
}

/// The handler of a request, and the parts of the path that its route has matched.
struct Way<'w> {
    found: &'w Found<'w>,
    params: Option<Matched<'w>>,
}

impl<'w> Way<'w> {
    #[inline]
    fn new(found: &'w Found<'w>, params: &'w Option<Params<'w, 'w>>, read: &'w OnceCell<Path<'w>>) -> Way<'w> {
        let params = params.as_ref().map(|params| Matched {
            params,
            read: read.get(),
        });
        Way { found, params }
    }
}

pub(crate) struct Burst<'b> {
    pub(crate) app: &'b App,
    pub(crate) peer: Peer<'b>,
    pub(crate) output: &'b Output<'b>,
    /// Whether the fiber has suspended since the date was made.
    pub(crate) suspended: Cell<bool>,
    /// Whether another fiber serves the current request, and this one waits for it.
    is_elsewhere: Cell<bool>,
    /// Notes of the current request.
    pub(crate) marks: Marks,
    /// The first request, if it goes on.
    pub(crate) received: Cell<Option<Resumed>>,
    /// Whether the request is served from a small buffer.
    is_apart: Cell<bool>,
    /// The charge for the buffers, made at the first suspension: before that, only one request of a worker can hold any.
    charge: OnceCell<Charge>,
}

/// Nothing: only gateways wait.
#[cfg(not(any(feature = "fastcgi", feature = "proxy")))]
pub(crate) enum Resumed {}

#[cfg(not(any(feature = "fastcgi", feature = "proxy")))]
impl Resumed {
    fn held(&self) -> &Self {
        self
    }

    fn resume<'b>(&self, _: Peer<'b>, _: &'b Output<'b>, _: (&'b mut [u8], usize), _: &'b Marks) -> RequestBody<'b> {
        match *self {}
    }

    fn notes(&self) -> &Marks {
        match *self {}
    }

    fn answer(self, _: &mut Request<'_>) -> Answer {
        match self {}
    }
}

/// Makes the decoder of a request's body.
#[inline]
fn decoder_of(head: &Head<'_>, limits: &Limits) -> Result<BodyDecoder, Reject> {
    match head.body() {
        // The end of the stream ends it.
        BodyLength::Chunked if head.version() == Version::Http2 => Ok(BodyDecoder::until_end(limits)),
        length => BodyDecoder::new(length, limits),
    }
}

/// A handler has panicked.
pub(crate) struct Panicked;

impl<'b> Burst<'b> {
    fn new(app: &'b App, peer: Peer<'b>, output: &'b Output<'b>) -> Self {
        Burst {
            app,
            peer,
            output,
            suspended: Cell::new(false),
            is_elsewhere: Cell::new(false),
            marks: Marks::default(),
            received: Cell::new(None),
            is_apart: Cell::new(false),
            charge: OnceCell::new(),
        }
    }

    /// Runs before the fiber suspends for any reason.
    pub(crate) fn before_suspension(&self) {
        if !self.is_elsewhere.get() {
            self.measure();
        }
        self.suspended.set(true);
        self.output.flush_before_suspension();
        self.charge.get_or_init(|| {
            let input = if self.is_apart.get() { APART_ROOM } else { INPUT_BYTES };
            Account::REQUESTS.charge(input)
        });
    }

    /// Begins to measure the current request if there is an observer.
    #[inline]
    pub(crate) fn begin_timing(&self, accept: u32) {
        if self.app.observer.is_some() {
            self.marks.timing.begin(accept);
        }
    }

    /// Runs before a fiber suspends that serves the current request: from the first time on, waits are measured.
    fn measure(&self) {
        if self.marks.timing.suspends() {
            self.watch();
        }
    }

    /// Serves requests until no whole head is left or the connection has to end.
    ///
    /// # Suspends
    ///
    /// Suspends when a handler or a flush does.
    pub(crate) fn run(&self, input: &mut Input) -> After {
        let mut gone = Gone::Default;
        loop {
            self.enters_frame(gone);
            match self.under(gone, || self.run_under(gone, input)) {
                Ok(Step::Under(other)) => gone = other,
                Ok(Step::Done(after)) => return after,
                Ok(Step::Apart) => unreachable!("the burst goes on from the small buffer"),
                Err(_) => return After::Gone,
            }
        }
    }

    /// Serves the one request of a stream.
    #[cfg(feature = "h2")]
    #[inline(never)]
    pub(crate) fn run_stream(&self, head: &Head<'_>) -> Option<After> {
        self.is_apart.set(true);
        let mut gone = Gone::Default;
        let (read, mut params) = (OnceCell::new(), None);
        let found = self.app.handler.find_for(head, &read, &mut params);
        let way = Way::new(&found, &params, &read);
        loop {
            self.enters_frame(gone);
            // A byte beyond the limit of the body is read to this place.
            let mut beyond = [0];
            let arrived = Arrived {
                rest: &mut beyond,
                received: 0,
                at: 0,
            };
            match self.under(gone, || self.serve_parsed(gone, head, &way, arrived, true, &mut (0, 0))) {
                Ok(Some(Step::Under(other))) => gone = other,
                Ok(Some(Step::Done(after))) => return Some(after),
                Ok(Some(Step::Apart)) => unreachable!("it has a buffer of its own already"),
                Ok(None) => return None,
                Err(_) => return Some(After::Gone),
            }
        }
    }

    /// Notes a policy for what is left of a response.
    #[inline]
    fn enters_frame(&self, gone: Gone) {
        let is_frame = matches!(gone, Gone::Cancel | Gone::CancelUnlessHalfClosed);
        self.output.enters_frame(is_frame);
    }

    /// Runs `body` under a policy.
    #[inline]
    fn under<T>(&self, gone: Gone, body: impl FnOnce() -> T) -> io::Result<T> {
        match gone {
            Gone::Cancel => self.peer.while_connected(HalfClose::IsGone, body),
            Gone::CancelUnlessHalfClosed => self.peer.while_connected(HalfClose::IsFine, body),
            Gone::Default | Gone::Finish => Ok(body()),
        }
    }

    fn run_under(&self, gone: Gone, input: &mut Input) -> Step {
        let limits = &self.peer.worker.server.limits;
        let mut outline = Outline::new();
        let mut is_apart = false;
        loop {
            if input.start == input.end {
                return Step::Done(After::Wait(HeadScanner::new()));
            }
            let usual = outline.find(&input.bytes[input.start..input.end], limits);
            let len = match usual {
                Some(len) => len,
                None => {
                    let mut scanner = HeadScanner::new();
                    match scanner.scan(&input.bytes[input.start..input.end], limits) {
                        Ok(None) => return Step::Done(After::Wait(scanner)),
                        Ok(Some(len)) => len,
                        Err(reject) => {
                            let received = &input.bytes[input.start..input.end];
                            return Step::Done(self.refuse_head(reject, received));
                        }
                    }
                }
            };
            if !is_apart {
                make_room(input, len);
            }
            let at = input.start;
            let step = match usual {
                Some(_) => self.serve(gone, input, len, &outline, is_apart),
                None => self.serve_unusual(gone, input, len, is_apart),
            };
            is_apart = false;
            match step {
                None => {}
                Some(Step::Done(After::Send(mut unsent))) => {
                    unsent.head = input.bytes[at..at + len].into();
                    return Step::Done(After::Send(unsent));
                }
                Some(Step::Done(After::Pause(mut paused))) => {
                    paused.head = input.bytes[at..at + len].into();
                    return Step::Done(After::Pause(paused));
                }
                Some(Step::Done(After::Receive(mut awaiting))) => {
                    awaiting.head = input.bytes[at..at + len].into();
                    return Step::Done(After::Receive(awaiting));
                }
                Some(Step::Apart) => {
                    self.set_apart(input);
                    is_apart = true;
                }
                Some(step) => return step,
            }
        }
    }

    /// Moves the received bytes to a small buffer, and gives the large one back.
    #[cold]
    fn set_apart(&self, input: &mut Input) {
        self.is_apart.set(true);
        let received = &input.bytes[input.start..input.end];
        let mut bytes = Vec::with_capacity(received.len() + APART_ROOM);
        bytes.extend_from_slice(received);
        let end = bytes.len();
        bytes.resize(end + APART_ROOM, 0);
        let large = mem::replace(&mut input.bytes, bytes.into_boxed_slice());
        (input.start, input.end) = (0, end);
        let mut output = self.output.state();
        let output = match output.buffer.is_empty() {
            true => mem::take(&mut output.buffer),
            false => Vec::new(),
        };
        self.peer.worker.give_buffers(Buffers { input: large, output });
    }

    /// Serves the request whose head is the next `len` bytes, which `outline` describes. `None` if
    /// the connection goes on.
    ///
    /// Clients that send many requests at once mostly repeat a head. The requests behind the first one whose heads are
    /// the same bytes are served by the same parsed head and the same route.
    #[inline]
    fn serve(&self, gone: Gone, input: &mut Input, len: usize, outline: &Outline, is_apart: bool) -> Option<Step> {
        let (bytes, mut arrived) = Arrived::split(&mut input.bytes, (input.start, input.end), len);
        let bytes = &*bytes;
        let head = match Head::outlined(bytes, outline) {
            Ok(head) => head,
            Err(reject) => return Some(Step::Done(self.refuse_head(reject, bytes))),
        };
        let (read, mut params) = (OnceCell::new(), None);
        let found = self.app.handler.find_for(&head, &read, &mut params);
        let way = Way::new(&found, &params, &read);
        let mut place = (input.start, input.end);
        loop {
            let step = self.serve_parsed(gone, &head, &way, arrived.reborrow(), is_apart, &mut place);
            (input.start, input.end) = place;
            if step.is_some() || head.body() != BodyLength::None {
                return step;
            }
            arrived = arrived.next(place, bytes)?;
        }
    }

    /// Same as [`serve`](Burst::serve), for any other head. Apart, so that a usual request does not
    /// have the room of the slots on its stack.
    #[inline(never)]
    fn serve_unusual(&self, gone: Gone, input: &mut Input, len: usize, is_apart: bool) -> Option<Step> {
        let (bytes, arrived) = Arrived::split(&mut input.bytes, (input.start, input.end), len);
        let mut slots: Slots = Slots::new();
        let head = match Head::parse(bytes, &mut slots, &self.peer.worker.server.limits) {
            Ok(head) => head,
            Err(reject) => return Some(Step::Done(self.refuse_head(reject, bytes))),
        };
        let (read, mut params) = (OnceCell::new(), None);
        let found = self.app.handler.find_for(&head, &read, &mut params);
        let way = Way::new(&found, &params, &read);
        let mut place = (input.start, input.end);
        let step = self.serve_parsed(gone, &head, &way, arrived, is_apart, &mut place);
        (input.start, input.end) = place;
        step
    }

    /// Serves the request of `head`. Moves `place`, the place of the bytes in the input that are not served, behind it, unless it is to be
    /// served again.
    fn serve_parsed(
        &self,
        gone: Gone,
        head: &Head<'_>,
        way: &Way<'_>,
        arrived: Arrived<'_>,
        is_apart: bool,
        place: &mut (usize, usize),
    ) -> Option<Step> {
        let server = &*self.peer.worker.server;
        let Way { found, params } = *way;
        let route = found.route;
        let mut body_limit = None;
        if let Some(route) = route {
            body_limit = route.body_limit;
            if route.gone != gone {
                return Some(Step::Under(route.gone));
            }
        }
        self.marks.clear();
        let received = self.received.take();
        let body = match &received {
            Some(received) => {
                let held = received.held();
                self.marks.set(held.notes());
                self.marks.slow.enter_fiber();
                let buffer = (arrived.rest, arrived.received);
                held.resume(self.peer, self.output, buffer, &self.marks)
            }
            None => {
                let decoder = match body_limit {
                    None => decoder_of(head, &server.limits),
                    Some(body) => decoder_of(head, &Limits { body, ..server.limits }),
                };
                let decoder = match decoder {
                    Ok(decoder) => (decoder, head.body()),
                    Err(reject) => return Some(Step::Done(self.refuse(reject, Some(head), head.exchange()))),
                };
                if !is_apart && !arrived.is_whole(head.body()) {
                    return Some(Step::Apart);
                }
                let (rest, expected) = (arrived.rest, head.expect_continue());
                let (received, count) = (arrived.received, &self.marks.received);
                RequestBody::new(self.peer, self.output, decoder, rest, received, expected, count)
            }
        };
        let changes = Changes::default();
        let mut request = Request {
            head,
            params,
            body,
            marks: &self.marks,
            extensions: Extensions::new(),
            changes: &changes,
            states: &found.around.states,
            pattern: found.pattern,
            mount: found.mount,
            gone,
        };

        if received.is_none() {
            self.begin_timing(self.peer.worker.take_age());
        }
        let (method, target) = head.line();
        let words = RequestWords {
            method,
            target,
            route: &found.pattern,
            peer: self.peer.packed_addr(),
        };
        let done = match route.and_then(|route| route.stack_bytes) {
            None => osier::fiber::describe_request(&words, || self.handle(&mut request, found, received)),
            Some(bytes) => self.on_stack(bytes, gone, || {
                osier::fiber::describe_request(&words, || self.handle(&mut request, found, None))
            }),
        };

        self.end_watch(head, matches!(done, Err(After::Pause(_) | After::Receive(_))));
        self.marks.timing.end();
        let body = &mut request.body;
        if body.may_be_slow() && done.is_ok() {
            self.restore_pace();
        }
        let unread = body.unread();
        *place = (arrived.at + unread.start, arrived.at + unread.end);
        match done {
            Ok(true) => None,
            Ok(false)
                if body.is_done() && unread.is_empty() && (!head.keep_alive() || self.peer.closes_after_response()) =>
            {
                Some(Step::Done(After::End(CloseReason::LastResponse)))
            }
            Ok(false) => Some(Step::Done(After::Linger(body.close_reason()))),
            Err(After::Taken(takeover, _)) => {
                let extensions = mem::take(&mut request.extensions);
                Some(Step::Done(After::Taken(takeover, extensions)))
            }
            Err(After::Send(mut unsent)) => {
                unsent.extensions = mem::take(&mut request.extensions);
                Some(Step::Done(After::Send(unsent)))
            }
            Err(After::Pause(mut paused)) => {
                paused.extensions = mem::take(&mut request.extensions);
                Some(Step::Done(After::Pause(paused)))
            }
            Err(after) => Some(Step::Done(after)),
        }
    }

    /// Ends an exception from the server's rates, after the response of its request.
    #[cold]
    pub(crate) fn restore_pace(&self) {
        // A stream of HTTP/2 has no pace of a socket. Its end belongs into its last frame: a gRPC client wants that of an error in its head.
        if self.peer.transport().is_none() {
            return;
        }
        // The burst reports the error at its own end.
        let _ = self.output.flush();
        self.peer.restore_pace();
    }

    /// Runs `handle` on a fiber with a stack of this size. That fiber is cancelled when its client leaves, by the policy `gone`;
    /// this one only waits for it. A half-close would otherwise cancel a handler that the same request without a stack of its own
    /// runs.
    #[cold]
    fn on_stack(
        &self,
        stack_bytes: usize,
        gone: Gone,
        handle: impl FnOnce() -> Result<bool, After>,
    ) -> Result<bool, After> {
        let fiber = osier::fiber::Builder::new().stack_bytes(stack_bytes);
        let hook = || {
            self.measure();
            self.before_suspension();
        };
        let handle = || osier::fiber::before_suspend(&hook, handle);
        let handle = || self.under(gone, handle);
        self.is_elsewhere.set(true);
        let ended = osier::shield(|| osier::scope(|scope| scope.spawn_local_with(fiber, handle).join()));
        self.is_elsewhere.set(false);
        match ended {
            Ok(handled) => handled.unwrap_or(Err(After::Gone)),
            Err(payload) => resume_unwind(payload),
        }
    }

    /// Calls the handler and sends its response. Returns whether the connection may be kept.
    #[inline]
    fn handle(&self, request: &mut Request<'_>, found: &Found<'_>, received: Option<Resumed>) -> Result<bool, After> {
        let Found { endpoint, route, .. } = *found;
        let head = request.head;
        let mut answer = None;
        #[cfg(any(feature = "fastcgi", feature = "proxy"))]
        let may_rest = received.as_ref().is_none_or(Resumed::may_rest);
        // After a panic there is no answer, so the server sends its own.
        if let Some(received) = received {
            let _ = self.catch(head, || answer = Some(received.answer(request)));
        } else if self.peer.worker.server.lacks_memory() {
            answer = Some(Response::overloaded().into());
        } else if found.around.depth() > 0 {
            let handler = endpoint.map(|endpoint| &endpoint.handler);
            let caller = Functions { burst: self, route };
            let next = Next::new(found.around, handler, &caller);
            let _ = self.catch(head, || answer = Some(next.begin(request).into()));
        } else if let Some(endpoint) = endpoint {
            let _ = self.catch(head, || (endpoint.handler)(request, &mut answer));
        } else {
            answer = Some(without_handler(route, head).into());
        }
        #[cfg(any(feature = "fastcgi", feature = "proxy"))]
        if answer.as_ref().is_some_and(|answer| !answer.is_ready()) {
            let has_own_stack = route.is_some_and(|route| route.stack_bytes.is_some());
            self.wait_for((head, request), &mut answer, may_rest && !has_own_stack)?;
        }
        let answer = answer.get_or_insert_with(|| Response::plain(StatusCode::INTERNAL_SERVER_ERROR).into());
        let response = answer.response();
        let body = &mut request.body;
        // Changed in place: it is wide, and was only just written.
        let mut done = self.answer(response, head, body);
        if let Ok(keep @ true) = &mut done {
            *keep = body.drain(DRAIN_BYTES);
        }
        done
    }

    /// Runs a part of a handler. It catches a panic and lets a cancellation unwind further.
    #[inline]
    pub(crate) fn catch<T>(&self, head: &Head<'_>, run: impl FnOnce() -> T) -> Result<T, Panicked> {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(value) => Ok(value),
            Err(payload) => Err(self.caught(payload, head)),
        }
    }

    #[cold]
    fn caught(&self, payload: Box<dyn Any + Send>, head: &Head<'_>) -> Panicked {
        if Cancelled::is_payload(&*payload) {
            self.log(
                Level::Debug,
                Some(head),
                format_args!("{} {} was cancelled: the client left", head.method(), head.target()),
            );
            self.observe(Some(head), CLIENT_GONE, 0);
            resume_unwind(payload);
        }
        self.log_panic(&*payload, head);
        Panicked
    }

    #[cold]
    fn log_panic(&self, payload: &(dyn Any + Send), head: &Head<'_>) {
        let (method, target, how) = (head.method(), head.target(), how_it_panicked(payload));
        self.log(
            Level::Error,
            Some(head),
            format_args!("the handler of {method} {target} {how}"),
        );
    }
}

/// The functions around a handler, as a burst runs them.
struct Functions<'f, 'b> {
    burst: &'f Burst<'b>,
    route: Option<&'f Route>,
}

impl Caller for Functions<'_, '_> {
    fn unhandled(&self, head: &Head<'_>) -> Response {
        without_handler(self.route, head)
    }

    #[cold]
    fn panicked(&self, payload: Box<dyn Any + Send>, head: &Head<'_>) -> Response {
        if Cancelled::is_payload(&*payload) {
            resume_unwind(payload);
        }
        self.burst.log_panic(&*payload, head);
        Response::plain(StatusCode::INTERNAL_SERVER_ERROR)
    }
}
