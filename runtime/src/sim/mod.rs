//! Simulates hosts, a network, time and faults from one seed, for tests. Needs the feature `sim`.
//!
//! [`run`] gives a program a [`World`]. It adds hosts, each of which runs plain blocking code: the sockets of [`net`](crate::net), fibers,
//! tasks, timers and locks of this crate, as they are. All hosts run on the calling thread, one fiber at a time. Which fiber runs next,
//! how long a packet takes and which faults happen is drawn from the seed. So a run with the same seed is the same run, and its
//! [trace](Report::trace) is the same, byte for byte. No time passes but that of events: an hour of sleep costs nothing.
//!
//! ```
//! use osier::net::{TcpListener, TcpStream};
//! use osier::sim;
//! use std::io::{Read, Write};
//! use std::time::Duration;
//!
//! // Any code of yours. It knows nothing of a simulation.
//! fn echo(address: &str) -> std::io::Result<()> {
//!     let listener = TcpListener::bind(address)?;
//!     loop {
//!         let (mut stream, _) = listener.accept()?;
//!         osier::spawn(move || -> std::io::Result<()> {
//!             let mut byte = [0];
//!             while stream.read(&mut byte)? > 0 {
//!                 osier::sleep(Duration::from_secs(60));
//!                 stream.write_all(&byte)?;
//!             }
//!             Ok(())
//!         });
//!     }
//! }
//!
//! sim::run(1, |world| {
//!     world.host("server", || echo("0.0.0.0:7"));
//!     osier::sleep(Duration::from_millis(10));
//!     let mut stream = TcpStream::connect("server:7").unwrap();
//!     let mut byte = [0];
//!     for _ in 0..60 {
//!         stream.write_all(b"x").unwrap();
//!         stream.read_exact(&mut byte).unwrap();
//!     }
//!     assert!(world.elapsed() > Duration::from_secs(3600));
//! });
//! ```
//!
//! # A run that fails
//!
//! A failed run prints its seed, and panics as the program did. The environment variable `OSIER_SEED` runs that seed alone, whatever seed
//! the program names; `OSIER_TRACE` names a file for the trace. [`Sim::shrink`] looks for a schedule that also fails and differs in fewer
//! places from the plain one, in which every fiber waits its turn and nothing is late. A run in which every fiber waits and no timer is set
//! has failed too: the message lists every fiber with what it waits for.
//!
//! # What is simulated
//!
//! | | |
//! |---|---|
//! | [`TcpListener`](crate::net::TcpListener), [`TcpStream`](crate::net::TcpStream), [`UdpSocket`](crate::net::UdpSocket) | yes, without a system call |
//! | names of hosts | yes; other names are not found |
//! | [`sleep`](crate::sleep), [`timeout`](crate::timeout()), [`time::now`](crate::time::now), [`time::system_now`](crate::time::system_now) | yes |
//! | [`random`](crate::random) | yes |
//! | the order of fibers and tasks, and which worker takes a job | yes |
//! | [`unblock`](crate::unblock()) | runs on the simulation's thread, between two fibers |
//! | files of [`fs`](crate::fs) | in memory, a disk for each host; a [crash](Host::crash) loses what was not synced, and a disk may be [full](Host::limit_disk) (Linux) |
//! | files of `std::fs` | no: they are those of the machine |
//! | Unix sockets and pipes between hosts | those of the machine, which report within 1 ms |
//! | a descriptor of a simulated socket | a stand-in, from which a host of the same run makes the socket again (Linux) |
//! | child processes, signals, data from other programs | no: a run that waits only for these has failed |
//! | `Instant::now`, `SystemTime::now`, `std::thread`, `std::net` | no: they are the machine's |
//! | `thread_local!` | one value for all hosts and workers: they share a thread |
//! | the order of a `HashMap` | no: it differs from run to run, so a program that depends on it has no constant trace |
//!
//! # The model
//!
//! A connection delivers bytes in order or breaks. A lost segment is sent again after 0.2 s, then 0.4 s and so on, and the connection
//! fails with `TimedOut` after 15 losses. A connect is tried for about a minute, and its answer for another. A closed end that has unread bytes resets the
//! connection, as on Linux. Nothing is known of a host without power until it is up again and resets what it does not know.
//! The model leaves out congestion, keepalive, urgent data, fragments, IPv6 beyond `[::]` and `[::1]`.
//!
//! A disk is empty at first, apart from the directory for temporary files. A crash leaves the bytes that `sync_all` or `sync_data` has
//! stored, and a first part of the later writes of each file, which the seed chooses. Names are in a journal: a crash keeps a first part of
//! the changes since the directory was synced, and each change, such as a `rename`, as a whole. To sync a directory, open it and call
//! `sync_all`. A `sync_all` of a file that [fails](Faults::disk_error) has stored a first part of the writes before it, which the seed chooses; as
//! on Linux, no later one stores the others. A file has at most 1 GiB. A program that is [killed](Host::kill) loses nothing. The model leaves out symbolic links, permissions and times of
//! directories, and the time that a disk takes. [`fs::File::into_std`](crate::fs::File::into_std) gives a file of the system in memory, whose writes a crash loses and which
//! has no faults.

mod choices;
pub(crate) mod disk;
mod driver;
mod fault;
pub(crate) mod here;
pub(crate) mod net;
mod shrink;
mod trace;
mod world;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::panic::{Location, resume_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::worker::context;
use choices::Choices;
use driver::Driver;
use here::lock;
use net::Net;
use trace::Trace;
use world::{Failure, Plan, Shared};

pub use choices::{InvalidSchedule, Schedule};
pub use fault::{Faults, Link};
pub use shrink::Shrunk;
pub use world::{Host, HostOptions, Outcome, World};

/// Runs `program` in a simulation, and returns its result. Then ends the hosts that still run.
///
/// # Blocks the thread
///
/// Until the program has returned.
///
/// # Panics
///
/// If the program or the body of a host panics, if all fibers wait for ever, if the run exceeds its limits, or when called on a worker.
#[track_caller]
pub fn run<T: 'static>(seed: u64, program: impl FnOnce(&World) -> T + 'static) -> T {
    Sim::new(seed).run(program)
}

/// Runs `program` once for each seed, until one fails.
///
/// # Blocks the thread
///
/// Until all runs have ended.
///
/// # Panics
///
/// As [`run`] does for the first seed that fails, whose number it prints.
#[track_caller]
pub fn check(seeds: Range<u64>, program: impl Fn(&World) + 'static) {
    Sim::new(0).check(seeds, program);
}

/// Adds a line to the trace. Has no effect outside of a simulation.
pub fn note(text: fmt::Arguments<'_>) {
    here::get(|here| lock(here.net).note(here.host, text));
}

/// A number from the seed. It is [`osier::random`](crate::random) with another name, for code that runs in simulations only.
///
/// # Panics
///
/// Outside of a simulation.
pub fn random() -> u64 {
    here::get(|here| lock(here.net).choices.random()).expect("osier::sim::random outside of a simulation")
}

/// Whether the caller runs on a simulated host.
pub fn is_simulated() -> bool {
    here::get(|_| ()).is_some()
}

/// A simulation before it runs.
///
/// ```
/// use osier::sim::{Faults, Sim};
/// use std::time::Duration;
///
/// let report = Sim::new(3).faults(Faults::rough()).report(|world| {
///     osier::sleep(Duration::from_secs(5));
///     assert!(world.elapsed() >= Duration::from_secs(6), "on purpose");
/// });
/// assert!(report.failure.unwrap().contains("on purpose"));
/// ```
#[derive(Clone, Debug)]
pub struct Sim {
    schedule: Schedule,
    link: Link,
    faults: Faults,
    limit_time: Duration,
    limit_steps: u64,
    traces: bool,
}

/// The course of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The schedule that it ran by.
    pub schedule: Schedule,
    /// The events, one a line: the time in seconds, the host, and what happened.
    pub trace: String,
    /// The virtual time of the run.
    pub elapsed: Duration,
    /// The number of times that a fiber, a task or work for the pool ran.
    pub steps: u64,
    /// How many choices were other than plain, by their kind.
    pub choices: String,
    /// The message of the failure, if the run failed.
    pub failure: Option<String>,
}

/// The end of a run: what the program has returned, or the payload of its panic.
struct Ended<T> {
    /// The [kind](Failure::kind) of the failure, if the run failed.
    failed: Option<String>,
    outcome: Result<T, Box<dyn Any + Send>>,
    report: Report,
    made: Vec<u32>,
}

impl Sim {
    /// A simulation by `schedule`, a seed for example, of hosts on a [usual](Link::default) network without faults.
    pub fn new(schedule: impl Into<Schedule>) -> Sim {
        Sim {
            schedule: schedule.into(),
            link: Link::default(),
            faults: Faults::none(),
            limit_time: Duration::from_secs(30 * 24 * 3600),
            limit_steps: 20_000_000,
            traces: true,
        }
    }

    /// Sets the default properties of the links between hosts.
    pub fn link(mut self, link: Link) -> Sim {
        self.link = link;
        self
    }

    /// Sets the faults that happen by chance.
    pub fn faults(mut self, faults: Faults) -> Sim {
        self.faults = faults;
        self
    }

    /// Sets the virtual time after which a run counts as endless; 30 days unless set.
    pub fn limit(mut self, time: Duration) -> Sim {
        self.limit_time = time;
        self
    }

    /// Sets the number of steps after which a run counts as endless; 20 million unless set.
    pub fn limit_steps(mut self, steps: u64) -> Sim {
        self.limit_steps = steps;
        self
    }

    /// Runs `program` as [`run`] does.
    ///
    /// # Blocks the thread
    ///
    /// Until the program has returned.
    ///
    /// # Panics
    ///
    /// As [`run`] does.
    #[track_caller]
    pub fn run<T: 'static>(mut self, program: impl FnOnce(&World) -> T + 'static) -> T {
        if let Some(schedule) = from_environment() {
            self.schedule = schedule;
        }
        let ended = self.simulate(Location::caller(), program);
        match ended.outcome {
            Ok(value) => value,
            Err(payload) => {
                complain(&ended.report);
                resume_unwind(payload)
            }
        }
    }

    /// Runs `program` once for each seed, until one fails.
    ///
    /// # Blocks the thread
    ///
    /// Until all runs have ended.
    ///
    /// # Panics
    ///
    /// As [`run`] does for the first seed that fails.
    #[track_caller]
    pub fn check(self, seeds: Range<u64>, program: impl Fn(&World) + 'static) {
        let place = Location::caller();
        let program = Rc::new(program);
        let schedules: Vec<Schedule> = match from_environment() {
            Some(schedule) => vec![schedule],
            None => seeds.map(Schedule::from).collect(),
        };
        for schedule in schedules {
            let mut sim = self.clone();
            sim.schedule = schedule;
            sim.traces = false;
            let shared = Rc::clone(&program);
            if sim.simulate(place, move |world| shared(world)).outcome.is_err() {
                // Once more, for the trace.
                sim.traces = true;
                let shared = Rc::clone(&program);
                let again = sim.simulate(place, move |world| shared(world));
                complain(&again.report);
                match again.outcome {
                    Err(payload) => resume_unwind(payload),
                    Ok(()) => panic!(
                        "osier::sim: schedule {} fails once and not again: the program depends on more than its seed",
                        sim.schedule
                    ),
                }
            }
        }
    }

    /// Runs `program`, and returns a report, which has the failure if there was one.
    ///
    /// # Blocks the thread
    ///
    /// Until the program has returned.
    ///
    /// # Panics
    ///
    /// When called on a worker.
    #[track_caller]
    pub fn report(&self, program: impl FnOnce(&World) + 'static) -> Report {
        self.simulate(Location::caller(), program).report
    }

    fn simulate<T: 'static>(
        &self,
        place: &'static Location<'static>,
        program: impl FnOnce(&World) -> T + 'static,
    ) -> Ended<T> {
        let value = Rc::new(Cell::new(None));
        let left = Rc::clone(&value);
        let program = Box::new(move |world: &World| left.set(Some(program(world))));
        let Ended {
            failed,
            outcome,
            report,
            made,
        } = self.simulate_untyped(place, program);
        let outcome = outcome.map(|()| value.take().expect("the program has returned"));
        Ended {
            failed,
            outcome,
            report,
            made,
        }
    }

    /// Runs a `program` that stores its value itself. A suite of tests has hundreds of programs; this is compiled once for all of them.
    fn simulate_untyped(&self, place: &'static Location<'static>, program: Program) -> Ended<()> {
        assert!(
            context::worker(|_| ()).is_none(),
            "osier::sim on a worker would block it: call it on a plain thread, such as that of a test"
        );
        let choices = Choices::new(&self.schedule);
        let net = Net::new(choices, Trace::new(self.traces), self.link.clone(), self.faults.clone());
        let net = Arc::new(Mutex::new(net));
        let shared = Rc::new(Shared::new(Arc::clone(&net), self.limit_time, self.limit_steps));
        let _entered = here::Entered::new(&net, &shared.pool);
        crate::select::draw_from(self.schedule.seed());

        let returned = Rc::new(Cell::new(false));
        let plan = program_plan(place, &shared, program, Rc::clone(&returned));
        shared.add(plan, None, None);
        let mut driver = Driver::new(Rc::clone(&shared));
        driver.run(&returned);
        let report = self.report_of(&shared, &driver);
        driver.finish();
        shared.forget_bodies();

        let made = lock(&net).choices.made().0;
        let failure = shared.take_failure();
        let failed = failure.as_ref().map(|failure| failure.kind().to_owned());
        let outcome = match failure {
            Some(Failure::Panic(_, payload)) => Err(payload),
            Some(_) => Err(Box::new(report.failure.clone().unwrap_or_default()) as Box<dyn Any + Send>),
            None => Ok(()),
        };
        Ended {
            failed,
            outcome,
            report,
            made,
        }
    }

    /// The report of a run that is over.
    fn report_of(&self, shared: &Shared, driver: &Driver) -> Report {
        let failure = shared.failure_text();
        let mut net = lock(&shared.net);
        let (elapsed, steps) = (Duration::from_nanos(net.now), driver.steps);
        let choices = net.choices.kinds();
        net.note(0, format_args!("end after {steps} steps"));
        Report {
            schedule: self.schedule.clone(),
            trace: net.trace.take(),
            elapsed,
            steps,
            choices,
            failure,
        }
    }
}

type Program = Box<dyn FnOnce(&World)>;

/// The plan of the host that runs the program. `returned` becomes true when the program returns.
fn program_plan(
    place: &'static Location<'static>,
    shared: &Rc<Shared>,
    program: Program,
    returned: Rc<Cell<bool>>,
) -> Plan {
    let program = RefCell::new(Some(program));
    let weak = Rc::downgrade(shared);
    Plan {
        name: "world".into(),
        place,
        workers: 1,
        stack_bytes: None,
        body: Rc::new(move || {
            let (Some(program), Some(shared)) = (program.borrow_mut().take(), weak.upgrade()) else {
                return;
            };
            let world = World {
                shared: Rc::clone(&shared),
            };
            let run = std::panic::AssertUnwindSafe(|| program(&world));
            match std::panic::catch_unwind(run) {
                Ok(()) => returned.set(true),
                Err(payload) if crate::Cancelled::is_payload(&*payload) => resume_unwind(payload),
                Err(payload) => shared.fail(Failure::Panic("the program panicked".into(), payload)),
            }
        }),
    }
}

/// The schedule that the environment asks for.
fn from_environment() -> Option<Schedule> {
    let text = std::env::var("OSIER_SEED").ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("OSIER_SEED: {error}")))
}

/// Prints the seed that has failed, and writes the trace.
fn complain(report: &Report) {
    let failure = report.failure.as_deref().unwrap_or("no failure");
    let (schedule, elapsed, steps) = (&report.schedule, report.elapsed, report.steps);
    eprintln!("osier::sim: schedule {schedule} fails after {elapsed:?} and {steps} steps: {failure}");
    eprintln!("osier::sim: run it again with OSIER_SEED={schedule}, and with OSIER_TRACE=FILE for its trace");
    if let Some(path) = std::env::var_os("OSIER_TRACE")
        && let Err(error) = std::fs::write(&path, &report.trace)
    {
        eprintln!("osier::sim: the trace: {}: {error}", path.display());
    }
}
