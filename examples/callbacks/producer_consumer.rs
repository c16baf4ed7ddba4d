//! Producers and one consumer. Each producer appends to its own queue and raises a flag. The consumer, a callback, takes the flags
//! and empties the queues.
//!
//! ```text
//! cargo run -p osier-examples --bin producer_consumer
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread;

use osier::callbacks::{Handle, IoQueue, Status};
use osier::sync::Mailbox;

const READY: u32 = 1;
const FINISHED: u32 = 1 << 1;
const PRODUCERS: u64 = 4;
const ITEMS: u64 = 1000;

#[derive(Default)]
struct Shared {
    items: Mutex<VecDeque<u64>>,
    flags: Mailbox,
}

fn consume(queue: Handle, shared: Arc<Shared>, mut seen: u64, mut sum: u64) {
    // Take the flag first, so that every value appended from here on raises it again.
    shared.flags.take(READY);
    // Empty the queue completely: values that are already in it do not raise the flag again.
    while let Some(item) = { shared.items.lock().unwrap().pop_front() } {
        seen += 1;
        sum += item;
    }
    if seen == PRODUCERS * ITEMS {
        println!("{seen} items, sum {sum}");
        return shared.flags.raise(FINISHED);
    }
    let (next, flags) = (queue.clone(), Arc::clone(&shared));
    let ready = move |status, _| {
        if status == Status::Done {
            consume(next, shared, seen, sum);
        }
    };
    // This comes last: the callback may run at once. It uses the flags, which are shared.
    let waited = async move { flags.flags.wait_any_async(READY).await };
    let _ = queue.when(waited, ready);
}

fn main() -> io::Result<()> {
    let queue = IoQueue::new(1)?;
    let shared = Arc::new(Shared::default());
    consume(Handle::clone(&queue), Arc::clone(&shared), 0, 0);
    thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let shared = &shared;
            scope.spawn(move || {
                for n in 0..ITEMS {
                    shared.items.lock().unwrap().push_back(producer * ITEMS + n);
                    shared.flags.raise(READY);
                }
            });
        }
        queue.run_until(shared.flags.wait_any_async(FINISHED))
    })?;
    Ok(())
}
