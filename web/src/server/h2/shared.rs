//! The state that a connection and its streams share: the machine, the table of streams, and the writer's fiber.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;

use osier::sync::Event;
use osier_http::h2::{self, StreamId};

use crate::conn::close::CloseReason;
use crate::conn::frames::Writer;
use crate::conn::inlet::Inlet;
use crate::conn::serve::Local;
use crate::conn::transport::Transport;
use crate::conn::worker::Link;

pub(super) struct Shared {
    pub(super) link: Rc<Link>,
    pub(super) local: Rc<Local>,
    pub(super) machine: RefCell<h2::Connection>,
    /// The streams whose fibers have not ended.
    pub(super) streams: RefCell<BTreeMap<StreamId, Rc<Inlet>>>,
    /// Whether the machine has a buffer of the worker for its output.
    has_buffer: Cell<bool>,
    /// Whether the writer's fiber exists.
    is_writing: Cell<bool>,
    /// Set when the writer's fiber ends.
    written: Event,
    /// Whether the client has gone, or takes no bytes.
    pub(super) is_lost: Cell<bool>,
    /// Set when the last stream has ended.
    ended: Event,
    /// Since when no stream runs.
    pub(super) idle_since: Cell<Instant>,
    /// Whether the box waits for the end of the last stream.
    pub(super) is_ending: Cell<bool>,
    /// Wakes the box.
    pub(super) waker: RefCell<Option<Waker>>,
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
        Rc::new(Shared {
            link: link.clone(),
            local: local.clone(),
            machine: RefCell::new(machine),
            streams: RefCell::new(BTreeMap::new()),
            has_buffer: Cell::new(false),
            is_writing: Cell::new(false),
            written: Event::new(),
            is_lost: Cell::new(false),
            ended: Event::new(),
            idle_since: Cell::new(osier::time::coarse_now()),
            is_ending: Cell::new(false),
            waker: RefCell::new(None),
        })
    }

    /// The state of the machine, if nothing is in progress.
    #[cfg(feature = "upgrade")]
    pub(super) fn export(&self) -> Option<Vec<u8>> {
        let is_busy = self.is_writing.get() || self.is_ending.get() || self.is_lost.get();
        let may_leave = !is_busy && self.streams.borrow().is_empty();
        may_leave.then(|| self.machine.borrow().export().ok()).flatten()
    }

    /// Adds a new stream.
    pub(super) fn add(&self, id: StreamId, inlet: Rc<Inlet>) {
        let mut streams = self.streams.borrow_mut();
        if streams.is_empty() {
            self.link.begin();
        }
        streams.insert(id, inlet);
    }

    /// Ends a stream, whose fiber ends.
    pub(super) fn remove(self: &Rc<Self>, id: StreamId) {
        self.machine.borrow_mut().finish(id);
        self.streams.borrow_mut().remove(&id);
        self.wake_writable();
        self.flush_soon();
        if self.streams.borrow().is_empty() {
            // The memory of its last streams: an idle server has many connections.
            self.streams.replace(BTreeMap::new());
            self.machine.borrow_mut().rest();
            self.idle_since.set(osier::time::coarse_now());
            match self.is_ending.get() {
                true => self.wake_box(),
                false => self.link.rest_without_streams(),
            }
            self.ended.set();
        }
    }

    pub(super) fn stream(&self, id: StreamId) -> Option<Rc<Inlet>> {
        self.streams.borrow().get(&id).cloned()
    }

    /// Makes the runtime poll the box.
    fn wake_box(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Writes the output soon, after the fibers that are ready now.
    pub(super) fn flush_soon(self: &Rc<Self>) {
        if self.machine.borrow().output().is_empty() || self.is_writing.replace(true) {
            return;
        }
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
        while self.is_writing.get() {
            self.written.wait();
        }
    }

    /// Waits until no stream runs.
    ///
    /// # Suspends
    ///
    /// Until then.
    pub(super) fn wait_for_streams(&self) {
        while !self.streams.borrow().is_empty() {
            self.ended.wait();
        }
    }

    /// The work of the writer's fiber.
    ///
    /// # Suspends
    ///
    /// While the client takes no more.
    fn write(self: &Rc<Self>) {
        if let Err(error) = self.write_output() {
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

    /// Notes that the client is lost: every stream is reset. The end of the socket wakes the box.
    pub(super) fn lose(&self, reason: CloseReason) {
        if !self.is_lost.replace(true) {
            self.link.ends(reason);
            self.is_ending.set(true);
            let _ = self.link.socket().shutdown(std::net::Shutdown::Both);
            self.reset_all();
        }
    }

    /// Tells every stream that its client is gone.
    pub(super) fn reset_all(&self) {
        let streams: Vec<_> = self.streams.borrow().values().cloned().collect();
        streams.iter().for_each(|stream| stream.reset());
    }
}

impl Writer for Shared {
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
        if let Some(inlet) = self.stream(stream) {
            inlet.writable.set();
        }
    }

    /// A client that acknowledges bytes has the write timeout again.
    fn wait_writable(&self) -> io::Result<()> {
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
        assert!(shared <= machine + 160, "{shared} {machine}");
    }
}
