//! A thread that another thread watches until it sleeps in a system call.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::eventually;

/// How long a watch waits where the system does not show the states of threads.
const GUESS: Duration = Duration::from_millis(20);

/// The thread that made it, as others see it.
#[derive(Clone, Debug)]
pub struct ThreadWatch {
    /// Its `status` file; `None` on a system without `/proc`.
    status: Option<PathBuf>,
}

impl ThreadWatch {
    /// Watches the calling thread: that of the worker, on a fiber.
    pub fn current() -> ThreadWatch {
        let thread = fs::read_link("/proc/thread-self").ok();
        let status = thread.map(|thread| PathBuf::from("/proc").join(thread).join("status"));
        ThreadWatch { status }
    }

    /// Waits until the thread sleeps, which it does in the wait that the test is about. Two looks have to agree: a lock on
    /// the way to that wait is short.
    ///
    /// # Blocks the thread
    /// That calls it.
    ///
    /// # Panics
    /// Panics if the thread does not sleep within [`DEADLINE`](crate::DEADLINE).
    #[track_caller]
    pub fn until_it_waits(&self) {
        let Some(status) = &self.status else {
            thread::sleep(GUESS);
            return;
        };
        let mut asleep = 0;
        eventually("a thread that sleeps", || {
            let text = fs::read_to_string(status).unwrap_or_default();
            asleep = if text.contains("\nState:\tS") { asleep + 1 } else { 0 };
            asleep == 2
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_thread_that_waits_is_told_from_one_that_runs() {
        let (sender, receiver) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let at_work = Arc::new(AtomicBool::new(true));
        let theirs = Arc::clone(&at_work);
        let thread = thread::spawn(move || {
            sender.send(ThreadWatch::current()).unwrap();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(250) {} // runs, for some looks also on a busy machine
            theirs.store(false, Ordering::SeqCst);
            released.recv().unwrap();
        });
        receiver.recv().unwrap().until_it_waits();
        assert!(!at_work.load(Ordering::SeqCst), "it ran");
        assert!(!thread.is_finished());
        release.send(()).unwrap();
        thread.join().unwrap();
    }
}
