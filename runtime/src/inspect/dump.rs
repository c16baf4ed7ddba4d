//! The dump: a list of all fibers with their backtraces and of all tasks.
//!
//! The worker resumes each suspended fiber with `Resume::Show`. The fiber then notes what it waits for and the return
//! addresses on its own stack, and suspends again; its wait does not change. A worker does this for all of its fibers
//! in one go, between two fibers of its loop, and sends the notes. Another thread turns the addresses into names,
//! each address once.
//!
//! ```text
//!   caller ──▶ thread of the pool ── question, ring ──▶ worker: for each fiber: resume(Show) ─▶ fiber: SHOWN = frames
//!       ◀── Dump ── symbols ◀── answers, until the deadline ──┘                     ◀── suspend ──┘
//! ```
//!
//! `SHOWN` is a thread-local: the fiber writes it and its worker reads it, on the same thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::Location;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use osier_coro::stack::{self, Extent};

pub use super::frames::StackFrame;
use super::frames::{self, Symbols};
use super::watchdog;
pub use super::watchdog::Work;
use crate::wait::fd::Fd;
use crate::wait::socket::Direction;
use crate::wait::{On, Socket, Waits};
use crate::worker::Worker;
use crate::worker::context::{self, Caller};
use crate::worker::core::{Core, Fiber, ShortId};
use crate::worker::isolate::isolate;
use crate::worker::remote::{self, Remote};
use crate::{shield, unblock};

/// How long a worker has to take the question.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a worker that has taken the question may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// The stack space that a backtrace needs: the unwinder's own frames take some kilobytes.
const ROOM_BYTES: usize = 24 * 1024;

/// One fiber's note about itself.
#[derive(Clone)]
pub(crate) struct Shown {
    pub(crate) fiber: Fiber,
    doing: Option<String>,
    place: &'static Location<'static>,
    leaf: &'static str,
    socket: Option<Wait>,
    /// The holder of the lock that it waits for, as a lock notes it.
    lock: Option<u64>,
    deadline: Option<Instant>,
    since: Option<Instant>,
    extent: Option<Extent>,
    /// Return addresses, the innermost first.
    frames: Vec<usize>,
    queued: bool,
}

/// One worker's note about itself.
#[derive(Clone)]
pub(crate) struct Answer {
    /// The time on the worker's clock.
    pub(crate) now: Instant,
    pub(crate) fibers: Vec<Shown>,
    pub(crate) resting: usize,
    pub(crate) unstarted: usize,
}

thread_local! {
    static SHOWN: RefCell<Option<Box<Shown>>> = const { RefCell::new(None) };
}

/// Notes where the calling fiber is. It runs on that fiber's stack, which may be nearly full.
fn show(core: &Core<'_>, waits: Waits<'_>) {
    let extent = stack::extent();
    let room = extent.is_some_and(|extent| extent.left_bytes >= ROOM_BYTES);
    // A panic here must not unwind the fiber.
    isolate(|| {
        let mut frames = Vec::new();
        let (mut socket, mut doing) = (None, None);
        if room {
            doing = core.doing();
            socket = match waits.on {
                Some(On::Socket(on)) => Some(of_socket(on)),
                Some(On::Time) => Some(Wait::Timer),
                _ => None,
            };
            frames = frames::trace();
        }
        let lock = waits.holder();
        let shown = Shown {
            fiber: core.fiber(),
            doing,
            place: core.place(),
            leaf: waits.leaf,
            socket,
            lock,
            deadline: waits.deadline,
            since: waits.since,
            extent,
            frames,
            queued: false,
        };
        SHOWN.with_borrow_mut(|place| *place = Some(Box::new(shown)));
    });
}

/// Collects all that is suspended or at rest on this worker, or one fiber. Only the worker's own thread may call it.
pub(crate) fn answer(worker: &Worker, only: Option<u64>) -> Answer {
    let mut fibers = Vec::new();
    worker.each_suspended(only, show, |queued| fibers.extend(shown(queued)));
    fibers.sort_by_key(|shown| shown.fiber.id());
    Answer {
        now: worker.clock().now(),
        fibers,
        resting: worker.resting(),
        unstarted: worker.unstarted(),
    }
}

/// Takes the note of the fiber that was just resumed. `queued` says whether the fiber is ready.
fn shown(queued: bool) -> Option<Shown> {
    let shown = SHOWN.with_borrow_mut(Option::take)?;
    Some(Shown { queued, ..*shown })
}

fn of_socket(socket: Socket<'_>) -> Wait {
    let name = |address: std::io::Result<socket2::SockAddr>| {
        let address = address.ok()?;
        let path = || address.as_pathname().map(|path| path.display().to_string());
        address.as_socket().map(|address| address.to_string()).or_else(path)
    };
    let fd = match socket.fd {
        Fd::System(fd) => fd,
        Fd::Simulated(simulated) => {
            return Wait::Socket {
                fd: -1,
                to_write: socket.direction == Direction::Write,
                local: simulated.local_addr().ok().map(|addr| addr.to_string()),
                peer: simulated.peer_addr().ok().map(|addr| addr.to_string()),
            };
        }
    };
    let socket2 = socket2::SockRef::from(&fd);
    Wait::Socket {
        fd: fd.as_raw_fd(),
        to_write: socket.direction == Direction::Write,
        local: name(socket2.local_addr()),
        peer: name(socket2.peer_addr()),
    }
}

/// All workers of this process, with what they run and what waits on them. Made by [`dump`] and
/// [`Runtime::dump`](crate::Runtime::dump).
///
/// [`Display`](fmt::Display) writes it for people to read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dump {
    /// The workers, in the order of their runtimes.
    pub workers: Vec<DumpedWorker>,
}

/// A worker with its fibers and tasks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DumpedWorker {
    /// The name of its thread.
    pub name: String,
    /// The number of its runtime.
    pub runtime: u64,
    /// Its number in the runtime, from 0.
    pub index: usize,
    /// The work that keeps it from answering, if it did not answer within a second. Its fibers are unknown then.
    pub stuck: Option<Work>,
    /// Its fibers, ordered by id. A fiber that called [`dump`] is in the list, suspended in that call.
    pub fibers: Vec<DumpedFiber>,
    /// The tasks that were spawned on it.
    pub tasks: Vec<DumpedTask>,
    /// The number of its [dormant connections](crate::dormant).
    pub resting: usize,
    /// The number of fibers that were spawned there and have not started.
    pub unstarted: usize,
}

/// A suspended fiber.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DumpedFiber {
    /// Its id and name.
    pub fiber: Fiber,
    /// Its work in the words of [`fiber::describe`](crate::fiber::describe): `GET /report, 127.0.0.1:5312` for a
    /// fiber that serves a request.
    pub doing: Option<String>,
    /// Where it was spawned.
    pub place: &'static Location<'static>,
    /// Its state.
    pub state: RunState,
    /// The reason of its wait; `None` if it has yielded.
    pub wait: Option<Wait>,
    /// How long it has been waiting, exact to one turn of its worker's loop.
    pub waited: Option<Duration>,
    /// The time left until its deadline, if it has one.
    pub left: Option<Duration>,
    /// The part of its stack that is in use.
    pub stack_bytes: usize,
    /// The part of its stack that is left.
    pub stack_bytes_left: usize,
    /// Its backtrace, the innermost frame first, without the runtime's own frames at both ends. Empty if the stack
    /// had less than 24 KiB left, and without the feature `backtrace`.
    pub frames: Vec<StackFrame>,
}

/// A spawned future.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DumpedTask {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: Option<Arc<str>>,
    /// Where it was spawned.
    pub place: &'static Location<'static>,
    /// Whether it is being polled; `Suspended` may also be ready.
    pub state: RunState,
    /// The type of its future. The type of an `async` block names the function around it.
    pub future: &'static str,
    /// The time since it was last polled or, before that, spawned; exact to one turn of its worker's loop.
    pub waited: Option<Duration>,
}

/// The state of a fiber or task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunState {
    /// It runs.
    Running,
    /// It will run when its turn comes.
    Ready,
    /// It waits.
    Suspended,
}

/// The reason of a fiber's wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// A socket of this runtime.
    Socket {
        /// Its descriptor; -1 for a simulated socket.
        fd: RawFd,
        /// Whether it waits to write. Otherwise it waits to read or to accept.
        to_write: bool,
        /// Its own address.
        local: Option<String>,
        /// The address of its peer.
        peer: Option<String>,
    },
    /// Time.
    Timer,
    /// The end of a fiber.
    Join,
    /// A lock of [`sync`](crate::sync).
    Lock {
        /// The function that waits.
        function: String,
        /// The fiber, task or thread that holds the lock; of several readers the last that came. `None` if it has just let go
        /// of it.
        holder: Option<Work>,
    },
    /// Anything else. Names the function that waits.
    Other(String),
}

/// Lists all fibers of this process with their backtraces, and all tasks.
///
/// Each worker stops for some microseconds per fiber. The waits of the fibers go on unchanged. The unwinder may touch
/// a few pages of a fiber's stack that were untouched before.
///
/// A worker that does not answer within a second is listed with what it runs. The same holds for an
/// [embedded](crate::runtime::embed) worker whose host does not turn it.
///
/// ```
/// osier::run(|| {
///     let sleeper = osier::fiber::Builder::new().name("sleeper");
///     let sleeper = sleeper.spawn_local(|| osier::sleep(std::time::Duration::from_secs(3600)));
///     osier::yield_now();
///     let dump = osier::dump();
///     let fibers = dump.workers.iter().flat_map(|worker| &worker.fibers);
///     assert!(fibers.clone().any(|dumped| dumped.fiber.name() == Some("sleeper")));
///     assert!(dump.to_string().contains("'sleeper' spawned at"), "{dump}");
///     sleeper.cancel();
/// });
/// ```
///
/// # Suspends
///
/// Until the workers have answered. Blocks the thread when called on a plain one, in a future or in a callback.
///
/// # Cancellation
///
/// Deferred to the next call.
#[doc(alias("taskdump", "console"))]
pub fn dump() -> Dump {
    gather(remote::all().collect(), None)
}

/// Shows one fiber, by its [`id`](Fiber::id), as [`dump`] does. `None` if the fiber has ended or not started, or if it keeps its worker
/// from answering for a second.
///
/// ```
/// osier::run(|| {
///     let caller = osier::fiber::current().unwrap();
///     let shown = osier::inspect::dump_fiber(caller.id()).unwrap();
///     assert_eq!(shown.fiber.id(), caller.id());
/// });
/// ```
///
/// # Suspends
///
/// Until its worker has answered. Blocks the thread when called on a plain one, in a future or in a callback.
///
/// # Cancellation
///
/// Deferred to the next call.
pub fn dump_fiber(id: u64) -> Option<DumpedFiber> {
    // A fiber stays with the worker that has started it and made its id.
    let remote = remote::of((id >> 48) as u16)?;
    let dumped = gather(vec![remote], Some(id));
    dumped.workers.into_iter().flat_map(|worker| worker.fibers).next()
}

/// Makes the dump of some workers, or of one of their fibers. Any thread, fiber or task may call it.
pub(crate) fn gather(remotes: Vec<&'static Remote>, only: Option<u64>) -> Dump {
    match context::caller(|caller| matches!(caller, Caller::Fiber(..))) {
        // Not on the fiber's stack: looking symbols up takes more stack than it may have.
        true => shield(|| unblock(move || collect(&remotes, only, None))),
        false => match context::worker(|worker| (worker.remote.id, answer(worker, only))) {
            None => collect(&remotes, only, None),
            Some(own) => thread::scope(|scope| {
                let collecting = scope.spawn(|| collect(&remotes, only, Some(own)));
                collecting.join().expect("collecting does not panic")
            }),
        },
    }
}

/// Makes a dump of what the workers answer. `own` has the answers of those that wait for this call.
pub(crate) fn collect(
    remotes: &[&'static Remote],
    only: Option<u64>,
    own: impl IntoIterator<Item = (u16, Answer)>,
) -> Dump {
    let mut answers: HashMap<u16, Answer> = own.into_iter().collect();
    ask(remotes, only, &mut answers);
    let works: Vec<Work> = remote::all().map(watchdog::work).collect();
    let mut symbols = Symbols::new();
    let mut holders = Holders::default();
    let mut workers: Vec<_> = remotes
        .iter()
        .filter_map(|remote| {
            let owner = remote.desk.owner()?;
            let answer = answers.remove(&remote.id);
            let stuck = answer.is_none().then(|| watchdog::work(remote));
            let answer = answer.unwrap_or_else(|| Answer {
                now: Instant::now(),
                fibers: Vec::new(),
                resting: 0,
                unstarted: 0,
            });
            Some(DumpedWorker {
                name: owner.name.clone(),
                runtime: owner.runtime,
                index: owner.index,
                stuck,
                fibers: answer
                    .fibers
                    .into_iter()
                    .map(|shown| shown.dumped(answer.now, &mut symbols, &mut holders))
                    .collect(),
                tasks: tasks(remote, &works, answer.now),
                resting: answer.resting,
                unstarted: answer.unstarted,
            })
        })
        .collect();
    workers.sort_by_key(|worker| (worker.runtime, worker.index));
    Dump { workers }
}

/// Asks the workers that have not answered, and waits for their answers as long as they may still come.
fn ask(remotes: &[&'static Remote], only: Option<u64>, answers: &mut HashMap<u16, Answer>) {
    let (sender, receiver) = mpsc::channel();
    let mut asked: Vec<&Remote> = Vec::new();
    for remote in remotes {
        if remote.desk.owner().is_some() && !answers.contains_key(&remote.id) {
            let sender = sender.clone();
            // The send fails after the caller has given up.
            remote.desk.ask(Box::new(move |worker| {
                drop(sender.send((worker.remote.id, answer(worker, only))))
            }));
            remote.ring();
            asked.push(remote);
        }
    }
    drop(sender);
    let began = Instant::now();
    while !asked.is_empty() {
        match receiver.recv_timeout(PATIENCE.saturating_sub(began.elapsed()).max(PATIENCE / 100)) {
            Ok((id, answer)) => {
                asked.retain(|remote| remote.id != id);
                answers.insert(id, answer);
            }
            // The remaining workers have ended.
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if began.elapsed() < PATIENCE => {}
            Err(RecvTimeoutError::Timeout) => {
                asked.retain(|remote| !remote.desk.is_asked() && began.elapsed() < ANSWER_WITHIN);
            }
        }
    }
}

/// The tasks that were spawned on a worker. Another worker may be running one of them.
fn tasks(remote: &Remote, works: &[Work], now: Instant) -> Vec<DumpedTask> {
    let dumped = |(info, polled): (crate::worker::executor::Info, Option<Instant>)| DumpedTask {
        future: info.future,
        waited: polled.map(|polled| now.saturating_duration_since(polled)),
        state: match works.contains(&Work::Task { id: info.id }) {
            true => RunState::Running,
            false => RunState::Suspended,
        },
        id: info.id,
        name: info.name,
        place: info.place,
    };
    remote.tasks.infos().into_iter().map(dumped).collect()
}

/// The holders of locks by the ids that locks note. Many fibers may wait for one lock, and finding a fiber takes time.
#[derive(Default)]
struct Holders(HashMap<u64, Option<Work>>);

impl Holders {
    fn of(&mut self, id: u64) -> Option<Work> {
        self.0.entry(id).or_insert_with(|| watchdog::holder(id)).clone()
    }
}

impl Shown {
    fn dumped(self, now: Instant, symbols: &mut Symbols, holders: &mut Holders) -> DumpedFiber {
        let frames = symbols.between_ends(&self.frames);
        let called = symbols.called(&frames);
        let wait = self.socket.or_else(|| of_leaf(self.leaf, called));
        let wait = match (self.lock, wait) {
            (Some(id), Some(Wait::Other(function))) => Some(Wait::Lock {
                function,
                holder: holders.of(id),
            }),
            (_, wait) => wait,
        };
        DumpedFiber {
            fiber: self.fiber,
            doing: self.doing,
            place: self.place,
            state: if self.queued {
                RunState::Ready
            } else {
                RunState::Suspended
            },
            wait,
            waited: self.since.map(|since| now.saturating_duration_since(since)),
            left: self.deadline.map(|deadline| deadline.saturating_duration_since(now)),
            stack_bytes: self.extent.map_or(0, |extent| extent.used_bytes),
            stack_bytes_left: self.extent.map_or(0, |extent| extent.left_bytes),
            frames,
        }
    }
}

/// Derives the reason of a wait from the type name of the closure that polls (`leaf`) and from the function of the
/// runtime that was called.
fn of_leaf(leaf: &str, called: Option<&StackFrame>) -> Option<Wait> {
    if leaf.is_empty() {
        return None;
    }
    let mut function = String::new();
    let mut depth = 0;
    for part in leaf.replace("::{{closure}}", "").chars() {
        depth += i32::from(part == '<');
        if depth == 0 {
            function.push(part);
        }
        depth -= i32::from(part == '>');
    }
    let function = if function.is_empty() || depth != 0 {
        leaf.to_owned()
    } else {
        function
    };
    Some(match &*function {
        name if name.starts_with("osier::time::") => Wait::Timer,
        name if name.starts_with("osier::worker::packet::") && name.ends_with("::join") => Wait::Join,
        _ => Wait::Other(called.map_or(function, |frame| frame.function.clone())),
    })
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.workers.iter().try_for_each(|worker| worker.fmt(f))
    }
}

impl fmt::Display for DumpedWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker '{}' of runtime {}: ", self.name, self.runtime)?;
        match &self.stuck {
            Some(work) => write!(f, "stuck: it does not answer and runs {work}")?,
            None => write!(
                f,
                "{} fibers, {} not started, {} connections at rest",
                self.fibers.len(),
                self.unstarted,
                self.resting
            )?,
        }
        writeln!(f, ", {} tasks", self.tasks.len())?;
        // Fibers with equal backtraces refer to the first of them.
        let mut seen: HashMap<&[StackFrame], u64> = HashMap::new();
        for fiber in &self.fibers {
            writeln!(f, "  {fiber}")?;
            if fiber.frames.is_empty() {
                writeln!(f, "    no room for a backtrace")?;
                continue;
            }
            let first = *seen.entry(&fiber.frames).or_insert(fiber.fiber.id());
            if first != fiber.fiber.id() {
                writeln!(f, "    at the same place as fiber {}", ShortId(first))?;
                continue;
            }
            for (number, frame) in fiber.frames.iter().enumerate() {
                writeln!(f, "    {number:3}: {frame}")?;
            }
        }
        self.tasks.iter().try_for_each(|task| writeln!(f, "  {task}"))
    }
}

/// Writes one line, without the backtrace.
impl fmt::Display for DumpedFiber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fiber {}", ShortId(self.fiber.id()))?;
        if let Some(name) = self.fiber.name() {
            write!(f, " '{name}'")?;
        }
        if let Some(doing) = &self.doing {
            write!(f, " ({doing})")?;
        }
        let state = match self.state {
            RunState::Running => "running",
            RunState::Ready => "ready",
            RunState::Suspended => "suspended",
        };
        write!(f, " spawned at {}: {state}", self.place)?;
        if let Some(waited) = self.waited {
            write!(f, " for {waited:.1?}")?;
        }
        if let Some(wait) = &self.wait {
            write!(f, ", {wait}")?;
        }
        if let Some(left) = self.left {
            write!(f, ", {left:.1?} left")?;
        }
        write!(
            f,
            "; {} bytes of stack, {} left",
            self.stack_bytes, self.stack_bytes_left
        )
    }
}

impl fmt::Display for DumpedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.id)?;
        if let Some(name) = &self.name {
            write!(f, " '{name}'")?;
        }
        write!(f, " spawned at {}: {}", self.place, self.future)?;
        match (self.state, self.waited) {
            (RunState::Running, _) => write!(f, ", running"),
            (_, Some(waited)) => write!(f, ", waiting for {waited:.1?}"),
            (_, None) => Ok(()),
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Timer => write!(f, "waiting for a timer"),
            Wait::Join => write!(f, "waiting for the end of a fiber"),
            Wait::Other(function) => write!(f, "waiting in {function}"),
            Wait::Lock { function, holder } => {
                write!(f, "waiting in {function} for a lock")?;
                match holder {
                    Some(holder) => write!(f, " that {holder} holds"),
                    None => Ok(()),
                }
            }
            Wait::Socket {
                fd,
                to_write,
                local,
                peer,
            } => {
                let what = if *to_write { "write" } else { "read" };
                write!(f, "waiting to {what} socket {fd}")?;
                if let Some(local) = local {
                    write!(f, " at {local}")?;
                }
                match peer {
                    Some(peer) => write!(f, " to {peer}"),
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closure_names_the_function_that_waits() {
        for (leaf, wait) in [
            ("osier::time::sleep::{{closure}}", Wait::Timer),
            ("osier::worker::packet::Handle<T>::join::{{closure}}", Wait::Join),
            ("a::B<C<D>>::e::{{closure}}::{{closure}}", Wait::Other("a::B::e".into())),
        ] {
            assert_eq!(of_leaf(leaf, None), Some(wait));
        }
        assert_eq!(of_leaf("", None), None);
    }
}
