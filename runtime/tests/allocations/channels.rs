//! Waits for a value, for room or for a condition allocate nothing. The allocator counts on the one worker's thread.

use std::rc::Rc;
use testkit::allocations as counting;

use osier::Runtime;
use osier::sync::{Condvar, Mutex, mpmc, mpsc};

/// Counts the allocations of a thousand rounds, after a hundred that may fill pools and tables.
fn allocations(mut round: impl FnMut()) -> usize {
    (0..100).for_each(|_| round());
    let before = counting::allocations();
    (0..1000).for_each(|_| round());
    counting::allocations() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1000);
}

#[test]
fn no_wait_for_a_value_or_for_room_allocates() {
    Runtime::builder().workers(1).build().unwrap().run(|| {
        let (ask, mut asked) = mpsc::channel::<[u64; 4]>(1);
        let (answer, answers) = mpmc::channel(1);
        let other = osier::spawn_local(move || {
            for n in &mut asked {
                // Two values for one place: the second waits for room, and so does the next one to ask.
                answer.send(n).unwrap();
                answer.send(n).unwrap();
            }
        });
        let round = || {
            ask.send([7; 4]).unwrap();
            ask.send([8; 4]).unwrap();
            (0..4).for_each(|n| assert_eq!(answers.recv(), Ok([7 + n / 2; 4])));
        };
        assert_eq!(allocations(round), 0);
        drop(ask);
        other.join().unwrap();
    });
}

#[test]
fn no_wait_for_a_condition_allocates() {
    Runtime::builder().workers(1).build().unwrap().run(|| {
        let state = Rc::new((Mutex::new(0), Condvar::new()));
        let theirs = Rc::clone(&state);
        let other = osier::spawn_local(move || {
            let mut turn = theirs.0.lock();
            while *turn < 2202 {
                turn = theirs.1.wait_while(turn, |turn| *turn % 2 == 0);
                *turn += 1;
                theirs.1.notify_all();
            }
        });
        let round = || {
            let mut turn = state.1.wait_while(state.0.lock(), |turn| *turn % 2 == 1);
            *turn += 1;
            state.1.notify_all();
        };
        assert_eq!(allocations(round), 0);
        round();
        other.join().unwrap();
    });
}
