//! Serves the watchdog of systemd: reports regularly that every worker runs its fibers.
//!
//! One fiber starts another on each worker in turn, and notifies the service manager once all of them have run. So a
//! stuck worker stops the notifications, and systemd restarts the service.
//!
//! Once the new process of an upgrade serves, only that one notifies: systemd takes notifications of both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::process::systemd::Notify;

/// The state that the fiber shares with the code that starts it.
#[derive(Clone, Debug, Default)]
pub struct Watchdog {
    /// Whether another process is the service.
    is_silent: Arc<AtomicBool>,
}

impl Watchdog {
    /// Starts the fiber, if the service manager has a watchdog.
    ///
    /// # Errors
    /// One line, when the environment variable of the watchdog cannot be read.
    pub fn start(&self, notify: &Notify) -> Result<(), String> {
        let Some(limit) = Notify::watchdog()? else {
            return Ok(());
        };
        let (watchdog, notify) = (self.clone(), notify.clone());
        let serve = osier::fiber::Builder::new().name("watchdog");
        drop(serve.spawn(move || watchdog.run(&notify, limit)));
        Ok(())
    }

    /// Sends no notifications from now on: another process is the service.
    pub fn silence(&self) {
        self.is_silent.store(true, Relaxed);
    }

    /// Sends notifications again: this process is the service.
    pub fn resume(&self) {
        self.is_silent.store(false, Relaxed);
    }

    fn run(&self, notify: &Notify, limit: Duration) {
        loop {
            for worker in 0..osier::workers() {
                let asked = osier::fiber::Builder::new().name("watchdog of a worker").worker(worker);
                let _ = asked.spawn(|| ()).join();
            }
            if !self.is_silent.load(Relaxed) {
                notify.alive();
            }
            // systemd recommends half of the limit. A third leaves room for a busy worker.
            osier::sleep(limit / 3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::sync::{Arc, mpsc};

    #[test]
    fn a_stuck_worker_silences_it() {
        let (ours, manager) = UnixDatagram::pair().unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (begins, begun) = mpsc::channel();
        let (ends, ending) = mpsc::channel::<()>();
        let runtime = osier::Runtime::builder().workers(2).build().unwrap();
        runtime.spawn(move || {
            let stuck = osier::fiber::Builder::new().worker(1);
            drop(stuck.spawn(move || {
                begins.send(()).unwrap();
                // Blocks the worker.
                let _ = ending.recv();
            }));
            let notify = Notify::over(Arc::new(ours));
            let serving = osier::fiber::Builder::new().worker(0);
            drop(serving.spawn(move || Watchdog::default().run(&notify, Duration::from_millis(30))));
        });
        begun.recv().unwrap();
        // Twenty times the pause between two notifications. One may have been on its way.
        std::thread::sleep(Duration::from_millis(200));
        manager.set_nonblocking(true).unwrap();
        let sent = std::iter::from_fn(|| manager.recv(&mut [0; 100]).ok()).count();
        assert!(sent <= 1, "{sent} notifications");
        drop(ends);
        manager.set_nonblocking(false).unwrap();
        manager.recv(&mut [0; 100]).unwrap();
    }
}
