//! The state that a connection and its streams share: the machine, the table of streams, and the writer's fiber.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use osier::sync::Event;
use osier_http::h2::{self, ErrorCode, RequestHead, StreamId};

use crate::conn::close::CloseReason;
use crate::conn::frames::Writer;
use crate::conn::growth::Growth;
use crate::conn::inlet::Inlet;
use crate::conn::serve::Local;
use crate::conn::transport::Transport;
use crate::conn::worker::Link;

pub(super) struct Shared {
    pub(super) link: Rc<Link>,
    pub(super) local: Rc<Local>,
    pub(super) machine: RefCell<h2::Connection>,
    pub(super) growth: Growth,
    /// The streams whose handlers have not ended, by id. One that nobody has needed yet has no inlet.
    streams: RefCell<VecDeque<(StreamId, Option<Rc<Inlet>>)>>,
    /// New streams that nobody serves yet. One that is reset before is never served.
    new: RefCell<VecDeque<NewStream>>,
    /// How many streams have been let go on since the last new one began.
    granted: Cell<usize>,
    /// The stream of the serving fiber, which writes the output. `None`: there is no such fiber.
    pub(super) served: Cell<Option<StreamId>>,
    /// Whether the machine has a buffer of the worker for its output.
    has_buffer: Cell<bool>,
    /// Whether the writer's fiber exists.
    is_writing: Cell<bool>,
    /// Set when the writer's fiber or the serving one ends.
    pub(super) written: Event,
    /// Whether the client has gone, or takes no bytes.
    pub(super) is_lost: Cell<bool>,
    /// Set when the last stream has ended.
    ended: Event,
    /// Since when no stream runs.
    pub(super) idle_since: Cell<Instant>,
    /// Whether the connection keeps memory that further streams need. Streams have come soon after others then.
    pub(super) is_warm: Cell<bool>,
    /// Whether a stream has ended.
    has_served: Cell<bool>,
    /// Whether the box waits for the end of the last stream.
    pub(super) is_ending: Cell<bool>,
    /// Whether a stream has ended since. The client may still read its response, and send updates of windows: if they met a closed socket,
    /// the reset in answer would discard the rest.
    is_read_on: Cell<bool>,
    /// Wakes the box.
    pub(super) waker: RefCell<Option<Waker>>,
}

type NewStream = (StreamId, Arc<RequestHead>);

/// The place of the new stream that is served next.
fn next_of(new: &VecDeque<NewStream>, machine: &h2::Connection) -> Option<usize> {
    machine.most_urgent(new.iter().map(|(id, _)| *id))
}

/// The time within which the next streams find the memory of the last ones.
pub(super) const WARM: Duration = Duration::from_millis(100);

/// The place of a stream. Streams come in the order of their ids, and most end in it.
fn place<T>(streams: &VecDeque<(StreamId, T)>, id: StreamId) -> Option<usize> {
    match streams.front()?.0 == id {
        true => Some(0),
        false => streams.binary_search_by_key(&id, |(id, _)| *id).ok(),
    }
}

/// Removes the element at `at`. The first one leaves without a look at what has to move.
fn take_at<T>(deque: &mut VecDeque<T>, at: usize) -> Option<T> {
    match at {
        0 => deque.pop_front(),
        _ => deque.remove(at),
    }
}

fn limits(local: &Local) -> h2::Limits {
    local.worker.server.http2.unwrap_or_default()
}

impl Shared {
    pub(super) fn new(local: &Rc<Local>, link: &Rc<Link>) -> Rc<Shared> {
        let machine = h2::Connection::server(&limits(local), osier::time::coarse_now());
        Shared::around(machine, local, link)
    }

    /// The state of a connection without streams that another process has exported.
    #[cfg(feature = "upgrade")]
    pub(super) fn import(local: &Rc<Local>, link: &Rc<Link>, exported: &[u8]) -> Option<Rc<Shared>> {
        let machine = h2::Connection::import(&limits(local), exported, osier::time::coarse_now()).ok()?;
        Some(Shared::around(machine, local, link))
    }

    fn around(machine: h2::Connection, local: &Rc<Local>, link: &Rc<Link>) -> Rc<Shared> {
        link.rest_without_streams();
        let growth = Growth::default();
        // One that has come from another process may have grown there.
        growth.note(&machine);
        Rc::new(Shared {
            link: link.clone(),
            local: local.clone(),
            machine: RefCell::new(machine),
            growth,
            streams: RefCell::new(VecDeque::new()),
            new: RefCell::new(VecDeque::new()),
            granted: Cell::new(0),
            served: Cell::new(None),
            has_buffer: Cell::new(false),
            is_writing: Cell::new(false),
            written: Event::new(),
            is_lost: Cell::new(false),
            ended: Event::new(),
            idle_since: Cell::new(osier::time::coarse_now()),
            is_warm: Cell::new(false),
            has_served: Cell::new(false),
            is_ending: Cell::new(false),
            is_read_on: Cell::new(false),
            waker: RefCell::new(None),
        })
    }

    /// The state of the machine, if nothing is in progress.
    #[cfg(feature = "upgrade")]
    pub(super) fn export(&self) -> Option<Vec<u8>> {
        let is_busy = self.has_writer() || self.is_ending.get() || self.is_lost.get();
        let may_leave = !is_busy && self.is_idle();
        may_leave.then(|| self.machine.borrow().export().ok()).flatten()
    }

    /// Whether the client may open no further stream.
    pub(super) fn is_full(&self) -> bool {
        self.streams.borrow().len() >= self.machine.borrow().most_streams()
    }

    /// Adds a new stream.
    pub(super) fn add(&self, id: StreamId, head: Arc<RequestHead>) {
        if self.is_idle() {
            self.link.begin();
            let idle = osier::time::coarse_now().saturating_duration_since(self.idle_since.get());
            self.is_warm.set(self.has_served.get() && idle < WARM);
        }
        let mut streams = self.streams.borrow_mut();
        streams.push_back((id, None));
        self.link.has_streams(streams.len());
        self.new.borrow_mut().push_back((id, head));
    }

    /// Whether no stream runs.
    pub(super) fn is_idle(&self) -> bool {
        self.streams.borrow().is_empty()
    }

    /// Whether a new stream may begin: there is room, and as many streams have gone on since the last one as wait for room before it.
    pub(super) fn has_work(&self) -> bool {
        let new = self.new.borrow();
        let machine = self.machine.borrow();
        let Some((id, _)) = next_of(&new, &machine).and_then(|at| new.get(at)) else {
            return false;
        };
        machine.has_room() && self.granted.get() >= machine.ahead_of(*id)
    }

    /// Takes the new stream that is served next.
    pub(super) fn take_new(&self) -> Option<NewStream> {
        self.granted.set(0);
        let mut new = self.new.borrow_mut();
        let at = next_of(&new, &self.machine.borrow())?;
        take_at(&mut new, at)
    }

    /// Drops a new stream that nobody serves yet. Returns whether it is one.
    pub(super) fn drop_new(&self, stream: StreamId) -> bool {
        let mut new = self.new.borrow_mut();
        let at = new.iter().rposition(|(id, _)| *id == stream);
        at.and_then(|at| new.remove(at)).is_some()
    }

    /// Refuses the new streams that nobody serves yet. A client may send them again, because no handler has seen them.
    pub(super) fn refuse_new(self: &Rc<Self>) {
        for (id, _) in self.new.take() {
            self.machine.borrow_mut().reset(id, ErrorCode::REFUSED_STREAM);
            self.remove(id);
        }
    }

    /// Ends a stream, whose handler has ended.
    pub(super) fn remove(self: &Rc<Self>, id: StreamId) {
        let mut machine = self.machine.borrow_mut();
        machine.finish(id);
        self.growth.note(&machine);
        drop(machine);
        let mut streams = self.streams.borrow_mut();
        let removed = place(&streams, id).and_then(|at| take_at(&mut streams, at));
        self.link.has_streams(streams.len());
        drop((streams, removed));
        self.wake_writable();
        self.serve_soon();
        self.flush_soon();
        if self.is_idle() {
            self.has_served.set(true);
            if !self.is_warm.get() {
                self.cool();
            }
            self.idle_since.set(osier::time::coarse_now());
            match self.is_ending.get() {
                true => {
                    self.is_read_on.set(true);
                    self.wake_box();
                }
                false => self.link.rest_without_streams(),
            }
            self.ended.set();
        }
    }

    /// Frees the memory that only streams need: an idle server has many connections.
    pub(super) fn cool(&self) {
        if self.is_idle() {
            self.streams.take();
            self.new.take();
            self.machine.borrow_mut().rest();
        }
    }

    /// The inlet of a stream that has one.
    pub(super) fn inlet(&self, id: StreamId) -> Option<Rc<Inlet>> {
        let streams = self.streams.borrow();
        streams.get(place(&streams, id)?)?.1.clone()
    }

    /// Whether a stream has been told of its reset.
    pub(super) fn is_reset(&self, id: StreamId) -> bool {
        self.inlet(id).is_some_and(|inlet| inlet.is_reset())
    }

    /// The inlet of a stream, made at the first need. `None` if the stream has ended. `has_ended`: the request has no body.
    pub(super) fn make_inlet(&self, id: StreamId, has_ended: bool) -> Option<Rc<Inlet>> {
        let mut streams = self.streams.borrow_mut();
        let at = place(&streams, id)?;
        let inlet = &mut streams.get_mut(at)?.1;
        Some(inlet.get_or_insert_with(|| Rc::new(Inlet::new(has_ended))).clone())
    }

    /// Whether the client may still be reading the last response, or sending the body of an earlier request.
    pub(super) fn has_to_read_on(&self) -> bool {
        self.is_read_on.get() || self.machine.borrow().has_unread_bodies()
    }

    /// Makes the runtime poll the box.
    fn wake_box(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Whether a fiber will write the output.
    fn has_writer(&self) -> bool {
        self.is_writing.get() || self.served.get().is_some()
    }

    /// Writes the output soon, after the fibers that are ready now.
    pub(super) fn flush_soon(self: &Rc<Self>) {
        if !self.has_writer() && !self.machine.borrow().output().is_empty() {
            self.spawn_writer();
        }
    }

    fn spawn_writer(self: &Rc<Self>) {
        self.is_writing.set(true);
        let writing = Writing(self.clone());
        drop(osier::spawn_local(move || writing.0.write()));
    }

    /// Writes the output and waits until all of it has been written, or the client is lost.
    ///
    /// # Suspends
    ///
    /// Until then.
    pub(super) fn flush(self: &Rc<Self>) {
        self.flush_soon();
        while self.has_writer() {
            self.written.wait();
        }
    }

    /// Waits until no stream runs.
    ///
    /// # Suspends
    ///
    /// Until then.
    pub(super) fn wait_for_streams(&self) {
        while !self.is_idle() {
            self.ended.wait();
        }
    }

    /// The work of the writer's fiber.
    ///
    /// # Suspends
    ///
    /// While the client takes no more.
    fn write(self: &Rc<Self>) {
        self.end_write(self.write_output());
        self.serve_soon();
    }

    /// Writes the output as far as the client takes it at once. The writer's fiber writes the rest, but fewer bytes than `least` stay.
    pub(super) fn write_now(self: &Rc<Self>, least: usize) {
        if self.is_writing.get() {
            return;
        }
        match self.write_at_once(least) {
            Ok(false) => self.spawn_writer(),
            done => self.end_write(done.map(drop)),
        }
    }

    fn end_write(self: &Rc<Self>, written: io::Result<()>) {
        if let Err(error) = written {
            if error.kind() == io::ErrorKind::TimedOut {
                Link::abandon(self.link.socket());
            }
            self.lose(CloseReason::of_output(&error));
        }
        self.reclaim();
    }

    /// Lends the machine a buffer for its output.
    pub(super) fn lend(&self) {
        if !self.has_buffer.replace(true) {
            self.machine.borrow_mut().lend(self.local.worker.take_output());
        }
    }

    /// Takes the buffer back, if nothing waits there.
    pub(super) fn reclaim(&self) {
        let mut machine = self.machine.borrow_mut();
        if machine.output().is_empty() {
            self.has_buffer.set(false);
            if let Some(buffer) = machine.reclaim() {
                self.local.worker.give_output(buffer);
            }
        }
    }

    /// Notes that the client is lost: every stream is reset, and new ones end. The end of the socket wakes the box.
    pub(super) fn lose(self: &Rc<Self>, reason: CloseReason) {
        if !self.is_lost.replace(true) {
            self.link.ends(reason);
            self.is_ending.set(true);
            let _ = self.link.socket().shutdown(std::net::Shutdown::Both);
            self.refuse_new();
            self.reset_all();
        }
    }

    /// Resets the streams whose bodies a fiber has awaited for that time in vain: it keeps a stack.
    pub(super) fn reset_silent(&self, patience: Duration) {
        let streams = self.streams.borrow();
        let inlets = streams.iter().filter_map(|(id, inlet)| Some((*id, inlet.clone()?)));
        let silent: Vec<_> = inlets.filter(|(_, inlet)| inlet.is_silent_for(patience)).collect();
        drop(streams);
        for (id, inlet) in silent {
            self.machine.borrow_mut().reset(id, ErrorCode::ENHANCE_YOUR_CALM);
            inlet.reset();
        }
    }

    /// Tells every stream that its client is gone.
    pub(super) fn reset_all(&self) {
        let mut streams = self.streams.borrow_mut();
        let inlets = streams
            .iter_mut()
            .map(|(_, inlet)| inlet.get_or_insert_with(|| Rc::new(Inlet::new(false))));
        let inlets: Vec<_> = inlets.map(|inlet| inlet.clone()).collect();
        drop(streams);
        inlets.iter().for_each(|inlet| inlet.reset());
    }
}

impl Writer for Rc<Shared> {
    fn machine(&self) -> &RefCell<h2::Connection> {
        &self.machine
    }

    fn transport(&self) -> &Transport {
        &self.link.transport
    }

    fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    fn wake(&self, stream: StreamId) {
        self.granted.update(|count| count + 1);
        if let Some(inlet) = self.inlet(stream) {
            inlet.writable.set();
        }
    }

    /// There may be room for new streams meanwhile. A client that acknowledges bytes has the write timeout again.
    fn wait_writable(&self) -> io::Result<()> {
        self.serve_soon();
        let (socket, limit) = (self.link.socket(), self.local.worker.server.timeouts.write);
        loop {
            let before = socket.unacknowledged();
            if socket.wait_writable(limit)? {
                return Ok(());
            }
            if !socket.progressed(before) {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

/// The writer's fiber. Its drop says that there is none.
struct Writing(Rc<Shared>);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.is_writing.set(false);
        self.0.written.set();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        let (shared, machine) = (size_of::<Shared>(), size_of::<h2::Connection>());
        assert!(shared <= machine + 224, "{shared} {machine}");
    }
}
