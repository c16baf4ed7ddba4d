//! Counts to ten, one tick at a time: a timer that its own callback arms again.
//!
//! ```text
//! cargo run -p osier-examples --bin counter -- [MILLISECONDS]
//! ```

use std::io;
use std::sync::Arc;
use std::time::Duration;

use osier::callbacks::{IoQueue, Status, Timer};
use osier::sync::Mailbox;

const DONE: u32 = 1;

fn count(timer: Timer, tick: Duration, n: u32, done: Arc<Mailbox>) {
    let next = move |timer, status| {
        println!("{n}");
        match status {
            Status::Done if n < 10 => count(timer, tick, n + 1, done),
            _ => done.raise(DONE),
        }
    };
    // This comes last: the callback may begin at once, on another thread. Only a queue that shuts down refuses.
    let _ = timer.wait(tick, next);
}

fn main() -> io::Result<()> {
    let millis = std::env::args()
        .nth(1)
        .map_or(1000, |text| text.parse().expect("MILLISECONDS"));
    let queue = IoQueue::new(1)?;
    let done = Arc::new(Mailbox::new());
    count(Timer::new(&queue), Duration::from_millis(millis), 1, Arc::clone(&done));
    while done.take(Mailbox::ALL) == 0 {
        queue.iterate()?;
    }
    Ok(())
}
