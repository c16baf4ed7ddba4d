//! Cancellations, timeouts, shields, panics, destructors that wait, and a shutdown, at random moments: everything ends, and nothing is left.

use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use osier::sync::{Event, Mutex, Semaphore};
use osier::time::Sleep;
use osier::{Cancelled, Runtime};

/// The runtimes of one run. `OSIER_STORMS` has another number.
const STORMS: u64 = 30;
const FIBERS: usize = 100;
/// Fibers, scopes, timeouts and shields inside of one another.
const DEPTH: u32 = 4;

/// Numbers that are random enough (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn fork(&mut self) -> Random {
        Random(self.below(u64::MAX) | 1)
    }

    fn micros(&mut self, limit: u64) -> Duration {
        Duration::from_micros(self.below(limit))
    }
}

/// A value that counts. Some of them wait, panic or spawn in their destructors.
struct Counted<'w>(&'w World, u64);

impl<'w> Counted<'w> {
    fn new(world: &'w World, random: &mut Random) -> Counted<'w> {
        world.live.fetch_add(1, SeqCst);
        Counted(world, random.below(64))
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, SeqCst);
        match self.1 {
            0 => drop(catch_unwind(|| osier::sleep(Duration::from_micros(300)))),
            1 if !std::thread::panicking() => resume_unwind(Box::new("in a destructor")),
            2 => drop(osier::spawn(|| ())),
            _ => {}
        }
    }
}

#[derive(Default)]
struct World {
    live: AtomicUsize,
    mutex: Mutex<u64>,
    event: Event,
}

/// Does something at random. A cancellation does not reach a `shielded` call, so that one waits for nothing that only others bring about.
fn act(world: &Arc<World>, semaphore: &Semaphore, random: &mut Random, depth: u32, shielded: bool) {
    let _counted = Counted::new(world, random);
    match random.below(if depth == 0 { 9 } else { 14 }) {
        0 => osier::sleep(random.micros(800)),
        1 => {
            let mut held = world.mutex.lock();
            *held += 1;
            osier::sleep(random.micros(300));
        }
        2 => {
            let _permit = semaphore.acquire();
            osier::yield_now();
        }
        3 if !shielded => world.event.wait(),
        3 | 4 => world.event.set(),
        5 => {
            let (mut one, mut other) = osier::net::UnixStream::pair().unwrap();
            // It may be cancelled, and its end closes the socket.
            drop(osier::spawn(move || drop(other.write_all(b"x"))));
            let _ = one.read(&mut [0]);
        }
        6 => osier::block_on(async {
            let soon = || Sleep::new(Duration::from_micros(100));
            osier::select_async! {
                () = soon() => (),
                () = soon() => (),
                () = Sleep::new(Duration::from_micros(100)) => (),
            }
        }),
        7 => resume_unwind(Box::new("on purpose")),
        8 => drop(osier::spawn_future(Sleep::new(random.micros(300)))),
        9 => {
            let limit = random.micros(500);
            let _ = osier::timeout(limit, || act(world, semaphore, random, depth - 1, shielded));
        }
        10 => osier::shield(|| act(world, semaphore, random, depth - 1, true)),
        11 => {
            let (theirs, mut others) = (Arc::clone(world), random.fork());
            let handle = osier::spawn(move || act(&theirs, &Semaphore::new(1), &mut others, depth - 1, false));
            if random.below(2) == 0 {
                handle.cancel();
            }
            if random.below(3) > 0 {
                let _ = handle.join();
            }
        }
        12 => osier::scope(|scope| {
            for mut others in [random.fork(), random.fork()] {
                scope.spawn(move || {
                    let body = || act(world, semaphore, &mut others, depth - 1, false);
                    // The scope would report a panic.
                    if let Err(payload) = catch_unwind(AssertUnwindSafe(body))
                        && Cancelled::is_payload(&*payload)
                    {
                        resume_unwind(payload);
                    }
                });
            }
        }),
        _ => drop(catch_unwind(AssertUnwindSafe(|| {
            act(world, semaphore, random, depth - 1, shielded)
        }))),
    }
}

#[test]
fn a_storm_of_cancellations_leaves_nothing() {
    let storms = std::env::var("OSIER_STORMS").map_or(STORMS, |text| text.parse().unwrap());
    for storm in 1..=storms {
        let mut random = Random(storm.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let workers = 1 + random.below(3) as usize;
        let builder = Runtime::builder().workers(workers);
        let runtime = builder.shutdown_timeout(testkit::DEADLINE).build().unwrap();
        let (world, semaphore) = (Arc::new(World::default()), Arc::new(Semaphore::new(2)));
        let fibers: Vec<_> = (0..FIBERS)
            .map(|_| {
                let (world, semaphore, mut random) = (Arc::clone(&world), Arc::clone(&semaphore), random.fork());
                runtime.spawn(move || act(&world, &semaphore, &mut random, DEPTH, false))
            })
            .collect();
        fibers
            .iter()
            .filter(|_| random.below(3) == 0)
            .for_each(|fiber| fiber.cancel());
        (0..random.below(200_000)).for_each(|_| std::hint::spin_loop());
        drop(runtime);
        assert!(fibers.iter().all(|fiber| fiber.is_finished()), "storm {storm}");
        drop(fibers);
        let left = world.live.load(SeqCst);
        assert_eq!((left, Arc::strong_count(&world)), (0, 1), "storm {storm}");
    }
}
