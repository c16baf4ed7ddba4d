//! A queue whose consumer ends.

use super::*;
use osier_queue::{Gate, Leftovers};

/// A queue of one job, behind a gate.
#[derive(Default)]
struct Queue {
    job: AtomicBool,
    gate: Gate,
    parker: Parker,
}

impl Queue {
    /// Takes the job out. The look before lets the exchange find what another thread has stored since.
    fn empty(&self) -> usize {
        (self.job.load(Relaxed) && self.job.swap(false, Relaxed)).into()
    }
}

#[test]
fn a_job_pushed_at_the_end_is_taken_out_once() {
    model("gate: a push against the end", None, &[0, 1], || {
        let queue = Arc::new(Queue::default());
        let consumer = {
            let queue = queue.clone();
            thread::spawn(move || {
                queue.gate.shut();
                queue.empty()
            })
        };
        queue.job.store(true, Relaxed);
        queue.parker.unpark();
        let by_producer = if queue.gate.is_shut() { queue.empty() } else { 0 };
        assert_eq!(by_producer + consumer.join().unwrap(), 1, "lost, or taken twice");
        by_producer
    });
}

#[test]
fn a_job_for_any_worker_is_taken_out_once() {
    model("gate: a push for any worker against the end", None, &[0, 1], || {
        let shared = Arc::new((Queue::default(), Idle::new(1)));
        let consumer = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.0.gate.shut();
                shared.0.empty()
            })
        };
        shared.0.job.store(true, Relaxed);
        let _ = shared.1.wake_candidate();
        let by_producer = if shared.0.gate.is_shut() { shared.0.empty() } else { 0 };
        assert_eq!(by_producer + consumer.join().unwrap(), 1, "lost, or taken twice");
        by_producer
    });
}

#[test]
fn one_of_two_consumers_sees_that_all_have_ended() {
    model("gate: two consumers end", None, &[1, 2], || {
        let gates = Arc::new([Gate::new(), Gate::new()]);
        let all_are_shut = |gates: &[Gate]| usize::from(gates.iter().all(Gate::is_shut));
        let other = {
            let gates = gates.clone();
            thread::spawn(move || {
                gates[1].shut();
                all_are_shut(&gates[..])
            })
        };
        gates[0].shut();
        let last = all_are_shut(&gates[..]) + other.join().unwrap();
        assert!(last > 0, "nobody was the last");
        last
    });
}

/// A queue behind a shut gate, of which one job a producer is left, and the number of threads that empty it at the moment.
#[derive(Default)]
struct Left {
    jobs: [AtomicBool; 2],
    leftovers: Leftovers,
    emptying: AtomicUsize,
}

impl Left {
    /// Pushes a job, and empties the queue if that is this producer's duty, as a thread that it starts does. Returns the emptied jobs.
    fn push(&self, job: usize) -> usize {
        self.jobs[job].store(true, Relaxed);
        if !self.leftovers.add() {
            return 0;
        }
        let mut emptied = 0;
        self.leftovers.answer(|| {
            assert_eq!(self.emptying.fetch_add(1, Relaxed), 0, "two threads have the duty");
            let jobs = self.jobs.iter();
            emptied += jobs.filter(|job| job.load(Relaxed) && job.swap(false, Relaxed)).count();
            self.emptying.fetch_sub(1, Relaxed);
        });
        emptied
    }
}

#[test]
fn jobs_that_are_left_are_taken_out_once_by_one_thread_at_a_time() {
    model("gate: two pushes behind it", None, &[0, 1, 2], || {
        let left = Arc::new(Left::default());
        let other = {
            let left = left.clone();
            thread::spawn(move || left.push(1))
        };
        let by_this = left.push(0);
        assert_eq!(by_this + other.join().unwrap(), 2, "lost, or taken twice");
        by_this
    });
}
