//! The part of a burst that watches how long a request takes.

use std::cell::Cell;
use std::rc::Weak;

use osier_http::Head;

use crate::conn::log::record::Level;
use crate::conn::slow::Entry;
use crate::server::answer::client_of;
use crate::server::burst::Burst;

impl Burst<'_> {
    /// Adds the current request to the watch if it has a limit. Called before its fiber suspends for the first time.
    #[cold]
    pub(crate) fn watch(&self) {
        let marks = &self.marks;
        let (Some(limit), Some(started), Some(fiber)) =
            (marks.slow.limit(), marks.timing.started(), osier::fiber::id())
        else {
            return;
        };
        let server = self.peer.worker.server.clone();
        let entry = Entry {
            fiber,
            timing: marks.timing.clone(),
            limit,
            id: marks.id(None),
            client: client_of(self.peer, marks),
            log: Box::new(move |record| server.log(record)),
            is_logged: Cell::new(false),
            place: Cell::new(None),
            list: Weak::new(),
        };
        marks.slow.watch(self.peer.worker.slow.add(started, entry));
    }

    /// Ends the watch of the current request. Logs a request that was too slow and kept the watch from running.
    #[inline]
    pub(crate) fn end_watch(&self, head: &Head<'_>) {
        if self.marks.slow.limit().is_some() {
            self.log_if_slow(head);
        }
    }

    #[cold]
    fn log_if_slow(&self, head: &Head<'_>) {
        let started = self.marks.timing.started();
        let (Some(limit), Some(started)) = (self.marks.slow.end(), started) else {
            return;
        };
        let taken = self.marks.timing.taken(started);
        if taken > limit {
            let times = self.marks.timing.times(taken);
            let (method, target) = (head.method(), head.target());
            let text = format_args!("{method} {target} has taken {taken:.1?} ({times}), and has kept its worker busy");
            self.log(Level::Warning, Some(head), text);
        }
    }
}
