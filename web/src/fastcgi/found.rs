//! Scripts that were there a moment ago, so that not every request asks the kernel, and what requests for them are told alike.
//!
//! One table for each worker, for all handlers; asked and filled by the handler. Only scripts that exist are remembered: what
//! does not exist is looked for each time, or strangers could fill the table with it, and a new script would not be seen.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long it is believed. A script that is gone by then is the application's to miss.
const FRESH: Duration = Duration::from_secs(1);

/// Of all handlers together. Beyond this many the table is emptied: what is asked for often is soon there again.
const SCRIPTS: usize = 1024;

/// Longer paths are looked for each time.
const PATH: usize = 512;

thread_local! {
    /// By the number of the handler, then by path.
    static FOUND: RefCell<HashMap<usize, HashMap<Box<str>, Entry>>> = RefCell::default();
}

struct Entry {
    /// What [`of_script`](super::params::of_script) has made.
    params: Arc<[u8]>,
    until: Instant,
}

/// What tells the scripts of one handler from those of others.
#[derive(Debug)]
pub struct Seat(usize);

impl Seat {
    pub fn take() -> Seat {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Seat(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Of the script that `path` led to less than a second ago.
    pub fn recall(&self, path: &str) -> Option<Arc<[u8]>> {
        if path.len() > PATH {
            return None;
        }
        let now = osier::time::coarse_now();
        FOUND.with_borrow(|found| {
            let entry = found.get(&self.0)?.get(path)?;
            (now < entry.until).then(|| entry.params.clone())
        })
    }

    pub fn remember(&self, path: &str, params: Arc<[u8]>) {
        if path.len() > PATH {
            return;
        }
        FOUND.with_borrow_mut(|found| {
            if found.values().map(HashMap::len).sum::<usize>() >= SCRIPTS {
                found.clear();
            }
            let until = osier::time::coarse_now() + FRESH;
            found
                .entry(self.0)
                .or_default()
                .insert(path.into(), Entry { params, until });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_that_are_gone_leave_no_more_than_the_table_holds() {
        // As every reload makes new ones.
        for _ in 0..3 * SCRIPTS {
            let seat = Seat::take();
            seat.remember("/a.php", Arc::from(*b"x"));
            assert_eq!(seat.recall("/a.php").as_deref(), Some(&b"x"[..]));
            assert!(FOUND.with_borrow(HashMap::len) <= SCRIPTS);
        }
    }
}
