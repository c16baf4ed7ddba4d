//! The dump: every fiber with its backtrace, every task.
//!
//! A suspended fiber is resumed to show itself: it notes what it waits for, takes the raw addresses of the frames on its own stack, and
//! suspends again, its waiting as it was. Between two fibers of its loop a worker does so with all of its fibers and sends
//! what they have noted; names are found for the addresses on another thread, once per address.
//!
//! ```text
//!   who asks ──▶ thread of the pool ── question, ring ──▶ worker: for each fiber: resume(Show) ─▶ fiber: SHOWN = frames
//!       ◀── Dump ── symbols ◀── answers, until the deadline ──┘                     ◀── suspend ──┘
//! ```
//!
//! `SHOWN` is the thread's: a fiber never leaves the thread on which it is asked.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::Location;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use osier_coro::stack::{self, Extent};

use super::watchdog;
pub use super::watchdog::Work;
use crate::wait::socket::Direction;
use crate::wait::{Socket, Waits};
use crate::worker::Worker;
use crate::worker::context::{self, Caller};
use crate::worker::core::Fiber;
use crate::worker::isolate::isolate;
use crate::worker::remote::{self, Remote};
use crate::{shield, unblock};

/// How long a worker has to hear the question.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a worker that has heard it may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Room that taking a backtrace needs on the stack: the unwinder's own frames are of some kilobytes.
const ROOM_BYTES: usize = 24 * 1024;
/// How many frames are kept of one fiber.
const FRAMES: usize = 128;

/// The note of a fiber about itself.
#[derive(Clone)]
pub(crate) struct Shown {
    pub(crate) fiber: Fiber,
    place: &'static Location<'static>,
    leaf: &'static str,
    socket: Option<Wait>,
    deadline: Option<Instant>,
    since: Option<Instant>,
    extent: Option<Extent>,
    /// Return addresses, the innermost first.
    frames: Vec<usize>,
    queued: bool,
}

/// The note of a worker about itself.
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

/// Notes where the calling fiber is. Runs on its stack, which may be nearly full.
fn show(fiber: Fiber, place: &'static Location<'static>, waits: Waits<'_>) {
    let extent = stack::extent();
    let room = extent.filter(|extent| extent.left_bytes >= ROOM_BYTES);
    // A panic here must not unwind the fiber.
    isolate(|| {
        let mut frames = Vec::new();
        let mut socket = None;
        if let Some(extent) = room {
            socket = waits.on.map(of_socket);
            frames = trace(extent);
        }
        let shown = Shown {
            fiber,
            place,
            leaf: waits.leaf,
            socket,
            deadline: waits.deadline,
            since: waits.since,
            extent,
            frames,
            queued: false,
        };
        SHOWN.with_borrow_mut(|place| *place = Some(Box::new(shown)));
    });
}

/// Everything that is suspended or at rest on this worker, whose thread this is.
pub(crate) fn answer(worker: &Worker) -> Answer {
    let mut fibers = Vec::new();
    worker.each_suspended(show, |queued| fibers.extend(shown(queued)));
    fibers.sort_by_key(|shown| shown.fiber.id());
    Answer {
        now: worker.clock().now(),
        fibers,
        resting: worker.resting(),
        unstarted: worker.unstarted(),
    }
}

/// Takes the note of the fiber that was just asked. `queued`: the fiber is ready.
fn shown(queued: bool) -> Option<Shown> {
    let shown = SHOWN.with_borrow_mut(Option::take)?;
    Some(Shown { queued, ..*shown })
}

/// The return addresses on this stack, of which so much is in use.
#[inline(never)]
fn trace(extent: Extent) -> Vec<usize> {
    let variable = 0u8;
    let here = std::hint::black_box(&raw const variable).addr();
    let mut frames = Vec::with_capacity(32);
    backtrace::trace(|frame| {
        frames.push(frame.ip().addr());
        // Behind the fiber's first frame comes the stack of the worker.
        let ours = frame.sp().addr().wrapping_sub(here) < extent.used_bytes || frame.sp().addr() < here;
        ours && frames.len() < FRAMES
    });
    frames
}

fn of_socket(socket: Socket<'_>) -> Wait {
    let name = |address: std::io::Result<socket2::SockAddr>| {
        let address = address.ok()?;
        let path = || address.as_pathname().map(|path| path.display().to_string());
        address.as_socket().map(|address| address.to_string()).or_else(path)
    };
    let socket2 = socket2::SockRef::from(&socket.fd);
    Wait::Socket {
        fd: socket.fd.as_raw_fd(),
        to_write: socket.direction == Direction::Write,
        local: name(socket2.local_addr()),
        peer: name(socket2.peer_addr()),
    }
}

/// Everything that the workers of this process run and wait for, from [`dump`] and [`Runtime::dump`](crate::Runtime::dump).
///
/// [`Display`](fmt::Display) writes it for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dump {
    /// The workers, in the order of their runtimes.
    pub workers: Vec<DumpedWorker>,
}

/// A worker, with what is on it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DumpedWorker {
    /// The name of its thread.
    pub name: String,
    /// A number of its runtime.
    pub runtime: u64,
    /// Its number in that, from 0.
    pub index: usize,
    /// If it did not answer within a second: what it runs. Its fibers are not known then.
    pub stuck: Option<Work>,
    /// Its fibers, by their ids. One that has called [`dump`] is there too, suspended in it.
    pub fibers: Vec<DumpedFiber>,
    /// Tasks that were spawned on it.
    pub tasks: Vec<DumpedTask>,
    /// How many [connections are at rest](crate::dormant) there.
    pub resting: usize,
    /// How many fibers are spawned there and not started.
    pub unstarted: usize,
}

/// A fiber that is suspended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DumpedFiber {
    /// Its id and name.
    pub fiber: Fiber,
    /// Where it was spawned.
    pub place: &'static Location<'static>,
    /// Its state.
    pub state: State,
    /// The reason of its wait; `None` if it has yielded.
    pub wait: Option<Wait>,
    /// Since when it waits, exact to a turn of its worker's loop.
    pub waited: Option<Duration>,
    /// The longest time that it will still wait.
    pub left: Option<Duration>,
    /// How much of its stack is in use.
    pub stack_bytes: usize,
    /// How much is left.
    pub stack_bytes_left: usize,
    /// Where it is, the innermost frame first, without the runtime's own at both ends. Empty if there was no room on its
    /// stack to find out (24 KiB).
    pub frames: Vec<Frame>,
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
    pub state: State,
    /// The type of its future, which for an `async` block names the function it stands in.
    pub future: &'static str,
    /// How long ago it was polled last, or spawned, exact to a turn of its worker's loop.
    pub waited: Option<Duration>,
}

/// The state of a fiber or task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
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
        /// Its descriptor.
        fd: RawFd,
        /// Until it can be written; else: read, or accepted from.
        to_write: bool,
        /// Its own address.
        local: Option<String>,
        /// That of the other end.
        peer: Option<String>,
    },
    /// Time.
    Timer,
    /// The end of a fiber.
    Join,
    /// Anything else: the function that waits.
    Other(String),
}

/// A frame of a backtrace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Frame {
    /// The function's path; its address if that is not known.
    pub function: String,
    /// The source file.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
}

/// Shows every fiber of this process with its backtrace, and every task.
///
/// Each worker stops for it, for some microseconds per fiber; a fiber that waits goes on waiting. The unwinder touches up to a few
/// pages of each fiber's stack that may not have been touched before.
/// A worker that does not answer within a second is shown with what it runs, and so is an [embedded](crate::runtime::embed) one
/// whose host does not turn it.
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
pub fn dump() -> Dump {
    gather(remote::all().collect())
}

/// The dump of some workers, from wherever this is called.
pub(crate) fn gather(remotes: Vec<&'static Remote>) -> Dump {
    match context::caller(|caller| matches!(caller, Caller::Fiber(..))) {
        // Not on the fiber's stack: finding symbols takes more than it may have.
        true => shield(|| unblock(move || collect(&remotes, None))),
        false => match context::worker(|worker| (worker.remote.id, answer(worker))) {
            None => collect(&remotes, None),
            Some(own) => thread::scope(|scope| {
                let collecting = scope.spawn(|| collect(&remotes, Some(own)));
                collecting.join().expect("collecting does not panic")
            }),
        },
    }
}

/// Asks the workers; `own`: the answer of the one whose thread waits for this.
pub(crate) fn collect(remotes: &[&'static Remote], own: Option<(u16, Answer)>) -> Dump {
    let (sender, receiver) = mpsc::channel();
    let mut answers: HashMap<u16, Answer> = own.into_iter().collect();
    let mut asked: Vec<&Remote> = Vec::new();
    for remote in remotes {
        if remote.desk.seat().is_some() && !answers.contains_key(&remote.id) {
            let sender = sender.clone();
            // A send fails when the asker has lost patience.
            remote.desk.ask(Box::new(move |worker| {
                drop(sender.send((worker.remote.id, answer(worker))))
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
            // The others have ended meanwhile.
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if began.elapsed() < PATIENCE => {}
            Err(RecvTimeoutError::Timeout) => {
                asked.retain(|remote| !remote.desk.is_asked() && began.elapsed() < ANSWER_WITHIN);
            }
        }
    }
    let works: Vec<Work> = remote::all().map(watchdog::work).collect();
    let mut symbols = Symbols::default();
    let mut workers: Vec<_> = remotes
        .iter()
        .filter_map(|remote| {
            let seat = remote.desk.seat()?;
            let answer = answers.remove(&remote.id);
            let stuck = answer.is_none().then(|| watchdog::work(remote));
            let answer = answer.unwrap_or_else(|| Answer {
                now: Instant::now(),
                fibers: Vec::new(),
                resting: 0,
                unstarted: 0,
            });
            Some(DumpedWorker {
                name: seat.name.clone(),
                runtime: seat.runtime,
                index: seat.index,
                stuck,
                fibers: answer
                    .fibers
                    .into_iter()
                    .map(|shown| shown.dumped(answer.now, &mut symbols))
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

/// The tasks that were spawned on a worker, of which some may run on others.
fn tasks(remote: &Remote, works: &[Work], now: Instant) -> Vec<DumpedTask> {
    let dumped = |(info, polled): (crate::worker::executor::Info, Option<Instant>)| DumpedTask {
        future: info.future,
        waited: polled.map(|polled| now.saturating_duration_since(polled)),
        state: match works.contains(&Work::Task { id: info.id }) {
            true => State::Running,
            false => State::Suspended,
        },
        id: info.id,
        name: info.name,
        place: info.place,
    };
    remote.tasks.infos().into_iter().map(dumped).collect()
}

impl Shown {
    fn dumped(self, now: Instant, symbols: &mut Symbols) -> DumpedFiber {
        let frames = between_ends(self.frames.iter().flat_map(|address| symbols.of(*address)).collect());
        let wait = self.socket.or_else(|| of_leaf(self.leaf, &frames));
        DumpedFiber {
            fiber: self.fiber,
            place: self.place,
            state: if self.queued { State::Ready } else { State::Suspended },
            wait,
            waited: self.since.map(|since| now.saturating_duration_since(since)),
            left: self.deadline.map(|deadline| deadline.saturating_duration_since(now)),
            stack_bytes: self.extent.map_or(0, |extent| extent.used_bytes),
            stack_bytes_left: self.extent.map_or(0, |extent| extent.left_bytes),
            frames,
        }
    }
}

/// The reason of a wait, by the name of the closure that polls and the function of the runtime that was called.
fn of_leaf(leaf: &str, frames: &[Frame]) -> Option<Wait> {
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
    let runtimes = |frame: &&Frame| frame.function.starts_with("osier::") || frame.function.starts_with("<osier::");
    let called = frames.iter().take_while(runtimes).last();
    Some(match &*function {
        name if name.starts_with("osier::time::") => Wait::Timer,
        name if name.starts_with("osier::worker::packet::") && name.ends_with("::join") => Wait::Join,
        _ => Wait::Other(called.map_or(function, |frame| frame.function.clone())),
    })
}

/// Names of addresses that were looked up.
#[derive(Default)]
struct Symbols(HashMap<usize, Vec<Frame>>);

impl Symbols {
    /// The functions at an address: several where some were inlined, the innermost first.
    fn of(&mut self, address: usize) -> Vec<Frame> {
        let find = || {
            let mut frames = Vec::new();
            backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
                frames.push(Frame {
                    function: match symbol.name() {
                        // The alternate form leaves out the hash at the end.
                        Some(name) => format!("{name:#}"),
                        None => format!("{address:#x}"),
                    },
                    file: symbol.filename().map(|path| path.display().to_string()),
                    line: symbol.lineno(),
                });
            });
            if frames.is_empty() {
                frames.push(Frame {
                    function: format!("{address:#x}"),
                    file: None,
                    line: None,
                });
            }
            frames
        };
        self.0.entry(address).or_insert_with(find).clone()
    }
}

/// Leaves out the runtime's frames at both ends: from the switch up, and from the start of the fiber down.
fn between_ends(mut frames: Vec<Frame>) -> Vec<Frame> {
    let is = |frame: &Frame, prefixes: &[&str]| prefixes.iter().any(|prefix| frame.function.starts_with(prefix));
    let core = |frame: &Frame| frame.function.starts_with("osier::worker::core::Core");
    let ends = |frame: &Frame, name| core(frame) && frame.function.ends_with(name);
    if let Some(last) = frames.iter().rposition(|frame| ends(frame, "::suspend")) {
        // The functions of `wait/mod.rs` itself, not those of its children.
        let children = [
            "block_on::",
            "cancel::",
            "descriptor::",
            "driver::",
            "leaf::",
            "sleep::",
            "socket::",
        ];
        let waiting = |frame: &&Frame| {
            let waits = frame.function.strip_prefix("osier::wait::");
            waits.is_some_and(|name| !children.iter().any(|child| name.starts_with(child)))
        };
        let waits = frames[last + 1..].iter().take_while(waiting).count();
        frames.drain(..=last + waits);
    }
    if let Some(first) = frames
        .iter()
        .position(|frame| core(frame) && frame.function.contains("::enter"))
    {
        frames.truncate(first);
        let inner = [
            "osier::worker::",
            "std::panicking::",
            "std::panic::",
            "core::panic::",
            "<core::panic::",
            "core::ops::function::",
            "__rust_try",
            "__rustc",
        ];
        while frames.last().is_some_and(|frame| is(frame, &inner)) {
            frames.pop();
        }
    }
    frames
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
        // The same backtrace is written once.
        let mut seen: HashMap<&[Frame], u64> = HashMap::new();
        for fiber in &self.fibers {
            writeln!(f, "  {fiber}")?;
            if fiber.frames.is_empty() {
                writeln!(f, "    no room for a backtrace")?;
                continue;
            }
            let first = *seen.entry(&fiber.frames).or_insert(fiber.fiber.id());
            if first != fiber.fiber.id() {
                writeln!(f, "    at the same place as fiber {first}")?;
                continue;
            }
            for (number, frame) in fiber.frames.iter().enumerate() {
                writeln!(f, "    {number:3}: {frame}")?;
            }
        }
        self.tasks.iter().try_for_each(|task| writeln!(f, "  {task}"))
    }
}

/// One line, without the backtrace.
impl fmt::Display for DumpedFiber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fiber {}", self.fiber.id())?;
        if let Some(name) = self.fiber.name() {
            write!(f, " '{name}'")?;
        }
        let state = match self.state {
            State::Running => "running",
            State::Ready => "ready",
            State::Suspended => "suspended",
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
            (State::Running, _) => write!(f, ", running"),
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

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.function)?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " at {file}:{line}"),
            (Some(file), None) => write!(f, " at {file}"),
            _ => Ok(()),
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
            assert_eq!(of_leaf(leaf, &[]), Some(wait));
        }
        assert_eq!(of_leaf("", &[]), None);
    }
}
