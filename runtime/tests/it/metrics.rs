//! Metrics: the counters of a runtime.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use osier::dormant::{self, AfterBurst, Cause, Dormant};
use osier::inspect::WorkerMetrics;
use osier::net::{TcpListener, TcpStream};
use osier::sync::Event;
use osier::{Runtime, sleep, spawn, yield_now};

const HOUR: Duration = Duration::from_secs(3600);

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).name("counted").build().unwrap()
}

/// Reads the first worker's metrics until they are as wanted. They are written once per turn.
fn until(runtime: &Runtime, wanted: impl Fn(&WorkerMetrics) -> bool) -> WorkerMetrics {
    testkit::wait_for("such numbers", || {
        let worker = runtime.metrics().workers.swap_remove(0);
        wanted(&worker).then_some(worker)
    })
}

#[test]
fn fibers_timers_stacks_and_tasks_are_counted() {
    let runtime = runtime(1);
    assert_eq!(runtime.metrics().workers[0].name, "counted-0");
    // Their timers are counted.
    let sleepers: Vec<_> = (0..10).map(|_| runtime.spawn(|| sleep(HOUR))).collect();
    let task = runtime.spawn_future(std::future::pending::<()>());
    let numbers = |worker: &WorkerMetrics| (worker.timers, worker.fibers_started, worker.tasks);
    until(&runtime, |worker| worker.fibers == 10 && numbers(worker) == (10, 10, 1));
    sleepers.iter().for_each(|sleeper| sleeper.cancel());
    until(&runtime, |worker| {
        (worker.fibers, worker.timers, worker.stacks_pooled) == (0, 0, 10)
    });
    drop(task.cancel());
    until(&runtime, |worker| worker.tasks == 0);
}

#[test]
fn turns_resumes_and_sleeps_are_counted() {
    let runtime = runtime(1);
    let before = until(&runtime, |worker| worker.sleeps > 0);
    runtime.run(|| (0..10_000).for_each(|_| yield_now()));
    let after = until(&runtime, |worker| worker.resumes >= before.resumes + 10_000);
    let turns = after.turns - before.turns;
    assert!((10_000 / 256..10_000).contains(&turns), "{turns} turns");
    // An idle worker makes no turn.
    let idle = until(&runtime, |worker| worker.queued == 0 && worker.sleeps > before.sleeps);
    // Real time: a worker that turns for nothing has its chance.
    thread::sleep(Duration::from_millis(100));
    let later = until(&runtime, |_| true);
    assert!(later.turns <= idle.turns + 5, "{idle:#?} {later:#?}");
    let all: u64 = later.latency.buckets().map(|(_, turns)| turns).sum();
    assert!(all + 1 >= later.turns, "each turn is in the histogram");
}

#[test]
fn wake_ups_events_and_steals_are_counted() {
    let runtime = runtime(1);
    let event = Arc::new(Event::new());
    let theirs = Arc::clone(&event);
    let wait = move || {
        loop {
            theirs.wait();
        }
    };
    // A job from outside comes while the worker is busy.
    let waits = runtime.run(|| thread::scope(|scope| scope.spawn(|| runtime.spawn(wait)).join().unwrap()));
    let before = until(&runtime, |worker| worker.fibers == 1 && worker.steals > 0);
    // Whether the worker sleeps already when the event is set cannot be seen, and a worker that is awake needs no wake-up:
    // one of the settings finds it asleep. The same holds for bytes: a reader that comes late needs no event.
    until(&runtime, |worker| {
        event.set();
        worker.wakes > before.wakes
    });
    let (mut reader, writer) = std::io::pipe().unwrap();
    let reads = runtime.spawn(move || {
        loop {
            osier::io::readable(&reader, None).unwrap();
            reader.read_exact(&mut [0]).unwrap();
        }
    });
    let before = until(&runtime, |worker| worker.fibers == 2);
    until(&runtime, |worker| {
        (&writer).write_all(b"x").unwrap();
        worker.events > before.events
    });
    waits.cancel();
    reads.cancel();
}

#[test]
fn a_worker_with_tasks_from_outside_does_not_sleep_between_them() {
    const TASKS: usize = 100;
    let runtime = runtime(1);
    let done = Arc::new(AtomicUsize::new(0));
    // Queued while the worker is busy. It takes them in parts.
    let before = runtime.run(|| {
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..TASKS {
                    let done = Arc::clone(&done);
                    drop(runtime.spawn_future(async move { done.fetch_add(1, Ordering::Relaxed) }));
                }
            });
        });
        runtime.metrics().workers[0].sleeps
    });
    let after = until(&runtime, |_| done.load(Ordering::Relaxed) == TASKS).sleeps;
    assert!(after <= before + 3, "{} sleeps", after - before);
}

#[test]
fn a_long_turn_is_seen_in_the_histogram() {
    let runtime = runtime(1);
    let long = Duration::from_millis(50);
    let longest = |worker: &WorkerMetrics| worker.latency.quantile(1.0);
    // The long turn.
    runtime.run(|| thread::sleep(long));
    let worker = until(&runtime, |worker| longest(worker) > long);
    let late: u64 = worker
        .latency
        .buckets()
        .filter(|(bound, _)| *bound > long)
        .map(|(_, turns)| turns)
        .sum();
    assert!(late >= 1 && worker.latency.quantile(0.0) <= worker.latency.quantile(1.0));
}

#[test]
fn connections_at_rest_are_no_fibers() {
    struct Echo(TcpStream);
    impl Dormant for Echo {
        fn source(&self) -> &dyn osier::io::Source {
            &self.0
        }
        fn wake(&mut self, cause: Cause) -> AfterBurst {
            let mut buf = [0; 64];
            match self.0.read(&mut buf) {
                Ok(n @ 1..) if cause == Cause::Readable && self.0.write_all(&buf[..n]).is_ok() => {
                    AfterBurst::Sleep(None)
                }
                _ => AfterBurst::End,
            }
        }
    }
    let runtime = runtime(1);
    let mut client = runtime.run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        dormant::park_local(Box::new(Echo(listener.accept().unwrap().0)), None).unwrap();
        client
    });
    until(&runtime, |worker| (worker.resting, worker.fibers) == (1, 0));
    for _ in 0..3 {
        client.write_all(b"hello").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
    }
    let worker = until(&runtime, |worker| (worker.resting, worker.fibers) == (1, 0));
    assert!(worker.fibers_started >= 2, "{worker:#?}");
    drop(client);
    until(&runtime, |worker| worker.resting == 0);
}

#[test]
fn the_queue_of_a_busy_worker_is_counted() {
    let runtime = runtime(1);
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let busy = runtime.spawn(move || {
        let yields = || {
            let seen = Arc::clone(&seen);
            spawn(move || {
                while !seen.load(Ordering::Relaxed) {
                    yield_now();
                }
            })
        };
        let others: Vec<_> = (0..20).map(|_| yields()).collect();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
    until(&runtime, |worker| worker.queued > 0);
    stop.store(true, Ordering::Relaxed);
    busy.join().unwrap();
}

/// Recurses until this much of the stack is in use.
#[inline(never)]
fn deep(bytes: usize) {
    let block = std::hint::black_box([1u8; 512]);
    if osier::coro::stack::extent().unwrap().used_bytes < bytes {
        deep(bytes);
    }
    std::hint::black_box(block);
}

#[test]
fn the_depth_of_stacks_is_measured_by_spawn_place() {
    let runtime = Runtime::builder().workers(1).measure_stacks(true).build().unwrap();
    let (shallow, steep) = runtime.run(|| {
        for round in 0..5 {
            // Both use the same stacks in turn.
            spawn(|| deep(1 << 10)).join().unwrap();
            spawn(move || deep((20 + 10 * round) << 10)).join().unwrap();
        }
        (line!() - 3, line!() - 2)
    });
    let depth = |worker: &WorkerMetrics, line| {
        let depths = worker.stack_depths.iter();
        depths
            .filter(|depth| depth.place.file() == file!() && depth.place.line() == line)
            .map(|depth| (depth.fibers, depth.touched_bytes))
            .next()
    };
    let worker = until(&runtime, |worker| {
        depth(worker, steep).is_some_and(|(fibers, _)| fibers == 5)
    });
    let (fibers, touched) = depth(&worker, steep).unwrap();
    assert!(fibers == 5 && (60 << 10..100 << 10).contains(&touched), "{worker:#?}");
    let (fibers, touched) = depth(&worker, shallow).unwrap();
    assert!(fibers == 5 && touched < 32 << 10, "{worker:#?}");
}

#[test]
fn stacks_are_not_measured_unless_asked_for() {
    let runtime = runtime(1);
    runtime.run(|| spawn(|| deep(8 << 10)).join().unwrap());
    let worker = until(&runtime, |worker| worker.fibers == 0 && worker.fibers_started == 2);
    assert!(worker.stack_depths.is_empty());
}
