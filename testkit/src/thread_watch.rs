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
        if self.status.is_none() {
            thread::sleep(GUESS);
            return;
        }
        let mut asleep = 0;
        eventually("a thread that sleeps", || {
            asleep = if self.sleeps() { asleep + 1 } else { 0 };
            asleep == 2
        });
    }

    /// Whether the system shows that the thread sleeps.
    fn sleeps(&self) -> bool {
        let text = self.status.as_ref().and_then(|status| fs::read_to_string(status).ok());
        text.is_some_and(|text| text.contains("\nState:\tS"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn a_thread_that_waits_is_told_from_one_that_runs() {
        let (sender, receiver) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let works = Arc::new(AtomicBool::new(true));
        let theirs = Arc::clone(&works);
        let thread = thread::spawn(move || {
            sender.send(ThreadWatch::current()).unwrap();
            while theirs.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            released.recv().unwrap();
        });
        let watch = receiver.recv().unwrap();
        // It works until it has been looked at, however slow this thread is.
        for _ in 0..10 {
            assert!(!watch.sleeps(), "it works");
        }
        works.store(false, Ordering::SeqCst);
        watch.until_it_waits();
        assert!(watch.sleeps(), "it waits for the release");
        assert!(!thread.is_finished());
        release.send(()).unwrap();
        thread.join().unwrap();
    }
}
