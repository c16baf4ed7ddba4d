//! The fibers that wait for a lock of `sync` which a stuck fiber or task holds.
//!
//! The watchdog asks every worker but the stuck one. Each resumes its suspended fibers with `Resume::Show`, as for a dump, and a
//! fiber that waits for a lock notes the lock's holder in [`NOTE`], a thread-local that its worker reads.

use std::cell::Cell;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::wait::Waits;
use crate::worker::core::Core;
use crate::worker::remote::{self, Remote};

/// How long the workers have to answer. One that is busy for longer is left out.
const PATIENCE: Duration = Duration::from_millis(100);

/// A fiber that waits for a lock.
struct Note {
    fiber: u64,
    holder: u64,
}

thread_local! {
    static NOTE: Cell<Option<Note>> = const { Cell::new(None) };
}

fn show(core: &Core<'_>, waits: Waits<'_>) {
    let note = waits.holder().map(|holder| Note {
        fiber: core.id(),
        holder,
    });
    NOTE.set(note);
}

/// The ids of the fibers of other workers than `stuck` that wait for a lock which `holder` holds.
pub(super) fn of(holder: u64, stuck: &Remote) -> Vec<u64> {
    let (sender, receiver) = mpsc::channel();
    let others = remote::all().filter(|remote| remote.id != stuck.id && remote.desk.owner().is_some());
    for remote in others {
        let sender = sender.clone();
        remote.desk.ask(Box::new(move |worker| {
            let mut fibers = Vec::new();
            worker.each_suspended(None, show, |_| {
                let note = NOTE.take().filter(|note| note.holder == holder);
                fibers.extend(note.map(|note| note.fiber));
            });
            // The send fails after the watchdog has given up.
            let _ = sender.send(fibers);
        }));
        remote.ring();
    }
    drop(sender);
    let until = Instant::now() + PATIENCE;
    let answer = || receiver.recv_timeout(until.saturating_duration_since(Instant::now()));
    std::iter::from_fn(|| answer().ok()).flatten().collect()
}
