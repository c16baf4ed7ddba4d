//! Scripts that were there a moment ago, so that not every request asks the kernel.
//!
//! One table for each worker, for all handlers; asked and filled by the handler. Only scripts that exist are remembered: what
//! does not exist is looked for each time, or strangers could fill the table with it, and a new script would not be seen.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::script::Script;

/// How long it is believed. A script that is gone by then is the application's to miss.
const FRESH: Duration = Duration::from_secs(1);

/// Of all handlers together. Beyond this many the table is emptied: what is asked for often is soon there again.
const SCRIPTS: usize = 1024;

/// Longer paths are looked for each time.
const PATH: usize = 512;

thread_local! {
    /// By the number of the handler, then by path.
    static FOUND: RefCell<HashMap<u64, HashMap<Box<str>, Entry>>> = RefCell::default();
}

struct Entry {
    script: Rc<Script>,
    since: Instant,
}

/// What tells the scripts of one handler from those of others.
#[derive(Debug)]
pub struct Seat(u64);

impl Seat {
    pub fn take() -> Seat {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Seat(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The script that `path` led to less than a second ago.
    pub fn recall(&self, path: &str) -> Option<Rc<Script>> {
        if path.len() > PATH {
            return None;
        }
        let now = osier::time::coarse_now();
        FOUND.with_borrow(|found| {
            let entry = found.get(&self.0)?.get(path)?;
            (now.saturating_duration_since(entry.since) < FRESH).then(|| entry.script.clone())
        })
    }

    pub fn remember(&self, path: &str, script: Script) -> Rc<Script> {
        let script = Rc::new(script);
        if path.len() <= PATH {
            FOUND.with_borrow_mut(|found| {
                if found.values().map(HashMap::len).sum::<usize>() >= SCRIPTS {
                    found.clear();
                }
                let entry = Entry {
                    script: script.clone(),
                    since: osier::time::coarse_now(),
                };
                found.entry(self.0).or_default().insert(path.into(), entry);
            });
        }
        script
    }
}
