//! User-space readiness: it is registered, armed, reported and moved as a descriptor is, on every back-end.

use crate::common::*;
use osier_poll::{Driver, Events, Interest, Mode, Poller, Readiness, Ready, Token};
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

on_every_driver! {
    a_setting_is_reported_under_the_token
    a_setting_wakes_a_wait_in_another_thread
    what_was_set_before_the_registration_counts
    a_setting_that_races_with_the_registration_is_reported
    settings_between_two_waits_become_one_event_of_the_last
    only_what_meets_the_interest_is_reported
    each_setting_is_an_edge
    level_reports_until_it_is_set_to_something_else
    oneshot_reports_once_until_armed_again
    a_modified_edge_reports_what_is_set
    a_deleted_one_is_silent_and_may_be_added_again
    one_that_is_dropped_before_the_wait_is_silent
    it_moves_to_another_poller_after_delete
    two_pollers_at_once_are_an_error
    a_poller_that_has_gone_sets_it_free
    descriptors_and_readiness_come_from_one_wait
    many_in_little_room_are_all_reported
    descriptors_do_not_crowd_it_out
    no_setting_is_lost_while_interest_changes
    several_waiting_threads_lose_no_event
    it_is_dropped_by_other_threads_while_it_is_waited_for
    the_reserved_token_is_refused
}

fn watched(bench: &Bench, interest: Interest, mode: Mode) -> Readiness {
    let readiness = Readiness::new();
    bench.poller.add(&readiness, A, interest, mode).unwrap();
    readiness
}

fn a_setting_is_reported_under_the_token(driver: Driver) {
    let mut bench = Bench::new(driver);
    let readiness = watched(&bench, Interest::READABLE, Mode::Edge);
    bench.expect_nothing();
    readiness.clone().set(Ready::READABLE);
    assert_eq!(readiness.ready(), Ready::READABLE);
    assert_eq!(bench.expect(A, Ready::READABLE), Ready::READABLE);
    bench.expect_nothing();
}

fn a_setting_wakes_a_wait_in_another_thread(driver: Driver) {
    let mut bench = Bench::new(driver);
    let readiness = watched(&bench, Interest::READABLE, Mode::Oneshot);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(5));
            readiness.set(Ready::READABLE);
        });
        bench.expect(A, Ready::READABLE);
    });
}

fn what_was_set_before_the_registration_counts(driver: Driver) {
    let mut bench = Bench::new(driver);
    for mode in [Mode::Level, Mode::Edge, Mode::Oneshot] {
        let readiness = Readiness::new();
        readiness.set(Ready::WRITABLE);
        bench.poller.add(&readiness, A, Interest::WRITABLE, mode).unwrap();
        bench.expect(A, Ready::WRITABLE);
        bench.poller.delete(&readiness).unwrap();
    }
}

fn a_setting_that_races_with_the_registration_is_reported(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (send, receive) = std::sync::mpsc::channel::<Readiness>();
    let setter = thread::spawn(move || receive.iter().for_each(|readiness| readiness.set(Ready::READABLE)));
    for _ in 0..1000 {
        let readiness = Readiness::new();
        send.send(readiness.clone()).unwrap();
        bench.poller.add(&readiness, A, Interest::READABLE, Mode::Edge).unwrap();
        bench.expect(A, Ready::READABLE);
    }
    drop(send);
    setter.join().unwrap();
}

fn settings_between_two_waits_become_one_event_of_the_last(driver: Driver) {
    let mut bench = Bench::new(driver);
    let readiness = watched(&bench, Interest::READABLE | Interest::WRITABLE, Mode::Edge);
    for ready in [Ready::READABLE, Ready::NONE, Ready::WRITABLE] {
        readiness.set(ready);
    }
    assert_eq!(bench.expect(A, Ready::WRITABLE), Ready::WRITABLE);
    readiness.set(Ready::READABLE);
    readiness.set(Ready::NONE);
    bench.expect_nothing();
}

fn only_what_meets_the_interest_is_reported(driver: Driver) {
    let mut bench = Bench::new(driver);
    let readiness = watched(&bench, Interest::READABLE, Mode::Edge);
    readiness.set(Ready::WRITABLE | Ready::PRIORITY);
    bench.expect_nothing();
    readiness.set(Ready::WRITABLE | Ready::READABLE);
    assert_eq!(bench.expect(A, Ready::READABLE), Ready::READABLE);
    readiness.set(Ready::READ_CLOSED);
    bench.expect(A, Ready::READ_CLOSED);
    bench.poller.modify(&readiness, A, Interest::NONE, Mode::Edge).unwrap();
    readiness.set(Ready::READABLE | Ready::WRITABLE);
    bench.expect_nothing();
    readiness.set(Ready::HUP);
    bench.expect(A, Ready::HUP);
    readiness.set(Ready::ERROR | Ready::READABLE);
    assert_eq!(bench.expect(A, Ready::ERROR), Ready::ERROR);
}

fn each_setting_is_an_edge(driver: Driver) {
    let mut bench = Bench::new(driver);
    let readiness = watched(&bench, Interest::READABLE, Mode::Edge);
    for _ in 0..3 {
        readiness.set(Ready::READABLE);
        bench.expect(A, Ready::READABLE);
        bench.expect_nothing();
    }
}

fn level_reports_until_it_is_set_to_something_else(driver: Driver) {
    let mut bench = Bench::new(driver);
    let readiness = watched(&bench, Interest::READABLE, Mode::Level);
    readiness.set(Ready::READABLE);
    for _ in 0..5 {
        assert_eq!(bench.wait(SOON).len(), 1);
    }
    readiness.set(Ready::NONE);
    bench.expect_nothing();
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_millis(5) {
        assert_eq!(bench.wait(Duration::from_millis(5)), []);
    }
    readiness.set(Ready::READABLE);
    bench.expect(A, Ready::READABLE);
}

fn oneshot_reports_once_until_armed_again(driver: Driver) {
    let mut bench = Bench::new(driver);
    let readiness = watched(&bench, Interest::READABLE, Mode::Oneshot);
    readiness.set(Ready::READABLE);
    bench.expect(A, Ready::READABLE);
    readiness.set(Ready::READABLE);
    bench.expect_nothing();
    let arm = |token| {
        bench
            .poller
            .modify(&readiness, token, Interest::READABLE, Mode::Oneshot)
    };
    arm(B).unwrap();
    bench.expect(B, Ready::READABLE);
    bench.expect_nothing();
    readiness.set(Ready::NONE);
    bench
        .poller
        .modify(&readiness, A, Interest::READABLE, Mode::Oneshot)
        .unwrap();
    bench.expect_nothing();
    readiness.set(Ready::READABLE);
    bench.expect(A, Ready::READABLE);
}

fn a_modified_edge_reports_what_is_set(driver: Driver) {
    let mut bench = Bench::new(driver);
    let readiness = watched(&bench, Interest::WRITABLE, Mode::Edge);
    readiness.set(Ready::READABLE);
    bench.expect_nothing();
    bench
        .poller
        .modify(&readiness, B, Interest::READABLE, Mode::Edge)
        .unwrap();
    bench.expect(B, Ready::READABLE);
    bench.expect_nothing();
}

fn a_deleted_one_is_silent_and_may_be_added_again(driver: Driver) {
    let mut bench = Bench::new(driver);
    let readiness = watched(&bench, Interest::READABLE, Mode::Level);
    readiness.set(Ready::READABLE);
    bench.poller.delete(&readiness).unwrap();
    bench.expect_nothing();
    bench
        .poller
        .add(&readiness, B, Interest::READABLE, Mode::Level)
        .unwrap();
    bench.expect(B, Ready::READABLE);
    assert_eq!(
        bench.wait(NOW).len(),
        1,
        "what is left of the former registration adds nothing"
    );
}

fn one_that_is_dropped_before_the_wait_is_silent(driver: Driver) {
    let mut bench = Bench::new(driver);
    let readiness = watched(&bench, Interest::READABLE, Mode::Level);
    readiness.set(Ready::READABLE);
    let clone = readiness.clone();
    drop(readiness);
    bench.expect(A, Ready::READABLE);
    drop(clone);
    bench.expect_nothing();
}

fn it_moves_to_another_poller_after_delete(driver: Driver) {
    let (mut first, mut second) = (Bench::new(driver), Bench::new(driver));
    let readiness = watched(&first, Interest::READABLE, Mode::Level);
    readiness.set(Ready::READABLE);
    first.expect(A, Ready::READABLE);
    first.poller.delete(&readiness).unwrap();
    second
        .poller
        .add(&readiness, B, Interest::READABLE, Mode::Level)
        .unwrap();
    second.expect(B, Ready::READABLE);
    first.expect_nothing();
    readiness.set(Ready::NONE);
    second.expect_nothing();
}

fn two_pollers_at_once_are_an_error(driver: Driver) {
    let (first, second) = (Bench::new(driver).poller, Bench::new(driver).poller);
    let readiness = Readiness::new();
    let (interest, mode) = (Interest::READABLE, Mode::Level);
    let kind = |result: std::io::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(first.modify(&readiness, A, interest, mode)), ErrorKind::NotFound);
    assert_eq!(kind(first.delete(&readiness)), ErrorKind::NotFound);
    first.add(&readiness, A, interest, mode).unwrap();
    assert_eq!(kind(first.add(&readiness, B, interest, mode)), ErrorKind::AlreadyExists);
    assert_eq!(
        kind(second.add(&readiness, B, interest, mode)),
        ErrorKind::AlreadyExists
    );
    assert_eq!(kind(second.modify(&readiness, B, interest, mode)), ErrorKind::NotFound);
    assert_eq!(kind(second.delete(&readiness)), ErrorKind::NotFound);
    first.modify(&readiness, A, interest, mode).unwrap();
}

fn a_poller_that_has_gone_sets_it_free(driver: Driver) {
    let first = Bench::new(driver);
    let readiness = watched(&first, Interest::READABLE, Mode::Level);
    drop(first);
    readiness.set(Ready::READABLE);
    let mut second = Bench::new(driver);
    second
        .poller
        .add(&readiness, B, Interest::READABLE, Mode::Level)
        .unwrap();
    second.expect(B, Ready::READABLE);
}

fn descriptors_and_readiness_come_from_one_wait(driver: Driver) {
    let mut bench = Bench::new(driver);
    let readiness = watched(&bench, Interest::READABLE, Mode::Level);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    bench.watch(&theirs, B, Interest::READABLE, Mode::Oneshot);
    ours.write_all(b"x").unwrap();
    readiness.set(Ready::READABLE);
    let tokens: Vec<_> = bench.wait(SOON).iter().map(|event| event.token).collect();
    assert_eq!(tokens, [A, B]);
}

fn many_in_little_room_are_all_reported(driver: Driver) {
    let mut bench = Bench::new(driver);
    bench.events = Events::with_capacity(4);
    let all: Vec<_> = (0..8).map(|_| Readiness::new()).collect();
    for (index, readiness) in all.iter().enumerate() {
        let token = Token(index as u64);
        bench
            .poller
            .add(readiness, token, Interest::READABLE, Mode::Level)
            .unwrap();
        readiness.set(Ready::READABLE);
    }
    let mut seen = [0; 8];
    for _ in 0..100 {
        let events = bench.wait(SOON);
        assert!(events.len() <= 4);
        events.iter().for_each(|event| seen[event.token.0 as usize] += 1);
    }
    assert!(seen.iter().all(|&times| times == 50), "in turns: {seen:?}");
}

fn descriptors_do_not_crowd_it_out(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(|can| can.level, "Mode::Level") {
        return;
    }
    bench.events = Events::with_capacity(1);
    let (reader, writer) = pipe();
    bench.watch(&reader, B, Interest::READABLE, Mode::Level);
    write(&writer, b"x");
    let readiness = watched(&bench, Interest::READABLE, Mode::Level);
    readiness.set(Ready::READABLE);
    let (mut a, mut b) = (0, 0);
    for _ in 0..100 {
        for event in bench.wait(NOW) {
            *(if event.token == A { &mut a } else { &mut b }) += 1;
        }
    }
    assert!(a > 30 && b > 30, "{a} {b}");
}

fn no_setting_is_lost_while_interest_changes(driver: Driver) {
    const ALL: usize = 64;
    let mut bench = Bench::new(driver);
    bench.events = Events::with_capacity(ALL);
    for _ in 0..10 {
        let all: Vec<_> = (0..ALL).map(|_| Readiness::new()).collect();
        for (index, readiness) in all.iter().enumerate() {
            let token = Token(index as u64);
            bench
                .poller
                .add(readiness, token, Interest::READABLE, Mode::Edge)
                .unwrap();
        }
        let running = AtomicUsize::new(4);
        let mut last = vec![Ready::NONE; ALL];
        thread::scope(|scope| {
            for setter in 0..4 {
                let (all, running) = (&all, &running);
                scope.spawn(move || {
                    let mine = || all.iter().skip(setter).step_by(4);
                    for round in 0..20 {
                        let ready = if round % 2 == 0 {
                            Ready::READABLE
                        } else {
                            Ready::WRITABLE
                        };
                        mine().for_each(|readiness| readiness.set(ready));
                    }
                    mine().for_each(|readiness| readiness.set(Ready::READABLE));
                    running.fetch_sub(1, Ordering::Release);
                });
            }
            let mut interest = Interest::READABLE;
            loop {
                let ended = running.load(Ordering::Acquire) == 0;
                let events = bench.wait(if ended { NOW } else { Duration::from_millis(1) });
                for event in &events {
                    last[event.token.0 as usize] = event.readiness;
                }
                if ended && events.is_empty() {
                    break;
                }
                if !ended {
                    interest = match interest {
                        Interest::READABLE => Interest::READABLE | Interest::WRITABLE,
                        _ => Interest::READABLE,
                    };
                    for (index, readiness) in all.iter().enumerate() {
                        bench
                            .poller
                            .modify(readiness, Token(index as u64), interest, Mode::Edge)
                            .unwrap();
                    }
                }
            }
        });
        assert!(last.iter().all(|ready| ready.is_readable()), "{last:?}");
    }
}

fn several_waiting_threads_lose_no_event(driver: Driver) {
    const ALL: usize = 500;
    const EACH: usize = 16;
    let poller = Poller::with_driver(driver).unwrap();
    let all: Vec<_> = (0..ALL).map(|_| (Readiness::new(), AtomicUsize::new(0))).collect();
    for (index, (readiness, _)) in all.iter().enumerate() {
        poller
            .add(readiness, Token(index as u64), Interest::READABLE, Mode::Edge)
            .unwrap();
    }
    let left = AtomicUsize::new(ALL * EACH);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut events = Events::with_capacity(64);
                while left.load(Ordering::Acquire) > 0 {
                    poller.wait(&mut events, Some(SOON)).unwrap();
                    for event in &events {
                        let (readiness, times) = &all[event.token.0 as usize];
                        if times.fetch_add(1, Ordering::Relaxed) + 1 < EACH {
                            readiness.set(Ready::READABLE);
                        }
                        left.fetch_sub(1, Ordering::AcqRel);
                    }
                }
                // For the next who waits in vain.
                poller.notify().unwrap();
            });
        }
        all.iter().for_each(|(readiness, _)| readiness.set(Ready::READABLE));
    });
    assert!(all.iter().all(|(_, times)| times.load(Ordering::Relaxed) == EACH));
}

fn it_is_dropped_by_other_threads_while_it_is_waited_for(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (send, receive) = std::sync::mpsc::sync_channel::<Readiness>(64);
    let receive = std::sync::Mutex::new(receive);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let received = receive.lock().unwrap().recv();
                    let Ok(readiness) = received else { return };
                    readiness.set(Ready::READABLE);
                }
            });
        }
        for _ in 0..2000 {
            let readiness = watched(&bench, Interest::READABLE, Mode::Level);
            send.send(readiness).unwrap();
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
        .add(&Readiness::new(), Token(u64::MAX), Interest::READABLE, Mode::Edge);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn every_part_may_go_to_another_thread() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Poller>();
    is_send_and_sync::<Readiness>();
    is_send_and_sync::<Events>();
    is_send_and_sync::<osier_poll::Event>();
}
