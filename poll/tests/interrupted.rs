//! A signal handler that runs during a wait, on every back-end.

#[path = "it/common.rs"]
mod common;

use common::*;
use osier_poll::{Driver, Events, Poller};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

on_every_driver! {
    a_signal_ends_a_wait_without_events_or_does_not_end_it
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

fn a_signal_ends_a_wait_without_events_or_does_not_end_it(driver: Driver) {
    const TIMEOUT: Duration = Duration::from_millis(300);
    // SAFETY: the handler only counts; an action of zeros is valid, and without SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let poller = Poller::with_driver(driver).unwrap();
    // SAFETY: it names this thread, which outlives the other.
    let waiting = unsafe { libc::pthread_self() };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                // SAFETY: the thread waits for this one before it ends.
                assert_eq!(unsafe { libc::pthread_kill(waiting, libc::SIGUSR1) }, 0);
                thread::sleep(Duration::from_millis(10)); // the waits have to begin between two signals
            }
        });
        let mut events = Events::with_capacity(4);
        let (start, before) = (Instant::now(), HANDLED.load(Ordering::SeqCst));
        let mut waits = 0;
        while start.elapsed() < TIMEOUT {
            let left = TIMEOUT.saturating_sub(start.elapsed());
            assert_eq!(poller.wait(&mut events, Some(left)).unwrap(), 0);
            waits += 1;
        }
        over.store(true, Ordering::SeqCst);
        assert!(HANDLED.load(Ordering::SeqCst) > before, "no signal came");
        println!("{driver:?}: {waits} waits");
        // epoll(7)'s wait is not restarted; each of the others ended by itself.
        assert!(driver != Driver::Epoll || waits > 1);
    });
}
