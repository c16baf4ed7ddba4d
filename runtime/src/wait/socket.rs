//! Osier's own sockets: their calls, their waits, and for each direction the worker whose poller reports it.
//!
//! A socket gets its [`Entry`] at its first would-block ([`Watched`]), not before. This file makes the system calls.
//!
//! A closed bit counts as readable once, and HUP and ERR also count as writable once. So the next call is made and
//! returns the kernel's answer: the end, or the error.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use osier_poll::Mode;
use osier_queue::Waiter;
pub(crate) use osier_queue::readiness::Direction;
use osier_queue::readiness::{CLOSED, Move, PRIORITY, READ_CLOSED, READABLE, Readiness, WRITABLE};
use rustix::event::{PollFd, PollFlags};

use crate::wait::descriptor::Displaced;
use crate::wait::entry::{Entry, FREE, at, interest_in, token};
use crate::wait::fd::{Fd, Opened};
use crate::wait::{self, Socket, driver};
use crate::worker::context::{self, Anchor, Caller};
use crate::worker::faults::{self, Call as PollerCall};
use crate::worker::remote;
use crate::worker::remote::Remote;
use crate::worker::waker::Word;

mod sealed {
    pub trait Sealed {}
}
pub(crate) use sealed::Sealed;

/// A socket of ours that [`Dormant`](crate::dormant::Dormant) and [`while_connected`](crate::io::while_connected) can
/// watch. Sealed.
pub trait Source: Sealed {
    #[doc(hidden)]
    fn watched(&self) -> &Watched;
}

/// The state of the call that asks. A half-closed client counts as gone only for a fiber that waits for something else:
/// a call that has not had to wait yet, or that waits for this client, can still answer the client.
#[derive(Clone, Copy)]
pub(crate) enum Waiting {
    NotYet,
    For(Option<&'static Entry>),
}

/// A non-blocking descriptor of ours, with its entry once it has one.
pub struct Watched {
    /// Present until `into_fd`, which ends this value.
    opened: Option<Opened>,
    entry: OnceLock<u32>,
    /// Set when another descriptor of the same description may exist (a dup, a borrowed raw fd, a child's). A ghost
    /// registration would outlive the close, so the close must remove it.
    exported: AtomicBool,
    short_read: ShortRead,
    /// The least progress of a peer within a write timeout, in units of [`PROGRESS_UNIT`]. It fills padding, so sockets that do not use it
    /// cost nothing.
    progress: AtomicU16,
}

/// The unit of the least progress, in bytes.
const PROGRESS_UNIT: usize = 64;

/// The meaning of a read that is shorter than its buffer, for the bytes left in the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ShortRead {
    /// Unknown.
    SaysNothing,
    /// The socket is empty: a TCP stream.
    Drains,
    /// The socket is empty unless the read stopped at a passed descriptor, which the kernel reports: a Unix stream.
    DrainsUnlessPassed,
}

impl Watched {
    /// Takes a descriptor that is non-blocking already.
    pub(crate) fn new(opened: impl Into<Opened>, short_read: ShortRead) -> Watched {
        Watched {
            opened: Some(opened.into()),
            entry: OnceLock::new(),
            exported: AtomicBool::new(false),
            short_read,
            progress: AtomicU16::new(0),
        }
    }

    /// Takes a descriptor that other code may have copies of.
    pub(crate) fn from_outside(fd: OwnedFd, short_read: ShortRead) -> io::Result<Watched> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let watched = Watched::new(fd, short_read);
        watched.exported.store(true, Ordering::Relaxed);
        Ok(watched)
    }

    #[inline]
    pub(crate) fn short_read(&self) -> ShortRead {
        self.short_read
    }

    /// Sets the least progress within a write timeout. It is rounded up, and is at most 4 MiB.
    pub(crate) fn set_progress(&self, bytes: usize) {
        let units = u16::try_from(bytes.div_ceil(PROGRESS_UNIT)).unwrap_or(u16::MAX);
        self.progress.store(units, Ordering::Relaxed);
    }

    /// The least progress within a write timeout, in bytes.
    pub(crate) fn progress(&self) -> usize {
        usize::from(self.progress.load(Ordering::Relaxed)) * PROGRESS_UNIT
    }

    /// The descriptor for a system call of ours that copies it nowhere.
    #[inline]
    pub(crate) fn fd(&self) -> Fd<'_> {
        self.opened
            .as_ref()
            .expect("it is taken only by into_fd, which takes self")
            .fd()
    }

    /// The descriptor for code that may copy it.
    pub(crate) fn export(&self) -> BorrowedFd<'_> {
        self.exported.store(true, Ordering::Relaxed);
        self.fd().of_system()
    }

    /// Gives the descriptor away, out of every poller.
    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.exported.store(true, Ordering::Relaxed);
        self.leave();
        self.opened.take().expect("it is taken only here").into_fd()
    }

    /// Another value for the same socket.
    pub(crate) fn try_clone(&self) -> io::Result<Watched> {
        match self.fd() {
            Fd::System(_) => Watched::from_outside(self.export().try_clone_to_owned()?, self.short_read),
            Fd::Simulated(socket) => Ok(Watched::new(socket.clone_endpoint(), self.short_read)),
        }
    }

    /// Makes a call that reads or writes, and waits for readiness in between, at most until `deadline`.
    ///
    /// `call` gives a value and whether it has emptied the socket. A would-block error makes it wait. This part is
    /// compiled for each type of call, and everything that a call which succeeds at once does not need is not in it.
    #[inline]
    pub(crate) fn io<T>(
        &self,
        direction: Direction,
        deadline: impl FnOnce() -> Option<Instant>,
        mut call: impl FnMut(Fd<'_>) -> io::Result<Moved<T>>,
    ) -> io::Result<T> {
        let anchor = Anchor::new();
        let Caller::Fiber(core, worker) = context::here(&anchor) else {
            let mut deadline = Some(deadline);
            let mut deadline = || deadline.take().and_then(|deadline| deadline());
            let mut value = None;
            self.io_without_fiber(direction, &mut deadline, &mut leaving(&mut value, call))?;
            return Ok(value.expect(LEFT));
        };
        core.check(worker, Waiting::NotYet)?;
        let (mut deadline, mut known) = (Some(deadline), None);
        let mut entry = self.entry.get().map(|&index| at(index));
        loop {
            let seen = entry.map(|entry| (&entry.state, entry.state.snapshot()));
            // A direction without an owner has nobody to keep its bit.
            if seen.is_none_or(|(_, seen)| seen.has(direction.bit()) || seen.owner(direction).is_none()) {
                match call(self.fd()) {
                    Ok(moved) => {
                        if let Some((state, seen)) = seen
                            && moved.drained
                            && direction == Direction::Read
                            && !seen.has(CLOSED | PRIORITY)
                        {
                            state.clear(seen, READABLE, direction, worker.remote.id);
                        }
                        worker.count_ready_call(core);
                        return Ok(moved.value);
                    }
                    Err(error) => {
                        if refusal(error)? == Refusal::Interrupted {
                            continue;
                        }
                        if let Some((state, seen)) = seen {
                            state.clear(seen, direction.all_bits(), direction, worker.remote.id);
                        }
                    }
                }
            }
            let until = *known.get_or_insert_with(|| deadline.take().and_then(|deadline| deadline()));
            let entry = *entry.get_or_insert_with(|| self.entry());
            self.wait(entry, direction, until)?;
        }
    }

    /// Does the work of [`io`](Watched::io) where no fiber calls, once for all types of calls. It asks for the deadline
    /// at most once.
    #[cold]
    fn io_without_fiber(
        &self,
        direction: Direction,
        deadline: &mut dyn FnMut() -> Option<Instant>,
        call: &mut Call<'_>,
    ) -> io::Result<()> {
        if context::caller(|caller| matches!(caller, Caller::Thread)) {
            return self.io_on_thread(direction, deadline(), call);
        }
        match attempt(|| call(self.fd())) {
            Some(done) => done.map(drop),
            None => Err(wait::Stop::NotHere.into()),
        }
    }

    /// Counts a call that did not wait, as [`io`](Watched::io) does: a fiber that never waits yields now and then.
    ///
    /// # Errors
    ///
    /// The error of a cancelled call.
    pub(crate) fn count_call() -> io::Result<()> {
        let anchor = Anchor::new();
        if let Caller::Fiber(core, worker) = context::here(&anchor) {
            core.check(worker, Waiting::NotYet)?;
            worker.count_ready_call(core);
        }
        Ok(())
    }

    /// Gives way in a fiber, after a call that has taken long and before the next one.
    pub(crate) fn give_way() -> io::Result<()> {
        let anchor = Anchor::new();
        if let Caller::Fiber(core, worker) = context::here(&anchor) {
            core.check(worker, Waiting::NotYet)?;
            core.run_hooks();
            worker.give_way(core);
        }
        Ok(())
    }

    /// Makes a call that writes, at once. After a would-block error the bit is clear, so the next event says when to try again.
    pub(crate) fn write_now<T>(&self, mut call: impl FnMut(Fd<'_>) -> io::Result<T>) -> io::Result<T> {
        if let Some(done) = attempt(|| call(self.fd())) {
            return done;
        }
        // Again, behind a look at the bits. Most calls need no look.
        let seen = self.entry.get().map(|&index| at(index).state.snapshot());
        if let Some(done) = attempt(|| call(self.fd())) {
            return done;
        }
        let here = context::worker(|worker| worker.remote.id);
        match (seen, here) {
            (Some(seen), Some(here)) if seen.owner(Direction::Write) == Some(here) => {
                self.entry().state.clear(seen, WRITABLE, Direction::Write, here);
            }
            // A new owner begins with a clear bit.
            _ => self.own(Direction::Write)?,
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Makes a call that reads, at once, as [`attempt`](Watched::attempt) does.
    pub(crate) fn read_now<T>(&self, call: impl FnMut(Fd<'_>) -> io::Result<Moved<T>>) -> io::Result<T> {
        self.attempt(Direction::Read, call)
            .unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }

    /// Makes the call at once. `None` says that it would block. No call is made while the bit is clear: the next event says when to try again.
    pub(crate) fn attempt<T>(
        &self,
        direction: Direction,
        mut call: impl FnMut(Fd<'_>) -> io::Result<Moved<T>>,
    ) -> Option<io::Result<T>> {
        let seen = self.entry.get().map(|&index| {
            let state = &at(index).state;
            (state, state.snapshot())
        });
        let here = context::worker(|worker| worker.remote.id);
        // Only the owner of the direction clears the bit, so only its worker trusts a clear one.
        let owned = seen
            .zip(here)
            .filter(|((_, seen), here)| seen.owner(direction) == Some(*here));
        if owned.is_some_and(|((_, seen), _)| !seen.has(direction.bit())) {
            return None;
        }
        let clear = |bits| {
            if let Some(((state, seen), here)) = owned {
                state.clear(seen, bits, direction, here);
            }
        };
        let Some(done) = attempt(|| call(self.fd())) else {
            clear(direction.all_bits());
            return None;
        };
        Some(done.map(|moved| {
            let may_clear =
                direction == Direction::Read && owned.is_some_and(|((_, seen), _)| !seen.has(CLOSED | PRIORITY));
            if moved.drained && may_clear {
                clear(READABLE);
            }
            moved.value
        }))
    }

    /// Waits until the direction is ready, at most until `deadline`.
    pub(crate) fn wait_ready(&self, direction: Direction, deadline: Option<Instant>) -> io::Result<()> {
        match context::caller(|caller| matches!(caller, Caller::Thread)) {
            true => self.block_thread(direction, deadline),
            false => self.wait(self.entry(), direction, deadline),
        }
    }

    /// Waits until this worker's poller has reported the direction ready.
    fn wait(&self, entry: &'static Entry, direction: Direction, deadline: Option<Instant>) -> io::Result<()> {
        let mut waiter = pin!(entry.state.list(direction).waiter());
        let socket = Socket {
            entry,
            fd: self.fd(),
            direction,
        };
        wait::wait(deadline, Some(socket), |cx| {
            let own = || self.own_entry(entry, direction);
            entry.state.poll_ready(direction, waiter.as_mut(), cx, own)
        })?
    }

    /// The entry, made at the first need.
    #[inline]
    pub(crate) fn entry(&self) -> &'static Entry {
        match self.entry.get() {
            Some(&index) => at(index),
            None => self.make_entry(),
        }
    }

    #[cold]
    fn make_entry(&self) -> &'static Entry {
        at(*self.entry.get_or_init(|| {
            let mut free = FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            free.0.pop().unwrap_or_else(|| {
                free.1 += 1;
                free.1 - 1
            })
        }))
    }

    /// Wakes the connection at rest that waits for this socket, as arriving bytes would.
    pub(crate) fn wake_dormant(&self) {
        let Some(&index) = self.entry.get() else { return };
        let entry = at(index);
        entry.try_again(Direction::Read);
        let dormant = entry.dormant.load(Ordering::Acquire);
        if dormant != 0 {
            remote::wake(Word::from_bits(dormant));
        }
    }

    /// Makes this thread's worker the owner of the read side, as a connection at rest needs.
    pub(crate) fn own_here(&self) -> io::Result<&'static Entry> {
        self.own(Direction::Read)?;
        Ok(self.entry())
    }

    /// Does the same for a wait for the peer's end. A poller that does not tell a half-close from bytes has the end
    /// looked for here. Behind bytes that nobody reads, the end is not seen.
    pub(crate) fn watch_end(&self) -> io::Result<()> {
        let entry = self.own_here()?;
        match context::worker(|worker| worker.remote) {
            Some(here) if !here.has_edges() => self.look_for_end(entry, here),
            _ => Ok(()),
        }
    }

    #[cold]
    fn look_for_end(&self, entry: &Entry, here: &Remote) -> io::Result<()> {
        use rustix::net::{RecvFlags, SocketType, recv, sockopt::socket_type};
        let now = entry.state.snapshot();
        if !now.has(READABLE) || now.has(CLOSED) {
            return Ok(());
        }
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        // Simulated sockets are edge-triggered.
        let Fd::System(fd) = self.fd() else { return Ok(()) };
        if socket_type(fd) == Ok(SocketType::STREAM) && matches!(recv(fd, &mut [0u8; 1], peek), Ok((_, 0))) {
            entry.state.set(now.generation(), READ_CLOSED);
            return Ok(());
        }
        let mut displaced = None;
        entry
            .state
            .arm_rest(here.id, |how| self.register(here, how, &mut displaced))
    }

    /// Makes this thread's worker the owner of the direction, unless it is.
    pub(crate) fn own(&self, direction: Direction) -> io::Result<()> {
        self.own_entry(self.entry(), direction)
    }

    #[inline]
    fn own_entry(&self, entry: &Entry, direction: Direction) -> io::Result<()> {
        let Some(here) = context::worker(|worker| worker.remote) else {
            return Ok(());
        };
        match here.has_edges() && entry.state.snapshot().owner(direction) == Some(here.id) {
            true => Ok(()),
            false => self.become_owner(&entry.state, direction, here),
        }
    }

    #[inline(never)]
    fn become_owner(&self, state: &Readiness, direction: Direction, here: &Remote) -> io::Result<()> {
        let mut displaced = None;
        let register = |how| self.register(here, how, &mut displaced);
        match here.has_edges() {
            true => state.own(direction, here.id, register),
            false => state.arm(direction, here.id, register),
        }
    }

    /// Polls a call: the future face of [`io`](Watched::io). Where it would wait, it leaves `waiter`, of the
    /// direction's [`list`](Watched::waiter), with the waker of `cx`.
    #[inline]
    pub(crate) fn poll_io<T>(
        &self,
        direction: Direction,
        mut waiter: Pin<&mut Waiter<'static>>,
        cx: &mut Context<'_>,
        call: &mut impl FnMut(Fd<'_>) -> io::Result<Moved<T>>,
    ) -> Poll<io::Result<T>> {
        let entry = self.entry();
        let state = &entry.state;
        let Some(here) = context::driver_is_worker() else {
            let mut value = None;
            ready!(self.poll_io_elsewhere(direction, waiter, cx, &mut leaving(&mut value, call)))?;
            return Poll::Ready(Ok(value.expect(LEFT)));
        };
        loop {
            let seen = state.snapshot();
            if seen.has(direction.bit()) || seen.owner(direction).is_none() {
                match call(self.fd()) {
                    Ok(moved) => {
                        if moved.drained && direction == Direction::Read && !seen.has(CLOSED | PRIORITY) {
                            state.clear(seen, READABLE, direction, here.id);
                        }
                        return Poll::Ready(Ok(moved.value));
                    }
                    Err(error) => {
                        if refusal(error)? == Refusal::Interrupted {
                            continue;
                        }
                        state.clear(seen, direction.all_bits(), direction, here.id);
                    }
                }
            }
            ready!(self.poll_ready(entry, direction, waiter.as_mut(), cx))?;
        }
    }

    /// Polls whether the direction is ready. This thread's worker becomes its owner.
    fn poll_ready(
        &self,
        entry: &Entry,
        direction: Direction,
        waiter: Pin<&mut Waiter<'static>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        entry
            .state
            .poll_ready(direction, waiter, cx, || self.own_entry(entry, direction))
    }

    /// Polls a call where this thread does not dispatch the events itself, so that it may trust and clear no bit.
    #[cold]
    fn poll_io_elsewhere(
        &self,
        direction: Direction,
        mut waiter: Pin<&mut Waiter<'static>>,
        cx: &mut Context<'_>,
        call: &mut Call<'_>,
    ) -> Poll<io::Result<()>> {
        let state = &self.entry().state;
        let driver = driver::current()?;
        loop {
            if let Some(done) = attempt(|| call(self.fd())) {
                return Poll::Ready(done.map(drop));
            }
            let asked_anew = || {
                let mut displaced = None;
                state.renew(direction, driver.id, |how| self.register(driver, how, &mut displaced))
            };
            match state.poll_ready(direction, waiter.as_mut(), cx, asked_anew) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Whether something has waited for the socket already, so that its bits have a meaning.
    #[inline]
    pub(crate) fn has_entry(&self) -> bool {
        self.entry.get().is_some()
    }

    /// A node for [`poll_io`](Watched::poll_io). It must not outlive `self`: it would wait for the next tenant.
    pub(crate) fn waiter(&self, direction: Direction) -> Waiter<'static> {
        self.entry().state.list(direction).waiter()
    }

    /// Registers with the driver's poller, which reports the present readiness, and leaves the poller that nobody
    /// needs. The caller holds a lock of the state, so it drops what was `displaced`.
    fn register(&self, driver: &Remote, how: Move, displaced: &mut Option<Displaced>) -> io::Result<()> {
        if let Some(old) = how.leaves {
            self.deregister(old);
        }
        let index = *self.entry.get().expect("entry() has made it");
        let token = token(index, how.generation);
        let (interest, mode) = match driver.has_edges() {
            // The interest is not wider: a Unix stream reports writable each time its peer has read, which nobody waits
            // for.
            true => (interest_in(how.owned), Mode::Edge),
            false => (interest_in(how.wanted), Mode::Oneshot),
        };
        let fd = match self.fd() {
            Fd::System(fd) => fd,
            Fd::Simulated(socket) => return socket.register(token, interest),
        };
        faults::check(PollerCall::Register)?;
        let registered = driver.with_poller(|poller| {
            if how.again {
                return poller.modify(fd, token, interest, mode);
            }
            let added = poller.add(fd, token, interest, mode);
            // A leaf waits here for this socket as for any descriptor, or was forgotten with a descriptor of this number.
            *displaced = driver.descriptors.displace(poller, fd);
            match added {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if !displaced.as_ref().is_some_and(Displaced::is_registered) {
                        return Err(error);
                    }
                    poller.delete(fd)?;
                    poller.add(fd, token, interest, mode)
                }
                added => added,
            }
        });
        registered.unwrap_or_else(|| {
            Err(io::Error::other(
                "this worker has no poller: its runtime has ended, or it is simulated",
            ))
        })
    }

    fn deregister(&self, owner: u16) {
        if let (Fd::System(fd), Some(remote)) = (self.fd(), remote::of(owner)) {
            // It fails only if the worker's poller has gone, and the registration with it.
            let _ = remote.with_poller(|poller| poller.delete(fd));
        }
    }

    /// Makes the call on a plain thread, which knows no bits and clears none.
    #[cold]
    fn io_on_thread(&self, direction: Direction, deadline: Option<Instant>, call: &mut Call<'_>) -> io::Result<()> {
        loop {
            if let Some(done) = attempt(|| call(self.fd())) {
                return done.map(drop);
            }
            self.block_thread(direction, deadline)?;
        }
    }

    fn block_thread(&self, direction: Direction, deadline: Option<Instant>) -> io::Result<()> {
        match self.fd() {
            Fd::System(fd) => block_thread(fd, flags(direction), deadline).map(drop),
            Fd::Simulated(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a plain thread cannot wait for a simulated socket: use it on a fiber",
            )),
        }
    }
}

/// The errors of a call after which it is made again.
#[derive(PartialEq, Eq)]
enum Refusal {
    WouldBlock,
    Interrupted,
}

/// The refusal that an error is, or the error.
fn refusal(error: io::Error) -> io::Result<Refusal> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(Refusal::WouldBlock),
        io::ErrorKind::Interrupted => Ok(Refusal::Interrupted),
        _ => Err(error),
    }
}

/// Makes a call at once. `None` says that it would block.
pub(crate) fn attempt<T>(mut call: impl FnMut() -> io::Result<T>) -> Option<io::Result<T>> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            done => return Some(done),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Watched {
    /// Gives the entry back. A second call does nothing.
    fn leave(&mut self) {
        let Some(index) = self.entry.take() else { return };
        let entry = at(index);
        let exported = self.exported.load(Ordering::Relaxed);
        let now = entry.state.snapshot();
        let (reader, writer) = (now.owner(Direction::Read), now.owner(Direction::Write));
        for owner in reader.into_iter().chain(writer.filter(|_| writer != reader)) {
            if exported || !remote::of(owner).is_some_and(Remote::forgets_closed) {
                self.deregister(owner);
            }
        }
        // The next tenant must meet neither the connection of this one nor a worker that was forgotten.
        entry.state.retire(|| entry.set_dormant(None));
        FREE.lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .0
            .push(index);
    }
}

/// The outcome of a call.
pub(crate) struct Moved<T> {
    pub(crate) value: T,
    /// Whether the socket is empty, as far as the call can tell.
    pub(crate) drained: bool,
}

impl<T> Moved<T> {
    /// The outcome of a call whose count says nothing about the bytes left.
    pub(crate) fn all(value: T) -> Moved<T> {
        Moved { value, drained: false }
    }
}

/// A call that keeps its value to itself, and tells whether it has emptied the socket.
type Call<'a> = dyn FnMut(Fd<'_>) -> io::Result<bool> + 'a;

/// The [`Call`] that leaves its value in `value`.
#[inline]
fn leaving<'a, T>(
    value: &'a mut Option<T>,
    mut call: impl FnMut(Fd<'_>) -> io::Result<Moved<T>> + 'a,
) -> impl FnMut(Fd<'_>) -> io::Result<bool> + 'a {
    move |fd| {
        let moved = call(fd)?;
        *value = Some(moved.value);
        Ok(moved.drained)
    }
}

/// The panic message of the impossible.
const LEFT: &str = "a call that succeeds leaves its value";

fn flags(direction: Direction) -> PollFlags {
    match direction {
        Direction::Read => PollFlags::IN,
        Direction::Write => PollFlags::OUT,
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
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use osier_poll::{Poller, Token};
    use osier_queue::readiness::{ERROR, HUP};

    use super::*;
    use crate::wait::entry::mark;
    use crate::worker::threads::Claim;

    fn watched() -> (Watched, Token) {
        let watched = Watched::new(OwnedFd::from(std::io::pipe().unwrap().0), ShortRead::SaysNothing);
        let generation = watched.entry().state.snapshot().generation();
        let token = token(*watched.entry.get().unwrap(), generation);
        (watched, token)
    }

    #[test]
    fn an_event_of_a_former_tenant_changes_nothing() {
        let (watched, Token(token)) = watched();
        let entry = watched.entry();
        assert!(mark(token, READABLE).is_some());
        assert!(entry.is_readable() && !entry.is_gone(true));
        drop(watched);
        assert!(mark(token, HUP).is_none());
        // (Another test may have the entry by now, and its half-close.)
        assert!(!entry.is_gone(false), "the next tenant would take its client for gone");
    }

    #[test]
    fn a_call_that_would_block_is_made_again_after_an_event() {
        use std::io::Write;
        crate::run(|| {
            let (end, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
            let watched = Watched::from_outside(end.into(), ShortRead::Drains).unwrap();
            let (mut calls, mut bytes) = (0, [0; 8]);
            let mut attempt = || {
                let done = watched.attempt(Direction::Read, |fd| {
                    calls += 1;
                    crate::net::stream::call::read(fd, &mut bytes, ShortRead::Drains)
                });
                (done.map(Result::unwrap), calls)
            };
            assert_eq!(attempt(), (None, 1));
            watched.own(Direction::Read).unwrap();
            assert_eq!(attempt(), (None, 1));
            peer.write_all(b"four").unwrap();
            watched.wait_ready(Direction::Read, None).unwrap();
            assert_eq!(attempt(), (Some(4), 2));
            assert_eq!(attempt(), (None, 2), "the short read has emptied the socket");
        });
    }

    #[test]
    fn a_signal_ends_no_call_of_a_task() {
        let (watched, _) = watched();
        let mut calls = 0;
        let call = move |_: Fd<'_>| {
            calls += 1;
            match calls {
                1 => Err(io::ErrorKind::Interrupted.into()),
                _ => Ok(Moved::all(calls)),
            }
        };
        let task = async move { watched.io(Direction::Read, || None, call).unwrap() };
        assert_eq!(crate::run(|| crate::spawn_future(task).join().unwrap()), 2);
    }

    /// The error of a UDP socket (a peer that does not listen) stays in its entry.
    #[test]
    fn a_refused_write_after_an_error_waits_for_room() {
        let (watched, Token(token)) = watched();
        let entry = watched.entry();
        assert!(mark(token, READABLE | WRITABLE | ERROR).is_some());
        assert!(entry.is_writable());
        let taken: Result<(), ()> = entry.state.own(Direction::Write, 7, |_| Ok(()));
        assert!(taken.is_ok() && entry.is_gone(false));
        assert!(!entry.is_writable(), "it would be woken again and again");
        assert!(mark(token, WRITABLE).is_some());
        assert!(entry.is_writable());
    }

    fn socket() -> Watched {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        Watched::from_outside(socket.into(), ShortRead::SaysNothing).unwrap()
    }

    fn ask(socket: &Watched, driver: &Remote) -> io::Result<()> {
        let register = |how| socket.register(driver, how, &mut None);
        socket.entry().state.renew(Direction::Read, driver.id, register)
    }

    /// When it is woken, it does what a thread does that has taken a driver before: it registers its socket there.
    struct Late {
        driver: &'static Remote,
        socket: Watched,
        registered: Mutex<Option<io::Result<()>>>,
    }

    impl Wake for Late {
        fn wake(self: Arc<Self>) {
            *self.registered.lock().unwrap() = Some(ask(&self.socket, self.driver));
        }
    }

    #[test]
    fn a_driver_that_ends_takes_no_socket_that_nobody_would_wake() {
        let poller = Arc::new(Poller::new().unwrap());
        let claim = Claim(Remote::claim(poller, Instant::now()).unwrap());
        let driver = claim.0;
        let late = Arc::new(Late {
            driver,
            socket: socket(),
            registered: Mutex::new(None),
        });
        let first = socket();
        let mut waiter = pin!(first.waiter(Direction::Read));
        let waker = late.clone().into();
        let mut cx = Context::from_waker(&waker);
        let asked = || ask(&first, driver);
        let state = &first.entry().state;
        let polled = state.poll_ready(Direction::Read, waiter.as_mut(), &mut cx, asked);
        assert!(polled.is_pending());
        drop(claim);
        let registered = late.registered.lock().unwrap().take();
        assert!(registered.expect("the first socket is woken").is_err());
        assert_eq!(late.socket.entry().state.snapshot().owner(Direction::Read), None);
    }
}
