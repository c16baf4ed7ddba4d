//! Fiber-locals: a thread that ends keeps nothing.

use std::cell::Cell;
use std::sync::mpsc;

use testkit::allocations::live_bytes;

/// Sends how many bytes its thread has not freed.
struct Last(Cell<Option<mpsc::SyncSender<isize>>>);

impl Drop for Last {
    fn drop(&mut self) {
        let live = live_bytes();
        self.0.take().expect("a sender").send(live).unwrap();
    }
}

thread_local! {
    /// The first to be used is the last to be dropped.
    static LAST: Last = const { Last(Cell::new(None)) };
}

osier::fiber_local! {
    static LOCAL: [u8; 100] = [0; 100];
}

/// The bytes that a thread which has called `body` keeps at its end.
fn kept_after(body: fn()) -> isize {
    let (sender, kept) = mpsc::sync_channel(1);
    let thread = std::thread::spawn(move || {
        LAST.with(|last| last.0.set(Some(sender)));
        body();
    });
    thread.join().unwrap();
    kept.recv().unwrap()
}

#[test]
fn a_thread_that_ends_frees_its_locals() {
    assert_eq!(kept_after(|| LOCAL.with(|_| ())), kept_after(|| ()), "bytes");
}
