//! Registering, changing and moving descriptors, on every back-end: who hears of what, under which name, on which thread.

use crate::common::*;
use osier_poll::{Driver, Event, Events, Interest, Mode, Poller, Ready, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

on_every_driver! {
    a_changed_interest_replaces_the_former
    a_change_gives_a_new_name
    a_disarmed_descriptor_that_hangs_up_is_silent
    a_descriptor_that_is_closed_unannounced_leaves_its_number_free
    a_descriptor_moves_to_another_poller_after_delete
    two_pollers_may_watch_one_descriptor
    changes_from_three_threads_are_all_in_force
    a_registration_during_a_wait_ends_it
    a_change_during_a_wait_ends_it
    a_wait_of_no_time_reports_what_is_there
    an_edge_comes_again_after_would_block
    a_datagram_edge_comes_again_after_would_block
    a_hundred_connections
    pollers_do_not_leak_descriptors
}

fn a_changed_interest_replaces_the_former(driver: Driver) {
    let mut bench = Bench::new(driver);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    bench.watch(&listener, A, Interest::READABLE, Mode::Oneshot);
    bench
        .poller
        .modify(&listener, A, Interest::WRITABLE, Mode::Oneshot)
        .unwrap();
    let _peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let _peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    bench.expect_nothing();
}

fn a_change_gives_a_new_name(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (reader, writer) = pipe();
    bench.watch(&reader, A, Interest::READABLE, Mode::Oneshot);
    write(&writer, b"x");
    for token in [B, Token(3), Token(4)] {
        bench
            .poller
            .modify(&reader, token, Interest::READABLE, Mode::Oneshot)
            .unwrap();
    }
    bench.expect(Token(4), Ready::READABLE);
    bench.expect_nothing();
}

fn a_disarmed_descriptor_that_hangs_up_is_silent(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    bench.watch(&theirs, A, Interest::READABLE, Mode::Oneshot);
    ours.write_all(b"x").unwrap();
    bench.expect(A, Ready::READABLE);
    drop(ours);
    for _ in 0..3 {
        assert_eq!(bench.wait(Duration::from_millis(1)), []);
    }
    theirs.read_exact(&mut [0]).unwrap();
    bench.poller.modify(&theirs, A, Interest::NONE, Mode::Oneshot).unwrap();
    bench.expect(A, Ready::HUP);
    bench.expect_nothing();
}

fn a_descriptor_that_is_closed_unannounced_leaves_its_number_free(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(|can| can.forgets_closed, "way to forget what is closed") {
        return;
    }
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    bench.watch(&ours, A, Interest::READABLE, Mode::Oneshot);
    drop(ours);
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "it is closed indeed");
    bench.expect_nothing();
    // Among these the number is used again.
    let pipes: Vec<_> = (0..8).map(|_| pipe()).collect();
    for (reader, writer) in &pipes {
        bench.watch(reader, B, Interest::READABLE, Mode::Oneshot);
        write(writer, b"x");
        bench.expect(B, Ready::READABLE);
        bench.poller.delete(reader).unwrap();
    }
}

fn a_descriptor_moves_to_another_poller_after_delete(driver: Driver) {
    let (mut first, mut second) = (Bench::new(driver), Bench::new(driver));
    let (reader, writer) = pipe();
    first.watch(&reader, A, Interest::READABLE, Mode::Oneshot);
    write(&writer, b"x");
    first.expect(A, Ready::READABLE);
    first.poller.delete(&reader).unwrap();
    second.watch(&reader, B, Interest::READABLE, Mode::Oneshot);
    second.expect(B, Ready::READABLE);
    write(&writer, b"y");
    first.expect_nothing();
}

fn two_pollers_may_watch_one_descriptor(driver: Driver) {
    let (mut first, mut second) = (Bench::new(driver), Bench::new(driver));
    let (reader, writer) = pipe();
    first.watch(&reader, A, Interest::READABLE, Mode::Oneshot);
    second.watch(&reader, B, Interest::READABLE, Mode::Oneshot);
    write(&writer, b"x");
    first.expect(A, Ready::READABLE);
    second.expect(B, Ready::READABLE);
}

fn changes_from_three_threads_are_all_in_force(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (poller, mode) = (&bench.poller, Mode::Oneshot);
    let pipes = [pipe(), pipe(), pipe()];
    thread::scope(|scope| {
        for (index, (reader, writer)) in pipes.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..200 {
                    poller.add(reader, Token(round), Interest::READABLE, mode).unwrap();
                    poller.modify(reader, A, Interest::NONE, mode).unwrap();
                    poller.delete(reader).unwrap();
                }
                write(writer, b"x");
                poller
                    .add(reader, Token(100 + index as u64), Interest::READABLE, mode)
                    .unwrap();
            });
        }
        let mut events = Events::with_capacity(16);
        for _ in 0..50 {
            // Another thread may be in the middle of it; nothing is there to be read yet, or it is armed for good.
            poller.wait(&mut events, Some(NOW)).unwrap();
            if !events.is_empty() {
                rearm(poller, &events, &pipes.each_ref().map(|(reader, _)| reader));
            }
        }
    });
    let mut tokens: Vec<u64> = Vec::new();
    while tokens.len() < 3 {
        tokens.extend(bench.wait(SOON).iter().map(|event| event.token.0));
    }
    tokens.sort_unstable();
    assert_eq!(tokens, [100, 101, 102]);

    fn rearm(poller: &Poller, events: &Events, readers: &[&std::os::fd::OwnedFd; 3]) {
        for Event { token, .. } in events {
            let reader = readers[token.0 as usize - 100];
            poller.modify(reader, token, Interest::READABLE, Mode::Oneshot).unwrap();
        }
    }
}

fn a_registration_during_a_wait_ends_it(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (reader, writer) = pipe();
    write(&writer, b"x");
    ends_a_wait(&mut bench, A, |poller| {
        poller.add(&reader, A, Interest::READABLE, Mode::Oneshot).unwrap();
    });
}

fn a_change_during_a_wait_ends_it(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (reader, writer) = pipe();
    write(&writer, b"x");
    bench.watch(&reader, A, Interest::NONE, Mode::Oneshot);
    ends_a_wait(&mut bench, B, |poller| {
        poller.modify(&reader, B, Interest::READABLE, Mode::Oneshot).unwrap();
    });
}

/// Makes the call on another thread during a wait, which then reports the token.
fn ends_a_wait(bench: &mut Bench, token: Token, call: impl FnOnce(&Poller) + Send) {
    let (poller, events) = (&bench.poller, &mut bench.events);
    let waits = testkit::ThreadWatch::current();
    thread::scope(|scope| {
        scope.spawn(|| {
            waits.until_it_waits();
            call(poller);
        });
        while poller.wait(events, Some(SOON)).unwrap() == 0 {}
    });
    assert_eq!(bench.events.iter().next().unwrap().token, token);
}

fn a_wait_of_no_time_reports_what_is_there(driver: Driver) {
    let mut bench = Bench::new(driver);
    assert_eq!(bench.wait(NOW), []);
    let (reader, writer) = pipe();
    write(&writer, b"x");
    bench.watch(&reader, A, Interest::READABLE, Mode::Oneshot);
    assert_eq!(bench.wait(NOW).len(), 1);
}

fn an_edge_comes_again_after_would_block(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(|can| can.edge, "Mode::Edge") {
        return;
    }
    let (mut ours, mut theirs) = tcp_pair();
    theirs.set_nonblocking(true).unwrap();
    bench.watch(&theirs, A, Interest::READABLE, Mode::Edge);
    for _ in 0..3 {
        ours.write_all(b"x").unwrap();
        bench.expect(A, Ready::READABLE);
        theirs.peek(&mut [0]).unwrap();
        assert_eq!(theirs.read(&mut [0; 2]).unwrap(), 1);
        assert_eq!(theirs.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        bench.expect_nothing();
    }
}

fn a_datagram_edge_comes_again_after_would_block(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(|can| can.edge, "Mode::Edge") {
        return;
    }
    let [ours, theirs] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    theirs.set_nonblocking(true).unwrap();
    bench.watch(&theirs, A, Interest::READABLE, Mode::Edge);
    for _ in 0..3 {
        ours.send_to(b"x", theirs.local_addr().unwrap()).unwrap();
        bench.expect(A, Ready::READABLE);
        theirs.recv(&mut [0]).unwrap();
        assert_eq!(theirs.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        bench.expect_nothing();
    }
}

fn a_hundred_connections(driver: Driver) {
    let mut bench = Bench::new(driver);
    let mut pairs: Vec<_> = (0..100).map(|_| UnixStream::pair().unwrap()).collect();
    for (index, (_, theirs)) in pairs.iter().enumerate() {
        bench.watch(theirs, Token(index as u64), Interest::READABLE, Mode::Oneshot);
    }
    for index in (0..100).rev() {
        pairs[index].0.write_all(b"x").unwrap();
        bench.expect(Token(index as u64), Ready::READABLE);
        bench.poller.delete(&pairs[index].1).unwrap();
    }
    bench.expect_nothing();
}

fn pollers_do_not_leak_descriptors(driver: Driver) {
    let (reader, _writer) = pipe();
    for _ in 0..2000 {
        let poller = Poller::with_driver(driver).unwrap();
        poller.add(&reader, A, Interest::READABLE, Mode::Oneshot).unwrap();
    }
    // A new descriptor has the lowest number that is free.
    assert!(pipe().0.as_raw_fd() < 2000);
}
