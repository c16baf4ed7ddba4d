//! The scripts that a worker has found in the last second, with the FastCGI parameters that all requests for one of
//! them share.
//!
//! Each worker has one table for all handlers, keyed by the number of the handler and then by path. Only scripts that
//! exist are remembered. A missing script is looked for each time: otherwise clients could fill the table, and a new
//! script would stay unseen.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long an entry is valid. The backend gets the requests for a script that is removed meanwhile, and answers them.
const FRESH: Duration = Duration::from_secs(1);

/// The most entries of all handlers together. A full table is emptied: paths in frequent use soon return.
const SCRIPTS: usize = 1024;

/// The longest path that is remembered, in bytes.
const PATH: usize = 512;

thread_local! {
    /// The entries by the number of the handler, then by path. Clients choose the paths, so only these are hashed.
    static FOUND: RefCell<BTreeMap<usize, HashMap<Box<str>, Entry>>> = RefCell::default();
}

struct Entry {
    /// The result of [`of_script`](super::params::of_script).
    params: Arc<[u8]>,
    until: Instant,
    /// The generation of the folder that the script was found in.
    generation: u64,
}

/// The remembered scripts of one handler: its number in the table of every worker. A number is never reused.
#[derive(Debug)]
pub struct Scripts(usize);

impl Scripts {
    pub fn new() -> Scripts {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Scripts(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The parameters of the script that `path` led to less than a second ago, in the folder of this generation.
    pub fn recall(&self, path: &str, generation: u64) -> Option<Arc<[u8]>> {
        if path.len() > PATH {
            return None;
        }
        let now = osier::time::coarse_now();
        FOUND.with_borrow(|found| {
            let entry = found.get(&self.0)?.get(path)?;
            (now < entry.until && generation == entry.generation).then(|| entry.params.clone())
        })
    }

    /// Remembers a script of the folder with this generation.
    pub fn remember(&self, path: &str, params: Arc<[u8]>, generation: u64) {
        if path.len() > PATH {
            return;
        }
        FOUND.with_borrow_mut(|found| {
            if found.values().map(HashMap::len).sum::<usize>() >= SCRIPTS {
                found.clear();
            }
            let until = osier::time::coarse_now() + FRESH;
            found.entry(self.0).or_default().insert(
                path.into(),
                Entry {
                    params,
                    until,
                    generation,
                },
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_that_are_gone_leave_no_more_than_the_table_holds() {
        // Every reload makes new handlers.
        for _ in 0..3 * SCRIPTS {
            let scripts = Scripts::new();
            scripts.remember("/a.php", Arc::from(*b"x"), 0);
            assert_eq!(scripts.recall("/a.php", 0).as_deref(), Some(&b"x"[..]));
            assert_eq!(scripts.recall("/a.php", 1), None, "of another folder");
            assert!(FOUND.with_borrow(BTreeMap::len) <= SCRIPTS);
        }
    }
}
