//! A connection at rest: what a worker keeps of it, when it is due for a fiber, and how it gets one.
//!
//! Its timer is armed lazily. Moving the deadline back is a store, and a timer that fires early is armed anew.

use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use osier_coro::Coroutine;
use osier_coro::stack::prefetch;
use osier_queue::Key;

use crate::wait::entry::Entry;
use crate::wait::socket::{Direction, Source};
use crate::worker::Worker;
use crate::worker::context;
use crate::worker::core::{Core, Header};
use crate::worker::isolate::isolate;
use crate::worker::slots::{LINE, Slot};
use crate::worker::waker::Word;

/// The reason why a dormant connection was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The socket has bytes, their end, or an error.
    Readable,
    /// The socket takes bytes, or the peer is gone. The answer to [`AfterBurst::SleepUntilWritable`].
    Writable,
    /// A leaf polled in [`Dormant::poll_woken`] is ready.
    Woken,
    /// The deadline given with [`AfterBurst::Sleep`] has passed.
    Deadline,
    /// The runtime shuts down. This is the last call. A socket that has bytes gets one call with [`Cause::Readable`] before it, and
    /// may have bytes still.
    ///
    /// The fiber of this call is cancelled. A call that would wait fails or unwinds, except inside of [`shield`](crate::shield()).
    Shutdown,
}

/// The next thing that a connection does after a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterBurst {
    /// Dormant again, until there is something to read or the deadline has passed. Bytes that came meanwhile start the
    /// next burst at once.
    Sleep(Option<Instant>),
    /// Same as `Sleep`, for a deadline this long after the beginning of the worker's turn ([`coarse_now`](crate::time::coarse_now)).
    /// A connection that is idle between requests mostly has such a deadline, which costs less than one by the clock.
    SleepFor(Duration),
    /// Dormant again, until the socket takes bytes, the peer is gone or the deadline has passed. Bytes that come meanwhile
    /// stay in the socket. It is for a connection whose last write was
    /// [refused](crate::net::Stream::try_write).
    SleepUntilWritable(Option<Instant>),
    /// Dormant again, until a leaf polled in [`Dormant::poll_woken`] is ready or the deadline has passed. Meanwhile arriving bytes stay in
    /// the socket, and its end is not noticed. Use it for a connection that waits for its turn among others.
    SleepUntilWoken(Option<Instant>),
    /// Dropped.
    End,
}

/// A connection that is idle most of the time, between two requests for example.
///
/// [`park_local`](crate::dormant::park_local) takes it. It then lives on that worker, as a few words beside its socket,
/// without a stack. `examples/echo.rs` does the same with a fiber per connection.
///
/// ```
/// use osier::dormant::{self, Cause, Dormant, AfterBurst};
/// use osier::net::{TcpListener, TcpStream};
/// use std::io::{Read, Write};
///
/// struct Echo(TcpStream);
///
/// impl Dormant for Echo {
///     fn source(&self) -> &dyn osier::io::Source {
///         &self.0
///     }
///     fn wake(&mut self, cause: Cause) -> AfterBurst {
///         let mut buf = [0; 1024];
///         match self.0.read(&mut buf) {
///             Ok(n) if n > 0 && cause == Cause::Readable && self.0.write_all(&buf[..n]).is_ok() => AfterBurst::Sleep(None),
///             _ => AfterBurst::End,
///         }
///     }
/// }
///
/// osier::run(|| -> std::io::Result<()> {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     let mut client = TcpStream::connect(listener.local_addr()?)?;
///     dormant::park_local(Box::new(Echo(listener.accept()?.0)), None)?;
///     client.write_all(b"hello")?;
///     let mut reply = [0; 5];
///     client.read_exact(&mut reply)?;
///     assert_eq!(&reply, b"hello");
///     Ok(())
/// }).unwrap();
/// ```
pub trait Dormant: 'static {
    /// The socket that the connection waits for; always the same one. A panic ends the connection, which is dropped on a fiber.
    fn source(&self) -> &dyn Source;

    /// Polls with `cx` the leaves in the box that the connection waits for besides its socket, so that they wake the
    /// connection. The worker calls it before each rest and after each wake-up, unless the connection is due anyway. It
    /// runs outside of a fiber, so it must not block. `Ready` gives the connection a fiber, with [`Cause::Woken`], and the
    /// call is not repeated before that. A panic ends the connection, which is dropped on a fiber.
    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Pending
    }

    /// Serves the connection without a fiber, if it needs none. The worker calls it before [`wake`](Dormant::wake), with
    /// [`Cause::Readable`] or [`Cause::Woken`]. It runs outside of a fiber, so it must not block: use calls that
    /// [never wait](crate::net::Stream::try_read), and leave everything else to `wake`.
    ///
    /// `true` says that all is done. The connection rests on then, waits for the same as before and has the same deadline. `false`
    /// gives it a fiber: `wake` follows, and goes on with what is left. While there is no stack for the fiber, the call is repeated. A
    /// panic ends the connection, which is dropped on a fiber.
    ///
    /// ```
    /// use osier::dormant::{self, AfterBurst, Cause, Dormant};
    /// use osier::net::{TcpListener, TcpStream};
    /// use std::io::{ErrorKind, Read, Write};
    ///
    /// /// Counts the bytes that it receives.
    /// struct Count(TcpStream, usize);
    ///
    /// impl Dormant for Count {
    ///     fn source(&self) -> &dyn osier::io::Source {
    ///         &self.0
    ///     }
    ///     fn serve_at_once(&mut self, _: Cause) -> bool {
    ///         let mut bytes = [0; 1024];
    ///         match self.0.try_read(&mut bytes) {
    ///             Ok(count @ 1..) => self.1 += count,
    ///             Err(error) if error.kind() == ErrorKind::WouldBlock => {}
    ///             Ok(_) | Err(_) => return false,
    ///         }
    ///         true
    ///     }
    ///     fn wake(&mut self, _: Cause) -> AfterBurst {
    ///         let _ = write!(self.0, "{} bytes", self.1); // it may wait here
    ///         AfterBurst::End
    ///     }
    /// }
    ///
    /// osier::run(|| -> std::io::Result<()> {
    ///     let listener = TcpListener::bind("127.0.0.1:0")?;
    ///     let mut client = TcpStream::connect(listener.local_addr()?)?;
    ///     dormant::park_local(Box::new(Count(listener.accept()?.0, 0)), None)?;
    ///     client.write_all(b"willow")?;
    ///     client.shutdown(std::net::Shutdown::Write)?;
    ///     let mut count = String::new();
    ///     client.read_to_string(&mut count)?;
    ///     assert_eq!(count, "6 bytes");
    ///     Ok(())
    /// }).unwrap();
    /// ```
    fn serve_at_once(&mut self, cause: Cause) -> bool {
        let _ = cause;
        false
    }

    /// Serves the connection, on a fiber of the worker where it lives. A panic ends the connection and nothing else.
    fn wake(&mut self, cause: Cause) -> AfterBurst;
}

/// Time until the next try of a connection that has found no stack, or that the poller does not take.
const PAUSE: Duration = Duration::from_millis(10);

/// The most tries: half a second, and more under load.
const TRIES: u8 = 50;

/// The number of a connection's cache lines that are loaded ahead.
const CONNECTION_LINES: usize = 4;

/// The tick of no deadline.
const NEVER: u64 = u64::MAX;

/// A connection at rest; while its fiber runs, that fiber holds it. Times are ticks of its worker's wheel, which take
/// half as much room as an `Option<Instant>`: an idle server has little else in memory.
pub(crate) struct Resting {
    pub(crate) connection: Box<dyn Dormant>,
    entry: &'static Entry,
    /// The direction of the socket that it waits for. `None` if it waits only for its leaves.
    direction: Option<Direction>,
    deadline: u64,
    timer: Option<Key>,
    /// The tick of the timer, if there is one: at or before the deadline.
    armed: u64,
    /// Set when [`Dormant::poll_woken`] was ready. It is not called again before the connection has got its fiber.
    woken: bool,
    /// Set when [`Cause::Readable`] was given while the worker stops. [`Cause::Shutdown`] is next, even if bytes are left.
    read_last: bool,
    /// How often in a row there was no stack for it, or no place at the poller. Until its timer fires it is not tried again.
    tries: u8,
    /// Set when a call of the connection has panicked, or the poller does not take it. Nothing but its destructor is called any more.
    is_over: bool,
}

/// The deadline of a connection that rests again.
enum Deadline {
    At(Option<Instant>),
    /// After the beginning of this turn.
    In(Duration),
}

impl Resting {
    pub(crate) fn new(connection: Box<dyn Dormant>, entry: &'static Entry) -> Resting {
        Resting {
            connection,
            entry,
            direction: Some(Direction::Read),
            deadline: NEVER,
            timer: None,
            armed: NEVER,
            woken: false,
            read_last: false,
            tries: 0,
            is_over: false,
        }
    }

    /// Starts to load the first cache lines of the connection.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        let connection = (&raw const *self.connection).addr();
        for line in 0..CONNECTION_LINES {
            prefetch(connection + line * LINE);
        }
    }

    /// Makes the socket wake `word` from now on.
    pub(crate) fn attach(&self, word: Word) {
        self.entry.set_dormant(Some(word));
    }

    /// Sets what it waits for besides its leaves.
    pub(crate) fn wait_for(&mut self, worker: &Worker, direction: Option<Direction>, deadline: Option<Instant>) {
        self.direction = direction;
        self.deadline = deadline.map_or(NEVER, |deadline| worker.tick_after(deadline));
    }

    /// Sets what it waits for after a burst.
    #[inline]
    fn wait_after(&mut self, worker: &Worker, direction: Option<Direction>, deadline: Deadline) {
        match deadline {
            Deadline::At(deadline) => self.wait_for(worker, direction, deadline),
            Deadline::In(time) => {
                self.direction = direction;
                self.deadline = worker.tick_in(time);
            }
        }
    }

    /// The reason to give it a fiber now, if there is one.
    pub(crate) fn cause(&mut self, worker: &Worker, word: Word) -> Option<Cause> {
        if self.pauses(worker) {
            None
        } else if self.direction == Some(Direction::Read) && self.entry.is_readable() && !self.read_last {
            Some(Cause::Readable)
        } else if self.direction == Some(Direction::Write) && self.entry.is_writable() {
            Some(Cause::Writable)
        } else if worker.is_stopping() {
            Some(Cause::Shutdown)
        } else if worker.tick() >= self.deadline {
            Some(Cause::Deadline)
        } else {
            if !self.woken {
                let waker = word.waker();
                let connection = &mut self.connection;
                let polled = isolate(|| connection.poll_woken(&mut Context::from_waker(&waker)));
                self.is_over |= polled.is_none(); // gets a fiber, to be dropped there
                self.woken = polled.is_none_or(|polled| polled.is_ready());
            }
            self.woken.then_some(Cause::Woken)
        }
    }

    /// Whether it waits until it is tried again.
    #[inline]
    fn pauses(&self, worker: &Worker) -> bool {
        self.tries > 0 && worker.tick() < self.armed && !worker.is_stopping()
    }

    /// Makes the connection wait some time for a stack or a place at the poller. Returns false if it has waited long enough: the fibers
    /// that hold the stacks may wait for this connection.
    #[cold]
    fn try_later(&mut self, worker: &Worker, word: Word) -> bool {
        if self.tries >= TRIES || worker.is_stopping() {
            return false;
        }
        self.tries += 1;
        if let Some(key) = self.timer {
            worker.disarm(key);
        }
        self.armed = worker.tick_after(worker.now() + PAUSE);
        self.timer = Some(worker.arm_tick(self.armed, word));
        true
    }

    /// Notes that it is woken for `cause`.
    #[inline]
    pub(crate) fn note_wake(&mut self, worker: &Worker, cause: Cause) {
        self.tries = 0;
        match cause {
            Cause::Readable => self.read_last = worker.is_stopping(),
            Cause::Woken => self.woken = false,
            Cause::Writable | Cause::Deadline | Cause::Shutdown => {}
        }
    }

    /// Serves it without a fiber. Returns whether it needs none.
    #[inline(always)]
    fn serve_at_once(&mut self, worker: &Worker, cause: Cause) -> bool {
        if !matches!(cause, Cause::Readable | Cause::Woken) || self.is_over || worker.is_stopping() {
            return false;
        }
        match isolate(|| self.connection.serve_at_once(cause)) {
            Some(true) => {
                self.note_wake(worker, cause);
                true
            }
            Some(false) => false,
            None => {
                self.end();
                false
            }
        }
    }

    /// Asks the poller for the socket's next event, where it has to be asked for each.
    #[inline]
    pub(crate) fn listen(&mut self, worker: &Worker, word: Word) {
        let Some(direction) = self.direction else { return };
        let is_reported =
            worker.remote.has_edges() && direction == Direction::Read && self.entry.is_reported_to(worker.remote.id);
        if is_reported || self.pauses(worker) {
            return;
        }
        match isolate(|| self.connection.source().watched().own(direction)) {
            Some(Ok(_)) => self.tries = 0,
            Some(Err(error)) => self.cannot_listen(worker, word, &error),
            None => self.end(),
        }
    }

    /// Makes the connection wait until the poller may take its socket, or ends it. The socket's events are lost meanwhile, but the poller
    /// reports the present readiness when it takes the socket.
    #[cold]
    fn cannot_listen(&mut self, worker: &Worker, word: Word, error: &io::Error) {
        // A worker that stops calls the connection once more in any case.
        if !self.try_later(worker, word) && !worker.is_stopping() {
            worker.shortage.say_refused(worker.now(), error);
            self.end();
        }
    }

    /// Marks the connection as over. It gets a fiber, which drops it.
    fn end(&mut self) {
        (self.is_over, self.woken, self.tries) = (true, true, 0);
    }

    /// Arms a timer that fires no later than the deadline.
    pub(crate) fn arm(&mut self, worker: &Worker, word: Word) {
        if self.deadline == NEVER {
            return;
        }
        match self.timer {
            Some(key) if self.armed <= self.deadline && !worker.has_fired(key) => {}
            timer => {
                if let Some(key) = timer {
                    worker.disarm(key);
                }
                self.timer = Some(worker.arm_tick(self.deadline, word));
                self.armed = self.deadline;
            }
        }
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        if let Some(key) = self.timer {
            context::worker(|worker| worker.disarm(key));
        }
    }
}

impl Worker {
    /// Puts a connection into a slot of its own, at rest.
    pub(crate) fn adopt(&self, mut resting: Box<Resting>) -> io::Result<()> {
        let (word, slot) = self.occupy()?;
        resting.attach(word);
        // One that is due arms its timer when it rests.
        if !resting.entry.is_readable() {
            resting.arm(self, word);
        }
        self.wait_in(slot, word, resting);
        Ok(())
    }

    /// Leaves a connection without a stack until there is something to do for it.
    pub(super) fn rest(&self, slot: &Slot, mut resting: Box<Resting>) {
        let word = self.word(slot);
        resting.arm(self, word);
        resting.listen(self, word);
        self.wait_in(slot, word, resting);
    }

    /// Leaves a connection in its slot, and queues it if there is something to do for it already.
    #[inline]
    fn wait_in(&self, slot: &Slot, word: Word, mut resting: Box<Resting>) {
        let due = resting.cause(self, word).is_some();
        slot.set_resting(resting);
        self.resting.set(self.resting.get() + 1);
        if due {
            self.slots.queue(slot);
        }
    }

    /// Gives a connection at rest a fiber, if there is something to do for it.
    #[inline(always)]
    pub(super) fn wake_resting(&self, slot: &Slot, mut resting: Box<Resting>) {
        let word = self.word(slot);
        let Some(cause) = resting.cause(self, word) else {
            return self.rest(slot, resting);
        };
        if resting.serve_at_once(self, cause) {
            return self.rest(slot, resting);
        }
        let stack = match self.stacks.take(None) {
            Ok(stack) => stack,
            Err(_) if resting.try_later(self, word) => {
                // No event announces what has left the socket already, or what was ready.
                match cause {
                    Cause::Readable => resting.entry.try_again(Direction::Read),
                    Cause::Woken => resting.woken = true,
                    Cause::Writable | Cause::Deadline | Cause::Shutdown => {}
                }
                return self.rest(slot, resting);
            }
            Err(error) => {
                self.shortage.say_closed(self.now(), &error);
                isolate(|| drop(resting));
                return self.slots.vacate(slot);
            }
        };
        resting.note_wake(self, cause);
        stack.label(self.connection, None);
        let id = self.next_id();
        slot.set_tenant(id, stack.address());
        let (place, remote, stack_bytes) = (self.connection, slot.remote(), stack.stack_bytes());
        slot.set_fiber(Coroutine::new(stack, move |yielder, _| {
            let mut resting = resting;
            Core::enter(
                yielder,
                stack_bytes,
                &Header::new(place),
                (word, id),
                remote,
                move || {
                    let next = match resting.is_over {
                        false => isolate(|| resting.connection.wake(cause)),
                        true => None,
                    };
                    let rest = match next {
                        Some(AfterBurst::Sleep(deadline)) => Some((Some(Direction::Read), Deadline::At(deadline))),
                        Some(AfterBurst::SleepFor(time)) => Some((Some(Direction::Read), Deadline::In(time))),
                        Some(AfterBurst::SleepUntilWritable(deadline)) => {
                            Some((Some(Direction::Write), Deadline::At(deadline)))
                        }
                        Some(AfterBurst::SleepUntilWoken(deadline)) => Some((None, Deadline::At(deadline))),
                        Some(AfterBurst::End) | None => None,
                    };
                    match rest {
                        // After the last call the connection does not rest again.
                        Some((direction, deadline)) if cause != Cause::Shutdown => {
                            context::worker(|worker| resting.wait_after(worker, direction, deadline));
                            Some(resting)
                        }
                        _ => {
                            // The destructor may do I/O, so it runs on this fiber.
                            isolate(move || drop(resting));
                            None
                        }
                    }
                },
            )
        }));
        self.switch_to(slot);
    }
}
