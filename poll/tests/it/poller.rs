//! Duties of every back-end of the poller: bytes, edges, arming, closing, errors.

use crate::common::*;
use osier_poll::{Driver, Events, Interest, Mode, Poller, Ready, Token};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::net::{SendFlags, send};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

on_every_driver! {
    level_reports_as_long_as_bytes_wait
    edge_reports_each_arrival_once
    oneshot_reports_once_until_armed_again
    writable_means_room
    both_directions_come_in_one_event
    no_interest_means_no_event
    a_listener_is_readable_when_a_peer_connects
    a_fin_closes_reading_and_leaves_the_bytes
    both_fins_are_a_hang_up
    a_reset_is_an_error_and_a_hang_up
    urgent_data_is_priority
    the_ends_of_a_pipe_tell_that_the_other_is_gone
    an_eventfd_and_a_timerfd_can_be_watched
    what_does_not_fit_comes_with_the_next_wait
    a_deleted_descriptor_is_silent
    misuse_is_an_error_of_the_promised_kind
    a_poller_stands_in_another_poller
    the_descriptors_are_close_on_exec_and_do_not_leak
}

fn level_reports_as_long_as_bytes_wait(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (reader, writer) = pipe();
    bench.watch(&reader, A, Interest::READABLE, Mode::Level);
    bench.expect_nothing();
    write(&writer, b"x");
    assert_eq!(bench.expect(A, Ready::READABLE), Ready::READABLE);
    bench.expect(A, Ready::READABLE);
    read(&reader);
    bench.expect_nothing();
}

fn edge_reports_each_arrival_once(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(|can| can.edge, "Mode::Edge") {
        return;
    }
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    ours.write_all(b"before").unwrap();
    bench.watch(&theirs, A, Interest::READABLE, Mode::Edge);
    bench.expect(A, Ready::READABLE);
    bench.expect_nothing();
    ours.write_all(b"after").unwrap();
    bench.expect(A, Ready::READABLE);
    bench.expect_nothing();
    assert_eq!(theirs.read(&mut [0; 64]).unwrap(), 11);
    bench.expect_nothing();
}

fn oneshot_reports_once_until_armed_again(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (reader, writer) = pipe();
    bench.watch(&reader, A, Interest::READABLE, Mode::Oneshot);
    write(&writer, b"x");
    bench.expect(A, Ready::READABLE);
    write(&writer, b"y");
    bench.expect_nothing();
    bench
        .poller
        .modify(&reader, B, Interest::READABLE, Mode::Oneshot)
        .unwrap();
    bench.expect(B, Ready::READABLE);
    bench.expect_nothing();
    read(&reader);
    bench
        .poller
        .modify(&reader, A, Interest::READABLE, Mode::Oneshot)
        .unwrap();
    bench.expect_nothing();
    write(&writer, b"z");
    bench.expect(A, Ready::READABLE);
}

fn writable_means_room(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (reader, writer) = pipe();
    bench.watch(&writer, A, Interest::WRITABLE, Mode::Level);
    assert_eq!(bench.expect(A, Ready::WRITABLE), Ready::WRITABLE);
    while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
    bench.expect_nothing();
    while rustix::io::read(&reader, &mut [0; 4096][..]).is_ok() {}
    bench.expect(A, Ready::WRITABLE);
}

fn both_directions_come_in_one_event(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (mut ours, theirs) = tcp_pair();
    ours.write_all(b"x").unwrap();
    bench.watch(&theirs, A, Interest::READABLE | Interest::WRITABLE, Mode::Level);
    bench.expect(A, Ready::READABLE | Ready::WRITABLE);
}

fn no_interest_means_no_event(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (mut ours, theirs) = tcp_pair();
    ours.write_all(b"x").unwrap();
    bench.watch(&theirs, A, Interest::NONE, Mode::Level);
    bench.expect_nothing();
    bench
        .poller
        .modify(&theirs, A, Interest::READABLE, Mode::Oneshot)
        .unwrap();
    bench.expect(A, Ready::READABLE);
}

fn a_listener_is_readable_when_a_peer_connects(driver: Driver) {
    let mut bench = Bench::new(driver);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    bench.watch(&listener, A, Interest::READABLE, Mode::Level);
    bench.expect_nothing();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(bench.expect(A, Ready::READABLE), Ready::READABLE);
}

fn a_fin_closes_reading_and_leaves_the_bytes(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (mut ours, mut theirs) = tcp_pair();
    ours.write_all(b"last words").unwrap();
    ours.shutdown(Shutdown::Write).unwrap();
    bench.watch(&theirs, A, Interest::READABLE | Interest::PRIORITY, Mode::Oneshot);
    let readiness = match bench.poller.capabilities().read_closed {
        true => bench.expect(A, Ready::READABLE | Ready::READ_CLOSED),
        false => bench.expect(A, Ready::READABLE),
    };
    assert!(!readiness.is_hup(), "the other direction is open: {readiness:?}");
    let mut text = String::new();
    theirs.read_to_string(&mut text).unwrap();
    assert_eq!(text, "last words");
}

fn both_fins_are_a_hang_up(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (ours, theirs) = tcp_pair();
    bench.watch(&theirs, A, Interest::NONE, Mode::Level);
    theirs.shutdown(Shutdown::Write).unwrap();
    ours.shutdown(Shutdown::Write).unwrap();
    bench.expect(A, Ready::HUP);
}

fn a_reset_is_an_error_and_a_hang_up(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (ours, theirs) = tcp_pair();
    bench.watch(&theirs, A, Interest::READABLE, Mode::Level);
    rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::ZERO)).unwrap();
    drop(ours);
    let readiness = bench.expect(A, Ready::ERROR | Ready::HUP | Ready::READABLE);
    assert!(readiness.is_read_closed() || !bench.poller.capabilities().read_closed);
}

fn urgent_data_is_priority(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(|can| can.priority, "Interest::PRIORITY") {
        return;
    }
    let (mut ours, theirs) = tcp_pair();
    bench.watch(&theirs, A, Interest::READABLE | Interest::PRIORITY, Mode::Level);
    ours.write_all(b"plain").unwrap();
    assert!(!bench.expect(A, Ready::READABLE).is_priority());
    assert_eq!(send(&ours, b"!", SendFlags::OOB).unwrap(), 1);
    bench.expect(A, Ready::PRIORITY | Ready::READABLE);
}

fn the_ends_of_a_pipe_tell_that_the_other_is_gone(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (reader, writer) = pipe();
    bench.watch(&reader, A, Interest::READABLE, Mode::Level);
    drop(writer);
    bench.expect(A, Ready::HUP);
    bench.poller.delete(&reader).unwrap();

    let (reader, writer) = pipe();
    bench.watch(&writer, B, Interest::WRITABLE, Mode::Level);
    drop(reader);
    bench.expect(B, Ready::ERROR);
}

fn an_eventfd_and_a_timerfd_can_be_watched(driver: Driver) {
    let mut bench = Bench::new(driver);
    let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    bench.watch(&counter, A, Interest::READABLE, Mode::Oneshot);
    write(&counter, &1u64.to_ne_bytes());
    bench.expect(A, Ready::READABLE);

    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
    bench.watch(&timer, B, Interest::READABLE, Mode::Level);
    bench.expect_nothing();
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let once = Itimerspec {
        it_interval: zero,
        it_value: Timespec {
            tv_sec: 0,
            tv_nsec: 2_000_000,
        },
    };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once).unwrap();
    bench.expect(B, Ready::READABLE);
}

fn what_does_not_fit_comes_with_the_next_wait(driver: Driver) {
    let mut bench = Bench::new(driver);
    bench.events = Events::with_capacity(1);
    let capacity = bench.events.capacity();
    let pipes: Vec<_> = (0..capacity + 3).map(|_| pipe()).collect();
    for (index, (reader, writer)) in pipes.iter().enumerate() {
        bench.watch(reader, Token(index as u64), Interest::READABLE, Mode::Oneshot);
        write(writer, b"x");
    }
    bench.poller.notify().unwrap();
    let mut seen = Vec::new();
    while seen.len() < pipes.len() {
        let events = bench.wait(SOON);
        assert!(events.len() <= capacity);
        seen.extend(events.iter().map(|event| event.token.0));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..pipes.len() as u64).collect::<Vec<_>>());
}

fn a_deleted_descriptor_is_silent(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (reader, writer) = pipe();
    bench.watch(&reader, A, Interest::READABLE, Mode::Level);
    write(&writer, b"x");
    bench.poller.delete(&reader).unwrap();
    bench.expect_nothing();
    bench.watch(&reader, B, Interest::READABLE, Mode::Level);
    bench.expect(B, Ready::READABLE);
}

fn misuse_is_an_error_of_the_promised_kind(driver: Driver) {
    let poller = Poller::with_driver(driver).unwrap();
    let (reader, _writer) = pipe();
    let kind = |result: std::io::Result<()>| result.unwrap_err().kind();
    let (interest, mode) = (Interest::READABLE, Mode::Level);

    assert_eq!(kind(poller.modify(&reader, A, interest, mode)), ErrorKind::NotFound);
    assert_eq!(kind(poller.delete(&reader)), ErrorKind::NotFound);
    poller.add(&reader, A, interest, mode).unwrap();
    assert_eq!(kind(poller.add(&reader, B, interest, mode)), ErrorKind::AlreadyExists);
    poller.delete(&reader).unwrap();
    assert_eq!(kind(poller.delete(&reader)), ErrorKind::NotFound);

    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(kind(poller.add(&file, A, interest, mode)), ErrorKind::PermissionDenied);
    if let Some(own) = poller.fd() {
        assert_eq!(kind(poller.add(own, A, interest, mode)), ErrorKind::InvalidInput);
    }

    let reserved = Token(u64::MAX);
    assert_eq!(
        kind(poller.add(&reader, reserved, interest, mode)),
        ErrorKind::InvalidInput
    );
    poller.add(&reader, A, interest, mode).unwrap();
    assert_eq!(
        kind(poller.modify(&reader, reserved, interest, mode)),
        ErrorKind::InvalidInput
    );
}

fn a_poller_stands_in_another_poller(driver: Driver) {
    let mut outer = Bench::new(driver);
    let mut inner = Bench::new(driver);
    let Some(fd) = inner.poller.fd() else {
        return println!("skipped: poll(2) is no descriptor");
    };
    let (reader, writer) = pipe();
    inner.watch(&reader, A, Interest::READABLE, Mode::Level);
    outer.watch(fd, B, Interest::READABLE, Mode::Level);
    outer.expect_nothing();
    write(&writer, b"x");
    outer.expect(B, Ready::READABLE);
    inner.expect(A, Ready::READABLE);
    read(&reader);
    inner.expect_nothing();
    outer.expect_nothing();
    inner.poller.notify().unwrap();
    outer.expect(B, Ready::READABLE);
}

fn the_descriptors_are_close_on_exec_and_do_not_leak(driver: Driver) {
    let poller = Poller::with_driver(driver).unwrap();
    if let Some(own) = poller.fd() {
        let flags = rustix::io::fcntl_getfd(own).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
    let (reader, _writer) = pipe();
    assert!(rustix::fs::fcntl_getfl(&reader).unwrap().contains(OFlags::NONBLOCK));
    poller.add(&reader, A, Interest::READABLE, Mode::Level).unwrap();
    assert!(
        rustix::fs::fcntl_getfl(&reader).unwrap().contains(OFlags::NONBLOCK),
        "flags are never touched"
    );
}
