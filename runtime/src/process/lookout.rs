//! The lookout: one thread for all children without a pidfd. It tells those who wait for such a child of its end, and reaps those that were
//! dropped.
//!
//! Nothing announces the end of such a child to this thread alone: `SIGCHLD` is the program's, and waitid(2) waits for one child or for all of
//! the process, other code's included. So the thread looks at each child, often at first and more and more seldom until the next one comes.
//! The first child starts the thread, which ends when there is none left.
//!
//! # Protocol
//! A lock guards the children. The thread holds it while it looks and while it decides to end. So a new child is either seen by the running
//! thread or starts another one. Wakers are woken and dropped without the lock.

use std::io;
use std::mem;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions};

use crate::worker::isolate::isolate;
use crate::worker::service::start_service;

/// The time between the first two looks after a child has come.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// The longest time between two looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

struct Lookout {
    children: Vec<Seen>,
    /// Whether the thread runs.
    runs: bool,
    /// Whether a child has come since the thread looked.
    has_new: bool,
}

/// A child that the thread looks at.
enum Seen {
    /// It is waited for. It is not reaped, so its number stays its own meanwhile.
    Waited(Pid, Arc<End>),
    /// It was dropped, and is to be reaped.
    Dropped(Child),
}

static LOOKOUT: Mutex<Lookout> = Mutex::new(Lookout {
    children: Vec::new(),
    runs: false,
    has_new: false,
});

/// Notified when a child comes.
static NEWS: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Lookout> {
    LOOKOUT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A wait for the end of one child.
pub(super) struct Wait {
    pid: Pid,
    /// The place for the outcome. A wait that nobody needed to its end leaves it to the next one.
    end: Option<Arc<End>>,
}

impl Wait {
    pub(super) fn new(pid: Pid) -> Wait {
        Wait { pid, end: None }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let end = match &self.end {
            Some(end) => end,
            None => self.end.insert(watch(self.pid)?),
        };
        let ended = ready!(end.poll(cx));
        self.end = None;
        Poll::Ready(ended)
    }
}

/// The place where the thread leaves the end of a child, for the one who waits.
#[derive(Default)]
struct End(Mutex<(Option<io::Result<()>>, Option<Waker>)>);

impl End {
    fn lock(&self) -> MutexGuard<'_, (Option<io::Result<()>>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let waker = cx.waker().clone();
        let mut state = self.lock();
        if let Some(ended) = state.0.take() {
            return Poll::Ready(ended);
        }
        let old = state.1.replace(waker);
        drop(state);
        drop(old);
        Poll::Pending
    }

    fn tell(&self, ended: io::Result<()>) {
        let waker = {
            let mut state = self.lock();
            state.0 = Some(ended);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

fn watch(pid: Pid) -> io::Result<Arc<End>> {
    let end = Arc::<End>::default();
    let mut lookout = lock();
    lookout.start()?;
    lookout.children.push(Seen::Waited(pid, Arc::clone(&end)));
    Ok(end)
}

/// Reaps a dropped child when it ends. If the system starts no thread, the next child tries again.
pub(super) fn adopt(child: Child) {
    let mut lookout = lock();
    lookout.children.push(Seen::Dropped(child));
    let _ = lookout.start();
}

impl Lookout {
    /// Starts the thread unless it runs, and lets it look soon. The caller holds the lock until the child is in the list.
    fn start(&mut self) -> io::Result<()> {
        if !self.runs {
            start_service("osier-children", look)?;
            self.runs = true;
        }
        self.has_new = true;
        NEWS.notify_one();
        Ok(())
    }

    /// Takes out the children that have ended, and those whose end nobody wants to hear of any more.
    fn take_ended(&mut self) -> Vec<(Arc<End>, io::Result<()>)> {
        let mut ended = Vec::new();
        for child in mem::take(&mut self.children) {
            match child {
                Seen::Waited(pid, end) => match has_ended(pid) {
                    Ok(false) if Arc::strong_count(&end) > 1 => self.children.push(Seen::Waited(pid, end)),
                    outcome => ended.push((end, outcome.map(drop))),
                },
                Seen::Dropped(mut child) => {
                    // An error means that other code has waited for the child.
                    if let Ok(None) = child.try_wait() {
                        self.children.push(Seen::Dropped(child));
                    }
                }
            }
        }
        ended
    }
}

fn look() {
    let mut pause = FIRST_PAUSE;
    loop {
        let mut lookout = lock();
        pause = match mem::take(&mut lookout.has_new) {
            true => FIRST_PAUSE,
            false => (2 * pause).min(LONGEST_PAUSE),
        };
        let ended = lookout.take_ended();
        lookout.runs = !lookout.children.is_empty();
        let runs = lookout.runs;
        drop(lookout);
        for (end, outcome) in ended {
            isolate(|| end.tell(outcome)); // a waker may be anybody's code
        }
        if !runs {
            return;
        }
        let lookout = lock();
        if !lookout.has_new {
            drop(NEWS.wait_timeout(lookout, pause));
        }
    }
}

/// Whether the child has ended. It is not reaped, so it keeps its number. Fails if it has been reaped: by other code, or by the system where
/// `SIGCHLD` is ignored.
pub(super) fn has_ended(pid: Pid) -> io::Result<bool> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let ended = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(pid), look))?;
    Ok(ended.is_some())
}
