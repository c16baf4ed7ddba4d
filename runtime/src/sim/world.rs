//! The world of a simulation, through which a program adds hosts, stops them, and disturbs their network.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::fault::{Faults, Link};
use super::here::{Pool, lock};
use super::net::Net;
use crate::Cancelled;
use crate::fiber::yield_now;
use crate::sync::Event;

/// The state that the program and the driver share.
pub(super) struct Shared {
    pub(super) net: Arc<Mutex<Net>>,
    pub(super) pool: Pool,
    pub(super) orders: RefCell<VecDeque<Order>>,
    hosts: RefCell<Vec<HostState>>,
    failure: RefCell<Option<Failure>>,
    pub(super) limit_time: Duration,
    pub(super) limit_steps: u64,
}

/// A task of the driver, done before the next fiber runs.
pub(super) enum Order {
    Start(usize),
    Stop(usize, Stop),
    Jump(usize, Duration),
}

/// The kind of a host's end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It loses its power.
    Crash,
    /// Its program is killed.
    Kill,
}

/// The reason why a run has failed.
pub(super) enum Failure {
    /// A panic, of this host's body or of the program itself.
    Panic(String, Box<dyn Any + Send>),
    /// All fibers wait for ever.
    Deadlock(String),
    /// The run has exceeded its limits.
    Endless(String),
    /// The real system has failed.
    System(String),
}

impl Failure {
    /// A text that another failure of this kind has too: which program has panicked, or what else has happened.
    pub(super) fn kind(&self) -> &str {
        match self {
            Failure::Panic(what, _) => what,
            Failure::Deadlock(_) => "everybody waits, and no timer is set",
            Failure::Endless(_) => "the run does not end",
            Failure::System(error) => error,
        }
    }
}

struct HostState {
    plan: Plan,
    /// Set while its body does not run: it has returned, or the host is down.
    ended: Rc<Event>,
    /// Which start of the host this is.
    life: Rc<Cell<u32>>,
}

/// The program of a host, with its settings.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) place: &'static Location<'static>,
    pub(super) workers: usize,
    pub(super) stack_bytes: Option<usize>,
    pub(super) body: Rc<dyn Fn()>,
}

impl Shared {
    pub(super) fn new(net: Arc<Mutex<Net>>, limit_time: Duration, limit_steps: u64) -> Shared {
        Shared {
            net,
            pool: Pool::default(),
            orders: RefCell::default(),
            hosts: RefCell::default(),
            failure: RefCell::default(),
            limit_time,
            limit_steps,
        }
    }

    pub(super) fn plan(&self, host: usize) -> Plan {
        self.hosts.borrow()[host].plan.clone()
    }

    pub(super) fn add(&self, plan: Plan, ip: Option<IpAddr>, disk: Option<usize>) -> usize {
        let host = lock(&self.net).add_host(&plan.name, ip, disk);
        self.hosts.borrow_mut().push(HostState {
            plan,
            ended: Rc::new(Event::manual()),
            life: Rc::default(),
        });
        self.orders.borrow_mut().push_back(Order::Start(host));
        host
    }

    /// Notes that the body of a host is about to run.
    pub(super) fn started(&self, host: usize) {
        self.hosts.borrow()[host].ended.reset();
    }

    pub(super) fn stopped(&self, host: usize) {
        self.hosts.borrow()[host].ended.set();
    }

    /// Notes the first failure.
    pub(super) fn fail(&self, failure: Failure) {
        self.failure.borrow_mut().get_or_insert(failure);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// The message of the failure.
    pub(super) fn failure_text(&self) -> Option<String> {
        Some(match self.failure.borrow().as_ref()? {
            failure @ Failure::Panic(_, payload) => format!("{}: {}", failure.kind(), message(&**payload)),
            failure @ (Failure::Deadlock(waiting) | Failure::Endless(waiting)) => {
                format!("{}\n{waiting}", failure.kind())
            }
            failure @ Failure::System(_) => failure.kind().to_owned(),
        })
    }

    pub(super) fn take_failure(&self) -> Option<Failure> {
        self.failure.borrow_mut().take()
    }

    /// Drops the bodies of hosts, because they may hold the world.
    pub(super) fn forget_bodies(&self) {
        let bodies: Vec<HostState> = self.hosts.borrow_mut().drain(..).collect();
        drop(bodies);
    }
}

/// The text of a panic.
fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("its payload is not text")
}

/// A value that the body of a host may return.
pub trait Outcome {
    /// The text of a failure.
    #[doc(hidden)]
    fn failure(self) -> Option<String>;
}

impl Outcome for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: fmt::Debug> Outcome for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| format!("{error:?}"))
    }
}

/// The world of a simulation: its hosts and the network between them. The program of a run gets it, and may give clones to the
/// bodies of hosts.
///
/// The program runs on a host of its own with the name `world`, which is on the network like the others.
#[derive(Clone)]
pub struct World {
    pub(super) shared: Rc<Shared>,
}

/// A host of a [`World`].
#[derive(Clone)]
pub struct Host {
    shared: Rc<Shared>,
    number: usize,
}

impl World {
    /// Adds a host with one worker that runs `body`, and runs it again after each [`restart`](Host::restart). Other hosts find it
    /// by its name.
    ///
    /// A body that panics or returns an error fails the run. A host whose body has returned stays up, with its other fibers.
    ///
    /// ```
    /// use osier::net::{TcpListener, TcpStream};
    /// use osier::sim;
    /// use std::io::{Read, Write};
    ///
    /// sim::run(1, |world| {
    ///     world.host("greeter", || -> std::io::Result<()> {
    ///         let listener = TcpListener::bind("0.0.0.0:80")?;
    ///         loop {
    ///             listener.accept()?.0.write_all(b"hello")?;
    ///         }
    ///     });
    ///     osier::sleep(std::time::Duration::from_millis(10));
    ///     let mut text = String::new();
    ///     TcpStream::connect("greeter:80").unwrap().read_to_string(&mut text).unwrap();
    ///     assert_eq!(text, "hello");
    /// });
    /// ```
    ///
    /// # Suspends
    ///
    /// Never. The body begins to run later.
    #[track_caller]
    pub fn host<R: Outcome>(&self, name: &str, body: impl Fn() -> R + 'static) -> Host {
        self.host_with(name, HostOptions::default(), body)
    }

    /// Adds a host with other settings.
    #[track_caller]
    pub fn host_with<R: Outcome>(&self, name: &str, options: HostOptions, body: impl Fn() -> R + 'static) -> Host {
        assert!(options.workers > 0, "osier::sim: host {name} needs a worker");
        let shared = Rc::clone(&self.shared);
        let number = shared.hosts.borrow().len();
        let weak = Rc::downgrade(&shared);
        let plan = Plan {
            name: name.to_owned(),
            place: Location::caller(),
            workers: options.workers,
            stack_bytes: options.stack_bytes,
            body: Rc::new(move || {
                if let Some(shared) = weak.upgrade() {
                    run_body(&shared, number, &body);
                }
            }),
        };
        shared.add(plan, options.ip, options.disk.map(|host| host.number));
        Host { shared, number }
    }

    /// The host with this name.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn find(&self, name: &str) -> Host {
        let hosts = self.shared.hosts.borrow();
        let number = hosts.iter().position(|host| host.plan.name == name);
        let number = number.unwrap_or_else(|| panic!("osier::sim: no host has the name {name:?}"));
        drop(hosts);
        Host {
            shared: Rc::clone(&self.shared),
            number,
        }
    }

    /// The host that the program runs on.
    pub fn here(&self) -> Host {
        self.find("world")
    }

    /// Cuts the links between two hosts in both directions: every packet is lost until they are [healed](World::heal). Connections stay and
    /// send lost bytes again, less and less often. They fail with `TimedOut` after some 15 minutes.
    pub fn partition(&self, one: &Host, two: &Host) {
        self.cut(one, two);
        self.cut(two, one);
    }

    /// Cuts the link from one host to another, and leaves the opposite direction.
    pub fn cut(&self, from: &Host, to: &Host) {
        let mut net = lock(&self.shared.net);
        net.cut(from.number, to.number);
        let to = net.hosts[to.number].name.clone();
        net.note(from.number, format_args!("cut off from {to}"));
    }

    /// Ends a partition.
    pub fn heal(&self, one: &Host, two: &Host) {
        let mut net = lock(&self.shared.net);
        net.heal(one.number, two.number);
        net.heal(two.number, one.number);
        let name = net.hosts[two.number].name.clone();
        net.note(one.number, format_args!("reaches {name}"));
    }

    /// Sets the properties of the link between two hosts, in both directions. Existing connections keep the size of their buffers.
    pub fn link(&self, one: &Host, two: &Host, link: Link) {
        let mut net = lock(&self.shared.net);
        net.set_link(one.number, two.number, link.clone());
        net.set_link(two.number, one.number, link);
    }

    /// Ends one direction of all connections between two hosts: `to` reads the end of the stream, and may still write. Returns the number
    /// of connections.
    pub fn half_close(&self, from: &Host, to: &Host) -> usize {
        let mut net = lock(&self.shared.net);
        net.note(from.number, format_args!("half-close"));
        net.half_close(from.number, to.number)
    }

    /// Resets all connections between two hosts. Returns the number of connections.
    pub fn reset(&self, one: &Host, two: &Host) -> usize {
        let mut net = lock(&self.shared.net);
        net.note(one.number, format_args!("reset"));
        net.reset(one.number, two.number)
    }

    /// Sets the random faults from now on.
    pub fn faults(&self, faults: Faults) {
        lock(&self.shared.net).faults = faults;
    }

    /// The time since the beginning of the run.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(lock(&self.shared.net).now)
    }
}

/// Settings of a host.
///
/// ```
/// use osier::sim::HostOptions;
///
/// let options = HostOptions { workers: 4, ..HostOptions::default() };
/// assert!(options.ip.is_none());
/// ```
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// The number of its workers.
    pub workers: usize,
    /// Its address; `None` for the next one of 10.0.0.0/16.
    pub ip: Option<IpAddr>,
    /// The bytes of the stack of its first fiber; `None` for those of every fiber.
    pub stack_bytes: Option<usize>,
    /// The host whose disk it shares, as processes of one machine do; `None` for a disk of its own.
    pub disk: Option<Host>,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions {
            workers: 1,
            ip: None,
            stack_bytes: None,
            disk: None,
        }
    }
}

/// Runs a host's body, and notes its end.
fn run_body<R: Outcome>(shared: &Shared, number: usize, body: &dyn Fn() -> R) {
    let (ended, life) = {
        let hosts = shared.hosts.borrow();
        (Rc::clone(&hosts[number].ended), Rc::clone(&hosts[number].life))
    };
    ended.reset();
    let this = life.get() + 1;
    life.set(this);
    let outcome = catch_unwind(AssertUnwindSafe(body));
    if life.get() == this {
        ended.set();
    }
    let name = lock(&shared.net).hosts[number].name.clone();
    match outcome {
        Err(payload) if Cancelled::is_payload(&*payload) => resume_unwind(payload),
        // A call that a crash has cancelled has returned an error, and the body unwraps it.
        Err(payload) if crate::fiber::is_cancelled() => drop(payload),
        Err(payload) => shared.fail(Failure::Panic(format!("host {name} panicked"), payload)),
        // A call that a crash has cancelled does not count as a failure of the body.
        Ok(outcome) if crate::fiber::is_cancelled() => drop(outcome),
        Ok(outcome) => {
            if let Some(error) = outcome.failure() {
                let payload = Box::new(error.clone());
                shared.fail(Failure::Panic(
                    format!("host {name} returned an error: {error}"),
                    payload,
                ));
            }
        }
    }
}

impl Host {
    /// Its name, which other hosts look up.
    pub fn name(&self) -> String {
        lock(&self.shared.net).hosts[self.number].name.clone()
    }

    /// Its address.
    pub fn ip(&self) -> IpAddr {
        lock(&self.shared.net).hosts[self.number].ip
    }

    /// Whether it has power.
    pub fn is_up(&self) -> bool {
        lock(&self.shared.net).hosts[self.number].up
    }

    /// The number of sockets that its program has open.
    pub fn open_sockets(&self) -> usize {
        lock(&self.shared.net).open_sockets(self.number)
    }

    /// Cuts its power: its fibers end, its connections are forgotten, and no peer is notified. Destructors of its fibers run, but reach no
    /// peer and no file. Its disk loses what was not synced; a disk that it shares does when the last of its hosts has crashed.
    ///
    /// A panic of its program while it ends is no failure of the run: a call was cancelled, and its error unwrapped.
    ///
    /// # Suspends
    ///
    /// Once. The host is down when it returns.
    pub fn crash(&self) {
        self.stop(Stop::Crash);
    }

    /// Ends its program as a signal would: its fibers are gone, and its system closes the connections. The host stays up and
    /// refuses connections. Sockets whose descriptor another host has received stay open, because the program of that host stands for
    /// another process of the same machine. As in a [crash](Host::crash), a panic while it ends is no failure.
    ///
    /// # Suspends
    ///
    /// Once.
    pub fn kill(&self) {
        self.stop(Stop::Kill);
    }

    fn stop(&self, how: Stop) {
        assert!(self.number > 0, "osier::sim: the host of the program cannot be stopped");
        self.shared.orders.borrow_mut().push_back(Order::Stop(self.number, how));
        yield_now();
    }

    /// Starts a host that has crashed or was killed: its body runs again. Has no effect on one that was not stopped, even if its body has
    /// returned.
    ///
    /// # Suspends
    ///
    /// Once. The body begins to run later.
    pub fn restart(&self) {
        self.shared.orders.borrow_mut().push_back(Order::Start(self.number));
        yield_now();
    }

    /// Moves its clock ahead, as when a machine is suspended. Its timers fire, and the other hosts do not notice.
    ///
    /// # Suspends
    ///
    /// Once.
    pub fn jump(&self, step: Duration) {
        self.shared
            .orders
            .borrow_mut()
            .push_back(Order::Jump(self.number, step));
        yield_now();
    }

    /// Sets whether every write to a file fails there with `StorageFull`.
    pub fn fill_disk(&self, full: bool) {
        lock(&self.shared.net).disk(self.number).is_full = full;
    }

    /// Sets the bytes that all files of its disk may have together. A write beyond stores a first part and fails with `StorageFull`.
    /// `None` for no limit.
    pub fn limit_disk(&self, bytes: Option<u64>) {
        lock(&self.shared.net).disk(self.number).size = bytes;
    }

    /// Waits until its body has returned, or the host is down.
    ///
    /// # Suspends
    ///
    /// Until its body has returned, or the host is down.
    ///
    /// # Cancellation
    ///
    /// Unwinds.
    pub fn wait(&self) {
        let ended = Rc::clone(&self.shared.hosts.borrow()[self.number].ended);
        ended.wait();
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("elapsed", &self.elapsed())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("name", &self.name())
            .field("ip", &self.ip())
            .finish()
    }
}
