//! The watchdog: names a worker that has not turned its loop for too long, and what it runs.
//!
//! One thread for the whole process, started with the first runtime that wants it; while there is none it sleeps. It looks at
//! each desk four times per limit and counts looks, not time: a process that was stopped and goes on is not late.

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use crate::worker::desk::{Desk, NOTHING, TASK};
use crate::worker::remote::Remote;

/// How many looks in a row must find a worker in the same turn.
const LOOKS: u32 = 4;

static WATCHDOG: Watchdog = Watchdog {
    watched: Mutex::new(Vec::new()),
    come: Condvar::new(),
};

struct Watchdog {
    watched: Mutex<Vec<Watched>>,
    /// A worker has come, or gone.
    come: Condvar,
}

struct Watched {
    remote: &'static Remote,
    limit: Duration,
    /// Until the next look.
    left: Duration,
    phase: u64,
    /// How many looks have found it in this phase.
    looks: u32,
}

/// A worker is watched for as long as this is.
pub(crate) struct Watch(&'static Remote);

/// Starts the thread, the first time. Not to be called by a worker: until the thread has a name it goes by that of its maker.
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

/// Watches a worker from now on: a turn may take `limit`.
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
            // The one that has come is looked at when the first of the others is.
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
    /// Looks, if it is time; the report if this look makes it late.
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
        let seat = self.remote.desk.seat().filter(|_| self.looks == LOOKS)?;
        let (limit, work) = (self.limit, work(self.remote));
        Some(format!(
            "osier: worker '{}' has not turned its loop for {limit:?}: it runs {work}; let osier::unblock() run what blocks, \
             and call osier::yield_now() in what computes",
            seat.name
        ))
    }
}

/// The work that a worker is busy with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work {
    /// Neither a fiber nor a task: its own loop, a callback.
    Loop,
    /// A fiber.
    Fiber {
        /// As [`Fiber::id`](crate::fiber::Fiber::id).
        id: u64,
        /// As [`Fiber::name`](crate::fiber::Fiber::name), at most its first 48 bytes.
        name: Option<String>,
        /// Where it was spawned.
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

/// The work that a worker has last noted.
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
