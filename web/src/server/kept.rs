//! The fibers that a server has as long as it accepts: one that is lost is replaced after a pause.
//!
//! A panic loses a fiber, of the program's hook for the log for example, and so does the lack of memory for its stack. Without the fiber that
//! accepts, the clients of its listener would wait for ever.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use osier::{Cancelled, JoinHandle};

use crate::conn::log::record::how_it_panicked;

/// The time from the loss of a fiber to the next one: a hook that always panics keeps no worker busy.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// A fiber that is kept. The drop of this value ends it.
pub(super) struct Kept {
    /// The work of the fiber, for the log.
    what: String,
    spawn: Box<dyn Fn() -> JoinHandle<()>>,
    /// `None` once it has ended.
    fiber: Option<JoinHandle<()>>,
    is_lost: bool,
}

impl Kept {
    /// Begins the fiber by `spawn`, which is called again once it is lost.
    pub(super) fn new(what: String, spawn: impl Fn() -> JoinHandle<()> + 'static) -> Kept {
        Kept {
            what,
            fiber: Some(spawn()),
            spawn: Box::new(spawn),
            is_lost: false,
        }
    }

    /// Ready with a line for the log once the fiber is lost. The line comes once.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        let Some(fiber) = &mut self.fiber else {
            return Poll::Pending;
        };
        let Poll::Ready(ended) = Pin::new(fiber).poll(cx) else {
            return Poll::Pending;
        };
        self.fiber = None;
        match ended {
            Err(payload) if !Cancelled::is_payload(&*payload) => {
                self.is_lost = true;
                Poll::Ready(format!(
                    "{} {}; another one follows in {PAUSE:?}",
                    self.what,
                    why(&*payload)
                ))
            }
            _ => Poll::Pending,
        }
    }

    /// Begins a lost fiber again.
    pub(super) fn replace(&mut self) {
        if std::mem::take(&mut self.is_lost) {
            self.fiber = Some((self.spawn)());
        }
    }

    pub(super) fn cancel(&self) {
        self.fiber.iter().for_each(JoinHandle::cancel);
    }

    /// Ends the fiber. Returns whether its work has returned: not that of a lost fiber, nor of one that was cancelled before its first turn,
    /// which never runs.
    pub(super) fn end(mut self) -> bool {
        self.cancel();
        self.fiber.take().is_some_and(|fiber| fiber.join().is_ok())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.cancel();
        if let Some(fiber) = self.fiber.take()
            && !thread::panicking()
        {
            let _ = fiber.join();
        }
    }
}

/// Ready once fibers are lost, with a line for the log for each of them.
pub(super) fn poll_lost(kept: &mut [Kept], cx: &mut Context<'_>) -> Poll<Vec<String>> {
    let lines = kept.iter_mut().filter_map(|kept| match kept.poll_lost(cx) {
        Poll::Ready(line) => Some(line),
        Poll::Pending => None,
    });
    let lines: Vec<_> = lines.collect();
    match lines.is_empty() {
        true => Poll::Pending,
        false => Poll::Ready(lines),
    }
}

/// The reason for the loss of a fiber.
fn why(payload: &(dyn Any + Send)) -> String {
    match payload.downcast_ref::<io::Error>() {
        Some(error) => format!("could not begin: {error}"),
        None => how_it_panicked(payload),
    }
}

/// Calls the program's hook for the log. Its panic, which may have lost the fiber, goes no further.
pub(super) fn carefully(log: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(log));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;

    /// The line about the loss of a fiber.
    fn lost(kept: &mut Kept) -> String {
        osier::block_on(poll_fn(|cx| kept.poll_lost(cx)))
    }

    /// Waits until `count` fibers have ended. A panic may take long: it prints a backtrace.
    fn wait_for_ends(kept: &[Kept], count: usize) {
        let has_ended = |kept: &&Kept| kept.fiber.as_ref().is_some_and(JoinHandle::is_finished);
        while kept.iter().filter(has_ended).count() < count {
            osier::yield_now();
        }
    }

    #[test]
    fn a_fiber_that_panics_or_finds_no_stack_is_replaced() {
        osier::run(|| {
            let begun = Rc::new(Cell::new(0));
            let count = begun.clone();
            let mut kept = Kept::new("the fiber".into(), move || {
                count.set(count.get() + 1);
                let fiber = osier::fiber::Builder::new();
                match count.get() {
                    1 => fiber.spawn_local(|| panic!("on purpose")),
                    2 => fiber.stack_bytes(1 << 60).spawn_local(|| ()),
                    _ => fiber.spawn_local(|| osier::sync::Event::new().wait()),
                }
            });
            assert_eq!(
                lost(&mut kept),
                "the fiber panicked: on purpose; another one follows in 1s"
            );
            kept.replace();
            let line = lost(&mut kept);
            assert!(line.starts_with("the fiber could not begin: "), "{line}");
            kept.replace();
            kept.replace();
            let third = osier::timeout(Duration::from_millis(20), || lost(&mut kept));
            assert!(third.is_err() && begun.get() == 3, "{third:?} {}", begun.get());
            // An end that was asked for is no loss.
            kept.cancel();
            assert!(osier::timeout(Duration::from_millis(20), || lost(&mut kept)).is_err());
            kept.replace();
            assert_eq!(begun.get(), 3);
        });
    }

    #[test]
    fn only_a_fiber_whose_work_has_returned_has_done_what_it_does_at_its_end() {
        osier::run(|| {
            let begin = |work: fn()| Kept::new("the fiber".into(), move || osier::spawn_local(work));
            let fibers = [
                begin(|| ()),
                begin(|| panic!("on purpose")),
                begin(|| osier::sleep(Duration::from_secs(3600))),
            ];
            wait_for_ends(&fibers, 2);
            assert_eq!(fibers.map(Kept::end), [true, false, false]);
            assert!(!begin(|| ()).end(), "it had no turn");
        });
    }

    #[test]
    fn fibers_that_are_lost_together_are_told_together() {
        osier::run(|| {
            let panics = |name: &str| Kept::new(name.into(), || osier::spawn_local(|| panic!("on purpose")));
            let waits = || {
                Kept::new("none".into(), || {
                    osier::spawn_local(|| osier::sync::Event::new().wait())
                })
            };
            let mut kept = [panics("one"), waits(), panics("two")];
            wait_for_ends(&kept, 2);
            let lines = osier::block_on(poll_fn(|cx| poll_lost(&mut kept, cx)));
            let line = |name| format!("{name} panicked: on purpose; another one follows in 1s");
            assert_eq!(lines, [line("one"), line("two")]);
        });
    }
}
