//! Every ready fiber gets a turn, however busy the others keep the worker.

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
