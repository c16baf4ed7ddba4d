//! Sources: sockets of ours as the loop sees them. Sticky readiness, who owns which direction, who waits.
//!
//! A source is a slot of a process-wide table that is never freed, only reused under a new generation, so an event that was
//! harvested before a close finds its source or changes nothing; at worst it wakes a stranger spuriously. A stream gets one at its first
//! would-block ([`Watched`]), not before.
//!
//! ```text
//!   state:  63        48 47    34 33         21 20        8 7        0
//!          │ generation │  epoch  │ write owner │ read owner │ readiness │       owner = worker + 1, 0 = nobody
//! ```
//!
//! The rules, each with its reason:
//! - A registration is edge-triggered for everything; a worker that sees an edge sets the bits ([`dispatch`]) and wakes.
//! - A bit is cleared only by a would-block or short read on the direction's owner, against the state seen *before* the
//!   call, epoch included. The owner's edges are dispatched by the same thread, so none comes between call and clear;
//!   somebody else's move bumps the epoch, so the clear fails.
//! - A fiber about to wait makes its worker the owner: remove the registration at the former owner, forget the direction's
//!   bit, register (or re-arm) here, which reports present readiness as an edge. All under `moving`.
//! - It links its waiter *before* that. So whoever owns the direction later has taken `moving` after it and sees the waiter.
//! - Closed bits (RDHUP, HUP, ERR) are never cleared while the stream lives. They also count as readable (and HUP and ERR as
//!   writable) once, so that the next call meets what the kernel has to say.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::task::Poll;
use std::time::Instant;

use osier_poll::{Event, Interest, Mode, Readiness, Token};
use osier_queue::WaitList;
use rustix::event::{PollFd, PollFlags};

use crate::cancel::Waiting;
use crate::context::{self, Caller, Frame};
use crate::waker::Word;
use crate::worker::Worker;
use crate::{remote, wait};

const READABLE: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const READ_CLOSED: u64 = 1 << 2;
const HUP: u64 = 1 << 3;
const ERROR: u64 = 1 << 4;
const PRIORITY: u64 = 1 << 5;
/// Set on a source that must not be trusted with a short read: more may follow without another edge.
const CLOSED: u64 = READ_CLOSED | HUP | ERROR;

const OWNER_MASK: u64 = (1 << 13) - 1;
const READ_OWNER: u32 = 8;
const WRITE_OWNER: u32 = 21;
const EPOCH: u64 = 1 << 34;
const EPOCH_MASK: u64 = GENERATION - EPOCH;
const GENERATION: u64 = 1 << 48;

/// The two ways bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl Direction {
    fn bit(self) -> u64 {
        match self {
            Direction::Read => READABLE,
            Direction::Write => WRITABLE,
        }
    }

    fn owner_shift(self) -> u32 {
        match self {
            Direction::Read => READ_OWNER,
            Direction::Write => WRITE_OWNER,
        }
    }

    fn other(self) -> Direction {
        match self {
            Direction::Read => Direction::Write,
            Direction::Write => Direction::Read,
        }
    }
}

/// One slot of the table.
#[derive(Default)]
pub(crate) struct Source {
    state: AtomicU64,
    /// The word of the connection that is to be started when this becomes readable; 0: none.
    dormant: AtomicU64,
    moving: Mutex<()>,
    readers: WaitList,
    writers: WaitList,
}

impl Source {
    fn list(&self, direction: Direction) -> &WaitList {
        match direction {
            Direction::Read => &self.readers,
            Direction::Write => &self.writers,
        }
    }

    /// Whether the peer is gone: it reset or closed both ways, or, if `fin_counts`, its own.
    pub(crate) fn is_gone(&self, fin_counts: bool) -> bool {
        let gone = if fin_counts { CLOSED } else { HUP | ERROR };
        self.state.load(Ordering::Relaxed) & gone != 0
    }

    /// Whether a read would find something: bytes, the end, an error.
    pub(crate) fn is_readable(&self) -> bool {
        self.state.load(Ordering::Relaxed) & (READABLE | CLOSED) != 0
    }

    /// Sets the connection that this source starts when it becomes readable.
    pub(crate) fn set_dormant(&self, word: Option<Word>) {
        self.dormant.store(word.map_or(0, Word::to_bits), Ordering::Release);
    }

    /// Those who wait to read: woken at every edge of the read side, closed bits included.
    pub(crate) fn readers(&self) -> &WaitList {
        &self.readers
    }

    /// Gives the direction to another owner and forgets its bit; a new epoch. Returns the new state. Under `moving`.
    fn set_owner(&self, direction: Direction, owner: u64) -> u64 {
        let shift = direction.owner_shift();
        let moved = |state: u64| {
            let epoch = state.wrapping_add(EPOCH) & EPOCH_MASK;
            let kept = state & !(OWNER_MASK << shift | EPOCH_MASK | direction.bit());
            kept | epoch | owner << shift
        };
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            match self
                .state
                .compare_exchange(state, moved(state), Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return moved(state),
                Err(changed) => state = changed,
            }
        }
    }

    fn owner(&self, direction: Direction) -> u64 {
        owner_in(self.state.load(Ordering::Acquire), direction)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn owner_in(state: u64, direction: Direction) -> u64 {
    (state >> direction.owner_shift()) & OWNER_MASK
}

/// The table: chunks that double, as in `remote.rs`.
static TABLE: [OnceLock<Box<[Source]>>; 20] = [const { OnceLock::new() }; 20];
static FREE: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 0));
const FIRST_CHUNK: u32 = 256;

fn at(index: u32) -> &'static Source {
    let chunk = (index / FIRST_CHUNK).checked_ilog2().map_or(0, |log| log + 1);
    let (start, length) = match chunk {
        0 => (0, FIRST_CHUNK),
        _ => (FIRST_CHUNK << (chunk - 1), FIRST_CHUNK << (chunk - 1)),
    };
    let chunk = TABLE[chunk as usize].get_or_init(|| (0..length).map(|_| Source::default()).collect());
    &chunk[(index - start) as usize]
}

/// Takes away what worker `id`, which has ended, owned: its successor of this number knows none of it. Who still waits
/// there, on workers of other runtimes, registers anew.
pub(crate) fn forget_worker(id: u16) {
    let made = FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).1;
    for source in (0..made).map(at) {
        for direction in [Direction::Read, Direction::Write] {
            if source.owner(direction) != u64::from(id) + 1 {
                continue;
            }
            let moving = source.lock();
            if source.owner(direction) == u64::from(id) + 1 {
                source.set_owner(direction, 0);
            }
            drop(moving);
            source.list(direction).wake_all();
        }
    }
}

/// Bits 0..32 the index, 32..48 the generation; bit 63 is the foreign table's.
fn token(index: u32, state: u64) -> Token {
    Token((state / GENERATION) << 32 | u64::from(index))
}

/// The bit that says that a token belongs to a worker's table of foreign descriptors.
pub(crate) const FOREIGN: u64 = 1 << 63;

/// Takes an event: sets the source's bits and wakes whom it concerns.
pub(crate) fn dispatch(worker: &Worker, event: Event) {
    let Event {
        token: Token(token),
        readiness,
    } = event;
    if token & FOREIGN != 0 {
        return worker.foreign.dispatch(token & !FOREIGN, readiness);
    }
    let has = |flag: Readiness, bits: u64| if readiness.contains(flag) { bits } else { 0 };
    let bits = has(Readiness::READABLE, READABLE)
        | has(Readiness::WRITABLE, WRITABLE)
        | has(Readiness::READ_CLOSED, READABLE | READ_CLOSED)
        | has(Readiness::PRIORITY, READABLE | PRIORITY)
        | has(Readiness::HUP, READABLE | WRITABLE | HUP)
        | has(Readiness::ERROR, READABLE | WRITABLE | ERROR);
    let Some(source) = mark(token, bits) else { return };
    if bits & (READABLE | CLOSED) != 0 {
        let dormant = source.dormant.load(Ordering::Acquire);
        if dormant != 0 {
            remote::wake(Word::from_bits(dormant));
        }
        if !source.readers.is_empty() {
            source.readers.wake_all();
        }
    }
    if bits & WRITABLE != 0 && !source.writers.is_empty() {
        source.writers.wake_all();
    }
}

/// Sets bits of the source that a token names, if it is still the same one.
fn mark(token: u64, bits: u64) -> Option<&'static Source> {
    let source = at(token as u32);
    let same = |state: u64| (state / GENERATION == token >> 32).then_some(state | bits);
    let marked = source.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, same);
    marked.is_ok().then_some(source)
}

/// A descriptor of ours, non-blocking, with its source once it has one.
pub struct Watched {
    /// Here until `into_fd`, which ends this value.
    fd: Option<OwnedFd>,
    source: OnceLock<u32>,
    /// Another descriptor of the same description may exist (a dup, a borrowed raw fd, a child's): a ghost registration
    /// would outlive the close, so the close must remove it.
    exported: AtomicBool,
    /// A read shorter than its buffer has emptied the socket (a TCP stream).
    short_read_drains: bool,
}

impl Watched {
    /// Takes a descriptor that is non-blocking already.
    pub(crate) fn new(fd: OwnedFd, short_read_drains: bool) -> Watched {
        Watched {
            fd: Some(fd),
            source: OnceLock::new(),
            exported: AtomicBool::new(false),
            short_read_drains,
        }
    }

    /// Takes a descriptor that others may have copies of.
    pub(crate) fn from_outside(fd: OwnedFd, short_read_drains: bool) -> io::Result<Watched> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let watched = Watched::new(fd, short_read_drains);
        watched.exported.store(true, Ordering::Relaxed);
        Ok(watched)
    }

    /// The descriptor for a system call of ours that copies it nowhere.
    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd
            .as_ref()
            .expect("it is taken only by into_fd, which takes self")
            .as_fd()
    }

    /// The descriptor for somebody who may copy it.
    pub(crate) fn export(&self) -> BorrowedFd<'_> {
        self.exported.store(true, Ordering::Relaxed);
        self.fd()
    }

    /// Gives the descriptor away, out of every poller.
    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.exported.store(true, Ordering::Relaxed);
        self.leave();
        self.fd.take().expect("it is taken only here")
    }

    /// Does a call that reads or writes, waiting for readiness in between, at most until `deadline`.
    ///
    /// `call` gives a value and how many bytes of how many it moved; a would-block error makes it wait.
    #[inline]
    pub(crate) fn io<T>(
        &self,
        direction: Direction,
        deadline: impl FnOnce() -> Option<Instant>,
        mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<Moved<T>>,
    ) -> io::Result<T> {
        let frame = Frame;
        let (core, worker) = match context::here(&frame) {
            Caller::Fiber(core, worker) => (core, worker),
            Caller::Worker => {
                return match call(self.fd()) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(wait::Stop::NotHere.into()),
                    moved => Ok(moved?.value),
                };
            }
            Caller::Thread => return self.io_on_thread(direction, deadline(), call),
        };
        core.check(worker, Waiting::NotYet)?;
        let mut deadline = Lazy::Unknown(deadline);
        loop {
            let seen = self
                .source
                .get()
                .map(|&index| (at(index), at(index).state.load(Ordering::Acquire)));
            // Where nobody owns the direction, nobody keeps its bit.
            let may_work = |state| state & direction.bit() != 0 || owner_in(state, direction) == 0;
            if seen.is_none_or(|(_, state)| may_work(state)) {
                match call(self.fd()) {
                    Ok(Moved { value, short }) => {
                        if let Some((source, state)) = seen
                            && short
                            && self.short_read_drains
                            && direction == Direction::Read
                            && state & (CLOSED | PRIORITY) == 0
                        {
                            clear(source, state, READABLE, worker, direction);
                        }
                        worker.charge(core);
                        return Ok(value);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if let Some((source, state)) = seen {
                            clear(source, state, direction.bit() | PRIORITY, worker, direction);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                }
            }
            self.wait(direction, deadline.get())?;
        }
    }

    /// Waits until the direction is ready, as far as this worker's poller has said.
    fn wait(&self, direction: Direction, deadline: Option<Instant>) -> io::Result<()> {
        let source = self.source();
        let list = source.list(direction);
        let mut waiter = pin!(list.waiter());
        let mut failed = None;
        wait::wait(deadline, Some(source), |cx| {
            // A notification says that something changed; what, the bits say.
            while waiter.as_mut().poll_notified(cx).is_ready() {}
            if let Err(error) = self.own(direction) {
                failed = Some(error);
                return Poll::Ready(());
            }
            match source.state.load(Ordering::Acquire) & direction.bit() {
                0 => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// The source, made at the first need.
    pub(crate) fn source(&self) -> &'static Source {
        at(*self.source.get_or_init(|| {
            let mut free = FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            free.0.pop().unwrap_or_else(|| {
                free.1 += 1;
                free.1 - 1
            })
        }))
    }

    /// Makes this thread's worker the owner of both directions, as a connection at rest needs.
    pub(crate) fn own_here(&self) -> io::Result<&'static Source> {
        self.own(Direction::Read)?;
        Ok(self.source())
    }

    /// Makes this thread's worker the owner of the direction, unless it is.
    fn own(&self, direction: Direction) -> io::Result<()> {
        let source = self.source();
        context::worker(|worker| {
            let here = u64::from(worker.remote.id) + 1;
            if source.owner(direction) == here {
                return Ok(());
            }
            let _moving = source.lock();
            let old = source.owner(direction);
            let other = source.owner(direction.other());
            if old != 0 && old != other {
                self.deregister(old);
            }
            let state = source.set_owner(direction, here);
            let index = *self.source.get().expect("source() has made it");
            let token = token(index, state);
            let interest = Interest::READABLE | Interest::WRITABLE | Interest::PRIORITY;
            let add = || worker.poller.add(self.fd(), token, interest, Mode::Edge);
            let registered = match other == here {
                // The other direction's registration serves both; modifying it reports present readiness afresh.
                true => worker.poller.modify(self.fd(), token, interest, Mode::Edge),
                false => add().or_else(|error| match error.kind() {
                    // Somebody waits here for this socket as for a foreign descriptor.
                    io::ErrorKind::AlreadyExists => worker.foreign.give_way(worker, self.fd()).and_then(|()| add()),
                    _ => Err(error),
                }),
            };
            if registered.is_err() {
                source.set_owner(direction, 0);
            }
            registered
        })
        .unwrap_or(Ok(()))
    }

    fn deregister(&self, owner: u64) {
        if let Some(remote) = remote::of((owner - 1) as u16) {
            // It fails only if the worker's poller has gone, and the registration with it.
            let _ = remote.with_poller(|poller| poller.delete(self.fd()));
        }
    }

    /// The same call on a plain thread: it knows no bits and clears none.
    #[cold]
    fn io_on_thread<T>(
        &self,
        direction: Direction,
        deadline: Option<Instant>,
        mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<Moved<T>>,
    ) -> io::Result<T> {
        loop {
            match call(self.fd()) {
                Ok(moved) => return Ok(moved.value),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let flags = match direction {
                        Direction::Read => PollFlags::IN,
                        Direction::Write => PollFlags::OUT,
                    };
                    block_thread(self.fd(), flags, deadline)?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Watched {
    /// Gives the source back; a second time it does nothing.
    fn leave(&mut self) {
        let Some(index) = self.source.take() else { return };
        let source = at(index);
        let (reader, writer) = (source.owner(Direction::Read), source.owner(Direction::Write));
        if self.exported.load(Ordering::Relaxed) {
            if reader != 0 {
                self.deregister(reader);
            }
            if writer != 0 && writer != reader {
                self.deregister(writer);
            }
        }
        // `forget_worker` must not meet the next tenant.
        let moving = source.lock();
        source.set_dormant(None);
        let generation = (source.state.load(Ordering::Relaxed) / GENERATION).wrapping_add(1);
        source
            .state
            .store(generation.wrapping_mul(GENERATION), Ordering::Release);
        drop(moving);
        FREE.lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .0
            .push(index);
    }
}

/// What a call moved.
pub(crate) struct Moved<T> {
    pub(crate) value: T,
    /// Fewer bytes than there was room for.
    pub(crate) short: bool,
}

impl<T> Moved<T> {
    /// A call whose count says nothing about what is left.
    pub(crate) fn all(value: T) -> Moved<T> {
        Moved { value, short: false }
    }
}

/// Clears bits of a direction that this worker owns, unless the state's epoch has moved on since it was seen.
#[inline]
fn clear(source: &Source, seen: u64, bits: u64, worker: &Worker, direction: Direction) {
    let here = u64::from(worker.remote.id) + 1;
    if owner_in(seen, direction) != here {
        return;
    }
    let mut state = seen;
    loop {
        match source
            .state
            .compare_exchange_weak(state, state & !bits, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => return,
            // Another worker's edge for its direction: ours stands as it was seen.
            Err(changed) if changed / EPOCH == seen / EPOCH => state = changed,
            Err(_) => return,
        }
    }
}

enum Lazy<F> {
    Unknown(F),
    Known(Option<Instant>),
}

impl<F: FnOnce() -> Option<Instant>> Lazy<F> {
    fn get(&mut self) -> Option<Instant> {
        match std::mem::replace(self, Lazy::Known(None)) {
            Lazy::Unknown(make) => *self = Lazy::Known(make()),
            known => *self = known,
        }
        match self {
            Lazy::Known(deadline) => *deadline,
            Lazy::Unknown(_) => unreachable!("just made"),
        }
    }
}

/// Blocks this thread until the descriptor is ready.
pub(crate) fn block_thread(fd: BorrowedFd<'_>, flags: PollFlags, deadline: Option<Instant>) -> io::Result<PollFlags> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| rustix::event::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) if left.is_some_and(|left| left.is_zero()) => return Err(wait::Stop::Elapsed.into()),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(fds[0].revents()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched() -> (Watched, Token) {
        let watched = Watched::new(std::io::pipe().unwrap().0.into(), false);
        let state = watched.source().state.load(Ordering::Relaxed);
        let token = token(*watched.source.get().unwrap(), state);
        (watched, token)
    }

    #[test]
    fn an_event_of_a_former_tenant_changes_nothing() {
        let (watched, Token(token)) = watched();
        let source = watched.source();
        assert!(mark(token, READABLE).is_some());
        assert!(source.is_readable() && !source.is_gone(true));
        drop(watched);
        assert!(mark(token, HUP).is_none());
        // (Another test may have the slot by now, and its half-close.)
        assert!(!source.is_gone(false), "the next tenant would take its client for gone");
    }

    #[test]
    fn moving_a_direction_forgets_its_bit_and_nothing_else() {
        let (watched, Token(token)) = watched();
        let source = watched.source();
        mark(token, READABLE | WRITABLE | READ_CLOSED);
        // More often than the epoch has numbers: it must not run over into the generation.
        for owner in (1..=4096).cycle().take(1 << 15) {
            mark(token, READABLE);
            let state = source.set_owner(Direction::Read, owner);
            assert_eq!(state & (READABLE | WRITABLE | READ_CLOSED), WRITABLE | READ_CLOSED);
            assert_eq!(
                (source.owner(Direction::Read), source.owner(Direction::Write)),
                (owner, 0)
            );
        }
        assert!(mark(token, READABLE).is_some(), "the generation is the same");
    }

    #[test]
    fn the_table_has_a_place_for_every_index() {
        let mut before = at(0) as *const Source;
        for index in 1..5000 {
            let source: *const Source = at(index);
            assert_ne!(source, before);
            before = source;
        }
    }
}
