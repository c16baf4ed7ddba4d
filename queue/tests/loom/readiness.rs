//! Readiness and its owners, against a poller that reports an edge when something arrives and when it is asked anew; and
//! against one without edges, which reports once, when it is armed and there is something.

use super::*;
use loom::sync::atomic::Ordering::AcqRel;
use osier_queue::readiness::{Direction, Move, READABLE, Readiness, WRITABLE};

/// There is something: it was sent, or, once and for all, the stream has ended. A read takes what was sent.
const SENT: u32 = 1;
const ENDED: u32 = 1 << 1;
/// Worker `i` is registered.
const REGISTERED: u32 = 1 << 8;
/// Worker `i` is armed, where there are no edges.
const ARMED: u32 = 1 << 12;
/// There is an edge that worker `i` has not taken yet.
const EDGE: u32 = 1 << 16;
/// The same, of room to write: it has disarmed worker `i`, whom it does not concern.
const ROOM: u32 = 1 << 20;

/// A socket, the pollers of the two workers, and a place for what wakes each: an edge or a wake-up.
///
/// The kernel is one word changed by relaxed read-modify-writes: what it does happens in an order, and orders nothing of
/// ours.
struct Machine {
    state: Readiness,
    edges: bool,
    kernel: AtomicU32,
    workers: [std::sync::Arc<Worker>; 2],
}

/// A worker with one fiber. The bell stands for its epoll, which returns for edges and for wake-ups; the flag for its
/// inbox, with the ordering that the inbox promises.
struct Worker {
    bell: Notify,
    /// The fiber is queued.
    woken: AtomicBool,
}

impl Wake for Worker {
    fn wake(self: std::sync::Arc<Self>) {
        self.woken.swap(true, AcqRel);
        self.bell.notify();
    }
}

impl Machine {
    fn new() -> Arc<Machine> {
        Machine::with(true)
    }

    fn with(edges: bool) -> Arc<Machine> {
        let worker = || {
            std::sync::Arc::new(Worker {
                bell: Notify::new(),
                woken: AtomicBool::new(false),
            })
        };
        Arc::new(Machine {
            state: Readiness::new(),
            edges,
            kernel: AtomicU32::new(0),
            workers: [worker(), worker()],
        })
    }

    /// The peer sends: an edge for every registered worker.
    fn arrive(&self, what: u32) {
        let before = self.kernel.fetch_or(what, Relaxed);
        for worker in 0..2 {
            if self.edges && before & REGISTERED << worker != 0 || self.disarm(worker) {
                self.report(worker, EDGE);
            }
        }
    }

    /// The peer makes room for a writer, where there are no edges.
    fn make_room(&self) {
        for worker in 0..2 {
            if self.disarm(worker) {
                self.report(worker, ROOM);
            }
        }
    }

    fn disarm(&self, worker: usize) -> bool {
        !self.edges && self.kernel.fetch_and(!(ARMED << worker), Relaxed) & ARMED << worker != 0
    }

    fn report(&self, worker: usize, what: u32) {
        self.kernel.fetch_or(what << worker, Relaxed);
        self.workers[worker].bell.notify();
    }

    /// A read; `false`: it would block.
    fn read(&self) -> bool {
        self.kernel.fetch_and(!SENT, Relaxed) & (SENT | ENDED) != 0
    }

    fn own(&self, direction: Direction, here: usize) -> Result<(), ()> {
        let register = |Move { leaves, wanted, .. }: Move| {
            if let Some(old) = leaves {
                self.kernel
                    .fetch_and(!((REGISTERED | ARMED | EDGE | ROOM) << old), Relaxed);
            }
            // Adding reports what is there, and so does modifying.
            let armed = if wanted & READABLE != 0 { ARMED << here } else { 0 };
            let before = self.kernel.fetch_or(REGISTERED << here | armed, Relaxed);
            if before & (SENT | ENDED) != 0 && (self.edges || self.disarm(here)) {
                self.report(here, EDGE);
            }
            Ok(())
        };
        match self.edges {
            true => self.state.own(direction, here as u16, register),
            false => self.state.arm(direction, here as u16, register),
        }
    }

    /// The worker's loop, until its fiber is woken.
    fn suspend(&self, here: usize) {
        while !self.workers[here].woken.swap(false, AcqRel) {
            if !self.dispatch(here) {
                self.workers[here].bell.wait(); // a deadlock if the readiness is lost
            }
        }
    }

    /// Takes an edge, if there is one.
    fn dispatch(&self, here: usize) -> bool {
        let taken = self.kernel.fetch_and(!((EDGE | ROOM) << here), Relaxed) >> here;
        let bit_of = |what: u32, bit: u64| if taken & what != 0 { bit } else { 0 };
        let bits = bit_of(EDGE, READABLE) | bit_of(ROOM, WRITABLE);
        if bits != 0 && self.state.set(0, bits) {
            self.state.wake(if self.edges { bits } else { READABLE | WRITABLE });
        }
        bits != 0
    }

    /// A fiber of worker `here` reads once, if that seems worth it, and goes away whether it got all there was, which it
    /// takes to be the case, or nothing: a short read, or a wait given up.
    fn read_once(&self, here: usize) -> bool {
        let seen = self.state.snapshot();
        let read = seen.has(READABLE) && self.read();
        self.state.clear(seen, READABLE, Direction::Read, here as u16);
        read
    }

    /// A fiber of worker `here` reads; returns how often it was suspended.
    fn read_on(&self, here: usize) -> usize {
        let mut suspended = 0;
        loop {
            let seen = self.state.snapshot();
            if seen.has(READABLE) || seen.owner(Direction::Read).is_none() {
                if self.read() {
                    return suspended;
                }
                self.state
                    .clear(seen, Direction::Read.all_bits(), Direction::Read, here as u16);
            }
            suspended += self.wait_on(here);
        }
    }

    fn wait_on(&self, here: usize) -> usize {
        let waker = Waker::from(self.workers[here].clone());
        let mut cx = Context::from_waker(&waker);
        let mut waiter = pin!(self.state.list(Direction::Read).waiter());
        let mut suspended = 0;
        loop {
            let own = || self.own(Direction::Read, here);
            match self.state.poll_ready(Direction::Read, waiter.as_mut(), &mut cx, own) {
                Poll::Ready(owned) => {
                    owned.unwrap();
                    return suspended;
                }
                Poll::Pending => {
                    suspended += 1;
                    self.suspend(here);
                }
            }
        }
    }
}

#[test]
fn an_edge_between_would_block_and_clear_is_not_lost() {
    // Worker 0 owns reading, worker 1 writing: both are registered, both set the bit, and 0 clears it after a would-block.
    model(
        "readiness: an edge on the other direction's owner",
        Some(2),
        &[0, 1],
        || {
            let machine = Machine::new();
            machine.own(Direction::Read, 0).unwrap();
            machine.own(Direction::Write, 1).unwrap();
            machine.state.set(0, READABLE | WRITABLE); // which is too much: the first read would block
            let writer = {
                let machine = machine.clone();
                thread::spawn(move || {
                    machine.dispatch(1);
                })
            };
            let peer = {
                let machine = machine.clone();
                thread::spawn(move || machine.arrive(SENT))
            };
            let suspended = machine.read_on(0);
            peer.join().unwrap();
            writer.join().unwrap();
            suspended.min(1)
        },
    );
}

#[test]
fn a_direction_taken_while_its_owner_would_block_loses_nothing() {
    // Worker 1 takes reading over, as for a connection at rest: nobody of its own waits, so its list says nothing but of
    // worker 0's fiber, which at that time would block, clears, links itself and believes that its worker is the owner.
    model("readiness: taken over from one who waits", Some(3), &[0, 1], || {
        let machine = Machine::new();
        machine.own(Direction::Read, 0).unwrap();
        machine.state.set(0, READABLE);
        let taker = {
            let machine = machine.clone();
            thread::spawn(move || {
                machine.own(Direction::Read, 1).unwrap();
                machine.arrive(SENT);
                machine.dispatch(1);
            })
        };
        let suspended = machine.read_on(0);
        taker.join().unwrap();
        suspended.min(1)
    });
}

#[test]
fn two_readers_on_two_workers_both_meet_the_end() {
    two_readers("readiness: two readers, two workers", true);
}

#[test]
fn two_readers_without_edges_both_meet_the_end() {
    two_readers("readiness: two readers, two workers, no edges", false);
}

/// Each takes the direction from the other, whenever it is about to wait.
fn two_readers(name: &str, edges: bool) {
    model(name, Some(2), &[0, 1, 10, 11], move || {
        let machine = Machine::with(edges);
        machine.own(Direction::Read, 0).unwrap();
        machine.state.set(0, READABLE);
        let other = {
            let machine = machine.clone();
            thread::spawn(move || machine.read_on(1))
        };
        let peer = {
            let machine = machine.clone();
            thread::spawn(move || machine.arrive(ENDED))
        };
        let suspended = machine.read_on(0).min(1);
        peer.join().unwrap();
        10 * other.join().unwrap().min(1) + suspended
    });
}

/// Worker 0's fiber empties the socket, clears and never comes back; what arrives after that is worker 1's to hear of.
fn one_reads_and_goes(name: &str, owner: usize, outcomes: &[usize]) {
    model(name, Some(3), outcomes, move || {
        let machine = Machine::new();
        machine.own(Direction::Read, owner).unwrap();
        machine.arrive(SENT);
        machine.dispatch(owner);
        let other = {
            let machine = machine.clone();
            thread::spawn(move || machine.read_on(1))
        };
        let peer = {
            let machine = machine.clone();
            thread::spawn(move || machine.arrive(ENDED))
        };
        let read = machine.read_once(0) as usize;
        peer.join().unwrap();
        10 * other.join().unwrap().min(1) + read
    });
}

#[test]
fn a_clear_that_comes_after_a_move_takes_nothing() {
    one_reads_and_goes("readiness: a move between a read and its clear", 0, &[0, 1, 11]);
}

#[test]
fn who_does_not_own_a_direction_clears_nothing() {
    one_reads_and_goes("readiness: a read on a worker that owns nothing", 1, &[0, 1, 11]);
}

/// Worker 0 owns both directions, and gets an event for bytes that it has read since: the bit stands, nothing is armed.
fn disarmed() -> Arc<Machine> {
    let machine = Machine::with(false);
    machine.own(Direction::Write, 0).unwrap();
    machine.own(Direction::Read, 0).unwrap();
    machine.arrive(SENT);
    assert!(machine.dispatch(0) && machine.read());
    machine
}

#[test]
fn without_edges_what_comes_while_a_reader_clears_and_arms_is_not_lost() {
    model("readiness: arming while something arrives", Some(3), &[0, 1], || {
        let machine = disarmed();
        let peer = {
            let machine = machine.clone();
            thread::spawn(move || machine.arrive(SENT))
        };
        let suspended = machine.read_on(0);
        peer.join().unwrap();
        suspended.min(1)
    });
}

#[test]
fn without_edges_an_event_for_the_writer_leaves_the_reader_armed_again() {
    model(
        "readiness: disarmed by the other direction",
        Some(3),
        &[0, 1, 2],
        || {
            let machine = disarmed();
            let peer = {
                let machine = machine.clone();
                thread::spawn(move || {
                    machine.make_room();
                    machine.arrive(SENT);
                })
            };
            let suspended = machine.read_on(0);
            peer.join().unwrap();
            suspended.min(2)
        },
    );
}

/// A thread has taken a driver for its socket, and the driver ends: first its poller goes, then what is registered is forgotten.
#[test]
fn a_driver_that_ends_wakes_or_refuses_who_comes() {
    model("readiness: a driver ends", Some(3), &[0, 1], || {
        let driver = Arc::new((Readiness::new(), loom::sync::Mutex::new(true)));
        let ending = {
            let driver = driver.clone();
            thread::spawn(move || {
                *driver.1.lock().unwrap() = false;
                driver.0.forget_worker(0);
            })
        };
        let (state, has_poller) = (&driver.0, &driver.1);
        let mut waiter = pin!(state.list(Direction::Read).waiter());
        let mut refused_at_once = true;
        let outcome = block_on(poll_fn(|cx| {
            let register = |_: Move| has_poller.lock().unwrap().then_some(()).ok_or(());
            let polled = state.poll_ready(Direction::Read, waiter.as_mut(), cx, || {
                state.renew(Direction::Read, 0, register)
            });
            refused_at_once &= polled.is_ready();
            polled
        }));
        assert_eq!(outcome, Err(()));
        ending.join().unwrap();
        usize::from(refused_at_once)
    });
}
