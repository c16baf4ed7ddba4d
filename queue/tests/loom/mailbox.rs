//! The mailbox: every raise reaches exactly those whose flags it completes, whatever is taken meanwhile.

use super::*;
use osier_queue::{Flags, Mailbox, Waiter};
use std::pin::Pin;

/// Waits; returns the state, and whether it had to wait.
fn wait(mailbox: &Mailbox, flags: Flags) -> (u32, bool) {
    let mut waiter = pin!(mailbox.waiter());
    let mut waited = false;
    let state = block_on(poll_fn(|cx| {
        let polled = mailbox.poll_wait(flags, waiter.as_mut(), cx);
        waited |= polled.is_pending();
        polled
    }));
    (state, waited)
}

fn poll(mailbox: &Mailbox, flags: Flags, waiter: Pin<&mut Waiter<'_>>, waker: &Waker) -> Poll<u32> {
    mailbox.poll_wait(flags, waiter, &mut Context::from_waker(waker))
}

fn raise(mailbox: &Arc<Mailbox>, set: u32) -> thread::JoinHandle<()> {
    let mailbox = mailbox.clone();
    thread::spawn(move || mailbox.raise(set))
}

#[test]
fn no_raise_is_lost() {
    model("mailbox: raise races wait", None, &[0, 1], || {
        let mailbox = Arc::new(Mailbox::new());
        let raiser = raise(&mailbox, 4);
        let (state, waited) = wait(&mailbox, Flags::Any(6));
        assert_eq!(state, 4);
        raiser.join().unwrap();
        assert_eq!(mailbox.state(), 4, "a wait takes nothing");
        waited as usize
    });
}

#[test]
fn all_is_completed_by_two_raisers() {
    model("mailbox: two raises complete one wait", Some(3), &[0, 1], || {
        let mailbox = Arc::new(Mailbox::new());
        let raisers = [1, 2].map(|flag| raise(&mailbox, flag));
        let (state, waited) = wait(&mailbox, Flags::All(3));
        assert_eq!(state, 3);
        for raiser in raisers {
            raiser.join().unwrap();
        }
        waited as usize
    });
}

#[test]
fn a_raise_wakes_exactly_those_whom_it_satisfies() {
    model("mailbox: two raises, three waits", None, &[0, 1], || {
        let mailbox = Arc::new(Mailbox::new());
        let wanted = [Flags::Any(1), Flags::Any(2), Flags::All(7)];
        let counters: [_; 3] = std::array::from_fn(|_| Counter::new());
        let mut waiters: [_; 3] = std::array::from_fn(|_| Box::pin(mailbox.waiter()));
        for index in 0..3 {
            assert!(poll(&mailbox, wanted[index], waiters[index].as_mut(), &counters[index].1).is_pending());
        }
        let other = raise(&mailbox, 2);
        mailbox.raise(1);
        other.join().unwrap();
        assert_eq!(counters.each_ref().map(|(counter, _)| counter.wakes()), [1, 1, 0]);
        let [one, two, all] = waiters.each_mut().map(|waiter| waiter.as_mut());
        assert!(poll(&mailbox, wanted[2], all, &counters[2].1).is_pending());
        let states = (
            poll(&mailbox, wanted[0], one, Waker::noop()),
            poll(&mailbox, wanted[1], two, Waker::noop()),
        );
        // The one that was raised first was alone then.
        assert!(
            [(Poll::Ready(1), Poll::Ready(3)), (Poll::Ready(3), Poll::Ready(2))].contains(&states),
            "{states:?}"
        );
        (states.0 == Poll::Ready(1)) as usize
    });
}

#[test]
fn a_take_does_not_undo_what_was_granted() {
    // Outcomes: the state that the take returned.
    model("mailbox: raised, then taken", None, &[0, 1], || {
        let mailbox = Arc::new(Mailbox::new());
        let (counter, waker) = Counter::new();
        let mut waiter = pin!(mailbox.waiter());
        assert!(poll(&mailbox, Flags::Any(1), waiter.as_mut(), &waker).is_pending());
        let raiser = raise(&mailbox, 1);
        let taken = mailbox.take(1);
        raiser.join().unwrap();
        mailbox.take(1);
        assert_eq!(counter.wakes(), 1);
        assert_eq!(poll(&mailbox, Flags::Any(1), waiter, &waker), Poll::Ready(1));
        taken as usize
    });
}

#[test]
fn a_wait_after_the_take_is_not_satisfied_by_the_raise_before() {
    model("mailbox: a wait after the take", None, &[0, 1], || {
        let mailbox = Arc::new(Mailbox::new());
        let (_, waker) = Counter::new();
        let mut early = pin!(mailbox.waiter());
        assert!(poll(&mailbox, Flags::Any(1), early.as_mut(), &waker).is_pending());
        let raiser = raise(&mailbox, 1);
        let taken = mailbox.take(1);
        let mut late = pin!(mailbox.waiter());
        let at_once = poll(&mailbox, Flags::Any(1), late.as_mut(), &waker).is_ready();
        raiser.join().unwrap();
        assert!(early.is_notified());
        assert!(
            taken == 0 || !at_once && !late.is_notified(),
            "satisfied by a flag that was taken before"
        );
        assert!(taken == 1 || at_once || late.is_notified());
        taken as usize
    });
}

#[test]
fn flags_that_come_and_go_do_not_make_all() {
    model("mailbox: one flag goes before the other comes", None, &[0, 1], || {
        let mailbox = Arc::new(Mailbox::new());
        let (_, waker) = Counter::new();
        let mut waiter = pin!(mailbox.waiter());
        mailbox.raise(1);
        assert!(poll(&mailbox, Flags::All(3), waiter.as_mut(), &waker).is_pending());
        let raiser = raise(&mailbox, 2);
        let before = mailbox.take(1);
        raiser.join().unwrap();
        // Both were up at once iff the take saw both.
        assert_eq!(waiter.is_notified(), before == 3);
        (before == 3) as usize
    });
}

#[test]
fn who_comes_after_one_that_left_is_found() {
    // The raise finds nobody where somebody was announced, and says so, while another comes.
    model("mailbox: a stale announcement", None, &[0, 1], || {
        let mailbox = Arc::new(Mailbox::new());
        {
            let mut gone = pin!(mailbox.waiter());
            assert!(poll(&mailbox, Flags::Any(2), gone.as_mut(), Waker::noop()).is_pending());
        }
        let raiser = {
            let mailbox = mailbox.clone();
            thread::spawn(move || {
                mailbox.raise(1);
                mailbox.raise(2);
            })
        };
        let (_, waited) = wait(&mailbox, Flags::Any(2)); // a deadlock if it is not found
        raiser.join().unwrap();
        waited as usize
    });
}

#[test]
fn a_wait_may_be_dropped_while_it_is_granted() {
    model("mailbox: granted while dropped", None, &[0, 1], || {
        let mailbox = Arc::new(Mailbox::new());
        let (counter, waker) = Counter::new();
        let mut waiter = Box::pin(mailbox.waiter());
        assert!(poll(&mailbox, Flags::Any(1), waiter.as_mut(), &waker).is_pending());
        let raiser = raise(&mailbox, 1);
        drop(waiter);
        raiser.join().unwrap();
        assert_eq!(mailbox.state(), 1);
        counter.wakes()
    });
}

#[test]
fn who_sees_a_flag_sees_what_every_raiser_did() {
    model("mailbox: one flag raised twice", Some(2), &[1, 2], || {
        let shared = Arc::new((Mailbox::new(), AtomicUsize::new(0), AtomicUsize::new(0)));
        let raisers = [0, 1].map(|index| {
            let shared = shared.clone();
            thread::spawn(move || {
                let done = if index == 0 { &shared.1 } else { &shared.2 };
                done.store(1, Relaxed);
                shared.0.raise(1);
            })
        });
        let mut waits = 0;
        while shared.1.load(Relaxed) + shared.2.load(Relaxed) < 2 {
            wait(&shared.0, Flags::Any(1));
            shared.0.take(1);
            waits += 1;
        }
        for raiser in raisers {
            raiser.join().unwrap();
        }
        waits.max(1)
    });
}

#[test]
fn who_waits_for_a_flag_sees_what_its_raiser_did() {
    // Either of the two begins: see `model`.
    for raiser_first in [true, false] {
        model("mailbox: raised after an act", None, &[0, 1], move || {
            let shared = Arc::new((Mailbox::new(), AtomicBool::new(false)));
            let raise = |shared: &(Mailbox, AtomicBool)| {
                shared.1.store(true, Relaxed);
                shared.0.raise(1);
                0
            };
            let wait = |shared: &(Mailbox, AtomicBool)| {
                let (_, waited) = wait(&shared.0, Flags::Any(1));
                assert!(shared.1.load(Relaxed));
                waited as usize
            };
            let (here, there): (fn(&_) -> usize, fn(&_) -> usize) = match raiser_first {
                true => (raise, wait),
                false => (wait, raise),
            };
            let other = {
                let shared = shared.clone();
                thread::spawn(move || there(&shared))
            };
            here(&shared) + other.join().unwrap()
        });
    }
}
