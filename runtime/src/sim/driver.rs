//! The loop of a simulation: one thread runs the workers of all hosts, one fiber at a time.
//!
//! ```text
//!   orders ─▶ events that are due ─▶ news to the sockets' table ─▶ workers gather ─▶ one choice runs ─┐
//!     ▲                                                                │ nothing can run              │
//!     │                                                                ▼                              │
//!     │                                             the clock moves to the next event or timer        │
//!     └───────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A choice is a fiber or a task that is ready on any worker, or work for the pool. Which one runs is drawn from the seed.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use osier_coro::panic_count;
use osier_poll::{Event, Events, Poller};

use super::choices::About;
use super::here::{self, lock};
use super::net::nanos;
use super::world::{Failure, Order, Shared, Stop};
use crate::inspect::dump;
use crate::time::VirtualClock;
use crate::wait::entry;
use crate::worker::Worker;
use crate::worker::context;
use crate::worker::core::Header;
use crate::worker::packet;
use crate::worker::threads::{self, Claim, Settings};

/// Choices at one moment, after which each further choice moves the clock by [`LITTLE`]. So fibers that yield until a deadline reach it.
const CALM: u32 = 10_000;
/// Nanoseconds of such a move.
const LITTLE: u64 = 1000;
/// The nanoseconds between two possible latencies of descriptors of the system, and the number of these latencies.
const LATE: (u64, u32) = (62_500, 17);
/// Steps between two looks at these descriptors, which are system calls. Before the clock moves there is always a look.
const LOOK: u64 = 8;
/// Timers that a stopping host may wait for, at most.
const FAREWELLS: u32 = 1000;
/// Rounds over all that can run on a stopping host, at most.
const ROUNDS: u32 = 100_000;

thread_local! {
    /// The poller of the workers of all simulations of this thread. Nothing is registered with it, and no worker waits on it.
    static POLLER: io::Result<Arc<Poller>> = Poller::new().map(Arc::new);
}

pub(super) struct Driver {
    shared: Rc<Shared>,
    machines: Vec<Machine>,
    start: Instant,
    /// Each worker, by the numbers of its host and of the worker there, with its choices when they were last counted.
    counts: Vec<(usize, usize, u32)>,
    /// The worker whose choices come first, counted over all hosts. The pool comes after the last worker.
    turn: usize,
    /// Choices since the clock last moved.
    calm: u32,
    /// Room for events of descriptors of the system.
    events: RefCell<Events>,
    /// The time from which on such events are taken.
    looks_at: Cell<u64>,
    pub(super) steps: u64,
}

/// The workers of a host, with their clock. `workers` is empty while it is down.
struct Machine {
    clock: VirtualClock,
    // A worker must be dropped before its claim.
    workers: Vec<(Box<Worker>, Claim)>,
}

impl Driver {
    pub(super) fn new(shared: Rc<Shared>) -> Driver {
        let start = lock(&shared.net).start;
        Driver {
            shared,
            machines: Vec::new(),
            start,
            counts: Vec::new(),
            turn: 0,
            calm: 0,
            events: RefCell::new(Events::with_capacity(64)),
            looks_at: Cell::new(0),
            steps: 0,
        }
    }

    /// Runs until the program has returned, or until something has failed.
    pub(super) fn run(&mut self, returned: &Cell<bool>) {
        let limits = (nanos(self.shared.limit_time), self.shared.limit_steps);
        loop {
            self.obey();
            if returned.get() || self.shared.has_failed() {
                return;
            }
            self.news();
            self.gather();
            let mut total = self.count_choices();
            if total == 0 && self.look_at_descriptors() {
                self.gather();
                total = self.count_choices();
            }
            if total == 0 {
                if !self.advance() {
                    let text = self.who_waits();
                    return self.shared.fail(Failure::Deadlock(text));
                }
            } else {
                let number = lock(&self.shared.net).choices.draw(About::Order, total);
                self.choose(number);
                self.steps += 1;
                self.calm += 1;
                if self.calm > CALM {
                    self.move_to(lock_now(&self.shared) + LITTLE);
                }
            }
            if lock_now(&self.shared) > limits.0 || self.steps > limits.1 {
                return self.shared.fail(Failure::Endless(self.who_waits()));
            }
        }
    }

    /// Counts the fibers, tasks and jobs for the pool that can run.
    fn count_choices(&mut self) -> u32 {
        self.counts.clear();
        for (host, machine) in self.machines.iter().enumerate() {
            for (number, (worker, _)) in machine.workers.iter().enumerate() {
                self.counts.push((host, number, worker.choices()));
            }
        }
        self.counts.iter().map(|&(.., choices)| choices).sum::<u32>() + self.pooled()
    }

    fn pooled(&self) -> u32 {
        u32::try_from(self.shared.pool.borrow().len()).unwrap_or(u32::MAX)
    }

    /// Carries out the program's orders: hosts start and stop between two fibers.
    fn obey(&mut self) {
        loop {
            let order = self.shared.orders.borrow_mut().pop_front();
            match order {
                None => return,
                Some(Order::Start(host)) => {
                    if let Err(error) = self.start(host) {
                        self.shared.fail(Failure::System(error.to_string()));
                    }
                }
                Some(Order::Stop(host, how)) => self.stop(host, how),
                Some(Order::Jump(host, step)) => {
                    lock(&self.shared.net).hosts[host].ahead += nanos(step);
                    self.machines[host].clock.advance(step);
                    self.tell_time(host);
                }
            }
        }
    }

    fn start(&mut self, host: usize) -> io::Result<()> {
        let plan = self.shared.plan(host);
        while self.machines.len() <= host {
            let (clock, workers) = (VirtualClock::starting_at(self.start), Vec::new());
            self.machines.push(Machine { clock, workers });
        }
        if !self.machines[host].workers.is_empty() {
            return Ok(());
        }
        // A new one at each start: the destructors of the fibers before may have moved theirs.
        let clock = VirtualClock::starting_at(self.start);
        clock.auto_advance(false);
        let ahead = lock(&self.shared.net).hosts[host].ahead;
        clock.advance(Duration::from_nanos(lock_now(&self.shared) + ahead));
        self.machines[host].clock = clock;
        let settings = Settings {
            name: plan.name.clone(),
            clock: Some(self.machines[host].clock.clone()),
            ..Settings::default()
        };
        let poller = POLLER.with(|poller| match poller {
            Ok(poller) => Ok(Arc::clone(poller)),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        })?;
        let pollers: Vec<_> = (0..plan.workers).map(|_| Ok(Arc::clone(&poller))).collect();
        let (scheduler, vacancies) = threads::prepare(&settings, pollers.into_iter())?;
        let mut workers = Vec::new();
        for (index, vacancy) in vacancies.into_iter().enumerate() {
            let (claim, worker) = vacancy.fill(index, Arc::clone(&scheduler))?;
            claim.0.unplug();
            claim.0.desk.work_begins();
            workers.push((Box::new(worker), claim));
        }
        let mut net = lock(&self.shared.net);
        net.hosts[host].up = true;
        net.hosts[host].life += 1;
        if host > 0 {
            net.note(host, format_args!("start"));
        }
        drop(net);
        self.shared.started(host);
        let header = Header::named(plan.place, Some(plan.name.as_str().into()), plan.stack_bytes);
        let (job, handle) = packet::packet_local(header, move || (plan.body)());
        drop(handle);
        workers[0].0.spawn_local(job);
        self.machines[host].workers = workers;
        Ok(())
    }

    /// Stops a host: its sockets first, so that no peer notices the destructors of its fibers.
    fn stop(&mut self, host: usize, how: Stop) {
        let Some(machine) = self.machines.get_mut(host) else {
            return;
        };
        let workers = std::mem::take(&mut machine.workers);
        let mut net = lock(&self.shared.net);
        // A host whose program has been killed still has power, and data in memory.
        if workers.is_empty() && !(how == Stop::Crash && net.hosts[host].up) {
            return;
        }
        match how {
            Stop::Crash => net.note(host, format_args!("crash")),
            Stop::Kill => net.note(host, format_args!("kill")),
        }
        match how {
            Stop::Crash => net.crash(host),
            Stop::Kill => net.kill(host),
        }
        if how == Stop::Crash
            && let Err(error) = net.lose_unsynced(host)
        {
            self.shared
                .fail(Failure::System(format!("the disk of a simulated host: {error}")));
        }
        drop(net);
        self.end(host, workers);
        self.shared.stopped(host);
    }

    /// Cancels all fibers of some workers and runs them until they have ended, or for [`ROUNDS`]. No other fiber runs meanwhile.
    fn end(&self, host: usize, workers: Vec<(Box<Worker>, Claim)>) {
        here::set_host(host);
        let clock = &self.machines[host].clock;
        if let Some((worker, _)) = workers.first() {
            worker.scheduler.stop();
        }
        // The code that stops the host may be unwinding, but the host's fibers are not.
        let panics = panic_count::take();
        let mut rounds = 0..ROUNDS;
        for _ in 0..FAREWELLS {
            while rounds.next().is_some() {
                let mut ran = false;
                for (worker, _) in &workers {
                    context::enter_worker(worker, || {
                        worker.gather();
                        for _ in 0..worker.choices() {
                            worker.run_choice(0);
                            ran = true;
                        }
                        // Queued by destructors.
                        ran |= worker.unstarted() > 0;
                    });
                }
                ran |= self.run_pool();
                if !ran {
                    break;
                }
            }
            let timers = workers.iter().filter_map(|(worker, _)| worker.next_timer());
            let Some(next) = timers
                .min()
                .filter(|_| !rounds.is_empty() && !workers.iter().all(|(worker, _)| worker.is_empty()))
            else {
                break;
            };
            clock.advance(next.saturating_duration_since(clock.now()));
            workers.iter().for_each(|(worker, _)| worker.tell_time());
        }
        for (worker, _) in &workers {
            context::enter_worker(worker, || worker.give_up());
        }
        panic_count::put(panics);
    }

    /// Runs all work for the pool.
    fn run_pool(&self) -> bool {
        let jobs: Vec<_> = self.shared.pool.borrow_mut().drain(..).collect();
        let any = !jobs.is_empty();
        jobs.into_iter().for_each(|(host, job)| run_job(host, job));
        any
    }

    /// Ends every host, and with them the simulation.
    pub(super) fn finish(&mut self) {
        for host in (0..self.machines.len()).rev() {
            let workers = std::mem::take(&mut self.machines[host].workers);
            if !workers.is_empty() {
                lock(&self.shared.net).crash(host);
                self.end(host, workers);
            }
        }
        self.shared.orders.borrow_mut().clear();
    }

    /// Handles events that are due, and reports readiness to the sockets' table.
    fn news(&self) {
        loop {
            let ready = {
                let mut net = lock(&self.shared.net);
                while net.happen() {}
                std::mem::take(&mut net.ready)
            };
            let workers = || self.machines.iter().flat_map(|machine| &machine.workers);
            if ready.is_empty() {
                if self.steps.is_multiple_of(LOOK) {
                    self.look_at_descriptors();
                }
                return;
            }
            let Some((worker, _)) = workers().next() else {
                return;
            };
            for (token, readiness) in ready {
                entry::dispatch(worker.remote, Event { token, readiness });
            }
        }
    }

    /// Reports readiness of the system's descriptors, such as Unix sockets between hosts. After each report the next one is late.
    /// Returns whether there was one.
    fn look_at_descriptors(&self) -> bool {
        let now = lock_now(&self.shared);
        if now < self.looks_at.get() {
            return false;
        }
        let mut events = self.events.borrow_mut();
        let mut any = false;
        for (worker, _) in self.machines.iter().flat_map(|machine| &machine.workers) {
            any |= worker.remote.poll_now(&mut events);
        }
        if any {
            let late = lock(&self.shared.net).choices.draw(About::Latency, LATE.1);
            self.looks_at.set(now + u64::from(late) * LATE.0);
        }
        any
    }

    /// Makes workers collect wake-ups and jobs from other threads. An idle worker may first steal jobs from its neighbours.
    fn gather(&mut self) {
        for (host, machine) in self.machines.iter().enumerate() {
            here::set_host(host);
            let workers = || machine.workers.iter().map(|(worker, _)| worker);
            if machine.workers.len() > 1 {
                for worker in
                    workers().filter(|worker| worker.choices() == 0 && worker.scheduler.has_work(worker.index))
                {
                    if lock(&self.shared.net).choices.draw(About::Order, 2) == 1 {
                        context::enter_worker(worker, || worker.steal());
                    }
                }
            }
            for worker in workers().filter(|worker| worker.has_news()) {
                context::enter_worker(worker, || worker.gather());
            }
        }
    }

    /// Runs one of the choices that were counted last: `number` counts from the worker whose turn it is, or from the pool.
    fn choose(&mut self, mut number: u32) {
        let places = self.counts.len() + 1;
        for step in 0..places {
            let place = (self.turn + step) % places;
            let counted = self.counts.get(place).copied();
            let choices = counted.map_or_else(|| self.pooled(), |(.., choices)| choices);
            if number >= choices {
                number -= choices;
                continue;
            }
            self.turn = (place + 1) % places;
            match counted {
                Some((host, worker, _)) => {
                    let (worker, _) = &self.machines[host].workers[worker];
                    here::set_host(host);
                    context::enter_worker(worker, || worker.run_choice(number));
                }
                None => {
                    let job = self.shared.pool.borrow_mut().remove(number as usize);
                    job.into_iter().for_each(|(host, job)| run_job(host, job));
                }
            }
            return;
        }
    }

    /// Moves the clock to the next event or timer. Returns false if there is none.
    fn advance(&mut self) -> bool {
        let mut next = lock(&self.shared.net).next_event();
        if self.looks_at.get() > lock_now(&self.shared) {
            next = Some(next.map_or(self.looks_at.get(), |next| next.min(self.looks_at.get())));
        }
        for (host, machine) in self.machines.iter().enumerate() {
            let timers = machine.workers.iter().filter_map(|(worker, _)| worker.next_timer());
            if let Some(timer) = timers.min() {
                let ahead = lock(&self.shared.net).hosts[host].ahead;
                let at = nanos(timer.saturating_duration_since(self.start)).saturating_sub(ahead);
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        let Some(next) = next else { return false };
        self.move_to(next);
        true
    }

    fn move_to(&mut self, time: u64) {
        let mut net = lock(&self.shared.net);
        let step = time.saturating_sub(net.now);
        net.now += step;
        drop(net);
        if step == 0 {
            return;
        }
        if self.calm <= CALM || step > LITTLE {
            self.calm = 0;
        }
        for host in 0..self.machines.len() {
            // One that is down gets another clock when it starts.
            if !self.machines[host].workers.is_empty() {
                self.machines[host].clock.advance(Duration::from_nanos(step));
                self.tell_time(host);
            }
        }
    }

    fn tell_time(&self, host: usize) {
        self.machines[host]
            .workers
            .iter()
            .for_each(|(worker, _)| worker.tell_time());
    }

    /// Every fiber with what it waits for.
    fn who_waits(&self) -> String {
        let mut text = String::new();
        let workers = || self.machines.iter().flat_map(|machine| &machine.workers);
        let answers = workers().map(|(worker, _)| {
            (
                worker.remote.id,
                context::enter_worker(worker, || dump::answer(worker, None)),
            )
        });
        let answers: Vec<_> = answers.collect();
        let remotes: Vec<_> = workers().map(|(worker, _)| worker.remote).collect();
        // A String takes every write.
        let _ = write!(text, "{}", dump::collect(&remotes, None, answers));
        text
    }
}

/// Runs work for the pool as a plain thread of a host does.
fn run_job(host: usize, job: async_task::Runnable) {
    here::run_pooled(host, || {
        // The task has the outcome. Only a waker that panics is caught here.
        let _: Result<bool, Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(|| job.run()));
    });
}

fn lock_now(shared: &Shared) -> u64 {
    lock(&shared.net).now
}
