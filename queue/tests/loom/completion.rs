//! The result cell: value, waker and memory between its two sides.

use super::*;

/// A value whose drops are counted.
struct Value(std::sync::Arc<Count>);

impl Drop for Value {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Polls as the only consumer.
fn poll<T>(cell: &Completion<T>, waker: &Waker) -> Poll<T> {
    // SAFETY: in each model one thread polls.
    unsafe { cell.poll(&mut Context::from_waker(waker)) }
}

fn completer<T: Send + 'static>(cell: &Arc<Completion<T>>, value: T) -> thread::JoinHandle<()> {
    let cell = cell.clone();
    // SAFETY: each model completes its cell once.
    thread::spawn(move || unsafe {
        cell.complete(value);
    })
}

#[test]
fn the_value_arrives_and_no_wake_up_is_lost() {
    model("completion: lost wake-up", None, &[0, 1], || {
        let cell = Arc::new(Completion::new());
        let producer = completer(&cell, 7);
        let mut waited = 0;
        let value = block_on(poll_fn(|cx| {
            let polled = poll(&cell, cx.waker());
            waited |= polled.is_pending() as usize;
            polled
        }));
        assert_eq!(value, 7);
        assert!(cell.is_complete());
        producer.join().unwrap();
        waited
    });
}

#[test]
fn the_waker_left_is_woken_once_or_the_value_was_seen() {
    model("completion: double wake", None, &[0, 1], || {
        let cell = Arc::new(Completion::new());
        let (counter, waker) = Counter::new();
        let producer = completer(&cell, 7);
        let first = poll(&cell, &waker);
        producer.join().unwrap();
        assert_eq!(counter.wakes(), first.is_pending() as usize);
        counter.wakes()
    });
}

#[test]
fn a_replaced_waker_is_woken_instead() {
    model("completion: waker replaced", None, &[1, 10, 11], || {
        let cell = Arc::new(Completion::new());
        let (old_counter, old) = Counter::new();
        let (new_counter, new) = Counter::new();
        assert!(poll(&cell, &old).is_pending());
        let producer = completer(&cell, 7);
        let second = poll(&cell, &new);
        producer.join().unwrap();
        let wakes = (old_counter.wakes(), new_counter.wakes());
        match second {
            Poll::Pending => assert_eq!(wakes, (0, 1)),
            Poll::Ready(7) => assert!(wakes == (1, 0) || wakes == (0, 0)),
            Poll::Ready(other) => panic!("{other}"),
        }
        10 * second.is_ready() as usize + wakes.0 + wakes.1
    });
}

#[test]
fn the_same_waker_again_is_kept() {
    model("completion: polled again with the same waker", None, &[0, 1], || {
        let cell = Arc::new(Completion::new());
        let (counter, waker) = Counter::new();
        assert!(poll(&cell, &waker).is_pending());
        let producer = completer(&cell, 7);
        let second = poll(&cell, &waker);
        producer.join().unwrap();
        assert_eq!(counter.wakes(), 1);
        assert!(second.is_pending() || second == Poll::Ready(7));
        second.is_ready() as usize
    });
}

/// A cell without a reference count, as a task has it: the side that is last frees it, as the cell's calls return.
struct Bare(*mut (Completion<Value>, std::sync::Arc<Count>));

// SAFETY: each model moves one copy to one other thread, and obeys who frees.
unsafe impl Send for Bare {}

impl Bare {
    fn new(freed: &std::sync::Arc<Count>) -> (Bare, Bare) {
        let cell = Box::into_raw(Box::new((Completion::new(), freed.clone())));
        (Bare(cell), Bare(cell))
    }

    fn cell(&self) -> &Completion<Value> {
        // SAFETY: the cell is freed only by `free_if`, when a call has returned to one side that it is the last.
        unsafe { &(*self.0).0 }
    }

    fn free_if(self, mine: bool) {
        if mine {
            // SAFETY: the protocol says that the other side will not touch it again.
            let cell = unsafe { Box::from_raw(self.0) };
            cell.1.fetch_add(1, SeqCst);
        }
    }
}

/// A producer that completes, and a consumer that does `polls` polls and detaches; the memory is freed exactly once.
fn freed_once(name: &'static str, polls: usize, expected: &'static [usize]) {
    model(name, None, expected, move || {
        let (drops, freed) = (std::sync::Arc::new(Count::new(0)), std::sync::Arc::new(Count::new(0)));
        let (ours, theirs) = Bare::new(&freed);
        let value = Value(drops.clone());
        let producer = thread::spawn(move || {
            let theirs = theirs;
            // SAFETY: the one producer, once.
            let mine = unsafe {
                theirs.cell().set(value);
                theirs.cell().discard();
                theirs.cell().finish()
            };
            theirs.free_if(mine);
        });
        let (counter, waker) = Counter::new();
        let mut ready = 0;
        for _ in 0..polls {
            if ready == 0 {
                ready = poll(ours.cell(), &waker).is_ready() as usize;
            }
        }
        // SAFETY: the one consumer, for the last time.
        let mine = unsafe { ours.cell().detach() };
        ours.free_if(mine);
        producer.join().unwrap();
        drop(waker);
        assert_eq!((drops.load(SeqCst), freed.load(SeqCst)), (1, 1));
        assert_eq!(
            std::sync::Arc::strong_count(&counter),
            1,
            "no clone of the waker is left"
        );
        2 * ready + mine as usize
    });
}

#[test]
fn of_two_sides_that_leave_one_frees() {
    freed_once("completion: detach races finish", 0, &[0, 1]);
    freed_once("completion: waiting, then detached", 1, &[0, 1, 3]);
    freed_once("completion: polled twice, then detached", 2, &[0, 1, 3]);
}

#[test]
fn a_consumer_that_goes_away_leaks_and_doubles_nothing() {
    model("completion: waiting, then dropped", None, &[0, 1], || {
        let drops = std::sync::Arc::new(Count::new(0));
        let cell = Arc::new(Completion::new());
        let producer = completer(&cell, Value(drops.clone()));
        let (counter, waker) = Counter::new();
        let polled = poll(&cell, &waker);
        let waited = polled.is_pending() as usize;
        drop((polled, cell));
        producer.join().unwrap();
        drop(waker);
        assert_eq!(drops.load(SeqCst), 1);
        assert_eq!(
            std::sync::Arc::strong_count(&counter),
            1,
            "no clone of the waker is left"
        );
        waited
    });
}

#[test]
fn shutdown_may_ask_without_waiting() {
    model("completion: take races complete", None, &[0, 1], || {
        let drops = std::sync::Arc::new(Count::new(0));
        let cell = Arc::new(Completion::new());
        let producer = completer(&cell, Value(drops.clone()));
        let complete = cell.is_complete();
        // SAFETY: this thread alone takes.
        let taken = unsafe { cell.take() };
        assert!(taken.is_some() || !complete);
        producer.join().unwrap();
        let early = taken.is_some() as usize;
        drop((taken, cell));
        assert_eq!(drops.load(SeqCst), 1);
        early
    });
}
