//! Leaves that no fiber polls: in futures, on plain threads, outside of every runtime.

use std::future::Future;
use std::io::{Read, Write};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::colours::Count;
use osier::io::{Interest, Ready, ready_async};
use osier::time::Sleep;

/// Polls until it is ready. Checks every millisecond whether it was woken.
fn poll_by_hand<F: Future>(future: F) -> (F::Output, usize) {
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut future = pin!(future);
    let mut seen = 0;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (value, count.wakes());
        }
        testkit::eventually("a future that is woken", || count.wakes() > seen);
        seen = count.wakes();
    }
}

#[test]
fn a_sleep_is_driven_outside_of_every_runtime() {
    let start = Instant::now();
    let ((), woken) = poll_by_hand(Sleep::new(Duration::from_millis(30)));
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert_eq!(woken, 1, "one timer, one wake-up");
}

/// The program does not know the thread, so a signal that the program blocks must not end in it.
#[test]
fn the_driver_outside_of_every_runtime_takes_no_signals() {
    poll_by_hand(Sleep::new(Duration::from_millis(1)));
    testkit::assert_takes_no_signals("osier-driver-0");
}

#[test]
fn a_sleep_blocks_a_plain_thread() {
    let start = Instant::now();
    osier::block_on(Sleep::new(Duration::from_millis(20)));
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn a_sleep_survives_the_runtime_it_began_on() {
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    let polled_there = runtime
        .spawn(|| {
            let mut sleep = Box::pin(Sleep::new(Duration::from_millis(80)));
            assert!(
                sleep
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
            sleep
        })
        .join()
        .unwrap();
    drop(runtime);
    let ((), _) = poll_by_hand(polled_there);
}

#[test]
fn an_earlier_timer_interrupts_a_driver_that_sleeps_for_a_later_one() {
    let mut long = pin!(Sleep::new(Duration::from_secs(3600)));
    assert!(long.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // Until the thread that drives the timers sleeps, which nothing here can see.
    thread::sleep(Duration::from_millis(20));
    poll_by_hand(Sleep::new(Duration::from_millis(10)));
}

#[test]
fn a_foreign_descriptor_is_driven_outside_of_every_runtime() {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let waits = testkit::ThreadWatch::current();
    let writing = thread::spawn(move || {
        waits.until_it_waits();
        writer.write_all(b"x").unwrap();
        writer
    });
    let (ready, _) = poll_by_hand(ready_async(&reader, Interest::READABLE));
    assert!(ready.unwrap().is_readable());
    reader.read_exact(&mut [0]).unwrap();
    drop(writing.join().unwrap());
    let (ready, _) = poll_by_hand(ready_async(&reader, Interest::READABLE));
    assert!(ready.unwrap().intersects(Ready::HUP));
}

#[test]
fn a_regular_file_is_refused() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let (ready, _) = poll_by_hand(ready_async(&file, Interest::READABLE));
    assert_eq!(ready.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn many_wait_for_one_descriptor_in_every_colour() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let reader = &reader;
    let (sender, receiver) = std::sync::mpsc::channel();
    let begin = || sender.clone().send(testkit::ThreadWatch::current()).unwrap();
    let future = || async {
        begin();
        ready_async(reader, Interest::READABLE).await
    };
    let blocking = || {
        begin();
        osier::io::readable(reader, None)
    };
    thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| poll_by_hand(future()).0.unwrap());
            threads.spawn(|| blocking().unwrap());
            threads.spawn(|| osier::run(blocking).unwrap());
            threads.spawn(|| osier::run(|| osier::block_on(future())).unwrap());
        }
        receiver.iter().take(12).for_each(|waiter| waiter.until_it_waits());
        writer.write_all(b"x").unwrap();
    });
}

#[test]
fn what_is_dropped_is_not_woken() {
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    {
        let mut sleep = pin!(Sleep::new(Duration::from_millis(5)));
        assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!(Arc::strong_count(&count), 2, "its waker is gone with it");
    // Real time: a wake-up has its chance to go wrong.
    thread::sleep(Duration::from_millis(30));
    assert_eq!(count.wakes(), 0);
}
