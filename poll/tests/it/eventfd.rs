//! State that a thread sets and a poller waits for: an eventfd, on every back-end.

use crate::common::*;
use osier_poll::{Driver, Event, Events, Interest, Mode, Poller, Ready, Token};
use rustix::event::{EventfdFlags, eventfd};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

on_every_driver! {
    a_setting_is_reported_under_the_token
    a_setting_wakes_a_wait_in_another_thread
    what_was_set_before_the_registration_counts
    a_setting_that_races_with_the_registration_is_reported
    settings_between_two_waits_become_one_event
    each_setting_is_an_edge
    level_reports_until_it_is_unset
    one_that_is_dropped_before_the_wait_is_silent
    it_moves_to_another_poller_after_delete
    many_in_little_room_are_all_reported
    no_setting_is_lost_while_interest_changes
    several_waiting_threads_lose_no_event
    it_is_dropped_by_other_threads_while_it_is_waited_for
    the_reserved_token_is_refused
}

/// Readable while it is set.
#[derive(Clone)]
struct Flag(Arc<OwnedFd>);

impl Flag {
    fn new() -> Flag {
        Flag(Arc::new(
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
        ))
    }

    fn watched(bench: &Bench, mode: Mode) -> Flag {
        let flag = Flag::new();
        bench.watch(&flag, A, Interest::READABLE, mode);
        flag
    }

    fn set(&self) {
        write(&self.0, &1u64.to_ne_bytes());
    }

    fn unset(&self) {
        assert_eq!(read(&self.0), 8);
    }
}

impl AsFd for Flag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn a_setting_is_reported_under_the_token(driver: Driver) {
    let mut bench = Bench::new(driver);
    let flag = Flag::watched(&bench, Mode::Oneshot);
    bench.expect_nothing();
    flag.clone().set();
    assert_eq!(bench.expect(A, Ready::READABLE), Ready::READABLE);
    bench.expect_nothing();
}

fn a_setting_wakes_a_wait_in_another_thread(driver: Driver) {
    let mut bench = Bench::new(driver);
    let flag = Flag::watched(&bench, Mode::Oneshot);
    let waits = testkit::ThreadWatch::current();
    thread::scope(|scope| {
        scope.spawn(|| {
            waits.until_it_waits();
            flag.set();
        });
        bench.expect(A, Ready::READABLE);
    });
}

fn what_was_set_before_the_registration_counts(driver: Driver) {
    let mut bench = Bench::new(driver);
    let can = bench.poller.capabilities();
    let modes = [(Mode::Level, can.level), (Mode::Edge, can.edge), (Mode::Oneshot, true)];
    for (mode, _) in modes.into_iter().filter(|(_, can)| *can) {
        let flag = Flag::new();
        flag.set();
        bench.watch(&flag, A, Interest::READABLE, mode);
        bench.expect(A, Ready::READABLE);
        bench.poller.delete(&flag).unwrap();
    }
}

fn a_setting_that_races_with_the_registration_is_reported(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (send, receive) = std::sync::mpsc::channel::<Flag>();
    let setter = thread::spawn(move || receive.iter().for_each(|flag| flag.set()));
    for _ in 0..1000 {
        let flag = Flag::new();
        send.send(flag.clone()).unwrap();
        bench.watch(&flag, A, Interest::READABLE, Mode::Oneshot);
        bench.expect(A, Ready::READABLE);
        bench.poller.delete(&flag).unwrap();
    }
    drop(send);
    setter.join().unwrap();
}

fn settings_between_two_waits_become_one_event(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(|can| can.edge, "Mode::Edge") {
        return;
    }
    let flag = Flag::watched(&bench, Mode::Edge);
    (0..3).for_each(|_| flag.set());
    bench.expect(A, Ready::READABLE);
    bench.expect_nothing();
    flag.set();
    flag.unset();
    bench.expect_nothing();
}

fn each_setting_is_an_edge(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(|can| can.edge, "Mode::Edge") {
        return;
    }
    let flag = Flag::watched(&bench, Mode::Edge);
    for _ in 0..3 {
        flag.set();
        bench.expect(A, Ready::READABLE);
        bench.expect_nothing();
    }
}

fn level_reports_until_it_is_unset(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(|can| can.level, "Mode::Level") {
        return;
    }
    let flag = Flag::watched(&bench, Mode::Level);
    for _ in 0..2 {
        flag.set();
        (0..5).for_each(|_| assert_eq!(bench.wait(SOON).len(), 1));
        flag.unset();
        bench.expect_nothing();
    }
}

fn one_that_is_dropped_before_the_wait_is_silent(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(
        |can| can.level && can.forgets_closed,
        "Mode::Level or way to forget what is closed",
    ) {
        return;
    }
    let flag = Flag::watched(&bench, Mode::Level);
    flag.set();
    let clone = flag.clone();
    drop(flag);
    bench.expect(A, Ready::READABLE);
    drop(clone);
    bench.expect_nothing();
}

fn it_moves_to_another_poller_after_delete(driver: Driver) {
    let (mut first, mut second) = (Bench::new(driver), Bench::new(driver));
    let flag = Flag::watched(&first, Mode::Oneshot);
    flag.set();
    first.expect(A, Ready::READABLE);
    first.poller.delete(&flag).unwrap();
    second.watch(&flag, B, Interest::READABLE, Mode::Oneshot);
    second.expect(B, Ready::READABLE);
    first.expect_nothing();
    let kind = first.poller.delete(&flag).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::NotFound);
}

fn many_in_little_room_are_all_reported(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(|can| can.level, "Mode::Level") {
        return;
    }
    bench.events = Events::with_capacity(4);
    let all = [(); 8].map(|()| Flag::new());
    for (token, flag) in (0..).map(Token).zip(&all) {
        bench.watch(flag, token, Interest::READABLE, Mode::Level);
        flag.set();
    }
    let mut seen = [0; 8];
    for _ in 0..100 {
        let events = bench.wait(SOON);
        assert!(events.len() <= 4);
        events.iter().for_each(|event| seen[event.token.0 as usize] += 1);
    }
    assert!(seen.iter().all(|&times| times > 20), "in turns: {seen:?}");
}

fn no_setting_is_lost_while_interest_changes(driver: Driver) {
    const EACH: usize = 200;
    let mut bench = Bench::new(driver);
    let flag = Flag::watched(&bench, Mode::Oneshot);
    let taken = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..EACH {
                // The next only when this one was seen: a lost one ends the test by its deadline.
                flag.set();
                while taken.load(Ordering::Acquire) == round {
                    thread::yield_now();
                }
            }
        });
        for round in 0..EACH {
            for interest in [Interest::NONE, Interest::READABLE | Interest::WRITABLE, Interest::NONE] {
                bench.poller.modify(&flag, B, interest, Mode::Oneshot).unwrap();
            }
            bench.wait(NOW);
            bench
                .poller
                .modify(&flag, A, Interest::READABLE, Mode::Oneshot)
                .unwrap();
            bench.expect(A, Ready::READABLE);
            flag.unset();
            taken.store(round + 1, Ordering::Release);
        }
    });
}

fn several_waiting_threads_lose_no_event(driver: Driver) {
    const ALL: usize = 100;
    const EACH: usize = 16;
    let poller = Poller::with_driver(driver).unwrap();
    let all: Vec<_> = (0..ALL).map(|_| (Flag::new(), AtomicUsize::new(0))).collect();
    let arm = |index: usize| (&all[index].0, Token(index as u64), Interest::READABLE, Mode::Oneshot);
    for index in 0..ALL {
        let (flag, token, interest, mode) = arm(index);
        poller.add(flag, token, interest, mode).unwrap();
    }
    let left = AtomicUsize::new(ALL * EACH);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut events = Events::with_capacity(64);
                while left.load(Ordering::Acquire) > 0 {
                    poller.wait(&mut events, Some(SOON)).unwrap();
                    for event in &events {
                        let index = event.token.0 as usize;
                        let times = all[index].1.fetch_add(1, Ordering::Relaxed) + 1;
                        all[index].0.unset();
                        if times < EACH {
                            let (flag, token, interest, mode) = arm(index);
                            poller.modify(flag, token, interest, mode).unwrap();
                            flag.set();
                        }
                        left.fetch_sub(1, Ordering::AcqRel);
                    }
                }
                // For the next who waits in vain.
                poller.notify().unwrap();
            });
        }
        all.iter().for_each(|(flag, _)| flag.set());
    });
    assert!(all.iter().all(|(_, times)| times.load(Ordering::Relaxed) == EACH));
}

fn it_is_dropped_by_other_threads_while_it_is_waited_for(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(|can| can.forgets_closed, "way to forget what is closed") {
        return;
    }
    let (send, receive) = std::sync::mpsc::sync_channel::<Flag>(64);
    let receive = std::sync::Mutex::new(receive);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let received = receive.lock().unwrap().recv();
                    let Ok(flag) = received else { return };
                    flag.set();
                }
            });
        }
        for _ in 0..2000 {
            send.send(Flag::watched(&bench, Mode::Oneshot)).unwrap();
            bench.wait(NOW);
        }
        drop(send);
    });
    bench.expect_nothing();
}

fn the_reserved_token_is_refused(driver: Driver) {
    let bench = Bench::new(driver);
    let result = bench
        .poller
        .add(Flag::new(), Token(u64::MAX), Interest::READABLE, Mode::Oneshot);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn every_part_may_go_to_another_thread() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Poller>();
    is_send_and_sync::<Events>();
    is_send_and_sync::<Event>();
}
