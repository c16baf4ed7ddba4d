//! Every ready fiber gets a turn, however busy the others keep the worker.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::given::on;
use osier::fiber;

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_busy_worker_starts_what_is_sent_to_it() {
    let runtime = on(1);
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&stop);
    let busy = runtime.spawn(move || {
        let start = Instant::now();
        while !theirs.load(Ordering::SeqCst) && start.elapsed() < LIMIT {
            osier::yield_now();
        }
        start.elapsed() < LIMIT
    });
    let theirs = Arc::clone(&stop);
    let outside = runtime.spawn(move || theirs.store(true, Ordering::SeqCst));
    outside.join().unwrap();
    assert!(busy.join().unwrap(), "a job from outside waits for an idle worker");

    let runtime = on(2);
    let stop = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&stop);
    let in_time = runtime.run(move || {
        let start = Instant::now();
        let loops: Vec<_> = (0..2)
            .map(|worker| {
                let stop = Arc::clone(&theirs);
                fiber::Builder::new().worker(worker).spawn(move || {
                    while stop.load(Ordering::SeqCst) < 2 && start.elapsed() < LIMIT {
                        osier::yield_now();
                    }
                })
            })
            .collect();
        // The timer that is tested: it comes in spite of the loops.
        osier::sleep(Duration::from_millis(20));
        for worker in 0..2 {
            let stop = Arc::clone(&theirs);
            drop(
                fiber::Builder::new()
                    .worker(worker)
                    .spawn(move || stop.fetch_add(1, Ordering::SeqCst)),
            );
        }
        loops.into_iter().for_each(|handle| handle.join().unwrap());
        start.elapsed() < LIMIT
    });
    assert!(in_time, "a job for one worker waits until that is idle");
}

#[test]
fn a_chain_of_local_fibers_lets_other_new_ones_start() {
    fn chain(stop: Arc<AtomicBool>, until: Instant) {
        if !stop.load(Ordering::SeqCst) && Instant::now() < until {
            drop(osier::spawn_local(move || chain(stop, until)));
        }
    }
    on(1).run(|| {
        let start = Instant::now();
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let stop = Arc::clone(&stop);
            drop(osier::spawn_local(move || chain(stop, start + LIMIT)));
        }
        let theirs = Arc::clone(&stop);
        osier::spawn(move || theirs.store(true, Ordering::SeqCst))
            .join()
            .unwrap();
        assert!(start.elapsed() < LIMIT);
    });
}

#[test]
fn a_chain_of_local_fibers_lets_those_from_outside_start() {
    fn chain(stop: Arc<AtomicBool>, until: Instant) {
        if !stop.load(Ordering::SeqCst) && Instant::now() < until {
            drop(osier::spawn_local(move || chain(stop, until)));
        }
    }
    let runtime = on(1);
    let (start, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let chains = [(); 2].map(|()| {
        let stop = Arc::clone(&stop);
        runtime.spawn(move || chain(stop, start + LIMIT))
    });
    chains.into_iter().for_each(|chain| chain.join().unwrap());
    // The chains go on in a queue in which this one never is.
    let theirs = Arc::clone(&stop);
    runtime
        .spawn(move || theirs.store(true, Ordering::SeqCst))
        .join()
        .unwrap();
    assert!(start.elapsed() < LIMIT);
}

/// How many steps of half a millisecond the worker computes, at the median, from when bytes are sent to one of its
/// sockets until its fiber has them. `compute` does such steps until the flag is set, counts them, and yields after each.
fn steps_until_a_socket_is_served(compute: impl FnOnce(&osier::Runtime, Arc<AtomicUsize>, Arc<AtomicBool>)) -> usize {
    let runtime = on(1);
    let (steps, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let listener = runtime.run(|| osier::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let theirs = Arc::clone(&steps);
    let echo = runtime.spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() > 0 {
            let at = theirs.load(Ordering::SeqCst) as u64;
            stream.write_all(&at.to_le_bytes()).unwrap();
        }
    });
    compute(&runtime, Arc::clone(&steps), Arc::clone(&stop));
    let mut waits: Vec<usize> = (0..21)
        .map(|_| {
            // The fiber waits for its socket by now. Right after an answer it would only yield.
            std::thread::sleep(Duration::from_millis(3));
            let before = steps.load(Ordering::SeqCst);
            client.write_all(b"x").unwrap();
            let mut at = [0; 8];
            client.read_exact(&mut at).unwrap();
            u64::from_le_bytes(at) as usize - before
        })
        .collect();
    stop.store(true, Ordering::SeqCst);
    drop(client);
    echo.join().unwrap();
    assert!(steps.load(Ordering::SeqCst) > 0, "no step was computed");
    waits.sort();
    waits[10]
}

/// Computes for half a millisecond.
fn step(steps: &AtomicUsize) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_micros(500) {
        std::hint::spin_loop();
    }
    steps.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_fiber_that_computes_and_yields_lets_the_worker_look_at_its_sockets() {
    let steps = steps_until_a_socket_is_served(|runtime, steps, stop| {
        drop(runtime.spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                step(&steps);
                osier::yield_now();
            }
        }));
    });
    assert!(steps <= 16, "{steps} steps of 0.5 ms pass before a socket is served");
}

#[test]
fn a_fiber_that_computes_between_calls_lets_the_worker_look_at_its_sockets() {
    let file = |steps: Arc<AtomicUsize>, stop: Arc<AtomicBool>| {
        let mut byte = [0];
        while !stop.load(Ordering::SeqCst) {
            let mut file = osier::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
            // In memory, so no read waits.
            while file.read(&mut byte).unwrap() > 0 && !stop.load(Ordering::SeqCst) {
                step(&steps);
            }
        }
    };
    let lock = |steps: Arc<AtomicUsize>, stop: Arc<AtomicBool>| {
        let counter = osier::sync::Mutex::new(0);
        while !stop.load(Ordering::SeqCst) {
            *counter.lock() += 1;
            step(&steps);
        }
    };
    let steps = steps_until_a_socket_is_served(|runtime, steps, stop| drop(runtime.spawn(move || file(steps, stop))));
    assert!(
        steps <= 32,
        "{steps} steps of 0.5 ms between reads of a file pass before a socket is served"
    );
    let steps = steps_until_a_socket_is_served(|runtime, steps, stop| drop(runtime.spawn(move || lock(steps, stop))));
    assert!(
        steps <= 32,
        "{steps} steps of 0.5 ms between locks pass before a socket is served"
    );
}

#[test]
fn a_task_that_computes_and_yields_lets_the_worker_look_at_its_sockets() {
    let steps = steps_until_a_socket_is_served(|runtime, steps, stop| {
        drop(runtime.spawn_future(async move {
            while !stop.load(Ordering::SeqCst) {
                step(&steps);
                futures_lite::future::yield_now().await;
            }
        }));
    });
    assert!(steps <= 16, "{steps} steps of 0.5 ms pass before a socket is served");
}

#[test]
fn a_future_that_computes_between_calls_lets_the_worker_look_at_its_sockets() {
    async fn lock(steps: Arc<AtomicUsize>, stop: Arc<AtomicBool>) {
        let counter = osier::sync::Mutex::new(0);
        while !stop.load(Ordering::SeqCst) {
            *counter.lock_async().await += 1;
            step(&steps);
        }
    }
    let steps = steps_until_a_socket_is_served(|runtime, steps, stop| drop(runtime.spawn_future(lock(steps, stop))));
    assert!(
        steps <= 64,
        "{steps} steps of 0.5 ms of a task pass before a socket is served"
    );
    let steps = steps_until_a_socket_is_served(|runtime, steps, stop| {
        drop(runtime.spawn(move || osier::block_on(lock(steps, stop))));
    });
    assert!(
        steps <= 64,
        "{steps} steps of 0.5 ms under block_on pass before a socket is served"
    );
}

#[test]
fn new_fibers_that_compute_leave_turns_for_those_that_were_ready_before() {
    fn chain(steps: Arc<AtomicUsize>, stop: Arc<AtomicBool>, until: Instant) {
        if !stop.load(Ordering::SeqCst) && Instant::now() < until {
            // Longer than a turn, so that each turn runs as few fibers as it may.
            (0..4).for_each(|_| step(&steps));
            drop(osier::spawn_local(move || chain(steps, stop, until)));
        }
    }
    let (steps, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    on(1).run(|| {
        let start = Instant::now();
        let (theirs, ours) = (Arc::clone(&steps), Arc::clone(&stop));
        drop(osier::spawn_local(move || chain(theirs, ours, start + LIMIT)));
        (0..10).for_each(|_| osier::yield_now());
        stop.store(true, Ordering::SeqCst);
    });
    let steps = steps.load(Ordering::SeqCst);
    assert!(steps <= 80, "{steps} steps of 0.5 ms during ten yields");
}
