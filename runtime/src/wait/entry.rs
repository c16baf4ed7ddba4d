//! The entries of sockets: what pollers have reported, and who waits.
//!
//! They are in a process-wide table. Entries are never freed, only reused under a new generation. So an event that was
//! taken from the poller before a close finds its entry or changes nothing. At worst it wakes a waiter of another socket
//! for nothing.
//!
//! The state of one entry is an `osier_queue::readiness::Readiness`. That module has the rules and their reasons, and
//! models check them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use osier_poll::{Event, Interest, Ready, Token};
use osier_queue::WaitList;
use osier_queue::readiness::{CLOSED, Direction, ERROR, HUP, PRIORITY, READ_CLOSED, READABLE, Readiness, WRITABLE};

use crate::wait::descriptor::FOREIGN;
use crate::wait::driver;
use crate::worker::remote::{self, Remote};
use crate::worker::table::Table;
use crate::worker::waker::Word;

/// One entry of the table. A cache line for each would cost an idle connection eight bytes more, and has shown no gain.
#[derive(Default)]
pub(crate) struct Entry {
    pub(super) state: Readiness,
    /// The word of the connection at rest that this socket wakes; 0 for none.
    pub(super) dormant: AtomicU64,
}

impl Entry {
    /// Whether the peer is gone: it has reset the connection or closed both directions, or, if `fin_counts`, its own.
    pub(crate) fn is_gone(&self, fin_counts: bool) -> bool {
        let gone = if fin_counts { CLOSED } else { HUP | ERROR };
        self.state.snapshot().has(gone)
    }

    /// Whether a read may find something: bytes, the end, an error. Closed bits set this bit too, and a read that finds
    /// nothing in spite of them clears it, because a datagram socket goes on after an error.
    pub(crate) fn is_readable(&self) -> bool {
        self.state.snapshot().has(READABLE)
    }

    /// Whether the poller of this worker reports what there is to read.
    #[inline]
    pub(crate) fn is_reported_to(&self, worker: u16) -> bool {
        self.state.snapshot().owner(Direction::Read) == Some(worker)
    }

    /// Whether a write may be taken, or would find an error. As for reads, HUP and ERR set this bit too, and a write that is refused in
    /// spite of them clears it.
    pub(crate) fn is_writable(&self) -> bool {
        self.state.snapshot().has(WRITABLE)
    }

    /// Makes the next call in that direction try the socket, although no event says that it would succeed.
    pub(crate) fn try_again(&self, direction: Direction) {
        let now = self.state.snapshot();
        self.state.set(now.generation(), direction.bit());
    }

    /// Sets the connection that the events of this socket wake. It knows which of them it waits for.
    pub(crate) fn set_dormant(&self, word: Option<Word>) {
        self.dormant.store(word.map_or(0, Word::to_bits), Ordering::Release);
    }

    /// The waiters for reading. Every edge of the read side wakes them, closed bits included.
    pub(crate) fn readers(&self) -> &WaitList {
        self.state.list(Direction::Read)
    }
}

/// Never freed, only reused.
static TABLE: Table<Entry> = Table::new();
pub(super) static FREE: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 0));

#[inline]
pub(super) fn at(index: u32) -> &'static Entry {
    TABLE
        .get(index)
        .unwrap_or_else(|| TABLE.get_or_make(index, |_| Entry::default()))
}

/// Takes away what worker `id` owned, which has ended. Calls that wait there, on workers
/// of other runtimes, register anew. A waker that panics keeps none of the others from being woken.
pub(crate) fn forget_worker(id: u16) {
    let made = FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).1;
    driver::each((0..made).map(at), |entry| entry.state.forget_worker(id));
}

/// Makes a token: bits 0..32 the index, 32..48 the generation; bit 63 is that of the tables of descriptors.
pub(super) fn token(index: u32, generation: u16) -> Token {
    Token(u64::from(generation) << 32 | u64::from(index))
}

/// Takes an event: sets the entry's bits and wakes the waiters that it concerns.
pub(crate) fn dispatch(driver: &Remote, event: Event) {
    let Event {
        token: Token(token),
        readiness,
    } = event;
    if token & FOREIGN != 0 {
        return driver.descriptors.dispatch(token & !FOREIGN, readiness);
    }
    let bits = match readiness == Ready::READABLE {
        true => READABLE,
        false => bits_of(readiness),
    };
    let Some(entry) = mark(token, bits) else { return };
    // Without edges both directions are disarmed now. A waiter that the event does not concern arms again.
    let concerned = if driver.has_edges() { bits } else { READABLE | WRITABLE };
    if concerned != 0 {
        let dormant = entry.dormant.load(Ordering::Acquire);
        if dormant != 0 {
            remote::wake(Word::from_bits(dormant));
        }
    }
    entry.state.wake(concerned);
}

/// The bits that an event sets.
fn bits_of(readiness: Ready) -> u64 {
    let has = |flag: Ready, bits: u64| if readiness.contains(flag) { bits } else { 0 };
    has(Ready::READABLE, READABLE)
        | has(Ready::WRITABLE, WRITABLE)
        | has(Ready::READ_CLOSED, READABLE | READ_CLOSED)
        | has(Ready::PRIORITY, READABLE | PRIORITY)
        | has(Ready::HUP, READABLE | WRITABLE | HUP)
        | has(Ready::ERROR, READABLE | WRITABLE | ERROR)
}

/// The interest whose events report `bits`.
pub(super) fn interest_in(bits: u64) -> Interest {
    let wanted = |bit: u64, interest: Interest| if bits & bit != 0 { interest } else { Interest::NONE };
    wanted(READABLE, Interest::READABLE | Interest::PRIORITY) | wanted(WRITABLE, Interest::WRITABLE)
}

/// Sets bits of the entry that a token names, if it is still the same one.
pub(super) fn mark(token: u64, bits: u64) -> Option<&'static Entry> {
    let entry = at(token as u32);
    entry.state.set((token >> 32) as u16, bits).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_place_for_every_index() {
        let mut before = at(0) as *const Entry;
        for index in 1..5000 {
            let entry: *const Entry = at(index);
            assert_ne!(entry, before);
            before = entry;
        }
    }
}
