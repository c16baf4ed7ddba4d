//! The watchdog: a thread that reports workers which have not turned their loop for too long, and what they run.
//!
//! The process has one such thread. The first runtime that wants it starts it, and it sleeps while no worker is
//! watched. It looks at each desk four times per limit. It counts looks, not time: a process that was stopped and
//! continues is not late.

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use crate::worker::desk::{Desk, NOTHING, TASK};
use crate::worker::remote::Remote;

/// The number of looks in a row that must find a worker in the same turn.
const LOOKS: u32 = 4;

static WATCHDOG: Watchdog = Watchdog {
    watched: Mutex::new(Vec::new()),
    come: Condvar::new(),
};

struct Watchdog {
    watched: Mutex<Vec<Watched>>,
    /// Notified when a worker comes or goes.
    come: Condvar,
}

struct Watched {
    remote: &'static Remote,
    limit: Duration,
    /// The time until the next look.
    left: Duration,
    phase: u64,
    /// The number of looks that have found the worker in this phase.
    looks: u32,
}

/// A guard: the worker is watched until this is dropped.
pub(crate) struct Watch(&'static Remote);

/// Starts the thread at the first call. A worker must not call this: a new thread bears the name of its creator until
/// it sets its own.
pub(crate) fn start() -> std::io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = STARTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !*started {
        let builder = thread::Builder::new().name("osier-watchdog".into());
        builder.spawn(|| WATCHDOG.run())?;
        *started = true;
    }
    Ok(())
}

/// Watches a worker from now on. A turn of its loop may take `limit`.
pub(crate) fn watch(remote: &'static Remote, limit: Duration) -> Watch {
    let limit = limit.max(LOOKS * Duration::from_millis(1));
    WATCHDOG.watched().push(Watched {
        remote,
        limit,
        left: limit / LOOKS,
        phase: 1,
        looks: 0,
    });
    WATCHDOG.come.notify_one();
    Watch(remote)
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHDOG
            .watched()
            .retain(|watched| !std::ptr::eq(watched.remote, self.0));
    }
}

impl Watchdog {
    fn watched(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.watched.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn run(&self) -> ! {
        let mut watched = self.watched();
        loop {
            let next = watched.iter().map(|watched| watched.left).min();
            let Some(next) = next else {
                watched = self.come.wait(watched).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            let waited = self.come.wait_timeout(watched, next);
            let (woken, timeout) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
            watched = woken;
            // A new worker gets its first look together with the next look at another one.
            if !timeout.timed_out() {
                continue;
            }
            let late: Vec<String> = watched
                .iter_mut()
                .filter_map(|watched| watched.look_after(next))
                .collect();
            if !late.is_empty() {
                drop(watched);
                late.iter().for_each(|line| eprintln!("{line}"));
                watched = self.watched();
            }
        }
    }
}

impl Watched {
    /// Looks, if the next look is due. Returns a report if this look finds the worker late.
    fn look_after(&mut self, slept: Duration) -> Option<String> {
        self.left = self.left.saturating_sub(slept);
        if !self.left.is_zero() {
            return None;
        }
        self.left = self.limit / LOOKS;
        let phase = self.remote.desk.phase.get();
        if phase != self.phase || phase % 2 == 1 {
            (self.phase, self.looks) = (phase, 0);
            return None;
        }
        self.looks = self.looks.saturating_add(1);
        let owner = self.remote.desk.owner().filter(|_| self.looks == LOOKS)?;
        let (limit, work) = (self.limit, work(self.remote));
        Some(format!(
            "osier: worker '{}' has not turned its loop for {limit:?}: it runs {work}; let osier::unblock() run what blocks, \
             and call osier::yield_now() in what computes",
            owner.name
        ))
    }
}

/// The work that a worker is busy with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work {
    /// Neither a fiber nor a task: the loop itself, or a callback.
    Loop,
    /// A fiber.
    Fiber {
        /// The fiber's [`id`](crate::fiber::Fiber::id).
        id: u64,
        /// The fiber's [`name`](crate::fiber::Fiber::name), cut to 48 bytes.
        name: Option<String>,
        /// The place where it was spawned.
        place: Option<&'static std::panic::Location<'static>>,
    },
    /// A task.
    Task {
        /// Its id.
        id: u64,
    },
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Loop => write!(f, "neither a fiber nor a task"),
            Work::Task { id } => write!(f, "the task {id}"),
            Work::Fiber { id, name, place } => {
                write!(f, "the fiber {id}")?;
                if let Some(name) = name {
                    write!(f, " '{name}'")?;
                }
                match place {
                    Some(place) => write!(f, " spawned at {place}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// The work that a worker has noted last.
pub(crate) fn work(remote: &Remote) -> Work {
    let Desk { running, .. } = &remote.desk;
    match running.get() {
        NOTHING => Work::Loop,
        task if task & TASK != 0 => Work::Task { id: task & !TASK },
        slot => match remote.slot(slot as u32).and_then(|slot| slot.tenant()) {
            None => Work::Loop,
            Some((id, label)) => {
                let mut name = [0; 48];
                let name = String::from_utf8_lossy(label.name(&mut name)).into_owned();
                Work::Fiber {
                    id,
                    name: Some(name).filter(|name| !name.is_empty()),
                    place: label.place(),
                }
            }
        },
    }
}
