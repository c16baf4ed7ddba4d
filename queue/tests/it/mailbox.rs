//! The mailbox on one thread, step by step, and against its definition. All interleavings: tests/loom/mailbox.rs.

use osier_queue::{Flags, Mailbox, Waiter};
use proptest::prelude::*;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

struct Wait<'m>(&'m Mailbox, Flags, Pin<Box<Waiter<'m>>>);

impl<'m> Wait<'m> {
    fn new(mailbox: &'m Mailbox, flags: Flags) -> Self {
        Wait(mailbox, flags, Box::pin(mailbox.waiter()))
    }

    fn poll(&mut self) -> Poll<u32> {
        let mut cx = Context::from_waker(Waker::noop());
        self.0.poll_wait(self.1, self.2.as_mut(), &mut cx)
    }
}

#[test]
fn raise_and_take_alone_are_a_set_of_bits() {
    let mailbox = Mailbox::new();
    assert_eq!(mailbox.state(), 0);
    for flag in 0..32 {
        mailbox.raise(1 << flag);
    }
    assert_eq!(mailbox.state(), u32::MAX);
    assert_eq!(mailbox.take(0xff), u32::MAX, "the whole state before");
    assert_eq!(mailbox.take(1 << 31), 0xffff_ff00);
    mailbox.raise(0);
    assert_eq!(mailbox.state(), 0x7fff_ff00);
}

#[test]
fn the_empty_set_is_satisfied_at_once() {
    let mailbox = Mailbox::new();
    for flags in [Flags::Any(0), Flags::All(0)] {
        assert_eq!(Wait::new(&mailbox, flags).poll(), Poll::Ready(0));
        mailbox.raise(8);
        assert_eq!(Wait::new(&mailbox, flags).poll(), Poll::Ready(8));
        mailbox.take(8);
    }
}

#[test]
fn a_wait_takes_nothing() {
    let mailbox = Mailbox::new();
    mailbox.raise(1);
    for _ in 0..3 {
        assert_eq!(Wait::new(&mailbox, Flags::Any(1)).poll(), Poll::Ready(1));
    }
    let mut waiting = Wait::new(&mailbox, Flags::All(3));
    assert!(waiting.poll().is_pending());
    mailbox.raise(2);
    assert_eq!(waiting.poll(), Poll::Ready(3));
    assert_eq!(mailbox.state(), 3);
}

#[test]
fn the_state_is_that_of_the_raise() {
    let mailbox = Mailbox::new();
    let mut first = Wait::new(&mailbox, Flags::Any(1));
    assert!(first.poll().is_pending());
    mailbox.raise(5);
    mailbox.take(u32::MAX);
    mailbox.raise(8);
    assert_eq!(first.poll(), Poll::Ready(5), "taken since, but it was so");
    assert!(first.poll().is_pending(), "the next wait");
}

#[test]
fn one_raise_reaches_many_among_many_others() {
    let mailbox = Mailbox::new();
    let waits: Vec<_> = (0..100)
        .map(|index| {
            let mut wait = Wait::new(&mailbox, Flags::Any(1 << (index % 3)));
            assert!(wait.poll().is_pending());
            wait
        })
        .collect();
    let notified = || waits.iter().filter(|wait| wait.2.is_notified()).count();
    for (flag, expected) in [(1, 33), (1, 33), (0, 67), (2, 100)] {
        mailbox.raise(1 << flag);
        assert_eq!(notified(), expected, "those of flag {flag} and before");
    }
}

/// A call of a mailbox.
#[derive(Debug, Clone)]
enum Step {
    Raise(u32),
    Take(u32),
    Wait(Flags),
    Drop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let set = 0..16_u32;
    prop_oneof![
        3 => set.clone().prop_map(Step::Raise),
        2 => set.clone().prop_map(Step::Take),
        2 => set.clone().prop_map(|set| Step::Wait(Flags::Any(set))),
        2 => set.prop_map(|set| Step::Wait(Flags::All(set))),
        1 => (0..64_usize).prop_map(Step::Drop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, ..ProptestConfig::default() })]

    /// The model: a number, and a list of waits, each judged anew at each raise.
    #[test]
    fn every_raise_reaches_exactly_those_whom_it_satisfies(steps in prop::collection::vec(step(), 1..if cfg!(miri) { 20 } else { 60 })) {
        let mailbox = Mailbox::new();
        let mut state = 0;
        let mut waits: Vec<(Wait, Option<u32>)> = Vec::new();
        for step in steps {
            match step {
                Step::Raise(set) => {
                    mailbox.raise(set);
                    state |= set;
                    for (wait, satisfied) in &mut waits {
                        if satisfied.is_none() && wait.1.hold_in(state) {
                            *satisfied = Some(state);
                        }
                    }
                }
                Step::Take(clear) => {
                    prop_assert_eq!(mailbox.take(clear), state);
                    state &= !clear;
                }
                Step::Wait(flags) => {
                    let mut wait = Wait::new(&mailbox, flags);
                    let polled = wait.poll();
                    if flags.hold_in(state) {
                        prop_assert_eq!(polled, Poll::Ready(state));
                    } else {
                        prop_assert_eq!(polled, Poll::Pending);
                        waits.push((wait, None));
                    }
                }
                Step::Drop(index) if !waits.is_empty() => drop(waits.remove(index % waits.len())),
                Step::Drop(_) => {}
            }
            for (wait, satisfied) in &waits {
                prop_assert_eq!(wait.2.is_notified(), satisfied.is_some());
            }
            prop_assert_eq!(mailbox.state(), state);
        }
        for (mut wait, satisfied) in waits {
            prop_assert_eq!(wait.poll(), satisfied.map_or(Poll::Pending, Poll::Ready));
        }
    }
}

#[test]
fn flags_hold_as_they_say() {
    assert!(Flags::Any(6).hold_in(2) && !Flags::Any(6).hold_in(9));
    assert!(Flags::All(6).hold_in(7) && !Flags::All(6).hold_in(2));
    assert!(Flags::Any(u32::MAX).hold_in(1) && !Flags::All(u32::MAX).hold_in(1));
}
