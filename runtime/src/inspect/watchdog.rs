//! The watchdog: a thread that reports workers which have not turned their loop for too long, and what they run.
//!
//! The process has one such thread. The first runtime that wants it starts it, and it sleeps while no worker is
//! watched. It looks at each desk four times per limit. It counts looks, not time: a process that was stopped and
//! continues is not late.

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, Once};
use std::time::Duration;

use osier_coro::stack::Label;

use super::{stuck, waiters};
use crate::worker::context::THREAD;
use crate::worker::core::ShortId;
use crate::worker::desk::{Desk, NOTHING, TASK};
use crate::worker::remote::{self, Remote, RemoteSlot};
use crate::worker::service::start_service;
use crate::worker::stderr::say;

/// The most waiters for a lock that a report names.
const WAITERS_LISTED: usize = 8;

/// The number of looks in a row that must find a worker in the same turn.
const LOOKS: u32 = 4;

static WATCHDOG: Watchdog = Watchdog {
    watched: Mutex::new(Vec::new()),
    changed: Condvar::new(),
};

struct Watchdog {
    watched: Mutex<Vec<Watched>>,
    /// Notified when a worker comes or goes.
    changed: Condvar,
}

struct Watched {
    remote: &'static Remote,
    /// The kernel's number of the worker's thread.
    thread: i32,
    limit: Duration,
    /// The time until the next look.
    left: Duration,
    phase: u64,
    /// The number of looks that have found the worker in this phase.
    looks: u32,
}

/// The limit that the environment variable `OSIER_WATCHDOG` sets: `1s`, `500ms`, or `off`. `None` if it is not set, or says
/// something else, which a line reports once.
pub(crate) fn limit_of_environment() -> Option<Option<Duration>> {
    static REPORTED: Once = Once::new();
    let text = std::env::var_os("OSIER_WATCHDOG")?;
    let limit = text.to_str().and_then(|text| read_limit(text.trim()));
    if limit.is_none() {
        REPORTED.call_once(|| {
            say(format_args!(
                "osier: OSIER_WATCHDOG is {text:?}, which is ignored: write 1s, 500ms or off"
            ))
        });
    }
    limit
}

fn read_limit(text: &str) -> Option<Option<Duration>> {
    if matches!(text, "off" | "0") {
        return Some(None);
    }
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Some(Duration::from_millis(number))),
        "s" | "" => Some(Some(Duration::from_secs(number))),
        _ => None,
    }
}

/// A guard: the worker is watched until this is dropped.
pub(crate) struct Watch(&'static Remote);

/// Starts the thread at the first call. A worker must not call this: a new thread bears the name of its creator until
/// it sets its own.
pub(crate) fn start() -> std::io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = STARTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !*started {
        stuck::prepare();
        start_service("osier-watchdog", || WATCHDOG.run())?;
        *started = true;
    }
    Ok(())
}

/// Watches a worker from now on, on its own thread. A turn of its loop may take `limit`.
pub(crate) fn watch(remote: &'static Remote, limit: Duration) -> Watch {
    let limit = limit.max(LOOKS * Duration::from_millis(1));
    WATCHDOG.watched().push(Watched {
        remote,
        thread: stuck::thread_id(),
        limit,
        left: limit / LOOKS,
        phase: 1,
        looks: 0,
    });
    WATCHDOG.changed.notify_one();
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
                watched = self
                    .changed
                    .wait(watched)
                    .unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            let waited = self.changed.wait_timeout(watched, next);
            let (woken, timeout) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
            watched = woken;
            // A new worker gets its first look together with the next look at another one.
            if !timeout.timed_out() {
                continue;
            }
            let late: Vec<Late> = watched
                .iter_mut()
                .filter_map(|watched| watched.look_after(next))
                .collect();
            if !late.is_empty() {
                drop(watched);
                late.iter().for_each(Late::report);
                watched = self.watched();
            }
        }
    }
}

impl Watched {
    /// Looks, if the next look is due. Returns a report if this look finds the worker late.
    fn look_after(&mut self, slept: Duration) -> Option<Late> {
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
        (self.looks == LOOKS).then_some(Late {
            remote: self.remote,
            thread: self.thread,
            limit: self.limit,
        })
    }
}

/// A worker that is late.
struct Late {
    remote: &'static Remote,
    thread: i32,
    limit: Duration,
}

impl Late {
    /// Writes lines for the operator: who is late and what it runs, which fibers may hold what it waits for, which fibers wait
    /// for what it holds, and where it is. The names of its functions come last: finding them takes long.
    fn report(&self) {
        let Some(owner) = self.remote.desk.owner() else {
            return;
        };
        let (limit, work) = (self.limit, work(self.remote));
        let mut stuck = stuck::look(self.thread);
        let doing = stuck
            .doing
            .take()
            .map(|doing| format!(" ({doing})"))
            .unwrap_or_default();
        say(format_args!(
            "osier: worker '{}' has not turned its loop for {limit:?}: it runs {work}{doing}; {}",
            owner.name,
            work.advice()
        ));
        let running = match work {
            Work::Fiber { id, .. } => id,
            Work::Loop | Work::Task { .. } | Work::Thread => 0,
        };
        for (id, label) in stuck::holders(self.remote, self.thread, running) {
            say(format_args!(
                "osier: it waits for a std lock, to which fiber {}{label} refers: a fiber that holds one must not wait; \
                 osier::sync::Mutex may be held",
                ShortId(id)
            ));
        }
        self.report_waiters(&work);
        for (number, frame) in stuck.frames().iter().enumerate() {
            say(format_args!("    {number:3}: {frame}"));
        }
    }

    /// Writes which fibers of other workers wait for a lock of `sync` that the late work holds.
    fn report_waiters(&self, work: &Work) {
        let holder = match work {
            Work::Fiber { id, .. } => *id,
            Work::Task { id } => id | TASK,
            Work::Loop | Work::Thread => return,
        };
        let waiters = waiters::of(holder, self.remote);
        let listed = waiters.len().min(WAITERS_LISTED);
        for waiter in waiters[..listed].iter().filter_map(|id| self::holder(*id)) {
            say(format_args!(
                "osier: {waiter} waits for an osier::sync lock that it holds"
            ));
        }
        if waiters.len() > listed {
            say(format_args!(
                "osier: {} more fibers wait for a lock that it holds",
                waiters.len() - listed
            ));
        }
    }
}

/// The work that a worker is busy with, or the holder of a lock.
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
    /// A plain thread, as the holder of a lock.
    Thread,
}

impl Work {
    /// The calls that keep the worker free. Only a fiber may wait, so a task or a callback spawns one.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            Work::Fiber { .. } => {
                "let osier::unblock() run what blocks, and call osier::fiber::give_way() in what computes"
            }
            Work::Task { .. } => {
                "let a fiber run what blocks, by osier::spawn(|| osier::unblock(..)).await, and await \
                 osier::future::yield_now() in what computes"
            }
            Work::Loop | Work::Thread => {
                "let a fiber run what blocks or computes, by osier::spawn(|| osier::unblock(..))"
            }
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Loop => write!(f, "neither a fiber nor a task"),
            Work::Thread => write!(f, "a plain thread"),
            Work::Task { id } => write!(f, "the task {id}"),
            Work::Fiber { id, name, place } => {
                write!(f, "the fiber {}", ShortId(*id))?;
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
            Some((id, label)) => fiber(id, label),
        },
    }
}

pub(super) fn fiber(id: u64, label: &Label) -> Work {
    let mut name = [0; 48];
    let name = String::from_utf8_lossy(label.name(&mut name)).into_owned();
    Work::Fiber {
        id,
        name: Some(name).filter(|name| !name.is_empty()),
        place: label.place(),
    }
}

/// The holder of a lock, by the id that the lock notes. `None` for nobody.
pub(super) fn holder(id: u64) -> Option<Work> {
    match id {
        0 => None,
        THREAD => Some(Work::Thread),
        task if task & TASK != 0 => Some(Work::Task { id: task & !TASK }),
        id => {
            // A fiber stays with the worker that has started it and made its id.
            let slots = remote::of((id >> 48) as u16).into_iter().flat_map(Remote::slots);
            let found = slots.filter_map(RemoteSlot::tenant).find(|(tenant, _)| *tenant == id);
            Some(match found {
                Some((id, label)) => fiber(id, label),
                None => Work::Fiber {
                    id,
                    name: None,
                    place: None,
                },
            })
        }
    }
}
