//! Fork and join: two computations in parallel, and one callback when both have raised their flags.
//!
//! ```text
//! cargo run -p osier-examples --bin fork_join
//! ```

use std::io;
use std::sync::Arc;
use std::sync::OnceLock;

use osier::callbacks::IoQueue;
use osier::sync::Mailbox;

const EVENS: u32 = 1;
const ODDS: u32 = 1 << 1;
const JOINED: u32 = 1 << 2;

#[derive(Default)]
struct Sums {
    evens: OnceLock<u64>,
    odds: OnceLock<u64>,
}

fn main() -> io::Result<()> {
    let queue = IoQueue::new(2)?;
    let (sums, flags) = (Arc::new(Sums::default()), Arc::new(Mailbox::new()));
    for (first, flag) in [(0, EVENS), (1, ODDS)] {
        let (sums, flags) = (Arc::clone(&sums), Arc::clone(&flags));
        queue.submit(move |_| {
            let half = if flag == EVENS { &sums.evens } else { &sums.odds };
            half.get_or_init(|| (first..=1_000_000).step_by(2).sum());
            // This comes last: if the other computation is done, the join begins here.
            flags.raise(flag);
        })?;
    }
    let joined = Arc::clone(&flags);
    queue.wait_all(&flags, EVENS | ODDS, move |_, _| {
        let (evens, odds) = (sums.evens.get().expect("raised"), sums.odds.get().expect("raised"));
        println!("{evens} + {odds} = {}", evens + odds);
        joined.raise(JOINED);
    })?;
    queue.run_until(flags.wait_any_async(JOINED))?;
    Ok(())
}
