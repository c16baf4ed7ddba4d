//! The part of a worker that other threads may touch: its inbox of wake-ups, its parker, its poller, which rings it,
//! and the timers and descriptors that leaves register (`wait/driver.rs`).
//!
//! A [`Remote`] is never freed. When its runtime ends it goes to a free list and serves a later worker. So a waker,
//! which is only a number, can find the remote at any time without a reference count, and a late waker causes a
//! spurious wake-up at worst. `TABLE` is the one process-wide table of scheduling; `wait/entry.rs` has the one
//! of sockets.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `slots[i].generation` | owner thread | any thread (relaxed: staleness only costs a spurious wake-up) |
//! | `slots[i].link`, `inbox` | any thread pushes, owner drains | `osier_queue::inbox` states the ordering |
//! | `parker` | `osier_queue::parker` | `osier_queue::parker` |
//! | `poller` | start and end of a worker, under the lock | whoever rings |
//! | `slots[i].{fiber, stack}` | owner thread, a fiber on it included | any thread (relaxed: for reports, which may be out of date) |
//! | `desk` | `worker/desk.rs` | `worker/desk.rs` |
//! | `edges`, `forgets_closed` | start of a worker | any thread (before it has a registration here) |
//! | `watches` | whoever registers (relaxed: a virtual clock asks) | owner thread |
//! | `plugs` | the thread that starts the worker (relaxed: a simulation has one thread) | whoever registers |
//! | `timers` | any thread, see `wait/driver.rs` | its driver |
//! | `descriptors` | any thread under its lock, after that of `poller` if it needs both | its driver |

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use std::time::Instant;

use osier_coro::stack::Label;
use osier_poll::Poller;
use osier_queue::clock::Sleeper;
use osier_queue::{Inbox, Link, Links, Parker};

use crate::wait::descriptor;
use crate::wait::driver::Timers;
use crate::wait::entry;
use crate::worker::context;
use crate::worker::desk::Desk;
use crate::worker::executor;
use crate::worker::table::Table;
use crate::worker::waker::{WORKERS_MAX, Word};

static TABLE: [OnceLock<&'static Remote>; WORKERS_MAX] = [const { OnceLock::new() }; WORKERS_MAX];
static FREE: Mutex<Free> = Mutex::new(Free {
    unused: Vec::new(),
    made: 0,
});

struct Free {
    unused: Vec<u16>,
    made: u16,
}

pub(crate) struct Remote {
    pub(crate) id: u16,
    pub(crate) inbox: Inbox,
    pub(crate) parker: Parker,
    /// The first id that no fiber of its workers has had. Written at the end of a worker, read at the start of the
    /// next.
    pub(crate) next_fiber: AtomicU64,
    poller: Mutex<Option<Arc<Poller>>>,
    /// Whether the poller reports edges, and half-closes by name. This flag and the next are written when the remote is
    /// claimed.
    edges: AtomicBool,
    /// Whether the poller forgets a descriptor that is closed.
    forgets_closed: AtomicBool,
    /// Something was registered with its poller.
    watches: AtomicBool,
    plugs: AtomicBool,
    pub(crate) timers: Timers,
    pub(crate) descriptors: descriptor::Table,
    /// The tasks that were spawned here.
    pub(crate) tasks: executor::Registry,
    pub(crate) desk: Desk,
    slots: Table<RemoteSlot>,
}

#[derive(Default)]
pub(crate) struct RemoteSlot {
    link: Link,
    pub(crate) generation: AtomicU32,
    /// The id of the fiber that was last started in the slot; 0 before the first fiber.
    pub(crate) fiber: AtomicU64,
    /// An address in the fiber's stack. Once the fiber has started, its stack pointer at its last suspension is stored there.
    pub(crate) stack: AtomicUsize,
}

impl RemoteSlot {
    /// Whether the slot has a tenant. After 2^27 tenants of one slot, each of which takes two
    /// generations, the answer may be wrong: it is for diagnostics.
    pub(crate) fn is_occupied(&self) -> bool {
        self.generation.load(Ordering::Relaxed) % 2 == 1
    }

    /// Notes the place on the fiber's own stack where each suspension stores the stack pointer.
    #[cfg(feature = "inspect")]
    pub(crate) fn set_place(&self, place: &AtomicUsize) {
        self.stack.store(std::ptr::from_ref(place).addr(), Ordering::Relaxed);
    }

    /// The id of the fiber that was last started here, and the label of its stack.
    pub(crate) fn tenant(&self) -> Option<(u64, &'static Label)> {
        let label = Label::at(self.stack.load(Ordering::Relaxed))?;
        Some((self.fiber.load(Ordering::Relaxed), label))
    }
}

impl Remote {
    /// Claims a remote for a worker that starts, with its `poller`, and whose time begins at `epoch`. Returns
    /// `None` when the process has [`WORKERS_MAX`].
    pub(crate) fn claim(poller: Arc<Poller>, epoch: Instant) -> Option<&'static Remote> {
        let mut free = FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let id = match free.unused.pop() {
            Some(id) => id,
            None if (free.made as usize) < WORKERS_MAX => {
                free.made += 1;
                free.made - 1
            }
            None => return None,
        };
        drop(free);
        let remote = TABLE[id as usize].get_or_init(|| {
            Box::leak(Box::new(Remote {
                id,
                inbox: Inbox::new(),
                parker: Parker::new(),
                next_fiber: AtomicU64::new(u64::from(id) << 48 | 1),
                poller: Mutex::new(None),
                edges: AtomicBool::new(true),
                forgets_closed: AtomicBool::new(true),
                watches: AtomicBool::new(false),
                plugs: AtomicBool::new(false),
                timers: Timers::new(),
                descriptors: descriptor::Table::default(),
                tasks: executor::Registry::new(),
                desk: Desk::new(),
                slots: Table::new(),
            }))
        });
        remote.plugs.store(false, Ordering::Relaxed);
        let can = poller.capabilities();
        remote.edges.store(can.edge && can.read_closed, Ordering::Relaxed);
        remote.forgets_closed.store(can.forgets_closed, Ordering::Relaxed);
        remote.watches.store(false, Ordering::Relaxed);
        remote.timers.restart(epoch);
        *remote.poller() = Some(poller);
        Some(remote)
    }

    /// Gives the remote back. Late wake-ups may still reach it, and do nothing.
    pub(crate) fn release(&self) {
        // First: a thread that has just taken this driver for a leaf registers nothing that the next lines would miss.
        *self.poller() = None;
        entry::forget_worker(self.id);
        // A leaf that waits here for time or for a descriptor registers with another driver.
        self.timers.end();
        self.descriptors.forget_all();
        self.tasks.reopen();
        FREE.lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .unused
            .push(self.id);
    }

    /// Removes the poller: a simulation drives this worker. The first wait for a descriptor makes another one.
    #[cfg(feature = "sim")]
    pub(crate) fn unplug(&self) {
        *self.poller() = None;
        self.plugs.store(true, Ordering::Relaxed);
    }

    /// Takes the events of the poller that a simulated worker has got, without a wait. Returns whether there were any.
    #[cfg(feature = "sim")]
    pub(crate) fn poll_now(&self, events: &mut osier_poll::Events) -> bool {
        let poller = self.poller().clone();
        let mut any = false;
        if let Some(poller) = poller
            && poller.wait(events, Some(std::time::Duration::ZERO)).is_ok()
        {
            for event in events.iter() {
                crate::wait::entry::dispatch(self, event);
                any = true;
            }
        }
        any
    }

    /// Makes the worker look at its queues. The caller has put something into one of them.
    pub(crate) fn ring(&self) {
        if self.parker.unpark()
            && let Some(poller) = &*self.poller()
        {
            // An eventfd write fails only when its counter is full, and then the poller is awake already.
            let _ = poller.notify();
        }
    }

    /// Whether the poller reports edges, so that a socket is registered once. Otherwise a socket is armed for each
    /// wait.
    #[inline]
    pub(crate) fn has_edges(&self) -> bool {
        self.edges.load(Ordering::Relaxed)
    }

    /// Whether a descriptor of ours may be closed without telling the poller.
    pub(crate) fn forgets_closed(&self) -> bool {
        self.forgets_closed.load(Ordering::Relaxed)
    }

    /// Whether anything was ever registered with its poller.
    pub(crate) fn watches(&self) -> bool {
        self.watches.load(Ordering::Relaxed)
    }

    /// Runs `with` on the poller of the worker, unless the worker has ended.
    pub(crate) fn with_poller<T>(&self, with: impl FnOnce(&Poller) -> T) -> Option<T> {
        self.watches.store(true, Ordering::Relaxed);
        let mut poller = self.poller();
        if poller.is_none() && self.plugs.load(Ordering::Relaxed) {
            *poller = Poller::new().ok().map(Arc::new);
        }
        poller.as_deref().map(with)
    }

    pub(crate) fn slot(&self, index: u32) -> Option<&RemoteSlot> {
        self.slots.get(index)
    }

    /// The slots that were made so far.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &RemoteSlot> {
        (0..).map_while(|index| self.slot(index))
    }

    /// The slot, made if it is not there yet. Owner thread only.
    pub(crate) fn slot_or_make(&self, index: u32) -> &RemoteSlot {
        self.slots.get_or_make(index, |_| RemoteSlot::default())
    }

    fn poller(&self) -> std::sync::MutexGuard<'_, Option<Arc<Poller>>> {
        self.poller.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A virtual clock sees whether a worker sleeps, and rings it.
impl Sleeper for &'static Remote {
    fn is_asleep(&self) -> bool {
        self.parker.is_prepared()
    }

    fn wake(&self) {
        self.ring();
    }
}

impl Links for Remote {
    fn link(&self, index: u32) -> &Link {
        &self.slot_or_make(index).link
    }
}

/// The remotes of all workers that exist or existed.
pub(crate) fn all() -> impl Iterator<Item = &'static Remote> {
    TABLE.iter().map_while(|remote| remote.get().copied())
}

/// The remote of a worker that exists or existed.
pub(crate) fn of(worker: u16) -> Option<&'static Remote> {
    TABLE.get(worker as usize)?.get().copied()
}

/// Wakes the tenant that `word` names: through the ready queue of this thread's worker, or through the inbox of
/// another's.
pub(crate) fn wake(word: Word) {
    if context::wake_here(word) {
        return;
    }
    let Some(remote) = of(word.worker()) else { return };
    let Some(slot) = remote.slot(word.slot()) else { return };
    if !word.is_generation(slot.generation.load(Ordering::Relaxed)) {
        return;
    }
    if remote.inbox.push(remote, word.slot()) {
        remote.ring();
    }
}
