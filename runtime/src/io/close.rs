//! `close_later`: closes a descriptor away from the worker.
//!
//! # Protocol
//! Values that wait are in one list, under a lock. One job of the pool drops them, the oldest first, and ends when it finds the list
//! empty. `has_job` is set from the push that begins a job until then. The lock is not held while a value is dropped.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_task::Task;

use crate::wait::{pool, simulated};
use crate::worker::context::{self, Caller};
use crate::worker::isolate::isolate;

/// The most values that wait. Further values are dropped at once: they come faster than one thread drops them, and a file keeps
/// its space on the disk while it waits.
const MOST: usize = 16 << 10;

static LATER: Later<Closing> = Later::new();

/// A descriptor and what goes after it: the fields are dropped in this order.
struct Closing {
    _descriptor: OwnedFd,
    _kept: Option<Box<dyn Any + Send>>,
}

/// Closes a descriptor on the pool for blocking work, and does not wait for that.
///
/// The last descriptor of a file that has no name any more frees its blocks, which takes the file system some time. All
/// descriptors are closed one after the other. So this is for files: a socket that lingers would keep those behind it open.
///
/// On a plain thread and in a simulation the descriptor is closed at once. So it is if thousands wait already, and if the system
/// starts no thread. The end of the process does not wait for descriptors that are still open.
///
/// ```
/// let path = std::env::temp_dir().join(format!("osier-close-later-{}", std::process::id()));
/// osier::run(|| {
///     let file = std::fs::File::create(&path)?;
///     std::fs::remove_file(&path)?;
///     osier::io::close_later(file);
///     std::io::Result::Ok(())
/// })?;
/// # std::io::Result::Ok(())
/// ```
///
/// # Suspends
///
/// Never. It may be called anywhere, also in a destructor while a fiber unwinds.
pub fn close_later(descriptor: impl Into<OwnedFd>) {
    close(descriptor.into(), None);
}

/// Closes a descriptor as [`close_later`] does, and then drops `kept`.
///
/// So a count of the space on the disk goes down once the space is free. `kept` is dropped on the thread that closes the
/// descriptor.
///
/// # Suspends
///
/// Never, as [`close_later`].
pub fn close_later_with(descriptor: impl Into<OwnedFd>, kept: impl Send + 'static) {
    close(descriptor.into(), Some(Box::new(kept)));
}

fn close(descriptor: OwnedFd, kept: Option<Box<dyn Any + Send>>) {
    let closing = Closing {
        _descriptor: descriptor,
        _kept: kept,
    };
    let may_block = context::caller(|caller| matches!(caller, Caller::Thread));
    if !may_block && !simulated::is_here() {
        LATER.push(closing);
    }
}

/// Values that a thread of the pool drops.
struct Later<T>(Mutex<State<T>>);

struct State<T> {
    waiting: VecDeque<T>,
    has_job: bool,
}

impl<T: Send + 'static> Later<T> {
    const fn new() -> Later<T> {
        Later(Mutex::new(State {
            waiting: VecDeque::new(),
            has_job: false,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&'static self, value: T) {
        let mut state = self.state();
        if state.waiting.len() >= MOST {
            drop(state);
            return;
        }
        state.waiting.push_back(value);
        let has_job = std::mem::replace(&mut state.has_job, true);
        drop(state);
        if !has_job && pool::try_spawn(|| self.drop_all()).map(Task::detach).is_err() {
            self.drop_all();
        }
    }

    fn drop_all(&self) {
        while let Some(value) = self.next() {
            // The destructor of a kept value may panic; the other descriptors are still closed.
            isolate(|| drop(value));
        }
    }

    fn next(&self) -> Option<T> {
        let mut state = self.state();
        let next = state.waiting.pop_front();
        if next.is_none() {
            (state.waiting, state.has_job) = (VecDeque::new(), false);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    /// Tells the name of the thread that drops it, and may wait before it is dropped.
    struct Observed(Sender<Option<String>>, Option<Receiver<()>>);

    impl Drop for Observed {
        fn drop(&mut self) {
            if let Some(wait) = &self.1 {
                let _ = wait.recv();
            }
            let _ = self.0.send(thread::current().name().map(str::to_owned));
        }
    }

    #[test]
    fn a_thread_of_the_pool_drops_them_while_the_worker_goes_on() {
        static LATER: Later<Observed> = Later::new();
        let (tell, told) = channel();
        for _ in 0..2 {
            // The first one blocks its thread until all have been pushed.
            let (go, wait) = channel();
            crate::run(|| {
                LATER.push(Observed(tell.clone(), Some(wait)));
                (0..99).for_each(|_| LATER.push(Observed(tell.clone(), None)));
            });
            assert!(told.try_recv().is_err(), "nothing is dropped before the first");
            go.send(()).unwrap();
            for _ in 0..100 {
                assert_eq!(told.recv().unwrap().as_deref(), Some("osier-pool"));
            }
            testkit::eventually("the job ends", || !LATER.state().has_job);
        }
    }

    #[test]
    fn values_beyond_the_bound_are_dropped_at_once() {
        static LATER: Later<Observed> = Later::new();
        let ((tell, told), (go, wait)) = (channel(), channel());
        LATER.push(Observed(tell.clone(), Some(wait)));
        testkit::eventually("the job takes the first", || LATER.state().waiting.is_empty());
        (0..MOST).for_each(|_| LATER.push(Observed(tell.clone(), None)));
        assert!(told.try_recv().is_err());
        LATER.push(Observed(tell.clone(), None));
        let here = thread::current().name().map(str::to_owned);
        assert_eq!(told.try_recv(), Ok(here));
        go.send(()).unwrap();
        for _ in 0..=MOST {
            assert_eq!(told.recv().unwrap().as_deref(), Some("osier-pool"));
        }
    }

    /// Panics as it is dropped.
    struct Broken;

    impl Drop for Broken {
        fn drop(&mut self) {
            panic!("at the drop of a value (a test)");
        }
    }

    #[test]
    fn what_is_kept_is_dropped_after_its_descriptor_is_closed() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (tell, told) = channel();
        let (go, wait) = channel();
        crate::run(|| {
            close_later_with(std::io::pipe().unwrap().0, Broken);
            close_later_with(writer, Observed(tell, Some(wait)));
        });
        // The pipe ends once its writer is closed, while the value waits.
        assert_eq!(std::io::read_to_string(reader).unwrap(), "");
        assert!(told.try_recv().is_err());
        go.send(()).unwrap();
        let thread = told
            .recv_timeout(testkit::DEADLINE)
            .expect("a drop after that of `Broken`");
        assert_eq!(thread.as_deref(), Some("osier-pool"));
    }

    #[test]
    fn a_plain_thread_closes_at_once() {
        let (reader, writer) = std::io::pipe().unwrap();
        close_later(writer);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "");
        assert!(!LATER.state().has_job);
    }
}
