//! The part of a burst that watches how long a request takes.

use std::cell::{Cell, RefCell};
use std::rc::Weak;

use osier::fiber::Activity;
use osier::time::Stamp;
use osier_http::Head;

use crate::conn::log::record::Level;
#[cfg(feature = "fibers")]
use crate::conn::resting::{AtRest, Resting};
use crate::conn::slow::Entry;
#[cfg(feature = "fibers")]
use crate::conn::times::Phase;
use crate::server::burst::Burst;
use crate::server::served::Client;

impl Burst<'_> {
    /// Adds the current request to the watch if it has a limit. Called before its fiber suspends for the first time.
    #[cold]
    pub(crate) fn watch(&self) {
        let marks = &self.marks;
        let (Some(due), Some(fiber)) = (marks.slow.due(), osier::fiber::id()) else {
            return;
        };
        let server = self.peer.worker.server.clone();
        let entry = Entry {
            fiber: Cell::new(fiber),
            words: RefCell::default(),
            timing: marks.timing.clone(),
            id: marks.id(None),
            client: Client::of(self.peer, marks).address(),
            log: Box::new(move |record| server.log(record)),
            is_logged: Cell::new(false),
            place: Cell::new(None),
            list: Weak::new(),
        };
        marks.slow.watch(self.peer.worker.slow.add(due, entry));
    }

    /// Notes that the current request goes on without a fiber.
    pub(crate) fn leave_fiber(&self, head: &Head<'_>, waits_for: Activity) {
        self.marks.slow.leave_fiber(|| self.words(head));
        self.marks.timing.leave_fiber(waits_for);
    }

    /// The current request in words.
    fn words(&self, head: &Head<'_>) -> String {
        let client = Client::of(self.peer, &self.marks).address().0;
        format!("{} {}, {client}", head.method(), head.target())
    }

    /// Lists the current request, which has left its fiber, as one at rest until the drop of the result. One that waits for its client is not
    /// listed.
    #[cfg(feature = "fibers")]
    pub(crate) fn list_at_rest(&self, head: &Head<'_>, waits_for: Activity) -> AtRest {
        if let Activity::Client | Activity::Writing = waits_for {
            return AtRest::default();
        }
        // Without a consumer of its times, they are not measured.
        let current = self.marks.timing.current();
        let (phase, since) = current.unwrap_or_else(|| (Phase::of(waits_for), Stamp::coarse()));
        let doing = self.words(head);
        self.peer.worker.resting.add(Resting { doing, phase, since })
    }

    /// Ends the watch of the current request, unless it `goes_on` in another burst. Logs a request that was too slow while its worker,
    /// kept busy by this request or by others, could not run the watch.
    #[inline(always)]
    pub(crate) fn end_watch(&self, head: &Head<'_>, goes_on: bool) {
        if let Some(due) = self.marks.slow.due() {
            self.end_watch_at(due, head, goes_on);
        }
    }

    #[cold]
    fn end_watch_at(&self, due: Stamp, head: &Head<'_>, goes_on: bool) {
        if goes_on {
            self.marks.slow.clear();
            return;
        }
        let ended = self.marks.timing.ended();
        let is_logged = self.marks.slow.end();
        if ended > due && !is_logged {
            self.log_slow(head, ended);
        }
    }

    #[cold]
    fn log_slow(&self, head: &Head<'_>, ended: Stamp) {
        let Some(started) = self.marks.timing.started() else {
            return;
        };
        let (taken, times) = (
            ended.since(started),
            self.marks.timing.times(ended.nanos_since(started)),
        );
        let (method, target) = (head.method(), head.target());
        let text = format_args!(
            "{method} {target} has taken {taken:.1?} ({times}); its worker was too busy to report it earlier"
        );
        self.log(Level::Warning, Some(head), text);
    }
}
