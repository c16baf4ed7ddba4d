//! Shuts down a queue that has a hundred requests outstanding and a callback running.
//!
//! ```text
//! cargo run -p osier-examples --bin shutdown
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use osier::callbacks::{IoQueue, Status, Timer};

fn main() -> io::Result<()> {
    let queue = IoQueue::new(2)?;
    let (ended, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for hours in 1..=100 {
        let (ended, refused) = (Arc::clone(&ended), Arc::clone(&refused));
        let expired = move |timer: Timer, status| {
            ended.fetch_add(usize::from(status == Status::Shutdown), SeqCst);
            // Tries to go on with another request, which the queue refuses while it shuts down.
            let again = timer.wait(Duration::from_secs(1), |_, _| ());
            refused.fetch_add(usize::from(again.is_err()), SeqCst);
        };
        Timer::new(&queue).wait(Duration::from_secs(3600 * hours), expired)?;
    }
    queue.submit(|_| thread::sleep(Duration::from_millis(50)))?;

    // Returns when every callback has returned, so what they use may be dropped from here on.
    queue.shutdown(Duration::from_secs(10))?;
    let (ended, refused) = (ended.load(SeqCst), refused.load(SeqCst));
    println!(
        "{ended} notified of the shutdown, {refused} refused to go on, {} outstanding",
        queue.pending()
    );
    Ok(())
}
