//! Timeouts around bodies, futures and system calls, and the sleeps behind them.

use std::future::Future;
use std::io::{self, ErrorKind, Read};
use std::pin::pin;
use std::sync::mpsc;
use std::task::Context;
use std::time::{Duration, Instant};

use crate::colours::{Count, in_every_colour, poll_once};
use crate::given::on;
use osier::time::Sleep;
use osier::{Elapsed, select_async, spawn_future};

const GENEROUS: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(10);

#[test]
fn a_body_with_a_limit_gives_its_value_its_error_or_elapsed() {
    fn within<T>(limit: Duration, body: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        osier::timeout(limit, body)?
    }
    on(1).run(|| {
        assert_eq!(within(GENEROUS, || Ok(4)).unwrap(), 4);
        let failed = within(GENEROUS, || Err::<(), _>(ErrorKind::NotFound.into()));
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::NotFound);

        let (mut nobody_writes, _writer) = osier::net::UnixStream::pair().unwrap();
        let begin = Instant::now();
        let late = within(SHORT, || nobody_writes.read(&mut [0])).unwrap_err();
        assert!(begin.elapsed() >= SHORT);
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        assert!(late.get_ref().is_some_and(|inner| inner.is::<Elapsed>()), "{late:?}");
    });
}

#[test]
fn a_future_with_a_limit_does_the_same() {
    in_every_colour(|| async {
        let limited = async |limit: Duration, work: Duration| {
            select_async! {
                () = Sleep::new(work) => true,
                timeout limit => false,
            }
        };
        assert!(limited(GENEROUS, Duration::from_millis(1)).await);
        assert!(!limited(Duration::from_millis(1), LONG).await);
        assert!(!limited(Duration::ZERO, LONG).await);
    });
}

#[test]
fn what_is_ready_at_its_first_poll_has_no_limit() {
    in_every_colour(|| async {
        for limit in (0..10).map(|n| n * Duration::from_millis(50)) {
            let won = select_async! {
                value = async { 7 } => Some(value),
                timeout limit => None,
            };
            assert_eq!(won, Some(7), "{limit:?}");
        }
    });
    on(1).run(|| {
        for limit in [Duration::ZERO, SHORT] {
            assert_eq!(
                osier::timeout(limit, || osier::block_on(async { 7 })),
                Ok(7),
                "{limit:?}"
            );
        }
    });
}

#[test]
fn sleeps_of_any_length_are_never_early() {
    let lengths = [0, 1, 999, 100_000, 999_999, 1_000_000, 1_000_001, 3_100_000].map(Duration::from_nanos);
    in_every_colour(move || async move {
        for length in lengths {
            let begin = Instant::now();
            Sleep::new(length).await;
            assert!(begin.elapsed() >= length, "{length:?} after {:?}", begin.elapsed());
        }
    });
    let blocking = move || {
        for length in lengths {
            let begin = Instant::now();
            // Never early, on the machine's clock.
            osier::sleep(length);
            assert!(begin.elapsed() >= length, "{length:?} after {:?}", begin.elapsed());
        }
    };
    blocking();
    on(1).run(blocking);
}

#[test]
fn a_sleep_goes_on_in_the_task_it_is_given_to() {
    let runtime = on(2);
    for first_polled_by_a_task in [true, false] {
        let begin = Instant::now();
        let mut sleep = Sleep::new(2 * SHORT);
        if first_polled_by_a_task {
            let polled = runtime.spawn_future(async move {
                assert!(poll_once(pin!(&mut sleep)).is_pending());
                Some(sleep)
            });
            sleep = polled.join().unwrap().unwrap();
        } else {
            assert!(poll_once(pin!(&mut sleep)).is_pending());
        }
        let (give, taken) = mpsc::channel();
        drop(runtime.spawn_future(async move {
            let handed_on = spawn_future(sleep);
            handed_on.await.unwrap();
            give.send(begin.elapsed()).unwrap();
        }));
        assert!(taken.recv_timeout(GENEROUS).unwrap() >= 2 * SHORT);
    }
}

#[test]
fn a_sleep_that_is_reset_ends_at_its_new_time_alone() {
    // Sooner, for a timer that would take an hour.
    in_every_colour(|| async {
        let mut sleep = Sleep::new(LONG);
        assert!(poll_once(pin!(&mut sleep)).is_pending());
        let due = Instant::now() + Duration::from_millis(3);
        sleep.reset(due);
        assert_eq!(sleep.deadline(), Some(due));
        (&mut sleep).await;
        assert!(Instant::now() >= due && sleep.is_elapsed());
        // Once more, for a timer that has ended.
        sleep.reset(Instant::now() + Duration::from_millis(2));
        assert!(!sleep.is_elapsed());
        sleep.await;
    });
    // Later: the waiter does not wake at its former deadline.
    let (count, waker) = Count::new();
    let before = Instant::now() + 10 * SHORT;
    let mut sleep = pin!(Sleep::until(before));
    let first = sleep.as_mut().poll(&mut Context::from_waker(&waker));
    sleep.as_mut().get_mut().reset(Instant::now() + LONG);
    let second = sleep.as_mut().poll(&mut Context::from_waker(&waker));
    if Instant::now() >= before {
        return println!("skipped in part: this machine slept through the time");
    }
    assert!(first.is_pending() && second.is_pending());
    osier::time::sleep_until(before + SHORT);
    assert!(sleep.poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(count.wakes(), 0);
}

#[test]
fn a_sleep_wakes_the_last_waker_it_was_given() {
    let [(old, old_waker), (new, new_waker)] = [Count::new(), Count::new()];
    let mut sleep = pin!(Sleep::new(2 * SHORT));
    let first = sleep.as_mut().poll(&mut Context::from_waker(&old_waker));
    let second = sleep.as_mut().poll(&mut Context::from_waker(&new_waker));
    if first.is_ready() || second.is_ready() {
        return println!("skipped: this machine slept through the time");
    }
    new.wait_beyond(0);
    assert_eq!((old.wakes(), new.wakes()), (0, 1));
    assert!(sleep.poll(&mut Context::from_waker(&new_waker)).is_ready());
}

/// Deadlines that the clock can hardly tell, and those beyond it: nothing overflows, nothing is late because of them, and they end as others do.
#[test]
fn far_deadlines_wait_and_are_cancelled() {
    // Beyond 2^64 nanoseconds, beyond 2^64 milliseconds, and at the end of what `Instant` can tell.
    let far = [1 << 40, u64::MAX / 1000, u64::MAX / 4, i64::MAX as u64, u64::MAX].map(Duration::from_secs);
    let waits = |limit: Duration| {
        osier::scope(|scope| {
            let (nobody_writes, _writer) = osier::net::UnixStream::pair().unwrap();
            nobody_writes.set_read_timeout(Some(limit)).unwrap();
            let (_sender, mut receiver) = osier::sync::mpsc::channel::<()>(1);
            let fibers = [
                scope.spawn_local(move || osier::sleep(limit)),
                scope.spawn_local(move || osier::timeout(limit, || osier::sleep(Duration::MAX)).unwrap()),
                scope.spawn_local(move || osier::block_on(Sleep::new(limit))),
                scope.spawn_local(move || receiver.recv_timeout(limit).unwrap()),
                scope.spawn_local(move || {
                    let mut socket = nobody_writes;
                    socket.read(&mut [0]).unwrap_err();
                    osier::sleep(limit);
                }),
            ];
            osier::sleep(Duration::from_millis(2));
            let task = osier::spawn_future(async move { Sleep::new(limit).await });
            osier::sleep(Duration::from_millis(2));
            assert!(!task.is_finished(), "{limit:?}");
            assert!(osier::block_on(task.cancel()).is_none());
            for fiber in fibers {
                assert!(!fiber.is_finished(), "{limit:?}");
                fiber.cancel();
                assert!(osier::Cancelled::is_payload(&*fiber.join().unwrap_err()));
            }
        });
    };
    on(1).run(|| far.into_iter().for_each(waits));
    crate::given::timeless(1).run(|| far.into_iter().for_each(waits));
}
